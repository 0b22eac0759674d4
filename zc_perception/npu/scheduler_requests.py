"""What other threads may ask of a scheduler: it is done between two frames, on the scheduler's own thread if that runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from zc_perception.errors import DeviceLostError
from zc_perception.memory.dmabuf import DmaBuf
from zc_perception.npu.accelerator import Accelerator
from zc_perception.npu.hang_watch import HangWatch
from zc_perception.npu.recovering_device import RecoveringDevice
from zc_perception.npu.scheduler_calls import CallQueue
from zc_perception.pixel.layout import ImageLayout

_CALL_MARGIN_S = 1.0
T = TypeVar('T')


class SchedulerRequests:
    """Part of :class:`~zc_perception.npu.scheduler.Scheduler`, which makes what is declared here."""

    _device: RecoveringDevice
    _hang_watch: HangWatch
    _calls: CallQueue
    _thread: threading.Thread
    _wanted: int
    _timeout_s: float
    _timeout_ns: int

    def _awake(self) -> None:
        raise NotImplementedError

    def _lose(self, reason: str) -> None:
        raise NotImplementedError

    def trial_import(self, layout: ImageLayout, buffers: tuple[DmaBuf, ...]) -> Callable[[], None] | None:
        """:meth:`Accelerator.trial_import` from another thread, between two frames. While the device is lost nothing is tried: the
        buffers are imported when the first frame comes to the new one.

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
            return None if undo is None else lambda: self._between_frames(lambda: self._undo(undo, accelerator))

        return None if self._device.state.recovering else self._between_frames(attempt)

    def tune(self, *, in_flight: int, timeout_s: float, import_cache: bool) -> None:
        """Change what may change while it runs, between two frames; jobs in flight keep their deadline.

        :raises AcceleratorError: the accelerator had no time for it.
        """

        def change() -> None:
            self._wanted, self._timeout_s, self._timeout_ns = max(1, in_flight), timeout_s, round(timeout_s * 1e9)
            self._hang_watch.set_timeout(timeout_s)
            if not self._device.state.recovering:
                self._device.accelerator.tune(import_cache=import_cache, timeout_s=timeout_s)

        self._between_frames(change)

    def _undo(self, undo: Callable[[], None], accelerator: Accelerator) -> None:
        # A device that came in its place doesn't know the import.
        if self._device.accelerator is accelerator and not self._device.state.recovering:
            undo()

    def _between_frames(self, function: Callable[[], T]) -> T:
        if not self._thread.is_alive() or threading.current_thread() is self._thread:
            return function()
        return self._calls.run(function, self._awake, self._timeout_s + _CALL_MARGIN_S)
