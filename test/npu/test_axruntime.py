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
The axruntime accelerator on a double that really computes, against a NumPy reference.

Each frame gets its own detections, with one conversion each.
"""

from __future__ import annotations

from collections import deque
import errno
from functools import partial
import os
import re
import subprocess
import sys
import threading
from typing import Any
from unittest.mock import patch

from descriptors import open_descriptors
from npu.axruntime_kit import (
    blobs,
    Double,
    finished,
    model,
    NEVER_S,
    number_in,
    Open,
    reference,
    result,
    start,
    tensor_spec,
    Voyager,
    WAIT_S,
)
from npu.scheduler_kit import all_free
import numpy as np
from numpy.typing import NDArray
import pytest
from waiting import until

from zc_perception.detection.detections import box_iou
from zc_perception.detection.heads import make_head
from zc_perception.detection.heads.spec import DecodeLimits
from zc_perception.errors import AcceleratorError, AllocationError, ConfigError, DeviceLostError
from zc_perception.frame import Frame
from zc_perception.memory.heaps import SealedMemfd
from zc_perception.memory.ledger import CopyLedger, LedgerEntry
from zc_perception.memory.pool import SlotState
from zc_perception.npu.axruntime import accelerator as axruntime
from zc_perception.npu.axruntime import library as axruntime_library
from zc_perception.npu.axruntime import runtime as axruntime_runtime
from zc_perception.npu.axruntime.library import mismatches, Result
from zc_perception.npu.axruntime.tensors import FrameToTensor, InputSlot, TensorBuffer
from zc_perception.npu.axruntime.worker import AxRuntimeJob, why_no_heap
from zc_perception.npu.manifest import TensorSpec

pytestmark = pytest.mark.usefixtures('no_fd_leak')
LIMITS = DecodeLimits(0.9, 0.5, 100)
both_buffers = pytest.mark.parametrize('double_buffer', [False, True], ids=['single', 'double'])
both_interfaces = pytest.mark.parametrize('interface', ['python', 'c'])
Pairs = deque[tuple[Frame, AxRuntimeJob]]


@both_buffers
@pytest.mark.parametrize(
    ('frame_size', 'input_size', 'quantisation', 'output_dmabuf'),
    [
        ((322, 182), (160, 96), (1 / 255, -130), 'auto'),
        ((90, 160), (128, 128), (0.0078, -10), 'false'),
    ],
    ids=['smaller', 'portrait'],
)
def test_the_detections_are_the_reference_s(
    frame_size: tuple[int, int], input_size: tuple[int, int], quantisation: tuple[float, int],
    output_dmabuf: str, double_buffer: bool, voyager: Voyager,
) -> None:  # fmt: skip
    accelerator = voyager.open(double_buffer=double_buffer, output_dmabuf=output_dmabuf)
    scale, zero_point = quantisation
    settings = {'input_scale': scale, 'input_zero_point': zero_point}
    manifest = model(voyager.folder, *input_size, **settings)
    accelerator.load(manifest)
    frame = voyager.make_frame(width=frame_size[0], height=frame_size[1], fill=blobs)
    job = finished(accelerator, frame)
    outputs = job.outputs()
    spec = tensor_spec(*input_size, scale, zero_point)
    wanted = reference(frame, job.letterbox, spec)
    for output, exact in zip(outputs, wanted, strict=True):
        assert output.values.shape == exact.values.shape
        assert (output.layout, output.name) == ('nhwc', exact.name)
        # Half a step of the output's own quantisation, where it doesn't saturate.
        inside = np.abs(output.values.astype(int)) < 127
        errors = np.abs(output.real() - exact.values)[inside]
        assert inside.any() and errors.max() <= 0.5001 * float(output.scale)
    head = make_head(manifest.head)
    found, best = (head.decode(each, job.letterbox, LIMITS) for each in (outputs, wanted))
    assert sorted(found.classes) == sorted(best.classes) and set(found.classes) == {0, 1, 2}
    for index, class_index in enumerate(best.classes):
        same = found.boxes[found.classes == class_index]
        assert np.abs(same - best.boxes[index]).max(axis=1).min() < 0.03 * max(frame_size), (
            'within what half a step of logits moves a box'
        )
        assert box_iou(best.boxes[index : index + 1], same).max() > 0.9
    job.close()


@both_buffers
def test_a_thousand_frames_keep_their_results(
    double_buffer: bool, voyager: Voyager
) -> None:
    ledger, double = CopyLedger(), voyager.double
    accelerator = voyager.loaded(ledger=ledger, double_buffer=double_buffer, flush_after_s=NEVER_S)
    trial_runs, limit = double.runs, accelerator.capabilities().max_in_flight
    assert (trial_runs, limit) == ((3, 3) if double_buffer else (1, 2))
    pool, jobs, seen = voyager.pool(limit), Pairs(), []
    spy = partial(patch.object, autospec=True)
    with (
        spy(Frame, 'map', side_effect=Frame.map) as reads,
        spy(TensorBuffer, 'writing', side_effect=TensorBuffer.writing) as writes,
    ):
        for number in range(1000):
            frame = voyager.frame(number, pool)
            jobs.append((frame, start(accelerator, frame)))
            while len(jobs) == limit or (jobs and number == 999 and not double_buffer):
                seen.append(result(*jobs.popleft()))
    if double_buffer:
        assert len(jobs) == 2 and not any(job.fence.wait(0.0) for _, job in jobs), (
            'the last two are still inside'
        )
        accelerator.close()  # lets the calls end
        seen += [result(*pair) for pair in jobs]
    assert seen == list(range(1000))
    # Each frame was read once, mapped once, and one tensor was written for it.
    assert ledger.entries() == {'tensor': LedgerEntry(1000, 1000 * 64 * 64 * 3 // 2)}
    assert [call.kwargs for call in reads.call_args_list].count({}) == 1000
    assert writes.call_count == 1000
    assert double.runs == trial_runs + 1000 + (2 if double_buffer else 0)
    assert pool.statistics().states == {SlotState.FREE: limit}


def test_results_that_no_frame_pushes_out_come_by_themselves(voyager: Voyager) -> None:
    accelerator = voyager.loaded(double_buffer=True, flush_after_s=0.01)
    pool = voyager.pool(3)
    for first in (5, 300, 901):
        frames = [voyager.frame(number, pool) for number in range(first, first + 3)]
        pairs = [(frame, start(accelerator, frame)) for frame in frames]
        assert [result(*pair) for pair in pairs] == [first, first + 1, first + 2]
    facts = accelerator.facts()
    assert facts['late_calls'] == 2 and 6 <= int(str(facts['flush_runs'])) <= 18
    assert any('2 frames late' in notice for notice in accelerator.notices())


@pytest.mark.parametrize(
    ('refused', 'used', 'words'),
    [
        ('', (True, True), ''),
        ('output_dmabuf 1', (True, False), 'output_dmabuf: results go to host memory.*not MMIO'),
        ('output_dmabuf 2', (True, False), 'results go to host memory.*outputs are MMIO'),
        ('input_dmabuf 1', (False, False), 'input_dmabuf: all tensors are in host memory'),
        ('heap', (False, False), 'no dma-heap can be used.*: there is no /dev/dma_heap/nowhere; '),
    ],
)
def test_the_best_way_that_works_is_found_and_said(
    refused: str, used: tuple[bool, bool], words: str, voyager: Voyager,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(axruntime, 'TENSOR_HEAP', 'dma_heap/nowhere')
    name, _, value = refused.partition(' ')
    if value:
        setattr(voyager.double, f'refuse_{name}', int(value))
    accelerator = voyager.loaded(tensor_heap=None if name == 'heap' else SealedMemfd())
    facts = accelerator.facts()
    assert (facts['input_dmabuf'], facts['output_dmabuf']) == used
    notices = ' '.join(accelerator.notices())
    assert bool(notices) == bool(words)
    assert re.search(words, notices), notices
    assert voyager.run(accelerator, 517) == 517


def memfds() -> int:
    return sum(count for name, count in open_descriptors().items() if 'memfd:' in name)


def test_what_is_insisted_on_and_refused_is_an_error(
    voyager: Voyager, monkeypatch: pytest.MonkeyPatch
) -> None:
    voyager.double.refuse_output_dmabuf = 1
    accelerator, before = voyager.open(output_dmabuf='true'), memfds()
    words = r'^output_dmabuf: true does not.*to auto \(.*not MMIO'
    with pytest.raises(ConfigError, match=words) as refused:
        accelerator.load(model(voyager.folder))
    assert memfds() == before, 'its tensors are gone while the exception still lives'
    del refused
    monkeypatch.setattr(axruntime, 'TENSOR_HEAP', 'dma_heap/nowhere')
    with pytest.raises(ConfigError, match=r'needs a dma-heap: .*nowhere.*output_dmabuf to auto'):
        voyager.loaded(output_dmabuf='true', tensor_heap=None)


@pytest.mark.parametrize(
    ('settings', 'words'),
    [
        ({'batch': 4}, r"compiled for 4 frames at once; deploy it again with '--aipu-cores 1'"),
        ({'num_inputs': 2}, 'has 2 inputs'),
        ({'width': 96}, "the manifest's input is 64x64 .*the compiled model's input is 96x64"),
    ],
)
def test_a_model_that_does_not_fit_is_refused(
    settings: dict[str, int], words: str, voyager: Voyager
) -> None:
    wanted = model(voyager.folder)
    model(voyager.folder, **{'width': 64, **settings})
    with pytest.raises(ConfigError, match=words):
        voyager.open(aipu_cores=0).load(wanted)


def test_outputs_in_the_manifest_name_and_scale_the_runtime_s(voyager: Voyager) -> None:
    shapes = [(1, 64 // s, 64 // s, channels) for s in (8, 16, 32) for channels in (64, 3)]
    named = [
        TensorSpec(f't{i}', 'int8', shape, 0, (0.5,), 7, 'nhwc' if i else '')
        for i, shape in enumerate(shapes)
    ]
    accelerator = voyager.open()
    accelerator.load(model(voyager.folder, tensors=named))
    job = finished(accelerator, voyager.frame(0))
    outputs = job.outputs()
    assert [(o.name, o.scale, o.zero_point, o.values.shape) for o in outputs] == [
        (s.name, 0.5, 7, s.shape) for s in named
    ]
    assert {o.layout for o in outputs} == {'nhwc'}, (
        'the runtime says it where the manifest does not'
    )
    job.close()
    with pytest.raises(ConfigError, match=r"the manifest's outputs are .*the.*key 'outputs' out"):
        accelerator.load(model(voyager.folder, tensors=named[:-1]))


@pytest.mark.parametrize(
    ('number', 'words'),
    [
        (errno.ENOENT, 'there is no /dev/dma_heap/system.*HEAPS_SYSTEM.*--device /dev/dma_heap/s'),
        (errno.EACCES, "/dev/dma_heap/system can't be used: Permission denied.*rule.*--device"),
    ],
)
def test_a_heap_that_tensors_can_not_be_in_is_named_with_what_it_needs(
    number: int, words: str
) -> None:
    refusal = AllocationError("heap 'dma_heap/system' can't be opened; use heap: auto")
    refusal.__cause__ = OSError(number, os.strerror(number))
    message = why_no_heap('dma_heap/system', refusal)
    assert re.search(words, message) and '\n' not in message
    assert 'heap: auto' not in message, "that is the camera's parameter"


# The axruntime accelerator at faults: runs fail, the runtime hangs, jobs are given up.


def fail_runs(double: Double, after: int, count: int, code: Result = Result.RUNTIME_ERROR) -> None:
    double.fail_from, double.fail_count, double.fail_code = double.runs + after, count, int(code)


@both_buffers
def test_a_failed_run_costs_its_frame_and_mixes_nothing_up(
    double_buffer: bool, voyager: Voyager
) -> None:
    """Runs fail, frames come in bursts, some are given up: results must match their frames."""
    accelerator = voyager.loaded(double_buffer=double_buffer, flush_after_s=0.001)
    limit = accelerator.capabilities().max_in_flight
    pool, random = voyager.pool(limit), np.random.default_rng(3)
    right = failed = 0
    for burst in range(60):
        if burst % 4 == 1:
            fail_runs(voyager.double, int(random.integers(1, 4)), 1)
        numbers = range(burst * 10, burst * 10 + int(random.integers(1, limit + 1)))
        frames = [voyager.frame(number, pool) for number in numbers]
        jobs = [start(accelerator, frame) for frame in frames]
        for frame, job in zip(frames, jobs, strict=True):
            if random.random() < 0.1:
                frame.release(job.abandon())
                continue
            number = frame.data.sequence
            try:
                assert result(frame, job) == number
                right += 1
            except AcceleratorError as error:
                assert 'injected into run' in str(error) and not isinstance(error, DeviceLostError)
                failed += 1
                job.close()
                frame.release()
        until(lambda: all_free(pool) and accelerator._workers[0].open_jobs == 0)
    assert right > 60 and failed >= 5
    assert (int(str(accelerator.facts()['reloads'])) > 0) == double_buffer, (
        'nobody knows what an instance with results inside answers next'
    )


@both_buffers
@pytest.mark.parametrize(
    ('code', 'count', 'words'),
    [
        (Result.CONNECTION_ERROR, 1,
         r'injected into run \d+ \(CONNECTION_ERROR\); check that .axdevice. lists'),
        (Result.RUNTIME_ERROR, 100, r'3 runs failed in a row: .*RUNTIME_ERROR'),
    ],
)  # fmt: skip
def test_a_lost_device_fails_all_jobs_and_stays_lost(
    code: Result, count: int, words: str, double_buffer: bool, voyager: Voyager
) -> None:
    accelerator = voyager.loaded(double_buffer=double_buffer)
    pool = voyager.pool(4)
    fail_runs(voyager.double, 1, count, code)
    lost = None
    for number in range(4):
        with voyager.frame(number, pool) as frame:
            try:
                job = start(accelerator, frame)
            except DeviceLostError as error:
                lost = error
                break
            assert job.fence.wait(WAIT_S)
            with pytest.raises(AcceleratorError) as caught:
                job.fence.check()
            lost = caught.value
            with pytest.raises(type(lost)):
                job.outputs()
            job.close()
    assert isinstance(lost, DeviceLostError)
    with pytest.raises(DeviceLostError, match=words):
        start(accelerator, voyager.frame(4, pool))
    accelerator.close()
    voyager.double.fail_count = 0
    assert voyager.run(voyager.loaded(), 99) == 99


def test_a_device_that_takes_no_new_instance_is_lost(voyager: Voyager) -> None:
    accelerator = voyager.loaded(double_buffer=True)
    fail_runs(voyager.double, 1, 1)
    voyager.double.refuse_double_buffer = 1
    job = finished(accelerator, voyager.frame(0))
    with pytest.raises(DeviceLostError, match=r'injected into run.*well: .*no memory for double'):
        job.outputs()
    job.close()


@both_buffers
def test_a_run_that_never_returns_is_told_and_left_behind(
    double_buffer: bool, voyager: Voyager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(axruntime, '_LONG_CALL_S', 0.02)
    monkeypatch.setattr(axruntime, '_CLOSE_TIMEOUT_IN_LONG_CALL_S', 0.05)
    accelerator, double = voyager.loaded(double_buffer=double_buffer), voyager.double
    pool = voyager.pool(3)
    double.hang_at = double.runs + 1
    first, second, third = (voyager.frame(number, pool) for number in range(3))
    jobs = [start(accelerator, first), start(accelerator, second)]
    until(double.is_hanging)
    assert not any(job.fence.wait(0.0) for job in jobs)
    # Set this only now: from the beginning, the second job might exceed such a short timeout.
    accelerator.tune(accelerator.own({'timeout': 0.01}))
    until(lambda: accelerator._workers[0].silent_s() > 0.02)
    with pytest.raises(DeviceLostError, match=r'the Voyager runtime has not answered.*the node'):
        start(accelerator, third)
    third.release()
    first.release(jobs[0].abandon())
    second.release(jobs[1].abandon())
    until(lambda: all_free(pool))
    words = r'did not return from a call within 0\.05 s.*stays in use until this process ends'
    with pytest.warns(RuntimeWarning, match=words):
        accelerator.close()
    accelerator.close()
    assert double.live_objects == 4, 'context, model, connection and instance: it may still write'
    double.end_hang()
    until(lambda: double.live_objects == 0)
    until(lambda: not any(each.name.startswith('axruntime') for each in threading.enumerate()))


def test_a_runtime_that_hangs_while_loading_is_lost(
    voyager: Voyager, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ('UNLOAD_TIMEOUT', 'CLOSE_TIMEOUT', 'CLOSE_TIMEOUT_IN_LONG_CALL', 'LOAD_TIMEOUT'):
        monkeypatch.setattr(axruntime, f'_{name}_S', 0.05)
    accelerator = voyager.open()
    voyager.double.hang_at = 1
    for words in (
        r'did not load the model within 0\.05 s',
        r'does not release the previous model; restart',
    ):
        with pytest.raises(DeviceLostError, match=words):
            accelerator.load(model(voyager.folder))
    with pytest.warns(RuntimeWarning):
        accelerator.close()
    voyager.double.end_hang()
    until(lambda: voyager.double.live_objects == 0)


def test_a_job_that_is_given_up_frees_its_frame_as_soon_as_nobody_reads_it(
    voyager: Voyager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The conversion thread is held within a frame until the test lets it go on."""
    inside, go_on, written = threading.Event(), threading.Event(), list[int]()
    original = FrameToTensor.write

    def write(writer: FrameToTensor, frame: Frame, slot: InputSlot) -> None:
        inside.set()
        assert go_on.wait(WAIT_S)
        written.append(frame.data.sequence)
        original(writer, frame, slot)

    monkeypatch.setattr(FrameToTensor, 'write', write)
    accelerator, pool = voyager.loaded(double_buffer=True), voyager.pool(3)
    trial_runs = voyager.double.runs
    frames = [voyager.frame(number, pool) for number in (1, 2)]
    jobs = [start(accelerator, frame) for frame in frames]
    assert inside.wait(WAIT_S)
    fences = [job.abandon() for job in jobs]
    assert [fence.wait(0.0) for fence in fences] == [False, True], (
        'one is being read, the other will not be'
    )
    for frame, fence in zip(frames, fences, strict=True):
        frame.release(fence)
    last = voyager.frame(3, pool)
    job = start(accelerator, last)
    go_on.set()
    assert result(last, job) == 3
    until(lambda: all_free(pool))
    assert written == [1, 3] and voyager.double.runs - trial_runs == 3, (
        'frame 3 and two calls to push it out'
    )


