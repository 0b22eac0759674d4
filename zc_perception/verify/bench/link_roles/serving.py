"""How a process of the link benchmark obeys: a command per line, of those that :mod:`~zc_perception.verify.bench.link_worker` lists."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any

from zc_perception.verify.bench.commands import answer, commands
from zc_perception.verify.bench.link_roles.role import Role


def _do_nothing(number: int, frame: FrameType | None) -> None:
    """Not SIG_IGN, about which Python complains when a signal has just come."""


def _terminate(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, _do_nothing)
    raise SystemExit(128 + number)


def hold_back_termination() -> None:
    """Call it first, in the main thread: SIGTERM waits until there is something to end in order."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    signal.signal(signal.SIGTERM, _terminate)


def _obey(role: Role, facts: dict[str, Any], command: dict[str, Any]) -> dict[str, Any]:
    operation = command.pop('op')
    if operation == 'describe':
        return facts
    if operation == 'matched':
        matched, reason = role.matched()
        return {'matched': matched, 'reason': '' if matched else reason}
    if operation == 'run':
        return role.run(**command)
    if operation == 'end':
        return {'arrived': role.end(**command)}
    if operation == 'spent':
        return role.spent()
    (role.prepare if operation == 'prepare' else role.begin)(**command)
    return {}


def serve(role: Role, facts: dict[str, Any]) -> None:
    """Until standard input ends, or :exc:`SystemExit` on SIGTERM.

    :param facts: what ``describe`` answers.
    """
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        for command in commands():
            answer(_obey(role, facts, command))
    finally:
        # The end of input comes first, and what it sets off is not to be stopped.
        signal.signal(signal.SIGTERM, _do_nothing)
