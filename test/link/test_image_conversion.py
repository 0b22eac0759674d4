"""Frames to sensor_msgs/Image and back, against OpenCV on the whole picture."""

from __future__ import annotations

import array
from collections.abc import Callable, Iterator
from dataclasses import replace

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray
from sensor_msgs.msg import Image

from zc_perception.errors import ConfigError, FormatError, LayoutError, NegotiationError
from zc_perception.frame import Frame
from zc_perception.link import image_conversion
from zc_perception.link.image_conversion import OUTPUT_ENCODINGS, FrameToImage, FrameToJpeg, ImageToFrame, frame_adapter, why_no_message
from zc_perception.memory.dmabuf import CpuAccess
from zc_perception.memory.heaps import OfferedHeaps, SealedMemfd
from zc_perception.memory.ledger import CopyLedger, LedgerEntry
from zc_perception.memory.pool import BufferPool
from zc_perception.negotiation.constraints import BufferConstraints, Placement
from zc_perception.pixel.colorimetry import Matrix, Range
from zc_perception.pixel.fourcc import NV12, fourcc_code
from zc_perception.pixel.layout import compute_layout
from zc_perception.pixel.modifier import INVALID, LINEAR
from zc_perception.pixel.nv12 import ToNv12

pytestmark = pytest.mark.usefixtures('no_fd_leak')
MakePool = Callable[..., BufferPool]
MakeFrame = Callable[..., Frame]
WIDTH, HEIGHT = 64, 48
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
def test_what_can_not_become_a_message_is_known_beforehand(fourcc: str, modifier: int, reason: str) -> None:
    layout = replace(compute_layout(fourcc_code(fourcc), WIDTH, HEIGHT), modifier=modifier)
    found = why_no_message(layout)
    assert found.startswith(reason) and bool(found) == bool(reason)


@pytest.fixture
def to_frame(ledger: CopyLedger) -> Iterator[ImageToFrame]:
    converter = ImageToFrame(ledger, holder='converter', slots=2)
    yield converter
    converter.close()


