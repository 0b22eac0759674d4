"""Waiting for release fences and for other threads at once, in one poll(2)."""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Iterable

from zc_perception.memory.fence import Fence
from zc_perception.memory.owned_fd import OwnedFd

_LOOK_AGAIN_MS = 50


class Waker:
    """Ends waits from other threads, and from finalizers: :meth:`wake` takes no lock.

    A semaphore of tokens (EFD_SEMAPHORE, eventfd(2)): each wake-up is one token, and each wait that ends takes one, so that two wake-ups
    reach two waiters and none is lost between looking and waiting. It is closed only by being collected, together with whatever could
    still call :meth:`wake`: its number must not become another file's while a finalizer writes to it.

    A process may have no descriptor left for it: nothing ends a wait early then, and each wait ends soon by itself.
    """

    def __init__(self) -> None:
        self._fd: OwnedFd | None = None
        with contextlib.suppress(OSError):
            self._fd = OwnedFd(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK | os.EFD_SEMAPHORE))

    def wake(self, waits: int = 1) -> None:
        """End as many waits, now or when they begin."""
        if self._fd is None:
            return
        # The collector may have closed it before the finalizer that calls.
        with contextlib.suppress(ValueError, OSError):
            os.eventfd_write(self._fd.fileno(), waits)

    def wait(self, timeout_s: float | None, fences: Iterable[Fence]) -> None:
        """Until a token is there, one of *fences* has signalled, or *timeout_s* has passed (``None``: no bound). Never spins."""
        poller = select.poll()
        timeout_ms = None if timeout_s is None else max(0, int(timeout_s * 1000 + 0.999))
        if self._fd is None:
            timeout_ms = _soon(timeout_ms)
        else:
            poller.register(self._fd.fileno(), select.POLLIN)
        for fence in fences:
            with contextlib.suppress(ValueError, OSError):  # its deadline decides
                poller.register(fence.fileno(), select.POLLIN)
        events = poller.poll(timeout_ms)
        broken = [fd for fd, event in events if not event & select.POLLIN]
        if broken and len(broken) == len(events):
            # A closed number, or one whose other end is gone, makes poll return at once, again and again.
            for fd in broken:
                poller.unregister(fd)
            poller.poll(_soon(timeout_ms))
        if self._fd is not None:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._fd.fileno())


def _soon(timeout_ms: int | None) -> int:
    return _LOOK_AGAIN_MS if timeout_ms is None else min(timeout_ms, _LOOK_AGAIN_MS)
