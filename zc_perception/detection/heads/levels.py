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
Find out what each output of a model holds.

A detector predicts boxes for the cells of several grids (levels). A model may give its levels in
any order, as one tensor or several per grid, with channels first or last. :func:`arrange` finds
each part (boxes, classes …) of each level, and :class:`Grids` has the position of each cell.
:class:`ObjectRows` reads a table with one row for each box.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
import math
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from zc_perception.detection.heads.score_filter import (
    Found,
    logits,
    ObjectFilter,
    out_of_reach,
    Values,
)
from zc_perception.detection.heads.spec import HeadSpec
from zc_perception.detection.letterbox import Letterbox
from zc_perception.detection.raw_tensor import RawTensor
from zc_perception.errors import AcceleratorError, ConfigError
from zc_perception.rules import array, integer, Key, number

_Reader = TypeVar('_Reader')
_LAYOUTS = ('nhwc', 'nchw')
STRIDES = Key(
    array('a list of integers from 1 to 1024', integer(1, 1024), 1),
    'For each level the side length of its cells in input pixels, finest level first.',
    [8, 16, 32],
)
ANCHORS = Key(
    array(
        'for each level a list of pairs of width and height in pixels',
        array('a list of pairs', array('a pair', number(above=0), 2, 2), 1),
        1,
    ),
    'For each level its anchors, each as width and height in input pixels.',
)
# Values of these types can be compared with a threshold without a conversion.
_READ_AS_IT_IS = frozenset(
    np.dtype(name) for name in ('int8', 'uint8', 'int16', 'uint16', 'int32', 'float32')
)


class ReadyFor(Generic[_Reader]):
    """
    A cache of a head's reader, the object that decodes the outputs.

    A reader fits one arrangement of the outputs: their shapes, strides, types, scales, zero points
    and layouts, and the input's size. When the arrangement changes, a new reader is made.

    :param make: a function that makes a reader for outputs that *read* has returned.
    :param read: a function that converts outputs, such as :func:`readable`. If it returned the
        outputs unchanged, it isn't called again until the arrangement changes.
    """

    def __init__(
        self,
        make: Callable[[Sequence[RawTensor], Letterbox], _Reader],
        read: Callable[[Sequence[RawTensor]], Sequence[RawTensor]] = lambda outputs: outputs,
    ) -> None:
        self._make, self._read = make, read
        self._key: list[object] = []
        self._reader: _Reader | None = None
        self._as_they_are = True

    @property
    def last(self) -> _Reader | None:
        """The reader of the previous outputs; ``None`` if there were none yet."""
        return self._reader

    def reader(self, outputs: Sequence[RawTensor], box: Letterbox) -> _Reader:
        """Return the reader for *outputs*; make a new one if their arrangement has changed."""
        return self.ready(outputs, box)[0]

    def ready(
        self, outputs: Sequence[RawTensor], box: Letterbox
    ) -> tuple[_Reader, Sequence[RawTensor]]:
        """Return the reader for *outputs*, and *outputs* converted to what this reader decodes."""
        key: list[object] = [box.input_width, box.input_height]
        # Make a key of the outputs' arrangement, and compare it with the last call's key: this is
        # quicker than to check the outputs with readable() in each call.
        for output in outputs:
            values, scale = output.values, output.scale
            key += (
                values.shape, values.strides, values.dtype, output.zero_point, output.layout,
                scale if scale.__class__ is float else _scale(output),
            )  # fmt: skip
        if self._reader is None or key != self._key:
            read = self._read(outputs)
            self._reader, self._as_they_are = self._make(read, box), read is outputs
            self._key = key
            return self._reader, read
        return self._reader, outputs if self._as_they_are else self._read(outputs)


def prototypes(outputs: Sequence[RawTensor], masks: int) -> int:
    """Return the index of the prototypes, the largest grid with *masks* channels; -1: none."""
    grids = [
        (output.values.size, -index)
        for index, output in enumerate(outputs)
        if len(shape := without_batch(output.values).shape) == 3 and masks in (shape[0], shape[2])
    ]
    return -max(grids)[1] if grids else -1


def without_prototypes(kind: str, outputs: Sequence[RawTensor], masks: int) -> Sequence[RawTensor]:
    """
    Return *outputs* without the masks' prototypes; return all of them if *masks* is 0.

    :raises AcceleratorError: *masks* isn't 0, and no output is a grid with that many channels.
    """
    if not masks:
        return outputs
    which = prototypes(outputs, masks)
    if which < 0:
        raise AcceleratorError(
            f'head {kind}: {all_described(outputs)}: head.masks is {masks}, and no output is a '
            'grid with this many channels'
        )
    return [output for index, output in enumerate(outputs) if index != which]


