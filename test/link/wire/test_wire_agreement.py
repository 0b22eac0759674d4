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
Two consumers that share no code, the package's and client/'s, in equal conversations.

Both must find a broken rule, or neither. First comes each rule that a producer can break; the C
consumer names the rule. Then 60 conversations are altered at random, in the long form a hundred
times as many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
import os
from pathlib import Path
import random
import select
import socket
import threading
from typing import Any

from link.shared_memory.memory_link import attempt
from long_form import LONG
import pytest
from wire_process import ConsumerProcess, ENDED, FRAMES_READ, REFUSED, RULE_BROKEN
import wire_spec as spec
from wire_spec import Image, Slot
from wire_violations import FIRST_MESSAGES, lie, WRONG_BUFFERS, WRONG_FRAMES, WRONG_IMAGES

from zc_perception.link.shared_memory.client import SharedMemoryClient
from zc_perception.link.shared_memory.protocol import Requirements

pytestmark = pytest.mark.usefixtures('no_fd_leak')
PATIENCE_S = 60.0
CONVERSATIONS = 60
SEEDS = range(100 if LONG else 1)
LINEAR = spec.NV12, spec.fourcc('NV21'), spec.P010, spec.YUYV, spec.R8
FORMATS = *((code, 0) for code in LINEAR), (spec.NV12, spec.INVALID)
SMALL = *range(6), 7, 8, 63, 64, 65, 255, 256, 65535, 65536
INTERESTING = *SMALL, 1 << 31, (1 << 32) - 1, 1 << 63, (1 << 64) - 1, spec.INVALID
Message = tuple[bytes, list[int]]


