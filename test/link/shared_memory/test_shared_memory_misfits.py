"""A consumer that can't use what it gets: a failed trial import, and producers from before a HELLO had options."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from memory_link import (
    PUBLISHER,
    FakeProducer,
    RawPeer,
    attempt,
    connected,
    publish,
    receive,
    settled,
)
from waiting import until

from zc_perception.errors import ConfigError
from zc_perception.link.shared_memory import wire
from zc_perception.link.shared_memory.client import SharedMemoryClient, SharedMemoryReceiver
from zc_perception.link.shared_memory.protocol import RefusalCode
from zc_perception.link.shared_memory.requirements import Requirements
from zc_perception.link.shared_memory.server import SharedMemoryServer
from zc_perception.memory.dmabuf import BufferKind
from zc_perception.memory.pool import BufferPool
from zc_perception.negotiation.constraints import BufferConstraints
from zc_perception.negotiation.settings import Buffers, BufferSettings

pytestmark = pytest.mark.usefixtures('no_fd_leak')
Serve = Callable[..., SharedMemoryServer]
MANY = Requirements(tuple((number, 0) for number in range(1, 65)), options='contiguous; cpu=read')


class Importer:
    """A trial import that remembers inodes, and fails while it is told to."""

    def __init__(self, fails: bool = False) -> None:
        self.fails = fails
        self.seen: list[tuple[int, ...]] = []

    def __call__(self, settings: BufferSettings, buffers: Buffers) -> None:
        self.seen.append(tuple(buffer.identity.inode for buffer in buffers))
        assert settings.layout.width == 64
        if self.fails:
            raise OSError('the card refuses it')


def test_each_slot_is_imported_on_trial_once_before_its_first_frame(
    pool: BufferPool, serve: Serve
) -> None:
    server, importer = serve(pool), Importer()
    with SharedMemoryClient(server.path, name='npu', window=2, trial_import=importer) as client:
        connected(client)
        for sequence in range(4):
            publish(server, pool, sequence)
            with receive(client) as frame:
                assert (
                    tuple(buffer.identity.inode for buffer in frame.data.buffers) in importer.seen
                )
        assert len(importer.seen) == len(set(importer.seen)) < 4, (
            'a slot that comes again is known'
        )


def test_a_failed_trial_import_is_told_to_both_ends_and_not_tried_again(
    pool: BufferPool, serve: Serve
) -> None:
    said: list[str] = []
    warned: list[str] = []
    server, importer = serve(pool, report=said.append, warn=warned.append), Importer(fails=True)
    with SharedMemoryClient(
        server.path, name='npu', publisher_id=PUBLISHER, trial_import=importer
    ) as client:
        connected(client)
        publish(server, pool, 0)
        until(lambda: client.receive() is None and not client.connected, 'the end')
        why = 'trial import of slot 0 failed: the card refuses it'
        assert client.statistics().ended == {'constraints': 1}
        assert client.last_end == f"this node can't use the publisher's buffers: {why}"
        settled(server, 'constraints')
        assert server.statistics().refused == {'constraints': 1}
        assert server.statistics().last_refusal == {'constraints': f'npu: {why}'}
        assert len(warned) == 1 and 'consumer npu#' in warned[0] and why in warned[0]
        # Nothing has changed: it would fail again.
        assert client.approach() is None and not client.connected
        importer.fails = False
        client.retarget(server.path, PUBLISHER)
        assert (
            attempt(client) is None and client.connected and client.statistics().connections == 2
        )
        publish(server, pool, 1)
        receive(client).release()
    settled(server, 'eof')


def test_a_new_announcement_wakes_a_receiver_whose_trial_import_failed(
    pool: BufferPool, serve: Serve
) -> None:
    server, importer, frames = serve(pool), Importer(fails=True), []
    client = SharedMemoryClient(server.path, name='npu', trial_import=importer)
    states: list[tuple[bool, str]] = []
    with SharedMemoryReceiver(
        client, frames.append, lambda connected, reason: states.append((connected, reason))
    ) as receiver:
        until(lambda: server.consumers, 'the connection')
        publish(server, pool, 0)
        settled(server, 'constraints')
        until(lambda: len(states) == 2, 'the end')
        assert (
            states[0] == (True, '')
            and states[1][0] is False
            and 'the card refuses it' in states[1][1]
        )
        importer.fails = False
        receiver.retarget(server.path, PUBLISHER)
        until(lambda: server.consumers, 'the next connection')
        publish(server, pool, 1)
        until(lambda: frames, 'the frame')
        frames.pop().release()
    settled(server, 'eof')


@pytest.mark.parametrize(
    ('options', 'kind'),
    [('', BufferKind.MEMFD), ('cpu=read', BufferKind.DMABUF), ('', BufferKind.DMABUF)],
)
def test_memory_that_nobody_can_map_is_refused_by_name(
    folder: Path, options: str, kind: BufferKind
) -> None:
    needs = Requirements(options=options)
    with (
        FakeProducer(folder / 's') as fake,
        SharedMemoryClient(folder / 's', name='npu', requirements=needs) as client,
    ):
        peer, buffer = fake.serve(client), fake.buffer()
        write_only = os.open(f'/proc/self/fd/{buffer.fileno()}', os.O_WRONLY | os.O_CLOEXEC)
        fake.introduce(peer, kind=kind, fds=[write_only])
        os.close(write_only)
        until(lambda: client.receive() is None and not client.connected, 'the end')
        if (
            kind is BufferKind.DMABUF and not options
        ):  # a device would take it: that it is no dma-buf is another matter
            assert client.statistics().ended == {'buffers': 1}
        else:
            why = f"buffer 0, a {kind.value}, was opened with O_WRONLY, so it can't be mapped; its owner has to send an O_RDWR or"
            assert client.statistics().ended == {'constraints': 1} and why in client.last_end
            assert peer.receive_refused().code is RefusalCode.CONSTRAINTS
            assert client.approach() is None and not client.connected, 'it would be the same again'
        peer.close()


def test_constraints_without_a_format_do_not_become_any_format() -> None:
    with pytest.raises(ConfigError, match="'npu' take no format"):
        Requirements.of(BufferConstraints('npu', formats=()))
    assert Requirements.of(BufferConstraints('npu')).formats == ()


class OldProducer:
    """Takes HELLOs as the page said before there were options: byte 52 is reserved, and 32 formats are the most."""

    def __init__(self, producer: FakeProducer) -> None:
        self.producer = producer
        self.hellos: list[bytes] = []

    def answer(self) -> RawPeer:
        """The next consumer, welcome or refused."""
        peer = RawPeer(self.producer.listener.accept()[0])
        packet = peer.receive()[0]
        self.hellos.append(packet)
        formats = int.from_bytes(packet[48:52], 'little')
        if packet[52:56] != bytes(4) or formats > 32 or len(packet) != 128 + 16 * formats:
            peer.send(
                wire.pack_refused(
                    wire.Refused(RefusalCode.PROTOCOL, 'HELLO: a reserved field is not 0')
                )
            )
            peer.close()
        else:
            peer.send(wire.pack_welcome(wire.Welcome(1, 1, PUBLISHER)))
        return peer


def test_an_old_producer_is_met_without_options(folder: Path) -> None:
    with (
        FakeProducer(folder / 's') as fake,
        SharedMemoryClient(folder / 's', name='npu', requirements=MANY) as client,
    ):
        old = OldProducer(fake)
        peers: list[RawPeer] = []
        for turn in range(3):
            thread = threading.Thread(target=lambda: peers.append(old.answer()))
            thread.start()
            if turn == 1:
                until(lambda: attempt(client) is None, 'the connection')
                client.retarget(folder / 's', 'another publisher')
            else:
                assert (
                    attempt(client) is not None and 'a reserved field is not 0' in client.last_end
                )
            thread.join()
        for peer in peers:
            peer.close()
    first, second, third = (wire.parse_hello(packet).requirements for packet in old.hellos)
    assert first == MANY
    assert second == Requirements(MANY.formats[:32])
    assert third == MANY, 'whom a new announcement tells of is perhaps a new producer'


def test_what_an_old_producer_was_not_told_is_judged_here(folder: Path) -> None:
    needs = Requirements(options='min_size=65x1')
    with (
        FakeProducer(folder / 's') as fake,
        SharedMemoryClient(folder / 's', name='npu', requirements=needs) as client,
    ):
        old = OldProducer(fake)
        peers: list[RawPeer] = []
        thread = threading.Thread(target=lambda: peers.extend([old.answer(), old.answer()]))
        thread.start()
        assert attempt(client) is not None and not client.connected
        until(lambda: attempt(client) is None, 'the connection')
        thread.join()
        fake.introduce(peers[1])
        until(lambda: client.receive() is None and not client.connected, 'the end')
        assert client.statistics().ended == {'refused': 1, 'constraints': 1}
        assert 'image size 64x48 is below its min_size 65x1' in client.last_end
        assert peers[1].receive_refused().text == 'image size 64x48 is below its min_size 65x1'
        peers[1].close()


def test_buffers_of_before_the_newest_announcement_don_t_keep_from_trying_those_of_after_it(
    folder: Path,
) -> None:
    """The announcement overtakes BUFFERS that were sent before: those wait in the socket."""
    importer = Importer(fails=True)
    with (
        FakeProducer(folder / 's') as fake,
        SharedMemoryClient(folder / 's', name='npu', trial_import=importer) as client,
    ):
        first = fake.serve(client)
        client.retarget(folder / 's')
        fake.introduce(first)
        until(lambda: client.receive() is None and not client.connected, 'the end')
        assert client.statistics().ended == {'constraints': 1} and client.approach() is not None, (
            'worth another attempt'
        )
        second = fake.serve(client)
        fake.introduce(second)
        until(lambda: client.receive() is None and not client.connected, 'the end')
        assert client.approach() is None, 'nothing is announced: these are the newest ones'
        for peer in (first, second):
            peer.close()
