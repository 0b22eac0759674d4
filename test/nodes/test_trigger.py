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

"""``zc_record`` as a black box: ``~/trigger`` writes what came, or says why it can't."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from foxglove_msgs.msg import CompressedVideo
from nodes.ros_kit import overrides, ros, spun, wait_until_known
from rclpy.node import Node
from rclpy.qos import QoSProfile
from rosbags.rosbag2 import Reader
from std_srvs.srv import Trigger
from waiting import until

from zc_perception.nodes.recorder import RecorderNode


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
