"""Whether a model's head can read what the model yields, found out before the first frame."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from zc_perception.detection.heads import make_head
from zc_perception.detection.heads.spec import DecodeLimits
from zc_perception.detection.letterbox import Letterbox
from zc_perception.detection.raw_tensor import RawTensor
from zc_perception.errors import AcceleratorError, ConfigError
from zc_perception.npu.manifest import ModelManifest, TensorSpec

# Blank tensors shall yield no boxes: it is their shapes that matter.
_LIMITS = DecodeLimits(1.0, 0.5, 1)
_ANY_SIZE = 64


def blank_tensors(specs: Sequence[TensorSpec]) -> tuple[RawTensor, ...]:
    """Tensors as the manifest describes them, without what a device would write."""
    return tuple(
        RawTensor(
            np.zeros(spec.shape, spec.dtype),
            spec.scale[0] if len(spec.scale) == 1 else np.array(spec.scale, np.float32),
            spec.zero_point,
            spec.layout,
            spec.name,
        )
        for spec in specs
    )


def check_head(manifest: ModelManifest, outputs: Sequence[RawTensor]) -> None:
    """Decode *outputs*, whose values don't matter. Heads whose grids have each frame's own size can't be checked before there is one.

    :raises ConfigError: the head expects others; names the file, both keys, the tensor, its shape and the one expected.
    """
    width, height = manifest.input.width, manifest.input.height
    if not width:
        if manifest.head.kind != 'boxes':
            return
        width = height = _ANY_SIZE
    try:
        make_head(manifest.head).decode(outputs, Letterbox.fit(width, height, width, height, stretch=True), _LIMITS)
    except AcceleratorError as error:
        names = f'{len(manifest.classes)} name' + ('' if len(manifest.classes) == 1 else 's')
        raise ConfigError(
            f"{manifest.path}: key 'head' is {manifest.head.kind} and key 'classes' has {names}, "
            f'which does not fit what the model yields for engine {manifest.engine} ({error}); correct the one that is wrong'
        ) from error
