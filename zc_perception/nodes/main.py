"""Entry points of the console scripts that run nodes. They import what they need when a signal can't hurt any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zc_perception.nodes.startup import STARTUP
from zc_perception.terminal import end_quietly

if TYPE_CHECKING:
    import argparse


def _start(name: str) -> int:
    """Run a program: its options are in :mod:`command_lines`, what it does is in :mod:`programs`, both under its name."""
    end_quietly()
    STARTUP.reached('interpreter')
    from zc_perception.nodes import command_lines
    from zc_perception.programs import start

    def run(options: argparse.Namespace) -> int:
        from zc_perception.nodes import programs

        return int(getattr(programs, name)(options))

    return start(getattr(command_lines, name)(), run)


def component_container() -> int:
    """``component_container``."""
    return _start('component_container')


def component_container_mt() -> int:
    """``component_container_mt``."""
    return _start('component_container_mt')


def capture_node() -> int:
    """``capture_node``."""
    return _start('capture_node')


def inference_node() -> int:
    """``inference_node``."""
    return _start('inference_node')


def overlay_node() -> int:
    """``overlay_node``."""
    return _start('overlay_node')


def perception() -> int:
    """``perception``."""
    return _start('perception')


def zc_record() -> int:
    """``zc_record``."""
    return _start('zc_record')
