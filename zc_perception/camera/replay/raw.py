"""Raw frames without any header: ``.nv12`` and ``.yuv`` files, whose frames follow each other
without padding.

The frames of a ``.yuv`` file may have any format, so parameter ``pixel_format`` has to name it.
Nothing is guessed: frames of NV12 and of I420, which ffmpeg writes, have the same number of bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from zc_perception.camera.recorded_image import tight_layout
from zc_perception.camera.replay.source import DEFAULT_FRAMERATE, FrameSource, Moment
from zc_perception.errors import ConfigError, RecordingError, nearest, shown
from zc_perception.pixel.colorimetry import BT601_LIMITED, Colorimetry, Matrix, Range
from zc_perception.pixel.fourcc import NV12, fourcc_name, pixel_format
from zc_perception.pixel.layout import check_dimensions, views
from zc_perception.pixel.readable import READABLE

SUFFIXES = ('.nv12', '.yuv')
AUTO = 'auto'
# DRM's names, and GStreamer's: I420 is better known than YU12.
_BY_NAME = {fourcc_name(code).strip(): code for code in READABLE} | {
    name.upper(): code for code in READABLE if (name := pixel_format(code).gstreamer) is not None
}


def _format_of(path: str, name: str) -> int:
    """Return the DRM fourcc of a raw file's frames.

    :raises ConfigError: the parameter names none, none that can be read, or not the file's.
    """
    own = NV12 if Path(path).suffix.lower() == '.nv12' else None
    known = ', '.join(fourcc_name(code).strip() for code in READABLE)
    if name == AUTO:
        if own is not None:
            return own
        raise ConfigError(
            f"raw file '{path}' does not say its format: set parameter 'pixel_format' to YU12 "
            f"(I420, ffmpeg's yuv420p), NV12 or what else it is ({known})"
        )
    found = _BY_NAME.get(name.upper())
    if found is None:
        raise ConfigError(
            f"parameter 'pixel_format' is {shown(name)}{nearest(name.upper(), _BY_NAME)}; "
            f'it must be one of {known}'
        )
    if own not in (None, found):
        raise ConfigError(
            f"parameter 'pixel_format' is '{name}', but '{path}' is of NV12; set it to auto"
        )
    return found


class RawSource(FrameSource):
    """Frames of a raw file, bit by bit.

    :param name: of the format, such as NV12.
    :raises ConfigError: the parameters don't say size and format, or the file is no whole number
        of such frames.
    :raises LayoutError: a size that the format can't have.
    """

    def __init__(
        self, path: str, width: int = 0, height: int = 0, framerate: float = 0.0, name: str = AUTO
    ) -> None:
        if not width or not height:
            raise ConfigError(
                f"raw file '{path}' does not say its size: set parameters 'width' and 'height'"
            )
        super().__init__(path, width, height, framerate or DEFAULT_FRAMERATE)
        self.fourcc = _format_of(path, name)
        fmt = pixel_format(self.fourcc)
        check_dimensions(fmt, width, height)
        self.colorimetry = BT601_LIMITED if fmt.is_yuv else Colorimetry(Matrix.RGB, Range.FULL)
        self._layout = tight_layout(self.fourcc, width, height)
        self._content = np.empty(self._layout.buffer_size(0), np.uint8)
        size, one = Path(path).stat().st_size, len(self._content)
        self._frames, rest = divmod(size, one)
        if rest or not self._frames:
            advice = (
                f"; truncate -s {size - rest} '{path}' cuts the rest off" if self._frames else ''
            )
            raise ConfigError(
                f"raw file '{path}' has {size} bytes: {self._frames} frames of {width}x{height} "
                f'{fmt.name.strip()} ({one} bytes) and {rest} bytes; '
                f'check width, height and pixel_format{advice}'
            )
        try:
            self._file: BinaryIO = open(path, 'rb', buffering=0)  # noqa: SIM115 - closed by close()
        except OSError as error:
            raise ConfigError(f"raw file '{path}' can't be read: {error.strerror}") from error

    def _moment(self) -> Moment | None:
        return self._nominal() if self.number < self._frames else None

    def read(self, planes: Sequence[NDArray[Any]]) -> bool:
        """:raises RecordingError: the file can't be read."""
        view, got = self._content.data, 0
        try:
            self._file.seek(self.number * len(view))
            while got < len(view):
                count = self._file.readinto(view[got:])  # type: ignore[attr-defined]
                if not count:
                    return False  # the file has been cut meanwhile
                got += count
        except OSError as error:
            raise RecordingError(
                f"raw file '{self.name}' can't be read: {error.strerror}"
            ) from error
        for source, target in zip(views(self._layout, self._content), planes, strict=True):
            np.copyto(target, source)
        return True

    def close(self) -> None:
        self._file.close()
