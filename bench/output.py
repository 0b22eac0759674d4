"""Where the words of a benchmark go."""

from __future__ import annotations

import sys

from zc_perception.terminal import put


def say(line: str) -> None:
    """What goes on, to standard error, if that can be."""
    put(line, sys.stderr)


def show(text: str) -> str:
    """A result, to standard output; why it can't be, or nothing."""
    error = put(text, sys.stdout)
    return '' if error is None else error.strerror or str(error)