def _scale(tensor: RawTensor) -> float | bytes:
    return tensor.scale if isinstance(tensor.scale, float) else np.asarray(tensor.scale).tobytes()


def readable(kind: str, outputs: Sequence[RawTensor], gathered: int = 0) -> Sequence[RawTensor]:
    """
    Convert to float32 each output with many scales, or with a type not in ``_READ_AS_IT_IS``.

    :param gathered: an NHWC output with this number of channels and one scale for each channel
        isn't converted, because the caller later dequantises only the few cells that it needs.
    :raises AcceleratorError: a scale isn't above zero, or an output has many scales, but not one
        for each element of its last axis.
    """
    if all(
        output.values.dtype in _READ_AS_IT_IS
        and isinstance(output.scale, float)
        and 0 < output.scale < math.inf
        for output in outputs
    ):
        return outputs
    return [_converted(kind, number, output, gathered) for number, output in enumerate(outputs)]


def _converted(kind: str, number: int, output: RawTensor, gathered: int) -> RawTensor:
    if not output.quantised:
        return RawTensor(output.values, layout=output.layout, name=output.name)
    scale = np.asarray(output.scale, np.float64)
    if not bool(((scale > 0) & (scale < np.inf)).all()) or (
        scale.ndim and scale.shape != output.values.shape[-1:]
    ):
        raise AcceleratorError(
            f'head {kind}: {described(number, output)} and scale {output.scale}: expected a '
            'scale above 0, or an array with one scale for '
            'each element of the last axis'
        )
    if (
        scale.ndim
        and output.layout == 'nhwc'
        and output.values.ndim > 2
        and output.values.shape[-1] == gathered
    ):
        return RawTensor(
            output.values, scale.astype(np.float32), output.zero_point, output.layout, output.name
        )
    if scale.ndim or output.values.dtype not in _READ_AS_IT_IS:
        return RawTensor(output.real(), layout=output.layout, name=output.name)
    return RawTensor(output.values, float(scale), output.zero_point, output.layout, output.name)


def described(number: int, tensor: RawTensor) -> str:
    """Return a text for messages, such as ``output 2 'name' has shape 1x80x80x64``."""
    name = f" '{tensor.name}'" if tensor.name else ''
    return f'output {number}{name} has shape {"x".join(map(str, tensor.values.shape)) or "()"}'


def all_described(outputs: Sequence[RawTensor]) -> str:
    """Return a text for messages with the name and the shape of every output."""
    return (
        ', '.join(described(number, tensor) for number, tensor in enumerate(outputs))
        or 'there is no output'
    )


def without_batch(values: Values) -> Values:
    """Remove leading axes of length 1 while there are more than three axes."""
    while values.ndim > 3 and values.shape[0] == 1:
        values = values[0]
    return values


def is_decoded(
    spec: HeadSpec, outputs: Sequence[RawTensor], box: Letterbox, channels: int, numbers: int = 0
) -> bool:
    """
    Return whether the model's output is a table of decoded boxes; otherwise it gives raw levels.

    The number of axes can't decide: a level without a batch axis has three axes, as a table with
    a batch axis has.

    :param channels: how many channels a level has if one tensor has the whole level.
    :param numbers: how many numbers a row of the table has. 0: as many as a cell of a level has;
        an output that can be a level or a table is then read as a level.
    :raises AcceleratorError: *numbers* isn't 0, and the output can be a level or a table.
    """
    if len(outputs) != 1 or outputs[0].values.ndim > 3:
        return False
    shape, layout = outputs[0].values.shape, outputs[0].layout
    if len(shape) < 3 or len(spec.strides) != 1:
        return True
    grid = box.input_height // spec.strides[0], box.input_width // spec.strides[0]
    fits = (layout != 'nchw' and shape == (*grid, channels)) or (
        layout != 'nhwc' and shape == (channels, *grid)
    )
    if fits and not layout and shape[0] == 1 and numbers in shape[1:]:
        raise AcceleratorError(
            f'head {spec.kind}: {all_described(outputs)}: this output can be a raw level or a '
            'table of boxes; if it is a level, give its layout in the manifest, or export the '
            'model with a batch axis; if it is a table, export the model without the first axis'
        )
    return not fits


