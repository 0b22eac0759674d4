"""Raw frames without any header: ``.nv12`` files, whose geometry is in parameters or in a file beside them.

``clip.nv12`` may have a ``clip.nv12.yaml``: ``width``, ``height``; optional ``stride`` (bytes of a luma row, as chroma's; default the
width), ``rows`` (luma rows with padding; default the height), ``framerate``, ``matrix`` (bt601, bt709, bt2020) and ``range`` (limited,
full). A frame is ``stride * rows * 3 / 2`` bytes: the luma rows, then the chroma rows with U and V in turn. ``zc_record`` writes both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import yaml
from numpy.typing import NDArray

from zc_perception.camera.replay.pixels import PlaneWriter
from zc_perception.camera.replay.source import DEFAULT_FRAMERATE, FrameSource, Moment
from zc_perception.errors import ConfigError, LayoutError, RecordingError, nearest
from zc_perception.pixel.colorimetry import BT601_LIMITED, Colorimetry, Matrix, Range
from zc_perception.pixel.fourcc import NV12, pixel_format
from zc_perception.pixel.layout import check_dimensions

SUFFIXES = ('.nv12', '.yuv')
SIDECAR = '.yaml'
_MAX_SIDECAR = 1 << 16
_KEYS = ('width', 'height', 'stride', 'rows', 'framerate', 'matrix', 'range')
_YUV_MATRICES = (Matrix.BT601, Matrix.BT709, Matrix.BT2020)


@dataclass(frozen=True)
class RawGeometry:
    """How the frames of a raw file lie in it; sizes in pixels, strides in bytes."""

    width: int
    height: int
    stride: int
    rows: int
    framerate: float = DEFAULT_FRAMERATE
    colorimetry: Colorimetry = BT601_LIMITED

    @property
    def frame_bytes(self) -> int:
        """Of each frame in the file."""
        return self.stride * self.rows * 3 // 2


def check_geometry(geometry: RawGeometry, source: str) -> None:
    """Refuse what isn't a geometry of NV12.

    :raises ConfigError: names the value and what is allowed.
    """
    try:
        check_dimensions(pixel_format(NV12), geometry.width, geometry.height)
    except LayoutError as error:
        raise ConfigError(f"'{source}': {error}") from error
    for name, value, low in (('stride', geometry.stride, geometry.width), ('rows', geometry.rows, geometry.height)):
        if not low <= value <= 4 * 65536 or value % 2:
            raise ConfigError(f"'{source}': {name} is {value}; it must be an even number from {low} to {4 * 65536}")
    if not (math.isfinite(geometry.framerate) and 0 < geometry.framerate <= 1000):
        raise ConfigError(f"'{source}': framerate is {geometry.framerate}; it must be a number above 0, at most 1000 (Hz)")


def parse_sidecar(text: str, source: str) -> RawGeometry:
    """The geometry in a sidecar's text.

    :raises ConfigError: names file, key, value and what is allowed.
    """
    try:
        found = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ConfigError(f"'{source}' is no YAML: {' '.join(str(error).split())}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"'{source}' has no keys; it must have width and height, and may have {', '.join(_KEYS[2:])}")
    for key in found:
        if key not in _KEYS:
            raise ConfigError(f"'{source}': key '{key}' is unknown{nearest(str(key), _KEYS)}; known are {', '.join(_KEYS)}")
    numbers: dict[str, int] = {}
    for key in ('width', 'height', 'stride', 'rows'):
        default = {'stride': numbers.get('width'), 'rows': numbers.get('height')}.get(key)
        value = found.get(key, default)
        if type(value) is not int:
            raise ConfigError(f"'{source}': {key} is {'missing' if value is None else repr(value)}; it must be an integer")
        numbers[key] = value
    framerate = found.get('framerate', DEFAULT_FRAMERATE)
    if type(framerate) not in (int, float):
        raise ConfigError(f"'{source}': framerate is {framerate!r}; it must be a number")
    matrix, span = (_choice(found, key, values, source) for key, values in (('matrix', _YUV_MATRICES), ('range', tuple(Range))))
    made = RawGeometry(**numbers, framerate=float(framerate), colorimetry=Colorimetry(Matrix(matrix), Range(span)))
    check_geometry(made, source)
    return made


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
        'width': geometry.width, 'height': geometry.height, 'stride': geometry.stride, 'rows': geometry.rows,
        'framerate': geometry.framerate, 'matrix': colorimetry.matrix.value, 'range': colorimetry.range.value,
    }  # fmt: skip
    return str(yaml.safe_dump(values, sort_keys=False))


def raw_geometry(path: str, width: int, height: int) -> RawGeometry:
    """The geometry of a raw file: its sidecar's, or tight frames of *width* × *height*.

    :raises ConfigError: neither is there, or the sidecar can't be used.
    """
    sidecar = Path(path + SIDECAR)
    if sidecar.exists() and not sidecar.is_file():
        raise ConfigError(f"'{sidecar}' is no file; take it away, or write the geometry into a file of that name")
    try:
        with sidecar.open('rb') as file:
            return parse_sidecar(file.read(_MAX_SIDECAR).decode('utf-8'), str(sidecar))
    except FileNotFoundError:
        pass
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"'{sidecar}' can't be read: {error}") from error
    if not width or not height:
        raise ConfigError(f"raw file '{path}' has no geometry: set parameters 'width' and 'height', or write '{sidecar.name}' beside it")
    made = RawGeometry(width, height, width, height)
    check_geometry(made, path)
    return made


class RawSource(FrameSource):
    """Frames of a raw NV12 file, bit by bit.

    :param width: with a sidecar, the size to scale to; without one, the size that the frames have. 0: the sidecar's.
    :param height: likewise.
    :raises ConfigError: the file or its geometry can't be used.
    """

    def __init__(self, path: str, width: int = 0, height: int = 0, framerate: float = 0.0) -> None:
        self._geometry = geometry = raw_geometry(path, width, height)
        super().__init__(path, width or geometry.width, height or geometry.height, framerate or geometry.framerate)
        self.colorimetry = geometry.colorimetry
        self._writer = PlaneWriter(self.width, self.height)
        self._content = np.empty(geometry.frame_bytes, np.uint8)
        size = Path(path).stat().st_size
        self._frames, self._rest = divmod(size, geometry.frame_bytes)
        if not self._frames:
            raise ConfigError(
                f"raw file '{path}' has {size} bytes, less than one frame of {geometry.width}x{geometry.height} "
                f'({geometry.frame_bytes} bytes); check its geometry'
            )
        try:
            self._file: BinaryIO = open(path, 'rb', buffering=0)  # noqa: SIM115 - closed by close()
        except OSError as error:
            raise ConfigError(f"raw file '{path}' can't be read: {error.strerror}") from error
        self._number = -1

    def advance(self) -> Moment | None:
        """See :class:`FrameSource`."""
        if self._number + 1 >= self._frames:
            return None
        self._number += 1
        return Moment(round(self._number * 1e9 / self.framerate))

    def read(self, planes: Sequence[NDArray[Any]]) -> bool:
        """See :class:`FrameSource`.

        :raises RecordingError: the file can't be read.
        """
        geometry, content = self._geometry, self._content
        view, got = content.data, 0
        try:
            self._file.seek(self._number * geometry.frame_bytes)
            while got < len(view):
                count = self._file.readinto(view[got:])  # type: ignore[attr-defined]
                if not count:
                    return False  # the file has been cut meanwhile
                got += count
        except OSError as error:
            raise RecordingError(f"raw file '{self.name}' can't be read: {error.strerror}") from error
        width, height, stride = geometry.width, geometry.height, geometry.stride
        luma = np.ndarray((height, width), np.uint8, content, 0, (stride, 1))
        chroma = np.ndarray((height // 2, width // 2, 2), np.uint8, content, stride * geometry.rows, (stride, 2, 1))
        self._writer.write_nv12(luma, chroma, planes)
        return True

    def restart(self) -> None:
        """See :class:`FrameSource`."""
        self._number = -1

    def notice(self) -> str:
        """See :class:`FrameSource`."""
        return f"'{self.name}' ends within a frame: the last {self._rest} bytes are left out; is the geometry right?" if self._rest else ''

    def close(self) -> None:
        """See :class:`FrameSource`."""
        self._file.close()
