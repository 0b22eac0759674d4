"""Which output is what: raw levels come in any order, as one tensor or several for each grid, with channels first or last."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from zc_perception.detection.heads.scores import Values
from zc_perception.detection.heads.spec import HeadSpec
from zc_perception.detection.letterbox import Letterbox
from zc_perception.detection.raw_tensor import RawTensor
from zc_perception.errors import AcceleratorError

_Reader = TypeVar('_Reader')
_LAYOUTS = ('nhwc', 'nchw')
_READ_AS_IT_IS = frozenset(np.dtype(name) for name in ('int8', 'uint8', 'int16', 'uint16', 'int32', 'float32'))


class ReadyFor(Generic[_Reader]):
    """What a head has worked out for outputs of one arrangement; made anew when shape, type, strides, scale or the input's size change."""

    def __init__(self, make: Callable[[Sequence[RawTensor], Letterbox], _Reader]) -> None:
        self._make = make
        self._key: tuple[object, ...] = ()
        self._reader: _Reader | None = None

    def reader(self, outputs: Sequence[RawTensor], box: Letterbox) -> _Reader:
        """The one for these outputs, which are ``readable``."""
        shapes = [(o.values.shape, o.values.strides, o.values.dtype, _scale(o), o.zero_point, o.layout) for o in outputs]
        key = (box.input_width, box.input_height, *shapes)
        if self._reader is None or key != self._key:
            self._reader = self._make(outputs, box)
            self._key = key
        return self._reader


def _scale(tensor: RawTensor) -> float | bytes:
    return tensor.scale if isinstance(tensor.scale, float) else np.asarray(tensor.scale).tobytes()


def readable(kind: str, outputs: Sequence[RawTensor], gathered: int = 0) -> Sequence[RawTensor]:
    """The outputs in types that are compared as they are and with one scale each; others, which are rare, become float32 here.

    :param gathered: channels of those of which only the rows of a few cells are read, with all channels: these may keep a scale for
        each channel, where their layout is NHWC.
    :raises AcceleratorError: a scale isn't above zero, or there isn't one for each element of the last axis.
    """
    if all(output.values.dtype in _READ_AS_IT_IS and isinstance(output.scale, float) and 0 < output.scale < math.inf for output in outputs):
        return outputs
    return [_converted(kind, number, output, gathered) for number, output in enumerate(outputs)]


def _converted(kind: str, number: int, output: RawTensor, gathered: int) -> RawTensor:
    if not output.quantised:
        return RawTensor(output.values, layout=output.layout, name=output.name)
    scale = np.asarray(output.scale, np.float64)
    if not bool(((scale > 0) & (scale < np.inf)).all()) or (scale.ndim and scale.shape != output.values.shape[-1:]):
        raise AcceleratorError(
            f'head {kind}: {described(number, output)} and scale {output.scale}: expected a number above 0, or an array with one for '
            'each element of the last axis'
        )
    if scale.ndim and output.layout == 'nhwc' and output.values.ndim > 2 and output.values.shape[-1] == gathered:
        return RawTensor(output.values, scale.astype(np.float32), output.zero_point, output.layout, output.name)
    if scale.ndim or output.values.dtype not in _READ_AS_IT_IS:
        return RawTensor(output.real(), layout=output.layout, name=output.name)
    return RawTensor(output.values, float(scale), output.zero_point, output.layout, output.name)


def described(number: int, tensor: RawTensor) -> str:
    """``output 2 'name' has shape 1x80x80x64``."""
    name = f" '{tensor.name}'" if tensor.name else ''
    return f'output {number}{name} has shape {"x".join(map(str, tensor.values.shape)) or "()"}'


def all_described(outputs: Sequence[RawTensor]) -> str:
    """Every output with its shape, or that there is none."""
    return ', '.join(described(number, tensor) for number, tensor in enumerate(outputs)) or 'there is no output'


def without_batch(values: Values) -> Values:
    """The same numbers without leading axes of length 1, down to three axes."""
    while values.ndim > 3 and values.shape[0] == 1:
        values = values[0]
    return values


