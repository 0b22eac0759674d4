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
The ``in_process`` rung: all subscriptions of this process get the published object, uncopied.

:class:`InProcessBus` connects publishers and subscriptions that have the same key (context,
resolved topic, ROS type). Registration is rare and takes locks. Publishing runs on the publisher's
thread and reads an immutable tuple of subscriptions. It takes a lock of this module only for the
first frame of a new pool, and for a transient_local publisher, which keeps its last objects for
later subscriptions.

:class:`MeetingPoint` brings together the cameras and the consumers of the process, which then
negotiate buffers. Cameras and consumers may start in any order.

Locks are taken in this order: the bus's lock, a publisher's lock, the lock for the publisher's
promised slots (``_settling``), the pool's lock. While it holds a lock, the bus calls only two
functions of a subscriber: ``notify`` and ``starved``, which must not block.
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
    The slots of a publisher's pool that are promised to one subscription.

    :param holder: the subscription's name in the pool's leases, unique in the pool.
    :param number: how many frames the subscription may hold at the same time; 0: no slot is
        promised, because the pool has too few.
    :param asked: how many frames the subscription asked for.
    :param serial: a number that is unique in the process; a new promise has a new number.
    """

    holder: str
    number: int
    asked: int
    serial: int


@dataclass(frozen=True)
class LinkQos:
    """The policies of a QoS profile that the link uses; a ``depth`` of ``None`` is keep-all."""

    depth: int | None
    reliable: bool = True
    transient_local: bool = False

    def mismatch(self, offered: LinkQos) -> str:
        """
        Return the reason why a publisher with QoS *offered* doesn't match; empty: it matches.

        The rules are those of DDS.
        """
        if self.reliable and not offered.reliable:
            return 'the publisher is best effort, the subscription wants reliable'
        if self.transient_local and not offered.transient_local:
            return 'the publisher is volatile, the subscription wants transient_local'
        return ''


@dataclass(eq=False)
class BusSubscription(Generic[T]):
    """
    What the publishers of this process know about a subscription.

    :param holder: the subscription's name in the pools' leases, unique in the process.
    :param queue: the subscription's queue, into which publishers put objects.
    :param notify: wakes the subscription's reader after an object was queued; must not block.
    :param consumer: the subscription's constraints on a publisher's buffers; ``None``: it can use
        any buffers.
    :param held: how many frames of each publisher the subscription wants to hold at the same time;
        it asks each publisher for that many slots. ``None``: 1. Objects without slots aren't
        limited.
    :param resting: whether the subscription gets nothing at present; it keeps its promised slots.
    :param by_message: whether the subscription takes its objects from ROS messages at present. If
        so, publishers put no objects into the queue and only fill ``headers``.
    :param headers: a deque to which publishers append the ``header`` of each object, even if the
        subscription doesn't get the object; ``None``: the type has no header.
    :param custom_type: the type that the subscription takes; ``None``: any type.
    :param starved: called when a publisher's pool has no slot for the subscription, see
        :meth:`BusPublisher.without_slots`; must not block.
    :param delivered: number of objects put into the queue.
    :param refused: number of objects not delivered, because the subscription held as many objects
        as it may hold.
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
    starved: Callable[[], object] | None = None
    delivered: int = 0
    refused: int = 0

    def go_on(self) -> None:
        """
        Reopen the queue and wake the reader.

        The pool calls this when the subscription has released a frame after it held as many frames
        as it may hold.
        """
        self.queue.reopen()
        if self.notify is not None:
            self.notify()


def _deliver_lease(item: Any, holder: str) -> Any:
    return item.deliver(holder)


