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
Give frames to a GStreamer pipeline in this process, without copying their memory.

:class:`LentFrames` makes a GStreamer buffer for a frame, with a ``GstMemory`` for each buffer of
the frame. When GStreamer has freed the last of these memories, the frame is released. The memories
are watched, not the GStreamer buffer, because elements may move them to other buffers. For each
freed memory, GStreamer calls :func:`g_async_queue_push`, which puts the memory's address into our
queue, and our thread reads the queue. So GStreamer's threads run no Python code when they free
memory: they may free memory while the interpreter ends.

:class:`FramePipeline` is one run of a pipeline, from start to end or error. :class:`FrameFeed`
runs a pipeline with the frames of a queue, and starts a new run some time after an element failed.
:class:`AccessUnits` takes H.264 access units from the pipeline's sink, and adds to each the header
of the frame that was encoded.

Source: GStreamer's *GstMiniObject*, *GstFdAllocator*, *GstDmaBufAllocator*, *GstVideoMeta*; GLib's
*GAsyncQueue*.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
import contextlib
import ctypes
from ctypes import byref, c_int, c_size_t, c_void_p
from dataclasses import dataclass
import re
import threading
import time
from typing import Any

from zc_perception.backoff import BackOff
from zc_perception.camera.gstreamer.abi import (
    Allocator,
    Buffer,
    BUFFER_DELTA_UNIT,
    CLOCK_TIME_NONE,
    GStreamer,
    load_gstreamer,
    MAP_READ,
    MapFunction,
    MapInfo,
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
    Sample,
    SINK,
    without_a_shell,
)
from zc_perception.errors import (
    AcceleratorError,
    AllocationError,
    ConfigError,
    FormatError,
    StaleFrameError,
    ZcError,
)
from zc_perception.frame import Frame, FrameData, Header
from zc_perception.frame_queue import KeepLastQueue
from zc_perception.link.unixfd import VIDEO_FORMATS
from zc_perception.memory.dmabuf import BufferKind
from zc_perception.memory.ledger import CopyLedger
from zc_perception.negotiation.constraints import Format
from zc_perception.pixel.format_names import buffer_planes, frame_caps
from zc_perception.pixel.fourcc import FORMATS
from zc_perception.pixel.modifier import LINEAR

COPIED = 'gstreamer'
"""The reason in the copy ledger for frames that a pipeline's element reads with the CPU."""
_WAKE = 1
# Watch only one frame in this many, to see whether it is mapped: each mapping of a watched frame
# costs a call into Python.
_LOOK_EVERY = 32
_LENT_END_S = 1.0


@dataclass(eq=False)
class _Lent:
    frame: Frame
    memories: int


class _Allocator:
    """A GStreamer allocator; it calls *mapped*, if given, each time its memory is mapped."""

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
        """Return a new GstMemory of *size* bytes that owns *fd*; 0: it could not be made."""
        if self._dmabuf:
            return int(self._gst.gst_dmabuf_allocator_alloc(self._address, fd, size) or 0)
        return int(self._gst.gst_fd_allocator_alloc(self._address, fd, size, 0) or 0)

    def close(self) -> None:
        if self._own_map:
            Allocator.from_address(self._address).mem_map = self._own_map
        self._gst.gst_object_unref(self._address)


