"""How a process of the link benchmark obeys: a command per line, of those that :mod:`~zc_perception.bench.link_worker` lists."""

from __future__ import annotations

from typing import Any

from zc_perception.bench.commands import answer, commands
from zc_perception.bench.interruption import terminable
from zc_perception.bench.link_roles.role import Role


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
    # The end of input comes first, and what it sets off is not to be stopped.
    with terminable():
        for command in commands():
            answer(_obey(role, facts, command))
