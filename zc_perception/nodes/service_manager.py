"""Tells systemd that the program is ready, lives, and stops: one datagram each to ``$NOTIFY_SOCKET`` (sd_notify(3)).

The watchdog has to notice a program that hangs, not a camera that is unplugged: restarting would bring nothing, and would take the
diagnostics away that say so. So it is fed while frames flow, and while the nodes know why none do.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path

_MICROSECONDS = 1e-6
# systemd recommends half of the time that it waits; twice in it, so that one may come late on a loaded machine.
_PER_TIMEOUT = 3.0
_ANCESTORS = 64


class ServiceManager:
    """The end of ``$NOTIFY_SOCKET`` that a service speaks at. Without that variable every call does nothing.

    :param environ: the process's environment. The variables stay in it: a program that we start may speak too.
    :param proc: the proc file system, to find out whether the watchdog waits for this process.
    """

    def __init__(self, environ: Mapping[str, str] = os.environ, proc: Path = Path('/proc')) -> None:
        self._address = _address(environ.get('NOTIFY_SOCKET', ''))
        self._socket: socket.socket | None = None
        if self._address is not None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        self.watchdog_s = _watchdog_s(environ, proc) if self._socket is not None else 0.0
        self._status = ''

    @property
    def period_s(self) -> float | None:
        """How often :meth:`alive` has to be called; ``None``: there is no watchdog."""
        return self.watchdog_s / _PER_TIMEOUT if self.watchdog_s else None

    def ready(self) -> None:
        """Everything has started. What the unit waits for with ``Type=notify``."""
        self._send('READY=1')

    def alive(self) -> None:
        """Feed the watchdog."""
        if self.watchdog_s:
            self._send('WATCHDOG=1')

    def status(self, text: str) -> None:
        """One line for ``systemctl status``; sent when it changes."""
        line = ' '.join(text.split())
        if line != self._status:
            self._status = line
            self._send(f'STATUS={line}')

    def stopping(self) -> None:
        """The end has begun."""
        self._send('STOPPING=1')

    def _send(self, message: str) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):  # never a reason to stop, nor to wait: a full queue means that it has enough to read
                self._socket.sendto(message.encode(), self._address)

    def close(self) -> None:
        """Give the socket back. Idempotent."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def __enter__(self) -> ServiceManager:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class Heartbeat:
    """Feeds the watchdog from a loop that waits for something else.

    :param worry: why the program can't be said to live; empty: it lives.
    :param monotonic: seconds.
    """

    def __init__(
        self, manager: ServiceManager, worry: Callable[[], str] = lambda: '', monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._manager = manager
        self._worry = worry
        self._monotonic = monotonic
        self._next_s = monotonic()

    def wait(self, wait: Callable[[float | None], bool]) -> None:
        """Call *wait* with the seconds until the next beat until it returns true.

        :param wait: returns whether the end was asked for, within so many seconds (``None``: whenever).
        """
        while not wait(self.beat()):
            pass

    def beat(self) -> float | None:
        """Feed the watchdog if it is time to; seconds until the next time, ``None`` without a watchdog."""
        period = self._manager.period_s
        if period is None:
            return None
        now = self._monotonic()
        if now >= self._next_s:
            worry = self._worry()
            self._manager.status(worry or 'running; /diagnostics says whether frames flow')
            if not worry:
                self._manager.alive()
            self._next_s = now + period
        return max(0.0, self._next_s - now)


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
    if timeout <= 0.0:
        return 0.0
    return timeout if not wanted or wanted in _ourselves_and_above(proc) else 0.0


def _ourselves_and_above(proc: Path) -> list[int]:
    """This process and those that it descends from: the service's main process may be ``ros2 launch``, which speaks no sd_notify."""
    pids = [os.getpid()]
    with contextlib.suppress(OSError, ValueError, IndexError):
        while len(pids) < _ANCESTORS and pids[-1] > 1:
            # The name before it, in brackets, may hold anything.
            pids.append(int((proc / str(pids[-1]) / 'stat').read_text(encoding='utf-8', errors='replace').rpartition(')')[2].split()[1]))
    return pids
