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
Producers and consumers of docs/wire.md that share no code: the package's and client/'s.

First two consumers, in equal conversations: both must find a broken rule, or neither. They meet
each rule that a producer can break, which client/ names, and then 60 conversations that are
altered at random; in the long form a hundred times as many. Then two producers, with consumers
that keep the page or break it. The programs of client/ have memory and UB sanitizers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import replace
from functools import partial
import itertools
import json
import os
from pathlib import Path
import random
import re
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from typing import Any
import zlib

from link.shared_memory.memory_link import (
    all_free,
    attempt,
    make_frame,
    make_pool,
    Message,
    mutate,
    PATIENCE_S,
    PUBLISHER,
    RawPeer,
)
from long_form import LONG
import numpy as np
import pytest
from waiting import eventually, until
from wire_process import (
    build,
    build_consumer,
    CHECKED,
    CLIENT,
    ConsumerProcess,
    ENDED,
    FRAMES_READ,
    HERE,
    REFUSED,
    RULE_BROKEN,
)
import wire_spec as spec
from wire_spec import (
    FIRST_MESSAGES,
    GOOD_HELLO,
    Image,
    INSTEAD,
    INSTEAD_OF_RELEASE,
    patched,
    Slot,
    WRONG_BUFFERS,
    WRONG_FRAMES,
    WRONG_IMAGES,
)

from zc_perception.frame import Frame
from zc_perception.link.announcement import Announcement, host_id, write_announcement
from zc_perception.link.shared_memory.client import SharedMemoryClient
from zc_perception.link.shared_memory.protocol import Requirements
from zc_perception.link.shared_memory.server import SharedMemoryServer
from zc_perception.link.shared_memory.unix_socket import default_folder
from zc_perception.link.shared_memory.wire import Refused
from zc_perception.negotiation.constraints import parse_options
from zc_perception.negotiation.settings import heap_offer
from zc_perception.pixel.fourcc import FORMATS as PACKAGE_FORMATS
from zc_perception.pixel.layout import sample_bytes

