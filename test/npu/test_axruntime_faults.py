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
The axruntime accelerator at faults: runs fail, the runtime hangs, jobs are given up.

It is also closed in the middle.
"""

from __future__ import annotations

from functools import partial
import gc
from pathlib import Path
import threading

from npu.axruntime_kit import Double, model, number_in, numbered, Open, run_numbered, start, WAIT_S
from npu.scheduler_kit import MakeFrame, MakePool
import numpy as np
import pytest
from waiting import until

from zc_perception.errors import AcceleratorError, ConfigError, DeviceLostError
from zc_perception.frame import Frame
from zc_perception.memory.fence import EventFence
from zc_perception.memory.pool import BufferPool, SlotState
from zc_perception.npu.axruntime import accelerator as axruntime
from zc_perception.npu.axruntime.library import Result
from zc_perception.npu.axruntime.tensors import FrameToTensor, InputSlot

pytestmark = pytest.mark.usefixtures('no_fd_leak')


@pytest.fixture
def open_accelerator(double: Double, open_axruntime: Open) -> Open:
    return partial(open_axruntime, axruntime_library=double.path, flush_after_s=0.005)


def all_free(pool: BufferPool) -> bool:
    pool.collect()
    return set(pool.statistics().states) == {SlotState.FREE}


def fail_runs(double: Double, after: int, count: int, code: Result = Result.RUNTIME_ERROR) -> None:
    double.fail_from, double.fail_count, double.fail_code = double.runs + after, count, int(code)


@pytest.mark.parametrize('double_buffer', [False, True], ids=['single', 'double'])
def test_a_failed_run_costs_its_frame_and_mixes_nothing_up(
    double_buffer: bool,
    double: Double,
    open_accelerator: Open,
    make_pool: MakePool,
    make_frame: MakeFrame,
    tmp_path: Path,
) -> None:
    """
    Runs fail now and then, the frames come in bursts, some are given up.

    Every result that comes out is the frame's own.
    """
    accelerator = open_accelerator(double_buffer=double_buffer, flush_after_s=0.001)
    accelerator.load(model(tmp_path))
    limit = accelerator.capabilities().max_in_flight
    pool = make_pool(64, 64, slots=limit)
    random = np.random.default_rng(3)
    right = failed = 0
    for burst in range(60):
        if burst % 4 == 1:
            fail_runs(double, int(random.integers(1, 4)), 1)
        numbers = range(burst * 10, burst * 10 + int(random.integers(1, limit + 1)))
        frames = [make_frame(pool, sequence=n, fill=numbered(n)) for n in numbers]
        jobs = [start(accelerator, frame) for frame in frames]
        for frame, job in zip(frames, jobs, strict=True):
            if random.random() < 0.1:
                frame.release(job.abandon())
                continue
            assert job.fence.wait(WAIT_S)
            try:
                assert number_in(job.outputs()) == frame.data.sequence
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


@pytest.mark.parametrize('double_buffer', [False, True], ids=['single', 'double'])
@pytest.mark.parametrize(('code', 'count', 'words'), [
    (Result.CONNECTION_ERROR, 1, (r'injected into run \d+ \(CONNECTION_ERROR\); check that '
                                  r'.axdevice. lists')),
    (Result.RUNTIME_ERROR, 100, r'3 runs failed in a row: .*RUNTIME_ERROR'),
])  # fmt: skip
def test_a_lost_device_fails_all_jobs_and_stays_lost(
    code: Result,
    count: int,
    words: str,
    double_buffer: bool,
    double: Double,
    open_accelerator: Open,
    make_pool: MakePool,
    make_frame: MakeFrame,
    tmp_path: Path,
) -> None:
    accelerator = open_accelerator(double_buffer=double_buffer)
    accelerator.load(model(tmp_path))
    pool = make_pool(64, 64, slots=4)
    fail_runs(double, 1, count, code)
    lost = None
    for number in range(4):
        frame = make_frame(pool, sequence=number, fill=numbered(number))
        try:
            job = start(accelerator, frame)
        except DeviceLostError as error:
            lost = error
            frame.release()
            break
        assert job.fence.wait(WAIT_S)
        with pytest.raises(AcceleratorError) as caught:
            job.fence.check()
        lost = caught.value
        with pytest.raises(type(lost)):
            job.outputs()
        job.close()
        frame.release()
    assert isinstance(lost, DeviceLostError)
    with pytest.raises(DeviceLostError, match=words):
        start(accelerator, make_frame(pool))
    accelerator.close()
    double.fail_count = 0
    again = open_accelerator()
    again.load(model(tmp_path))
    job = start(again, make_frame(pool, fill=numbered(99)))
    assert job.fence.wait(WAIT_S) and number_in(job.outputs()) == 99
    job.close()


def test_a_device_that_takes_no_new_instance_is_lost(
    double: Double, open_accelerator: Open, make_frame: MakeFrame, tmp_path: Path
) -> None:
    accelerator = open_accelerator(double_buffer=True)
    accelerator.load(model(tmp_path))
    fail_runs(double, 1, 1)
    double.refuse_double_buffer = 1
    frame = make_frame(width=64, height=64)
    job = start(accelerator, frame)
    assert job.fence.wait(WAIT_S)
    with pytest.raises(
        DeviceLostError,
        match=r'injected into run .*loading the model anew failed as well: .*no memory for double',
    ):
        job.outputs()
    job.close()


@pytest.mark.parametrize('double_buffer', [False, True], ids=['single', 'double'])
def test_a_run_that_never_returns_is_told_and_left_behind(
    double_buffer: bool,
    double: Double,
    open_accelerator: Open,
    make_pool: MakePool,
    make_frame: MakeFrame,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(axruntime, '_LONG_CALL_S', 0.02)
    monkeypatch.setattr(axruntime, '_CLOSE_TIMEOUT_IN_LONG_CALL_S', 0.05)
    accelerator = open_accelerator(double_buffer=double_buffer)
    accelerator.load(model(tmp_path))
    pool = make_pool(64, 64, slots=3)
    double.hang_at = double.runs + 1
    first, second, third = (make_frame(pool, fill=numbered(n)) for n in range(3))
    jobs = [start(accelerator, first), start(accelerator, second)]
    until(double.is_hanging)
    assert not any(job.fence.wait(0.0) for job in jobs)
    # Only now: with so little patience from the beginning the second job might come too late.
    accelerator.tune(accelerator.own({'timeout': 0.01}))
    until(lambda: accelerator._workers[0].silent_s() > 0.02)
    with pytest.raises(
        DeviceLostError,
        match=r'the Voyager runtime has not answered for .*metis-0:1:0.*restart the node',
    ):
        start(accelerator, third)
    third.release()
    first.release(jobs[0].abandon())
    second.release(jobs[1].abandon())
    until(lambda: all_free(pool))
    with pytest.warns(
        RuntimeWarning,
        match=r'did not return from a call within 0\.05 s.*stays in use until this process ends',
    ):
        accelerator.close()
    accelerator.close()
    assert double.live_objects == 4, 'context, model, connection and instance: it may still write'
    double.end_hang()
    until(lambda: double.live_objects == 0)
    until(
        lambda: (
            not [thread for thread in threading.enumerate() if thread.name.startswith('axruntime')]
        )
    )


def test_a_runtime_that_hangs_while_loading_is_lost(
    double: Double, open_accelerator: Open, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ('_UNLOAD_TIMEOUT_S', '_CLOSE_TIMEOUT_S', '_CLOSE_TIMEOUT_IN_LONG_CALL_S'):
        monkeypatch.setattr(axruntime, name, 0.05)
    monkeypatch.setattr(axruntime, '_LOAD_TIMEOUT_S', 0.05)
    accelerator = open_accelerator()
    double.hang_at = 1
    with pytest.raises(DeviceLostError, match=r'did not load the model within 0\.05 s'):
        accelerator.load(model(tmp_path))
    with pytest.raises(
        DeviceLostError, match='does not give the model before back; restart the node'
    ):
        accelerator.load(model(tmp_path))
    with pytest.warns(RuntimeWarning):
        accelerator.close()
    double.end_hang()
    until(lambda: double.live_objects == 0)


class HeldWriter:
    """Keeps the conversion thread within a frame until it is told to go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.inside, self.go_on = threading.Event(), threading.Event()
        self.written: list[int] = []
        original = FrameToTensor.write

        def write(writer: FrameToTensor, frame: Frame, slot: InputSlot) -> None:
            self.inside.set()
            assert self.go_on.wait(WAIT_S)
            self.written.append(frame.data.sequence)
            original(writer, frame, slot)

        monkeypatch.setattr(FrameToTensor, 'write', write)


