"""Modifiers: what they say, the bits that they are made of, and the planes that they add."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zc_perception.errors import FormatError
from zc_perception.pixel.fourcc import FORMATS, NV12, fourcc_code
from zc_perception.pixel.modifier import INVALID, LINEAR, check_modifier, describe_modifier, modifier_name, plane_count
from zc_perception.pixel.modifier_vendors import (
    AMD,
    AMLOGIC_FBC,
    ARM_AFBC,
    ARM_AFRC,
    BROADCOM_SAND128,
    FAMILIES,
    MTK_TILED,
    NVIDIA_BLOCK_LINEAR_2D,
    VIVANTE_TILINGS,
    Family,
    KnownModifier,
    Vendor,
    modifier_code,
)

NVIDIA_BLOCK = 3 << 56 | 0x10
AR24, P010, YU12, YU08 = (fourcc_code(name) for name in ('AR24', 'P010', 'YU12', 'YU08'))
every_family = pytest.mark.parametrize('family', FAMILIES, ids=lambda family: f'{family.vendor.name}_{family.name}')


@pytest.mark.parametrize('modifier', [-1, 1 << 64])
def test_modifiers_are_64_bit(modifier: int) -> None:
    for function in (check_modifier, describe_modifier, modifier_name):
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


@pytest.mark.parametrize(
    ('modifier', 'text'),
    [
        (LINEAR, 'LINEAR'),
        (INVALID, 'INVALID'),
        (0x0100000000000001, 'INTEL X_TILED'),
        (0x0100000000000006, 'INTEL Y_TILED_GEN12_RC_CCS'),
        (0x0300000000000001, 'NVIDIA TEGRA_TILED'),
        (0x0300000000000014, 'NVIDIA 16BX2_BLOCK(height_log2=4)'),
        (
            0x0300000000606014,
            'NVIDIA BLOCK_LINEAR_2D(height_log2=4, kind=6, generation=2 [Turing and later], '
            'sector_layout=1 [desktop and Xavier and later], compression=0 [none])',
        ),
        (0x0700000000044004, 'BROADCOM SAND128(column_height=1088)'),
        (0x0A00000000000102, 'AMLOGIC FBC(layout=2 [scatter], mem_saving=1)'),
        (0x0810000000000001, 'ARM 16X16_BLOCK_U_INTERLEAVED'),
        (0x0600000000000002, 'VIVANTE SUPER_TILED'),
        (0x0602000000000002, 'VIVANTE SUPER_TILED(ts=2 [64_2], compression=0 [none])'),
        (0x7F00000000000005, 'vendor 0x7f 0x00000000000005 (not known)'),
        (0x0300000000000030, 'NVIDIA 0x00000000000030 (not known)'),  # a reserved bit
        (0x0800000000000000, 'ARM 0x00000000000000 (not known)'),  # AFBC without a block size
        (0x0610000000000001, 'VIVANTE 0x10000000000001 (not known)'),  # compression without tile status
        (5, 'NONE 0x00000000000005 (not known)'),
    ],
)
def test_descriptions_for_people(modifier: int, text: str) -> None:
    assert str(describe_modifier(modifier)) == text


def test_a_description_has_the_parts_by_name() -> None:
    found = describe_modifier(NVIDIA_BLOCK_LINEAR_2D.encode(height_log2=3, kind=0xFE, sector_layout=1))
    assert (found.vendor, found.name) == ('NVIDIA', 'BLOCK_LINEAR_2D')
    assert dict(found.parameters) == {'height_log2': 3, 'kind': 0xFE, 'generation': 0, 'sector_layout': 1, 'compression': 0}


@given(st.integers(0, (1 << 64) - 1))
def test_any_number_has_its_vendor_and_value(modifier: int) -> None:
    found = describe_modifier(modifier)
    vendor = modifier >> 56
    assert found.vendor == (Vendor(vendor).name if vendor <= 12 else f'vendor 0x{vendor:02x}')
    assert found.value == modifier & INVALID
    assert str(found)


@every_family
@given(data=st.data())
def test_parameters_go_both_ways(family: Family, data: st.DataObject) -> None:
    parameters = {
        bits.name: data.draw(st.sampled_from(sorted(bits.meanings)) if bits.meanings else st.integers(0, (1 << bits.bits) - 1))
        for bits in family.fields
    }
    modifier = family.encode(**parameters)
    assert family.decode(modifier) == parameters
    assert modifier >> 56 == family.vendor


@every_family
def test_reserved_bits_make_it_another_modifier(family: Family) -> None:
    parameters = {bits.name: min(bits.meanings, default=0) for bits in family.fields}
    good = family.encode(**parameters)
    used = family.base
    for bits in family.fields:
        used |= bits.mask
    for bit in set(range(56)) - {b for b in range(56) if used >> b & 1}:
        assert family.decode(good | 1 << bit) is None, bit
    assert family.decode(good ^ 1 << 63) is None


@pytest.mark.parametrize(
    ('make', 'why'),
    [
        (lambda: NVIDIA_BLOCK_LINEAR_2D.encode(height_log2=16), r'height_log2 16 is not one of 0 \.\. 15'),
        (lambda: NVIDIA_BLOCK_LINEAR_2D.encode(generation=3), 'generation 3 is not one of 0'),
        (lambda: NVIDIA_BLOCK_LINEAR_2D.encode(depth=1), 'has no depth; it has height_log2, kind'),
        (lambda: ARM_AFBC.encode(), 'block_size 0 is not one of 1 .16x16.'),
        (lambda: BROADCOM_SAND128.encode(column_height=-1), 'column_height -1'),
        (lambda: AMLOGIC_FBC.encode(layout=3), 'layout 3 is not one of 1 .basic., 2 .scatter.'),
        (lambda: modifier_code(256, 0), 'must fit 8 bits'),
        (lambda: modifier_code(1, 1 << 56), 'must fit 56'),
    ],
)
def test_impossible_parameters_are_refused(make: Callable[[], int], why: str) -> None:
    with pytest.raises(FormatError, match=why):
        make()


CCS = KnownModifier
DCC = AMD.encode(tile_version=2, tile=27, dcc=1)
DCC_RETILE = AMD.encode(tile_version=2, tile=27, dcc=1, dcc_retile=1)
TILE_STATUS = VIVANTE_TILINGS[0].encode(ts=1)


@pytest.mark.parametrize(
    ('fourcc', 'modifier', 'planes'),
    [
        (AR24, LINEAR, 1), (NV12, LINEAR, 2), (YU12, LINEAR, 3),
        # Tiling alone adds none.
        (NV12, CCS.INTEL_X_TILED, 2), (NV12, CCS.INTEL_4_TILED, 2), (NV12, NVIDIA_BLOCK, 2), (NV12, CCS.NVIDIA_TEGRA_TILED, 2),
        (NV12, CCS.SAMSUNG_64_32_TILE, 2), (NV12, CCS.QCOM_COMPRESSED, 2), (NV12, BROADCOM_SAND128.encode(column_height=1088), 2),
        (NV12, CCS.ALLWINNER_TILED, 2), (NV12, CCS.MTK_16L_32S_TILE, 2), (AR24, CCS.APPLE_GPU_TILED_COMPRESSED, 1),
        (NV12, MTK_TILED.encode(tile=1, compression=1), 2),
        (AR24, ARM_AFBC.encode(block_size=1, sparse=1), 1), (NV12, ARM_AFRC.encode(cu_size_p0=1, cu_size_p12=1), 2),
        (YU08, AMLOGIC_FBC.encode(layout=1), 1), (YU08, ARM_AFBC.encode(block_size=1), 1),
        # The document's example: a second plane with the state of every tile.
        (AR24, CCS.INTEL_Y_TILED_CCS, 2), (AR24, CCS.INTEL_Yf_TILED_CCS, 2), (AR24, CCS.INTEL_Y_TILED_GEN12_RC_CCS, 2),
        (AR24, CCS.INTEL_4_TILED_MTL_RC_CCS, 2),
        # Media compression: Y, UV, and the state of each.
        (NV12, CCS.INTEL_Y_TILED_GEN12_MC_CCS, 4), (P010, CCS.INTEL_4_TILED_MTL_MC_CCS, 4), (AR24, CCS.INTEL_Y_TILED_GEN12_MC_CCS, 2),
        # Clear colour: third, or second where the state is outside of the buffer.
        (AR24, CCS.INTEL_Y_TILED_GEN12_RC_CCS_CC, 3), (AR24, CCS.INTEL_4_TILED_MTL_RC_CCS_CC, 3),
        (AR24, CCS.INTEL_4_TILED_DG2_RC_CCS_CC, 2), (AR24, CCS.INTEL_4_TILED_DG2_RC_CCS, 1), (NV12, CCS.INTEL_4_TILED_DG2_MC_CCS, 2),
        (NV12, CCS.INTEL_4_TILED_LNL_CCS, 2), (NV12, CCS.INTEL_4_TILED_BMG_CCS, 2),
        # AMD: one DCC surface, or a displayable one as well; within each plane where there are several.
        (AR24, AMD.encode(tile_version=1, tile=9), 1), (AR24, DCC, 2), (AR24, DCC_RETILE, 3), (NV12, DCC, 2), (NV12, DCC_RETILE, 2),
        (AR24, AMD.encode(tile_version=5, tile=3, dcc=1), 1),
        (AR24, TILE_STATUS, 2), (NV12, TILE_STATUS, None), (NV12, CCS.VIVANTE_TILED, 2),
        # Nobody told us.
        (NV12, INVALID, None), (NV12, 0x7F << 56 | 1, None), (NV12, 3 << 56 | 0x30, None), (NV12, 1 << 56 | 99, None), (NV12, 5, None),
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