@dataclass(frozen=True)
class Part:
    """
    The channels of an output that hold one part of a level, such as boxes or classes.

    :param output: the index of the output.
    :param channels_first: whether the output's first axis has the channels.
    :param start: the part's first channel.
    :param end: the channel after the part's last one; ``None``: all further channels.
    """

    output: int
    channels_first: bool
    start: int = 0
    end: int | None = None

    def view(self, outputs: Sequence[RawTensor]) -> Values:
        """Return a view of the part's values as (rows, columns, channels)."""
        values = without_batch(outputs[self.output].values)
        channels = slice(self.start, self.end)
        return (
            values[channels].transpose(1, 2, 0) if self.channels_first else values[..., channels]
        )


def arrange(
    kind: str,
    outputs: Sequence[RawTensor],
    shapes: Sequence[tuple[int, int]],
    parts: Mapping[str, int],
) -> list[dict[str, Part]]:
    """
    Find the output and the channels of each part (boxes, classes …) of each level (grid).

    Either each part is a separate tensor, or all parts of a level are consecutive channels of one
    tensor. A tensor is recognised by its grid and its number of channels. If parts of a level have
    the same number of channels, the outputs must have them in the order of *parts*.

    :param shapes: rows, columns of each level.
    :param parts: a part's name as key, and its number of channels as value.
    :raises AcceleratorError: the outputs don't fit; the message names the tensor, its shape and
        the expected shapes.
    """
    together = sum(parts.values())
    separately = ' and '.join(f'{count} {part}' for part, count in parts.items())
    grids = ', '.join(f'{rows}x{columns}' for rows, columns in shapes)
    expected = f'expected {separately} channels for each of the grids {grids} (rows x columns)'
    if len(parts) > 1:
        expected += f', or {together} in one tensor'
    layouts = _layouts(kind, outputs, shapes, {*parts.values(), together}, expected)
    levels: list[list[tuple[Part, int]]] = [[] for _ in shapes]
    for index, layout in enumerate(layouts):
        part = Part(index, layout == 'nchw')
        rows, columns, channels = part.view(outputs).shape
        levels[shapes.index((rows, columns))].append((part, channels))
    return [
        _named(kind, outputs, shape, found, parts, expected)
        for shape, found in zip(shapes, levels, strict=True)
    ]


def _named(
    kind: str,
    outputs: Sequence[RawTensor],
    shape: tuple[int, int],
    found: Sequence[tuple[Part, int]],
    parts: Mapping[str, int],
    expected: str,
) -> dict[str, Part]:
    if [count for _, count in found] == [sum(parts.values())]:
        whole, start, named = found[0][0], 0, {}
        for name, count in parts.items():
            named[name] = Part(whole.output, whole.channels_first, start, start + count)
            start += count
        return named
    left, named = list(found), {}
    for name, count in parts.items():
        match = next((entry for entry in left if entry[1] == count), None)
        if match is not None:
            left.remove(match)
            named[name] = match[0]
    if left or len(named) < len(parts):
        grid, channels = f'grid {shape[0]}x{shape[1]}', ' and '.join(str(n) for _, n in found)
        what = f'{grid} has outputs with {channels} channels' if found else f'no output has {grid}'
        raise AcceleratorError(f'head {kind}: {what}: {expected}; {all_described(outputs)}')
    return named


def _layouts(
    kind: str,
    outputs: Sequence[RawTensor],
    shapes: Sequence[tuple[int, int]],
    counts: set[int],
    expected: str,
) -> list[str]:
    """Return each output's layout; outputs that don't name a layout must all have the same one."""
    possible = set(_LAYOUTS)
    for index, tensor in enumerate(outputs):
        fits = set()
        for layout in _LAYOUTS:
            if tensor.layout in ('', layout) and without_batch(tensor.values).ndim == 3:
                rows, columns, channels = Part(index, layout == 'nchw').view(outputs).shape
                if (rows, columns) in shapes and channels in counts:
                    fits.add(layout)
        if not tensor.layout:
            possible &= fits
        if not fits or not possible:
            said = f' ({tensor.layout.upper()})' if tensor.layout else ''
            raise AcceleratorError(
                f'head {kind}: {described(index, tensor)}{said}: {expected}, NHWC or NCHW'
            )
    if len(possible) > 1 and not all(tensor.layout for tensor in outputs):
        raise AcceleratorError(
            f'head {kind}: {all_described(outputs)}: this can be NHWC or NCHW; set the layout in '
            'the manifest'
        )
    return [tensor.layout or next(iter(possible)) for tensor in outputs]


