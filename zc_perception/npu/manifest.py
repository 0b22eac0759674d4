# Copyright 2026 The zc_perception authors
# SPDX-License-Identifier: Apache-2.0
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.

"""
Read ``model.yaml``: a model's input, its outputs, and how to decode the outputs.

Read :class:`ModelManifest` first; :func:`load_manifest` makes one from a file. One table,
:func:`manifest_table`, lists the file's keys with their rules (:mod:`zc_perception.rules`).
:func:`load_manifest` checks a file by this table. ``models/model.schema.json``, which editors use,
is generated from the table. An accelerator declares the keys and rules that only its engines have
(:class:`EngineRules`), and a head declares its own options. ``_manifest`` checks whether the
values of different keys fit each other. :func:`check_head` checks before the first frame that the
head can decode the model's outputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
import contextlib
from dataclasses import dataclass, field, replace
import functools
import json
import math
from pathlib import Path
import re
from typing import Any

import numpy as np
from numpy.typing import NDArray
import yaml

from zc_perception.detection.heads import HeadRule, HEADS, make_head
from zc_perception.detection.heads.recognition import recognise, Recognised
from zc_perception.detection.heads.spec import DecodeLimits, EXTRAS, HeadSpec
from zc_perception.detection.letterbox import Letterbox
from zc_perception.detection.raw_tensor import RawTensor
from zc_perception.errors import AcceleratorError, ConfigError, message_of, nearest, shown
from zc_perception.local_path import local_path
from zc_perception.npu.kinds import ACCELERATORS
from zc_perception.npu.model_file import AXES, BESIDES, contradiction, facts_of, ModelFacts
from zc_perception.rules import (
    array,
    choice,
    either,
    integer,
    Key,
    number,
    Place,
    Schema,
    Table,
    TableList,
    text,
)
from zc_perception.shipped_files import shipped_file

Values = Mapping[str, Any]


class EngineRules:
    """
    An engine's rules for manifests.

    This base class allows any input and any outputs. Derive a class for an engine with more rules.

    :param name: the value of key ``engine``.
    :param file: a short description of the file that the manifest's key ``file`` names.
    :param files: patterns of the names of model files that the engine runs without a manifest.
    :param needs_file: whether a manifest must have the key ``file``; ``False``: the key is
        ignored; ``None``: it may be left out.
    :param takes_frames: whether the engine can run on frames at their own size (``resize: none``).
    :param keys: the manifest's keys that only this engine has. A list entry of key ``variants``
        doesn't inherit them from the top level. Their values are in ``ModelManifest.own``.
    """

    def __init__(
        self,
        name: str,
        *,
        file: str = '',
        files: Sequence[str] = (),
        needs_file: bool | None = None,
        takes_frames: bool = True,
        keys: Mapping[str, Key] | None = None,
    ) -> None:
        self.name, self.file, self.files, self.needs_file = name, file, files, needs_file
        self.takes_frames, self.keys = takes_frames, keys or {}

    def input_size(self, given: Values, file: Path | None, place: Place) -> tuple[int, int] | None:
        """
        Return the input's width and height, if the manifest need not give them.

        :param given: the manifest's values below key ``input``; each value was already checked
            by itself, but not together with the others.
        :param file: the model's file; ``None`` if there is none.
        :param place: the place of key ``input``, for messages.
        :returns: (0, 0): the frame's own size; ``None``: the manifest must give width and height.
        :raises ConfigError: the engine can't use the values *given*, or *file* contradicts them.
        """
        if given.get('resize') != 'none':
            return None
        if not self.takes_frames:
            raise place.at('resize').refuse(
                'none', f'one of letterbox, stretch for engine {self.name}'
            )
        return 0, 0

    def check_outputs(self, outputs: Sequence[Values] | None, place: Place) -> None:
        """
        Check that each entry of key ``outputs`` has the keys that the engine needs.

        :param outputs: the entries, each checked by itself before; ``None``: there is no such key.
        :raises ConfigError: an entry lacks a key.
        """

    def check_tensors(self, tensors: Sequence[Any], place: Place) -> None:
        """
        Check the sizes and offsets of all outputs.

        :param tensors: a :class:`~zc_perception.npu.manifest.TensorSpec` for each output.
        :raises ConfigError: the engine can't yield such tensors.
        """


MODELS = Path(__file__).resolve().parent.parent / 'models'
DTYPES = ('int8', 'uint8', 'int16', 'int32', 'float32')
_INPUT_TYPES = ('float32', 'float16', 'uint8', 'int8')
_LARGEST_SIDE = 1 << 14
_INT32 = (-(1 << 31), (1 << 31) - 1)
# Numbers such as 1e3, which PyYAML reads as texts: it follows YAML 1.1, where a number with an
# exponent needs a dot, and a sign in the exponent.
_FLOAT = re.compile(r'^[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)[eE][-+]?[0-9]+$', re.ASCII)
# Limits with which check_head() decodes a blank picture's outputs. check_head() only finds out
# whether the decoding fails, and doesn't use the detections.
_BLANK_LIMITS = DecodeLimits(1.0, 0.5, 1)
_ANY_SIZE = 64
_FEWEST_VALUES = 16
_SHIPPED_CLASSES = ('coco',)
_TORCH = ('.pt', '.pth')
_TASKS = ('detect', 'segment', 'pose', 'obb')
# Options of a head that the model's outputs imply. A manifest need not give these options; if it
# gives one, the option must agree with the outputs.
_UNCHOSEN = {'columns', 'coordinates', 'box_order', 'reg_max', *EXTRAS}


@dataclass(frozen=True)
class ModelInput:
    """
    The network's input.

    :param width: pixels, without padding in memory; 0 if the model runs on the frame's own planes
        at the frame's size (``resize`` ``none``).
    :param low: the real value (the number before ``mean`` and ``std`` are applied) for pixel
        value 0.
    :param high: the real value for pixel value 255.
    :param resize: ``letterbox``, ``stretch`` or ``none``.
    :param pad: the pixel value that fills the borders of a letterbox, 0..255.
    :param layout: ``nchw`` or ``nhwc``. For a compiled model, the file itself decides *layout*,
        *dtype*, *scale* and *zero_point*, and these values in this object are ignored.
    :param dtype: float32, float16, uint8 or int8.
    :param scale: for integer types: real value = (raw - zero_point) · scale.
    :param grey: whether the input has one channel (luma) instead of three.
    :param mean: subtracted from the real values, one number or one for each channel; empty: none.
    :param std: the numbers that the values are divided by after ``mean`` was subtracted.
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
    grey: bool = False
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    @property
    def channels(self) -> int:
        """The number of channels, 1 or 3."""
        return 1 if self.grey else 3

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The shape of the input tensor, in the order of ``layout``, with batch size 1."""
        if self.layout == 'nhwc':
            return 1, self.height, self.width, self.channels
        return 1, self.channels, self.height, self.width

    def tables(self) -> NDArray[Any]:
        """Return an array (channels, 256): the tensor's value for each channel and pixel value."""
        samples = self.low + np.arange(256) * ((self.high - self.low) / 255)
        mean, std = (
            np.resize(given or one, (self.channels, 1))
            for given, one in ((self.mean, 0.0), (self.std, 1.0))
        )
        real: NDArray[Any] = (samples - mean) / std
        if self.dtype.startswith('float'):
            return real.astype(self.dtype)
        limits = np.iinfo(self.dtype)
        raw: NDArray[Any] = np.rint(real / self.scale + self.zero_point)
        return raw.clip(limits.min, limits.max).astype(self.dtype)


