"""Entry point of ``zc_bench``; :mod:`~zc_perception.bench.program` is imported when a signal can't hurt any more."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from zc_perception.terminal import ending_quietly


def main(arguments: Sequence[str] | None = None) -> int:
    """The console script; its exit codes are those of :func:`~zc_perception.bench.program.run`."""
    with ending_quietly('zc_bench'):
        from zc_perception.bench import program

        return program.run(arguments)


if __name__ == '__main__':
    sys.exit(main())