@dataclass(eq=False)
class BusPublisher(Generic[T]):
    """
    A publisher, as the bus sees it.

    With transient_local QoS it owns a history: its last objects, which later subscriptions get.

    :meth:`publish` runs on the publisher's thread. It takes a lock only with transient_local, and
    for the first frame of a new pool. The bus calls the other methods, on any thread that adds
    or removes a publisher or subscription.

    **Slots.** The publisher promises each subscription as many slots of the objects' pool as the
    subscription may hold. If too few slots are left, the subscription gets nothing from this
    publisher, until :meth:`settle` succeeds after another subscription was removed. If a
    subscription and its queue have all the leases that the pool allows them (their quota), a new
    object replaces the oldest object of the same pool in the queue. If the queue has no object of
    that pool, the new object isn't delivered.

    :param deliver: called with a published object and a holder's name; returns another
        object, which the holder owns, or ``None`` if the holder has used up its quota of the
        pool's leases.
    :param release: releases an object of the history.
    :param objection: returns why a consumer can't use this publisher's buffers; empty: it can.
    :param pool_of: returns the pool of an object's slot; ``None``: the objects take no slots.
    :param header_of: returns an object's header, for subscriptions with ``headers``.
    :param matched: the subscriptions that may get objects; :attr:`served` are those of them that
        get objects now.
    :param gone: whether the publisher was removed.
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
    # The subscriptions that get objects, each with its name in the pool's leases.
    _served: tuple[tuple[BusSubscription[T], str], ...] = ()

    def publish(self, item: T) -> None:
        """
        Give each of the :attr:`served` subscriptions an object made from *item*; never block.

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
        """The name of this publisher's history as a holder of leases of the pool."""
        return f'{self.name}:history'

    def use(self, pool: Any) -> None:
        """Promise slots of *pool*, a new pool, to the matched subscriptions."""
        with self._settling:
            self._let_go()
            self._pool = pool
            if isinstance(pool, BufferPool) and self.qos.transient_local:
                # One lease more than the depth, because publish() adds an object to the history
                # before it releases the oldest.
                pool.set_quota(self._historian, 0, depth=(self.qos.depth or 0) + 1)
        self.settle()

    def _take_back(self, but: tuple[BusSubscription[T], ...]) -> None:
        """Take the promised slots back from all subscriptions not in *but*; _settling is held."""
        for gone in [each for each in self._granted if each not in but]:
            granted = self._granted.pop(gone)
            if granted.number:
                self._pool.set_quota(granted.holder, None)

    def _let_go(self) -> None:
        """Take back all promised slots and the history's quota; _settling is held."""
        self._take_back(())
        if self.qos.transient_local and isinstance(self._pool, BufferPool):
            self._pool.set_quota(self._historian, None)

    def settle(self) -> None:
        """Promise slots to matched subscriptions that have none, or now ask for another number."""
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
                if not number and each.starved is not None:
                    each.starved()
            self._served = tuple(
                (each, granted.holder)
                for each in matched
                if (granted := self._granted[each]).number and not each.resting
            )

    def granted(self, subscription: BusSubscription[T]) -> Granted | None:
        """Return the slots promised to *subscription*; ``None`` if there is no promise."""
        return self._granted.get(subscription)

    def without_slots(self, subscription: BusSubscription[T]) -> str:
        """Return why the pool has no slot for *subscription*, or an empty text."""
        granted = self._granted.get(subscription)
        return self._pool.too_few if granted is not None and not granted.number else ''

    def in_hand(self, subscription: BusSubscription[T]) -> tuple[tuple[int, float], ...]:
        """Return each frame that *subscription* holds, as (sequence, seconds that it was held)."""
        granted = self._granted.get(subscription)
        return self._pool.in_hand(granted.holder) if granted is not None else ()

    @property
    def served(self) -> tuple[BusSubscription[T], ...]:
        """The subscriptions that get objects now."""
        return tuple(subscription for subscription, _ in self._served)

    def misfit(self, subscription: BusSubscription[T]) -> str:
        """Return why *subscription* can't use this publisher's buffers; empty if it can."""
        if self.objection is None or subscription.consumer is None:
            return ''
        return self.objection(subscription.consumer)

    def matches(self, subscription: BusSubscription[T]) -> bool:
        """
        Return whether *subscription* may get this publisher's objects uncopied.

        Return ``False`` if publisher and subscription have different custom types for the same ROS
        type: then the subscription gets ROS messages, as in REP 2007.
        """
        types = self.custom_type, subscription.custom_type
        fits = not subscription.qos.mismatch(self.qos) and (None in types or types[0] is types[1])
        return fits and not self.misfit(subscription)

    def rematch(self, subscriptions: tuple[BusSubscription[T], ...]) -> None:
        """
        Publish to exactly these *subscriptions* from now on; the bus calls this.

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
        """Release the history and take back all promised slots: the publisher was removed."""
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
    """Remove *entry* from the list under *key* in *table*; return whether it was in the list."""
    entries = table.get(key, [])
    if entry not in entries:
        return False
    entries.remove(entry)
    if not entries:
        del table[key]
    return True


class InProcessBus:
    """
    Matches the publishers and subscriptions that have the same key; the bus owns none of them.

    Any thread may call the methods. The bus holds its lock while it matches.
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
        """Pause (*resting*) or resume *subscription*; it keeps the slots promised to it."""
        with self._lock:
            subscription.resting = resting
            self._match(key)

    def settle(self, key: BusKey) -> None:
        """Call :meth:`BusPublisher.settle` for each publisher under *key*."""
        with self._lock:
            for publisher in self._publishers.get(key, []):
                publisher.settle()

    def remove_subscription(self, key: BusKey, subscription: BusSubscription[Any]) -> None:
        """
        Unregister *subscription*. A second call does nothing.

        An object that another thread is publishing now may still arrive.
        """
        with self._lock:
            discard(self._subscriptions, key, subscription)
            self._match(key)

    def rematch(self, key: BusKey) -> None:
        """Match publishers and subscriptions again, after buffers or constraints have changed."""
        with self._lock:
            self._match(key)

    def _match(self, key: BusKey) -> None:
        # Give a new tuple to each publisher, because publish() reads it without the lock.
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
"""This process's bus. Keys contain a ROS context, so endpoints of two contexts never match."""


