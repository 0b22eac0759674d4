"""Keeps an accelerator busy: frames in, results out in frame order, a bounded number in flight; brings a lost device back."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from zc_perception.errors import DeviceLostError, ZcError
from zc_perception.frame import Frame
from zc_perception.frame_queue import FrameQueue
from zc_perception.memory.fence import Fence
from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.npu.accelerator import Accelerator
from zc_perception.npu.hang_watch import HangWatch
from zc_perception.npu.in_flight import InFlight
from zc_perception.npu.late_places import LatePlaces
from zc_perception.npu.recovering_device import DeviceState, RecoveringDevice, Reopen
from zc_perception.npu.scheduler_calls import CallQueue
from zc_perception.npu.scheduler_requests import SchedulerRequests
from zc_perception.npu.scheduler_statistics import SchedulerStatistics

_IDLE_POLL_S = 0.2
_LONGEST_STOP_S = 1.0
_CALL_MARGIN_S = 1.0
T = TypeVar('T')
__all__ = ['InFlight', 'Scheduler']


class Scheduler(SchedulerRequests):
    """One thread: waits for the queue, all fences and its owner in one poll(2), submits frames, hands results over in frame order.

    A timeout, a device's error or a callback that raises costs that frame, never the thread. A lost device
    (:class:`DeviceLostError` from any call or job, or only timeouts for a while) costs all jobs in flight: the accelerator is closed,
    and opened anew by *reopen* after 0.1 s, 0.2 s … 5 s, until it yields results again; :attr:`state` tells. Frames that come meanwhile
    are released and counted. ``on_result`` and ``on_error`` run on this thread; the frame is released right after they return.

    Whoever made the accelerator closes :attr:`accelerator` after :meth:`stop`.

    :param queue: frames to run; newest wins when its depth is 1.
    :param in_flight: jobs submitted before the first is done, at most what the accelerator takes.
    :param timeout_s: a job that takes longer is given up; its fence keeps the frame's slot from being reused, and its place on the device
        counts as taken until then.
    :param reopen: opens the accelerator with its model again; without it a lost device costs one frame after the other.
    :param keep_all: frames wait in the queue while there is no device, or while it is late.
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
        reopen: Reopen | None = None,
        keep_all: bool = False,
        accept: Callable[[], bool] = lambda: True,
    ) -> None:
        self._device = RecoveringDevice(accelerator, reopen)
        self._queue = queue
        self._on_result = on_result
        self._on_error = on_error
        #: The job of the frame that ``on_error`` is told of; ``None``: the device never had it.
        self.failing: InFlight | None = None
        self._accept = accept
        self._keep_all = keep_all
        self._wanted = max(1, in_flight)
        self._timeout_s = timeout_s
        self._timeout_ns = round(timeout_s * 1e9)
        self._jobs: deque[InFlight] = deque()
        self._waiting: dict[int, InFlight] = {}
        self._handling = False
        self._counts = SchedulerStatistics()
        self._busy_since_ns = 0
        self._hang_watch = HangWatch(timeout_s)
        self._poller = select.poll()
        self._late = LatePlaces(self._poller)
        self._wake = OwnedFd(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
        self._wake_fd = self._wake.fileno()
        self._poller.register(self._wake_fd, select.POLLIN)
        self._queue_fd = -1
        self._calls = CallQueue()
        self._stop = False
        self._ended = self._left_alone = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name='inference', daemon=True)

    @property
    def accelerator(self) -> Accelerator:
        """The one in use; while the device is lost, the closed one that it was."""
        return self._device.accelerator

    @property
    def thread(self) -> threading.Thread:
        """For whoever sets its priority."""
        return self._thread

    @property
    def state(self) -> DeviceState:
        """Whether there is a device. Any thread."""
        return self._device.state

    @property
    def in_flight(self) -> int:
        """Frames taken from the queue and not finished. Look at the queue first, then here, and nothing is overlooked."""
        return len(self._jobs) + self._handling

    def statistics(self) -> SchedulerStatistics:
        """A copy of the counters. Any thread."""
        now, busy_since, device = time.monotonic_ns(), self._busy_since_ns, self._device
        return replace(
            self._counts, dropped=self._queue.dropped, in_flight=len(self._jobs), losses=device.losses, recovered=device.recovered,
            imports=device.imports, trial_imports=device.trial_imports, at_ns=now,
            busy_ns=self._counts.busy_ns + (now - busy_since if busy_since else 0),
        )  # fmt: skip

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> bool:
        """Stop it: jobs in flight are waited for, at most their timeout and one second; queued frames are their owner's. Idempotent.

        :returns: whether the thread has ended. If a call of the accelerator never returned, the accelerator can't be closed; the thread
            closes it should the call come back.
        """
        self._stop = True
        self._awake()
        if self._thread.is_alive():
            self._thread.join(min(self._timeout_s, _LONGEST_STOP_S) + 2 * _IDLE_POLL_S)
        self._calls.refuse('the node is stopping')
        with self._lock:
            self._left_alone = self._thread.is_alive() and not self._ended
            if not self._left_alone:
                self._wake.close()
            return not self._left_alone

    def _awake(self) -> None:
        with self._lock:
            if not self._wake.closed:
                os.eventfd_write(self._wake.fileno(), 1)

    def _run(self) -> None:
        try:
            while not self._stop:
                if self._calls:
                    self._calls.work_off()
                self._take_frames()
                if not self._jobs:
                    self._tidy()
                self._wait(take=not self._stop)
            self._await_jobs(time.monotonic_ns() + round(_LONGEST_STOP_S * 1e9))
        finally:
            self._late.clear()
            with self._lock:
                self._ended = True
                if self._left_alone:
                    self._wake.close()
            if self._left_alone:
                self._device.close()

    def _await_jobs(self, until_ns: int) -> None:
        for entry in self._jobs:
            entry.deadline_ns = min(entry.deadline_ns, until_ns)
        while self._jobs:
            self._wait(take=False)

    def _take_frames(self) -> None:
        while True:
            if self.state.recovering:
                if time.monotonic_ns() >= self._device.due_ns and not self._stop:
                    self._device.try_again()
                    continue
                if self._keep_all:
                    return
            elif not self._has_room():
                return
            self._handling = True
            frame = None if self._stop else self._queue.get()
            if frame is not None:
                self._take(frame)
            self._handling = False
            if frame is None:
                return

    def _take(self, frame: Frame) -> None:
        self._counts.taken += 1
        if not self._accept():
            self._counts.refused_disabled += 1
            self._release(frame)
        elif self.state.recovering:
            self._counts.refused_recovering += 1
            self._release(frame)
        else:
            self._submit(frame)

    def _has_room(self) -> bool:
        """Jobs that were given up have places until the device ends them. Where every frame counts none follows them: it would be late."""
        taken = len(self._jobs) + len(self._late)
        return (taken if self._keep_all else len(self._jobs)) < self._wanted and taken < max(1, self._device.capabilities.max_in_flight)

    def _tidy(self) -> None:
        # Without frames nothing else would, and a camera that starts anew may need the memory of its old buffers.
        lost = '' if self.state.recovering else self._device.guarded(self._device.accelerator.tidy)
        if lost:
            self._lose(lost)

    def _wait(self, *, take: bool) -> None:
        """Until a frame may be taken, a job is done or late, or the owner wants something."""
        poller = self._poller
        recovering = self.state.recovering
        # A closed queue polls readable for ever.
        take = take and not self._queue.closed and (not self._keep_all if recovering else self._has_room())
        queue_fd = self._queue.fileno() if take else -1
        if queue_fd != self._queue_fd:
            if self._queue_fd >= 0:
                poller.unregister(self._queue_fd)
            if queue_fd >= 0:
                poller.register(queue_fd, select.POLLIN)
            self._queue_fd = queue_fd
        until_ns = self._jobs[0].deadline_ns if self._jobs else self._device.due_ns if recovering else 0
        timeout_ms = _IDLE_POLL_S * 1000
        if until_ns:
            timeout_ms = min(timeout_ms, max(0.0, (until_ns - time.monotonic_ns()) / 1e6))
        events = poller.poll(timeout_ms)
        now_ns = time.monotonic_ns()
        for fd, _ in events:
            entry = self._waiting.get(fd)
            if entry is not None:
                entry.signalled_ns = now_ns
                self._stop_waiting(entry)
            elif fd == self._wake_fd:
                os.eventfd_read(fd)
            elif self._late and self._late.ended(fd):
                self._hang_watch.full(False, now_ns)
        if self._late:
            self._watch_late(now_ns)
        if self._jobs:
            self._finish_signalled(now_ns)

    def _watch_late(self, now_ns: int) -> None:
        hanging = self._hang_watch.full(not self._jobs and not self._has_room(), now_ns)
        if not hanging or self._stop or not self._device.capabilities.may_hang:
            return
        if self._device.replaceable:
            self._lose(hanging)
        else:
            self._late.clear()  # nobody brings it back: it says of each frame itself whether it takes it

    def _stop_waiting(self, entry: InFlight) -> None:
        if self._waiting.pop(entry.fence_fd, None) is not None:
            self._poller.unregister(entry.fence_fd)
            if not self._waiting:
                self._counts.busy_ns += time.monotonic_ns() - self._busy_since_ns
                self._busy_since_ns = 0

    def _submit(self, frame: Frame) -> None:
        received_ns = time.monotonic_ns()
        handle = job = None
        lost = ''
        try:
            accelerator = self._device.accelerator
            handle = accelerator.import_frame(frame)
            submitted_ns = time.monotonic_ns()
            job = accelerator.submit(handle, frame)
            deadline_ns = received_ns + self._timeout_ns
            entry = InFlight(frame, handle, job, received_ns, deadline_ns, job.fence.fileno(), submitted_ns=submitted_ns)
            self._poller.register(entry.fence_fd, select.POLLIN)
        except Exception as error:
            lost = self._device.loss(error)
            self._counts.refused_device += 1
            self._report(frame, error)
        else:
            if not self._waiting:
                self._busy_since_ns = received_ns
            self._waiting[entry.fence_fd] = entry
            self._jobs.append(entry)
            self._counts.submitted += 1
            return
        fence = self._late.give_up(job, self._timeout_s) if job is not None else None
        if handle is not None and not lost:
            lost = self._device.guarded(self._device.accelerator.release, handle)
        self._release(frame, fence)
        if lost:
            self._lose(lost)

    def _finish_signalled(self, now_ns: int) -> None:
        while self._jobs:
            entry = self._jobs[0]
            if entry.signalled_ns:
                lost = self._finish(entry)
            elif now_ns >= entry.deadline_ns:
                lost = self._give_up(entry)
            else:
                return
            self._jobs.popleft()
            if lost:
                self._lose(lost)

    def _finish(self, entry: InFlight) -> str:
        lost = ''
        try:
            entry.job.fence.check()
            self._on_result(entry)
        except Exception as error:
            lost = self._device.loss(error)
            if isinstance(error, TimeoutError) or getattr(error, 'errno', 0) == errno.ETIMEDOUT:
                lost = self._count_late(entry) or lost
            else:
                self._counts.failed += 1
            self._report(entry.frame, error, entry)
        else:
            self._counts.completed += 1
            self._hang_watch.start()
            self._device.proved()
        closing = self._device.guarded(entry.job.close)
        releasing = self._device.guarded(self._device.accelerator.release, entry.handle)
        self._release(entry.frame)
        return lost or closing or releasing

    def _give_up(self, entry: InFlight) -> str:
        """The job may still be reading: its fence, which passes to the lease, keeps the slot from being reused."""
        self._stop_waiting(entry)
        hanging = self._count_late(entry)
        why = 'no result when the node stopped' if self._stop else f'no result within {self._timeout_s:g} s'
        self._report(entry.frame, TimeoutError(why), entry)
        fence = self._late.give_up(entry.job, self._timeout_s)
        lost = self._device.guarded(self._device.accelerator.release, entry.handle)
        self._release(entry.frame, fence)
        return lost or hanging

    def _count_late(self, entry: InFlight) -> str:
        """Count a job without a result in time, the driver's verdict or ours. What to say of a device that hangs, or nothing."""
        self._counts.timed_out += 1
        hanging = self._hang_watch.timed_out(entry.received_ns)
        may_lose = self._device.replaceable and self._device.capabilities.may_hang and not self._stop
        return hanging if may_lose else ''

    def _lose(self, reason: str) -> None:
        """Every job in flight fails; the accelerator ends; it is due again in a while."""
        while self._jobs:
            entry = self._jobs[0]
            self._stop_waiting(entry)
            self._counts.failed += 1
            self._report(entry.frame, DeviceLostError(f'the device was lost with the frame in flight: {reason}'), entry)
            self._release(entry.frame, self._late.give_up(entry.job, self._timeout_s))
            self._jobs.popleft()
        self._hang_watch.start()
        self._late.clear()
        self._device.lose(reason)

    def _report(self, frame: Frame, error: Exception, entry: InFlight | None = None) -> None:
        self.failing = entry
        with contextlib.suppress(Exception):  # it has been counted
            self._on_error(frame, error)
        self.failing = None

    def _release(self, frame: Frame, fence: Fence | None = None) -> None:
        """A view of the pixels that a callback kept costs that frame, not the thread: its finalizer takes it back, and is counted."""
        try:
            frame.release(fence)
        except (BufferError, ZcError):
            if fence is not None:
                self._late.keep(fence)
