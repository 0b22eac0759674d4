"""``model.yaml``: what a model takes, what it yields, how to read it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from zc_perception.detection.heads import make_head
from zc_perception.detection.heads.spec import HeadSpec
from zc_perception.errors import ConfigError, nearest
from zc_perception.npu.manifest_keys import INPUT, MANIFEST, OUTPUTS
from zc_perception.npu.manifest_rules import Place
from zc_perception.npu.manifest_yaml import parse
from zc_perception.npu.voyager_model import read_voyager_model

MODELS = Path(__file__).resolve().parent.parent / 'models'
Values = Mapping[str, Any]
_LARGEST_TENSOR = 1 << 30
# They say what one engine's own file is like.
_NEVER_SHARED = ('file', 'model_id', 'outputs')


@dataclass(frozen=True)
class ModelInput:
    """The network's input.

    :param width: pixels, without padding; 0 where the model runs on the frame's own planes at their size (``resize`` ``none``).
    :param low: real value of sample 0.
    :param high: real value of sample 255.
    :param resize: ``letterbox``, ``stretch`` or ``none``.
    :param pad: border of a letterbox, 0..255.
    :param layout: ``nchw`` or ``nhwc``; for engine axruntime this and what follows are the compiled model's own, not what stands here.
    :param dtype: float32, uint8 or int8.
    :param scale: for other types than float32: real value = (raw - zero_point) · scale.
    """

    width: int
    height: int
    bgr: bool
    low: float
    high: float
    resize: str
    pad: int
    layout: str = 'nchw'
    dtype: str = 'float32'
    scale: float = 1.0
    zero_point: int = 0


@dataclass(frozen=True)
class TensorSpec:
    """A tensor in a device's result buffer: value = (raw − zero_point) · scale.

    Engine axl needs all of it. For others it says what the model's own file leaves open: an empty ``dtype`` or ``shape`` is the file's.

    :param shape: C order, without padding.
    :param offset: bytes from the start of the result buffer.
    :param scale: one number, or one for each element of the last axis.
    :param layout: ``nchw``, ``nhwc``, or empty where it has no such axes.
    :param padding: elements before and after each axis in the result buffer; empty for none.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    scale: tuple[float, ...]
    zero_point: int
    layout: str = ''
    padding: tuple[tuple[int, int], ...] = ()

    @property
    def padded_shape(self) -> tuple[int, ...]:
        """Shape as it lies in the result buffer."""
        if not self.padding:
            return self.shape
        return tuple(before + size + after for size, (before, after) in zip(self.shape, self.padding, strict=True))

    @property
    def num_bytes(self) -> int:
        """Size in the result buffer, padding included."""
        return math.prod(self.padded_shape) * np.dtype(self.dtype).itemsize

    @property
    def inside(self) -> tuple[slice, ...]:
        """Index that cuts the padding away from an array of :attr:`padded_shape`, without a copy."""
        if not self.padding:
            return tuple(slice(0, size) for size in self.shape)
        return tuple(slice(before, before + size) for size, (before, _) in zip(self.shape, self.padding, strict=True))


@dataclass(frozen=True)
class ModelManifest:
    """A validated manifest, or one of its variants.

    :param file: weights, or the compiled model; ``None`` for an engine that has none.
    :param tensors: the outputs as the manifest describes them.
    :param alternatives: the same model for other engines.
    :param missing: why :attr:`file` can't be used; empty if it is there.
    """

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
    alternatives: tuple[ModelManifest, ...] = ()
    missing: str = ''

    @property
    def variants(self) -> tuple[ModelManifest, ...]:
        """The same model for each engine that it can run on, this one first."""
        return (self, *self.alternatives)

    def for_engines(self, engines: Sequence[str]) -> ModelManifest | None:
        """The first variant whose engine is one of *engines*."""
        return next((variant for variant in self.variants if variant.engine in engines), None)


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
            raise ConfigError(f"model '{model}' is not a manifest; write a model.yaml beside it (see docs/models.md) and give its path")
    raise ConfigError(f"model '{model}' is not known; use one of {', '.join(shipped)} or the path of a model.yaml{nearest(model, shipped)}")


class _Part:
    """One variant's values, checked already: its own, or else those of the top level. Knows where each stands.

    :param index: which of the variants; ``None`` for the top level itself.
    """

    def __init__(self, path: Path, top: Values, own: Values | None, index: int | None) -> None:
        self.path = path
        self.own = top if own is None else own
        self._index = index
        replaced = ('classes', 'classes_file') if 'classes' in self.own or 'classes_file' in self.own else ()
        self.values = {**{k: v for k, v in top.items() if k not in ('variants', *_NEVER_SHARED, *replaced)}, **self.own}

    def place(self, key: str) -> Place:
        """Where *key* stands, or should."""
        return Place(self.path).at(key) if key in self.values and key not in self.own else self.own_place(key)

    def own_place(self, key: str) -> Place:
        """Where *key* would stand in this variant itself."""
        place = Place(self.path)
        return place.at(key) if self._index is None else place.at('variants').item(self._index).at(key)

    def get(self, key: str) -> Any:
        """Its value, or its default."""
        return self.values.get(key, MANIFEST.keys[key].default)

    def needed(self, key: str) -> Any:
        """Its value.

        :raises ConfigError: there is none.
        """
        if key not in self.values:
            raise self.place(key).missing(MANIFEST.keys[key].rule.words)
        return self.values[key]