class LentFrames:
    """
    Lends frames to GStreamer, and releases each frame when GStreamer has freed all memories of it.

    It owns the thread ``gstreamer leases NAME``, which ends after :meth:`close` when the last
    frame is released. Frames that a stuck element holds aren't released, because the element or
    its device may still read them.

    :param name: NAME in the thread's name.
    :param ledger: the copy ledger, which counts the frames that elements read with the CPU.
    """

    def __init__(self, gst: GStreamer, name: str, ledger: CopyLedger) -> None:
        self._gst = gst
        self._ledger = ledger
        self._lock = threading.Lock()
        # The lent frames by address of their memories. Each address has a queue, oldest frame
        # first: GStreamer may give a new memory the address of a freed one before our thread has
        # read from _freed that the old one was freed.
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
        """Record that an element maps a frame; called on one of GStreamer's threads."""
        self._mapped = True

    @property
    def out(self) -> int:
        """The number of frames that the pipeline holds."""
        return self._num_out

    @property
    def mapped(self) -> bool:
        """Whether an element has read a frame with the CPU in this run of the pipeline."""
        return self._mapped

    def forget_mapped(self) -> None:
        """Reset :attr:`mapped`; called before a new run of the pipeline."""
        self._mapped = self._looking = False
        self._unbooked.clear()
        self._lent = 0

    def buffer(self, frame: Frame, pts_ns: int) -> int:
        """
        Return a new GStreamer buffer that uses the frame's memory, with a ``GstVideoMeta``.

        From now on the frame is lent: it is released when GStreamer frees the memory.

        :raises AllocationError: no descriptor or memory is left; the caller keeps the frame.
        """
        gst, data = self._gst, frame.data
        where = buffer_planes(data.layout)
        looks = not self._looking and self._lent % _LOOK_EVERY == 0
        lent, memories = _Lent(frame, len(data.buffers)), list[int]()
        buffer: int = gst.gst_buffer_new()
        try:
            for dmabuf, size in zip(data.buffers, where.sizes, strict=True):
                allocator = self._allocators[dmabuf.kind, looks]
                # Duplicate the descriptor: the camera may close its own while an element uses the
                # memory.
                own = dmabuf.dup()
                memory = allocator.memory(own.fileno(), size)
                if not memory:
                    raise AllocationError('GStreamer could not make a GstMemory for a buffer')
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
        """
        Book a lent frame as copied if an element of the pipeline reads frames with the CPU.

        If an element maps a watched frame, it is assumed to read every frame with the CPU. Few
        frames are watched. So until a watched frame is mapped, remember the sizes of the last
        _LOOK_EVERY frames, and book these frames afterwards.

        :param num_bytes: size of the frame's image.
        :param looks: whether the frame is watched.
        """
        self._lent += 1
        self._looking |= looks
        self._unbooked.append(num_bytes)
        if self._mapped:
            for size in self._unbooked:
                self._ledger.book(COPIED, size)
            self._unbooked.clear()
        elif len(self._unbooked) > _LOOK_EVERY:
            del self._unbooked[0]
            # The watched frame was not mapped, so watch another one.
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
        with self._lock:  # close() may still be using the queue
            for allocator in self._allocators.values():
                allocator.close()
            self._gst.g_async_queue_unref(self._freed)

    def close(self) -> None:
        """Lend no more frames; stop the thread, now or when the last lent frame is released."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._gst.g_async_queue_push(self._freed, _WAKE)
        self._thread.join(_LENT_END_S if not self._num_out else 0.0)


SOURCE = 'zc_frames'
# The first version of GStreamer with DMA_DRM caps.
_DRM_SINCE = (1, 24)
# Each buffer's PTS is a multiple of this, because V4L2 encoders store the PTS in microseconds. The
# PTS of the encoded picture then equals the frame's PTS, so that the frame's header is found.
TICK_NS = 1000
# The latency that our source reports: the age of a frame when it is pushed. Without this report,
# sinks that synchronise to the clock would drop frames as late.
_LATENCY_NS = 33_000_000
_END_S = 1.0
_POLL_S = 0.01
_FLOW_OK = 0


class PipelineError(ZcError):
    """A pipeline can't run, or has failed; the text names the element."""


def complete(description: str) -> str:
    """
    Return *description* with our ``appsrc`` in front of its first element.

    :raises ConfigError: *description* begins with a source, or has quotes or other shell syntax.
    """
    text = without_a_shell(description)
    first = text.lstrip('! ').partition('!')[0].split()
    if first and (first[0] in ('appsrc', 'unixfdsrc') or text.startswith('!')):
        raise ConfigError(
            f"pipeline '{description}' begins with "
            f"'{first[0] if not text.startswith('!') else '!'}'; leave that out: "
            'the source of the frames is added in front of the first element'
        )
    return f'appsrc name={SOURCE} ! {text}'