pytestmark = pytest.mark.usefixtures('no_fd_leak')
VERSION, NOT_ALLOWED, CONSTRAINTS, BUSY, RULE, ANOTHER = range(1, 7)
CONVERSATIONS = 60
SEEDS = range(100 if LONG else 1)
TOPIC, RATE, SIZE = '/image_raw', 100, (64, 48)
LINEAR = spec.NV12, spec.fourcc('NV21'), spec.P010, spec.YUYV, spec.R8
FORMATS = *((code, 0) for code in LINEAR), (spec.NV12, spec.INVALID)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the client's handshake timeout, so that a slow test doesn't end its attempt."""
    monkeypatch.setattr('zc_perception.link.shared_memory.client.HANDSHAKE_S', PATIENCE_S)


@pytest.fixture(scope='session')
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_consumer(tmp_path_factory.mktemp('wire'))


@pytest.fixture
def listener(folder: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.settimeout(PATIENCE_S)
        listening.bind(str(folder / 'socket'))
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
    messages: list[Message] = [(spec.welcome(2, 1), [])]
    messages += [(slot.image.pack(), list(slot.fds)) for slot in slots]
    messages += [
        (spec.frame(slot.image.uid, generation, 0, published_ns=1), [])
        for generation in (1, 2)
        for slot in slots
    ]
    return [*messages, (spec.retired(2), []), (spec.frame(1, 3, 0, published_ns=1), [])]


def greeted(listener: socket.socket) -> socket.socket:
    """Return the connection of a consumer that waits for the answer to its HELLO."""
    while True:
        peer = listener.accept()[0]
        peer.settimeout(PATIENCE_S)
        peer.recv(spec.MAX_PACKET)
        poller = select.poll()
        poller.register(peer, 0)
        if not any(events & select.POLLHUP for _, events in poller.poll(0)):
            return peer
        peer.close()  # after a second without an answer, it comes again


def say(listener: socket.socket, messages: list[Message]) -> None:
    """Send messages; after a FRAME, wait for its RELEASE or EOF, so that timing has no effect."""
    with greeted(listener) as peer, suppress(BrokenPipeError, ConnectionResetError):
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
    buffers = [(replace(slot.image, **lies).pack(), slot.fds) for slot in slots]
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
    # Strides and rows of a layout that isn't known mean nothing; not all consumers rule it out.
    for needs in (Requirements(formats=FORMATS), Requirements()):
        assert verdict_of_the_package(listener, right, requirements=needs)[0] == 'ended'
    assert verdict_of_the_page(program, listener, right)[0] == 'ended'
    found = {'ended': 0, 'refused': 0, 'broken': 0}
    for number in range(CONVERSATIONS):
        messages = mutate(rng, right, others)
        ours, why = verdict_of_the_package(listener, messages)
        theirs, rule = verdict_of_the_page(program, listener, messages)
        assert ours == theirs, (
            f'conversation {number}: {ours}: {why}; the C consumer: {theirs}: {rule}'
        )
        found[ours] += 1
    for fd in others[:2]:
        os.close(fd)
    assert min(found['ended'], found['broken']) > CONVERSATIONS // 10, found




@pytest.fixture(scope='session')
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp('programs') / 'wire_programs'
    flags = (*CHECKED, '-Wl,--wrap=ioctl')
    return build(target, HERE / 'wire_programs.c', flags=flags)


@pytest.fixture
def start(programs: Path, folder: Path) -> Callable[..., subprocess.Popen[str]]:
    """Start the named one of wire_programs.c, whose sockets are in *folder*."""
    here = os.environ | {'ZC_RUNTIME_DIR': str(folder), 'ROS_DOMAIN_ID': '0'}

    def started(*words: str, under: Sequence[str] = ()) -> subprocess.Popen[str]:
        command = [*under, str(programs), *words]
        return subprocess.Popen(
            command, text=True, env=here, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    return started


Start = Callable[..., subprocess.Popen[str]]


def lines_of(process: subprocess.Popen[str], code: int = 0) -> list[str]:
    """Return what the program prints, once it has ended with *code*."""
    with process:
        said = process.communicate(timeout=60)[0].splitlines()
    assert process.returncode == code, said
    return said


def test_a_child_that_keeps_the_connection_costs_its_parent_no_time(
    start: Start, listener: socket.socket
) -> None:
    with start('forker', listener.getsockname()) as process:
        assert process.stdout is not None
        with listener.accept()[0] as peer:
            peer.recv(spec.MAX_PACKET)
            peer.send(spec.welcome(1, 1))
            assert process.stdout.readline() == 'forked\n'
        listener.close()
        assert int(process.stdout.readline()) < 100


def test_a_memfd_that_can_only_be_written_is_refused_with_the_reason(
    program: Path, listener: socket.socket
) -> None:
    slot = Slot(Image.nv12())
    only = [os.open(f'/proc/self/fd/{fd}', os.O_WRONLY | os.O_CLOEXEC) for fd in slot.fds]
    with (
        ConsumerProcess(program, Path(listener.getsockname())),
        listener.accept()[0] as peer,
    ):
        peer.settimeout(PATIENCE_S)
        peer.recv(spec.MAX_PACKET)
        peer.send(spec.welcome(1, 1))
        socket.send_fds(peer, [slot.image.pack()], only)
        packet = peer.recv(spec.MAX_PACKET)
    for fd in only:
        os.close(fd)
    slot.close()
    assert (packet[0], packet[8]) == (spec.REFUSED, CONSTRAINTS) and b'O_WRONLY' in packet



def test_an_announcement_that_came_while_it_was_connected_counts_after_the_end(
    start: Start, listener: socket.socket
) -> None:
    """The file isn't in the client's folder, so only the program's call names the camera."""

    def announce(path: str) -> None:
        made = Announcement(PUBLISHER, host_id(), path, 1, 1, (), '')
        process.stdin.write(f'{made.to_json()}\n')
        process.stdin.flush()

    def accept(listening: socket.socket) -> socket.socket:
        peer = listening.accept()[0]
        peer.settimeout(PATIENCE_S)
        peer.recv(spec.MAX_PACKET)
        peer.send(spec.welcome(1, 1, PUBLISHER.encode()))
        return peer

    with (
        start('told', TOPIC) as process,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as later,
    ):
        assert process.stdin is not None
        later.settimeout(PATIENCE_S)
        later.bind(f'{listener.getsockname()}-2')
        later.listen()
        announce(listener.getsockname())
        accept(listener).close()
        with accept(listener):
            announce(later.getsockname())
            listener.close()
            time.sleep(0.1)  # the client must read the announcement while it is connected
        accept(later).close()
        process.stdin.close()
    assert process.returncode == 0


def test_a_program_that_polls_keeps_the_pauses_between_attempts(
    start: Start, folder: Path
) -> None:
    path, connections = folder / f'{PUBLISHER}.sock', 0
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(str(path))
        listening.listen()
        announced = Announcement(PUBLISHER, host_id(), str(path), 1, 1, (), '')
        write_announcement(announced, TOPIC, 0)
        with start('poller', TOPIC) as process:
            assert process.stdin is not None
            while process.poll() is None:
                if select.select([listening], [], [], 0.001)[0]:
                    listening.accept()[0].close()
                    connections += 1
                if connections == 4:  # which may be later, if this process was slow
                    process.stdin.close()
    assert process.returncode == 0
    assert 4 <= connections < 100, 'in half a second there are five attempts and their probes'


# Producers.


