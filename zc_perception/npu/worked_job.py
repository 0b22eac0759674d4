"""A job that a thread of the accelerator itself works on, as of ``onnx`` and ``axruntime``: shared by that thread and the job's owner."""

from __future__ import annotations

from collections.abc import Callable
import contextlib
from dataclasses import dataclass
import threading
from typing import Generic, Protocol, TypeVar

from zc_perception.detection.letterbox import Letterbox
from zc_perception.errors import AcceleratorError
from zc_perception.frame import Frame
from zc_perception.memory.fence import EventFence
from zc_perception.npu.accelerator import Outputs


class Result(Protocol):
    """Where the outputs of one frame are."""

    @property
    def raw(self) -> Outputs:
        """Them, as heads take them."""

    def begin_reading(self) -> None:
        """The CPU is about to read them."""

    def end_reading(self) -> None:
        """The CPU has read them."""


@dataclass
class HostResult:
    """What an engine yielded: memory of the process, which nobody else writes."""

    raw: Outputs

    def begin_reading(self) -> None:
        """Nothing is to be done."""

    end_reading = begin_reading


R = TypeVar('R', bound=Result)


class WorkedJob(Generic[R]):
    """One frame on its way through a thread. Its owner's side is :class:`zc_perception.npu.accelerator.Job`.

    It keeps the frame until its pixels were read, and the result from its arrival until the owner
    ends the job. It is open until the thread and the owner are both done with it.

    *In what order.* The thread calls :meth:`begin_reading`, :meth:`end_reading` and
    :meth:`finish`; the owner :meth:`close` or :meth:`abandon`, at any time.

    :param give_back: takes the result, or ``None`` if there was none, when the job is over; called
        once, on any thread.
    """

    def __init__(
        self, frame: Frame, letterbox: Letterbox, give_back: Callable[[R | None], None]
    ) -> None:
        self.fence = EventFence()
        self._let_go: EventFence | None = None
        self.letterbox = letterbox
        self._frame: Frame | None = frame
        self._give_back = give_back
        self._lock = threading.Lock()
        self._result: R | None = None
        self._frame_is_read = False
        self._result_is_read = False
        self._worker_done = False
        self._owner_done = False

    @property
    def wanted(self) -> bool:
        """Whether its owner still waits for the result."""
        return not self._owner_done

    def begin_reading(self) -> Frame | None:
        """The frame to read; ``None``: the job was ended meanwhile, and the frame is somebody else's again."""
        with self._lock:
            self._frame_is_read = self._frame is not None
            return self._frame

    def end_reading(self) -> None:
        """The frame's pixels aren't needed any more."""
        with self._lock:
            self._frame, self._frame_is_read = None, False
            let_go = self._let_go
        if let_go is not None:
            let_go.signal()

    def finish(self, result: R | None, error: AcceleratorError | None = None) -> None:
        """The thread is done: here is the result, or there is none because of *error*."""
        with self._lock:
            self._worker_done = True
            over = self._owner_done
            if not over:
                self._result = result
        if over:
            self._give_back(result)
        self.fence.signal(error)
        if over:
            self.fence.close()

    def outputs(self) -> Outputs:
        """See :class:`Job`."""
        result = self._result
        if self._owner_done:
            raise AcceleratorError(
                'the job was closed, and its result with it; read outputs before'
            )
        self.fence.check()
        assert result is not None
        if not self._result_is_read:
            result.begin_reading()
            self._result_is_read = True
        return result.raw

    def abandon(self) -> EventFence:
        """See :class:`Job`. The frame is free as soon as nobody reads it, the place when the thread has come to the job."""
        let_go = EventFence()
        self._end(let_go)
        return let_go

    def close(self) -> None:
        """See :class:`Job`."""
        self._end(None)
        self.fence.close()

    def _end(self, let_go: EventFence | None) -> None:
        with self._lock:
            ended, frame_is_read = self._owner_done, self._frame_is_read
            self._owner_done = True
            over, result = self._worker_done, self._result
            self._result = None
            if frame_is_read:
                self._let_go = let_go
            else:
                self._frame = None
        if let_go is not None and not frame_is_read:
            let_go.signal()
        if ended:
            return
        if self._result_is_read and result is not None:
            with contextlib.suppress(ValueError):  # the accelerator was closed before
                result.end_reading()
        if over:
            self._give_back(result)
            self.fence.signal()  # the worker may be about to, and would find it closed
            self.fence.close()
