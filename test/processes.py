"""Processes that a test has started, and their children."""

from __future__ import annotations

from zc_perception.observe.processes import process_state


def is_alive(pid: int) -> bool:
    """And no zombie."""
    state = process_state(pid)
    return state is not None and not state.ended
