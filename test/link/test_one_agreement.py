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
One agreement on buffers for all present consumers, and a new one for a later consumer.

The tests talk to the camera's socket in raw packets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
import os
import re
import select
import threading
import time
from typing import Any

from link_ros import Ros
import numpy as np
import pytest
from shared_memory.memory_link import attempt, PATIENCE_S, RawPeer
from waiting import eventually, until

from zc_perception.frame import Frame
from zc_perception.link.endpoints import frame_offer
from zc_perception.link.endpoints.frame_offer import FrameOffer
from zc_perception.link.endpoints.frame_publisher import FramePublisher
from zc_perception.link.shared_memory import wire
from zc_perception.link.shared_memory.client import SharedMemoryClient
from zc_perception.link.shared_memory.protocol import MessageType, RefusalCode, Requirements
from zc_perception.link.shared_memory.server import Answer
from zc_perception.link.shared_memory.unix_socket import Peer
from zc_perception.link.shared_memory.wire import Hello
from zc_perception.negotiation.constraints import BufferConstraints
from zc_perception.negotiation.session import Consumer
from zc_perception.pixel.fourcc import fourcc_code

pytestmark = pytest.mark.usefixtures('dds_sockets', 'no_fd_leak')

WIDTH, HEIGHT = 66, 48
NV12 = fourcc_code('NV12'), 0
YUYV = fourcc_code('YUYV'), 0
CAN_NOT = wire.pack_refused(wire.Refused(RefusalCode.CONSTRAINTS, 'the card refuses it'))


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_offer, 'RENEW_S', 0.0)
    monkeypatch.setattr(frame_offer, '_GATHER_S', 0.0)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise both handshake timeouts, so that a slow machine doesn't end a connection."""
    for end in ('server', 'client'):
        monkeypatch.setattr(f'zc_perception.link.shared_memory.{end}.HANDSHAKE_S', PATIENCE_S)


class Camera:
    """A publisher whose frames have one value each; it publishes while a test waits."""

    def __init__(self, here: Ros, **options: Any) -> None:
        values = {'width': WIDTH, 'height': HEIGHT, 'format': 'NV12', 'slots': 8} | options
        self.publisher = FramePublisher(here.node('camera'), 'image', **values)
        self.offer = self.publisher._offer
        assert self.publisher._server is not None
        self.server = self.publisher._server
        self.sequence = 0

    def publish(self) -> None:
        with self.publisher.loan() as out:
            for plane in out.planes:
                plane[:] = self.sequence % 251
        self.sequence += 1
        time.sleep(0.002)

    @property
    def stride(self) -> int:
        assert self.offer.session is not None
        return self.offer.session.settings.layout.planes[0].stride

    def join(self, *, waits: bool = True, **needs: Any) -> RawPeer:
        """Return a consumer that has sent HELLO; *needs* may contain ``window`` and ``depth``."""
        peer = RawPeer.connected(self.server.path)
        hello = {key: needs.pop(key) for key in ('window', 'depth') if key in needs}
        peer.hello(waits=waits, requirements=Requirements(**needs), **hello)
        return peer

    def said(self, peer: RawPeer) -> tuple[MessageType | None, str]:
        """Publish until the consumer gets a message; return its type (``None``: EOF) and text."""
        until(lambda: not peer.nothing_there(), 'an answer', pause=self.publish)
        packet, fds = peer.receive()
        for fd in fds:
            os.close(fd)
        if not packet:
            return None, ''
        kind = wire.message_type(packet)
        if kind is MessageType.NOTED:
            return kind, wire.parse_noted(packet)
        if kind is MessageType.REFUSED:
            code, text = wire.parse_refused(packet)
            return kind, f'{code:d}: {text}'
        return kind, ''

    def answer(self, peer: RawPeer) -> tuple[MessageType | None, str]:
        while (said := self.said(peer))[0] is MessageType.NOTED:
            pass
        return said

    def destroy(self) -> None:
        self.publisher.destroy()


@pytest.fixture
def camera(here: Ros) -> Callable[..., Camera]:
    return lambda **options: here.own(Camera(here, **options))


