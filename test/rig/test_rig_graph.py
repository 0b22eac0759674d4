"""The package on a real kernel, in one boot: its own camera, memory and axl code, then the whole node graph in every layout of pixels."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from long_form import LONG

from . import Rig, RigResult
from .checked_boot import TIMEOUT_S
from .graph import ENVIRONMENT, GraphRuns, check_names, checks_of, clear_runs, graph_command, read_runs
from .guest.graph_variants import MEMORY_MIB, RUNS, VARIANTS, VIVID
from .guest.long_checks import marked

pytestmark = pytest.mark.rig

GUEST = Path(__file__).parent / 'guest'
#: ``make rig`` has its 300 frames; here time counts, too.
WANTED = {name: variant.frames if LONG else min(variant.frames, 12) for name, variant in VARIANTS.items()}
#: What only the long form and ``make rig`` run. ``padded_both_ways`` pads rows and heights at once.
LONG_RUNS = ('uncached', 'document', 'two_padded_buffers', 'padded_rows', 'padded_height')


def _params(names: Iterable[str]) -> list[Any]:
    return [pytest.param(name, marks=[pytest.mark.long] if name in LONG_RUNS else []) for name in names]



def guest_checks() -> list[str]:
    """The functions decorated with ``check`` in the guest's modules, which can't be imported without their devices."""
    trees = [ast.parse((GUEST / f'package_{part}.py').read_text(encoding='utf-8')) for part in ('npu', 'npu_flow', 'camera', 'trial')]
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
    clear_runs(out, VARIANTS)
    python, _, *variants = graph_command({name: frames for name, frames in WANTED.items() if LONG or name not in LONG_RUNS})
    command = [python, str(GUEST / 'package_checks.py'), *variants]
    result = rig.run(command, timeout=TIMEOUT_S, out_dir=out, vivid=VIVID, env=ENVIRONMENT, memory_mib=MEMORY_MIB)
    try:
        outcome: dict[str, str] = json.loads((out / 'package_checks.json').read_text(encoding='utf-8'))
    except FileNotFoundError:
        pytest.fail(result.report(), pytrace=False)
    return Boot(result, outcome, GraphRuns(result, read_runs(out)))


@pytest.mark.parametrize('name', marked(guest_checks()))
def test_in_the_guest(name: str, package_boot: Boot) -> None:
    if name not in package_boot.outcome:
        pytest.fail(f'the guest did not get to this check\n{package_boot.result.report()}', pytrace=False)
    if package_boot.outcome[name]:
        pytest.fail(package_boot.outcome[name], pytrace=False)


@pytest.mark.parametrize(
    ('variant', 'check'),
    [pytest.param(*param.values, check, marks=param.marks) for param in _params(VARIANTS) for check in check_names(param.values[0])],
)
def test_the_graph(variant: str, check: str, package_boot: Boot) -> None:
    if variant not in package_boot.graph.runs:
        pytest.fail(f'the graph did not run\n{package_boot.result.report()}', pytrace=False)
    run = package_boot.graph.runs[variant]
    found = checks_of(run, WANTED[variant], VARIANTS[variant].verified)[check]
    assert found['holds'], (found, run['verify'] if check == 'verify' else '')


@pytest.mark.parametrize('variant', _params(VARIANTS))
def test_the_kernel_s_trace_and_the_fences_of_each_run_are_kept(variant: str, package_boot: Boot) -> None:
    folder = package_boot.result.artifacts / variant
    trace = (folder / 'kernel.trace').read_text(encoding='utf-8')
    assert trace.count('axl_dmabuf_import: ') == package_boot.graph.runs[variant]['traced_imports']
    assert trace.count('dma_fence_signaled: ') >= WANTED[variant]
    frames = json.loads((folder / 'frames.json').read_text(encoding='utf-8'))
    assert all(frame['fence_ns'] > frame['captured_ns'] > 0 for frame in frames)


@pytest.mark.parametrize('variant', _params(RUNS))
def test_the_verdict_has_a_timeline(variant: str, package_boot: Boot) -> None:
    events = json.loads((package_boot.result.artifacts / variant / 'timeline.json').read_text(encoding='utf-8'))['traceEvents']
    assert len(events) > 10 * VARIANTS[variant].verified


def test_the_kernel_is_content(package_boot: Boot) -> None:
    assert not package_boot.result.complaints, package_boot.result.report()
    assert package_boot.result.rc in (0, 1), package_boot.result.report()
