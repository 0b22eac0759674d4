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
The in-process link: each subscription of this process gets the same object, as it is.

:class:`InProcessBus` knows the publishers and subscriptions, which meet under a key of (context,
resolved topic, ROS type). Registration is rare and takes locks. Publishing reads one immutable
tuple, on the publisher's thread. A transient_local publisher keeps its last objects for
subscriptions that come late, so its publishing takes a lock.

At :class:`MeetingPoint` the cameras and the consumers of the process find each other to agree on
buffers, whichever comes first.

Locks are taken in this order: the bus's lock, a publisher's lock, the lock for the publisher's
promises (``_settling``), the pool's lock. While one of them is held, the only function of a
subscriber that is called is ``notify``, which must not block.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
import itertools
import operator
import threading
from typing import Any, Generic, Protocol, TypeVar

from zc_perception.frame_queue import KeepLastQueue
from zc_perception.memory.pool import BufferPool
from zc_perception.native import compiled
from zc_perception.negotiation.session import Consumer

_KEEP_ALL_DEPTH = 64
_serials = itertools.count(1)
T = TypeVar('T')
BusKey = tuple[Hashable, str, str]


@dataclass(frozen=True)
class Granted:
    """
    The slots of a publisher's pool that one subscription was promised.

    :param holder: the subscription's name among the holders of the pool's leases, unique there.
    :param number: frames that the subscription may hold at the same time; 0: no slot was left.
    :param asked: how many frames the subscription asked for.
    :param serial: a number that no other promise has.
    """

    holder: str
    number: int
    asked: int
    serial: int


@dataclass(frozen=True)
class LinkQos:
    """
    The part of a QoS profile that decides matching and queueing.

    A ``depth`` of ``None`` means keep-all.
    """

    depth: int | None
    reliable: bool = True
    transient_local: bool = False

    def mismatch(self, offered: LinkQos) -> str:
        """
        Say which policy prevents a match with a publisher that offers *offered*.

        The rules are those of DDS. Return an empty text if the two match.
        """
        if self.reliable and not offered.reliable:
            return 'the publisher is best effort, the subscription wants reliable'
        if self.transient_local and not offered.transient_local:
            return 'the publisher is volatile, the subscription wants transient_local'
        return ''


@dataclass(eq=False)
class BusSubscription(Generic[T]):
    """
    A subscription's end of the link: its own queue, and how to wake its reader.

    :param holder: the subscription's name among the holders of leases, unique in the process.
    :param notify: called after each object was queued; must not block.
    :param consumer: the subscription's part in the agreement on a publisher's buffers; ``None``:
        it can use any buffers.
    :param held: slots of each publisher that the subscription asks for: frames that it holds at
        the same time; ``None``: 1. No limit for objects without slots.
    :param resting: whether the subscription gets nothing for now; it keeps its promised slots.
    :param by_message: whether it reads messages for now; the link then only fills ``headers``.
    :param headers: the link appends the ``header`` of each object, also of objects that the
        subscription doesn't get because of its quota; ``None``: the type has no header.
    :param custom_type: the type that the subscription takes; ``None``: any type.
    """

    holder: str
    qos: LinkQos
    queue: KeepLastQueue[T]
    notify: Callable[[], None] | None = None
    headers: deque[Any] | None = None
    custom_type: type[Any] | None = None
    consumer: Consumer | None = None
    held: int | None = None
    resting: bool = False
    by_message: bool = False
    delivered: int = 0
    refused: int = 0

    def go_on(self) -> None:
        """
        Let the subscription read the next object of its queue.

        The pool calls this when the subscription held as many frames as it may, and gave one back.
        """
        self.queue.reopen()
        if self.notify is not None:
            self.notify()


def _deliver_lease(item: Any, holder: str) -> Any:
    return item.deliver(holder)


