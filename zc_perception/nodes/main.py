"""Entry points of the console scripts that run nodes. They import what they need when a signal can't hurt any more."""

from __future__ import annotations

from functools import partial

from zc_perception.nodes.startup import STARTUP
from zc_perception.terminal import end_quietly

TYPE_CHECKING = False  # as in zc_perception/__init__.py
if TYPE_CHECKING:
    import argparse


def _start(name: str) -> int:
    """Run a program: its options are in :mod:`command_lines`, what it does is in :mod:`programs`, both under its name."""
    end_quietly()
    STARTUP.reached('interpreter')
    from zc_perception.nodes.command_lines import options_of
    from zc_perception.programs import start

    def run(options: argparse.Namespace) -> int:
        from zc_perception.nodes import programs

        return int(getattr(programs, name)(options))

    return start(options_of(name), run)


component_container = partial(_start, 'component_container')
component_container_mt = partial(_start, 'component_container_mt')
capture_node = partial(_start, 'capture_node')
inference_node = partial(_start, 'inference_node')
overlay_node = partial(_start, 'overlay_node')
perception = partial(_start, 'perception')
zc_record = partial(_start, 'zc_record')