class FramePipeline(BarePipeline):
    """
    One run of a pipeline that gets frames.

    Call all methods except :meth:`close` from one thread.

    :param description: the pipeline's text, see :func:`complete`.
    :param framerate: frames per second; 0 means unknown, and an encoder then puts out a picture
        only when the next frame has come.
    :param refused: caps not to offer, because an element refused them in an earlier run.
    :raises ConfigError: *description* can't be parsed, or an element is missing.
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
            # No limit in bytes: the subscription's window already limits how many frames wait.
            ('max-bytes', 0),
        ):
            gst.set_property(self._source, name, value)
        if self.sink and not gst.has_property(self.sink, 'max-buffers'):
            self.close()
            raise ConfigError(
                f"pipeline '{description}': {SINK} is not an appsink; only an appsink may "
                'have this name, so rename the element'
            )
        self.use_system_clock()

    def _peer_caps(self) -> Reference:
        """Return the caps that the element after our source accepts now."""
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
        Return the linear formats that the pipeline accepts; ``None``: all.

        This opens the pipeline's devices.

        :raises PipelineError: an element can't open its device.
        :raises ConfigError: the pipeline accepts no format that a frame can have.
        """
        self._set_state(State.READY)
        with self._peer_caps() as accepted:
            if self._gst.gst_caps_is_any(accepted.address):
                return None
            every = [(fourcc, LINEAR) for fourcc in FORMATS]
            found = tuple(
                each
                for each in every
                if (caps := offered_caps([each], assume_linear=False))
                and self._suits(caps, accepted)
            )
            if not found:
                takes = self._gst.take_text(self._gst.gst_caps_to_string(accepted.address))
                raise ConfigError(
                    f"pipeline '{self.description}' takes '{takes}', but no camera frame can "
                    "have these caps; put 'videoconvert' in front, or correct the pipeline's caps"
                )
            return found

    def start(self) -> None:
        """
        Start the pipeline.

        :raises PipelineError: an element can't run.
        """
        # Set the base time, so that PTS count from now, not from the time when all elements run.
        self._base_ns = time.monotonic_ns()
        self._gst.gst_element_set_start_time(self._pipeline, CLOCK_TIME_NONE)
        self._gst.gst_element_set_base_time(self._pipeline, self._base_ns)
        self._set_state(State.PLAYING)

    def pts_of(self, data: FrameData) -> int:
        """Return the PTS of the frame *data* in nanoseconds, a multiple of TICK_NS."""
        pts = (data.captured_ns - self._base_ns) // TICK_NS * TICK_NS
        # Encoders need increasing PTS. Frames captured before the start, or by several cameras,
        # may break this order, so raise their PTS.
        self._last_pts = max(pts, self._last_pts + TICK_NS)
        return self._last_pts

    def push(self, frame: Frame, pts_ns: int) -> bool:
        """
        Give a frame to the pipeline, which releases it later.

        Return ``False`` if the pipeline doesn't accept frames; the frame is then released.

        :raises PipelineError: the pipeline accepts no caps of the frame. After this or any other
            error, the caller still owns the frame.
        """
        data = frame.data
        stream = data.layout, data.buffers[0].kind, data.colorimetry
        if stream != self._stream:
            self._choose_caps(data)
            self._stream = stream
        buffer = self._lent.buffer(frame, pts_ns)
        return bool(self._gst.gst_app_src_push_buffer(self._source, buffer) == _FLOW_OK)

    def offers(self, data: FrameData) -> list[str]:
        """Return the caps with which a frame can be described, the preferred ones first."""
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
                    f"pipeline '{self.description}' takes none of the frames: their caps are "
                    f"'{offers[-1]}', but the pipeline takes '{takes}'; "
                    "put 'videoconvert' (for another format), 'videoscale' (size) or 'videorate' "
                    "(framerate) in front, or change the camera's parameters"
                )
        self.caps, self.offers_left = suiting[0], len(suiting) - 1
        with Reference(self._gst, self._gst.gst_caps_from_string(self.caps.encode())) as caps:
            self._gst.gst_app_src_set_caps(self._source, caps.address)

    def force_key_unit(self) -> None:
        """Request a key frame from the encoder, so that a new listener can start to decode."""
        event = self._gst.gst_video_event_new_upstream_force_key_unit(CLOCK_TIME_NONE, 1, 0)
        self._gst.gst_element_send_event(self.sink, event)

    def _error(self, said: Said) -> PipelineError:
        kind = NotTakenError if said.not_negotiated else PipelineError
        return kind(f"pipeline '{self.description}': {said.text}{said.reason}")

    def _end_of_stream(self) -> None:
        self.ended = True

    def finish(self) -> None:
        """End the stream, and wait up to a second until the sinks have written all data."""
        self._gst.gst_app_src_end_of_stream(self._source)
        deadline = time.monotonic() + _END_S
        while not self.ended and time.monotonic() < deadline:
            self.check()
            time.sleep(_POLL_S)

    def close(self) -> None:
        """
        Stop the pipeline on another thread, and wait up to a second.

        If an element is stuck, the other thread goes on waiting, and the frames that the element
        holds aren't released.
        """
        if self._closing is None:
            self._closing = threading.Thread(
                target=super().close, name='gstreamer stop', daemon=True
            )
            self._closing.start()
            self._closing.join(_END_S)

    @property
    def stuck(self) -> bool:
        """Whether :meth:`close` was called, but the pipeline hasn't stopped yet."""
        return self._closing is not None and self._closing.is_alive()