def test_jobs_beyond_what_it_takes_are_refused_until_one_is_closed(voyager: Voyager) -> None:
    accelerator, pool = voyager.loaded(), voyager.pool(3)
    frames = [voyager.frame(number, pool) for number in range(3)]
    jobs = [start(accelerator, frame) for frame in frames[:2]]
    with pytest.raises(AcceleratorError, match=r'2 jobs are open, but .* takes at most 2'):
        start(accelerator, frames[2])
    assert all(job.fence.wait(WAIT_S) for job in jobs)
    jobs[0].close()
    third = start(accelerator, frames[2])
    assert third.fence.wait(WAIT_S) and number_in(third.outputs()) == 2
    assert number_in(jobs[1].outputs()) == 1, 'a result stays until its job is closed'
    third.close()
    jobs[1].close()
    jobs[1].close()
    with pytest.raises(AcceleratorError):
        jobs[1].outputs()


@both_buffers
def test_closing_in_the_middle_lets_submitted_jobs_end(
    double_buffer: bool, voyager: Voyager
) -> None:
    accelerator = voyager.loaded(double_buffer=double_buffer, flush_after_s=NEVER_S)
    pool = voyager.pool(2)
    frames = [voyager.frame(number, pool) for number in (7, 8)]
    jobs = [start(accelerator, frame) for frame in frames]
    accelerator.close()
    assert [number_in(job.outputs()) for job in jobs] == [7, 8], (
        'and results outlive the accelerator until their jobs are closed'
    )
    with pytest.raises(AcceleratorError, match='no model loaded'):
        start(accelerator, frames[0])
    with pytest.raises(AcceleratorError, match='was closed; open it anew'):
        accelerator.load(model(voyager.folder))
    for job in jobs:
        job.close()


