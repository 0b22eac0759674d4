"""Vendors, constants and constructors against ``drm_fourcc.h``, whose macros are evaluated as C would."""

from __future__ import annotations

import re

import pytest
from environment.c_header import CHeader

from zc_perception.pixel.modifier import INVALID, LINEAR
from zc_perception.pixel.modifier_vendors import (
    AMD,
    AMLOGIC_FBC,
    ARM_AFBC,
    ARM_AFRC,
    BROADCOM_SAND32,
    BROADCOM_SAND64,
    BROADCOM_SAND128,
    BROADCOM_SAND256,
    KNOWN,
    MTK_TILED,
    NVIDIA_BLOCK_LINEAR_2D,
    VIVANTE_TILINGS,
    KnownModifier,
    Vendor,
    modifier_code,
)

# In the header of Linux 6.15, and not yet in that of every distribution: the numbers are copied by hand from there.
YOUNG = {
    'DRM_FORMAT_MOD_VENDOR_MTK': 0x0B, 'DRM_FORMAT_MOD_VENDOR_APPLE': 0x0C,
    'I915_FORMAT_MOD_4_TILED_MTL_RC_CCS': 0x010000000000000D, 'I915_FORMAT_MOD_4_TILED_MTL_MC_CCS': 0x010000000000000E,
    'I915_FORMAT_MOD_4_TILED_MTL_RC_CCS_CC': 0x010000000000000F, 'I915_FORMAT_MOD_4_TILED_LNL_CCS': 0x0100000000000010,
    'I915_FORMAT_MOD_4_TILED_BMG_CCS': 0x0100000000000011, 'DRM_FORMAT_MOD_MTK_16L_32S_TILE': 0x0B00000000000001,
    'DRM_FORMAT_MOD_APPLE_GPU_TILED': 0x0C00000000000001, 'DRM_FORMAT_MOD_APPLE_GPU_TILED_COMPRESSED': 0x0C00000000000002,
    'AMD_FMT_MOD_TILE_VER_GFX12': 5,
    'VIVANTE_MOD_TS_64_4': 1 << 48, 'VIVANTE_MOD_TS_64_2': 2 << 48, 'VIVANTE_MOD_TS_128_4': 3 << 48, 'VIVANTE_MOD_TS_256_4': 4 << 48,
    'VIVANTE_MOD_COMP_DEC400': 1 << 52,
    'MTK_FMT_MOD_TILE_16L32S': 1, 'MTK_FMT_MOD_COMPRESS_V1': 1 << 8, 'MTK_FMT_MOD_10BIT_LAYOUT_LSBTILED': 1 << 16,
    'MTK_FMT_MOD_10BIT_LAYOUT_LSBRASTER': 2 << 16,
}  # fmt: skip


def value(drm: CHeader, name: str) -> int:
    if name in drm.macros:
        found = drm.value(name)
        assert YOUNG.get(name, found) == found
        return found
    assert name in YOUNG, f'{name} is not in drm_fourcc.h'
    return YOUNG[name]


def macro(known: KnownModifier) -> str:
    vendor, _, rest = known.name.partition('_')
    return f'I915_FORMAT_MOD_{rest}' if vendor == 'INTEL' else f'DRM_FORMAT_MOD_{known.name}'


def test_linear_and_invalid(drm: CHeader) -> None:
    assert drm.value('DRM_FORMAT_MOD_LINEAR') == drm.value('DRM_FORMAT_MOD_NONE') == LINEAR
    assert drm.value('DRM_FORMAT_MOD_INVALID') == INVALID


@pytest.mark.parametrize('vendor', list(Vendor))
def test_vendors(vendor: Vendor, drm: CHeader) -> None:
    assert value(drm, f'DRM_FORMAT_MOD_VENDOR_{vendor.name}') == vendor


