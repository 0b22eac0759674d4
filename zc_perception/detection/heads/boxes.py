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

"""The head ``boxes``, for models whose outputs are tables of decoded boxes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import math
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from zc_perception.detection.detections import Detections
from zc_perception.detection.heads.candidates import (
    Candidates,
    detections,
    from_centres,
    in_source,
    oriented,
)
from zc_perception.detection.heads.levels import (
    all_described,
    input_size,
    readable,
    ReadyFor,
    UNIT,
    without_prototypes,
)
from zc_perception.detection.heads.score_filter import (
    CellMajorFilter,
    ChannelMajorFilter,
    CompiledFilter,
    Found,
    logits,
    make_score_filter,
    not_finite,
    out_of_reach,
    sigmoid,
    Values,
)
from zc_perception.detection.heads.spec import (
    CLASS_AGNOSTIC,
    DecodeLimits,
    EXTRAS,
    Head,
    HeadSpec,
    more_numbers,
    SIGMOID,
)
from zc_perception.detection.letterbox import Letterbox
from zc_perception.detection.raw_tensor import RawTensor
from zc_perception.errors import AcceleratorError, ConfigError
from zc_perception.rules import array, boolean, choice, integer, Key, text

_TURNED = [1, 0, 3, 2]
UNITS = choice('source', 'input', 'relative')


def x_first(spec: HeadSpec, four: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return boxes' numbers (4, n) with x before y, even if ``box_order`` is ``yxyx``."""
    return four[_TURNED] if spec.box_order == 'yxyx' else four


class CornerUnit:
    """
    Convert a model's boxes to corners in pixels.

    :param spec: a spec with the options ``box_order`` and ``coordinates``. Without
        ``coordinates``, boxes are fractions of the network's input.
    """

    def __init__(self, spec: HeadSpec) -> None:
        self._spec = spec
        self._unit = spec.coordinates or 'relative'

    def corners(
        self, corners: NDArray[np.float32], box: Letterbox
    ) -> tuple[NDArray[np.float32], Letterbox]:
        """
        Return (4, n) x0, y0, x1, y1 in pixels, and the letterbox that maps them to the frame.

        :param corners: (4, n) the boxes' numbers as the model gives them.
        """
        corners = x_first(self._spec, corners)
        if self._spec.box_order == 'cxcywh':
            corners = from_centres(corners[:2], corners[2:])
        if self._unit == 'source':
            width, height = box.source_width, box.source_height
            return corners, Letterbox(width, height, width, height, width, height, 0, 0)
        size = input_size(self._spec, box)
        if self._unit == 'relative':
            corners = corners * np.array([size * 2], np.float32).T
        return corners, box


