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

"""The set-up's logic: stale layers, missing packages, and its messages."""

from __future__ import annotations

from pathlib import Path
import sys

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from environment import bootstrap, prerequisites  # noqa: E402, I100
from environment.errors import SetupError  # noqa: E402
from environment.layers import keys, Layer, stale_layers, write_record  # noqa: E402


@pytest.fixture
def stack(tmp_path: Path) -> tuple[Layer, ...]:
    def layer(name: str) -> Layer:
        file = tmp_path / name
        file.write_text(name)
        return Layer(name, (file,), lambda: None)

    return layer('wheels'), layer('interfaces'), layer('package')


@pytest.mark.parametrize('place', range(3), ids=['wheels', 'interfaces', 'package'])
def test_a_change_makes_its_layer_and_those_above_stale(
    stack: tuple[Layer, ...], tmp_path: Path, place: int
) -> None:
    changed, stale = tmp_path / stack[place].name, list(stack[slice(place, None)])
    recorded = keys(stack, '3.11')
    assert stale_layers(stack, keys(stack, '3.12'), recorded) == list(stack)
    # An interrupted set-up has not recorded the layer.
    interrupted = {name: key for name, key in recorded.items() if name != changed.name}
    assert stale_layers(stack, recorded, interrupted) == stale
    changed.write_text('other')
    assert stale_layers(stack, keys(stack, '3.11'), recorded) == stale
    changed.unlink()
    without = keys(stack, '3.11')
    changed.touch()
    assert stale_layers(stack, keys(stack, '3.11'), without) == stale


def test_a_half_made_environment_is_discarded_and_a_foreign_folder_is_not(tmp_path: Path) -> None:
    half_made = tmp_path / 'half'
    half_made.mkdir()
    write_record(half_made / 'zc_layers.json', {})
    (half_made / 'lib').mkdir()
    bootstrap.discard(half_made)
    assert not half_made.exists()

    (tmp_path / 'thesis.txt').touch()
    with pytest.raises(SetupError, match='no Python environment'):
        bootstrap.discard(tmp_path)
    assert (tmp_path / 'thesis.txt').exists()


def test_missing_prerequisites_are_named_with_the_command_that_installs_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apt = tmp_path / 'apt-get'
    apt.write_text('#!/bin/sh\nexit 0\n')
    apt.chmod(0o755)
    monkeypatch.setenv('PATH', str(tmp_path))
    monkeypatch.setattr(prerequisites.os, 'geteuid', lambda: 1000)
    with pytest.raises(SetupError) as raised:
        prerequisites.ensure(tmp_path / 'log')
    message = str(raised.value)
    assert 'gcc: a C compiler' in message and 'g++: a C++ compiler' in message
    assert 'sudo apt-get install --yes --no-install-recommends gcc libc6-dev g++' in message
