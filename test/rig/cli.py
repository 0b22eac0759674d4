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
Run something in the kernel rig: ``python test/rig/cli.py WHAT`` (see --help).

``graph`` is ``make rig``, ``arm64`` is ``make rig-arm64``, ``latency`` is part of ``make rig-rt``.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ThreadPoolExecutor
import json
from pathlib import Path
import sys
import time

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rig import arm64, RigError, RigUnavailable, tell  # noqa: E402
from rig.graph import compile_for_guest, ENVIRONMENT, GUEST, result_of, run_graph, TIMEOUT_S  # noqa: E402
from rig.guest.graph_variants import MEMORY_MIB, RUNS  # noqa: E402
from rig.guest.link_kit import PROGRAM  # noqa: E402
from rig.packages import FLAVOURS, Kernel  # noqa: E402
from rig.rig import Rig, VIVID_DEFAULT  # noqa: E402

#: Two nanoseconds for each instruction: a CPU of 500 million a second.
_ICOUNT = ('-icount', 'shift=1')
_QUANTILES = {'p50': 0.5, 'p99': 0.99, 'p99.9': 0.999, 'max': 1.0}


def run(options: argparse.Namespace) -> int:
    """Return the guest's status, or 77 unavailable, 125 not finished, 126 kernel complained."""
    result = Rig(install=True).run(
        options.command, timeout=options.timeout, out_dir=options.out, vivid=options.vivid
    )
    if result.ok:
        sys.stdout.write(result.stdout)
        sys.stderr.write(result.stderr)
    else:
        print(result.report())
    return result.rc


def _prepared(rig: Rig) -> Kernel:
    began = time.monotonic()
    kernel = rig.prepare()
    print(f'rig: Linux {kernel.release} ready after {time.monotonic() - began:.1f} s', flush=True)
    return kernel


def _end(found: dict[str, object], out: Path) -> int:
    """Write the result; return 0 only if all of it holds."""
    (out / 'result.json').write_text(json.dumps(found, indent=1) + '\n', encoding='utf-8')
    print(f'rig: {"pass" if found["pass"] else "FAIL"}; wrote {out}/result.json')
    return 0 if found['pass'] else 1


def graph(options: argparse.Namespace) -> int:
    """Run the node graph on a real kernel; ``zc_verify`` checks it, and so does the rig itself."""
    wanted = {name: getattr(options, name) for name in RUNS}
    # A user who calls this wants the rig, so install QEMU where possible.
    rig = Rig(install=True)
    kernel = _prepared(rig)
    runs = run_graph(rig, options.out, wanted)
    result = result_of(runs, kernel.version, wanted)
    for variant, each in result['runs'].items():
        for name, check in each['checks'].items():
            figures = ', '.join(f'{k} {v}' for k, v in check.items() if k != 'holds')
            said = 'ok  ' if check['holds'] else 'FAIL'
            print(f'{said} {variant:9s} {name:12s} {figures[:150]}')
    if not result['pass']:
        print(runs.boot.report(), file=sys.stderr)
    return _end(result, options.out)


def on_arm64(options: argparse.Namespace) -> int:
    """
    Run everything below ROS on Debian's arm64 kernel, behind an SMMU.

    No check may fail, and ``zc_verify`` must find exactly the expected faults in each graph.
    """
    rig = arm64.Arm64Rig()
    kernel = _prepared(rig)
    rig.compile_steps()
    arm64.compile_for_guest(GUEST.parents[1], GUEST.parents[2] / 'zc_perception')
    variables = {
        PROGRAM: str(arm64.consumer(rig)),
        'RIG_CASES': ' '.join(arm64.VERIFIED),
        'PYTHONDONTWRITEBYTECODE': '1',
    }
    with ThreadPoolExecutor(len(arm64.SHARES)) as pool:
        futures = {
            name: pool.submit(arm64.boot, rig, name, options.out, variables)
            for name in arm64.SHARES
        }
        results = {name: future.result() for name, future in futures.items()}
    found = {'kernel': kernel.release, **arm64.result_of(results, options.out)}
    arm64.describe(found, results)
    return _end(found, options.out)


def _measure(flavour: str, frames: int, out: Path) -> dict[str, dict[str, float]]:
    """Boot that kernel; return by priority quantiles of the ms that frames waited for us."""
    rig = Rig(install=True, flavour=flavour)
    _prepared(rig)
    result = rig.run(
        [sys.executable, str(GUEST / 'latency_run.py'), str(frames)], timeout=2 * TIMEOUT_S,
        out_dir=out, vivid=True, env=ENVIRONMENT, memory_mib=MEMORY_MIB, qemu_args=_ICOUNT,
    ).check()  # fmt: skip
    print(result.stdout, file=sys.stderr, flush=True)
    quantiles: dict[str, dict[str, float]] = {}
    series = json.loads((out / 'latency.json').read_text(encoding='utf-8'))
    for priority, found in series.items():
        whole = np.quantile(
            np.add(found['to_device'], found['from_device']) / 1e6, [*_QUANTILES.values()]
        )
        quantiles[priority] = dict(zip(_QUANTILES, whole.round(2).tolist(), strict=True))
    return quantiles


def latency(options: argparse.Namespace) -> int:
    """
    Measure latency on the ordinary kernel and on PREEMPT_RT; print a table.

    The guest's clock counts its own instructions (``-icount``), so a busy host changes nothing.
    """
    compile_for_guest()
    found = {name: _measure(name, options.frames, options.out / name) for name in FLAVOURS}
    (options.out / 'latency.json').write_text(json.dumps(found, indent=1) + '\n', encoding='utf-8')
    heads = ' | '.join(f'{name}, ms' for name in _QUANTILES)
    print(f'| kernel | `realtime_priority` | {heads} |\n|---|---|{"---|" * len(_QUANTILES)}')
    for flavour, priorities in found.items():
        for priority, row in priorities.items():
            print(f'| {flavour} | {priority} | {" | ".join(map(str, row.values()))} |')
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kinds, add = parser.add_subparsers(required=True), {}
    for name, act, out in (
        ('run', run, 'rig'), ('graph', graph, 'rig'), ('arm64', on_arm64, 'rig-arm64'),
        ('latency', latency, 'rig-rt'),
    ):  # fmt: skip
        kind = kinds.add_parser(name, description=act.__doc__)
        kind.set_defaults(act=act)
        add[name] = kind.add_argument
        kind.add_argument(
            '-o', '--out', type=Path, default=Path('build', out), help='folder for the artifacts'
        )
    add['run']('-t', '--timeout', type=float, default=120.0, help='of the command, s')
    add['run']('--vivid', nargs='?', const=VIVID_DEFAULT, help='load vivid, with these parameters')
    add['run']('command', nargs='+', help='the command, after --')
    helps = {
        'cached': 'with the import cache',
        'uncached': 'with an import for every frame',
        'document': "with the camera attached, too, which the document's checks ask for",
    }
    for name, variant in RUNS.items():
        option = '--frames' if name == 'cached' else f'--{name}-frames'
        add['graph'](option, type=int, dest=name, default=variant.frames, help=helps[name])
    add['latency']('--frames', type=int, default=1000, help='of each series')
    options = parser.parse_args()
    try:
        code: int = options.act(options)
    except (RigUnavailable, RigError) as error:
        return tell(error)
    return code


if __name__ == '__main__':
    sys.exit(main())