class Witness(AbstractContextManager['Witness']):
    """A well-behaved consumer that holds the newest frames, and checks each one's pixels twice."""

    HELD = 2

    def __init__(self, camera: Camera, **needs: Any) -> None:
        self.sequences: list[int] = []
        self.strides: set[int] = set()
        self.torn: list[int] = []
        self._held: deque[Frame] = deque()
        needs = {'requirements': Requirements(options='cpu=read', **needs)}
        self.client = SharedMemoryClient(
            camera.server.path, name='witness', window=self.HELD + 2, depth=4, **needs
        )
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.is_set():
            if attempt(self.client) is None:
                select.select([self.client.fileno()], [], [], 0.05)
            while (frame := self.client.receive()) is not None:
                self._take(frame)

    def _look(self, frame: Frame) -> None:
        with frame.map() as planes:
            wanted = frame.data.sequence % 251
            if not all(np.all(plane == wanted) for plane in planes):
                self.torn.append(frame.data.sequence)

    def _take(self, frame: Frame) -> None:
        self._look(frame)
        self.sequences.append(frame.data.sequence)
        self.strides.add(frame.data.layout.planes[0].stride)
        self._held.append(frame)
        if len(self._held) > self.HELD:
            self._release()

    def _release(self) -> None:
        frame = self._held.popleft()
        self._look(frame)
        frame.release()

    @property
    def connections(self) -> int:
        return self.client.statistics().connections

    def goes_on(self, camera: Camera) -> bool:
        wanted = len(self.sequences) + 10
        return eventually(lambda: len(self.sequences) >= wanted, pause=camera.publish)

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self.client.close()
        while self._held:
            self._release()


def test_a_late_consumer_is_served_by_other_buffers_which_everybody_gets(
    camera: Callable[..., Camera],
) -> None:
    cam = camera()
    assert cam.stride == WIDTH
    with Witness(cam) as witness:
        assert witness.goes_on(cam)
        with cam.join(stride_align=64) as late:
            kind, text = cam.said(late)
            assert kind is MessageType.NOTED and 'will give all consumers other buffers' in text
            assert cam.answer(late)[0] is MessageType.WELCOME
            assert (cam.stride, cam.offer.renewals) == (128, 1)
            with cam.join(stride_align=32) as third:
                assert cam.said(third)[0] is MessageType.WELCOME, 'it suits already'
            assert witness.goes_on(cam)
        assert witness.strides == {WIDTH, 128} and not witness.torn
        assert witness.connections == 1, 'it went on with what it had'
        # Frames that waited may still come, and tell of dropped ones.
        until(
            lambda: sum(np.diff(witness.sequences) - 1) == witness.client.statistics().dropped,
            'no frame is lost unseen',
        )
        assert np.diff(witness.sequences).min() == 1


def test_consumers_that_are_there_first_are_all_heard_before_there_are_buffers(
    here: Ros, camera: Callable[..., Camera], monkeypatch: pytest.MonkeyPatch
) -> None:
    peers: list[RawPeer] = []

    def meet(self: FrameOffer) -> None:
        assert self._server is not None
        for needs in (
            {'stride_align': 64},
            {'offset_align': 4096},
            {'formats': (YUYV,)},
            {'options': 'height_align=32'},
        ):
            peers.append(RawPeer.connected(self._server.path))
            peers[-1].hello(waits=True, requirements=Requirements(**needs))
        with RawPeer.connected(self._server.path) as old:
            old.hello(requirements=Requirements(stride_align=64))
            assert old.receive_refused().code is RefusalCode.BUSY, 'it does not wait'
        assert self._server.await_consumers(4, 60.0)

    monkeypatch.setattr(FrameOffer, 'await_consumers', meet)
    cam = camera()
    kinds = [cam.answer(peer) for peer in peers]
    kind, text = kinds.pop(2)
    assert kind is MessageType.REFUSED and text.startswith('3: ') and 'YUYV' in text
    assert kinds == [(MessageType.WELCOME, '')] * 3
    layout = cam.offer.session.settings.layout
    assert layout.planes[0].stride == 128 and layout.planes[1].offset % 4096 == 0
    assert cam.offer.renewals == 0
    for peer in peers:
        peer.close()


def test_buffers_change_at_most_once_in_a_time_and_all_who_wait_get_them_together(
    camera: Callable[..., Camera], monkeypatch: pytest.MonkeyPatch
) -> None:
    cam = camera()
    with cam.join(stride_align=4) as first:
        assert cam.answer(first)[0] is MessageType.WELCOME
    monkeypatch.setattr(frame_offer, 'RENEW_S', 3600.0)
    with cam.join(stride_align=64) as second, cam.join(offset_align=4096) as third:
        for late in (second, third):
            kind, text = cam.said(late)
            assert kind is MessageType.NOTED and re.search(r' in 3[56]\d\d s,', text)
        for _ in range(20):
            cam.publish()
        assert cam.offer.renewals == 1 and second.nothing_there() and third.nothing_there()
        with cam.offer._lock:
            cam.offer.due = 0.0
        assert cam.answer(second)[0] is cam.answer(third)[0] is MessageType.WELCOME
        assert cam.offer.renewals == 2