def noise(seed: int = 0) -> NDArray[np.uint8]:
    """A whole NV12 picture: 3/2 height rows."""
    return np.random.default_rng(seed).integers(0, 256, (HEIGHT * 3 // 2, WIDTH), np.uint8)


def frame_of(make_pool: MakePool, make_frame: MakeFrame, nv12: NDArray[np.uint8], stamp_ns: int = 3_000_000_007) -> Frame:
    """In a slot whose rows have padding."""

    def fill(luma: NDArray[np.uint8], chroma: NDArray[np.uint8]) -> None:
        luma[:] = nv12[:HEIGHT]
        chroma[:] = nv12[HEIGHT:].reshape(chroma.shape)

    return make_frame(make_pool(WIDTH, HEIGHT, slots=1, layout={'stride_align': 96}), stamp_ns=stamp_ns, frame_id='lens', fill=fill)


def expected_pixels(nv12: NDArray[np.uint8], encoding: str) -> NDArray[np.uint8]:
    if encoding == 'nv12':
        return nv12
    if encoding == 'mono8':  # 16 is black, 235 white
        return np.clip(np.rint((nv12[:HEIGHT].astype(np.float64) - 16) * 255 / 219), 0, 255).astype(np.uint8)
    return np.asarray(cv2.cvtColor(nv12, CODES[encoding]))


def image(encoding: str, pixels: NDArray[np.uint8], *, width: int = WIDTH, height: int = HEIGHT, padding: int = 0) -> Image:
    """A message whose rows have *padding* bytes of 255 behind them."""
    rows = pixels.reshape(pixels.shape[0], -1)
    padded = np.pad(rows, ((0, 0), (0, padding)), constant_values=255)
    message = Image(encoding=encoding, width=width, height=height, step=padded.shape[1], data=padded.tobytes())
    message.header.stamp.sec, message.header.stamp.nanosec, message.header.frame_id = 12, 34, 'foreign'
    return message


@pytest.mark.parametrize(('encoding', 'channels', 'rows'), [('rgb8', 3, 48), ('bgr8', 3, 48), ('mono8', 1, 48), ('nv12', 1, 72)])
def test_a_frame_becomes_an_image(
    make_pool: MakePool, make_frame: MakeFrame, ledger: CopyLedger, encoding: str, channels: int, rows: int
) -> None:
    nv12 = noise()
    frame = frame_of(make_pool, make_frame, nv12)
    message = FrameToImage(encoding, ledger)(frame)
    assert (message.encoding, message.width, message.height, message.is_bigendian) == (encoding, WIDTH, HEIGHT, 0)
    assert (message.step, len(message.data)) == (WIDTH * channels, WIDTH * channels * rows)
    assert np.array_equal(np.frombuffer(message.data, np.uint8), expected_pixels(nv12, encoding).reshape(-1))
    assert (message.header.stamp.sec, message.header.stamp.nanosec, message.header.frame_id) == (3, 7, 'lens')
    assert ledger.entries() == {'to_ros': LedgerEntry(1, WIDTH * channels * rows)}
    frame.release()


def test_a_message_is_valid_until_the_next_call(make_pool: MakePool, make_frame: MakeFrame, ledger: CopyLedger) -> None:
    convert = FrameToImage('rgb8', ledger)
    first = convert(frame_of(make_pool, make_frame, noise(1)))
    second = convert(frame_of(make_pool, make_frame, noise(2), stamp_ns=9_000_000_000))
    assert first is second
    assert np.array_equal(np.frombuffer(second.data, np.uint8), expected_pixels(noise(2), 'rgb8').reshape(-1))
    assert second.header.stamp.sec == 9


def test_another_size_gets_memory_of_its_own(make_frame: MakeFrame, ledger: CopyLedger) -> None:
    convert = FrameToImage('bgr8', ledger)
    sizes = []
    for width, height in ((64, 48), (32, 16), (64, 48)):
        frame = make_frame(width=width, height=height, fill=lambda luma, chroma: (luma.fill(126), chroma.fill(128)))
        message = convert(frame)
        sizes.append((message.width, message.height, message.step, len(message.data)))
        assert set(message.data) == {128}
        frame.release()
    assert sizes == [(64, 48, 192, 9216), (32, 16, 96, 1536), (64, 48, 192, 9216)]


def test_an_unknown_encoding_is_refused(ledger: CopyLedger) -> None:
    with pytest.raises(ConfigError, match="image encoding 'yuv422' is not one of rgb8, bgr8, mono8, nv12"):
        FrameToImage('yuv422', ledger)


@pytest.mark.parametrize('encoding', OUTPUT_ENCODINGS)
def test_a_format_that_can_not_be_read_is_refused_by_name(
    make_pool: MakePool, make_frame: MakeFrame, ledger: CopyLedger, encoding: str
) -> None:
    frame = make_frame(make_pool(slots=1, fourcc=fourcc_code('NV15')))
    with pytest.raises(FormatError, match=r"NV15 frames can't be read by a program here; it can read NV12, .* pixel_format"):
        FrameToImage(encoding, ledger)(frame)
    with pytest.raises(FormatError, match="NV15 frames can't be read"):
        FrameToJpeg(80, ledger)(frame)
    assert ledger.entries() == {}
    frame.release()


class VendorBuffer:
    """What Lyrical's ``rosidl_buffer.Buffer`` declares in its stub, and no buffer protocol."""

    backend_type = 'cuda'

    def __init__(self, data: bytes) -> None:
        self._data = data

    def to_bytes(self) -> bytes:
        return self._data

    def to_array(self) -> array.array[int]:
        return array.array('B', self._data)

    def __len__(self) -> int:
        return len(self._data)


def test_an_image_in_a_vendor_s_buffer_is_converted_and_the_copy_is_booked(to_frame: ImageToFrame, ledger: CopyLedger) -> None:
    foreign = image('mono8', np.random.default_rng(5).integers(0, 256, (HEIGHT, WIDTH), np.uint8))
    plain = foreign.data.tobytes()
    # An older message's setter would not take it.
    foreign._data = VendorBuffer(plain)
    with to_frame(foreign) as frame, frame.map() as planes:
        assert planes[0].tobytes() == plain
    assert ledger.entries() == {'from_ros': LedgerEntry(2, 2 * len(plain))}


@pytest.mark.parametrize('padding', [0, 10])
@pytest.mark.parametrize('encoding', ['rgb8', 'bgr8', 'rgba8', 'bgra8'])
def test_a_colour_image_becomes_the_textbook_s_samples(to_frame: ImageToFrame, ledger: CopyLedger, encoding: str, padding: int) -> None:
    # BT.601 limited of blocks of 2x2 equal pixels, whose chroma is the same wherever it is sited; each pixel's alpha is its own.
    random = np.random.default_rng(6)
    rgb = random.integers(0, 256, (HEIGHT // 2, WIDTH // 2, 3), np.uint8).repeat(2, axis=0).repeat(2, axis=1)
    alpha = random.integers(0, 256, (HEIGHT, WIDTH, encoding.count('a')), np.uint8)
    picture = np.concatenate([rgb if encoding.startswith('rgb') else rgb[..., ::-1], alpha], axis=2)
    of_rgb = np.array([[65.481, 128.553, 24.966], [-37.797, -74.203, 112.0], [112.0, -93.786, -18.214]]) / 255
    y, u, v = np.moveaxis(rgb @ of_rgb.T, 2, 0)
    with to_frame(image(encoding, picture, padding=padding)) as frame, frame.map() as planes:
        assert np.abs(planes[0] - (16 + y)).max() <= 2
        assert np.abs(planes[1] - (128 + np.stack([u, v], axis=2))[::2, ::2]).max() <= 2
        assert (frame.header.stamp_ns, frame.header.frame_id) == (12_000_000_034, 'foreign')
    assert ledger.entries() == {'from_ros': LedgerEntry(1, picture.nbytes)}


@pytest.mark.parametrize(('encoding', 'channels'), [('nv12', 1), ('mono8', 1), ('rgb8', 3), ('bgr8', 3), ('rgba8', 4), ('bgra8', 4)])
def test_bytes_have_no_order(to_frame: ImageToFrame, encoding: str, channels: int) -> None:
    rows = HEIGHT * 3 // 2 if encoding == 'nv12' else HEIGHT
    message = image(encoding, np.random.default_rng(7).integers(0, 256, (rows, WIDTH, channels), np.uint8))
    written = set()
    for big in (0, 1):
        message.is_bigendian = big
        with to_frame(message) as frame, frame.map() as planes:
            written.add(planes[0].tobytes() + planes[1].tobytes())
    assert len(written) == 1


def test_other_encodings_one_after_another_leave_nothing_of_each_other(to_frame: ImageToFrame) -> None:
    picture = np.random.default_rng(8).integers(0, 256, (HEIGHT, WIDTH, 4), np.uint8)
    red_first = picture[..., [2, 1, 0, 3]]
    given = {'bgra8': picture, 'rgb8': red_first[..., :3], 'rgba8': red_first, 'bgr8': picture[..., :3]}
    written = set()
    for encoding, pixels in given.items():
        with to_frame(image(encoding, pixels)) as frame, frame.map() as planes:
            written.add(planes[0].tobytes() + planes[1].tobytes())
        with to_frame(image('mono8', noise()[:HEIGHT])) as frame, frame.map() as planes:
            assert (planes[1] == 128).all()
    assert len(written) == 1


@pytest.mark.parametrize('padding', [0, 10])
@pytest.mark.parametrize('encoding', ['nv12', 'mono8'])
def test_an_image_in_planes_is_taken_as_it_is(to_frame: ImageToFrame, encoding: str, padding: int) -> None:
    nv12 = noise(4)
    with to_frame(image(encoding, nv12 if encoding == 'nv12' else nv12[:HEIGHT], padding=padding)) as frame, frame.map() as planes:
        assert np.array_equal(planes[0], nv12[:HEIGHT])
        chroma = nv12[HEIGHT:].reshape(HEIGHT // 2, WIDTH // 2, 2) if encoding == 'nv12' else np.full((24, 32, 2), 128)
        assert np.array_equal(planes[1], chroma)


@pytest.mark.parametrize('padding', [0, 6])
@pytest.mark.parametrize('encoding', ['yuyv', 'yuv422_yuy2', 'uyvy', 'yuv422'])
def test_packed_images_keep_their_luma_and_average_the_chroma_of_two_rows(to_frame: ImageToFrame, encoding: str, padding: int) -> None:
    packed = np.random.default_rng(3).integers(0, 256, (HEIGHT, WIDTH * 2), np.uint8)
    rows = np.zeros((HEIGHT, WIDTH * 2 + padding), np.uint8)
    rows[:, : WIDTH * 2] = packed
    message = Image(width=WIDTH, height=HEIGHT, step=WIDTH * 2 + padding, encoding=encoding, data=rows.tobytes())
    first = 0 if encoding.startswith('yuyv') or encoding.endswith('yuy2') else 1
    with to_frame(message) as frame, frame.map() as planes:
        assert (planes[0] == packed[:, first::2]).all()
        chroma = packed[:, 1 - first :: 2].astype(int)
        wanted = (chroma[0::2] + chroma[1::2]) / 2
        assert np.abs(planes[1].reshape(HEIGHT // 2, WIDTH) - wanted).max() <= 0.5


def test_nv21_has_its_chroma_the_other_way_round(to_frame: ImageToFrame) -> None:
    nv21 = noise(4)
    message = Image(width=WIDTH, height=HEIGHT, step=WIDTH, encoding='nv21', data=nv21.tobytes())
    with to_frame(message) as frame, frame.map() as planes:
        assert (planes[0] == nv21[:HEIGHT]).all()
        assert (planes[1][..., 0].ravel() == nv21[HEIGHT:].ravel()[1::2]).all()
        assert (planes[1][..., 1].ravel() == nv21[HEIGHT:].ravel()[0::2]).all()


@pytest.mark.parametrize('quality', [0, 101, -1])
def test_an_impossible_jpeg_quality_is_refused(ledger: CopyLedger, quality: int) -> None:
    with pytest.raises(ConfigError, match=f'{quality} is outside 1 .. 100'):
        FrameToJpeg(quality, ledger)


def test_grey_levels_are_those_of_the_message(to_frame: ImageToFrame, ledger: CopyLedger) -> None:
    """They are 0..255 in messages, where luma of limited range has 16..235."""
    levels = np.tile(np.arange(0, 256, 4, dtype=np.uint8), (HEIGHT, 1))
    with to_frame(image('mono8', levels)) as frame:
        assert (frame.data.colorimetry.matrix, frame.data.colorimetry.range) == (Matrix.BT601, Range.FULL)
        colours = np.frombuffer(FrameToImage('rgb8', ledger)(frame).data, np.uint8).reshape(HEIGHT, WIDTH, 3)
    assert np.array_equal(colours, np.repeat(levels[..., None], 3, axis=2))


def test_nv24_keeps_its_luma_and_averages_the_chroma_of_four_pixels(to_frame: ImageToFrame) -> None:
    random = np.random.default_rng(4)
    luma, chroma = random.integers(0, 256, (HEIGHT, WIDTH), np.uint8), random.integers(0, 256, (HEIGHT, WIDTH, 2), np.uint8)
    message = Image(width=WIDTH, height=HEIGHT, step=WIDTH, encoding='nv24', data=luma.tobytes() + chroma.tobytes())
    with to_frame(message) as frame, frame.map() as planes:
        assert np.array_equal(planes[0], luma)
        assert np.abs(planes[1] - chroma.reshape(HEIGHT // 2, 2, WIDTH // 2, 2, 2).mean(axis=(1, 3))).max() <= 0.75


@pytest.mark.parametrize('encoding', ['nv12', 'mono8'])
def test_there_and_back_loses_nothing(to_frame: ImageToFrame, ledger: CopyLedger, encoding: str) -> None:
    sent = image(encoding, expected_pixels(noise(5), encoding))
    with to_frame(sent) as frame:
        received = FrameToImage(encoding, ledger)(frame)
    assert received == sent


def test_frames_are_numbered_and_the_pool_is_bounded(to_frame: ImageToFrame) -> None:
    message = image('mono8', noise()[:HEIGHT])
    frames = [to_frame(message), to_frame(message)]
    with pytest.raises(FormatError, match=r"all 2 converted frames are in use \(\{'converter': 2\}\); release frames sooner"):
        to_frame(message)
    frames.pop(0).release()
    frames.append(to_frame(message))
    assert [frame.data.sequence for frame in frames] == [2, 3]
    for frame in frames:
        frame.release()


def test_another_size_gets_a_new_pool_and_older_frames_stay_readable(to_frame: ImageToFrame) -> None:
    old = to_frame(image('mono8', np.full((HEIGHT, WIDTH), 77, np.uint8)))
    new = to_frame(image('mono8', np.full((20, 30), 55, np.uint8), width=30, height=20))
    with old.map() as planes:
        assert (planes[0] == 77).all()
    with new.map() as planes:
        assert planes[0].shape == (20, 30) and (planes[0] == 55).all()
    old.release()
    new.release()


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'encoding': 'bayer_rggb8'}, "'bayer_rggb8' can't be converted to a frame; publish nv12, nv21, nv24, .*, rgba8, bgra8, mono8$"),
        ({'encoding': ''}, "image encoding '' can't be converted"),
        ({'step': WIDTH * 3 - 1}, 'image 64x48 rgb8: step 191 and 9216 bytes of data are too small'),
        ({'step': 0}, 'step 0 and'),
        ({'step': 0xFFFFFFFF}, 'are too small'),
        ({'data': b''}, 'and 0 bytes of data are too small'),
        ({'encoding': 'bgra8'}, 'image 64x48 bgra8: step 192 and 9216 bytes of data are too small'),
        ({'encoding': 'rgba8', 'step': WIDTH * 4}, 'image 64x48 rgba8: step 256 and 9216 bytes of data are too small'),
        ({'height': HEIGHT + 2}, 'image 64x50 rgb8: step 192 and 9216 bytes of data are too small'),
    ],
)
def test_a_message_that_contradicts_itself_is_refused(to_frame: ImageToFrame, changes: dict[str, object], message: str) -> None:
    foreign = image('rgb8', np.zeros((HEIGHT, WIDTH, 3), np.uint8))
    for name, value in changes.items():
        setattr(foreign, name, value)
    with pytest.raises(FormatError, match=message):
        to_frame(foreign)


@pytest.mark.parametrize('encoding', ['rgb8', 'rgba8', 'bgra8', 'nv12', 'mono8'])
def test_one_byte_short_is_refused(to_frame: ImageToFrame, encoding: str) -> None:
    colour = encoding in ('rgba8', 'bgra8')
    foreign = image(encoding, np.zeros((HEIGHT, WIDTH, 4), np.uint8) if colour else expected_pixels(noise(), encoding))
    foreign.data = foreign.data[:-1]
    with pytest.raises(FormatError, match='are too small'):
        to_frame(foreign)


@pytest.mark.parametrize('size', [{'width': 0}, {'height': 0}, {'width': 63}, {'height': 47}, {'width': 70_000}])
def test_impossible_sizes_are_refused(to_frame: ImageToFrame, size: dict[str, int]) -> None:
    with pytest.raises(LayoutError):
        to_frame(image('mono8', noise()[:HEIGHT], **size))


def test_a_refused_message_leaks_no_slot(to_frame: ImageToFrame, monkeypatch: pytest.MonkeyPatch) -> None:
    message = image('rgb8', np.zeros((HEIGHT, WIDTH, 3), np.uint8))
    with monkeypatch.context() as patch:
        patch.setattr(ToNv12, 'convert', lambda *arguments: 1 / 0)
        for _ in range(4):
            with pytest.raises(ZeroDivisionError):
                to_frame(message)
    frames = [to_frame(message), to_frame(message)]
    for frame in frames:
        frame.release()


def test_an_adapter_stands_in_for_image(ledger: CopyLedger) -> None:
    adapter = frame_adapter('rgb8', ledger, holder='viewer')
    assert (adapter.custom_type, adapter.ros_type) == (Frame, Image)
    assert isinstance(adapter.to_ros, FrameToImage) and isinstance(adapter.to_custom, ImageToFrame)


class NamedHeap(SealedMemfd):
    """Ordinary memory under another heap's name."""

    def __init__(self, name: str) -> None:
        self.name = name


CARD = BufferConstraints('axl', formats=((NV12, LINEAR),), heaps=('dma_heap/', 'udmabuf'), devices=('/dev/metis-0:1:0',), slots=5)


@pytest.fixture
def heaps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which heaps this machine has; those that were opened stand behind them."""
    names = ['memfd', 'dma_heap/system', 'udmabuf']

    def offered(*, order: list[str]) -> OfferedHeaps:
        def opened(name: str) -> NamedHeap:
            names.append(f'opened {name}')
            return NamedHeap(name)

        return OfferedHeaps([name for name in order if name in names], opener=opened)

    monkeypatch.setattr(image_conversion, 'working_heaps', offered)
    return names


def test_a_device_gets_memory_and_a_layout_that_it_can_import(to_frame: ImageToFrame, heaps: list[str]) -> None:
    to_frame.suit(replace(CARD, stride_align=96, height_align=32, placement=Placement.BUFFER_PER_PLANE))
    for _ in range(3):
        with to_frame(image('nv12', noise())) as frame:
            layout = frame.data.layout
            assert [(plane.buffer, plane.stride, plane.size) for plane in layout.planes] == [(0, 96, 96 * 64), (1, 96, 96 * 32)]
            with frame.map() as planes:
                assert np.array_equal(planes[0], noise()[:HEIGHT]) and planes[1].tobytes() == noise()[HEIGHT:].tobytes()
    assert heaps[3:] == ['opened dma_heap/system'], 'once for all messages of one size'


def test_whose_cpu_reads_gets_ordinary_memory(to_frame: ImageToFrame, heaps: list[str]) -> None:
    to_frame.suit(BufferConstraints('viewer', formats=((NV12, LINEAR),), cpu_access=CpuAccess.READ))
    to_frame(image('nv12', noise())).release()
    assert heaps[3:] == ['opened memfd']


def test_messages_that_can_not_suit_are_refused_with_the_reason(to_frame: ImageToFrame, heaps: list[str]) -> None:
    heaps[:] = ['memfd']
    to_frame.suit(CARD)
    for _ in range(3):
        with pytest.raises(NegotiationError, match="axl can't use buffers of heap 'memfd', only of dma_heap/, udmabuf"):
            to_frame(image('nv12', noise()))
    to_frame.suit(BufferConstraints('tiled', formats=((NV12, 0x0100000000000001),)))
    with pytest.raises(NegotiationError, match='NV12 is common, but no modifier of it'):
        to_frame(image('nv12', noise()))
    assert heaps == ['memfd'], 'nothing was opened'
    heaps.append('udmabuf')
    to_frame.suit(CARD)
    to_frame(image('nv12', noise())).release()
    assert heaps[2:] == ['opened udmabuf']
