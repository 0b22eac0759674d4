"""Raw frames without any header: ``.nv12`` and ``.yuv`` files.

The frames of a ``.yuv`` file may have any format, so parameter ``pixel_format`` or the file beside
it has to name it. Nothing is guessed: frames of NV12 and of I420, which ffmpeg writes, have the
same number of bytes.

``clip.yuv`` may have a ``clip.yuv.yaml``: ``width``, ``height``; ``format`` (a DRM fourcc or
GStreamer's name, such as YUYV or I420; of ``.nv12`` files NV12 if it is missing); optional
``stride`` (bytes of the first plane's rows; default without padding), ``rows`` (of the first
plane, with padding; default the height), ``framerate``, ``matrix`` (bt601, bt709, bt2020, rgb) and
``range`` (limited, full). A frame's planes follow each other, the strides of later ones in
proportion to the first one's: NV12 has ``stride * rows * 3 / 2`` bytes. ``zc_record`` writes both
for NV12.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import yaml
from numpy.typing import NDArray

from zc_perception.camera.replay.source import (
    DEFAULT_FRAMERATE,
    FrameSource,
    Moment,
    PlaneWriter,
    read_whole,
)
from zc_perception.errors import (
    ConfigError,
    LayoutError,
    RecordingError,
    message_of,
    nearest,
    shown,
)
from zc_perception.pixel.colorimetry import BT601_LIMITED, Colorimetry, Matrix, Range
from zc_perception.pixel.fourcc import NV12, fourcc_name, pixel_format
from zc_perception.pixel.layout import ImageLayout, chained_layout, check_dimensions, views
from zc_perception.pixel.readable import READABLE

SUFFIXES = ('.nv12', '.yuv')
AUTO = 'auto'
SIDECAR = '.yaml'
_MAX_SIDECAR = 1 << 16
_KEYS = ('width', 'height', 'format', 'stride', 'rows', 'framerate', 'matrix', 'range')
_YUV_MATRICES = (Matrix.BT601, Matrix.BT709, Matrix.BT2020)
_MAX_STRIDE, _MAX_ROWS = 1 << 20, 1 << 18
# DRM's names, and GStreamer's: I420 is better known than YU12.
_BY_NAME = {fourcc_name(code).strip(): code for code in READABLE} | {
    name.upper(): code for code in READABLE if (name := pixel_format(code).gstreamer) is not None
}
_PARAMETER = "parameter 'pixel_format'"
_LOWEST_RATE, _HIGHEST_RATE = 1e-3, 1000.0


@dataclass(frozen=True)
class RawGeometry:
    """How the frames of a raw file lie in it; sizes in pixels, strides in bytes."""

    width: int
    height: int
    stride: int
    rows: int
    framerate: float = DEFAULT_FRAMERATE
    colorimetry: Colorimetry = BT601_LIMITED
    fourcc: int = NV12

    @classmethod
    def tight(
        cls, width: int, height: int, framerate: float, colorimetry: Colorimetry
    ) -> RawGeometry:
        """Of NV12 without padding; a rate that a sidecar can't say counts as unknown."""
        rate = framerate if _LOWEST_RATE < framerate <= _HIGHEST_RATE else DEFAULT_FRAMERATE
        return cls(width, height, width, height, rate, colorimetry)

    @cached_property
    def layout(self) -> ImageLayout:
        """Where the planes lie in a frame of the file.

        :raises LayoutError: there is no such layout.
        """
        return chained_layout(self.fourcc, self.width, self.height, self.stride, self.rows)

    @cached_property
    def frame_bytes(self) -> int:
        """Of each frame in the file."""
        last = len(self.layout.planes) - 1
        plane = self.layout.planes[last]
        return plane.offset + plane.stride * self.layout.format.planes[last].rows(self.rows)


def check_geometry(geometry: RawGeometry, source: str) -> None:
    """Refuse what isn't a geometry of the format.

    :raises ConfigError: names the value and what is allowed.
    """
    fmt = pixel_format(geometry.fourcc)
    try:
        check_dimensions(fmt, geometry.width, geometry.height)
        row, shared = fmt.planes[0].row_bytes(geometry.width), fmt.vertical
        if not row <= geometry.stride <= _MAX_STRIDE or (geometry.stride % 2 and fmt.code == NV12):
            kind = 'an even number' if fmt.code == NV12 else 'a number'
            raise ConfigError(
                f"'{source}': stride is {geometry.stride}; it must be {kind} from {row} to {_MAX_STRIDE}"
            )
        if not geometry.height <= geometry.rows <= _MAX_ROWS or geometry.rows % shared:
            kind = 'an even number' if shared == 2 else 'a number'
            raise ConfigError(
                f"'{source}': rows is {geometry.rows}; it must be {kind} from {geometry.height} to {_MAX_ROWS}"
            )
        chained_layout(
            geometry.fourcc, geometry.width, geometry.height, geometry.stride, geometry.rows
        )
    except LayoutError as error:
        raise ConfigError(f"'{source}': {error}") from error
    if not (math.isfinite(geometry.framerate) and 0 < geometry.framerate <= _HIGHEST_RATE):
        raise ConfigError(
            f"'{source}': framerate is {geometry.framerate}; it must be a number above 0, at most 1000 (Hz)"
        )


