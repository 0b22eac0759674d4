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
        'Whether the host has to apply the sigmoid to scores; left out: the host does what '
        'usual exports for this kind of head need.'
    ),
)
CLASS_AGNOSTIC = Key(boolean(), 'Whether boxes of different classes suppress each other.', False)
MASKS = Key(integer(0, 1024), 'Number of mask coefficients after the classes of each row.', 0)
KEYPOINTS = Key(
    array('two numbers: how many keypoints, and how many numbers each has (2, or 3 with a score)',
          integer(1, 1024), 2, 2),
    ('Keypoints after the classes of each row: how many, and how many numbers each has (2, or 3 '
     'with a score).'),
    [],
)  # fmt: skip
ORIENTED = Key(
    boolean(), 'Whether boxes are turned by an angle, which is the last number of each row.', False
)
EXTRAS = {'masks': MASKS, 'keypoints': KEYPOINTS, 'oriented': ORIENTED}
"""Options for numbers after the classes in each row; a manifest sets at most one of them."""


def more_numbers(count: int) -> str:
    """Return a hint for an error message: what the *count* extra numbers in each row may be."""
    if count <= 0:
        return ''
    if count == 1:
        return (
            '; the further number in each row can be an angle (oriented: true), an objectness '
            "(head: yolov5, yolox) or the number of the image (add 'image' to key 'columns')"
        )
    points = next((f' or keypoints: [{count // n}, {n}]' for n in (3, 2) if count % n == 0), '')
    return f'; the {count} further numbers in each row can be masks: {count}{points}'


class HeadSpec:
    """
    A manifest's head: its kind and options, and the model's number of classes and input size.

    :param kind: the name of a head in ``HEADS``, or of another package's head.
    :param num_classes: the number of classes, without a background class.
    :param input_size: width, height of the network's input in pixels without padding; (0, 0): the
        input size of each frame's letterbox is used.
    :param options: the options that the manifest gives; each becomes an attribute. The head's
        ``OPTIONS`` declares the possible ones.
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
        How many numbers each row has after the box and the classes: masks, keypoints or angle.

        :raises ConfigError: more than one of the options in ``EXTRAS`` is set, or the keypoints
            have neither 2 nor 3 numbers each.
        """
        given = {name: value for name in EXTRAS if (value := getattr(self, name, None))}
        if len(given) > 1:
            raise ConfigError(
                f'head.{" and head.".join(given)}: each row of an output has the numbers for only '
                'one of these options; leave the others out'
            )
        count, numbers = given.get('keypoints', (0, 2))
        if numbers not in (2, 3):
            raise ConfigError(
                f'head.keypoints is {[count, numbers]}: a keypoint has 2 numbers, or 3 with a '
                'score'
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
        """Return a copy in which options that the manifest doesn't give have their defaults."""
        defaults = {name: key.default for name, key in keys.items()}
        return HeadSpec(
            self.kind, self.num_classes, self.input_size, **{**defaults, **self.options}
        )


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, (list, tuple)) else value


@dataclass(frozen=True)
class DecodeLimits:
    """
    Limits for :meth:`Head.decode`, which may change from frame to frame.

    :param score: candidates with a lower score are dropped.
    :param iou: boxes whose IoU is greater than this count as the same object.
    :param count: the highest number of detections.
    :param classes: for each class, whether its detections are wanted; ``None``: all are. A head
        may ignore this: :func:`~zc_perception.detection.tiles.decode` drops what isn't wanted.
    """

    score: float
    iou: float
    count: int
    classes: NDArray[np.bool_] | None = None


class Head(ABC):
    """
    Decode the outputs of one model; only one thread at a time may use a head.

    Masks, keypoints and angles are read after decoding, only for the detections that suppression
    leaves. :attr:`Detections.rows` says from which row of the outputs each detection comes, and
    :meth:`extras` reads the numbers that stand after the classes in these rows. A manifest sets at
    most one option of ``EXTRAS``, which says what the numbers mean. Use row numbers only with the
    head that returned them.

    :param spec: the kind and its options; the caller has already checked the options with the
        rules in the class's ``OPTIONS``.
    :raises ConfigError: options don't fit together; the message names them as ``head.NAME``.
    """

    #: The options, keys below ``head`` in a manifest: each with its rule, description and default.
    OPTIONS: ClassVar[Mapping[str, Key]] = {}

    def __init__(self, spec: HeadSpec) -> None:
        self._spec = spec.completed(self.OPTIONS)

    @abstractmethod
    def decode(
        self, outputs: Sequence[RawTensor], box: Letterbox, limits: DecodeLimits
    ) -> Detections:
        """
        Return detections in source pixels, best first.

        Detections with equal scores keep the order of the outputs. A score that isn't finite is
        ignored. A box is dropped if a corner isn't finite, if its area is 0, or if it lies outside
        the picture.

        :param box: the letterbox, which maps positions in the network's input to the frame.
        :raises AcceleratorError: the outputs don't fit the head's spec; the message names the
            tensor, its shape and the expected shape.
        """

    def extras(self, outputs: Sequence[RawTensor], rows: NDArray[np.intp]) -> NDArray[np.float32]:
        """
        Return the mask coefficients, keypoints or angle of each of the *rows*.

        The shape is (n, :attr:`HeadSpec.extra`). Keypoints are in pixels of the network's input,
        with scores from 0 to 1; an angle is in radians.

        :param outputs: the outputs that :meth:`decode` has read.
        :param rows: (n) row numbers from the :attr:`Detections.rows` that :meth:`decode` returned.
        :raises AcceleratorError: this kind of head, or this arrangement of the outputs, has no
            such numbers.
        """
        raise AcceleratorError(f'head {self._spec.kind} has no numbers besides boxes and classes')

    def objection(self, outputs: Sequence[RawTensor], box: Letterbox, score: float) -> str:
        """
        Explain why this head is wrong for the model, judging by the values for a blank picture.

        Return an empty text if nothing is wrong. This method is called when a model is loaded.

        :param outputs: the outputs for a blank picture; :meth:`decode` has already read them
            without an error.
        :param score: the score threshold. The head is also wrong if no value of the outputs'
            (quantised) type stands for a score from this threshold to 1.
        """
        return ''
