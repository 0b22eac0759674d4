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
Frames of a camera whose driver fills its buffers with JPEGs.

Each is decoded once, on a thread of its own, into the pool's NV12.

The camera's thread hands over what the driver has filled and goes on waiting for the driver. The
decoding thread takes the newest picture, writes the frame, and gives the driver its buffer back.
If a newer picture comes, one that is still waiting is skipped: a machine that is too slow loses
frames, and the others stay fresh.

Source: the kernel's *Compressed Formats* (``V4L2_PIX_FMT_MJPEG``: each buffer holds one whole
picture, ``bytesused`` says how long).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
import os
import threading
import time

import numpy as np

from zc_perception.camera.jpeg import BadJpegError, JPEG_COLORIMETRY, JpegDecoder
from zc_perception.frame import Frame, Header
from zc_perception.mapping import map_buffers
from zc_perception.memory.dmabuf import CpuAccess
from zc_perception.memory.ledger import CopyLedger
from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.memory.pool import BufferPool, Slot
from zc_perception.pixel.fourcc import fourcc_code
from zc_perception.pixel.layout import ImageLayout, PlaneLayout
from zc_perception.pixel.modifier import LINEAR

SLOTS = 3
"""Of the pool: one frame is written, one is finished, one is being published."""
JPEG_BUFFERS = 2
"""
Of the driver, on top of what it needs queued: one picture is decoded while the next one waits.
"""
_JOIN_S = 5.0
_ROW = 4096


def bytes_layout(size: int) -> ImageLayout:
    """
    Return the layout of buffers that aren't images: rows of bytes.

    It serves the pool that counts the holders of the driver's buffers.
    """
    row = min(size, _ROW)
    return ImageLayout(
        row, size // row, fourcc_code('R8  '), LINEAR, (PlaneLayout(0, 0, row, size // row * row),)
    )


@dataclass(frozen=True)
class JpegPicture:
    """
    A picture that the driver has filled in.

    :param slot: the driver's buffer, being filled as far as its pool knows.
    :param start: where the data begins.
    :param end: where it ends.
    :param captured_ns: CLOCK_MONOTONIC at which the camera had it.
    """

    slot: Slot
    start: int
    end: int
    header: Header
    captured_ns: int
    sequence: int


Outcome = Frame | Exception | None
"""
What became of a picture: its frame, why it is bad (:class:`BadJpegError`), or what broke the
decoding. ``None``: no slot was free.
"""


class JpegFrames:
    """
    Decodes the newest picture into the pool.

    :meth:`give` and :meth:`finished` are for the camera's thread.

    :param name: the name of the decoding thread.
    :param pictures: the driver's buffers, whose free slots are queued again.
    :param pool: gets the frames: slots of NV12, LINEAR.
    :param wake: becomes readable whenever a picture is finished.
    :param ledger: books each frame that was written, as ``decode``, and each JPEG that was mended,
        as ``mend``.
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
        """How long the last picture took."""
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.thread.start()

    def give(self, picture: JpegPicture) -> None:
        """Hand a picture over. One that is still waiting goes back to the driver."""
        with self._changed:
            skipped, self._next = self._next, picture
            self._changed.notify()
        if skipped is not None:
            self.skipped += 1
            self.pictures.discard(skipped.slot)

    def finished(self) -> Iterator[Outcome]:
        """Yield what became of each finished picture, one after the other."""
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
                self.bad += 1
                self.last_bad = str(error)
            # The traceback would keep views of the buffers alive.
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
        End the thread, and give back what has not been taken.

        Idempotent. A picture that is being decoded is finished first.
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
