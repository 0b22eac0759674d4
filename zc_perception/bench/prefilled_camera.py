"""A camera whose slots were filled before: its frames cost what a driver's cost the host, which is the slot and the descriptor."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from typing import Any

import numpy as np

from zc_perception.camera.camera import SLOT_WAIT_S, DrawnCamera
from zc_perception.errors import CameraError
from zc_perception.frame import Frame
from zc_perception.memory.heaps import SealedMemfd
from zc_perception.negotiation.settings import BufferSettings

_GREY = 128


class PrefilledCamera(DrawnCamera):
    """Delivers while :attr:`running` is set; a frame without a free slot is lost and counted.

    :param unthrottled: instead of at a steady pace, each frame comes when :meth:`go_on` is called.
    :param from_due: a frame's time is when it was due, as a driver's time stamp is, not when the thread has woken up for it.
    """

    def __init__(self, *arguments: Any, unthrottled: bool = False, from_due: bool = False, **options: Any) -> None:
        super().__init__(*arguments, heap=SealedMemfd(), **options)
        self.running = threading.Event()
        self._from_due = from_due
        self._turns: queue.SimpleQueue[None] | None = queue.SimpleQueue() if unthrottled else None

    def go_on(self) -> None:
        """The next frame may come. Any thread; does nothing when there is a pace."""
        if self._turns is not None:
            self._turns.put(None)

    def configure(self, settings: BufferSettings) -> None:
        """See :class:`~zc_perception.camera.camera.Camera`. The only time that a pixel is written."""
        super().configure(settings)
        for slot in self.slots:
            for buffer in slot.buffers:
                np.frombuffer(buffer.mapping(), np.uint8)[:] = _GREY

    def facts(self) -> dict[str, object]:
        """None."""
        return {}

    def capture(self) -> Frame | None:
        """See :class:`~zc_perception.camera.camera.Camera`."""
        if self._pool is None:
            raise CameraError('the camera is not configured')
        if not self.running.is_set():
            self._next_time = 0.0
            self.running.wait(SLOT_WAIT_S)
            return None
        self._wait_for_turn()
        began_ns = time.monotonic_ns()
        slot = self._pool.acquire()
        if slot is None:
            self._skip()
            return None
        header = self._header()
        frame = Frame.publish_slot(
            self._pool,
            slot,
            header=header,
            colorimetry=self.colorimetry,
            sequence=self._sequence,
            captured_ns=round((self._next_time - 1.0 / self.framerate) * 1e9) if self._from_due else began_ns,
            capture_cost_ns=time.monotonic_ns() - began_ns,
        )
        self._sequence += 1
        self._captured += 1
        return frame

    def _wait_for_turn(self) -> bool:
        """One system call, as the wait for a driver is; not to be woken by :meth:`stop`, which then waits for a period at most."""
        if self._turns is None:
            now = time.monotonic()
            period = 1.0 / self.framerate
            if now - self._next_time > period:
                self._late += self._next_time > 0.0
                self._next_time = now
            time.sleep(max(0.0, self._next_time - now))
            self._next_time += period
        elif self._next_time:
            # Should a frame get lost, the next one comes all the same.
            with contextlib.suppress(queue.Empty):
                self._turns.get(timeout=SLOT_WAIT_S)
        else:
            self._next_time = 1.0
            with contextlib.suppress(queue.Empty):
                while True:
                    self._turns.get_nowait()
        return True
