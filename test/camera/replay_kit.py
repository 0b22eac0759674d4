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

"""Cameras for recordings, and recordings written by other libraries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
import struct
import threading
from typing import Any
import zlib

from camera.camera_options import PARAMETERS
from mcap.writer import Writer as McapWriter
import numpy as np
from numpy.typing import NDArray
from rosbags.rosbag2 import StoragePlugin
from rosbags.rosbag2 import Writer as BagWriter
from rosbags.typesys import get_typestore, Stores

from zc_perception.camera.camera import Camera, DrawnCamera
from zc_perception.camera.clock import StampClock
from zc_perception.camera.replay.camera import ReplayCamera
from zc_perception.frame import Frame
from zc_perception.memory.heaps import SealedMemfd
from zc_perception.memory.ledger import CopyLedger
from zc_perception.negotiation.agreement import agree
from zc_perception.negotiation.constraints import BufferConstraints

NOW_NS = 5_000_000_000
STORE = get_typestore(Stores.ROS2_JAZZY)
IMAGE, COMPRESSED = 'sensor_msgs/msg/Image', 'sensor_msgs/msg/CompressedImage'


def replay(
    path: object, *, ledger: CopyLedger | None = None, now: Callable[[], int] = lambda: NOW_NS,
    clock: StampClock | None = None,
    **options: Any,
) -> ReplayCamera:  # fmt: skip
    """
    Return a camera for *path*; by default it plays every frame once.

    *options* are parameters, and ``constraints`` of another participant.
    """
    constraints = {'slots': 4, **options.pop('constraints', {})}
    parameters = {**PARAMETERS, 'video': str(path), **options}
    camera = ReplayCamera(
        parameters,
        frame_id='lens',
        heap=SealedMemfd(),
        now_ns=now,
        ledger=ledger or CopyLedger(),
        clock=clock,
    )
    npu = BufferConstraints('npu', **constraints | {'slots': constraints['slots'] - 2})
    camera.allocate(agree([camera.constraints(), npu], (camera.width, camera.height)))
    return camera


def captured(camera: Camera) -> Frame:
    """Return the next frame, which must be available at once."""
    frame = camera.capture()
    assert frame is not None
    return frame


def planes_of(frame: Frame) -> tuple[NDArray[Any], ...]:
    with frame.map() as planes:
        return tuple(plane.copy() for plane in planes)


def played(camera: DrawnCamera) -> list[tuple[Frame, tuple[NDArray[Any], ...]]]:
    """Play to the end; return every frame, released, with copies of its planes."""
    found = []
    try:
        while not camera.ended:
            frame = camera.capture()
            if frame is not None:
                with frame:
                    found.append((frame, planes_of(frame)))
    finally:
        camera.close()
    return found


def header(stamp_ns: int) -> Any:
    types = STORE.types
    seconds, nanoseconds = divmod(stamp_ns, 1_000_000_000)
    return types['std_msgs/msg/Header'](
        types['builtin_interfaces/msg/Time'](seconds, nanoseconds), 'recorded_lens'
    )


def image(
    stamp_ns: int,
    pixels: NDArray[np.uint8],
    encoding: str,
    width: int,
    height: int,
    *,
    padding: int = 0,
) -> Any:
    """Return a sensor_msgs/Image of *pixels* (rows, bytes), with *padding* behind each row."""
    padded = np.full((pixels.shape[0], pixels.shape[1] + padding), 0xEE, np.uint8)
    padded[:, : pixels.shape[1]] = pixels
    return STORE.types[IMAGE](
        header(stamp_ns), height, width, encoding, 0, padded.shape[1], padded.ravel()
    )


def compressed(stamp_ns: int, content: NDArray[np.uint8], text: str) -> Any:
    return STORE.types[COMPRESSED](header(stamp_ns), text, content.ravel())


def serialized(message: Any) -> bytes:
    return bytes(STORE.serialize_cdr(message, message.__msgtype__))


Entry = tuple[str, int, Any]
"""Topic, time of recording, and message or its bytes."""


def write_bag(
    path: Path, entries: Sequence[Entry], storage: str = 'sqlite3', msgtype: str = IMAGE
) -> Path:
    """Return a folder written by rosbags; bytes among *entries* are of type *msgtype*."""
    with BagWriter(path, version=9, storage_plugin=StoragePlugin[storage.upper()]) as writer:
        connections: dict[str, Any] = {}
        for topic, time_ns, message in entries:
            kind = msgtype if isinstance(message, bytes) else message.__msgtype__
            if topic not in connections:
                connections[topic] = writer.add_connection(topic, kind, typestore=STORE)
            writer.write(
                connections[topic],
                time_ns,
                message if isinstance(message, bytes) else serialized(message),
            )
    return path


def write_mcap(path: Path, entries: Sequence[Entry]) -> Path:
    """Return a file written by MCAP's own library, without rosbag2's metadata."""
    with path.open('wb') as file:
        writer = McapWriter(file)
        writer.start('ros2', 'test')
        channels: dict[str, int] = {}
        for topic, time_ns, message in entries:
            if topic not in channels:
                definition = STORE.generate_msgdef(message.__msgtype__, ros_version=2)[0]
                schema = writer.register_schema(
                    message.__msgtype__, 'ros2msg', definition.encode()
                )
                channels[topic] = writer.register_channel(topic, 'cdr', schema)
            writer.add_message(
                channels[topic], log_time=time_ns, publish_time=time_ns, data=serialized(message)
            )
        writer.finish()
    return path


def png_chunk(kind: bytes, content: bytes) -> bytes:
    crc = zlib.crc32(kind + content)
    return struct.pack('>I', len(content)) + kind + content + struct.pack('>I', crc)


class Gate:
    """A wait that lasts until a test opens it."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.reached = threading.Event()

    def wait(self) -> None:
        self.reached.set()
        assert self.opened.wait(60.0)