@pytest.mark.parametrize(
    ('renegotiate', 'said'),
    [(True, ['4: ']), (False, ['3: ', 'stride 66', 'renegotiate', 'participants'])],
)
def test_a_consumer_without_patience_or_hope_is_refused_and_moves_nothing(
    camera: Callable[..., Camera], renegotiate: bool, said: list[str]
) -> None:
    """To come again, or with the reason and how it could be served."""
    cam = camera(renegotiate=renegotiate)
    with cam.join(stride_align=64, waits=not renegotiate) as late:
        kind, text = cam.said(late)
        assert kind is MessageType.REFUSED and text.startswith(said[0])
        assert all(word in text for word in said), text
    until(lambda: not cam.server.participants())
    for _ in range(20):
        cam.publish()
    assert (cam.stride, cam.offer.renewals, cam.offer.due) == (WIDTH, 0, float('inf'))


def test_a_consumer_of_another_user_gets_the_buffers_that_are_there_or_none(
    camera: Callable[..., Camera],
) -> None:
    cam = camera()
    stranger = Peer(pid=7, uid=os.geteuid() + 1, gid=7)
    answer, text = cam.offer.judge(
        Consumer(BufferConstraints('theirs', stride_align=64)), stranger
    )
    assert answer is Answer.REFUSE
    assert 'stride 66' in text and "camera node's user" in text and "'participants'" in text, text
    assert cam.offer.due == float('inf')
    assert cam.offer.judge(Consumer(BufferConstraints('easy')), stranger)[0] is Answer.WELCOME


