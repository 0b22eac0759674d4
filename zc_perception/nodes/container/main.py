"""Entry points of ``component_container`` and ``component_container_mt``, see :mod:`~zc_perception.nodes.main`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zc_perception.nodes.early_end import end_quietly

if TYPE_CHECKING:
    import argparse


def component_container() -> int:
    """``component_container``."""
    return _start(multi_threaded=False)


def component_container_mt() -> int:
    """``component_container_mt``."""
    return _start(multi_threaded=True)


def _start(*, multi_threaded: bool) -> int:
    end_quietly()
    from zc_perception.nodes import command_lines
    from zc_perception.programs import start

    parser = command_lines.component_container_mt() if multi_threaded else command_lines.component_container()

    def run(_: argparse.Namespace) -> int:
        from zc_perception.nodes.container import program

        return program.run(parser.prog, multi_threaded=multi_threaded)

    return start(parser, run)
