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
``make rig-arm64``: everything below ROS on Debian's arm64 kernel, behind an SMMU.

It writes ``build/rig-arm64/result.json``. The exit code is 0 only if no check failed and
``zc_verify`` found exactly the expected faults in each graph.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
import json
import os
from pathlib import Path
import sys
import time
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rig import RigError, RigUnavailable, tell  # noqa: E402
from rig.arm64 import Arm64Rig, compile_for_guest, COMPILER, PYTHON  # noqa: E402
from rig.guest import graph_variants  # noqa: E402
from rig.guest.harness import NOT_HERE  # noqa: E402
from rig.guest.link_kit import build_consumer, PROGRAM  # noqa: E402
from rig.guest.verifier import AFTERWARDS  # noqa: E402
from rig.machine import RigResult  # noqa: E402
from rig.verdicts import wrong_verdict  # noqa: E402

GUEST = Path(__file__).parent / 'guest'
_TIMEOUT_S = 1800.0


#: By guest, its parts of ``arm64_checks.py``. Each guest waits for a third of its time, so three
#: run; the longest comes first.
SHARES = {
    'cameras': ('verify', 'camera'),
    'memory': ('memory', 'decode'),
    'contract': ('contract', 'native'),
}
#: The cases for ``zc_verify`` there, and which checks it must find false.
VERIFIED = (
    'nothing', 'maps', 'copies_with_numpy', 'submits_an_old_decoy', 'imports_twice',
    'imports_decoys_alone', 'known_exporter', 'unknown_exporter',
)  # fmt: skip
#: Parts that the rig runs on amd64 but not here, with the reason.
NOT_RUN = {
    'the node graph, its faults, parameters, doctor and launch files': (
        'rclpy has no wheels for aarch64'
    ),
    'zc_verify on nodes in two processes': (
        'the nodes need rclpy; the part "memory" has the shared-memory link between processes'
    ),
    'GStreamer cameras': 'GStreamer is not among the packages of the guest',
    'the dma-heaps system and linux,cma': (
        "Debian's arm64 kernel has no CONFIG_DMABUF_HEAPS; what works with any heap takes udmabuf"
    ),
    'weak ordering of memory': (
        "QEMU translates for this machine's processor, whose order is "
        'strong: a missing barrier cannot show'
    ),
}


def checks_of(part: str, file: Path) -> dict[str, str]:
    """Return the outcome of each check: a traceback, why it can't run there, or empty."""
    if not file.is_file():
        return {part: 'the guest did not get to it'}
    outcome: dict[str, Any] = json.loads(file.read_text(encoding='utf-8'))
    if part != 'verify':
        return outcome
    missing = outcome.get('sabotaged', {'error': 'the guest did not get to it'})
    wrong = {}
    for name in (*VERIFIED, AFTERWARDS):
        one = outcome.get(name, missing)
        if name in VERIFIED:
            wrong[name] = one.get('error') or wrong_verdict(name, one)
        else:
            left = {what: one.get(what) for what in ('buffers', 'instances')}
            left |= one.get('left_on_device', {})
            found = f'left behind: {left}' if any(left.values()) else ''
            wrong[name] = one.get('error') or found
    return {f'zc_verify: {name}': text for name, text in wrong.items()}


def _consumer(rig: Arm64Rig) -> Path:
    """Return the wire protocol's C consumer, compiled for the guest; it needs no libraries."""
    assert rig.tools is not None
    folder = rig.folder / 'consumer'
    folder.mkdir(exist_ok=True)
    with mock.patch.dict(os.environ, {**rig.tools.environment, 'CC': COMPILER}):
        return build_consumer(folder, ['-static'])


def _boot(rig: Arm64Rig, name: str, out: Path, variables: Mapping[str, str]) -> RigResult:
    parts = SHARES[name]
    command = [PYTHON, str(GUEST / 'arm64_checks.py'), *parts]
    result = rig.run(
        command,
        timeout=_TIMEOUT_S,
        out_dir=out / name,
        vivid=graph_variants.VIVID,
        env=variables,
        memory_mib=graph_variants.MEMORY_MIB,
    )
    print(
        (
            f'rig: guest {name}: {", ".join(parts)}: {result.wall_s:.1f} s, up after '
            f'{result.boot_s} s'
        ),
        flush=True,
    )
    return result


def result_of(results: Mapping[str, RigResult], out: Path) -> dict[str, Any]:
    """Return the content of ``result.json`` about the started guests."""
    parts = {
        part: checks_of(part, out / name / f'{part}.json')
        for name, parts in SHARES.items()
        for part in parts
    }
    checks = {
        f'{part}: {check}': text for part, found in parts.items() for check, text in found.items()
    }
    not_here = {
        check: text.removeprefix(NOT_HERE)
        for check, text in checks.items()
        if text.startswith(NOT_HERE)
    }
    failed = {check: text for check, text in checks.items() if text and check not in not_here}
    complaints = [line for result in results.values() for line in result.complaints]
    ended = all(result.rc in (0, 1) for result in results.values())
    return {
        'pass': ended and not failed and not complaints,
        'checks': len(checks) - len(not_here),
        'failed': failed,
        'not_here': not_here,
        'not_run': NOT_RUN,
        'by_part': {part: len(found) for part, found in parts.items()},
        'kernel_complaints': complaints,
        'wall_s': {name: round(result.wall_s, 1) for name, result in results.items()},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--out', type=Path, default=Path('build/rig-arm64'))
    options = parser.parse_args()
    began = time.monotonic()
    rig = Arm64Rig()
    try:
        kernel = rig.prepare()
        rig.compile_steps()
        compile_for_guest(GUEST.parents[1], GUEST.parents[2] / 'zc_perception')
        variables = {
            PROGRAM: str(_consumer(rig)),
            'RIG_CASES': ' '.join(VERIFIED),
            'PYTHONDONTWRITEBYTECODE': '1',
        }
        print(
            f'rig: Linux {kernel.release} ready after {time.monotonic() - began:.1f} s', flush=True
        )
        with ThreadPoolExecutor(len(SHARES)) as pool:
            futures = {
                name: pool.submit(_boot, rig, name, options.out, variables) for name in SHARES
            }
            results = {name: future.result() for name, future in futures.items()}
    except (RigUnavailable, RigError) as error:
        return tell(error)
    found = {'kernel': kernel.release, **result_of(results, options.out)}
    (options.out / 'result.json').write_text(json.dumps(found, indent=1) + '\n', encoding='utf-8')
    _tell(found, results)
    print(
        f'rig: {"pass" if found["pass"] else "FAIL"}, {time.monotonic() - began:.1f} s in all; '
        f'wrote {options.out}/result.json'
    )
    return 0 if found['pass'] else 1


def _tell(found: Mapping[str, Any], results: Mapping[str, RigResult]) -> None:
    for result in results.values():
        if result.rc not in (0, 1) or result.complaints:
            print(result.report(), file=sys.stderr)
    for check, text in found['failed'].items():
        print(f'FAIL {check}\n{text}', file=sys.stderr)
    print(f'{found["checks"]} checks ran, {len(found["failed"])} failed: {found["by_part"]}')
    reasons: dict[str, list[str]] = {}
    for check, reason in found['not_here'].items():
        reasons.setdefault(reason, []).append(check)
    for reason, checks in reasons.items():
        print(f'not there: {len(checks)} checks: {reason}')
    for what, reason in found['not_run'].items():
        print(f'not there: {what}: {reason}')


if __name__ == '__main__':
    sys.exit(main())
