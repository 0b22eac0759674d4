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

"""
Layouts that we compute.

Those of others: test_layout_foreign.py; answers of allocators: test_session.py of the negotiation.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pixel.layout_oracle import is_safe, PLANES
import pytest

import zc_perception
from zc_perception.errors import LayoutError
from zc_perception.pixel.fourcc import FORMATS, fourcc_code, fourcc_name, NV12
from zc_perception.pixel.layout import (
    check_dimensions,
    compute_layout,
    ImageLayout,
    PlaneLayout,
    sample_bytes,
    validate_layout,
)

P010, RG16, XR24, YU12 = map(fourcc_code, ('P010', 'RG16', 'XR24', 'YU12'))


def own_sizes(layout: ImageLayout) -> list[int]:
    return [layout.buffer_size(i) for i in range(layout.num_buffers)]


@given(
    st.sampled_from(sorted(FORMATS)),
    st.integers(1, 2000),
    st.integers(1, 2000),
    st.one_of(st.integers(1, 300), st.integers(1, 1 << 30)),
    st.one_of(st.integers(1, 5000), st.integers(1, 1 << 30)),
    st.one_of(st.integers(1, 64), st.integers(1, 1 << 30)),
    st.booleans(),
)
def test_every_computed_layout_is_valid_and_has_the_alignments(
    fourcc: int,
    width: int,
    height: int,
    stride_align: int,
    offset_align: int,
    height_align: int,
    buffer_per_plane: bool,
) -> None:
    fmt = FORMATS[fourcc]
    layout = compute_layout(
        fourcc, width * fmt.horizontal, height * fmt.vertical,
        stride_align=stride_align, offset_align=offset_align, height_align=height_align,
        buffer_per_plane=buffer_per_plane,
    )  # fmt: skip
    validate_layout(layout, own_sizes(layout))
    assert layout.num_buffers == (len(fmt.planes) if buffer_per_plane else 1)
    assert all(
        p.stride % stride_align == 0 and p.offset % offset_align == 0 for p in layout.planes
    )
    padded = -(-layout.height // height_align) * height_align
    assert all(
        p.size >= p.stride * (padded // element.vertical)
        for p, element in zip(layout.planes, fmt.planes, strict=True)
    )


@given(
    st.sampled_from(sorted(PLANES)),
    st.integers(1, 10),
    st.integers(1, 6),
    st.integers(1, 70),
    st.integers(1, 70),
    st.integers(1, 20),
    st.booleans(),
)
def test_no_sample_of_a_computed_layout_leaves_its_buffer_or_meets_another(
    name: str,
    width: int,
    height: int,
    stride_align: int,
    offset_align: int,
    height_align: int,
    buffer_per_plane: bool,
) -> None:
    layout = compute_layout(
        fourcc_code(name), 4 * width, 2 * height,
        stride_align=stride_align, offset_align=offset_align, height_align=height_align,
        buffer_per_plane=buffer_per_plane,
    )  # fmt: skip
    assert is_safe(name, layout, own_sizes(layout))


@pytest.mark.parametrize(
    ('fourcc', 'planes'),
    [
        (NV12, (PlaneLayout(0, 0, 64, 64 * 4), PlaneLayout(1, 0, 64, 64 * 2))),
        (P010, (PlaneLayout(0, 0, 64, 64 * 4), PlaneLayout(1, 0, 64, 64 * 2))),
        (
            YU12,
            (
                PlaneLayout(0, 0, 64, 64 * 4),
                PlaneLayout(1, 0, 64, 64 * 2),
                PlaneLayout(2, 0, 64, 64 * 2),
            ),
        ),
    ],
)
def test_a_buffer_per_plane_starts_at_its_beginning(
    fourcc: int, planes: tuple[PlaneLayout, ...]
) -> None:
    layout = compute_layout(fourcc, 6, 4, offset_align=4096, buffer_per_plane=True)
    assert layout.planes == planes
    assert layout.num_buffers == len(planes) and own_sizes(layout) == [p.size for p in planes]


def test_words_are_never_torn_whatever_alignment_is_asked() -> None:
    ten_bit = compute_layout(P010, 6, 4, stride_align=5, offset_align=3)
    assert [(p.stride, p.offset) for p in ten_bit.planes] == [(20, 0), (20, 84)]
    assert compute_layout(RG16, 5, 2, stride_align=11).planes == (PlaneLayout(0, 0, 22, 44),)


@pytest.mark.parametrize('name', sorted(PLANES))
def test_sample_sizes_are_the_documented_ones(name: str) -> None:
    fmt = FORMATS[fourcc_code(name)]
    assert [sample_bytes(fmt, index) for index in range(len(fmt.planes))] == [
        sample for sample, *_ in PLANES[name]
    ]


@pytest.mark.parametrize('fourcc', sorted(FORMATS), ids=fourcc_name)
def test_samples_divide_the_elements_of_every_format(fourcc: int) -> None:
    fmt = FORMATS[fourcc]
    for index, element in enumerate(fmt.planes):
        sample = sample_bytes(fmt, index)
        assert sample in (1, 2, 4, 8) and element.element_bytes % sample == 0
        # A component is a sample, or an element is one, or nothing but bytes can be told apart.
        samples = element.element_bytes // sample
        assert samples in (len(element.components), 1) or sample == 1
        assert 8 * sample >= fmt.bits or (fmt.name, sample) == ('NV15', 1)


@pytest.mark.parametrize(
    ('width', 'height', 'message'),
    [
        (0, 48, 'width 0 is outside 1 .. 65535'),
        (65536, 48, 'width 65536 is outside 1 .. 65535'),
        (64, -2, 'height -2 is outside 1 .. 65535'),
        (1 << 64, 48, 'width 18446744073709551616 is outside 1 .. 65535'),
        pytest.param(
            64, 1 << 99999, 'height a number of 100000 bits is outside 1 .. 65535', id='huge'
        ),
        (63, 48, 'width 63 is not a multiple of 2, which NV12 needs; use 62 or 64'),
        (64, 47, 'height 47 is not a multiple of 2, which NV12 needs; use 46 or 48'),
        (1, 48, 'width 1 is not a multiple of 2, which NV12 needs; use 2'),
        (65535, 48, 'width 65535 is not a multiple of 2, which NV12 needs; use 65534'),
        (64.0, 48, 'width 64.0 is not an integer; it must be one in 1 .. 65535'),
        (float('nan'), 48, 'width nan is not an integer; it must be one in 1 .. 65535'),
        (64, None, 'height None is not an integer; it must be one in 1 .. 65535'),
        (64, True, 'height True is not an integer; it must be one in 1 .. 65535'),
        ('64', 48, "width '64' is not an integer; it must be one in 1 .. 65535"),
        ([64], 48, 'width [64] is not an integer; it must be one in 1 .. 65535'),
        ('x' * 1000, 48, f"width '{'x' * 119}… is not an integer; it must be one in 1 .. 65535"),
    ],
)
def test_impossible_sizes_are_refused(width: Any, height: Any, message: str) -> None:
    for refuse in (
        lambda: compute_layout(NV12, width, height),
        lambda: check_dimensions(FORMATS[NV12], width, height),
    ):
        with pytest.raises(LayoutError) as error:
            refuse()
        assert str(error.value) == message


@pytest.mark.parametrize('name', ['stride_align', 'offset_align', 'height_align'])
@pytest.mark.parametrize('value', [0, -64, (1 << 30) + 1, 64.0, None, True])
def test_alignments_are_integers_in_range(name: str, value: Any) -> None:
    with pytest.raises(LayoutError, match=rf'^{name} {value} is (outside|not an integer)'):
        compute_layout(NV12, 64, 48, **{name: value})


def test_a_description_has_format_size_and_planes() -> None:
    assert (
        compute_layout(NV12, 64, 48).describe()
        == 'NV12 LINEAR 64x48 ([0] +0 stride 64, [0] +3072 stride 64)'
    )


def test_no_layout_without_a_modifier() -> None:
    with pytest.raises(TypeError, match='modifier'):
        ImageLayout(width=64, height=48, fourcc=NV12, planes=())  # type: ignore[call-arg]


def _promises(default: ast.expr | None) -> bool:
    """Return whether a default says something: ``None`` says that there is none yet."""
    return default is not None and not (
        isinstance(default, ast.Constant) and default.value is None
    )


def modifiers_with_defaults(source: str) -> Iterator[str]:
    """Parameters and fields called modifier that have a default value."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            positional = [*node.args.posonlyargs, *node.args.args]
            defaults = [None] * (len(positional) - len(node.args.defaults)) + list(
                node.args.defaults
            )
            pairs = [
                *zip(positional, defaults, strict=True),
                *zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True),
            ]
            yield from (
                f'line {node.lineno}'
                for argument, default in pairs
                if argument.arg == 'modifier' and _promises(default)
            )
        elif isinstance(node, ast.ClassDef):
            fields = [
                n
                for n in node.body
                if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)
            ]
            yield from (
                f'line {f.lineno}'
                for f in fields
                if f.target.id == 'modifier' and f.value is not None
            )  # type: ignore[union-attr]


def test_no_default_modifier_anywhere_in_the_package() -> None:
    """Zero as a default would be LINEAR, a promise that nobody made."""
    bad = (
        'class A:\n modifier: int = 0\ndef f(a, modifier=0): ...\ndef g(*, modifier=0): '
        '...\nlambda modifier=0: 0'
    )
    assert len(list(modifiers_with_defaults(bad))) == 4, 'the search works'
    for path in sorted(Path(zc_perception.__file__).parent.rglob('*.py')):
        assert list(modifiers_with_defaults(path.read_text(encoding='utf-8'))) == [], path.name
