"""Serialised messages: their fields, and what becomes of damaged ones."""

from __future__ import annotations

import struct

from camera.replay_kit import IMAGE, image, serialized, STORE
from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from zc_perception.camera.replay.bag import read_message
from zc_perception.errors import FormatError, LayoutError
from zc_perception.pixel.raw_picture import layout_of

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


@settings(max_examples=300)
@given(st.data())
def test_a_spoilt_message_is_read_or_refused_never_worse(data: st.DataObject) -> None:
    content = bytearray(GOOD)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(content) - 4))
        content[at : at + 4] = data.draw(
            st.one_of(st.binary(min_size=4, max_size=4), st.just(struct.pack('<I', 0xFFFFFFFF)))
        )
    try:
        _, picture = read_message(STORE, IMAGE, bytes(content))
        layout_of(picture)
    except (FormatError, LayoutError):
        return
    assert picture.data.size >= picture.step * (picture.height - 1) + picture.width
