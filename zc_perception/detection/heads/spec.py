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

"""A manifest's description of a head (:class:`HeadSpec`), and the base class :class:`Head`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from zc_perception.detection.detections import Detections
from zc_perception.detection.letterbox import Letterbox
from zc_perception.detection.raw_tensor import RawTensor
from zc_perception.errors import AcceleratorError, ConfigError
from zc_perception.rules import array, boolean, integer, Key

SIGMOID = Key(
    boolean(),
    (
        'Whether the host has to apply it to scores; left out: as this kind of head is usually '
        'exported.'
    ),
)
CLASS_AGNOSTIC = Key(boolean(), 'One suppression for all classes instead of one for each.', False)
MASKS = Key(
    integer(0, 1024), "Coefficients of the masks' prototypes behind the classes of each row.", 0
)
KEYPOINTS = Key(
    array('two numbers: how many keypoints, and the numbers of each (2, or 3 with a score)',
          integer(1, 1024), 2, 2),
    ('Keypoints behind the classes of each row: how many, and the numbers of each (2, or 3 '
     'with a score).'),
    [],
)  # fmt: skip
ORIENTED = Key(
    boolean(), 'Whether boxes are turned by an angle, the last number of each row.', False
)
EXTRAS = {'masks': MASKS, 'keypoints': KEYPOINTS, 'oriented': ORIENTED}
"""Options of heads whose rows may have more than a box and classes."""


def more_numbers(count: int) -> str:
    """Return a hint for a message: what *count* unexplained columns of a row may be."""
    if count <= 0:
        return ''
    if count == 1:
        return (
            '; the one more in each row can be an angle (oriented: true), an objectness (head: '
            'yolov5, yolox) or the number of the image (columns)'
        )
    points = next((f' or keypoints: [{count // n}, {n}]' for n in (3, 2) if count % n == 0), '')
    return f'; the {count} more in each row can be masks: {count}{points}'


class HeadSpec:
    """
    A kind of head with its options (each an attribute), and facts about the model.

    :param kind: the name of a head in ``HEADS``, or of another package's head.
    :param num_classes: the number of classes, a background class not counted.
    :param input_size: width, height of the network's input in pixels without padding; (0, 0): the
        letterbox of each frame decides.
    :param options: the options that the manifest gives; the head's ``OPTIONS`` declares which
        there are.
    """

    def __init__(
        self, kind: str, num_classes: int, input_size: tuple[int, int] = (0, 0), **options: Any
    ) -> None:
        self.kind, self.num_classes, self.input_size = kind, num_classes, input_size
        self.options = {name: _frozen(value) for name, value in options.items()}
        vars(self).update(self.options)

    @property
    def extra(self) -> int:
        """
        How many numbers each row has after the box and the classes.

        :raises ConfigError: the manifest gives more than one of the options ``EXTRAS``, or
            keypoints have neither 2 nor 3 numbers.
        """
        given = {name: value for name in EXTRAS if (value := getattr(self, name, None))}
        if len(given) > 1:
            raise ConfigError(
                f'head.{" and head.".join(given)}: rows have one of them at most; leave the '
                'others out'
            )
        count, numbers = given.get('keypoints', (0, 2))
        if numbers not in (2, 3):
            raise ConfigError(
                f'head.keypoints is {[count, numbers]}: each has 2 numbers, or 3 with a score'
            )
        return int(given.get('masks', 0) + count * numbers + given.get('oriented', False))

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HeadSpec) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f'HeadSpec({self.kind!r}, {self.num_classes}, {self.input_size}, **{self.options})'

    def completed(self, keys: Mapping[str, Key]) -> HeadSpec:
        """Return this spec with the defaults of the options that the manifest doesn't give."""
        defaults = {name: key.default for name, key in keys.items()}
        return HeadSpec(
            self.kind, self.num_classes, self.input_size, **{**defaults, **self.options}
        )


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, (list, tuple)) else value


@dataclass(frozen=True)
class DecodeLimits:
    """
    Limits of decoding, which may change while a model runs.

    :param score: candidates with a lower score are dropped; a candidate with exactly this score
        stays.
    :param iou: boxes whose IoU is greater than this are taken for the same object.
    :param count: the highest number of detections.
    """

    score: float
    iou: float
    count: int


class Head(ABC):
    """
    Decode the outputs of one model.

    One thread at a time uses a head.

    Two things give masks, keypoints and angles to detections. :attr:`Detections.rows` has, for
    each detection that suppression has left, the number of its row in the outputs. :meth:`extras`
    reads the numbers behind box, score and classes in these rows; one of the options ``EXTRAS``
    says what these numbers are. Only the head that gave a row number can interpret it.

    :param spec: the spec; it has only options that the class declares in ``OPTIONS``, already
        checked by their rules.
    :raises ConfigError: options don't fit together; the message names them as ``head.NAME``.
    """

    #: The keys below ``head`` in a manifest that this class reads, with rule, text and default.
    OPTIONS: ClassVar[Mapping[str, Key]] = {}

    def __init__(self, spec: HeadSpec) -> None:
        self._spec = spec.completed(self.OPTIONS)

    @abstractmethod
    def decode(
        self, outputs: Sequence[RawTensor], box: Letterbox, limits: DecodeLimits
    ) -> Detections:
        """
        Return detections in source pixels, best first.

        Among equal scores, the detection that is first in the outputs comes first. A number that
        isn't finite doesn't count as a score. A box is dropped if a corner isn't finite, if its
        area is 0, or if it lies outside the picture.

        :param box: the geometry that maps the network's input to the frame.
        :raises AcceleratorError: the outputs don't fit the head's spec; the message names the
            tensor, its shape and the expected shape.
        """

    def extras(self, outputs: Sequence[RawTensor], rows: NDArray[np.intp]) -> NDArray[np.float32]:
        """
        Return (n, extra) real numbers: what the model yields besides box, score and classes.

        Keypoints are in pixels of the network's input, with scores from 0 to 1; an angle is in
        radians.

        :param outputs: the same that :meth:`decode` was given.
        :param rows: the rows of the detections that :meth:`decode` found.
        :raises AcceleratorError: this kind of head, or this arrangement of the outputs, has no
            such numbers.
        """
        raise AcceleratorError(f'head {self._spec.kind} has no numbers besides boxes and classes')

    def objection(self, outputs: Sequence[RawTensor], box: Letterbox, score: float) -> str:
        """
        Explain why the outputs' values can't mean what this head takes them for.

        The shapes were already checked. Return an empty text if nothing is wrong.

        :param outputs: the outputs for a blank picture; :meth:`decode` has read them without an
            error.
        :param score: the score threshold, which the outputs must be able to reach.
        """
        return ''
