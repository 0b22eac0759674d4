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

"""Helpers for tests inside a process with GStreamer: cameras, frames, and leaks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
import ctypes
import dataclasses
from dataclasses import dataclass, field
import os
from pathlib import Path
from typing import Any

from camera.camera_options import camera_options, NamedHeap
from waiting import until

from zc_perception.camera.camera import Camera, CameraOptions
from zc_perception.camera.gstreamer.camera import GStreamerCamera
from zc_perception.errors import CameraError
from zc_perception.frame import Frame
from zc_perception.memory.heaps import OfferedHeaps
from zc_perception.memory.ledger import CopyLedger
from zc_perception.negotiation.agreement import agree
from zc_perception.negotiation.constraints import BufferConstraints

WAIT_S = 60.0
# 64x48 NV12, tightly packed: 3072 + 1536 bytes.
SIZE = 'width=64,height=48,framerate=200/1'
CAPS = f'video/x-raw,format=NV12,{SIZE}'
TIGHT = f'frame-size=4608 caps-text={CAPS} strides=64,64 offsets=0,3072'


@dataclass
class Opened:
    camera: Any
    ledger: CopyLedger
    opened_heaps: list[str] = field(default_factory=list)


def events_counted(*, on: bool) -> None:
    """Let the double count frames for its events, such as ``error-at``, or not."""
    (plugin,) = Path(os.environ['GST_PLUGIN_PATH_1_0']).glob('libgstzc*.so')
    ctypes.c_int.in_dll(ctypes.CDLL(str(plugin)), 'double_counts').value = on


def open_camera(
    pipeline: str, start_timeout_s: float = WAIT_S, silent: float = WAIT_S, **options: Any
) -> Opened:
    ledger, opened = CopyLedger(), list[str]()

    def open_heap(name: str) -> NamedHeap:
        opened.append(name)
        return NamedHeap(name)

    class Options(CameraOptions):
        def open_heaps(self) -> OfferedHeaps:  # noqa: CNL100
            return OfferedHeaps(('memfd',), opener=open_heap)

    events_counted(on=False)
    made = camera_options(pipeline=pipeline, ledger=ledger, silent=silent, **options)
    fields = {field.name: getattr(made, field.name) for field in dataclasses.fields(made)}
    camera = GStreamerCamera(Options(**fields), start_timeout_s=start_timeout_s)
    return Opened(camera, ledger, opened)


def configure(camera: Camera, slots: int = 4) -> None:
    """Allocate as the node does, with consumers that want *slots* in all; count for events."""
    own = camera.constraints()
    others = BufferConstraints('slots', slots=slots - own.slots)
    camera.allocate(agree([own, others], (camera.width, camera.height)))
    events_counted(on=True)


@contextmanager
def streaming(pipeline: str, slots: int = 4, **options: Any) -> Iterator[Opened]:
    opened = open_camera(pipeline, **options)
    try:
        configure(opened.camera, slots)
        yield opened
    finally:
        opened.camera.close()
        opened.camera.close_rest()


def next_frame(camera: Camera) -> Frame:
    return until(camera.capture, 'a frame')


def awaited_error(camera: Camera) -> CameraError:
    def one() -> CameraError | None:
        try:
            frame = camera.capture()
        except CameraError as error:
            return error
        if frame is not None:
            frame.release()
        return None

    error: CameraError = until(one, 'an error')
    return error


def shown(frame: Frame) -> tuple[int, ...]:
    """Return each plane's number, which all of its samples must have."""
    with frame.map() as planes:
        values = []
        for plane in planes:
            assert (plane == plane.flat[0]).all(), 'another frame was written over it'
            values.append(int(plane.flat[0]))
        return tuple(values)


def inodes(frame: Frame) -> tuple[int, ...]:
    return tuple(buffer.identity.inode for buffer in frame.data.buffers)
