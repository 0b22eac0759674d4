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
Results of jobs: views of the device's own memory, in reused buffers.

They are read between the brackets of the CPU's access.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from camera.camera_options import NamedHeap
from hypothesis import given, settings
from hypothesis import strategies as st
from npu.card_kit import MANIFEST, Opened
from npu.scheduler_kit import MakeFrame
import numpy as np
import pytest

from zc_perception.errors import AcceleratorError, AllocationError
from zc_perception.frame import Frame
from zc_perception.memory import heaps
from zc_perception.memory.dmabuf import CpuAccess, DmaBuf
from zc_perception.npu.axl import accelerator as axl
from zc_perception.npu.axl.accelerator import AxlAccelerator, AxlJob
from zc_perception.npu.manifest import TensorSpec

pytestmark = pytest.mark.usefixtures('no_fd_leak')
SPECS = (
    TensorSpec('boxes', 'int16', (2, 3), 8, (0.5, 1.0, 2.0), 3, 'nhwc', ((1, 0), (0, 2))),
    TensorSpec('plain', 'uint8', (4,), 64, (1.0,), 0),
)


@pytest.fixture
def make_opened(make_opened: Callable[..., Opened]) -> Callable[..., Opened]:
    """Open accelerators with two tensors, one of them padded."""
    return partial(make_opened, manifest=replace(MANIFEST, tensors=SPECS))


