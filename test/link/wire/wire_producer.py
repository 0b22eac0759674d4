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
The package's producer in a process of its own, driven by ``ProducerProcess``.

It publishes numbered frames of random pixels, and tells their CRCs. It reads commands from
standard input, one JSON list for each line, and answers each with one line: ``["publish", COUNT,
[CONSUMER, ...]]`` publishes frames, each one only when the consumers of these names could take it,
so that they lose none; ``["statistics"]``; ``["replace"]`` puts other buffers into all slots, once
they are free.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
import subprocess
import sys
import time
from typing import Any
import zlib

import numpy as np

from zc_perception.frame import Frame, Header
from zc_perception.link.shared_memory.server import SharedMemoryServer
from zc_perception.memory.dmabuf import DmaBuf
from zc_perception.memory.heaps import SealedMemfd
from zc_perception.memory.pool import BufferPool
from zc_perception.pixel.colorimetry import BT601_LIMITED
from zc_perception.pixel.fourcc import NV12
from zc_perception.pixel.layout import compute_layout

PATIENCE_S = 60.0


class ProducerProcess:
    """Starts this module as a program. A context manager: what still runs at its end is killed."""

    def __init__(self, folder: Path, publisher_id: str, **options: int) -> None:
        self.publisher_id = publisher_id
        command = [sys.executable, __file__, str(folder), publisher_id, json.dumps(options)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            self.path = Path(self._answer())
        except BaseException:
            self.__exit__()
            raise

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f'the producer ended with {self.process.wait(PATIENCE_S)}'
        return json.loads(line)

    def ask(self, *command: object) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + '\n')
        self.process.stdin.flush()
        return self._answer()

    def publish(self, count: int, *names: str) -> list[dict[str, Any]]:
        """
        Publish *count* frames, none of which the consumers called *names* lose.

        Return sequence, stamp, frame_id and CRCs.
        """
        return list(self.ask('publish', count, names))

    def statistics(self) -> dict[str, Any]:
        return dict(self.ask('statistics'))

    def wait_for(self, key: str, value: object) -> None:
        """Until ``statistics()[key]``, or the number of its entries, is *value*."""
        deadline = time.monotonic() + PATIENCE_S
        while (found := self.statistics()[key]) != value and not (
            isinstance(found, list | dict) and len(found) == value
        ):
            assert time.monotonic() < deadline, f'{key} is {found}, not {value}'
            time.sleep(0.002)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """End it in the orderly way."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(PATIENCE_S) == 0

    def __enter__(self) -> ProducerProcess:
        return self

    def __exit__(self, *exception: object) -> None:
        if self.process.poll() is None:
            self.kill()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()


def fill(frame: Frame, seed: int) -> list[int]:
    """Write random pixels, and return the CRC-32 of each plane."""
    source = np.random.default_rng(seed)
    with frame.map(write=True) as planes:
        for plane in planes:
            plane[...] = source.integers(0, 256, plane.shape, np.uint8)
        return [zlib.crc32(plane.tobytes()) for plane in planes]


class _Producer:
    def __init__(
        self, folder: Path, publisher_id: str, *, slots: int = 8, history: int = 0, pool: int = 1
    ) -> None:
        self.layout = compute_layout(NV12, 64, 48)
        self.pool = BufferPool(
            self.layout, self._allocate, slots, name='camera', release_timeout_s=PATIENCE_S
        )
        self.server = SharedMemoryServer(
            'camera', publisher_id, self.pool if pool else None, folder=folder, history=history
        )
        self.sequence = 0

    def _allocate(self) -> tuple[DmaBuf, ...]:
        heap = SealedMemfd()
        return tuple(
            heap.allocate(self.layout.buffer_size(i)) for i in range(self.layout.num_buffers)
        )

    def _ready(self, names: list[str]) -> bool:
        waiting = [found for found in self.server.statistics().consumers if found.name in names]
        return len(waiting) == len(names) and all(
            found.pending == 0 and found.held < found.window for found in waiting
        )

    def publish(self, count: int, names: list[str]) -> list[dict[str, Any]]:
        return [self._publish_one(names) for _ in range(count)]

    def _publish_one(self, names: list[str]) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE_S
        while not self._ready(names) or (slot := self.pool.acquire()) is None:
            assert time.monotonic() < deadline, f'{names} take nothing: {self.server.statistics()}'
            time.sleep(0.0005)
        self.sequence += 1
        header = Header(1_700_000_000_000_000_000 + self.sequence, f'camera_{self.sequence}')
        frame = Frame.publish_slot(
            self.pool,
            slot,
            header=header,
            colorimetry=BT601_LIMITED,
            sequence=self.sequence,
            captured_ns=time.monotonic_ns(),
        )
        crc = fill(frame, self.sequence)
        told = {
            'sequence': self.sequence,
            'stamp_ns': header.stamp_ns,
            'frame_id': header.frame_id,
            'crc': crc,
        }
        self.server.publish(frame)
        frame.release()
        return told

    def replace(self) -> None:
        slots = self.pool.slots
        deadline = time.monotonic() + PATIENCE_S
        for slot in slots:
            while self.pool.acquire(slot.index) is None:
                assert time.monotonic() < deadline, self.pool.describe_holders()
                time.sleep(0.0005)
        for slot in slots:
            self.pool.discard(slot)
            fresh, ended = self.pool.insert(self._allocate(), len(slots))
            assert fresh is not None and ended is slot and self.pool.acquire(fresh.index) is fresh
        for slot in self.pool.slots:
            self.pool.discard(slot)

    def statistics(self) -> dict[str, Any]:
        return dataclasses.asdict(self.server.statistics())

    def close(self) -> None:
        self.server.close()
        self.pool.close()


def main() -> None:
    folder, publisher_id, options = sys.argv[1:]
    producer = _Producer(Path(folder), publisher_id, **json.loads(options))
    print(json.dumps(str(producer.server.path)), flush=True)
    try:
        for line in sys.stdin:
            name, *arguments = json.loads(line)
            print(json.dumps(getattr(producer, name)(*arguments), default=str), flush=True)
    finally:
        producer.close()


if __name__ == '__main__':
    main()
