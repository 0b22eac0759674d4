"""The C consumer and a producer that lies: every rule of WIRE.md that a consumer has to check."""

from __future__ import annotations

import dataclasses
import fcntl
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import wire_spec as spec
from wire_process import FRAMES_READ, ConsumerProcess
from wire_spec import Image, Slot, SpecServer, random_content, significant
from wire_violations import FIRST_MESSAGES, WRONG_BUFFERS, WRONG_FRAMES, WRONG_IMAGES, lie

pytestmark = pytest.mark.usefixtures('no_fd_leak')
Start = Callable[..., ConsumerProcess]
MakeSlot = Callable[..., Slot]


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


@pytest.mark.parametrize('colour', [(1, 1, 1), (4, 2, 2), (3, 1, 3)], ids=['bt601', 'rgb', 'pq'])
def test_the_same_buffers_without_a_lie_are_taken(
    server: SpecServer, start: Start, make_slot: MakeSlot, colour: tuple[int, int, int]
) -> None:
    slot = make_slot(lie(Image.nv12(), colour=colour))
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
    consumer = start('--timeout', '3', environment={'LD_PRELOAD': str(fake_kernel)})
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
