"""What an inference node has while it is configured: accelerator, subscription and scheduler; and which results it lets out."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zc_perception.detection.detections import Detections
from zc_perception.detection.heads import make_head
from zc_perception.errors import ConfigError, nearest, shown
from zc_perception.frame import Frame
from zc_perception.link.endpoints import AdaptedSubscription
from zc_perception.memory.ledger import CopyLedger
from zc_perception.nodes.messages import detections_writer
from zc_perception.npu.accelerator import Accelerator
from zc_perception.npu.manifest import ModelManifest, load_manifest
from zc_perception.npu.scheduler import Scheduler
from zc_perception.npu.selection import Selection, engines_of, open_accelerator
from zc_perception.parameters import whole_number

# A frame that comes so much of a period early counts as on time: cameras jitter, and a rate that is theirs must not halve it.
_EARLY = 0.125


def select_accelerator(
    values: Mapping[str, Any], ledger: CopyLedger, factory: Callable[[], Accelerator] | None
) -> Selection:
    """Open the accelerator that the parameters name, or *factory*'s, with the model loaded.

    :param values: as they are now, also when the accelerator is opened again.
    :raises ZcError: model or accelerator can't be used.
    """
    manifest = load_manifest(values['model'])
    if factory is None:
        return open_accelerator(values['accelerator'], manifest, values, ledger)
    return Selection(
        _loaded(factory, manifest), manifest, (), lambda: _loaded(factory, manifest)
    )


def _loaded(factory: Callable[[], Accelerator], manifest: ModelManifest) -> Accelerator:
    accelerator = factory()
    try:
        accelerator.load(manifest)
    except BaseException:
        accelerator.close()
        raise
    return accelerator


@dataclass
class InferenceStream:
    """Everything that configuring makes and cleaning up ends."""

    selected: Selection
    subscription: AdaptedSubscription[Frame]
    scheduler: Scheduler

    def __post_init__(self) -> None:
        self.manifest = self.selected.manifest
        self.head = make_head(self.manifest.head)
        self.to_message = detections_writer(len(self.manifest.classes))

    def hot_threads(self) -> Sequence[threading.Thread]:
        """Those that frames go through. The scheduler's thread opens an accelerator that was lost: its new threads inherit CPUs and
        priority, as every thread does from the one that starts it."""
        return [self.scheduler.thread, *self.scheduler.accelerator.hot_threads()]

    def close(self) -> None:
        """End it. A call of the accelerator that never returns keeps the accelerator, and nothing else."""
        ended = self.scheduler.stop()
        self.subscription.destroy()
        if ended:
            self.scheduler.accelerator.close()


class Pace:
    """Lets so many frames a second through, the newest at each time. One thread asks."""

    def __init__(
        self, max_rate: float, monotonic_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._monotonic_ns = monotonic_ns
        self._due_ns = 0
        self.set(max_rate)

    def set(self, max_rate: float) -> None:
        """Frames per second; 0: all."""
        self._period_ns = round(1e9 / max_rate) if max_rate else 0

    def accepts(self) -> bool:
        """Whether the frame that is there may go."""
        period = self._period_ns
        if not period:
            return True
        now = self._monotonic_ns()
        if now < self._due_ns - period * _EARLY:
            return False
        # On a grid while frames come regularly; after a pause it begins anew.
        self._due_ns = self._due_ns + period if now - self._due_ns < period else now + period
        return True


class ClassFilter:
    """Which classes are published.

    :param wanted: names or indices; none: all.
    :raises ConfigError: one that the model doesn't have.
    """

    def __init__(self, wanted: Sequence[str], known: Sequence[str]) -> None:
        self._mask: NDArray[np.bool_] | None = None
        if not wanted:
            return
        mask = np.zeros(len(known), np.bool_)
        for name in wanted:
            index = known.index(name) if name in known else whole_number(name, len(known) - 1)
            if index is not None:
                mask[index] = True
            else:
                raise ConfigError(
                    f"parameter 'classes' has {shown(name)}, which the model doesn't know{nearest(name, known)}; "
                    f'it has {", ".join(known[:12])}{", …" if len(known) > 12 else ""}, or their indices from 0 to {len(known) - 1}'
                )
        self._mask = mask

    def __call__(self, found: Detections) -> Detections:
        """Those that are wanted."""
        mask = self._mask
        if mask is None or not len(found):
            return found
        keep = mask[found.classes]
        return found if keep.all() else found.chosen(keep)


def check_classes(values: Mapping[str, Any]) -> None:
    """Whether the model is there, and has the classes that are wanted on an accelerator that may run it."""
    manifest = load_manifest(values['model'])
    engines = engines_of(values['accelerator'])
    variants = [variant for variant in manifest.variants if variant.engine in engines]
    refusals = []
    for variant in variants:
        try:
            ClassFilter(values['classes'], variant.classes)
        except ConfigError as error:
            refusals.append(error)
    if variants and len(refusals) == len(variants):
        raise refusals[0]
