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

"""The node graph in the rig: several runs in one boot, checked by ``zc_verify`` and by us."""

from __future__ import annotations

from collections.abc import Mapping
import compileall
from dataclasses import dataclass
import json
from pathlib import Path
import shutil
import sys
from typing import Any

from .guest.graph_variants import MEMORY_MIB, RUNS, VARIANTS, VIVID
from .machine import RigResult
from .rig import Rig

# Time limit in seconds of a boot's command, enough for a machine that is several times too slow.
# Speed is reported as figures, and is no check.
TIMEOUT_S = 3000.0

GUEST = Path(__file__).parent / 'guest'
_TEST = GUEST.parents[1]
_BYTE_CODE = (GUEST.parent, _TEST / 'nodes', _TEST / 'link', _TEST.parent / 'zc_perception')

NPU = '0000:01:00.0'
KNOWN_EXPORTERS = (
    'videobuf2_vmalloc', 'videobuf2_dma_contig', 'system', 'udmabuf', 'nvmap', 'tegra-buf'
)  # fmt: skip
ENVIRONMENT = {'ROS_AUTOMATIC_DISCOVERY_RANGE': 'LOCALHOST'}
INVARIANTS = ('I1', 'I2', 'I3', 'I4')
#: The keys that the document's own script writes.
DOCUMENT_KEYS = ('I1_attach_count_ge2', 'I2_known_exporter', 'I3_axl_imports', 'I4_no_memcpy_hot')
# The run that each part of the result comes from. The restated checks are proved where no frame
# costs an import, the document's literal ones where they can hold.
OF_RUN = {'checks': 'cached', 'document': 'document'}
Checks = dict[str, dict[str, Any]]


def compile_for_guest() -> None:
    """Compile to byte code: the guest can't keep it, and compiles a dozen times slower."""
    for folder in _BYTE_CODE:
        compileall.compile_dir(folder, quiet=2)


@dataclass(frozen=True)
class GraphRuns:
    boot: RigResult
    runs: dict[str, dict[str, Any]]


def graph_words(
    wanted: Mapping[str, int], *, whole: bool = False, verify: bool = True
) -> list[str]:
    """
    Return the words for ``run_checks.py`` that run these variants, with a number of frames each.

    :param whole: ``zc_verify`` checks all these frames and draws every run; otherwise the
        variant's number of frames, and one run is drawn.
    :param verify: whether ``zc_verify`` checks any run.
    """
    words = []
    for name, frames in wanted.items():
        options = [] if whole or name == OF_RUN['document'] else ['--no-sampling']
        verified = (frames if whole else VARIANTS[name].verified) if verify else 0
        words.append(':'.join((name, str(frames), str(verified), *options)))
    return words


def read_runs(out_dir: Path) -> dict[str, dict[str, Any]]:
    found = {name: out_dir / name / 'figures.json' for name in VARIANTS}
    return {
        name: json.loads(path.read_text(encoding='utf-8'))
        for name, path in found.items()
        if path.exists()
    }


def run_graph(rig: Rig, out_dir: Path, wanted: Mapping[str, int]) -> GraphRuns:
    """Boot once and run these variants; ``zc_verify`` checks every frame."""
    for name in VARIANTS:
        shutil.rmtree(out_dir / name, ignore_errors=True)
    compile_for_guest()
    boot = rig.run(
        [sys.executable, str(GUEST / 'run_checks.py'), '', *graph_words(wanted, whole=True)],
        timeout=TIMEOUT_S,
        out_dir=out_dir,
        vivid=VIVID,
        env=ENVIRONMENT,
        memory_mib=MEMORY_MIB,
        cpus=2,
    )
    return GraphRuns(boot, read_runs(out_dir))


