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

"""``perception --stereo`` as seen by another program: pairs with one stamp, and diagnostics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nodes.fault_kit import Reader
from nodes.ros_kit import ros, spun
import pytest
from sensor_msgs.msg import CameraInfo, Image

from zc_perception.camera.stereo import Side, StereoSides
from zc_perception.errors import ConfigError
from zc_perception.nodes.capture import StereoRig, StereoSide
from zc_perception.nodes.perception import stereo_nodes

BOTH = {'camera': 'synthetic', 'stamps': 'now', 'keep_all': False, 'stereo_tolerance': 0.005}
SIDES = ('left', 'right')


@contextmanager
def pair(domain: int, folder: Path, sections: dict[str, str]) -> Iterator[Reader]:
    """Run both sides in the namespace ``truck`` with these parameters; yield a reader."""
    file = folder / 'stereo.yaml'
    values = {**sections, 'inference': 'model: hog'}.items()
    file.write_text(''.join(f'/**/{n}: {{ros__parameters: {{{these}}}}}\n' for n, these in values))
    arguments = '--params-file', str(file), '-r', '__ns:=/truck'
    with (
        ros(domain, *arguments) as context,
        spun(context, *stereo_nodes(context, lambda: None)),
        Reader(domain) as reader,
    ):
        yield reader


def stamps(messages: list[Any]) -> set[int]:
    return {m.header.stamp.sec * 1_000_000_000 + m.header.stamp.nanosec for m in messages}


def test_two_cameras_give_pairs_in_two_namespaces(tmp_path: Path, free_domain: int) -> None:
    # Synthetic cameras have no common trigger: a tolerance above one frame's time pairs any two.
    both = 'width: 128, height: 128, framerate: 60.0, pattern: counter, stereo_tolerance: 0.02'
    names = [f'truck/{side}/capture: stereo' for side in SIDES]
    own = {f'{side}/capture': f'frame_id: {side[0]}' for side in SIDES}
    with pair(free_domain, tmp_path, {'capture': both, **own}) as reader:
        infos = [reader.hear(CameraInfo, f'/truck/{side}/camera_info', 50) for side in SIDES]
        images = [reader.hear(Image, f'/truck/{side}/image_raw', 50) for side in SIDES]

        def pairs(messages: list[list[Any]]) -> int:
            return len(stamps(messages[0]) & stamps(messages[1]))

        # Best-effort readers may miss big messages; camera_info is small.
        reader.until(lambda: pairs(infos) >= 30 and pairs(images) >= 5, reader.messages)
        reader.until(
            lambda: all(int(reader.values(name).get('pairs', 0)) for name in names),
            reader.messages,
        )
        left, right = map(stamps, infos)
        values = [reader.values(name) for name in names]
    first, last = max(min(left), min(right)), min(max(left), max(right))
    both_ran = {stamp for stamp in left | right if first <= stamp <= last}
    assert len(left & right) >= 0.8 * len(both_ran), (
        'nothing but pairs; the middleware may lose some messages'
    )
    assert [{image.header.frame_id for image in one} for one in images] == [{'l'}, {'r'}]
    for found, side in zip(values, SIDES, strict=True):
        assert {'unmatched_left', 'unmatched_right'} <= set(found)
        assert (found['side'], found['tolerance']) == (side, '20 ms')


def test_a_side_whose_partner_is_not_there_says_so(tmp_path: Path, free_domain: int) -> None:
    name, gone = 'truck/left/capture: stereo', 'camera: v4l2, device: /dev/video77'
    sections = {'capture': 'width: 128, height: 128', 'right/capture': gone}
    with pair(free_domain, tmp_path, sections) as reader:
        infos = reader.hear(CameraInfo, '/truck/left/camera_info')
        reader.until(
            lambda: int(reader.values(name).get('unmatched_left', 0)) > 5, reader.messages
        )
        assert 'the right camera is not open' in reader.text(name) and not infos
        assert reader.values(name)['pairs'] == '0'


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
    with pytest.raises(
        ConfigError, match=r"node 'right'.*replays a recording with the recorded stamps"
    ):
        StereoSide(rig, Side.RIGHT).begin('right', {**BOTH, 'stereo_tolerance': 0.0123})
    keeps = {**BOTH, 'camera': 'replay', 'keep_all': True}
    with pytest.raises(ConfigError, match="parameter 'keep_all' is true"):
        StereoSide(StereoRig(), Side.LEFT).begin('left', keeps)
