# Copyright 2026 The zc_perception authors
# SPDX-License-Identifier: Apache-2.0
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.

"""Modifiers: their names, their planes, and the numbers of ``drm_fourcc.h``."""

from __future__ import annotations

from collections.abc import Callable
import ctypes
from pathlib import Path
import re
import subprocess

from hypothesis import given
from hypothesis import strategies as st
import pytest

from zc_perception.pixel.fourcc import fourcc_code, NV12
from zc_perception.pixel.modifier import (
    INVALID,
    KnownModifier,
    LINEAR,
    modifier_name,
    plane_count,
    same_layout,
    Vendor,
)

NVIDIA_BLOCK = 3 << 56 | 0x10
# The headers of some distributions lack these; the numbers are from Linux 6.15.
YOUNG = {
    'DRM_FORMAT_MOD_VENDOR_MTK': 0x0B, 'DRM_FORMAT_MOD_VENDOR_APPLE': 0x0C,
    'DRM_FORMAT_MOD_MTK_16L_32S_TILE': 0x0B00000000000001,
}  # fmt: skip


BLOCKS = st.builds(
    lambda compression, sector, generation, kind, height: (
        3 << 56 | 0x10 | height | kind << 12 | generation << 20 | sector << 22 | compression << 23
    ),
    st.integers(0, 7),
    st.integers(0, 1),
    st.integers(0, 3),
    st.sampled_from([0, 0xFE, 0x06, 0xDB]),
    st.integers(0, 5),
)


def test_two_numbers_of_one_nvidia_layout_are_those_that_the_header_makes_one(
    drm: str, tmp_path: Path
) -> None:
    """The header's own function decides, compiled as C."""
    body = re.search(
        r'static __inline__ __u64\s*(drm_fourcc_canonicalize_nvidia_format_mod.*?\n})', drm, re.S
    )
    assert body
    source, library = tmp_path / 'canonical.c', tmp_path / 'canonical.so'
    source.write_text(f'typedef unsigned long long __u64;\n__u64 {body[1]}\n', encoding='utf-8')
    subprocess.run(['gcc', '-shared', '-fPIC', '-o', library, source], check=True)
    canonical = ctypes.CDLL(str(library)).drm_fourcc_canonicalize_nvidia_format_mod
    canonical.argtypes, canonical.restype = [ctypes.c_uint64], ctypes.c_uint64

    @given(BLOCKS | st.integers(3 << 56, (3 << 56) + (1 << 27)))
    def check(modifier: int) -> None:
        own, *others = same_layout(modifier)
        assert own == modifier
        assert {canonical(number) for number in (own, *others)} == {canonical(modifier)}
        if canonical(modifier) != modifier:
            assert others == [canonical(modifier)]
        for other in others:
            assert same_layout(other) == (other, modifier)

    check()


@pytest.mark.parametrize('modifier', [LINEAR, INVALID, 1 << 56 | 0x10, 5 << 56 | 0x10])
def test_layouts_of_other_vendors_have_one_number(modifier: int) -> None:
    assert same_layout(modifier) == (modifier,)


@pytest.mark.parametrize(
    ('modifier', 'name'),
    [
        (LINEAR, 'LINEAR'),
        (INVALID, 'INVALID'),
        (0x0100000000000001, 'INTEL:X_TILED'),
        (NVIDIA_BLOCK, 'NVIDIA:0x00000000000010'),
        (0x7F << 56 | 5, 'vendor 0x7f:0x00000000000005'),
        (5, 'NONE:0x00000000000005'),
    ],
)
def test_short_names(modifier: int, name: str) -> None:
    assert modifier_name(modifier) == name


@pytest.mark.parametrize('modifier', [LINEAR, *KnownModifier, NVIDIA_BLOCK])
@pytest.mark.parametrize(('name', 'planes'), [('AR24', 1), ('NV12', 2), ('YU12', 3)])
def test_tiling_adds_no_planes(name: str, planes: int, modifier: int) -> None:
    assert plane_count(fourcc_code(name), modifier) == planes


@pytest.mark.parametrize(
    'modifier', [INVALID, 0x7F << 56 | 1, 1 << 56 | 4, 5, 2 << 56 | 0x3B02, 6 << 56 | 1 << 48 | 1]
)
def test_where_nobody_says_it_the_number_of_planes_is_open(modifier: int) -> None:
    """Either the vendor is unknown, or its modifiers can add planes for compression."""
    assert plane_count(NV12, modifier) is None


def macro(known: KnownModifier) -> str:
    vendor, _, rest = known.name.partition('_')
    return f'I915_FORMAT_MOD_{rest}' if vendor == 'INTEL' else f'DRM_FORMAT_MOD_{known.name}'


OURS = {
    'DRM_FORMAT_MOD_LINEAR': LINEAR,
    'DRM_FORMAT_MOD_NONE': LINEAR,
    'DRM_FORMAT_MOD_INVALID': INVALID,
    **{f'DRM_FORMAT_MOD_VENDOR_{vendor.name}': int(vendor) for vendor in Vendor},
    **{macro(known): int(known) for known in KnownModifier},
}


def test_numbers_are_those_of_the_header(drm: str, values: Callable[..., dict[str, int]]) -> None:
    there = {name for name in OURS if re.search(rf'^#define\s+{name}\b', drm, re.MULTILINE)}
    assert {**YOUNG, **values(drm, *there)} == OURS


def test_no_vendor_of_the_header_is_missing(drm: str) -> None:
    names = set(re.findall(r'^#define\s+DRM_FORMAT_MOD_VENDOR_(\w+)', drm, re.MULTILINE))
    assert len(names) > 10 and names <= set(Vendor.__members__)


def test_parameters_of_vendors_whose_layouts_have_no_planes_of_their_own(
    drm: str, values: Callable[..., dict[str, int]]
) -> None:
    parameters = (
        'NVIDIA_BLOCK_LINEAR_2D(0, 1, 2, 0x06, 4)',
        'ARM_AFBC(AFBC_FORMAT_MOD_BLOCK_SIZE_16x16 | AFBC_FORMAT_MOD_SPARSE)',
        'AMLOGIC_FBC(AMLOGIC_FBC_LAYOUT_BASIC, AMLOGIC_FBC_OPTION_MEM_SAVING)',
    )
    for name, modifier in values(drm, *(f'DRM_FORMAT_MOD_{one}' for one in parameters)).items():
        assert plane_count(NV12, modifier) == 2, name
        assert f'MOD_{modifier_name(modifier).partition(":")[0]}_' in name
