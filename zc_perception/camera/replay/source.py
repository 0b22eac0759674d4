"""What the replay camera plays: one source of frames for each kind of recording."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from zc_perception.errors import ConfigError
from zc_perception.frame import Header
from zc_perception.pixel.colorimetry import BT601_LIMITED
from zc_perception.pixel.fourcc import NV12

DEFAULT_FRAMERATE = 30.0
STAMPS = ('now', 'recorded')
"""Whose headers frames get: the ROS clock's time with the camera's frame_id, or the recording's own headers."""


@dataclass(frozen=True)
class Moment:
    """A frame that comes next, before its pixels are read.

    :param time_ns: since the source's first frame, on the source's own time axis.
    :param header: as recorded, if the source has headers.
    """

    time_ns: int
    header: Header | None = None


class FrameSource(ABC):
    """Frames in their order. One thread.

    :param name: what it plays, for messages.
    :param width: of the frames that it gives.
    :param height: likewise.
    :param framerate: its own, frames per second; nominal where it has time stamps.
    """

    fourcc = NV12
    colorimetry = BT601_LIMITED
    has_headers = False
    sought = 0

    def __init__(self, name: str, width: int, height: int, framerate: float) -> None:
        self.name = name
        self.width = width
        self.height = height
        self.framerate = framerate

    @abstractmethod
    def advance(self) -> Moment | None:
        """Go to the next frame; ``None``: there is none.

        :raises RecordingError: the recording can't be read on.
        """

    @abstractmethod
    def read(self, planes: Sequence[NDArray[Any]]) -> bool:
        """Write the pixels of the frame that :meth:`advance` went to, in one pass. ``False``: they are damaged."""

    @abstractmethod
    def restart(self) -> None:
        """Go before the first frame."""

    def seek(self, frame: int, offset_ns: int) -> Moment | None:
        """From the start, go to the first frame that is number *frame* or later and *offset_ns* or more after the first one.

        :attr:`sought` is its number then; after an error, that of the frame which can't be read.

        :raises RecordingError: the recording can't be read so far.
        """
        self.sought = 0
        while (moment := self.advance()) is not None:
            if self.sought >= frame and moment.time_ns >= offset_ns:
                return moment
            self.sought += 1
        return None

    def notice(self) -> str:
        """What the user should know of the recording: parts that are missing or damaged; empty for nothing."""
        return ''

    @abstractmethod
    def close(self) -> None:
        """Give everything back. Idempotent."""


def even(size: int) -> int:
    """*size* without an odd last row or column, which NV12 can't have."""
    return size & ~1


def check_size(name: str, width: int, height: int) -> None:
    """Refuse pictures that are too small for NV12.

    :raises ConfigError: smaller than 2×2.
    """
    if width < 2 or height < 2:
        raise ConfigError(f"'{name}': its pictures are {width}x{height}; they must be at least 2x2")
