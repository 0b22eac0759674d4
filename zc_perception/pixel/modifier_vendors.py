"""The vendors' modifiers of ``drm_fourcc.h``: plain constants, and families whose bits are parameters.

One table of bit fields serves both ways, so that what can be written can also be read. Bits that the header reserves make a
modifier unknown to us rather than nearly known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from zc_perception.errors import FormatError

_VALUE_BITS = 56
VALUE_MASK = (1 << _VALUE_BITS) - 1


class Vendor(IntEnum):
    """The top eight bits. MTK and APPLE are younger than many installed headers (Linux 6.14 and 6.15)."""

    NONE = 0x00
    INTEL = 0x01
    AMD = 0x02
    NVIDIA = 0x03
    SAMSUNG = 0x04
    QCOM = 0x05
    VIVANTE = 0x06
    BROADCOM = 0x07
    ARM = 0x08
    ALLWINNER = 0x09
    AMLOGIC = 0x0A
    MTK = 0x0B
    APPLE = 0x0C


def modifier_code(vendor: int, value: int) -> int:
    """The modifier of a vendor and its 56-bit value, as ``fourcc_mod_code()``.

    :raises FormatError: a part is out of its range.
    """
    if not 0 <= vendor < 256 or not 0 <= value <= VALUE_MASK:
        raise FormatError(f'modifier vendor {vendor:#x} must fit 8 bits and its value {value:#x} must fit {_VALUE_BITS}')
    return int(vendor) << _VALUE_BITS | value


class KnownModifier(IntEnum):
    """Modifiers without parameters. Named as in the header, after ``DRM_FORMAT_MOD_``, or ``I915_FORMAT_MOD_`` for Intel's."""

    INTEL_X_TILED = 0x01 << 56 | 1
    INTEL_Y_TILED = 0x01 << 56 | 2
    INTEL_Yf_TILED = 0x01 << 56 | 3
    INTEL_Y_TILED_CCS = 0x01 << 56 | 4
    INTEL_Yf_TILED_CCS = 0x01 << 56 | 5
    INTEL_Y_TILED_GEN12_RC_CCS = 0x01 << 56 | 6
    INTEL_Y_TILED_GEN12_MC_CCS = 0x01 << 56 | 7
    INTEL_Y_TILED_GEN12_RC_CCS_CC = 0x01 << 56 | 8
    INTEL_4_TILED = 0x01 << 56 | 9
    INTEL_4_TILED_DG2_RC_CCS = 0x01 << 56 | 10
    INTEL_4_TILED_DG2_MC_CCS = 0x01 << 56 | 11
    INTEL_4_TILED_DG2_RC_CCS_CC = 0x01 << 56 | 12
    INTEL_4_TILED_MTL_RC_CCS = 0x01 << 56 | 13
    INTEL_4_TILED_MTL_MC_CCS = 0x01 << 56 | 14
    INTEL_4_TILED_MTL_RC_CCS_CC = 0x01 << 56 | 15
    INTEL_4_TILED_LNL_CCS = 0x01 << 56 | 16
    INTEL_4_TILED_BMG_CCS = 0x01 << 56 | 17
    NVIDIA_TEGRA_TILED = 0x03 << 56 | 1
    SAMSUNG_64_32_TILE = 0x04 << 56 | 1
    SAMSUNG_16_16_TILE = 0x04 << 56 | 2
    QCOM_COMPRESSED = 0x05 << 56 | 1
    QCOM_TILED2 = 0x05 << 56 | 2
    QCOM_TILED3 = 0x05 << 56 | 3
    VIVANTE_TILED = 0x06 << 56 | 1
    VIVANTE_SUPER_TILED = 0x06 << 56 | 2
    VIVANTE_SPLIT_TILED = 0x06 << 56 | 3
    VIVANTE_SPLIT_SUPER_TILED = 0x06 << 56 | 4
    BROADCOM_VC4_T_TILED = 0x07 << 56 | 1
    BROADCOM_UIF = 0x07 << 56 | 6
    ARM_16X16_BLOCK_U_INTERLEAVED = 0x08 << 56 | 1 << 52 | 1
    ALLWINNER_TILED = 0x09 << 56 | 1
    MTK_16L_32S_TILE = 0x0B << 56 | 1
    APPLE_GPU_TILED = 0x0C << 56 | 1
    APPLE_GPU_TILED_COMPRESSED = 0x0C << 56 | 2


