"""The virtual Metis's result, and what it should be for given pixels, computed a second time.

The layout and the detector are specified in ``module/axl_virtual.h``; this is written from that text,
in another language and with other algorithms than ``module/axl_pixels.c``, so that a mistake in one of
them shows. Standard library alone: it also runs in the guest.
"""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

MAGIC = int.from_bytes(b'AXLR', 'little')
VERSION = 1
MAX_BOXES = 64
BRIGHT = 0
DARK = 1

_BLOCK = 16
_THRESHOLD = 32
_MIN_BLOCKS = 2


class VirtualResult(ctypes.LittleEndianStructure):
    """``struct axl_virtual_result``."""

    _fields_ = (
        ('magic', ctypes.c_uint32),
        ('version', ctypes.c_uint32),
        ('seqno', ctypes.c_uint64),
        ('width', ctypes.c_uint32),
        ('height', ctypes.c_uint32),
        ('fourcc', ctypes.c_uint32),
        ('num_planes', ctypes.c_uint32),
        ('crc32', ctypes.c_uint32 * 4),
        ('model_id', ctypes.c_uint32),
        ('num_boxes', ctypes.c_uint32),
        ('boxes', ctypes.c_int16 * 6 * MAX_BOXES),
    )

    @classmethod
    def of_job(cls, job: Any, size: int) -> VirtualResult:
        """Return what the device wrote for a job of accelerator axl that has ended: so many bytes of it, the rest is zero."""
        job.outputs()  # begins the CPU's access, which lasts until the job is closed
        written = bytes(job._result.buffer.memory()[:size])
        return cls.from_buffer_copy(written.ljust(ctypes.sizeof(cls), b'\0'))

    def crcs(self) -> list[int]:
        """Return the CRC of each plane."""
        return list(self.crc32[: self.num_planes])

    def found(self) -> list[tuple[int, ...]]:
        """Return the boxes as (x0, y0, x1, y1, score, class)."""
        return [tuple(box) for box in self.boxes[: self.num_boxes]]


@dataclass(frozen=True)
class PlaneShape:
    """One plane of a format: bytes per sample, and pixels per sample both ways."""

    sample_bytes: int
    horizontal: int = 1
    vertical: int = 1

    def row_bytes(self, width: int) -> int:
        """Return the significant bytes of a row."""
        return -(-width // self.horizontal) * self.sample_bytes

    def rows(self, height: int) -> int:
        """Return the number of rows."""
        return -(-height // self.vertical)


def fourcc(text: str) -> int:
    """Return the DRM code of a four-letter name; shorter names are padded."""
    return int.from_bytes(text.ljust(4).encode('ascii'), 'little')


_Y = PlaneShape(1)

#: What the virtual device imports, all of it linear.
FORMATS: dict[str, tuple[PlaneShape, ...]] = {
    'NV12': (_Y, PlaneShape(2, 2, 2)),
    'NV21': (_Y, PlaneShape(2, 2, 2)),
    'NV16': (_Y, PlaneShape(2, 2, 1)),
    'YU12': (_Y, PlaneShape(1, 2, 2), PlaneShape(1, 2, 2)),
    'YUYV': (PlaneShape(4, 2),),
    'RG24': (PlaneShape(3),),
    'BG24': (PlaneShape(3),),
    'R8': (_Y,),
}


@dataclass(frozen=True)
class PlanePixels:
    """Bytes that hold a plane, and where in them it lies."""

    data: bytes
    stride: int
    offset: int = 0

    def rows(self, shape: PlaneShape, width: int, height: int) -> list[bytes]:
        """Return the significant bytes, row by row."""
        length = shape.row_bytes(width)
        starts = range(self.offset, self.offset + shape.rows(height) * self.stride, self.stride)
        return [self.data[start : start + length] for start in starts]


def expected_crcs(format_name: str, width: int, height: int, planes: Sequence[PlanePixels]) -> list[int]:
    """Return the CRC that the device must find in each plane."""
    shapes = FORMATS[format_name]
    return [zlib.crc32(b''.join(plane.rows(shape, width, height))) for shape, plane in zip(shapes, planes, strict=True)]


def expected_boxes(format_name: str, width: int, height: int, plane: PlanePixels) -> list[tuple[int, ...]]:
    """Return the boxes that the device must find, given the plane that holds the luma."""
    columns, rows = width // _BLOCK, height // _BLOCK
    if not columns or not rows:
        return []
    sums = _block_sums(format_name, width, height, plane)
    mean = sum(sums.values()) // (_BLOCK * _BLOCK * columns * rows)
    classes: dict[tuple[int, int], int] = {}
    for place, total in sums.items():
        if total // (_BLOCK * _BLOCK) >= mean + _THRESHOLD:
            classes[place] = BRIGHT
        elif total // (_BLOCK * _BLOCK) + _THRESHOLD <= mean:
            classes[place] = DARK
    boxes = [_box(blob, classes, sums, mean) for blob in _blobs(classes) if len(blob) >= _MIN_BLOCKS]
    return boxes[:MAX_BOXES]


def _block_sums(format_name: str, width: int, height: int, plane: PlanePixels) -> dict[tuple[int, int], int]:
    """Return the luma of each whole block by (row, column)."""
    sums = dict.fromkeys(((y, x) for y in range(height // _BLOCK) for x in range(width // _BLOCK)), 0)
    for y, row in enumerate(plane.rows(FORMATS[format_name][0], width, height)):
        if y // _BLOCK >= height // _BLOCK:
            break
        luma = _luma(format_name, row)
        for column in range(width // _BLOCK):
            sums[y // _BLOCK, column] += sum(luma[column * _BLOCK : (column + 1) * _BLOCK])
    return sums


def _luma(format_name: str, row: bytes) -> Sequence[int]:
    if format_name == 'YUYV':
        return row[::2]
    if format_name in ('RG24', 'BG24'):
        # The names are those of a little-endian word: RG24 lies as B, G, R.
        first, green, last = row[::3], row[1::3], row[2::3]
        red, blue = (last, first) if format_name == 'RG24' else (first, last)
        return [(77 * r + 150 * g + 29 * b) >> 8 for r, g, b in zip(red, green, blue, strict=True)]
    return row


def _blobs(classes: dict[tuple[int, int], int]) -> list[set[tuple[int, int]]]:
    """Return the sets of touching blocks of a class, ordered by their first block."""
    blobs: list[set[tuple[int, int]]] = []
    for place in sorted(classes):
        y, x = place
        touching = [
            blob for blob in blobs for neighbour in ((y - 1, x), (y, x - 1)) if neighbour in blob and classes[neighbour] == classes[place]
        ]
        merged = {place}.union(*touching)
        blobs = [blob for blob in blobs if not any(blob is other for other in touching)]
        blobs.append(merged)
    return sorted(blobs, key=min)


def _box(blob: set[tuple[int, int]], classes: dict[tuple[int, int], int], sums: dict[tuple[int, int], int], mean: int) -> tuple[int, ...]:
    level = sum(sums[place] for place in blob) // (_BLOCK * _BLOCK * len(blob))
    rows, columns = [y for y, _ in blob], [x for _, x in blob]
    return (
        min(columns) * _BLOCK,
        min(rows) * _BLOCK,
        (max(columns) + 1) * _BLOCK,
        (max(rows) + 1) * _BLOCK,
        abs(level - mean) * 32767 // 255,
        classes[min(blob)],
    )