def parse_sidecar(text: str, source: str, fourcc: int | None = NV12) -> RawGeometry:
    """The geometry in a sidecar's text.

    :param fourcc: of the format where the text has none; ``None``: it has to have one.
    :raises ConfigError: names file, key, value and what is allowed.
    """
    try:
        found = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ConfigError(f"'{source}' is no YAML: {message_of(error)}") from error
    if not isinstance(found, dict):
        raise ConfigError(
            f"'{source}' has no keys; it must have width and height, and may have {', '.join(_KEYS[2:])}"
        )
    for key in found:
        if key not in _KEYS:
            raise ConfigError(
                f"'{source}': key '{key}' is unknown{nearest(str(key), _KEYS)}; known are {', '.join(_KEYS)}"
            )
    if 'format' in found:
        fourcc = _format(found['format'], f"'{source}': format")
    elif fourcc is None:
        raise ConfigError(f"'{source}': format is missing; it must be one of {_names(READABLE)}")
    numbers: dict[str, int] = {}
    for key in ('width', 'height', 'stride', 'rows'):
        width = numbers.get('width')
        default = {
            'stride': width and pixel_format(fourcc).planes[0].row_bytes(width),
            'rows': numbers.get('height'),
        }.get(key)
        value = found.get(key, default)
        if type(value) is not int:
            raise ConfigError(
                f"'{source}': {key} is {'missing' if value is None else repr(value)}; it must be an integer"
            )
        numbers[key] = value
    framerate = found.get('framerate', DEFAULT_FRAMERATE)
    if type(framerate) not in (int, float):
        raise ConfigError(f"'{source}': framerate is {framerate!r}; it must be a number")
    matrices, spans = (
        (_YUV_MATRICES, tuple(Range))
        if pixel_format(fourcc).is_yuv
        else ((Matrix.RGB,), tuple(Range)[::-1])
    )
    matrix, span = (
        _choice(found, key, values, source)
        for key, values in (('matrix', matrices), ('range', spans))
    )
    made = RawGeometry(
        **numbers,
        framerate=float(framerate),
        colorimetry=Colorimetry(Matrix(matrix), Range(span)),
        fourcc=fourcc,
    )
    check_geometry(made, source)
    return made


def _format(name: object, what: str) -> int:
    """The DRM fourcc of a format that can be read.

    :param what: has the value, for messages.
    """
    found = _BY_NAME.get(str(name).upper())
    if found is None:
        raise ConfigError(
            f'{what} is {shown(name)}{nearest(str(name).upper(), _BY_NAME)}; '
            f'it must be one of {_names(READABLE)}'
        )
    return found


def _names(fourccs: Iterable[int]) -> str:
    return ', '.join(fourcc_name(code).strip() for code in fourccs)


def _choice(found: dict[Any, Any], key: str, values: Sequence[Any], source: str) -> Any:
    names = [value.value for value in values]
    value = found.get(key, names[0])
    if value not in names:
        raise ConfigError(f"'{source}': {key} is {value!r}; it must be one of {', '.join(names)}")
    return value


def format_sidecar(geometry: RawGeometry) -> str:
    """The text that :func:`parse_sidecar` reads."""
    colorimetry = geometry.colorimetry
    values = {
        'width': geometry.width, 'height': geometry.height, 'format': fourcc_name(geometry.fourcc).strip(),
        'stride': geometry.stride, 'rows': geometry.rows, 'framerate': geometry.framerate,
        'matrix': colorimetry.matrix.value, 'range': colorimetry.range.value,
    }  # fmt: skip
    return str(yaml.safe_dump(values, sort_keys=False))


def raw_geometry(path: str, width: int, height: int, name: str = AUTO) -> RawGeometry:
    """The geometry of a raw file: its sidecar's, or tight frames of *width* × *height*.

    :param name: of the format; :data:`AUTO`: the sidecar has it, or the file ends in .nv12.
    :raises ConfigError: one of them is missing, or they disagree, or the sidecar can't be used.
    """
    wanted = None if name == AUTO else _format(name, _PARAMETER)
    own = NV12 if Path(path).suffix.lower() == '.nv12' else None
    sidecar = Path(path + SIDECAR)
    text = _text_of(sidecar)
    if text is not None:
        made, says = parse_sidecar(text, str(sidecar), own or wanted), sidecar
    else:
        made, says = _tight(path, width, height, own or wanted), Path(path)
    if wanted not in (None, made.fourcc):
        raise ConfigError(
            f"{_PARAMETER} is '{name}', but '{says}' is of {_names([made.fourcc])}; "
            f"set it to auto, or write the right format into '{sidecar}'"
        )
    return made