KNOWN: dict[int, KnownModifier] = {int(m): m for m in KnownModifier}


@dataclass(frozen=True)
class BitField:
    """One parameter. With *meanings*, other values than those are reserved."""

    name: str
    shift: int
    bits: int = 1
    meanings: Mapping[int, str] = field(default_factory=dict)

    @property
    def mask(self) -> int:
        """The field's bits in the modifier's value."""
        return ((1 << self.bits) - 1) << self.shift

    def allows(self, number: int) -> bool:
        """Whether the field can hold *number*."""
        return number in self.meanings if self.meanings else 0 <= number < 1 << self.bits

    def range(self) -> str:
        """What is allowed, for messages."""
        return ', '.join(f'{k} ({v})' for k, v in self.meanings.items()) if self.meanings else f'0 .. {(1 << self.bits) - 1}'


@dataclass(frozen=True)
class Family:
    """Modifiers of one vendor that differ in their parameters only; *base* are the bits that all of them have."""

    name: str
    vendor: Vendor
    base: int
    fields: tuple[BitField, ...]

    def encode(self, **parameters: int) -> int:
        """The modifier with *parameters*; those left out are zero.

        :raises FormatError: an unknown parameter, or a value that its bits can't hold or the header reserves.
        """
        by_name = {f.name: f for f in self.fields}
        if unknown := parameters.keys() - by_name.keys():
            raise FormatError(f'{self.vendor.name} {self.name} has no {", ".join(sorted(unknown))}; it has {", ".join(by_name)}')
        value = self.base
        for bits in self.fields:
            number = int(parameters.get(bits.name, 0))
            if not bits.allows(number):
                raise FormatError(f'{self.vendor.name} {self.name}: {bits.name} {number} is not one of {bits.range()}')
            value |= number << bits.shift
        return modifier_code(self.vendor, value)

    def decode(self, modifier: int) -> dict[str, int] | None:
        """The parameters of *modifier*, or ``None`` when it is none of this family or has reserved bits set."""
        if modifier >> _VALUE_BITS != self.vendor:
            return None
        value = modifier & VALUE_MASK
        parameters = {}
        for bits in self.fields:
            number = (value & bits.mask) >> bits.shift
            if not bits.allows(number):
                return None
            parameters[bits.name] = number
            value &= ~bits.mask
        return parameters if value == self.base else None


