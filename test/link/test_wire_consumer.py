"""The C consumer against a producer that is driven step by step, both written from WIRE.md alone."""

from __future__ import annotations

import dataclasses
import fcntl
import os
import random
import subprocess
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import wire_spec as spec
from wire_builder import CompilerError, build_consumer, build_fake_kernel
from wire_process import ENDED, FRAMES_READ, USAGE, ConsumerProcess
from wire_spec import Image, Slot, SpecServer
from wire_violations import FIRST_MESSAGES, TILED, UNCLEAR_REFUSALS, WRONG_BUFFERS, WRONG_FRAMES, WRONG_IMAGES, lie

pytestmark = pytest.mark.usefixtures('no_fd_leak')
Start = Callable[..., ConsumerProcess]
MakeSlot = Callable[..., Slot]


@pytest.fixture(scope='module')
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_consumer(tmp_path_factory.mktemp('wire'))


@pytest.fixture(scope='module')
def fake_kernel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_fake_kernel(tmp_path_factory.mktemp('wire'))


@pytest.fixture
def place() -> Iterator[Path]:
    """Where the server's socket is: a short name, as an address has 107 bytes."""
    with tempfile.TemporaryDirectory(prefix='zc_wire_') as folder:
        yield Path(folder) / 'socket'


@pytest.fixture
def server(place: Path) -> Iterator[SpecServer]:
    server = SpecServer(place)
    yield server
    server.close()


@pytest.fixture
def start(program: Path, place: Path) -> Iterator[Start]:
    """Starts consumers at the server's path, and ends those that still run."""
    running: list[ConsumerProcess] = []

    def run(*options: str, **more: object) -> ConsumerProcess:
        running.append(ConsumerProcess(program, place, *options, **more))  # type: ignore[arg-type]
        return running[-1]

    yield run
    for consumer in running:
        consumer.__exit__()


@pytest.fixture
def make_slot() -> Iterator[MakeSlot]:
    slots: list[Slot] = []

    def make(image: Image | None = None, **options: object) -> Slot:
        slots.append(Slot(image or Image.nv12(), **options))  # type: ignore[arg-type]
        return slots[-1]

    yield make
    for slot in slots:
        slot.close()


def significant(image: Image, row_bytes: list[int], rows: list[int], content: list[bytes]) -> list[int]:
    """CRC-32 for each plane over the bytes that are pixels."""
    crcs = []
    for (buffer, stride, offset, _), row, count in zip(image.planes, row_bytes, rows, strict=True):
        crcs.append(zlib.crc32(b''.join(content[buffer][offset + y * stride :][:row] for y in range(count))))
    return crcs


def random_content(image: Image, seed: int) -> list[bytes]:
    source = random.Random(seed)
    return [source.randbytes(size) for size in image.sizes]


def test_a_missing_compiler_is_said_clearly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('CC', 'no-such-compiler')
    with pytest.raises(CompilerError, match=r"'no-such-compiler' is not installed.*install gcc"):
        build_consumer(tmp_path)


@pytest.mark.parametrize(
    'options',
    [
        ('--window', '65'), ('--window', '0'), ('--window', 'x'), ('--depth', '-1'), ('--memory', 'paper'),
        ('--format', 'NV12'), ('--format', ':0'),
        ('--version', '2:1'), ('--version', '1'), ('--misbehave', 'nicely'), ('--name', 41 * 'n'), ('--name',),
        ('--publisher', 'ä'), ('--publisher', 'a\x7f'), ('--publisher', 33 * 'p'), ('--what', '1'),
    ],
)  # fmt: skip
def test_wrong_usage_is_refused_before_connecting(start: Start, options: tuple[str, ...]) -> None:
    consumer = start(*options)
    assert 'usage:' in consumer.errors()
    assert consumer.process.wait(30) == USAGE


