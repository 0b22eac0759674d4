"""Where the words of a benchmark go."""

from __future__ import annotations

import sys

from zc_perception.terminal import put


def say(line: str) -> None:
    """Report progress to standard error, if possible."""
    put(line, sys.stderr)


def show(text: str) -> str:
    """Write a result to standard output; return why it can't be written, or nothing."""
    error = put(text, sys.stdout)
    return '' if error is None else error.strerror or str(error)
