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

"""Overrides of quality of service reach every topic, those that come later too."""

from __future__ import annotations

from typing import Any

from nodes.managed import Managed
import pytest
from rclpy.parameter import Parameter
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import CompressedImage

from zc_perception.errors import ConfigError
from zc_perception.nodes.capture import CaptureNode

SMALL = {'width': 128, 'height': 128, 'heap': 'memfd', 'framerate': 30.0}
RAW, COMPRESSED = (
    'qos_overrides./image_raw.publisher',
    'qos_overrides./image_raw/compressed.publisher',
)
TOPIC = '/image_raw/compressed'


def offered(node: CaptureNode) -> Any:
    (found,) = node.get_publishers_info_by_topic(TOPIC)
    return found.qos_profile


@pytest.mark.parametrize('quality', [0, 50])
def test_the_compressed_topic_has_its_own_whenever_it_comes(quality: int, run: Managed) -> None:
    node = run.make(
        CaptureNode, {**SMALL, 'jpeg_quality': quality, f'{COMPRESSED}.reliability': 'best_effort'}
    )
    assert node.parameters.unclaimed() == []
    for wanted in (0, 60):
        assert node.set_parameters_atomically([Parameter('jpeg_quality', value=wanted)]).successful
    run.eventually(lambda: len(node.get_publishers_info_by_topic(TOPIC)) == 1)
    assert offered(node).reliability == ReliabilityPolicy.BEST_EFFORT
    (raw,) = node.get_publishers_info_by_topic('/image_raw')
    assert raw.qos_profile.reliability == ReliabilityPolicy.RELIABLE


def test_a_latched_compressed_topic_has_a_picture_for_who_comes_late(run: Managed) -> None:
    node = run.make(
        CaptureNode, {**SMALL, 'jpeg_quality': 50, f'{COMPRESSED}.durability': 'transient_local'}
    )
    node.start()
    run.eventually(
        lambda: node.publisher.statistics().conversions >= 2, 'converted, though nobody reads'
    )
    node.trigger_deactivate()
    pictures: list[Any] = []
    qos = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
    run.manager.create_subscription(CompressedImage, TOPIC, pictures.append, qos)
    run.eventually(lambda: pictures, 'the last one')
    assert node.publisher.statistics().image_readers == 0


def test_a_latched_picture_is_kept_for_consumers_of_other_processes_that_come_late(
    run: Managed,
) -> None:
    node = run.make(
        CaptureNode, {**SMALL, f'{RAW}.durability': 'transient_local', f'{RAW}.depth': 3}
    )
    node.start()
    run.eventually(lambda: node.publisher.statistics().published >= 5)
    pool = node.camera.pool
    assert pool is not None
    kept = f'{node.get_fully_qualified_name()}:shared_memory_history'
    run.eventually(lambda: pool.statistics().holders.get(kept) == 3, 'the newest three')


def test_a_policy_that_there_is_not_is_named_even_while_the_topic_is_off(run: Managed) -> None:
    with pytest.raises(
        ConfigError,
        match=r"/image_raw/compressed\.publisher\.reliability' is 'sometimes'; it must be "
        r'reliable or best',
    ):
        run.make(CaptureNode, {**SMALL, f'{COMPRESSED}.reliability': 'sometimes'})
