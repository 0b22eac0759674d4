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

"""
Play video files, which PyAV (extra ``video``) decodes; planes are read from PyAV's memory.

This module opens a file or explains why it is no video, reads the colours and rotation that the
stream states, converts decoded frames to NV12, iterates over a file's frames, and plays them
as a :class:`FrameSource`, in this order.
"""

from __future__ import annotations

from bisect import insort
import codecs
from collections import deque
from collections.abc import Generator, Iterator, Sequence
import importlib
import math
import os
import re
from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from zc_perception.camera.replay.source import (
    DEFAULT_FRAMERATE,
    FrameSource,
    LONGEST_PAUSE_NS,
    Moment,
    PlaneWriter,
    RATE_FROM,
    rate_of,
)
from zc_perception.errors import (
    ConfigError,
    FormatError,
    message_of,
    NO_DESCRIPTOR,
    RecordingError,
    shown,
)
from zc_perception.pixel.colorimetry import BT601_LIMITED, Colorimetry, Matrix, Range, Transfer
from zc_perception.pixel.conversion import even
from zc_perception.pixel.fourcc import fourcc_code
from zc_perception.pixel.layout import compute_layout, PlaneArray

_HEAD_BYTES = 1024
# The control characters that a text file may contain. A file that contains any other control
# character isn't a text.
_TEXT_CONTROLS = frozenset(b'\t\n\v\f\r\x1b')
# Files of this format begin with a line of text, but binary pictures follow.
_YUV4MPEG = b'YUV4MPEG2'
_COVER_RATE = 90_000
# The version of libavformat in FFmpeg 6.1, the first FFmpeg whose frames have their stream's side
# data, such as the rotation.
_ASKABLE = (60, 16)
_CONVERT = "convert it to H.264 with another program, for example 'ffmpeg -i IN OUT.mp4'"
# Its gaps: the path; what is wrong and what caused it; and the begin of the advice.
_NO_INDEX = (
    "video '{}' is an MP4 or MOV file whose index (moov) {} was interrupted. {} "
    'program untrunc can mend the file; recordings in Matroska (.mkv) need no index'
)
_ANOTHER = "set parameter 'video' to the path of a video file or another recording"


class OpenVideo(NamedTuple):
    """
    An open video file.

    :param av: the module PyAV.
    :param stream: the stream of *container* to play.
    :param others: number of further video streams, which are not played.
    """

    av: Any
    container: Any
    stream: Any
    others: int


def open_video(path: str) -> OpenVideo:
    """
    Open the video file *path*.

    :raises ConfigError: PyAV is missing or can't decode the file; the message says what the file
        is.
    """
    av = pyav(path)
    head = _head(path)
    # Metadata that isn't UTF-8 must not raise an error. PyAV 19 always replaces wrong characters.
    lenient = {} if int(av.__version__.partition('.')[0]) > 18 else {'metadata_errors': 'replace'}
    try:
        # Without "file:", FFmpeg would read the text before a colon as a protocol's name. Without
        # the whitelist, a playlist could make FFmpeg connect to any host.
        container = av.open(
            f'file:{os.path.abspath(path)}', options={'protocol_whitelist': 'file'}, **lenient
        )
    except (av.error.FFmpegError, OSError, ValueError) as error:
        raise ConfigError(_why_not(path, head, error)) from error
    try:
        stream, others = _choose(path, container)
    except BaseException:
        container.close()
        raise
    return OpenVideo(av, container, stream, others)


def pyav(path: str) -> Any:
    """
    Import and return PyAV; *path* is the video, for messages.

    :raises ConfigError: PyAV is missing, or too old to report the pictures' rotation and colours.
    """
    try:
        av = importlib.import_module('av')
        importlib.import_module('av.video.reformatter')
    except ImportError as error:
        raise ConfigError(
            f"video '{path}' needs the library PyAV, which is not installed: "
            'sudo apt install python3-av, or pip install av'
        ) from error
    version = av.library_versions['libavformat'][:2]
    if version < _ASKABLE or not hasattr(av.VideoCodecContext, 'color_trc'):
        raise ConfigError(
            f"video '{path}' needs PyAV 12 with FFmpeg 6.1, or newer; installed is PyAV "
            f'{av.__version__} with libavformat {".".join(map(str, version))}, which does not say '
            "how pictures are turned and coloured: pip install -U 'av<20'"
        )
    # Old versions of PyAV pass FFmpeg's warnings to Python's logging, from the decoding threads.
    # Let only messages about crashes pass.
    if av.logging.get_level() is not None:
        av.logging.set_level(av.logging.PANIC)
    return av


def _head(path: str) -> bytes:
    """Return the first bytes of a video file; refuse a file that can't be read or is a text."""
    try:
        with open(path, 'rb') as file:
            head = file.read(_HEAD_BYTES)
    except OSError as error:
        reason = NO_DESCRIPTOR.get(error.errno or 0, error.strerror)
        raise ConfigError(f"video '{path}' can't be read: {reason}") from error
    line = _first_line(head)
    if line is not None:
        raise ConfigError(
            f"video '{path}' is a text, not a video; it begins with {shown(line)}: {_ANOTHER}"
        )
    return head


