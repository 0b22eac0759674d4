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

"""Paths as users write them: with ~, with variables, as URLs."""

from __future__ import annotations

from pathlib import Path

import pytest

from zc_perception.errors import ConfigError
from zc_perception.local_path import local_path


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv('HOME', str(tmp_path))
    monkeypatch.setenv('BAGS', str(tmp_path / 'bags'))
    monkeypatch.delenv('NOT_SET', raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ('named', 'wanted'),
    [
        ('/a/b.mp4', '/a/b.mp4'),
        ('~/b.mp4', '{home}/b.mp4'),
        ('${BAGS}/b', '{home}/bags/b'),
        ('file:/a/b.mp4', '/a/b.mp4'),
        ('FILE://localhost/a/b.mp4', '/a/b.mp4'),
        ('file:///a/my%20drive%231%3F%25.mp4', '/a/my drive#1?%.mp4'),
        ('file:///a/%C3%BC.mp4', '/a/ü.mp4'),
        ('file://$BAGS/b', '{home}/bags/b'),
        ('a:b.mp4', 'a:b.mp4'),
    ],
)
def test_what_a_person_means(named: str, wanted: str, home: Path) -> None:
    assert local_path(named, 'video') == wanted.format(home=home)


def test_a_name_that_is_there_is_meant_as_it_is(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    for name in ('~', '$BAGS', 'a$NOT_SET', 'file:'):
        Path(name).touch()
        assert local_path(name, 'video') == name


@pytest.mark.parametrize(
    ('named', 'message'),
    [
        ('$NOT_SET/a', "'video' is '$NOT_SET/a'; the environment of this node has no variable"),
        ('~nobody_here/a', "'~nobody_here' names no user of this machine"),
        ('file://a/b.mp4', 'a file URL has an absolute path of this machine: file:///'),
        ('file:b.mp4', 'a file URL has an absolute path'),
    ],
)
def test_what_nobody_can_mean_is_refused(named: str, message: str, home: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        local_path(named, 'video')
    assert message in str(caught.value)