def test_a_model_that_was_refused_leaves_room_for_another(voyager: Voyager) -> None:
    accelerator, double = voyager.open(), voyager.double
    double.no_toolchain = 1
    with pytest.raises(AcceleratorError, match='riscv64-unknown-elf-gcc'):
        accelerator.load(model(voyager.folder))
    until(lambda: double.live_objects == 1)
    with pytest.raises(ConfigError, match='is no compiled model'):
        accelerator.load(model(voyager.folder, 63, 63))
    double.no_toolchain = 0
    accelerator.load(model(voyager.folder))
    assert voyager.run(accelerator, 3) == 3


# Both interfaces of the Voyager runtime: which one is chosen, and that results are equal.


@pytest.fixture
def installed(voyager: Voyager, monkeypatch: pytest.MonkeyPatch) -> Voyager:
    """Let the package find the C library as if the system had it."""
    path = voyager.double.path
    monkeypatch.setattr(axruntime_library, 'candidates', lambda library: [library or path])
    return voyager


def library_of(interface: str, voyager: Voyager) -> str:
    return '' if interface == 'python' else str(voyager.double.path)


def noise(luma: NDArray[np.uint8], chroma: NDArray[np.uint8]) -> None:
    random = np.random.default_rng(5)
    luma[:] = random.integers(0, 256, (8, 8), np.uint8).repeat(8, 0).repeat(8, 1)
    chroma[:] = random.integers(0, 256, (32, 32, 1), np.uint8)


