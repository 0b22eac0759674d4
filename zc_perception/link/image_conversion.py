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
Convert frames to ``sensor_msgs/Image`` and back, for the rung ``ros_message``.

The copy ledger counts each conversion.
"""

from __future__ import annotations

import array
from collections.abc import Callable
from dataclasses import replace
import time
from typing import Any

from builtin_interfaces.msg import Time
import cv2
import numpy as np
from numpy.typing import NDArray
from sensor_msgs.msg import CompressedImage, Image
from std_msgs.msg import Header as HeaderMessage

from zc_perception.errors import AllocationError, ConfigError, FormatError, NegotiationError
from zc_perception.frame import Frame, Header
from zc_perception.link.rclpy_compat import bytes_of
from zc_perception.link.type_adapter import TypeAdapter
from zc_perception.mapping import map_buffers, why_unmapped
from zc_perception.memory.dmabuf import CpuAccess
from zc_perception.memory.heaps import Heap, heap_order, HeapUse, SealedMemfd, working_heaps
from zc_perception.memory.ledger import CopyLedger
from zc_perception.memory.pool import BufferPool, MAX_SLOTS
from zc_perception.negotiation.agreement import agree
from zc_perception.negotiation.constraints import BufferConstraints
from zc_perception.pixel.colorimetry import BT601_LIMITED, Colorimetry, Matrix, Range
from zc_perception.pixel.conversion import (
    cut_to,
    even,
    Nv12Writer,
    Planes,
    ToLuma,
    ToNv12,
    ToPicture,
)
from zc_perception.pixel.format_names import from_ros_encoding
from zc_perception.pixel.fourcc import NV12, pixel_format
from zc_perception.pixel.layout import chained_layout, compute_layout, ImageLayout, views
from zc_perception.pixel.modifier import LINEAR
from zc_perception.pixel.raw_picture import (
    layout_of,
    NATIVE,
    OUTPUT_ENCODINGS,
    PictureReader,
    RawPicture,
)
from zc_perception.pixel.readable import check_readable, full_range_table, READABLE, rgb_range

_KEEP_ALL_DEPTH = 16
# sensor_msgs has an old and a new name for each packed format. Readers of every ROS distribution
# know the old name, so we send that.
_OLDEST_NAMES = {'yuyv': 'yuv422_yuy2', 'uyvy': 'yuv422'}
# The Y'CbCr matrix and range that readers of a message assume, because a message can't name them.
_MEANT = (BT601_LIMITED.matrix, BT601_LIMITED.range)
_GREY = Colorimetry(Matrix.BT601, Range.FULL)


class RosHeaders:
    """Makes the ROS messages that ``Frame.stamp`` and ``Frame.header_msg()`` return."""

    def stamp(self, stamp_ns: int) -> Time:
        """Return *stamp_ns*, a time in nanoseconds, as a new ``Time`` message."""
        seconds, nanoseconds = divmod(stamp_ns, 1_000_000_000)
        return Time(sec=seconds, nanosec=nanoseconds)

    def header(self, header: Header) -> HeaderMessage:
        """Return *header*, a frame's header, as a new ``Header`` message."""
        return HeaderMessage(stamp=self.stamp(header.stamp_ns), frame_id=header.frame_id)


def stamp_ns(header: Any) -> int:
    """Return the stamp of a message's header in nanoseconds."""
    return int(header.stamp.sec) * 1_000_000_000 + int(header.stamp.nanosec)


def stamp_to_message(header: Header, message: Any) -> None:
    """Copy stamp and frame_id of a frame's header into a message's header."""
    message.header.stamp.sec, message.header.stamp.nanosec = divmod(header.stamp_ns, 1_000_000_000)
    message.header.frame_id = header.frame_id


def native_encoding(fourcc: int, colorimetry: Colorimetry) -> str:
    """
    Return the ROS encoding with which a message can carry a frame's bytes unconverted.

    Return ``rgb8`` if there is no such encoding. A message can't name matrix and range: readers
    assume BT.601, limited range, for Y'CbCr, and full range for R, G, B and grey.
    """
    fmt = pixel_format(fourcc)
    same = (
        (colorimetry.matrix, colorimetry.range) == _MEANT
        if fmt.is_yuv
        else rgb_range(fmt, colorimetry) is Range.FULL
    )
    return _OLDEST_NAMES.get(fmt.ros, fmt.ros) if fmt.ros and same else 'rgb8'


