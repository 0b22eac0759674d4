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
Read the metadata, inputs and outputs in a model's file: :func:`facts_of`.

This module doesn't load the model and doesn't need ONNX Runtime. It reads an ONNX file field by
field, as ``onnx.proto`` defines them, and skips the weights. Ultralytics writes the classes'
names, the size, stride and task as ``metadata_props`` into an ONNX file, and into a
``metadata.yaml`` beside the files that it exports for other runtimes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
import mmap
from pathlib import Path
from typing import Any

import yaml

from zc_perception.errors import ConfigError, message_of, shown

# onnx.proto: TensorProto.DataType
_TYPES = {
    1: 'float32',
    2: 'uint8',
    3: 'int8',
    4: 'uint16',
    5: 'int16',
    6: 'int32',
    7: 'int64',
    10: 'float16',
    11: 'float64',
}
# Names of extra inputs by which some models scale their boxes: the first is RT-DETR's and
# D-FINE's, the others are PaddleDetection's.
BESIDES = ('orig_target_sizes', 'im_shape', 'scale_factor')
AXES = {
    'nchw': ('batch', 'colour', 'height', 'width'),
    'nhwc': ('batch', 'height', 'width', 'colour'),
}
_METADATA = 'metadata.yaml'
_LARGEST_METADATA = 1 << 20
_LARGEST_CLASS = 1 << 16
# Files that users often give instead of an ONNX file: their first bytes, and a message.
_IMPOSTORS = (
    (b'version https://git-lfs', 'a Git LFS pointer, not the file itself: run git lfs pull'),
    (b'<', 'a web page, not a model: download the model itself, not the page that shows it'),
    (b'PK\x03\x04', ("a zip archive, as PyTorch's .pt files are: export it (yolo export "
                     'model=… format=onnx)')),
    (b'\x80\x02', ("a pickle, as PyTorch's older .pt files are: export it (yolo export model=… "
                   'format=onnx)')),
)  # fmt: skip


@dataclass(frozen=True)
class TensorFacts:
    """An input or output of a model. An axis is ``None`` if the file gives it no fixed size."""

    name: str
    dtype: str
    shape: tuple[int | None, ...]

    def __str__(self) -> str:
        return f"'{self.name}' {'x'.join('n' if n is None else str(n) for n in self.shape)}"


@dataclass(frozen=True)
class ModelFacts:
    """
    The metadata, inputs and outputs in a model's file.

    :param source: the file that has the metadata.
    :param said: the metadata, each value parsed.
    :param inputs: empty if unknown, as for files other than ONNX.
    """

    source: Path
    said: Mapping[str, Any] = field(default_factory=dict)
    inputs: tuple[TensorFacts, ...] = ()
    outputs: tuple[TensorFacts, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the classes; a class without a name gets its number as name."""
        names = self.said.get('names', ())
        if isinstance(names, Mapping):
            numbered = {int(key): name for key, name in names.items() if str(key).isdecimal()}
            if len(numbered) < len(names) or max(numbered, default=0) > _LARGEST_CLASS:
                return ()
            names = [numbered.get(n, n) for n in range(max(numbered, default=-1) + 1)]
        return tuple(map(str, names)) if isinstance(names, (list, tuple)) else ()

    @property
    def pictures(self) -> list[TensorFacts]:
        """The inputs for pictures; a model that this package can run has exactly one."""
        return [tensor for tensor in self.inputs if tensor.name not in BESIDES]

    @property
    def axes(self) -> dict[str, int | None]:
        """
        Return the length of each axis of the picture input, in the order of its layout.

        The layout is NHWC if only the last axis can be the channels (1 or 3), otherwise NCHW. The
        result is empty if the input doesn't have four axes.
        """
        shape = self.pictures[0].shape if self.pictures else ()
        if len(shape) != 4:
            return {}
        nhwc = shape[3] in (1, 3) and shape[1] not in (1, 3)
        return dict(zip(AXES['nhwc' if nhwc else 'nchw'], shape, strict=True))

    @property
    def size(self) -> tuple[int | None, int | None]:
        """Width and height, from the input's shape or else from the metadata."""
        trained = self.said.get('imgsz')
        sides = trained if isinstance(trained, (list, tuple)) else (trained, trained)
        rows, columns = map(_number, sides) if len(sides) == 2 else (None, None)
        return self.axes.get('width') or columns, self.axes.get('height') or rows

    @property
    def stride(self) -> int:
        """The number of which width and height must be multiples; 1 if unknown."""
        said = self.said.get('stride')
        strides = said if isinstance(said, (list, tuple)) else (said,)
        return max((_number(stride) or 1 for stride in strides), default=1)

    @property
    def task(self) -> str:
        """The task, such as ``detect`` or ``segment``; empty: unknown."""
        return str(self.said.get('task', ''))


def facts_of(file: Path) -> ModelFacts:
    """
    Read the facts about a model from its file.

    If the file has no metadata, the metadata comes from a ``metadata.yaml`` beside it.

    :raises ConfigError: a file can't be read, or *file* is no model.
    """
    facts = _read_onnx(file) if file.suffix.lower() == '.onnx' else ModelFacts(file)
    beside = file.with_name(_METADATA)
    if facts.said or not beside.is_file():
        return facts
    try:
        if beside.stat().st_size > _LARGEST_METADATA:
            raise ValueError('it is too large for metadata')
        said = yaml.safe_load(beside.read_text(encoding='utf-8-sig'))
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"'{beside}' can't be read: {message_of(error)}") from error
    return ModelFacts(
        beside, said if isinstance(said, Mapping) else {}, facts.inputs, facts.outputs
    )