@both_buffers
@pytest.mark.parametrize('refused', [0, 2], ids=['auto', 'refused'])
def test_both_interfaces_give_the_same_results(
    refused: int, double_buffer: bool, binding: Any, voyager: Voyager
) -> None:
    binding.double.refuse_output_dmabuf = bool(refused)
    voyager.double.refuse_output_dmabuf = refused
    frame, results = voyager.make_frame(width=64, height=64, fill=noise), []
    for interface in ('python', 'c'):
        library = library_of(interface, voyager)
        accelerator = voyager.loaded(axruntime_library=library, double_buffer=double_buffer)
        job = finished(accelerator, frame)
        results.append([output.values.copy() for output in job.outputs()])
        job.close()
        facts, notices = accelerator.facts(), ' '.join(accelerator.notices())
        said = {'interface': interface, 'postamble_graph': 'postprocess_graph.onnx'}
        said |= {'input_dmabuf': True, 'output_dmabuf': not refused}
        assert said.items() <= facts.items()
        assert ('outputs are MMIO' in notices) == bool(refused)
        accelerator.close()
    assert all(map(np.array_equal, *results)) and len(results[0]) == len(results[1])


@both_interfaces
@pytest.mark.parametrize(('cores', 'double_buffer'), [(0, False), (2, True), (4, False)])
def test_each_core_has_a_connection_a_thread_and_its_own_frames(
    cores: int, double_buffer: bool, interface: str, binding: Any, voyager: Voyager
) -> None:
    binding.double.run_s = 0.002
    accelerator = voyager.loaded(
        axruntime_library=library_of(interface, voyager),
        aipu_cores=cores,
        double_buffer=double_buffer,
    )
    limit, cores = accelerator.capabilities().max_in_flight, cores or 1
    assert limit == cores * (3 if double_buffer else 2)
    assert len(accelerator.hot_threads()) == 2 * cores
    if interface == 'python':
        assert binding.double.used_sub_devices == cores
        for connected, options in binding.double.options[-cores:]:
            assert (connected, options['aipu_cores'], options['num_sub_devices']) == (1, 1, 1)
    else:
        used = voyager.double.used_sub_devices()[0], voyager.double.instances
        assert used == (cores, cores)
    pool, jobs, seen = voyager.pool(limit), Pairs(), []
    for number in range(120):
        frame = voyager.frame(number, pool)
        jobs.append((frame, start(accelerator, frame)))
        if len(jobs) == limit:
            seen.append(result(*jobs.popleft()))
    seen += [result(*pair) for pair in jobs]
    assert seen == list(range(120))
    if interface == 'python':
        assert len(binding.double.used_connections) == cores
    notices = ' '.join(accelerator.notices())
    assert (f'set in_flight to {limit}, so that no core' in notices) == (cores > 1)
    assert accelerator.facts()['aipu_cores'] == cores


