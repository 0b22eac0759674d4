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
The axruntime accelerator on a double that really computes.

The detections are the reference's and each frame's own, with one conversion each.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
import errno
from functools import partial
import os
from pathlib import Path
import re

from npu.axruntime_kit import (
    detect,
    Double,
    model,
    number_in,
    numbered,
    Open,
    paint,
    run_numbered,
    start,
    tensor_spec,
    WAIT_S,
)
from npu.scheduler_kit import MakeFrame, MakePool
import numpy as np
from numpy.typing import NDArray
import pytest

from zc_perception.detection.detections import box_iou
from zc_perception.detection.heads import make_head
from zc_perception.detection.heads.spec import DecodeLimits
from zc_perception.detection.letterbox import Letterbox
from zc_perception.detection.raw_tensor import RawTensor
from zc_perception.detection.tensor import PlanesToQuantised
from zc_perception.errors import AcceleratorError, AllocationError, ConfigError
from zc_perception.frame import Frame
from zc_perception.memory.dmabuf import CpuAccess
from zc_perception.memory.heaps import SealedMemfd
from zc_perception.memory.ledger import CopyLedger, LedgerEntry
from zc_perception.memory.pool import SlotState
from zc_perception.npu.axruntime import accelerator as axruntime
from zc_perception.npu.axruntime.tensors import TensorBuffer
from zc_perception.npu.axruntime.worker import AxRuntimeJob, why_no_heap
from zc_perception.npu.manifest import TensorSpec
from zc_perception.pixel.colorimetry import BT601_LIMITED
from zc_perception.pixel.fourcc import fourcc_code, NV12
from zc_perception.pixel.modifier import LINEAR
from zc_perception.pixel.readable import READABLE

pytestmark = pytest.mark.usefixtures('no_fd_leak')
LIMITS = DecodeLimits(0.9, 0.5, 100)


@pytest.fixture
def ledger() -> CopyLedger:
    return CopyLedger()


@pytest.fixture
def open_accelerator(double: Double, open_axruntime: Open, ledger: CopyLedger) -> Open:
    """Nobody's scheduling may flush a pipeline that a test wants full."""
    return partial(open_axruntime, ledger, axruntime_library=double.path, flush_after_s=WAIT_S)


def blobs(luma: NDArray[np.uint8], chroma: NDArray[np.uint8]) -> None:
    luma[:], chroma[:] = 16, 128
    height, width = luma.shape
    for colour, (left, top, right, bottom) in (
        ('red', (0.06, 0.1, 0.3, 0.55)),
        ('green', (0.4, 0.3, 0.75, 0.9)),
        ('blue', (0.8, 0.05, 0.96, 0.3)),
    ):
        corners = (left * width, top * height, right * width, bottom * height)
        paint(luma, chroma, colour, *(round(corner / 2) * 2 for corner in corners))


def reference(
    frame: Frame, box: Letterbox, width: int, height: int, scale: float, zero_point: int
) -> list[RawTensor]:
    """Run the same detector in NumPy, without quantised outputs, on the converter's own tensor."""
    spec = tensor_spec(width, height, scale, zero_point)
    converter = PlanesToQuantised(box, spec, NV12, BT601_LIMITED)
    tensor = np.empty(spec.shape, np.int8)
    converter.prepare(tensor)
    with frame.map() as planes:
        converter.convert(planes, tensor)
    return detect(tensor, spec)