@dataclass(frozen=True)
class TensorSpec:
    """
    A tensor in a device's memory: value = (raw − zero_point) · scale.

    The tensor is an output in a manifest, or an input or output of the Voyager runtime. An empty
    ``dtype`` or ``shape`` means that the model's file decides.

    :param shape: C order, without padding.
    :param offset: bytes from the start of the memory.
    :param scale: one number for all values, or one for each element of the tensor's last axis.
    :param layout: ``nchw``, ``nhwc``, or empty if the tensor has no such axes.
    :param padding: for each axis, how many padding elements are before and after the values in
        memory; empty: no padding.
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
        """The shape in memory, padding included."""
        if not self.padding:
            return self.shape
        return tuple(
            before + size + after
            for size, (before, after) in zip(self.shape, self.padding, strict=True)
        )

    @property
    def num_bytes(self) -> int:
        """The size in memory, with padding."""
        return math.prod(self.padded_shape) * np.dtype(self.dtype).itemsize

    def whole(self, memory: Any) -> NDArray[Any]:
        """Return a view of the tensor in *memory*, with its padding."""
        return np.frombuffer(
            memory, self.dtype, math.prod(self.padded_shape), self.offset
        ).reshape(self.padded_shape)

    def view(self, memory: Any) -> RawTensor:
        """Return a view of the tensor in *memory*, without its padding, for heads."""
        values = self.whole(memory)
        if self.padding:
            values = values[
                tuple(
                    slice(before, before + size)
                    for size, (before, _) in zip(self.shape, self.padding, strict=True)
                )
            ]
        return self.raw(values)

    def raw(self, values: NDArray[Any]) -> RawTensor:
        """Return *values*, which have no padding, as a :class:`RawTensor` for heads."""
        scale = self.scale[0] if len(self.scale) == 1 else np.array(self.scale, np.float32)
        return RawTensor(values, scale, self.zero_point, self.layout, self.name)

    def blank(self) -> RawTensor:
        """Return a new tensor of this shape, filled with the raw value that means 0.0."""
        kind = np.dtype(self.dtype)
        zero = (
            0
            if kind.kind == 'f'
            else np.clip(self.zero_point, np.iinfo(kind).min, np.iinfo(kind).max)
        )
        return self.raw(np.full(self.shape, zero, kind))


@dataclass(frozen=True)
class ModelManifest:
    """
    One model for one engine: a validated manifest, or one of its variants.

    :param file: the model's file; ``None`` for an engine that needs none.
    :param tensors: the outputs that the manifest describes.
    :param alternatives: the same model for other engines.
    :param missing: why :attr:`file` can't be used; empty if the file exists or none is needed.
    :param finds: which objects the model finds and in which pictures; empty: not given.
    :param own: the values of the keys that only this engine has.
    """

    name: str
    path: Path
    engine: str
    file: Path | None
    input: ModelInput  # noqa: A003
    head: HeadSpec
    classes: tuple[str, ...]
    score_threshold: float
    nms_threshold: float
    max_detections: int
    tensors: tuple[TensorSpec, ...] = ()
    alternatives: tuple[ModelManifest, ...] = ()
    missing: str = ''
    finds: str = ''
    own: Mapping[str, Any] = field(default_factory=dict)

    @property
    def variants(self) -> tuple[ModelManifest, ...]:
        """This manifest, followed by the manifests of the same model for other engines."""
        return (self, *self.alternatives)

    def for_engines(self, engines: Sequence[str]) -> ModelManifest | None:
        """Return the first variant whose engine is one of *engines*; ``None`` if there is none."""
        return next((variant for variant in self.variants if variant.engine in engines), None)


def _engines(accelerators: Iterable[str]) -> Iterator[EngineRules]:
    """Yield the engines of *accelerators*; skip accelerators whose package can't be imported."""
    for name in accelerators:
        with contextlib.suppress(ConfigError):
            yield from ACCELERATORS.load(name).ENGINES


@functools.cache
def _shipped_engines() -> Mapping[str, EngineRules]:
    return {engine.name: engine for engine in _engines(ACCELERATORS.built_in)}


def _other_engines() -> Mapping[str, EngineRules]:
    return {engine.name: engine for engine in _engines(ACCELERATORS.others)}


