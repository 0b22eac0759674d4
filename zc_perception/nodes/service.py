"""Tells systemd that the program is ready, lives, and stops: one datagram each to ``$NOTIFY_SOCKET`` (sd_notify(3)).

The watchdog has to notice a program that hangs, not a camera that is unplugged: restarting would bring nothing, and would take the
diagnostics away that say so. So it is fed while the nodes get on with their work, and while they know why they don't: a camera that is
unplugged, a card that recovers, a node that nobody has activated. A worry is what nobody would say otherwise: a thread or an executor that
hangs.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from zc_perception.nodes.perception_node import PATIENCE_S, PerceptionNode
from zc_perception.observe.processes import PROC, process_state

_MICROSECONDS = 1e-6
# systemd recommends half of the time that it waits; twice in it, so that one may come late on a loaded machine.
_PER_TIMEOUT = 3.0
_ANCESTORS = 64


def serve(wait: Callable[[float | None], bool], liveness: Liveness) -> None:
    """Wait for the end; meanwhile a service manager, where one has started us, hears that we are ready and live.

    :param wait: whether the end was asked for, within so many seconds (``None``: whenever).
    """
    with ServiceManager() as manager:
        manager.ready()
        manager.feed_watchdog(wait, liveness.worry)
        manager.stopping()


class ServiceManager:
    """The end of ``$NOTIFY_SOCKET`` that a service speaks at. Without that variable every call does nothing.

    :param environ: the process's environment. The variables stay in it: a program that we start may speak too.
    :param proc: the proc file system, to find out whether the watchdog waits for this process.
    """

    def __init__(
        self,
        environ: Mapping[str, str] = os.environ,
        proc: Path = PROC,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._address = _address(environ.get('NOTIFY_SOCKET', ''))
        self._socket: socket.socket | None = None
        if self._address is not None:
            self._socket = socket.socket(
                socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
            )
        self._period_s = (
            _watchdog_s(environ, proc) / _PER_TIMEOUT if self._socket is not None else 0.0
        )
        self._status = ''
        self._monotonic = monotonic

    def ready(self) -> None:
        """Everything has started. What the unit waits for with ``Type=notify``."""
        self._send('READY=1')

    def feed_watchdog(
        self, wait: Callable[[float | None], bool], worry: Callable[[], str]
    ) -> None:
        """Feed the watchdog as often as it needs that, until *wait* returns true; and say how the program is to ``systemctl status``.

        :param wait: as for :func:`serve`.
        :param worry: why the program can't be said to live; empty: it lives.
        """
        due_s = self._monotonic()
        while True:
            now = self._monotonic()
            if self._period_s and now >= due_s:
                due_s = now + self._period_s
                doubt = worry()
                self._say(doubt or 'running; /diagnostics says whether frames flow')
                if not doubt:
                    self._send('WATCHDOG=1')
            if wait(max(0.0, due_s - now) if self._period_s else None):
                return

    def stopping(self) -> None:
        """The end has begun."""
        self._send('STOPPING=1')

    def _say(self, text: str) -> None:
        line = ' '.join(text.split())
        if line != self._status:
            self._status = line
            self._send(f'STATUS={line}')

    def _send(self, message: str) -> None:
        if self._socket is not None:
            with contextlib.suppress(
                OSError
            ):  # never a reason to stop, nor to wait: a full queue means that it has enough to read
                self._socket.sendto(message.encode(), self._address)

    def __enter__(self) -> ServiceManager:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _address(name: str) -> str | bytes | None:
    if name.startswith('@') and len(name) > 1:  # an abstract one
        return b'\0' + name[1:].encode()
    return name if name.startswith('/') else None


def _watchdog_s(environ: Mapping[str, str], proc: Path) -> float:
    """The time within which the manager wants to hear of us; 0: it doesn't."""
    try:
        timeout = int(environ.get('WATCHDOG_USEC', '0')) * _MICROSECONDS
        wanted = int(environ.get('WATCHDOG_PID', '0'))
    except ValueError:
        return 0.0
    return max(0.0, timeout) if not wanted or wanted in _ourselves_and_above(proc) else 0.0


def _ourselves_and_above(proc: Path) -> list[int]:
    """This process and those that it descends from: the service's main process may be ``ros2 launch``, which speaks no sd_notify."""
    pids = [os.getpid()]
    while len(pids) < _ANCESTORS and pids[-1] > 1 and (state := process_state(pids[-1], proc)):
        pids.append(state.parent)
    return pids


class Liveness:
    """Whether the nodes of a process and their executors get on. It looks each time it is asked, and takes no lock of theirs: it must not
    hang with them.

    :param nodes: those that there are now.
    :param executors: each runs a function soon, on its own thread; by names.
    """

    def __init__(
        self,
        nodes: Callable[[], Sequence[PerceptionNode]],
        executors: Mapping[str, Callable[[Callable[[], object]], object]],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._nodes = nodes
        self._executors = executors
        self._monotonic = monotonic
        self._asked: dict[str, float] = {}
        self._seen: dict[str, tuple[int, float]] = {}
        """Of each node its progress, and since when it is this."""

    def worry(self) -> str:
        """One sentence; empty if there is nothing to worry about."""
        return '; '.join([*self._look_at_executors(), *self._look_at_nodes()])

    def _look_at_executors(self) -> list[str]:
        now, found = self._monotonic(), []
        for name, soon in self._executors.items():
            asked = self._asked.setdefault(name, now)
            if asked == now:
                soon(partial(self._asked.pop, name, None))
            elif now - asked > PATIENCE_S:
                found.append(f'{name} has run nothing for {now - asked:.0f} s')
        return found

    def _look_at_nodes(self) -> list[str]:
        now, found = self._monotonic(), []
        before, self._seen = self._seen, {}
        for node in self._nodes():
            name, progress = node.get_fully_qualified_name(), node.progress()
            if reason := node.given_up():
                found.append(f'{name} has given up: {reason}')
            if progress is None:
                continue
            seen, since_s = before.get(name, (None, now))
            self._seen[name] = progress, since_s if seen == progress else now
            if seen == progress and now - since_s > node.patience_s:
                found.append(f'{name} has made no progress for {now - since_s:.0f} s')
        return found