@pytest.mark.parametrize('double_buffer', [False, True], ids=['single', 'double'])
@pytest.mark.parametrize('output_dmabuf', ['auto', 'false'])
@pytest.mark.parametrize(
    ('frame_size', 'input_size', 'quantisation'),
    [
        ((128, 96), (128, 96), (1 / 255, -128)),
        ((322, 182), (160, 96), (1 / 255, -130)),
        ((90, 160), (128, 128), (0.0078, -10)),
    ],
    ids=['as it is', 'smaller', 'portrait'],
)
def test_the_detections_are_the_reference_s(
    frame_size: tuple[int, int],
    input_size: tuple[int, int],
    quantisation: tuple[float, int],
    output_dmabuf: str,
    double_buffer: bool,
    open_accelerator: Open,
    make_frame: MakeFrame,
    tmp_path: Path,
) -> None:
    accelerator = open_accelerator(
        double_buffer=double_buffer, output_dmabuf=output_dmabuf, flush_after_s=0.001
    )
    scale, zero_point = quantisation
    manifest = model(tmp_path, *input_size, input_scale=scale, input_zero_point=zero_point)
    accelerator.load(manifest)
    frame = make_frame(width=frame_size[0], height=frame_size[1], fill=blobs)
    job = start(accelerator, frame)
    assert job.fence.wait(WAIT_S)
    outputs = job.outputs()
    wanted = reference(frame, job.letterbox, *input_size, scale, zero_point)
    for output, exact in zip(outputs, wanted, strict=True):
        assert (
            output.values.shape == exact.values.shape
            and output.layout == 'nhwc'
            and output.name == exact.name
        )
        # Half a step of the output's own quantisation, where it doesn't saturate.
        inside = np.abs(output.values.astype(int)) < 127
        assert inside.any() and np.abs(output.real() - exact.values)[
            inside
        ].max() <= 0.5001 * float(output.scale)
    head = make_head(manifest.head)
    found, best = (
        head.decode(outputs, job.letterbox, LIMITS),
        head.decode(wanted, job.letterbox, LIMITS),
    )
    assert sorted(found.classes.tolist()) == sorted(best.classes.tolist()) and set(
        found.classes.tolist()
    ) == {0, 1, 2}
    for index, class_index in enumerate(best.classes):
        same = found.boxes[found.classes == class_index]
        assert np.abs(same - best.boxes[index]).max(axis=1).min() < 0.03 * max(frame_size), (
            'within what half a step of logits moves a box'
        )
        assert box_iou(best.boxes[slice(index, index + 1)], same).max() > 0.9
    job.close()
    frame.release()


def counted(monkeypatch: pytest.MonkeyPatch, owner: type, method: str) -> list[dict[str, object]]:
    """Return a list that gets the keyword arguments of each call from now on."""
    calls: list[dict[str, object]] = []
    original = getattr(owner, method)

    def call(self: object, **options: object) -> object:
        calls.append(options)
        return original(self, **options)

    monkeypatch.setattr(owner, method, call)
    return calls