def _file_engines() -> Iterator[tuple[str, str]]:
    """Yield each pattern of model files that need no manifest, with the engine that runs them."""
    for engine in (*_shipped_engines().values(), *_other_engines().values()):
        for pattern in engine.files:
            yield pattern, engine.name


def _engine_of(path: Path) -> str:
    """Return the engine that runs this file without a manifest; empty if none does."""
    suffix = path.suffix.lower()
    return next((name for files, name in _file_engines() if Path(files).suffix == suffix), '')


def _engine_keys(engines: Iterable[EngineRules]) -> dict[str, Key]:
    return {
        name: replace(key, description=f'{engine.name}: {key.description}')
        for engine in engines
        for name, key in engine.keys.items()
    }


_SCALE = either(
    number(above=0),
    array('numbers', number(above=0), 1),
    "a number above 0, or a list of such numbers: one for each element of the output's last axis",
)
_PAIR = array('a pair', integer(0, _LARGEST_SIDE), 2, 2)

INPUT = Table(
    {
        'width': Key(
            integer(2, _LARGEST_SIDE),
            'Width of the network input in pixels, without padding in memory.',
        ),
        'height': Key(
            integer(2, _LARGEST_SIDE),
            'Height of the network input in pixels, without padding in memory.',
        ),
        'layout': Key(choice('nchw', 'nhwc'), 'Order of the axes.', 'nchw'),
        'dtype': Key(choice(*_INPUT_TYPES), 'Type of the values.', 'float32'),
        'colour': Key(
            choice('rgb', 'bgr', 'grey'), 'Order of the channels; grey: only luma.', 'rgb'
        ),
        'range': Key(
            array(
                'two different numbers, the tensor values for pixel values 0 and 255',
                number(),
                2,
                2,
                different=True,
            ),
            (
                'Real values for pixel values 0 and 255. Default: 0 and 1; for dtype uint8 '
                'without key scale: 0 and 255.'
            ),
            [0.0, 1.0],
        ),
        'mean': Key(
            array('one number, or one for each channel', number(), 1, 3),
            'Subtracted from the real values: one number, or one for each channel.',
            [],
        ),
        'std': Key(
            array('one number above 0, or one for each channel', number(above=0), 1, 3),
            'After mean is subtracted, the values are divided by std: one number, or one for each '
            'channel.',
            [],
        ),
        'scale': Key(
            number(above=0),
            'For integer types: value = (raw - zero_point) * scale. Default for uint8: 1.',
        ),
        'zero_point': Key(integer(*_INT32), 'For integer types: the raw value of a real 0.', 0),
        'resize': Key(
            choice('letterbox', 'stretch', 'none'),
            (
                'How a frame is scaled to this size. letterbox: the aspect ratio stays, borders '
                'are filled; stretch: to the whole size; none: the model runs on the frame itself.'
            ),
            'letterbox',
        ),
        'pad': Key(integer(0, 255), 'The sample that fills the borders of a letterbox.', 114),
    }
)
OUTPUTS = TableList(
    Table(
        {
            'name': Key(text('a name'), 'Name of the tensor.'),
            'layout': Key(choice('nchw', 'nhwc'), 'Order of the axes, if the output is a grid.'),
            'dtype': Key(choice(*DTYPES), 'Type of the values.'),
            'shape': Key(
                array('a list of positive sizes', integer(1, 1 << 30), 1),
                'Size of each axis, without padding.',
            ),
            'offset': Key(integer(0, 1 << 30), 'Bytes from the start of the result buffer.', 0),
            'scale': Key(
                _SCALE,
                (
                    'value = (raw - zero_point) * scale; one number for all values, or one for '
                    "each element of the output's last axis."
                ),
                1.0,
            ),
            'zero_point': Key(integer(*_INT32), 'The raw value of a real 0.', 0),
            'padding': Key(
                array(
                    'a list with two numbers for each axis: how many elements pad its start and '
                    'how many pad its end',
                    _PAIR,
                    1,
                ),
                'Padding elements before and after each axis in the result buffer.',
            ),
        },
        needed=('name',),
    ),
    'a list of at least one tensor',
)
# Keys that each variant in a manifest may have, besides the keys of the variant's engine.
_KEYS = {
    'input': Key(
        INPUT,
        (
            "The network's input (a compiled model's file itself tells layout, type, scale and "
            'zero point).'
        ),
    ),
    'outputs': Key(
        OUTPUTS, "The network's outputs; needed if the model's files don't describe them."
    ),
    'head': Key(
        HeadRule(), 'How the outputs are read: the kind of head, or a mapping with its options.'
    ),
    'classes': Key(
        array('a list of at least one class name', text('a name'), 1),
        "Names of the classes, in the network's order, without a background class.",
    ),
    'classes_file': Key(
        text('the name of a text file with one class per line, relative to the manifest'),
        "A file with the names of the classes, in place of key 'classes'.",
    ),
    'score_threshold': Key(number(0.0, 1.0), 'Detections with a lower score are dropped.', 0.25),
    'nms_threshold': Key(
        number(0.0, 1.0), 'IoU above which the weaker of two boxes is dropped.', 0.45
    ),
    'max_detections': Key(integer(1, 10000), 'Highest number of detections per frame.', 300),
}
_SHARED = ('input', 'outputs', 'head', 'classes')
# Keys that variants inherit from the top level. The other keys describe one engine's file.
_SHAREABLE = {'name', 'engine', 'finds', 'licence', *_KEYS} - {'outputs'}
_DEFAULT_ENGINE = 'onnx'
COMPILED = 'model.json'
# Common wrong names of keys, and the right ones.
_MEANT = {
    'names': 'classes',
    'labels': 'classes',
    'nc': 'classes',
    'imgsz': 'input',
    'weights': 'file',
    'model': 'file',
    'threshold': 'score_threshold',
    'conf': 'score_threshold',
    'iou': 'nms_threshold',
    'max_det': 'max_detections',
}


