"""``.venv/bin/python tools/bench_with_peers.py link --sizes vga``: ``zc_bench``, whose ``link`` measures the peers, too.

Options, rows and exit codes are those of ``zc_bench``. A peer that is not installed is reported as absent.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from zc_perception.terminal import ending_quietly

if TYPE_CHECKING:
    from zc_perception.bench.subcommand import Command


def commands() -> list[Command]:
    """The sub-commands of ``zc_bench``, with the peers in ``link``."""
    from bench_peers.processes import PEERS

    from zc_perception.bench.link import LINK, link_command
    from zc_perception.bench.program import COMMANDS

    return [link_command(PEERS) if command is LINK else command for command in COMMANDS]


def main(arguments: Sequence[str] | None = None) -> int:
    """0, 1: something went wrong or a bar isn't met, 2: arguments, or nowhere to put the result, 128 + n: signal n."""
    with ending_quietly('zc_bench'):
        from zc_perception.bench import program

        return program.run(arguments, commands())


if __name__ == '__main__':
    sys.exit(main())
