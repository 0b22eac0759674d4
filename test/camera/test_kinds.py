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

"""The kinds of cameras, those of other packages included."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
import re
import subprocess
import sys
import time
from typing import Any

from entry_point_kit import install, offer_alone
import pytest

from zc_perception.camera.camera import CameraOptions
from zc_perception.camera.kinds import CAMERAS
from zc_perception.errors import ConfigError
from zc_perception.memory.heaps import SealedMemfd
from zc_perception.memory.ledger import CopyLedger
from zc_perception.negotiation.agreement import agree
from zc_perception.nodes.declarations import NODES

PAGE = Path(__file__).resolve().parents[2] / 'docs' / 'contributing.md'
OWN = """
from zc_perception.camera.camera import Camera, DrawnCamera

class Grey(DrawnCamera):
    def render(self, sequence, luma, chroma):
        luma[:], chroma[:] = 100, 128
        return True

class Unfinished(Camera):
    pass
"""
PARAMETERS = {'width': 0, 'height': 0, 'framerate': 0.0, 'frame_id': 'lens', 'heap': 'memfd'}


@pytest.fixture
def own_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = {'own_grey': 'own_grey:Grey', 'unfinished': 'own_grey:Unfinished'}
    entries |= {'number': 'math:pi', 'gone': 'own_gone:Camera', 'misnamed': 'own_grey:Gray'}
    kinds = {'zc_perception.cameras': {**entries, 'v4l2': 'own_grey:Grey'}}
    install(tmp_path, 'own-camera', kinds)
    (tmp_path / 'own_grey.py').write_text(OWN, encoding='utf-8')
    offer_alone(monkeypatch, tmp_path)


@pytest.mark.usefixtures('own_package')
def test_a_camera_of_another_package_is_opened_by_its_kind() -> None:
    assert CAMERAS.others == ('gone', 'misnamed', 'number', 'own_grey', 'unfinished'), (
        'nobody takes the place of a kind of this package'
    )
    options = CameraOptions(PARAMETERS, lambda: 0, CopyLedger())
    with closing(CAMERAS.load('own_grey').open(options)) as camera:
        said = camera.width, camera.height, camera.framerate, camera.heap_name
        assert said == (640, 360, 30.0, 'memfd') and not camera.ended and camera.slots == ()
        assert camera.pool_statistics() is None and not camera.controls()
        with pytest.raises(ConfigError, match=r"Grey has no control 'gain'; it has none"):
            camera.set_control('gain', 1)
    assert CAMERAS.load('v4l2').__name__ == 'V4l2'
    words = 'Unfinished does not override the class method open'
    with pytest.raises(NotImplementedError, match=words):
        CAMERAS.load('unfinished').open(options)


@pytest.mark.usefixtures('own_package')
@pytest.mark.parametrize(('kind', 'message'), [
    ('own_gray',
     r"camera 'own_gray' is not known; it must be one of synthetic, .*, gone, misnamed, "
     r"number, own_grey, unfinished; did you mean 'own_grey'\?"),
    ('misnamed',
     (r"'misnamed' of package .* AttributeError: .*'Gray'.*; try: python3 -c \"from "
      r'own_grey import Gray\"')),
])  # fmt: skip
def test_a_kind_that_cannot_be_used_is_named(kind: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CAMERAS.load(kind)


OTHER = """
from zc_perception.camera.camera import DrawnCamera
from zc_perception.parameters import ParameterSpec

class Bright(DrawnCamera):
    PARAMETERS = (
        ParameterSpec('gain', 1, 'how bright.', '', 0, 9),
        ParameterSpec('seed', 0, 'of the noise.', '', 0, 2**31 - 1),
    )

class Loud(DrawnCamera):
    PARAMETERS = (ParameterSpec('gain', 1, 'how loud.', '', 0, 7),)

class Slotted(DrawnCamera):
    PARAMETERS = (ParameterSpec('slots', 8, 'its own.', '', 3, 64),)

class Timed(DrawnCamera):
    PARAMETERS = (ParameterSpec('use_sim_time', False, 'its own.'),)
