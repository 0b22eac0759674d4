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
The package's consumer against a producer written from docs/wire.md alone.

What it says is right, and it notices what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
import select
import time
import zlib

from link.shared_memory.memory_link import attempt
import numpy as np
import pytest
import wire_spec as spec
from wire_spec import Conversation, Image, Slot, SpecServer
from wire_violations import CHROMA, lie, LUMA, UNCLEAR_REFUSALS, WRONG_BUFFERS

from zc_perception.frame import Frame
from zc_perception.link.shared_memory.client import Greeting, SharedMemoryClient
from zc_perception.link.shared_memory.protocol import RefusedError, Requirements
from zc_perception.link.shared_memory.wire import Hello

pytestmark = pytest.mark.usefixtures('no_fd_leak', 'form')
PATIENCE_S = 60.0
NV12_ALIGNED = Requirements(
    formats=((spec.NV12, 0),), stride_align=8, offset_align=16, max_width=72, max_height=48
)


@pytest.fixture
def slot() -> Iterator[Slot]:
    slot = Slot(Image.nv12())
    yield slot
    slot.close()


@contextmanager
def meeting(
    server: SpecServer,
    answer: Callable[[Conversation], object] = Conversation.open,
    **options: object,
) -> Iterator[tuple[SharedMemoryClient, Conversation]]:
    """Return a client that connects to *server*, which says *answer*."""
    client = SharedMemoryClient(server.path, name='client', **options)  # type: ignore[arg-type]
    with ThreadPoolExecutor(1) as pool:
        try:
            connected = pool.submit(attempt, client)
            with server.accept() as conversation:
                answer(conversation)
                connected.result(PATIENCE_S)
                assert client.connected, client.last_end
                yield client, conversation
        finally:
            client.close()


def next_frame(client: SharedMemoryClient) -> Frame:
    deadline = time.monotonic() + PATIENCE_S
    while (frame := client.receive()) is None:
        assert client.connected and time.monotonic() < deadline, client.last_end
        select.select([client], [], [], 1.0)
    return frame


def wait_for_end(client: SharedMemoryClient) -> str:
    """Why the client ended the connection."""
    deadline = time.monotonic() + PATIENCE_S
    while client.connected:
        assert time.monotonic() < deadline, 'the client goes on'
        select.select([client], [], [], 0.05)
        if (frame := client.receive()) is not None:
            frame.release()
            pytest.fail('the client took what is wrong')
    return client.last_end


def test_the_hello_is_what_the_page_says(server: SpecServer) -> None:
    hellos: list[spec.Hello] = []
    requirements = Requirements(
        formats=((spec.NV12, 0), (spec.R8, 7)),
        memory=2,
        stride_align=64,
        offset_align=4096,
        max_width=1920,
        max_height=1080,
        options='contiguous; cpu=read',
    )
    options = {
        'publisher_id': 'p' * 32,
        'window': 5,
        'depth': 3,
        'history': True,
        'requirements': requirements,
    }
    with meeting(
        server,
        lambda conversation: hellos.append(conversation.open(publisher=b'p' * 32)),
        **options,
    ):
        pass
    formats = ((spec.NV12, 0), (spec.R8, 7))
    assert hellos == [
        spec.Hello(
            1,
            1,
            5,
            3,
            3,
            2,
            64,
            4096,
            1920,
            1080,
            b'p' * 32,
            b'client',
            formats,
            b'contiguous; cpu=read',
        )
    ]


def test_frames_come_with_their_pixels_and_go_back(server: SpecServer, slot: Slot) -> None:
    with meeting(server) as (client, conversation):
        conversation.announce(slot)
        for number in range(100):
            conversation.wait_free(slot)
            content = np.random.default_rng(number).bytes(80 * 72)
            slot.fill([content])
            conversation.publish(
                slot, number, stamp_ns=number, frame_id=f'cämera {number}'.encode()
            )
            frame = next_frame(client)
            assert (
                frame.data.sequence,
                frame.data.header.stamp_ns,
                frame.data.header.frame_id,
            ) == (number, number, f'cämera {number}')
            with frame.map() as planes:
                crcs = [zlib.crc32(plane.tobytes()) for plane in planes]
            rows = [content[slice(80 * y, None)][:64] for y in range(72)]
            assert crcs == [zlib.crc32(b''.join(rows[:48])), zlib.crc32(b''.join(rows[48:]))]
            frame.release()
        conversation.wait_free(slot)


def refused(server: SpecServer, packet: bytes) -> RefusedError:
    """Return what a consumer makes of a REFUSED."""
    greeting = Greeting(server.path, Hello(2, 1, 'client'), ())
    with server.accept() as conversation, pytest.raises(RefusedError) as caught:
        conversation.expect_hello()
        conversation.send(packet)
        greeting.answer()
    greeting.close()
    return caught.value


@pytest.mark.parametrize('code', range(1, 7))
def test_a_refusal_is_raised_with_its_code(server: SpecServer, code: int) -> None:
    error = refused(server, spec.refused(code, f'nö {code}'.encode()))
    assert (error.code, str(error)) == (code, f'nö {code}')


