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
``make rig``: run the node graph on a real kernel, and check it.

``zc_verify`` checks it, and so does the rig itself. It writes ``build/rig/result.json``. The exit
code is 0 only if every check of every run holds.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
import sys
import time

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rig import RigError, RigUnavailable, tell  # noqa: E402
from rig.graph import result_of, run_graph  # noqa: E402
from rig.guest.graph_variants import RUNS  # noqa: E402
from rig.rig import Rig  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--out', type=Path, default=Path('build/rig'))
    helps = {
        'cached': 'with the import cache',
        'uncached': 'with an import for every frame',
        'document': "with the camera attached, too, which the document's checks ask for",
    }
    for name, variant in RUNS.items():
        parser.add_argument(
            '--frames' if name == 'cached' else f'--{name}-frames',
            type=int,
            dest=name,
            default=variant.frames,
            help=helps[name],
        )
    options = parser.parse_args()
    wanted = {name: getattr(options, name) for name in RUNS}
    began = time.monotonic()
    try:
        # A user who calls this wants the rig, so install QEMU where possible.
        rig = Rig(install=True)
        kernel = rig.prepare()
        print(
            f'rig: Linux {kernel.version} ready after {time.monotonic() - began:.1f} s', flush=True
        )
        graph = run_graph(rig, options.out, wanted)
    except (RigUnavailable, RigError) as error:
        return tell(error)
    result = result_of(graph, kernel.version, wanted)
    (options.out / 'result.json').write_text(json.dumps(result, indent=1) + '\n', encoding='utf-8')
    for variant, run in result['runs'].items():
        for name, check in run['checks'].items():
            figures = ', '.join(f'{k} {v}' for k, v in check.items() if k != 'holds')
            print(
                f'{"ok  " if check["holds"] else "FAIL"} {variant:9s} {name:12s} {figures[:150]}'
            )
    if not result['pass']:
        print(graph.boot.report(), file=sys.stderr)
    print(
        f'rig: {"pass" if result["pass"] else "FAIL"}, {time.monotonic() - began:.1f} s in '
        f'all; wrote {options.out}/result.json'
    )
    return 0 if result['pass'] else 1


if __name__ == '__main__':
    sys.exit(main())