class Columns:
    """
    The option ``head.columns``: which numbers the columns of each output hold.

    The option has one text for each output, such as ``image box class score``. The words are:

    ``box``: four numbers; ``score`` and ``class``: one number each; ``scores``: one number for
    each class; ``image``: the image's number, negative in rows after the last valid one;
    ``count``: the number of valid rows; ``-``: an output that isn't read.

    :param extra: how many numbers of masks, keypoints or angles follow the class or the scores.
    :raises ConfigError: a word is unknown, or the words don't describe boxes.
    """

    _WIDTHS: ClassVar[Mapping[str, int]] = {
        'box': 4,
        'score': 1,
        'class': 1,
        'image': 1,
        'count': 1,
    }

    def __init__(self, spec: HeadSpec, outputs: Sequence[str], extra: int = 0) -> None:
        self._kind = spec.kind
        widths = {
            **self._WIDTHS,
            'scores': spec.num_classes + (spec.background >= 0),
            'extra': extra,
        }
        self._outputs = [[] if text == '-' else text.split() for text in outputs]
        words = [word for output in self._outputs for word in output]
        ready = {'box', 'score', 'class'} <= set(words) and 'scores' not in words
        wrong = [word for word in words if word not in widths or words.count(word) > 1]
        if wrong or not (
            ready or ('box' in words and not {'score', 'class'} & set(words) and 'scores' in words)
        ):
            raise ConfigError(
                f"head.columns is {list(outputs)}: write 'box' once, and either 'scores' once or "
                "both 'score' and 'class' once; other words are image, "
                'count and - (an output that is not read)'
            )
        if extra:
            next(o for o in self._outputs if 'class' in o or 'scores' in o).append('extra')
        self.widths = widths

    def parts(self, outputs: Sequence[RawTensor]) -> dict[str, tuple[RawTensor, Values]]:
        """
        Find the columns that each word of ``head.columns`` names.

        Return for each word the tensor that has these columns, and a view (n, width) of them. The
        views have all rows; :meth:`in_use` leaves out unused rows.

        :raises AcceleratorError: the outputs don't fit the columns.
        """
        found: dict[str, tuple[RawTensor, Values]] = {}
        fits = len(outputs) == len(self._outputs)
        for tensor, words in zip(outputs, self._outputs, strict=False):
            width, start, shape = sum(self.widths[word] for word in words), 0, tensor.values.shape
            # The last axis has the columns. Only an output with one column may lack this axis.
            fits &= not words or shape[-1:] == (width,) or (width == 1 and len(shape) <= 2)
            fits &= not words or (math.prod(shape[:-2]) == 1 and (width == 1 or len(shape) > 1))
            if not fits:
                break
            rows = tensor.values.reshape(-1, width) if words else tensor.values
            for word in words:
                end = start + self.widths[word]
                found[word] = tensor, rows[:, start:end]
                start = end
        counts = {len(values) for word, (_, values) in found.items() if word != 'count'}
        if not fits or len(counts) != 1:
            width = sum(self.widths[word] for word in self._outputs[0])
            alone = len(outputs) == len(self._outputs) == 1 and not self.widths['extra']
            more = outputs[0].values.shape[-1:] if alone else ()
            raise AcceleratorError(
                f'head {self._kind}: {all_described(outputs)}: expected '
                f'{self.expected()}{more_numbers(sum(more) - width)}'
            )
        return found

    def expected(self) -> str:
        """Describe the expected outputs, for an error message."""
        widths = [sum(self.widths[word] for word in words) for words in self._outputs]
        named = ' and '.join(
            f'nx{width} ({", ".join(words)})' if words else 'any'
            for words, width in zip(self._outputs, widths, strict=True)
        )
        if len(widths) == 1:
            return f'one output nx{widths[0]} or 1x{named}'
        return f'{len(widths)} outputs, each with or without a first axis of length 1: {named}'

    @staticmethod
    def in_use(found: dict[str, tuple[RawTensor, Values]]) -> dict[str, tuple[RawTensor, Values]]:
        """Keep the first ``count`` rows, or the rows before the first negative ``image``."""
        end: int | None = None
        if 'count' in found:
            number = float(real(found['count']).reshape(-1)[0])
            end = int(min(max(number, 0.0), 1e9)) if number == number else 0
        if 'image' in found:
            images = real(found['image']).reshape(-1)
            behind = np.flatnonzero(images < 0)
            end = int(behind[0]) if len(behind) else end
        if end is None:
            return found
        return {word: (tensor, values[:end]) for word, (tensor, values) in found.items()}


def real(part: tuple[RawTensor, Values]) -> NDArray[np.float32]:
    """Dequantise one of the columns that :meth:`Columns.parts` returned."""
    return part[0].read(part[1])


