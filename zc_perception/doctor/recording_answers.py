"""The question whether a recording can be played: the call that the capture node makes, in a process of its own."""

from __future__ import annotations

import contextlib
import json
from typing import Any

from zc_perception.errors import ZcError


def try_recording(text: str) -> dict[str, Any]:
    """Open it, and give it back.

    :param text: JSON: ``video``, ``width``, ``height``, ``framerate`` and ``replay_topic`` as the node has them.
    """
    from zc_perception.camera.replay.camera import open_source

    wanted = json.loads(text)
    try:
        source = open_source(
            wanted['video'],
            width=wanted['width'],
            height=wanted['height'],
            framerate=wanted['framerate'],
            topic=wanted['replay_topic'],
        )
    except ZcError as error:
        return {'error': str(error)}
    with contextlib.closing(source):
        return {'width': source.width, 'height': source.height}
