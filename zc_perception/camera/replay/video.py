"""Video files, and folders of pictures in the order that people number files: 2.png comes before 10.png. OpenCV decodes both."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
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


def check_file(path: str) -> None:
    """Refuse what isn't there, and what could be waited for without an end: pipes and devices.

    :raises ConfigError: no path, or no such file or folder.
    """
    if not path:
        raise ConfigError(
            "parameter 'video' is empty; set it to the path of a video file or another recording (camera is 'replay')"
        )
    if not os.path.exists(path):
        raise ConfigError(
            f"video '{path}' does not exist; set parameter 'video' to the path of a video file or another recording"
        )
    if not os.path.isfile(path) and not os.path.isdir(path):
        raise ConfigError(
            f"video '{path}' is neither a file nor a folder; set parameter 'video' to the path of a recording"
        )


PICTURES = ('.png', '.jpg', '.jpeg', '.bmp', '.webp', '.tif', '.tiff', '.ppm', '.pgm', '.pnm')
# A camera's pictures are not turned, whatever EXIF says of how the camera was held.
_FLAGS = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION


def natural_key(name: str) -> tuple[list[tuple[int, int, str]], str]:
    """Sorts by the numbers in a name as numbers, then by the name itself."""
    parts = re.split(r'(\d+)', name.lower())
    return [(1, int(part), '') if part.isdecimal() else (0, 0, part) for part in parts], name


def pictures_in(folder: Path) -> list[Path]:
    """The picture files of *folder*, in order. Hidden files don't count."""
    found = [
        path
        for path in folder.iterdir()
        if path.suffix.lower() in PICTURES and not path.name.startswith('.') and path.is_file()
    ]
    return sorted(found, key=lambda path: natural_key(path.name))


def decode_picture(content: NDArray[np.uint8]) -> NDArray[np.uint8] | None:
    """An encoded picture (PNG, JPEG, …) as B, G, R; ``None`` if it can't be decoded."""
    if not content.size:
        return None
    try:
        picture = cv2.imdecode(content, _FLAGS)
    except cv2.error:  # a header that promises more than OpenCV would allocate
        return None
    return None if picture is None else np.asarray(picture, np.uint8)


class ImageSource(FrameSource):
    """Plays pictures at a given rate, since pictures have no times of their own.

    All have to have one size: a folder with several is no recording of a camera.
    """

    def __init__(self, path: str, width: int = 0, height: int = 0, framerate: float = 0.0) -> None:
        try:
            self._files = pictures_in(Path(path)) if Path(path).is_dir() else [Path(path)]
        except OSError as error:
            raise ConfigError(f"folder '{path}' can't be read: {error.strerror}") from error
        if not self._files:
            raise ConfigError(
                f"folder '{path}' has no picture and no recording; pictures end in {', '.join(PICTURES)}"
            )
        first = _read_picture(self._files[0])
        if first is None:
            raise ConfigError(
                f"picture '{self._files[0]}' can't be decoded; remove it, or convert it to PNG"
            )
        self._own = first.shape[1], first.shape[0]
        if min(self._own) < 2:
            raise ConfigError(
                f"'{self._files[0]}': its pictures are {self._own[0]}x{self._own[1]}; they must be at least 2x2"
            )
        super().__init__(
            path,
            width or even(self._own[0]),
            height or even(self._own[1]),
            framerate or DEFAULT_FRAMERATE,
        )
        self._writer = PlaneWriter(self.width, self.height)

    def _moment(self) -> Moment | None:
        return self._nominal() if self.number < len(self._files) else None

    def read(self, planes: Sequence[NDArray[Any]]) -> bool:
        """:raises RecordingError: a picture of another size; names it."""
        file = self._files[self.number]
        picture = _read_picture(file)
        if picture is None:
            return False
        if (picture.shape[1], picture.shape[0]) != self._own:
            raise RecordingError(
                f"picture '{file}' is {picture.shape[1]}x{picture.shape[0]}, '{self._files[0].name}' is {self._own[0]}x{self._own[1]}; "
                'all pictures of a folder must have one size: scale them, or put them into folders of their own'
            )
        self._writer.write_bgr(picture, planes)
        return True


def _read_picture(path: Path) -> NDArray[np.uint8] | None:
    """``None``: it is gone, or no picture. Read by us, because OpenCV prints what it can't open."""
    try:
        return decode_picture(np.fromfile(path, np.uint8))
    except OSError:
        return None
