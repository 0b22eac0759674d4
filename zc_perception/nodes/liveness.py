"""Whether the nodes of a process get on with their work, for the watchdog of a service.

What the nodes know themselves isn't a worry: a camera that is unplugged, a card that recovers, a node that nobody has activated. They say
so in diagnostics, and a restart would change nothing. A worry is what nobody would say otherwise: a thread or an executor that hangs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from zc_perception.camera.supervisor import CameraState, CameraSupervisor
from zc_perception.nodes.capture_status import CaptureCounters

PATIENCE_S = 15.0
"""An executor, and a node that has nothing slower to wait for, may take so long."""
_SLOWEST_HZ = 3.0 / PATIENCE_S


class Worker(Protocol):
    """A node that works."""

    def get_fully_qualified_name(self) -> str:
        """Its name."""

    def progress(self) -> int | None:
        """A number that grows while work gets done; ``None`` while there is none, or the node knows why there is no progress."""

    def given_up(self) -> str:
        """Why only a restart helps; empty: it doesn't need one."""

    @property
    def patience_s(self) -> float:
        """So long it may take until :meth:`progress` changes."""


def camera_progress(supervisor: CameraSupervisor, counters: CaptureCounters) -> int | None:
    """Frames that a camera has had, whatever became of them; ``None`` while it is waited for, or so slow that its silence says nothing."""
    camera = supervisor.camera
    if supervisor.condition.state is not CameraState.STREAMING or camera is None or 0 < camera.framerate < _SLOWEST_HZ:
        return None
    total = counters.total()
    return total.captured + total.dropped


def camera_given_up(supervisor: CameraSupervisor) -> str:
    """Why no waiting brings a camera back; empty: it would."""
    condition = supervisor.condition
    return condition.reason if condition.state is CameraState.FAILED else ''


@dataclass
class _Seen:
    value: int
    since_s: float


class Liveness:
    """Looks at executors and nodes each time it is asked. Takes no lock of theirs: it must not hang with them.

    :param workers: the nodes that there are now.
    :param executors: each runs a function soon, on its own thread; by names.
    :param monotonic: seconds.
    """

    def __init__(
        self,
        workers: Callable[[], Sequence[Worker]],
        executors: Mapping[str, Callable[[Callable[[], object]], object]],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._workers = workers
        self._executors = executors
        self._monotonic = monotonic
        self._asked: dict[str, float] = {}
        self._seen: dict[str, _Seen] = {}

    def worry(self) -> str:
        """One sentence; empty if there is nothing to worry about."""
        return '; '.join([*self._look_at_executors(), *self._look_at_workers()])

    def _look_at_executors(self) -> list[str]:
        now, found = self._monotonic(), []
        for name, soon in self._executors.items():
            asked = self._asked.setdefault(name, now)
            if asked == now:
                soon(partial(self._asked.pop, name, None))
            elif now - asked > PATIENCE_S:
                found.append(f'{name} has run nothing for {now - asked:.0f} s')
        return found

    def _look_at_workers(self) -> list[str]:
        now, found, names = self._monotonic(), [], set()
        for worker in self._workers():
            name = worker.get_fully_qualified_name()
            names.add(name)
            if reason := worker.given_up():
                found.append(f'{name} has given up: {reason}')
            progress = worker.progress()
            if progress is None:
                self._seen.pop(name, None)
                continue
            seen = self._seen.get(name)
            if seen is None or seen.value != progress:
                self._seen[name] = _Seen(progress, now)
            elif now - seen.since_s > worker.patience_s:
                found.append(f'{name} has made no progress for {now - seen.since_s:.0f} s')
        for name in self._seen.keys() - names:
            del self._seen[name]
        return found
