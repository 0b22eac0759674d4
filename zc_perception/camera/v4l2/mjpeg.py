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
Decode the frames of a camera whose driver fills its buffers with JPEGs.

The camera's thread hands each filled buffer to a second thread, and goes on waiting for the
driver. The second thread decodes the newest picture into an NV12 slot of the pool, and returns the
JPEG's buffer to the driver. When a newer picture comes, a picture that still waits for decoding is
skipped. So a machine that is too slow loses frames, but the decoded frames are always recent.

libturbojpeg decodes to planes of Y, Cb and Cr, not to RGB. The luma plane is written directly into
the slot. The chroma planes are written to scratch memory, scaled to half the picture's width and
height if needed, and interleaved into the slot. The decoding doesn't hold the interpreter's lock.
Webcams leave out JPEG's typical Huffman tables; libturbojpeg 2.0 and later add them.

Sources: the kernel's *Compressed Formats* (``V4L2_PIX_FMT_MJPEG``: each buffer holds one whole
picture of ``bytesused`` bytes), ``turbojpeg.h`` of libjpeg-turbo 2 (also tested with 3.2), ISO/IEC
10918-1 (annex B on markers; F.1.2.3: the last byte is filled up with ones), JFIF (ISO/IEC 10918-5:
BT.601, full range).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
import ctypes
from dataclasses import dataclass
from functools import cache
import os
import re
import threading
import time

import cv2
import numpy as np
from numpy.typing import NDArray

from zc_perception.errors import CameraError, ConfigError
from zc_perception.frame import Frame, Header
from zc_perception.mapping import map_buffers
from zc_perception.memory.dmabuf import CpuAccess
from zc_perception.memory.ledger import CopyLedger
from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.memory.pool import BufferPool, Slot
from zc_perception.pixel.colorimetry import Colorimetry, Matrix, Range, Transfer
from zc_perception.pixel.fourcc import fourcc_code
from zc_perception.pixel.layout import ImageLayout, PlaneLayout
from zc_perception.pixel.modifier import LINEAR

JPEG_COLORIMETRY = Colorimetry(Matrix.BT601, Range.FULL, Transfer.SRGB)
"""The colorimetry of JPEGs (JFIF): decoding doesn't change the range."""
INSTALL = 'apt install libturbojpeg0 (Debian) or apt install libturbojpeg (Ubuntu)'

_LIBRARIES = ('libturbojpeg.so.0', 'libturbojpeg.so')
_NEEDED = (
    'tjInitDecompress', 'tjDecompressHeader3', 'tjDecompressToYUVPlanes', 'tjGetErrorStr2',
    'tjGetErrorCode', 'tjDestroy',
)  # fmt: skip
# For each TJSAMP_* of libturbojpeg: how many pixels a chroma sample covers horizontally and
# vertically. Grey has no chroma.
_SUBSAMPLING = {0: (1, 1), 1: (2, 1), 2: (2, 2), 3: None, 4: (1, 2), 5: (4, 1), 6: (1, 4)}
_YCBCR, _GREY = 1, 2
_OTHER_COLOURS = {0: 'RGB', 3: 'CMYK', 4: 'YCCK'}
_LIMIT_SCANS = 32768
_WARNING = 0
# Ignore this warning: many webcams add bytes between the picture's data and the end marker.
# libturbojpeg finds them only after it has decoded the whole picture.
_HARMLESS = re.compile(rb'extraneous bytes before marker 0xd9$')
_BEGIN = b'\xff\xd8'
_WIDEST_SUBSAMPLING = 4
_END = b'\xff\xd9'
_FILL = 0xFF
_SCAN = 0xDA
# Markers of segments that have a length: SOFn, DHT, DAC, SOS, DQT, DNL, DRI, DHP, EXP, APPn, COM.
_SEGMENTS = frozenset((*range(0xC0, 0xC8), *range(0xC9, 0xD0), *range(0xDA, 0xF0), 0xFE))
# Data with more stray bytes than this in the header is not a picture.
_MOST_STRAY = 4096
_CHUNK = 1 << 16
Pixels = NDArray[np.uint8]