@pytest.fixture
def accesses(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Return the brackets of the CPU's access: which, and to which inode."""
    events: list[tuple[str, int]] = []

    for name in ('begin', 'end'):

        def record(
            buffer: DmaBuf, access: CpuAccess, timeout_s: float = 0.0, name: str = name
        ) -> None:
            assert access == CpuAccess.READ
            events.append((name, buffer.identity.inode))

        monkeypatch.setattr(DmaBuf, f'{name}_cpu_access', record)
    return events


def run(accelerator: AxlAccelerator, frame: Frame, content: bytes = b'') -> AxlJob:
    job = accelerator.submit(accelerator.import_frame(frame), frame)
    fence: Any = job.fence
    job._result.buffer.memory(write=True)[: len(content)] = content
    fence.signal()
    return job


def test_outputs_are_the_result_s_memory_without_its_padding(
    opened: Opened, make_frame: MakeFrame
) -> None:
    accelerator, _ = opened
    written = np.arange(15, dtype=np.int16).tobytes()
    content = b'\0' * 8 + written + b'\0' * 26 + bytes([7, 8, 9, 10])
    job = run(accelerator, make_frame(), content)
    boxes, plain = job.outputs()
    assert boxes.values.tolist() == [[5, 6, 7], [10, 11, 12]]
    assert plain.values.tolist() == [7, 8, 9, 10]
    said = boxes.name, boxes.layout, boxes.zero_point, boxes.values.dtype
    assert said == ('boxes', 'nhwc', 3, np.int16)
    assert np.array_equal(boxes.scale, [0.5, 1.0, 2.0]) and plain.scale == 1.0
    assert boxes.real().tolist() == [[1.0, 3.0, 8.0], [3.5, 8.0, 18.0]]
    job._result.buffer.memory(write=True)[64] = 200
    assert plain.values[0] == 200, 'a view: what the device writes shows'
    with pytest.raises(ValueError, match='read-only'):
        plain.values[0] = 1
    job.close()


def test_views_and_mappings_are_made_once_for_each_buffer(
    make_opened: Callable[..., Opened], make_frame: MakeFrame
) -> None:
    accelerator, _ = make_opened(in_flight=1)
    frame = make_frame()
    seen = set()
    for _ in range(5):
        job = run(accelerator, frame)
        seen.add(id(job.outputs()))
        job.close()
    assert len(seen) == 1, 'the steady state allocates nothing'


@pytest.mark.parametrize(
    'end',
    [lambda job: (job.close(), job.close()), lambda job: job.abandon().close()],
    ids=['closed', 'given up'],
)
def test_the_cpu_s_access_lasts_from_outputs_to_the_job_s_end(
    opened: Opened, make_frame: MakeFrame, accesses: list[tuple[str, int]],
    end: Callable[[AxlJob], object],
) -> None:  # fmt: skip
    accelerator, _ = opened
    run(accelerator, make_frame()).close()
    job = run(accelerator, make_frame())
    assert accesses == [], 'nothing before the result is wanted'
    inode = job._result.buffer.identity.inode
    job.outputs()
    job.outputs()
    assert accesses == [('begin', inode)]
    end(job)
    assert accesses == [('begin', inode), ('end', inode)]


@pytest.mark.parametrize(
    ('state', 'words'),
    [
        ('pending', 'not signalled'),
        ('failed', 'the card says no'),
        ('closed', 'the job was closed'),
    ],
)
def test_there_is_no_result_without_success(
    opened: Opened, make_frame: MakeFrame, accesses: list[tuple[str, int]], state: str, words: str
) -> None:
    (accelerator, card), frame = opened, make_frame()
    job = accelerator.submit(accelerator.import_frame(frame), frame)
    if state != 'pending':
        card.jobs[0].signal(AcceleratorError('the card says no') if state == 'failed' else None)
    if state == 'closed':
        job.close()
    with pytest.raises(AcceleratorError, match=words):
        job.outputs()
    assert accesses == []
    card.jobs[0].signal()
    job.close()


def test_closing_twice_or_after_giving_up_gives_back_once(
    make_opened: Callable[..., Opened], make_frame: MakeFrame
) -> None:
    accelerator, card = make_opened(in_flight=2)
    frame = make_frame()
    job = run(accelerator, frame)
    job.close()
    job.close()
    late = run(accelerator, frame)
    fence = late.abandon()
    late.close()
    late.abandon()
    fence.close()
    jobs = [run(accelerator, frame) for _ in range(2)]
    assert jobs[0]._result is not jobs[1]._result, 'one buffer for two jobs'
    with pytest.raises(AcceleratorError, match=r'all 2 result buffers are in use, 0 of them.*up'):
        run(accelerator, frame)
    for each in jobs:
        each.close()
    assert len(card.jobs) == 4


def test_a_job_that_was_given_up_keeps_its_import_and_buffer_until_its_fence(
    make_opened: Callable[..., Opened], make_frame: MakeFrame
) -> None:
    """The pipeline releases the import at once; the device may still be reading."""
    accelerator, card = make_opened(in_flight=1, import_cache=False)
    frame = make_frame()
    handle = accelerator.import_frame(frame)
    fence = accelerator.submit(handle, frame).abandon()
    accelerator.release(handle)
    accelerator.tidy()
    assert card.held == {handle.number} and not fence.wait(0.0)
    for _ in range(3):
        with pytest.raises(AcceleratorError, match='1 of them by jobs that were given up'):
            run(accelerator, frame)
    assert accelerator.facts()['jobs_given_up'] == 1
    card.jobs[0].signal()
    accelerator.tidy()
    assert handle.number not in card.held
    assert accelerator.facts()['jobs_given_up'] == 0 and accelerator.facts()['jobs'] == 0
    fence.close()
    run(accelerator, frame).close()


def test_jobs_may_outlive_the_accelerator(
    make_opened: Callable[..., Opened], make_frame: MakeFrame
) -> None:
    accelerator, card = make_opened()
    frame = make_frame()
    first, second = (accelerator.submit(accelerator.import_frame(frame), frame) for _ in range(2))
    accelerator.close()
    accelerator.close()
    for fence in card.jobs:
        fence.signal(AcceleratorError('ECANCELED'))
    first.close()
    second.abandon().close()
    assert card.held == set()


def test_a_larger_model_has_larger_results(opened: Opened, make_frame: MakeFrame) -> None:
    accelerator, card = opened
    frame = make_frame()
    busy = accelerator.submit(accelerator.import_frame(frame), frame)
    larger = replace(MANIFEST, tensors=(TensorSpec('large', 'int8', (100_000,), 0, (1.0,), 0),))
    with pytest.raises(AcceleratorError, match='1 jobs are in flight'):
        accelerator.load(larger)
    card.jobs[0].signal()
    busy.close()
    accelerator.load(larger)
    job = run(accelerator, frame, bytes(range(100)) * 1000)
    assert job.outputs()[0].values[-3:].tolist() == [97, 98, 99]
    job.close()


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3), st.integers(0, 3)), min_size=1,
             max_size=4),
    st.sampled_from(['int8', 'uint8', 'int16', 'int32', 'float32']), st.integers(0, 4),
    st.booleans(),
)  # fmt: skip
def test_cutting_padding_away_is_what_numpy_s_pad_undoes(
    axes: list[tuple[int, int, int]], dtype: str, words: int, said: bool
) -> None:
    shape, padding = tuple(size for size, *_ in axes), tuple((b, a) for _, b, a in axes)
    values, offset = np.arange(np.prod(shape), dtype=dtype).reshape(shape), 4 * words
    memory = b'\xee' * offset + np.pad(values, padding, constant_values=99).tobytes() + b'\xee' * 5
    given_padding = padding if said or np.any(padding) else ()
    spec = TensorSpec('t', dtype, shape, offset, (1.0,), 0, '', given_padding)
    view = spec.view(memoryview(memory)).values
    assert view.dtype == np.dtype(dtype) and np.array_equal(view, values)
    assert not view.flags.owndata
    assert spec.offset + spec.num_bytes == len(memory) - 5


