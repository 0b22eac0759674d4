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
A thread that runs an engine on one frame after the other, and that thread's jobs.

Accelerator ``onnx`` uses this thread, and ``axruntime`` uses it for ``.axm`` models. The thread
reads each frame's buffer once, through the CPU mapping; the ledger counts that pass as ``tensor``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
import contextlib
from dataclasses import dataclass
import queue
import threading
import time
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from zc_perception.detection.letterbox import Letterbox
from zc_perception.detection.raw_tensor import RawTensor
from zc_perception.detection.tensor import PlanesToTensor
from zc_perception.detection.tiles import crop, Part, Parts, Tiling
from zc_perception.errors import AcceleratorError, DeviceLostError
from zc_perception.frame import Frame, FrameData
from zc_perception.memory.fence import EventFence
from zc_perception.memory.ledger import CopyLedger
from zc_perception.npu.accelerator import Outputs
from zc_perception.npu.manifest import ModelInput
from zc_perception.pixel.colorimetry import Colorimetry
from zc_perception.pixel.conversion import Planes
from zc_perception.pixel.layout import ImageLayout
from zc_perception.terminal import interruptible


class Result(Protocol):
    """The outputs of one frame, in the process's memory or in memory that a device writes."""

    @property
    def raw(self) -> Outputs:
        """Return the outputs for the heads."""

    def begin_reading(self) -> None:
        """Begin the CPU's access to the outputs' memory."""

    def end_reading(self) -> None:
        """End the CPU's access to the outputs' memory."""


@dataclass
class HostResult:
    """Outputs in the process's own memory, which the CPU can read at any time."""

    raw: Outputs

    def begin_reading(self) -> None:
        """Do nothing, because no device writes this memory."""

    end_reading = begin_reading


R = TypeVar('R', bound=Result)


class WorkedJob(Generic[R]):
    """
    A :class:`zc_perception.npu.accelerator.Job` that a worker thread carries out.

    The job keeps the frame until the worker has read its pixels, and keeps the result until the
    owner (the scheduler) ends the job. The job is over once both the worker has finished it and
    the owner has ended it.

    *Order of calls.* The worker calls :meth:`begin_reading`, :meth:`end_reading` and
    :meth:`finish`; the owner calls :meth:`close` or :meth:`abandon`, at any time.

    :param give_back: called once with the result (``None``: there was none) when the job is over,
        on the worker's or the owner's thread.
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
        """Whether the owner still waits for the result."""
        return not self._owner_done

    def begin_reading(self) -> Frame | None:
        """Return the frame to read, or ``None`` if the owner has already ended the job."""
        with self._lock:
            self._frame_is_read = self._frame is not None
            return self._frame

    def end_reading(self) -> None:
        """Forget the frame, because the worker has read its pixels."""
        with self._lock:
            self._frame, self._frame_is_read = None, False
            let_go = self._let_go
        if let_go is not None:
            let_go.signal()

    def finish(self, result: R | None, error: AcceleratorError | None = None) -> None:
        """Store the worker's *result*, and signal the fence with success or *error*."""
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
        """Return the outputs, see :meth:`Job.outputs`."""
        result = self._result
        if self._owner_done:
            raise AcceleratorError(
                'the job was closed, so its result is gone; read the outputs before you close the '
                'job'
            )
        self.fence.check()
        assert result is not None
        if not self._result_is_read:
            result.begin_reading()
            self._result_is_read = True
        return result.raw

    def abandon(self) -> EventFence:
        """
        Give the job up, see :meth:`Job.abandon`.

        The returned fence signals as soon as the worker no longer reads the frame. The job's own
        fence signals when the worker has finished the job, or skipped it in its queue.
        """
        let_go = EventFence()
        self._end(let_go)
        return let_go

    def close(self) -> None:
        """Close the job, see :meth:`Job.close`."""
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
            # If the accelerator was closed, the result's memory is closed as well. Then
            # end_reading() raises ValueError.
            with contextlib.suppress(ValueError):
                result.end_reading()
        if over:
            self._give_back(result)
            # The worker may not have signalled the fence yet, and can't signal a closed fence. So
            # signal the fence here.
            self.fence.signal()
            self.fence.close()


EngineJob = WorkedJob[HostResult]


class Engine(ABC):
    """
    A model that turns the planes of a frame, or of a part of a frame, into raw outputs.

    One thread makes the engine, runs it and closes it.
    """

    @abstractmethod
    def run(self, planes: Planes, layout: ImageLayout | Part, colorimetry: Colorimetry) -> Outputs:
        """
        Run the model on the planes; block until the run has ended. The caller owns the outputs.

        :raises FormatError: the frame's format or colorimetry has no conversion.
        :raises AcceleratorError: the engine failed.
        """

    @abstractmethod
    def geometry(self, width: int, height: int) -> Letterbox:
        """Return how the outputs map to a frame of this size. Any thread may call this."""

    def close(self) -> None:  # noqa: B027
        """Release the engine's resources."""


