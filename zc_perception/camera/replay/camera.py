# Copyright 2026 The zc_perception authors
# SPDX-License-Identifier: Apache-2.0
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.

"""The replay camera: writes the frames of a recording directly into the pool's slots."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
import contextlib
import json
from pathlib import Path
import time
from typing import Any, TYPE_CHECKING

from numpy.typing import NDArray

from zc_perception.camera.camera import DrawnCamera
from zc_perception.errors import ConfigError, RecordingError, ZcError
from zc_perception.frame import Header
from zc_perception.local_path import local_path
from zc_perception.machine.asking import NoAnswerError
from zc_perception.machine.checks import fail, Finding, Needs, NodeNeed, ok, warn
from zc_perception.parameters import ParameterSpec
from zc_perception.pixel.fourcc import pixel_format
from zc_perception.pixel.layout import check_dimensions
from zc_perception.terminal import interruptible

if TYPE_CHECKING:
    from zc_perception.camera.replay.source import FrameSource, Moment
    from zc_perception.machine.system import System

_RAW = ('.nv12', '.yuv')
# With recorded stamps, a round (one play of the recording) lasts this many ns longer than the
# source's duration_ns(), so that the next round's first stamp is later than this round's last
# stamp. duration_ns() is the time from the arrival of the first message at the recorder to that of
# the last message. A message's delay from its stamp to its arrival varies by less than 100 ms.
_BETWEEN_ROUNDS_NS = 100_000_000
STAMPS = ('now', 'recorded')
"""
Values of parameter ``stamps``.