def _file(part: _Part, engine: str) -> tuple[Path | None, str]:
    """The model's file, and why it can't be used."""
    if engine not in ('onnx', 'axruntime'):
        return None, ''
    name = part.needed('file')
    # Its name may be too long for a file, or no text that a file can have.
    with contextlib.suppress(OSError, ValueError):
        file = part.path.parent / name
        if file.is_file():
            return file, ''
    where = part.place('file')
    return None, f"{part.path}: key '{where.key}' names '{name}', which does not exist in {part.path.parent}"


def _classes(part: _Part) -> tuple[str, ...]:
    if 'classes_file' not in part.values:
        return tuple(part.needed('classes'))
    name, place = part.values['classes_file'], part.place('classes_file')
    if 'classes' in part.values:
        raise ConfigError(f"{part.path}: keys '{part.place('classes').key}' and '{place.key}' say the same; leave one out")
    try:
        file = part.path.parent / name
        if file.exists() and not file.is_file():
            raise OSError('it is no file')  # a pipe would be waited for
        lines = file.read_text(encoding='utf-8').rstrip().splitlines()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{part.path}: key '{place.key}' names '{name}', which can't be read: {error}") from error
    classes = tuple(line.strip() for line in lines)
    if not classes or '' in classes:
        line = classes.index('') + 1 if classes else 1
        raise ConfigError(f"{part.path}: key '{place.key}' names '{name}', whose line {line} is empty; it must have one class per line")
    return classes


def _compiled_size(part: _Part, file: Path, given: Values) -> tuple[int, int] | None:
    """Width and height of a model that Voyager has compiled, if its files tell.

    :raises ConfigError: they contradict the manifest, or the model isn't one for a frame.
    """
    compiled = read_voyager_model(file)
    if compiled is None:
        return None
    place, tensor = part.place('input'), compiled.inputs[0]
    if len(tensor.shape) != 4:
        raise ConfigError(f'{file}: the first input has shape {list(tensor.shape)}; a frame needs 1 x height x width x channels')
    if compiled.preprocess_graph and 'range' not in given:
        raise ConfigError(
            f"{file}: the model wants '{compiled.preprocess_graph}' to run before it, which nothing does here; compile it without, "
            f"or say by '{place.at('range').key}' of {part.path.name} what it does to the values"
        )
    inner = tensor.inner_shape
    height, width = (inner or tensor.shape)[1:3]
    for name, size in (('width', width), ('height', height)):
        value = given.get(name, size if inner else None)
        if value is None:
            raise place.at(name).missing(f'{INPUT.keys[name].rule.words}, as there is no manifest.json beside {file}')
        if value != size if inner else value > size:
            raise place.at(name).refuse(value, f'{"" if inner else "at most "}{size}, as {file} says')
    return (width, height) if inner else None


def _input(part: _Part, engine: str, file: Path | None) -> ModelInput:
    given, place = part.get('input') or {}, part.place('input')
    values = {name: given.get(name, key.default) for name, key in INPUT.keys.items()}
    if values['resize'] == 'none' and engine in ('onnx', 'axruntime'):
        raise place.at('resize').refuse('none', f'one of letterbox, stretch for engine {engine}')
    if engine == 'onnx' and values['dtype'] != 'float32' and values['scale'] is None:
        raise place.at('scale').missing(f'{INPUT.keys["scale"].rule.words}, as the values are {values["dtype"]}')
    size = _compiled_size(part, file, given) if engine == 'axruntime' and file is not None else None
    if size is None and (values['resize'] == 'none' or (engine == 'axruntime' and file is None)):
        size = 0, 0
    for name in ('width', 'height'):
        if size is None and name not in given:
            raise place.at(name).missing(INPUT.keys[name].rule.words)
    width, height = size or (given['width'], given['height'])
    low, high = values['range']
    return ModelInput(
        width=width,
        height=height,
        bgr=values['colour'] == 'bgr',
        low=float(low),
        high=float(high),
        resize=values['resize'],
        pad=values['pad'],
        layout=values['layout'],
        dtype=values['dtype'],
        scale=float(values['scale'] or 1.0),
        zero_point=values['zero_point'],
    )


