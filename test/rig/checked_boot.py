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

"""Helpers for tests that run many checks in one boot."""

from __future__ import annotations

import compileall
from dataclasses import dataclass
import json
from pathlib import Path
import subprocess
import sys
from typing import Any

import pytest

from .guest import run_checks
from .guest.graph_variants import MEMORY_MIB, VIVID
from .guest.harness import LONG_CHECKS
from .machine import RigResult
from .rig import Rig

# Time limit in seconds of a boot's command, enough for a machine that is several times too slow.
# Speed is reported as figures, and is no check.
TIMEOUT_S = 3000.0

#: Red zones and poison detect use after free; full preemption detects races.
STRICT = 'slub_debug=FZP,kmalloc-* preempt=full'

GUEST = Path(__file__).parent / 'guest'
_TEST = GUEST.parents[1]
_BYTE_CODE = (GUEST.parent, _TEST / 'nodes', _TEST / 'link', _TEST.parent / 'zc_perception')


@dataclass(frozen=True)
class Boot:
    """The run, and the outcome of each check: a traceback, or empty."""

    result: RigResult
    outcome: dict[str, Any]

    def must_hold(self, name: str) -> None:
        """Fail the test if the guest did not reach this check, or with the check's traceback."""
        if name not in self.outcome:
            pytest.fail(
                f'the guest did not get to this check\n{self.result.report()}', pytrace=False
            )
        if self.outcome[name]:
            pytest.fail(self.outcome[name], pytrace=False)

    def kernel_must_be_content(self) -> None:
        """Fail the test if the kernel complained, whatever the checks say."""
        assert not self.result.complaints, self.result.report()
        assert self.result.rc in (0, 1), self.result.report()


def compile_for_guest() -> None:
    """Compile to byte code: the guest can't keep it, and compiles a dozen times slower."""
    for folder in _BYTE_CODE:
        compileall.compile_dir(folder, quiet=2)


def gstreamer_for_guest() -> dict[str, str]:
    """Return a guest's GStreamer environment; the plugin register is made here and kept."""
    from camera.gstreamer_process import gstreamer
    from environment.gstreamer_root import with_environment

    environment = gstreamer().environment()
    register = (
        'from zc_perception.camera.gstreamer.abi import load_gstreamer; assert '
        'load_gstreamer().has_element("v4l2src")'
    )
    subprocess.run(
        [sys.executable, '-c', register],
        env=with_environment(environment),
        cwd=_TEST.parent,
        check=True,
    )
    return environment


def checks_of(suites: str) -> list[Any]:
    """Return test parameters for the suites' checks; mark those of the long form."""
    return [
        pytest.param(name, marks=[pytest.mark.long] if name in LONG_CHECKS else [])
        for suite in suites.split(',')
        for name in run_checks.checks_of(suite)
    ]


def boot_suites(rig: Rig, out: Path, suites: str, *arguments: str, **options: Any) -> Boot:
    """Run the checks of comma-separated *suites* in one boot; *options* are of :meth:`Rig.run`."""
    compile_for_guest()
    result = rig.run(
        [sys.executable, str(GUEST / 'run_checks.py'), suites, *arguments],
        timeout=TIMEOUT_S,
        out_dir=out,
        **{'vivid': VIVID, 'memory_mib': MEMORY_MIB, **options},
    )
    try:
        return Boot(result, json.loads((out / run_checks.RESULTS).read_text(encoding='utf-8')))
    except FileNotFoundError:
        pytest.fail(result.report(), pytrace=False)
