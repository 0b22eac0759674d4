"""``make rig``: the node graph on a real kernel; writes ``build/rig/result.json``. Exit 0 only if every check holds."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rig import Rig, RigError, RigUnavailable
from rig.graph import CACHED_FRAMES, UNCACHED_FRAMES, result_of, run_graph

RC_UNAVAILABLE = 77


def main() -> int:
    """Run it; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--out', type=Path, default=Path('build/rig'))
    parser.add_argument('--frames', type=int, default=CACHED_FRAMES, help='with the import cache')
    parser.add_argument('--uncached-frames', type=int, default=UNCACHED_FRAMES, help='with an import for every frame')
    options = parser.parse_args()
    began = time.monotonic()
    # Who asks for the rig by name wants it: QEMU is installed where this user may.
    rig = Rig(install=True)
    try:
        kernel = rig.prepare()
        print(f'rig: Linux {kernel.version} ready after {time.monotonic() - began:.1f} s', flush=True)
        graph = run_graph(rig, options.out, options.frames, options.uncached_frames)
    except RigUnavailable as error:
        print(f'rig: not run: {error}', file=sys.stderr)
        return 1 if os.environ.get('ZC_RIG') == 'required' else RC_UNAVAILABLE
    except RigError as error:
        print(f'rig: error: {error}', file=sys.stderr)
        return 1
    result = result_of(graph, kernel.version, {'cached': options.frames, 'uncached': options.uncached_frames})
    (options.out / 'result.json').write_text(json.dumps(result, indent=1) + '\n', encoding='utf-8')
    for variant, run in result['runs'].items():
        for name, check in run['checks'].items():
            figures = ', '.join(f'{k} {v}' for k, v in check.items() if k != 'holds')
            print(f'{"ok  " if check["holds"] else "FAIL"} {variant:9s} {name:12s} {figures[:150]}')
    if not result['pass']:
        print(graph.boot.report(), file=sys.stderr)
    print(f'rig: {"pass" if result["pass"] else "FAIL"}, {time.monotonic() - began:.1f} s in all; wrote {options.out}/result.json')
    return 0 if result['pass'] else 1


if __name__ == '__main__':
    sys.exit(main())