@dataclass(eq=False)
class BusPublisher(Generic[T]):
    """
    A publisher's end of the link.

    It owns the objects of its history.

    :meth:`publish` runs on the publisher's thread. It takes a lock only with transient_local, and
    for the first frame of another pool. The bus calls the other methods, on any thread on which a
    publisher or subscription comes or goes.

    **Slots.** The publisher promises each subscription slots of the pool from which the objects
    come: as many as the subscription may hold objects. If too few slots are left, the subscription
    gets nothing from this publisher; each time another subscription has gone, :meth:`settle` tries
    again. An object that is given to a subscription waits in its queue. If the subscription holds
    as many objects as it may and its queue is full, the newest object replaces the oldest one in
    the queue.

    :param deliver: makes the holder's own object from the published one; returns ``None`` if the
        holder has as many objects as it may.
    :param release: releases an object of the history.
    :param objection: says why a consumer can't use this publisher's buffers; empty: it can.
    :param pool_of: returns the pool of an object's slot; ``None``: the objects take no slots.
    :param header_of: returns an object's header, for subscriptions that want it.
    """

    name: str
    qos: LinkQos
    deliver: Callable[[T, str], T | None] = _deliver_lease
    release: Callable[[T], object] | None = None
    custom_type: type[Any] | None = None
    publisher_id: str = ''
    objection: Callable[[Consumer], str] | None = None
    pool_of: Callable[[T], Any] | None = None
    header_of: Callable[[T], Any] = operator.attrgetter('header')
    matched: tuple[BusSubscription[T], ...] = ()
    history: deque[T] = field(default_factory=deque)
    gone: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _settling: threading.Lock = field(default_factory=threading.Lock)
    _pool: Any = None
    _granted: dict[BusSubscription[T], Granted] = field(default_factory=dict)
    # The subscriptions that get objects, each with its name as a holder of the pool's leases.
    _served: tuple[tuple[BusSubscription[T], str], ...] = ()

    def publish(self, item: T) -> None:
        """
        Give every matched subscription its own object; never block.

        The caller keeps its own lease of *item*.
        """
        if self.pool_of is not None:
            try:
                pool = self.pool_of(item)
            except AttributeError:
                pool = item.pool  # type: ignore[attr-defined] # raises: the object was released
            if pool is not self._pool:
                self.use(pool)
        if not self.qos.transient_local:
            for subscription, holder in self._served:
                self._give(item, subscription, holder)
            return
        oldest = None
        with self._lock:
            if self.gone:
                return
            kept = self.deliver(item, self._historian)
            if kept is not None:
                self.history.append(kept)
                if self.qos.depth is not None and len(self.history) > self.qos.depth:
                    oldest = self.history.popleft()
            for subscription, holder in self._served:
                self._give(item, subscription, holder)
        if oldest is not None and self.release is not None:
            self.release(oldest)

    def _give(self, item: T, subscription: BusSubscription[T], holder: str) -> None:
        if subscription.headers is not None:
            subscription.headers.append(self.header_of(item))
        if subscription.by_message:
            return
        delivery = self.deliver(item, holder)
        if delivery is None:
            delivery = self._in_place_of_oldest(item, subscription, holder)
            if delivery is None:
                subscription.refused += 1
                return
        subscription.delivered += 1
        subscription.queue.put(delivery)
        if subscription.notify is not None:
            subscription.notify()

    def _in_place_of_oldest(
        self, item: T, subscription: BusSubscription[T], holder: str
    ) -> T | None:
        pool_of, pool = self.pool_of, self._pool
        if pool_of is None or not subscription.queue.drop_oldest(
            lambda each: pool_of(each) is pool
        ):
            return None
        return self.deliver(item, holder)

    @property
    def _historian(self) -> str:
        """The name under which this publisher's history holds leases."""
        return f'{self.name}:history'

    def use(self, pool: Any) -> None:
        """Publish from *pool* from now on: promise its slots to the matched subscriptions."""
        with self._settling:
            self._let_go()
            self._pool = pool
            if isinstance(pool, BufferPool) and self.qos.transient_local:
                # The history keeps *depth* objects, and one more until publish() has released
                # the oldest.
                pool.set_quota(self._historian, 0, depth=(self.qos.depth or 0) + 1)
        self.settle()

    def _take_back(self, but: tuple[BusSubscription[T], ...]) -> None:
        """Take back the promises to all subscriptions but *but*; called with _settling held."""
        for gone in [each for each in self._granted if each not in but]:
            granted = self._granted.pop(gone)
            if granted.number:
                self._pool.set_quota(granted.holder, None)

    def _let_go(self) -> None:
        """Take back all promises, also that to the history; called with _settling held."""
        self._take_back(())
        if self.qos.transient_local and isinstance(self._pool, BufferPool):
            self._pool.set_quota(self._historian, None)

    def settle(self) -> None:
        """Promise slots to subscriptions that have none yet, or that ask for another number."""
        with self._settling:
            matched, pool = self.matched, self._pool
            if not isinstance(pool, BufferPool):
                self._served = tuple((each, each.holder) for each in matched if not each.resting)
                return
            self._take_back(matched)
            for each in matched:
                before, asked = self._granted.get(each), each.held or 1
                if before is not None and before.number and before.asked == asked:
                    continue
                name = (
                    before.holder
                    if before is not None and before.number
                    else pool.free_name(each.holder)
                )
                number, _ = pool.grant(
                    name,
                    asked,
                    each.qos.depth or _KEEP_ALL_DEPTH,
                    on_room=each.go_on,
                    lossless=each.qos.depth is None,
                    alone=True,
                )
                self._granted[each] = Granted(name, number, asked, next(_serials))
            self._served = tuple(
                (each, granted.holder)
                for each in matched
                if (granted := self._granted[each]).number and not each.resting
            )

    def granted(self, subscription: BusSubscription[T]) -> Granted | None:
        """Return the promise to *subscription*; ``None`` if there is none."""
        return self._granted.get(subscription)

    def without_slots(self, subscription: BusSubscription[T]) -> str:
        """Say that too few slots are left for *subscription*; empty if that isn't so."""
        granted = self._granted.get(subscription)
        return self._pool.too_few if granted is not None and not granted.number else ''

    def in_hand(self, subscription: BusSubscription[T]) -> tuple[tuple[int, float], ...]:
        """Return what *subscription* holds, see :meth:`BufferPool.in_hand`."""
        granted = self._granted.get(subscription)
        return self._pool.in_hand(granted.holder) if granted is not None else ()

    @property
    def served(self) -> tuple[BusSubscription[T], ...]:
        """The subscriptions that get objects now."""
        return tuple(subscription for subscription, _ in self._served)

    def misfit(self, subscription: BusSubscription[T]) -> str:
        """
        Say why *subscription* can't use this publisher's buffers, so that it gets messages.

        Return an empty text if it can use them.
        """
        if self.objection is None or subscription.consumer is None:
            return ''
        return self.objection(subscription.consumer)

    def matches(self, subscription: BusSubscription[T]) -> bool:
        """
        Say whether *subscription* may get this publisher's objects as they are.

        If both have different custom types for the same ROS type, it may not: it then gets ROS
        messages, as in REP 2007.
        """
        types = self.custom_type, subscription.custom_type
        fits = not subscription.qos.mismatch(self.qos) and (None in types or types[0] is types[1])
        return fits and not self.misfit(subscription)

    def rematch(self, subscriptions: tuple[BusSubscription[T], ...]) -> None:
        """
        Serve the matched *subscriptions*, which the bus gives, from now on.

        New subscriptions with transient_local first get the objects of the history.
        """
        if not self.qos.transient_local:
            self.matched = subscriptions
            self.settle()
            return
        with self._lock:
            served = {subscription for subscription, _ in self._served}
            self.matched = subscriptions
            self.settle()
            for newcomer, holder in self._served:
                if newcomer not in served and newcomer.qos.transient_local:
                    for item in tuple(self.history):
                        self._give(item, newcomer, holder)

    def forget(self) -> None:
        """Release the objects of the history, and take back all promised slots for good."""
        with self._lock:
            self.gone = True
            with self._settling:
                self._let_go()
            items = list(self.history)
            self.history.clear()
        if self.release is not None:
            for item in items:
                self.release(item)


