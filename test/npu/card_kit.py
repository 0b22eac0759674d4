"""A card that only counts, in place of :class:`AxlDevice`: handles are numbers, jobs end when a test says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from zc_perception.detection.heads.spec import HeadSpec
from zc_perception.memory.fence import EventFence, Fence
from zc_perception.memory.heaps import SealedMemfd
from zc_perception.npu import axl
from zc_perception.npu.axl_device import AxlCapabilities
from zc_perception.npu.manifest import ModelInput, ModelManifest, TensorSpec
from zc_perception.pixel.fourcc import NV12
from zc_perception.pixel.modifier import LINEAR

MANIFEST = ModelManifest(
    'counting', Path('model.yaml'), 'axl', None, ModelInput(0, 0, False, 0.0, 1.0, 'none', 0),
    HeadSpec('yolov8', 1), ('thing',), 0.5, 0.5, 10,
    tensors=(TensorSpec('out', 'int8', (4,), 0, (1.0,), 0),),
)  # fmt: skip


class CountingCard:
    """``held`` are the handles that it has, ``submitted`` the in-fence of each job (``None``: none, or an older driver)."""

    def __init__(self, path: str, numbers: Any, level: int) -> None:
        self.path = path
        self.level = level
        self.made = 0
        self.held: set[int] = set()
        self.submitted: list[Fence | None] = []
        self.jobs: list[EventFence] = []
        self.release_error: Exception | None = None

    def query(self) -> AxlCapabilities:
        return AxlCapabilities(self.level, 4, 64, 64, ((NV12, LINEAR),))

    def import_planes(self, layout: Any, buffers: Any, flags: Any) -> int:
        self.made += 1
        self.held.add(self.made)
        return self.made

    def import_fd(self, *_: Any) -> int:
        return self.import_planes(None, None, None)

    def release_import(self, handle: int) -> None:
        if self.release_error is not None:
            raise self.release_error
        self.held.remove(handle)

    def submit2(self, handle: int, result: Any, model_id: int, timeout_us: int, in_fence: Fence | None) -> EventFence:
        assert handle in self.held
        self.submitted.append(in_fence)
        self.jobs.append(EventFence())
        return self.jobs[-1]

    def submit(self, handle: int, result: Any, model_id: int, timeout_us: int) -> EventFence:
        return self.submit2(handle, result, model_id, timeout_us, None)

    def close(self) -> None:
        self.held.clear()


def counting_accelerator(monkeypatch: pytest.MonkeyPatch, *, level: int = 2, **options: Any) -> tuple[axl.AxlAccelerator, CountingCard]:
    """An axl accelerator with a model on a card that counts; the caller closes it."""
    monkeypatch.setattr(axl, 'AxlDevice', lambda path, numbers: CountingCard(path, numbers, level))
    monkeypatch.setattr(axl.AxlAccelerator, '_open_result_heap', staticmethod(SealedMemfd))
    accelerator = axl.AxlAccelerator('/dev/metis-0:1:0', **options)
    accelerator.load(MANIFEST)
    card: Any = accelerator._device
    return accelerator, card
