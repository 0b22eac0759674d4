"""The replay camera: any video file that OpenCV opens, written straight into NV12 slots."""

from __future__ import annotations

import os
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from zc_perception.camera.camera import DrawnCamera
from zc_perception.errors import CameraError, ConfigError
from zc_perception.pixel.fourcc import NV12, pixel_format
from zc_perception.pixel.layout import check_dimensions
from zc_perception.pixel.nv12 import Nv12Writer

DEFAULT_FRAMERATE = 30.0


def open_video(path: str) -> cv2.VideoCapture:
    """Open *path* and check that it has frames.

    :raises ConfigError: no such file, or not a video that this OpenCV can decode.
    """
    if not path:
        raise ConfigError("parameter 'video' is empty; set it to the path of a video file (camera is 'replay')")
    if not os.path.isfile(path):
        raise ConfigError(f"video '{path}' does not exist or is not a file; set parameter 'video' to a video file's path")
    capture = cv2.VideoCapture(path)
    if not capture.isOpened() or capture.get(cv2.CAP_PROP_FRAME_WIDTH) < 2 or capture.get(cv2.CAP_PROP_FRAME_HEIGHT) < 2:
        raise ConfigError(f"video '{path}' can't be decoded by this OpenCV; convert it, for example to MJPEG in AVI")
    return capture


class ReplayCamera(DrawnCamera):
    """Plays a file at its own pace, or every frame once as fast as its consumers take them.

    The picture is converted to BT.601 limited NV12. An odd last column or row is cut off.

    :param video: the file.
    :param loop: start again at the end (ignored with *keep_all*).
    :param keep_all: every frame exactly once, waiting for a free slot instead of dropping.
    :param width: picture width; 0 for the file's own. Other sizes are scaled.
    :param height: likewise.
    :param framerate: frames per second; 0 for the file's own.
    :raises ConfigError: the file can't be used.
    :raises LayoutError: an odd width or height.
    """

    reason = 'decode'

    def __init__(
        self, video: str, *, width: int, height: int, framerate: float, frame_id: str, loop: bool, keep_all: bool, **base: Any
    ) -> None:
        self._video = video
        self._capture = open_video(video)
        own_width = int(self._capture.get(cv2.CAP_PROP_FRAME_WIDTH)) & ~1
        own_height = int(self._capture.get(cv2.CAP_PROP_FRAME_HEIGHT)) & ~1
        own_framerate = float(self._capture.get(cv2.CAP_PROP_FPS)) or DEFAULT_FRAMERATE
        check_dimensions(pixel_format(NV12), width or own_width, height or own_height)
        super().__init__(width or own_width, height or own_height, framerate or own_framerate, frame_id, live=not keep_all, **base)
        self._scaled = (self.width, self.height) != (own_width, own_height)
        self._loop = loop and not keep_all
        self._ended = False
        self._writer = Nv12Writer(self.width, self.height)
        self._bgr: NDArray[np.uint8] | None = None

    @property
    def device(self) -> str:
        """See :class:`Camera`."""
        return self._video

    @property
    def ended(self) -> bool:
        """See :class:`Camera`."""
        return self._ended

    def _next_picture(self) -> NDArray[np.uint8] | None:
        good, picture = self._capture.read(self._bgr)
        if not good and self._loop:
            self._capture.release()
            self._capture = open_video(self._video)
            good, picture = self._capture.read(self._bgr)
            if not good:
                raise CameraError(f"video '{self._video}' has no frame that can be decoded")
        if not good:
            self._ended = True
            return None
        self._bgr = np.asarray(picture, np.uint8)
        if self._scaled:
            return np.asarray(cv2.resize(picture, (self.width, self.height), interpolation=cv2.INTER_AREA), np.uint8)
        return np.asarray(picture[: self.height, : self.width], np.uint8)

    def render(self, sequence: int, luma: NDArray[np.uint8], chroma: NDArray[np.uint8]) -> bool:
        """See :class:`DrawnCamera`."""
        picture = self._next_picture()
        if picture is None:
            return False
        self._writer.write(picture, luma, chroma)
        return True

    def close(self) -> None:
        """See :class:`Camera`."""
        super().close()
        self._capture.release()
