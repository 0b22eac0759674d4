"""What processes of nodes have in common that the benchmark starts: they end in order when they are told to, and say why when they fail."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType

import rclpy

from zc_perception.errors import ZcError
from zc_perception.nodes.process import ros_context
from zc_perception.verify.bench.commands import answer


def _do_nothing(number: int, frame: FrameType | None) -> None:
    """Not SIG_IGN, about which Python complains when a signal has just come."""


def _terminate(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, _do_nothing)
    raise SystemExit(128 + number)


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """While it lasts SIGTERM ends the process; what is built up before, and taken down after it, isn't left half-way."""
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        yield
    finally:
        signal.signal(signal.SIGTERM, _do_nothing)


def run_worker(serve: Callable[[rclpy.Context], None]) -> None:
    """Run *serve*, which is :func:`terminable` where it waits for commands.

    :raises SystemExit: 1 after an error, which is the answer to the command then.
    """
    # Not before there is something to end in order, and in this thread alone.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    signal.signal(signal.SIGTERM, _terminate)
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