@pytest.fixture
def listener(place: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.settimeout(PATIENCE_S)
        listening.bind(str(place))
        listening.listen()
        yield listening


@pytest.fixture
def slots() -> Iterator[list[Slot]]:
    planes = [(0, 64, 0, 4000), (0, 64, 4000, 500), (1, 8, 0, 64)]
    not_known = Image(uid=4, modifier=spec.INVALID, planes=planes, sizes=[4500, 64])
    p010 = Image(5, 16, 2, spec.P010, planes=[(0, 34, 2, 68), (0, 32, 70, 32)], sizes=[104])
    images = Image.nv12(1), Image.nv12(2, buffers=2), Image.one_plane(spec.R8, 64, 3)
    made = [Slot(image) for image in (*images, not_known, p010)]
    yield made
    for slot in made:
        slot.close()


def conversation(slots: list[Slot]) -> list[Message]:
    """Return a valid conversation up to its frames."""
    messages: list[Message] = [(spec.welcome(2, 1), [])]
    messages += [(slot.image.pack(), list(slot.fds)) for slot in slots]
    messages += [
        (spec.frame(slot.image.uid, generation, 0, published_ns=1), [])
        for generation in (1, 2)
        for slot in slots
    ]
    return [*messages, (spec.retired(2), []), (spec.frame(1, 3, 0, published_ns=1), [])]


def alter(rng: random.Random, messages: list[Message], others: list[int]) -> list[Message]:
    """Change usually one field of one message, to a nearly right value or the end of a range."""
    messages = list(messages)
    for _ in range(rng.choice((1, 1, 1, 2))):
        index = rng.randrange(len(messages))
        packet, fds = bytearray(messages[index][0]), messages[index][1]
        kind = rng.randrange(16)
        if kind < 11:
            size = rng.choice((1, 2, 4, 4, 8))
            at = rng.randrange(0, len(packet) - size + 1, min(size, 4))
            value = int.from_bytes(packet[slice(at, at + size)], 'little')
            value += rng.choice((-64, -8, -1, 1, 8, 64))
            value = rng.choice(INTERESTING) if rng.random() < 0.5 else value
            packet[slice(at, at + size)] = (value % (1 << 8 * size)).to_bytes(size, 'little')
        elif kind == 11:
            if rng.random() < 0.5:
                del packet[slice(rng.randrange(len(packet) + 1), None)]
            else:
                packet += bytes(rng.choice((1, 8, 5000)))
            if len(packet) > 3:
                packet[2:4] = (len(packet) % 65536).to_bytes(2, 'little')
        elif kind == 12:
            fds = rng.choices([*others, *fds], k=rng.choice((0, 1, 2, 4, 5, 9)))
        elif kind == 13:
            messages.insert(rng.randrange(len(messages)), messages[index])
            continue
        elif kind == 14:
            messages.insert(rng.randrange(len(messages)), messages.pop(index))
            continue
        else:
            code = rng.choice((0, 1, 4, 5, 6, 7, (1 << 32) - 1))
            packet, fds = bytearray(spec.refused(code, rng.randbytes(rng.randrange(500)))), []
        messages[index] = bytes(packet), fds
    return messages


def say(listener: socket.socket, messages: list[Message]) -> None:
    """Send messages; after a FRAME, wait for its RELEASE or EOF, so that timing has no effect."""
    with listener.accept()[0] as peer, suppress(BrokenPipeError, ConnectionResetError):
        peer.settimeout(PATIENCE_S)
        peer.recv(spec.MAX_PACKET)
        for packet, fds in messages:
            socket.send_fds(peer, [packet], fds) if fds else peer.send(packet)
            if packet[:1] == bytes([spec.FRAME]) and not peer.recv(spec.MAX_PACKET):
                return
        peer.shutdown(socket.SHUT_WR)
        while peer.recv(spec.MAX_PACKET):
            pass


def verdict_of_the_package(
    listener: socket.socket, messages: list[Message], **options: Any
) -> tuple[str, str]:
    options = {'window': 2, 'requirements': Requirements(formats=FORMATS)} | options
    with SharedMemoryClient(Path(listener.getsockname()), name='client', **options) as client:
        producer = threading.Thread(target=say, args=(listener, messages))
        producer.start()
        attempt(client)
        while client.connected:
            select.select([client], [], [], PATIENCE_S)
            if (frame := client.receive()) is not None:
                frame.release()
        producer.join()
        (reason,) = client.statistics().ended
        assert reason != 'internal', client.last_end
        found = {'eof': 'ended', 'gone': 'ended', 'refused': 'refused'}
        return found.get(reason, 'broken'), client.last_end


ANY_FORMAT = [
    option
    for code, modifier in FORMATS
    for option in ('--format', f'{code.to_bytes(4, "little").decode()}:{modifier}')
]


def verdict_of_the_page(
    program: Path, listener: socket.socket, messages: list[Message], *options: str
) -> tuple[str, str]:
    words = '--window', '2', *(options or ANY_FORMAT)
    with ConsumerProcess(program, Path(listener.getsockname()), *words) as consumer:
        say(listener, messages)
        code, lines, _ = consumer.result()
    found = {FRAMES_READ: 'ended', ENDED: 'ended', REFUSED: 'refused', RULE_BROKEN: 'broken'}
    return found[code], str(lines[-1:])


# Cases by rule: whether a publisher id is requested, and the messages to send.
Said = Callable[[], tuple[list[Message], list[Slot]]]


def said(
    image: Image | None, *packets: bytes, welcome: bool = True, **lies: Any
) -> tuple[list[Message], list[Slot]]:
    """Return WELCOME unless disabled, BUFFERS of *image* with changes *lies*, and *packets*."""
    slots = [] if image is None else [Slot(image)]
    buffers = [(lie(slot.image, **lies).pack(), slot.fds) for slot in slots]
    return [
        *([(spec.welcome(1, 1), [])] if welcome else []),
        *buffers,
        *((packet, []) for packet in packets),
    ], slots


def _broken() -> Iterator[tuple[str, tuple[str, bool, Said]]]:
    for name, (rule, message) in FIRST_MESSAGES.items():
        asked = not (name == 'nobody' or name.startswith('id_'))  # wrong for any consumer
        welcome = name.endswith(('unknown', 'welcomes'))
        first = partial(lambda make, **how: said(None, make(), **how), message, welcome=welcome)
        yield f'first: {name}', (rule, asked, first)
    for name, (rule, lies) in WRONG_BUFFERS.items():
        yield f'buffers: {name}', (rule, True, partial(said, Image.nv12(), **lies))
    for name, (rule, image) in WRONG_IMAGES.items():
        yield f'image: {name}', (rule, False, partial(said, image))
    for name, (rule, messages) in WRONG_FRAMES.items():
        then = partial(lambda make: said(Image.nv12(), *make()), messages)
        yield f'frame: {name}', (rule, True, then)


BROKEN = dict(_broken())


@pytest.mark.parametrize('name', BROKEN)
def test_both_consumers_notice_each_broken_rule(
    program: Path, listener: socket.socket, name: str
) -> None:
    rule, asked, say_it = BROKEN[name]
    messages, slots = say_it()
    needs, words, publisher = Requirements(), '--depth 1', ''
    if asked:
        publisher = 'spec-server'
        needs = Requirements(((spec.NV12, 0),), 3, 8, 16, max_width=72, max_height=48)
        words = f'--publisher {publisher} --format NV12:0 --align 8:16 --max-size 72:48'
    ours, why = verdict_of_the_package(
        listener, messages, requirements=needs, publisher_id=publisher
    )
    theirs, found = verdict_of_the_page(program, listener, messages, *words.split())
    for slot in slots:
        slot.close()
    assert (ours, theirs) == ('broken', 'broken'), (why, found)
    assert f"'rule': '{rule}'" in found


@pytest.mark.parametrize('seed', SEEDS)
def test_both_consumers_say_the_same_of_every_conversation(
    program: Path, listener: socket.socket, slots: list[Slot], seed: int
) -> None:
    rng, right = random.Random(seed), conversation(slots)
    others = [
        os.open('/dev/null', os.O_RDWR | os.O_CLOEXEC),
        os.memfd_create('unsealed', os.MFD_CLOEXEC),
        slots[0].fds[0],
    ]
    assert verdict_of_the_package(listener, right)[0] == 'ended'
    assert verdict_of_the_page(program, listener, right)[0] == 'ended'
    found = {'ended': 0, 'refused': 0, 'broken': 0}
    for number in range(CONVERSATIONS):
        messages = alter(rng, right, others)
        ours, why = verdict_of_the_package(listener, messages)
        theirs, rule = verdict_of_the_page(program, listener, messages)
        assert ours == theirs, (
            f'conversation {number}: {ours}: {why}; the C consumer: {theirs}: {rule}'
        )
        found[ours] += 1
    for fd in others[:2]:
        os.close(fd)
    assert min(found['ended'], found['broken']) > CONVERSATIONS // 10, found
