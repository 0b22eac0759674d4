"""The in-process link: the same FrameData for every subscriber in this process. No ROS message, no conversion.

Publishers and subscriptions meet under a key of (context, resolved topic, ROS type). Registration is rare and locks; publishing
reads one immutable tuple.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from zc_perception.frame import Frame
from zc_perception.frame_queue import FrameQueue

BusKey = tuple[Hashable, str, str]
_numbers = itertools.count(1)


@dataclass(frozen=True)
class LinkQos:
    """The part of a QoS profile that decides matching and queueing. ``depth`` ``None`` is keep-all."""

    depth: int | None
    reliable: bool = True
    transient_local: bool = False

    def accepts(self, offered: LinkQos) -> bool:
        """Whether a subscription with this profile matches a publisher that offers *offered*, by the rules of DDS."""
        return (offered.reliable or not self.reliable) and (offered.transient_local or not self.transient_local)


@dataclass(eq=False)
class BusSubscription:
    """A subscriber's end: its own queue, and how to wake it.

    :param holder: its name among the holders of leases, unique in the process.
    :param notify: called after each frame was queued; must not block.
    """

    holder: str
    qos: LinkQos
    queue: FrameQueue
    notify: Callable[[], None] | None = None
    delivered: int = 0
    refused: int = 0


@dataclass(eq=False)
class BusPublisher:
    """A publisher's end."""

    name: str
    qos: LinkQos
    matched: tuple[BusSubscription, ...] = ()
    number: int = field(default_factory=lambda: next(_numbers))

    def publish(self, frame: Frame) -> None:
        """Give every matched subscription a Frame of its own. The caller keeps its lease. Never blocks."""
        for subscription in self.matched:
            delivery = frame.deliver(subscription.holder)
            if delivery is None:
                subscription.refused += 1
                continue
            delivery.published_ns = frame.published_ns
            subscription.delivered += 1
            subscription.queue.put(delivery)
            if subscription.notify is not None:
                subscription.notify()


class InProcessBus:
    """Who is there under each key."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._publishers: dict[BusKey, list[BusPublisher]] = {}
        self._subscriptions: dict[BusKey, list[BusSubscription]] = {}

    def add_publisher(self, key: BusKey, publisher: BusPublisher) -> None:
        """Register and match."""
        with self._lock:
            self._publishers.setdefault(key, []).append(publisher)
            self._match(key)

    def remove_publisher(self, key: BusKey, publisher: BusPublisher) -> None:
        """Unregister. A second call does nothing."""
        with self._lock:
            self._discard(self._publishers, key, publisher)
            publisher.matched = ()

    def add_subscription(self, key: BusKey, subscription: BusSubscription) -> None:
        """Register and match."""
        with self._lock:
            self._subscriptions.setdefault(key, []).append(subscription)
            self._match(key)

    def remove_subscription(self, key: BusKey, subscription: BusSubscription) -> None:
        """Unregister; a frame that is being published right now may still arrive. A second call does nothing."""
        with self._lock:
            self._discard(self._subscriptions, key, subscription)
            self._match(key)

    @staticmethod
    def _discard(table: dict[BusKey, list], key: BusKey, entry: object) -> None:  # type: ignore[type-arg]
        entries = table.get(key, [])
        if entry in entries:
            entries.remove(entry)
        if not entries:
            table.pop(key, None)

    def _match(self, key: BusKey) -> None:
        """Lock held: publishers read their tuple without it, so it is replaced, never changed."""
        subscriptions = self._subscriptions.get(key, [])
        for publisher in self._publishers.get(key, []):
            publisher.matched = tuple(s for s in subscriptions if s.qos.accepts(publisher.qos))

    def publishers(self, key: BusKey) -> tuple[BusPublisher, ...]:
        """Publishers under *key*."""
        with self._lock:
            return tuple(self._publishers.get(key, ()))

    def subscriptions(self, key: BusKey) -> tuple[BusSubscription, ...]:
        """Subscriptions under *key*."""
        with self._lock:
            return tuple(self._subscriptions.get(key, ()))


BUS = InProcessBus()
"""The process's bus. Contexts are part of the key, so that tests with a context each don't meet."""
