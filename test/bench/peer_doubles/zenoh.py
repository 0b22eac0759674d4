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
A stand-in for the part of zenoh's Python API that the benchmark uses.

It works over a Unix socket and follows the documented signatures. ``ZC_ZENOH_DOUBLE`` sets the
fault: ``missing`` on import, ``torn`` frames, ``dies`` in put.
"""

from __future__ import annotations

from collections.abc import Callable
import enum
import json
import mmap
import os
from pathlib import Path
import socket
import struct
import threading
import time
from types import SimpleNamespace
from typing import Any

_TROUBLE = os.environ.get('ZC_ZENOH_DOUBLE', '')
if _TROUBLE == 'missing':
    raise ModuleNotFoundError("No module named 'zenoh'", name='zenoh')


CongestionControl = enum.Enum('CongestionControl', ['BLOCK'])
Priority = enum.Enum('Priority', ['REAL_TIME'])
Reliability = enum.Enum('Reliability', ['RELIABLE'])


class Config(dict[str, Any]):
    def insert_json5(self, key: str, value: str) -> None:  # noqa: CNL100
        self[key] = json.loads(value)


class _Session:
    def __init__(self, config: Config) -> None:  # noqa: CNL100
        (endpoint,) = config['listen/endpoints'] or config['connect/endpoints']
        path = endpoint.removeprefix('unixsock-stream/')
        self._socket = socket.socket(socket.AF_UNIX)
        self._peer: socket.socket | None = None
        self._segment: mmap.mmap | None = None
        if config['transport/shared_memory/enabled']:
            # The real library also uses a random name here.
            segment = Path('/dev/shm') / f'{os.urandom(6).hex()}.zenoh_double'
            segment.write_bytes(bytes(4096))
            with segment.open('r+b') as file:
                self._segment = mmap.mmap(file.fileno(), 4096)
        if config['listen/endpoints']:
            self._socket.bind(path)
            self._socket.listen()
            threading.Thread(target=self._accept, daemon=True).start()
        else:
            while self._socket.connect_ex(path):
                time.sleep(0.01)
            self._peer = self._socket

    def _accept(self) -> None:
        self._peer = self._socket.accept()[0]

    @property
    def matching_status(self) -> Any:
        return SimpleNamespace(matching=self._peer is not None)

    def declare_publisher(self, key: str, **quality: Any) -> _Session:
        assert key and quality == {
            'congestion_control': CongestionControl.BLOCK, 'priority': Priority.REAL_TIME,
            'express': True, 'reliability': Reliability.RELIABLE,
        }  # fmt: skip
        return self

    def declare_subscriber(self, key: str, handler: Callable[[Any], None]) -> None:
        threading.Thread(target=self._receive, args=(handler,), daemon=True).start()

    def put(self, payload: bytes | bytearray) -> None:
        data = bytearray(payload)
        if _TROUBLE == 'dies':
            os._exit(7)
        if _TROUBLE == 'torn':
            data[-1] ^= 1
        self._peer.sendall(struct.pack('<Q', len(data)) + data)

    def _receive(self, handler: Callable[[Any], None]) -> None:
        with self._peer.makefile('rb') as stream:
            while len(head := stream.read(8)) == 8:
                data = stream.read(struct.unpack('<Q', head)[0])
                handler(SimpleNamespace(payload=SimpleNamespace(to_bytes=lambda data=data: data)))

    def close(self) -> None:
        self._socket.close()


open = _Session  # noqa: A001


class _Provider:
    @classmethod  # noqa: CNL100
    def default_backend(cls, layout: int) -> _Provider:
        return cls()

    def alloc(self, layout: int, policy: object) -> bytearray:
        return bytearray(layout)


shm = SimpleNamespace(ShmProvider=_Provider, GarbageCollect=object, BlockOn=lambda policy: policy)