class TensorEngine(Engine):
    """An engine whose input is the tensor that the manifest describes."""

    def __init__(self, network: ModelInput) -> None:
        self._input = network
        self._converter: tuple[ImageLayout | Part, Colorimetry, PlanesToTensor] | None = None

    @abstractmethod
    def infer(self, tensor: NDArray[Any]) -> Outputs:
        """Run the model on the tensor, see :meth:`run`."""

    def infer_blank(self) -> Outputs:
        """Return the model's outputs for an input of zeros."""
        return self.infer(np.zeros(self._input.shape, self._input.dtype))

    def geometry(self, width: int, height: int) -> Letterbox:
        network, stretch = self._input, self._input.resize == 'stretch'
        return Letterbox.fit(width, height, network.width, network.height, stretch=stretch)

    def run(self, planes: Planes, layout: ImageLayout | Part, colorimetry: Colorimetry) -> Outputs:
        network = self._input
        # This comparison is cheap: tuples compare members by identity first, and all slots of a
        # pool share one layout object.
        if self._converter is None or self._converter[:2] != (layout, colorimetry):
            box, nhwc = self.geometry(layout.width, layout.height), network.layout == 'nhwc'
            converter = PlanesToTensor(
                box,
                layout.fourcc,
                colorimetry,
                network.tables(),
                pad=network.pad,
                bgr=network.bgr,
                nhwc=nhwc,
            )
            self._converter = layout, colorimetry, converter
        return self.infer(self._converter[2].convert(planes))


class EngineThread:
    """
    The owner of an engine and of the thread that creates, runs and closes that engine.

    :meth:`submit` only queues the frame. The thread maps the frame, runs the engine and signals
    the job's fence. The thread skips a job that was given up before it began.

    :param name: the thread's name.
    :param ledger: counts the bytes of each frame that the CPU reads.
    :param parts: the parts of a frame that the engine runs on; ``None``: the whole frame at once.
    :ivar engine: ``None`` until the first engine is loaded.
    """

    def __init__(self, name: str, ledger: CopyLedger, parts: Parts | None = None) -> None:
        self._ledger = ledger
        self._parts = parts
        self.engine: Engine | None = None
        self._queue: queue.SimpleQueue[EngineJob | Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._closing = False
        self._began_ns = 0

    def load(self, make: Callable[[], Engine], timeout_s: float) -> None:
        """
        Replace the engine: the thread closes the old one and calls *make* for the new one.

        :raises DeviceLostError: *make* did not return within *timeout_s*.
        """
        answers: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

        def change() -> None:
            try:
                self._close_engine()
                self.engine = make()
            except BaseException as error:
                answers.put(error)
            else:
                answers.put(None)

        self._queue.put(change)
        if self._thread.ident is None:
            self._thread.start()
        try:
            with interruptible():  # some engines compile the model first, which takes minutes
                refusal = answers.get(timeout=timeout_s)
        except queue.Empty:
            raise DeviceLostError(
                f'the model was not loaded within {timeout_s:g} s; restart the node'
            ) from None
        if refusal is not None:
            raise refusal

    def submit(self, frame: Frame) -> EngineJob:
        """
        Queue a job. Jobs run and finish in the order of submission.

        :raises AcceleratorError: no model is loaded.
        """
        if self.engine is None or self._closing:
            raise AcceleratorError('the accelerator has no model loaded')
        size, geometry = (frame.data.width, frame.data.height), self.engine.geometry
        box = geometry(*size) if self._parts is None else self._parts.geometry(size, geometry)
        job = EngineJob(frame, box, lambda result: None)
        self._queue.put(job)
        return job

    @property
    def threads(self) -> tuple[threading.Thread, ...]:
        """The engine's thread, in a tuple for :meth:`Accelerator.hot_threads`."""
        return (self._thread,)

    def silent_s(self) -> float:
        """Return the seconds since the engine began to work on its frame; 0 between frames."""
        began = self._began_ns
        return (time.monotonic_ns() - began) / 1e9 if began else 0.0

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            if isinstance(item, WorkedJob):
                self._run(item)
            else:
                item()
            del item
        self._close_engine()

    def _close_engine(self) -> None:
        engine, self.engine = self.engine, None
        if engine is not None:
            engine.close()

    def _run(self, job: EngineJob) -> None:
        result, error = None, AcceleratorError('the accelerator was closed')
        # The frame is None, and isn't read, if the accelerator is closing or the job was given up
        # before it began.
        frame = None if self._closing else job.begin_reading()
        if frame is not None:
            try:
                with frame.map() as planes:
                    assert self.engine is not None
                    self._began_ns = time.monotonic_ns()
                    result = HostResult(self._outputs(self.engine, planes, frame.data, job))
            except AcceleratorError as failure:
                error = type(failure)(str(failure))
            except Exception as failure:
                # Keep only the text: the traceback would keep views of the frame's pixels alive.
                error = AcceleratorError(f'{type(failure).__name__}: {failure}')
            self._began_ns = 0
        del frame
        job.end_reading()
        job.finish(result, error if result is None else None)

    def _outputs(
        self, engine: Engine, planes: Planes, data: FrameData, job: EngineJob
    ) -> Outputs:
        """Return the engine's outputs for the frame or, one after the other, for its parts."""
        box = job.letterbox
        if not isinstance(box, Tiling):
            self._ledger.book('tensor', sum(plane.nbytes for plane in planes))
            return engine.run(planes, data.layout, data.colorimetry)
        outputs: list[RawTensor] = []
        for region in box.regions:
            if self._closing or not job.wanted:  # many parts may take longer than close() waits
                raise AcceleratorError('the job was given up')
            part = crop(planes, (data.width, data.height), region)
            self._ledger.book('tensor', sum(plane.nbytes for plane in part))
            shape = Part(data.fourcc, region.width, region.height)
            outputs += engine.run(part, shape, data.colorimetry)
        return outputs

    def close(self, timeout_s: float = 5.0) -> bool:
        """
        Make the thread close its engine and end; wait up to *timeout_s* until it has ended.

        A second call does no harm.

        :returns: whether the thread has ended; a thread that hangs keeps its engine and its jobs.
        """
        self._closing = True
        if self._thread.ident is None:
            return True
        self._queue.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()