"""


def offer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packages: dict[str, dict[str, str]]
) -> None:
    """Install packages with these kinds, all of them classes of one module."""
    for number, (package, entries) in enumerate(packages.items()):
        install(tmp_path, package, {'zc_perception.cameras': entries})
        (tmp_path / f'other_{number}.py').write_text(OTHER, encoding='utf-8')
    offer_alone(monkeypatch, tmp_path)


def test_a_parameter_of_two_kinds_is_one_whose_text_says_what_it_means_to_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(tmp_path, monkeypatch, {'own': {'bright': 'other_0:Bright', 'gone': 'other_0:Gone'}})
    declared = CAMERAS.declared
    texts = {spec.name: spec.description for spec in declared.parameters}
    assert texts['seed'] == (
        'synthetic: number of the scene. The same number gives the same scene. bright: of the '
        'noise.'
    )
    assert texts['pipeline_buffers'].startswith('gstreamer, argus, libcamera: number of')
    assert (declared.readers['seed'], declared.readers['gain']) == (
        ('synthetic', 'bright'),
        ('bright',),
    )
    (broken,) = declared.broken
    assert "'gone' of package 'own' can't be imported" in broken and 'gone' not in declared.classes


def test_parameters_of_one_name_that_differ_are_named_with_their_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = {'own-bright': {'bright': 'other_0:Bright'}, 'own-loud': {'loud': 'other_1:Loud'}}
    offer(tmp_path, monkeypatch, packages)
    with pytest.raises(ConfigError) as refused:
        _ = CAMERAS.declared
    assert str(refused.value) == (
        "parameter 'gain' of camera 'loud' of package 'own-loud' differs from that of camera "
        "'bright' of package 'own-bright': "
        'an integer from 0 to 7, by default 1, and an integer from 0 to 9, by default 1; give '
        'one of the parameters another name, or uninstall a package'
    )


@pytest.mark.parametrize(('name', 'of'), [('slots', 'Slotted'), ('use_sim_time', 'Timed')])
def test_a_kind_s_parameter_can_not_have_the_name_of_a_node_s(
    name: str, of: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(tmp_path, monkeypatch, {'own': {'another': f'other_0:{of}'}})
    with pytest.raises(ConfigError, match=f"'{name}' of camera 'another' of package 'own' has"):
        list(NODES['capture'])


@pytest.mark.parametrize(('declared', 'message'), [
    ("(ParameterSpec('gain', 12, '', '', 0, 9),)",
     "can't be imported (wrong:Wrong): the default of parameter 'gain' is 12; it must be "
     'an integer from 0 to 9'),
    ("(ParameterSpec('gain', {}, ''),)",
     "the default of parameter 'gain' is {}; it must be a boolean (true or false), an"),
    ('None', "camera 'wrong' of package 'own-wrong' has PARAMETERS = None; it must be"),
    ("('gain',)", "has PARAMETERS = ('gain',); it must be a tuple"),
    ("()\n__import__('sys').exit('no SDK')",
     "can't be imported (wrong:Wrong): SystemExit: no SDK"),
])  # fmt: skip
def test_a_wrong_declaration_costs_other_kinds_nothing(
    declared: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, 'own-wrong', {'zc_perception.cameras': {'wrong': 'wrong:Wrong'}})
    imports, _, _ = OTHER.partition('class')
    code = f'{imports}class Wrong(DrawnCamera):\n    PARAMETERS = {declared}\n'
    (tmp_path / 'wrong.py').write_text(code, encoding='utf-8')
    monkeypatch.delitem(sys.modules, 'wrong', raising=False)
    offer_alone(monkeypatch, tmp_path)
    (broken,) = NODES['capture'].broken
    assert message in broken and "'own-wrong'" in broken
    assert 'slots' in (spec.name for spec in NODES['capture'])
    with pytest.raises(ConfigError, match="'own-wrong'"):
        CAMERAS.load('wrong')


def test_what_the_chosen_kind_does_not_read_is_said_unless_it_is_the_default() -> None:
    given = {'camera': 'v4l2', 'device': '/dev/video3', 'loop': True, 'pixel_format': 'NV12'}
    unread = NODES['capture'].unread
    assert unread(given) == {}
    assert unread(given | {'camera': 'libcamera'}).keys() == {'device', 'pixel_format'}
    (sentence,) = unread({'pipeline': 'videotestsrc'}).values()
    assert sentence.startswith("parameter 'pipeline' is read by camera: gstreamer, argus only")


@pytest.mark.usefixtures('no_fd_leak')
def test_the_camera_of_the_page_passes_the_test_of_the_page() -> None:
    """The code is in docs/contributing.md, under "Add a camera"."""
    page = PAGE.read_text(encoding='utf-8')
    camera, test = re.findall(r'^```python\n(.*?)^```$', page, re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {'SealedMemfd': SealedMemfd, 'CopyLedger': CopyLedger}
    names |= {'agree': agree, 'time': time}
    exec(camera + test, names)
    names['test_the_first_frame_is_black']()


def test_declarations_are_read_without_the_code_of_large_cameras() -> None:
    """Every capture node reads all declarations when it starts, and runs only one camera."""
    code = (
        'import sys; from zc_perception.camera.kinds import CAMERAS; CAMERAS.declared; '
        "print(*(name for name in ('argus', 'gstreamer.pipeline', 'v4l2.device', 'replay.video') "
        "if f'zc_perception.camera.{name}' in sys.modules))"
    )
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
    assert not done.stdout.split()
