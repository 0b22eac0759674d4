"""Places on a device that are still taken by jobs whose owner has given them up."""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Callable

from zc_perception.memory.fence import DeadlineFence, Fence
from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.npu.accelerator import Job


class LatePlaces:
    """One thread uses it. Each place is free again once its job's own fence has signalled.

    The fence itself belongs to the frame's lease by then, which closes it as it likes; so a duplicate is polled.

    :param poller: where the duplicates are registered; whoever polls it hands what comes to :meth:`ended`.
    """

    def __init__(self, poller: select.poll) -> None:
        self._poller = poller
        self._fences: dict[int, OwnedFd] = {}
        self._kept: list[Fence] = []

    def __len__(self) -> int:
        return len(self._fences)

    def give_up(self, job: Job, timeout_s: float) -> Fence:
        """Abandon a job, and count its place as taken until the device is done with it.

        :param timeout_s: how long the frame is kept if the job can't be abandoned.
        :returns: the fence that the frame waits for; the caller's.
        """
        place = None
        # Without a descriptor left, the accelerator itself says of the next job whether there is room.
        with contextlib.suppress(OSError, ValueError):
            place = OwnedFd(os.dup(job.fence.fileno()))
        try:
            fence = job.abandon()
        except Exception:
            if place is not None:
                place.close()
            # Nobody will tell when the device is done: after a second timeout it is, or never.
            with contextlib.suppress(Exception):
                job.close()
            return DeadlineFence(timeout_s)
        if place is not None:
            fd = place.fileno()
            self._fences[fd] = place
            self._poller.register(fd, select.POLLIN)
        return fence

    def ended(self, fd: int) -> bool:
        """Whether *fd* is one of these; its place is free then."""
        place = self._fences.pop(fd, None)
        if place is None:
            return False
        self._poller.unregister(fd)
        place.close()
        self._close_kept(lambda fence: fence.wait(0.0))
        return True

    def keep(self, fence: Fence) -> None:
        """Own a fence that no lease wants. A fence that is closed before it has signalled never does."""
        self._kept.append(fence)

    def _close_kept(self, over: Callable[[Fence], bool]) -> None:
        for fence in self._kept[:]:
            if over(fence):
                self._kept.remove(fence)
                fence.close()

    def clear(self) -> None:
        """Forget all: their device is gone, or nobody waits any more."""
        for fd in list(self._fences):
            self.ended(fd)
        self._close_kept(lambda fence: True)
