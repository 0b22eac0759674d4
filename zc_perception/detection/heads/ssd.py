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

"""The head ``ssd``: a model predicts class scores and deltas for each prior (default box)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from zc_perception.detection.detections import Detections
from zc_perception.detection.heads.boxes import check_background, x_first
from zc_perception.detection.heads.candidates import Candidates, detections, from_centres
from zc_perception.detection.heads.levels import (
    all_described,
    ANCHORS,
    check_strides,
    grids_for,
    input_size,
    readable,
    ReadyFor,
    STRIDES,
)
from zc_perception.detection.heads.score_filter import (
    Found,
    make_score_filter,
    NOTHING,
    real_threshold,
    Values,
)
from zc_perception.detection.heads.spec import (
    CLASS_AGNOSTIC,
    DecodeLimits,
    Head,
    HeadSpec,
    SIGMOID,
)
from zc_perception.detection.letterbox import Letterbox
from zc_perception.detection.raw_tensor import RawTensor
from zc_perception.errors import AcceleratorError, ConfigError
from zc_perception.rules import array, boolean, choice, integer, Key, number

# The softmax is computed only for priors in which a class's logit exceeds the background's logit
# by a threshold. Lower that threshold by this margin, so that rounding errors exclude no prior.
_SLACK = 1e-3


class Ssd(Head):
    """
    Decode two outputs, scores and deltas.

    For N priors, scores are N x classes (with a background class, if there is one), and deltas are
    N x 4. If the model itself decodes the boxes, use head ``boxes``.

    With a delta v: centre = prior centre + v · variance · prior size, size = prior size ·
    exp(v · variance). Each prior gives at most one box, that of its best class.
    """

    OPTIONS: ClassVar[Mapping[str, Key]] = {
        'strides': STRIDES,
        'anchors': ANCHORS,
        'sigmoid': SIGMOID,
        'softmax': Key(boolean(), 'Whether scores are logits that need a softmax.', False),
        'class_agnostic': CLASS_AGNOSTIC,
        'variances': Key(
            array('two numbers above 0', number(above=0), 2, 2),
            'Two factors: for the deltas of the centre, and for the deltas of the size.',
            [0.1, 0.2],
        ),
        'background': Key(
            integer(-1, 1 << 16),
            'Index of the background class among the scores; -1: there is none.',
            0,
        ),
        'priors': Key(
            array('a list of lists of four numbers', array('four numbers', number(), 4, 4)),
            (
                'Centre x, y, width and height of each prior, as fractions of the input picture, '
                'in the order in which the outputs have the priors. Give either priors, or '
                'anchors from which this head computes the priors.'
            ),
        ),
        'box_order': Key(
            choice('xyxy', 'yxyx'),
            'Order of the axes in deltas; models of TensorFlow use yxyx.',
            'xyxy',
        ),
    }

    def __init__(self, spec: HeadSpec) -> None:
        super().__init__(spec)
        spec = self._spec
        if bool(spec.anchors) == bool(spec.priors):
            raise ConfigError(
                'head.anchors and head.priors: give one of them, because deltas need priors, '
                'given or computed from anchors; if the model itself decodes the boxes, use '
                'head: boxes (with columns such as [box, scores] or [image class score box])'
            )
        if spec.anchors:
            check_strides(spec, has_grids=True)
        elif list(spec.strides) != STRIDES.default:
            raise ConfigError(
                'head.strides belongs to head.anchors, from which priors are made: give both, '
                'or leave head.strides out'
            )
        if spec.anchors and len(spec.anchors) != len(spec.strides):
            raise ConfigError(
                f'head.anchors has {len(spec.anchors)} levels, and head.strides has '
                f'{len(spec.strides)}: both must have the same number'
            )
        check_background(spec)
        if spec.softmax and spec.sigmoid:
            raise ConfigError(
                'head.softmax and head.sigmoid: only one of them can apply to scores; leave the '
                'other out'
            )
        if any(min(prior[2:]) <= 0 for prior in spec.priors or ()):
            raise ConfigError('head.priors: every prior is cx, cy, w, h, with a size above 0')
        self._ready: ReadyFor[_PerPrior] = ReadyFor(
            lambda outputs, box: _PerPrior(spec, outputs, box),
            lambda outputs: readable(spec.kind, outputs),
        )

    @np.errstate(all='ignore')
    def decode(
        self, outputs: Sequence[RawTensor], box: Letterbox, limits: DecodeLimits
    ) -> Detections:
        reader, outputs = self._ready.ready(outputs, box)
        found, deltas = reader.find(outputs, limits.score)
        corners = self._from_priors(deltas, reader.priors.take(found.cells, axis=1))
        return detections(
            Candidates(corners, found.scores, found.classes, found.cells),
            box,
            limits,
            self._spec.class_agnostic,
        )

    def _from_priors(
        self, deltas: NDArray[np.float32], priors: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        deltas = x_first(self._spec, deltas)
        place, size = (np.float32(variance) for variance in self._spec.variances)
        return from_centres(
            priors[:2] + deltas[:2] * place * priors[2:], priors[2:] * np.exp(deltas[2:] * size)
        )


class _PerPrior:
    """
    Finds the priors with high scores in a model's outputs, and reads their deltas.

    :param outputs: one frame's outputs; later frames' outputs have the same order, shapes and
        types.
    :ivar priors: (4, N) centre and size of each prior, in input pixels.
    """

    def __init__(self, spec: HeadSpec, outputs: Sequence[RawTensor], box: Letterbox) -> None:
        self._spec = spec
        self.priors = _priors(spec, box)
        self._width = spec.num_classes + (spec.background >= 0)
        self._box_output = self._which(outputs)
        tensor = outputs[1 - self._box_output]
        self._filter = make_score_filter(
            tensor, self._foreground(self._scores(tensor)), spec.sigmoid is True
        )

    def _which(self, outputs: Sequence[RawTensor]) -> int:
        """Return the index of the output that has the deltas; if both outputs fit, return 0."""
        count = self.priors.shape[1]
        for index in (0, 1) if len(outputs) == 2 else ():
            # Possible shapes of the deltas are (1, N, 4), (1, N, 1, 4) and (1, 4 N).
            sizes = outputs[index].values.size, outputs[1 - index].values.size
            if sizes == (4 * count, self._width * count):
                return index
        background = ' and the background' if self._spec.background >= 0 else ''
        raise AcceleratorError(
            f'head {self._spec.kind}: {all_described(outputs)}: expected deltas 1x{count}x4 '
            f'and scores 1x{count}x{self._width} '
            f'({self._spec.num_classes} classes{background}), one row for each prior'
        )

    def _scores(self, tensor: RawTensor) -> Values:
        return tensor.values.reshape(-1, self._width)

    def _foreground(self, scores: Values) -> Values:
        return scores[:, 1:] if self._spec.background == 0 else scores[:, : self._spec.num_classes]

    def find(
        self, outputs: Sequence[RawTensor], score: float
    ) -> tuple[Found, NDArray[np.float32]]:
        """Return the priors with a class that reaches *score*, and their deltas (4, n)."""
        tensor, boxes = outputs[1 - self._box_output], outputs[self._box_output]
        scores = self._scores(tensor)
        found = (
            self._soft(tensor.read(scores), score)
            if self._spec.softmax
            else self._filter.find(self._foreground(scores), score)
        )
        return found, boxes.read(boxes.values.reshape(-1, 4)[found.cells]).T

    def _soft(self, logits: NDArray[np.float32], score: float) -> Found:
        if not score <= 1:
            return NOTHING
        cells = np.arange(len(logits))
        if self._spec.background >= 0:
            # Compute the softmax only for few priors: a class reaches the score p only if its
            # logit exceeds the background's by log(p / (1 − p)).
            least = logits[:, [self._spec.background]] + np.float32(
                real_threshold(score, True) - _SLACK
            )
            cells = np.flatnonzero((self._foreground(logits) >= least).any(axis=1))
        rows = logits[cells]
        shares = np.exp(rows - rows.max(axis=1, keepdims=True, initial=-np.inf))
        shares /= shares.sum(axis=1, keepdims=True)
        foreground = self._foreground(shares)
        best = foreground.argmax(axis=1)
        scores = foreground[np.arange(len(cells)), best]
        fine = scores >= np.float32(score)
        return Found(cells[fine], best[fine], scores[fine])


def _priors(spec: HeadSpec, box: Letterbox) -> NDArray[np.float32]:
    size = np.array([input_size(spec, box)], np.float32).T
    if spec.priors:
        priors: NDArray[np.float32] = (
            np.array(spec.priors, np.float64).T * np.concatenate((size, size))
        ).astype(np.float32)
        return priors
    grids = grids_for(spec, box)
    levels = []
    for level, anchors in enumerate(spec.anchors):
        cells = slice(grids.starts[level], grids.starts[level + 1])
        centres = (grids.corners[:, cells] + np.float32(0.5)) * grids.strides[cells]
        sizes = np.tile(np.array(anchors, np.float32).T, centres.shape[1])
        levels.append(np.concatenate((np.repeat(centres, len(anchors), axis=1), sizes)))
    return np.concatenate(levels, axis=1)
