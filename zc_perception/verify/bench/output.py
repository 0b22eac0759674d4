"""What a benchmark prints. A terminal that is gone or a disk that is full costs it no result."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TextIO


def _print(text: str, stream: TextIO | None) -> str:
    if stream is None:
        return 'it is closed'
    try:
        print(text, file=stream, flush=True)
    except (OSError, ValueError) as error:  # ValueError: letters that its encoding doesn't have
        # What is left in its buffer would fail once more at the interpreter's end, and change the exit code.
        with contextlib.suppress(OSError, ValueError), open(os.devnull, 'w', encoding='ascii') as nowhere:
            os.dup2(nowhere.fileno(), stream.fileno())
        return getattr(error, 'strerror', None) or str(error)
    return ''


def say(line: str) -> None:
    """What goes on, to standard error, if that can be."""
    _print(line, sys.stderr)


def show(text: str) -> str:
    """A result, to standard output; why it can't be, or nothing."""
    return _print(text, sys.stdout)
