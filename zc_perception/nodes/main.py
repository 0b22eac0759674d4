"""Entry points of the console scripts. They import what they need when a signal can't hurt any more."""

from __future__ import annotations

from zc_perception.nodes.early_end import end_quietly
from zc_perception.nodes.startup import STARTUP


def _begin() -> None:
    end_quietly()
    STARTUP.reached('interpreter')


def capture_node() -> int:
    """``capture_node``."""
    _begin()
    from zc_perception.nodes import programs

    return programs.capture_node()


def inference_node() -> int:
    """``inference_node``."""
    _begin()
    from zc_perception.nodes import programs

    return programs.inference_node()


def overlay_node() -> int:
    """``overlay_node``."""
    _begin()
    from zc_perception.nodes import programs

    return programs.overlay_node()


def perception() -> int:
    """``perception``."""
    _begin()
    from zc_perception.nodes import programs

    return programs.perception()
