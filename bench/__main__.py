"""``python -m bench``; :mod:`~bench.program` is imported when a signal can't hurt any more."""

from __future__ import annotations

from collections.abc import Sequence
import sys

from zc_perception.terminal import ending_quietly


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; its exit codes are those of :func:`~bench.program.run`."""
    with ending_quietly('zc_bench'):
        from bench import program

        return program.run(arguments)


if __name__ == '__main__':
    sys.exit(main())