def _read_onnx(file: Path) -> ModelFacts:
    try:
        with open(file, 'rb') as opened:
            start = opened.read(32)
            for bytes_, what in _IMPOSTORS:
                if start.lstrip().startswith(bytes_):
                    raise ConfigError(f"model file '{file}' is {what}")
            if not start:
                raise ConfigError(f"model file '{file}' is empty: copy it again")
            with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return _model(file, content)
    except (ValueError, IndexError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"model file '{file}' is no complete ONNX file ({error}); copy or export it again"
        ) from error
    except OSError as error:
        raise ConfigError(f"model file '{file}' can't be read: {message_of(error)}") from error


def _model(file: Path, content: mmap.mmap) -> ModelFacts:
    said: dict[str, Any] = {}
    inputs: list[TensorFacts] = []
    outputs: list[TensorFacts] = []
    weights: set[str] = set()
    graph = None
    for number, place in _fields(content, 0, len(content)):
        if number == 14:
            pair = _texts(content, place)
            said[pair.get(1, '')] = _parsed(pair.get(2, ''))
        elif number == 7:
            graph = place
    if graph is None:
        raise ValueError('the file has no graph')
    for number, place in _fields(content, *_span(graph)):
        if number == 11:
            inputs.append(_tensor(content, place))
        elif number == 12:
            outputs.append(_tensor(content, place))
        elif number == 5:
            weights.add(_texts(content, place, only=8).get(8, ''))
    return ModelFacts(
        file, said, tuple(i for i in inputs if i.name not in weights), tuple(outputs)
    )


_Place = tuple[int, int] | int


def _span(place: _Place) -> tuple[int, int]:
    if isinstance(place, int):
        raise ValueError('a field of the file has a wrong type')
    return place


def _fields(content: mmap.mmap, start: int, end: int) -> Iterator[tuple[int, _Place]]:
    """Yield each protocol-buffer field: its number, and its value or its bytes' (start, end)."""
    while start < end:
        key, start = _varint(content, start)
        kind = key & 7
        if kind == 0:
            value, start = _varint(content, start)
            yield key >> 3, value
            continue
        if kind == 2:
            length, start = _varint(content, start)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise ValueError('the file is no protocol buffer')
        if start + length > end:
            raise ValueError('the file ends too early')
        yield key >> 3, (start, start + length)
        start += length


def _varint(content: mmap.mmap, start: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if shift > 63:
            raise ValueError('the file is no protocol buffer')
        byte = content[start]
        start += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, start
        shift += 7


def _texts(content: mmap.mmap, place: _Place, only: int = 0) -> dict[int, str]:
    """Return a protocol buffer's texts by field number; *only* (if not 0) selects one field."""
    found = {}
    for number, part in _fields(content, *_span(place)):
        if not isinstance(part, int) and only in (0, number):
            found[number] = content[slice(*part)].decode()
            if only:
                break
    return found


def _tensor(content: mmap.mmap, place: _Place) -> TensorFacts:
    """Read a ``ValueInfoProto``: a tensor's name, element type and shape."""
    name, kind, shape = '', 0, []
    for number, part in _fields(content, *_span(place)):
        if number == 1:
            name = content[slice(*_span(part))].decode()
        elif number == 2:
            for _, tensor in _fields(content, *_span(part)):
                for which, value in _fields(content, *_span(tensor)):
                    if which == 1 and isinstance(value, int):
                        kind = value
                    elif which == 2:
                        shape = [
                            _axis(content, axis) for _, axis in _fields(content, *_span(value))
                        ]
    return TensorFacts(name, _TYPES.get(kind, f'type {kind}'), tuple(shape))


def _axis(content: mmap.mmap, place: _Place) -> int | None:
    for number, value in _fields(content, *_span(place)):
        if number == 1 and isinstance(value, int):
            return value if 0 < value < 1 << 31 else None
    return None


def _parsed(text: str) -> Any:
    """Parse a metadata value written as a Python literal; return any other value as text."""
    if len(text) > _LARGEST_METADATA:
        return text
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


def _number(value: object) -> int | None:
    """Return *value*, a metadata number, as int; ``None`` if it is no whole number above 0."""
    if isinstance(value, (int, float)) and 1 <= value < 1 << 31 and value == int(value):
        return int(value)
    return None


def contradiction(key: str, given: object, source: Path, said: object, advice: str) -> str:
    """Return a message about a manifest's key that contradicts the model's file."""
    return f"key '{key}' is {_short(given)}, but {source.name} says {_short(said)}; {advice}"


def _short(value: object) -> str:
    if (
        isinstance(value, Sequence)
        and not isinstance(value, str)
        and all(isinstance(v, str) for v in value)
    ):
        more = ', …' if len(value) > 6 else ''
        return f'{len(value)} name{"" if len(value) == 1 else "s"} ({", ".join(value[:6])}{more})'
    return value if isinstance(value, str) else shown(value)
