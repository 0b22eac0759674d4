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
Lend frames to a pipeline: a ``GstMemory`` over each buffer of a frame.

The frame's lease ends when the last of these memories is freed. Elements may put the memories into
other buffers, so the memories are watched and not the buffer. When a memory ends, GStreamer calls
a C function with an address of our choice and the memory's own. The function is
:func:`g_async_queue_push`, and our address is a queue. So no Python runs in a thread of
GStreamer's, not even while the interpreter ends. A thread of ours takes the addresses out of the
queue.

Source: GStreamer's *GstMiniObject*, *GstFdAllocator*, *GstDmaBufAllocator*, *GstVideoMeta*; GLib's
*GAsyncQueue*.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
import contextlib
import ctypes
from ctypes import c_int, c_size_t, c_void_p
from dataclasses import dataclass
import threading
from typing import Any

from zc_perception.camera.gstreamer.abi import (
    Allocator,
    Buffer,
    GStreamer,
    MapFunction,
    MAX_PLANES,
    MEMORY_READONLY,
    MiniObject,
)
from zc_perception.errors import AllocationError, StaleFrameError
from zc_perception.frame import Frame
from zc_perception.link.unixfd.wire import VIDEO_FORMATS
from zc_perception.memory.dmabuf import BufferKind
from zc_perception.memory.ledger import CopyLedger
from zc_perception.pixel.gstreamer_caps import buffer_planes

COPIED = 'gstreamer'
"""The copy ledger's reason for frames that an element of a pipeline reads with the CPU."""
_WAKE = 1
# One frame of so many is looked at: which costs a call into Python for each time that an element
# maps it.
_LOOK_EVERY = 32
_JOIN_S = 1.0


@dataclass(eq=False)
class _Lent:
    frame: Frame
    memories: int


class _Allocator:
    """An allocator of GStreamer's that can tell whether elements map its memories."""

    def __init__(
        self, gst: GStreamer, kind: BufferKind, mapped: Callable[[], None] | None
    ) -> None:
        self._gst = gst
        self._dmabuf = kind is BufferKind.DMABUF
        self._address: int = (
            gst.gst_dmabuf_allocator_new() if self._dmabuf else gst.gst_fd_allocator_new()
        )
        self._own_map = 0
        if mapped is not None:
            record = Allocator.from_address(self._address)
            self._own_map = record.mem_map
            own = MapFunction(record.mem_map)

            def look(memory: int, size: int, flags: int) -> int:
                mapped()
                return int(own(memory, size, flags) or 0)

            self._look = MapFunction(look)
            record.mem_map = ctypes.cast(self._look, c_void_p).value

    def memory(self, fd: int, size: int) -> int:
        """Return a memory that owns *fd*."""
        if self._dmabuf:
            return int(self._gst.gst_dmabuf_allocator_alloc(self._address, fd, size) or 0)
        return int(self._gst.gst_fd_allocator_alloc(self._address, fd, size, 0) or 0)

    def close(self) -> None:
        if self._own_map:
            Allocator.from_address(self._address).mem_map = self._own_map
        self._gst.gst_object_unref(self._address)


