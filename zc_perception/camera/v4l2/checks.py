"""What ``zc_doctor`` looks at for V4L2 cameras."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

from zc_perception.camera.v4l2.device import DeviceFile
from zc_perception.machine.system import System

# Checks run side by side, and some drivers let only one file have their node at a time.
_TURN, _TURN_S = threading.Lock(), 5.0


@contextmanager
def video(system: System, node: str) -> Iterator[DeviceFile]:
    """A V4L2 node, open in this block and for no other check meanwhile. If a check hangs in a driver, the others wait for it a few
    seconds and then go on.

    :raises OSError: it can't be opened.
    """
    mine = _TURN.acquire(timeout=_TURN_S)
    try:
        with closing(system.opener(DeviceFile)(str(system.root / node.lstrip('/')))) as file:
            yield file
    finally:
        if mine:
            _TURN.release()