NVIDIA_BLOCK_LINEAR_2D = Family('BLOCK_LINEAR_2D', Vendor.NVIDIA, 0x10, (
    BitField('height_log2', 0, 4),  # GOBs in a block, one on the other
    BitField('kind', 12, 8),  # page kind, as in the GPU's page tables
    BitField('generation', 20, 2, {0: 'Fermi to Volta, Tegra K1 and later', 1: 'G80 to GT2xx', 2: 'Turing and later'}),
    BitField('sector_layout', 22, 1, {0: 'Tegra K1 to Parker', 1: 'desktop and Xavier and later'}),
    BitField('compression', 23, 3, {0: 'none', 1: 'ROP/3D 1', 2: 'ROP/3D 2', 3: 'CDE horizontal', 4: 'CDE vertical'}),
))  # fmt: skip
_COLUMN_HEIGHT = (BitField('column_height', 8, 48),)
BROADCOM_SAND32 = Family('SAND32', Vendor.BROADCOM, 2, _COLUMN_HEIGHT)
BROADCOM_SAND64 = Family('SAND64', Vendor.BROADCOM, 3, _COLUMN_HEIGHT)
BROADCOM_SAND128 = Family('SAND128', Vendor.BROADCOM, 4, _COLUMN_HEIGHT)
BROADCOM_SAND256 = Family('SAND256', Vendor.BROADCOM, 5, _COLUMN_HEIGHT)
ARM_AFBC = Family('AFBC', Vendor.ARM, 0, (
    BitField('block_size', 0, 4, {1: '16x16', 2: '32x8', 3: '64x4', 4: '32x8 luma, 64x4 chroma'}),
    BitField('ytr', 4), BitField('split', 5), BitField('sparse', 6), BitField('cbr', 7), BitField('tiled', 8), BitField('sc', 9),
    BitField('db', 10), BitField('bch', 11), BitField('usm', 12),
))  # fmt: skip
_CODING_UNIT = {1: '16 bytes', 2: '24 bytes', 3: '32 bytes'}
ARM_AFRC = Family('AFRC', Vendor.ARM, 2 << 52, (
    BitField('cu_size_p0', 0, 4, _CODING_UNIT),
    BitField('cu_size_p12', 4, 4, {0: 'one plane only'} | _CODING_UNIT),
    BitField('scan', 8, 1, {0: 'rotation layout', 1: 'scanline layout'}),
))  # fmt: skip
AMLOGIC_FBC = Family('FBC', Vendor.AMLOGIC, 0, (
    BitField('layout', 0, 8, {1: 'basic', 2: 'scatter'}),
    BitField('mem_saving', 8),
))  # fmt: skip
MTK_TILED = Family('TILED', Vendor.MTK, 0, (
    BitField('tile', 0, 4, {0: 'none', 1: '16L32S'}),
    BitField('compression', 8, 4, {0: 'none', 1: 'v1'}),
    BitField('layout_10bit', 16, 4, {0: 'packed', 1: 'LSB tiled', 2: 'LSB raster'}),
))  # fmt: skip
_TILE_STATUS = (
    BitField('ts', 48, 4, {0: 'none', 1: '64_4', 2: '64_2', 3: '128_4', 4: '256_4'}),
    BitField('compression', 52, 4, {0: 'none', 1: 'DEC400'}),
)
VIVANTE_TILINGS = (
    Family('TILED', Vendor.VIVANTE, 1, _TILE_STATUS),
    Family('SUPER_TILED', Vendor.VIVANTE, 2, _TILE_STATUS),
    Family('SPLIT_TILED', Vendor.VIVANTE, 3, _TILE_STATUS),
    Family('SPLIT_SUPER_TILED', Vendor.VIVANTE, 4, _TILE_STATUS),
)
AMD_GFX12 = 5
AMD = Family('TILED', Vendor.AMD, 0, (
    BitField('tile_version', 0, 8, {1: 'GFX9', 2: 'GFX10', 3: 'GFX10_RBPLUS', 4: 'GFX11', AMD_GFX12: 'GFX12'}),
    BitField('tile', 8, 5),
    BitField('dcc', 13), BitField('dcc_retile', 14), BitField('dcc_pipe_align', 15),
    BitField('dcc_independent_64b', 16), BitField('dcc_independent_128b', 17),
    BitField('dcc_max_compressed_block', 18, 2, {0: '64B', 1: '128B', 2: '256B'}),
    BitField('dcc_constant_encode', 20),
    BitField('pipe_xor_bits', 21, 3), BitField('bank_xor_bits', 24, 3), BitField('packers', 27, 3), BitField('rb', 30, 3),
    BitField('pipe', 33, 3),
))  # fmt: skip

FAMILIES = (
    NVIDIA_BLOCK_LINEAR_2D, BROADCOM_SAND32, BROADCOM_SAND64, BROADCOM_SAND128, BROADCOM_SAND256, ARM_AFBC, ARM_AFRC, AMLOGIC_FBC,
    MTK_TILED, *VIVANTE_TILINGS, AMD,
)  # fmt: skip

MAX_16BX2_HEIGHT_LOG2 = 5