def is_decoded(spec: HeadSpec, outputs: Sequence[RawTensor], box: Letterbox, channels: int, numbers: int = 0) -> bool:
    """Whether there is one table of decoded boxes, rather than raw levels: the only level can come without a batch axis too.

    :param channels: of a level in one tensor.
    :param numbers: for each box of a table, where these mean something else than those of a level.
    :raises AcceleratorError: it could be both.
    """
    if len(outputs) != 1 or outputs[0].values.ndim > 3:
        return False
    shape, layout = outputs[0].values.shape, outputs[0].layout
    if len(shape) < 3 or len(spec.strides) != 1:
        return True
    grid = box.input_height // spec.strides[0], box.input_width // spec.strides[0]
    fits = (layout != 'nchw' and shape == (*grid, channels)) or (layout != 'nhwc' and shape == (channels, *grid))
    if fits and not layout and shape[0] == 1 and numbers in shape[1:]:
        raise AcceleratorError(
            f'head {spec.kind}: {all_described(outputs)}: this can be a raw level or a table of boxes; the manifest has to say which: '
            'a level has a layout, or a batch axis; a table without its first axis has two'
        )
    return not fits


@dataclass(frozen=True)
class Part:
    """Where one part of a level's prediction is found.

    :param output: number of the output.
    :param channels_first: whether its channels are the first axis.
    :param start: the first of them that belongs to the part.
    :param end: the one behind its last; ``None``: all from there.
    """

    output: int
    channels_first: bool
    start: int = 0
    end: int | None = None

    def view(self, outputs: Sequence[RawTensor]) -> Values:
        """The values as (rows, columns, channels)."""
        values = without_batch(outputs[self.output].values)
        channels = slice(self.start, self.end)
        return values[channels].transpose(1, 2, 0) if self.channels_first else values[..., channels]


def arrange(kind: str, outputs: Sequence[RawTensor], shapes: Sequence[tuple[int, int]], parts: Mapping[str, int]) -> list[dict[str, Part]]:
    """For each level, where its parts are: each in a tensor of its own, or one after the other in one.

    Tensors are told apart by their grid and their number of channels; parts with the same number of channels, within a level, by their
    order among the outputs, which then has to be that of *parts*.

    :param shapes: rows, columns of each level.
    :param parts: channels of each part.
    :raises AcceleratorError: they don't fit; names the tensor, its shape and those expected.
    """
    together = sum(parts.values())
    separately = ' and '.join(f'{count} {part}' for part, count in parts.items())
    grids = ', '.join(f'{rows}x{columns}' for rows, columns in shapes)
    expected = f'expected for each of the grids {grids} (rows x columns) {separately} channels'
    if len(parts) > 1:
        expected += f', or {together} in one tensor'
    layouts = _layouts(kind, outputs, shapes, {*parts.values(), together}, expected)
    levels: list[list[tuple[Part, int]]] = [[] for _ in shapes]
    for number, layout in enumerate(layouts):
        part = Part(number, layout == 'nchw')
        rows, columns, channels = part.view(outputs).shape
        levels[shapes.index((rows, columns))].append((part, channels))
    return [_named(kind, outputs, shape, found, parts, expected) for shape, found in zip(shapes, levels, strict=True)]


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
        channels = ' and '.join(str(count) for _, count in found) or 'no'
        raise AcceleratorError(
            f'head {kind}: grid {shape[0]}x{shape[1]} has outputs with {channels} channels: {expected}; {all_described(outputs)}'
        )
    return named


def _layouts(kind: str, outputs: Sequence[RawTensor], shapes: Sequence[tuple[int, int]], counts: set[int], expected: str) -> list[str]:
    """Each output's layout; those that don't name theirs have the same."""
    possible = set(_LAYOUTS)
    for number, tensor in enumerate(outputs):
        fits = set()
        for layout in _LAYOUTS:
            if tensor.layout in ('', layout) and without_batch(tensor.values).ndim == 3:
                rows, columns, channels = Part(number, layout == 'nchw').view(outputs).shape
                if (rows, columns) in shapes and channels in counts:
                    fits.add(layout)
        if not tensor.layout:
            possible &= fits
        if not fits or not possible:
            said = f' ({tensor.layout.upper()})' if tensor.layout else ''
            raise AcceleratorError(f'head {kind}: {described(number, tensor)}{said}: {expected}, NHWC or NCHW')
    if len(possible) > 1 and not all(tensor.layout for tensor in outputs):
        raise AcceleratorError(f'head {kind}: {all_described(outputs)}: this can be NHWC or NCHW; the manifest has to say which (layout)')
    return [tensor.layout or next(iter(possible)) for tensor in outputs]
