"""Queues of frames, as subscriptions make them."""

from __future__ import annotations

from zc_perception.frame import Frame
from zc_perception.frame_queue import KeepLastQueue


class FrameQueue(KeepLastQueue[Frame]):
    """What a scheduler takes its frames from."""

    def __init__(self, depth: int | None) -> None:
        super().__init__(depth, Frame.release, gate=Frame.hand_out)
