"""What ``zc_bench`` and its report print, and how they end: what went wrong as one line, and the exit code that tells it."""

from __future__ import annotations

import sys
from collections.abc import Callable

from zc_perception.errors import EXIT_USAGE, ConfigError, ZcError, error_line
from zc_perception.terminal import Interrupted, interruptions, put

EXIT_FAILURE = 1


def say(line: str) -> None:
    """What goes on, to standard error, if that can be."""
    put(line, sys.stderr)


def show(text: str) -> str:
    """A result, to standard output; why it can't be, or nothing."""
    error = put(text, sys.stdout)
    return '' if error is None else error.strerror or str(error)


def exit_code_of(command: str, work: Callable[[], int]) -> int:
    """What *work* returns, or 1: it failed, 2: arguments, or nowhere to put the result, 128 + n: signal n.

    :param command: its name, for the line that says so.
    """
    with interruptions() as interruption:
        try:
            with interruption.allowed():
                return work()
        except ZcError as error:
            say(error_line(command, error))
            return EXIT_USAGE if isinstance(error, ConfigError) else EXIT_FAILURE
        except Interrupted as interrupted:
            say(f'{command}: ended by {interrupted}')
            return interrupted.exit_code
