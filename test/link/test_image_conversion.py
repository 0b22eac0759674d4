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
Frames to sensor_msgs/Image and back.

The results are compared with OpenCV, the formats' descriptions and ITU-R's matrices.
"""

from __future__ import annotations

import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from builtin_interfaces.msg import Time
import cv2
from frame_kit import next_frame
import numpy as np
from numpy.typing import NDArray
from pixel.format_samples import (
    expanded,
    GREY,
    noise,
    published_rgb,
    rgb_planes,
    spread,
    YUV,
    yuv_planes,
)
import pytest
from sensor_msgs.msg import Image
from std_msgs.msg import Header

from zc_perception.errors import ConfigError, FormatError, NegotiationError
from zc_perception.frame import Frame
from zc_perception.frame import Header as FrameHeader
from zc_perception.link import image_conversion
from zc_perception.link.image_conversion import (
    FrameToImage,
    FrameToJpeg,
    ImageToFrame,
    why_no_message,
)
from zc_perception.memory.heaps import OfferedHeaps, SealedMemfd
from zc_perception.memory.ledger import CopyLedger, LedgerEntry
from zc_perception.memory.pool import BufferPool
from zc_perception.negotiation.constraints import BufferConstraints, Placement
from zc_perception.pixel.colorimetry import BT601_LIMITED, Colorimetry, Matrix, Range
from zc_perception.pixel.fourcc import fourcc_code, NV12
from zc_perception.pixel.layout import compute_layout
from zc_perception.pixel.modifier import INVALID, LINEAR
from zc_perception.pixel.raw_picture import ENCODINGS

pytestmark = pytest.mark.usefixtures('no_fd_leak')
MakePool = Callable[..., BufferPool]
MakeFrame = Callable[..., Frame]
WIDTH, HEIGHT = 64, 48
LENS = Header(stamp=Time(sec=3, nanosec=7), frame_id='lens')
CODES = {'rgb8': cv2.COLOR_YUV2RGB_NV12, 'bgr8': cv2.COLOR_YUV2BGR_NV12}


@pytest.fixture
def ledger() -> CopyLedger:
    return CopyLedger()


@pytest.mark.parametrize(
    ('fourcc', 'modifier', 'reason'),
    [
        ('NV12', LINEAR, ''),
        ('NV12', INVALID, 'NV12 with modifier INVALID has no rows that a CPU could read'),
        ('NV12', 0x0100000000000001, 'NV12 with modifier INTEL:X_TILED has no rows'),
        ('NV15', LINEAR, 'NV15 has no conversion to an encoding'),
    ],
)
def test_what_can_not_become_a_message_is_known_beforehand(
    fourcc: str, modifier: int, reason: str
) -> None:
    layout = replace(compute_layout(fourcc_code(fourcc), WIDTH, HEIGHT), modifier=modifier)
    found = why_no_message(layout)
    assert found.startswith(reason) and bool(found) == bool(reason)


@pytest.fixture
def to_frame(ledger: CopyLedger) -> Iterator[ImageToFrame]:
    converter = ImageToFrame(ledger, holder='converter', slots=2)
    yield converter
    converter.close()


def nv12_noise(seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (HEIGHT * 3 // 2, WIDTH), np.uint8)


def expected_pixels(nv12: NDArray[np.uint8], encoding: str) -> NDArray[np.uint8]:
    if encoding == 'nv12':
        return nv12
    if encoding == 'mono8':  # limited range: 16 is black, 235 is white
        return np.clip(
            np.rint((nv12[:HEIGHT].astype(np.float64) - 16) * 255 / 219), 0, 255
        ).astype(np.uint8)
    return np.asarray(cv2.cvtColor(nv12, CODES[encoding]))


def image(encoding: str, pixels: NDArray[np.uint8], *, padding: int = 0) -> Image:
    """Return a message with *padding* bytes of 255 behind each row."""
    rows = pixels.reshape(pixels.shape[0], -1)
    padded = np.pad(rows, ((0, 0), (0, padding)), constant_values=255)
    header = Header(stamp=Time(sec=12, nanosec=34), frame_id='foreign')
    size = {'width': WIDTH, 'height': HEIGHT, 'step': padded.shape[1]}
    return Image(header=header, encoding=encoding, data=padded.tobytes(), **size)


@pytest.mark.parametrize(
    ('encoding', 'channels', 'rows'),
    [('rgb8', 3, 48), ('bgr8', 3, 48), ('mono8', 1, 48), ('nv12', 1, 72)],
)
def test_a_frame_becomes_an_image(
    make_pool: MakePool, ledger: CopyLedger, encoding: str, channels: int, rows: int
) -> None:
    nv12 = nv12_noise()
    planes = [nv12[:HEIGHT], nv12[HEIGHT:].reshape(HEIGHT // 2, WIDTH // 2, 2)]
    with frame_with(make_pool, 'NV12', planes, BT601_LIMITED) as frame:
        message = FrameToImage(encoding, ledger)(frame)
    assert (message.encoding, message.width, message.height) == (encoding, WIDTH, HEIGHT)
    assert (message.step, message.is_bigendian) == (WIDTH * channels, 0)
    assert message.data.tobytes() == expected_pixels(nv12, encoding).tobytes()
    assert message.header == LENS
    assert ledger.entries() == {'to_ros': LedgerEntry(1, WIDTH * channels * rows)}


def test_a_format_that_can_not_be_read_is_refused_by_name(
    make_pool: MakePool, make_frame: MakeFrame, ledger: CopyLedger
) -> None:
    with make_frame(make_pool(slots=1, fourcc=fourcc_code('NV15'))) as frame:
        for convert in (FrameToImage('mono8', ledger), FrameToJpeg(80, ledger)):
            with pytest.raises(FormatError, match="NV15 frames can't be read on the CPU"):
                convert(frame)
    assert ledger.entries() == {}


class VendorBuffer(SimpleNamespace):
    """The stub of Lyrical's ``rosidl_buffer.Buffer``, which has no buffer protocol."""

    def __len__(self) -> int:
        return len(self.to_array())


