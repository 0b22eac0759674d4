"""What may change while a scheduler and its accelerator run: the import cache, the timeout, how many frames are in flight."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from npu.card_kit import CountingCard, Opened
from npu.scheduler_kit import eventually

from zc_perception.errors import AcceleratorError
from zc_perception.frame import Frame
from zc_perception.frame_queue import FrameQueue
from zc_perception.memory.pool import BufferPool
from zc_perception.npu.axl.accelerator import AxlAccelerator
from zc_perception.npu.scheduler import Scheduler

pytestmark = pytest.mark.usefixtures('no_fd_leak')


def run_one(accelerator: AxlAccelerator, card: CountingCard, frame: Frame, *, end: bool = True) -> Callable[[], None]:
    """Import, submit and end one job; or what ends it."""
    handle = accelerator.import_frame(frame)
    job = accelerator.submit(handle, frame)

    def finish() -> None:
        card.jobs[-1].signal()
        job.close()
        accelerator.release(handle)

    if end:
        finish()
    return finish


def test_the_cache_goes_off_and_on_and_imports_are_counted_on(opened: Opened, make_frame: Callable[..., Frame]) -> None:
    accelerator, card = opened
    with make_frame() as frame:
        for _ in range(3):
            run_one(accelerator, card, frame)
        assert (accelerator.imports, len(card.held)) == (1, 1)
        accelerator.tune(import_cache=False, timeout_s=1.0)
        assert card.held == set(), 'what was cached is given back'
        for _ in range(3):
            run_one(accelerator, card, frame)
        assert (accelerator.imports, len(card.held)) == (4, 0) and accelerator.facts()['import_cache'] == 'off'
        accelerator.tune(import_cache=True, timeout_s=1.0)
        accelerator.tune(import_cache=True, timeout_s=1.0)
        for _ in range(3):
            run_one(accelerator, card, frame)
        assert (accelerator.imports, len(card.held)) == (5, 1)


def test_an_import_that_a_job_reads_stays_until_the_job_has_ended(opened: Opened, make_frame: Callable[..., Frame]) -> None:
    accelerator, card = opened
    with make_frame() as frame:
        finish = run_one(accelerator, card, frame, end=False)
        accelerator.tune(import_cache=False, timeout_s=1.0)
        assert len(card.held) == 1
        finish()
        assert card.held == set() and accelerator.facts()['release_errors'] == 0


def test_the_timeout_is_that_of_the_jobs_which_come(
    opened: Opened, make_frame: Callable[..., Frame], monkeypatch: pytest.MonkeyPatch
) -> None:
    accelerator, card = opened
    given: list[int] = []
    submit = card.submit2
    monkeypatch.setattr(
        card,
        'submit2',
        lambda handle, result, model, timeout_us, fence: (given.append(timeout_us), submit(handle, result, model, timeout_us, fence))[1],
    )
    with make_frame() as frame:
        run_one(accelerator, card, frame)
        accelerator.tune(import_cache=True, timeout_s=0.25)
        run_one(accelerator, card, frame)
    assert given == [1_000_000, 250_000]


@contextmanager
def scheduling(accelerator: AxlAccelerator, **options: Any) -> Iterator[tuple[Scheduler, FrameQueue, list[Exception]]]:
    queue, errors = FrameQueue(8), []
    scheduler = Scheduler(accelerator, queue, lambda entry: None, lambda frame, error: errors.append(error), **options)
    try:
        yield scheduler, queue, errors
    finally:
        scheduler.stop()
        queue.close()


def test_a_running_scheduler_takes_more_frames_and_gives_them_up_sooner(
    opened: Opened, make_pool: Callable[..., BufferPool], make_frame: Callable[..., Frame]
) -> None:
    accelerator, card = opened
    pool = make_pool(slots=6)
    with scheduling(accelerator, in_flight=1, timeout_s=60.0) as (scheduler, queue, errors):
        scheduler.start()
        for sequence in range(4):
            queue.put(make_frame(pool, sequence=sequence))
        eventually(lambda: scheduler.in_flight == 1 and len(card.jobs) == 1)
        scheduler.tune(in_flight=3, timeout_s=0.05, import_cache=False)
        eventually(lambda: len(card.jobs) == 3)
        assert accelerator.facts()['import_cache'] == 'off'
        card.jobs[0].signal()
        # The second and third have the new timeout; the first had the old one.
        eventually(lambda: len(errors) >= 2)
        assert all(isinstance(error, TimeoutError) and '0.05 s' in str(error) for error in errors)
        for job in card.jobs:
            job.signal()


def test_a_change_is_made_on_the_scheduler_s_thread_and_may_be_made_before_it_runs(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    accelerator, _ = opened
    threads: list[str] = []
    monkeypatch.setattr(accelerator, 'tune', lambda **_: threads.append(threading.current_thread().name))
    with scheduling(accelerator, in_flight=1, timeout_s=1.0) as (scheduler, _, _):
        scheduler.tune(in_flight=2, timeout_s=1.0, import_cache=True)
        scheduler.start()
        scheduler.tune(in_flight=3, timeout_s=1.0, import_cache=True)
        assert threads == [threading.current_thread().name, 'inference']
        scheduler.stop()
        with pytest.raises(AcceleratorError, match='not available'):
            scheduler._calls.run(lambda: None, lambda: None, 1.0)
