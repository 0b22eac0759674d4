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
``perception --stereo`` as a user meets it.

Pairs in two namespaces with one stamp, diagnostics of both sides, otherwise one clear line.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray
from nodes.programs import BIN, environment, Program
from nodes.ros_kit import Onlooker
import pytest
from sensor_msgs.msg import CameraInfo, Image
import warm_start

from zc_perception.camera.stereo import Side, StereoSides
from zc_perception.errors import ConfigError
from zc_perception.nodes.capture import StereoRig, StereoSide

WAIT_S = 120.0
READY = tuple(
    f'{side}.{node}]: ready'
    for side in ('left', 'right')
    for node in ('capture', 'inference', 'overlay')
)
BOTH = {'camera': 'synthetic', 'stamps': 'now', 'keep_all': False, 'stereo_tolerance': 0.005}


def _yaml(folder: Path, **sections: str) -> str:
    file = folder / 'stereo.yaml'
    names = {
        'both': '/**/capture',
        'left': '/**/left/capture',
        'right': '/**/right/capture',
        'inference': '/**/inference',
    }
    file.write_text(
        ''.join(
            f'{names[name]}:\n  ros__parameters: {{{values}}}\n'
            for name, values in sections.items()
        )
    )
    return str(file)


class Listener(Onlooker):
    """
    A plain node as another process has it.

    It notes the stamps of pictures and camera_info by side, and diagnostics.
    """

    def __init__(self, domain: int, prefix: str = '') -> None:
        super().__init__(domain)
        self.stamps: dict[str, set[int]] = {}
        self.frame_ids: dict[str, set[str]] = {}
        self.status: dict[str, Any] = {}
        for side in ('left', 'right'):
            for topic, kind in (('image_raw', Image), ('camera_info', CameraInfo)):
                self.node.create_subscription(
                    kind, f'{prefix}/{side}/{topic}', self._keep(f'{side}/{topic}'), 50
                )
        self.node.create_subscription(DiagnosticArray, '/diagnostics', self._on_diagnostics, 50)

    def _keep(self, name: str) -> Callable[[Any], None]:
        stamps, frame_ids = (
            self.stamps.setdefault(name, set()),
            self.frame_ids.setdefault(name, set()),
        )

        def keep(message: Any) -> None:
            stamps.add(message.header.stamp.sec * 1_000_000_000 + message.header.stamp.nanosec)
            frame_ids.add(message.header.frame_id)

        return keep

    def _on_diagnostics(self, message: DiagnosticArray) -> None:
        for status in message.status:
            self.status[status.name] = (
                status.message,
                {value.key: value.value for value in status.values},
            )

    def heard(self) -> str:
        return f'{self.status}, { ({name: len(stamps) for name, stamps in self.stamps.items()}) }'


def test_two_cameras_give_pairs_in_two_namespaces(tmp_path: Path, free_domain: int) -> None:
    prefix = '/truck'
    # Nobody triggers synthetic cameras together: a tolerance of more than a frame's time makes
    # pairs of any two.
    both = 'width: 128, height: 128, framerate: 60.0, pattern: counter, stereo_tolerance: 0.02'
    file = _yaml(
        tmp_path,
        both=both,
        left='seed: 1, frame_id: l',
        right='seed: 2, frame_id: r',
        inference='model: hog',
    )
    words = '--stereo', '--ros-args', '--params-file', file, '-r', f'__ns:={prefix}'
    with Program('perception', *words, domain=free_domain).start(*READY) as program:
        with Listener(free_domain, prefix) as listener:
            names = [f'truck/{side}/capture: stereo' for side in ('left', 'right')]
            # Best-effort readers of big messages may miss some; camera_info is small.
            listener.until(
                lambda: (
                    len(listener.stamps['left/camera_info'] & listener.stamps['right/camera_info'])
                    >= 30
                    and len(listener.stamps['left/image_raw'] & listener.stamps['right/image_raw'])
                    >= 5
                    and all(
                        name in listener.status and int(listener.status[name][1]['pairs']) > 0
                        for name in names
                    )
                ),
                listener.heard,
                WAIT_S,
            )
        left, right = listener.stamps['left/camera_info'], listener.stamps['right/camera_info']
        first, last = max(min(left), min(right)), min(max(left), max(right))
        both = {stamp for stamp in left | right if first <= stamp <= last}
        assert len(left & right) >= 0.8 * len(both), (
            'nothing but pairs; the middleware may lose some messages'
        )
        assert listener.frame_ids['left/image_raw'] == {'l'} and listener.frame_ids[
            'right/image_raw'
        ] == {'r'}
        for name, side in zip(names, ('left', 'right'), strict=True):
            values = listener.status[name][1]
            assert {'pairs', 'unmatched_left', 'unmatched_right'} <= set(values)
            assert values['side'] == side and values['tolerance'] == '20 ms'
        assert program.interrupt() == 0, program.output


def test_a_side_whose_partner_is_not_there_says_so(tmp_path: Path, free_domain: int) -> None:
    file = _yaml(
        tmp_path,
        both='width: 128, height: 128',
        right='camera: v4l2, device: /dev/video77',
        inference='model: hog',
    )
    with Program(
        'perception', '--stereo', '--ros-args', '--params-file', file, domain=free_domain
    ).start('[left.capture]: ready') as program:
        with Listener(free_domain) as listener:
            name = 'left/capture: stereo'
            listener.until(
                lambda: (
                    name in listener.status and int(listener.status[name][1]['unmatched_left']) > 5
                ),
                listener.heard,
                WAIT_S,
            )
        message, values = listener.status[name]
        assert 'the right camera is not open' in message and values['pairs'] == '0'
        assert not listener.stamps['left/camera_info']
        assert program.interrupt() == 0, program.output


def test_what_can_not_be_a_pair_ends_with_one_clear_line(tmp_path: Path, free_domain: int) -> None:
    file = _yaml(tmp_path, inference='model: hog', left='stereo_tolerance: 0.01')
    command = [str(BIN / 'perception'), '--stereo', '--ros-args', '--params-file', file]
    done = warm_start.run(command, env=environment(free_domain), timeout=120)
    lines = [line for line in (done.stdout + done.stderr).splitlines() if 'error' in line]
    message = "'/right/capture': parameter 'stereo_tolerance' is 0.01 s on one side and 0.005 s"
    assert done.returncode == 2 and len(lines) == 1 and message in lines[0], done


def test_the_rule_is_the_parameters() -> None:
    rig = StereoRig()
    StereoSide(rig, Side.LEFT).begin(
        'left', {**BOTH, 'camera': 'replay', 'stamps': 'recorded', 'stereo_tolerance': 0.0123}
    )
    assert (
        isinstance(rig.sides, StereoSides)
        and rig.sides.rule.tolerance_ns == 12_300_000
        and rig.sides.rule.by_stamp
    )
    with pytest.raises(ConfigError, match=r"node 'right'.*replays a recording by its own stamps"):
        StereoSide(rig, Side.RIGHT).begin('right', {**BOTH, 'stereo_tolerance': 0.0123})
    keeps = {**BOTH, 'camera': 'replay', 'keep_all': True}
    with pytest.raises(ConfigError, match="parameter 'keep_all' is true"):
        StereoSide(StereoRig(), Side.LEFT).begin('left', keeps)