def why_no_message(layout: ImageLayout) -> str:
    """Return why frames of *layout* can't be converted to messages; empty if they can."""
    reason = why_unmapped(layout)
    if reason or layout.fourcc in READABLE:
        return reason
    return f'{layout.format.name.strip()} has no conversion to an encoding of ROS messages'


class FrameToImage:
    """
    Converts frames of any format to messages; each call overwrites the message of the last call.

    :param encoding: one of :data:`OUTPUT_ENCODINGS`. Every viewer shows ``rgb8``; many don't show
        ``nv12``. For ``native`` see :func:`native_encoding`.
    :raises ConfigError: *encoding* is not one of these.
    """

    def __init__(self, encoding: str, ledger: CopyLedger) -> None:
        if encoding not in OUTPUT_ENCODINGS:
            raise ConfigError(
                f"image encoding '{encoding}' is not one of {', '.join(OUTPUT_ENCODINGS)}"
            )
        self._encoding = encoding
        self._ledger = ledger
        self._message = Image()
        self._key: tuple[ImageLayout, Colorimetry] | None = None
        self._planes: list[NDArray[Any]] = []
        self._convert: Callable[[Planes], object] = self._copy

    def _prepare(self, layout: ImageLayout, colorimetry: Colorimetry) -> None:
        """Choose the conversion and resize the message for *layout* and *colorimetry*."""
        size = layout.fourcc, layout.width, layout.height
        encoding = (
            native_encoding(layout.fourcc, colorimetry)
            if self._encoding == NATIVE
            else self._encoding
        )
        convert: Callable[[Planes], object]
        if encoding in ('rgb8', 'bgr8'):
            picture = ToPicture(*size, colorimetry, bgr=encoding == 'bgr8')
            convert = lambda planes: picture.convert(planes, self._planes[0])  # noqa: E731
        elif self._encoding == NATIVE:
            check_readable(layout.fourcc, colorimetry)
            convert = self._copy
        elif encoding == 'mono8':
            span = (
                colorimetry.range
                if layout.format.is_yuv
                else rgb_range(layout.format, colorimetry)
            )
            convert = self._to_grey(ToLuma(*size, colorimetry), span)
        else:
            convert = self._to_nv12(layout, colorimetry)
        fourcc = from_ros_encoding(encoding)
        image = chained_layout(
            fourcc,
            layout.width,
            layout.height,
            pixel_format(fourcc).planes[0].row_bytes(layout.width),
        )
        message = self._message
        if (message.encoding, message.width, message.height) != (
            encoding,
            layout.width,
            layout.height,
        ):
            memory = array.array('B', bytes(image.buffer_size(0)))
            message.encoding, message.width, message.height = encoding, layout.width, layout.height
            message.step, message.data = image.planes[0].stride, memory
        # Depending on rclpy's version, the message keeps our array or a copy of it. So read the
        # array from the message again, and write into that array.
        self._planes = views(image, message.data)
        self._convert = convert
        self._key = layout, colorimetry

    def _copy(self, planes: Planes) -> None:
        for source, target in zip(planes, self._planes, strict=True):
            np.copyto(target, source)

    def _to_grey(self, luma: ToLuma, span: Range) -> Callable[[Planes], object]:
        if span is Range.FULL:
            return lambda planes: luma.convert(planes, self._planes[0])
        table = full_range_table()
        return lambda planes: cv2.LUT(luma.convert(planes), table, dst=self._planes[0])

    def _to_nv12(
        self, layout: ImageLayout, colorimetry: Colorimetry
    ) -> Callable[[Planes], object]:
        size = layout.width, layout.height
        direct = ToNv12(layout.fourcc, *size, colorimetry)
        if (direct.colorimetry.matrix, direct.colorimetry.range) == _MEANT:
            return lambda planes: direct.convert(planes, self._planes[0], self._planes[1])
        picture, writer = ToPicture(layout.fourcc, *size, colorimetry, bgr=True), Nv12Writer(*size)
        return lambda planes: writer.write(
            picture.convert(planes), self._planes[0], self._planes[1]
        )

    def __call__(self, frame: Frame) -> Image:
        """
        Return the message for *frame*.

        With several planes, ``step`` is the length of a row of the first plane; with nv12 ``data``
        has ``step * height * 3 / 2`` bytes.

        :raises FormatError: the frame's format or colorimetry has no conversion.
        :raises LayoutError: the encoding is nv12, and the frame's width or height is odd.
        """
        data = frame.data
        # This comparison is quick: tuples compare their members by identity first, and all slots
        # of a pool have the same layout object.
        if self._key != (data.layout, data.colorimetry):
            self._prepare(data.layout, data.colorimetry)
        stamp_to_message(data.header, self._message)
        with frame.map() as planes:
            self._convert(planes)
        self._ledger.book('to_ros', len(self._message.data))
        return self._message