def _elsewhere() -> dict[str, str]:
    head = {name: 'head' for kind in HEADS.built_in for name in HEADS.load(kind).OPTIONS}
    return head | {name: 'input' for name in INPUT.keys if name != 'scale'}


@functools.cache
def variant_table() -> Table:
    """Return the table of the keys that an entry of a manifest's ``variants`` may have."""
    engines = _shipped_engines()
    files = '; '.join(f'{name}: {engine.file}' for name, engine in engines.items() if engine.file)
    return Table(
        {
            'engine': Key(
                choice(*engines, others=lambda: tuple(_other_engines())),
                'What runs the model.',
                _DEFAULT_ENGINE,
            ),
            'file': Key(text("the weights' file name, relative to the manifest"), f'{files}.'),
            **_engine_keys(engines.values()),
            **_KEYS,
        },
        elsewhere=_elsewhere,
        more=lambda: _engine_keys(_other_engines().values()),
        meant=_MEANT,
    )


@functools.cache
def manifest_table() -> Table:
    """Return the table of the keys that a manifest may have at its top level."""
    variant = variant_table()
    return Table(
        {
            'name': Key(text('a name'), "The model's name; if left out, the folder's name."),
            **variant.keys,
            'finds': Key(
                text('a few words', empty=True),
                'What the model finds and in which pictures; the node logs this at its start.',
                '',
            ),
            'licence': Key(
                text('the name of a licence', empty=True), 'Licence of weights and training data.'
            ),
            'variants': Key(
                TableList(variant, 'a list of at least one mapping'),
                'The same model for other engines. An entry may replace keys of the top level; it '
                "doesn't inherit file, outputs and the keys that only one engine has.",
            ),
        },
        elsewhere=_elsewhere,
        more=variant.more,
        meant=_MEANT,
    )


def _with_references(table: Table, names: Iterable[str]) -> Schema:
    schema = table.schema()
    for name in names:
        schema['properties'][name] = {
            '$ref': f'#/$defs/{name}',
            'description': table.keys[name].description,
        }
    return schema


def manifest_schema() -> Schema:
    """Return the JSON schema of ``model.yaml``, draft 2020-12."""
    schema = _with_references(manifest_table(), _SHARED)
    variants = schema['properties']['variants']
    schema['properties']['variants'] = {
        **variants,
        'items': _with_references(variant_table(), _SHARED),
    }
    return {
        '$schema': 'https://json-schema.org/draft/2020-12/schema',
        'title': 'zc_perception model.yaml',
        'description': (
            'What a model takes, what it yields, and how to read its outputs. Files are '
            'relative to the manifest.'
        ),
        **schema,
        '$defs': {name: _KEYS[name].rule.schema() for name in _SHARED},
    }


def schema_text() -> str:
    """Return the content of ``models/model.schema.json``."""
    return json.dumps(manifest_schema(), indent=1) + '\n'


def shipped_models() -> list[str]:
    """Return the names of shipped models, which parameter ``model`` accepts besides a path."""
    return sorted(p.parent.name for p in MODELS.glob('*/model.yaml'))


def find_manifest(model: str) -> Path:
    """
    Find the manifest of a model by its name, folder or path.

    If the model's file needs no manifest, return that file.

    :raises ConfigError: *model* is neither a shipped model's name nor the path of a model or
        manifest.
    """
    shipped = shipped_models()
    if model in shipped:
        return MODELS / model / 'model.yaml'
    web = model.startswith(('http://', 'https://'))
    nowhere = ': download it first' if web else ''
    # *model* may be too long for a path. Then it names no file: ignore the error.
    with contextlib.suppress(OSError, ValueError):
        path = Path(local_path(model, 'model'))
        if not web and ('/' in model or path.suffix) and not path.exists():
            nowhere = f": there is no '{path.absolute()}'"
        if model and path.is_dir():
            return _in_folder(path)
        if path.is_file() and (path.suffix.lower() in ('.yaml', '.yml') or _engine_of(path)):
            return path
        if path.is_file():
            weights = path.name if path.suffix.lower() in _TORCH else 'its weights (.pt)'
            kinds = ', '.join(files.removeprefix('*') for files, _ in _file_engines())
            raise ConfigError(
                f"model '{model}' is neither a manifest nor a model that can be run ({kinds}); "
                f'export {weights}: yolo export model={path.with_suffix(".pt").name} format=onnx '
                f'(see {shipped_file("docs/models.md")})'
            )
    raise ConfigError(
        f"model '{model}' is not known{nowhere}; use one of {', '.join(shipped)} or the path of a "
        f"model.yaml, of an ONNX file or of a folder with one of them{nearest(model, shipped)}"
    )


def _in_folder(folder: Path) -> Path:
    """Return a folder's manifest or, if it has none, the folder's only model file."""
    manifest = folder / 'model.yaml'
    if manifest.is_file():
        return manifest
    files = [file for pattern, _ in _file_engines() for file in folder.glob(pattern)]
    if len(files) == 1:
        return files[0]
    has = (
        f'but {len(files)} models ({", ".join(sorted(f.name for f in files))})'
        if files
        else 'and no model'
    )
    raise ConfigError(
        f"folder '{folder}' has no model.yaml, {has}; give the path of one model file, or write "
        'a model.yaml'
    )


def _read(path: Path) -> Any:
    """Read a manifest; for a model file that needs none, return its name, engine and file."""
    if engine := _engine_of(path):
        name = path.parent.resolve().name if path.name == COMPILED else path.stem
        return {'name': name, 'engine': engine, 'file': path.name}
    try:
        return parse_yaml(path.read_text(encoding='utf-8'))
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"model manifest '{path}' can't be read: {message_of(error)}") from error


