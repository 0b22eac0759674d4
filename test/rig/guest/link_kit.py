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

"""Helpers of the shared-memory link's checks: servers, cameras, consumers, other processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
from contextlib import contextmanager
from functools import partial
import json
import mmap
import os
from pathlib import Path
import socket
import sys
import tempfile
from typing import Any

from zc_perception.camera.v4l2.camera import V4l2Camera
from zc_perception.frame import Frame
from zc_perception.link.shared_memory.client import SharedMemoryClient
from zc_perception.link.shared_memory.protocol import Requirements
from zc_perception.link.shared_memory.server import SharedMemoryServer
from zc_perception.memory.dmabuf import DmaBuf
from zc_perception.memory.fence import SyncFile
from zc_perception.memory.pool import BufferPool
from zc_perception.negotiation.constraints import BufferConstraints
from zc_perception.npu.axl.device import AxlDevice
from zc_perception.npu.metis_card import find_cards

from .camera_kit import streaming
from .graph_variants import DEVICES
from .harness import Child, equal
from .package_kit import crcs, maps_lines, publish, start

_LINK = Path(__file__).resolve().parents[2] / 'link'
sys.path += [str(_LINK / 'wire'), str(_LINK / 'shared_memory')]

from memory_link import connected, PATIENCE_S, PUBLISHER, receive  # noqa: E402, I100
from wire_process import build_consumer, ConsumerProcess, FRAMES_READ  # noqa: E402, F401

#: Variable with the path of the C consumer, compiled before the guest was started.
PROGRAM = 'ZC_WIRE_CONSUMER'
_ANY_MEMORY = Requirements(memory=3)


@contextmanager
def served(pool: BufferPool | None, **options: Any) -> Iterator[SharedMemoryServer]:
    """Yield a server in a folder of its own; check that no error occurred in it."""
    options.setdefault('quarantine_timeout_s', 0.05)
    with (
        tempfile.TemporaryDirectory() as folder,
        SharedMemoryServer('camera', PUBLISHER, pool, folder=Path(folder), **options) as server,
    ):
        yield server
        counters = server.counters
        equal((counters.internal_errors, counters.last_internal_error), (0, ''), 'errors')


@contextmanager
def camera_of(name: str) -> Iterator[tuple[V4l2Camera, BufferPool]]:
    """Yield a streaming camera with slots for consumers, and its pool."""
    slots = [BufferConstraints('consumers', slots=4)]
    with streaming(DEVICES[name], slots, size=(320, 180), rate=60.0) as camera:
        assert camera.pool is not None
        # These checks are not about time-outs: on a slow machine, held fences get enough time.
        camera.pool._release_timeout_s = PATIENCE_S
        yield camera, camera.pool


def overwrite(server: SharedMemoryServer, pool: BufferPool) -> set[int]:
    """Publish in every free slot without waiting for devices, as DMA does; return uids."""
    slots = []
    while (slot := pool.acquire()) is not None:
        slots.append(slot)
        for buffer in slot.buffers:
            buffer.mapping()[:] = b'\xff' * buffer.size
    for slot in slots:
        with publish(pool, slot, sequence=100) as frame:
            server.publish(frame)
    return {slot.buffer_uid for slot in slots}


def c_program() -> Path:
    """Return the C consumer, compiled before the guest was started, or by the guest's compiler."""
    return Path(os.environ.get(PROGRAM) or build_consumer(Path(tempfile.mkdtemp()), ()))


class RemoteError(Exception):
    """An exception of a call in the other process."""