def test_no_vendor_of_the_header_is_missing(drm: CHeader) -> None:
    names = {name.removeprefix('DRM_FORMAT_MOD_VENDOR_') for name in drm.macros if name.startswith('DRM_FORMAT_MOD_VENDOR_')}
    assert len(names) > 10 and names <= set(Vendor.__members__)


@pytest.mark.parametrize('known', list(KnownModifier), ids=lambda known: known.name)
def test_constants(known: KnownModifier, drm: CHeader) -> None:
    assert value(drm, macro(known)) == known


def test_no_constant_of_the_header_is_missing(drm: CHeader) -> None:
    ours = {macro(known) for known in KNOWN.values()}
    elsewhere = re.compile('DRM_FORMAT_MOD_(VENDOR_|INVALID|LINEAR|NONE|GENERIC_|ARM_TYPE_|NVIDIA_16BX2_BLOCK_|BROADCOM_SAND)')
    plain = {
        name for name, m in drm.macros.items()
        if name.startswith(('DRM_FORMAT_MOD_', 'I915_FORMAT_MOD_')) and m.parameters is None and not elsewhere.match(name)
    }  # fmt: skip
    assert len(plain) > 20 and plain <= ours


@pytest.mark.parametrize('vendor', ['INTEL', 'ARM', 'AMLOGIC'])
def test_the_code_of_vendor_and_value(vendor: str, drm: CHeader) -> None:
    assert modifier_code(Vendor[vendor], 0xABCDEF0123456) == drm.value(f'fourcc_mod_code({vendor}, 0xABCDEF0123456)')


@pytest.mark.parametrize(
    ('compression', 'sector', 'generation', 'kind', 'height'),
    [(0, 0, 0, 0, 0), (1, 1, 2, 0x06, 4), (4, 0, 1, 0xFE, 5), (3, 1, 2, 0xFF, 15)],
)
def test_nvidia_block_linear(compression: int, sector: int, generation: int, kind: int, height: int, drm: CHeader) -> None:
    expected = drm.value(f'DRM_FORMAT_MOD_NVIDIA_BLOCK_LINEAR_2D({compression}, {sector}, {generation}, {kind}, {height})')
    ours = NVIDIA_BLOCK_LINEAR_2D.encode(
        compression=compression, sector_layout=sector, generation=generation, kind=kind, height_log2=height
    )
    assert ours == expected


@pytest.mark.parametrize('width', [32, 64, 128, 256])
def test_broadcom_sand(width: int, drm: CHeader) -> None:
    family = {32: BROADCOM_SAND32, 64: BROADCOM_SAND64, 128: BROADCOM_SAND128, 256: BROADCOM_SAND256}[width]
    assert family.encode() == drm.value(f'DRM_FORMAT_MOD_BROADCOM_SAND{width}')
    assert family.encode(column_height=1632) == drm.value(f'DRM_FORMAT_MOD_BROADCOM_SAND{width}_COL_HEIGHT(1632)')


@pytest.mark.parametrize('size', ['16x16', '32x8', '64x4', '32x8_64x4'])
def test_arm_afbc_block_sizes(size: str, drm: CHeader) -> None:
    number = {'16x16': 1, '32x8': 2, '64x4': 3, '32x8_64x4': 4}[size]
    assert ARM_AFBC.encode(block_size=number) == drm.value(f'DRM_FORMAT_MOD_ARM_AFBC(AFBC_FORMAT_MOD_BLOCK_SIZE_{size})')


@pytest.mark.parametrize('flag', ['YTR', 'SPLIT', 'SPARSE', 'CBR', 'TILED', 'SC', 'DB', 'BCH', 'USM'])
def test_arm_afbc_flags(flag: str, drm: CHeader) -> None:
    expected = drm.value(f'DRM_FORMAT_MOD_ARM_AFBC(AFBC_FORMAT_MOD_BLOCK_SIZE_16x16 | AFBC_FORMAT_MOD_{flag})')
    assert ARM_AFBC.encode(block_size=1, **{flag.lower(): 1}) == expected


