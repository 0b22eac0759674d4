"""Entry point of ``zc_bench``. It imports what it needs when a signal can't hurt any more."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn


def _end(number: int, frame: FrameType | None) -> NoReturn:
    """Nothing is open yet that would have to be given back."""
    try:
        os.write(2, f'zc_bench: ended by {signal.Signals(number).name}\n'.encode())
    finally:
        os._exit(128 + number)


def main(arguments: Sequence[str] | None = None) -> int:
    """The console script; its exit codes are those of :func:`~zc_perception.verify.bench.program.run`."""
    before = {number: signal.signal(number, _end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        from zc_perception.verify.bench import program

        return program.run(arguments)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


if __name__ == '__main__':
    sys.exit(main())
