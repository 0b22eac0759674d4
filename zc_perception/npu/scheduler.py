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
Run frames on an accelerator, and hand the results over in frame order.

Read :class:`Scheduler` first. The other classes here are its parts: :class:`InFlight` is a frame
on the device, :class:`SchedulerStatistics` has the counters, ``_LatePlaces`` counts the jobs that
were given up and still run, ``_CallQueue`` holds calls that other threads request.
:mod:`zc_perception.npu.recovering_device` describes how a lost device is opened again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
import contextlib
from dataclasses import dataclass, replace
import errno
import os
import select
import threading
import time
from typing import Any, TypeVar

from zc_perception.errors import AcceleratorError, DeviceLostError, StaleFrameError, ZcError
from zc_perception.frame import Frame
from zc_perception.frame_queue import KeepLastQueue
from zc_perception.memory.dmabuf import DmaBuf
from zc_perception.memory.fence import DeadlineFence, Fence
from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.npu.accelerator import Accelerator, ImportHandle, Job
from zc_perception.npu.recovering_device import DeviceState, HangWatch, RecoveringDevice, Reopen
from zc_perception.pixel.layout import ImageLayout

_IDLE_POLL_S = 0.5
_LONGEST_STOP_S = 1.0
_STOP_MARGIN_S = 0.4
_CALL_MARGIN_S = 1.0
T = TypeVar('T')


@dataclass(slots=True, eq=False)
class InFlight:
    """
    One submitted frame.

    Times are CLOCK_MONOTONIC nanoseconds; ``signalled_ns`` is 0 until the scheduler has seen the
    signal of the job's fence.

    :param submitted_ns: the time just before the job was submitted, after the import.
    """

    frame: Frame
    handle: ImportHandle
    job: Job
    received_ns: int
    deadline_ns: int
    fence_fd: int = -1
    signalled_ns: int = 0
    submitted_ns: int = 0


@dataclass
class SchedulerStatistics:
    """
    Counters of the frames that a scheduler has handled.

    The counters add up: taken = refused_disabled + refused_recovering + refused_device +
    submitted, and submitted = completed + timed_out + failed + in_flight.

    :param taken: frames taken from the queue.
    :param dropped: frames that newer frames replaced in the queue before the scheduler took them;
        not among ``taken``.
    :param refused_disabled: frames released unused, because detection was switched off or
        because of ``max_rate``.
    :param refused_recovering: frames that came while the device was lost.
    :param refused_device: frames whose buffers or job the device refused.
    :param submitted: jobs that the device accepted.
    :param completed: jobs whose result was handed over.
    :param timed_out: jobs whose result did not come in time.
    :param failed: jobs that ended with an error: the job failed, the device was lost, or
        ``on_result`` raised.
    :param in_flight: jobs submitted and not finished.
    :param losses: how often the device was lost.
    :param recovered: how often a lost device was opened again.
    :param imports: imports of frames' buffers since the start; reopening the device doesn't reset
        this number.
    :param trial_imports: imports since the start that only tested whether the device can read a
        slot's buffers; an import that the device's cache keeps doesn't count.
    :param busy_ns: nanoseconds in which the device had at least one job.
    :param at_ns: the time of this copy of the counters, CLOCK_MONOTONIC.
    """

    taken: int = 0
    dropped: int = 0
    refused_disabled: int = 0
    refused_recovering: int = 0
    refused_device: int = 0
    submitted: int = 0
    completed: int = 0
    timed_out: int = 0
    failed: int = 0
    in_flight: int = 0
    losses: int = 0
    recovered: int = 0
    imports: int = 0
    trial_imports: int = 0
    busy_ns: int = 0
    at_ns: int = 0

    @property
    def lost(self) -> int:
        """The number of frames that were late, failed or refused, or came to a lost device."""
        return self.refused_recovering + self.refused_device + self.timed_out + self.failed

    def utilisation_since(self, earlier: SchedulerStatistics) -> float:
        """Return the share of the time since *earlier* in which the device had a job, 0..1."""
        elapsed_ns = self.at_ns - earlier.at_ns
        return min(1.0, (self.busy_ns - earlier.busy_ns) / elapsed_ns) if elapsed_ns > 0 else 0.0