def test_a_thousand_frames_arrive_with_the_right_pixels(server: SpecServer, start: Start, make_slot: MakeSlot) -> None:
    slots = [make_slot(Image.nv12(uid=uid)) for uid in (11, 2**64 - 1, 13)]
    expected = []
    consumer = start('--window', '2', '--frames', '1000')
    with server.accept() as conversation:
        conversation.open()
        for slot in slots:
            conversation.announce(slot)
        for number in range(1000):
            slot = slots[number % 3]
            conversation.wait_free(slot)
            content = random_content(slot.image, number)
            slot.fill(content)
            sequence = number + number // 100  # the camera lost some
            conversation.publish(slot, sequence, stamp_ns=number - 500, frame_id=f'cämera "{number}"\n\\'.encode())
            expected.append(
                {
                    'sequence': sequence, 'uid': slot.image.uid, 'generation': slot.generation, 'stamp_ns': number - 500, 'dropped': 0,
                    'frame_id': f'cämera "{number}"\n\\', 'inode': slot.inode, 'crc': significant(slot.image, [64, 64], [48, 24], content),
                }
            )  # fmt: skip
        conversation.drain()
        assert not conversation.leases, 'everything was released'
    code, frames, summary = consumer.result()
    assert code == FRAMES_READ
    assert len(frames) == 1000 and all(0 < frame['latency_us'] < 60e6 for frame in frames)
    assert [{key: frame[key] for key in expected[0]} for frame in frames] == expected
    assert (summary['frames'], summary['mappings'], summary['slots_open'], summary['reconnects']) == (1000, 3, 3, 0)


@pytest.mark.parametrize(
    ('image', 'row_bytes', 'rows'),
    [
        (Image.nv12(buffers=2), [64, 64], [48, 24]),
        (Image.nv12(width=62, height=46), [62, 62], [46, 23]),
        (Image.nv12(stride=64), [64, 64], [48, 24]),
        (Image.one_plane(spec.R8, 64), [64], [48]),
        (Image.one_plane(spec.YUYV, 128), [128], [48]),
        (Image.one_plane(spec.R8, 63, width=63, height=47), [63], [47]),
        (Image(fourcc=spec.P010, planes=[(0, 128, 0, 128 * 48), (0, 128, 128 * 48, 128 * 24)], sizes=[128 * 72]), [128, 128], [48, 24]),
        (Image(modifier=spec.INVALID, planes=[(0, 1, 0, 5000), (0, 0, 5000, 900)], sizes=[6000]), [5000, 900], [1, 1]),
        (Image(fourcc=spec.NV12, modifier=TILED, planes=[(0, 64, 100, 5000), (0, 64, 5100, 900)], sizes=[6000]), [5000, 900], [1, 1]),
        (Image(width=64, height=2, fourcc=spec.R8, planes=[(0, 100, 36, 164)], sizes=[200]), [64], [2]),
    ],
    ids=['two_buffers', 'half_odd', 'tight', 'r8', 'yuyv', 'r8_odd', 'p010', 'layout_not_known', 'tiled', 'short_last_row'],
)
def test_the_significant_bytes_are_read(
    server: SpecServer, start: Start, make_slot: MakeSlot, image: Image, row_bytes: list[int], rows: list[int]
) -> None:
    slot, content = make_slot(image), random_content(image, 1)
    slot.fill(content)
    consumer = start('--frames', '1')
    with server.accept() as conversation:
        conversation.open()
        conversation.announce(slot)
        conversation.publish(slot, 5)
        conversation.drain()
    code, frames, summary = consumer.result()
    assert code == FRAMES_READ
    assert frames[0]['crc'] == significant(image, row_bytes, rows, content)
    assert summary['mappings'] == len(image.sizes)


def test_the_hello_says_what_was_asked(server: SpecServer, start: Start) -> None:
    start(
        '--publisher', 'p' * 32, '--window', '64', '--depth', '3', '--name', 'näme', '--version', '1:9', '--memory', 'memfd',
        '--align', '64:4096', '--max-size', '1920:1080', '--history', '--format', f'NV12:{TILED}', '--format', 'R8:0',
    )  # fmt: skip
    with server.accept() as conversation:
        hello = conversation.expect_hello()
    formats = ((spec.NV12, TILED), (spec.R8, 0))
    assert hello == spec.Hello(1, 9, 64, 3, 1, 2, 64, 4096, 1920, 1080, b'p' * 32, 'näme'.encode(), formats)
    assert spec.Hello.parse(hello.pack()) == hello


