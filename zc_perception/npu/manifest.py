"""``model.yaml``: what a model takes, what it yields, how to read it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from zc_perception.detection.heads import HEADS
from zc_perception.detection.heads.spec import HeadSpec
from zc_perception.errors import ConfigError, nearest

MODELS = Path(__file__).resolve().parent.parent / 'models'
ENGINES = ('onnx', 'opencv_hog', 'axl')
_DTYPES = ('int8', 'uint8', 'int16', 'int32', 'float32')
_TOP_KEYS = (
    'name',
    'engine',
    'file',
    'input',
    'outputs',
    'model_id',
    'head',
    'classes',
    'score_threshold',
    'nms_threshold',
    'max_detections',
    'licence',
)
_OUTPUT_KEYS = ('name', 'layout', 'dtype', 'shape', 'offset', 'scale', 'zero_point')
_INPUT_KEYS = ('width', 'height', 'layout', 'colour', 'range', 'resize', 'pad')


@dataclass(frozen=True)
class ModelInput:
    """The network's input: size in pixels, tensor values of sample 0 and 255, letterbox or stretch, border value 0..255.

    ``resize`` ``none`` means that the model runs on the frame's own planes at their size; width and height are 0 then.
    """

    width: int
    height: int
    bgr: bool
    low: float
    high: float
    resize: str
    pad: int


@dataclass(frozen=True)
class TensorSpec:
    """A tensor in a device's result buffer: value = (raw − zero_point) · scale.

    :param shape: C order, no padding.
    :param offset: bytes from the start of the result buffer.
    :param scale: one number, or one for each element of the last axis.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    scale: tuple[float, ...]
    zero_point: int

    @property
    def num_bytes(self) -> int:
        """Size in the result buffer."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class ModelManifest:
    """A validated manifest. ``file`` is ``None`` for an engine without weights; ``tensors`` only engine ``axl`` has."""

    name: str
    path: Path
    engine: str
    file: Path | None
    input: ModelInput
    head: HeadSpec
    classes: tuple[str, ...]
    score_threshold: float
    nms_threshold: float
    max_detections: int
    model_id: int = 0
    tensors: tuple[TensorSpec, ...] = ()


def shipped_models() -> list[str]:
    """Names that ``model`` may have besides a path."""
    return sorted(p.parent.name for p in MODELS.glob('*/model.yaml'))


def find_manifest(model: str) -> Path:
    """The manifest file for a model's name, folder or path.

    :raises ConfigError: neither a shipped model nor an existing manifest.
    """
    shipped = shipped_models()
    if model in shipped:
        return MODELS / model / 'model.yaml'
    # Neither a home that doesn't exist nor a name that is too long is a file.
    with contextlib.suppress(RuntimeError, OSError):
        path = Path(model).expanduser()
        if path.is_dir():
            path = path / 'model.yaml'
        if path.is_file() and path.suffix in ('.yaml', '.yml'):
            return path
        if path.is_file():
            raise ConfigError(f"model '{model}' is not a manifest; write a model.yaml beside it (see README, Models) and give its path")
    raise ConfigError(f"model '{model}' is not known; use one of {', '.join(shipped)} or the path of a model.yaml{nearest(model, shipped)}")


class _Reader:
    """Typed access to one mapping of the manifest, with errors that name the key."""

    def __init__(self, path: Path, values: Any, prefix: str, keys: tuple[str, ...]) -> None:
        self._path, self._prefix = path, prefix
        if not isinstance(values, Mapping):
            raise ConfigError(f"{path}: {prefix or 'the file'} must be a mapping of keys, not '{values}'")
        self._values = values
        for key in values:
            if key not in keys:
                raise ConfigError(f"{path}: key '{prefix}{key}' is unknown{nearest(str(key), keys)}; known are {', '.join(keys)}")

    def get(self, key: str, check: Callable[[Any], bool], allowed: str, default: Any = None) -> Any:
        value = self._values.get(key, default)
        if value is None:
            raise ConfigError(f"{self._path}: key '{self._prefix}{key}' is missing; it must be {allowed}")
        if not check(value):
            raise ConfigError(f"{self._path}: key '{self._prefix}{key}' is {value!r}; it must be {allowed}")
        return value

    def number(self, key: str, low: float, high: float, default: float | None = None) -> float:
        return float(self.get(key, lambda v: type(v) in (int, float) and low <= v <= high, f'a number from {low} to {high}', default))

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        return int(self.get(key, lambda v: type(v) is int and low <= v <= high, f'an integer from {low} to {high}', default))

    def choice(self, key: str, choices: tuple[str, ...], default: str | None = None) -> str:
        return str(self.get(key, lambda v: v in choices, 'one of ' + ', '.join(choices), default))

    def raw(self, key: str, default: Any) -> Any:
        return self._values.get(key, default)


def _read_input(path: Path, values: Any) -> ModelInput:
    reader = _Reader(path, values, 'input.', _INPUT_KEYS)
    resize = reader.choice('resize', ('letterbox', 'stretch', 'none'), 'letterbox')
    own_size = resize == 'none'
    reader.choice('layout', ('nchw',), 'nchw')
    low, high = reader.get(
        'range',
        lambda v: isinstance(v, list) and len(v) == 2 and all(type(x) in (int, float) and math.isfinite(x) for x in v),
        'two numbers, the tensor values of samples 0 and 255',
        [0.0, 1.0],
    )
    return ModelInput(
        width=0 if own_size else reader.integer('width', 2, 1 << 14),
        height=0 if own_size else reader.integer('height', 2, 1 << 14),
        bgr=reader.choice('colour', ('rgb', 'bgr'), 'rgb') == 'bgr',
        low=float(low),
        high=float(high),
        resize=resize,
        pad=reader.integer('pad', 0, 255, 114),
    )


def _read_tensor(path: Path, values: Any, index: int) -> TensorSpec:
    reader = _Reader(path, values, f'outputs[{index}].', _OUTPUT_KEYS)
    shape = reader.get(
        'shape', lambda v: isinstance(v, list) and len(v) > 0 and all(type(n) is int and n > 0 for n in v), 'a list of positive sizes'
    )
    scale = reader.raw('scale', 1.0)
    scales = scale if isinstance(scale, list) else [scale]
    if not all(type(v) in (int, float) and math.isfinite(v) for v in scales) or len(scales) not in (1, shape[-1]):
        raise ConfigError(f"{path}: key 'outputs[{index}].scale' is {scale!r}; it must be a number, or {shape[-1]} of them")
    return TensorSpec(
        name=str(reader.get('name', lambda v: isinstance(v, str) and v != '', 'a name')),
        dtype=reader.choice('dtype', _DTYPES),
        shape=tuple(shape),
        offset=reader.integer('offset', 0, 1 << 30, 0),
        scale=tuple(float(v) for v in scales),
        zero_point=reader.integer('zero_point', -(1 << 31), (1 << 31) - 1, 0),
    )


def _read_tensors(path: Path, values: Any, engine: str) -> tuple[TensorSpec, ...]:
    if engine != 'axl':
        if not isinstance(values, list | None):
            raise ConfigError(f"{path}: key 'outputs' is {values!r}; it must be a list of tensors")
        for index, value in enumerate(values or ()):
            _Reader(path, value, f'outputs[{index}].', _OUTPUT_KEYS)  # for people: the file itself says what it yields
        return ()
    if not isinstance(values, list) or not values:
        raise ConfigError(f"{path}: key 'outputs' is {values!r}; engine axl needs a list of at least one tensor")
    return tuple(_read_tensor(path, value, index) for index, value in enumerate(values))


def load_manifest(model: str) -> ModelManifest:
    """Find, read and validate a manifest.

    :param model: a shipped model's name, or the path of a ``model.yaml`` or of its folder.
    :raises ConfigError: names the file, the key, its value and what is allowed.
    """
    path = find_manifest(model)
    try:
        values = yaml.safe_load(path.read_text(encoding='utf-8'))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"model manifest '{path}' can't be read: {' '.join(str(error).split())}") from error
    reader = _Reader(path, values, '', _TOP_KEYS)
    engine = reader.choice('engine', ENGINES, 'onnx')
    file = None
    if engine == 'onnx':
        name = reader.get('file', lambda v: isinstance(v, str), "the weights' file name, relative to the manifest")
        file = path.parent / name
        if not file.is_file():
            raise ConfigError(f"{path}: key 'file' names '{name}', which does not exist in {path.parent}")
    classes = reader.get(
        'classes',
        lambda v: isinstance(v, list) and len(v) > 0 and all(isinstance(c, str) and c != '' for c in v),
        'a list of at least one class name',
    )
    reader.get('licence', lambda v: isinstance(v, str), 'the name of a licence', '')
    return ModelManifest(
        name=str(reader.get('name', lambda v: isinstance(v, str) and v != '', 'a name', path.parent.name)),
        path=path,
        engine=engine,
        file=file,
        input=_read_input(path, reader.raw('input', {})),
        head=HeadSpec(reader.choice('head', tuple(HEADS)), len(classes)),
        classes=tuple(classes),
        score_threshold=reader.number('score_threshold', 0.0, 1.0, 0.25),
        nms_threshold=reader.number('nms_threshold', 0.0, 1.0, 0.45),
        max_detections=reader.integer('max_detections', 1, 10000, 300),
        model_id=reader.integer('model_id', 0, (1 << 32) - 1, 0),
        tensors=_read_tensors(path, reader.raw('outputs', None), engine),
    )