class Scheduler:
    """
    Take frames from a queue, run them on an accelerator, and hand results over in frame order.

    *Threads.* One thread, ``inference``, does everything: it imports and submits, calls
    ``on_result`` and ``on_error``, closes jobs, releases frames, and opens a lost device again. It
    waits in one poll(2) for new frames, for the fences of all jobs and for calls of other threads.
    Other threads may call :meth:`statistics`, :attr:`state`, :meth:`trial_import`, :meth:`tune`
    and :meth:`stop`. If these need the accelerator, the thread ``inference`` calls it for them,
    between two frames.

    *Ownership.* The queue belongs to the subscription. A frame that was taken belongs to the
    scheduler, which releases it right after ``on_result`` or ``on_error`` has returned. The code
    that made the accelerator closes :attr:`accelerator` after :meth:`stop`.

    *Failures.* If a job is late or fails, or a callback raises, only that job's frame is lost; the
    thread goes on. A job that was given up takes a place on the device until the device has ended
    the job. Its frame's slot is not reused while the device may still read the frame. The device
    counts as lost after a :class:`DeviceLostError` from any call or job, or after several timeouts
    in a row. Then all jobs in flight fail, the scheduler closes the accelerator, and calls
    *reopen* after 0.1 s. If *reopen* fails, or the device is lost again before it yields a result,
    the next attempt comes after twice that delay, and so on up to 5 s. Frames that come while the
    device is lost are released and counted; with *keep_all* they wait in the queue.

    :param queue: the frames to run; if its depth is 1, a new frame replaces the one that waits.
    :param in_flight: the largest number of jobs in flight at the same time; limited to the
        accelerator's ``max_in_flight``.
    :param timeout_s: seconds after which a job without a result is given up.
    :param reopen: opens the accelerator with its model again; ``None``: a lost device can't be
        opened again, and each frame fails.
    :param keep_all: whether frames wait in the queue while the device is lost or late, instead of
        being dropped.
    :param accept: called for each frame; if it returns false, the frame is released without a job.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        queue: KeepLastQueue[Frame],
        on_result: Callable[[InFlight], None],
        on_error: Callable[[Frame, BaseException], None],
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
        #: While ``on_error`` runs: the failed job; ``None`` if the frame was never submitted.
        self.failing: InFlight | None = None
        self._accept = accept
        self._keep_all = keep_all
        self._wanted = max(1, in_flight)
        # How many jobs the device may have at once; jobs that were given up don't count.
        self._most = 1
        self._note_places()
        self._timeout_s = timeout_s
        self._timeout_ns = round(timeout_s * 1e9)
        self._jobs: deque[InFlight] = deque()
        self._waiting: dict[int, InFlight] = {}
        self._handling = False
        self._counts = SchedulerStatistics()
        self._busy_since_ns = 0
        self._hang_watch = HangWatch(timeout_s)
        self._poller = select.poll()
        self._late = _LatePlaces(self._poller)
        self._wake = OwnedFd(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
        self._wake_fd = self._wake.fileno()
        self._poller.register(self._wake_fd, select.POLLIN)
        self._queue_fd = -1
        self._calls = _CallQueue()
        self._stop = False
        self._ended = self._left_alone = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name='inference', daemon=True)

    @property
    def accelerator(self) -> Accelerator:
        """The accelerator in use; while the device is lost, the closed accelerator."""
        return self._device.accelerator

    @property
    def thread(self) -> threading.Thread:
        """The scheduler's thread, for callers that set its priority."""
        return self._thread

    @property
    def state(self) -> DeviceState:
        """Whether the device works or is lost. Any thread may read it."""
        return self._device.state

    @property
    def in_flight(self) -> int:
        """
        Return the number of frames taken from the queue and not finished.

        To wait for all frames, wait until the queue is empty, and then until this is 0; frames
        never go back into the queue.
        """
        return len(self._jobs) + self._handling

    def stamps(self) -> list[int]:
        """Return the stamp of each frame in flight, in ns. Any thread may call this."""
        return [entry.frame.data.header.stamp_ns for entry in self._jobs.copy()]

    def statistics(self) -> SchedulerStatistics:
        """Return a copy of the counters. Any thread may call this."""
        now, busy_since, device = time.monotonic_ns(), self._busy_since_ns, self._device
        return replace(
            self._counts,
            dropped=self._queue.dropped,
            in_flight=len(self._jobs),
            losses=device.losses,
            recovered=device.recovered,
            imports=device.imports,
            trial_imports=device.trial_imports,
            at_ns=now,
            busy_ns=self._counts.busy_ns + (now - busy_since if busy_since else 0),
        )

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> bool:
        """
        Stop the thread; idempotent.

        This call waits for the jobs in flight as long as their timeout, but not much longer than
        1 s. Frames in the queue stay there; the queue's owner releases them.

        :returns: whether the thread has ended. ``False``: the thread hangs in a call of the
            accelerator. Then the caller must not close the accelerator; the thread closes it if
            that call returns.
        """
        self._stop = True
        self._awake()
        if self._thread.is_alive():
            self._thread.join(min(self._timeout_s, _LONGEST_STOP_S) + _STOP_MARGIN_S)
        self._calls.refuse('the node is stopping')
        with self._lock:
            self._left_alone = self._thread.is_alive() and not self._ended
            if not self._left_alone:
                self._wake.close()
            return not self._left_alone

    def trial_import(
        self, layout: ImageLayout, buffers: tuple[DmaBuf, ...]
    ) -> Callable[[], None] | None:
        """
        Call :meth:`Accelerator.trial_import` on the scheduler's thread, between two frames.

        Other threads call this. While the device is lost, this call does nothing: the device is
        opened again later, and then imports each buffer when the first frame in it comes.

        :raises AcceleratorError: the accelerator can't import the buffers, or was busy for too
            long.
        """

        def attempt() -> Callable[[], None] | None:
            if self._device.state.recovering:
                return None
            accelerator = self._device.accelerator
            try:
                undo = accelerator.trial_import(layout, buffers)
            except DeviceLostError as error:
                lost = self._device.loss(error)
                if not lost or not self._thread.is_alive():
                    raise
                self._lose(lost)
                return None
            return (
                None
                if undo is None
                else lambda: self._between_frames(lambda: self._undo(undo, accelerator))
            )

        return None if self._device.state.recovering else self._between_frames(attempt)

    def tune(self, values: Mapping[str, Any]) -> None:
        """
        Apply new values of parameters, between two frames; jobs in flight keep their deadline.

        :param values: all parameters of the node, by name.
        :raises AcceleratorError: the accelerator was busy for too long.
        """

        def change() -> None:
            self._wanted, self._timeout_s = max(1, values['in_flight']), values['timeout']
            self._note_places()
            self._timeout_ns = round(self._timeout_s * 1e9)
            self._hang_watch.set_timeout(self._timeout_s)
            if not self._device.state.recovering:
                accelerator = self._device.accelerator
                accelerator.tune(accelerator.own(values))

        self._between_frames(change)

    def _awake(self) -> None:
        with self._lock:
            if not self._wake.closed:
                os.eventfd_write(self._wake.fileno(), 1)

    def _undo(self, undo: Callable[[], None], accelerator: Accelerator) -> None:
        # A trial import can be undone only by the accelerator that made it. That accelerator is
        # closed if the device was lost since then.
        if self._device.accelerator is accelerator and not self._device.state.recovering:
            undo()

    def _between_frames(self, function: Callable[[], T]) -> T:
        if not self._thread.is_alive() or threading.current_thread() is self._thread:
            return function()
        return self._calls.run(function, self._awake, self._timeout_s + _CALL_MARGIN_S)

    def _run(self) -> None:
        try:
            while not self._stop:
                if self._calls.waiting:
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
        device = self._device
        while True:
            if device.recovering:
                if time.monotonic_ns() >= device.due_ns and not self._stop:
                    device.try_again()
                    self._note_places()
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
        elif self._device.recovering:
            self._counts.refused_recovering += 1
            self._release(frame)
        else:
            self._submit(frame)

    def _has_room(self) -> bool:
        """
        Return whether the device can take another job.

        A job that was given up takes a place on the device until the device has ended it. With
        *keep_all* it also counts as one of the jobs in flight, because a frame submitted behind it
        would wait for it, and be late.
        """
        jobs, late = len(self._jobs), len(self._late.fences)
        if not late:
            return jobs < self._most
        return (jobs + late if self._keep_all else jobs) < self._wanted and jobs + late < max(
            1, self._device.capabilities.max_in_flight
        )

    def _note_places(self) -> None:
        self._most = min(self._wanted, max(1, self._device.capabilities.max_in_flight))

    def _tidy(self) -> None:
        # While no frames come, only tidy() releases imports. A camera that restarts may need the
        # memory of its old buffers.
        if self._device.recovering:
            return
        if lost := self._device.guarded(self._device.accelerator.tidy):
            self._lose(lost)

    def _wait(self, *, take: bool) -> None:
        """
        Wait until a frame can be taken, a job is done or late, or another thread requests a call.

        Wait at most 0.5 s. Then finish the jobs that are done, and give up the late ones.

        :param take: whether to take frames while the device has room.
        """
        poller = self._poller
        recovering = self._device.recovering
        # Do not poll a closed queue: its descriptor is always readable, so poll() would not wait.
        take = (
            take
            and not self._queue.closed
            and (not self._keep_all if recovering else self._has_room())
        )
        queue_fd = self._queue.fileno() if take else -1
        if queue_fd != self._queue_fd:
            if self._queue_fd >= 0:
                poller.unregister(self._queue_fd)
            if queue_fd >= 0:
                poller.register(queue_fd, select.POLLIN)
            self._queue_fd = queue_fd
        until_ns = (
            self._jobs[0].deadline_ns if self._jobs else self._device.due_ns if recovering else 0
        )
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
            elif self._late.fences and self._late.ended(fd):
                self._hang_watch.full(False, now_ns)
        if self._late.fences:
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
            # A device that can't be opened again never counts as lost. Forget its late jobs, so
            # that it gets the next frames and accepts or refuses them.
            self._late.clear()

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
            entry = InFlight(
                frame,
                handle,
                job,
                received_ns,
                deadline_ns,
                job.fence.fileno(),
                submitted_ns=submitted_ns,
            )
            self._poller.register(entry.fence_fd, select.POLLIN)
        except (Exception, SystemExit) as error:  # another package may raise anything
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
        except (Exception, SystemExit) as error:
            lost = self._device.loss(error)
            if isinstance(error, TimeoutError) or getattr(error, 'errno', 0) == errno.ETIMEDOUT:
                lost = self._count_late(entry) or lost
            else:
                self._counts.failed += 1
            self._report(entry.frame, error, entry)
        else:
            self._counts.completed += 1
            self._hang_watch.start()
            if self._device.state.attempt:
                self._device.proved()
        # Each step is guarded of its own: if one raises, the others still run.
        closed = self._device.guarded(entry.job.close)
        released = self._device.guarded(self._device.accelerator.release, entry.handle)
        self._release(entry.frame)
        return lost or closed or released

    def _give_up(self, entry: InFlight) -> str:
        """
        Give up a job whose result did not come in time.

        The device may still read the frame. So the frame's lease gets the fence that
        :meth:`Job.abandon` returns, and the slot is not reused before that fence signals.
        """
        self._stop_waiting(entry)
        hanging = self._count_late(entry)
        why = (
            'no result when the node stopped'
            if self._stop
            else f'no result within {self._timeout_s:g} s'
        )
        self._report(entry.frame, TimeoutError(why), entry)
        fence = self._late.give_up(entry.job, self._timeout_s)
        lost = self._device.guarded(self._device.accelerator.release, entry.handle)
        self._release(entry.frame, fence)
        return lost or hanging

    def _count_late(self, entry: InFlight) -> str:
        """
        Count a late job; the driver or this thread has noticed that it is late.

        :returns: the reason if the device hangs and so counts as lost; otherwise an empty text.
        """
        self._counts.timed_out += 1
        hanging = self._hang_watch.timed_out(entry.received_ns)
        may_lose = (
            self._device.replaceable and self._device.capabilities.may_hang and not self._stop
        )
        return hanging if may_lose else ''

    def _lose(self, reason: str) -> None:
        """Fail every job in flight, close the accelerator, and plan when to open it again."""
        while self._jobs:
            entry = self._jobs[0]
            self._stop_waiting(entry)
            self._counts.failed += 1
            self._report(
                entry.frame,
                DeviceLostError(f'the device was lost while the frame was in flight: {reason}'),
                entry,
            )
            self._release(entry.frame, self._late.give_up(entry.job, self._timeout_s))
            self._jobs.popleft()
        self._hang_watch.start()
        self._late.clear()
        self._device.lose(reason)

    def _report(self, frame: Frame, error: BaseException, entry: InFlight | None = None) -> None:
        self.failing = entry
        # on_error may raise anything; its error must not end the thread
        with contextlib.suppress(Exception):
            self._on_error(frame, error)
        self.failing = None

    def _release(self, frame: Frame, fence: Fence | None = None) -> None:
        """
        Release a frame.

        If a callback has kept a view of the pixels, the release fails; then the frame's finalizer
        releases the frame later.
        """
        try:
            frame.release(fence)
        except StaleFrameError:
            return  # the camera took the lease back, and the pool has closed the fence
        except (BufferError, ZcError):
            if fence is not None:
                self._late.keep(fence)


