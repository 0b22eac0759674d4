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

"""Each question of the doctor to a real process."""

from __future__ import annotations

import json
import os
from pathlib import Path
import subprocess
from types import SimpleNamespace
from typing import Any

from camera.gstreamer_process import gstreamer
from npu.axruntime_kit import build_double
import pytest

from zc_perception.camera.argus import describe_nvbufsurface, describe_vic
from zc_perception.camera.gstreamer.camera import describe_gstreamer, try_pipeline
from zc_perception.camera.libcamera import describe_libcamera
from zc_perception.doctor.answers import check_parameters, describe_ros, try_model
from zc_perception.doctor.needs import node_need
from zc_perception.machine.asking import ask
from zc_perception.npu import selection
from zc_perception.npu.axruntime.checks import describe_voyager

pytestmark = pytest.mark.usefixtures('no_fd_leak')
TEST = Path(__file__).parents[1]
CONFIG = TEST.parent / 'config' / 'perception.yaml'


def test_ros_is_described_without_importing_it_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('AMENT_PREFIX_PATH', f'/nowhere:{os.environ["AMENT_PREFIX_PATH"]}')
    answer = ask(describe_ros)
    assert 'error' not in answer and answer['rclpy_version']
    assert answer['middleware'] in answer['middlewares']
    assert not any('shared' in name for name in answer['middlewares'])
    assert set(answer['messages'].values()) == {''} and 'vision_msgs.msg' in answer['messages']


def test_a_middleware_that_is_not_installed_is_told_before_rcl_ends_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv('RMW_IMPLEMENTATION', 'rmw_of_nobody_cpp')
    answer = ask(describe_ros)
    assert answer['missing'] == 'rmw_of_nobody_cpp' and answer['messages'] == {}
    assert 'rmw_of_nobody_cpp' not in answer['middlewares']
    error = ask(check_parameters, str(CONFIG))['error']
    assert "'rmw_of_nobody_cpp', which is not installed" in error


def parameters(text: str, tmp_path: Path) -> dict[str, Any]:
    path = tmp_path / 'vehicle.yaml'
    path.write_text(text, encoding='utf-8')
    return ask(check_parameters, str(path))


def test_each_key_and_section_that_the_nodes_refuse_is_named(tmp_path: Path) -> None:
    answer = parameters(
        """
/**/capture:
  ros__parameters: {widht: 640, height: 99999, slots: 8, use_sim_time: true,
                    qos_overrides: {/image_raw: {publisher: {depth: 2}}}}
/**/inferense: {ros__parameters: {model: road}}
/**: {ros__parameters: {acelerator: axl, unrelated_parameter_of_another_node: 1, framerate: fast}}
/planner: {ros__parameters: {speed: 3}}
""",
        tmp_path,
    )
    text = '\n'.join(answer['problems'])
    assert len(answer['problems']) == 4, text
    for words in (
        "section '/**/capture': parameter 'widht' is unknown; did you mean 'width'?",
        "section '/**/capture': parameter 'height' is 99999; it must be an integer from 0 to 8192",
        "section '/**/inferense': there is no node 'inferense'; did you mean 'inference'?",
        "section '/**': parameter 'framerate' is 'fast'",
    ):
        assert words in text
    # A node only warns of these: they may belong to another package.
    lacks = "section '/**': no node of zc_perception has a parameter"
    assert answer['warnings'] == [
        f"{lacks} 'acelerator'; did you mean 'accelerator'? (line 6)",
        f"{lacks} 'unrelated_parameter_of_another_node' (line 6)",
    ]
    assert parameters('- 1', tmp_path)['problems']


def test_a_model_is_loaded_and_given_back() -> None:
    answer = ask(try_model, json.dumps(dict(node_need('inference', {}).values)))
    assert {'accelerator': 'onnx', 'engine': 'onnx', 'copy_free': False}.items() <= answer.items()
    assert len(answer['reasons']) == 2
    assert answer['engines'].keys() == {'onnx'} and Path(answer['manifest']).is_file()


