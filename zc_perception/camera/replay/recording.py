"""Raw recordings of ``zc_record``, bit by bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zc_perception.camera.recording import SUFFIX, RecordingReader
from zc_perception.camera.replay.source import DEFAULT_FRAMERATE, FrameSource, Moment
from zc_perception.errors import ConfigError, RecordingError

__all__ = ['SUFFIX', 'RecordingSource']

# The rate that the first frames have.
_RATE_FROM = 64


class RecordingSource(FrameSource):
    """A recording's frames, in its own format and colorimetry, with its headers.

    :param width: 0, or the recording's own: a recording is played as it is.
    :param height: likewise.
    :raises ConfigError: the file can't be used, or is of another size.
    """

    has_headers = True

    def __init__(self, path: str, width: int = 0, height: int = 0) -> None:
        self._reader = reader = RecordingReader(path)
        layout = reader.format.layout
        if (width or layout.width, height or layout.height) != (layout.width, layout.height):
            reader.close()
            raise ConfigError(
                f"recording '{path}' is {layout.width}x{layout.height} and is played bit by bit; set parameters 'width' and 'height' to 0"
            )
        super().__init__(path, layout.width, layout.height, DEFAULT_FRAMERATE)
        self.fourcc, self.colorimetry = layout.fourcc, reader.format.colorimetry
        self._number = -1
        try:
            stamps = [frame.header.stamp_ns for number in range(min(_RATE_FROM, len(reader))) if (frame := reader.frame(number))]
        except OSError as error:
            reader.close()
            raise ConfigError(f"recording '{path}' can't be read: {error.strerror}") from error
        intervals = np.diff(sorted(stamps))
        middle = float(np.median(intervals)) if len(intervals) else 0.0
        if middle > 0:
            self.framerate = 1e9 / middle
        self._first_ns = stamps[0] if stamps else None
        self._last_ns = 0

    def advance(self) -> Moment | None:
        """See :class:`FrameSource`."""
        if self._number + 1 >= len(self._reader):
            return None
        self._number += 1
        try:
            frame = self._reader.frame(self._number)
        except OSError as error:
            raise RecordingError(f"recording '{self.name}' can't be read: {error.strerror}") from error
        if frame is None:
            return Moment(self._last_ns)
        if self._first_ns is None:
            self._first_ns = frame.header.stamp_ns
        self._last_ns = frame.header.stamp_ns - self._first_ns
        return Moment(self._last_ns, frame.header)

    def read(self, planes: Sequence[NDArray[Any]]) -> bool:
        """See :class:`FrameSource`."""
        try:
            found = self._reader.read_planes(self._number)
        except OSError as error:
            raise RecordingError(f"recording '{self.name}' can't be read: {error.strerror}") from error
        if found is None:
            return False
        for source, target in zip(found, planes, strict=True):
            np.copyto(target, source)
        return True

    def restart(self) -> None:
        """See :class:`FrameSource`."""
        self._number, self._last_ns = -1, 0

    def notice(self) -> str:
        """See :class:`FrameSource`."""
        if self._reader.complete:
            return ''
        return (
            f"recording '{self.name}' has no end, its recorder was killed: {len(self._reader)} whole frames were found, "
            f'{self._reader.unreadable} bytes behind them are left out'
        )

    def close(self) -> None:
        """See :class:`FrameSource`."""
        self._reader.close()