class BadJpegError(CameraError):
    """A picture is broken, or has a wrong size or wrong colours. The next picture may be good."""


@cache
def _library() -> ctypes.CDLL:
    reasons = []
    for name in _LIBRARIES:
        try:
            library = ctypes.CDLL(name)
        except OSError as error:
            reasons.append(str(error))
            continue
        missing = [function for function in _NEEDED if not hasattr(library, function)]
        if missing:
            reasons.append(f'{name} has no {missing[0]}; version 2.0 or later is needed')
            continue
        pointer, number = ctypes.c_void_p, ctypes.c_int
        library.tjInitDecompress.restype = pointer
        library.tjDecompressHeader3.argtypes = [
            pointer,
            pointer,
            ctypes.c_ulong,
            *[ctypes.POINTER(number)] * 4,
        ]
        library.tjDecompressToYUVPlanes.argtypes = [
            pointer,
            pointer,
            ctypes.c_ulong,
            pointer,
            number,
            pointer,
            number,
            number,
        ]
        library.tjGetErrorStr2.argtypes, library.tjGetErrorStr2.restype = (
            [pointer],
            ctypes.c_char_p,
        )
        library.tjGetErrorCode.argtypes = library.tjDestroy.argtypes = [pointer]
        return library
    raise ConfigError(
        f'JPEG pictures need the library libturbojpeg: {INSTALL} ({"; ".join(reasons)})'
    )


def missing_library() -> str:
    """Return why JPEG can't be decoded, and which package helps; empty if it can be decoded."""
    try:
        _library()
    except ConfigError as error:
        return str(error)
    return ''


def mended(data: Pixels) -> Pixels:
    """
    Mend defects that webcams often make: stray bytes in the header, and a missing end marker.

    The result is a mended copy, or *data* itself if it needs no mending or isn't a picture.

    :param data: contiguous bytes: one picture, and bytes that may follow it.
    """
    kept = _header(data)
    if kept is None:
        return data
    end = data.size if _ends(data, data.size) else _last(data)
    complete = _ends(data, end)
    if complete and kept == [(0, data.size)]:
        return data
    if not complete:
        end = _with_zeros(data, end)
    parts = [data[:end][start:stop] for start, stop in kept]
    return np.concatenate([*parts, *([] if complete else [np.frombuffer(_END, np.uint8)])])


def _header(data: Pixels) -> list[tuple[int, int]] | None:
    """
    Return the start and end of each part of *data* to keep: all but the header's stray bytes.

    ``None``: *data* has no start of a picture's scan.
    """
    begin = data[: _MOST_STRAY + len(_BEGIN)].tobytes().find(_BEGIN)
    if begin < 0:
        return None
    start, at, stray = begin, begin + len(_BEGIN), begin
    kept: list[tuple[int, int]] = []
    while at + 4 <= data.size and stray <= _MOST_STRAY:
        marker = int(data[at + 1])
        length = int(data[at + 2]) << 8 | int(data[at + 3])
        if data[at] != _FILL or marker not in _SEGMENTS or length < 2:
            if start < at:
                kept.append((start, at))
            at += 1
            start, stray = at, stray + 1
        elif marker == _SCAN:
            return [*kept, (start, data.size)]
        else:
            at += 2 + length
    return None


def _ends(data: Pixels, end: int) -> bool:
    start = max(0, end - len(_END))
    return data[start:end].tobytes() == _END