class CameraEnd(Protocol):
    """The methods of a camera's publisher that :class:`MeetingPoint` calls."""

    def join(self, consumer: Consumer) -> None:
        """Serve a new consumer, let it wait or refuse it; do nothing before there are buffers."""

    def leave(self, consumer: Consumer) -> None:
        """Forget *consumer*: its constraints no longer count."""


class MeetingPoint:
    """
    The cameras and the consumers of this process, by topic.

    :attr:`lock` is held while a camera or consumer is added or removed, and during negotiation. So
    no consumer is added or removed while buffers are negotiated. Threads that carry frames never
    take this lock. Code that changes which buffers a consumer may use must call
    :meth:`InProcessBus.rematch`.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._cameras: dict[BusKey, list[CameraEnd]] = {}
        self._consumers: dict[BusKey, list[Consumer]] = {}

    def add_camera(self, key: BusKey, camera: CameraEnd) -> None:
        """Add a camera that publishes under *key*."""
        with self.lock:
            self._cameras.setdefault(key, []).append(camera)

    def remove_camera(self, key: BusKey, camera: CameraEnd) -> None:
        """Remove a camera that has ended. A second call does nothing."""
        with self.lock:
            discard(self._cameras, key, camera)

    def add_consumer(self, key: BusKey, consumer: Consumer) -> None:
        """
        Add a consumer of frames under *key*.

        If it can't use a camera's buffers, that camera's publisher logs the reason.
        """
        with self.lock:
            self._consumers.setdefault(key, []).append(consumer)
            for camera in self._cameras.get(key, ()):
                camera.join(consumer)
        BUS.rematch(key)

    def remove_consumer(self, key: BusKey, consumer: Consumer) -> None:
        """Remove *consumer*. A second call does nothing."""
        with self.lock:
            if discard(self._consumers, key, consumer):
                for camera in self._cameras.get(key, ()):
                    camera.leave(consumer)

    def consumers(self, key: BusKey) -> tuple[Consumer, ...]:
        """Return the consumers under *key*; hold :attr:`lock` while you negotiate with them."""
        with self.lock:
            return tuple(self._consumers.get(key, ()))


MEETING = MeetingPoint()
"""The cameras and the consumers of this process."""
