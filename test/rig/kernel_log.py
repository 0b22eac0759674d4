# Copyright 2026 The zc_perception authors
# SPDX-License-Identifier: Apache-2.0
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.

"""
Lines of a kernel log that report an error.

A run whose command succeeded but whose kernel complained has failed: the rig exists to find bugs
such as a refcount underflow or a KFENCE report.
"""

from __future__ import annotations

import re

#: A line that matches one of these is a complaint ...
_COMPLAINTS = re.compile(
    '|'.join(
        (
            r'\bBUG\b',
            r'\bWARNING\b',
            r'\bOops\b',
            r'\bKFENCE\b|\bKASAN\b|\bUBSAN\b|\bKCSAN\b',
            r'refcount_t\b',
            r'general protection fault',
            r'[Uu]nable to handle',
            r'\bINFO: task .* blocked for more than',
            r'\b(?:self-)?detected (?:stalls?|expedited stalls?)\b',
            r'soft lockup|hard LOCKUP',
            r'list_(?:add|del) corruption',
            r'use-after-free|double free|slab-out-of-bounds',
            r'possible (?:circular|recursive|irq lock) ',
            r'scheduling while atomic|sleeping function called',
            r'\bDMA-API:',
            r'\bDMAR: (?:\[.*\] )?.*[Ff]ault',
            r'cannot create duplicate filename',
            r'Kernel panic',
            r'\bCall Trace:',
        )
    )
)

#: ... unless it matches one of these, which are known and not caused by us.
_HARMLESS = re.compile(
    '|'.join(
        (
            r'Spectre V2 : WARNING: Unprivileged eBPF',  # a configuration note at boot
            r'\bDMAR: Fault (?:event|status)',  # register names in the probe messages of the IOMMU
        )
    )
)

# ... or this: vivid sleeps until its next frame is due, and computes a negative time if the guest
# is too slow.
_VIVID_LATE = re.compile(
    r'^[^\n]*schedule_timeout: wrong timeout value \w+\n(?:(?!</TASK>)[^\n]*\n)*?'
    r'[^\n]*\bvivid_thread_\w+(?:(?!</TASK>)[^\n]*\n)*[^\n]*</TASK>',
    re.M,
)

#: From here on the rig itself requested backtraces of a command that did not end.
_SYSRQ = 'sysrq: Show Blocked State'


def complaints(log: str) -> list[str]:
    """Return the lines of `log` that no healthy kernel prints, in their order."""
    log = _VIVID_LATE.sub('', log.partition(_SYSRQ)[0])
    return [
        line
        for line in log.splitlines()
        if _COMPLAINTS.search(line) and not _HARMLESS.search(line)
    ]


def died_of_emulation(log: str) -> bool:
    """
    Return whether the guest hit a breakpoint that its kernel had already removed.

    The kernel sets it for a moment to rewrite code, and ensures that no processor can hit it;
    QEMU's translated code breaks that rule. It is no fault of ours.
    """
    return 'Oops: int3' in log
