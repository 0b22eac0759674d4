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
``zc_record`` beside a camera of another process.

The frames arrive as shared memory, and are on disk bit by bit, with other topics.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
import signal
import time
from typing import Any

from nodes.programs import parameters, Program
from nodes.ros_kit import ros
import numpy as np
import pytest
import rclpy
from rosbags.rosbag2 import Reader
from rosbags.typesys import get_types_from_msg, get_typestore, Stores
from std_msgs.msg import String
from waiting import until

from zc_perception.camera.replay.camera import open_source
from zc_perception.camera.synthetic import RoadScene
from zc_perception.nodes import recorder


def record(domain: int, *, cold: bool = False, **values: object) -> Program:
    return Program(
        'zc_record', *parameters(**{'disk_floor': 0, **values}), domain=domain, cold=cold
    )


def ended(recorder: Program) -> tuple[int, str]:
    """Its exit code, and all that it has said."""
    code = recorder.process.wait(60)
    recorder._reader.join(60.0)
    return code, recorder.output


def test_frames_and_topics_of_another_process_are_recorded_bit_by_bit(
    tmp_path: Path, free_domain: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('ZC_RUNTIME_DIR', str(tmp_path / 'run'))
    (tmp_path / 'run').mkdir(mode=0o700)
    path = tmp_path / 'a'
    camera = parameters(width=320, height=240, framerate=30.0, seed=7, heap='memfd')
    with (
        Program('capture_node', *camera, domain=free_domain).start('[capture]: ready'),
        record(free_domain, cold=True, path=path, copy_free='required').start() as recorder,
    ):
        file = path / 'a_0.mcap'
        until(lambda: file.exists() and file.read_bytes().count(b'capture: camera') > 1, 'status')
        assert recorder.interrupt() == 0
    with Reader(path) as reader:
        counts = {name: topic.msgcount for name, topic in reader.topics.items()}
        assert counts.keys() == {'/image_raw', '/camera_info', '/diagnostics'}, counts
        store = get_typestore(Stores.EMPTY)
        for connection in reader.connections:
            store.register(get_types_from_msg(connection.msgdef.data, connection.msgtype))
        read = [
            (connection.topic, store.deserialize_cdr(content, connection.msgtype))
            for connection, _, content in reader.messages()
        ]
    info = next(message for topic, message in read if topic == '/camera_info')
    assert (info.width, info.height, len(info.k)) == (320, 240, 9)
    names = {s.name for topic, message in read if topic == '/diagnostics' for s in message.status}
    assert 'capture: camera' in names
    frames = counts['/image_raw']
    written = f"{frames} frames and {sum(counts.values()) - frames} messages in '{path}' (1 files)"
    assert f'{written}, 0 left out because the disk was too slow, 0 refused' in recorder.output
    scene, found = RoadScene(320, 240, 7), []
    luma, chroma = np.empty((240, 320), np.uint8), np.empty((120, 160, 2), np.uint8)
    with closing(open_source(str(path))) as source:
        while (moment := source.advance()) is not None:
            assert moment.header is not None
            assert moment.header.frame_id == 'camera_optical_frame' and source.read([luma, chroma])
            found.append((luma.copy(), chroma.copy()))
    assert len(found) == frames
    number = -1
    for planes in found:  # a frame may be missing: the newest wins where the machine is busy
        number = next(n for n in range(number + 1, 10_000) if matches(scene, n, *planes))


def matches(scene: RoadScene, number: int, luma: np.ndarray, chroma: np.ndarray) -> bool:
    drawn = luma * 0, chroma * 0
    scene.draw(number, *drawn)
    return bool((drawn[0] == luma).all() and (drawn[1] == chroma).all())


def test_after_a_kill_the_recording_is_finished_by_hand_or_the_next_start(
    tmp_path: Path, free_domain: int
) -> None:
    path = tmp_path / 'a'
    camera = parameters(width=320, height=240, framerate=30.0, heap='memfd')
    with Program('capture_node', *camera, domain=free_domain).start('[capture]: ready'):
        for number in range(2):
            with record(free_domain, path=path, split_duration=1e6).start() as recorder:
                file = path / f'a_{number}.mcap'
                frames = 10 * 320 * 240 * 3 // 2
                until(lambda: file.exists() and file.stat().st_size > frames)  # noqa: B023
                recorder.process.send_signal(signal.SIGKILL)
                recorder.process.wait(60)
    assert "a_0.mcap' had no end; " in recorder.output
    with Program('zc_record', '--repair', str(path), domain=free_domain).start() as repair:
        code, output = ended(repair)
    assert code == 0 and "a_1.mcap' had no end; " in output, output
    with Reader(path) as reader:
        assert reader.topics['/image_raw'].msgcount >= 20
        assert len(list(reader.messages())) == reader.message_count


@pytest.mark.parametrize(
    ('values', 'said'), [({}, '0 frames and 0 messages in no file'), ({'autostart': False}, '')]
)
def test_a_signal_ends_it_with_what_there_is(
    values: dict[str, bool], said: str, tmp_path: Path, free_domain: int
) -> None:
    nothing = {'topics': ['nothing'], **values}
    with record(free_domain, path=tmp_path / 'a', **nothing).start(
        '[recorder]: ready'
    ) as recorder:
        assert recorder.interrupt() == 0
    assert said in recorder.output and 'Traceback' not in recorder.output, recorder.output


def test_a_topic_is_read_once_though_the_lookout_looks_at_the_same_time(
    free_domain: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ros(free_domain) as context:
        node = rclpy.create_node('recorder', context=context)
        publisher, ask = (
            node.create_publisher(String, 'status', 1),
            node.get_publishers_info_by_topic,
        )
        before = list(node.subscriptions)

        def slowly(name: str) -> Any:
            found = ask(name)
            time.sleep(0.1)  # as on a busy machine
            return found

        monkeypatch.setattr(node, 'get_publishers_info_by_topic', slowly)
        monkeypatch.setattr(recorder, '_LOOK_S', 0.001)
        topics = recorder.RecordedTopics(node, ['status'], print, pytest.fail)
        until(lambda: topics.names == ['/status'] and publisher.get_subscription_count())
        topics.close()
        assert list(node.subscriptions) == before
        node.destroy_node()


def test_limits_end_it(tmp_path: Path, free_domain: int) -> None:
    camera = parameters(width=320, height=240, heap='memfd')
    with (
        Program('capture_node', *camera, domain=free_domain).start('[capture]: ready'),
        record(free_domain, path=tmp_path / 'a', max_frames=5).start() as recorder,
    ):
        code, output = ended(recorder)
    assert code == 0 and '5 frames and ' in output, output


@pytest.mark.parametrize(
    ('values', 'message'),
    [
        ({}, "parameter 'path' is empty"),
        ({'path': '{tmp}/a', 'disk_floor': 2**31 - 1}, 'MiB free, less than'),
        (
            {'path': '{tmp}/a', 'max_frame': 5},
            "parameter 'max_frame' is unknown; did you mean 'max_frames'?",
        ),
    ],
)
def test_wrong_parameters_end_with_one_clear_line(
    values: dict[str, str], message: str, tmp_path: Path, free_domain: int
) -> None:
    values = {name: str(value).replace('{tmp}', str(tmp_path)) for name, value in values.items()}
    with record(free_domain, **values).start() as recorder:
        code, output = ended(recorder)
    assert code == 2 and message in output and 'Traceback' not in output, output
