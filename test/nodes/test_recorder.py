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

from foxglove_msgs.msg import CompressedVideo
from nodes.programs import parameters, Program
from nodes.ros_kit import overrides, ros, spun, wait_until_known
import numpy as np
import pytest
import rclpy
from rclpy.node import Node
from rclpy.qos import QoSProfile
from rosbags.rosbag2 import Reader
from rosbags.typesys import get_types_from_msg, get_typestore, Stores
from std_msgs.msg import String
from std_srvs.srv import Trigger
from waiting import until

from zc_perception.camera.replay.camera import open_source
from zc_perception.camera.road_scene import RoadScene
from zc_perception.nodes import recorder
from zc_perception.nodes.recorder import RecorderNode


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


def test_a_signal_ends_it_with_what_there_is(tmp_path: Path, free_domain: int) -> None:
    with record(free_domain, path=tmp_path / 'a', topics=['nothing']).start(
        '[recorder]: ready'
    ) as recorder:
        assert recorder.interrupt() == 0
    assert '0 frames and 0 messages in no file' in recorder.output
    assert 'Traceback' not in recorder.output, recorder.output


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


def test_a_disk_without_room_ends_the_start_with_one_clear_line(
    tmp_path: Path, free_domain: int
) -> None:
    with record(free_domain, path=tmp_path / 'a', disk_floor=2**31 - 1).start() as recorder:
        code, output = ended(recorder)
    assert code == 2 and 'MiB free, less than' in output and 'Traceback' not in output, output


def topics_of(recording: Path) -> dict[str, int]:
    with Reader(recording) as reader:
        return {name: topic.msgcount for name, topic in reader.topics.items()}


def test_triggers_are_answered_with_what_was_written_or_why_not(
    free_domain: int, tmp_path: Path
) -> None:
    values = {'path': str(tmp_path / 'events'), 'black_box': 30.0, 'disk_floor': 0}
    with ros(free_domain) as context:
        recorder = RecorderNode(context=context, parameter_overrides=overrides(values))
        encoder = Node('encoder', context=context)
        video = encoder.create_publisher(
            CompressedVideo, 'image_raw/foxglove', QoSProfile(depth=30)
        )
        client = encoder.create_client(Trigger, '/recorder/trigger')

        def status() -> Any:
            return next(s for s in recorder.collect_diagnostics() if s.part == 'black box')

        def call() -> Any:
            future = client.call_async(Trigger.Request())
            until(future.done, 'an answer')
            return future.result()

        with spun(context, recorder) as group:
            group.add_node(encoder)
            wait_until_known(client, encoder, recorder)
            answer = call()
            assert not answer.success and 'no picture of a video came' in answer.message
            until(lambda: video.get_subscription_count() == 1, 'it subscribes')
            assert 'trigger failed' in status().message
            key, other = b'\0\0\0\1\x67ps\0\0\1\x65', b'\0\0\0\1\x41'
            for number in range(20):
                data = (other if number % 10 else key) + bytes(2000)
                video.publish(CompressedVideo(data=data, format='h264', frame_id='lens'))
            until(lambda: recorder._box.held(0)[1] > 20 * 2000, 'all came')
            futures = [client.call_async(Trigger.Request()) for _ in range(2)]
            until(lambda: all(future.done() for future in futures), 'two answers')
            answers = [future.result() for future in futures]
            assert all(answer.success for answer in answers), answers
            found = sorted((tmp_path / 'events').iterdir())
            assert len(found) == 2 and all(str(path) in str(answers) for path in found)
            assert all(topics_of(path)['/image_raw/foxglove'] == 20 for path in found)
            (tmp_path / 'events').rename(tmp_path / 'moved')
            (tmp_path / 'events').touch()
            answer = call()
            assert not answer.success and "can't be made" in answer.message
        encoder.destroy_node()