def test_an_image_in_a_vendor_s_buffer_is_converted_and_the_copy_is_booked(
    to_frame: ImageToFrame, ledger: CopyLedger
) -> None:
    foreign = image('mono8', np.random.default_rng(5).integers(0, 256, (HEIGHT, WIDTH), np.uint8))
    plain = foreign.data.tobytes()
    # Bypass the setter: in older releases it rejects such an object.
    foreign._data = VendorBuffer(
        backend_type='cuda', to_bytes=lambda: plain, to_array=lambda: array.array('B', plain)
    )
    with to_frame(foreign) as frame, frame.map() as planes:
        assert planes[0].tobytes() == plain
    assert ledger.entries() == {'from_ros': LedgerEntry(2, 2 * len(plain))}


# Red as RGB, as YCbCr (BT.601 limited range), and as a grey level.
RED, Y, CB, CR = (255, 0, 0), 81, 90, 240
SAMPLES: dict[str, tuple[int, ...]] = {
    'rgb8': RED, 'bgr8': RED[::-1], 'rgba8': (*RED, 7), 'bgra8': (*RED[::-1], 7),
    '8UC1': (76,), '8UC3': RED[::-1], 'mono8': (76,), 'mono16': (7, 76),
    'yuyv': (Y, CB, Y, CR), 'yuv422_yuy2': (Y, CB, Y, CR),
    'uyvy': (CB, Y, CR, Y), 'yuv422': (CB, Y, CR, Y),
    'nv12': (Y, CB, CR), 'nv21': (Y, CR, CB), 'nv24': (Y, CB, CR),
}  # fmt: skip