def _last(data: Pixels) -> int:
    """Return the offset at which the zero bytes at the end of *data* begin."""
    for start in range((data.size - 1) // _CHUNK * _CHUNK, -1, -_CHUNK):
        found = np.flatnonzero(data[start:][:_CHUNK])
        if found.size:
            return start + int(found[-1]) + 1
    return 0


def _with_zeros(data: Pixels, end: int) -> int:
    """
    Return *end* plus the number of zero bytes behind it that may belong to the picture.

    After each byte 0xFF, a picture's data has a zero byte that carries no pixels. A picture's data
    ends with at most ten zero bits, so one more zero byte may belong to it. Further zero bytes
    don't count, because decoding them would invent the rest of an incomplete picture.
    """
    stuffed = end > 0 and data[end - 1] == _FILL
    return min(data.size, end + (2 if stuffed else 1))


class JpegDecoder:
    """
    Decodes pictures of one size, into memory that the constructor allocates once.

    Only one thread may use a decoder at a time.

    :param width: width of the pictures in pixels.
    :param height: height of the pictures in pixels.
    :raises ConfigError: libturbojpeg is not installed; the message says how to install it.
    """

    def __init__(self, width: int, height: int) -> None:
        self._library = _library()
        self._size = width, height
        # A JPEG's planes are padded to whole chroma samples.
        padded = width + _WIDEST_SUBSAMPLING - 1, height + _WIDEST_SUBSAMPLING - 1
        # These arrays are large enough for every subsampling. A page of an array takes memory only
        # when a picture is written to the page.
        self._planes = [np.empty(padded[0] * padded[1], np.uint8) for _ in range(3)]
        self._halved = [np.empty((-(-height // 2), -(-width // 2)), np.uint8) for _ in range(2)]
        self._lock = threading.Lock()
        self._handle: int | None = self._new_handle()
        self._mend_first = False

    def _new_handle(self) -> int:
        handle: int | None = self._library.tjInitDecompress()
        if not handle:
            raise CameraError('libturbojpeg could not make a decoder: no memory')
        return handle

    def decode(self, data: Pixels, luma: Pixels, chroma: Pixels) -> int:
        """
        Write the picture *data* to the planes of an NV12 image.

        :param data: the JPEG's contiguous bytes. Bytes behind its end are ignored.
        :param luma: (height, width).
        :param chroma: (height/2, width/2, 2).
        :returns: how many bytes were copied to mend the picture (:func:`mended`); 0: no mending.
        :raises BadJpegError: the picture is broken, or has another size or other colours. The
            planes may then hold a part of it.
        :raises CameraError: the decoder is closed.
        """
        with self._lock:
            if self._handle is None:
                raise CameraError('the JPEG decoder is closed')
            # If the last picture needed mending, this picture probably needs mending: mend it now.
            picture = mended(data) if self._mend_first else data
            try:
                self._try(self._handle, picture, luma, chroma)
            except BadJpegError:
                picture, tried = mended(data), picture
                if self._mend_first or picture is tried:
                    raise
                self._try(self._handle, picture, luma, chroma)
            self._mend_first = picture is not data
            return picture.size if self._mend_first else 0

    def _try(self, handle: int, data: Pixels, luma: Pixels, chroma: Pixels) -> None:
        try:
            self._decode(handle, data, luma, chroma, self._examine(handle, data))
        except BadJpegError:
            # A decoder uses the previous picture's tables for a picture without tables. Tables of
            # a broken picture would spoil the next pictures, so a new decoder is made.
            self._library.tjDestroy(handle)
            self._handle = None
            self._handle = self._new_handle()
            raise

    def _examine(self, handle: int, data: Pixels) -> tuple[int, int] | None:
        """Check a JPEG's header; return the size of a chroma sample in pixels; ``None``: grey."""
        if bytes(data[:2]) != _BEGIN:
            raise BadJpegError('a broken JPEG came: its first bytes are not those of a JPEG')
        width, height, sampling, colours = (ctypes.c_int() for _ in range(4))
        if self._library.tjDecompressHeader3(
            handle, data.ctypes.data, data.size, width, height, sampling, colours
        ):
            self._refuse_unless_harmless(handle)
        if (width.value, height.value) != self._size:
            wanted = f'{self._size[0]}x{self._size[1]}'
            raise BadJpegError(
                f'a JPEG of {width.value}x{height.value} came, but the camera is set to {wanted}'
            )
        if colours.value not in (_YCBCR, _GREY):
            what = _OTHER_COLOURS.get(colours.value, f'colour space {colours.value}')
            raise BadJpegError(f"a JPEG with {what} came; only Y'CbCr and grey can be decoded")
        if sampling.value not in _SUBSAMPLING:
            raise BadJpegError(
                'a JPEG with chroma samples of an unusual shape came; 4:4:4, 4:2:2, 4:2:0, '
                '4:4:0, 4:1:1 and grey can be decoded'
            )
        return _SUBSAMPLING[sampling.value]

    def _decode(
        self,
        handle: int,
        data: Pixels,
        luma: Pixels,
        chroma: Pixels,
        sampling: tuple[int, int] | None,
    ) -> None:
        width, height = self._size
        across, down = sampling or (1, 1)
        columns, rows = -(-width // across), -(-height // down)
        direct = (columns * across, rows * down) == self._size
        first = luma if direct else self._plane(0, rows * down, columns * across)
        others = (
            []
            if sampling is None
            else [self._plane(1, rows, columns), self._plane(2, rows, columns)]
        )
        planes = (ctypes.c_void_p * 3)(*(plane.ctypes.data for plane in (first, *others)))
        strides = (ctypes.c_int * 3)(*(plane.strides[0] for plane in (first, *others)))
        if self._library.tjDecompressToYUVPlanes(
            handle, data.ctypes.data, data.size, planes, width, strides, height, _LIMIT_SCANS
        ):
            self._refuse_unless_harmless(handle)
        if not direct:
            luma[:] = first[:height, :width]
        if others:
            cv2.merge([self._quarter(plane, index) for index, plane in enumerate(others)], chroma)
        else:
            chroma[:] = 128

    def _plane(self, index: int, rows: int, columns: int) -> Pixels:
        return self._planes[index][: rows * columns].reshape(rows, columns)

    def _quarter(self, plane: Pixels, index: int) -> Pixels:
        """Return a chroma plane, scaled to NV12's resolution."""
        halved = self._halved[index]
        if plane.shape == halved.shape:
            return plane
        if plane.shape == (
            2 * halved.shape[0],
            halved.shape[1],
        ):  # for 4:2:2, which most webcams use: resize() would take ten times as long
            cv2.addWeighted(plane[::2], 0.5, plane[1::2], 0.5, 0.0, halved)
        else:
            cv2.resize(plane, halved.shape[::-1], halved, interpolation=cv2.INTER_AREA)
        return halved

    def _refuse_unless_harmless(self, handle: int) -> None:
        reason: bytes = self._library.tjGetErrorStr2(handle) or b'no reason was given'
        if self._library.tjGetErrorCode(handle) != _WARNING or not _HARMLESS.search(reason):
            raise BadJpegError(f'a broken JPEG came: {reason.decode(errors="replace")}')

    def close(self) -> None:
        """Free the decoder, after the picture that is being decoded is finished."""
        with self._lock:
            handle, self._handle = self._handle, None
        if handle is not None:
            self._library.tjDestroy(handle)


SLOTS = 3
"""Slots that the decoder needs: for a frame being decoded, a finished frame, a published frame."""
JPEG_BUFFERS = 2
"""Buffers besides those that the driver needs: one is being decoded, one waits for decoding."""
_JOIN_S = 5.0
_ROW = 4096


def bytes_layout(size: int) -> ImageLayout:
    """Return a layout of rows of bytes for JPEG buffers, because every pool needs a layout."""
    row = min(size, _ROW)
    return ImageLayout(
        row, size // row, fourcc_code('R8  '), LINEAR, (PlaneLayout(0, 0, row, size // row * row),)
    )


@dataclass(frozen=True)
class JpegPicture:
    """
    A JPEG in a buffer that the driver has filled.

    :param slot: the slot of the driver's buffer; the slot is still in state FILLING.
    :param start: offset at which the data begins.
    :param end: offset at which the data ends.
    :param captured_ns: the picture's capture time in ns of CLOCK_MONOTONIC.
    """

    slot: Slot
    start: int
    end: int
    header: Header
    captured_ns: int
    sequence: int


Outcome = Frame | Exception | None
"""
The result for a picture: its frame, a :class:`BadJpegError`, or another error of the decoding.
``None``: no slot was free.
"""


class JpegFrames:
    """
    Decodes the newest picture into a slot of *pool*, in a thread of its own.

    Only the camera's thread calls :meth:`give` and :meth:`finished`.

    :param name: the name of the decoding thread.
    :param pictures: the pool of the driver's buffers; each slot that becomes free is queued at
        the driver again.
    :param pool: the pool whose slots (NV12, LINEAR) the frames are decoded into.
    :param wake: the eventfd that becomes readable whenever a picture is finished.
    :param ledger: counts each decoded frame as ``decode``, and each mended JPEG as ``mend``.
    :raises ConfigError: the decoder's library is not installed.
    """

    def __init__(
        self, name: str, pictures: BufferPool, pool: BufferPool, wake: OwnedFd, ledger: CopyLedger
    ) -> None:
        layout = pool.layout
        self.pictures = pictures
        self._pool = pool
        self._wake = wake
        self._ledger = ledger
        self._bytes = sum(
            plane.rows(layout.height) * plane.row_bytes(layout.width)
            for plane in layout.format.planes
        )
        self._decoder = JpegDecoder(layout.width, layout.height)
        self._changed = threading.Condition()
        self._next: JpegPicture | None = None
        self._done: deque[Outcome] = deque()
        self._closed = False
        self.bad = self.mended = self.no_slot = self.skipped = 0
        self.last_bad = ''
        self.decode_ns = 0
        """How long decoding the last picture took, in ns."""
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.thread.start()

    def give(self, picture: JpegPicture) -> None:
        """Pass a picture to the decoder; an older waiting picture returns to the driver."""
        with self._changed:
            skipped, self._next = self._next, picture
            self._changed.notify()
        if skipped is not None:
            self.skipped += 1
            self.pictures.discard(skipped.slot)

    def finished(self) -> Iterator[Outcome]:
        """Yield the result of each finished picture: a frame, or why there is none."""
        while self._done:
            yield self._done.popleft()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._next is not None)
                picture, self._next = self._next, None
            if picture is None:
                self._decoder.close()
                return
            self._finish(self._decoded(picture))

    def _finish(self, done: Outcome) -> None:
        with self._changed:
            if not self._closed:
                self._done.append(done)
                os.eventfd_write(self._wake.fileno(), 1)
                return
        if isinstance(done, Frame):
            done.release()

    def _decoded(self, picture: JpegPicture) -> Outcome:
        try:
            slot = self._pool.acquire()
            if slot is None:
                self.no_slot += 1
                return None
            return self._frame(picture, slot)
        except Exception as error:
            if isinstance(error, BadJpegError):
                self.last_bad = str(error)
                self.bad += 1
            # Drop the traceback, because it would keep views of the buffers alive.
            return error.with_traceback(None)
        finally:
            self.pictures.discard(picture.slot)

    def _frame(self, picture: JpegPicture, slot: Slot) -> Frame:
        began_ns = time.monotonic_ns()
        drawn = False
        try:
            self._write(picture, slot)
            drawn = True
        finally:
            if not drawn:
                self._pool.discard(slot)
        self._ledger.book('decode', self._bytes)
        self.decode_ns = time.monotonic_ns() - began_ns
        return Frame.publish_slot(
            self._pool,
            slot,
            header=picture.header,
            colorimetry=JPEG_COLORIMETRY,
            sequence=picture.sequence,
            captured_ns=picture.captured_ns,
            capture_cost_ns=self.decode_ns,
        )

    def _write(self, picture: JpegPicture, slot: Slot) -> None:
        buffer = picture.slot.buffers[0]
        with (
            buffer.cpu_access(CpuAccess.READ),
            map_buffers(slot.layout, slot.buffers, CpuAccess.READ | CpuAccess.WRITE, []) as planes,
        ):
            start, end = picture.start, min(picture.end, buffer.size)
            memory = buffer.memory()[start:end]
            copied = self._decoder.decode(np.frombuffer(memory, np.uint8), planes[0], planes[1])
        if copied:
            self.mended += 1
            self._ledger.book('mend', copied)

    def close(self) -> None:
        """
        Stop the thread, and release the waiting picture and the frames that were not taken.

        A picture that is being decoded is finished first. Idempotent.
        """
        with self._changed:
            self._closed = True
            waiting, self._next = self._next, None
            done, self._done = self._done, deque()
            self._changed.notify()
        if waiting is not None:
            self.pictures.discard(waiting.slot)
        for one in done:
            if isinstance(one, Frame):
                one.release()
        self.thread.join(_JOIN_S)
