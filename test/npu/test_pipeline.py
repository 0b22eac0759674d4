"""The pipeline with an accelerator that does exactly, and only when, what a test says."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from zc_perception.detection.letterbox import Letterbox
from zc_perception.errors import AcceleratorError
from zc_perception.frame import Frame
from zc_perception.frame_queue import FrameQueue
from zc_perception.memory.fence import EventFence
from zc_perception.memory.pool import BufferPool, SlotState
from zc_perception.negotiation.constraints import BufferConstraints
from zc_perception.npu import pipeline
from zc_perception.npu.accelerator import Capabilities, ImportHandle
from zc_perception.npu.manifest import ModelManifest
from zc_perception.npu.pipeline import InferencePipeline, InFlight

pytestmark = pytest.mark.usefixtures('no_fd_leak')
MakePool = Callable[..., BufferPool]
MakeFrame = Callable[..., Frame]
LONG_S, SHORT_S = 10.0, 0.05


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10.0
    while not condition():
        assert time.monotonic() < deadline, 'it did not happen within 10 s'
        time.sleep(0.002)


class ScriptedJob:
    """A job whose fence the test signals."""

    def __init__(self, sequence: int) -> None:
        self.sequence = sequence
        self.fence = EventFence()
        self.letterbox = Letterbox.fit(64, 48, 64, 48)
        self.closed = False

    def outputs(self) -> list[Any]:
        return []

    def abandon(self) -> EventFence:
        return self.fence

    def close(self) -> None:
        self.closed = True
        self.fence.close()


class ScriptedAccelerator:
    """Takes jobs; finishes at once the frames in ``instant``, else none; raises what is in ``import_errors`` and ``submit_errors``."""

    def __init__(self, max_in_flight: int = 8) -> None:
        self.max_in_flight = max_in_flight
        self.jobs: list[ScriptedJob] = []
        self.import_errors: list[Exception] = []
        self.submit_errors: list[Exception] = []
        self.instant: set[int] = set()
        self.imports = 0
        self.releases = 0
        self.tidied: list[int] = []

    def capabilities(self) -> Capabilities:
        return Capabilities('scripted', 'test', copy_free=True, max_in_flight=self.max_in_flight)

    def constraints(self) -> BufferConstraints:
        return BufferConstraints('scripted')

    def load(self, manifest: ModelManifest) -> None:
        pass

    def import_frame(self, frame: Frame) -> ImportHandle:
        if self.import_errors:
            raise self.import_errors.pop()
        self.imports += 1
        return ImportHandle(self.imports)

    def submit(self, handle: ImportHandle, frame: Frame) -> ScriptedJob:
        if self.submit_errors:
            raise self.submit_errors.pop()
        self.jobs.append(ScriptedJob(frame.data.sequence))
        if frame.data.sequence in self.instant:
            self.jobs[-1].fence.signal()
        return self.jobs[-1]

    def release(self, handle: ImportHandle) -> None:
        self.releases += 1

    def tidy(self) -> None:
        self.tidied.append(threading.get_ident())

    def close(self) -> None:
        pass

    def finish(self, index: int, error: Exception | None = None) -> None:
        eventually(lambda: len(self.jobs) > index)
        self.jobs[index].fence.signal(error)


class Bench:
    """A running pipeline with what came out of it."""

    def __init__(self, pool: BufferPool, make_frame: MakeFrame, accelerator: ScriptedAccelerator, **options: Any) -> None:
        self.pool, self.accelerator = pool, accelerator
        self._make_frame = make_frame
        self.queue = FrameQueue(None)
        self.results: list[int] = []
        self.errors: list[tuple[int, Exception]] = []
        self.on_result: Callable[[InFlight], None] = lambda entry: None
        options = {'in_flight': 4, 'timeout_s': LONG_S, **options}
        self.pipeline = InferencePipeline(accelerator, self.queue, self._result, self._error, **options)
        self.pipeline.start()

    def _result(self, entry: InFlight) -> None:
        assert not entry.frame.released, 'the frame ends after the callback'
        self.on_result(entry)
        self.results.append(entry.frame.data.sequence)

    def _error(self, frame: Frame, error: Exception) -> None:
        assert not frame.released
        self.errors.append((frame.data.sequence, error))

    def feed(self, *sequences: int) -> None:
        for sequence in sequences:
            self.queue.put(self._make_frame(self.pool, sequence=sequence))

    def all_free(self) -> bool:
        self.pool.collect()
        return set(self.pool.statistics().states) == {SlotState.FREE}

    def stop(self) -> None:
        self.pipeline.stop()
        self.queue.close()


@pytest.fixture
def start(make_pool: MakePool, make_frame: MakeFrame, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Bench]]:
    """Starts pipelines; every one must still be alive, and end, at the end."""
    monkeypatch.setattr(pipeline, '_IDLE_POLL_S', 0.01)
    benches: list[Bench] = []

    def make(accelerator: ScriptedAccelerator | None = None, **options: Any) -> Bench:
        benches.append(Bench(make_pool(slots=12), make_frame, accelerator or ScriptedAccelerator(), **options))
        return benches[-1]

    yield make
    while benches:  # emptied, as pytest keeps the function above, and with it the queues, until the descriptors have been counted
        bench = benches.pop()
        stopper = threading.Thread(target=bench.stop)
        stopper.start()
        stopping = True
        while stopping:  # more may be submitted until it has stopped
            stopping = stopper.is_alive()
            for job in bench.accelerator.jobs:
                job.fence.signal()
            stopper.join(0.002)
        assert not bench.pipeline._thread.is_alive()


def test_results_keep_the_frames_order_when_jobs_do_not(start: Callable[..., Bench]) -> None:
    bench = start(in_flight=4)
    bench.feed(0, 1, 2, 3, 4, 5)
    eventually(lambda: bench.pipeline.in_flight == 4)
    for index in (3, 1, 2):
        bench.accelerator.finish(index)
    time.sleep(0.02)
    assert bench.results == [] and len(bench.accelerator.jobs) == 4, 'the oldest is not done, and four are in flight'
    bench.accelerator.finish(0)
    for index in (5, 4):
        bench.accelerator.finish(index)
    eventually(lambda: len(bench.results) == 6)
    assert bench.results == [0, 1, 2, 3, 4, 5]
    eventually(bench.all_free)
    assert bench.accelerator.releases == bench.accelerator.imports == 6
    assert all(job.closed for job in bench.accelerator.jobs)


@pytest.mark.parametrize(('asked', 'accepted', 'limit'), [(4, 8, 4), (4, 2, 2), (0, 8, 1)])
def test_no_more_jobs_are_in_flight_than_both_sides_allow(start: Callable[..., Bench], asked: int, accepted: int, limit: int) -> None:
    bench = start(ScriptedAccelerator(max_in_flight=accepted), in_flight=asked)
    bench.feed(*range(6))
    eventually(lambda: len(bench.accelerator.jobs) == limit)
    time.sleep(0.02)
    assert len(bench.accelerator.jobs) == bench.pipeline.in_flight == limit


def test_a_timeout_costs_that_frame_only_and_its_slot_waits_for_the_late_job(start: Callable[..., Bench]) -> None:
    bench = start(in_flight=1, timeout_s=SHORT_S)
    bench.accelerator.instant.add(1)
    bench.feed(0, 1)
    eventually(lambda: bench.results == [1])
    ((sequence, error),) = bench.errors
    assert sequence == 0 and isinstance(error, TimeoutError) and str(error) == 'no result within 0.05 s'
    bench.pool.collect()
    assert bench.pool.statistics().states == {SlotState.WAITING: 1, SlotState.FREE: 11}
    assert bench.pool.statistics().holders == {}
    bench.accelerator.finish(0)
    eventually(bench.all_free)
    assert bench.pool.statistics().retired == 0 and bench.results == [1]


def test_what_is_done_behind_a_frame_that_timed_out_is_not_late(start: Callable[..., Bench]) -> None:
    bench = start(in_flight=2, timeout_s=SHORT_S)
    bench.accelerator.instant.add(1)
    bench.feed(0, 1)
    eventually(lambda: bool(bench.errors and bench.results))
    assert (bench.results, [sequence for sequence, _ in bench.errors]) == ([1], [0])


@pytest.mark.parametrize('kind', [AcceleratorError, OSError, ValueError])
@pytest.mark.parametrize('step', ['import', 'submit'])
def test_a_refused_frame_is_reported_and_released(start: Callable[..., Bench], step: str, kind: type[Exception]) -> None:
    bench, error = start(), kind('no more handles')
    (bench.accelerator.import_errors if step == 'import' else bench.accelerator.submit_errors).append(error)
    bench.feed(0, 1)
    bench.accelerator.finish(0)
    eventually(lambda: bench.results == [1])
    assert bench.errors == [(0, error)]
    eventually(bench.all_free)
    assert bench.accelerator.releases == bench.accelerator.imports, 'what was imported was released'


def test_a_failed_job_is_an_error_not_a_result(start: Callable[..., Bench]) -> None:
    bench = start()
    bench.feed(0, 1)
    bench.accelerator.finish(0, RuntimeError('bus error'))
    bench.accelerator.finish(1)
    eventually(lambda: bench.results == [1])
    ((sequence, error),) = bench.errors
    assert sequence == 0 and 'bus error' in str(error)
    eventually(bench.all_free)


def test_a_callback_that_raises_costs_its_frame_only(start: Callable[..., Bench]) -> None:
    bench = start()

    def fail_once(entry: InFlight) -> None:
        if entry.frame.data.sequence == 0:
            raise ZeroDivisionError('callback')

    bench.on_result = fail_once
    bench.feed(0, 1)
    bench.accelerator.finish(0)
    bench.accelerator.finish(1)
    eventually(lambda: bench.results == [1])
    assert [(sequence, type(error)) for sequence, error in bench.errors] == [(0, ZeroDivisionError)]
    eventually(bench.all_free)


def test_a_callback_that_keeps_a_view_costs_its_frame_only(start: Callable[..., Bench]) -> None:
    bench, kept = start(), []

    def keep(entry: InFlight) -> None:
        with entry.frame.map() as planes:
            kept.extend(planes[:1] if entry.frame.data.sequence == 0 else [])

    bench.on_result = keep
    bench.feed(0, 1, 2)
    for index in range(3):
        bench.accelerator.finish(index)
    eventually(lambda: bench.results == [0, 1, 2])
    eventually(lambda: bench.pool.statistics().states == {SlotState.LEASED: 1, SlotState.FREE: 11})
    bench.stop()
    kept.clear()
    eventually(bench.all_free)
    assert bench.pool.statistics().abandoned == 1


def test_frames_that_are_not_accepted_are_released_unseen(start: Callable[..., Bench]) -> None:
    wanted = threading.Event()
    bench = start(accept=wanted.is_set)
    bench.feed(0, 1, 2)
    eventually(bench.all_free)
    assert bench.accelerator.jobs == []
    wanted.set()
    bench.feed(3)
    bench.accelerator.finish(0)
    eventually(lambda: bench.results == [3])
    assert bench.errors == []


def test_without_frames_the_accelerator_is_told_to_tidy_up_in_its_own_thread(start: Callable[..., Bench]) -> None:
    """Buffers of a camera that has stopped would stay imported until the next one's first frame."""
    bench = start()
    eventually(lambda: len(bench.accelerator.tidied) > 2)
    assert set(bench.accelerator.tidied) == {bench.pipeline._thread.ident} and not bench.accelerator.jobs