def has_heaps(monkeypatch: pytest.MonkeyPatch, **room: int) -> None:
    """Let the machine have these heaps only, with this room in bytes; none is open."""
    rooms = {f'dma_heap/{name.replace("_", ",")}': size for name, size in room.items()}

    def open_named(name: str) -> NamedHeap:
        if name not in rooms:
            raise FileNotFoundError(2, 'No such file or directory')
        return NamedHeap(name, rooms[name])

    monkeypatch.setattr(NamedHeap, 'open', 0)
    monkeypatch.setattr(heaps, '_open_named', open_named)
    monkeypatch.setattr(heaps, '_cma_heaps', lambda *_: ['dma_heap/linux,cma'])


@pytest.mark.parametrize(
    ('room', 'heap', 'words'),
    [
        ({'linux_cma': 1 << 20, 'system': 1 << 20}, 'dma_heap/linux,cma', ''),
        ({'system': 1 << 20}, 'dma_heap/system', '(this machine has no '),
        ({'linux_cma': 20_000, 'system': 1 << 20}, 'dma_heap/system', 'could not allocate 10000 '),
    ],
)
def test_results_come_from_cma_or_else_from_the_system_heap_which_is_said(
    monkeypatch: pytest.MonkeyPatch, room: dict[str, int], heap: str, words: str
) -> None:
    has_heaps(monkeypatch, **room)
    chosen, buffers, notice = axl.open_result_heap(10_000, 4)
    assert (chosen.name, len(buffers), NamedHeap.open) == (heap, 4, 1), 'others are closed'
    assert bool(notice) == bool(words)
    for word in (words, heap, 'IOMMU', 'CONFIG_DMABUF_HEAPS_CMA') if words else ():
        assert word in notice
    for buffer in buffers:
        buffer.close()


@pytest.mark.parametrize('room', [{}, {'linux_cma': 20_000, 'system': 20_000}])
def test_no_room_anywhere_is_an_error_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, room: dict[str, int]
) -> None:
    has_heaps(monkeypatch, **room)
    with pytest.raises(AllocationError):
        axl.open_result_heap(10_000, 4)
    assert NamedHeap.open == 0


def test_the_accelerator_says_once_where_results_come_from(
    monkeypatch: pytest.MonkeyPatch, make_opened: Callable[..., Opened]
) -> None:
    open_result_heap = axl.open_result_heap
    accelerator, _ = make_opened()
    has_heaps(monkeypatch, system=1 << 20)
    monkeypatch.setattr(axl, 'open_result_heap', open_result_heap)
    accelerator.load(MANIFEST)
    assert 'result buffers come from dma_heap/system' in ' '.join(accelerator.notices())
    assert accelerator.facts()['result_heap'] == 'dma_heap/system'
    has_heaps(monkeypatch)
    with pytest.raises(AcceleratorError, match='no heap for result buffers'):
        accelerator.load(MANIFEST)