def _first_line(head: bytes) -> str | None:
    """
    Return the first line of a text file; ``None``: the file is not a text.

    FFmpeg must not open a text: it would draw the text as a terminal's picture, or play the
    files and URLs that a playlist names.
    """
    controls = (byte for byte in head if byte < 0x20 and byte not in _TEXT_CONTROLS)
    if not head or head.startswith(_YUV4MPEG) or any(True for _ in controls):
        return None
    try:
        # An incremental decoder accepts that the last character of *head* is incomplete.
        text = codecs.getincrementaldecoder('utf-8-sig')().decode(head)
    except UnicodeDecodeError:
        return None
    return next((line.strip() for line in text.splitlines() if line.strip()), '')


def _why_not(path: str, head: bytes, error: Exception) -> str:
    number = getattr(error, 'errno', 0)
    if number in NO_DESCRIPTOR:
        return f"video '{path}' can't be opened: {NO_DESCRIPTOR[number]}"
    if head[4:8] == b'ftyp':
        return _NO_INDEX.format(path, 'is missing, because the recording', 'The')
    reason = getattr(error, 'strerror', None) or message_of(error)
    return (
        f"video '{path}' is of no kind that FFmpeg knows ({reason}); "
        f"the command 'file NAME' says what it is. If it is a video, {_CONVERT}"
    )


def _choose(path: str, container: Any) -> tuple[Any, int]:
    """Return the first stream with moving pictures, and the number of further such streams."""
    sound = [_codec_name(stream) for stream in container.streams if stream.type == 'audio']
    pictures = [stream for stream in container.streams if stream.type == 'video']
    videos = [stream for stream in pictures if not _is_cover(stream, bool(sound))]
    if not videos:
        if _ends_in_index(path):
            reason, step = 'is incomplete, because the copy or recording', 'Copy it again, or the'
            raise ConfigError(_NO_INDEX.format(path, reason, step))
        has = [f'sound ({", ".join(sound)})'] if sound else []
        has += ['a cover picture'] if pictures else []
        raise ConfigError(
            f"video '{path}' has no moving pictures{', only ' if has else ''}{' and '.join(has)} "
            f'(a file of kind {container.format.name}); {_ANOTHER}'
        )
    if not _codec_name(videos[0]):
        raise ConfigError(
            f"video '{path}' has pictures of a codec for which the FFmpeg of PyAV has no decoder; "
            f'{_CONVERT}'
        )
    return videos[0], len(videos) - 1


def _ends_in_index(path: str) -> bool:
    """Tell whether an MP4 or MOV file ends inside its index (moov)."""
    with open(path, 'rb') as file:
        end, at = os.path.getsize(path), 0
        while len(head := file.read(16)) == 16:
            length = int.from_bytes(head[:4], 'big')
            length = int.from_bytes(head[8:], 'big') if length == 1 else length
            if head[4:8] == b'moov' or length < 8:
                return head[4:8] == b'moov' and at + length > end
            at += length
            file.seek(at)
    return False


def _codec_name(stream: Any) -> str:
    context = stream.codec_context
    return '' if context is None else context.name or ''


def _is_cover(stream: Any, has_sound: bool) -> bool:
    """
    Tell whether a stream is the cover picture of music.

    Streams of old PyAV have no ``disposition``. Then a stream counts as a cover if the file also
    has sound, and the stream has no frame rate except 90000 per second, FFmpeg's clock.
    """
    disposition = getattr(stream, 'disposition', None)
    if disposition is not None:
        return bool(disposition & type(disposition).attached_pic)
    return has_sound and not stream.average_rate and stream.base_rate == _COVER_RATE


UNKNOWN = 'unknown'
# The matrices' names, by the numbers of ISO/IEC 23091-2, which FFmpeg uses unchanged; 2 and 3 mean
# unknown.
_MATRICES = (
    'gbr', 'bt709', UNKNOWN, UNKNOWN, 'fcc', 'bt470bg', 'smpte170m', 'smpte240m', 'ycgco',
    'bt2020nc', 'bt2020c', 'smpte2085', 'chroma-derived-nc', 'chroma-derived-c', 'ictcp',
    'ipt-c2', 'ycgco-re', 'ycgco-ro',
)  # fmt: skip
_TRANSFERS = (
    UNKNOWN, 'bt709', UNKNOWN, UNKNOWN, 'bt470m', 'bt470bg', 'smpte170m', 'smpte240m', 'linear',
    'log100', 'log316', 'iec61966-2-4', 'bt1361e', 'iec61966-2-1', 'bt2020-10', 'bt2020-12',
    'smpte2084', 'smpte428', 'arib-std-b67',
)  # fmt: skip
_RANGES = (UNKNOWN, 'tv', 'pc')
# fcc is close enough to BT.601: red and blue weigh 0.30 and 0.11 instead of 0.299 and 0.114, so
# results differ by about one level.
_OUR_MATRICES = {
    'bt709': Matrix.BT709,
    **dict.fromkeys(('fcc', 'bt470bg', 'smpte170m'), Matrix.BT601),
    'bt2020nc': Matrix.BT2020,
}
_NOT_CONVERTED = {
    'smpte2084': 'PQ (HDR)',
    'arib-std-b67': 'HLG (HDR)',
    **{name: name for name in ('linear', 'log100', 'log316', 'smpte428')},
}
_TO_SDR = (
    'convert it to BT.709 (SDR) with another program, '
    "for example with ffmpeg's filters zscale and tonemap"
)
_UPRIGHT_BY = (
    'this package can undo only mirroring and turns by 90, 180 or 270 degrees: turn the pixels '
    "of the video with another program, for example 'ffmpeg -i IN OUT'"
)
# A picture this wide or this high is high definition; standard definition ends at 720x576.
_HIGH_DEFINITION = 1280, 577

