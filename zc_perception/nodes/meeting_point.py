"""Where the cameras and the consumers of a process find each other, whoever comes first.

A consumer that is there when a camera agrees on its buffers takes part in that; one that comes later joins, and imports what is allocated.
Both may leave and come again: a component is unloaded, a node is cleaned up.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Hashable
from typing import Protocol

from rclpy.context import Context
from rclpy.node import Node

from zc_perception.errors import ZcError
from zc_perception.memory.ledger import CopyLedger
from zc_perception.negotiation.token import Consumer

Place = tuple[Hashable, str]


class CameraEnd(Protocol):
    """A camera's node."""

    def join(self, consumer: Consumer) -> None:
        """Let a consumer in that came after the allocation; without buffers there is nothing to do, they are agreed on later.

        :raises NegotiationError: what is allocated doesn't suit it.
        """

    def leave(self, consumer: Consumer) -> None:
        """It takes no part any more."""


class MeetingPoint:
    """Of one process. :attr:`lock` is held while anybody comes, goes or agrees, so that nobody is missed and nobody leaves half-way.

    It is never taken by threads that frames run through.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._cameras: dict[Place, list[CameraEnd]] = {}
        self._consumers: dict[Place, list[Consumer]] = {}

    def add_camera(self, place: Place, camera: CameraEnd) -> None:
        """It publishes there from now on."""
        with self.lock:
            self._cameras.setdefault(place, []).append(camera)

    def remove_camera(self, place: Place, camera: CameraEnd) -> None:
        """It has ended. A second call does nothing."""
        with self.lock:
            _discard(self._cameras, place, camera)

    def add_consumer(self, place: Place, consumer: Consumer) -> list[str]:
        """It takes frames from there from now on.

        :returns: why the buffers of a camera that is there don't suit it; its next negotiation may change that.
        """
        problems = []
        with self.lock:
            self._consumers.setdefault(place, []).append(consumer)
            for camera in self._cameras.get(place, ()):
                try:
                    camera.join(consumer)
                except ZcError as error:
                    problems.append(str(error))
        return problems

    def remove_consumer(self, place: Place, consumer: Consumer) -> None:
        """It takes none any more. A second call does nothing."""
        with self.lock:
            if _discard(self._consumers, place, consumer):
                for camera in self._cameras.get(place, ()):
                    camera.leave(consumer)

    def consumers(self, place: Place) -> tuple[Consumer, ...]:
        """Who is there. Keep :attr:`lock` while they agree."""
        with self.lock:
            return tuple(self._consumers.get(place, ()))


def _discard(table: dict[Place, list], place: Place, entry: object) -> bool:
    entries = table.get(place, [])
    # By identity: two consumers may be equal.
    found = [number for number, other in enumerate(entries) if other is entry]
    for number in found:
        del entries[number]
    if not entries:
        table.pop(place, None)
    return bool(found)


def place_of(node: Node, topic: str) -> Place:
    """Where a node's topic is, remaps and namespace applied. Contexts are part of it, as on the bus."""
    return id(node.context), node.resolve_topic_name(topic)


MEETING = MeetingPoint()
"""The process's."""

_LEDGERS: weakref.WeakKeyDictionary[Context, CopyLedger] = weakref.WeakKeyDictionary()
_LEDGERS_LOCK = threading.Lock()


def process_ledger(context: Context) -> CopyLedger:
    """What the CPU did to pixels in this process, in one ledger for all nodes, however they were made; a program has one context."""
    with _LEDGERS_LOCK:
        ledger = _LEDGERS.get(context)
        if ledger is None:
            ledger = _LEDGERS[context] = CopyLedger()
        return ledger
