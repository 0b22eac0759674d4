"""Keeps an accelerator busy: frames in, results out in frame order, a bounded number in flight."""

from __future__ import annotations

import contextlib
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from zc_perception.frame import Frame
from zc_perception.frame_queue import FrameQueue
from zc_perception.memory.fence import Fence
from zc_perception.npu.accelerator import Accelerator, ImportHandle, Job

_IDLE_POLL_S = 0.2


@dataclass
class InFlight:
    """One submitted frame. Times are CLOCK_MONOTONIC nanoseconds."""

    frame: Frame
    handle: ImportHandle
    job: Job
    received_ns: int
    deadline_ns: int


class InferencePipeline:
    """One thread: takes frames from a queue, submits them, waits for queue and oldest fence together, hands results over.

    A timeout or a device's error costs that frame, never the thread. ``on_result`` and ``on_error`` run on this thread; the frame is
    released right after they return.

    :param queue: frames to run; newest wins when its depth is 1.
    :param in_flight: jobs submitted before the first is done, at most what the accelerator takes.
    :param timeout_s: a job that takes longer is given up.
    :param accept: asked for each frame; those that it refuses are released unseen.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        queue: FrameQueue,
        on_result: Callable[[InFlight], None],
        on_error: Callable[[Frame, Exception], None],
        *,
        in_flight: int,
        timeout_s: float,
        accept: Callable[[], bool] = lambda: True,
    ) -> None:
        self._accelerator = accelerator
        self._queue = queue
        self._on_result = on_result
        self._on_error = on_error
        self._accept = accept
        self._limit = max(1, min(in_flight, accelerator.capabilities().max_in_flight))
        self._timeout_ns = round(timeout_s * 1e9)
        self._jobs: deque[InFlight] = deque()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name='inference', daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop it: jobs in flight are waited for, at most their timeout; queued frames are released by the queue's owner."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(self._timeout_ns / 1e9 + 2 * _IDLE_POLL_S)

    @property
    def in_flight(self) -> int:
        """Jobs submitted and not finished."""
        return len(self._jobs)

    def _run(self) -> None:
        while not self._stop.is_set():
            if len(self._jobs) < self._limit:
                frame = self._queue.get()
                if frame is not None:
                    if self._accept():
                        self._submit(frame)
                    else:
                        frame.release()
                    continue
            # Without frames nothing else would, and a camera that starts anew may need the memory of its old buffers.
            self._accelerator.tidy()
            self._wait()
            self._finish_signalled()
        while self._jobs:
            self._wait()
            self._finish_signalled()

    def _wait(self) -> None:
        poller = select.poll()
        # A closed queue polls readable for ever.
        if len(self._jobs) < self._limit and not self._stop.is_set() and not self._queue.closed:
            poller.register(self._queue.fileno(), select.POLLIN)
        timeout_s = _IDLE_POLL_S
        if self._jobs:
            poller.register(self._jobs[0].job.fence.fileno(), select.POLLIN)
            timeout_s = min(timeout_s, max(0.0, (self._jobs[0].deadline_ns - time.monotonic_ns()) / 1e9))
        poller.poll(timeout_s * 1000)

    def _submit(self, frame: Frame) -> None:
        received_ns = time.monotonic_ns()
        handle = None
        try:
            handle = self._accelerator.import_frame(frame)
            job = self._accelerator.submit(handle, frame)
        except Exception as error:
            if handle is not None:
                self._accelerator.release(handle)
            self._on_error(frame, error)
            self._release(frame)
            return
        self._jobs.append(InFlight(frame, handle, job, received_ns, received_ns + self._timeout_ns))

    def _finish_signalled(self) -> None:
        while self._jobs:
            entry = self._jobs[0]
            signalled = entry.job.fence.wait(0.0)
            if not signalled and time.monotonic_ns() < entry.deadline_ns:
                return
            self._jobs.popleft()
            if signalled:
                self._finish(entry)
            else:
                self._give_up(entry)

    def _finish(self, entry: InFlight) -> None:
        try:
            entry.job.fence.check()
            self._on_result(entry)
        except Exception as error:
            self._on_error(entry.frame, error)
        finally:
            entry.job.close()
            self._accelerator.release(entry.handle)
            self._release(entry.frame)

    def _give_up(self, entry: InFlight) -> None:
        """The job may still be reading: its fence, which passes to the lease, keeps the slot from being reused."""
        self._on_error(entry.frame, TimeoutError(f'no result within {self._timeout_ns / 1e9:g} s'))
        self._accelerator.release(entry.handle)
        self._release(entry.frame, entry.job.abandon())

    @staticmethod
    def _release(frame: Frame, fence: Fence | None = None) -> None:
        """A view of the pixels that a callback kept costs that frame, not the thread: its finalizer takes it back, and is counted."""
        with contextlib.suppress(BufferError):
            frame.release(fence)