def _text_of(sidecar: Path) -> str | None:
    """``None``: there is no such file."""
    if sidecar.exists() and not sidecar.is_file():
        raise ConfigError(
            f"'{sidecar}' is no file; take it away, or write the geometry into a file of that name"
        )
    try:
        with sidecar.open('rb') as file:
            return file.read(_MAX_SIDECAR).decode('utf-8')
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"'{sidecar}' can't be read: {error}") from error


def _tight(path: str, width: int, height: int, fourcc: int | None) -> RawGeometry:
    beside = f"or write '{Path(path).name}{SIDECAR}' beside it"
    if not width or not height:
        raise ConfigError(
            f"raw file '{path}' has no geometry: set parameters 'width' and 'height', {beside}"
        )
    if fourcc is None:
        raise ConfigError(
            f"raw file '{path}' does not say its format: set {_PARAMETER} to YU12 (I420, ffmpeg's "
            f'yuv420p), NV12 or what else it is ({_names(READABLE)}), {beside}'
        )
    fmt = pixel_format(fourcc)
    colorimetry = BT601_LIMITED if fmt.is_yuv else Colorimetry(Matrix.RGB, Range.FULL)
    made = RawGeometry(
        width,
        height,
        fmt.planes[0].row_bytes(width),
        height,
        colorimetry=colorimetry,
        fourcc=fourcc,
    )
    check_geometry(made, path)
    return made


class RawSource(FrameSource):
    """Frames of a raw file, bit by bit. Those that are scaled become NV12.

    With a sidecar, width and height are the size to scale to; without one, the size that the frames have.

    :param name: of the format, see :func:`raw_geometry`.
    :raises ConfigError: the geometry can't be used, or without a sidecar the file is no whole
        number of frames.
    """

    def __init__(
        self, path: str, width: int = 0, height: int = 0, framerate: float = 0.0, name: str = AUTO
    ) -> None:
        self._geometry = geometry = raw_geometry(path, width, height, name)
        super().__init__(
            path,
            width or geometry.width,
            height or geometry.height,
            framerate or geometry.framerate,
        )
        self.colorimetry, self._layout = geometry.colorimetry, geometry.layout
        scaled = (self.width, self.height) != (geometry.width, geometry.height)
        self._writer = PlaneWriter(self.width, self.height) if scaled else None
        if not scaled:
            self.fourcc = geometry.fourcc
        elif not pixel_format(geometry.fourcc).is_yuv:
            self.colorimetry = BT601_LIMITED
        self._content = np.empty(geometry.frame_bytes, np.uint8)
        size = Path(path).stat().st_size
        self._frames, self._rest = divmod(size, geometry.frame_bytes)
        frame = (
            f'{geometry.width}x{geometry.height} {_names([geometry.fourcc])} '
            f'({geometry.frame_bytes} bytes)'
        )
        if not self._frames:
            raise ConfigError(
                f"raw file '{path}' has {size} bytes, less than one frame of {frame}; "
                'check its geometry'
            )
        self._size = (
            f"'{path}' has {size} bytes: {self._frames} frames of {frame} and {self._rest} bytes"
        )
        if self._rest and not os.path.exists(path + SIDECAR):
            whole = size - self._rest
            raise ConfigError(
                f'raw file {self._size}; check width, height and format, or cut the rest off: '
                f"truncate -s {whole} '{path}'"
            )
        try:
            self._file: BinaryIO = open(path, 'rb', buffering=0)  # noqa: SIM115 - closed by close()
        except OSError as error:
            raise ConfigError(f"raw file '{path}' can't be read: {error.strerror}") from error

    def _moment(self) -> Moment | None:
        return self._nominal() if self.number < self._frames else None

    def read(self, planes: Sequence[NDArray[Any]]) -> bool:
        """:raises RecordingError: the file can't be read."""
        geometry, content = self._geometry, self._content
        try:
            self._file.seek(self.number * geometry.frame_bytes)
            if not read_whole(self._file, content):
                return False  # the file has been cut meanwhile
        except OSError as error:
            raise RecordingError(
                f"raw file '{self.name}' can't be read: {error.strerror}"
            ) from error
        sources = views(self._layout, content)
        if self._writer is not None:
            size = geometry.width, geometry.height
            self._writer.write_planes(geometry.fourcc, size, geometry.colorimetry, sources, planes)
        else:
            for plane, target in zip(sources, planes, strict=True):
                np.copyto(target, plane)
        return True

    def notice(self) -> str:
        return f'{self._size}, which are left out; is the geometry right?' if self._rest else ''

    def close(self) -> None:
        self._file.close()