``now``: a frame gets the ROS clock's time and the camera's frame_id. ``recorded``: it gets the
recorded header.
"""


def open_source(
    path: str, *, width: int = 0, height: int = 0, framerate: float = 0.0, topic: str = ''
) -> FrameSource:
    """
    Open a recording and return it as a source of frames.

    A folder has a recording of zc_record or rosbag2, or pictures. A file is such a recording
    (``.mcap``, ``.db3``), a single picture, which is one frame, or else a video.

    :param path: the value of parameter ``video``.
    :param width: width of the frames in pixels; 0: the recording's own.
    :param height: height of the frames in pixels; 0: the recording's own.
    :param framerate: frames per second of pictures, and of videos without a plausible rate.
    :param topic: name of the topic of a rosbag2 recording.
    :raises ConfigError: the recording can't be used.
    :raises LayoutError: an odd width or height.
    """
    # The readers are imported here, because no other kind of camera needs them.
    from zc_perception.camera.replay.bag import BagSource, is_bag
    from zc_perception.camera.replay.pictures import ImageSource, PICTURES
    from zc_perception.camera.replay.source import recording_path, refuse_foreign
    from zc_perception.camera.replay.video import VideoSource

    path = recording_path(path)
    place = Path(path)
    suffix = place.suffix.lower()
    if place.is_file():
        if suffix in _RAW:
            raise ConfigError(
                f"raw file '{path}' states no size or format; put it into a video file: ffmpeg "
                '-f rawvideo -pix_fmt nv12 -video_size WIDTHxHEIGHT -framerate 30 -i IN -c '
                'copy OUT.nut'
            )
        refuse_foreign(place)
    try:
        bag = is_bag(place)
    except OSError as error:
        raise ConfigError(f"'{path}' can't be read: {error.strerror}") from error
    if topic and not bag:
        raise ConfigError(
            f"parameter 'replay_topic' is '{topic}', but '{path}' is no rosbag2 recording; "
            'leave the parameter empty'
        )
    if bag:
        return BagSource(path, topic, width, height)
    if place.is_dir() or suffix in PICTURES:
        return ImageSource(path, width, height, framerate)
    return VideoSource(path, width, height, framerate)


class ReplayCamera(DrawnCamera):
    """
    Plays a recording at the recorded pace, or as fast as consumers take the frames.

    A damaged frame is left out and counted as bad.

    With parameter ``keep_all``, every frame is published exactly once: it waits for a free slot,
    and the recording is not repeated. Otherwise, a frame for which no slot is free is skipped
    without being decoded. Parameter ``loop`` repeats the recording. If parameter ``stamps`` is
    ``recorded``, the stamps of each repetition follow those of the repetition before it.

    :raises ConfigError: the recording can't be used, can't be read up to the time in parameter
        ``replay_start``, or ends before that time.
    :raises LayoutError: an odd width or height.
    """

    PARAMETERS = (
        ParameterSpec('video', '', 'path or file:// URL of a video, a folder of pictures, or a '
                                   'recording of zc_record or rosbag2. ~ and $NAME are replaced.'),
        ParameterSpec('loop', True, 'start again when the end is reached.'),
        ParameterSpec('keep_all', False, 'play every frame exactly once, as fast as consumers '
                                         'take them. It overrides loop. '
                                         'Set it for the inference node too.'),
        ParameterSpec('replay_topic', '', ('topic of a recording of zc_record or rosbag2. '
                                           'Empty: the only topic with pictures.')),
        ParameterSpec('replay_rate', 1.0, 'speed, as a multiple of the recorded speed.', '',
                      0.01, 100.0),
        ParameterSpec('replay_start', 0.0, 'number of seconds to skip at the beginning.', 's',
                      0.0, 1e6),
        ParameterSpec('stamps', 'now', ('stamps of frames. now: the time of the replay. '
                                        'recorded: those in the recording.'), choices=STAMPS),
    )  # fmt: skip
    SIZE = (0, 0)
    PACED = False
    reason = 'decode'

    def __init__(self, parameters: Mapping[str, Any], *, frame_id: str, **base: Any) -> None:
        video: str = parameters['video']
        framerate: float = parameters['framerate']
        self._rate: float = parameters['replay_rate']
        self._start_ns = round(parameters['replay_start'] * 1e9)
        self._recorded = parameters['stamps'] == 'recorded'
        self._loop = parameters['loop'] and not parameters['keep_all']
        self._paced = framerate > 0
        self._ended = False
        self._source = source = open_source(
            video,
            width=parameters['width'],
            height=parameters['height'],
            framerate=framerate,
            topic=parameters['replay_topic'],
        )
        from zc_perception.camera.replay.source import recording_path

        try:
            self._video = recording_path(video)
            if self._recorded and not source.has_headers:
                raise ConfigError(
                    f"'{self._video}' has no headers: set parameter 'stamps' to 'now', or play "
                    'a recording of zc_record or rosbag2'
                )
            check_dimensions(pixel_format(source.fourcc), source.width, source.height)
            self.fourcc, self.colorimetry = source.fourcc, source.colorimetry
            rate = framerate or source.framerate * self._rate
            super().__init__(
                source.width,
                source.height,
                rate,
                frame_id,
                live=not parameters['keep_all'],
                **base,
            )
            self._begin()
        except RecordingError as error:
            source.close()
            raise ConfigError(str(error)) from error
        except BaseException:
            source.close()
            raise

    @classmethod
    def check(cls, values: Mapping[str, Any]) -> None:
        """Check that the recording exists."""
        from zc_perception.camera.replay.source import recording_path

        super().check(values)
        recording_path(values['video'])

    @classmethod
    def examine(cls, system: System, needs: Needs, camera: NodeNeed) -> Finding:
        if not camera['video']:
            advice = (
                'set it in the parameter file, or when the node starts (-p '
                f'{camera.node.rsplit("/", 1)[-1]}:video:=PATH)'
            )
            return warn(
                "camera replay has no recording: parameter 'video' is empty", advice, camera.node
            )
        path = camera['video']
        # if the path is wrong, try_recording reports it below
        with contextlib.suppress(ConfigError):
            path = local_path(path, 'video')
        asked = {
            'video': str(system.root / path.lstrip('/')) if path.startswith('/') else path,
            **{name: camera[name] for name in ('width', 'height', 'framerate')},
            'topic': camera['replay_topic'],
        }
        try:
            answer = system.ask(try_recording, json.dumps(asked))
        except NoAnswerError as error:
            answer = {'error': str(error)}
        if 'error' in answer:
            return fail(
                answer['error'],
                "set parameter 'video' to the path of a recording that can be played",
                camera.node,
            )
        return ok(
            f'{camera["video"]} can be played, {answer["width"]}x{answer["height"]}',
            camera.node,
            **answer,
        )

    @classmethod
    def keeps_all(cls, values: Mapping[str, Any]) -> bool:
        return bool(values['keep_all'])

    @classmethod
    def recorded_stamps(cls, values: Mapping[str, Any]) -> bool:
        return bool(values['stamps'] == 'recorded')

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, Any], **base: Any) -> ReplayCamera:
        return cls(parameters, **base)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[FrameSource]:
        """
        Give the source to a with-block that reads it.

        If reading raises an error, end the camera, and add the frame's number to the message.
        """
        try:
            yield self._source
        except RecordingError as error:
            self._ended = True
            raise RecordingError(f'frame {max(0, self._source.number)}: {error}') from error

    def _begin(self) -> None:
        with self._reading() as source, interruptible():  # it may have to read for minutes
            self._moment: Moment | None = source.seek(self._start_ns)
        if self._moment is None:
            raise ConfigError(
                f"'{self._video}' ends before {self._start_ns / 1e9:g} s; lower parameter "
                "'replay_start'"
            )
        self._first_ns = self._moment.time_ns
        self._newest_ns = self._first_ns
        self._rounds_ns = self._pauses_ns = 0
        self._good_in_round = 0
        self._epoch_s: float | None = None
        self._last_stamp_ns: int | None = None

    @property
    def device(self) -> str:
        return self._video

    @property
    def ended(self) -> bool:
        return self._ended

    def notices(self) -> Sequence[str]:
        """Return sentences about missing or damaged parts of the recording, and useless stamps."""
        return tuple(filter(None, (self._source.notice(), self._stamp_trouble())))

    def _stamp_trouble(self) -> str:
        stamps = self._source.stamps
        return stamps.notice() if self._recorded and stamps is not None else ''

    def facts(self) -> Mapping[str, object]:
        """Return what is wrong with the stamps, if parameter ``stamps`` is ``recorded``."""
        return {'stamp_trouble': self._stamp_trouble()} if self._recorded else {}

    def _next(self) -> Moment | None:
        """Return the frame to play now: a frame that still waits for a slot, or the next frame."""
        if self._moment is None and not self._ended:
            with self._reading() as source:
                self._moment = source.advance()
            if self._moment is None and self._loop:
                self._moment = self._again()
            if self._moment is None:
                self._ended = True
            else:
                self._newest_ns = max(self._newest_ns, self._moment.time_ns)
        return self._moment

    def _again(self) -> Moment | None:
        if not self._good_in_round:
            self._ended = True
            raise RecordingError(f"'{self._video}' has no frame that can be decoded")
        self._good_in_round = 0
        self._rounds_ns += self._round_ns()
        # Recorded stamps go on after the whole recording, but nobody waits for its pauses.
        self._pauses_ns += self._source.left_out_ns if self._recorded else 0
        self._newest_ns = self._first_ns
        with self._reading() as source:
            source.restart()
            return source.seek(self._start_ns)

    def _round_ns(self) -> int:
        """
        Return the time from this round's first frame to the next round's first frame.

        With recorded stamps, the rounds of all topics of a recording have the same length. If
        their lengths differed, the two sides of a stereo pair would drift apart, and wrong frames
        would be paired.
        """
        played_ns = self._newest_ns - self._first_ns
        if self._recorded:
            shared_ns: int = self._source.duration_ns() - self._start_ns + _BETWEEN_ROUNDS_NS
            if shared_ns > played_ns:
                return shared_ns
        return played_ns + round(1e9 / self._source.framerate)

    def _elapsed_ns(self) -> int:
        if self._paced or self._moment is None:
            return round(self._sequence * 1e9 / self.framerate)
        own_ns = max(0, self._moment.time_ns - self._first_ns)
        return self._rounds_ns - self._pauses_ns + own_ns

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
            stamp, frame_id = (
                moment.header.stamp_ns + self._rounds_ns,
                moment.header.frame_id or self._frame_id,
            )
            return Header(stamp, frame_id)
        stamp = self._stamp()
        # Frames may have equal recorded times, but stamps must increase.
        if self._last_stamp_ns is not None:
            stamp = max(stamp, self._last_stamp_ns + 1)
        self._last_stamp_ns = stamp
        return Header(stamp, self._frame_id)

    def _skip(self) -> None:
        super()._skip()
        self._good_in_round += 1
        self._moment = None

    def draw(self, sequence: int, planes: Sequence[NDArray[Any]]) -> bool:
        with self._reading() as source:
            good = source.read(planes)
        self._moment = None
        if good:
            self._good_in_round += 1
        else:
            self._sequence += 1
            self._bad += 1
        return good

    def close(self) -> None:
        super().close()
        self._source.close()


def try_recording(text: str) -> dict[str, Any]:
    """
    Open a recording as the capture node does; return its size, or the error.

    :param text: a JSON object with ``video`` and the keyword arguments of :func:`open_source`.
    """
    wanted = json.loads(text)
    try:
        source = open_source(wanted.pop('video'), **wanted)
    except ZcError as error:
        return {'error': str(error)}
    with contextlib.closing(source):
        return {'width': source.width, 'height': source.height}