if compiled is not None:
    compiled.join(BusPublisher)


def discard(table: dict[BusKey, list[Any]], key: BusKey, entry: object) -> bool:
    """Remove *entry* from the entries of *key*; return ``False`` if it was not among them."""
    entries = table.get(key, [])
    if entry not in entries:
        return False
    entries.remove(entry)
    if not entries:
        del table[key]
    return True


class InProcessBus:
    """
    The publishers and subscriptions under each key.

    The bus owns none of them. Any thread may call its methods. It holds its lock while it matches
    publishers with subscriptions.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._publishers: dict[BusKey, list[BusPublisher[Any]]] = {}
        self._subscriptions: dict[BusKey, list[BusSubscription[Any]]] = {}

    def add_publisher(self, key: BusKey, publisher: BusPublisher[Any]) -> None:
        """Register *publisher* and match it with the subscriptions under *key*."""
        with self._lock:
            self._publishers.setdefault(key, []).append(publisher)
            self._match(key)

    def remove_publisher(self, key: BusKey, publisher: BusPublisher[Any]) -> None:
        """Unregister *publisher* and release its history. A second call does nothing."""
        with self._lock:
            discard(self._publishers, key, publisher)
            publisher.rematch(())
        publisher.forget()

    def add_subscription(self, key: BusKey, subscription: BusSubscription[Any]) -> None:
        """Register *subscription* and match it with the publishers under *key*."""
        with self._lock:
            self._subscriptions.setdefault(key, []).append(subscription)
            self._match(key)

    def rest(self, key: BusKey, subscription: BusSubscription[Any], resting: bool) -> None:
        """
        Let *subscription* get no objects from now on (*resting*), or let it get objects again.

        A resting subscription keeps its promised slots.
        """
        with self._lock:
            subscription.resting = resting
            self._match(key)

    def settle(self, key: BusKey) -> None:
        """
        Try again to promise slots under *key*.

        This helps subscriptions for which no slots were left, or whose ``held`` has changed.
        """
        with self._lock:
            for publisher in self._publishers.get(key, []):
                publisher.settle()

    def remove_subscription(self, key: BusKey, subscription: BusSubscription[Any]) -> None:
        """
        Unregister *subscription*. A second call does nothing.

        An object that is being published meanwhile may still arrive.
        """
        with self._lock:
            discard(self._subscriptions, key, subscription)
            self._match(key)

    def rematch(self, key: BusKey) -> None:
        """Match again, after a publisher's buffers or a consumer's needs have changed."""
        with self._lock:
            self._match(key)

    def _match(self, key: BusKey) -> None:
        """
        Match publishers and subscriptions under *key*; called with the lock held.

        Publishers read their tuple without the lock, so the tuple is replaced, never changed.
        """
        subscriptions = self._subscriptions.get(key, [])
        for publisher in self._publishers.get(key, []):
            publisher.rematch(tuple(s for s in subscriptions if publisher.matches(s)))

    def subscriptions(self, key: BusKey) -> int:
        """Return the number of subscriptions under *key*."""
        with self._lock:
            return len(self._subscriptions.get(key, []))

    def publishers(self, key: BusKey) -> tuple[BusPublisher[Any], ...]:
        """Return the publishers under *key*."""
        with self._lock:
            return tuple(self._publishers.get(key, ()))


BUS = InProcessBus()
"""The bus of this process. The key has the context, so tests with own contexts don't meet."""