def load_manifest(model: str) -> ModelManifest:
    """
    Find, read and validate a manifest; read missing values from the model's file.

    A manifest without key ``variants`` describes one model for one engine. With that key, each
    variant inherits the top level's keys, except ``file``, ``outputs`` and keys that only one
    engine has; a variant may replace what it inherits. The top level is a variant itself if it has
    ``engine`` or ``file``. A variant's file may be missing if another variant's file exists.

    :param model: a shipped model's name, or the path of a ``model.yaml``, of its folder, or of a
        model's own file.
    :returns: the first variant, with the others as its alternatives.
    :raises ConfigError: the manifest is wrong; the message names the file, the key, its value and
        what is allowed.
    """
    path = find_manifest(model)
    values = _read(path)
    manifest_table().check(values, Place(path))
    variants = values.get('variants', ())
    parts = [_Part(path, values, variant, index) for index, variant in enumerate(variants)]
    if not variants or 'engine' in values or 'file' in values:
        parts.insert(0, _Part(path, values, None, None))
    else:
        words = "in the variants instead, because the top level has neither 'engine' nor 'file'"
        for key in values.keys() - {'variants', *_SHAREABLE}:
            raise Place(path).at(key).refuse(values[key], words)
    engines: set[str] = set()
    for part in parts:
        place, words = part.own_place('engine'), 'one that no other variant has'
        if part.get('engine') in engines and 'engine' in part.own:
            raise place.refuse(part.own['engine'], words)
        if part.get('engine') in engines:
            raise place.missing(words)
        engines.add(part.get('engine'))
    manifests = [_manifest(part) for part in parts]
    if all(manifest.missing for manifest in manifests):
        raise ConfigError('; '.join(manifest.missing for manifest in manifests))
    return replace(manifests[0], alternatives=tuple(manifests[1:]))


def check_head(manifest: ModelManifest, outputs: Sequence[RawTensor]) -> None:
    """
    Check that the manifest's head can decode *outputs*.

    *outputs* are the model's outputs for a blank picture, or tensors of zeros.

    A head whose grids depend on the frame's size is not checked, because the size isn't known yet.

    :raises ConfigError: the head expects other shapes, or other values, such as scores in 0..1.
    """
    width, height = manifest.input.width, manifest.input.height
    if not width:
        if manifest.head.kind != 'boxes':
            return
        width = height = _ANY_SIZE
    box = Letterbox.fit(width, height, width, height, stretch=True)
    head = make_head(manifest.head)
    try:
        head.decode(outputs, box, _BLANK_LIMITS)
        objection = head.objection(outputs, box, manifest.score_threshold)
    except AcceleratorError as error:
        names = f'{len(manifest.classes)} name' + ('' if len(manifest.classes) == 1 else 's')
        raise ConfigError(
            f"{manifest.path}: key 'head' is {manifest.head.kind} and key 'classes' has {names}, "
            f'which does not fit what the model yields for engine {manifest.engine} ({error}); '
            'correct the key that is wrong'
        ) from error
    if objection:
        raise ConfigError(
            f"{manifest.path}: key 'head' is {manifest.head.kind}, but for a blank picture the "
            f'model yields {objection}; '
            f"zc_model {manifest.file or manifest.path} shows the model's outputs"
        )


class _DuplicateKeyError(yaml.YAMLError):
    """A mapping has a key twice."""


class _Loader(yaml.SafeLoader):
    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """
        Refuse a mapping that has a key twice.

        The check comes before YAML merges other mappings into this one (``<<``), because this
        mapping may have the same keys as the merged mappings.
        """
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        seen: dict[tuple[str, str], yaml.Node] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                first = seen.setdefault((key.tag, key.value), key)
                if first is not key:
                    lines = (
                        f'line {first.start_mark.line + 1} and again in line '
                        f'{key.start_mark.line + 1}'
                    )
                    raise _DuplicateKeyError(f"key '{key.value}' stands in {lines}; leave one out")
        return node


_Loader.add_implicit_resolver('tag:yaml.org,2002:float', _FLOAT, list('-+.0123456789'))


def parse_yaml(text: str) -> Any:
    """
    Return the values of a YAML text, with two differences from PyYAML.

    Texts such as 1e3 are numbers, as in YAML 1.2, and a mapping must not have a key twice.

    :raises yaml.YAMLError: *text* isn't YAML, or a mapping has a key twice.
    """
    return yaml.load(text, _Loader)


class _Part:
    """
    One variant's checked values and their places in the file.

    A value that the variant lacks is inherited from the top level.

    :param index: the variant's index; ``None`` for the top level itself.
    :ivar alone: whether the manifest has no other variant.
    """

    def __init__(self, path: Path, top: Values, own: Values | None, index: int | None) -> None:
        self.path = path
        self.own = top if own is None else own
        self._index = index
        self.alone = own is None and 'variants' not in top
        replaced = (
            ('classes', 'classes_file')
            if 'classes' in self.own or 'classes_file' in self.own
            else ()
        )
        self.values = {
            **{k: v for k, v in top.items() if k in _SHAREABLE and k not in replaced},
            **self.own,
        }

    def place(self, key: str) -> Place:
        """Return the place of *key* in the file; for a missing key, the place where it belongs."""
        return (
            Place(self.path).at(key)
            if key in self.values and key not in self.own
            else self.own_place(key)
        )

    def own_place(self, key: str) -> Place:
        """Return the place of *key* in the variant itself, not in the top level."""
        place = Place(self.path)
        return (
            place.at(key)
            if self._index is None
            else place.at('variants').item(self._index).at(key)
        )

    def get(self, key: str) -> Any:
        return self.values.get(key, manifest_table().keys[key].default)

    def needed(self, key: str) -> Any:
        """Return the value of *key*; raise an error if the manifest lacks the key."""
        if key not in self.values:
            raise self.place(key).missing(manifest_table().keys[key].rule.words)
        return self.values[key]


