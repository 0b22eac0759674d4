"""The measuring process's end of what :mod:`~zc_perception.bench.worker` does. Imports next to nothing, for the floors' sake."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any


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
