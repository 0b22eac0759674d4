"""Nobody reads a frame before its acquire fence: the driver waits where it can, else we do, and an error costs that frame."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from npu.card_kit import CountingCard, Opened
from npu.scheduler_kit import MakeFrame

from zc_perception.errors import AcceleratorError
from zc_perception.frame import Frame
from zc_perception.memory.fence import EventFence, SyncFile
from zc_perception.npu.axl.accelerator import AxlAccelerator, AxlJob

pytestmark = pytest.mark.usefixtures('no_fd_leak')


class Scripted(SyncFile):
    """A sync_file whose wait and status a test says."""

    def __init__(self, signals: bool = True, error: str = '') -> None:
        self.waits: list[float] = []
        self._signals, self._error = signals, error

    def wait(self, timeout_s: float) -> bool:
        self.waits.append(timeout_s)
        return self._signals

    def check(self) -> None:
        if self._error:
            raise AcceleratorError(self._error)


def submit(accelerator: AxlAccelerator, frame: Frame) -> AxlJob:
    return accelerator.submit(accelerator.import_frame(frame), frame)


def end(card: CountingCard, *jobs: AxlJob) -> None:
    for fence, job in zip(card.jobs, jobs, strict=True):
        fence.signal()
        job.close()


def test_a_driver_that_can_waits_for_the_sync_file_itself(make_opened: Callable[..., Opened], make_frame: MakeFrame) -> None:
    accelerator, card = make_opened()
    fence = Scripted(signals=False)
    job = submit(accelerator, make_frame(acquire_fence=fence))
    assert card.submitted == [fence] and fence.waits == [], 'nobody waits on the CPU'
    end(card, job)


@pytest.mark.parametrize('kind', ['an eventfd', 'a sync_file and an older driver'])
def test_any_other_fence_has_signalled_before_the_job_starts(make_opened: Callable[..., Opened], make_frame: MakeFrame, kind: str) -> None:
    accelerator, card = make_opened(level=2 if kind == 'an eventfd' else 1, timeout_s=5.0)
    fence: Any = EventFence() if kind == 'an eventfd' else Scripted()
    frame = make_frame(acquire_fence=fence)
    if kind == 'an eventfd':
        signaller = threading.Timer(0.03, fence.signal)
        signaller.start()
    job = submit(accelerator, frame)
    assert card.submitted == [None] and fence.wait(0.0)
    if kind == 'an eventfd':
        signaller.join()
        fence.close()
    else:
        assert fence.waits[0] == 5.0, 'as long as a job may take'
    end(card, job)


@pytest.mark.parametrize('level', [1, 2])
@pytest.mark.parametrize('problem', ['failed', 'never'])
def test_a_fence_that_fails_or_never_signals_costs_its_frame_and_no_result_buffer(
    make_opened: Callable[..., Opened], make_frame: MakeFrame, problem: str, level: int
) -> None:
    accelerator, card = make_opened(level=level, timeout_s=0.01)
    for _ in range(10):  # more than there are result buffers
        fence = EventFence()
        if problem == 'failed':
            fence.signal(RuntimeError('the camera lost it'))
        frame = make_frame(acquire_fence=fence)
        with pytest.raises(AcceleratorError, match='the camera lost it' if problem == 'failed' else 'acquire fence did not signal in time'):
            submit(accelerator, frame)
        frame.release()
        fence.close()
    assert card.submitted == []
    jobs = [submit(accelerator, make_frame()) for _ in range(4)]
    assert card.submitted == [None] * 4
    end(card, *jobs)


def test_a_frame_that_the_card_reads_is_never_mapped(make_opened: Callable[..., Opened], make_pool: Any, make_frame: MakeFrame) -> None:
    accelerator, card = make_opened()
    pool = make_pool()
    for slot in pool.slots:
        accelerator.trial_import(slot.layout, slot.buffers)
    frame = make_frame(pool)
    job = submit(accelerator, frame)
    end(card, job)
    frame.release()
    assert not any(buffer.mapped for slot in pool.slots for buffer in slot.buffers)
