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
The kernel rig: a real Linux kernel with real dma-bufs, in QEMU, without KVM or root.

    from rig.rig import Rig
    result = Rig().run(["/usr/bin/python3", "-I", "script.py"], timeout=120, out_dir=tmp_path)
    result.check()

``test/`` must be on ``sys.path``, for this package and for ``environment``, which fetches the
kernel. The guest imports this package too, so it imports nothing else.
"""

from __future__ import annotations

import os
import sys

#: The exit status that test runners (Automake, Meson) treat as "skipped".
RC_UNAVAILABLE = 77


class RigUnavailable(Exception):
    """
    This machine cannot run the rig: QEMU, a compiler or the kernel packages are missing.

    Tests turn it into a skip, or into an error with ``ZC_RIG=required``; never into a pass.
    """


class RigError(Exception):
    """The rig itself failed: the module did not build, or the guest did not boot."""


def tell(error: RigUnavailable | RigError) -> int:
    """Print why the program ends; return its code: a missing rig fails only if required."""
    absent = isinstance(error, RigUnavailable)
    print(f'rig: {"not run" if absent else "error"}: {error}', file=sys.stderr)
    return RC_UNAVAILABLE if absent and os.environ.get('ZC_RIG') != 'required' else 1
