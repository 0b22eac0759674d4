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
One run of a pipeline that begins with our frames, from its text to its end or error.

Frames are lent: a ``GstMemory`` over each buffer of a frame.
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
from collections.abc import Callable, Sequence
import contextlib
import ctypes
from ctypes import c_int, c_size_t, c_void_p
from dataclasses import dataclass
import threading
import time
from typing import Any

from zc_perception.camera.gstreamer.abi import (
    Allocator,
    Buffer,
    CLOCK_TIME_NONE,
    GStreamer,
    MapFunction,
    MAX_PLANES,
    MEMORY_READONLY,
    MiniObject,
    State,
)
from zc_perception.camera.gstreamer.image import offered_caps
from zc_perception.camera.gstreamer.pipeline import (
    BarePipeline,
    Reference,
    Said,
    SINK,
    without_a_shell,
)
from zc_perception.errors import (
    AllocationError,
    ConfigError,
    FormatError,
    StaleFrameError,
    ZcError,
)
from zc_perception.frame import Frame, FrameData
from zc_perception.link.unixfd import VIDEO_FORMATS
from zc_perception.memory.dmabuf import BufferKind
from zc_perception.memory.ledger import CopyLedger
from zc_perception.negotiation.constraints import Format
from zc_perception.pixel.format_names import buffer_planes, frame_caps
from zc_perception.pixel.fourcc import FORMATS
from zc_perception.pixel.modifier import LINEAR

COPIED = 'gstreamer'
"""The copy ledger's reason for frames that an element of a pipeline reads with the CPU."""
_WAKE = 1
# One frame of this number is watched, because each mapping by an element then costs a call into
# Python.
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
        # By the memory's address. A new memory may get the same address before we have heard that
        # the first one has ended; they end in order.
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
                # Duplicates, because the camera may close its descriptors while an element still
                # has the memory.
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
            # No element read the watched frame, so the next one is watched again.
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


SOURCE = 'zc_frames'
# GStreamer knows DMA_DRM caps from here on.
_DRM_SINCE = (1, 24)
# PTS are whole microseconds: drivers count in these, and give them back as they got them.
TICK_NS = 1000
# A frame's age when it comes: sinks that wait for its time take it for late otherwise.
_LATENCY_NS = 33_000_000
_END_S = 1.0
_POLL_S = 0.01
_FLOW_OK = 0


class PipelineError(ZcError):
    """A pipeline can't run, or has failed. The message names the element that said so."""


def complete(description: str) -> str:
    """
    Return *description* with our source in front.

    :raises ConfigError: it begins with a source of its own, or something around it is for a shell.
    """
    text = without_a_shell(description)
    first = text.lstrip('! ').partition('!')[0].split()
    if first and (first[0] in ('appsrc', 'unixfdsrc') or text.startswith('!')):
        raise ConfigError(
            f"pipeline '{description}' begins with "
            f"'{first[0] if not text.startswith('!') else '!'}'; leave that out: "
            'the frames are put in front of its first element'
        )
    return f'appsrc name={SOURCE} ! {text}'


