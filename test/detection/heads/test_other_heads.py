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

"""Heads of other packages: found by entry points; a broken one gives a clear error."""

from __future__ import annotations

from pathlib import Path

from entry_point_kit import install, offer_alone
import numpy as np
import pytest
import yaml

from zc_perception.detection.heads import make_head
from zc_perception.detection.heads.spec import DecodeLimits, HeadSpec
from zc_perception.detection.letterbox import Letterbox
from zc_perception.detection.raw_tensor import RawTensor
from zc_perception.errors import ConfigError
from zc_perception.npu.manifest import load_manifest

SOURCE = """
from zc_perception.detection.heads.boxes import Boxes
from zc_perception.rules import Key, number


class Half(Boxes):
    '''Boxes whose scores count for a part.'''

    OPTIONS = {**Boxes.OPTIONS, 'part': Key(number(0.1, 1.0), 'Of a score that counts.', 0.5)}

    def decode(self, outputs, box, limits):
        found = super().decode(outputs, box, limits)
        return type(found)(found.boxes, found.scores * self._spec.part, found.classes)


nothing = 3


def no_head(spec):
    return spec
"""


@pytest.fixture(autouse=True)
def own_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / 'site'
    values = {
        'half': 'half_head:Half',
        'nothing': 'half_head:nothing',
        'no_head': 'half_head:no_head',
        'broken': 'half_head:Missing',
    }
    install(folder, 'half-head', {'zc_perception.heads': values})
    (folder / 'half_head.py').write_text(SOURCE, encoding='utf-8')
    offer_alone(monkeypatch, folder)


def test_a_manifest_names_a_head_of_another_package_and_it_decodes(tmp_path: Path) -> None:
    values = {
        'engine': 'opencv_hog',
        'head': {'kind': 'half', 'part': 0.25},
        'classes': ['a'],
        'input': {'resize': 'none'},
    }
    (tmp_path / 'model.yaml').write_text(yaml.safe_dump(values), encoding='utf-8')
    head = make_head(load_manifest(str(tmp_path)).head)
    rows = RawTensor(np.array([[8, 8, 24, 24, 0.8, 0]], np.float32))
    found = head.decode([rows], Letterbox.fit(64, 48, 64, 48), DecodeLimits(0.5, 0.5, 10))
    assert found.scores.tolist() == pytest.approx([0.2]) and found.boxes.tolist() == [
        [8, 8, 24, 24]
    ]


@pytest.mark.parametrize(('kind', 'words'), [
    ('nothing', "head 'nothing' is 3, which is no class derived from zc_"),
    ('broken', "of package 'half-head' can't be imported (half_head:Missing): Attr"),
    ('hal', ", broken, half, no_head, nothing; did you mean 'half'"),
])  # fmt: skip
def test_what_is_no_head_is_refused_with_its_package(kind: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_head(HeadSpec(kind, 1))
    assert words in str(caught.value)


@pytest.mark.parametrize(('option', 'words'), [
    ('part: 2', "key 'head.part' is 2; it must be a number from 0.1 to 1.0"),
    ('reg_max: 4', "head.reg_max is not for head 'half'; it is for yolov8: leave the option out"),
])  # fmt: skip
def test_its_own_options_have_rules_as_this_package_s(
    option: str, words: str, tmp_path: Path
) -> None:
    (tmp_path / 'model.yaml').write_text(
        f'head: {{kind: half, {option}}}\nclasses: [a]\n', encoding='utf-8'
    )
    with pytest.raises(ConfigError) as caught:
        load_manifest(str(tmp_path))
    assert words in str(caught.value)
