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
Minimal ONNX models, encoded by hand: the output is the input, or constant.

The encoding follows ``onnx.proto`` (ONNX 1.14, IR version 8).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

FLOAT, UINT8, INT8, INT64, FLOAT16, DOUBLE = 1, 2, 3, 7, 10, 11
Axis = int | str
_KINDS = {'float32': FLOAT, 'uint8': UINT8, 'int8': INT8, 'int32': 6, 'int64': INT64}


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number])


def _field(number: int, value: int | str | bytes) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    payload = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(payload)) + payload


def _value(name: str, kind: int, shape: Sequence[Axis]) -> bytes:
    axes = b''.join(_field(1, _field(1 if isinstance(axis, int) else 2, axis)) for axis in shape)
    return _field(1, name) + _field(2, _field(1, _field(1, kind) + _field(2, axes)))


def identity(
    shape: Sequence[Axis],
    kind: int,
    *,
    output_kind: int | None = None,
    inputs: int = 1,
    beside: str = '',
    multiple: int = 0,
    metadata: Mapping[str, str] | None = None,
    opset: int = 13,
    operator: str = 'Identity',
    beside_it: str = '',
) -> bytes:
    """
    Return a model with input ``x`` (and ``x1`` …), and output ``y`` with the same values.

    With *output_kind* the output has that type.

    :param beside: the name of an int64 input of two numbers, which is the output instead.
    :param multiple: the height of ``x`` must be a multiple of this, because a node splits it.
    :param operator: another operator that computes ``y``.
    :param beside_it: the name of a file that holds ``y``.
    """
    node = _field(1, beside or ('weights' if beside_it else 'x')) + _field(2, 'y')
    names = ['x', *(f'x{index}' for index in range(1, inputs))]
    values = b''.join(_field(11, _value(name, kind, shape)) for name in names)
    output = _value('y', output_kind or kind, shape)
    constants = b''
    if beside:
        node += _field(4, 'Identity')
        values += _field(11, _value(beside, INT64, [1, 2]))
        output = _value('y', INT64, [1, 2])
    elif multiple:
        parts = b''.join(_varint(size) for size in (1, 3, (1 << 64) - 1, multiple, 64))
        constants = _field(
            5, _field(1, 5) + _field(2, INT64) + _field(7, parts) + _field(8, 'parts')
        )
        node = _field(1, 'x') + _field(1, 'parts') + _field(2, 'y') + _field(4, 'Reshape')
        output = _value('y', kind, ['a', 'b', 'c', 'd', 'e'])
    elif output_kind is None:
        node += _field(4, operator)
    else:
        attribute = _field(1, 'to') + _field(3, output_kind) + _field(20, 2)
        node += _field(4, 'Cast') + _field(5, attribute)
    if beside_it:
        place = _field(13, _field(1, 'location') + _field(2, beside_it)) + _field(14, 1)
        dims = b''.join(_field(1, axis) for axis in shape)
        constants = _field(5, dims + _field(2, kind) + _field(8, 'weights') + place)
    graph = _field(1, node) + _field(2, 'identity') + constants + values + _field(12, output)
    return _model(graph, metadata, opset)


def _model(graph: bytes, metadata: Mapping[str, str] | None, opset: int = 13) -> bytes:
    pairs = (metadata or {}).items()
    said = b''.join(_field(14, _field(1, key) + _field(2, value)) for key, value in pairs)
    return _field(1, 8) + _field(7, graph) + _field(8, _field(2, opset)) + said


def constant(
    outputs: Mapping[str, NDArray[np.generic]],
    inputs: Mapping[str, tuple[int, Sequence[Axis]]],
    metadata: Mapping[str, str] | None = None,
    shapes: Mapping[str, Sequence[Axis]] | None = None,
) -> bytes:
    """
    Return a model that yields these arrays for any input.

    :param inputs: type and shape of each.
    :param shapes: shapes of outputs that the file gives instead of the arrays' shapes.
    """
    nodes = declared = b''
    for name, values in outputs.items():
        kind = _KINDS[str(values.dtype)]
        dims = b''.join(_field(1, n) for n in values.shape)
        tensor = dims + _field(2, kind) + _field(9, values.tobytes())
        attribute = _field(1, 'value') + _field(5, tensor) + _field(20, 4)
        nodes += _field(1, _field(2, name) + _field(4, 'Constant') + _field(5, attribute))
        declared += _field(12, _value(name, kind, (shapes or {}).get(name, values.shape)))
    given = b''.join(_field(11, _value(name, *what)) for name, what in inputs.items())
    return _model(nodes + _field(2, 'constant') + given + declared, metadata)


def export(
    folder: Path,
    task: str,
    names: Sequence[str],
    rows: Sequence[Sequence[float]],
    side: int,
    grids: Sequence[NDArray[np.floating]] = (),
    keypoints: Sequence[int] = (),
) -> str:
    """
    Write a file as Ultralytics exports it, which yields these rows for any input.

    :param rows: centre and size of a box in pixels of the input, a score for each class, and the
        task's further numbers.
    :param grids: the prototypes of masks.
    """
    said = {'names': dict(enumerate(names)), 'imgsz': [side, side], 'stride': 32, 'task': task}
    said |= {'kpt_shape': list(keypoints)} if keypoints else {}
    table = np.zeros((1, len(rows[0]), 21 * (side // 32) ** 2), np.float32)
    table[0, :, slice(3, 3 + len(rows))] = np.array(rows).T
    outputs: dict[str, NDArray[np.generic]] = {'output0': table}
    if len(grids):
        outputs['output1'] = np.array(grids, np.float32)[None]
    file = folder / f'{task}.onnx'
    inputs = {'images': (FLOAT, (1, 3, side, side))}
    file.write_bytes(constant(outputs, inputs, {key: str(value) for key, value in said.items()}))
    return str(file)
