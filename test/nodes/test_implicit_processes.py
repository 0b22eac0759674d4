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
A block-linear sensor in ``capture_node`` alone, its consumers in other processes.

GStreamer is real; Jetson's libraries are doubles.
"""

from __future__ import annotations

import os
from pathlib import Path
import subprocess

from camera.gstreamer_process import build_plugin, DOUBLES, gstreamer
from nodes.programs import parameters, PlainSubscriber, Program
import pytest
from waiting import until

SENSOR = (
    'nvarguscamerasrc double-layout=1 ! '
    'video/x-raw(memory:NVMM),width=320,height=240,framerate=30/1'
)


@pytest.fixture(scope='module')
def jetson(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Yield the environment of a machine with an Argus source and NvBufSurface, without a VIC."""
    plugins, libraries = tmp_path_factory.mktemp('plugins'), tmp_path_factory.mktemp('libraries')
    root = gstreamer()
    build_plugin(root, 'gst_argus.c', plugins)
    for name in ('nvbufsurface', 'nvbufsurftransform'):
        target = libraries / ('with_vic' if name == 'nvbufsurftransform' else '') / f'lib{name}.so'
        target.parent.mkdir(exist_ok=True)
        subprocess.run(
            ['gcc', '-shared', '-fPIC', '-Wall', '-Werror', '-o', target, DOUBLES / f'{name}.c'],
            check=True,
        )
    found = root.environment(plugins)
    # The middleware's libraries are found by it as well.
    path = ':'.join(
        filter(None, (str(libraries), found['LD_LIBRARY_PATH'], os.environ.get('LD_LIBRARY_PATH')))
    )
    return {
        **found,
        'LD_LIBRARY_PATH': path,
        'NVBUF_LIBRARY': str(libraries / 'libnvbufsurface.so'),
    }


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('ROS_HOME', str(tmp_path))
    monkeypatch.setenv('ZC_RUNTIME_DIR', str(tmp_path / 'run'))


def capture(domain: int, machine: dict[str, str]) -> Program:
    options = parameters(capture__camera='argus', capture__pipeline=f'"{SENSOR}"')
    with pytest.MonkeyPatch.context() as patch:
        for name, value in machine.items():
            patch.setenv(name, value)
        # Where libraries are found is read at a process's start only.
        return Program('capture_node', *options, domain=domain, cold=True)


def until_said(program: Program, *words: str) -> None:
    until(
        lambda: all(word in program.output for word in words),
        lambda: f'{words} in:\n{program.output}',
    )


def test_without_a_vic_it_runs_and_consumers_that_need_linear_images_are_refused_by_name(
    jetson: dict[str, str], free_domain: int
) -> None:
    with capture(free_domain, jetson) as camera:
        camera.start('NV12 INVALID 320x240')
        until_said(camera, 'stay block-linear')
        viewer = PlainSubscriber(['600', '--image', '--until-images', '1'], domain=free_domain)
        reader = Program(
            'inference_node',
            *parameters(inference__model='hog', inference__accelerator='onnx'),
            domain=free_domain,
        )
        with reader:
            reader.start('ready')
            try:
                until_said(
                    camera,
                    (
                        'plain reader(s) of image_raw get no picture: NV12 with modifier INVALID '
                        'has no rows'
                    ),
                    "'viewer: NV12'",
                )
                misfit = (
                    'no common pixel format and modifier (argus camera: NV12 INVALID; inference'
                )
                until_said(camera, 'inference', misfit)
                until_said(reader, misfit)
            finally:
                viewer.process.kill()
                viewer.process.wait()
            assert reader.interrupt() == 0 and 'Traceback' not in reader.output
        assert camera.interrupt() == 0 and 'Traceback' not in camera.output


def test_with_a_vic_everybody_can_read_it(jetson: dict[str, str], free_domain: int) -> None:
    transform = Path(jetson['NVBUF_LIBRARY']).parent / 'with_vic'
    with capture(
        free_domain, {**jetson, 'LD_LIBRARY_PATH': f'{transform}:{jetson["LD_LIBRARY_PATH"]}'}
    ) as camera:
        camera.start('NV12 LINEAR 320x240', 'the VIC makes one of each frame')
        viewer = PlainSubscriber(['120', '--image', '--until-images', '3'], domain=free_domain)
        assert viewer.result()['images'] == 3
        assert camera.interrupt() == 0


PICTURE = 'video/x-raw,format={},width={},height=48,framerate=30/1'


@pytest.mark.parametrize('live', [0, 1])
def test_frames_of_the_new_kind_follow_those_of_the_old(
    live: int, free_domain: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = gstreamer()
    build_plugin(root, 'gst_frames.c', tmp_path)
    found = root.environment(tmp_path)
    libraries = ':'.join(
        filter(None, (found['LD_LIBRARY_PATH'], os.environ.get('LD_LIBRARY_PATH')))
    )
    monkeypatch.setenv('ROS_HOME', str(tmp_path))
    pipeline = (
        f'zcframes live={live} rate=30 change-at=20 frame-size=4608 '
        f'caps-text={PICTURE.format("NV12", 64)} '
        f'caps-later={PICTURE.format("NV21", 32)} strides=64,64 offsets=0,3072'
    )
    options = parameters(capture__camera='gstreamer', capture__pipeline=f'"{pipeline}"')
    with monkeypatch.context() as patch:
        for name, value in {**found, 'LD_LIBRARY_PATH': libraries}.items():
            patch.setenv(name, value)
        camera = Program('capture_node', *options, domain=free_domain, cold=True)
    with camera:
        camera.start(
            'NV12 LINEAR 64x48',
            "now gives 'video/x-raw",
            'NV21 LINEAR 32x48',
            'the camera is back',
        )
        viewer = PlainSubscriber(['120', '--image', '--until-images', '3'], domain=free_domain)
        assert viewer.result()['image']['size'] == [32, 48]
        assert camera.output.count('now gives') == 1 and camera.interrupt() == 0
