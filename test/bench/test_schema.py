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

"""The file's schema: what it needs, what of the machine it has, and that it is installed."""

from __future__ import annotations

import getpass
import json
from pathlib import Path
import platform
from typing import Any

from bench import environment
from bench.environment import describe_environment
from bench.rows import Row
from bench_kit import SCHEMA
from npu.json_schema import conforms
import pytest

PINNED = {
    'case',
    'variant',
    'width',
    'height',
    'rate_hz',
    'median_us',
    'p99_us',
    'cpu_us_per_frame',
    'repetitions',
    'ratio_to',
}


def document() -> dict[str, Any]:
    row = Row(
        'link',
        'x',
        640,
        480,
        30.0,
        1.0,
        2.0,
        3.0,
        7,
        {'floor/f': 2.0},
        {'floor/f': -1.0},
        {'floor/f': 1.5},
        [1.0, None],
        0.5,
    )
    made: dict[str, Any] = json.loads(
        json.dumps({'environment': describe_environment(), 'rows': [row.as_json()]})
    )
    return made


def test_the_schema_requires_what_other_programs_rely_on() -> None:
    assert conforms(document(), SCHEMA) and set(SCHEMA['required']) == {'environment', 'rows'}
    row = SCHEMA['properties']['rows']['items']
    assert set(row['required']) >= PINNED
    assert set(row['required']) == set(row['properties']) == set(document()['rows'][0])


def test_what_a_figure_depends_on_is_in_the_file_and_whose_machine_it_was_is_not() -> None:
    described = describe_environment()
    assert set(described) <= set(SCHEMA['properties']['environment']['properties']), (
        'each has its place in the schema'
    )
    assert described['packages']['numpy'] and described['kernel'] == platform.release()
    text = json.dumps(described)
    assert str(Path.home()) not in text and str(Path.cwd()) not in text
    for name in (platform.node(), getpass.getuser()):
        # A host may be called like something that every machine has.
        assert len(name) < 5 or name not in text


@pytest.mark.parametrize(
    ('content', 'prefix', 'expected'),
    [
        (
            'processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nmodel name\t: other\n',
            'model name',
            'Some CPU @ 2 GHz',
        ),
        ('performance\n', '', 'performance'),
        ('NVIDIA Jetson AGX Orin\0', '', 'NVIDIA Jetson AGX Orin'),
        ('processor\t: 0\n', 'model name', ''),
    ],
)
def test_a_file_of_the_kernel_has_its_first_line_read(
    tmp_path: Path, content: str, prefix: str, expected: str
) -> None:
    (tmp_path / 'file').write_text(content, encoding='utf-8')
    assert environment._first_line(str(tmp_path / 'file'), prefix) == expected
    assert environment._first_line(str(tmp_path / 'none'), prefix) == ''


def test_a_machine_that_says_nothing_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, '_first_line', lambda path, prefix='': '')
    described = describe_environment()
    assert (described['cpu'], described['governor'], described['virtual']) == (
        platform.machine(),
        'unknown',
        False,
    )
