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
``make rig-rt``: measure latency on the ordinary kernel and on PREEMPT_RT.

It writes ``latency.json`` and prints a table. The guest's clock counts its own instructions
(``-icount``), so that a busy host changes nothing.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
import sys
import time

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rig import RigError, RigUnavailable  # noqa: E402
from rig.graph import compile_for_guest, ENVIRONMENT, GUEST, TIMEOUT_S  # noqa: E402
from rig.guest.graph_variants import MEMORY_MIB  # noqa: E402
from rig.packages import FLAVOURS  # noqa: E402
from rig.rig import Rig  # noqa: E402

#: Two nanoseconds for each instruction: a CPU of 500 million a second.
_ICOUNT = ('-icount', 'shift=1')
_QUANTILES = {'p50': 0.5, 'p99': 0.99, 'p99.9': 0.999, 'max': 1.0}


def measure(flavour: str, frames: int, out: Path) -> dict[str, dict[str, float]]:
    """Boot that kernel; return by priority quantiles of the ms that frames waited for us."""
    rig = Rig(install=True, flavour=flavour)
    kernel = rig.prepare()
    began = time.monotonic()
    result = rig.run(
        [sys.executable, str(GUEST / 'latency_run.py'), str(frames)],
        timeout=2 * TIMEOUT_S,
        out_dir=out,
        vivid=True,
        env=ENVIRONMENT,
        memory_mib=MEMORY_MIB,
        qemu_args=_ICOUNT,
    ).check()
    print(
        f'{kernel.release}: {time.monotonic() - began:.0f} s\n{result.stdout}',
        file=sys.stderr,
        flush=True,
    )
    quantiles: dict[str, dict[str, float]] = {}
    series = json.loads((out / 'latency.json').read_text(encoding='utf-8'))
    for priority, found in series.items():
        whole = np.quantile(
            np.add(found['to_device'], found['from_device']) / 1e6, [*_QUANTILES.values()]
        )
        quantiles[priority] = dict(zip(_QUANTILES, whole.round(2).tolist(), strict=True))
    return quantiles


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--out', type=Path, default=Path('build/rig-rt'))
    parser.add_argument('--frames', type=int, default=1000, help='of each series')
    options = parser.parse_args()
    compile_for_guest()
    try:
        found = {
            flavour: measure(flavour, options.frames, options.out / flavour)
            for flavour in FLAVOURS
        }
    except (RigError, RigUnavailable) as error:
        print(f'rig: {error}', file=sys.stderr)
        return 1
    (options.out / 'latency.json').write_text(json.dumps(found, indent=1) + '\n', encoding='utf-8')
    print(
        f'| kernel | `realtime_priority` | {" | ".join(f"{name}, ms" for name in _QUANTILES)} '
        f'|\n|---|---|{"---|" * len(_QUANTILES)}'
    )
    for flavour, priorities in found.items():
        for priority, row in priorities.items():
            print(
                f'| {flavour} | {priority} | {" | ".join(str(value) for value in row.values())} |'
            )
    return 0


if __name__ == '__main__':
    sys.exit(main())
