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

"""The accelerator on a real kernel, then the whole node graph in every layout, in one boot."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
import json
from typing import Any

from long_form import LONG
import pytest

from . import Rig
from .checked_boot import Boot, boot_suite
from .checked_boot import checks_of as checks_of_suite
from .graph import (
    check_names,
    checks_of,
    clear_runs,
    ENVIRONMENT,
    graph_command,
    GraphRuns,
    read_runs,
)
from .guest.graph_variants import MEMORY_MIB, RUNS, VARIANTS, VIVID

pytestmark = pytest.mark.rig

#: ``make rig`` has its 300 frames; here time counts, too.
WANTED = {
    name: variant.frames if LONG else min(variant.frames, 12) for name, variant in VARIANTS.items()
}
#  What only the long form and ``make rig`` run. ``padded_both_ways`` pads rows and heights at
#  once.
LONG_RUNS = ('uncached', 'document', 'two_padded_buffers', 'padded_rows', 'padded_height')


def _params(names: Iterable[str]) -> list[Any]:
    return [
        pytest.param(name, marks=[pytest.mark.long] if name in LONG_RUNS else []) for name in names
    ]


@dataclass(frozen=True)
class GraphBoot(Boot):
    """With the graph's figures."""

    graph: GraphRuns


@pytest.fixture(scope='session')
def package_boot(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> GraphBoot:
    """Run everything in one boot; the graph runs whatever the checks before it say."""
    out = tmp_path_factory.mktemp('package')
    clear_runs(out, VARIANTS)
    # The short form leaves zc_verify's verdict on such a graph to test_rig_verify.py.
    _, _, *variants = graph_command(
        {name: frames for name, frames in WANTED.items() if LONG or name not in LONG_RUNS},
        verify=LONG,
    )
    options: dict[str, Any] = {'vivid': VIVID, 'env': ENVIRONMENT, 'memory_mib': MEMORY_MIB}
    boot = boot_suite(rig, out, 'accelerator', *variants, **options)
    return GraphBoot(boot.result, boot.outcome, GraphRuns(boot.result, read_runs(out)))


@pytest.mark.parametrize('name', checks_of_suite('accelerator'))
def test_in_the_guest(name: str, package_boot: GraphBoot) -> None:
    package_boot.must_hold(name)


@pytest.mark.parametrize(
    ('variant', 'check'),
    [
        pytest.param(
            *param.values, check, marks=[pytest.mark.long] if check == 'verify' else param.marks
        )
        for param in _params(VARIANTS)
        for check in check_names(param.values[0])
    ],
)
def test_the_graph(variant: str, check: str, package_boot: GraphBoot) -> None:
    if variant not in package_boot.graph.runs:
        pytest.fail(f'the graph did not run\n{package_boot.result.report()}', pytrace=False)
    run = package_boot.graph.runs[variant]
    found = checks_of(run, WANTED[variant], VARIANTS[variant].verified)[check]
    # As text, which pytest doesn't shorten.
    assert found['holds'], json.dumps(
        [found, run['verify'] if check == 'verify' else ''], indent=1
    )


@pytest.mark.parametrize('variant', _params(VARIANTS))
def test_the_kernel_s_trace_and_the_fences_of_each_run_are_kept(
    variant: str, package_boot: GraphBoot
) -> None:
    folder = package_boot.result.artifacts / variant
    trace = (folder / 'kernel.trace').read_text(encoding='utf-8')
    assert trace.count('axl_dmabuf_import: ') == package_boot.graph.runs[variant]['traced_imports']
    assert trace.count('dma_fence_signaled: ') >= WANTED[variant]
    frames = json.loads((folder / 'frames.json').read_text(encoding='utf-8'))
    assert all(frame['fence_ns'] > frame['captured_ns'] > 0 for frame in frames)


@pytest.mark.long
@pytest.mark.parametrize('variant', RUNS)
def test_the_verdict_has_a_timeline(variant: str, package_boot: GraphBoot) -> None:
    events = json.loads(
        (package_boot.result.artifacts / variant / 'timeline.json').read_text(encoding='utf-8')
    )['traceEvents']
    assert len(events) > 10 * VARIANTS[variant].verified


def test_the_kernel_is_content(package_boot: GraphBoot) -> None:
    package_boot.kernel_must_be_content()
