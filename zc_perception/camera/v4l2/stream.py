"""A V4L2 stream while it runs: what is queued, what is missing, and what to do when the driver stops delivering.

:class:`V4l2Signal` is where the picture comes from: the device's input, the signal there, and the event that tells of another one. A plain
camera has none of this, and its driver says so with ENOTTY. :class:`V4l2Stream` queues buffers and takes them back.

Sources: the kernel's *VIDIOC_QBUF, VIDIOC_DQBUF*, *VIDIOC_STREAMON*, *V4L2 poll()*; *Video Inputs and Outputs*, *Digital Video (DV)
Timings* (query, set, and only then choose a format), *VIDIOC_DQEVENT* (V4L2_EVENT_SOURCE_CHANGE).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import select
import threading
import time
from collections.abc import Callable

from zc_perception.camera.v4l2 import abi
from zc_perception.camera.v4l2.device import Dequeued, V4l2Device, V4l2Error
from zc_perception.errors import CameraChangedError, CameraError, CameraLostError, printable
from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.memory.pool import BufferPool, Slot, SlotState

_NONE = (errno.ENOTTY, errno.EINVAL, errno.ENODATA)
_NO_SIGNAL = (errno.ENOLINK, errno.ENOLCK, errno.ERANGE)


class V4l2Signal:
    """The input of an opened device.

    :param wanted: number of the input to switch to; ``None`` leaves it.
    :raises CameraError: there is no such input.
    """

    def __init__(self, device: V4l2Device, wanted: int | None = None) -> None:
        self._device = device
        self._input = self._select(wanted)
        self._set: bytes | None = None

    def _select(self, wanted: int | None) -> abi.Input | None:
        number = ctypes.c_int(0 if wanted is None else wanted)
        name, request = (
            ('G_INPUT', abi.VIDIOC_G_INPUT) if wanted is None else ('S_INPUT', abi.VIDIOC_S_INPUT)
        )
        argument = abi.Input()
        try:
            self._device.call(name, request, number)
            argument.index = number.value
            self._device.call('ENUMINPUT', abi.VIDIOC_ENUMINPUT, argument)
        except V4l2Error as error:
            if wanted is None and error.number in _NONE:
                return None
            if error.number in _NONE:
                names = ', '.join(self._device.inputs()) or 'none that can be chosen'
                raise CameraError(
                    f"'{self._device.path}' has no input {wanted}; it has {names}; set parameter 'input'"
                ) from error
            raise
        return argument

    @property
    def name(self) -> str:
        """The input's name, empty where there is no choice."""
        return '' if self._input is None else printable(self._input.name.decode(errors='replace'))

    def follow(self) -> None:
        """Set the device to what comes in: timings for HDMI and SDI, the standard for analogue. Before the format is chosen.

        :raises CameraLostError: no signal.
        """
        if self._input is None:
            return
        if self._input.capabilities & abi.IN_CAP_DV_TIMINGS:
            timings = self._query()
            if timings is not None:
                self._set = bytes(timings)
                try:
                    self._device.call('S_DV_TIMINGS', abi.VIDIOC_S_DV_TIMINGS, timings)
                except V4l2Error as error:
                    raise CameraError(
                        f"'{self._device.path}': it can't take the {timings.words[0]}x{timings.words[1]} signal at input '{self.name}' "
                        f'({error}); set the source to another mode'
                    ) from error
        elif self._input.capabilities & abi.IN_CAP_STD:
            standard = ctypes.c_uint64()
            if self._asked('QUERYSTD', abi.VIDIOC_QUERYSTD, standard):
                if not standard.value:
                    raise self._no_signal('no standard')
                # Several bits: it can't tell them apart, and the standard in force may be any of them.
                if standard.value & (standard.value - 1) == 0:
                    self._device.call('S_STD', abi.VIDIOC_S_STD, standard)

    def _query(self) -> abi.DvTimings | None:
        timings = abi.DvTimings()
        return (
            timings
            if self._asked('QUERY_DV_TIMINGS', abi.VIDIOC_QUERY_DV_TIMINGS, timings)
            else None
        )

    def _asked(self, name: str, request: int, argument: abi.DvTimings | ctypes.c_uint64) -> bool:
        """Whether the driver can tell."""
        try:
            self._device.call(name, request, argument)
        except V4l2Error as error:
            if error.number in _NO_SIGNAL:
                raise self._no_signal(errno.errorcode[error.number]) from error
            if error.number in _NONE:
                return False
            raise
        return True

    def _no_signal(self, detail: str) -> CameraLostError:
        return CameraLostError(
            f"'{self._device.path}': no signal at input '{self.name}' ({detail}); look at its cable and source"
        )

    def changed(self) -> str | None:
        """What comes in now, if that isn't what the device was set to; ``None`` when it is the same again: the signal was only away.

        :raises CameraLostError: no signal.
        """
        if self._input is None or not self._input.capabilities & abi.IN_CAP_DV_TIMINGS:
            return 'another format'
        timings = self._query()
        if timings is None:
            return 'another format'
        if bytes(timings) == self._set:
            return None
        return f'{timings.words[0]}x{timings.words[1]} at input {self.name!r}'

    def subscribe(self) -> bool:
        """Ask for source-change events; whether the driver has them."""
        wanted = abi.EventSubscription(
            type=abi.EVENT_SOURCE_CHANGE, id=0 if self._input is None else self._input.index
        )
        try:
            self._device.call('SUBSCRIBE_EVENT', abi.VIDIOC_SUBSCRIBE_EVENT, wanted)
        except V4l2Error:
            return False
        return True

    def source_changed(self) -> bool:
        """Take all events that wait; whether one of them says that the picture's size or format changed."""
        found = False
        while True:
            event = abi.Event()
            try:
                self._device.call('DQEVENT', abi.VIDIOC_DQEVENT, event)
            except V4l2Error as error:
                if error.number in (errno.ENOENT, *_NONE):
                    return found
                raise
            found |= event.type == abi.EVENT_SOURCE_CHANGE and bool(
                event.u.src_change & abi.EVENT_SRC_CH_RESOLUTION
            )
            if not event.pending:
                return found


