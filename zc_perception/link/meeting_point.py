"""Where the cameras and the consumers of a process find each other, whoever comes first.

A consumer that is there when a camera agrees on its buffers takes part in that. One that comes later joins, and imports what is
allocated. Both may leave and come again: a component is unloaded, a node is cleaned up.
"""

from __future__ import annotations

import threading
from typing import Protocol

from zc_perception.link.bus import BUS, BusKey, discard
from zc_perception.negotiation.session import Consumer


class CameraEnd(Protocol):
    """Somebody who publishes a camera's frames."""

    def join(self, consumer: Consumer) -> None:
        """Let a consumer in that came after the allocation; without buffers there is nothing to do, they are agreed on later."""

    def leave(self, consumer: Consumer) -> None:
        """It takes no part any more."""


class MeetingPoint:
    """The cameras and the consumers of this process, by topic. :attr:`lock` is held while anybody comes, goes or agrees on buffers: nobody
    is missed, and nobody leaves half-way.

    Threads that carry frames never take that lock. Whoever changes what a consumer may get calls :meth:`InProcessBus.rematch`.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._cameras: dict[BusKey, list[CameraEnd]] = {}
        self._consumers: dict[BusKey, list[Consumer]] = {}

    def add_camera(self, key: BusKey, camera: CameraEnd) -> None:
        """It publishes there from now on."""
        with self.lock:
            self._cameras.setdefault(key, []).append(camera)

    def remove_camera(self, key: BusKey, camera: CameraEnd) -> None:
        """It has ended. A second call does nothing."""
        with self.lock:
            discard(self._cameras, key, camera)

    def add_consumer(self, key: BusKey, consumer: Consumer) -> None:
        """It takes frames from there from now on. Why a camera's buffers don't suit it, that camera's publisher says."""
        with self.lock:
            self._consumers.setdefault(key, []).append(consumer)
            for camera in self._cameras.get(key, ()):
                camera.join(consumer)
        BUS.rematch(key)

    def remove_consumer(self, key: BusKey, consumer: Consumer) -> None:
        """It takes none any more. A second call does nothing."""
        with self.lock:
            if discard(self._consumers, key, consumer):
                for camera in self._cameras.get(key, ()):
                    camera.leave(consumer)

    def consumers(self, key: BusKey) -> tuple[Consumer, ...]:
        """Who is there. Keep :attr:`lock` while they agree."""
        with self.lock:
            return tuple(self._consumers.get(key, ()))


MEETING = MeetingPoint()
"""The process's."""