class Remote:
    """An object in a forked process; fork before objects exist that it must not inherit."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._child = Child(partial(_serve, make))
        self._answers = self._child.socket.makefile('r', encoding='utf-8')
        self._ended = False
        self.pid = self._child.pid
        self.wait_longer = self._child.socket.settimeout

    def ask(self, name: str, *arguments: object) -> None:
        self._child.socket.sendall(json.dumps([name, *arguments]).encode() + b'\n')

    def answer(self) -> Any:
        line = self._answers.readline()
        assert line, 'the process ended without an answer'
        said = json.loads(line)
        if 'error' in said:
            raise RemoteError(said['error'])
        return said['value']

    def call(self, name: str, *arguments: object) -> Any:
        self.ask(name, *arguments)
        return self.answer()

    def kill(self) -> None:
        self._ended = True
        self._answers.close()
        self._child.kill()

    def __enter__(self) -> Remote:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._ended:
            return
        if kind is None:
            self._answers.close()
            self._child.join()
            return
        with contextlib.suppress(AssertionError):  # it may already be dead
            self.kill()
        self._child.socket.close()


def _serve(make: Callable[[], Any], theirs: socket.socket) -> None:
    """Run in the child: answer calls until the other end closes."""
    target = make()
    with theirs.makefile('rw', encoding='utf-8') as stream:
        for line in stream:
            name, *arguments = json.loads(line)
            try:
                said = {'value': getattr(target, name)(*arguments)}
            except Exception as error:
                said = {'error': f'{type(error).__name__}: {error}'}
            stream.write(json.dumps(said) + '\n')
            stream.flush()
    target.close()


def open_fds() -> int:
    return len(os.listdir('/proc/self/fd'))


class Consumer:
    """
    A consumer that keeps what it receives until a call releases it.

    :param device: an open file of the device that this process shares with others; by default it
        opens its own.
    :param result: where its jobs write.
    """

    def __init__(self, device: AxlDevice | None = None, result: DmaBuf | None = None) -> None:
        self._device = device
        self._result = result
        self._client: Any = None
        self._held: dict[int, Frame] = {}
        self._job: Any = None

    def connect(self, path: str, window: int = 1, depth: int = 1) -> None:
        self._client = SharedMemoryClient(
            Path(path), name='consumer', window=window, depth=depth, requirements=_ANY_MEMORY
        )
        connected(self._client)

    def receive(self) -> dict[str, Any]:
        """Return facts of the next frame, without touching the pixels."""
        frame = receive(self._client)
        data = frame.data
        self._held[data.sequence] = frame
        return {
            'sequence': data.sequence,
            'inodes': [buffer.identity.inode for buffer in data.buffers],
            'fence': type(data.acquire_fence).__name__,
        }

    def pixels(self, sequence: int) -> list[int]:
        """Return the CRC of each plane, as the CPU sees it here."""
        return crcs(self._held[sequence])

    def fence(self, sequence: int, timeout_s: float) -> list[Any]:
        """Return whether the acquire fence signalled within the time, and its status."""
        fence = self._held[sequence].data.acquire_fence
        assert isinstance(fence, SyncFile), fence
        return [fence.wait(timeout_s), fence.status()]

    def map_for_writing(self, sequence: int) -> int:
        """Return the kernel's answer to a mapping without the package: 0 or an errno."""
        buffer = self._held[sequence].data.buffers[0]
        try:
            mmap.mmap(buffer.fileno(), buffer.size).close()
        except OSError as error:
            return error.errno or -1
        return 0

    def submit(self, sequence: int) -> None:
        """Let the device read the frame, when its acquire fence has signalled."""
        assert self._result is not None
        self._device = self._device or AxlDevice(find_cards()[0].path)
        data = self._held[sequence].data
        after = data.acquire_fence
        assert after is None or isinstance(after, SyncFile)
        self._job = start(self._device, data.buffers, self._result, data.layout, after)

    def release(self, sequence: int, with_job: bool = False) -> None:
        """Release the frame, with the fence of the job that reads it if *with_job*."""
        self._held.pop(sequence).release(self._job.dup() if with_job else None)

    def finish_job(self) -> int:
        assert self._job.wait(PATIENCE_S)
        status: int = self._job.status()
        self._job.close()
        return status

    def stream(self, count: int) -> dict[str, Any]:
        """Read and release frames; return facts, with the descriptors and mappings after each."""
        seen: dict[int, tuple[int, list[int]]] = {}
        fds = []
        for _ in range(count):
            with receive(self._client) as frame:
                seen[frame.data.sequence] = frame.data.buffers[0].identity.inode, crcs(frame)
            fds.append(open_fds())
        inodes = {inode for inode, _ in seen.values()}
        return {
            'frames': list(seen.items()),
            'fds': fds,
            'mappings': [[line[1:] for line in maps_lines(inode)] for inode in sorted(inodes)],
        }

    def close(self) -> None:
        for frame in self._held.values():
            frame.release()
        if self._client is not None:
            self._client.close()
