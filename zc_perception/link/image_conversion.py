"""Frames to ``sensor_msgs/Image`` and back: the last rung of the link, booked as a copy each time."""

from __future__ import annotations

import array
import time

import cv2
import numpy as np
from numpy.typing import NDArray
from sensor_msgs.msg import CompressedImage, Image

from zc_perception.errors import ConfigError, FormatError
from zc_perception.frame import Frame, Header
from zc_perception.link.type_adapter import TypeAdapter
from zc_perception.mapping import map_buffers
from zc_perception.memory.dmabuf import CpuAccess
from zc_perception.memory.heaps import SealedMemfd
from zc_perception.memory.ledger import CopyLedger
from zc_perception.memory.pool import BufferPool
from zc_perception.pixel.colorimetry import BT601_LIMITED
from zc_perception.pixel.fourcc import NV12, fourcc_name
from zc_perception.pixel.layout import check_dimensions, compute_layout
from zc_perception.pixel.nv12 import Nv12Writer

OUTPUT_ENCODINGS = ('rgb8', 'bgr8', 'mono8', 'nv12')
# sensor_msgs has two names for each of the packed formats: the old ones say yuv422.
_PACKED = {'yuyv': (0, 1), 'yuv422_yuy2': (0, 1), 'uyvy': (1, 0), 'yuv422': (1, 0)}
_PLANAR = ('nv12', 'nv21')
_COLOUR = {'rgb8': 3, 'bgr8': 3, 'rgba8': 4, 'bgra8': 4}
INPUT_ENCODINGS = (*_PLANAR, *_PACKED, *_COLOUR, 'mono8')
_CHANNELS = {**_COLOUR, 'mono8': 1, 'nv12': 1, 'nv21': 1, **dict.fromkeys(_PACKED, 2)}
_CODES = {'rgb8': cv2.COLOR_YUV2RGB_NV12, 'bgr8': cv2.COLOR_YUV2BGR_NV12}


def stamp_to_message(header: Header, message: Image) -> None:
    """Copy a frame's header whole into a message's."""
    message.header.stamp.sec, message.header.stamp.nanosec = divmod(header.stamp_ns, 1_000_000_000)
    message.header.frame_id = header.frame_id


class FrameToImage:
    """Converts NV12 frames; keeps one message, which is valid until the next call.

    :param encoding: one of :data:`OUTPUT_ENCODINGS`. rgb8 is what every viewer shows; many show no nv12.
    :raises ConfigError: another one.
    """

    def __init__(self, encoding: str, ledger: CopyLedger) -> None:
        if encoding not in OUTPUT_ENCODINGS:
            raise ConfigError(f"image encoding '{encoding}' is not one of {', '.join(OUTPUT_ENCODINGS)}")
        self._encoding = encoding
        self._ledger = ledger
        self._message = Image(encoding=encoding)
        self._pixels: NDArray[np.uint8] = np.empty(0, np.uint8)

    def _prepare(self, width: int, height: int) -> None:
        message, channels = self._message, _CHANNELS[self._encoding]
        if (message.width, message.height) == (width, height):
            return
        rows = height * 3 // 2 if self._encoding == 'nv12' else height
        memory = array.array('B', bytes(rows * width * channels))
        message.width, message.height, message.step = width, height, width * channels
        message.data = memory
        # The setter may or may not keep our array, depending on rclpy's version: write into what the message really holds.
        shape = (rows, width, channels) if channels > 1 else (rows, width)
        self._pixels = np.frombuffer(message.data, np.uint8).reshape(shape)

    def __call__(self, frame: Frame) -> Image:
        """The message. With nv12, ``step`` is the luma row and ``data`` holds ``step * height * 3 / 2`` bytes.

        :raises FormatError: the frame isn't NV12.
        """
        data = frame.data
        if data.fourcc != NV12:
            raise FormatError(f"a {fourcc_name(data.fourcc)} frame can't be converted to {self._encoding}; only NV12 can")
        self._prepare(data.width, data.height)
        stamp_to_message(data.header, self._message)
        with frame.map() as planes:
            if self._encoding in _CODES:
                cv2.cvtColorTwoPlane(planes[0], planes[1], _CODES[self._encoding], dst=self._pixels)
            else:
                np.copyto(self._pixels[: data.height], planes[0])
                if self._encoding == 'nv12':
                    np.copyto(self._pixels[data.height :].reshape(planes[1].shape), planes[1])
        self._ledger.book('to_ros', self._pixels.nbytes)
        return self._message


class FrameToJpeg:
    """Converts NV12 frames to JPEG, with the format text that image_transport's compressed plugin reads.

    :param quality: 1 (small) to 100 (good).
    :raises ConfigError: another one.
    """

    def __init__(self, quality: int, ledger: CopyLedger) -> None:
        if not 1 <= quality <= 100:
            raise ConfigError(f'JPEG quality {quality} is outside 1 .. 100')
        self._quality = quality
        self._ledger = ledger
        self._message = CompressedImage(format='bgr8; jpeg compressed bgr8')
        self._picture: NDArray[np.uint8] | None = None

    def __call__(self, frame: Frame) -> CompressedImage:
        """The message.

        :raises FormatError: the frame isn't NV12.
        """
        data = frame.data
        if data.fourcc != NV12:
            raise FormatError(f'a {fourcc_name(data.fourcc)} frame can not be compressed to JPEG; only NV12 can')
        stamp_to_message(data.header, self._message)
        with frame.map() as planes:
            self._picture = cv2.cvtColorTwoPlane(planes[0], planes[1], cv2.COLOR_YUV2BGR_NV12, dst=self._picture)
        self._ledger.book('to_jpeg', self._picture.nbytes)
        _, encoded = cv2.imencode('.jpg', self._picture, [cv2.IMWRITE_JPEG_QUALITY, self._quality])
        self._message.data = array.array('B', encoded.tobytes())
        return self._message


