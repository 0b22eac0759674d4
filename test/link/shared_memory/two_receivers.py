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
Mutated packets of a producer, received by the compiled steps and in plain Python.

Both must give the same frames, ends and messages, and leave no descriptor. As a program,
``two_receivers.py COMPILED SEED PACKETS`` tests a module that was built in another way, such as
for a sanitizer.
"""

from __future__ import annotations

import array
from collections import Counter
from collections.abc import Iterator
import gc
import os
from pathlib import Path
import random
import socket
import sys
import time
from types import ModuleType
from unittest.mock import patch

from memory_link import FrameMessage, make_layout, Message, mutate, pack_frame
from native.two_forms import load

from zc_perception.frame import Frame
from zc_perception.link.shared_memory import remote_slots, wire
from zc_perception.link.shared_memory.client import SharedMemoryClient
from zc_perception.link.shared_memory.protocol import ANYTHING
from zc_perception.link.shared_memory.unix_socket import Peer
from zc_perception.memory.dmabuf import BufferKind
from zc_perception.memory.heaps import SealedMemfd
from zc_perception.pixel.colorimetry import BT601_LIMITED
from zc_perception.pixel.modifier import LINEAR

IDS = (b'camera', b'camera', b'camera', 'öptical'.encode(), b'', b'a\0b', b'\xc3', b'x' * 255)


def send_all(sock: socket.socket, messages: list[Message]) -> None:
    for packet, fds in messages:
        control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', fds))] if fds else []
        try:
            sock.sendmsg([packet], control, socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
        except OSError:
            return


def _said(frame: Frame, began_ns: int) -> str:
    data, lease = frame.data, frame._lease
    assert lease is not None and not lease.ended and lease.generation == data.generation
    assert began_ns <= lease.slot.since_ns <= time.monotonic_ns()
    fields = (
        data.header, data.buffer_uid, data.generation, data.sequence, data.captured_ns,
        data.capture_cost_ns, data.acquire_fence,
    )  # fmt: skip
    return f'{fields} {frame.published_ns} {lease.slot.sequence}'


def _outcome(form: ModuleType | None, messages: list[Message], seed: int) -> Iterator[str]:
    rng, began_ns = random.Random(seed), time.monotonic_ns()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    with (
        theirs,
        SharedMemoryClient(Path('/nowhere'), name='npu') as client,
        patch.object(remote_slots, 'compiled', form),
    ):
        peer = Peer(os.getpid(), os.geteuid(), os.getegid())
        client._slots = remote_slots.RemoteSlots(
            ours, client._epoll, peer, 'npu', 2, ANYTHING, None, lambda: None
        )
        client._epoll.register(ours.fileno())
        held: list[Frame] = []
        for message in [*messages, None]:
            if message is None:
                theirs.shutdown(socket.SHUT_WR)
            else:
                send_all(theirs, [message])
            if rng.random() < 0.5:
                client.wait(client._epoll, 0.0)
            if rng.random() < 0.2:
                continue
            while (frame := client.receive()) is not None:
                yield _said(frame, began_ns)
                if frame.data.modifier == LINEAR:
                    with frame.map() as planes:
                        assert planes[0].shape[0] > 0
                held.append(frame)
                if len(held) == 2 or rng.random() < 0.5:
                    held.pop(0).release()
            found = client.statistics()
            yield f'{found.received} {found.dropped} {found.held} {found.ended} {found.last_end}'
        for frame in held:
            frame.release()


def compare(seed: int, packets: int, compiled: ModuleType) -> Counter[str]:
    """Compare both receivers; count conversations by how they ended, and frames as ``frame``."""
    rng, layout, heap = random.Random(seed), make_layout(), SealedMemfd()
    gc.collect()
    before = len(os.listdir('/proc/self/fd'))
    spare = [os.eventfd(0), os.memfd_create('fuzz'), os.open('/dev/null', os.O_RDWR)]
    buffers = [heap.allocate(layout.buffer_size(0)) for _ in range(3)]
    ends: Counter[str] = Counter()
    sent = 0
    while sent < packets:
        messages: list[Message] = []
        for uid, buffer in enumerate(buffers, 1):
            size = (buffer.size,)
            slot = wire.BuffersMessage(uid, layout, BT601_LIMITED, BufferKind.MEMFD, size)
            messages.append((wire.pack_buffers(slot), [buffer.fileno()]))
        for number in range(12):
            times = (rng.choice((0, 5, 2**63 - 1)) for _ in range(5))
            said = FrameMessage(number % 3 + 1, number // 3 + 1, *times, number // 9, False)
            frame_id = rng.choice(IDS[: rng.choice((3, 3, 3, 3, 3, 8))])
            messages.append((pack_frame(said, frame_id), []))
        messages.append((wire.pack_retired(2), []))
        messages = mutate(rng, messages, spare)
        sent += len(messages)
        found = [list(_outcome(form, messages, sent)) for form in (compiled, None)]
        assert found[0] == found[1], (seed, sent, messages, found)
        ends['frame'] += sum(line.startswith('(Header') for line in found[0])
        ends.update([found[0][-1].partition("{'")[2].partition("'")[0]])
    for fd in spare:
        os.close(fd)
    for buffer in buffers:
        buffer.close()
    assert len(os.listdir('/proc/self/fd')) <= before
    return ends


if __name__ == '__main__':
    print(compare(int(sys.argv[2]), int(sys.argv[3]), load(sys.argv[1])))
