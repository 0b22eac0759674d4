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
Keep an accelerator busy: frames in, results out in frame order; bring a lost device back.

The number of frames in flight is bounded.

Read :class:`Scheduler` first. The other classes here are its parts: :class:`InFlight` is a frame
on the device, :class:`SchedulerStatistics` is what it counts, ``_LatePlaces`` remembers the jobs
that were given up, ``_CallQueue`` takes what other threads ask for. How a lost device comes back
is in :mod:`zc_perception.npu.recovering_device`.
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

from zc_perception.errors import AcceleratorError, DeviceLostError, ZcError
from zc_perception.frame import Frame
from zc_perception.frame_queue import KeepLastQueue
from zc_perception.memory.dmabuf import DmaBuf
from zc_perception.memory.fence import DeadlineFence, Fence
from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.npu.accelerator import Accelerator, ImportHandle, Job
from zc_perception.npu.recovering_device import DeviceState, HangWatch, RecoveringDevice, Reopen
from zc_perception.pixel.layout import ImageLayout

_IDLE_POLL_S = 0.2
_LONGEST_STOP_S = 1.0
_CALL_MARGIN_S = 1.0
T = TypeVar('T')


@dataclass(slots=True, eq=False)
class InFlight:
    """
    One submitted frame.

    Times are CLOCK_MONOTONIC nanoseconds; ``signalled_ns`` is 0 until its fence has been seen.

    :param submitted_ns: its buffers were imported, and the device was about to get the job.
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
    Frames that a scheduler has seen.

    Each frame ends once: taken = refused_disabled + refused_recovering + refused_device +
    submitted, and submitted = completed + timed_out + failed + in_flight.

    :param taken: frames taken from the queue.
    :param dropped: frames that a newer one replaced in the queue before they were taken (newest
        wins); not among ``taken``.
    :param refused_disabled: frames that were not wanted (detection is switched off).
    :param refused_recovering: frames that came while there was no device.
    :param refused_device: frames that the device didn't import, or whose job it didn't take.
    :param submitted: jobs.
    :param completed: jobs whose result was handed over.
    :param timed_out: jobs that were given up.
    :param failed: jobs with an error: the device's, a lost device's, or the callback's.
    :param in_flight: jobs submitted and not finished.
    :param losses: how often the device was lost.
    :param recovered: how often it was opened anew.
    :param imports: buffers imported, by all devices since the start.
    :param trial_imports: imports that were only on trial.
    :param busy_ns: time with a job on the device.
    :param at_ns: when these figures were taken, CLOCK_MONOTONIC.
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
        """Frames that were wanted and have no result, without those that a newer one replaced."""
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
    waits in one poll(2) for the queue, for the fences of all jobs and for its owner. Other threads
    may call :meth:`statistics`, :attr:`state`, :meth:`trial_import`, :meth:`tune` and
    :meth:`stop`; what they want of the accelerator is done by that thread between two frames.

    *Who owns what.* The queue belongs to the subscription. A frame that was taken belongs to the
    scheduler, which releases it right after ``on_result`` or ``on_error`` has returned. The code
    that made the accelerator closes :attr:`accelerator` after :meth:`stop`.

    *What a failure costs.* A job that is late, fails, or whose callback raises costs that frame
    and never the thread. A job that was given up keeps its place on the device, and its fence
    keeps the frame's slot, until the device has ended it. A lost device (:class:`DeviceLostError`
    from any call or job, or several timeouts in a row) costs all jobs in flight: the accelerator
    is closed, and *reopen* opens it anew after 0.1 s, 0.2 s … 5 s, until it yields results again.
    Frames that come meanwhile are released and counted, or wait with *keep_all*.

    :param queue: frames to run; newest wins when its depth is 1.
    :param in_flight: jobs submitted before the first is done, at most what the accelerator takes.
    :param timeout_s: a job that takes longer is given up.
    :param reopen: opens the accelerator with its model again; ``None``: a lost device stays lost,
        and each frame fails.
    :param keep_all: frames wait in the queue while there is no device, or while it is late.
    :param accept: asked for each frame; those that it refuses are released unseen.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        queue: KeepLastQueue[Frame],
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
        # Jobs on the device, of those that weren't given up.
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
        """The accelerator in use; while the device is lost, the closed one that it was."""
        return self._device.accelerator

    @property
    def thread(self) -> threading.Thread:
        """The thread, so that its priority can be set."""
        return self._thread

    @property
    def state(self) -> DeviceState:
        """Whether there is a device. Any thread."""
        return self._device.state

    @property
    def in_flight(self) -> int:
        """
        Return the number of frames taken from the queue and not finished.

        To wait for all frames, look at the queue first and then here: a frame never goes back.
        """
        return len(self._jobs) + self._handling

    def statistics(self) -> SchedulerStatistics:
        """
        Return a copy of the counters.

        Any thread.
        """
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
        Stop the thread.

        Idempotent.

        Jobs in flight are waited for, at most their timeout and one second. Queued frames stay
        with the queue's owner.

        :returns: whether the thread has ended. If a call of the accelerator never returned, the
            accelerator can't be closed; the thread closes it if the call comes back.
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

    def trial_import(
        self, layout: ImageLayout, buffers: tuple[DmaBuf, ...]
    ) -> Callable[[], None] | None:
        """
        Let the scheduler's thread do :meth:`Accelerator.trial_import` between two frames.

        Another thread calls this. While the device is lost nothing is tried: the new device
        imports the buffers with their first frames.

        :raises AcceleratorError: the accelerator can't import them, or had no time for it.
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
        Change, between two frames, what may change while it runs.

        Jobs in flight keep their deadline.

        :param values: of the parameters of the node.

        :raises AcceleratorError: the accelerator had no time for it.
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
        # A device that was opened meanwhile doesn't know the import.
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
        Return whether the device takes another job.

        A job that was given up keeps its place until the device has ended it. With *keep_all* no
        frame is submitted behind such a job, as it would be late too.
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
        # Without frames nothing else would release imports, and a camera that starts again may
        # need the memory of its old buffers.
        if not self._device.recovering:
            try:
                self._device.accelerator.tidy()
            except Exception as error:
                if lost := self._device.loss(error):
                    self._lose(lost)

    def _wait(self, *, take: bool) -> None:
        """Wait until a frame may be taken, a job is done or late, or the owner wants something."""
        poller = self._poller
        recovering = self._device.recovering
        # A closed queue would poll readable for ever.
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
            # a device that can't be reopened decides for each frame whether it takes it
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
            if self._device.state.attempt:
                self._device.proved()
        # What they raise ends neither the other step nor the thread.
        try:
            entry.job.close()
        except Exception as error:
            lost = lost or self._device.loss(error)
        try:
            self._device.accelerator.release(entry.handle)
        except Exception as error:
            lost = lost or self._device.loss(error)
        self._release(entry.frame)
        return lost

    def _give_up(self, entry: InFlight) -> str:
        """
        Give up a job whose result did not come in time.

        The device may still read the frame, so the lease takes the fence: the slot is not reused
        before the fence signals.
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
        Count a job without a result in time, whether the driver or this thread noticed it.

        :returns: why the device counts as lost, if it hangs; else nothing.
        """
        self._counts.timed_out += 1
        hanging = self._hang_watch.timed_out(entry.received_ns)
        may_lose = (
            self._device.replaceable and self._device.capabilities.may_hang and not self._stop
        )
        return hanging if may_lose else ''

    def _lose(self, reason: str) -> None:
        """Fail every job in flight, close the accelerator, and note when it is due again."""
        while self._jobs:
            entry = self._jobs[0]
            self._stop_waiting(entry)
            self._counts.failed += 1
            self._report(
                entry.frame,
                DeviceLostError(f'the device was lost with the frame in flight: {reason}'),
                entry,
            )
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
        """
        Release a frame.

        If a callback has kept a view of its pixels, the release is refused, and the frame's
        finalizer takes it back later.
        """
        try:
            frame.release(fence)
        except (BufferError, ZcError):
            if fence is not None:
                self._late.keep(fence)


