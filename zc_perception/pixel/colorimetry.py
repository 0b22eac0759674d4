"""What the numbers in the planes stand for: matrix, range, transfer.

NV12 and NvBufSurface's NV12_ER differ in nothing but the range, and pictures look washed out when it is taken for granted.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Matrix(Enum):
    """Which Y'CbCr matrix (ITU-R recommendation)."""

    BT601 = 'bt601'
    BT709 = 'bt709'
    BT2020 = 'bt2020'


class Range(Enum):
    """LIMITED: luma 16..235, chroma 16..240. FULL: 0..255 (``_ER`` in NvBufSurface)."""

    LIMITED = 'limited'
    FULL = 'full'


class Transfer(Enum):
    """The transfer function of the samples."""

    BT709 = 'bt709'
    SRGB = 'srgb'


@dataclass(frozen=True)
class Colorimetry:
    """Colorimetry of one image; travels with every frame."""

    matrix: Matrix
    range: Range
    transfer: Transfer = Transfer.BT709


BT601_LIMITED = Colorimetry(Matrix.BT601, Range.LIMITED)