def test_a_restart_of_the_producer_is_survived(server: SpecServer, start: Start, make_slot: MakeSlot, place: Path) -> None:
    consumer = start('--reconnect', '60', '--frames', '6')
    slots = [make_slot(Image.nv12(uid=3)), make_slot(Image.nv12(uid=3))]  # nothing is remembered: the same uid again is another slot
    for slot in slots:
        with server.accept() as conversation:
            conversation.open()
            conversation.announce(slot)
            for sequence in range(3):
                conversation.publish(slot, sequence)
            conversation.wait_free(slot)
            server.close()
        server = SpecServer(place)
    server.close()
    code, frames, summary = consumer.result()
    assert code == FRAMES_READ
    assert [frame['inode'] for frame in frames] == 3 * [slots[0].inode] + 3 * [slots[1].inode]
    assert (summary['reconnects'], summary['mappings'], summary['slots_open']) == (1, 2, 1)


def test_without_reconnect_the_end_is_told(server: SpecServer, start: Start) -> None:
    consumer = start('--frames', '1')
    with server.accept() as conversation:
        conversation.open()
    assert consumer.result()[0] == ENDED
    server.close()
    code, lines, _ = start().result()
    assert (code, lines) == (ENDED, [{'ended': 'nobody listens'}])


def test_held_frames_stay_readable_after_the_producer(server: SpecServer, start: Start, make_slot: MakeSlot) -> None:
    slots = [make_slot(Image.nv12(uid=uid)) for uid in range(3)]
    consumer = start('--window', '3', '--hold')
    with server.accept() as conversation:
        conversation.open()
        for number, slot in enumerate(slots):
            slot.fill(random_content(slot.image, number))
            conversation.announce(slot)
            conversation.publish(slot, number)
            assert consumer.line()['sequence'] == number
        assert len(conversation.leases) == 3
        conversation.send(spec.retired(0))
    code, lines, summary = consumer.result()
    assert (code, lines) == (FRAMES_READ, [])
    assert (summary['reread'], summary['retired'], summary['slots_open']) == (3, 1, 3)


def test_a_held_frame_that_changes_is_noticed(server: SpecServer, start: Start, make_slot: MakeSlot) -> None:
    slot = make_slot()
    consumer = start('--hold')
    with server.accept() as conversation:
        conversation.open()
        conversation.announce(slot)
        conversation.publish(slot, 0)
        consumer.line()
        slot.fill(random_content(slot.image, 2))
    assert consumer.rule() == 'lease'


def test_a_retired_slot_is_unmapped_and_closed(server: SpecServer, start: Start, make_slot: MakeSlot) -> None:
    slots = [make_slot(Image.nv12(uid=uid, buffers=2)) for uid in range(4)]
    consumer = start('--frames', '4')
    with server.accept() as conversation:
        conversation.open()
        for number, slot in enumerate(slots):
            conversation.announce(slot)
            conversation.publish(slot, number)
            if number < 2:  # 0: retired while it is out
                conversation.send(spec.retired(number))
                conversation.wait_free(slot)
        conversation.drain()
    code, _, summary = consumer.result()
    assert code == FRAMES_READ
    assert (summary['mappings'], summary['retired'], summary['slots_open']) == (8, 2, 2)


def test_a_slot_retired_before_any_frame_is_closed(server: SpecServer, start: Start, make_slot: MakeSlot) -> None:
    idle, used = make_slot(Image.nv12(uid=1)), make_slot(Image.nv12(uid=2))
    consumer = start('--frames', '1')
    with server.accept() as conversation:
        conversation.open()
        conversation.announce(idle)
        conversation.send(spec.retired(1))
        conversation.announce(used)
        conversation.publish(used, 0)
        conversation.drain()
    assert consumer.result()[2]['slots_open'] == 1


@pytest.mark.parametrize('code', range(1, 7))
def test_a_refusal_is_told_with_its_code_and_text(server: SpecServer, start: Start, code: int) -> None:
    consumer = start()
    with server.accept() as conversation:
        conversation.expect_hello()
        conversation.refuse(code, f'nö, "{code}"')
    assert consumer.refusal() == (code, f'nö, "{code}"')


@pytest.mark.parametrize('name', UNCLEAR_REFUSALS)
def test_a_refusal_is_no_error_of_the_producer_however_it_is_said(server: SpecServer, start: Start, name: str) -> None:
    code, text, meant = UNCLEAR_REFUSALS[name]
    consumer = start()
    with server.accept() as conversation:
        conversation.expect_hello()
        conversation.send(spec.refused(code, text))
        found, shown = consumer.refusal()
    assert found == meant
    assert shown.rstrip('\ufffd').strip() == 'why' and shown.endswith('\ufffd') is not text.isascii(), shown