@pytest.mark.parametrize(('luma', 'chroma'), [(16, 24), (24, 32), (32, 16)])
def test_arm_afrc(luma: int, chroma: int, drm: CHeader) -> None:
    number = {16: 1, 24: 2, 32: 3}
    sizes = f'AFRC_FORMAT_MOD_CU_SIZE_P0(AFRC_FORMAT_MOD_CU_SIZE_{luma}) | AFRC_FORMAT_MOD_CU_SIZE_P12(AFRC_FORMAT_MOD_CU_SIZE_{chroma})'
    expected = drm.value(f'DRM_FORMAT_MOD_ARM_AFRC({sizes} | AFRC_FORMAT_MOD_LAYOUT_SCAN)')
    assert ARM_AFRC.encode(cu_size_p0=number[luma], cu_size_p12=number[chroma], scan=1) == expected


def test_amlogic_fbc(drm: CHeader) -> None:
    for layout, name in ((1, 'BASIC'), (2, 'SCATTER')):
        expected = drm.value(f'DRM_FORMAT_MOD_AMLOGIC_FBC(AMLOGIC_FBC_LAYOUT_{name}, AMLOGIC_FBC_OPTION_MEM_SAVING)')
        assert AMLOGIC_FBC.encode(layout=layout, mem_saving=1) == expected


def test_amd_fields_are_all_there_and_where_the_header_says(drm: CHeader) -> None:
    shifts = {name.removeprefix('AMD_FMT_MOD_').removesuffix('_SHIFT').lower() for name in drm.macros
              if name.startswith('AMD_FMT_MOD_') and name.endswith('_SHIFT')}  # fmt: skip
    assert {bits.name for bits in AMD.fields} == shifts
    for bits in AMD.fields:
        name = f'AMD_FMT_MOD_{bits.name.upper()}'
        assert (bits.shift, (1 << bits.bits) - 1) == (drm.value(f'{name}_SHIFT'), drm.value(f'{name}_MASK'))
    for number, name in AMD.fields[0].meanings.items():
        assert value(drm, f'AMD_FMT_MOD_TILE_VER_{name}') == number
    expected = drm.value('AMD_FMT_MOD | AMD_FMT_MOD_SET(TILE_VERSION, 2) | AMD_FMT_MOD_SET(TILE, 27) | AMD_FMT_MOD_SET(DCC, 1)')
    assert AMD.encode(tile_version=2, tile=27, dcc=1) == expected


def test_vivante_tile_status(drm: CHeader) -> None:
    for tiling, name in zip(VIVANTE_TILINGS, ('TILED', 'SUPER_TILED', 'SPLIT_TILED', 'SPLIT_SUPER_TILED'), strict=True):
        base = drm.value(f'DRM_FORMAT_MOD_VIVANTE_{name}')
        assert tiling.encode() == base
        for number, status in enumerate(('64_4', '64_2', '128_4', '256_4'), 1):
            assert tiling.encode(ts=number) == base | value(drm, f'VIVANTE_MOD_TS_{status}')
        assert tiling.encode(ts=1, compression=1) == base | 1 << 48 | value(drm, 'VIVANTE_MOD_COMP_DEC400')


def test_mediatek_tiles(drm: CHeader) -> None:
    base = value(drm, 'DRM_FORMAT_MOD_MTK_16L_32S_TILE')
    assert MTK_TILED.encode(tile=1) == base
    assert MTK_TILED.encode(tile=1, compression=1) == base | value(drm, 'MTK_FMT_MOD_COMPRESS_V1')
    assert MTK_TILED.encode(tile=1, layout_10bit=1) == base | value(drm, 'MTK_FMT_MOD_10BIT_LAYOUT_LSBTILED')
    assert MTK_TILED.encode(tile=1, layout_10bit=2) == base | value(drm, 'MTK_FMT_MOD_10BIT_LAYOUT_LSBRASTER')