class _LatePlaces:
    """
    Count the places on the device that are still occupied by jobs that were given up.

    A place is free again when the job's fence has signalled. The fence's owner (the job or the
    frame's lease) may close the fence at any time; so this class polls a duplicate of the fence's
    descriptor. Only the scheduler's thread uses this class.

    :param poller: this class registers the duplicates with it; the scheduler passes their events
        to :meth:`ended`.
    """

    def __init__(self, poller: select.poll) -> None:
        self._poller = poller
        #: Duplicates of the fences, by file descriptor; other classes only read this.
        self.fences: dict[int, OwnedFd] = {}
        self._kept: list[Fence] = []

    def give_up(self, job: Job, timeout_s: float) -> Fence:
        """
        Abandon a job; count its place on the device as taken until the device has ended the job.

        :param timeout_s: the returned fence signals after this time if the job can't be abandoned.
        :returns: the fence that the slot of the job's frame waits for; the caller owns the fence.
        """
        place = None
        # If no descriptor is free, this place is not counted. Then the accelerator itself refuses
        # the next job if it has no room.
        with contextlib.suppress(OSError, ValueError):
            place = OwnedFd(os.dup(job.fence.fileno()))
        try:
            fence = job.abandon()
        except (Exception, SystemExit):  # another package may raise anything
            if place is not None:
                place.close()
            # The job can't be abandoned, so no fence tells when the device has stopped reading the
            # frame: assume that it stops within one more timeout.
            with contextlib.suppress(Exception, SystemExit):
                job.close()
            return DeadlineFence(timeout_s)
        if place is not None:
            fd = place.fileno()
            self.fences[fd] = place
            self._poller.register(fd, select.POLLIN)
        return fence

    def ended(self, fd: int) -> bool:
        """If *fd* is in :attr:`fences`, count its job's place as free, and return ``True``."""
        place = self.fences.pop(fd, None)
        if place is None:
            return False
        self._poller.unregister(fd)
        place.close()
        self._close_kept(lambda fence: fence.wait(0.0))
        return True

    def keep(self, fence: Fence) -> None:
        """Keep open the fence of a frame that can't be released: a closed fence never signals."""
        self._kept.append(fence)

    def _close_kept(self, over: Callable[[Fence], bool]) -> None:
        for fence in self._kept[:]:
            if over(fence):
                self._kept.remove(fence)
                fence.close()

    def clear(self) -> None:
        """
        Count the places of all given-up jobs as free.

        The scheduler calls this when it ends, when the device is lost, and when given-up jobs
        occupy all places of a device that can't be opened again.
        """
        for fd in list(self.fences):
            self.ended(fd)
        self._close_kept(lambda fence: True)