@dataclass(frozen=True, eq=False)
class Grids:
    """
    The cells of all levels, numbered level by level and row by row.

    :param shapes: rows, columns of each level.
    :param starts: the index of each level's first cell; the last item is the count of all cells.
    :param corners: (2, cells) column and row of each cell in its level.
    :param strides: (cells) the stride of each cell's level, in input pixels.
    """

    shapes: tuple[tuple[int, int], ...]
    starts: tuple[int, ...]
    corners: NDArray[np.float32]
    strides: NDArray[np.float32]

    @property
    def count(self) -> int:
        """The number of cells of all levels."""
        return self.starts[-1]


@lru_cache(maxsize=16)
def grids_of(input_size: tuple[int, int], strides: tuple[int, ...]) -> Grids:
    """Return an input's grids; raise ConfigError if a stride doesn't divide the input's size."""
    width, height = input_size
    for stride in strides:
        if width % stride or height % stride:
            raise ConfigError(
                f'head.strides: {stride} does not divide the input of {width}x{height} pixels'
            )
    shapes = tuple((height // stride, width // stride) for stride in strides)
    corners = [np.mgrid[:rows, :columns][::-1].reshape(2, -1) for rows, columns in shapes]
    counts = [rows * columns for rows, columns in shapes]
    starts = tuple(sum(counts[:level]) for level in range(len(counts) + 1))
    place = np.concatenate(corners, axis=1).astype(np.float32)
    per_cell = np.repeat(np.array(strides, np.float32), counts)
    for one in (place, per_cell):
        one.flags.writeable = False
    return Grids(shapes, starts, place, per_cell)


def check_strides(spec: HeadSpec, *, has_grids: bool) -> None:
    """
    Check the option ``strides``.

    :param has_grids: whether the outputs are certainly grids; only then must the strides divide
        the input's size. A table of decoded boxes may belong to an input of any size.
    :raises ConfigError: there are no strides, they don't ascend, or a stride doesn't divide the
        input's size.
    """
    if (
        not spec.strides
        or min(spec.strides) < 1
        or any(a >= b for a, b in zip(spec.strides, spec.strides[1:], strict=False))
    ):
        raise ConfigError(
            f'head.strides is {list(spec.strides)}; it must be a list of one or more whole '
            'numbers above 0, in ascending order'
        )
    if has_grids and spec.input_size != (0, 0):
        grids_of(spec.input_size, spec.strides)


@lru_cache(maxsize=16)
def possible_rows(size: tuple[int, int], strides: tuple[int, ...]) -> frozenset[int]:
    """
    Return the numbers of cells (all levels together) that a network of this input size may have.

    These are the number for *strides*, and those for the strides of usual networks: from 4, 8 or
    16 up to 32, 64 or 128.
    """
    width, height = size
    usual = [(4, 8, 16, 32, 64, 128)[i:j] for i in range(3) for j in range(4, 7)]
    return frozenset(
        sum(-(-width // stride) * -(-height // stride) for stride in levels)
        for levels in (strides, *usual)
    )


def rows_objection(count: int, box: Letterbox, strides: Sequence[int], most: int = 1) -> str:
    """
    Explain why a table with *count* rows can't have one row for each cell of the network.

    Return an empty text if this number of rows is possible. A cell may also have several rows
    (anchors), up to *most*.
    """
    width, height = box.input_width, box.input_height
    cells = possible_rows((width, height), tuple(strides))
    if not count or any(count == each * some for some in cells for each in range(1, most + 1)):
        return ''
    usual = sum(-(-width // stride) * -(-height // stride) for stride in strides)
    return (
        f'{count} rows, but an input of {width}x{height} has {usual} cells'
        + (f' or {usual * 3} with three anchors' if most > 1 else '')
        + '; if the network itself outputs only its best boxes, use head: boxes'
    )


# If a coordinate of a box's centre is above this, it is in pixels, so the model has already
# decoded the box. An undecoded centre is relative to its cell, and no network predicts a centre
# this many cells away.
_WITHIN_A_CELL = 16.0


def negative_sizes(boxes: NDArray[np.float32]) -> str:
    """
    Return an error text if the model hasn't decoded *boxes*: most of their sizes are negative.

    Otherwise return an empty text. Boxes with centres in pixels count as decoded, even if sizes
    are negative: YOLO26 gives negative sizes where no object is.

    :param boxes: (4, n) centre and size.
    """
    wrong = (boxes[2:] < 0).any(axis=0)
    if np.count_nonzero(wrong) * 2 <= np.count_nonzero(boxes.any(axis=0)):
        return ''
    if boxes[:2].size and boxes[:2].max() > _WITHIN_A_CELL:
        return ''
    return (
        'boxes whose sizes are below 0: they are not decoded yet (for a YOLOX export use head: '
        'yolox), or they are corners (use head: boxes)'
    )


# If no number of any box is above this, the boxes aren't in pixels.
UNIT = 2.0


def in_fractions(boxes: NDArray[np.float32]) -> str:
    """
    Describe boxes (4, n), centre and size, that can't be in pixels: no number is large enough.

    The description completes the sentence "the model yields …". Return an empty text if the boxes
    may be in pixels, or if there are none.
    """
    if not boxes.any() or not np.abs(boxes).max() <= UNIT:
        return ''
    return (
        "boxes in fractions of the input, as TensorFlow's exports have them: export the model to "
        'ONNX without TensorFlow, with boxes in pixels'
    )


def input_size(spec: HeadSpec, box: Letterbox) -> tuple[int, int]:
    """Return the model's input size; raise AcceleratorError if the letterbox has another one."""
    size = (box.input_width, box.input_height)
    if spec.input_size not in ((0, 0), size):
        said = f'{spec.input_size[0]}x{spec.input_size[1]}'
        raise AcceleratorError(
            f'head {spec.kind}: head.input_size is {said}, but frames are letterboxed to '
            f'{size[0]}x{size[1]}'
        )
    return size


def grids_for(spec: HeadSpec, box: Letterbox) -> Grids:
    """Return the grids of an input; raise AcceleratorError if a stride doesn't divide its size."""
    try:
        return grids_of(input_size(spec, box), spec.strides)
    except ConfigError as error:
        raise AcceleratorError(f'head {spec.kind}: {error}') from error


class ObjectRows:
    """
    A table 1 x N x (5 + C), or 1 x (5 + C) x N, of boxes with objectness.

    A row has the box, the objectness and C classes. If both shapes fit, the first is assumed,
    unless the layout is ``nchw``.

    :param count: the expected number N of boxes; ``None``: any.
    :raises AcceleratorError: the output has another shape.
    """

    def __init__(
        self,
        kind: str,
        tensor: RawTensor,
        num_classes: int,
        sigmoid: bool,
        count: int | None = None,
    ) -> None:
        channels = 5 + num_classes
        values = tensor.values
        shape = values.shape[1:] if values.ndim == 3 and values.shape[0] == 1 else values.shape
        boxes = 'N' if count is None else str(count)
        if (
            len(shape) != 2
            or channels not in shape
            or (count is not None and sorted(shape) != sorted((count, channels)))
        ):
            raise AcceleratorError(
                f'head {kind}: {all_described([tensor])}: expected 1x{boxes}x{channels} or '
                f'1x{channels}x{boxes} '
                f'(box, objectness and {num_classes} classes), or the raw levels '
                f'(one grid of cells per stride)'
            )
        self._channels_last = shape[1] == channels and (
            shape[0] != channels or tensor.layout != 'nchw'
        )
        self._filter = ObjectFilter(tensor, tensor, sigmoid)
        self._sigmoid = sigmoid

    def find(self, tensor: RawTensor, score: float) -> tuple[Found, NDArray[np.float32]]:
        """Return the rows that reach *score*, and each box's four numbers, as (4, n)."""
        values: Values = tensor.values[0] if tensor.values.ndim == 3 else tensor.values
        rows = values if self._channels_last else values.T
        found = self._filter.find(rows[:, 4], rows[:, 5:], score)
        return found, tensor.read(rows[found.cells, :4]).T

    def objection(
        self, tensor: RawTensor, box: Letterbox, strides: Sequence[int], score: float, most: int
    ) -> tuple[str, NDArray[np.float32]]:
        """Return the text of :meth:`Head.objection`, and each box's four numbers, as (4, n)."""
        values: Values = tensor.values[0] if tensor.values.ndim == 3 else tensor.values
        rows = tensor.read(values if self._channels_last else np.ascontiguousarray(values.T))
        reason = (
            rows_objection(len(rows), box, strides, most)
            or out_of_reach(tensor, score, self._sigmoid, has_boxes=True)
            or logits(rows[:, 4:], self._sigmoid)
        )
        return reason, rows[:, :4].T
