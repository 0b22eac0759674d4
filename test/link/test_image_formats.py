"""Frames of every format to messages, against the formats' descriptions and ITU-R's published matrices."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray
from pixel.format_samples import ALL, GREY, PUBLISHED, WORDS, YUV, expanded, noise, published_rgb, rgb_planes, spread, words_rgb, yuv_planes
from sensor_msgs.msg import Image

from zc_perception.frame import Frame, Header
from zc_perception.link.image_conversion import FrameToImage, FrameToJpeg, native_encoding
from zc_perception.memory.ledger import CopyLedger
from zc_perception.memory.pool import BufferPool
from zc_perception.pixel.colorimetry import BT601_LIMITED, Colorimetry, Matrix, Range
from zc_perception.pixel.fourcc import fourcc_code

pytestmark = pytest.mark.usefixtures('no_fd_leak')
MakePool = Callable[..., BufferPool]
WIDTH, HEIGHT = 64, 48
RGB_FULL = Colorimetry(Matrix.RGB, Range.FULL)


def case(name: str, matrix: str = 'bt601', span: str = 'limited', *, blocks: int = 1) -> tuple[list[NDArray[Any]], NDArray[Any]]:
    """Planes of noise, and R, G, B of each pixel, not rounded. With *blocks* of that many equal pixels."""
    random = np.random.default_rng(6)
    if name in YUV:
        y, u, v = (plane[::blocks, ::blocks].repeat(blocks, axis=0).repeat(blocks, axis=1) for plane in noise(name, WIDTH, HEIGHT, 6))
        return yuv_planes(name, y, u, v, random), published_rgb(y, spread(u, name), spread(v, name), matrix, span)
    rgb = random.integers(0, 256, (HEIGHT // blocks, WIDTH // blocks, 3), np.uint8).repeat(blocks, axis=0).repeat(blocks, axis=1)
    kept = np.repeat(rgb[..., :1], 3, axis=2) if name in GREY else words_rgb(rgb) if name in WORDS else rgb
    return rgb_planes(name, rgb, random), expanded(kept, span if name in GREY else 'full')


def frame_of(make_pool: MakePool, name: str, planes: Sequence[NDArray[Any]], colorimetry: Colorimetry) -> Frame:
    slot = (pool := make_pool(WIDTH, HEIGHT, slots=1, fourcc=fourcc_code(name), layout={'stride_align': 96})).acquire()
    assert slot is not None
    frame = Frame.publish_slot(
        pool, slot, header=Header(3_000_000_007, 'lens'), colorimetry=colorimetry, sequence=0, captured_ns=time.monotonic_ns()
    )
    with frame.map(write=True) as targets:
        for target, plane in zip(targets, planes, strict=True):
            np.copyto(target, plane)
    return frame


def pixels(message: Image) -> NDArray[np.uint8]:
    return np.frombuffer(message.data, np.uint8).reshape(message.height, message.width, -1)


@pytest.mark.parametrize('name', ALL)
@pytest.mark.parametrize(('matrix', 'span'), PUBLISHED)
def test_a_colour_message_has_the_frame_s_colours(make_pool: MakePool, name: str, matrix: str, span: str) -> None:
    planes, wanted = case(name, matrix, span)
    ledger = CopyLedger()
    with frame_of(make_pool, name, planes, Colorimetry(Matrix(matrix), Range(span))) as frame:
        for encoding, order in (('rgb8', 1), ('bgr8', -1)):
            message = FrameToImage(encoding, ledger)(frame)
            assert (message.encoding, message.width, message.height, message.step) == (encoding, WIDTH, HEIGHT, WIDTH * 3)
            assert np.abs(pixels(message)[..., ::order] - wanted).max() <= (2 if name in WORDS else 1.1)
    assert ledger.count('to_ros') == 2 and ledger.entries()['to_ros'].bytes == 2 * WIDTH * HEIGHT * 3


@pytest.mark.parametrize('name', ALL)
@pytest.mark.parametrize('span', ['limited', 'full'])
def test_a_grey_message_has_0_for_black_and_255_for_white(make_pool: MakePool, name: str, span: str) -> None:
    planes, rgb = case(name, 'bt709', span)
    with frame_of(make_pool, name, planes, Colorimetry(Matrix.BT709, Range(span))) as frame:
        message = FrameToImage('mono8', CopyLedger())(frame)
    wanted = expanded(noise(name, WIDTH, HEIGHT, 6)[0], span) if name in YUV else rgb @ np.array([0.299, 0.587, 0.114])
    assert np.abs(pixels(message)[..., 0] - wanted).max() <= 2


@pytest.mark.parametrize('name', ALL)
@pytest.mark.parametrize(('matrix', 'span'), PUBLISHED)
def test_an_nv12_message_is_bt601_limited_whatever_the_frame_is(make_pool: MakePool, name: str, matrix: str, span: str) -> None:
    """A message can't say anything else, and who reads it takes it for that."""
    planes, wanted = case(name, matrix, span, blocks=2)
    with frame_of(make_pool, name, planes, Colorimetry(Matrix(matrix), Range(span))) as frame:
        message = FrameToImage('nv12', CopyLedger())(frame)
    assert (message.encoding, message.step, len(message.data)) == ('nv12', WIDTH, WIDTH * HEIGHT * 3 // 2)
    read = cv2.cvtColor(np.frombuffer(message.data, np.uint8).reshape(-1, WIDTH), cv2.COLOR_YUV2RGB_NV12)
    off = np.abs(read - wanted)
    assert np.median(off) <= 2 and off.mean() <= 6


NATIVE = {
    'NV12': 'nv12', 'NV21': 'nv21', 'NV24': 'nv24', 'YUYV': 'yuv422_yuy2', 'UYVY': 'yuv422', 'R8  ': 'mono8', 'R16 ': 'mono16',
    'RG24': 'bgr8', 'BG24': 'rgb8', 'AR24': 'bgra8', 'AB24': 'rgba8',
}  # fmt: skip


@pytest.mark.parametrize('name', NATIVE)
def test_native_passes_the_bytes_on_under_sensor_msgs_name(make_pool: MakePool, name: str) -> None:
    planes, _ = case(name)
    ledger = CopyLedger()
    with frame_of(make_pool, name, planes, BT601_LIMITED if name in YUV else RGB_FULL) as frame:
        message = FrameToImage('native', ledger)(frame)
    assert (message.encoding, message.width, message.height) == (NATIVE[name], WIDTH, HEIGHT)
    assert message.step == planes[0][0].nbytes
    assert bytes(message.data) == b''.join(plane.tobytes() for plane in planes)
    assert ledger.entries()['to_ros'].bytes == len(message.data)


@pytest.mark.parametrize('name', sorted(set(ALL) - set(NATIVE)))
def test_native_is_rgb8_where_no_encoding_says_the_same(make_pool: MakePool, name: str) -> None:
    planes, wanted = case(name)
    with frame_of(make_pool, name, planes, BT601_LIMITED) as frame:
        message = FrameToImage('native', CopyLedger())(frame)
    assert message.encoding == 'rgb8' and np.abs(pixels(message) - wanted).max() <= 2


def test_bytes_that_would_be_taken_for_other_colours_are_converted() -> None:
    assert native_encoding(fourcc_code('YUYV'), Colorimetry(Matrix.BT709, Range.LIMITED)) == 'rgb8'
    assert native_encoding(fourcc_code('NV21'), Colorimetry(Matrix.BT601, Range.FULL)) == 'rgb8'
    assert native_encoding(fourcc_code('RG24'), Colorimetry(Matrix.RGB, Range.LIMITED)) == 'rgb8'


@pytest.mark.parametrize('encoding', ['rgb8', 'native', 'mono8'])
def test_a_camera_may_change_its_format(make_pool: MakePool, encoding: str) -> None:
    convert = FrameToImage(encoding, CopyLedger())
    for name in ('NV12', 'YUYV', 'NV12', 'P010', 'R8  ', 'YUYV'):
        planes, _ = case(name)
        colorimetry = BT601_LIMITED if name in YUV else RGB_FULL
        with frame_of(make_pool, name, planes, colorimetry) as frame:
            assert convert(frame) == FrameToImage(encoding, CopyLedger())(frame)


@pytest.mark.parametrize('name', ALL)
def test_a_jpeg_shows_the_frame(make_pool: MakePool, name: str) -> None:
    random, ledger = np.random.default_rng(0), CopyLedger()
    if name in YUV:
        y, u, v = (np.full_like(plane, value) for plane, value in zip(noise(name, WIDTH, HEIGHT, 0), (120, 90, 160), strict=True))
        planes, wanted = yuv_planes(name, y, u, v, random), published_rgb(y[0, 0], u[0, 0], v[0, 0], 'bt709', 'full')
    else:
        rgb = np.broadcast_to(np.array([200, 120, 40], np.uint8), (HEIGHT, WIDTH, 3))
        planes, wanted = rgb_planes(name, rgb, random), rgb[0, 0].astype(np.float64) if name not in GREY else np.full(3, 200.0)
    with frame_of(make_pool, name, planes, Colorimetry(Matrix.BT709, Range.FULL)) as frame:
        message = FrameToJpeg(95, ledger)(frame)
    assert 'jpeg' in message.format and ledger.count('to_jpeg') == 1
    assert (message.header.stamp.sec, message.header.stamp.nanosec, message.header.frame_id) == (3, 7, 'lens')
    picture = cv2.imdecode(np.frombuffer(message.data, np.uint8), cv2.IMREAD_COLOR)
    assert picture.shape == (HEIGHT, WIDTH, 3) and np.abs(picture[..., ::-1].reshape(-1, 3) - wanted).max() <= (9 if name in WORDS else 4)
