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

"""What a frame's pixels are in the link benchmark: whoever gets some of another frame knows it."""

from __future__ import annotations

from bench.link_roles import FILL, Look, Planes, stamp, sum_expected, sum_of
from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

SIZES = [(640, 480), (64, 48), (1920, 1080)]


def flat(width: int, height: int) -> Planes:
    return [np.full(width * height * 3 // 2, FILL, np.uint8)]


def nv12(width: int, height: int) -> Planes:
    return [
        np.full((height, width), FILL, np.uint8),
        np.full((height // 2, width // 2, 2), FILL, np.uint8),
    ]


@pytest.fixture(params=[flat, nv12])
def planes(request: pytest.FixtureRequest) -> Planes:
    made: Planes = request.param(64, 48)
    return made


@pytest.mark.parametrize('every_pixel', [False, True])
def test_a_whole_frame_is_its_number_and_not_torn(planes: Planes, every_pixel: bool) -> None:
    look = Look()
    look.begin(every_pixel)
    for number in (0, 7, 123_456):
        stamp(planes, number)
        assert look(planes)[0] == number
    assert look.torn == 0


@pytest.mark.parametrize('part', ['middle', 'last'])
def test_a_frame_of_two_is_torn(planes: Planes, part: str) -> None:
    stamp(planes, 5)
    other = [plane.copy() for plane in planes]
    stamp(other, 6)
    half = planes[0].nbytes // 2
    if part == 'middle':
        planes[0].reshape(-1)[slice(half, half + 8)] = other[0].reshape(-1)[slice(half, half + 8)]
    else:
        planes[-1].reshape(-1)[-8:] = other[-1].reshape(-1)[-8:]
    look = Look()
    look(planes)
    assert look.torn == 1
    look.begin(False)
    assert look.torn == 0, 'of a series'


@given(place=st.integers(0, 64 * 48 * 3 // 2 - 1), number=st.integers(0, 2**40))
def test_who_reads_every_pixel_misses_none(place: int, number: int) -> None:
    picture = flat(64, 48)
    stamp(picture, number)
    assert sum_of(picture) == sum_expected(picture[0].nbytes, number)
    picture[0][place] ^= 0x40
    look = Look()
    look.begin(True)
    look(picture)
    assert look.torn == 1


@pytest.mark.parametrize('size', SIZES)
def test_the_sum_is_that_of_any_number_of_planes(size: tuple[int, int]) -> None:
    one, two = flat(*size), nv12(*size)
    for planes in (one, two):
        stamp(planes, 99)
    assert sum_of(one) == sum_of(two) == sum_expected(one[0].nbytes, 99)