def test_the_accelerator_is_given_back_even_if_it_can_not_be_described(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed: list[str] = []

    def is_gone() -> None:
        raise OSError('the card is gone')

    card = SimpleNamespace(capabilities=is_gone, close=lambda: closed.append('closed'))
    opened = SimpleNamespace(accelerator=card)
    monkeypatch.setattr(selection, 'open_accelerator', lambda *arguments: opened)
    with pytest.raises(OSError, match='the card is gone'):
        try_model(json.dumps(dict(node_need('inference', {}).values)))
    assert closed == ['closed']


@pytest.mark.parametrize(
    ('values', 'stage', 'words'),
    [
        ({'model': 'raod'}, 'manifest', "did you mean 'road'"),
        ({'accelerator': 'axl'}, 'accelerator', 'Metis'),
    ],
)
def test_a_model_that_can_not_run_is_the_inference_nodes_own_sentence(
    values: dict[str, Any], stage: str, words: str
) -> None:
    answer = ask(try_model, json.dumps(dict(node_need('inference', {}).values) | values))
    assert answer['stage'] == stage and words in answer['error']


def test_the_runtime_is_loaded_and_its_version_told(tmp_path: Path) -> None:
    (tmp_path / 'runtime-1.7.2').mkdir()
    library = build_double(tmp_path / 'runtime-1.7.2/libaxruntime.so')
    answer = ask(describe_voyager, str(library))
    assert answer['path'] == answer['file'] == str(library) and answer['api_version'] == '1.6.0'
    assert (answer['release'], answer['python_binding']) == (
        '1.7.2',
        'axruntime_library names the C library',
    )
    (tmp_path / 'libother.so').write_bytes(b'no library')
    assert 'libother.so' in ask(describe_voyager, str(tmp_path / 'libother.so'))['error']


def test_the_vendors_python_package_is_preferred(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / 'axelera').mkdir()
    (tmp_path / 'axelera' / 'runtime.py').write_text('__version__ = "1.8.0"\nclass Context: ...\n')
    monkeypatch.setenv('PYTHONPATH', str(tmp_path))
    expected = {'path': 'axelera.runtime', 'release': '1.8.0', 'python_binding': ''}
    assert expected.items() <= ask(describe_voyager).items()
    failing = 'raise ImportError("made for another Python")'
    (tmp_path / 'axelera' / 'runtime.py').write_text(failing)
    build_double(tmp_path / 'axelera' / 'libaxruntime.so')
    monkeypatch.setenv('LD_LIBRARY_PATH', str(tmp_path / 'axelera'))
    answer = ask(describe_voyager)
    assert (answer['path'], answer['release']) == ('libaxruntime.so', '1.6.0')
    assert 'made for another Python' in answer['python_binding']


def test_nvbufsurface_is_tried(tmp_path: Path) -> None:
    library = tmp_path / 'libnvbufsurface.so'
    subprocess.run(
        ['gcc', '-shared', '-fPIC', '-o', library, TEST / 'doubles' / 'nvbufsurface.c'], check=True
    )
    assert ask(describe_nvbufsurface, str(library)) == {'loaded': True, 'file': str(library)}
    assert ask(describe_nvbufsurface, '/nowhere.so')['loaded'] is False
    assert 'error' in ask(describe_vic, '/nowhere.so')
    assert ask(describe_vic, str(library)) == {'file': str(library)}


def test_libcameras_cameras_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / 'libcamera.py').write_text(
        'import sys\nfrom doubles.libcamera_module import Camera, make_module\nmade = '
        'make_module("new")\nmade.manager.cameras.append(Camera(made, '
        '"/base/imx708@1a"))\nsys.modules["libcamera"] = made\n'
    )
    monkeypatch.setenv('PYTHONPATH', f'{tmp_path}{os.pathsep}{TEST}')
    answer = ask(describe_libcamera)
    assert '/base/imx708@1a' in answer['cameras'] and answer['version'] == 'v0.7.0'
    (tmp_path / 'libcamera.py').write_text('')
    assert "isn't libcamera's" in ask(describe_libcamera)['error']


def test_gstreamers_elements_and_pipelines_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in gstreamer().environment().items():
        monkeypatch.setenv(name, value)
    answer = ask(describe_gstreamer, 'v4l2src', 'appsink', 'nvarguscamerasrc')
    assert answer['version'].startswith('1.')
    elements = answer['elements']
    assert elements['v4l2src'] == elements['appsink'] == {'there': True}
    assert elements['nvarguscamerasrc'] == {'there': False}
    assert ask(try_pipeline, 'videotestsrc ! video/x-raw,format=NV12') == {}
    assert 'nosuchsrc' in ask(try_pipeline, 'nosuchsrc')['error']


def test_without_gstreamer_the_packages_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / 'libgstreamer-1.0.so.0').write_bytes(b'no library')
    monkeypatch.setenv(
        'LD_LIBRARY_PATH', f'{tmp_path}{os.pathsep}{os.environ.get("LD_LIBRARY_PATH", "")}'
    )
    assert 'apt install' in ask(describe_gstreamer)['error']