def checks_of(run: dict[str, Any], wanted: int, verified: int | None = None) -> Checks:
    """
    Return every check of one run: whether it holds, and its figures.

    One is ``zc_verify``'s verdict, the others are the rig's own.

    :param verified: how many frames ``zc_verify`` must have checked; ``None``: all wanted ones.
    """
    variant = VARIANTS[run['variant']]
    submitted = set(run['submitted_inodes'])
    attached = {int(inode) for inode, devices in run['attached'].items() if NPU in devices}
    # Without the cache, trial imports before the first frame are released at once and belong to no
    # frame: count them apart.
    trials = run['trial_imports'] * variant.buffers
    # With the cache each of the pool's buffers is imported once; some may never carry a frame.
    imported = set(run['traced_import_inodes'])
    imports_wanted = (
        len(imported & set(run['pool_inodes']))
        if variant.cached
        else run['traced_submits'] * variant.buffers
    )

    def of(*names: str) -> dict[str, Any]:
        return {name: run[name] for name in names}

    table: dict[str, tuple[object, dict[str, Any]]] = {
        'frames': (run['frames'] >= wanted, {'wanted': wanted, **of('frames', 'camera_fps')}),
        'layout': (
            (run['buffers'], run['strides'], run['rows'])
            == ([variant.buffers], [list(variant.strides)], [list(variant.rows)]),
            of('buffers', 'strides', 'rows'),
        ),
        'content': (
            # All frames that the node finished, and not one picture again and again.
            0 < run['crc_equal'] == run['frames'] == run['processed']
            and run['distinct_contents'] > run['frames'] // 2,
            of('crc_equal', 'processed', 'distinct_contents'),
        ),
        'results': (
            run['boxes_equal'] == run['frames'] == run['fences_good'] and run['failed'] == 0,
            of('boxes_equal', 'fences_good', 'failed'),
        ),
        'I1': (
            # Without the cache an attachment lasts as long as its job: the trace shows it for
            # every job.
            submitted and submitted <= (attached if variant.cached else imported),
            {'attached': sorted(attached), **of('submitted_inodes', 'looks')},
        ),
        'I2': (
            run['exporters'] and set(run['exporters']) <= set(KNOWN_EXPORTERS),
            of('exporters'),
        ),
        'I3': (
            submitted
            and submitted <= imported
            and run['traced_imports'] - trials == imports_wanted,
            {'wanted': imports_wanted, **of('traced_imports', 'traced_submits', 'trial_imports')},
        ),
        'I4': (
            run['looks'] > 0 and not run['cpu_mappings'] and not run['copies'],
            of('looks', 'cpu_mappings', 'copies'),
        ),
        'link': (
            run['rung'] == 'in_process' and run['conversions'] == 0,
            of('rung', 'conversions'),
        ),
        'subscriber': (
            run['received_by_plain_subscriber'] >= 0.9 * run['frames'],
            of('received_by_plain_subscriber', 'frames'),
        ),
        'nothing_left': (
            not run['left_in_bufinfo'] and not any(run['left_on_device'].values()),
            of('left_in_bufinfo', 'left_on_device'),
        ),
        'verify': _verified(run, wanted if verified is None else verified),
    }
    return {
        name: {'holds': bool(table[name][0]), **table[name][1]}
        for name in check_names(run['variant'])
    }


CHECKS = (
    'frames', 'layout', 'content', 'results', *INVARIANTS, 'link', 'subscriber', 'nothing_left',
    'verify',
)  # fmt: skip


def check_names(variant: str) -> list[str]:
    """Return the names of a variant's checks; I4 needs pixels that the CPU doesn't draw."""
    drawn, verified = VARIANTS[variant].drawn, VARIANTS[variant].verified
    without = {'I4': drawn, 'verify': not verified}
    return [name for name in CHECKS if not without.get(name)]


def _verified(run: dict[str, Any], wanted: int) -> tuple[bool, dict[str, Any]]:
    """
    Return ``zc_verify``'s verdict.

    All checks must be measured and true, and the document's four where they can be; waits are
    counted.
    """
    verdict = run['verify']
    checks = {name: verdict.get('checks', {}).get(name, {}) for name in INVARIANTS}
    detail = verdict.get('detail', {})
    waits = detail.get('fence_wait_lines', 0) + detail.get('fence_waits_by_poll', 0)
    holds = (
        all(one.get('holds') is True and one.get('measured') is True for one in checks.values())
        and verdict.get('exit') == 0
        and verdict.get('pass') is True
        and (verdict.get('frames') or 0) >= wanted
        and waits >= wanted
        and bool(detail.get('exporters'))
        and 'timeline' in verdict.get('files', {})
    )
    keys = ['exit', 'pass', 'frames']
    if run['variant'] == OF_RUN['document']:
        keys += ['pass_document', *DOCUMENT_KEYS]
        holds = holds and all(verdict.get(key) is True for key in keys[3:])
    figures = {key: verdict.get(key) for key in keys}
    figures |= {name: check.get('holds') for name, check in checks.items()}
    return holds, {**figures, 'fence_waits': waits, 'exporters': detail.get('exporters', [])}


def result_of(graph: GraphRuns, kernel: str, wanted: Mapping[str, int]) -> dict[str, Any]:
    runs: dict[str, dict[str, Any]] = {}
    for variant, frames in wanted.items():
        run = dict(graph.runs.get(variant, {}))
        checks = checks_of(run, frames) if run else {}
        runs[variant] = {'checks': checks, 'verify': run.pop('verify', {}), 'figures': run or None}
    complete = set(wanted) >= set(RUNS) and all(run['checks'] for run in runs.values())
    document = runs.get(OF_RUN['document'], {}).get('verify', {})
    return {
        'pass': graph.boot.ok
        and complete
        and all(check['holds'] for run in runs.values() for check in run['checks'].values()),
        'checks': runs.get(OF_RUN['checks'], {}).get('verify', {}).get('checks', {}),
        **{key: document.get(key) for key in (*DOCUMENT_KEYS, 'detail', 'pass_document')},
        'of_run': OF_RUN,
        'kernel': kernel,
        'wall_s': round(graph.boot.wall_s, 1),
        'boot_s': graph.boot.boot_s,
        'kernel_complaints': graph.boot.complaints,
        'runs': runs,
    }
