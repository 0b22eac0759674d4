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
A camera with a unixfd socket, raw readers, and GStreamer's ``unixfdsrc``.

As a program, it serves frames at a path until it is killed.
"""

from __future__ import annotations

import operator
import os
from pathlib import Path
import socket
import struct
import subprocess
import sys
import time
from typing import Any

from environment import gstreamer_root
from frame_kit import next_frame, nv12, pool_of
import numpy as np
from waiting import until

from zc_perception.frame import Frame
from zc_perception.link.bus import BUS, BusKey, BusPublisher, LinkQos
from zc_perception.link.unixfd import UnixfdServer
from zc_perception.memory.ledger import CopyLedger
from zc_perception.memory.pool import BufferPool
from zc_perception.pixel.layout import ImageLayout

SIZE = 64, 48
NV12 = nv12(*SIZE, stride_align=1, offset_align=1)


class Feed:
    def __init__(
        self, path: Path, layout: ImageLayout = NV12, *, slots: int = 12, **options: Any
    ) -> None:
        self.key: BusKey = ('unixfd tests', str(path), 'sensor_msgs/msg/Image')
        self.ledger = CopyLedger()
        self.said: list[str] = []
        self.sequence = 0
        self.lost = 0
        self.publisher: BusPublisher[Frame] = BusPublisher('camera', LinkQos(1))
        self.publisher.deliver = Frame.deliver
        self.publisher.pool_of = operator.attrgetter('_lease.pool')
        self.pools: list[BufferPool] = []
        self.raw: list[RawReader] = []
        options = {'name': 'camera', 'window': 4, 'quarantine_s': 0.01} | options
        options |= {'ledger': self.ledger, 'report': self.said.append, 'warn': self.said.append}
        self.server = UnixfdServer(self.key, path, **options)
        BUS.add_publisher(self.key, self.publisher)
        self.use(layout, slots)

    def use(self, layout: ImageLayout, slots: int = 12) -> None:
        self.pools.append(pool_of(layout, slots, reserve=1))
        self.publisher.use(self.pools[-1])

    @property
    def pool(self) -> BufferPool:
        return self.pools[-1]

    def publish(self) -> bool:
        """Publish one more frame with pixels of its own; return ``False`` if no slot is free."""
        slot = self.pool.acquire()
        if slot is None:
            self.lost += 1
            return False
        self.sequence += 1
        for plane in self.pool.layout.planes:
            mapping = slot.buffers[plane.buffer].mapping()
            noise = np.random.default_rng([self.sequence, plane.offset]).bytes(plane.size)
            mapping[slice(plane.offset, plane.offset + plane.size)] = noise
        with next_frame(self.pool, self.sequence, slot) as frame:
            self.publisher.publish(frame)
        return True

    def picture(self, sequence: int) -> list[np.ndarray[Any, Any]]:
        """Return the samples of frame *sequence* as rows of bytes, without padding."""
        layout, planes = self.pool.layout, []
        for plane, kind in zip(layout.planes, layout.format.planes, strict=True):
            noise = np.random.default_rng([sequence, plane.offset]).bytes(plane.size)
            shape = kind.rows(layout.height), kind.row_bytes(layout.width)
            planes.append(np.ndarray(shape, np.uint8, noise, 0, (plane.stride, 1)))
        return planes

    def readers(self) -> int:
        return len(self.server.statistics().readers)

    def reader(self) -> RawReader:
        """Return a reader that the server has admitted."""
        self.raw.append(RawReader(self.server.path))
        until(lambda: self.readers() == len(self.raw))
        return self.raw[-1]

    def all_free(self) -> bool:
        self.pool.collect()
        return not any(slot.leases or slot.fences for pool in self.pools for slot in pool.slots)

    def close(self) -> None:
        self.server.close()
        BUS.remove_publisher(self.key, self.publisher)
        for pool in self.pools:
            pool.close()


def gst(*words: str, **options: Any) -> subprocess.Popen[str]:
    root = gstreamer_root.newer_root()
    options |= {'env': gstreamer_root.with_environment(root.environment()), 'text': True}
    command, pipe = root.command('gst-launch-1.0', '-q', *words), subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=subprocess.STDOUT, **options)


class RawReader:
    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(60.0)
        self.socket.connect(os.fspath(path))

    def command(self) -> tuple[int, bytes]:
        """Return the next command and its payload, with -1 at EOF; close its descriptors."""
        try:
            head = self.socket.recv(8)
            if not head:
                return -1, b''
            number, size = struct.unpack('=II', head)
            payload, fds = socket.recv_fds(self.socket, size, 16)[:2] if size else (b'', [])
        except ConnectionResetError:
            return -1, b''
        for fd in fds:
            os.close(fd)
        return number, payload

    def buffer(self) -> int:
        while True:
            number, payload = self.command()
            if number == 0:
                return int(struct.unpack_from('=Q', payload)[0])
            assert number == 2, f'command {number}'

    def give_back(self, number: int) -> None:
        self.send(struct.pack('=IIQ', 1, 8, number))

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def close(self) -> None:
        self.socket.close()


def main() -> None:
    feed = Feed(Path(sys.argv[1]))
    print('ready', flush=True)
    while True:
        feed.publish()
        time.sleep(0.01)


if __name__ == '__main__':
    main()