def fill(frame: Frame) -> list[int]:
    source = np.random.default_rng(frame.data.sequence)
    with frame.map(write=True) as planes:
        for plane in planes:
            plane[...] = source.integers(0, 256, plane.shape, np.uint8)
        return [zlib.crc32(plane.tobytes()) for plane in planes]


class Source:
    def __init__(self, folder: Path) -> None:
        self.pool = make_pool(8)
        self.server = SharedMemoryServer(
            'camera', PUBLISHER, self.pool, folder=folder, quarantine_timeout_s=0.01
        )
        self.path = self.server.path
        self.sequence = 0

    def _ready(self, names: tuple[str, ...]) -> bool:
        waiting = [found for found in self.server.statistics().consumers if found.name in names]
        return len(waiting) == len(names) and all(
            found.pending == 0 and found.held < found.window for found in waiting
        )

    def publish(self, count: int, *names: str) -> list[dict[str, Any]]:
        told = []
        for _ in range(count):
            until(lambda: self._ready(names), self.server.statistics)
            self.sequence += 1
            with make_frame(self.pool, self.sequence) as frame:
                header = {'stamp_ns': 1000 + self.sequence, 'frame_id': 'camera_optical_frame'}
                told.append({'sequence': self.sequence, **header, 'crc': fill(frame)})
                self.server.publish(frame)
        return told

    def close(self) -> None:
        self.server.close()
        assert self.server.counters.internal_errors == 0, self.server.counters.last_internal_error
        until(lambda: all_free(self.pool), self.pool.describe_holders)
        self.pool.close()


@pytest.fixture
def source(folder: Path) -> Iterator[Source]:
    made = Source(folder)
    yield made
    made.close()


