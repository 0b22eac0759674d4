"""The replay camera: any recording, written straight into the pool's slots."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from zc_perception.camera import recording
from zc_perception.camera.camera import DrawnCamera
from zc_perception.camera.replay import raw as replay_raw
from zc_perception.camera.replay.bag import BagSource, is_bag
from zc_perception.camera.replay.raw import RawSource
from zc_perception.camera.replay.source import FrameSource, Moment
from zc_perception.camera.replay.video import PICTURES, ImageSource, VideoSource, check_file
from zc_perception.errors import ConfigError, RecordingError
from zc_perception.frame import Header
from zc_perception.pixel.fourcc import pixel_format
from zc_perception.pixel.layout import check_dimensions


def open_source(path: str, *, width: int = 0, height: int = 0, framerate: float = 0.0, topic: str = '') -> FrameSource:
    """The source for what is at *path*.

    A folder is a rosbag2 recording or a folder of pictures; ``.mcap`` and ``.db3`` are rosbag2's files, ``.zcr`` is ours, ``.nv12`` and
    ``.yuv`` are raw; a picture alone is a recording of one frame; anything else is a video.

    :param width: of the frames; 0 for the recording's own. For raw files without a sidecar, what they have.
    :param height: likewise.
    :param framerate: of pictures and raw files, which have none of their own.
    :param topic: which topic of a rosbag2 recording.
    :raises ConfigError: it can't be used.
    :raises LayoutError: an odd width or height.
    """
    check_file(path)
    place = Path(path)
    suffix = place.suffix.lower()
    try:
        bag = is_bag(place)
    except OSError as error:
        raise ConfigError(f"'{path}' can't be read: {error.strerror}") from error
    if topic and not bag:
        raise ConfigError(f"parameter 'replay_topic' is '{topic}', but '{path}' is no rosbag2 recording; leave it empty")
    if bag:
        return BagSource(path, topic, width, height)
    if place.is_dir() or suffix in PICTURES:
        return ImageSource(path, width, height, framerate)
    if suffix == recording.SUFFIX:
        return recording.RecordingSource(path, width, height)
    if suffix in replay_raw.SUFFIXES:
        return RawSource(path, width, height, framerate)
    return VideoSource(path, width, height)


class ReplayCamera(DrawnCamera):
    """Plays a recording at its own pace, or every frame once as fast as its consumers take them.

    A frame that has no free slot is left out without being decoded. One that is damaged is left out and counted as bad.

    :param video: path of the recording, see :func:`open_source`.
    :param width: picture width; 0 for the recording's own. Other sizes are scaled.
    :param height: likewise.
    :param framerate: frames per second; 0 for the recording's own times.
    :param loop: start again at the end (ignored with *keep_all*).
    :param keep_all: every frame exactly once, waiting for a free slot instead of dropping.
    :param topic: which topic of a rosbag2 recording; empty for the only one with pictures.
    :param rate: how much faster than recorded.
    :param start_s: leave out so many seconds.
    :param stamps: one of :data:`STAMPS`. Recorded stamps go on increasing when the recording loops.
    :raises ConfigError: the recording can't be used or read so far, or has nothing at the start that was asked for.
    :raises LayoutError: an odd width or height.
    """

    SIZE = (0, 0)
    reason = 'decode'

    def __init__(
        self,
        video: str,
        *,
        width: int,
        height: int,
        framerate: float,
        frame_id: str,
        loop: bool,
        keep_all: bool,
        topic: str = '',
        rate: float = 1.0,
        start_s: float = 0.0,
        stamps: str = 'now',
        **base: Any,
    ) -> None:
        self._video = video
        self._source = source = open_source(video, width=width, height=height, framerate=framerate, topic=topic)
        try:
            if stamps == 'recorded' and not source.has_headers:
                raise ConfigError(
                    f"'{video}' has no headers: set parameter 'stamps' to 'now', or play a rosbag2 or {recording.SUFFIX} file"
                )
            check_dimensions(pixel_format(source.fourcc), source.width, source.height)
            self.fourcc, self.colorimetry = source.fourcc, source.colorimetry
            super().__init__(source.width, source.height, framerate or source.framerate * rate, frame_id, live=not keep_all, **base)
            self._loop = loop and not keep_all
            self._paced = framerate > 0
            self._rate = rate
            self._start_ns = round(start_s * 1e9)
            self._recorded = stamps == 'recorded'
            self._ended = False
            self._begin()
        except RecordingError as error:
            source.close()
            raise ConfigError(str(error)) from error
        except BaseException:
            source.close()
            raise

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, Any], **base: Any) -> ReplayCamera:
        """See :class:`DrawnCamera`."""
        return cls(
            parameters['video'],
            width=parameters['width'],
            height=parameters['height'],
            framerate=parameters['framerate'],
            loop=parameters['loop'],
            keep_all=parameters['keep_all'],
            topic=parameters['replay_topic'],
            rate=parameters['replay_rate'],
            start_s=parameters['replay_start'],
            stamps=parameters['stamps'],
            **base,
        )

    def _seek(self) -> Moment | None:
        try:
            return self._source.seek(self._start_ns)
        except RecordingError as error:
            raise self._ended_at(self._source.sought, error) from error
        finally:
            self._number = self._source.sought

    def _ended_at(self, number: int, error: RecordingError) -> RecordingError:
        self._ended = True
        return RecordingError(f'frame {number}: {error}')

    def _begin(self) -> None:
        self._moment: Moment | None = self._seek()
        if self._moment is None:
            raise ConfigError(f"'{self._video}' ends before {self._start_ns / 1e9:g} s; lower parameter 'replay_start'")
        self._first_ns = self._moment.time_ns
        self._newest_ns = self._first_ns
        self._rounds_ns = 0
        self._good_in_round = 0
        self._epoch_s: float | None = None
        self._last_stamp_ns: int | None = None

    @property
    def device(self) -> str:
        """See :class:`Camera`."""
        return self._video

    @property
    def ended(self) -> bool:
        """See :class:`Camera`."""
        return self._ended

    def notices(self) -> Sequence[str]:
        """See :class:`Camera`. What is missing or damaged in the recording."""
        notice = self._source.notice()
        return (notice,) if notice else ()

    def _next(self) -> Moment | None:
        """The frame that is due: the one that still waits for a slot, or the next."""
        if self._moment is None and not self._ended:
            self._moment = self._advance()
            if self._moment is None and self._loop:
                self._moment = self._again()
            if self._moment is None:
                self._ended = True
            else:
                self._newest_ns = max(self._newest_ns, self._moment.time_ns)
        return self._moment

    def _advance(self) -> Moment | None:
        self._number += 1
        try:
            return self._source.advance()
        except RecordingError as error:
            raise self._ended_at(self._number, error) from error

    def _again(self) -> Moment | None:
        if not self._good_in_round:
            self._ended = True
            raise RecordingError(f"'{self._video}' has no frame that can be decoded")
        self._good_in_round = 0
        self._rounds_ns += self._newest_ns - self._first_ns + round(1e9 / self._source.framerate)
        self._newest_ns = self._first_ns
        try:
            self._source.restart()
        except RecordingError as error:
            raise self._ended_at(0, error) from error
        return self._seek()

    def _elapsed_ns(self) -> int:
        """See :class:`DrawnCamera`."""
        if self._paced or self._moment is None:
            return round(self._sequence * 1e9 / self.framerate)
        return self._rounds_ns + max(0, self._moment.time_ns - self._first_ns)

    def _wait_for_turn(self) -> bool:
        if self._stop.is_set() or self._next() is None:
            return False
        if not self._live:
            return True
        elapsed_s = self._elapsed_ns() / 1e9 / (1.0 if self._paced else self._rate)
        now = time.monotonic()
        if self._epoch_s is None:
            self._epoch_s = now - elapsed_s
        wait_s = self._epoch_s + elapsed_s - now
        if wait_s < -1.0 / self.framerate:
            self._late += 1
            self._epoch_s -= wait_s
        return not self._stop.wait(max(0.0, wait_s))

    def _header(self) -> Header:
        moment = self._moment
        if self._recorded and moment is not None and moment.header is not None:
            stamp, frame_id = moment.header.stamp_ns + self._rounds_ns, moment.header.frame_id or self._frame_id
            return Header(stamp, frame_id)
        stamp = self._stamp()
        if self._last_stamp_ns is not None:  # recorded times may repeat
            stamp = max(stamp, self._last_stamp_ns + 1)
        self._last_stamp_ns = stamp
        return Header(stamp, self._frame_id)

    def _skip(self) -> None:
        super()._skip()
        self._good_in_round += 1
        self._moment = None

    def draw(self, sequence: int, planes: Sequence[NDArray[Any]]) -> bool:
        """See :class:`DrawnCamera`."""
        try:
            good = self._source.read(planes)
        except RecordingError as error:
            raise self._ended_at(self._number, error) from error
        self._moment = None
        if good:
            self._good_in_round += 1
        else:
            self._sequence += 1
            self._bad += 1
        return good

    def close(self) -> None:
        """See :class:`Camera`."""
        super().close()
        self._source.close()
