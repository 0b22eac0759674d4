"""Recordings made of frames whose every byte is known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from camera.replay_kit import planes_of

from zc_perception.camera.recording import FrameRecorder
from zc_perception.frame import Frame, Header
from zc_perception.memory.ledger import CopyLedger
from zc_perception.memory.pool import BufferPool
from zc_perception.pixel.colorimetry import Colorimetry, Matrix, Range, Transfer

PERIOD, START = 40_000_000, 1_700_000_000_000_000_000
MakePool = Callable[..., BufferPool]
BT709_FULL = Colorimetry(Matrix.BT709, Range.FULL, Transfer.SRGB)


def fill(planes: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for plane in planes:
        plane[...] = rng.integers(0, np.iinfo(plane.dtype).max + 1, plane.shape, plane.dtype)


def publish(pool: BufferPool, index: int, colorimetry: Colorimetry = BT709_FULL, frame_id: str = 'lens') -> Frame:
    slot = pool.acquire()
    assert slot is not None
    frame = Frame.publish_slot(
        pool, slot, header=Header(START + index * PERIOD, frame_id), colorimetry=colorimetry, sequence=7 * index, captured_ns=100 + index
    )
    with frame.map(write=True) as planes:
        fill(planes, index)
    return frame


def record(path: Path, pool: BufferPool, count: int, **options: Any) -> list[tuple[np.ndarray[Any, Any], ...]]:
    """Record *count* frames; their planes."""
    kept = []
    with FrameRecorder(path, ledger=CopyLedger(), **options) as recorder:
        for index in range(count):
            with publish(pool, index) as frame:
                kept.append(planes_of(frame))
                assert recorder.put(frame)
    assert recorder.statistics().recorded == count
    return kept


def same(found: Any, expected: Any) -> bool:
    return all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in zip(found, expected, strict=True))
