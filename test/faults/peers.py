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
Peers that speak wrongly at rung 2's socket.

Garbage, other versions, floods of descriptors and of connections, half a conversation, silence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
import os
import socket
import subprocess
import sys
import time

from faults.harness import EVERYBODY, fault, Trial
from memory_link import RawPeer
from wire_fuzz import mutate, read_all, send_all

from zc_perception.link.shared_memory import wire
from zc_perception.link.shared_memory.protocol import MessageType, RefusalCode

_MOST_RIGHTS = 253  # SCM_MAX_FD, <net/scm.h>
# A second is promised; two shared processors may add some of their own.
_TURNED_AWAY_S = 3.0
_LET_IN_S = 1.0


def _broken_rules(values: Mapping[str, str]) -> Counter[str]:
    """How often each, since the camera's process began."""
    return Counter(
        {name: int(text) for name, text in values.items() if name.startswith('protocol_error_')}
    )


@fault('hostile conversations', ('whatever a peer says, it is told, counted and closed; the '
                                 'camera and everybody else notice nothing'),
       bystanders=EVERYBODY)  # fmt: skip
def conversations(trial: Trial) -> None:
    stage, rng = trial.stage, trial.random
    path = stage.socket()
    before = _broken_rules(stage.witness.fresh('capture: link'))
    spare = [
        os.eventfd(0, os.EFD_CLOEXEC),
        os.open('/dev/null', os.O_RDWR | os.O_CLOEXEC),
        os.memfd_create('fault', os.MFD_CLOEXEC),
    ]
    releases = [
        (wire.pack_release(uid, generation, False), [])
        for uid in (0, 1, 2**63)
        for generation in (1, 2**40)
    ]
    count = trial.times(200, 4000)
    try:
        for number in range(count):
            hello = wire.Hello(
                rng.choice((1, 2, 64)),
                rng.choice((1, 64)),
                'hostile',
                rng.choice(('', 'f' * 32)),
                rng.random() < 0.3,
            )
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
                peer.connect(os.fspath(path))
                messages = mutate(rng, [(wire.pack_hello(hello), []), *releases], spare)
                cut = rng.randrange(len(messages) + 1)
                send_all(peer, messages[:cut])
                if rng.random() < 0.1:
                    time.sleep(0.01)
                send_all(peer, messages[cut:])
                read_all(peer, until_eof=False)
            if number % 20 == 0:  # the witness is in this process, which is busy with it
                stage.up_to_date()
    finally:
        for fd in spare:
            os.close(fd)
    stage.holders()
    values = stage.witness.fresh('capture: link')
    broken = _broken_rules(values) - before
    trial.note('conversations', count)
    trial.note('rules broken, as it counts them', broken.total())
    trial.must(len(broken) >= 2, 'kinds of broken rules that are not counted')
    trial.must(
        'internal_errors' not in values, f'internal errors: {values.get("internal_errors")}'
    )


@fault('versions and floods of descriptors', ('other versions hear of it; descriptors that '
                                              'nobody asked for are closed, however many'),
       bystanders=EVERYBODY)  # fmt: skip
def descriptors(trial: Trial) -> None:
    stage = trial.stage
    path = stage.socket()
    answers: Counter[int] = Counter()
    fds = [os.open('/dev/null', os.O_RDONLY | os.O_CLOEXEC)] * _MOST_RIGHTS
    try:
        for _ in range(trial.times(10, 200)):
            with RawPeer.connected(path) as peer:
                peer.send(wire.pack_hello(wire.Hello(1, 1, min_version=2, max_version=9)))
                answers[peer.receive_refused().code] += 1
            with RawPeer.connected(path) as peer:
                peer.send(wire.pack_hello(wire.Hello(1, 1)), fds)
                answers[peer.receive_refused().code] += 1
            with RawPeer.welcomed(path) as peer:
                peer.send(wire.pack_release(1, 1, True), fds)
                answers[peer.receive_refused().code] += 1
    finally:
        os.close(fds[0])
    trial.must(
        set(answers) == {int(RefusalCode.VERSION), int(RefusalCode.PROTOCOL)},
        f'other answers: {dict(answers)}',
    )


@fault('a crowd that says nothing', ('silent connections are turned away after a second; a '
                                     'crowd at the door keeps nobody out for longer'),
       bystanders=EVERYBODY)  # fmt: skip
def crowd(trial: Trial) -> None:
    stage = trial.stage
    path = stage.socket()
    for _ in range(trial.times(1, 5)):
        silent = [RawPeer.connected(path) for _ in range(30)]
        for peer in silent[:10]:
            peer.send(b'\1')  # the first byte of a conversation that never comes
        flood = []
        for _ in range(trial.times(200, 1000)):
            flood.append(RawPeer.connected(path))
            stage.read_logs()
            if len(flood) >= 100:
                flood.pop(0).close()
        began = time.monotonic()
        for peer in [*silent, *flood]:
            while (kind := peer.receive_type()) == MessageType.BUFFERS:
                pass
            trial.must(kind in (0, MessageType.REFUSED), 'peers that were served without a word')
            peer.close()
        took_s, began = time.monotonic() - began, time.monotonic()
        trial.worst('until the last one was turned away, s', took_s)
        trial.must(
            took_s <= _TURNED_AWAY_S,
            f'crowds that took longer than {_TURNED_AWAY_S:g} s to be turned away',
        )
        with RawPeer.welcomed(path):
            took_s = time.monotonic() - began
        trial.worst('until the next one was let in, s', took_s)
        trial.must(
            took_s <= _LET_IN_S, f'consumers that a crowd kept out for longer than {_LET_IN_S:g} s'
        )


_STRANGER = """
import os, socket, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
    try:
        peer.connect(sys.argv[1])
    except PermissionError:
        sys.exit(13)
"""


@fault('another user', 'a process of another user can not reach the socket, whatever it knows',
       bystanders=EVERYBODY, needs='root')  # fmt: skip
def stranger(trial: Trial) -> None:
    if os.geteuid() != 0:
        trial.absent('only root can be another user for a moment')
    path = trial.stage.socket()
    # It is the sockets' own folder that has to keep strangers out, not the one around it.
    around = path.parent.parent
    mode = os.stat(around).st_mode & 0o777
    os.chmod(around, 0o755)
    try:
        done = subprocess.run([sys.executable, '-c', _STRANGER, str(path)], check=False)
    finally:
        os.chmod(around, mode)
    trial.must(done.returncode == 13, f'strangers that were let in: {done.returncode}')
    trial.must(os.stat(path.parent).st_mode & 0o777 == 0o700, 'folders that are open to others')
    trial.must(os.stat(path).st_mode & 0o777 == 0o600, 'sockets that are open to others')
