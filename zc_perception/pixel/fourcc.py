"""DRM fourccs: the one vocabulary for pixel formats.

Source: the kernel's ``include/uapi/drm/drm_fourcc.h`` for codes and memory order, ``videodev2.h`` for V4L2's names. A DRM name
lists components from the most to the least significant bits of a little-endian word, so DRM ``RG24`` is the memory order
B, G, R, which V4L2 calls ``BGR3`` and ROS ``bgr8``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from zc_perception.errors import FormatError, nearest


def fourcc_code(name: str) -> int:
    """The 32-bit little-endian code of a four-character name, as ``fourcc_code()`` of drm_fourcc.h."""
    if len(name) != 4 or not name.isascii():
        raise FormatError(f"fourcc '{name}' must be four ASCII characters, such as 'NV12'")
    return int.from_bytes(name.encode('ascii'), 'little')


def fourcc_name(code: int) -> str:
    """The four characters of *code*; unprintable ones as ``?``."""
    raw = (code & 0xFFFFFFFF).to_bytes(4, 'little')
    return ''.join(chr(b) if 32 <= b < 127 else '?' for b in raw)


@dataclass(frozen=True)
class PlaneFormat:
    """One plane of a format.

    One *element* of ``element_bytes`` bytes covers ``horizontal`` × ``vertical`` image pixels: NV12's chroma plane has one
    2-byte element (U, V) for 2×2 pixels, YUYV's only plane one 4-byte element for 2×1.
    """

    element_bytes: int
    horizontal: int = 1
    vertical: int = 1

    def row_bytes(self, width: int) -> int:
        """Bytes of one row's significant samples for an image *width* pixels wide."""
        return -(-width // self.horizontal) * self.element_bytes

    def rows(self, height: int) -> int:
        """Rows of the plane for an image *height* pixels high."""
        return -(-height // self.vertical)


@dataclass(frozen=True)
class PixelFormat:
    """A DRM format and the same format's names elsewhere (``None`` where there is none)."""

    name: str
    planes: tuple[PlaneFormat, ...]
    bits: int = 8
    v4l2: str | None = None
    v4l2_multiplanar: str | None = None
    gstreamer: str | None = None
    ros: str | None = None
    code: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, 'code', fourcc_code(self.name))

    @property
    def horizontal(self) -> int:
        """Widths must be a multiple of this (2 for 4:2:0 and 4:2:2)."""
        return max(p.horizontal for p in self.planes)

    @property
    def vertical(self) -> int:
        """Heights must be a multiple of this (2 for 4:2:0)."""
        return max(p.vertical for p in self.planes)


def _planes(*planes: tuple[int, int, int]) -> tuple[PlaneFormat, ...]:
    return tuple(PlaneFormat(*p) for p in planes)


_TABLE = (
    PixelFormat('NV12', _planes((1, 1, 1), (2, 2, 2)), v4l2='NV12', v4l2_multiplanar='NM12', gstreamer='NV12', ros='nv12'),
    PixelFormat('NV21', _planes((1, 1, 1), (2, 2, 2)), v4l2='NV21', v4l2_multiplanar='NM21', gstreamer='NV21', ros='nv21'),
    PixelFormat('NV16', _planes((1, 1, 1), (2, 2, 1)), v4l2='NV16', v4l2_multiplanar='NM16', gstreamer='NV16'),
    PixelFormat('NV24', _planes((1, 1, 1), (2, 1, 1)), v4l2='NV24', gstreamer='NV24', ros='nv24'),
    PixelFormat('P010', _planes((2, 1, 1), (4, 2, 2)), bits=10, v4l2='P010', gstreamer='P010_10LE'),
    PixelFormat('YUYV', _planes((4, 2, 1)), v4l2='YUYV', gstreamer='YUY2', ros='yuyv'),
    PixelFormat('UYVY', _planes((4, 2, 1)), v4l2='UYVY', gstreamer='UYVY', ros='uyvy'),
    PixelFormat('YU12', _planes((1, 1, 1), (1, 2, 2), (1, 2, 2)), v4l2='YU12', v4l2_multiplanar='YM12', gstreamer='I420'),
    PixelFormat('YV12', _planes((1, 1, 1), (1, 2, 2), (1, 2, 2)), v4l2='YV12', v4l2_multiplanar='YM21', gstreamer='YV12'),
    PixelFormat('R8  ', _planes((1, 1, 1)), v4l2='GREY', gstreamer='GRAY8', ros='mono8'),
    PixelFormat('RG24', _planes((3, 1, 1)), v4l2='BGR3', gstreamer='BGR', ros='bgr8'),
    PixelFormat('BG24', _planes((3, 1, 1)), v4l2='RGB3', gstreamer='RGB', ros='rgb8'),
    PixelFormat('XR24', _planes((4, 1, 1)), v4l2='XR24', gstreamer='BGRx'),
    PixelFormat('AR24', _planes((4, 1, 1)), v4l2='AR24', gstreamer='BGRA', ros='bgra8'),
    PixelFormat('XB24', _planes((4, 1, 1)), v4l2='XB24', gstreamer='RGBx'),
    PixelFormat('AB24', _planes((4, 1, 1)), v4l2='AB24', gstreamer='RGBA', ros='rgba8'),
    PixelFormat('RG16', _planes((2, 1, 1)), v4l2='RGBP', gstreamer='RGB16'),
)
FORMATS: dict[int, PixelFormat] = {f.code: f for f in _TABLE}
NV12 = fourcc_code('NV12')


def pixel_format(code: int) -> PixelFormat:
    """The table's entry for a DRM fourcc.

    :raises FormatError: the code isn't in the table.
    """
    try:
        return FORMATS[code]
    except KeyError:
        known = ', '.join(f.name.strip() for f in _TABLE)
        raise FormatError(f"pixel format '{fourcc_name(code)}' (0x{code:08x}) is not known; known are {known}") from None


def format_by_name(name: str) -> PixelFormat:
    """The entry for a fourcc's name, upper case, such as ``NV12``.

    :raises FormatError: no such format; the nearest name is suggested.
    """
    for entry in _TABLE:
        if entry.name.strip() == name:
            return entry
    raise FormatError(f"pixel format '{name}' is not known{nearest(name, [f.name.strip() for f in _TABLE])}")