class FrameToJpeg:
    """
    Converts frames of any format to JPEG messages for image_transport's compressed plugin.

    :param quality: JPEG quality from 1 (small) to 100 (good).
    :raises ConfigError: *quality* is out of range.
    """

    def __init__(self, quality: int, ledger: CopyLedger) -> None:
        if not 1 <= quality <= 100:
            raise ConfigError(f'JPEG quality {quality} is outside 1 .. 100')
        self._quality = quality
        self._ledger = ledger
        self._message = CompressedImage(format='bgr8; jpeg compressed bgr8')
        self._key: tuple[ImageLayout, Colorimetry] | None = None
        self._picture: ToPicture | None = None

    def __call__(self, frame: Frame) -> CompressedImage:
        """
        Return the message for *frame*; the message is valid until the next call.

        :raises FormatError: the frame's format or colorimetry has no conversion.
        """
        data = frame.data
        if self._picture is None or self._key != (data.layout, data.colorimetry):
            self._picture = ToPicture(
                data.fourcc, data.width, data.height, data.colorimetry, bgr=True
            )
            self._key = data.layout, data.colorimetry
        stamp_to_message(data.header, self._message)
        with frame.map() as planes:
            picture = self._picture.convert(planes)
        self._ledger.book('to_jpeg', picture.nbytes)
        _, encoded = cv2.imencode('.jpg', picture, [cv2.IMWRITE_JPEG_QUALITY, self._quality])
        self._message.data = array.array('B', encoded.tobytes())
        return self._message


