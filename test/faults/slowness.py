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
Consumers that are slow, full or never read.

They lose frames and are told how many; no other consumer notices.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
import socket
import time

from faults.harness import EVERYBODY, fault, Trial
from memory_link import RawPeer
from waiting import until

from zc_perception.link.shared_memory import wire
from zc_perception.link.shared_memory.protocol import MAX_PACKET, MessageType
from zc_perception.observe.frame_log import find_frame_logs, RecordKind

_SO_PEEK_OFF = 42


@fault('consumers that never read', ('who never reads holds its window and nothing else; the '
                                     'camera and the others lose no frame for it'),
       bystanders=EVERYBODY)  # fmt: skip
def never_read(trial: Trial) -> None:
    stage = trial.stage
    peers = [RawPeer.connected(stage.socket()) for _ in range(trial.times(2, 100))]
    for peer in peers:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # who comes too late
            peer.hello(window=2, depth=2, name='deaf')
    began = time.monotonic()
    while time.monotonic() - began < trial.times(1, 10):
        stage.read_logs()
        time.sleep(0.05)
    held = stage.holders()
    values = stage.witness.values('capture: link')
    for peer in peers:
        peer.close()
    trial.must(0 < max(held.values(), default=0) <= 4, 'slots held beyond window and depth')
    trial.note('of them were let in', sum(name.startswith('consumer deaf') for name in values))
    trial.note('slots that they held', sum(held.values()))
    dropped = [text for name, text in values.items() if name.startswith('consumer deaf')]
    trial.must(bool(dropped) and ' dropped 0,' not in dropped[0], 'drops that are not counted')
    trial.must_be_zero(
        'frames without a slot',
        int(stage.witness.values('capture: camera').get('dropped_no_free_slot', '0')),
    )


class Peeker(RawPeer):
    """Gives frames back that it has only peeked at: its window stays open, its socket fills up."""

    def look(self) -> bool:
        """At one packet, if there is one behind those that were looked at."""
        try:
            packet, control, _, _ = self.socket.recvmsg(
                MAX_PACKET, 1024, socket.MSG_PEEK | socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return False
        for _, _, data in control:
            for fd in memoryview(data).cast('i'):
                os.close(fd)
        if packet and wire.message_type(packet) is MessageType.FRAME:
            fields = wire.parse_frame(packet, len(packet))
            self.send(wire.pack_release(fields[3], fields[4], False))
        return bool(packet)


@fault('a full socket', ('frames that do not go into a full socket are dropped for that '
                         'consumer, told to it, and cost nobody else anything'),
       bystanders=EVERYBODY)  # fmt: skip
def full_socket(trial: Trial) -> None:
    stage = trial.stage
    peer = _peeker(stage.socket())
    counted = [0]

    def full() -> bool:
        while peer.look():
            counted[0] += 1
        line = next(
            (
                text
                for name, text in stage.witness.values('capture: link').items()
                if name.startswith('consumer peeker')
            ),
            '',
        )
        return bool(line) and ' dropped 0,' not in line and 'holds 0 of' in line

    try:
        stage.meanwhile(full, 'a drop at an open window')
        trial.note('packets in the full socket', counted[0])
        # It reads now: everything that went in is there, and the next frame says how many did not.
        frames = dropped = 0
        deadline = time.monotonic() + 60.0
        peer.socket.setsockopt(socket.SOL_SOCKET, _SO_PEEK_OFF, -1)
        peer.socket.settimeout(60.0)
        seen = 0
        while not dropped and time.monotonic() < deadline:
            packet, fds = peer.receive()
            for fd in fds:
                os.close(fd)
            assert packet, f'the connection ended: {stage.capture.output[-600:]}'
            seen += 1
            if wire.message_type(packet) is MessageType.FRAME:
                fields = wire.parse_frame(packet, len(packet))
                frames, dropped = frames + 1, dropped + fields[10]
                if seen > counted[0]:
                    peer.send(wire.pack_release(fields[3], fields[4], False))
        trial.must(dropped > 0, 'drops that the consumer was not told of')
        trial.note('frames that it was told were dropped', dropped)
    finally:
        peer.close()


def _peeker(path: Path) -> Peeker:
    peer = Peeker.welcomed(path, window=4, depth=1, name='peeker')
    assert isinstance(peer, Peeker)
    peer.socket.setsockopt(socket.SOL_SOCKET, _SO_PEEK_OFF, 0)
    peer.socket.setblocking(False)
    return peer


@fault(
    'an overload',
    (
        'who is slower than the camera loses frames, each one told, never the newest, and never '
        'the order'
    ),
)
def overload(trial: Trial) -> None:
    stage, witness = trial.stage, trial.stage.witness
    from rcl_interfaces.srv import SetParameters
    from rclpy.parameter import Parameter

    def rate(hz: float) -> None:
        request = SetParameters.Request(
            parameters=[Parameter('max_rate', value=hz).to_parameter_msg()]
        )
        result = witness.call(SetParameters, '/inference/set_parameters', request).results[0]
        assert result.successful, result.reason

    with find_frame_logs(pids=[stage.capture.pid, stage.inference.pid]) as logs:
        capture, inference = (
            next(log for log in logs if log.role == role) for role in ('capture', 'inference')
        )
        rate(7.0)
        for log in (capture, inference):
            log.skip()
        witness.delay_s = 0.08  # the witness is slow, too: what it loses must be what it is told
        time.sleep(trial.times(1, 8))
        witness.delay_s = 0.0
        rate(0.0)
        witness.expect(2, 5)
        # In this order, and without those that were on their way when the logs were skipped.
        done = [record for record in inference.read() if record.kind is not RecordKind.PUBLISHED]
        published: set[int] = set()

        def noted() -> bool:
            published.update(
                record.captured_ns
                for record in capture.read()
                if record.kind is RecordKind.PUBLISHED
            )
            return done[-1].captured_ns in published

        # The camera notes a frame behind its publishing, and it may be detected on before.
        until(noted, 'what was detected on in the log of the camera')
        done = [record for record in done if record.captured_ns >= min(published)]
        captured = [record.captured_ns for record in done]
        trial.must(
            captured == sorted(set(captured)), 'frames detected on twice or in the wrong order'
        )
        trial.must_be_zero(
            'frames detected on that nobody published', len(set(captured) - published)
        )
        span = [ns for ns in published if captured[0] <= ns <= captured[-1]]
        trial.note('published while it was overloaded', len(span))
        trial.note('detected on', len(done))
        trial.must(len(done) < len(span), 'overloads that did not happen')
        trial.must_be_zero(
            'frames that failed', sum(record.kind is RecordKind.FAILED for record in done)
        )