def _file(part: _Part, engine: EngineRules) -> tuple[Path | None, str]:
    """Return the model's file or ``None``, and a message if the named file is missing."""
    if engine.needs_file is False or (engine.needs_file is None and 'file' not in part.values):
        return None, ''
    name = part.needed('file')
    # If the name is too long, or has characters that a file name can't have, no such file exists.
    with contextlib.suppress(OSError, ValueError):
        file = part.path.parent / local_path(name, part.place('file').key, f'{part.path}: key')
        if file.is_file() and file.suffix.lower() in _TORCH:
            raise ConfigError(
                f"{part.path}: key '{part.place('file').key}' names '{name}', which has PyTorch's "
                f'weights; export them (yolo export model={file.name} format=onnx) and name the '
                'ONNX file'
            )
        if file.is_file():
            return file, ''
    where = part.place('file')
    return (
        None,
        (
            f"{part.path}: key '{where.key}' names '{name}', which does not exist in "
            f'{part.path.parent}'
        ),
    )


def _classes(part: _Part) -> tuple[str, ...]:
    if 'classes_file' not in part.values:
        return tuple(part.needed('classes'))
    name, place = part.values['classes_file'], part.place('classes_file')
    if 'classes' in part.values:
        raise ConfigError(
            f"{part.path}: keys '{part.place('classes').key}' and '{place.key}' both name the "
            'classes; leave one out'
        )
    try:
        file = part.path.parent / local_path(name, place.key, f'{part.path}: key')
        if name in _SHIPPED_CLASSES and not file.exists():
            file = MODELS / f'{name}.txt'
        if file.exists() and not file.is_file():
            raise OSError('it is no file')  # don't open a pipe: that would wait for a writer
        lines = file.read_text(encoding='utf-8-sig').rstrip()
        return names_of(lines)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{part.path}: key '{place.key}' names '{name}', which can't be read: {error}"
        ) from error


def names_of(text: str) -> tuple[str, ...]:
    """
    Return the names of the classes in a text.

    Possible formats: one name per line, as it is, in quotes or after the class's number; a list or
    a numbered mapping in YAML or JSON; a ``data.yaml`` with a key ``names``.

    :raises ValueError: the text has none of these formats; the message names the line.
    """
    try:
        values = yaml.load(text, yaml.BaseLoader)  # BaseLoader keeps each scalar as text
    except (yaml.YAMLError, RecursionError) as error:
        if re.search(r'^names\s*:', text, re.MULTILINE):
            raise ValueError(message_of(error)) from error
        values = None
    if isinstance(values, Mapping) and 'names' in values:
        names = ModelFacts(Path(), values).names
        if not names:
            raise ValueError("its key 'names' is neither a list nor a mapping of names")
        if str(values.get('nc', len(names))) != str(len(names)):
            raise ValueError(f"its key 'nc' is {values['nc']}, but it has {len(names)} names")
        return names
    if values and isinstance(values, list) and all(n and isinstance(n, str) for n in values):
        return tuple(values)
    if values and isinstance(values, Mapping) and all(str(key).isdecimal() for key in values):
        return _numbered([(int(key), str(name)) for key, name in values.items()])
    whole = [line.strip() for line in text.splitlines()]
    places = [place for place, line in enumerate(whole, 1) if not line.startswith('#')]
    lines = [whole[place - 1] for place in places]
    if lines and lines[0].endswith('{'):
        raise ValueError(f"line {places[0]} is '{lines[0]}'; each line must name one class")
    numbered = [re.match(r'(\d+)[\s:,;]+(\S.*)', line) for line in lines]
    pairs = [(int(match[1]), match[2]) for match in numbered if match]
    if (
        lines
        and len(pairs) == len(lines)
        and [number for number, _ in pairs]
        in (list(range(first, first + len(pairs))) for first in (0, 1))
    ):
        return _numbered(pairs)
    names = tuple(
        line[1:-1] if len(line) > 2 and line[0] == line[-1] and line[0] in '\'"' else line
        for line in lines
    )
    if not names or '' in names:
        where = places[names.index('')] if names else 1
        raise ValueError(f'line {where} is empty; each line must name one class')
    return names


def _numbered(pairs: Sequence[tuple[int, str]]) -> tuple[str, ...]:
    numbers = [number for number, _ in pairs]
    if numbers != list(range(len(pairs))):
        raise ValueError(f'the classes have the numbers {numbers[:8]} … instead of 0, 1, 2 …')
    return tuple(name for _, name in pairs)


def _input(part: _Part, engine: EngineRules, file: Path | None) -> ModelInput:
    given, place = part.get('input') or {}, part.place('input')
    values = {name: given.get(name, key.default) for name, key in INPUT.keys.items()}
    size = engine.input_size(given, file, place)
    for name in ('width', 'height'):
        if size is None and name not in given:
            words = INPUT.keys[name].rule.words
            if file == part.path:  # the user gave no manifest
                words += (
                    f', and {file.name} names no size; write a model.yaml with file: '
                    f'{file.name} and the input size of the model, as in input: {{width: 640, '
                    'height: 640}'
                )
            raise place.at(name).missing(words)
    width, height = size or (given['width'], given['height'])
    colour, (low, high) = values.pop('colour'), values.pop('range')
    if values['dtype'] == 'uint8' and not {'scale', 'range'} & given.keys():
        low, high = 0.0, 255.0
    for name in ('mean', 'std'):
        values[name] = tuple(map(float, values[name]))
        if len(values[name]) not in (0, 1, 1 if colour == 'grey' else 3):
            raise place.at(name).refuse(given[name], INPUT.keys[name].rule.words)
    values |= {'width': width, 'height': height, 'scale': float(values['scale'] or 1.0)}
    return ModelInput(
        bgr=colour == 'bgr', grey=colour == 'grey', low=float(low), high=float(high), **values
    )


