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
Mutated conversations of consumers against a server; a seed repeats them.

    python test/link/shared_memory/wire_fuzz.py --seconds 3600 [--seed 1]

No input may make the server raise, leak a descriptor, keep a lease, or stop serving others.
two_receivers.py does the same with a producer's packets.
"""

from __future__ import annotations

import argparse
import array
import os
from pathlib import Path
import random
import select
import socket
import sys
import tempfile
import time

from waiting import until

if __name__ == '__main__':
    sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[3])]

from memory_link import connected, make_frame, make_pool, PUBLISHER  # noqa: I100

from zc_perception.link.shared_memory import wire
from zc_perception.link.shared_memory.client import SharedMemoryClient
from zc_perception.link.shared_memory.protocol import MAX_PACKET, Requirements
from zc_perception.link.shared_memory.server import SharedMemoryServer
from zc_perception.memory.pool import SlotState
from zc_perception.pixel.fourcc import NV12

Message = tuple[bytes, list[int]]


def mutate(rng: random.Random, messages: list[Message], spare: list[int]) -> list[Message]:
    """Return a conversation with a few things wrong: bytes, lengths, descriptors, order."""
    messages = list(messages)
    for _ in range(rng.choice((0, 1, 1, 1, 2, 4))):
        if not messages:
            break
        index = rng.randrange(len(messages))
        packet, fds = bytearray(messages[index][0]), list(messages[index][1])
        kind = rng.randrange(9)
        if kind == 0 and packet:
            packet[rng.randrange(len(packet))] ^= 1 << rng.randrange(8)
        elif kind == 1 and packet:
            packet[rng.randrange(len(packet))] = rng.choice((0, 1, 127, 128, 255))
        elif kind == 2:
            del packet[slice(rng.randrange(len(packet) + 1), None)]
        elif kind == 3:
            packet += rng.randbytes(rng.choice((1, 8, 300, MAX_PACKET)))
        elif kind == 4 and len(packet) >= 16:
            at = rng.randrange(0, len(packet) - 7, 4)
            packet[slice(at, at + 8)] = rng.choice(
                (0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1)
            ).to_bytes(8, 'little')
        elif kind == 5:
            fds = rng.choices(spare, k=rng.choice((0, 1, 2, 5, 40)))
        elif kind == 6:
            del messages[index]
            continue
        elif kind == 7:
            messages.insert(rng.randrange(len(messages) + 1), messages[index])
            continue
        else:
            other = rng.randrange(len(messages))
            messages[index], messages[other] = messages[other], messages[index]
            continue
        # Often correct the length in the header, so that the packet gets past the first check.
        if rng.random() < 0.5 and 8 <= len(packet) <= MAX_PACKET:
            packet[2:4] = len(packet).to_bytes(2, 'little')
        messages[index] = bytes(packet), fds
    return messages


def send_all(sock: socket.socket, messages: list[Message]) -> None:
    """Send messages until the other end stops reading."""
    for packet, fds in messages:
        control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', fds))] if fds else []
        try:
            sock.sendmsg([packet], control, socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
        except OSError:
            return


def read_all(sock: socket.socket, *, until_eof: bool) -> None:
    poller = select.poll()
    poller.register(sock, select.POLLIN)
    while poller.poll(20_000 if until_eof else 0):
        try:
            packet, control, _, _ = sock.recvmsg(MAX_PACKET, 4096)
        except ConnectionResetError:
            continue
        for _, _, data in control:
            for fd in memoryview(data).cast('i'):
                os.close(fd)
        if not packet:
            return


class ServerFuzz:
    """A server with one well-behaved consumer; hostile ones connect and leave."""

    def __init__(self, folder: Path) -> None:
        self.pool = make_pool(12, reserve=1)
        self.server = SharedMemoryServer(
            'fuzz', PUBLISHER, self.pool, folder=folder, quarantine_timeout_s=0.0
        )
        self.good = SharedMemoryClient(self.server.path, name='good', window=2, depth=2)
        connected(self.good)
        self.sequence = 12
        # Use every slot once: later frames then open no new descriptor or mapping at either end.
        frames = [make_frame(self.pool, sequence) for sequence in range(12)]
        for frame in frames:
            self.server.publish(frame)
            with until(self.good.receive, 'the frame') as received, received.map() as planes:
                assert planes[0].shape == (48, 64)
        for frame in frames:
            frame.release()

    def turn(self, rng: random.Random, spare: list[int]) -> None:
        needs = Requirements(((NV12, 0), (1, 2)) if rng.random() < 0.5 else ())
        window, name = rng.choice((1, 2, 64)), rng.choice(('', PUBLISHER))
        hello = wire.Hello(window, 1, 'fuzz', name, rng.random() < 0.3, needs)
        releases = [
            (wire.pack_release(slot.buffer_uid, slot.generation + 1, False), [])
            for slot in self.pool.slots[:3]
        ]
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.connect(os.fspath(self.server.path))
            conversation = mutate(rng, [(wire.pack_hello(hello), []), *releases], spare)
            cut = rng.randrange(len(conversation) + 1)
            send_all(sock, conversation[:cut])
            self.publish(rng.randrange(4))
            send_all(sock, conversation[cut:])
            if rng.random() < 0.5:
                sock.shutdown(socket.SHUT_WR)
                read_all(sock, until_eof=True)
            else:
                read_all(sock, until_eof=False)
        if rng.random() < 0.1:
            self.check()

    def publish(self, count: int) -> None:
        for _ in range(count):
            if self.pool.statistics().states.get(SlotState.FREE) or self.pool.waiting:
                with make_frame(self.pool, self.sequence) as frame:
                    self.server.publish(frame)
                self.sequence += 1
                while (received := self.good.receive()) is not None:
                    with received, received.map() as planes:
                        assert planes[0].shape == (48, 64)

    def check(self) -> None:
        """Check that every slot is back, and that the well-behaved consumer is still served."""
        until(
            lambda: self.server.statistics().handshaking == 0 and self.server.consumers == 1,
            'the end of the hostile ones',
        )
        assert self.good.connected, self.good.last_end
        until(self.idle, f'every slot: {self.pool.describe_holders()}')
        received = self.good.statistics().received
        self.publish(1)
        until(
            lambda: self.idle() and self.good.statistics().received > received,
            'a frame for the good one',
        )
        assert self.server.counters.internal_errors == 0, self.server.counters.last_internal_error

    def idle(self) -> bool:
        while (received := self.good.receive()) is not None:
            received.release()
        self.pool.collect()
        return self.pool.statistics().states == {SlotState.FREE: 12}

    def close(self) -> None:
        self.check()
        self.good.close()
        self.server.close()
        until(self.idle, 'every slot')
        self.pool.close()


# The minimum on a slow machine: this many turns are refused in several ways.
LEAST_TURNS = 50


def fuzz(seed: int, seconds: float, folder: Path) -> dict[str, object]:
    """Run for *seconds* or longer, and return the counts."""
    rng = random.Random(seed)
    spare = [
        os.eventfd(0, os.EFD_CLOEXEC),
        os.open('/dev/null', os.O_RDWR | os.O_CLOEXEC),
        os.memfd_create('fuzz', os.MFD_CLOEXEC),
    ]
    server = ServerFuzz(folder)
    for _ in range(20):
        server.turn(rng, spare)
    server.check()
    fds = len(os.listdir('/proc/self/fd'))
    turns, deadline = 0, time.monotonic() + seconds
    while time.monotonic() < deadline or turns < LEAST_TURNS:
        server.turn(rng, spare)
        turns += 1
    server.check()
    # The server forgets a connection shortly before it closes the socket.
    until(lambda: len(os.listdir('/proc/self/fd')) <= fds, f'no more than {fds} descriptors')
    statistics = server.server.statistics()
    server.close()
    for fd in spare:
        os.close(fd)
    told = {name: getattr(statistics, name) for name in ('refused', 'protocol_errors', 'ended')}
    return {'turns': turns, **told}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--seconds', type=float, default=60.0)
    parser.add_argument('--seed', type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix='zc-') as folder:
        print(fuzz(arguments.seed, arguments.seconds, Path(folder)))


if __name__ == '__main__':
    main()
