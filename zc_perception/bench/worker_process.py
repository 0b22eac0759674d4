"""What processes of nodes have in common that the benchmark starts: they end in order when they are told to, and say why when they fail."""

from __future__ import annotations

import sys
from collections.abc import Callable

import rclpy

from zc_perception.bench.commands import answer
from zc_perception.bench.interruption import hold_back_termination
from zc_perception.errors import ZcError
from zc_perception.nodes.process import ros_context


def run_worker(serve: Callable[[rclpy.Context], None]) -> None:
    """Run *serve*, which is :func:`~zc_perception.bench.interruption.terminable` where it waits for commands.

    :raises SystemExit: 1 after an error, which is the answer to the command then.
    """
    hold_back_termination()
    try:
        with ros_context(['--ros-args', '--log-level', 'error']) as context:
            serve(context)
    except ZcError as error:
        answer({'failure': str(error)})
        raise SystemExit(1) from None


def last_words(failure: str | None) -> dict[str, str]:
    """The answer of a process whose executor has ended with a traceback; all of it goes to standard error."""
    text = failure or 'unknown'
    print(text, file=sys.stderr)
    return {'failure': f'its executor has ended: {text.strip().splitlines()[-1]}'}
