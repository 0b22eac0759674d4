"""Serialised messages, against the two libraries that write them: rosbags' and, where it is, rclpy's."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from camera.replay_kit import STORE, compressed, image, serialized
from hypothesis import given, settings
from hypothesis import strategies as st

from zc_perception.camera.replay.bag import read_compressed_image, read_image
from zc_perception.camera.replay.source import ENCODINGS, RawPicture, check_picture
from zc_perception.errors import FormatError, LayoutError

STAMP = st.integers(-(1 << 31) * 1_000_000_000, ((1 << 31) - 1) * 1_000_000_000)
TEXT = st.text(st.characters(exclude_characters='\0', exclude_categories=('Cs',)), max_size=12)
BYTES = st.binary(max_size=40)


@settings(max_examples=150)
@given(STAMP, TEXT, TEXT, st.integers(0, (1 << 32) - 1), st.booleans(), BYTES)
def test_an_image_of_rosbags_is_read_field_by_field(stamp: int, frame_id: str, encoding: str, width: int, big: bool, data: bytes) -> None:
    message = image(stamp, np.frombuffer(data, np.uint8).reshape(1, -1), encoding, width, 7, big=big)
    message.header.frame_id = frame_id
    header, picture = read_image(serialized(message))
    assert (header.stamp_ns, header.frame_id) == (stamp, frame_id)
    assert picture[:5] == (width, 7, encoding, big, len(data)) and picture.data.tobytes() == data


@settings(max_examples=80)
@given(STAMP, TEXT, BYTES)
def test_a_compressed_image_of_rosbags_too(stamp: int, text: str, data: bytes) -> None:
    header, picture = read_compressed_image(serialized(compressed(stamp, np.frombuffer(data, np.uint8), text)))
    assert (header.stamp_ns, picture.format, picture.data.tobytes()) == (stamp, text, data)


def test_an_image_of_rclpy_is_read() -> None:
    serialization, messages = pytest.importorskip('rclpy.serialization'), pytest.importorskip('sensor_msgs.msg')
    message = messages.Image(height=2, width=3, encoding='mono8', step=4, is_bigendian=1, data=bytes(range(8)))
    message.header.stamp.sec, message.header.stamp.nanosec, message.header.frame_id = 5, 6, 'lens'
    header, picture = read_image(serialization.serialize_message(message))
    assert (header.stamp_ns, header.frame_id) == (5_000_000_006, 'lens')
    assert picture[:5] == (3, 2, 'mono8', True, 4) and picture.data.tobytes() == bytes(range(8))


def test_a_big_endian_message_is_read_as_well() -> None:
    message = image(5_000_000_006, np.arange(6, dtype=np.uint8).reshape(2, 3), 'mono8', 3, 2)
    swapped = STORE.serialize_cdr(message, message.__msgtype__, little_endian=False)
    assert swapped[1] == 0
    header, picture = read_image(bytes(swapped))
    assert (header.stamp_ns, picture.width, picture.height, picture.step) == (5_000_000_006, 3, 2, 3)


def test_the_pixels_are_not_copied() -> None:
    content = bytearray(serialized(image(0, np.zeros((2, 3), np.uint8), 'mono8', 3, 2)))
    picture = read_image(content)[1]
    content[-1] = 77
    assert picture.data[-1] == 77


GOOD = serialized(image(1, np.zeros((4, 8), np.uint8), 'mono8', 8, 4))


@pytest.mark.parametrize('length', range(len(GOOD)))
def test_a_message_that_was_cut_anywhere_is_refused(length: int) -> None:
    with pytest.raises(FormatError, match=r'ends too early|has \d bytes'):
        read_image(GOOD[:length])


@pytest.mark.parametrize('head', [b'\x00\x03', b'\x00\x0b', b'\x01\x01', b'\xff\xff'])
def test_other_encapsulations_are_refused(head: bytes) -> None:
    with pytest.raises(FormatError, match=f'encapsulation 0x{head.hex()}; plain CDR is 0x0000 or 0x0001'):
        read_image(head + GOOD[2:])


@settings(max_examples=300)
@given(st.data())
def test_a_spoilt_message_is_read_or_refused_never_worse(data: st.DataObject) -> None:
    content = bytearray(GOOD)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(content) - 4))
        content[at : at + 4] = data.draw(st.one_of(st.binary(min_size=4, max_size=4), st.just(struct.pack('<I', 0xFFFFFFFF))))
    try:
        _, picture = read_image(bytes(content))
        check_picture(picture)
    except (FormatError, LayoutError):
        return
    assert picture.data.size >= picture.step * (picture.height - 1) + picture.width


@settings(max_examples=300)
@given(
    st.integers(0, 1 << 32), st.integers(0, 1 << 32), st.sampled_from((*ENCODINGS, 'x')), st.booleans(), st.integers(0, 1 << 32),
    st.integers(0, 4000),
)  # fmt: skip
def test_no_picture_passes_that_would_be_read_beyond_its_data(
    width: int, height: int, encoding: str, big: bool, step: int, size: int
) -> None:
    picture = RawPicture(width, height, encoding, big, step, np.zeros(size, np.uint8))
    try:
        check_picture(picture)
    except (FormatError, LayoutError):
        return
    assert size >= step * (height - 1) + width