def test_the_binding_is_preferred(binding: Any, installed: Voyager) -> None:
    facts = installed.open(axruntime_library='', accelerator_device='metis-1-3-0').facts()
    said = {'interface': 'python', 'runtime': 'axelera.runtime', 'runtime_api': '1.8.0'}
    assert (said | {'python_binding': 'used', 'device': 'metis-1:3:0'}).items() <= facts.items()
    assert installed.open().facts()['python_binding'] == 'axruntime_library names the C library'


@pytest.mark.parametrize(
    ('source', 'words'),
    [
        (None, 'Python package axelera-runtime (axelera.runtime) is not installed'),
        ('import axelera_missing', "imported: No module named 'axelera_missing'"),
        ('raise OSError("so: cannot\\n open shared")', 'imported: OSError: so: cannot open'),
        ('', 'axelera.runtime has no Context'),
    ],
)
def test_the_library_takes_the_place_of_a_binding_that_can_not_be_imported(
    source: str | None, words: str, installed: Voyager, monkeypatch: pytest.MonkeyPatch
) -> None:
    if source is not None:
        (installed.folder / 'axelera').mkdir()
        (installed.folder / 'axelera' / 'runtime.py').write_text(source)
        monkeypatch.syspath_prepend(str(installed.folder))
    with patch.dict(sys.modules):
        accelerator = installed.loaded(axruntime_library='')
        facts = accelerator.facts()
        assert facts['interface'] == 'c' and words in str(facts['python_binding'])
        assert installed.run(accelerator, 77) == 77