def _tensor(values: Values, place: Place) -> TensorSpec:
    shape = tuple(values.get('shape', ()))
    scale, padding = values.get('scale', 1.0), values.get('padding', [])
    scales = scale if isinstance(scale, list) else [scale]
    if shape and len(scales) not in (1, shape[-1]):
        raise place.at('scale').refuse(scale, f'a number, or a list of {shape[-1]} numbers')
    if padding and len(padding) != len(shape):
        raise place.at('padding').refuse(
            padding, f'a list of {len(shape)} pairs of numbers, one pair for each axis of shape'
        )
    return TensorSpec(
        name=values['name'],
        dtype=values.get('dtype', ''),
        shape=shape,
        offset=values.get('offset', 0),
        scale=tuple(float(v) for v in scales),
        zero_point=values.get('zero_point', 0),
        layout=values.get('layout', ''),
        padding=tuple((before, after) for before, after in padding),
    )


def _tensors(part: _Part, engine: EngineRules) -> tuple[TensorSpec, ...]:
    outputs, place = part.get('outputs'), part.place('outputs')
    engine.check_outputs(outputs, place)
    tensors = tuple(
        _tensor(values, place.item(index)) for index, values in enumerate(outputs or ())
    )
    engine.check_tensors(tensors, place)
    return tensors


def _head(part: _Part, num_classes: int, network: ModelInput) -> HeadSpec:
    given = part.needed('head')
    options: dict[str, Any] = {'kind': given} if isinstance(given, str) else given
    head = HeadSpec(num_classes=num_classes, input_size=(network.width, network.height), **options)
    # If the compiled model's file is missing, the input's size is unknown, and the head can't be
    # checked. With resize 'none' the size is always unknown, and the head is checked without it.
    if network.width or network.resize == 'none':
        try:
            make_head(head)
        except ConfigError as error:
            raise ConfigError(
                f'{part.path}: {part.place("head").key.removesuffix("head")}{error}'
            ) from error
    return head


def _complete(part: _Part, facts: ModelFacts) -> None:
    """Add to *part* the values that the manifest leaves out and the model's file gives."""
    values, path = part.values, part.path
    if facts.task not in ('', *_TASKS):
        raise ConfigError(
            f"model '{facts.source}' is for task {facts.task}, for which there is no head; use a "
            f'model for task {", ".join(_TASKS)}'
        )
    if 'classes' in values or 'classes_file' in values:
        given = _classes(part)
        if facts.names and given != facts.names:
            key = part.place('classes' if 'classes' in values else 'classes_file').key
            advice = f'leave {key} out, or correct this key or the model'
            raise ConfigError(
                f'{path}: {contradiction(key, given, facts.source, facts.names, advice)}'
            )
    elif facts.names:
        values['classes'] = list(facts.names)
    own = values.get('input') or {}
    values['input'] = network = {**_input_of(facts, own), **own}
    # The input sizes in the manifest and in the model's file may differ. _check_input() refuses
    # such a manifest later, with a clear message.
    width, height = (facts.axes.get(side) or network.get(side) for side in ('width', 'height'))
    size = (width, height) if width and height else None
    classes = len(_classes(part)) if 'classes' in values or 'classes_file' in values else 0
    found = _recognised(facts, size, classes)
    if not classes:
        count = f' for its {found.classes} classes' if found.classes > 0 else ''
        coco = "; for COCO's classes write classes_file: coco" if found.classes in (0, 80) else ''
        raise ConfigError(
            f"{path}: key 'classes' is missing, and {facts.source.name} has no class names; write "
            f'a model.yaml with file: {facts.source.name} and classes: […]{count}{coco} (see '
            f'{shipped_file("docs/models.md")})'
        )
    values['input'] = {**found.input, **network}
    if found.head is None and not found.choices and 'head' not in values:
        _check_count(part, facts, classes, _recognised(facts, size, 0))
    values['head'] = _settled(part, facts, found)


def _recognised(facts: ModelFacts, size: tuple[int, int] | None, classes: int) -> Recognised:
    return recognise(
        [(output.name, output.shape) for output in facts.outputs],
        size,
        classes,
        facts.said,
        [tensor.name for tensor in facts.inputs],
    )


def _check_count(part: _Part, facts: ModelFacts, classes: int, found: Recognised) -> None:
    """
    Raise ConfigError if a head could read the outputs with another number of classes.

    :param found: what the outputs are, if the manifest's number of classes is ignored.
    """
    if found.head is None or found.classes < 1:
        return
    key = part.place('classes_file' if 'classes_file' in part.values else 'classes').key
    where, advice = (
        (facts.source.name, 'export the model again, with one name for each class')
        if facts.names
        else (f"key '{key}'", 'write one name for each class')
    )
    raise ConfigError(
        f'{part.path}: the number of names in {where} is {classes}, but head '
        f'{found.head["kind"]} reads {found.classes} classes from the outputs '
        f'({", ".join(map(str, facts.outputs))}); {advice}; if a row also has mask '
        'coefficients, keypoints or an angle, write a model.yaml whose key head has masks, '
        'keypoints or oriented'
    )


def _input_of(facts: ModelFacts, own: Values) -> dict[str, Any]:
    (width, height), axes = facts.size, facts.axes
    said: dict[str, Any] = {'width': width, 'height': height}
    if axes:
        said['layout'] = next(name for name, order in AXES.items() if order == (*axes,))
        dtype = facts.pictures[0].dtype
        said |= {'dtype': dtype} if dtype in _INPUT_TYPES and 'dtype' not in own else {}
        said |= {'colour': 'grey'} if axes['colour'] == 1 else {}
    return {key: value for key, value in said.items() if value}


