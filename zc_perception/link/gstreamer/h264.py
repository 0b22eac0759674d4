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
Take H.264 out of the end of a pipeline.

Each access unit gets the header of the frame that it shows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
import ctypes
from ctypes import byref, c_int
from dataclasses import dataclass
import re
import threading

from zc_perception.camera.gstreamer.abi import (
    Buffer,
    BUFFER_DELTA_UNIT,
    GStreamer,
    MAP_READ,
    MapInfo,
)
from zc_perception.camera.gstreamer.pipeline import Reference, Sample
from zc_perception.frame import Header
from zc_perception.link.gstreamer.run import FramePipeline, TICK_NS

CAPS = 'video/x-h264, stream-format=(string)byte-stream, alignment=(string)au'
_WAIT_S = 0.1
# What may wait here before the encoder does.
_MOST_WAITING = 30
_NAL = re.compile(rb'\x00\x00\x01(.)', re.DOTALL)
_SLICE, _IDR, _SPS, _PPS = 1, 5, 7, 8
_JOIN_S = 1.0


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
            address = gst.gst_app_sink_try_pull_sample(sink, round(_WAIT_S * 1e9))
            if not address:
                if gst.gst_app_sink_is_eos(sink):
                    self._stop.wait(_WAIT_S)
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
            self._thread.join(_JOIN_S)
