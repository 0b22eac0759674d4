"""Modifiers: what they say, the bits that they are made of, and the planes that they add."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zc_perception.errors import FormatError
from zc_perception.pixel.fourcc import FORMATS, NV12, fourcc_code
from zc_perception.pixel.modifier import INVALID, LINEAR, KnownModifier, Vendor, check_modifier, modifier_name, plane_count

NVIDIA_BLOCK = 3 << 56 | 0x10
BROADCOM_SAND128, ARM_AFBC, AMLOGIC_FBC, MTK_TILED = 7 << 56 | 1088 << 8 | 4, 8 << 56 | 0x41, 10 << 56 | 1, 11 << 56 | 0x101
AMD_DCC, VIVANTE_TILE_STATUS = 2 << 56 | 0x3B02, 6 << 56 | 1 << 48 | 1
AR24, P010, YU12, YU08 = (fourcc_code(name) for name in ('AR24', 'P010', 'YU12', 'YU08'))


@pytest.mark.parametrize('modifier', [-1, 1 << 64])
def test_modifiers_are_64_bit(modifier: int) -> None:
    for function in (check_modifier, modifier_name):
        with pytest.raises(FormatError, match='outside'):
            function(modifier)
    with pytest.raises(FormatError, match='outside'):
        plane_count(NV12, modifier)


def test_linear_is_zero_and_a_promise_and_invalid_is_neither() -> None:
    assert (LINEAR, INVALID) == (0, 0x00FFFFFFFFFFFFFF)
    assert plane_count(NV12, LINEAR) == 2
    assert plane_count(NV12, INVALID) is None


@pytest.mark.parametrize(
    ('modifier', 'name'),
    [
        (LINEAR, 'LINEAR'),
        (INVALID, 'INVALID'),
        (0x0100000000000001, 'INTEL:X_TILED'),
        (0x0B00000000000001, 'MTK:16L_32S_TILE'),
        (NVIDIA_BLOCK, 'NVIDIA:0x00000000000010'),
        (0x7F << 56 | 5, 'vendor 0x7f:0x00000000000005'),
        (5, 'NONE:0x00000000000005'),
    ],
)
def test_short_names(modifier: int, name: str) -> None:
    assert modifier_name(modifier) == name


@given(st.integers(0, (1 << 64) - 1))
def test_any_number_is_named_by_its_vendor(modifier: int) -> None:
    vendor = modifier >> 56
    name = modifier_name(modifier)
    assert name in ('LINEAR', 'INVALID') or name.startswith(f'{Vendor(vendor).name}:' if vendor <= 12 else f'vendor 0x{vendor:02x}:')


CCS = KnownModifier


@pytest.mark.parametrize(
    ('fourcc', 'modifier', 'planes'),
    [
        (AR24, LINEAR, 1), (NV12, LINEAR, 2), (YU12, LINEAR, 3),
        # Tiling alone adds none.
        (NV12, CCS.INTEL_X_TILED, 2), (NV12, CCS.INTEL_4_TILED, 2), (NV12, NVIDIA_BLOCK, 2), (NV12, CCS.NVIDIA_TEGRA_TILED, 2),
        (NV12, CCS.SAMSUNG_64_32_TILE, 2), (NV12, CCS.QCOM_COMPRESSED, 2), (NV12, BROADCOM_SAND128, 2),
        (NV12, CCS.ALLWINNER_TILED, 2), (NV12, CCS.MTK_16L_32S_TILE, 2), (AR24, CCS.APPLE_GPU_TILED_COMPRESSED, 1),
        (NV12, MTK_TILED, 2), (AR24, ARM_AFBC, 1), (YU08, ARM_AFBC, 1), (YU08, AMLOGIC_FBC, 1),
        # The document's example: a second plane with the state of every tile.
        (AR24, CCS.INTEL_Y_TILED_CCS, 2), (AR24, CCS.INTEL_Yf_TILED_CCS, 2), (AR24, CCS.INTEL_Y_TILED_GEN12_RC_CCS, 2),
        (AR24, CCS.INTEL_4_TILED_MTL_RC_CCS, 2),
        # Media compression: Y, UV, and the state of each.
        (NV12, CCS.INTEL_Y_TILED_GEN12_MC_CCS, 4), (P010, CCS.INTEL_4_TILED_MTL_MC_CCS, 4), (AR24, CCS.INTEL_Y_TILED_GEN12_MC_CCS, 2),
        # Clear colour: third, or second where the state is outside of the buffer.
        (AR24, CCS.INTEL_Y_TILED_GEN12_RC_CCS_CC, 3), (AR24, CCS.INTEL_4_TILED_MTL_RC_CCS_CC, 3),
        (AR24, CCS.INTEL_4_TILED_DG2_RC_CCS_CC, 2), (AR24, CCS.INTEL_4_TILED_DG2_RC_CCS, 1), (NV12, CCS.INTEL_4_TILED_DG2_MC_CCS, 2),
        (NV12, CCS.INTEL_4_TILED_LNL_CCS, 2), (NV12, CCS.INTEL_4_TILED_BMG_CCS, 2),
        (NV12, CCS.VIVANTE_TILED, 2),
        # Nobody told us.
        (NV12, INVALID, None), (NV12, 0x7F << 56 | 1, None), (NV12, 1 << 56 | 99, None), (NV12, 5, None),
        # Compression of these vendors can add planes, as their parameters say.
        (AR24, AMD_DCC, None), (AR24, VIVANTE_TILE_STATUS, None),
    ],
)  # fmt: skip
def test_aux_planes_are_counted(fourcc: int, modifier: int, planes: int | None) -> None:
    assert plane_count(fourcc, modifier) == planes


@pytest.mark.parametrize(
    ('fourcc', 'modifier', 'why'),
    [
        (
            NV12,
            CCS.INTEL_Y_TILED_CCS,
            'NV12 has 2 planes, and INTEL:Y_TILED_CCS is for formats of one; for video use INTEL:Y_TILED_GEN12_MC',
        ),
        (NV12, CCS.INTEL_Y_TILED_GEN12_RC_CCS_CC, 'is for formats of one'),
        (YU12, CCS.INTEL_Y_TILED_GEN12_MC_CCS, 'YU12 has 3 planes; with the state of each they were more than 4'),
        (YU08, LINEAR, "'YU08' has no LINEAR layout"),
        (fourcc_code('ZZZZ'), LINEAR, "'ZZZZ'.*is not known"),
        (fourcc_code('ZZZZ'), CCS.INTEL_X_TILED, "'ZZZZ'.*is not known"),
    ],
)
def test_pairs_that_cannot_be(fourcc: int, modifier: int, why: str) -> None:
    with pytest.raises(FormatError, match=why):
        plane_count(fourcc, modifier)


@given(st.sampled_from(sorted(FORMATS)), st.one_of(st.sampled_from(list(KnownModifier)), st.integers(0, (1 << 64) - 1)))
def test_no_modifier_takes_planes_away(fourcc: int, modifier: int) -> None:
    bare = len(FORMATS[fourcc].planes)
    try:
        planes = plane_count(fourcc, modifier)
    except FormatError:
        assert bare > 1
        return
    assert planes is None or bare <= planes <= 4