def test_a_producer_that_does_not_answer_is_given_up(server: SpecServer, start: Start) -> None:
    consumer = start('--timeout', '1')
    with server.accept():
        assert consumer.rule() == 'welcome'


def test_a_refusal_without_text_in_the_middle_of_frames(server: SpecServer, start: Start, make_slot: MakeSlot) -> None:
    slot = make_slot()
    consumer = start('--hold')
    with server.accept() as conversation:
        conversation.open()
        conversation.announce(slot)
        conversation.publish(slot, 0)
        conversation.refuse(4, '')
    assert consumer.refusal() == (4, '')


def test_a_refusal_is_read_although_the_producer_left_packets_unread(server: SpecServer, start: Start) -> None:
    """The kernel tells ECONNRESET before what lies in the queue, once."""
    consumer = start()
    with server.accept() as conversation:
        conversation.send(spec.refused(4, b'full'))  # the HELLO stays unread
        assert conversation.socket.recv(1, spec.socket.MSG_PEEK), 'it lies there'
    assert consumer.refusal() == (4, 'full')


MISBEHAVIOUR = {
    'bad-magic': 'magic', 'wrong-length': 'length', 'header-reserved': 'reserved', 'unknown-type': 'type', 'reserved': 'reserved',
    'unknown-flag': 'flags', 'window-zero': 'window', 'window-large': 'window', 'depth-zero': 'depth', 'depth-large': 'depth',
    'memory-none': 'memory', 'memory-unknown': 'memory', 'stride-align-zero': 'alignment', 'offset-align-zero': 'alignment',
    'formats-many': 'num_formats', 'formats-count': 'length', 'release-length': 'length', 'release-header-reserved': 'reserved',
    'release-reserved': 'reserved', 'release-unknown': 'lease', 'release-generation': 'lease', 'release-unknown-flag': 'flags',
    'release-flag-without-fd': 'descriptors', 'garbage': 'type', 'truncated-header': 'header', 'oversized': 'packet',
    'fd-with-hello': 'descriptors', 'many-fds': 'control', 'release-before-hello': 'state', 'second-hello': 'state',
    'welcome-from-consumer': 'type', 'double-release': 'lease', 'release-pipe': 'fence', 'release-fd-without-flag': 'descriptors',
}  # fmt: skip
PATIENCE = ('empty-packet', 'never-hello', 'never-read', 'never-release')  # not a packet that could be judged


def test_every_misbehaviour_is_in_the_tables(program: Path) -> None:
    output = subprocess.run([program, '--misbehave', 'list'], capture_output=True, text=True, check=True).stdout
    assert sorted(output.split()) == sorted([*MISBEHAVIOUR, *PATIENCE])


@pytest.mark.parametrize(('kind', 'rule'), MISBEHAVIOUR.items())
def test_each_misbehaviour_breaks_the_rule_that_it_claims(
    server: SpecServer, start: Start, make_slot: MakeSlot, kind: str, rule: str
) -> None:
    slot = make_slot()
    consumer = start('--misbehave', kind)
    with server.accept() as conversation:
        found = conversation.broken_rule(slot)
    assert found == rule
    assert consumer.refusal() == (5, rule)


def test_an_empty_packet_is_an_end(server: SpecServer, start: Start) -> None:
    consumer = start('--misbehave', 'empty-packet')
    with server.accept() as conversation, pytest.raises(spec.ConsumerGone):
        conversation.receive()
    assert consumer.result()[0] == ENDED


@pytest.mark.parametrize('count', [0, 1, 4])
def test_an_empty_packet_of_the_producer_is_an_end(server: SpecServer, start: Start, make_slot: MakeSlot, count: int) -> None:
    slot, consumer = make_slot(), start('--frames', '1')
    with server.accept() as conversation:
        conversation.open()
        conversation.send(b'', count * slot.fds)
        assert consumer.result()[0] == ENDED


def test_a_consumer_without_hello_says_nothing(server: SpecServer, start: Start) -> None:
    consumer = start('--misbehave', 'never-hello')
    with server.accept() as conversation:
        conversation.socket.settimeout(0.2)
        with pytest.raises(TimeoutError):
            conversation.receive()
        conversation.refuse(5, 'no HELLO')
    assert consumer.refusal() == (5, 'no HELLO')