class ImageToFrame:
    """
    Converts ``sensor_msgs/Image`` messages into NV12 frames in a small pool that it owns.

    The messages may have any of :data:`~zc_perception.pixel.raw_picture.ENCODINGS`; alpha is
    ignored.

    :param holder: name of the pool; also the consumer's name in the pool's leases.
    :param slots: number of frames that may exist at the same time.
    """

    def __init__(self, ledger: CopyLedger, *, holder: str, slots: int = 6) -> None:
        self._ledger = ledger
        self._holder = holder
        self._slots = slots
        self._needs: BufferConstraints | None = None
        self._heap: Heap = SealedMemfd()
        self._pool: BufferPool | None = None
        self._pool_key: object = None
        self._unfit: AllocationError | NegotiationError | None = None
        self._converters: dict[int, ToNv12] = {}
        self._reader = PictureReader()
        self._sequence = 0
        self._window: tuple[int, int, Callable[[], object]] | None = None

    def limit(self, held: int, depth: int | None, on_room: Callable[[], object]) -> None:
        """
        Limit the frames: the consumer holds at most *held*, and at most *depth* wait for it.

        When both limits are reached, :meth:`all_in_use` is true. The caller must then drop a
        waiting frame before the next message is converted.

        :param depth: number of frames that may wait; ``None``: 16.
        :param on_room: called when the consumer, after it held *held* frames, may get another one.
        """
        window = min(held, MAX_SLOTS // 2)
        depth = min(depth or _KEEP_ALL_DEPTH, MAX_SLOTS - window - 1)
        self._window = window, depth, on_room
        self._slots = window + depth + 1

    def suit(self, constraints: BufferConstraints) -> None:
        """From now on, make frames in buffers that suit *constraints*, such as dma-bufs."""
        self._needs = replace(constraints, slots=0)

    def in_hand(self) -> tuple[tuple[int, float], ...]:
        """Return each held frame's sequence number, and for how many seconds it has been held."""
        return () if self._pool is None else self._pool.in_hand(self._holder)

    def all_in_use(self) -> bool:
        """Return whether as many frames are held or wait as are allowed, see :meth:`limit`."""
        if self._pool is None:
            return False
        self._pool.collect()
        most = self._slots if self._window is None else sum(self._window[:2])
        return self._pool.statistics().holders.get(self._holder, 0) >= most

    def made(self, frame: Frame) -> bool:
        """Say whether the release of *frame* frees a slot of the current pool."""
        return frame.pool is self._pool

    def _pool_for(self, width: int, height: int) -> BufferPool:
        key = width, height, self._slots, self._needs
        if key == self._pool_key and self._unfit is not None:
            raise self._unfit.with_traceback(None)
        if self._pool is None or key != self._pool_key:
            self.close()
            self._pool_key = key
            self._converters.clear()
            try:
                layout, heap = self._memory_for(width, height)
            except (AllocationError, NegotiationError) as error:
                self._unfit = error
                raise
            sizes = [layout.buffer_size(index) for index in range(layout.num_buffers)]
            self._pool = BufferPool(
                layout, lambda: tuple(map(heap.allocate, sizes)), self._slots, name=self._holder
            )
            if self._window is not None:
                held, depth, on_room = self._window
                self._pool.set_quota(self._holder, held, depth=depth, on_room=on_room)
                on_room()
        return self._pool

    def _memory_for(self, width: int, height: int) -> tuple[ImageLayout, Heap]:
        """Return the frames' layout, and a heap: memfd, unless the consumer needs other memory."""
        if self._needs is None:
            return compute_layout(NV12, width, height), self._heap
        self._heap = heaps = working_heaps(
            order=list(dict.fromkeys([SealedMemfd.name, *heap_order(HeapUse.CAMERA)]))
        )
        own = BufferConstraints(
            'messages', formats=((NV12, LINEAR),), heaps=heaps.names, cpu_access=CpuAccess.WRITE
        )
        request = agree([own, self._needs], (width, height))
        if request.heap is not None:
            heaps.choose(request.heap.name)
        return request.layout(), heaps

    def __call__(self, message: Image) -> Frame:
        """
        Return the message's pixels as a frame, which the caller releases.

        NV12 has only even sizes, so an odd last row or column is cut off.

        :raises FormatError: the encoding is not known, see :func:`layout_of`; or all slots are in
            use.
        :raises LayoutError: the encoding doesn't allow the message's size.
        :raises NegotiationError: the frames' consumer can't use NV12 of this size in any memory
            that this machine offers.
        :raises AllocationError: no memory is left for the frames.
        """
        picture = RawPicture(
            message.width,
            message.height,
            message.encoding,
            bool(message.is_bigendian),
            message.step,
            message.data,
        )
        layout = layout_of(picture)
        size = even(message.width), even(message.height)
        pool = self._pool_for(*size)
        data = bytes_of(message.data)
        if data is not message.data:
            self._ledger.book('from_ros', len(data))
        fourcc, planes_there = self._reader.read(picture._replace(data=data), layout)
        if fourcc != layout.fourcc:
            self._ledger.book('debayer', layout.buffer_size(0))
        fmt = pixel_format(fourcc)
        sources = cut_to(size, fmt, planes_there)
        converter = self._converters.get(fourcc)
        if converter is None:
            # Grey levels have full range. ToNv12 would convert them to limited range, which loses
            # levels. So tell ToNv12 that they have limited range: then it copies them. The
            # published frame says that they have full range (_GREY).
            given = (
                BT601_LIMITED
                if fmt.is_yuv
                else Colorimetry(Matrix.RGB, Range.LIMITED if fmt.is_grey else Range.FULL)
            )
            converter = self._converters[fourcc] = ToNv12(fourcc, *size, given)
        slot = pool.acquire()
        if slot is None:
            raise FormatError(
                f'all {self._slots} converted frames are in use (by holder: '
                f'{pool.statistics().holders}); release frames sooner'
            )
        try:
            with map_buffers(
                slot.layout, slot.buffers, CpuAccess.READ | CpuAccess.WRITE, []
            ) as planes:
                converter.convert(sources, planes[0], planes[1])
        except BaseException:
            pool.discard(slot)
            raise
        self._ledger.book('from_ros', sum(plane.nbytes for plane in sources))
        self._sequence += 1
        return Frame.publish_slot(
            pool,
            slot,
            header=Header(stamp_ns(message.header), message.header.frame_id),
            colorimetry=_GREY if fmt.is_grey else BT601_LIMITED,
            sequence=self._sequence,
            captured_ns=time.monotonic_ns(),
        )

    def close(self) -> None:
        """Close the pool; frames in use stay readable. The next conversion makes a new pool."""
        pool, self._pool, self._pool_key, self._unfit = self._pool, None, None, None
        if pool is not None:
            pool.close()
        self._heap.close()


def frame_adapter(encoding: str, ledger: CopyLedger, *, holder: str) -> TypeAdapter[Frame]:
    """
    Return an adapter between Frame and ``sensor_msgs/Image``.

    Each endpoint needs its own adapter, because an adapter reuses its message and its pool.
    """
    return TypeAdapter(
        Frame, Image, FrameToImage(encoding, ledger), ImageToFrame(ledger, holder=holder)
    )
