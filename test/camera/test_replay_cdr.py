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

"""Serialised messages: their fields, and what becomes of damaged ones."""

from __future__ import annotations

from camera.replay_kit import IMAGE, image, serialized, STORE
import numpy as np
import pytest

from zc_perception.camera.replay.bag import read_message
from zc_perception.errors import FormatError

DATA = bytes(range(8))
GOOD = serialized(image(1, np.zeros((4, 8), np.uint8), 'mono8', 8, 4))


def test_an_image_of_rclpy_is_read() -> None:
    serialization, messages = (
        pytest.importorskip('rclpy.serialization'),
        pytest.importorskip('sensor_msgs.msg'),
    )
    message = messages.Image(
        height=2, width=3, encoding='mono8', step=4, is_bigendian=1, data=DATA
    )
    message.header.stamp.sec, message.header.stamp.nanosec, message.header.frame_id = -5, 6, 'lens'
    header, picture = read_message(STORE, IMAGE, serialization.serialize_message(message))
    assert (header.stamp_ns, header.frame_id) == (-4_999_999_994, 'lens')
    assert picture[:5] == (3, 2, 'mono8', True, 4) and picture.data.tobytes() == DATA


def test_the_pixels_are_not_copied() -> None:
    content = bytearray(GOOD)
    picture = read_message(STORE, IMAGE, content)[1]
    content[-1] = 77
    assert picture.data[-1] == 77


@pytest.mark.parametrize(
    'content', [b'', GOOD[:3], GOOD[:40], GOOD[:-1], b'\x00\x03' + GOOD[2:], b'\xff\xff']
)
def test_a_message_that_was_cut_or_is_another_one_is_refused(content: bytes) -> None:
    with pytest.raises(FormatError, match='the message is damaged: '):
        read_message(STORE, IMAGE, content)
