"""A camera whose slots were filled before: its frames cost what a driver's cost the host, which is the slot and the descriptor."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np

from zc_perception.camera.camera import SLOT_WAIT_S, Camera, DrawnCamera
from zc_perception.errors import CameraError
from zc_perception.frame import Frame
from zc_perception.memory.heaps import SealedMemfd
from zc_perception.negotiation.settings import BufferSettings
from zc_perception.nodes.capture import CaptureNode

_GREY = 128


class PrefilledCamera(DrawnCamera):
    """Delivers at a steady pace while :attr:`running` is set; a frame without a free slot is lost and counted."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.running = threading.Event()

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
        if not self._wait_for_turn():
            return None
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
            captured_ns=began_ns,
            capture_cost_ns=time.monotonic_ns() - began_ns,
        )
        self._sequence += 1
        self._captured += 1
        return frame


class PrefilledCapture(CaptureNode):
    """A capture node of the same parameters with such a camera."""

    def _open_camera(self, identity: str) -> Camera:
        values = self.parameters
        size = values['width'], values['height'], values['framerate']
        camera = PrefilledCamera(*size, values['frame_id'], heap=SealedMemfd(), now_ns=self._now_ns, ledger=self.ledger)
        self._counters.begin(camera)
        return camera

    @property
    def running(self) -> threading.Event:
        """Set: frames come."""
        camera = self.camera
        assert isinstance(camera, PrefilledCamera)
        return camera.running