def _tensor(values: Values, place: Place, engine: str) -> TensorSpec:
    for name in ('dtype', 'shape') if engine == 'axl' else ():
        if name not in values:
            raise place.at(name).missing(OUTPUTS.table.keys[name].rule.words)
    shape = tuple(values.get('shape', ()))
    scale, padding = values.get('scale', 1.0), values.get('padding', [])
    scales = scale if isinstance(scale, list) else [scale]
    if shape and len(scales) not in (1, shape[-1]):
        raise place.at('scale').refuse(scale, f'a number, or {shape[-1]} of them')
    if padding and len(padding) != len(shape):
        raise place.at('padding').refuse(padding, f'a list with two numbers for each of the {len(shape)} axes of shape')
    tensor = TensorSpec(
        name=values['name'],
        dtype=values.get('dtype', ''),
        shape=shape,
        offset=values.get('offset', 0),
        scale=tuple(float(v) for v in scales),
        zero_point=values.get('zero_point', 0),
        layout=values.get('layout', ''),
        padding=tuple((before, after) for before, after in padding),
    )
    if engine == 'axl' and tensor.num_bytes > _LARGEST_TENSOR:
        raise place.at('shape').refuse(values['shape'], f'one of {_LARGEST_TENSOR} bytes at most, padding included')
    return tensor


def _tensors(part: _Part, engine: str) -> tuple[TensorSpec, ...]:
    place = part.place('outputs')
    if engine == 'axl' and 'outputs' not in part.values:
        raise place.missing('a list of at least one tensor for engine axl')
    tensors = [_tensor(values, place.item(index), engine) for index, values in enumerate(part.get('outputs') or ())]
    if engine == 'axl':
        ordered = sorted(tensors, key=lambda tensor: tensor.offset)
        for first, second in pairwise(ordered):
            if second.offset < first.offset + first.num_bytes:
                where = place.item(tensors.index(second)).at('offset')
                raise where.refuse(second.offset, f"{first.offset + first.num_bytes} or more, where tensor '{first.name}' has ended")
    return tuple(tensors)


def _floats(value: Any) -> Any:
    return tuple(_floats(v) for v in value) if isinstance(value, list) else float(value)


def _head(part: _Part, num_classes: int, size: tuple[int, int]) -> HeadSpec:
    given = part.needed('head')
    options = {'kind': given} if isinstance(given, str) else dict(given)
    convert: dict[str, Callable[[Any], Any]] = {'anchors': _floats, 'priors': _floats, 'variances': _floats, 'strides': tuple}
    return HeadSpec(num_classes=num_classes, input_size=size, **{k: convert.get(k, lambda v: v)(v) for k, v in options.items()})


def _check_head(part: _Part, head: HeadSpec) -> None:
    try:
        make_head(head)
    except ConfigError as error:
        raise ConfigError(f'{part.path}: {part.place("head").key.removesuffix("head")}{error}') from error


def _manifest(part: _Part) -> ModelManifest:
    engine = part.get('engine')
    classes = _classes(part)
    file, missing = _file(part, engine)
    network = _input(part, engine, file)
    head = _head(part, len(classes), (network.width, network.height))
    if network.width or network.resize == 'none':  # else the compiled model's file isn't there to say it
        _check_head(part, head)
    return ModelManifest(
        name=part.values.get('name', part.path.resolve().parent.name),
        path=part.path,
        engine=engine,
        file=file,
        input=network,
        head=head,
        classes=classes,
        score_threshold=float(part.get('score_threshold')),
        nms_threshold=float(part.get('nms_threshold')),
        max_detections=part.get('max_detections'),
        model_id=part.get('model_id'),
        tensors=_tensors(part, engine),
        missing=missing,
    )


def load_manifest(model: str) -> ModelManifest:
    """Find, read and validate a manifest.

    Without ``variants`` it is one model for one engine. With them, each is the top level's keys with some replaced, but for ``file``,
    ``model_id`` and ``outputs``, which are each variant's own; the top level is one itself if it has ``engine`` or ``file``. The file of
    one variant may be missing where that of another is there.

    :param model: a shipped model's name, or the path of a ``model.yaml`` or of its folder.
    :returns: the first variant, with the others as its alternatives.
    :raises ConfigError: names the file, the key, its value and what is allowed.
    """
    path = find_manifest(model)
    try:
        values = parse(path.read_text(encoding='utf-8'))
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"model manifest '{path}' can't be read: {' '.join(str(error).split())}") from error
    MANIFEST.check(values, Place(path))
    variants = values.get('variants', ())
    parts = [_Part(path, values, variant, index) for index, variant in enumerate(variants)]
    if not variants or 'engine' in values or 'file' in values:
        parts.insert(0, _Part(path, values, None, None))
    else:
        for key in values.keys() & set(_NEVER_SHARED):
            raise Place(path).at(key).refuse(values[key], "a key of a variant, as the top level has neither 'engine' nor 'file'")
    for number, part in enumerate(parts):
        if any(part.get('engine') == other.get('engine') for other in parts[:number]):
            place, words = part.own_place('engine'), 'one that no other variant has'
            raise place.refuse(part.own['engine'], words) if 'engine' in part.own else place.missing(words)
    manifests = [_manifest(part) for part in parts]
    if all(manifest.missing for manifest in manifests):
        raise ConfigError('; '.join(manifest.missing for manifest in manifests))
    return replace(manifests[0], alternatives=tuple(manifests[1:]))