WAIT_MS = 250
FENCE_POLL_MS = 5
MAX_RESTARTS = 3
# So many good frames after a restart, and the next failure is a new one.
_HEALTHY_FRAMES = 30
# Starting the stream anew helps here: the driver gave up on it (EIO), ended it (EPIPE), or stopped it by itself (EINVAL).
_RESTART_HELPS = (errno.EIO, errno.EPIPE, errno.EINVAL, errno.ETIMEDOUT, errno.EPROTO)


class V4l2Stream:
    """Buffers on their way to the driver and back. :meth:`queue_again` may come from any thread, all else from the camera's.

    :param memory: MEMORY_MMAP or MEMORY_DMABUF.
    :param buffers: memory buffers for each frame.
    :param needed: how many buffers the driver must have queued to fill one. While it has fewer, time without a frame does not count.
    :param silent_s: after so many seconds without a good frame (see :meth:`good`) the stream is started anew, and after as many again the
        camera counts as lost.
    """

    def __init__(
        self,
        device: V4l2Device,
        signal: V4l2Signal,
        *,
        memory: int,
        buffers: int,
        needed: int,
        silent_s: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._device = device
        self._signal = signal
        self._memory = memory
        self._buffers = buffers
        self._needed = max(1, needed)
        self._silent_s = silent_s
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._queued: set[int] = set()
        self._refused: dict[int, Slot] = {}
        self._streaming = False
        self._heard = 0.0
        self._silences = 0
        self._failures = 0
        self._good = 0
        self._last: int | None = None
        self._starved = False
        self.sequence = -1
        self.lost = self.no_slot = self.restarts = 0

    def queue_again(self, slot: Slot) -> None:
        """Called by whoever drops the last lease: a failure is the camera's, not the consumer's."""
        with self._lock:
            if self._streaming and slot.index not in self._queued:
                self._queue(slot)

    def _queue(self, slot: Slot) -> None:
        """Lock held. What the driver refuses is tried once more by the camera's thread."""
        try:
            self._device.queue(slot.index, self._memory, slot.buffers)
        except (CameraError, ValueError):  # ValueError: closed meanwhile
            self._refused[slot.index] = slot
        else:
            self._queued.add(slot.index)

    def next(self, pool: BufferPool, wake: OwnedFd) -> Dequeued | None:
        """The next filled buffer, whose slot the caller acquires; ``None`` when there was none within a bounded wait.

        :raises CameraLostError: unplugged, silent, or starting anew didn't help.
        :raises CameraChangedError: the source has another format.
        :raises CameraBusyError: another program streams.
        :raises CameraError: the driver refuses to stream.
        """
        try:
            if not self._streaming:
                self._start(pool)
            if self._refused:
                self._try_again()
            events = self._device.poll(wake, FENCE_POLL_MS if pool.waiting else WAIT_MS)
            if (
                events & select.POLLPRI
                and not events & select.POLLHUP
                and self._signal.source_changed()
            ):
                self._change(pool)
                return None
            filled = self._device.dequeue(self._memory, self._buffers) if events else None
        except V4l2Error as error:
            if error.number not in _RESTART_HELPS:
                raise
            self._fail(pool, str(error))
            return None
        if filled is None:
            if events & select.POLLERR:
                self._fail(
                    pool, f"'{self._device.path}': the driver reports an error and has no frame"
                )
            else:
                self.bad(pool)
            return None
        self._note(filled)
        return filled

    def _start(self, pool: BufferPool) -> None:
        with self._lock:
            self._queued.clear()
            self._refused.clear()
            for slot in pool.slots:
                if slot.state is SlotState.FREE:
                    self._queue(slot)
            self._streaming = True
        try:
            self._try_again()
            self._device.stream(True)
        except BaseException as error:
            self._halt()
            if (
                isinstance(error, V4l2Error) and error.number == errno.EPIPE
            ):  # here it says that the pipeline is set up wrongly
                raise CameraError(str(error)) from error
            raise
        self._last = None
        self._heard = self._monotonic()

    def _try_again(self) -> None:
        with self._lock:
            refused, self._refused = self._refused, {}
            for slot in refused.values():
                # One that was replaced meanwhile has another one in its place, which was queued by itself.
                if slot.state is SlotState.FREE and slot.index not in self._queued:
                    self._device.queue(slot.index, self._memory, slot.buffers)
                    self._queued.add(slot.index)

    def _halt(self) -> None:
        """Take all buffers back from the driver."""
        with self._lock:
            self._streaming = False
            self._queued.clear()
            self._device.stream(False)

    def _restart(self, pool: BufferPool) -> None:
        self.restarts += 1
        self._good = 0
        self._halt()
        self._start(pool)

    def _fail(self, pool: BufferPool, reason: str) -> None:
        """The stream broke off."""
        while True:
            self._failures += 1
            if self._failures > MAX_RESTARTS:
                raise CameraLostError(
                    f'{reason}; starting the stream anew {MAX_RESTARTS} times did not help: plug the camera in again'
                )
            try:
                self._restart(pool)
                return
            except V4l2Error as error:
                if error.number not in _RESTART_HELPS:
                    raise
                reason = str(error)

    def _change(self, pool: BufferPool) -> None:
        """Drivers tell of a source that changed and of one that was only away for a moment by the same event."""
        now = self._signal.changed()
        if now is not None:
            raise CameraChangedError(
                f"'{self._device.path}': its source changed to {now}; open it again and negotiate anew"
            )
        self._fail(pool, f"'{self._device.path}': its source was interrupted")

    def good(self) -> None:
        """The buffer that :meth:`next` gave last is a whole frame."""
        self._heard = self._monotonic()
        self._silences = 0
        self._good += 1
        if self._good >= _HEALTHY_FRAMES:
            self._failures = 0

    def bad(self, pool: BufferPool) -> None:
        """It isn't, and its slot is free again; or none came. A camera that gives bad frames alone is as good as silent.

        :raises CameraLostError: for too long, after a start anew, too.
        """
        now = self._monotonic()
        if len(self._queued) < self._needed:
            self._heard = now
        if now - self._heard < self._silent_s:
            return
        self._silences += 1
        if self._silences > 1:
            raise CameraLostError(
                f"'{self._device.path}' is silent: no good frame for {self._silent_s:g} s, nor after its stream was started anew; look at "
                'its cable and power'
            )
        self._restart(pool)

    def _note(self, filled: Dequeued) -> None:
        """Sequence numbers go on over a restart of the stream and over 32 bits; what is missing in between is counted."""
        step = 1
        if self._last is not None:
            step = (filled.sequence - self._last) & 0xFFFFFFFF
            if step == 0 or step >> 31:  # the driver began anew, or doesn't count
                step = 1
            if self._starved:
                self.no_slot += step - 1
            else:
                self.lost += step - 1
        elif self.sequence < 0:
            step = filled.sequence + 1
        self.sequence += step
        self._last = filled.sequence
        with self._lock:
            self._queued.discard(filled.index)
            self._starved = len(self._queued) < self._needed

    def close(self) -> None:
        """Stop. Frames that are leased stay readable."""
        with self._lock:
            was, self._streaming = self._streaming, False
            self._queued.clear()
        if was:
            with contextlib.suppress(CameraError):  # an unplugged device has stopped already
                self._device.stream(False)