class _LatePlaces:
    """
    Count the places on the device that late jobs take.

    These jobs were given up, but the device hasn't ended them yet. A place is free again when the
    job's fence has signalled. By then the frame's lease owns that fence, and may close it at any
    time: so this class polls a duplicate of its descriptor. The scheduler's thread uses it.

    :param poller: where the duplicates are registered; the thread that polls it hands events to
        :meth:`ended`.
    """

    def __init__(self, poller: select.poll) -> None:
        self._poller = poller
        #: By descriptor; to be read only.
        self.fences: dict[int, OwnedFd] = {}
        self._kept: list[Fence] = []

    def give_up(self, job: Job, timeout_s: float) -> Fence:
        """
        Abandon a job, and count its place as taken until the device is done with it.

        :param timeout_s: how long the frame is kept if the job can't be abandoned.
        :returns: the fence that the frame waits for; the caller's.
        """
        place = None
        # Without a descriptor left, the accelerator itself says of the next job whether there is
        # room.
        with contextlib.suppress(OSError, ValueError):
            place = OwnedFd(os.dup(job.fence.fileno()))
        try:
            fence = job.abandon()
        except Exception:
            if place is not None:
                place.close()
            # Nobody will tell when the device is done: after a second timeout it is, or never.
            with contextlib.suppress(Exception):
                job.close()
            return DeadlineFence(timeout_s)
        if place is not None:
            fd = place.fileno()
            self.fences[fd] = place
            self._poller.register(fd, select.POLLIN)
        return fence

    def ended(self, fd: int) -> bool:
        """Return whether *fd* is one of these; its place is free then."""
        place = self.fences.pop(fd, None)
        if place is None:
            return False
        self._poller.unregister(fd)
        place.close()
        self._close_kept(lambda fence: fence.wait(0.0))
        return True

    def keep(self, fence: Fence) -> None:
        """Own a fence that no lease wants, because a fence that is closed early never signals."""
        self._kept.append(fence)

    def _close_kept(self, over: Callable[[Fence], bool]) -> None:
        for fence in self._kept[:]:
            if over(fence):
                self._kept.remove(fence)
                fence.close()

    def clear(self) -> None:
        """Forget all places: their device is gone, or they are no longer needed."""
        for fd in list(self.fences):
            self.ended(fd)
        self._close_kept(lambda fence: True)


class _CallQueue:
    """Calls that other threads want done on the scheduler's thread, in the order of asking."""

    def __init__(self) -> None:
        #: To be read only.
        self.waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._refusal = ''
        self._lock = threading.Lock()

    def run(self, function: Callable[[], T], wake: Callable[[], None], timeout_s: float) -> T:
        """
        Let the other thread run *function*, and wait for what it returns or raises.

        :param wake: tells the other thread to look.
        :raises AcceleratorError: not within *timeout_s*, or there is no other thread any more.
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
        """Run the calls that wait."""
        while self.waiting:
            with contextlib.suppress(IndexError):  # the other thread has refused it
                answer, function = self.waiting.popleft()
                if answer.set_running_or_notify_cancel():
                    try:
                        answer.set_result(function())
                    except Exception as error:
                        answer.set_exception(error)

    def refuse(self, reason: str) -> None:
        """Refuse the calls that wait and all later ones."""
        with self._lock:
            self._refusal = f'the accelerator is not available: {reason}'
        while self.waiting:
            with contextlib.suppress(IndexError):  # it runs already
                answer, _ = self.waiting.popleft()
                if answer.set_running_or_notify_cancel():
                    answer.set_exception(AcceleratorError(self._refusal))