class LentFrames:
    """
    Makes buffers of frames, and releases each frame when GStreamer has freed all its memories.

    It owns the thread ``gstreamer leases NAME``, which lives until :meth:`close` and until the
    last frame is back: what a stuck element holds stays lent, because that element, or its device,
    may still read it.

    :param ledger: frames that an element maps are booked there.
    """

    def __init__(self, gst: GStreamer, name: str, ledger: CopyLedger) -> None:
        self._gst = gst
        self._ledger = ledger
        self._lock = threading.Lock()
        # By the memory's address. Another memory may get it before the end of the first one was
        # heard of: they end in order.
        self._out: dict[int, deque[_Lent]] = {}
        self._num_out = 0
        self._closed = False
        self._mapped = self._looking = False
        self._unbooked: list[int] = []
        self._lent = 0
        self._freed: int = gst.g_async_queue_new()
        push: Any = gst.g_async_queue_push
        self._push = ctypes.cast(push, c_void_p).value
        self._allocators = {
            (kind, looks): _Allocator(gst, kind, self._on_map if looks else None)
            for kind in BufferKind
            for looks in (False, True)
        }
        self._thread = threading.Thread(
            target=self._take_back, name=f'gstreamer leases {name}', daemon=True
        )
        self._thread.start()

    def _on_map(self) -> None:
        """Note that a frame is read by the CPU; runs on a thread of GStreamer's."""
        self._mapped = True

    @property
    def out(self) -> int:
        """Return the number of frames that the pipeline holds."""
        return self._num_out

    @property
    def mapped(self) -> bool:
        """Whether an element reads, or has read, frames with the CPU."""
        return self._mapped

    def forget_mapped(self) -> None:
        """Begin another pipeline, whose elements may not read frames."""
        self._mapped = self._looking = False
        self._unbooked.clear()
        self._lent = 0

    def buffer(self, frame: Frame, pts_ns: int) -> int:
        """
        Make a buffer over the frame's memory, with the places of its planes.

        The frame is lent from here on.

        :raises AllocationError: there is no descriptor or memory left. The frame is still the
            caller's.
        """
        gst, data = self._gst, frame.data
        where = buffer_planes(data.layout)
        looks = not self._looking and self._lent % _LOOK_EVERY == 0
        lent, memories = _Lent(frame, len(data.buffers)), list[int]()
        buffer: int = gst.gst_buffer_new()
        try:
            for dmabuf, size in zip(data.buffers, where.sizes, strict=True):
                allocator = self._allocators[dmabuf.kind, looks]
                # Its own: the camera may close its descriptors while an element still has the
                # memory.
                own = dmabuf.dup()
                memory = allocator.memory(own.fileno(), size)
                if not memory:
                    raise AllocationError('GStreamer can make no memory of a frame')
                own.detach()
                MiniObject.from_address(memory).flags |= MEMORY_READONLY
                gst.gst_buffer_append_memory(buffer, memory)
                memories.append(memory)
        except BaseException as error:
            gst.gst_mini_object_unref(buffer)
            if isinstance(error, OSError):
                raise AllocationError(
                    f'a frame can not be lent to GStreamer: {error.strerror}'
                ) from error
            raise
        with self._lock:
            for memory in memories:
                self._out.setdefault(memory, deque()).append(lent)
            self._num_out += 1
        for memory in memories:
            gst.gst_mini_object_weak_ref(memory, self._push, self._freed)
        record = Buffer.from_address(buffer)
        record.pts, record.offset, record.offset_end = pts_ns, data.sequence, data.sequence + 1
        planes = len(where.offsets)
        number = VIDEO_FORMATS.get(data.layout.format.gstreamer or '', 0)
        gst.gst_buffer_add_video_meta_full(
            buffer, 0, number, data.width, data.height, planes,
            (c_size_t * MAX_PLANES)(*where.offsets), (c_int * MAX_PLANES)(*where.strides),
        )  # fmt: skip
        self._book(sum(where.sizes), looks)
        return buffer

    def _book(self, num_bytes: int, looks: bool) -> None:
        """Book frames once it is known that such frames are read."""
        self._lent += 1
        self._looking |= looks
        self._unbooked.append(num_bytes)
        if self._mapped:
            for size in self._unbooked:
                self._ledger.book(COPIED, size)
            self._unbooked.clear()
        elif len(self._unbooked) > _LOOK_EVERY:
            del self._unbooked[0]
            # The frame that was looked at went by unread; the next one is looked at again.
            self._looking = False

    def _take_back(self) -> None:
        while not (self._closed and not self._num_out):
            address = self._gst.g_async_queue_pop(self._freed)
            if address == _WAKE:
                continue
            with self._lock:
                waiting = self._out[address]
                lent = waiting.popleft()
                if not waiting:
                    del self._out[address]
                lent.memories -= 1
                if lent.memories:
                    continue
                self._num_out -= 1
            with contextlib.suppress(StaleFrameError):
                lent.frame.release()
        with self._lock:  # close() may still be ringing
            for allocator in self._allocators.values():
                allocator.close()
            self._gst.g_async_queue_unref(self._freed)

    def close(self) -> None:
        """
        Lend no more.

        The thread ends with the last frame that comes back. Frames that are already back are
        waited for.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._gst.g_async_queue_push(self._freed, _WAKE)
        self._thread.join(_JOIN_S if not self._num_out else 0.0)