class Bar(AbstractContextManager['Bar']):
    """The program ``moving_bar``; at the context's end it is killed."""

    def __init__(self, program: Path, folder: Path | str, *, buffers: int = 12) -> None:
        self.folder = Path(folder)
        words = TOPIC, *map(str, SIZE), str(RATE), '0', str(buffers)
        self.process = subprocess.Popen(
            [program, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, 'ZC_RUNTIME_DIR': str(folder)},
        )

    def announcement(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        return dict(json.loads(self.process.stdout.readline()))

    @property
    def path(self) -> Path:
        return Path(until(lambda: list(self.folder.glob('*.sock')), 'it listens')[0])

    def descriptors(self) -> int:
        return len(os.listdir(f'/proc/{self.process.pid}/fd'))

    def inodes(self) -> set[int]:
        """Return the inodes of its buffers, after its announcement."""
        found = set()
        for entry in Path(f'/proc/{self.process.pid}/fd').iterdir():
            with suppress(OSError):  # a connection may end meanwhile
                if 'memfd' in os.readlink(entry):
                    found.add(entry.stat().st_ino)
        return found

    def end(self) -> str:
        """End it, and return its stderr, where the sanitizers report leaks."""
        self.process.send_signal(signal.SIGTERM)
        errors = self.process.communicate(timeout=60)[1]
        assert self.process.returncode == 0, errors
        return errors

    def __exit__(self, *exception: object) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture(scope='session')
def bar_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp('bar') / 'moving_bar'
    return build(target, CLIENT / 'examples' / 'moving_bar.c', flags=CHECKED)


@pytest.fixture(scope='session')
def waiting_bar_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a moving_bar that awaits its first consumer: 0.3 s are too short on a busy machine."""
    text = (CLIENT / 'examples' / 'moving_bar.c').read_text(encoding='utf-8')
    deadline = (
        'int64_t until = clock_ns(CLOCK_MONOTONIC) + 300000000; clock_ns(CLOCK_MONOTONIC) < until;'
    )
    assert deadline in text
    first = 'zc_consumer first; zc_publisher_consumers(camera, &first, 1) == 0;'
    source = tmp_path_factory.mktemp('waiting_bar') / 'bar.c'
    source.write_text(text.replace(deadline, first), encoding='utf-8')
    return build(source.with_suffix(''), source, flags=CHECKED)


@pytest.fixture
def bar(bar_program: Path, folder: Path) -> Iterator[Bar]:
    with Bar(bar_program, folder) as running:
        running.announcement()
        yield running


@pytest.fixture(scope='module')
def survivor(bar_program: Path) -> Iterator[Bar]:
    """Yield one producer for all bad consumers; it must exit without an error."""
    with (
        tempfile.TemporaryDirectory(prefix='zc-') as name,
        Bar(bar_program, Path(name)) as running,
    ):
        running.announcement()
        yield running
        running.end()


def refusal(path: Path, kind: str, publish: Callable[[], None] = lambda: None) -> Refused:
    """Break the rule *kind* as a consumer, if need be after *publish*; return the answer."""
    with RawPeer.connected(path) as bad:

        def say(packets: list[bytes], descriptors: int) -> None:
            for packet in packets:
                with suppress(BrokenPipeError):  # the producer may have refused it already
                    bad.send(packet, descriptors * [bad.socket.fileno()])

        say(*INSTEAD.get(kind, ([GOOD_HELLO], 0)))
        if kind in INSTEAD_OF_RELEASE:
            publish()
            assert bad.receive_type() == spec.WELCOME
            frame = bad.receive_frame()
            packets, descriptors = INSTEAD_OF_RELEASE[kind]
            say(packets(frame.uid, frame.generation), descriptors)
        return bad.receive_refused()


@pytest.mark.parametrize('kind', [*INSTEAD, *INSTEAD_OF_RELEASE])
def test_a_consumer_that_breaks_a_rule_is_refused_and_a_good_one_loses_nothing(
    source: Source, kind: str
) -> None:
    with RawPeer.welcomed(source.path, window=2, name='good') as good:

        def publish(*names: str) -> None:
            source.publish(1, 'good', *names)
            received = good.receive_frame()
            assert (received.sequence, received.dropped) == (source.sequence, 0)
            good.release(received)

        publish()
        code, text = refusal(source.path, kind, lambda: publish('bad'))
        assert code == RULE and len(text) > 10, text
        publish()
    until(lambda: not source.server.consumers, 'their end')
    assert sum(source.server.statistics().protocol_errors.values()) == 1


@pytest.mark.parametrize('kind', [*INSTEAD, *INSTEAD_OF_RELEASE])
def test_a_producer_in_c_refuses_it_too(program: Path, survivor: Bar, kind: str) -> None:
    with ConsumerProcess(program, survivor.path, '--frames', '20', '--window', '2') as good:
        before = good.line()
        code, text = refusal(survivor.path, kind)
        assert code == RULE and len(text) > 10, text
        result, frames, summary = good.result()
    assert result == FRAMES_READ
    check([before, *frames], summary)


@pytest.mark.parametrize(
    ('producer', 'options', 'code', 'text'),
    [
        ('source', ('--publisher', 'd' * 32), ANOTHER, PUBLISHER),
        ('source', ('--format', 'NV12:1', '--format', 'R8:0'), CONSTRAINTS, 'NV12'),
        ('source', ('--align', '1:4096'), CONSTRAINTS, '4096'),
        ('bar', ('--publisher', 'd' * 32), ANOTHER, 'another publisher'),
        ('bar', ('--format', 'YUYV:0'), CONSTRAINTS, 'NV12'),
        ('bar', ('--align', '4096:1'), CONSTRAINTS, '4096'),
        ('bar', ('--options', 'cpu=read; min_size=65x1'), CONSTRAINTS, 'min_size'),
        ('bar', ('--options', 'polarised'), CONSTRAINTS, 'polarised'),
    ],
)
def test_what_does_not_fit_is_refused_with_its_reason(
    program: Path,
    request: pytest.FixtureRequest,
    producer: str,
    options: tuple[str, ...],
    code: int,
    text: str,
) -> None:
    with ConsumerProcess(program, request.getfixturevalue(producer).path, *options) as consumer:
        found, reason = consumer.refusal()
    assert found == code and text in reason, reason


# The package's producer.


def test_frames_arrive_with_the_right_pixels(source: Source, program: Path) -> None:
    options = '--frames', '300', '--publisher', PUBLISHER, '--format', 'NV12:0', '--window', '2'
    with ConsumerProcess(program, source.path, *options, '--name', 'c') as consumer:
        published = source.publish(300, 'c')
        code, frames, summary = consumer.result()
    assert code == FRAMES_READ
    assert [{key: frame[key] for key in published[0]} for frame in frames] == published
    assert {frame['dropped'] for frame in frames} == {0}
    assert (summary['frames'], summary['reconnects']) == (300, 0)
    inodes, uids = ({frame[key] for frame in frames} for key in ('inode', 'uid'))
    assert summary['slots'] == len(inodes) == len(uids) <= 8
    until(lambda: not source.server.consumers, 'its end')
    counted = source.server.statistics()
    assert (counted.taken_back, counted.protocol_errors) == (0, {})


BEGIN = spec.MAGIC.to_bytes(4, 'little')
LATER, NOBODYS = BEGIN + b'\2\0\x09\0', BEGIN + b'\2\0\1\0'
LONG_LATER = LATER + bytes(112)
PLAIN, ONE_FORMAT = spec.Hello().pack()[8:], spec.Hello(formats=((spec.NV12, 0),)).pack()
# Packets in place of a HELLO, their number of descriptors, and the refusal's code.
OTHER_HELLOS = {
    'later_as_always': (spec.Hello(min_version=2, max_version=9).pack(), 0, VERSION),
    'later_and_longer': (spec.packet(spec.HELLO, LATER + bytes(range(256))), 0, VERSION),
    'later_and_shortest': (spec.packet(spec.HELLO, LATER), 0, VERSION),
    'later_with_a_field_in_the_header': (spec.packet(spec.HELLO, LONG_LATER, zero=7), 0, VERSION),
    'later_with_descriptors': (spec.packet(spec.HELLO, LONG_LATER), 4, VERSION),
    'later_with_too_many_descriptors': (spec.packet(spec.HELLO, LONG_LATER), 5, RULE),
    'later_with_a_wrong_length': (spec.packet(spec.HELLO, LONG_LATER, length=127), 0, RULE),
    'later_cut_off': (spec.packet(spec.HELLO, LATER[:-1]), 0, RULE),
    'later_with_other_magic': (spec.packet(spec.HELLO, b'ZCLX' + LONG_LATER[4:]), 0, RULE),
    'later_of_another_type': (spec.packet(8, LONG_LATER), 0, RULE),
    'versions_the_wrong_way_round': (spec.packet(spec.HELLO, NOBODYS + PLAIN[8:]), 0, RULE),
    'format_with_a_field': (patched(ONE_FORMAT, 132, 4, 1), 0, RULE),
    **{
        name: (spec.Hello(**fields).pack(), 0, code)
        for name, code, fields in (
            ('id_with_a_gap', RULE, {'publisher_id': b'c\0c'}),
            ('id_that_begins_late', RULE, {'publisher_id': b'\0c'}),
            ('id_not_ascii', RULE, {'publisher_id': 'ü'.encode()}),
            ('id_with_a_line', RULE, {'publisher_id': b'c\n'}),
            ('id_with_a_delete', RULE, {'publisher_id': b'c\x7f'}),
            ('id_of_another', ANOTHER, {'publisher_id': b' ~'}),
            ('most_formats', CONSTRAINTS, {'formats': tuple((n, 0) for n in range(64))}),
            ('too_many_formats', RULE, {'formats': tuple((n, 0) for n in range(65))}),
            ('options_that_do_not_suit', CONSTRAINTS, {'options': b'max_stride=8'}),
            ('options_of_a_later_time', CONSTRAINTS, {'options': b'contiguous; polarised'}),
            ('options_too_long', RULE, {'options': bytes(1025)}),
            ('options_not_utf8', RULE, {'options': b'\xff'}),
            ('name_not_utf8', RULE, {'name': b'\xff'}),
            ('name_with_a_gap', RULE, {'name': b'a\0b'}),
        )
    },
}


@pytest.mark.parametrize('name', OTHER_HELLOS)
def test_other_hellos_are_refused_with_the_code_of_the_page(source: Source, name: str) -> None:
    data, descriptors, code = OTHER_HELLOS[name]
    with RawPeer.connected(source.path) as peer:
        peer.send(data, descriptors * [0])
        assert peer.receive_refused().code == code


def test_a_later_version_is_spoken_down(source: Source) -> None:
    with RawPeer.connected(source.path) as later:
        later.send(spec.Hello(max_version=7).pack())
        answer = later.receive()[0]
    assert (answer[0], answer[8:10]) == (spec.WELCOME, b'\1\0')


# The producer of client/.


def right_crcs(sequence: int) -> list[int]:
    width, height = SIZE
    row, at = np.full(width, 60, np.uint8), sequence * 4 % width
    row[slice(at, at + 16)] = 200
    return [zlib.crc32(row.tobytes() * height), zlib.crc32(bytes([128]) * width * (height // 2))]


def check(frames: list[dict[str, Any]], summary: dict[str, Any]) -> None:
    """Check order and pixels of one connection's frames; lost ones must have been reported."""
    numbers = [frame['sequence'] for frame in frames]
    assert [frame['crc'] for frame in frames] == [right_crcs(number) for number in numbers]
    assert numbers[-1] - numbers[0] + 1 - len(numbers) == sum(f['dropped'] for f in frames[1:])
    assert summary['reconnects'] == 0


def test_frames_of_a_producer_in_c_have_the_right_pixels_in_the_same_memory(
    program: Path, bar: Bar
) -> None:
    with ConsumerProcess(program, bar.path, '--frames', '200', '--window', '2') as consumer:
        code, frames, summary = consumer.result()
    assert code == FRAMES_READ and len(frames) == 200
    check(frames, summary)
    assert len({frame['inode'] for frame in frames}) == summary['slots'] <= 12
    assert ', 0 had no free slot' in bar.end()
    assert not list(bar.folder.iterdir())


def test_the_consumer_finds_it_by_its_topic_before_and_after_a_kill(
    program: Path, bar_program: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('ZC_RUNTIME_DIR', str(folder))
    # It can't be 100 frames ahead of this test, because the pipe is small.
    command = [program, '--topic', TOPIC, '--reconnect', '--frames', '250']
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, pipesize=4096) as consumer:
        assert consumer.stdout is not None
        said = map(json.loads, consumer.stdout)
        for kill in range(3):
            with Bar(bar_program, folder) as bar:
                bar.announcement()
                own = bar.inodes()
                lines = list(itertools.islice((line for line in said if line['inode'] in own), 20))
                assert all(line['crc'] == right_crcs(line['sequence']) for line in lines), kill
                if kill == 2:
                    *_, summary = said
        assert consumer.wait(60) == 0 and summary['reconnects'] == 2
    with Bar(bar_program, folder) as bar:
        bar.announcement()
        assert len(list(folder.glob('*.sock'))) == 1, 'those of the killed ones are removed'
        bar.end()


@pytest.mark.parametrize('written', ['{}/', '/{}', '{}//.', '{}/a/../', '{}/a/../../{name}'])
def test_a_folder_that_is_written_in_another_way_is_the_same(
    program: Path, bar_program: Path, folder: Path, written: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / 'a').mkdir()
    named = written.format(folder, name=folder.name)
    monkeypatch.setenv('ZC_RUNTIME_DIR', named)
    with Bar(bar_program, named) as bar:
        found = bar.announcement()['socket']
        assert default_folder() == folder and found == f'{folder}/{Path(found).name}'
        command = [program, '--topic', TOPIC, '--frames', '1']
        assert subprocess.run(command, stdout=subprocess.DEVNULL, timeout=60).returncode == 0


def test_kills_with_frames_held_cost_the_witness_nothing(program: Path, bar: Bar) -> None:
    kills = 250 if LONG else 20
    with ConsumerProcess(program, bar.path, '--window', '2') as witness:
        first = witness.line()
        before = None
        for number in range(kills):
            with ConsumerProcess(program, bar.path, '--hold', '--window', '3') as victim:
                victim.line()
                victim.process.kill()
                victim.process.wait()
            if number == 5:
                before = bar.descriptors()
        assert before is not None and eventually(lambda: bar.descriptors() <= before + 2)
        witness.process.send_signal(signal.SIGSTOP)
        time.sleep(0.1)
        witness.process.send_signal(signal.SIGCONT)
        bar.end()
        _, frames, summary = witness.result()
    check([first, *frames[:-1]], summary)


@pytest.mark.parametrize(
    ('need', 'keeps'),
    [
        (Requirements(stride_align=64), lambda image: image.planes[0].stride % 64 == 0),
        (Requirements(offset_align=4096), lambda image: image.planes[1].offset % 4096 == 0),
        (Requirements(options='cpu=read; one_buffer'), lambda image: image.num_buffers == 1),
    ],
)
def test_a_consumer_that_is_there_first_is_heard_first(
    waiting_bar_program: Path, folder: Path, need: Requirements, keeps: Callable[[Any], bool]
) -> None:
    """The package's own consumer must wait for it, too."""
    with (
        Bar(waiting_bar_program, folder) as bar,
        SharedMemoryClient(bar.path, name='first', window=1, requirements=need) as client,
    ):
        attempt(client)
        frame = until(client.receive, lambda: client.last_end)
        with frame:
            assert keeps(frame.data.layout)
        bar.end()


def test_a_consumer_that_nothing_suits_does_not_end_the_camera(
    waiting_bar_program: Path, folder: Path
) -> None:
    with Bar(waiting_bar_program, folder) as bar:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
            peer.settimeout(PATIENCE_S)
            peer.connect(str(bar.path))
            peer.send(spec.Hello(flags=2, max_width=8).pack())
            assert bar.announcement()['formats'] == ['NV12']
            noted, refused = (peer.recv(spec.MAX_PACKET) for _ in range(2))
        bar.end()
    assert (noted[0], refused[0], refused[8]) == (8, spec.REFUSED, CONSTRAINTS)


def test_fewer_buffers_than_consumers_were_promised_are_refused(start: Start) -> None:
    said = lines_of(start('resizer', '6', '5', '3', '6', '8'))
    assert [said[0], *said[3:]] == ['taken'] * 3
    assert 'there are 5 buffers; give 6 at least, as before' in said[1]
    assert 'there are 3 buffers; give 4 to 256' in said[2]


def test_buffers_that_every_consumer_would_refuse_are_refused(start: Start) -> None:
    said = [line.rpartition('(')[2] for line in lines_of(start('forgetful'))]
    assert said == [f"rule '{rule}')" for rule in ('kind', *['colour'] * 3, 'planes')]


def test_of_the_consumers_that_wait_the_first_is_served_first(start: Start) -> None:
    assert lines_of(start('line', TOPIC)) == ['taken', 'first']


def test_times_of_the_wrong_clock_are_refused(start: Start) -> None:
    last, wrong = 2**31 * 10**9 - 1, f'c{time.time_ns()}'
    words = 0, last, f'c{time.monotonic_ns()}', last + 1, -1, wrong
    first, *said = lines_of(start('stamper', *map(str, words)))
    assert [first, *said[:3]] == ['taken', 'sent', 'sent', 'sent']
    assert [line.partition(':')[0] for line in said[3:]] == [
        f'stamp_ns is {last + 1}, outside the range of a ROS time',
        'stamp_ns is -1, outside the range of a ROS time',
        f'captured_ns is {wrong[1:]}, in the future',
    ]


def test_a_fence_that_its_consumer_keeps_costs_the_producer_no_time(start: Start) -> None:
    taken, steps = lines_of(start('keeper', TOPIC))
    assert taken == 'taken' and int(steps) < 100


def test_an_announcement_that_has_no_room_is_an_error_and_leaves_nothing(
    start: Start, folder: Path
) -> None:
    (said,) = lines_of(start('resizer', under=['prlimit', '--fsize=100']), 1)
    assert "announcement' can't be written: No space left on device" in said
    assert not list(folder.iterdir())


def test_a_layout_has_a_size_that_its_format_can_have(start: Start) -> None:
    asked = {
        'NV12 640 480 0': '640 460800',
        'NV12 600 480 64': '640 460800',
        'NV12 641 481 1': "-22: format NV12 can't have 641x481 pixels",
        'YUYV 641 480 1': "-22: format YUYV can't have 641x480 pixels",
        'NV12 70000 480 1': "-22: format NV12 can't have 70000x480 pixels",
        'RG24 0 480 1': "-22: format RG24 can't have 0x480 pixels",
        'ABCD 640 480 1': '-22: format ABCD is not in docs/linear_formats.md',
    }
    assert lines_of(start('layouts', *' '.join(asked).split())) == list(asked.values())


def test_a_device_takes_dma_bufs_and_contiguous_memory_may_be_it(start: Start) -> None:
    """As :class:`HeapOffer` says; a consumer whose device can't import them rejects them."""
    heaps = 'memfd', 'dma_heap/system', 'udmabuf', 'dma_heap/linux,cma', 'v4l2'
    asked = [
        (heap, option) for option in ('device=/dev/metis-0:1:0', 'contiguous') for heap in heaps
    ]
    said = lines_of(start('taker', *(word for pair in asked for word in pair)))
    assert [line == 'taken' for line in said] == [
        not heap_offer(heap).objections(parse_options(option), None) for heap, option in asked
    ]


def test_a_producer_without_a_descriptor_left_pauses_and_then_accepts(start: Start) -> None:
    with start('starved') as process:
        assert process.stdin is not None and process.stdout is not None
        path = Path(json.loads(process.stdout.readline())['socket'])
        with RawPeer.connected(path) as peer:
            peer.send(GOOD_HELLO)
            process.stdin.write('\n')
            process.stdin.flush()
            assert int(process.stdout.readline()) < 100, 'it pauses instead of trying all the time'
            assert peer.receive_refused().code == BUSY, 'it has no buffers yet'
        process.kill()


def test_the_depth_is_promised_once_for_all_consumers(
    program: Path, bar_program: Path, folder: Path
) -> None:
    """Six slots are enough for two of the camera's, three windows of 1 and a depth of 1."""
    with Bar(bar_program, folder, buffers=6) as bar, ExitStack() as consumers:
        bar.announcement()
        for _ in range(3):
            one = ConsumerProcess(program, bar.path, '--window', '1')
            assert 'sequence' in consumers.enter_context(one).line()
        with ConsumerProcess(program, bar.path) as fourth:
            code, text = fourth.refusal()
        assert code == BUSY and '6 of 6 slots' in text


def test_a_consumer_that_asks_for_all_slots_leaves_some_for_the_next(
    program: Path, bar_program: Path, folder: Path
) -> None:
    """As the package's producers do; the first asks as zc_record does."""
    with Bar(bar_program, folder, buffers=8) as bar:
        bar.announcement()
        with ConsumerProcess(program, bar.path, '--window', '2', '--depth', '16') as recorder:
            recorder.line()
            with ConsumerProcess(program, bar.path, '--window', '2', '--depth', '2') as second:
                assert 'sequence' in second.line()


def test_more_consumers_than_there_are_slots_hear_that_it_is_busy(
    program: Path, bar_program: Path, folder: Path
) -> None:
    with Bar(bar_program, folder, buffers=4) as bar:
        bar.announcement()
        with ConsumerProcess(program, bar.path, '--window', '8', '--depth', '8') as first:
            first.line()
            with ConsumerProcess(program, bar.path) as second:
                code, text = second.refusal()
            assert code == BUSY and '4 of 4 slots' in text


def test_random_bytes_end_the_connection_that_sent_them_and_no_other(
    program: Path, bar: Bar
) -> None:
    rng = np.random.default_rng(1)
    right = [GOOD_HELLO, spec.release(1, 1), spec.packet(spec.REFUSED, b'\3\0\0\0no')]
    with ConsumerProcess(program, bar.path, '--window', '2') as witness:
        for _ in range(50_000 if LONG else 2_000):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
                peer.connect(str(bar.path))
                for packet in rng.permutation(len(right))[: rng.integers(1, 4)]:
                    data = bytearray(right[packet])
                    for _ in range(rng.integers(0, 4)):
                        data[rng.integers(len(data))] = rng.integers(256)
                    try:
                        peer.send(data)
                    except (BrokenPipeError, ConnectionResetError):
                        break
        bar.end()
        _, frames, summary = witness.result()
    check(frames[:-1], summary)


# client/ as another project uses it: installed, found by CMake and pkg-config, in C++17.

PROGRAM = """
#include <cstdio>
#include <zc_client/zc_client.hpp>
int main() {
    zc_client_options options{};
    options.socket = "/nowhere";
    zc::Client client(options);
    const auto frame = client.next(std::chrono::milliseconds(200));
    std::puts(frame ? "a frame" : client.status().text);
    try {
        zc_publisher_options wrong{};
        zc::Publisher publisher(wrong);
    } catch (const std::system_error &error) {
        std::puts(error.what());
    }
}
"""
STRICT = ('-std=c++17', '-Wall', '-Wextra', '-Wpedantic', '-Werror')


def run(*command: str | Path, **environment: str) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope='module')
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which('cmake') is None:
        pytest.skip('cmake is not installed: sudo apt install cmake')
    built, target = tmp_path_factory.mktemp('built'), tmp_path_factory.mktemp('prefix')
    run('cmake', '-S', CLIENT, '-B', built, '-DCMAKE_C_FLAGS=-Werror')
    run('cmake', '--build', built)
    run('cmake', '--install', built, '--prefix', target)
    return target