def test_a_job_that_is_given_up_frees_its_frame_as_soon_as_nobody_reads_it(
    double: Double,
    open_accelerator: Open,
    make_pool: MakePool,
    make_frame: MakeFrame,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    held = HeldWriter(monkeypatch)
    accelerator = open_accelerator(double_buffer=True)
    accelerator.load(model(tmp_path))
    trial_runs = double.runs
    pool = make_pool(64, 64, slots=3)
    converting, waiting = (make_frame(pool, sequence=n, fill=numbered(n)) for n in (1, 2))
    jobs = [start(accelerator, converting), start(accelerator, waiting)]
    assert held.inside.wait(WAIT_S)
    fences = [job.abandon() for job in jobs]
    assert [fence.wait(0.0) for fence in fences] == [False, True], (
        'one is being read, the other will not be'
    )
    converting.release(fences[0])
    waiting.release(fences[1])
    last = make_frame(pool, sequence=3, fill=numbered(3))
    job = start(accelerator, last)
    held.go_on.set()
    assert job.fence.wait(WAIT_S) and number_in(job.outputs()) == 3
    job.close()
    last.release()
    until(lambda: all_free(pool))
    assert held.written == [1, 3] and double.runs - trial_runs == 3, (
        'frame 3 and two calls to push it out'
    )


def test_jobs_beyond_what_it_takes_are_refused_until_one_is_closed(
    open_accelerator: Open, make_pool: MakePool, make_frame: MakeFrame, tmp_path: Path
) -> None:
    accelerator = open_accelerator()
    accelerator.load(model(tmp_path))
    pool = make_pool(64, 64, slots=3)
    frames = [make_frame(pool, fill=numbered(n)) for n in range(3)]
    jobs = [start(accelerator, frame) for frame in frames[:2]]
    with pytest.raises(AcceleratorError, match='2 jobs are open, accelerator axruntime takes 2'):
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


@pytest.mark.parametrize('double_buffer', [False, True], ids=['single', 'double'])
def test_closing_in_the_middle_lets_submitted_jobs_end(
    double_buffer: bool,
    open_accelerator: Open,
    make_pool: MakePool,
    make_frame: MakeFrame,
    tmp_path: Path,
) -> None:
    accelerator = open_accelerator(double_buffer=double_buffer, flush_after_s=WAIT_S)
    accelerator.load(model(tmp_path))
    pool = make_pool(64, 64, slots=2)
    frames = [make_frame(pool, fill=numbered(n)) for n in (7, 8)]
    jobs = [start(accelerator, frame) for frame in frames]
    accelerator.close()
    assert [number_in(job.outputs()) for job in jobs] == [7, 8], (
        'and results outlive the accelerator until their jobs are closed'
    )
    with pytest.raises(AcceleratorError, match='no model loaded'):
        start(accelerator, frames[0])
    with pytest.raises(AcceleratorError, match='was closed; open it anew'):
        accelerator.load(model(tmp_path))
    for job, frame in zip(jobs, frames, strict=True):
        job.close()
        frame.release()


def test_a_view_that_was_kept_is_memory_that_was_kept(
    open_accelerator: Open, make_frame: MakeFrame, tmp_path: Path
) -> None:
    accelerator = open_accelerator()
    accelerator.load(model(tmp_path))
    job = start(accelerator, make_frame(width=64, height=64, fill=numbered(1023)))
    assert job.fence.wait(WAIT_S)
    kept = job.outputs()
    accelerator.close()
    job.close()
    assert number_in(kept) == 1023
    del kept
    gc.collect()


def test_a_model_takes_the_place_of_another(
    double: Double, open_accelerator: Open, make_frame: MakeFrame, tmp_path: Path
) -> None:
    accelerator = open_accelerator(double_buffer=True)
    (tmp_path / 'other').mkdir()
    accelerator.load(model(tmp_path))
    accelerator.load(model(tmp_path / 'other', 96, 64))
    assert double.live_objects == 4
    frame = make_frame(width=96, height=64)
    job = start(accelerator, frame)
    assert job.fence.wait(WAIT_S) and job.outputs()[0].values.shape == (1, 8, 12, 64)
    job.close()


def test_a_model_that_was_refused_leaves_room_for_another(
    double: Double, open_accelerator: Open, make_frame: MakeFrame, tmp_path: Path
) -> None:
    accelerator = open_accelerator()
    double.no_toolchain = 1
    with pytest.raises(AcceleratorError, match='riscv64-unknown-elf-gcc'):
        accelerator.load(model(tmp_path))
    until(lambda: double.live_objects == 1)
    (tmp_path / 'model.json').write_text('nothing')
    with pytest.raises(ConfigError, match='is no compiled model'):
        accelerator.load(model(tmp_path, 63, 63))
    double.no_toolchain = 0
    accelerator.load(model(tmp_path))
    assert run_numbered(accelerator, make_frame, 3) == 3


def test_a_frame_whose_fence_fails_costs_that_frame(
    open_accelerator: Open, make_pool: MakePool, make_frame: MakeFrame, tmp_path: Path
) -> None:
    accelerator = open_accelerator()
    accelerator.load(model(tmp_path))
    pool = make_pool(64, 64, slots=2)
    fence = EventFence()
    fence.signal(RuntimeError('the sensor lost its link'))
    bad, good = make_frame(pool, acquire_fence=fence), make_frame(pool, fill=numbered(4))
    jobs = [start(accelerator, bad), start(accelerator, good)]
    assert all(job.fence.wait(WAIT_S) for job in jobs)
    with pytest.raises(
        AcceleratorError, match=r'could not become a tensor: .*the sensor lost its link'
    ):
        jobs[0].outputs()
    assert number_in(jobs[1].outputs()) == 4
    for job in jobs:
        job.close()
    bad.release()
    fence.close()