@pytest.mark.parametrize('double_buffer', [False, True], ids=['single', 'double'])
def test_a_thousand_frames_keep_their_results(
    double_buffer: bool,
    open_accelerator: Open,
    double: Double,
    make_pool: MakePool,
    make_frame: MakeFrame,
    ledger: CopyLedger,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    accelerator = open_accelerator(double_buffer=double_buffer)
    accelerator.load(model(tmp_path))
    reads, writes = (
        counted(monkeypatch, Frame, 'map'),
        counted(monkeypatch, TensorBuffer, 'writing'),
    )
    trial_runs, limit = double.runs, accelerator.capabilities().max_in_flight
    assert (trial_runs, limit) == ((3, 3) if double_buffer else (1, 2))
    pool = make_pool(64, 64, slots=limit)
    jobs: deque[tuple[Frame, AxRuntimeJob]] = deque()
    seen = []
    for number in range(1000):
        frame = make_frame(pool, sequence=number, fill=numbered(number))
        jobs.append((frame, start(accelerator, frame)))
        while len(jobs) == limit or (jobs and number == 999 and not double_buffer):
            done, job = jobs.popleft()
            assert job.fence.wait(WAIT_S)
            seen.append((done.data.sequence, number_in(job.outputs())))
            job.close()
            done.release()
    if double_buffer:
        assert len(jobs) == 2 and not any(job.fence.wait(0.0) for _, job in jobs), (
            'the last two are still inside'
        )
        accelerator.close()  # which lets them end
        for done, job in jobs:
            assert job.fence.wait(WAIT_S)
            seen.append((done.data.sequence, number_in(job.outputs())))
            job.close()
            done.release()
    assert seen == [(number, number) for number in range(1000)]
    assert ledger.entries() == {'tensor': LedgerEntry(1000, 1000 * 64 * 64 * 3 // 2)}, (
        'each frame was read once'
    )
    assert (reads.count({}), len(writes)) == (1000, 1000), (
        'and mapped once, and one tensor written for it'
    )
    assert double.runs == trial_runs + 1000 + (2 if double_buffer else 0)
    assert pool.statistics().states == {SlotState.FREE: limit}


def test_double_buffering_needs_more_frames_in_flight_and_says_so(open_accelerator: Open) -> None:
    accelerator = open_accelerator(double_buffer=True, in_flight=1)
    assert 'set in_flight to 3' in ' '.join(accelerator.notices())
    accelerator.tune(accelerator.own({'double_buffer': True, 'in_flight': 3}))
    assert 'in_flight' not in ' '.join(accelerator.notices())


def test_results_that_no_frame_pushes_out_come_by_themselves(
    open_accelerator: Open, make_pool: MakePool, make_frame: MakeFrame, tmp_path: Path
) -> None:
    accelerator = open_accelerator(double_buffer=True, flush_after_s=0.01)
    accelerator.load(model(tmp_path))
    pool = make_pool(64, 64, slots=3)
    for first in (5, 300, 901):
        frames = [make_frame(pool, sequence=n, fill=numbered(n)) for n in range(first, first + 3)]
        jobs = [start(accelerator, frame) for frame in frames]
        assert all(job.fence.wait(WAIT_S) for job in jobs)
        assert [number_in(job.outputs()) for job in jobs] == [first, first + 1, first + 2]
        for frame, job in zip(frames, jobs, strict=True):
            job.close()
            frame.release()
    facts = accelerator.facts()
    assert facts['late_calls'] == 2 and 6 <= int(str(facts['flush_runs'])) <= 18
    assert any('2 frames late' in notice for notice in accelerator.notices())


@pytest.mark.parametrize(
    ('heap', 'refuse', 'output_dmabuf', 'used', 'words'),
    [
        ('memfd', {}, 'auto', (True, True), ''),
        ('memfd', {}, 'false', (True, False), ''),
        (
            'memfd',
            {'refuse_output_dmabuf': 1},
            'auto',
            (True, False),
            r'output_dmabuf: results go to host memory.*not MMIO',
        ),
        (
            'memfd',
            {'refuse_output_dmabuf': 2},
            'auto',
            (True, False),
            r'output_dmabuf: results go to host memory.*outputs are MMIO',
        ),
        (
            'memfd',
            {'refuse_input_dmabuf': 1},
            'auto',
            (False, False),
            r'input_dmabuf: tensors are in host memory',
        ),
        (
            'none',
            {},
            'auto',
            (False, False),
            r'no dma-heap can be used: there is no /dev/dma_heap/nowhere; ',
        ),
        ('none', {}, 'false', (False, False), 'no dma-heap'),
    ],
)
def test_the_best_way_that_works_is_found_and_said(
    heap: str,
    refuse: dict[str, int],
    output_dmabuf: str,
    used: tuple[bool, bool],
    words: str,
    double: Double,
    open_accelerator: Open,
    make_frame: MakeFrame,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(axruntime, 'TENSOR_HEAP', 'dma_heap/nowhere')
    for name, value in refuse.items():
        setattr(double, name, value)
    accelerator = open_accelerator(
        output_dmabuf=output_dmabuf, tensor_heap=SealedMemfd() if heap == 'memfd' else None
    )
    accelerator.load(model(tmp_path))
    facts = accelerator.facts()
    assert (facts['input_dmabuf'], facts['output_dmabuf']) == used
    notices = ' '.join(accelerator.notices())
    assert bool(notices) == bool(words)
    assert re.search(words, notices), notices
    assert run_numbered(accelerator, make_frame, 517) == 517


def test_what_is_insisted_on_and_refused_is_an_error(
    double: Double, open_accelerator: Open, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    double.refuse_output_dmabuf = 1
    with pytest.raises(
        ConfigError,
        match=r'^output_dmabuf: true does not work here; set output_dmabuf to auto \(.*not MMIO',
    ):
        open_accelerator(output_dmabuf='true').load(model(tmp_path))
    monkeypatch.setattr(axruntime, 'TENSOR_HEAP', 'dma_heap/nowhere')
    with pytest.raises(
        ConfigError,
        match=r'output_dmabuf: true needs a dma-heap: .*nowhere.*or set output_dmabuf to auto',
    ):
        open_accelerator(output_dmabuf='true', tensor_heap=None).load(model(tmp_path))


def test_its_threads_are_known_while_there_is_a_model(
    open_accelerator: Open, tmp_path: Path
) -> None:
    accelerator = open_accelerator()
    assert accelerator.hot_threads() == ()
    accelerator.load(model(tmp_path))
    threads = accelerator.hot_threads()
    assert {thread.name for thread in threads} == {'axruntime-convert', 'axruntime-run'} and all(
        t.is_alive() for t in threads
    )
    accelerator.close()
    assert accelerator.hot_threads() == () and not any(thread.is_alive() for thread in threads)


@pytest.mark.parametrize(
    ('settings', 'words'),
    [
        ({'batch': 4}, r"compiled for 4 frames at once; deploy it again with '--aipu-cores 1'"),
        ({'num_inputs': 2}, 'has 2 inputs'),
        ({'width': 96}, "the manifest's input is 64x64 .*the compiled model's 96x64"),
    ],
)
def test_a_model_that_does_not_fit_is_refused(
    settings: dict[str, int], words: str, open_accelerator: Open, tmp_path: Path
) -> None:
    wanted = model(tmp_path, 64, 64, **{k: v for k, v in settings.items() if k != 'width'})
    if 'width' in settings:
        model(tmp_path, settings['width'], 64)
    with pytest.raises(ConfigError, match=words):
        open_accelerator(aipu_cores=0).load(wanted)


def test_a_manifest_of_another_engine_is_refused(open_accelerator: Open, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"can't run on axruntime; it needs engine: axruntime"):
        open_accelerator().load(replace(model(tmp_path), engine='onnx'))


def test_outputs_in_the_manifest_name_and_scale_the_runtime_s(
    open_accelerator: Open, make_frame: MakeFrame, tmp_path: Path
) -> None:
    shapes = [(1, 64 // s, 64 // s, channels) for s in (8, 16, 32) for channels in (64, 3)]
    named = [
        TensorSpec(f't{i}', 'int8', shape, 0, (0.5,), 7, 'nhwc') for i, shape in enumerate(shapes)
    ]
    accelerator = open_accelerator()
    accelerator.load(model(tmp_path, tensors=named))
    frame = make_frame(width=64, height=64, fill=numbered(0))
    job = start(accelerator, frame)
    assert job.fence.wait(WAIT_S)
    assert [(o.name, o.scale, o.zero_point, o.values.shape) for o in job.outputs()] == [
        (s.name, 0.5, 7, s.shape) for s in named
    ]
    job.close()
    with pytest.raises(
        ConfigError,
        match=r"the manifest's outputs are .*the compiled model's .*leave the key 'outputs' out",
    ):
        accelerator.load(model(tmp_path, tensors=named[:-1]))


def test_a_frame_of_another_size_changes_the_geometry(
    open_accelerator: Open, make_frame: MakeFrame, tmp_path: Path
) -> None:
    accelerator = open_accelerator()
    accelerator.load(model(tmp_path, 128, 96))
    for width, height in ((128, 96), (64, 48), (128, 96), (96, 128)):
        frame = make_frame(width=width, height=height, fill=blobs)
        job = start(accelerator, frame)
        assert job.fence.wait(WAIT_S)
        wanted = reference(frame, job.letterbox, 128, 96, 1 / 255, -128)
        logits = job.outputs()[1]
        assert (
            np.abs(logits.real() - np.clip(wanted[1].values, -108 / 12, 147 / 12)).max()
            <= 0.5001 / 12
        )
        assert (job.letterbox.source_width, job.letterbox.input_width) == (width, 128)
        job.close()
        frame.release()


def test_a_frame_that_can_not_be_read_fails_its_job(
    open_accelerator: Open, make_pool: MakePool, make_frame: MakeFrame, tmp_path: Path
) -> None:
    accelerator = open_accelerator()
    accelerator.load(model(tmp_path))
    frame = make_frame(make_pool(64, 64, slots=1, fourcc=fourcc_code('NV15')))
    job = start(accelerator, frame)
    assert job.fence.wait(WAIT_S)
    with pytest.raises(
        AcceleratorError,
        match=r"NV15 frames can't be read by a program here; it can read NV12, .* pixel_format",
    ):
        job.outputs()
    job.close()
    frame.release()


def test_it_says_what_it_is(
    double: Double, open_accelerator: Open, make_frame: MakeFrame, tmp_path: Path
) -> None:
    accelerator = open_accelerator(double_buffer=True)
    capabilities = accelerator.capabilities()
    assert (capabilities.name, capabilities.device, capabilities.copy_free) == (
        'axruntime',
        'metis-0:1:0',
        False,
    )
    constraints = accelerator.constraints()
    assert constraints.formats == tuple(
        (fourcc, LINEAR) for fourcc in READABLE
    ) and constraints.formats[0] == (NV12, LINEAR)
    assert (constraints.costs, constraints.cpu_access) == (
        tuple(READABLE.values()),
        CpuAccess.READ,
    )
    assert accelerator.trial_import(make_frame().data.layout, ()) is None and (
        accelerator.imports,
        accelerator.trial_imports,
    ) == (0, 0)
    accelerator.load(model(tmp_path))
    facts = accelerator.facts()
    assert {
        'device': 'metis-0:1:0',
        'aipu_cores': 1,
        'double_buffer': True,
        'runs': 0,
    }.items() <= facts.items()
    assert facts['postamble_graph'] == 'postprocess_graph.onnx', (
        'what the compiler left to the host: the head does it'
    )
    assert 'libnvbufsurface' in str(facts['vic']), 'why there is no VIC here'


def test_without_memory_for_tensors_the_next_way_is_tried(
    open_accelerator: Open, tmp_path: Path
) -> None:
    class Empty(SealedMemfd):
        """A heap without memory."""

        def allocate(self, size: int) -> object:
            raise AllocationError('no memory left')

    accelerator = open_accelerator(tensor_heap=Empty())
    accelerator.load(model(tmp_path))
    assert (accelerator.facts()['input_dmabuf'], len(accelerator.notices())) == (False, 2)


@pytest.mark.parametrize(
    ('number', 'words'),
    [
        (
            errno.ENOENT,
            [
                'there is no /dev/dma_heap/system',
                'CONFIG_DMABUF_HEAPS_SYSTEM',
                '--device /dev/dma_heap/system',
            ],
        ),
        (
            errno.EACCES,
            [
                "/dev/dma_heap/system can't be used: Permission denied",
                'udev rule',
                '--device /dev/dma_heap/system',
            ],
        ),
        (
            errno.EPERM,
            ["/dev/dma_heap/system can't be used: Operation not permitted", 'udev rule'],
        ),
        (errno.EIO, ["/dev/dma_heap/system can't be used: Input/output error"]),
    ],
)
def test_a_heap_that_tensors_can_not_be_in_is_named_with_what_it_needs(
    number: int, words: list[str]
) -> None:
    refusal = AllocationError("heap 'dma_heap/system' can't be opened; use heap: auto")
    refusal.__cause__ = OSError(number, os.strerror(number))
    message = why_no_heap('dma_heap/system', refusal)
    assert all(word in message for word in words) and '\n' not in message
    assert 'heap: auto' not in message, "that is the camera's parameter"
