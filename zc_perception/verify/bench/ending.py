"""How ``zc_bench`` and its report end: what went wrong as one line, and the exit code that tells it."""

from __future__ import annotations

from collections.abc import Callable

from zc_perception.errors import EXIT_USAGE, ConfigError, ZcError, error_line
from zc_perception.verify.bench.interruption import Interrupted, interruptible
from zc_perception.verify.bench.output import say

EXIT_FAILURE = 1


def exit_code_of(command: str, work: Callable[[], int]) -> int:
    """What *work* returns, or 1: it failed, 2: arguments, or nowhere to put the result, 128 + n: signal n.

    :param command: its name, for the line that says so.
    """
    try:
        with interruptible():
            return work()
    except ZcError as error:
        say(error_line(command, error))
        return EXIT_USAGE if isinstance(error, ConfigError) else EXIT_FAILURE
    except Interrupted as interruption:
        say(f'{command}: ended by {interruption}')
        return interruption.exit_code