class ImageToFrame:
    """Converts messages of plain publishers into NV12 frames in a small pool of its own. Alpha is ignored.

    :param holder: name of that pool among holders of leases.
    :param slots: frames that may be alive at the same time.
    """

    def __init__(self, ledger: CopyLedger, *, holder: str, slots: int = 6) -> None:
        self._ledger = ledger
        self._holder = holder
        self._slots = slots
        self._heap = SealedMemfd()
        self._pool: BufferPool | None = None
        self._writer: Nv12Writer | None = None
        self._sequence = 0

    def _pool_for(self, width: int, height: int) -> tuple[BufferPool, Nv12Writer]:
        if self._pool is None or self._writer is None or (self._pool.layout.width, self._pool.layout.height) != (width, height):
            if self._pool is not None:
                self._pool.close()
            layout = compute_layout(NV12, width, height)
            self._pool = BufferPool(layout, lambda: (self._heap.allocate(layout.buffer_size(0)),), self._slots, name=self._holder)
            self._writer = Nv12Writer(width, height)
        return self._pool, self._writer

    def __call__(self, message: Image) -> Frame:
        """The frame; the caller releases it.

        :raises FormatError: an encoding other than :data:`INPUT_ENCODINGS`, or data that doesn't fit its own header.
        :raises LayoutError: an odd size.
        """
        pixels = self._checked(message)
        pool, writer = self._pool_for(message.width, message.height)
        slot = pool.acquire()
        if slot is None:
            raise FormatError(f'all {self._slots} converted frames are in use ({pool.statistics().holders}); release frames sooner')
        try:
            with map_buffers(slot.layout, slot.buffers, CpuAccess.READ | CpuAccess.WRITE, []) as planes:
                self._write(message.encoding, pixels, writer, planes[0], planes[1])
        except BaseException:
            pool.discard(slot)
            raise
        self._ledger.book('from_ros', pixels.nbytes)
        self._sequence += 1
        stamp = message.header.stamp
        return Frame.publish_slot(
            pool,
            slot,
            header=Header(stamp.sec * 1_000_000_000 + stamp.nanosec, message.header.frame_id),
            colorimetry=BT601_LIMITED,
            sequence=self._sequence,
            captured_ns=time.monotonic_ns(),
        )

    @staticmethod
    def _checked(message: Image) -> NDArray[np.uint8]:
        if message.encoding not in INPUT_ENCODINGS:
            raise FormatError(f"image encoding '{message.encoding}' can't be converted to a frame; publish {', '.join(INPUT_ENCODINGS)}")
        width, height, channels = message.width, message.height, _CHANNELS[message.encoding]
        check_dimensions(compute_layout(NV12, 2, 2).format, width, height)
        rows = height * 3 // 2 if message.encoding in _PLANAR else height
        if message.step < width * channels or len(message.data) < message.step * rows:
            raise FormatError(
                f'image {width}x{height} {message.encoding}: step {message.step} and {len(message.data)} bytes of data are too small'
            )
        flat = np.frombuffer(message.data, np.uint8)[: message.step * rows].reshape(rows, message.step)[:, : width * channels]
        return flat.reshape(rows, width, channels) if channels > 1 else flat

    @staticmethod
    def _write(encoding: str, pixels: NDArray[np.uint8], writer: Nv12Writer, luma: NDArray[np.uint8], chroma: NDArray[np.uint8]) -> None:
        if encoding in _COLOUR:
            writer.write(pixels, luma, chroma, rgb=encoding.startswith('rgb'))
            return
        if encoding in _PACKED:
            samples, pairs = _PACKED[encoding]
            np.copyto(luma, pixels[..., samples])
            colour = pixels[..., pairs].reshape(luma.shape[0] // 2, 2, -1, 2)
            # Two rows share one chroma sample in NV12.
            cv2.addWeighted(colour[:, 0], 0.5, colour[:, 1], 0.5, 0.0, dst=chroma)
            return
        height = luma.shape[0]
        np.copyto(luma, pixels[:height])
        if encoding == 'mono8':
            chroma[:] = 128
        else:
            colour = pixels[height:].reshape(chroma.shape)
            np.copyto(chroma, colour if encoding == 'nv12' else colour[..., ::-1])

    def close(self) -> None:
        """Free the pool; frames in use stay readable."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None


def frame_adapter(encoding: str, ledger: CopyLedger, *, holder: str) -> TypeAdapter[Frame]:
    """The adapter Frame ↔ ``sensor_msgs/Image``, one for each endpoint: it keeps that endpoint's scratch memory."""
    return TypeAdapter(Frame, Image, FrameToImage(encoding, ledger), ImageToFrame(ledger, holder=holder))