Turn = tuple[int, int, int, int]
"""(a, b, c, d): pixel (x, y) moves to (a·x + c·y, b·x + d·y). The y axis points down."""
UPRIGHT: Turn = (1, 0, 0, 1)
_HALF = 1 << 15


class Said(NamedTuple):
    """The colour properties of a stream; a property that it doesn't state is ``unknown``."""

    matrix: str = UNKNOWN
    range: str = UNKNOWN  # noqa: A003
    transfer: str = UNKNOWN

    def completed(self, before: Said) -> Said:
        """Return a copy; unknown values are taken from *before*, an earlier frame's properties."""
        return Said(
            *(old if new == UNKNOWN else new for new, old in zip(self, before, strict=True))
        )


def said_by(frame: Any, codec: Any) -> Said:
    """
    Return the colour properties of a frame of PyAV.

    Matrix and range come from the frame, the transfer from its decoder *codec*.
    """
    numbers = int(frame.colorspace), int(frame.color_range), int(codec.color_trc)
    names = _MATRICES, _RANGES, _TRANSFERS
    return Said(
        *(each[n] if n < len(each) else UNKNOWN for each, n in zip(names, numbers, strict=True))
    )


def turn_of(frame: Any) -> Turn:
    """
    Return how a frame's display matrix (16-bit fixed point) turns the picture.

    Call this for only one frame of a video: after the call, PyAV keeps the frame in memory until
    the garbage collector runs.

    :raises FormatError: the frame's rotation is not a multiple of 90 degrees.
    """
    # Read each entry by its index: from PyAV 19 on, iterating over side_data gives only types.
    for data in (frame.side_data[place] for place in range(len(frame.side_data))):
        if getattr(data.type, 'name', data.type) == 'DISPLAYMATRIX':
            a, b, _, c, d = (_sign(int(value)) for value in np.frombuffer(data, np.int32, 5))
            if abs(a) + abs(b) != 1 or (abs(a), abs(b)) != (abs(d), abs(c)):
                raise FormatError(
                    'the pictures are turned by an angle that is no multiple of 90 degrees; '
                    f'{_UPRIGHT_BY}'
                )
            return a, b, c, d
    return UPRIGHT


def _sign(value: int) -> int:
    return (value > _HALF) - (value < -_HALF)


def colorimetry(
    said: Said, *, rgb: bool, grey: bool, jpeg: bool, size: tuple[int, int]
) -> Colorimetry:
    """
    Return the colorimetry of a stream's pictures.

    If the stream doesn't state a value, the value that video players usually assume is taken.

    :param rgb: whether the pictures are R, G, B.
    :param grey: whether the pictures have one level for each pixel.
    :param jpeg: whether the format's name means full range (``yuvj…``).
    :param size: the size of the stored pictures.
    :raises FormatError: this package can't convert the pictures' matrix or transfer.
    """
    if said.transfer in _NOT_CONVERTED:
        curve = _NOT_CONVERTED[said.transfer]
        raise FormatError(
            f'its transfer function is {curve}, which this package cannot read; {_TO_SDR}'
        )
    transfer = Transfer.SRGB if said.transfer == 'iec61966-2-1' else Transfer.BT709
    full = said.range == 'pc' or (said.range == UNKNOWN and (rgb or grey or jpeg))
    range_ = Range.FULL if full else Range.LIMITED
    if rgb or grey:
        return Colorimetry(Matrix.RGB, range_, transfer)
    if said.matrix not in (*_OUR_MATRICES, UNKNOWN):
        known = ', '.join(dict.fromkeys(each.value for each in _OUR_MATRICES.values()))
        raise FormatError(
            f'its colour matrix is {said.matrix}; this package converts only {known}: {_TO_SDR}'
        )
    high = any(side >= least for side, least in zip(size, _HIGH_DEFINITION, strict=True))
    custom = Matrix.BT709 if high else Matrix.BT601
    return Colorimetry(_OUR_MATRICES.get(said.matrix, custom), range_, transfer)