class FramePipeline(BarePipeline):
    """
    A pipeline over frames.

    All methods but :meth:`close` belong to one thread.

    :param description: see :func:`complete`.
    :param framerate: 0: unknown. Encoders wait for one frame more then.
    :param refused: caps that are not offered, because an element that seemed to take them did not.
    :raises ConfigError: it can't be understood, or an element is missing.
    """

    ERROR = PipelineError

    def __init__(
        self,
        gst: GStreamer,
        description: str,
        lent: LentFrames,
        framerate: float = 0.0,
        refused: Sequence[str] = (),
    ) -> None:
        super().__init__(gst, complete(description))
        self._framerate = framerate
        self._lent = lent
        self._source = self.element(SOURCE)
        self.sink = self.element(SINK)
        self.ended = False
        self.caps = ''
        self.offers_left = 0
        self._stream: tuple[Any, ...] = ()
        self._refused = refused
        self._last_pts = -TICK_NS
        self._base_ns = 0
        self._closing: threading.Thread | None = None
        for name, value in (
            ('is-live', True),
            ('format', 'time'),
            ('do-timestamp', False),
            ('block', False),
            ('min-latency', _LATENCY_NS),
            # The window of the subscription bounds what waits in it.
            ('max-bytes', 0),
        ):
            gst.set_property(self._source, name, value)
        if self.sink and not gst.has_property(self.sink, 'max-buffers'):
            self.close()
            raise ConfigError(
                f"pipeline '{description}': {SINK} is not an appsink; give another element "
                'another name'
            )
        self.use_system_clock()

    def _peer_caps(self) -> Reference:
        """Return the caps that the element behind our source takes now."""
        pad = self._gst.gst_element_get_static_pad(self._source, b'src')
        try:
            return Reference(self._gst, self._gst.gst_pad_peer_query_caps(pad, None))
        finally:
            self._gst.gst_object_unref(pad)

    def _suits(self, caps: str, accepted: Reference) -> bool:
        with Reference(self._gst, self._gst.gst_caps_from_string(caps.encode())) as offer:
            return bool(self._gst.gst_caps_can_intersect(offer.address, accepted.address))

    def formats(self) -> tuple[Format, ...] | None:
        """
        Return the linear formats that the pipeline takes; ``None``: any.

        Its devices are opened for that.

        :raises PipelineError: an element can't open what it needs.
        """
        self._set_state(State.READY)
        with self._peer_caps() as accepted:
            if self._gst.gst_caps_is_any(accepted.address):
                return None
            every = [(fourcc, LINEAR) for fourcc in FORMATS]
            return tuple(
                each
                for each in every
                if (caps := offered_caps([each], assume_linear=False))
                and self._suits(caps, accepted)
            )

    def start(self) -> None:
        """
        Start the pipeline.

        :raises PipelineError: an element can't run.
        """
        # PTS count from here, whenever which element begins.
        self._base_ns = time.monotonic_ns()
        self._gst.gst_element_set_start_time(self._pipeline, CLOCK_TIME_NONE)
        self._gst.gst_element_set_base_time(self._pipeline, self._base_ns)
        self._set_state(State.PLAYING)

    def pts_of(self, data: FrameData) -> int:
        """Return the next frame's time stamp."""
        pts = (data.captured_ns - self._base_ns) // TICK_NS * TICK_NS
        # Frames of before the start, and of several cameras: encoders want each to be later than
        # the one before.
        self._last_pts = max(pts, self._last_pts + TICK_NS)
        return self._last_pts

    def push(self, frame: Frame, pts_ns: int) -> bool:
        """
        Hand a frame over, which is the pipeline's from here on.

        ``False``: the pipeline takes none, and the frame is released.

        :raises PipelineError: no caps of the frame suit the pipeline. The frame
            is still the caller's then, as with every error.
        """
        data = frame.data
        stream = data.layout, data.buffers[0].kind, data.colorimetry
        if stream != self._stream:
            self._choose_caps(data)
            self._stream = stream
        buffer = self._lent.buffer(frame, pts_ns)
        return bool(self._gst.gst_app_src_push_buffer(self._source, buffer) == _FLOW_OK)

    def offers(self, data: FrameData) -> list[str]:
        """Return the caps of a frame, the best first."""
        dmabuf, found = data.buffers[0].kind is BufferKind.DMABUF, list[str]()
        understood = dmabuf and self._gst.version >= _DRM_SINCE
        for drm in (True, False) if understood else (False,):
            try:
                caps = frame_caps(
                    data.layout, data.colorimetry, self._framerate, dmabuf=dmabuf, drm=drm
                )
            except FormatError as error:
                last = error
            else:
                found += [caps] if caps not in found else []
        if not found:
            raise PipelineError(str(last)) from last
        return found

    def _choose_caps(self, data: FrameData) -> None:
        offers = self.offers(data)
        with self._peer_caps() as accepted:
            suiting = [
                caps
                for caps in offers
                if caps not in self._refused and self._suits(caps, accepted)
            ]
            if not suiting:
                takes = self._gst.take_text(self._gst.gst_caps_to_string(accepted.address))
                raise PipelineError(
                    f"pipeline '{self.description}' takes none of the frames: they are "
                    f"'{offers[-1]}', it takes '{takes}'; "
                    "put 'videoconvert' in front, or change the camera's pixel_format"
                )
        self.caps, self.offers_left = suiting[0], len(suiting) - 1
        with Reference(self._gst, self._gst.gst_caps_from_string(self.caps.encode())) as caps:
            self._gst.gst_app_src_set_caps(self._source, caps.address)

    def force_key_unit(self) -> None:
        """Let the encoder begin a new picture, with all that is needed to decode it."""
        event = self._gst.gst_video_event_new_upstream_force_key_unit(CLOCK_TIME_NONE, 1, 0)
        self._gst.gst_element_send_event(self.sink, event)

    def _error(self, said: Said) -> PipelineError:
        kind = NotTakenError if said.not_negotiated else PipelineError
        return kind(f"pipeline '{self.description}': {said.text}{said.reason}")

    def _end_of_stream(self) -> None:
        self.ended = True

    def finish(self) -> None:
        """Let elements write what they still have, for a second at most."""
        self._gst.gst_app_src_end_of_stream(self._source)
        deadline = time.monotonic() + _END_S
        while not self.ended and time.monotonic() < deadline:
            self.check()
            time.sleep(_POLL_S)

    def close(self) -> None:
        """
        Stop the pipeline within a second, on a thread of its own.

        An element that is stuck keeps that thread, and the frames that it holds.
        """
        if self._closing is None:
            self._closing = threading.Thread(
                target=super().close, name='gstreamer stop', daemon=True
            )
            self._closing.start()
            self._closing.join(_END_S)

    @property
    def stuck(self) -> bool:
        """Whether it was closed and hasn't come to an end."""
        return self._closing is not None and self._closing.is_alive()


class NotTakenError(PipelineError):
    """An element did not take the caps of the one before it."""
