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
Run in the guest the checks of one suite.

``python run_checks.py SUITE [PART OF A NAME ...] [VARIANT:FRAMES ...]``.

Without a part of a name all checks run that this form has (``ZC_LONG``). Results go to
``$RIG_OUT/SUITE.json``. Variants are then run by ``graph_run``, in this process, since imports are
slow here.
"""

from __future__ import annotations

from collections.abc import Sequence
import importlib
import os
from pathlib import Path
import sys

_TEST = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_TEST), str(_TEST.parent)]

from long_form import LONG  # noqa: E402 - needs the path
from rig.guest import harness  # noqa: E402

#: The modules whose checks a suite has, in the order in which they run.
SUITES: dict[str, tuple[str, ...]] = {
    # Every promise of axl_ioctl.h and of the virtual device; needs the standard library alone.
    'contract': (
        'check_import',
        'check_pixels',
        'check_fences',
        'check_jobs',
        'check_variants',
        'check_removal',
        'check_lifetime',
        'check_concurrency',
        'check_camera',
    ),
    # The heap that package_which_heap makes stays, and results are taken from it: it comes last.
    'memory': (
        'package_memory',
        'package_sync',
        'package_fences',
        'package_expbuf',
        'package_pool',
        'package_negotiation',
        'package_lifetime',
        'package_link',
        'package_link_deaths',
        'package_link_fences',
        'package_link_layouts',
        'package_foreign',
        'package_which_heap',
    ),
    'accelerator': ('package_npu',),
    'camera': (
        'camera_streams',
        'camera_faults',
        'doctor_checks',
        'publisher_fences',
        'graph_faults',
    ),
    'gstreamer': ('gstreamer_streams',),
    'usb': ('usb_checks',),
}


def checks_of(suite: str, without: Sequence[str] = ()) -> dict[str, harness.Check]:
    """All checks of a suite, by name; *without* those of some modules."""
    modules = [module for module in SUITES[suite] if module not in without]
    for module in modules:
        importlib.import_module(f'rig.guest.{module}')
    return {
        name: check
        for module in modules
        for name, check in harness.CHECKS.items()
        if name.startswith(f'{module}: ')
    }


def main(suite: str, arguments: Sequence[str]) -> int:
    """Run them; then the graph if asked for, whatever they say."""
    variants = [argument for argument in arguments if ':' in argument]
    parts = [argument for argument in arguments if ':' not in argument]
    checks = checks_of(suite)
    if parts:
        chosen = {
            name: check for name, check in checks.items() if any(part in name for part in parts)
        }
    else:
        chosen = {
            name: check
            for name, check in checks.items()
            if LONG or name not in harness.LONG_CHECKS
        }
    for module in SUITES[suite]:
        getattr(sys.modules[f'rig.guest.{module}'], 'warm_up', lambda: None)()
    good = harness.run(chosen, Path(os.environ['RIG_OUT']) / f'{suite}.json')
    if variants:
        from rig.guest import graph_run

        graph_run.main(variants)
    return 0 if good else 1


if __name__ == '__main__':
    sys.exit(main(sys.argv[1], sys.argv[2:]))