class _CallQueue:
    """The calls that other threads want the scheduler's thread to make."""

    def __init__(self) -> None:
        #: The calls that wait; other classes only read this.
        self.waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._refusal = ''
        self._lock = threading.Lock()

    def run(self, function: Callable[[], T], wake: Callable[[], None], timeout_s: float) -> T:
        """
        Run *function* on the scheduler's thread; return its result or raise its error.

        :param wake: wakes the scheduler's thread.
        :raises AcceleratorError: the call did not end within *timeout_s*, or the thread has ended.
        """
        answer: Future[T] = Future()
        with self._lock:
            if self._refusal:
                raise AcceleratorError(self._refusal)
            self.waiting.append((answer, function))
        wake()
        if not wait([answer], timeout_s).done:
            answer.cancel()
            raise AcceleratorError(f'the accelerator was busy for {timeout_s:g} s; try again')
        return answer.result()

    def work_off(self) -> None:
        """Run the waiting calls. The scheduler's thread calls this."""
        while self.waiting:
            # the queue is empty if another thread in refuse() has just taken the last call
            with contextlib.suppress(IndexError):
                answer, function = self.waiting.popleft()
                if answer.set_running_or_notify_cancel():
                    try:
                        answer.set_result(function())
                    except (Exception, SystemExit) as error:
                        answer.set_exception(error)

    def refuse(self, reason: str) -> None:
        """Refuse the calls that wait and all later ones."""
        with self._lock:
            self._refusal = f'the accelerator is not available: {reason}'
        while self.waiting:
            # the queue is empty if the scheduler's thread has just taken the last call to run it
            with contextlib.suppress(IndexError):
                answer, _ = self.waiting.popleft()
                if answer.set_running_or_notify_cancel():
                    answer.set_exception(AcceleratorError(self._refusal))
