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
Offer the buffers of a publisher of frames to consumers.

A :class:`FrameOffer` agrees with the consumers on the buffers' format, layout and memory, passes
the buffers to other processes, and announces them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
import contextlib
from dataclasses import replace
import math
import os
import threading
import time

from rclpy.node import Node
from sensor_msgs.msg import Image

from zc_perception.errors import AllocationError, NegotiationError
from zc_perception.frame import Frame
from zc_perception.link.announcement import announcement_topic
from zc_perception.link.bus import BUS, MEETING
from zc_perception.link.endpoints.publisher import AdaptedPublisher
from zc_perception.link.endpoints.qos import bus_key, uses_direct_links
from zc_perception.link.image_conversion import why_no_message
from zc_perception.link.shared_memory.server import Answer, QUARANTINE_S, SharedMemoryServer
from zc_perception.link.shared_memory.unix_socket import Peer
from zc_perception.log import Seldom
from zc_perception.memory.pool import BufferPool, MAX_SLOTS, SPARE
from zc_perception.negotiation.constraints import BufferConstraints, Format, Size
from zc_perception.negotiation.session import BufferSession, Consumer, Outcome, Verdict
from zc_perception.negotiation.settings import Allocator
from zc_perception.pixel.format_names import drm_format_string

HEAR_S = 0.3
"""The longest time, in seconds, that a camera waits for consumers before it allocates buffers."""
RENEW_S = 10.0
"""The shortest time between two agreements on new buffers, in seconds."""
# Consumers that come within this time share one new agreement.
_GATHER_S = 0.2
_LOOK_S = 0.02
_MOST_FAILED = 64
# A refused consumer asks again every 5 s. If none of its requests was refused within this time, it
# has ended or was served.
_LATELY_S = 12.0
_MOST_REFUSED = 64


def serve_frames(
    node: Node,
    publisher: AdaptedPublisher[Frame],
    *,
    allowed_gids: Collection[int] = (),
    quarantine_timeout_s: float = QUARANTINE_S,
) -> SharedMemoryServer | None:
    """
    Make and start a server that passes the frames of *publisher* to other processes of this host.

    Return ``None`` if the node uses no direct links.

    :raises ConfigError: the folder for the socket can't be used.
    """
    if not uses_direct_links(node):
        return None
    logger = node.get_logger()
    server = SharedMemoryServer(
        node.get_fully_qualified_name(),
        publisher.publisher_id,
        allowed_gids=allowed_gids,
        quarantine_timeout_s=quarantine_timeout_s,
        history=publisher.history,
        # Two lambdas on two lines, because rclpy raises when one line logs with two severities.
        report=Seldom(lambda text: logger.info(text)),
        warn=Seldom(lambda text: logger.warning(text)),
    )
    publisher.serve(server)
    return server


