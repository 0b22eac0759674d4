"""The C consumer against a producer that is driven step by step, both written from WIRE.md alone."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import wire_spec as spec
from wire_builder import CompilerError, build_consumer
from wire_process import ENDED, FRAMES_READ, USAGE, ConsumerProcess
from wire_spec import Image, Slot, SpecServer, random_content, significant
from wire_violations import MISBEHAVIOUR, TILED, UNCLEAR_REFUSALS

pytestmark = pytest.mark.usefixtures('no_fd_leak')
Start = Callable[..., ConsumerProcess]
MakeSlot = Callable[..., Slot]


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


def test_help_is_the_usage_and_no_error(program: Path) -> None:
    done = subprocess.run([program, '--help'], capture_output=True, text=True, check=True)
    assert done.stdout.startswith('usage: wire_consumer --socket PATH ') and done.stderr == ''


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


@pytest.mark.parametrize('count', [0, 1, 4])
def test_an_empty_packet_of_the_producer_is_an_end(server: SpecServer, start: Start, make_slot: MakeSlot, count: int) -> None:
    slot, consumer = make_slot(), start('--frames', '1')
    with server.accept() as conversation:
        conversation.open()
        conversation.send(b'', count * slot.fds)
        assert consumer.result()[0] == ENDED