def test_without_both_the_message_names_both(
    open_axruntime: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(axruntime_library, 'candidates', lambda library: ['libmissing.so'])
    missing = r'\(Python package axelera-runtime .* is not installed\)'
    with pytest.raises(AcceleratorError, match=rf'libmissing\.so.*axelera-runtime.*{missing}'):
        open_axruntime()


@both_interfaces
def test_a_model_of_an_older_compiler_has_to_be_compiled_again(
    interface: str, binding: Any, voyager: Voyager
) -> None:
    binding.double.old_model = True
    voyager.double.old_model, voyager.double.api_version = 1, 0x010800
    with pytest.raises(ConfigError) as caught:
        voyager.loaded(axruntime_library=library_of(interface, voyager))
    message = str(caught.value)
    assert 'Unsupported model version: 4.0, expected at least 5.0' in message
    assert message.endswith('with the SDK that has the release of the runtime (1.8.0)')


@both_interfaces
def test_an_old_driver_is_named_with_the_next_step(
    interface: str, binding: Any, voyager: Voyager, monkeypatch: pytest.MonkeyPatch
) -> None:
    voyager.double.api_version = 0x010800
    for module in (axruntime, axruntime_runtime):
        monkeypatch.setattr(module, 'driver_version', lambda: '1.5.7')
    library = library_of(interface, voyager)
    accelerator = voyager.loaded(axruntime_library=library)
    words = (
        'the Metis driver is 1.5.7, and runtime 1.8.0 needs 1.6.2 or later: install a '
        'newer metis-dkms'
    )
    assert any(notice.startswith(words) for notice in accelerator.notices())
    assert accelerator.facts()['driver'] == '1.5.7'
    accelerator.close()
    binding.double.no_executor, voyager.double.no_toolchain = True, 1
    with pytest.raises(AcceleratorError, match=f'Failed to create executor.*; {words}'):
        voyager.loaded(axruntime_library=library)
    binding.double.devices, voyager.double.devices = [], 0
    with pytest.raises(AcceleratorError, match=words):
        voyager.open(axruntime_library=library)


@pytest.mark.parametrize(
    ('arguments', 'words'),
    [
        (('1.8.0', '1.6.2', '1.8.0', '7.4'), []),
        (('1.8.0', '1.6.1', '1.8.0', '7.4'), ['the Metis driver is 1.6.1, and']),
        (('1.8.0', '1.6.2', 'v1.3.9', '6.9'), ["the card's firmware is", "the card's board"]),
        (('1.9.0', '1.6.1', 'v1.3.9', '6.9'), []),
        (('', '1.0.0'), []),
        (('1.8.0', 'custom', 'none', '?'), []),
    ],
)
def test_parts_that_are_too_old_are_named_one_by_one(
    arguments: tuple[str, ...], words: list[str]
) -> None:
    for line, word in zip(mismatches(*arguments), words, strict=True):
        assert line.startswith(word) and '\n' not in line and ': ' in line


def test_nothing_of_the_vendor_is_imported_unless_it_is_asked_for() -> None:
    code = (
        'import sys, zc_perception.npu.axruntime.accelerator; '
        'assert not any(name.startswith("axelera") for name in sys.modules)'
    )
    subprocess.run([sys.executable, '-c', code], check=True)