def test_a_program_in_cpp_finds_it_by_pkg_config_and_by_cmake(
    prefix: Path, tmp_path: Path
) -> None:
    if shutil.which('pkg-config') is None:
        pytest.skip('pkg-config is not installed: sudo apt install pkg-config')
    (tmp_path / 'program.cpp').write_text(PROGRAM, encoding='utf-8')
    found = run(
        'pkg-config', '--cflags', '--libs', 'zc_client', PKG_CONFIG_PATH=f'{prefix}/lib/pkgconfig'
    )
    run('c++', *STRICT, tmp_path / 'program.cpp', '-o', tmp_path / 'program', *found.split())
    said = run(tmp_path / 'program', LD_LIBRARY_PATH=f'{prefix}/lib').splitlines()
    assert said[0] == "no connection to '/nowhere': No such file or directory"
    assert said[1].startswith("topic is ''; it must be in full")

    (tmp_path / 'CMakeLists.txt').write_text(
        'cmake_minimum_required(VERSION 3.16)\nproject(user LANGUAGES CXX)\n'
        'set(CMAKE_CXX_STANDARD 17)\nfind_package(zc_client REQUIRED)\n'
        'add_executable(program program.cpp)\n'
        'target_link_libraries(program zc_client::zc_client)\n',
        encoding='utf-8',
    )
    run('cmake', '-S', tmp_path, '-B', tmp_path / 'b', f'-DCMAKE_PREFIX_PATH={prefix}')
    run('cmake', '--build', tmp_path / 'b')
    assert run(tmp_path / 'b' / 'program').splitlines() == said


def test_the_examples_find_the_library_where_it_is_installed(prefix: Path) -> None:
    for name in ('frame_printer', 'moving_bar'):
        (program,) = prefix.glob(f'lib/zc_client/{name}')
        done = subprocess.run([program], capture_output=True, text=True, check=False)
        assert 'usage' in (done.stdout + done.stderr).lower(), done.stderr


def test_its_formats_are_the_packages() -> None:
    text = (CLIENT / 'src' / 'wire.c').read_text(encoding='utf-8')
    table = {}
    for name, sample, planes in re.findall(r'\{"(....)", (\d), \d, \{(\{.*?\})\}\}', text):
        blocks = tuple(
            tuple(map(int, block)) for block in re.findall(r'\{(\d), (\d), (\d)\}', planes)
        )
        table[name] = int(sample), blocks
    ours = {
        found.name.ljust(4): (
            sample_bytes(found, 0),
            tuple((p.element_bytes, p.horizontal, p.vertical) for p in found.planes),
        )
        for found in PACKAGE_FORMATS.values()
    }
    assert table == ours
