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

"""Fixtures for tests with the rig: the rig, its boots with many checks, and a summary of boots."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
import json
import os
from pathlib import Path
import subprocess
import sys
from typing import Any

from camera.gstreamer_process import gstreamer
from environment.gstreamer_root import with_environment
from environment.paths import ROOT
from link.unixfd.unixfd_kit import gst
from long_form import LONG
import pytest

from . import RigUnavailable
from .graph import compile_for_guest, ENVIRONMENT, graph_words, GUEST, read_runs, TIMEOUT_S
from .guest import link_kit, run_checks
from .guest.graph_variants import MEMORY_MIB, VARIANTS, VIVID
from .guest.harness import LONG_CHECKS
from .machine import RigResult
from .rig import Rig
from .verdicts import RUN

#: Red zones and poison detect use after free; full preemption detects races.
STRICT = 'slub_debug=FZP,kmalloc-* preempt=full'
MEMORY_SUITES, CAMERA_SUITES = 'contract,memory,gstreamer', 'camera'
#: ``make rig`` runs 300 frames of each; the tests run fewer, to save time.
WANTED = {
    name: variant.frames if LONG else min(variant.frames, 12) for name, variant in VARIANTS.items()
}
#: Variants that only the long form and ``make rig`` run.
LONG_RUNS = ('uncached', 'document')
#: The suites of each boot, and its result.
_BOOTS: list[tuple[str, RigResult]] = []


@pytest.fixture(scope='session')
def rig() -> Rig:
    """Return a prepared rig; without one, skip the tests, or fail if it is required."""
    rig = Rig()
    try:
        rig.prepare()
    except RigUnavailable as error:
        if os.environ.get('ZC_RIG') == 'required':
            raise
        pytest.skip(f'no kernel rig here: {error}')
    return rig


@dataclass(frozen=True)
class Boot:
    """
    The run, and the outcome of each check: a traceback, or empty.

    :ivar found: what the guest itself observed, by variant of the graph or case of ``zc_verify``.
    """

    result: RigResult
    outcome: dict[str, Any]
    found: dict[str, Any] = field(default_factory=dict)

    def must_hold(self, name: str) -> None:
        """Fail the test if the guest did not reach this check, or with the check's traceback."""
        missing = f'the guest did not get to this check\n{self.result.report()}'
        if text := self.outcome.get(name, missing):
            pytest.fail(text, pytrace=False)

    def kernel_must_be_content(self) -> None:
        """Fail the test if the kernel complained, whatever the checks say."""
        assert not self.result.complaints, self.result.report()
        assert self.result.rc in (0, 1), self.result.report()

    def case(self, name: str) -> dict[str, Any]:
        """Return the outcome of a case of ``zc_verify``, which must have run to its end."""
        found: dict[str, Any] = self.found.get(name) or self.found.get('sabotaged', {})
        if name not in self.found or 'error' in found:
            error = found.get('error', '')
            pytest.fail(f'{name} did not run: {error}\n{self.result.report()}', pytrace=False)
        return found


def gstreamer_for_guest() -> dict[str, str]:
    """Return a guest's GStreamer environment; the plugin register is made here and kept."""
    environment = gstreamer().environment()
    register = (
        'from zc_perception.camera.gstreamer.abi import load_gstreamer; assert '
        'load_gstreamer().has_element("v4l2src")'
    )
    subprocess.run(
        [sys.executable, '-c', register], env=with_environment(environment), cwd=ROOT, check=True
    )
    return environment


def checks_of(suites: str) -> list[Any]:
    """Return test parameters for the suites' checks; mark those of the long form."""
    names = [name for suite in suites.split(',') for name in run_checks.checks_of(suite)]
    return marked(names, LONG_CHECKS.__contains__)


def marked(names: Iterable[str], is_long: Callable[[str], bool]) -> list[Any]:
    """Return test parameters, marked if only the long form runs them."""
    return [
        pytest.param(name, marks=[pytest.mark.long] if is_long(name) else []) for name in names
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
    _BOOTS.append((suites, result))
    try:
        return Boot(result, json.loads((out / run_checks.RESULTS).read_text(encoding='utf-8')))
    except FileNotFoundError:
        pytest.fail(result.report(), pytrace=False)


@pytest.fixture(scope='session')
def memory_boot(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> Boot:
    """
    Boot for driver, memory, links and accelerator, and then for the whole node graph.

    The C consumer is compiled here. With one processor, threads switch wherever the kernel is
    interrupted (``preempt=full``).
    """
    out = tmp_path_factory.mktemp('memory')
    # In the short form, test_rig_verify.py alone checks zc_verify's verdict on such a graph.
    variants = graph_words(
        {name: frames for name, frames in WANTED.items() if LONG or name not in LONG_RUNS},
        verify=LONG,
    )
    consumer = link_kit.build_consumer(tmp_path_factory.mktemp('wire'), ())
    env = {**ENVIRONMENT, **gstreamer_for_guest(), link_kit.PROGRAM: str(consumer)}
    cpus = 2 if LONG else 1
    boot = boot_suites(rig, out, MEMORY_SUITES, *variants, append=STRICT, cpus=cpus, env=env)
    return replace(boot, found=read_runs(out))


@pytest.fixture(scope='session')
def camera_boot(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> Boot:
    """Boot for ``zc_verify``'s verdicts, then V4L2 cameras, the doctor and faults of the graph."""
    out = tmp_path_factory.mktemp('camera')
    if 'unixfd' in RUN:
        # makes the register of plugins
        gst('fakesrc', 'num-buffers=1', '!', 'fakesink').communicate()
    env = {**ENVIRONMENT, **gstreamer_for_guest()}
    boot = boot_suites(rig, out, CAMERA_SUITES, '--verify', *RUN, env=env)
    file = out / 'verify.json'
    cases = json.loads(file.read_text(encoding='utf-8')) if file.exists() else {}
    return replace(boot, found=cases)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print for each boot its suites, how long it took, and how often the kernel complained."""
    if _BOOTS:
        terminalreporter.section('kernel rig')
    for suites, result in _BOOTS:
        complaints = f'{len(result.complaints)} complaints of the kernel'
        terminalreporter.write_line(f'{suites:24s} {result.wall_s:7.1f} s  {complaints}')