class Boxes(Head):
    """
    Read tables of decoded boxes from one output or several; see :class:`Columns`.

    A box without area marks an unused row.

    Such tables come from networks that suppress duplicates themselves (YOLOv10, YOLO26, DETR
    exports, EfficientNMS), from networks that leave suppression to the host (YOLO-NAS; set
    ``suppressed: false``), and from HOG, whose boxes are in pixels of the frame.
    """

    OPTIONS: ClassVar[Mapping[str, Key]] = {
        'columns': Key(
            array(
                "a list with one text for each output, such as 'image box class score'",
                text('words'),
                1,
            ),
            (
                'What the columns of each output hold, from left to right: box (four columns), '
                "score, class, scores (one column for each class), image (the image's number), "
                'count (the number of valid rows). Write - for an output that is not read.'
            ),
            ['box score class'],
        ),
        'class_agnostic': CLASS_AGNOSTIC,
        'box_order': Key(
            choice('xyxy', 'yxyx', 'cxcywh'),
            (
                'What the four numbers of a box are: corners, corners with y first (TensorFlow), '
                'or centre and size.'
            ),
            'xyxy',
        ),
        'coordinates': Key(
            UNITS,
            (
                'Unit of the boxes: pixels of the frame (source) or of the input, or fractions '
                "of the input's size (relative)."
            ),
            'input',
        ),
        **EXTRAS,
        'suppressed': Key(boolean(), 'Whether the model itself has removed duplicates.', True),
        'sigmoid': SIGMOID,
        'background': Key(
            integer(-1, 1 << 16),
            'Index of the background class among the scores or classes; -1: there is none.',
            -1,
        ),
    }

    def __init__(self, spec: HeadSpec) -> None:
        super().__init__(spec)
        spec = self._spec
        if spec.class_agnostic and spec.suppressed:
            raise ConfigError(
                'head.class_agnostic is only for models that do not remove duplicates: add '
                'suppressed: false, or leave head.class_agnostic out'
            )
        check_background(spec)
        if spec.oriented and spec.box_order != 'cxcywh':
            raise ConfigError(
                f'head.box_order is {spec.box_order}: with head.oriented it must be cxcywh, '
                'centre and size'
            )
        if spec.keypoints and spec.coordinates != 'input':
            raise ConfigError(
                f'head.coordinates is {spec.coordinates}: with head.keypoints it must be input; '
                "export the model with boxes and keypoints in pixels of the model's input"
            )
        self._unit = CornerUnit(spec)
        self._columns = Columns(spec, spec.columns, spec.extra)
        # If the background is class 0, the other classes are numbered from 1.
        self._first = int(spec.background == 0)
        self._filters: ReadyFor[CompiledFilter | ChannelMajorFilter | CellMajorFilter] = ReadyFor(
            lambda outputs, _: make_score_filter(
                *self._classes(self._columns.parts(outputs)), spec.sigmoid is True
            )
        )

    @np.errstate(all='ignore')
    def decode(
        self, outputs: Sequence[RawTensor], box: Letterbox, limits: DecodeLimits
    ) -> Detections:
        outputs = self._rows_of(outputs)
        every = self._columns.parts(outputs)
        parts = self._columns.in_use(every)
        classes = self._spec.num_classes
        if 'scores' in parts:
            tensor, four = parts['box']
            # The filter is made for a fixed number of rows, but frames differ in the number of
            # rows in use. So the filter reads all rows, and the code drops the unused ones.
            found = self._filters.reader(outputs, box).find(self._classes(every)[1], limits.score)
            used = np.searchsorted(found.cells, len(four))
            found = Found(found.cells[:used], found.classes[:used], found.scores[:used])
            corners, box = self._unit.corners(tensor.read(four[found.cells]).T, box)
            numbers = found.classes.astype(np.float32)
            chosen = ready_made(corners, found.scores, numbers, classes, limits.score)
            chosen = chosen._replace(rows=found.cells[chosen.rows])
        else:
            corners, box = self._unit.corners(real(parts['box']).T, box)
            scores, labels = self._rows(parts)
            chosen = ready_made(corners, scores, labels, classes, limits.score)
        if self._spec.oriented:
            tensor, values = parts['extra']
            return oriented(
                chosen, tensor.read(values[chosen.rows])[:, 0], box, limits,
                suppressed=self._spec.suppressed, class_agnostic=self._spec.class_agnostic,
            )  # fmt: skip
        if not self._spec.suppressed:
            return detections(chosen, box, limits, self._spec.class_agnostic)
        return best_first(chosen, box, limits.count)

    def _classes(self, parts: Mapping[str, tuple[RawTensor, Values]]) -> tuple[RawTensor, Values]:
        tensor, values = parts['scores']
        first = self._first
        return tensor, values[:, first:][:, : self._spec.num_classes]

    def _rows(
        self, parts: Mapping[str, tuple[RawTensor, Values]]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        scores = real(parts['score']).reshape(-1)
        if self._spec.sigmoid:
            scores = sigmoid(scores)
        return scores, real(parts['class']).reshape(-1) - np.float32(self._first)

    def extras(self, outputs: Sequence[RawTensor], rows: NDArray[np.intp]) -> NDArray[np.float32]:
        tensor, values = self._columns.parts(self._rows_of(outputs))['extra']
        return tensor.read(values[rows])

    def _rows_of(self, outputs: Sequence[RawTensor]) -> Sequence[RawTensor]:
        kind = self._spec.kind
        return readable(kind, without_prototypes(kind, outputs, self._spec.masks))

    @np.errstate(all='ignore')
    def objection(self, outputs: Sequence[RawTensor], box: Letterbox, score: float) -> str:
        parts = self._columns.in_use(self._columns.parts(self._rows_of(outputs)))
        four = x_first(self._spec, real(parts['box']).T)
        used = np.any(four != 0, axis=0)
        if 'scores' in parts:
            tensor, values = self._classes(parts)
            reason = logits(tensor.read(values), self._spec.sigmoid)
        else:
            tensor = parts['score'][0]
            scores, labels = self._rows(parts)
            used &= scores != 0
            labels, reason = labels[used], logits(scores[used], None)
            if (
                not reason
                and ((labels % 1 != 0) | (labels < -1) | (labels >= self._spec.num_classes)).any()
            ):
                reason = (
                    f'class numbers from {labels.min():.4g} to {labels.max():.4g} for '
                    f'{self._spec.num_classes} classes: the columns have another meaning, or '
                    'class numbers begin at 1: then set head.background to 0'
                )
        reason = (
            reason
            or out_of_reach(tensor, score, self._spec.sigmoid)
            or not_finite(four[:, used])
        )
        if reason:
            return reason
        four = four[:, used]
        if not four.size:
            return ''
        turned = four[2:] <= 0 if self._spec.box_order == 'cxcywh' else four[2:] < four[:2]
        if np.count_nonzero(turned.any(axis=0)) * 2 > four.shape[1]:
            return (
                f'boxes such as {_numbers(four[:, 0])}, which have no area with box_order: '
                f'{self._spec.box_order}'
            )
        high, small = float(np.abs(four).max()), self._spec.coordinates == 'relative'
        if small and high > _FAR:
            return (
                f'boxes such as {_numbers(four[:, 0])}: these look like pixels (coordinates: '
                'input), but coordinates is relative'
            )
        if not small and high <= UNIT:
            return (
                f'boxes such as {_numbers(four[:, 0])}: these look relative (coordinates: '
                f'relative), but coordinates is {self._spec.coordinates}'
            )
        if self._spec.coordinates == 'input' and high > _FAR * max(
            box.input_width, box.input_height
        ):
            return (
                f'boxes such as {_numbers(four[:, 0])}, far outside the input of '
                f'{box.input_width}x{box.input_height}'
            )
        return ''


# A real box never extends beyond this many times the input's size.
_FAR = 8.0


def _numbers(box: NDArray[np.float32]) -> str:
    return ', '.join(f'{number:.4g}' for number in box)


def check_background(spec: HeadSpec) -> None:
    """Raise ConfigError if ``head.background`` isn't 0 (first), the last class or -1 (none)."""
    if spec.background not in (-1, 0, spec.num_classes):
        raise ConfigError(
            f'head.background is {spec.background}: must be 0 (first), {spec.num_classes} '
            '(last) or -1 (none)'
        )


def ready_made(
    corners: NDArray[np.float32],
    scores: NDArray[np.float32],
    classes: NDArray[np.float32],
    num_classes: int,
    score: float,
) -> Candidates:
    """
    Return the rows whose box has finite corners, an area and a valid class.

    :param score: rows with a lower or an infinite score are left out.
    """
    fine = (
        (scores >= np.float32(score))
        & (scores < np.inf)
        & (classes >= 0)
        & (classes < num_classes)
        & np.isfinite(corners).all(axis=0)
    )
    fine &= (corners[2:] > corners[:2]).all(axis=0)
    rows = fine.nonzero()[0]
    return Candidates(
        corners[:, rows],
        np.minimum(scores[rows], np.float32(1)),
        classes[rows].astype(np.intp),
        rows,
    )


def best_first(chosen: Candidates, box: Letterbox, count: int) -> Detections:
    """Return the *count* best boxes of a model that has already removed duplicates itself."""
    order = np.argsort(-chosen.scores, kind='stable')
    return in_source(chosen.chosen(order), box).chosen(slice(count))
