"""Fences of this process that a server waits for before it sends a frame."""

from __future__ import annotations

import select
import threading

from zc_perception.memory.fence import Fence
from zc_perception.memory.owned_fd import OwnedFd


class FenceWatch:
    """Fences in an epoll, by the number of a duplicate: a fence's owner may close it at any time. Thread-safe.

    :param epoll: borrowed.
    """

    def __init__(self, epoll: select.epoll) -> None:
        self._epoll = epoll
        self._lock = threading.Lock()
        self._watched: dict[int, tuple[OwnedFd, Fence]] = {}
        self._closed = False

    def __len__(self) -> int:
        return len(self._watched)

    def add(self, fence: Fence) -> None:
        """Watch *fence*; once, however often this is called."""
        with self._lock:
            if self._closed or any(watched is fence for _, watched in self._watched.values()):
                return
            fd = OwnedFd.duplicate(fence.fileno())
            self._watched[fd.fileno()] = fd, fence
            self._epoll.register(fd.fileno(), select.EPOLLIN)

    def signalled(self, number: int) -> bool:
        """Whether the readable descriptor *number* was one of these; it is no longer."""
        with self._lock:
            fd, _ = self._watched.pop(number, (None, None))
            if fd is None:
                return False
            self._epoll.unregister(fd.fileno())
            fd.close()
            return True

    def close(self) -> None:
        """Forget all of them."""
        with self._lock:
            self._closed = True
            for fd, _ in self._watched.values():
                fd.close()
            self._watched.clear()
