"""Video files. OpenCV decodes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from zc_perception.camera.replay.source import (
    DEFAULT_FRAMERATE,
    FrameSource,
    Moment,
    PlaneWriter,
)
from zc_perception.errors import ConfigError, RecordingError
from zc_perception.pixel.nv12 import even


def open_video(path: str) -> cv2.VideoCapture:
    """Open *path* and check that it has frames.

    :raises ConfigError: not a video that this OpenCV can decode.
    """
    capture = cv2.VideoCapture(path)
    if (
        not capture.isOpened()
        or capture.get(cv2.CAP_PROP_FRAME_WIDTH) < 2
        or capture.get(cv2.CAP_PROP_FRAME_HEIGHT) < 2
    ):
        capture.release()
        raise ConfigError(
            f"video '{path}' can't be decoded by this OpenCV; convert it, for example to MJPEG in AVI"
        )
    return capture


class VideoSource(FrameSource):
    """A file's frames at its nominal rate, converted to BT.601 limited NV12. An odd last column or row is cut off."""

    def __init__(self, path: str, width: int = 0, height: int = 0) -> None:
        self._capture = open_video(path)
        own = (
            even(int(self._capture.get(cv2.CAP_PROP_FRAME_WIDTH))),
            even(int(self._capture.get(cv2.CAP_PROP_FRAME_HEIGHT))),
        )
        framerate = float(self._capture.get(cv2.CAP_PROP_FPS)) or DEFAULT_FRAMERATE
        super().__init__(path, width or own[0], height or own[1], framerate)
        try:
            self._writer = PlaneWriter(self.width, self.height)
        except BaseException:
            self._capture.release()
            raise
        self._bgr: NDArray[np.uint8] | None = None

    def _moment(self) -> Moment | None:
        return self._nominal() if self._capture.grab() else None

    def read(self, planes: Sequence[NDArray[Any]]) -> bool:
        good, picture = self._capture.retrieve(self._bgr)
        if not good or picture is None:
            return False
        self._bgr = np.asarray(picture, np.uint8)
        self._writer.write_bgr(self._bgr, planes)
        return True

    def restart(self) -> None:
        """By opening it again: not every container can seek to its exact first frame."""
        super().restart()
        self._capture.release()
        try:
            self._capture = open_video(self.name)
        except ConfigError as error:
            raise RecordingError(str(error)) from error

    def close(self) -> None:
        self._capture.release()