def test_a_consumer_that_never_reads_fills_the_socket(server: SpecServer, start: Start) -> None:
    consumer = start('--misbehave', 'never-read')
    with server.accept() as conversation:
        conversation.expect_hello()
        conversation.socket.settimeout(0)
        with pytest.raises(BlockingIOError):
            for _ in range(100_000):
                conversation.send(bytes(4096))
    assert consumer.result()[0] == ENDED


def test_a_consumer_that_never_releases_reads_its_window(server: SpecServer, start: Start, make_slot: MakeSlot) -> None:
    slots = [make_slot(Image.nv12(uid=uid)) for uid in range(2)]
    consumer = start('--misbehave', 'never-release', '--window', '2')
    with server.accept() as conversation:
        conversation.open()
        for number, slot in enumerate(slots):
            conversation.announce(slot)
            conversation.publish(slot, number)
            consumer.line()
        conversation.socket.settimeout(0.2)
        with pytest.raises(TimeoutError):
            conversation.receive()
    assert consumer.result()[0] == ENDED


@pytest.mark.parametrize('name', FIRST_MESSAGES)
def test_wrong_first_messages_are_noticed(server: SpecServer, start: Start, name: str) -> None:
    rule, message = FIRST_MESSAGES[name]
    for_any = name == 'nobody' or name.startswith('id_')
    consumer = start(*(() if for_any else ('--publisher', 'spec-server')))
    with server.accept() as conversation:
        conversation.expect_hello()
        if name.endswith(('unknown', 'welcomes')):
            conversation.send(spec.welcome(2, 1))
        conversation.send(message())
        assert consumer.rule() == rule


@pytest.mark.parametrize('message', [spec.welcome(2, 1), spec.refused(4, b''), spec.retired(7)], ids=['welcome', 'refused', 'retired'])
def test_descriptors_that_do_not_belong_are_noticed_and_closed(
    server: SpecServer, start: Start, make_slot: MakeSlot, message: bytes
) -> None:
    slot, consumer = make_slot(), start()
    with server.accept() as conversation:
        conversation.expect_hello()
        conversation.send(message, slot.fds)
        assert consumer.rule() == 'descriptors'


@pytest.mark.parametrize('name', WRONG_BUFFERS)
def test_wrong_buffers_are_noticed(server: SpecServer, start: Start, make_slot: MakeSlot, name: str) -> None:
    rule, changes = WRONG_BUFFERS[name]
    slot = make_slot()
    consumer = start('--format', 'NV12:0', '--align', '8:16', '--max-size', '72:48')
    with server.accept() as conversation:
        conversation.open()
        conversation.send(lie(slot.image, **changes).pack(), slot.fds)
        assert consumer.rule() == rule


@pytest.mark.parametrize('name', WRONG_IMAGES)
def test_wrong_images_are_noticed(server: SpecServer, start: Start, make_slot: MakeSlot, name: str) -> None:
    rule, image = WRONG_IMAGES[name]
    slot, consumer = make_slot(image), start()
    with server.accept() as conversation:
        conversation.open()
        conversation.announce(slot)
        assert consumer.rule() == rule


def test_the_same_buffers_without_a_lie_are_taken(server: SpecServer, start: Start, make_slot: MakeSlot) -> None:
    slot = make_slot()
    consumer = start('--format', 'NV12:0', '--align', '8:16', '--max-size', '72:48', '--frames', '1')
    with server.accept() as conversation:
        conversation.open()
        conversation.announce(slot)
        conversation.publish(slot, 0)
        conversation.drain()
    assert consumer.result()[0] == FRAMES_READ


def test_one_file_behind_two_descriptors_is_one_buffer(server: SpecServer, start: Start, make_slot: MakeSlot) -> None:
    slot = make_slot(Image.nv12(buffers=2))
    consumer = start()
    with server.accept() as conversation:
        conversation.open()
        conversation.send(slot.image.pack(), [slot.fds[0], slot.fds[0]])
        assert consumer.rule() == 'overlap'