class FrameOffer:
    """
    The buffers of one publisher, offered to consumers in this process and in other processes.

    **Agreement.** A consumer of another process sends its needs to the publisher's socket, which
    :meth:`listen` announces before there are buffers. :meth:`agree` chooses one setting for all
    present consumers. A later consumer that can't use buffers with this setting waits for a new
    agreement, if a setting for all consumers exists. The publisher's owner then calls
    :meth:`renew`, :meth:`agree` and :meth:`begin` again at time :attr:`due`. A new agreement is
    made at most once in :data:`RENEW_S`, and only for consumers that run as the publisher's user.
    If an agreement fails for a consumer, no other agreement is made for consumers with the same
    constraints. A consumer that can't use the buffers and can't wait for new ones is refused, and
    the log names this consumer.

    **Threads.** The owner's thread calls :meth:`agree` and :meth:`begin`. Consumers of this
    process call :meth:`join` on their own threads. The server's thread calls :meth:`judge`,
    :meth:`starved` and :meth:`left`. The lock guards the lists of waiting, served, failed and
    refused consumers. While the lock is held, no code outside this module is called.

    :param publisher: publishes the frames in these buffers.
    :param server: passes the buffers to other processes; ``None``: no other process gets them.
    :param changed: called after a consumer of this process came to an existing agreement and was
        served, refused or told to wait.
    :param fixed: why these buffers never change for a later consumer; empty: they may change.
    """

    def __init__(
        self,
        node: Node,
        publisher: AdaptedPublisher[Frame],
        server: SharedMemoryServer | None,
        changed: Callable[[], object] = lambda: None,
        *,
        fixed: str = '',
    ) -> None:
        self._node = node
        self._name = node.get_fully_qualified_name()
        topic = announcement_topic(publisher.topic)
        self._step = (
            f"change this consumer, or format, size or parameter 'heap' of {self._name}: "
            f"'ros2 topic echo --once {topic}' shows what that node could offer"
        )
        self._publisher = publisher
        self._server = server
        self._changed = changed
        self._fixed = fixed
        self._key = bus_key(node, publisher.topic, Image)
        self.session: BufferSession | None = None
        self._begun: BufferSession | None = None
        self._lock = threading.Lock()
        self._wishes: list[Consumer] = []
        self._granted: list[Consumer] = []
        self._served: set[Consumer] = set()
        self._failed: dict[BufferConstraints, str] = {}
        self._refused: dict[str, tuple[float, str]] = {}
        self._renewed_at = -RENEW_S
        self._awaited = False
        self._held = self._asked = 0
        self.due = math.inf
        self.renewals = 0
        publisher.judge_by(self._objection)
        if server is not None:
            server.door = self

    def listen(self, size: Size) -> None:
        """
        Announce the socket before there are buffers: consumers then connect and send their needs.

        :param size: size of the images if it is known, else (1, 1).
        """
        if self._server is not None:
            self._publisher.announce(width=size[0], height=size[1])

    def open(self) -> None:  # noqa: A003
        """Register this offer, so that consumers of this process find it."""
        MEETING.add_camera(self._key, self)

    def await_consumers(self) -> None:
        """
        In the first call, wait until the consumers of other processes have sent their needs.

        The graph shows how many consumers there are. The wait ends after HEAR_S in any case.
        """
        if self._server is None or self._awaited:
            return
        self._awaited = True
        topic = announcement_topic(self._publisher.topic)
        deadline = time.monotonic() + HEAR_S
        # Count in each round, because the graph finds more consumers during the wait.
        while (left_s := deadline - time.monotonic()) > 0.0:
            there = self._node.count_subscribers(topic) - BUS.subscriptions(self._key)
            if there <= 0 or self._server.await_consumers(there, min(left_s, _LOOK_S)):
                return

    def _remote(self) -> list[tuple[Consumer, int]]:
        """
        Return other processes' consumers for the next agreement, each with its window.

        The window is the number of frames that the consumer wants to hold at the same time.
        Consumers that run as our own user come first.
        """
        if self._server is None:
            return []
        found = self._server.participants()
        with self._lock:
            failed, served = set(self._failed), set(self._served)
        found = [
            entry for entry in found if entry[0] in served or anonymous(entry[0]) not in failed
        ]
        found.sort(key=lambda entry: not _is_ours(entry[1]))
        return [(consumer, window) for consumer, _, window in found]

    def consumers(self) -> list[BufferConstraints]:
        """Return the constraints of all consumers for the next agreement."""
        here = [consumer.constraints for consumer in MEETING.consumers(self._key)]
        return [*here, *(consumer.constraints for consumer, _ in self._remote())]

    def agree(
        self,
        producer: BufferConstraints,
        size: Size,
        allocator: Allocator,
        *,
        wanted_slots: int,
        stand_ins: Sequence[BufferConstraints] = (),
        possible: Callable[[], BufferConstraints] | None = None,
    ) -> BufferSession:
        """
        Agree on buffers with all present consumers, and allocate the buffers.

        :param producer: the buffers that the publisher can fill.
        :param wanted_slots: slots to allocate even if publisher and consumers need fewer.
        :param stand_ins: constraints of consumers that come later.
        :param possible: called after the allocation; returns which buffers the publisher could
            fill if its camera were closed and opened again. ``None``: the same as *producer*.
        :raises NegotiationError: no buffers meet the constraints of *producer* and *stand_ins*.
        :raises AllocationError: the memory for the buffers can't be allocated.
        """
        producer = _bounded(producer)
        remote = dict(self._remote())
        with MEETING.lock:
            here = MEETING.consumers(self._key)
            held = producer.slots + sum(each.constraints.slots for each in here)

            def attempt(without: Sequence[Consumer]) -> BufferSession:
                others = [consumer for consumer in remote if consumer not in without]
                wanted = self._enough(held, [remote[consumer] for consumer in others])
                session = BufferSession(
                    producer,
                    size,
                    wanted_slots=max(wanted_slots, wanted) if others else wanted_slots,
                    stand_ins=stand_ins,
                )
                session.allocate([*here, *others], allocator)
                self._held, self._asked = held, max(wanted_slots, wanted)
                return session

            try:
                session = attempt(())
            except (AllocationError, NegotiationError) as error:
                session = self._without_some(remote, attempt, error)
            if possible is not None:
                session.possible = _bounded(possible())
            self.session = session
        # A consumer that left during the agreement was removed from the earlier session only.
        # Remove it from the new session, too: else that session would count it for ever.
        for gone in remote.keys() - dict(self._remote()).keys():
            session.leave(gone)
        BUS.rematch(self._key)
        return session

    def _enough(self, held: int, windows: Sequence[int]) -> int:
        """
        Return the number of slots that the publisher and all consumers need together.

        The number includes slots for frames that wait, and spare slots for the next consumer.

        :param held: slots that the publisher and the consumers of this process need.
        :param windows: slots that each consumer of another process may hold.
        """
        connected = () if self._server is None else self._server.statistics().consumers
        deepest = max((consumer.depth for consumer in connected), default=1)
        return min(held + sum(windows) + deepest + SPARE, MAX_SLOTS)

    def _without_some(
        self,
        remote: Collection[Consumer],
        attempt: Callable[[Sequence[Consumer]], BufferSession],
        error: AllocationError | NegotiationError,
    ) -> BufferSession:
        """
        Agree on buffers without some consumers, after an agreement with all consumers has failed.

        No consumer of another process may stop the camera or other consumers. So leave out each
        new consumer in turn, then all new ones, then all of *remote*, until an agreement succeeds.
        A consumer is new if it was not served before.
        """
        with self._lock:
            fresh = [consumer for consumer in remote if consumer not in self._served]
        for without in (*([one] for one in reversed(fresh)), fresh, list(remote)):
            if without:
                with contextlib.suppress(AllocationError, NegotiationError):
                    session = attempt(without)
                    self._fail(without, f'there are no buffers that suit this consumer: {error}')
                    return session
        raise error

    def begin(
        self, session: BufferSession, pool: BufferPool | None, heap: str, sizes: Sequence[str] = ()
    ) -> None:
        """
        Begin to use *pool*, which has the buffers that :meth:`agree` has allocated.

        Promise its slots to consumers, and announce the new buffers to all subscriptions.

        :param heap: the name of the heap that allocated the buffers, or of another allocator.
        :param sizes: other image sizes that the publisher could use, if it knows any.
        """
        layout = session.settings.layout
        if pool is not None:
            # Serve consumers of this process first, because refused consumers of other processes
            # ask again.
            self._publisher.use(pool)
            if self._server is not None:
                self._server.set_pool(pool, session.settings.heap)
        with self._lock:
            served, self._granted = self._granted, []
        # A consumer that isn't part of the session has left: don't mark it as failed.
        self._fail(
            [one for one in served if (out := session.outcome(one)) and not out.has_buffers],
            'new buffers were agreed on for this consumer, and it cannot use these either',
        )
        self._begun = session
        if self._server is not None:
            self._server.look_again()
        self._publisher.messages.withheld = why_no_message(layout)
        possible = session.possible
        self._publisher.announce(
            width=layout.width,
            height=layout.height,
            formats=[_drm_format((layout.fourcc, layout.modifier))],
            heap=heap,
            possible_formats=list(map(_drm_format, possible.formats or ())),
            possible_heaps=possible.heaps or (),
            possible_sizes=sizes,
        )

    def say_agreement(self, session: BufferSession) -> None:
        """Log which buffers were chosen, and which consumers can't use them."""
        self._node.get_logger().info(f'buffers: {session.describe()}')
        for name, outcome in session.outcomes().items():
            if not outcome.has_buffers:
                self._say_refused(name, outcome)

    def _say_refused(self, name: str, outcome: Outcome) -> None:
        withheld = self._publisher.statistics().withheld
        way = (
            f'it gets no frames: {withheld}'
            if withheld
            else 'it gets messages, which are copies, or nothing if it allows no copies'
        )
        self._node.get_logger().warning(f'{name} {outcome}; {way}')

    def join(self, consumer: Consumer) -> None:
        """Let a late consumer use the buffers, make it wait, or refuse it."""
        session = self.session
        if session is not None:
            outcome = session.join(consumer)
            if outcome.verdict is Verdict.REFUSED:
                answer, text = self._wish(session, consumer, outcome, ours=True)
                if answer is Answer.WAIT:
                    self._node.get_logger().info(f'{consumer.constraints.participant}: {text}')
                else:
                    self._say_refused(consumer.constraints.participant, outcome)
            elif not outcome.has_buffers:
                self._say_refused(consumer.constraints.participant, outcome)
            self._changed()

    def leave(self, consumer: Consumer) -> None:
        """Forget a consumer that left, see :class:`~zc_perception.link.bus.CameraEnd`."""
        session = self.session
        if session is not None:
            session.leave(consumer)
        self._unwish(consumer)

    def judge(self, consumer: Consumer, peer: Peer) -> tuple[Answer, str]:
        """Return whether *consumer* gets buffers, must wait or is refused, and the reason."""
        session = self.session
        if session is None or session is not self._begun:
            return Answer.WAIT, f'{self._name} has no buffers yet'
        outcome = session.outcome(consumer) or session.join(consumer)
        if outcome.has_buffers:
            with self._lock:
                self._served.add(consumer)
            self._unwish(consumer)
            return Answer.WELCOME, ''
        return self._wish(session, consumer, outcome, ours=_is_ours(peer))

    def starved(self, consumer: Consumer, peer: Peer) -> tuple[Answer, str]:
        """
        Say whether a consumer for which no slot is left shall wait for more slots.

        The consumer waits if a new agreement would ask for more slots than the last one did; else
        it is refused. See :class:`~zc_perception.link.shared_memory.server.Door`.
        """
        session = self.session
        if session is None or session is not self._begun:
            return Answer.WAIT, f'{self._name} has no buffers yet'
        windows = [window for _, window in self._remote()]
        if self._enough(self._held, windows) <= self._asked:
            return Answer.REFUSE, ''
        no_slot = Outcome(Verdict.REFUSED, 'no slot is left for it')
        return self._wish(session, consumer, no_slot, ours=_is_ours(peer))

    def left(self, consumer: Consumer, why: str) -> None:
        """Forget a consumer, see :class:`~zc_perception.link.shared_memory.server.Door`."""
        session = self.session
        if session is not None:
            session.leave(consumer)
        with self._lock:
            self._served.discard(consumer)
        if why:
            self._fail([consumer], why)
        self._unwish(consumer)

    def refused(self) -> dict[str, str]:
        """Return the names of the consumers refused in the last 12 s, and the reason for each."""
        since = time.monotonic() - _LATELY_S
        with self._lock:
            self._refused = {name: one for name, one in self._refused.items() if one[0] > since}
            return {name: text for name, (_, text) in self._refused.items()}

    def _wish(
        self, session: BufferSession, consumer: Consumer, outcome: Outcome, *, ours: bool
    ) -> tuple[Answer, str]:
        """Let *consumer* wait for suitable buffers, or refuse it; return the answer and reason."""
        answer, text = self._answer(session, consumer, outcome, ours=ours)
        with self._lock:
            if answer is Answer.REFUSE:
                self._refused[consumer.constraints.participant] = time.monotonic(), text
                while len(self._refused) > _MOST_REFUSED:
                    del self._refused[next(iter(self._refused))]
        return answer, text

    def _answer(
        self, session: BufferSession, consumer: Consumer, outcome: Outcome, *, ours: bool
    ) -> tuple[Answer, str]:
        refused = f'{consumer.constraints.participant}: {outcome.reason}'
        instead = (
            f"start this consumer before node {self._name}, or name the consumer's needs in "
            "parameter 'participants' of that node"
        )
        with self._lock:
            failed = self._failed.get(anonymous(consumer))
            waiting = [one for one in self._wishes if one is not consumer]
        if failed is not None:
            return Answer.REFUSE, f'{refused}; {failed}'
        if self._fixed:
            return Answer.REFUSE, f'{refused}; {self._fixed}'
        if not ours:
            return (
                Answer.REFUSE,
                (
                    f'{refused}; the buffers change only for consumers that run as the '
                    f"camera node's user: {instead}"
                ),
            )
        if against := session.stands_against([*waiting, consumer]):
            return Answer.REFUSE, f'{self._name}: {against}; {self._step}'
        with self._lock:
            if consumer not in self._wishes:
                self._wishes.append(consumer)
            now = time.monotonic()
            self.due = min(self.due, max(now + _GATHER_S, self._renewed_at + RENEW_S))
            wait_s = self.due - now
        soon = f' in {wait_s:.0f} s' if wait_s > 1.0 else ''
        return (
            Answer.WAIT,
            f'{self._name} will give all consumers other buffers{soon}, because this consumer '
            'cannot use the current buffers',
        )

    def _unwish(self, consumer: Consumer) -> None:
        with self._lock:
            if consumer in self._wishes:
                self._wishes.remove(consumer)
                if not self._wishes:
                    self.due = math.inf

    def _fail(self, consumers: Sequence[Consumer], why: str) -> None:
        """Record *why* agreement with these consumers failed; they get no other agreement."""
        with self._lock:
            for consumer in consumers:
                self._failed[anonymous(consumer)] = why
            while len(self._failed) > _MOST_FAILED:
                del self._failed[next(iter(self._failed))]

    def would_suit(self, producer: BufferConstraints) -> bool:
        """Say whether the waiting consumers could use buffers that *producer* describes."""
        session = self.session
        with self._lock:
            wishes = list(self._wishes)
        return session is not None and not session.stands_against(wishes, producer)

    def renew(self) -> str:
        """Begin the agreement that is :attr:`due`; return the names of the waiting consumers."""
        with self._lock:
            self._granted, self._wishes = self._wishes, []
            self.due, self._renewed_at = math.inf, time.monotonic()
            self.renewals += 1
            return ', '.join(consumer.constraints.participant for consumer in self._granted)

    def give_up(self, why: str) -> None:
        """Refuse the consumers that :meth:`renew` named last, because their agreement failed."""
        with self._lock:
            granted, self._granted = self._granted, []
        self._fail(granted, why)
        if granted and self._server is not None:
            self._server.look_again()

    def _objection(self, consumer: Consumer) -> str:
        session = self.session
        return '' if session is None else session.objection(consumer)

    def withdraw(self) -> None:
        """Forget the agreement: its buffers are no longer used. A new agreement may follow."""
        with MEETING.lock:
            self.session = self._begun = None

    def close(self) -> None:
        """End the offer: consumers of this process no longer find it. Idempotent."""
        MEETING.remove_camera(self._key, self)
        self.withdraw()


def _bounded(producer: BufferConstraints) -> BufferConstraints:
    """Return *producer* with ``max_slots`` limited to the number that a pool can have."""
    most = producer.max_slots
    return replace(producer, max_slots=MAX_SLOTS if most is None else min(most, MAX_SLOTS))


def anonymous(consumer: Consumer) -> BufferConstraints:
    """Return a consumer's constraints without its name, so that equal needs compare equal."""
    return replace(consumer.constraints, participant='')


def _is_ours(peer: Peer) -> bool:
    """Say whether the peer, a consumer in another process, runs as this process's user."""
    return peer.uid == os.geteuid()


def _drm_format(fmt: Format) -> str:
    return drm_format_string(*fmt, implicit=True)
