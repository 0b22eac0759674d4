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

"""What a parameter file requires of the machine."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
import pytest

from zc_perception.doctor.needs import needs_of, node_need, read_needs
from zc_perception.errors import ConfigError
from zc_perception.machine.checks import Need, Needs

CONFIG = Path(__file__).parents[2] / 'config' / 'perception.yaml'


DEFAULTS = node_need('capture', {}), node_need('inference', {})


def test_the_shipped_file_asks_for_nothing_special() -> None:
    needs = read_needs(str(CONFIG))
    assert (*needs.cameras, *needs.inferences) == DEFAULTS
    assert (
        needs.accelerator('axl') is Need.POSSIBLE
        and needs.camera('v4l2') is Need.UNUSED
        and needs.heap('dma_heap/system') is Need.POSSIBLE
    )


def sections(text: str, tmp_path: Path) -> Needs:
    path = tmp_path / 'vehicle.yaml'
    path.write_text(text, encoding='utf-8')
    return read_needs(str(path))


def test_sections_that_name_a_node_are_one_camera_each(tmp_path: Path) -> None:
    needs = sections(
        """
/**/capture: {ros__parameters: {camera: v4l2, slots: 5}}
left:
  capture: {ros__parameters: {device: /dev/video2}}
/right/capture: {ros__parameters: {device: /dev/video4, slots: 7}}
/**/inference: {ros__parameters: {accelerator: axl, in_flight: 2}}
/other_package: {ros__parameters: {width: 1}}
""",
        tmp_path,
    )
    assert [(c.node, c['camera'], c['device'], c['slots']) for c in needs.cameras] == [
        ('/left/capture', 'v4l2', '/dev/video2', 5), ('/right/capture', 'v4l2', '/dev/video4', 7),
    ]  # fmt: skip
    assert [(i.node, i.kind, i['in_flight']) for i in needs.inferences] == [
        ('/inference', 'axl', 2)
    ]


def test_namespaces_can_be_given_as_for_perception(tmp_path: Path) -> None:
    (tmp_path / 'v.yaml').write_text(
        '/**/capture: {ros__parameters: {camera: v4l2}}\n/front/capture: {ros__parameters: '
        '{slots: 3}}\n'
    )
    needs = read_needs(str(tmp_path / 'v.yaml'), ['front', 'rear'])
    assert [(c.node, c['camera'], c['slots']) for c in needs.cameras] == [
        ('/front/capture', 'v4l2', 3),
        ('/rear/capture', 'v4l2', 8),
    ]
    with pytest.raises(ConfigError, match='--params-file'):
        read_needs('', ['front'])


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)
KEYS = st.sampled_from([*(name for need in DEFAULTS for name in need.values), 'other'])


@given(
    st.dictionaries(KEYS, VALUES, max_size=6),
    st.sampled_from(['/**', '/**/capture', '/x/inference', '/capture']),
)
def test_no_value_ends_the_doctor(values: dict[str, object], section: str) -> None:
    needs = needs_of([(section, values)], 'file')
    assert needs.summary()
    for need, default in zip((*needs.cameras, *needs.inferences), DEFAULTS, strict=True):
        assert {name: type(value) for name, value in need.values.items()} == {
            name: type(value) for name, value in default.values.items()
        }