def red_image(encoding: str, padding: int = 0) -> Image:
    if encoding.startswith('bayer'):
        cell = [255 * (letter == 'r') for letter in encoding[6:10]]
        mosaic = np.tile(np.array(cell, np.uint8).reshape(2, 2), (HEIGHT // 2, WIDTH // 2))
        wide = mosaic.repeat(2, axis=1) if encoding.endswith('16') else mosaic
        return image(encoding, wide, padding=padding)
    samples = SAMPLES[encoding]
    packed = 2 if encoding.startswith(('yu', 'uy')) else 1
    if not encoding.startswith('nv'):
        whole = np.full((HEIGHT, WIDTH // packed, len(samples)), samples, np.uint8)
        return image(encoding, whole, padding=padding)
    # A plane of chroma; its rows are twice as long where chroma isn't subsampled.
    times, rows = (2, HEIGHT) if encoding == 'nv24' else (1, HEIGHT // 2)
    chroma = np.full((rows, WIDTH * times // 2, 2), samples[1:], np.uint8)
    message = image(encoding, np.full((HEIGHT, WIDTH), samples[0], np.uint8), padding=padding)
    message.data += image(encoding, chroma, padding=padding * times).data
    return message


@pytest.mark.parametrize('encoding', ENCODINGS)
def test_an_image_of_any_encoding_has_its_colour_and_header(
    to_frame: ImageToFrame, ledger: CopyLedger, encoding: str
) -> None:
    """Tests in test/pixel check each sample."""
    message = red_image(encoding, 10)
    with to_frame(message) as frame, frame.map() as planes:
        grey = encoding in ('mono8', 'mono16', '8UC1')
        wanted = (76, 128, 128) if grey else (Y, CB, CR)
        found = [plane.astype(int) for plane in (planes[0], planes[1][..., 0], planes[1][..., 1])]
        for samples, level in zip(found, wanted, strict=True):
            assert np.abs(samples - level).max() <= 1
        assert (frame.header.stamp_ns, frame.header.frame_id) == (12_000_000_034, 'foreign')
    assert ledger.count('from_ros') == 1
    assert ledger.count('debayer') == encoding.startswith('bayer'), 'one more pass'


def test_an_impossible_jpeg_quality_is_refused(ledger: CopyLedger) -> None:
    for quality in (0, 101):
        with pytest.raises(ConfigError, match=f'{quality} is outside 1 .. 100'):
            FrameToJpeg(quality, ledger)


def test_there_and_back_loses_nothing(to_frame: ImageToFrame, ledger: CopyLedger) -> None:
    for encoding in ('nv12', 'mono8'):
        sent = image(encoding, expected_pixels(nv12_noise(5), encoding))
        with to_frame(sent) as frame:
            assert FrameToImage(encoding, ledger)(frame) == sent


def test_frames_are_numbered_and_the_pool_is_bounded(to_frame: ImageToFrame) -> None:
    message = image('mono8', nv12_noise()[:HEIGHT])
    frames = [to_frame(message), to_frame(message)]
    with pytest.raises(
        FormatError,
        match=r"all 2 converted frames are in use \(by holder: \{'converter': 2\}\); release",
    ):
        to_frame(message)
    frames.pop(0).release()
    frames.append(to_frame(message))
    assert [frame.data.sequence for frame in frames] == [2, 3]
    for frame in frames:
        frame.release()


CARD = BufferConstraints(
    'axl',
    ((NV12, LINEAR),),
    heaps=('dma_heap/', 'udmabuf'),
    devices=('/dev/metis-0:1:0',),
    slots=5,
)


@pytest.fixture
def heaps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of this machine's heaps; opened heaps are appended."""
    names = ['memfd', 'dma_heap/system', 'udmabuf']

    def offered(*, order: list[str]) -> OfferedHeaps:
        def opened(name: str) -> SealedMemfd:
            names.append(f'opened {name}')
            heap = SealedMemfd()
            heap.name = name
            return heap

        return OfferedHeaps([name for name in order if name in names], opener=opened)

    monkeypatch.setattr(image_conversion, 'working_heaps', offered)
    return names


def test_a_device_gets_memory_and_a_layout_that_it_can_import(
    to_frame: ImageToFrame, heaps: list[str]
) -> None:
    to_frame.suit(
        replace(CARD, stride_align=96, height_align=32, placement=Placement.BUFFER_PER_PLANE)
    )
    for _ in range(3):
        with to_frame(image('nv12', nv12_noise())) as frame:
            layout = frame.data.layout
            found = [(plane.buffer, plane.stride, plane.size) for plane in layout.planes]
            assert found == [(0, 96, 96 * 64), (1, 96, 96 * 32)]
            with frame.map() as planes:
                assert b''.join(p.tobytes() for p in planes) == nv12_noise().tobytes()
    assert heaps[3:] == ['opened dma_heap/system'], 'once for all messages of one size'


def test_messages_that_can_not_suit_are_refused_with_the_reason(
    to_frame: ImageToFrame, heaps: list[str]
) -> None:
    heaps[:] = ['memfd']
    to_frame.suit(CARD)
    for _ in range(3):
        with pytest.raises(
            NegotiationError,
            match="axl can't use buffers of heap 'memfd', only of dma_heap/, udmabuf",
        ):
            to_frame(image('nv12', nv12_noise()))
    to_frame.suit(BufferConstraints('tiled', formats=((NV12, 0x0100000000000001),)))
    with pytest.raises(NegotiationError, match='can use NV12, but no modifier is common'):
        to_frame(image('nv12', nv12_noise()))
    assert heaps == ['memfd'], 'nothing was opened'
    heaps.append('udmabuf')
    to_frame.suit(CARD)
    to_frame(image('nv12', nv12_noise())).release()
    assert heaps[2:] == ['opened udmabuf']


RGB_FULL = Colorimetry(Matrix.RGB, Range.FULL)


def case(
    name: str, matrix: str = 'bt601', span: str = 'limited', *, blocks: int = 1
) -> tuple[list[NDArray[Any]], NDArray[Any]]:
    """Return noise, and exact R, G, B of each pixel; *blocks* is the size of equal squares."""
    random = np.random.default_rng(6)
    if name in YUV:
        y, u, v = (
            plane[::blocks, ::blocks].repeat(blocks, axis=0).repeat(blocks, axis=1)
            for plane in noise(name, WIDTH, HEIGHT, 6)
        )
        planes = yuv_planes(name, y, u, v, random)
        return planes, published_rgb(y, spread(u, name), spread(v, name), matrix, span)
    rgb = random.integers(0, 256, (HEIGHT // blocks, WIDTH // blocks, 3), np.uint8)
    rgb = rgb.repeat(blocks, axis=0).repeat(blocks, axis=1)
    if name in GREY:
        return rgb_planes(name, rgb, random), expanded(np.repeat(rgb[..., :1], 3, axis=2), span)
    return rgb_planes(name, rgb, random), expanded(rgb, 'full')


def frame_with(
    make_pool: MakePool, name: str, planes: Sequence[NDArray[Any]], colorimetry: Colorimetry
) -> Frame:
    pool = make_pool(
        WIDTH, len(planes[0]), slots=1, fourcc=fourcc_code(name), layout={'stride_align': 96}
    )
    header = FrameHeader(3_000_000_007, 'lens')
    frame = next_frame(pool, header=header, colorimetry=colorimetry)
    with frame.map(write=True) as targets:
        for target, plane in zip(targets, planes, strict=True):
            np.copyto(target, plane)
    return frame


@pytest.mark.parametrize('name', ['NV12', 'RG24', 'R8  '])
@pytest.mark.parametrize(
    ('matrix', 'span'), [('bt601', 'limited'), ('bt601', 'full'), ('bt709', 'limited')]
)
def test_an_nv12_message_is_bt601_limited_whatever_the_frame_is(
    make_pool: MakePool, name: str, matrix: str, span: str
) -> None:
    """A message can't name another matrix or range, and its readers assume this one."""
    planes, wanted = case(name, matrix, span, blocks=2)
    with frame_with(make_pool, name, planes, Colorimetry(Matrix(matrix), Range(span))) as frame:
        message = FrameToImage('nv12', CopyLedger())(frame)
    assert (message.encoding, message.step) == ('nv12', WIDTH)
    rows = np.frombuffer(message.data, np.uint8).reshape(HEIGHT * 3 // 2, WIDTH)
    read = cv2.cvtColor(rows, cv2.COLOR_YUV2RGB_NV12)
    off = np.abs(read - wanted)
    assert np.median(off) <= 2 and off.mean() <= 6


NATIVE_NAMES = {'NV12': 'nv12', 'YUYV': 'yuv422_yuy2', 'R16 ': 'mono16', 'AR24': 'bgra8'}


@pytest.mark.parametrize('name', [*NATIVE_NAMES, 'P010', 'XR24'])
def test_native_is_sensor_msgs_name_of_the_bytes_or_rgb8_where_there_is_none(
    make_pool: MakePool, ledger: CopyLedger, name: str
) -> None:
    planes, wanted = case(name)
    with frame_with(make_pool, name, planes, BT601_LIMITED if name in YUV else RGB_FULL) as frame:
        message = FrameToImage('native', ledger)(frame)
    assert message.encoding == NATIVE_NAMES.get(name, 'rgb8')
    assert (message.width, message.height) == (WIDTH, HEIGHT)
    if name in NATIVE_NAMES:
        assert message.step == planes[0][0].nbytes
        assert bytes(message.data) == b''.join(plane.tobytes() for plane in planes)
        assert ledger.entries()['to_ros'].bytes == len(message.data)
    else:
        pixels = np.frombuffer(message.data, np.uint8).reshape(wanted.shape)
        assert np.abs(pixels - wanted).max() <= 2


@pytest.mark.parametrize('encoding', ['native', 'mono8'])
def test_a_camera_may_change_its_format_and_size(make_pool: MakePool, encoding: str) -> None:
    convert, messages = FrameToImage(encoding, CopyLedger()), []
    for name, share in (
        ('NV12', 1), ('NV12', 2), ('NV12', 1), ('YUYV', 1), ('NV12', 1), ('P010', 2), ('R8  ', 1),
        ('YUYV', 2),
    ):  # fmt: skip
        planes = [plane[: len(plane) // share] for plane in case(name)[0]]
        colorimetry = BT601_LIMITED if name in YUV else RGB_FULL
        with frame_with(make_pool, name, planes, colorimetry) as frame:
            messages.append(convert(frame))
            assert messages[-1] == FrameToImage(encoding, CopyLedger())(frame)
            assert messages[-1].height == HEIGHT // share
    assert all(message is messages[0] for message in messages), 'one message is kept'


def test_a_jpeg_shows_the_frame(make_pool: MakePool, ledger: CopyLedger) -> None:
    orange = np.full((HEIGHT, WIDTH, 3), (200, 120, 40), np.uint8)
    planes = rgb_planes('RG24', orange, np.random.default_rng(0))
    with frame_with(make_pool, 'RG24', planes, RGB_FULL) as frame:
        message = FrameToJpeg(95, ledger)(frame)
    assert 'jpeg' in message.format and ledger.count('to_jpeg') == 1
    assert message.header == LENS
    picture = cv2.imdecode(np.frombuffer(message.data, np.uint8), cv2.IMREAD_COLOR)
    assert (
        picture.shape == orange.shape
        and np.abs(picture - orange[..., ::-1].astype(int)).max() <= 4
    )