class CameraEnd(Protocol):
    """A publisher of a camera's frames."""

    def join(self, consumer: Consumer) -> None:
        """
        Let in a consumer that came after the buffers were allocated.

        If the camera has no buffers yet, do nothing: the consumer takes part in their agreement.
        """

    def leave(self, consumer: Consumer) -> None:
        """Note that *consumer* has left and takes no more part in agreements."""


class MeetingPoint:
    """
    The cameras and the consumers of this process, by topic.

    :attr:`lock` is held while a camera or consumer comes, goes or agrees on buffers. So an
    agreement misses no consumer, and no consumer leaves in the middle of an agreement.

    Threads that carry frames never take that lock. Code that changes which buffers a consumer may
    use calls :meth:`InProcessBus.rematch`.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._cameras: dict[BusKey, list[CameraEnd]] = {}
        self._consumers: dict[BusKey, list[Consumer]] = {}

    def add_camera(self, key: BusKey, camera: CameraEnd) -> None:
        """Add a camera, which publishes under *key* from now on."""
        with self.lock:
            self._cameras.setdefault(key, []).append(camera)

    def remove_camera(self, key: BusKey, camera: CameraEnd) -> None:
        """Remove a camera that has ended. A second call does nothing."""
        with self.lock:
            discard(self._cameras, key, camera)

    def add_consumer(self, key: BusKey, consumer: Consumer) -> None:
        """
        Add a consumer, which takes frames under *key* from now on.

        If the consumer can't use a camera's buffers, that camera's publisher logs why.
        """
        with self.lock:
            self._consumers.setdefault(key, []).append(consumer)
            for camera in self._cameras.get(key, ()):
                camera.join(consumer)
        BUS.rematch(key)

    def remove_consumer(self, key: BusKey, consumer: Consumer) -> None:
        """Remove a consumer that takes no more frames. A second call does nothing."""
        with self.lock:
            if discard(self._consumers, key, consumer):
                for camera in self._cameras.get(key, ()):
                    camera.leave(consumer)

    def consumers(self, key: BusKey) -> tuple[Consumer, ...]:
        """
        Return the consumers under *key*.

        The caller keeps :attr:`lock` while it agrees on buffers with them.
        """
        with self.lock:
            return tuple(self._consumers.get(key, ()))


MEETING = MeetingPoint()
"""The meeting point of this process."""
