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
Read what the kernel and ``/proc`` say about running nodes and their buffers.

No file in this folder reads the nodes' frame logs.

Each reader returns its figures, or an :class:`Unreadable`. All readers take the roots of the trees
(``/proc``, debugfs, tracefs) as parameters, so that tests can pass folders of their own.

:mod:`~zc_perception.verify.evidence.kernel_events` reads events,
:mod:`~zc_perception.verify.evidence.buffers` finds dma-bufs and the processes that can touch a
frame, :mod:`~zc_perception.verify.evidence.copies` finds copies.
"""

from __future__ import annotations

from dataclasses import dataclass
import errno
import os
from pathlib import Path

from zc_perception.observe.processes import as_root


@dataclass(frozen=True)
class Unreadable:
    """
    A source that could not be read.

    A check with an unreadable source never passes.

    :param source: what could not be read: a file, an event, a tool.
    :param reason: why it could not be read.
    :param next_step: what the user can do about it.
    """

    source: str
    reason: str
    next_step: str

    def __str__(self) -> str:
        return f'{self.source}: {self.reason}; {self.next_step}'

    def as_json(self) -> dict[str, str]:
        """Return this object as a dictionary for ``result.json``."""
        return {'source': self.source, 'reason': self.reason, 'next_step': self.next_step}


def unreadable_file(path: Path, error: OSError, absent: str, source: str = '') -> Unreadable:
    """
    Return an :class:`Unreadable` that describes a file that could not be opened or read.

    :param absent: the advice if the file doesn't exist.
    """
    number = error.errno or 0
    source = source or str(path)
    if number in (errno.EACCES, errno.EPERM):
        return Unreadable(source, f'{os.strerror(number)} ({path})', as_root())
    if number in (errno.ENOENT, errno.ENOTDIR, errno.ENODEV):
        return Unreadable(source, f'{path} is not there', absent)
    return Unreadable(
        source, f'{path}: {os.strerror(number) if number else error}', 'see the kernel log (dmesg)'
    )
