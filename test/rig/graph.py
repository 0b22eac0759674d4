"""The node graph in the rig: one boot, a cached and an uncached run, and what must hold of their figures."""

from __future__ import annotations

import compileall
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import Rig, RigResult

NPU = '0000:01:00.0'
KNOWN_EXPORTERS = ('videobuf2_vmalloc', 'videobuf2_dma_contig', 'system', 'udmabuf', 'nvmap', 'tegra-buf')
CACHED_FRAMES = 300
UNCACHED_FRAMES = 60
# Enough for a machine that is several times too slow: the figures say how quick it was, a check must not.
TIMEOUT_S = 480.0
_BYTE_CODE = (Path(__file__).parent, Path(__file__).parents[1] / 'nodes', Path(__file__).parents[2] / 'zc_perception')
_SCRIPT = Path(__file__).parent / 'guest' / 'graph_run.py'


@dataclass(frozen=True)
class GraphRuns:
    """The boot and each run's figures, by variant."""

    boot: RigResult
    runs: dict[str, dict[str, Any]]


def graph_command(cached: int, uncached: int) -> list[str]:
    """What runs both variants in the guest.

    The guest can't keep what it compiles, and compiles a dozen times slower than we do: hence the byte code from here.
    """
    for folder in _BYTE_CODE:
        compileall.compile_dir(folder, quiet=2)
    return [sys.executable, str(_SCRIPT), f'cached:{cached}', f'uncached:{uncached}']


def read_runs(out_dir: Path) -> dict[str, dict[str, Any]]:
    """The figures that the guest left, by variant."""
    found = {name: out_dir / f'{name}.json' for name in ('cached', 'uncached')}
    return {name: json.loads(path.read_text(encoding='utf-8')) for name, path in found.items() if path.exists()}


def run_graph(rig: Rig, out_dir: Path, cached: int = CACHED_FRAMES, uncached: int = UNCACHED_FRAMES) -> GraphRuns:
    """Boot once and run both variants."""
    for name in ('cached', 'uncached'):
        (out_dir / f'{name}.json').unlink(missing_ok=True)
    environment = {'ROS_AUTOMATIC_DISCOVERY_RANGE': 'LOCALHOST'}
    boot = rig.run(graph_command(cached, uncached), timeout=TIMEOUT_S, out_dir=out_dir, vivid=True, env=environment)
    return GraphRuns(boot, read_runs(out_dir))


def checks_of(run: dict[str, Any], wanted: int) -> dict[str, dict[str, Any]]:
    """Every check of one run: whether it holds, and the figures that say so."""
    cached = run['variant'] == 'cached'
    submitted = run['submitted_inodes']
    attached = {int(inode) for inode, devices in run['attached'].items() if NPU in devices}
    # Without the cache, imports on trial before the first frame are given back at once and are no frame's: they count apart.
    trials = run['trial_imports']
    imports_wanted = len(submitted) if cached else run['traced_submits']
    table = {
        'frames': (run['frames'] >= wanted, {'frames': run['frames'], 'wanted': wanted, 'camera_fps': run['camera_fps']}),
        'content': (
            run['frames'] > 0 and run['crc_equal'] == run['frames'] and run['distinct_contents'] > run['frames'] // 2,
            {'crc_equal': run['crc_equal'], 'frames': run['frames'], 'distinct_contents': run['distinct_contents']},
        ),
        'results': (
            run['boxes_equal'] == run['frames'] == run['fences_good'] and run['failed'] == 0,
            {'boxes_equal': run['boxes_equal'], 'fences_good': run['fences_good'], 'failed': run['failed']},
        ),
        'I1': (
            # Without the cache an attachment lasts as long as its job: there the trace says it for every one.
            bool(submitted) and set(submitted) <= (attached if cached else set(run['traced_import_inodes'])),
            {'source': 'bufinfo' if cached else 'trace', 'submitted': submitted, 'attached': sorted(attached), 'looks': run['looks']},
        ),
        'I2': (
            bool(run['exporters']) and set(run['exporters']) <= set(KNOWN_EXPORTERS),
            {'source': 'debugfs bufinfo', 'exporters': run['exporters']},
        ),
        'I3': (
            set(submitted) <= set(run['traced_import_inodes']) and run['traced_imports'] - trials == imports_wanted,
            {'source': 'trace', 'imports': run['traced_imports'] - trials, 'wanted': imports_wanted, 'submits': run['traced_submits'],
             'trial_imports': trials},
        ),
        'I4': (
            run['looks'] > 0 and not run['cpu_mappings'] and not run['copies'],
            {'source': '/proc/PID/maps, copy ledger', 'looks': run['looks'], 'cpu_mappings': run['cpu_mappings'], 'copies': run['copies']},
        ),
        'link': (
            run['rung'] == 'in_process' and run['conversions'] == 0,
            {'rung': run['rung'], 'conversions': run['conversions']},
        ),
        'subscriber': (
            run['received_by_plain_subscriber'] >= 0.9 * run['frames'],
            {'received': run['received_by_plain_subscriber'], 'frames': run['frames']},
        ),
        'nothing_left': (
            not run['left_in_bufinfo'] and not any(run['left_on_device'].values()),
            {'bufinfo': run['left_in_bufinfo'], 'device': run['left_on_device']},
        ),
    }  # fmt: skip
    return {name: {'holds': bool(holds), **figures} for name, (holds, figures) in table.items()}


def result_of(graph: GraphRuns, kernel: str, wanted: dict[str, int]) -> dict[str, Any]:
    """The content of ``build/rig/result.json``."""
    runs = {}
    for variant, frames in wanted.items():
        run = graph.runs.get(variant)
        runs[variant] = {'checks': {} if run is None else checks_of(run, frames), 'figures': run}
    complete = all(runs[variant]['checks'] for variant in wanted)
    return {
        'pass': graph.boot.ok and complete and all(check['holds'] for run in runs.values() for check in run['checks'].values()),
        'kernel': kernel,
        'wall_s': round(graph.boot.wall_s, 1),
        'boot_s': graph.boot.boot_s,
        'kernel_complaints': graph.boot.complaints,
        'runs': runs,
    }
