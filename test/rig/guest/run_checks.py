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
Run in the guest the checks of some suites, or of none.

    python run_checks.py [SUITE][,SUITE] [PART OF A NAME ...] [VARIANT:FRAMES ...] [--verify CASE]

Without a part of a name all checks of this form (``ZC_LONG``) run. Results go to
``$RIG_OUT/checks.json``. ``verify_run`` runs the cases before, ``graph_run`` the variants
afterwards, all in this process, since imports are slow here.
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

#: File in ``$RIG_OUT`` with the outcome of each check.
RESULTS = 'checks.json'
#: The modules of each suite, in the order of running.
SUITES: dict[str, tuple[str, ...]] = {
    # Every promise of axl_ioctl.h and of the virtual device; needs only the standard library.
    'contract': ('check_import', 'check_jobs', 'check_lifetime'),
    # package_negotiation comes last: the heap that it makes stays, and results are taken from it.
    'memory': ('package_memory', 'package_link', 'package_negotiation'),
    'camera': ('camera_streams', 'doctor_checks', 'graph_faults'),
    'gstreamer': ('gstreamer_streams',),
    'usb': ('usb_checks',),
}


def checks_of(suite: str, without: Sequence[str] = ()) -> dict[str, harness.Check]:
    """Return a suite's checks by name, except those of the modules in *without*."""
    modules = [module for module in SUITES[suite] if module not in without]
    for module in modules:
        importlib.import_module(f'rig.guest.{module}')
    return {
        name: check
        for module in modules
        for name, check in harness.CHECKS.items()
        if name.startswith(f'{module}: ')
    }


def main(suites: Sequence[str], arguments: Sequence[str]) -> int:
    """Run cases, checks and variants, each even after a failure of the others."""
    words = [*arguments, '--verify']
    cases = words[words.index('--verify') + 1 : -1]
    words = words[: words.index('--verify')]
    if cases:
        from rig.guest import verify_run

        verify_run.main(cases)
    parts = [word for word in words if ':' not in word]
    checks = {name: check for suite in suites for name, check in checks_of(suite).items()}
    left_out = set() if LONG or parts else harness.LONG_CHECKS
    chosen = {
        name: check
        for name, check in checks.items()
        if name not in left_out and any(part in name for part in parts or [''])
    }
    for suite in suites:
        for module in SUITES[suite]:
            getattr(sys.modules[f'rig.guest.{module}'], 'warm_up', lambda: None)()
    good = harness.run(chosen, Path(os.environ['RIG_OUT']) / RESULTS)
    if variants := [word for word in words if ':' in word]:
        from rig.guest import graph_run

        graph_run.main(variants)
    return 0 if good else 1


if __name__ == '__main__':
    sys.exit(main([name for name in sys.argv[1].split(',') if name], sys.argv[2:]))