@pytest.mark.parametrize(('memory', 'rule'), [('memfd', 'kind'), ('dmabuf', 'kind')])
def test_memory_of_another_kind_is_noticed(server: SpecServer, start: Start, make_slot: MakeSlot, memory: str, rule: str) -> None:
    """Announced truly where the consumer doesn't take it, or a pipe announced as what it takes."""
    consumer, (reading, writing) = start('--memory', memory), os.pipe()
    slot = make_slot()
    with server.accept() as conversation:
        conversation.open()
        conversation.send(slot.image.pack(), [reading] if memory == 'memfd' else slot.fds)
        assert consumer.rule() == rule
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize('seals', [0, fcntl.F_SEAL_SHRINK, fcntl.F_SEAL_GROW, fcntl.F_SEAL_SEAL], ids=['none', 'shrink', 'grow', 'seal'])
def test_a_memfd_without_its_seals_is_noticed(server: SpecServer, start: Start, make_slot: MakeSlot, seals: int) -> None:
    slot, consumer = make_slot(seals=seals), start()
    with server.accept() as conversation:
        conversation.open()
        conversation.announce(slot)
        assert consumer.rule() == 'seals'


@pytest.mark.parametrize(('count', 'rule'), [(0, 'descriptors'), (2, 'descriptors'), (4, 'descriptors'), (5, 'control')])
def test_another_number_of_descriptors_is_noticed(server: SpecServer, start: Start, make_slot: MakeSlot, count: int, rule: str) -> None:
    slot, consumer = make_slot(), start()
    with server.accept() as conversation:
        conversation.open()
        conversation.send(slot.image.pack(), count * slot.fds)
        assert consumer.rule() == rule


@pytest.mark.parametrize('name', WRONG_FRAMES)
def test_wrong_frames_are_noticed(server: SpecServer, start: Start, make_slot: MakeSlot, name: str) -> None:
    rule, messages = WRONG_FRAMES[name]
    slot, consumer = make_slot(), start('--window', '1')
    with server.accept() as conversation:
        conversation.open()
        conversation.announce(slot)
        first, *second = messages()
        conversation.send(first)
        for message in second:
            if first[0] == spec.FRAME:
                consumer.line()  # and so on its way back: the window is free, only the named rule is broken
            conversation.send(message)
        assert consumer.rule() == rule


@pytest.mark.parametrize('retired', [0, 2])
def test_more_than_256_slots_at_a_time_are_noticed(server: SpecServer, start: Start, make_slot: MakeSlot, retired: int) -> None:
    slot, consumer = make_slot(), start()
    with server.accept() as conversation:
        conversation.open()
        for uid in range(256 + retired):
            conversation.send(lie(slot.image, uid=uid).pack(), slot.fds)
            if uid < retired:
                conversation.send(spec.retired(uid))
        while conversation.unread():
            assert consumer.process.poll() is None
        conversation.send(lie(slot.image, uid=1000).pack(), slot.fds)
        assert consumer.rule() == 'slots'


@pytest.mark.parametrize('colour', [(4, 2, 2), (3, 1, 3)], ids=['rgb', 'pq'])
def test_every_colour_of_the_page_is_taken(server: SpecServer, start: Start, make_slot: MakeSlot, colour: tuple[int, int, int]) -> None:
    slot, consumer = make_slot(lie(Image.nv12(), colour=colour)), start('--frames', '1')
    with server.accept() as conversation:
        conversation.open()
        conversation.announce(slot)
        conversation.publish(slot, 0)
        conversation.drain()
    assert consumer.result()[0] == FRAMES_READ


def test_a_uid_that_comes_twice_is_noticed_even_after_it_retired(server: SpecServer, start: Start, make_slot: MakeSlot) -> None:
    slot, consumer = make_slot(), start()
    with server.accept() as conversation:
        conversation.open()
        conversation.announce(slot)
        conversation.send(spec.retired(7))
        conversation.announce(slot)
        assert consumer.rule() == 'uid'


@pytest.mark.parametrize(('uid', 'rule'), [(7, 'lease'), (8, 'window')])
def test_more_frames_than_are_free_are_noticed(server: SpecServer, start: Start, make_slot: MakeSlot, uid: int, rule: str) -> None:
    consumer = start('--window', '2' if rule == 'lease' else '1', '--hold')
    with server.accept() as conversation:
        conversation.open()
        for announced in (7, 8):
            conversation.announce(make_slot(Image.nv12(uid=announced)))
        conversation.send(spec.frame(7, 1, 0))
        conversation.send(spec.frame(uid, 2, 1))
        assert consumer.rule() == rule


@pytest.mark.parametrize('flags', [0, 1])
def test_a_descriptor_that_is_no_fence_is_noticed(server: SpecServer, start: Start, make_slot: MakeSlot, flags: int) -> None:
    slot, consumer = make_slot(), start()
    with server.accept() as conversation:
        conversation.open()
        conversation.announce(slot)
        conversation.send(spec.frame(7, 1, 0, flags=flags), slot.fds)
        assert consumer.rule() == ('fence' if flags else 'descriptors')


