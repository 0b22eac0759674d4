"""The package on a real kernel, in one boot: its own camera, memory and axl code, then the whole node graph."""

from __future__ import annotations

import ast
import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from . import Rig, RigResult
from .graph import CACHED_FRAMES, TIMEOUT_S, UNCACHED_FRAMES, GraphRuns, checks_of, graph_command, read_runs

pytestmark = pytest.mark.rig

GUEST = Path(__file__).parent / 'guest'
WANTED = {'cached': CACHED_FRAMES, 'uncached': UNCACHED_FRAMES}
GRAPH_CHECKS = ('frames', 'content', 'results', 'I1', 'I2', 'I3', 'I4', 'link', 'subscriber', 'nothing_left')


def _names() -> list[str]:
    """The functions decorated with ``check`` in the guest's modules, which can't be imported without their devices."""
    trees = [ast.parse((GUEST / f'package_{part}.py').read_text(encoding='utf-8')) for part in ('npu', 'npu_flow', 'camera')]
    functions = (node for tree in trees for node in tree.body if isinstance(node, ast.FunctionDef))
    return [f.name.replace('_', ' ') for f in functions if any(ast.unparse(d) == 'check' for d in f.decorator_list)]


@dataclass(frozen=True)
class Boot:
    """The run, what each package check said, and the graph's figures."""

    result: RigResult
    outcome: dict[str, str]
    graph: GraphRuns


@pytest.fixture(scope='session')
def package_boot(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> Boot:
    """Run everything in one boot; the graph runs whatever the checks before it say."""
    out = tmp_path_factory.mktemp('package')
    python, _, *variants = graph_command(CACHED_FRAMES, UNCACHED_FRAMES)
    command = [python, str(GUEST / 'package_checks.py'), *variants]
    result = rig.run(command, timeout=2 * TIMEOUT_S, out_dir=out, vivid=True, env={'ROS_AUTOMATIC_DISCOVERY_RANGE': 'LOCALHOST'})
    try:
        outcome: dict[str, str] = json.loads((out / 'package_checks.json').read_text(encoding='utf-8'))
    except FileNotFoundError:
        pytest.fail(result.report(), pytrace=False)
    return Boot(result, outcome, GraphRuns(result, read_runs(out)))


@pytest.mark.parametrize('name', _names())
def test_in_the_guest(name: str, package_boot: Boot) -> None:
    if name not in package_boot.outcome:
        pytest.fail(f'the guest did not get to this check\n{package_boot.result.report()}', pytrace=False)
    if package_boot.outcome[name]:
        pytest.fail(package_boot.outcome[name], pytrace=False)


@pytest.mark.parametrize('check', GRAPH_CHECKS)
@pytest.mark.parametrize('variant', WANTED)
def test_the_graph(variant: str, check: str, package_boot: Boot) -> None:
    if variant not in package_boot.graph.runs:
        pytest.fail(f'the graph did not run\n{package_boot.result.report()}', pytrace=False)
    found = checks_of(package_boot.graph.runs[variant], WANTED[variant])[check]
    assert found['holds'], found


def test_artifacts_hold_trace_events_and_fence_timestamps(package_boot: Boot) -> None:
    for variant, wanted in WANTED.items():
        trace = (package_boot.result.artifacts / f'{variant}.trace').read_text(encoding='utf-8')
        assert trace.count('axl_dmabuf_import: ') == package_boot.graph.runs[variant]['traced_imports']
        assert trace.count('dma_fence_signaled: ') >= wanted
        frames = json.loads((package_boot.result.artifacts / f'{variant}.frames.json').read_text(encoding='utf-8'))
        assert all(frame['fence_ns'] > frame['captured_ns'] > 0 for frame in frames)


def test_the_kernel_is_content(package_boot: Boot) -> None:
    assert not package_boot.result.complaints, package_boot.result.report()
    assert package_boot.result.rc in (0, 1), package_boot.result.report()
