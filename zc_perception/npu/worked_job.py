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
A job that a thread of the accelerator itself works on, as for ``onnx`` and ``axruntime``.

That thread and the job's owner share it.
"""

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
        """Return the outputs as heads take them."""

    def begin_reading(self) -> None:
        """Begin the CPU's reading of them."""

    def end_reading(self) -> None:
        """End the CPU's reading of them."""


@dataclass
class HostResult:
    """What an engine yielded: memory of the process that nothing else writes."""

    raw: Outputs

    def begin_reading(self) -> None:
        """Do nothing: the memory can be read at any time."""

    end_reading = begin_reading


R = TypeVar('R', bound=Result)


class WorkedJob(Generic[R]):
    """
    One frame on its way through a thread.

    Its owner sees it as a :class:`zc_perception.npu.accelerator.Job`. It keeps the frame until its
    pixels were read, and the result from its arrival until the owner ends the job. It is open
    until the thread and the owner are both done with it.

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
        """Return the frame to read; ``None``: the job was ended, so the frame is gone."""
        with self._lock:
            self._frame_is_read = self._frame is not None
            return self._frame

    def end_reading(self) -> None:
        """Note that the frame's pixels aren't needed any more."""
        with self._lock:
            self._frame, self._frame_is_read = None, False
            let_go = self._let_go
        if let_go is not None:
            let_go.signal()

    def finish(self, result: R | None, error: AcceleratorError | None = None) -> None:
        """Note that the thread is done: with *result*, or without because of *error*."""
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
        """
        Give the job up, see :class:`Job`.

        The frame is free as soon as nothing reads it, the place when the thread has come to the
        job.
        """
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
