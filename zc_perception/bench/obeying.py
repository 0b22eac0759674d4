"""How a process that measures gets its commands and answers them; :mod:`~zc_perception.bench.worker` is the other end.

The module imports next to nothing: the processes of the floors must have nothing else loaded.

A process of nodes is :func:`run_worker` around :func:`obey`: it ends in order when it is told to, and says why when it fails.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from zc_perception.bench.interruption import hold_back_termination, terminable
from zc_perception.errors import ZcError

if TYPE_CHECKING:
    import rclpy

    from zc_perception.nodes.process import ExecutorThread, NodeGroup


def commands() -> Iterator[dict[str, Any]]:
    """Each command, until standard input ends."""
    for line in sys.stdin:
        yield json.loads(line)


def answer(reply: Mapping[str, Any]) -> None:
    """One line to standard output.

    :raises SystemExit: nobody listens any more: the benchmark was killed.
    """
    try:
        print(json.dumps(reply), flush=True)
    except BrokenPipeError:
        # The interpreter flushes once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None


def run_worker(serve: Callable[[rclpy.Context], None]) -> None:
    """Run *serve*, which calls :func:`obey` once everything is built up.

    :raises SystemExit: 1 after an error, which is the answer to the command then.
    """
    from zc_perception.nodes.process import ros_context

    hold_back_termination()
    try:
        with ros_context(['--ros-args', '--log-level', 'error']) as context:
            serve(context)
    except ZcError as error:
        answer({'failure': str(error)})
        raise SystemExit(1) from None


def obey(server: object, failed: threading.Event, running: ExecutorThread | NodeGroup) -> None:
    """Call the method of *server* that each command names, until standard input ends or SIGTERM comes.

    :param failed: set when the executor of *running* has ended with a traceback: that is the answer then.
    """
    with terminable():
        for command in commands():
            answer(_last_words(running.failure) if failed.is_set() else getattr(server, command.pop('op'))(**command))


def _last_words(failure: str | None) -> dict[str, str]:
    """All of the traceback goes to standard error."""
    text = failure or 'unknown'
    print(text, file=sys.stderr)
    return {'failure': f'its executor has ended: {text.strip().splitlines()[-1]}'}
