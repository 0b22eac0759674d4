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

from zc_perception.nodes.perception_node import PATIENCE_S, PerceptionNode

# systemd recommends half of the time that it waits; twice in it, so that one may come late on a loaded machine.
_PER_TIMEOUT = 3.0


def serve(
    wait: Callable[[float | None], bool],
    worry: Callable[[], str],
    monotonic: Callable[[], float] = time.monotonic,
) -> None:
    """Wait for the end; meanwhile a service manager, where one has started us, hears that we are ready and live.

    Whoever has been given ``$WATCHDOG_USEC`` feeds the watchdog, whatever ``$WATCHDOG_PID`` is: a service's main process may be
    ``ros2 launch``, which speaks no sd_notify.

    :param wait: whether the end was asked for, within so many seconds (``None``: whenever).
    :param worry: why the program can't be said to live, see :meth:`Liveness.worry`; empty: it lives.
    """
    notify('READY=1')
    microseconds = os.environ.get('WATCHDOG_USEC', '')
    period_s = int(microseconds) / 1e6 / _PER_TIMEOUT if microseconds.isdecimal() else 0.0
    due_s, status = monotonic(), ''
    while True:
        now = monotonic()
        if period_s and now >= due_s:
            due_s = now + period_s
            doubt = worry()
            before, status = status, doubt or 'running; /diagnostics says whether frames flow'
            if status != before:
                notify(f'STATUS={" ".join(status.split())}')
            if not doubt:
                notify('WATCHDOG=1')
        if wait(max(0.0, due_s - now) if period_s else None):
            break
    notify('STOPPING=1')


def notify(message: str) -> None:
    """Send one message to the service manager. Where none has started us, is there, or reads, do nothing."""
    address = os.environ.get('NOTIFY_SOCKET', '')
    if address.startswith(('/', '@')):
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as speaking,
        ):
            # An abstract address is written with @.
            speaking.sendto(message.encode(), f'\0{address[1:]}' if address[0] == '@' else address)


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
