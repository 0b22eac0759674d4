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
Run all checks without ROS in the arm64 guest.

``python arm64_checks.py PART ...``, each PART one of :data:`PARTS`. Results go to
``$RIG_OUT/PART.json``: by check a traceback, nothing, or why this kernel can't run it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import gc
import json
import os
from pathlib import Path
import sys
import time
import traceback
from typing import Any

_TEST = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_TEST), str(_TEST.parent)]

from rig.guest import harness  # noqa: E402 - needs the path
from rig.guest.kernel_api import HEAP_EXPORTERS, heaps_there  # noqa: E402
from rig.guest.run_checks import checks_of  # noqa: E402

#: Suites of run_checks.py.
SUITES = ('contract', 'memory', 'camera')
#: Modules that need ROS, or dma-heaps.
_WITHOUT = ('graph_faults', 'doctor_checks')
#: Test files of decoding, below ``test/``; they run unchanged.
DECODE = tuple(
    f'detection/heads/test_{name}.py'
    for name in ('head_kinds', 'levels', 'oriented', 'suppression')
)
# Examples of each property; the guest is a dozen times slower than a usual machine.
_EXAMPLES = 2
#: For the compiled steps: outputs of models, and mutated packets of a producer.
_CASES, _PACKETS = 60, 2_000


def run_checks(part: str) -> bool:
    """Run a part's checks in the short form; those per heap run for present heaps."""
    known = checks_of(part, _WITHOUT)
    absent = [heap for heap in HEAP_EXPORTERS if heap not in heaps_there()]
    without = {
        name: f'{harness.NOT_HERE}this kernel has no {heap}'
        for name in known
        for heap in absent
        if heap in name
    }
    found = {
        name: check
        for name, check in known.items()
        if name not in without and name not in harness.LONG_CHECKS
    }
    results = Path(os.environ['RIG_OUT']) / f'{part}.json'
    good = harness.run(found, results)
    results.write_text(json.dumps(without | json.loads(results.read_text()), indent=1))
    return good


def run_decode(part: str) -> bool:
    """Run the tests of decoding with pytest; each is a check."""
    from hypothesis import HealthCheck, settings
    import pytest

    outcome: dict[str, str] = {}

    def record(report: Any) -> None:
        """Record a test's phase, as a hook of pytest."""
        if report.skipped:
            outcome[report.nodeid] = f'{harness.NOT_HERE}{report.longrepr[2]}'
        elif report.failed or report.when == 'call':
            outcome[report.nodeid] = report.longreprtext

    settings.register_profile(
        'guest',
        deadline=None,
        suppress_health_check=list(HealthCheck),
        derandomize=True,
        max_examples=_EXAMPLES,
    )
    settings.load_profile('guest')
    plugin = type('Results', (), {'pytest_runtest_logreport': staticmethod(record)})()
    options = [
        '-q',
        '--noconftest',
        '-p',
        'no:cacheprovider',
        '-o',
        'addopts=',
        '-c',
        str(_TEST.parent / 'pyproject.toml'),
    ]
    code = pytest.main([*options, *(str(_TEST / path) for path in DECODE)], plugins=[plugin])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        outcome['pytest'] = f'pytest ended with {code!r}'
    (Path(os.environ['RIG_OUT']) / f'{part}.json').write_text(json.dumps(outcome, indent=1))
    return code == pytest.ExitCode.OK


def run_native(part: str) -> bool:
    """Compare the compiled steps of decoding and of the link with plain Python."""
    sys.path += [str(_TEST / 'link/shared_memory'), str(_TEST / 'link/wire')]
    from native import two_forms
    import two_receivers

    from zc_perception.native import compiled, FORM

    def find_the_same() -> None:
        assert compiled is not None, FORM
        assert two_forms.compare(7, _CASES, compiled) > 500

    def receive_the_same() -> None:
        assert compiled is not None, FORM
        assert two_receivers.compare(7, _PACKETS, compiled)['frame'] > 100

    found = {'both forms find the same': find_the_same, 'and receive the same': receive_the_same}
    return harness.run(found, Path(os.environ['RIG_OUT']) / f'{part}.json')


def run_verify(part: str) -> bool:
    """Let ``zc_verify`` check graphs, sabotaged or not; the host compares the verdicts."""
    from rig.guest import plain_graph, verifier

    out = Path(os.environ['RIG_OUT'])
    outcomes = verifier.record(
        plain_graph.cases(os.environ['RIG_CASES'].split(), out), out / f'{part}.json'
    )
    return not any('error' in outcome for outcome in outcomes.values())


PARTS: Mapping[str, Callable[[str], bool]] = {
    **dict.fromkeys(SUITES, run_checks),
    'decode': run_decode,
    'native': run_native,
    'verify': run_verify,
}


def main(parts: Sequence[str]) -> int:
    """Run all parts, even after a failure."""
    good = True
    for part in parts:
        began = time.monotonic()
        try:
            good &= PARTS[part](part)
        except Exception:
            good = False
            print(f'{part} failed:\n{traceback.format_exc()}', flush=True)
        gc.collect()
        print(f'{time.monotonic() - began:7.2f} s  all of {part}', flush=True)
    return 0 if good else 1


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
