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
Keep a pipeline running over the frames of a queue.

If an element fails, the run ends, and another one begins after a pause. :class:`AccessUnits` takes
H.264 out of the pipeline's end: each access unit gets the header of the frame that it shows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
import ctypes
from ctypes import byref, c_int
from dataclasses import dataclass
import re
import threading
import time

from zc_perception.backoff import BackOff
from zc_perception.camera.gstreamer.abi import (
    Buffer,
    BUFFER_DELTA_UNIT,
    GStreamer,
    load_gstreamer,
    MAP_READ,
    MapInfo,
)
from zc_perception.camera.gstreamer.pipeline import Reference, Sample
from zc_perception.errors import AcceleratorError, ZcError
from zc_perception.frame import Frame, FrameData, Header
from zc_perception.frame_queue import KeepLastQueue
from zc_perception.link.gstreamer.run import (
    FramePipeline,
    LentFrames,
    NotTakenError,
    PipelineError,
    TICK_NS,
)
from zc_perception.memory.ledger import CopyLedger
from zc_perception.negotiation.constraints import Format

CAPS = 'video/x-h264, stream-format=(string)byte-stream, alignment=(string)au'
_PULL_S = 0.1
# What may wait here before the encoder does.
_MOST_WAITING = 30
_NAL = re.compile(rb'\x00\x00\x01(.)', re.DOTALL)
_SLICE, _IDR, _SPS, _PPS = 1, 5, 7, 8
_ENCODER_END_S = 1.0


@dataclass(frozen=True)
class AccessUnit:
    """
    One picture's bytes, as Annex B has them.

    :param header: of the frame that was encoded.
    :param key: it can be decoded without any other.
    """

    header: Header
    data: bytes
    key: bool
    width: int
    height: int


def nal_types(data: bytes) -> list[int]:
    """Return the types of the NAL units up to the first slice."""
    found = []
    for match in _NAL.finditer(data):
        found.append(match[1][0] & 31)
        if _SLICE <= found[-1] <= _IDR:
            break
    return found


class AccessUnits:
    """
    Pulls them out of a pipeline's sink, on the thread ``gstreamer h264 NAME``.

    :param headers: of the frames that went in, by PTS.
    :param take: called with each, on that thread.
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
        """Begin, once the pipeline runs: a sink that doesn't run says that it is at its end."""
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the thread runs, or is to begin or end."""
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
        """Stop taking units, before the pipeline is closed."""
        self._stop.set()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(_ENCODER_END_S)


_WAIT_S = 0.05
_FENCE_S = 1.0
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.5, 30.0
# A run that lasted this long was a good one, so the next failure counts as the first.
_GOOD_S = 10.0
# And the latest failure counts as over after this time.
_SOUND_S = 2.0
# Frames by which the rate is estimated: if there were only two, one of them might be late.
_RATE_FRAMES = 9
# Most frames whose stamps are kept for an encoder.
_MOST_HEADERS = 256
_JOIN_S = 3.0


@dataclass(frozen=True)
class FeedStatistics:
    """
    A snapshot for diagnostics.

    :param frames: that went into the pipeline.
    :param held: that it has now.
    :param failed: runs that were ended by an error or by the end of the stream.
    :param failure: the latest of these, while no run goes on; empty: one does.
    :param lost: frames that could not go in.
    :param units: access units that came out.
    :param unknown: those whose time stamp is no frame's.
    :param reordered: those that come behind a later one: B-frames.
    :param bare: those that begin a picture without saying how it is to be decoded.
    :param mapped: whether an element reads the frames with the CPU.
    :param stuck: pipelines that did not come to an end.
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
    """Return frames per second as two frames show it, in whole ones; 0: they don't."""
    apart_ns = other.captured_ns - one.captured_ns
    frames = max(1, other.sequence - one.sequence)
    return float(min(1000, max(1, round(1e9 * frames / apart_ns)))) if apart_ns > 0 else 0.0


class FrameFeed:
    """
    Feeds one pipeline.

    It owns the thread ``gstreamer NAME``, the pipeline, and the frames in it.

    :param description: the pipeline's text, which begins behind the frames.
    :param listeners: returns how many want the output. While there is none, frames are let go;
        for each new one a picture is begun. Asked on the thread, for each frame.
    :param take: gets access units of the sink, on a thread of its own.
    :param warn: gets a sentence when a run has failed.
    :raises ConfigError: GStreamer isn't there, the text can't be understood, or an element is
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
        Return the formats, see :meth:`FramePipeline.formats`.

        ``None`` also while a device is missing that the pipeline needs.
        """
        pipeline = FramePipeline(self._gst, self._description, self._lent)
        try:
            return pipeline.formats()
        except PipelineError:
            return None  # it is tried again with the first frame, and named then
        finally:
            pipeline.close()

    def start(self, queue: KeepLastQueue[Frame]) -> None:
        """Take frames from *queue* until :meth:`stop`."""
        self._stop.clear()
        self._seen.clear()
        self._back_off.start_over()
        self._thread = threading.Thread(
            target=self._run, args=(queue,), name=f'gstreamer {self._name}', daemon=True
        )
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the threads run."""
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
                seen.clear()  # the camera has started again
            seen.append(frame.data)
        try:
            listeners, before = self._listeners(), self._heard
            self._heard = listeners
            if not listeners or self._back_off.remaining_s:
                return
            pipeline = self._pipeline
            if pipeline is None:
                # The time between two frames gives the rate.
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
        """Push a frame; ``None``: the frame is the pipeline's now."""
        fence = frame.data.acquire_fence
        try:
            if fence is not None and not fence.wait(_FENCE_S):
                self._lost += 1
                return frame
            if fence is not None:
                fence.check()
        except (AcceleratorError, ValueError, OSError):
            self._lost += 1  # nothing was written into it
            return frame
        pts = pipeline.pts_of(frame.data)
        if self._units is not None:  # which may ask for it at once
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
        """Return a snapshot."""
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
        """End the run; sinks write what they still have. A second call does nothing."""
        self._stop.set()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join(_JOIN_S)

    def close(self) -> None:
        """Stop for good. What a stuck element holds stays lent until the element lets go."""
        self.stop()
        self._lent.close()