# In planar formats alpha is a separate plane, which is left out.
_PLANAR = {
    f'yuv{kind}4{sampling}p': name
    for sampling, name in (('20', 'YU12'), ('22', 'YU16'), ('44', 'YU24'))
    for kind in ('', 'j', 'a')
}
_RGB = {
    'bgr24': 'RG24', 'bgr0': 'XR24', 'bgra': 'AR24', '0bgr': 'RX24', 'abgr': 'RA24',
    'rgb24': 'BG24', 'rgb0': 'XB24', 'rgba': 'AB24', '0rgb': 'BX24', 'argb': 'BA24',
    'rgb565le': 'RG16', 'bgr565le': 'BG16',
}  # fmt: skip
_GREY = {'gray': 'R8  ', 'gray16le': 'R16 '}
_FOURCCS = {
    **_PLANAR, **_RGB, **_GREY,
    'nv12': 'NV12', 'nv21': 'NV21', 'nv16': 'NV16', 'nv24': 'NV24', 'nv42': 'NV42',
    'p010le': 'P010', 'p012le': 'P012', 'p016le': 'P016', 'p210le': 'P210',
    'yuyv422': 'YUYV', 'uyvy422': 'UYVY', 'yvyu422': 'YVYU',
}  # fmt: skip
"""Key: FFmpeg's name of a format; value: the name (fourcc) of the DRM format for its planes."""
# Formats with 9 to 16 bits: each sample is in the low bits of two bytes.
_DEEP = re.compile(r'(yuva?4(?:20|22|44)p|gray)(9|10|12|14|16)le')


class _Kind(NamedTuple):
    """
    How to read frames of one format and size.

    :param form: FFmpeg's name of the format, a key of :data:`_FOURCCS`.
    :param parts: for each plane, the arguments for a NumPy array of the plane's samples.
    :param bits: the bits of a frame's samples (9 to 16) if this package narrows them to the 8 bits
        of *form*; 0: they aren't narrowed.
    :param converted: whether FFmpeg has to convert frames to *form* first.
    """

    form: str
    fourcc: int
    parts: tuple[PlaneArray, ...]
    bits: int
    converted: bool


def _kind_of(frame: Any, *, upside_down: bool) -> _Kind:
    name, bits, converted = frame.format.name, 0, False
    deep = _DEEP.fullmatch(name)
    # FFmpeg has to convert upside-down frames: where the planes of such a frame begin depends on
    # the version of PyAV.
    if upside_down or (deep is None and name not in _FOURCCS):
        name, converted = _plain(frame.format), True
    elif name not in _FOURCCS:
        assert deep is not None
        name, bits = deep[1], int(deep[2])
    fourcc = fourcc_code(_FOURCCS[name])
    layout = compute_layout(fourcc, even(frame.width), even(frame.height))
    return _Kind(name, fourcc, layout.arrays, bits, converted)


def _plain(form: Any) -> str:
    """Return the format of :data:`_FOURCCS` into which FFmpeg converts frames of format *form*."""
    if form.is_rgb or form.has_palette or form.name.startswith('xyz'):
        best = 'bgr24'
    elif len(form.components) < 3:
        best = 'gray'
    else:
        best = 'yuvj444p' if form.name.startswith('yuvj') else 'yuv444p'
    return next(name for name in (best, 'bgr24', 'rgb24') if name != form.name)