@pytest.mark.parametrize('name', UNCLEAR_REFUSALS)
def test_a_refusal_is_no_error_of_the_producer_however_it_is_said(
    server: SpecServer, name: str
) -> None:
    code, text, meant = UNCLEAR_REFUSALS[name]
    error = refused(server, spec.refused(code, text))
    shown = str(error)
    assert error.code == meant
    assert (
        shown.rstrip('\ufffd').strip() == 'why' and shown.endswith('\ufffd') is not text.isascii()
    ), shown
    with meeting(server) as (client, conversation):
        conversation.send(spec.refused(code, text))
        assert 'refused: why' in wait_for_end(client)
        assert client.statistics().ended == {'refused': 1}


@pytest.mark.parametrize('count', [0, 1, 4])
def test_an_empty_packet_is_an_end_whatever_comes_with_it(
    server: SpecServer, slot: Slot, count: int
) -> None:
    with meeting(server) as (client, conversation):
        conversation.send(b'', count * slot.fds)
        wait_for_end(client)
        assert client.statistics().ended == {'eof': 1}


@pytest.mark.parametrize(
    'name', ['too_wide', 'other_format', 'other_modifier', 'stride_unaligned', 'offset_unaligned']
)
def test_what_the_page_allows_and_the_consumer_ruled_out_it_refuses_by_name(
    server: SpecServer, slot: Slot, name: str
) -> None:
    """It just leaves where a rule of the page is broken: test_wire_agreement.py."""
    with meeting(server, requirements=NV12_ALIGNED) as (client, conversation):
        conversation.send(lie(slot.image, **WRONG_BUFFERS[name][1]).pack(), slot.fds)
        why = wait_for_end(client)
        with pytest.raises(spec.ConsumerGone):
            while True:
                conversation.receive()
        assert conversation.refusal and conversation.refusal in why


def test_one_memory_behind_two_descriptors_is_compared(server: SpecServer) -> None:
    slot = Slot(Image.nv12(buffers=2))
    with meeting(server) as (client, conversation):
        conversation.send(slot.image.pack(), [slot.fds[0], slot.fds[0]])
        assert 'the same memory' in wait_for_end(client)
    slot.close()


def test_memory_of_a_kind_that_was_not_asked_for_is_noticed(
    server: SpecServer, slot: Slot
) -> None:
    with meeting(server, requirements=Requirements(memory=1)) as (client, conversation):
        conversation.announce(slot)
        assert 'memfds, which it does not take' in wait_for_end(client)
        with pytest.raises(spec.ConsumerGone):
            while True:
                conversation.receive()
        assert conversation.refusal == 'the buffers are memfds, which it does not take'


def test_a_layout_that_is_not_known_comes_to_who_did_not_rule_it_out(
    server: SpecServer, slot: Slot
) -> None:
    """Its lines mean nothing: less than a row, more rows than there are bytes."""
    slot.image.modifier = spec.INVALID
    slot.image.planes = [(0, 1, 0, LUMA), (0, 0, LUMA, CHROMA)]
    with meeting(server) as (client, conversation):
        conversation.announce(slot)
        conversation.publish(slot, 0)
        with next_frame(client) as frame:
            assert frame.data.modifier == spec.INVALID
    with meeting(server, requirements=NV12_ALIGNED) as (client, conversation):
        conversation.announce(slot)
        wait_for_end(client)


def test_the_same_buffers_without_a_lie_are_taken(server: SpecServer, slot: Slot) -> None:
    with meeting(server, requirements=NV12_ALIGNED) as (client, conversation):
        conversation.announce(slot)
        conversation.publish(slot, 0)
        next_frame(client).release()


@pytest.mark.parametrize(('count', 'uid'), [(1, 8), (2, 7)], ids=['window', 'lease'])
def test_more_frames_than_are_free_are_noticed(
    server: SpecServer, slot: Slot, count: int, uid: int
) -> None:
    other = Slot(Image.nv12(uid=8))
    with meeting(server, window=count) as (client, conversation):
        conversation.announce(slot)
        conversation.announce(other)
        conversation.send(spec.frame(7, 1, 0))
        frame = next_frame(client)
        conversation.send(spec.frame(uid, 2, 1))
        wait_for_end(client)
        frame.release()
    other.close()


def test_more_than_256_slots_at_a_time_are_noticed(server: SpecServer, slot: Slot) -> None:
    with meeting(server) as (client, conversation):
        for uid in range(256):
            conversation.send(lie(slot.image, uid=uid).pack(), slot.fds)
            client.receive()
        assert client.connected
        conversation.send(lie(slot.image, uid=1000).pack(), slot.fds)
        wait_for_end(client)


def test_retired_slots_that_are_still_held_do_not_count(server: SpecServer, slot: Slot) -> None:
    with meeting(server, window=3) as (client, conversation):
        held = []
        for uid in range(259):
            conversation.send(lie(slot.image, uid=uid).pack(), slot.fds)
            if uid < 3:
                conversation.send(spec.frame(uid, 1, uid))
                held.append(next_frame(client))
                conversation.send(spec.retired(uid))
            client.receive()
        client.receive()
        assert client.connected, client.last_end
        conversation.send(lie(slot.image, uid=1000).pack(), slot.fds)
        assert '256 slots' in wait_for_end(client)
        for frame in held:
            frame.release()


@pytest.mark.parametrize('count', [0, 2, 5])
def test_another_number_of_descriptors_is_noticed(
    server: SpecServer, slot: Slot, count: int
) -> None:
    with meeting(server) as (client, conversation):
        conversation.send(slot.image.pack(), count * slot.fds)
        wait_for_end(client)
        with pytest.raises(spec.ConsumerGone):
            while True:
                conversation.receive()
        assert not conversation.refusal, 'it just leaves'