def test_stopping_waits_for_the_jobs_in_flight(start: Callable[..., Bench]) -> None:
    bench = start(in_flight=2)
    bench.feed(0, 1, 2)
    eventually(lambda: bench.pipeline.in_flight == 2)
    finisher = threading.Timer(0.03, lambda: [bench.accelerator.finish(index) for index in (1, 0)])
    finisher.start()
    bench.pipeline.stop()
    finisher.join()
    assert bench.results == [0, 1] and bench.pipeline.in_flight == 0
    assert len(bench.queue) == 1, 'what was not submitted is the queue owner s'
    bench.queue.close()
    assert bench.all_free()


def test_stopping_gives_up_on_jobs_that_never_end(start: Callable[..., Bench]) -> None:
    bench = start(in_flight=2, timeout_s=SHORT_S)
    bench.feed(0, 1)
    eventually(lambda: bool(bench.accelerator.jobs))
    bench.pipeline.stop()
    assert bench.pipeline.in_flight == 0 and bench.results == []
    assert all(isinstance(error, TimeoutError) for _, error in bench.errors)


def test_stopping_twice_or_before_the_start_does_nothing(start: Callable[..., Bench]) -> None:
    bench = start()
    bench.pipeline.stop()
    bench.pipeline.stop()
    never_started = InferencePipeline(ScriptedAccelerator(), FrameQueue(1), print, print, in_flight=1, timeout_s=1.0)
    never_started.stop()
    assert never_started.in_flight == 0


def test_a_queue_that_was_closed_is_not_polled_in_a_circle(start: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch) -> None:
    bench, looks = start(), []
    eventually(lambda: bench.pipeline._thread.is_alive())
    bench.queue.close()
    get = bench.queue.get
    monkeypatch.setattr(bench.queue, 'get', lambda: looks.append(1) or get())
    time.sleep(0.1)
    assert len(looks) < 40, 'one look for each idle wait of 10 ms, not one after the other'