@pytest.mark.parametrize('moment', ['before the agreement', 'in the midst of it', 'after it'])
def test_a_consumer_that_dies_in_the_agreement_counts_no_more(
    camera: Callable[..., Camera], monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The next consumer is welcome, although its alignment would not fit with the dead one's."""
    cam = camera()
    late: list[RawPeer] = []
    gone = threading.Event()
    left = FrameOffer.left
    monkeypatch.setattr(
        FrameOffer, 'left', lambda self, *values: (left(self, *values), gone.set())[0]
    )

    def die() -> None:
        if late:
            late.pop().close()
            assert gone.wait(60.0)

    kind, name = {
        'before the agreement': (FrameOffer, 'renew'),
        'in the midst of it': (FramePublisher, '_allocate'),
        'after it': (FrameOffer, 'begin'),
    }[moment]
    work = getattr(kind, name)

    def worked(*values: Any) -> Any:
        done = work(*values) if name == 'renew' else None
        die()
        return done if name == 'renew' else work(*values)

    monkeypatch.setattr(kind, name, worked)
    late.append(cam.join(stride_align=2018))
    assert eventually(lambda: cam.offer.renewals == 1 and not late, pause=cam.publish)
    with cam.join(stride_align=2026) as other:
        assert cam.answer(other)[0] is MessageType.WELCOME


def test_what_failed_is_not_tried_again(camera: Callable[..., Camera]) -> None:
    """The first consumer refused the buffers that were agreed on for it."""
    cam = camera()
    with cam.join(stride_align=64) as late:
        assert cam.answer(late)[0] is MessageType.WELCOME
        late.send(CAN_NOT)
        until(lambda: not cam.server.participants())
    with cam.join(offset_align=4096) as other:
        assert cam.answer(other)[0] is MessageType.WELCOME
    assert (cam.stride, cam.offer.renewals) == (WIDTH, 2), 'its needs count no more'
    with cam.join(stride_align=64) as again:
        kind, text = cam.said(again)
        assert kind is MessageType.REFUSED and text.startswith('3: ')
        assert 'the card refuses it' in text and 'stride 66' in text, text
    assert cam.offer.renewals == 2


def test_a_consumer_keeps_its_buffers_though_one_with_the_same_needs_has_failed(
    camera: Callable[..., Camera],
) -> None:
    cam = camera()
    with Witness(cam, stride_align=64) as witness:
        assert witness.goes_on(cam)
        with cam.join(stride_align=64, options='cpu=read') as twin:
            assert cam.answer(twin)[0] is MessageType.WELCOME
            twin.send(CAN_NOT)
        assert eventually(lambda: len(cam.server.participants()) == 1)
        with cam.join(offset_align=4096) as other:
            assert cam.answer(other)[0] is MessageType.WELCOME
        assert witness.goes_on(cam)
        assert (witness.connections, cam.stride) == (1, 128)


def _hello(*garbled: bytes, **needs: Any) -> bytes:
    """Return a HELLO with these needs; replace the first of *garbled* in it by the second."""
    hello = {'window': 1, 'depth': 1}
    hello |= {key: needs.pop(key) for key in hello if key in needs}
    packet = wire.pack_hello(
        Hello(name='evil', waits=True, requirements=Requirements(**needs), **hello)
    )
    return packet.replace(*garbled) if garbled else packet


SIZES = b'min_size=1x1;max_size=9x9', b'min_size=9x9;max_size=1x1'
NO_TEXT = b'heap=aaaaaaaa', b'heap=\xff\xfe\x00aaaaa'
SLOTS = b'max_stride=50000', b'slots=0000050000'
HOSTILE = {
    '64 formats': _hello(formats=tuple((fourcc_code('XR24'), 1 << 56 | n) for n in range(64))),
    'stride_align 2^31': _hello(stride_align=1 << 31),
    'an odd stride_align': _hello(stride_align=999983),
    'a size that nobody has': _hello(options='min_size=60000x60000'),
    'min_size above max_size': _hello(*SIZES, options=SIZES[0].decode()),
    'a format twice': _hello(b'YUYV', b'NV12', formats=(NV12, YUYV)),
    'no text': _hello(*NO_TEXT, options=NO_TEXT[0].decode()),
    'slots for itself': _hello(*SLOTS, options=SLOTS[0].decode()),
    'the whole pool': _hello(window=64, depth=64, stride_align=64),
}


@pytest.mark.parametrize('hello', HOSTILE.values(), ids=HOSTILE)
def test_odd_needs_cost_their_sender_only(camera: Callable[..., Camera], hello: bytes) -> None:
    """The others keep suitable buffers, and their connections."""
    cam = camera()
    with Witness(cam, stride_align=4) as witness, RawPeer.connected(cam.server.path) as evil:
        assert witness.goes_on(cam)
        evil.send(hello)
        kind, text = cam.answer(evil)
        assert kind in (MessageType.REFUSED, MessageType.WELCOME, None), kind
        assert len(text.encode()) <= 503, 'it fits the packet uncut'
        assert witness.goes_on(cam)
        assert witness.connections == 1 and not witness.torn
        assert cam.stride % 4 == 0 and len(cam.publisher._pool.slots) <= 256
        assert cam.server.statistics().internal_errors == 0
    with cam.join(stride_align=32) as late:
        assert cam.answer(late)[0] is MessageType.WELCOME, 'and others are served after it'


def test_a_loan_that_is_out_is_published_before_there_are_other_buffers(
    camera: Callable[..., Camera],
) -> None:
    cam = camera()
    with Witness(cam) as witness:
        assert witness.goes_on(cam)
        done, go_on = threading.Event(), threading.Event()

        def lend() -> None:
            with cam.publisher.loan() as out:
                done.set()
                go_on.wait(60.0)
                for plane in out.planes:
                    plane[:] = cam.publisher._sequence % 251

        other = threading.Thread(target=lend)
        other.start()
        assert done.wait(60.0)
        with cam.join(stride_align=64) as late:
            assert late.receive_type() is MessageType.NOTED
            assert eventually(lambda: cam.offer.due < time.monotonic())
            # A second loan at the same time must not replace the buffers of the first.
            cam.publish()
            assert cam.offer.renewals == 0
            go_on.set()
            other.join()
            cam.sequence += 1
            assert cam.answer(late)[0] is MessageType.WELCOME
        assert witness.goes_on(cam) and not witness.torn


def test_who_finds_no_slot_waits_for_more_up_to_as_many_as_a_pool_may_have(
    camera: Callable[..., Camera],
) -> None:
    cam = camera(slots=4)
    with cam.join(window=4, stride_align=2) as first, cam.join(window=4) as second:
        assert cam.answer(first)[0] is cam.answer(second)[0] is MessageType.WELCOME
        assert cam.offer.renewals == 1
        assert len(cam.publisher._pool.slots) >= 2 + 4 + 4 + 1
    with cam.join(window=64, depth=64, stride_align=64) as greedy:
        assert cam.answer(greedy)[0] is MessageType.WELCOME
        assert (len(cam.publisher._pool.slots), cam.offer.renewals) == (64, 2)
        with cam.join(window=64) as third:
            cam.answer(third)
            with cam.join() as fourth:
                kind, text = cam.answer(fourth)
                assert kind is MessageType.REFUSED and text.startswith('4: ')
        assert cam.offer.renewals == 2