class PictureWriter:
    """
    Writes frames of any format, upright, into NV12 planes of one size.

    It allocates scratch memory for the first frame of each size and format. FFmpeg first converts
    pictures of a format that DRM doesn't have (4:1:1, palettes, planar R, G, B …), and allocates
    memory for each of them.

    :param turn: how the frames have to be turned.
    :param reformatter: PyAV's ``VideoReformatter()``.
    :raises LayoutError: NV12 can't have this size.
    """

    def __init__(self, width: int, height: int, turn: Turn, reformatter: Any) -> None:
        self._reformatter = reformatter
        self._transposed = turn[0] == 0
        across, down = (turn[2], turn[1]) if self._transposed else (turn[0], turn[3])
        # OpenCV's numbers: 1 mirrors left and right, 0 top and bottom, -1 both.
        self._flip = {(1, 1): None, (-1, 1): 1, (1, -1): 0, (-1, -1): -1}[across, down]
        columns, rows = (height, width) if self._transposed else (width, height)
        self._writer = PlaneWriter(columns, rows)
        self._as_stored: list[NDArray[Any]] = []
        if turn != UPRIGHT:
            shapes = (rows, columns), (rows // 2, columns // 2, 2)
            self._as_stored = [np.empty(shape, np.uint8) for shape in shapes]
        self._narrow: list[NDArray[np.uint8]] = []
        self._kinds: dict[tuple[str, int, int, bool], _Kind] = {}

    def colorimetry(self, frame: Any, said: Said) -> Colorimetry:
        """
        Return the colorimetry of *frame*.

        :raises FormatError: this package can't convert the colorimetry.
        """
        form = self._kind(frame).form
        return colorimetry(
            said,
            rgb=form in _RGB,
            grey=form in _GREY,
            jpeg=form.startswith('yuvj'),
            size=(frame.width, frame.height),
        )

    @staticmethod
    def written(colours: Colorimetry) -> Colorimetry:
        """Return the colorimetry of NV12 planes made from a frame with colorimetry *colours*."""
        return BT601_LIMITED if colours.matrix is Matrix.RGB else colours

    def write(self, frame: Any, colours: Colorimetry, planes: Sequence[NDArray[Any]]) -> None:
        """Write the pixels of *frame* into *planes*."""
        kind = self._kind(frame)
        if kind.converted:
            frame = self._reformatter.reformat(frame, format=kind.form)
        sources = [
            _samples(part, plane, wide=bool(kind.bits))
            for part, plane in zip(kind.parts, frame.planes, strict=False)
        ]
        if kind.bits:
            sources = self._narrowed(sources, kind.bits)
        size = even(frame.width), even(frame.height)
        stored = self._as_stored or planes
        self._writer.write_planes(kind.fourcc, size, colours, sources, stored)
        for source, plane in zip(self._as_stored, planes, strict=False):
            self._turn(source, plane)

    def _kind(self, frame: Any) -> _Kind:
        upside_down = frame.planes[0].line_size < 0
        key = frame.format.name, frame.width, frame.height, upside_down
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = _kind_of(frame, upside_down=upside_down)
        return kind

    def _narrowed(self, sources: list[NDArray[Any]], bits: int) -> list[NDArray[Any]]:
        """Narrow samples to 8 bits, rounded."""
        if [plane.shape for plane in self._narrow] != [plane.shape for plane in sources]:
            self._narrow = [np.empty(plane.shape, np.uint8) for plane in sources]
        for plane, out in zip(sources, self._narrow, strict=True):
            cv2.convertScaleAbs(plane, dst=out, alpha=1 / (1 << (bits - 8)))
        return list(self._narrow)

    def _turn(self, stored: NDArray[Any], out: NDArray[Any]) -> None:
        if self._transposed:
            cv2.transpose(stored, dst=out)
            stored = out
        if self._flip is not None:
            cv2.flip(stored, self._flip, dst=out)


def _samples(part: PlaneArray, plane: Any, *, wide: bool) -> NDArray[Any]:
    """
    Return a plane of PyAV as an array over the plane's memory.

    :param wide: whether its samples have two bytes instead of one.
    """
    scale = 2 if wide else 1
    strides = plane.line_size, *(scale * stride for stride in part.strides[1:])
    samples: NDArray[Any] = np.ndarray(
        part.shape, np.uint16 if wide else part.sample, plane, 0, strides
    )
    return samples


# Use at most this many threads for decoding. They share the slices of one picture, and a picture
# rarely has more slices than this; the detector needs the other CPUs. One picture per thread would
# be faster, but then an error could not be assigned to its picture.
_MOST_THREADS = 4
# No codec delays a picture by more than this many other pictures.
_MOST_REORDERED = 16
# Keep at most this many packets since a key frame; usual videos have key frames more often.
_MOST_SINCE_KEY = 3000
# After this many damaged places in a row, reading ends.
_READ_TRIES = 8
_TOLERANCE_S = 0.2
_MATROSKA_TIME = re.compile(r'(\d+):(\d+):(\d+\.?\d*)')


class Decoded(NamedTuple):
    """
    A decoded frame.

    :param key: the frame's time in the stream's time base; ``None``: the file states no time.
    :param frame: the frame of PyAV; ``None``: the frame is damaged.
    """

    key: int | None
    frame: Any


class VideoFile:
    """
    The frames of a file, from its first frame on.

    To begin again, make a new object.

    :raises ConfigError: the file can't be played.
    """

    def __init__(self, path: str) -> None:
        self._av, self._container, self._stream, self.others = open_video(path)
        self._path = path
        self._codec = self._stream.codec_context
        self._codec.thread_type = 'SLICE'
        self._codec.thread_count = min(_MOST_THREADS, len(os.sched_getaffinity(0)))
        self.codec = str(self._codec.name)
        if self._codec.codec.intra_only or self.codec == 'hevc':
            # By default the decoders of H.265 and of codecs with only key frames return a damaged
            # picture as a good one, with old memory in its missing parts. Other decoders conceal
            # the damage, and mark the picture.
            self._codec.options = {'err_detect': 'explode'}
        # AVI stores no times at which frames are shown, and FFmpeg guesses wrong times for H.264.
        self._by_order = self._container.format.name == 'avi'
        self.unit_s = float(self._stream.time_base)
        self._end: int | None = None
        self._keys: list[int] = []
        self.encrypted = False
        self._source = self._packets()
        self._ahead: deque[Any] = deque()
        self._frames = self._decoded()

    def reformatter(self) -> Any:
        """Return FFmpeg's pixel converter, for frames of any format."""
        return self._av.video.reformatter.VideoReformatter()

    def said(self, frame: Any) -> Said:
        """Return the colour properties that the stream states for a frame."""
        return said_by(frame, self._codec)

    def turn(self, frame: Any) -> Turn:
        """
        Return how *frame*, the first frame, has to be turned; all frames are turned in this way.

        :raises FormatError: the frame's rotation is not a multiple of 90 degrees.
        """
        return turn_of(frame)

    def next(self) -> Decoded | None:  # noqa: A003
        """
        Return the next frame; ``None``: the file has ended.

        If the file doesn't begin with a key frame, the decoder drops the frames before the first
        key frame. These frames count as damaged.

        :raises RecordingError: the rest of the file can't be read.
        """
        return next(self._frames, None)

    def _decoded(self) -> Generator[Decoded, None, None]:
        early: list[int] | None = []
        damaged: list[int] = []
        for packet in self._wanted():
            key = None if packet is None else self._key(packet)
            frames, error = self._decode(packet)
            if early is not None and key is not None:
                early.append(key)
            if error and key is not None and not self._by_order:
                if key not in damaged:
                    insort(damaged, key)
            elif error and packet is not None:
                yield Decoded(key, None)
            for frame in frames:
                shown = self._key(frame)
                if early is not None and shown is not None and not self._by_order:
                    begin = self._stream.start_time or 0
                    damaged = sorted({*damaged, *(k for k in early if begin <= k < shown)})
                early = None
                while damaged and (shown is None or damaged[0] < shown):
                    yield Decoded(damaged.pop(0), None)
                # Some decoders report a picture as damaged, and nevertheless return it later.
                # Such a picture isn't played.
                hit = bool(damaged) and damaged[0] == shown
                if hit:
                    damaged.pop(0)
                yield Decoded(shown, None if hit or frame.is_corrupt else frame)
            while len(damaged) > _MOST_REORDERED:
                yield Decoded(damaged.pop(0), None)
        for key in damaged:
            yield Decoded(key, None)

    def _wanted(self) -> Iterator[Any]:
        """Yield the packets that :meth:`skip` has kept, then those that it has not read."""
        while True:
            while self._ahead:
                yield self._ahead.popleft()
            packet = next(self._source, self)
            if packet is self:
                return
            yield packet

    def skip(self, key: int) -> int | None:
        """
        Leave out all packets before the last key frame that is shown at time *key* or earlier.

        *key* is in the stream's time base.

        :returns: how many packets were left out; ``None``: key frames are missing, or times are
            missing or go back. Then the file must be opened again.
        :raises RecordingError: the file can't be read up to this key frame.
        """
        left_out, latest = 0, -math.inf
        # In an AVI, a frame gets the time of a later packet, up to _MOST_REORDERED packets on.
        delay = _MOST_REORDERED if self._by_order else 0
        for packet in self._source:
            own = None if packet is None else self._key(packet)
            if packet is not None:
                dts = packet.dts
                if own is None or (dts is not None and dts < latest):
                    return None
                latest = latest if dts is None else dts
                if packet.is_keyframe and own <= key - delay:
                    left_out += len(self._ahead)
                    self._ahead.clear()
            self._ahead.append(packet)
            if len(self._ahead) > _MOST_SINCE_KEY:
                return None
            if own is None or own > key:
                break
        if not left_out:
            return 0
        left_out += len(self._decode(None)[0])
        self._codec.flush_buffers()
        # Leave out pictures that are shown before the key frame, too: they refer to those before.
        first = self._key(self._ahead[0]) or 0
        kept = [each for each in self._ahead if each is None or (self._key(each) or 0) >= first]
        left_out += len(self._ahead) - len(kept)
        self._ahead = deque(kept)
        return left_out

    def _packets(self) -> Generator[Any, None, None]:
        """Yield packets with content, then ``None``: the decoder then returns its last frames."""
        tries = 0
        while tries < _READ_TRIES:
            try:
                for packet in self._container.demux(self._stream):
                    if packet.size or packet.dts is not None:
                        tries = 0
                        self._count(packet)
                    if packet.size:
                        yield packet
                break
            except IndexError:
                # PyAV raises IndexError at the end of a file in which a stream appeared after the
                # file was opened.
                break
            except self._av.error.InvalidDataError:
                tries += 1
            except self._av.error.FFmpegError as error:
                raise RecordingError(
                    f"video '{self._path}' can't be read any further: {error.strerror}"
                ) from error
        yield None

    def _count(self, packet: Any) -> None:
        if not self._keys and hasattr(packet, 'has_sidedata'):
            self.encrypted = packet.has_sidedata('encryption_info')
        key = self._key(packet)
        if key is not None:
            self._end = max(self._end or key, key + (packet.duration or 0))
            if len(self._keys) < RATE_FROM:
                self._keys.append(key)

    def _decode(self, packet: Any) -> tuple[list[Any], bool]:
        try:
            return self._codec.decode(packet), False
        except self._av.error.FFmpegError:
            return [], True

    def _key(self, timed: Any) -> int | None:
        """Return the time of a packet or a frame in the stream's time base."""
        key = timed.dts if self._by_order else timed.pts
        return None if key is None else int(key)

    def framerate(self, wanted: float, most: float) -> float:
        """
        Return the frame rate of the file's header, or the rate computed from the frames' times.

        The computed rate is returned if the header names no rate, or a rate that contradicts it.

        :param wanted: the user's rate, returned if the file's rate is above *most*; 0: none given.
        :param most: the highest plausible rate.
        :raises ConfigError: the file's rate is above *most*, and *wanted* is 0.
        """
        for _ in self._packets():
            if len(self._keys) == RATE_FROM:
                break
        named = float(self._stream.average_rate or 0)
        measured = rate_of(round(key * 1e9 * self.unit_s) for key in self._keys)
        # The header's rate is exact if it is a frame rate. In some files it is the rate of a
        # clock, or a mean that includes long pauses.
        near = 0.2 * measured < named < 2.5 * measured
        rate = named if near or (named and len(self._keys) < 2) else measured
        if rate <= most:
            return rate
        if not wanted:
            raise ConfigError(
                f"video '{self._path}' has {rate:g} frames per second by its time stamps, "
                f'{named:g} by its header, and at most {most:g} are plausible; '
                "set parameter 'framerate' to the true rate"
            )
        return wanted

    def shortfall(self, came: int, interval_s: float) -> str:
        """
        Return a sentence if the file ended before its header's duration; else an empty text.

        :param came: number of frames that the file had.
        :param interval_s: seconds between two frames.
        """
        begin = self._stream.start_time or 0
        end_s = ((self._end or begin) - begin) * self.unit_s
        promised, promised_s = self._stream.frames, self._promised_s()
        if promised_s - end_s <= max(_TOLERANCE_S, 1.5 * interval_s):
            return ''
        many = f'{promised} frames in ' if promised else ''
        return (
            f'it ends after {came} frames in {end_s:.4g} s, '
            f'its header promises {many}{promised_s:.4g} s'
        )

    def _promised_s(self) -> float:
        """Return the duration in seconds that the file's header states; 0: it states none."""
        # without times of frames, FFmpeg only guesses the duration from the file's size
        if not self._keys:
            return 0.0
        # in an AVI that was cut off, only the header's number of frames is still right
        if self._by_order:
            return float(self._stream.frames * self.unit_s)
        if self._stream.duration is not None:
            return float(self._stream.duration * self.unit_s)
        for name, value in self._stream.metadata.items():
            end = _MATROSKA_TIME.fullmatch(value) if name.startswith('DURATION') else None
            if end:
                hours, minutes, seconds = (float(part) for part in end.groups())
                begin_s = (self._stream.start_time or 0) * self.unit_s
                return 3600 * hours + 60 * minutes + seconds - begin_s
        # If the file has several streams, its duration may be that of another stream.
        alone = len(self._container.streams) == 1
        return (self._container.duration or 0) / 1e6 if alone else 0.0

    def close(self) -> None:
        """Stop the decoder's threads and close the file. Idempotent."""
        container, self._container = self._container, None
        if container is None:
            return
        self._frames.close()
        self._source.close()
        self._ahead.clear()
        # In old PyAV, call the codec's close(): otherwise its threads run until the garbage
        # collector destroys the codec. Newer PyAV has no such method.
        if hasattr(self._codec, 'close'):
            self._codec.close(False)
        self._codec = self._stream = None
        container.close()


# If more than this many frames at the start can't be decoded, the file counts as unreadable.
_FIRST_TRIES = 1000
# The highest value of parameter 'framerate'.
_MOST_FRAMERATE = 1000.0
_MOST_NAMED = 5
_BEGINS_ANEW_NS = 1_000_000_000


class _Clock:
    """
    Computes the times of frames in ns since the first frame; they never go back.

    If a file's times start again, as in joined recordings, or go on by an hour or more, the
    computed times continue.

    :param unit_s: unit of the file's own times in seconds.
    :param interval_ns: assumed ns between frames without a time.
    """

    def __init__(self, unit_s: float, interval_ns: int) -> None:
        self._unit_ns = unit_s * 1e9
        self._interval_ns = interval_ns
        self._begin: int | None = None
        self._begin_ns = 0
        self._last_ns: int | None = None
        self.pause_ns = 0

    def time_ns(self, key: int | None) -> int:
        """Return the next frame's time; *key* is the time in the file; ``None``: it has none."""
        due_ns = 0 if self._last_ns is None else self._last_ns + self._interval_ns
        if key is not None and self._begin is not None:
            own_ns = self._begin_ns + round((key - self._begin) * self._unit_ns)
            step_ns = 0 if self._last_ns is None else own_ns - self._last_ns
            if -_BEGINS_ANEW_NS < step_ns < LONGEST_PAUSE_NS:
                due_ns = max(own_ns, self._last_ns or 0)
            else:
                self._begin, self.pause_ns = None, max(self.pause_ns, step_ns)
        if key is not None and self._begin is None:
            self._begin, self._begin_ns = key, due_ns
        self._last_ns = due_ns
        return due_ns

    def skipped(self) -> None:
        """Take the next frame's time as it is, because frames before it are left out."""
        self._last_ns = None

    def key(self, time_ns: int) -> int | None:
        """Return the file's own time at *time_ns*; ``None``: no frame had a time in the file."""
        if self._begin is None:
            return None
        return self._begin + math.floor((time_ns - self._begin_ns) / self._unit_ns)


class VideoSource(FrameSource):
    """
    Plays a file's frames at their times, turned upright, in the file's colour matrix and range.

    R, G, B frames and grey frames are converted to BT.601 with limited range. Interlaced frames
    and pixels that are not square stay as they are decoded. An odd last column or row is cut off.

    :param framerate: the user's frames per second; 0: the user gives none.
    :raises ConfigError: the file can't be played; the message says why.
    """

    def __init__(self, path: str, width: int = 0, height: int = 0, framerate: float = 0.0) -> None:
        super().__init__(path, width, height, DEFAULT_FRAMERATE)
        self._frame: Any = None
        self._damaged: list[int] = []
        self._damaged_count = 0
        self._damaged_in_all: int | None = None
        self._shortfall = ''
        self._file = VideoFile(path)
        try:
            self._prepare(self._first_good(), framerate)
            self.restart()
        except BaseException as error:
            self.close()
            if isinstance(error, FormatError):
                raise ConfigError(f"video '{path}' can't be played: {error}") from error
            if isinstance(error, RecordingError):
                raise ConfigError(str(error)) from error
            raise

    def _first_good(self) -> Any:
        for _ in range(_FIRST_TRIES):
            found = self._file.next()
            if self._file.encrypted:
                raise ConfigError(f"video '{self.name}' is encrypted; decrypt it first")
            if found is None:
                break
            if found.frame is not None:
                return found.frame
        raise ConfigError(
            f"video '{self.name}': no frame can be decoded as {self._file.codec}; "
            'the file is damaged or encrypted'
        )

    def _prepare(self, frame: Any, framerate: float) -> None:
        size = frame.width, frame.height
        if min(size) < 2:
            raise ConfigError(
                f"video '{self.name}': its pictures are {size[0]}x{size[1]}; "
                'they must be at least 2x2'
            )
        file = self._file
        self._said, turn = file.said(frame), file.turn(frame)
        upright = size[::-1] if turn[0] == 0 else size
        self.width, self.height = self.width or even(upright[0]), self.height or even(upright[1])
        self._writer = PictureWriter(self.width, self.height, turn, file.reformatter())
        colours = self._writer.colorimetry(frame, self._said)
        self.colorimetry = self._writer.written(colours)
        self._look = _look_of(frame, colours)
        self.framerate = file.framerate(framerate, _MOST_FRAMERATE)

    def _moment(self) -> Moment | None:
        found = self._file.next()
        if found is None:
            self._frame = None
            self._damaged_in_all = self._damaged_count
            self._shortfall = self._file.shortfall(self.number, 1 / self.framerate)
            return None
        self._frame = found.frame
        if found.frame is None:
            self._damaged_count += 1
            if len(self._damaged) < _MOST_NAMED and self.number not in self._damaged:
                self._damaged.append(self.number)
        return Moment(self._clock.time_ns(found.key))

    def read(self, planes: Sequence[NDArray[Any]]) -> bool:
        """
        Write the current frame into *planes*; return ``False`` if it is damaged.

        :raises RecordingError: the frame has another size, rotation or colorimetry than the first
            frame.
        """
        frame = self._frame
        if frame is None:
            return False
        try:
            said = self._file.said(frame).completed(self._said)
            colours = self._writer.colorimetry(frame, said)
        except FormatError as error:
            raise RecordingError(
                f"video '{self.name}': a later frame differs from the first: {error}"
            ) from error
        for before, now in zip(self._look, _look_of(frame, colours), strict=True):
            if now != before:
                raise RecordingError(
                    f"video '{self.name}' changes from {before} to {now}; "
                    "cut it there and play its parts one by one, for example with 'ffmpeg -ss'"
                )
        self._writer.write(frame, colours, planes)
        return True

    def seek(self, offset_ns: int) -> Moment | None:
        """Do as the base class, but decode only from the last key frame before *offset_ns* on."""
        moment = self.advance()
        if moment is None or moment.time_ns >= offset_ns:
            return moment
        key = self._clock.key(offset_ns)
        left_out = None if key is None else self._file.skip(key)
        if left_out is None:
            self.restart()
        else:
            self.number += left_out
            self._clock.skipped()
        return super().seek(offset_ns)

    def restart(self) -> None:
        """Open the file again, because not every container can seek to its exact first frame."""
        super().restart()
        self._frame = None
        self._file.close()
        try:
            self._file = VideoFile(self.name)
        except ConfigError as error:
            raise RecordingError(str(error)) from error
        self._clock = _Clock(self._file.unit_s, round(1e9 / self.framerate))
        self._damaged_count = 0

    def notice(self) -> str:
        found = []
        if self._file.others:
            found.append(
                f'it has {self._file.others + 1} video streams, of which the first is played; '
                "'ffmpeg -i IN -map 0:v:1 -c copy OUT' copies the second into its own file"
            )
        if self._damaged:
            numbers = ', '.join(map(str, self._damaged))
            if self._damaged_in_all is None:
                more = ' and more' if self._damaged_count > len(self._damaged) else ''
            else:
                rest = self._damaged_in_all - len(self._damaged)
                more = f' and {rest} more' if rest > 0 else ''
            found.append(f'damaged frames are left out and counted as bad: frame {numbers}{more}')
        if self._shortfall:
            found.append(self._shortfall)
        if self._clock.pause_ns:
            hours = self._clock.pause_ns / 3.6e12
            found.append(f'it has no frames for {hours:.3g} h; this pause is left out')
        return f"video '{self.name}': {'; '.join(found)}" if found else ''

    def close(self) -> None:
        self._frame = None
        self._file.close()


def _look_of(frame: Any, colours: Colorimetry) -> tuple[str, str, str]:
    """Return texts for size, colours and rotation, which must be equal in all frames."""
    return (
        f'{frame.width}x{frame.height}',
        f'{colours.matrix.value} {colours.range.value}',
        # PyAV's frames lack the attribute rotation before version 14.
        f'a turn by {getattr(frame, "rotation", 0)} degrees',
    )
