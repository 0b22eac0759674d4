"""A frame on its way through the Voyager runtime."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from zc_perception.detection.letterbox import Letterbox
from zc_perception.errors import AcceleratorError, DeviceLostError
from zc_perception.frame import Frame
from zc_perception.memory.fence import EventFence
from zc_perception.npu.accelerator import Outputs
from zc_perception.npu.axruntime.tensors import OutputSlot


class JobFence(EventFence):
    """Signals a job's end. A lost device stays one: whoever checks has to do more than to give up the job."""

    def check(self) -> None:
        """See :class:`Fence`.

        :raises DeviceLostError: the device failed, and every other job with it.
        """
        if isinstance(self._error, DeviceLostError) and self.wait(0.0):
            raise DeviceLostError(str(self._error))
        super().check()


class AxRuntimeJob:
    """See :class:`zc_perception.npu.accelerator.Job`.

    The frame is needed until its tensor is written, the output slot from the result's arrival until the owner ends the job. A job counts
    as open until both the worker and the owner are done with it.

    :param give_back: takes the output slot, or ``None`` if there was none, when the job is over; called once, on any thread.
    """

    def __init__(self, frame: Frame, letterbox: Letterbox, give_back: Callable[[OutputSlot | None], None]) -> None:
        self.fence = JobFence()
        self._let_go: EventFence | None = None
        self._letterbox = letterbox
        self._frame: Frame | None = frame
        self._give_back = give_back
        self._lock = threading.Lock()
        self._slot: OutputSlot | None = None
        self._converting = False
        self._reading = False
        self._worker_done = False
        self._owner_done = False

    @property
    def letterbox(self) -> Letterbox:
        """See :class:`Job`."""
        return self._letterbox

    @property
    def wanted(self) -> bool:
        """Whether its owner still waits for the result."""
        return not self._owner_done

    def begin_conversion(self) -> Frame | None:
        """The frame to convert; ``None``: the job was ended meanwhile, and the frame is somebody else's again."""
        with self._lock:
            self._converting = self._frame is not None
            return self._frame

    def end_conversion(self) -> None:
        """The frame's pixels aren't needed any more."""
        with self._lock:
            self._frame, self._converting = None, False
            let_go = self._let_go
        if let_go is not None:
            let_go.signal()

    def finish(self, slot: OutputSlot | None, error: AcceleratorError | None = None) -> None:
        """The worker is done: the result is in *slot*, or there is none because of *error*."""
        with self._lock:
            self._worker_done = True
            over = self._owner_done
            if not over:
                self._slot = slot
        if over:
            self._give_back(slot)
        self.fence.signal(error)
        if over:
            self.fence.close()

    def outputs(self) -> Outputs:
        """See :class:`Job`."""
        slot = self._slot
        if self._owner_done:
            raise AcceleratorError('the job was closed, and its result with it; read outputs before')
        self.fence.check()
        assert slot is not None
        if not self._reading:
            slot.begin_reading()
            self._reading = True
        return slot.raw

    def abandon(self) -> EventFence:
        """See :class:`Job`. The frame is free as soon as nobody reads it, the place when the worker has come to the job."""
        let_go = EventFence()
        self._end(let_go)
        return let_go

    def close(self) -> None:
        """See :class:`Job`."""
        self._end(None)
        self.fence.close()

    def _end(self, let_go: EventFence | None) -> None:
        with self._lock:
            ended, converting = self._owner_done, self._converting
            self._owner_done = True
            over, slot = self._worker_done, self._slot
            self._slot = None
            if converting:
                self._let_go = let_go
            else:
                self._frame = None
        if let_go is not None and not converting:
            let_go.signal()
        if ended:
            return
        if self._reading and slot is not None:
            with contextlib.suppress(ValueError):  # the accelerator was closed before
                slot.end_reading()
        if over:
            self._give_back(slot)
            self.fence.signal()  # the worker may be about to, and would find it closed
            self.fence.close()