def test_a_producer_of_another_user_is_not_talked_to(server: SpecServer, start: Start, fake_kernel: Path) -> None:
    environment = {'LD_PRELOAD': str(fake_kernel), 'WIRE_PEER_UID': str(os.geteuid() + 1)}
    consumer = start(environment=environment)
    with server.accept() as conversation, pytest.raises(spec.ConsumerGone):
        conversation.receive()
    assert consumer.rule() == 'peer'


@pytest.mark.parametrize('sealed', [False, True])
def test_memory_of_a_producer_of_another_user_is_sealed_against_writing(
    server: SpecServer, start: Start, make_slot: MakeSlot, fake_kernel: Path, sealed: bool
) -> None:
    user = str(os.geteuid() + 1)
    slot = make_slot(seals=spec.SHRINK_AND_GROW | (spec.FUTURE_WRITE if sealed else 0))
    consumer = start('--user', user, '--frames', '1', environment={'LD_PRELOAD': str(fake_kernel), 'WIRE_PEER_UID': user})
    with server.accept() as conversation:
        conversation.open()
        conversation.announce(slot)
        with suppress(BrokenPipeError):
            conversation.publish(slot, 0)
            conversation.drain()
    if sealed:
        assert consumer.result()[0] == FRAMES_READ
    else:
        assert consumer.rule() == 'seals'


@pytest.mark.parametrize('status', ['1', '-5'])
def test_the_pixels_wait_for_the_fence_and_are_not_read_after_an_error(
    server: SpecServer, start: Start, make_slot: MakeSlot, fake_kernel: Path, status: str
) -> None:
    slot, fence = make_slot(), os.eventfd(0)
    consumer = start('--frames', '1', environment={'LD_PRELOAD': str(fake_kernel), 'WIRE_FENCE_STATUS': status})
    with server.accept() as conversation:
        conversation.open()
        conversation.announce(slot)
        conversation.publish(slot, 0, fence=fence)
        while conversation.unread():  # it has the frame now
            os.sched_yield()
        while consumer.state() != 'S':  # and waits for the fence; without that it would have read and wait for the next packet
            os.sched_yield()
        content = random_content(slot.image, 1)
        slot.fill(content)
        os.eventfd_write(fence, 1)
        conversation.drain()
    os.close(fence)
    code, frames, _ = consumer.result()
    assert code == FRAMES_READ
    assert frames[0]['fence_status'] == int(status)
    assert frames[0]['crc'] == (significant(slot.image, [64, 64], [48, 24], content) if status == '1' else [])
    assert not conversation.leases, 'it is released either way'


def test_a_fence_that_never_signals_is_given_up(server: SpecServer, start: Start, make_slot: MakeSlot, fake_kernel: Path) -> None:
    slot, fence = make_slot(), os.eventfd(0)
    consumer = start('--timeout', '1', environment={'LD_PRELOAD': str(fake_kernel)})
    with server.accept() as conversation:
        conversation.open()
        conversation.announce(slot)
        conversation.publish(slot, 0, fence=fence)
        assert consumer.rule() == 'fence'
    os.close(fence)


def test_cpu_access_to_dmabufs_is_bracketed(
    server: SpecServer, start: Start, make_slot: MakeSlot, fake_kernel: Path, tmp_path: Path
) -> None:
    image = dataclasses.replace(Image.nv12(buffers=2), kind=spec.DMABUF)
    slot, log = make_slot(image, name='dmabuf', seals=0), tmp_path / 'sync'
    content = random_content(image, 1)
    slot.fill(content)
    consumer = start('--frames', '2', environment={'LD_PRELOAD': str(fake_kernel), 'WIRE_SYNC_LOG': str(log)})
    with server.accept() as conversation:
        conversation.open()
        conversation.announce(slot)
        conversation.publish(slot, 0)
        conversation.publish(slot, 1)
        conversation.drain()
    code, frames, _ = consumer.result()
    assert code == FRAMES_READ
    assert frames[0]['crc'] == significant(image, [64, 64], [48, 24], content)
    start_reading, end_reading = 1, 1 | 4  # DMA_BUF_SYNC_READ, _END
    assert [int(line) for line in log.read_text().split()] == 2 * (2 * [start_reading] + 2 * [end_reading])
