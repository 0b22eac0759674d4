"""A running pipeline whose frames have changed: the next camera goes on with it, so that nothing of its source is lost or shown again."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from zc_perception.camera.gstreamer.pipeline import Pipeline, Sample


@dataclass
class Continuation:
    """See the module. Its owner gives it to the next camera, or closes it.

    :param samples: the first frame of the new kind, and those behind it that were pulled already.
    :param offer: the caps that its sink takes; empty: any.
    """

    pipeline: Pipeline
    samples: deque[Sample]
    offer: str

    def close(self) -> None:
        """Nobody goes on with it."""
        while self.samples:
            self.samples.pop().close()
        self.pipeline.close()
