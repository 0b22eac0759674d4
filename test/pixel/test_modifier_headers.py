"""Vendors and constants against ``drm_fourcc.h``, whose macros are evaluated as C would."""

from __future__ import annotations

import re

import pytest
from environment.c_header import CHeader

from zc_perception.pixel.fourcc import NV12
from zc_perception.pixel.modifier import INVALID, LINEAR, KnownModifier, Vendor, modifier_name, plane_count

# In the header of Linux 6.15, and not yet in that of every distribution: the numbers are copied by hand from there.
YOUNG = {
    'DRM_FORMAT_MOD_VENDOR_MTK': 0x0B, 'DRM_FORMAT_MOD_VENDOR_APPLE': 0x0C,
    'I915_FORMAT_MOD_4_TILED_MTL_RC_CCS': 0x010000000000000D, 'I915_FORMAT_MOD_4_TILED_MTL_MC_CCS': 0x010000000000000E,
    'I915_FORMAT_MOD_4_TILED_MTL_RC_CCS_CC': 0x010000000000000F, 'I915_FORMAT_MOD_4_TILED_LNL_CCS': 0x0100000000000010,
    'I915_FORMAT_MOD_4_TILED_BMG_CCS': 0x0100000000000011, 'DRM_FORMAT_MOD_MTK_16L_32S_TILE': 0x0B00000000000001,
    'DRM_FORMAT_MOD_APPLE_GPU_TILED': 0x0C00000000000001, 'DRM_FORMAT_MOD_APPLE_GPU_TILED_COMPRESSED': 0x0C00000000000002,
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
    ours = {macro(known) for known in KnownModifier}
    elsewhere = re.compile('DRM_FORMAT_MOD_(VENDOR_|INVALID|LINEAR|NONE|GENERIC_|ARM_TYPE_|NVIDIA_16BX2_BLOCK_|BROADCOM_SAND)')
    plain = {
        name for name, m in drm.macros.items()
        if name.startswith(('DRM_FORMAT_MOD_', 'I915_FORMAT_MOD_')) and m.parameters is None and not elsewhere.match(name)
    }  # fmt: skip
    assert len(plain) > 20 and plain <= ours


@pytest.mark.parametrize(
    ('parameters', 'planes'),
    [
        ('NVIDIA_BLOCK_LINEAR_2D(0, 1, 2, 0x06, 4)', 2),
        ('BROADCOM_SAND128_COL_HEIGHT(1088)', 2),
        ('ARM_AFBC(AFBC_FORMAT_MOD_BLOCK_SIZE_16x16 | AFBC_FORMAT_MOD_SPARSE)', 2),
        ('AMLOGIC_FBC(AMLOGIC_FBC_LAYOUT_BASIC, AMLOGIC_FBC_OPTION_MEM_SAVING)', 2),
    ],
)
def test_parameters_of_vendors_whose_layouts_have_no_planes_of_their_own(parameters: str, planes: int, drm: CHeader) -> None:
    modifier = drm.value(f'DRM_FORMAT_MOD_{parameters}')
    assert plane_count(NV12, modifier) == planes
    assert modifier_name(modifier).startswith(parameters.partition('_')[0] + ':0x')