class NotTakenError(PipelineError):
    """An element refused the caps of the element before it."""


CAPS = 'video/x-h264, stream-format=(string)byte-stream, alignment=(string)au'
_PULL_S = 0.1
# The largest number of access units that wait in the sink; while it is full, the encoder is
# blocked.
_MOST_WAITING = 30
_NAL = re.compile(rb'\x00\x00\x01(.)', re.DOTALL)
_SLICE, _IDR, _SPS, _PPS = 1, 5, 7, 8
_ENCODER_END_S = 1.0


@dataclass(frozen=True)
class AccessUnit:
    """
    One encoded picture as an Annex B byte stream.

    :param header: the header of the frame that was encoded.
    :param key: whether a decoder can start at this unit.
    """

    header: Header
    data: bytes
    key: bool
    width: int
    height: int


def nal_types(data: bytes) -> list[int]:
    """Return the types of the NAL units in *data*, up to and including the first slice."""
    found = []
    for match in _NAL.finditer(data):
        found.append(match[1][0] & 31)
        if _SLICE <= found[-1] <= _IDR:
            break
    return found


class AccessUnits:
    """
    Takes access units from a pipeline's sink, on the thread ``gstreamer h264 NAME``.

    :param name: NAME in the thread's name.
    :param headers: the headers of the frames that the pipeline got, by PTS.
    :param take: called with each access unit, on that thread.
    """

    def __init__(
        self,
        gst: GStreamer,
        pipeline: FramePipeline,
        name: str,
        headers: Mapping[int, Header],
        take: Callable[[AccessUnit], None],
    ) -> None:
        self._gst = gst
        self._pipeline = pipeline
        self._headers = headers
        self._take = take
        self._last_pts = -1
        self._stop = threading.Event()
        self.unknown = self.reordered = self.bare = 0
        for key, value in (
            ('sync', False),
            ('emit-signals', False),
            ('enable-last-sample', False),
            ('max-buffers', _MOST_WAITING),
            ('drop', False),
        ):
            gst.set_property(pipeline.sink, key, value)
        with Reference(gst, gst.gst_caps_from_string(CAPS.encode())) as caps:
            gst.gst_app_sink_set_caps(pipeline.sink, caps.address)
        self._thread = threading.Thread(
            target=self._run, name=f'gstreamer h264 {name}', daemon=True
        )

    def start(self) -> None:
        """Start the thread. The pipeline must run already: before, its sink reports EOS."""
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the thread runs, or is not started yet, or was stopped; ``False``: it failed."""
        return self._thread.is_alive() or self._thread.ident is None or self._stop.is_set()

    def _run(self) -> None:
        gst, sink = self._gst, self._pipeline.sink
        while not self._stop.is_set():
            address = gst.gst_app_sink_try_pull_sample(sink, round(_PULL_S * 1e9))
            if not address:
                if gst.gst_app_sink_is_eos(sink):
                    self._stop.wait(_PULL_S)
                continue
            with Sample(gst, address) as sample:
                unit = self._unit(sample)
            if unit is not None:
                self._take(unit)

    def _unit(self, sample: Sample) -> AccessUnit | None:
        gst, pts = self._gst, sample.running_time_ns
        header = None if pts is None else self._headers.get(pts // TICK_NS * TICK_NS)
        info = MapInfo()
        if (
            pts is None
            or header is None
            or not gst.gst_buffer_map(sample.buffer, byref(info), MAP_READ)
        ):
            self.unknown += 1
            return None
        try:
            data = ctypes.string_at(info.data, info.size)
        finally:
            gst.gst_buffer_unmap(sample.buffer, byref(info))
        self.reordered += pts < self._last_pts
        self._last_pts = pts
        key = not Buffer.from_address(sample.buffer).mini_object.flags & BUFFER_DELTA_UNIT
        if key:
            self.bare += not {_SPS, _PPS} <= {*nal_types(data)}
        structure = gst.gst_caps_get_structure(sample.caps, 0)
        width, height = c_int(), c_int()
        gst.gst_structure_get_int(structure, b'width', byref(width))
        gst.gst_structure_get_int(structure, b'height', byref(height))
        return AccessUnit(header, data, key, width.value, height.value)

    def close(self) -> None:
        """Stop the thread; call this before the pipeline is closed."""
        self._stop.set()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(_ENCODER_END_S)


_WAIT_S = 0.05
_FENCE_S = 1.0
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.5, 30.0
# If a run lasted this long, the pause after its failure is _FIRST_PAUSE_S again.
_GOOD_S = 10.0
# Once a run has lasted this long, diagnostics no longer show the failure of the run before.
_SOUND_S = 2.0
# Compute the framerate from up to this many frames: with only two, a late frame would falsify it.
_RATE_FRAMES = 9
# Keep at most this many headers of frames that are in the encoder.
_MOST_HEADERS = 256
_JOIN_S = 3.0


@dataclass(frozen=True)
class FeedStatistics:
    """
    A snapshot of a feed's counters for diagnostics.

    :param frames: number of frames given to the pipeline.
    :param held: number of frames that the pipeline holds now.
    :param failed: number of runs that ended by an error or by the end of the stream.
    :param failure: the latest error; empty: none, or a new run has lasted for 2 s.
    :param lost: number of frames that could not be given to the pipeline.
    :param caps: caps of the frames in the current run; empty: no run.
    :param units: number of access units from the sink.
    :param unknown: number of access units whose PTS belongs to no frame.
    :param reordered: number of access units whose PTS is before the previous unit's, as with
        B-frames.
    :param bare: number of key units without the parameter sets (SPS, PPS) that a decoder needs.
    :param mapped: whether an element reads the frames with the CPU.
    :param stuck: number of pipelines that were closed but have not stopped.
    :param warnings: warnings of the elements in the current run.
    """

    frames: int
    held: int
    failed: int
    failure: str
    lost: int
    caps: str
    units: int
    unknown: int
    reordered: int
    bare: int
    mapped: bool
    stuck: int
    warnings: tuple[str, ...]


def rate_of(one: FrameData, other: FrameData) -> float:
    """
    Return the frame rate (Hz) that the times and sequence numbers of two frames imply.

    The rate is a whole number from 1 to 1000, or 0 if *other* isn't later than *one*.
    """
    apart_ns = other.captured_ns - one.captured_ns
    frames = max(1, other.sequence - one.sequence)
    return float(min(1000, max(1, round(1e9 * frames / apart_ns)))) if apart_ns > 0 else 0.0


class FrameFeed:
    """
    Runs one pipeline with the frames of a queue, and starts it again after an error.

    It owns the thread ``gstreamer NAME``, the pipeline, and the frames in it.

    :param description: the pipeline's text without a source, see :func:`complete`.
    :param name: NAME in the thread's name.
    :param listeners: returns the number of listeners to the output. Without listeners, frames are
        released unused. When the number grows, the encoder makes a key frame. The thread
        ``gstreamer NAME`` calls this function for each frame, and after 50 ms without a frame.
    :param take: called with each access unit of the sink, on the thread of :class:`AccessUnits`.
    :param warn: called with a sentence when a run has failed.
    :raises ConfigError: GStreamer isn't installed, the text can't be parsed, or an element is
        missing.
    """

    def __init__(
        self,
        description: str,
        *,
        name: str,
        ledger: CopyLedger,
        listeners: Callable[[], int] = lambda: 1,
        take: Callable[[AccessUnit], None] = lambda _: None,
        warn: Callable[[str], object] = lambda _: None,
    ) -> None:
        self._gst = load_gstreamer()
        self._description = description
        self._name = name
        self._listeners = listeners
        self._take = take
        self._warn = warn
        self._lent = LentFrames(self._gst, name, ledger)
        self._back_off = BackOff(_FIRST_PAUSE_S, _LAST_PAUSE_S)
        self._pipeline: FramePipeline | None = None
        self._units: AccessUnits | None = None
        self._headers: dict[int, Header] = {}
        self._ended: list[FramePipeline] = []
        self._refused: list[str] = []
        self._seen: deque[FrameData] = deque(maxlen=_RATE_FRAMES)
        self._heard = 0
        self._began = 0.0
        self._frames = self._failed = self._lost = self._taken = 0
        self._counts = [0, 0, 0]
        self._failure = ''
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        try:
            with_sink = FramePipeline(self._gst, description, self._lent)
            self.has_sink = bool(with_sink.sink)
            with_sink.close()
        except BaseException:
            self._lent.close()
            raise

    def formats(self) -> tuple[Format, ...] | None:
        """
        Return the formats that the pipeline accepts, see :meth:`FramePipeline.formats`.

        Return ``None`` (any format) also if an element can't open its device.
        """
        pipeline = FramePipeline(self._gst, self._description, self._lent)
        try:
            return pipeline.formats()
        except PipelineError:
            # The first frame will start the pipeline, which then reports this error.
            return None
        finally:
            pipeline.close()

    def start(self, queue: KeepLastQueue[Frame]) -> None:
        """
        Start the thread, which takes frames from *queue* until :meth:`stop`.

        :raises PipelineError: the thread of the last run has not ended, because an element is
            stuck.
        """
        if self._thread is not None:
            self._thread.join(_JOIN_S)
            if self._thread.is_alive():
                raise PipelineError(
                    f"the last run of pipeline '{self._description}' has not ended yet: an "
                    'element is stuck'
                )
        self._stop.clear()
        self._seen.clear()
        self._back_off.start_over()
        self._thread = threading.Thread(
            target=self._run, args=(queue,), name=f'gstreamer {self._name}', daemon=True
        )
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the feed's threads run."""
        units = self._units
        return (
            self._thread is not None and self._thread.is_alive() and (units is None or units.alive)
        )

    def _run(self, queue: KeepLastQueue[Frame]) -> None:
        try:
            while not self._stop.is_set():
                try:
                    self._turn(queue)
                except ZcError as error:
                    self._fail(error)
        finally:
            self._end(finish=True)

    def _turn(self, queue: KeepLastQueue[Frame]) -> None:
        frame = queue.get(_WAIT_S)
        if frame is None and queue.closed:
            self._stop.wait(_WAIT_S)
        seen = self._seen
        if frame is not None:
            if seen and frame.data.sequence <= seen[-1].sequence:
                seen.clear()  # forget frames from before a restart of the camera
            seen.append(frame.data)
        try:
            listeners, before = self._listeners(), self._heard
            self._heard = listeners
            if not listeners or self._back_off.remaining_s:
                return
            pipeline = self._pipeline
            if pipeline is None:
                # Wait for two frames, to compute the framerate.
                if frame is None or len(seen) < 2:
                    return
                pipeline = self._open(rate_of(seen[0], frame.data))
            elif listeners > before and self._units is not None:
                pipeline.force_key_unit()
            if frame is not None:
                frame = self._push(pipeline, frame)
            pipeline.check()
            if pipeline.ended:
                raise PipelineError(f"pipeline '{self._description}' has ended its stream (EOS)")
        finally:
            if frame is not None:
                frame.release()

    def _open(self, framerate: float) -> FramePipeline:
        self._pipeline = pipeline = FramePipeline(
            self._gst, self._description, self._lent, framerate, self._refused
        )
        self._lent.forget_mapped()
        self._headers.clear()
        if self.has_sink:
            self._units = AccessUnits(
                self._gst, pipeline, self._name, self._headers, self._take_unit
            )
        self._began = time.monotonic()
        pipeline.start()
        if self._units is not None:
            self._units.start()
        return pipeline

    def _push(self, pipeline: FramePipeline, frame: Frame) -> Frame | None:
        """Give a frame to the pipeline; return the frame if the caller must release it."""
        fence = frame.data.acquire_fence
        try:
            if fence is not None and not fence.wait(_FENCE_S):
                self._lost += 1
                return frame
            if fence is not None:
                fence.check()
        except (AcceleratorError, ValueError, OSError):
            self._lost += 1  # the fence failed, so the frame has no new pixels
            return frame
        pts = pipeline.pts_of(frame.data)
        # Store the header before the push, because the access unit may come during the push.
        if self._units is not None:
            self._headers[pts] = frame.data.header
            if len(self._headers) > _MOST_HEADERS:
                del self._headers[next(iter(self._headers))]
        if not pipeline.push(frame, pts):
            self._lost += 1
            return None
        self._frames += 1
        if self._failure and time.monotonic() - self._began > _SOUND_S:
            self._failure = ''
        return None

    def _take_unit(self, unit: AccessUnit) -> None:
        self._taken += 1
        self._take(unit)

    def _fail(self, error: ZcError) -> None:
        pipeline = self._pipeline
        if isinstance(error, NotTakenError) and pipeline is not None and pipeline.offers_left:
            self._refused.append(pipeline.caps)
            self._end(finish=False)
            return
        self._refused.clear()
        if pipeline is not None and time.monotonic() - self._began > _GOOD_S:
            self._back_off.start_over()
        self._failed += 1
        self._failure = str(error)
        self._end(finish=False)
        self._back_off.failed()
        self._warn(f'{error}; the next try is in {self._back_off.pause_s:g} s')

    def _end(self, *, finish: bool) -> None:
        pipeline, self._pipeline = self._pipeline, None
        units, self._units = self._units, None
        if pipeline is None:
            return
        if finish:
            try:
                pipeline.finish()
            except ZcError as error:
                self._warn(str(error))
        if units is not None:
            units.close()
            for index, count in enumerate((units.unknown, units.reordered, units.bare)):
                self._counts[index] += count
        pipeline.close()
        self._ended = [each for each in (*self._ended, pipeline) if each.stuck]

    def statistics(self) -> FeedStatistics:
        """Return a snapshot of the counters."""
        pipeline, units = self._pipeline, self._units
        now = (0, 0, 0) if units is None else (units.unknown, units.reordered, units.bare)
        unknown, reordered, bare = (a + b for a, b in zip(self._counts, now, strict=True))
        return FeedStatistics(
            self._frames,
            self._lent.out,
            self._failed,
            self._failure,
            self._lost,
            '' if pipeline is None else pipeline.caps,
            self._taken,
            unknown,
            reordered,
            bare,
            self._lent.mapped,
            sum(each.stuck for each in self._ended),
            () if pipeline is None else tuple(pipeline.warnings),
        )

    def stop(self) -> None:
        """Stop the feed's thread, which first lets the sinks write all data. Idempotent."""
        if self._thread is not None and not self._stop.is_set():
            self._stop.set()
            self._thread.join(_JOIN_S)

    def close(self) -> None:
        """Stop for good; frames that a stuck element holds aren't released until it frees them."""
        self.stop()
        self._lent.close()
