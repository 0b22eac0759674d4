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
A driver that takes tight images only.

With a publisher that agrees with no consumer on its buffers every frame is lost, and that is
reported. In another process than the camera the trial import fails, and frames come as messages.
"""

from __future__ import annotations

from collections.abc import Callable
import itertools
from pathlib import Path

from nodes.fault_kit import Reader
from nodes.ros_kit import overrides, spun
from npu.card_kit import counting_accelerator
import pytest
from rclpy.qos import QoSProfile

from zc_perception.frame import Frame
from zc_perception.link.endpoints import AdaptedPublisher
from zc_perception.link.image_conversion import frame_adapter
from zc_perception.memory.ledger import CopyLedger
from zc_perception.memory.pool import BufferPool
from zc_perception.nodes.inference import InferenceNode

HERE = Path(__file__).parent
MODEL = HERE.parent / 'rig' / 'models' / 'virtual_metis.yaml'
ERROR = 2
SAID = (
    'the driver of /dev/metis-0:1:0 imports only tight LINEAR images in one buffer, not '
    'NV12 LINEAR 100x48'
)


def test_frames_that_the_driver_takes_none_of_are_an_error_of_link_accelerator_and_detections(
    free_domain: int,
    make_pool: Callable[..., BufferPool],
    make_frame: Callable[..., Frame],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = make_pool(100, 48, slots=4)
    wanted, sequences = (
        {'inference: link', 'inference: accelerator', 'inference: detections'},
        itertools.count(1),
    )
    with Reader(free_domain) as reader:
        publisher = AdaptedPublisher(
            reader.node,
            frame_adapter('nv12', CopyLedger(), holder='plain'),
            'image_raw',
            QoSProfile(depth=1),
        )
        node = InferenceNode(
            accelerator_factory=lambda: counting_accelerator(monkeypatch, level=1)[0],
            context=reader.context,
            parameter_overrides=overrides({'model': str(MODEL)}),
        )

        def all_are_wrong() -> bool:
            with make_frame(pool, sequence=next(sequences)) as frame:
                publisher.publish(frame)
            return all(reader.level(name) == ERROR for name in wanted)

        with spun(reader.context, node):
            reader.until(all_are_wrong, reader.messages)
            assert reader.text('inference: link').startswith(
                f'in_process: the accelerator takes none of the frames: {SAID}'
            )
            assert SAID in reader.text(
                'inference: accelerator'
            ) and 'every frame is lost' in reader.text('inference: accelerator')
            assert (
                "choose a width that is a multiple of the camera's stride alignment"
                in reader.text('inference: accelerator')
            )
            assert 'only 0.0 of ' in reader.text('inference: detections') and node.processed == 0
        publisher.destroy()