def _check_input(network: ModelInput, file: Path, facts: ModelFacts, part: _Part) -> None:
    """Check that the model's file takes the input that the manifest describes."""
    given, place, pictures = part.values['input'], part.place('input'), facts.pictures
    for side in ('width', 'height'):
        size, low = getattr(network, side), getattr(network, side) // facts.stride * facts.stride
        if size != low:
            raise ConfigError(
                f"{place.path}: key '{place.at(side).key}' is {size}, but {facts.source.name} "
                f'says stride {facts.stride}: the nearest multiples are '
                f'{max(low, facts.stride)} and {max(low, facts.stride) + facts.stride}'
            )
    if not facts.inputs and not facts.outputs:
        return
    if len(pictures) != 1:
        raise ConfigError(
            f"model file '{file}' has {len(facts.inputs)} inputs "
            f'({", ".join(i.name for i in facts.inputs)}); it needs one for the picture, and may '
            f'also have {", ".join(BESIDES)}: export the model without other inputs'
        )
    picture = pictures[0]
    if len(picture.shape) == 4 and (picture.shape[0] or 1) > 1:
        raise ConfigError(
            f"model file '{file}' takes batches of {picture.shape[0]} frames, but must run on "
            'single frames; export the model with batch 1 (yolo export … batch=1)'
        )
    shape, axes, has = picture.shape, AXES[network.layout], facts.axes
    wrong = {
        axis: size
        for axis, size, want in zip(axes, shape, network.shape, strict=False)
        if size not in (None, want)
    }
    advice = 'correct the key, or leave it out'
    if len(shape) != 4 or (wrong and axes != (*has,)):
        key, value, said = 'layout', f'{network.layout} ({" x ".join(axes)})', str(picture)
    elif wrong:
        key, size = next(iter(wrong.items()))
        value, said = given.get(key, 'rgb'), f"{picture} (this key's axis has size {size})"
        size = {1: 'grey', 3: 'rgb'}.get(size, '') if key == 'colour' else size
        advice = (
            f'write {key}: {size}, or leave it out'
            if size
            else 'export the model with 1 or 3 channels'
        )
    elif picture.dtype != network.dtype:
        key, value, said = 'dtype', network.dtype, f'{picture} {picture.dtype}'
        if picture.dtype not in _INPUT_TYPES:
            advice = f'export the model with one of {", ".join(_INPUT_TYPES)}'
    elif (values := min(len(set(table.tolist())) for table in network.tables())) < _FEWEST_VALUES:
        raise ConfigError(
            f"{place.path}: '{place.at('range').key}' [{network.low:g}, {network.high:g}] with "
            f'scale {network.scale:g} maps the 256 values of a sample to only {values} values of '
            f'{network.dtype}; correct range or scale, or leave out both to use samples unchanged'
        )
    else:
        return
    raise ConfigError(
        f'{place.path}: {contradiction(place.at(key).key, value, file, said, advice)}'
    )


def _settled(part: _Part, facts: ModelFacts, found: Recognised) -> Any:
    """Return the manifest's head, completed with the options that the model's file implies."""
    given, place = part.values.get('head'), part.place('head')
    told = found.head
    if given is None:
        if told is not None:
            return told
        outputs = ', '.join(map(str, facts.outputs)) or 'unknown until the model is loaded'
        name, page = facts.source.name, shipped_file('docs/models.md')
        advice = (
            f'write a model.yaml with file: {name} and one of: {" or ".join(found.choices)} (see '
            f'{page})'
            if found.choices
            else f'if a head in {page} reads such outputs, write a model.yaml with file: {name} '
            'and this head, otherwise export the model with other outputs'
        )
        raise ConfigError(
            f"{part.path}: key 'head' is missing, and {name} doesn't say how its outputs are read "
            f'({outputs}); {advice}'
        )
    own = {'kind': given} if isinstance(given, str) else dict(given)
    if told is None or own['kind'] not in HEADS.built_in:
        return given
    if own['kind'] != told['kind']:
        raise ConfigError(f'{part.path}: {_other_head(place.key, own, facts, told)}')
    for option in _UNCHOSEN & own.keys() & told.keys():
        if own[option] != told[option]:
            raise ConfigError(
                f'{part.path}: {_other_head(place.at(option).key, own[option], facts, told)}'
            )
    return {**told, **own}


def _other_head(key: str, given: object, facts: ModelFacts, told: Mapping[str, Any]) -> str:
    outputs = ', '.join(map(str, facts.outputs))
    head = f'{{{", ".join(f"{k}: {v}" for k, v in told.items())}}}'.replace("'", '')
    if isinstance(given, dict):
        given = given['kind'] if len(given) == 1 else given
    said = f'outputs {outputs}, which are read by head: {head}'
    return (
        f"key '{key}' is {shown(given)}, but {facts.source.name} has {said}; correct "
        'the key, or leave out the key head'
    )


def _manifest(part: _Part) -> ModelManifest:
    name = part.get('engine')
    engine = _shipped_engines().get(name) or _other_engines()[name]
    for key in part.own.keys() - {'file', 'outputs', 'variants', *_SHAREABLE, *engine.keys}:
        place = part.own_place(key)
        raise ConfigError(
            f"{place.path}: key '{place.key}' is not for engine {name}, but for another engine; "
            'leave the key out'
        )
    file, missing = _file(part, engine)
    if missing and part.alone:
        raise ConfigError(missing)
    facts = None if file is None else facts_of(file)
    if facts is not None:
        # Torchvision's own examples export models whose input has no axis for the batch.
        if [len(picture.shape) for picture in facts.pictures] == [3]:
            raise ConfigError(
                f"model file '{file}' takes {facts.pictures[0]}, which lacks the axis of the "
                'batch; export the model for a picture with four axes (torch.rand(1, 3, height, '
                'width))'
            )
        _complete(part, facts)
    classes = _classes(part)
    network = _input(part, engine, file)
    if file is not None and facts is not None:
        _check_input(network, file, facts, part)
    head = _head(part, len(classes), network)
    return ModelManifest(
        name=part.values.get('name', part.path.resolve().parent.name),
        path=part.path,
        engine=engine.name,
        file=file,
        input=network,
        head=head,
        classes=classes,
        score_threshold=float(part.get('score_threshold')),
        nms_threshold=float(part.get('nms_threshold')),
        max_detections=part.get('max_detections'),
        tensors=_tensors(part, engine),
        missing=missing,
        finds=part.get('finds'),
        own={key: part.values.get(key, rule.default) for key, rule in engine.keys.items()},
    )
