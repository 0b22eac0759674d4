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

"""Texts of errors as the programs print them."""

from __future__ import annotations

import pytest

from zc_perception.errors import ConfigError, error_line, nearest, shown


def test_what_a_terminal_would_obey_is_escaped() -> None:
    line = error_line('p', ConfigError("'a\nERROR\x1b[2J\ud800'"))
    assert line == r"p: error: 'a\nERROR\x1b[2J\ud800'"


@pytest.mark.parametrize(
    ('word', 'known', 'meant'),
    [
        ('nv12', ['YUYV', 'NV12', 'NV21'], 'NV12'),
        ('GSTREAMR', ['gstreamer', 'argus'], 'gstreamer'),
        ('grabber', ['v4l2', 'argus'], None),
    ],
)
def test_the_nearest_word_is_found_in_capitals_or_not(
    word: str, known: list[str], meant: str | None
) -> None:
    assert nearest(word, known) == (f"; did you mean '{meant}'?" if meant else '')


class Wordless:
    def __str__(self) -> str:  # noqa: CNL100
        raise ValueError


@pytest.mark.parametrize(
    ('value', 'text'),
    [
        ('größe', "'größe'"),
        ('a\n\x1b[2J', r"'a\n\x1b[2J'"),
        ([True, 1.5, None], '[True, 1.5, None]'),
        (2**128 - 1, str(2**128 - 1)),
        (-(1 << 99999), 'a number of 100000 bits'),
        (Wordless(), 'Wordless'),
        ('\n' * 1000, "'" + r'\n' * 119 + '…'),
    ],
    ids=range(7),
)
def test_a_value_is_shown_in_one_line_that_ends(value: object, text: str) -> None:
    assert shown(value) == text
