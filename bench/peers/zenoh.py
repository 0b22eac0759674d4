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
Zenoh, from process to process, with and without shared memory, in its fastest setup for Python.

Two peers are connected over a Unix socket, which was quicker than TCP on the loopback device,
without scouting. The publisher is reliable, blocks if the queue is full (dropping loses large
frames), sends without batching, and has the highest priority. The subscriber's callback takes the
frame, so that no further thread has to wake up. With shared memory, an explicit provider of at
least 64 MiB and four frames was quicker than the implicit pool. Its Python buffers have no buffer
protocol, so that a frame is copied into a buffer and out of it again.
"""

from __future__ import annotations

import json
from pathlib import Path
import socket
from typing import Any

from bench.link_roles import nv12_size, PicturesIn, PicturesOut
import numpy as np
import zenoh

_KEY = 'zc_bench/frames'
_POOL = 64 << 20
_POOL_FRAMES = 4


def _session(place: Path, *, listens: bool, shared_memory: bool) -> Any:
    config = zenoh.Config()
    endpoint = [f'unixsock-stream/{place}/zenoh.sock']
    for key, value in {
        'mode': 'peer',
        'scouting/multicast/enabled': False,
        'scouting/gossip/enabled': False,
        'listen/endpoints': endpoint if listens else [],
        'connect/endpoints': [] if listens else endpoint,
        'transport/shared_memory/enabled': shared_memory,
    }.items():
        config.insert_json5(key, json.dumps(value))
    return zenoh.open(config)


class ZenohOut(PicturesOut):
    """Publishes pictures, from shared memory or not."""

    def __init__(self, place: Path, answers: socket.socket, *, shared_memory: bool) -> None:
        super().__init__(answers)
        self._shared_memory = shared_memory
        self._provider: Any = None
        self._session = _session(place, listens=True, shared_memory=shared_memory)
        self._publisher = self._session.declare_publisher(
            _KEY,
            congestion_control=zenoh.CongestionControl.BLOCK,
            priority=zenoh.Priority.REAL_TIME,
            express=True,
            reliability=zenoh.Reliability.RELIABLE,
        )

    def other_end(self) -> tuple[bool, str]:
        return bool(self._publisher.matching_status.matching), 'the publisher sees no subscriber'

    def prepare(self, width: int, height: int) -> None:
        super().prepare(width, height)
        if self._shared_memory:
            self._provider = None  # free the old provider's memory first
            self._provider = zenoh.shm.ShmProvider.default_backend(
                max(_POOL, _POOL_FRAMES * nv12_size(width, height))
            )
            self._policy = zenoh.shm.BlockOn(zenoh.shm.GarbageCollect())

    def publish(self) -> None:
        if self._provider is None:
            self._publisher.put(self.source)
            return
        buffer = self._provider.alloc(len(self.source), self._policy)
        buffer[:] = self.source
        self._publisher.put(buffer)

    def close(self) -> None:
        self._session.close()


class ZenohIn(PicturesIn):
    """Takes pictures in a subscriber's callback, on a thread of zenoh's."""

    def __init__(self, place: Path, answers: socket.socket, *, shared_memory: bool) -> None:
        super().__init__(answers)
        self._session = _session(place, listens=False, shared_memory=shared_memory)
        self._subscriber = self._session.declare_subscriber(
            _KEY, lambda sample: self.arrived(np.frombuffer(sample.payload.to_bytes(), np.uint8))
        )

    def close(self) -> None:
        self._session.close()
