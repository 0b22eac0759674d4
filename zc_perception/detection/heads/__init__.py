"""From a network's raw outputs to boxes: :class:`Head` is what each kind has to do, :data:`HEADS` where they are registered.

All heads work in the same steps. ``levels`` finds out which output is what, ``score_filter`` finds the cells that reach the score before
anything is computed for a box, the head computes their boxes, and ``candidates`` removes duplicates and maps to source pixels. Heads of
other packages come by entry points of the group ``zc_perception.heads``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import NamedTuple, Protocol

from zc_perception.detection.detections import Detections
from zc_perception.detection.heads.boxes import Boxes
from zc_perception.detection.heads.spec import DecodeLimits, HeadSpec
from zc_perception.detection.heads.ssd import Ssd
from zc_perception.detection.heads.yolov5 import YoloV5
from zc_perception.detection.heads.yolov8 import YoloV8
from zc_perception.detection.heads.yolox import YoloX
from zc_perception.detection.letterbox import Letterbox
from zc_perception.detection.raw_tensor import RawTensor
from zc_perception.errors import ConfigError, nearest
from zc_perception.kinds import HEAD_GROUP, load_entry_point, offered
from zc_perception.shipped_files import shipped_file


class Head(Protocol):
    """Decodes the outputs of one model. One thread."""

    def decode(
        self, outputs: Sequence[RawTensor], box: Letterbox, limits: DecodeLimits
    ) -> Detections:
        """Detections in source pixels, best first; of equal scores the one that stands first among the outputs.

        Numbers that aren't finite are no scores, and boxes with such a corner, without an area or outside the picture no candidates.

        :param box: geometry between the frame and the network's input.
        :raises AcceleratorError: the outputs aren't what the head's spec promises; names the tensor, its shape and the one expected.
        """


class HeadKind(NamedTuple):
    """A kind of head that this package ships.

    :param make: makes the head.
    :param options: the fields of ``HeadSpec`` that it reads, apart from those that describe the model (:data:`_MODEL`).
    """

    make: Callable[[HeadSpec], Head]
    options: tuple[str, ...]


HEADS: Mapping[str, HeadKind] = {
    'boxes': HeadKind(Boxes, ('class_agnostic', 'box_order', 'coordinates', 'suppressed')),
    'ssd': HeadKind(
        Ssd,
        (
            'strides',
            'anchors',
            'sigmoid',
            'softmax',
            'class_agnostic',
            'variances',
            'background',
            'priors',
            'box_order',
            'coordinates',
        ),
    ),
    'yolov5': HeadKind(YoloV5, ('strides', 'anchors', 'sigmoid', 'class_agnostic')),
    'yolov8': HeadKind(YoloV8, ('strides', 'reg_max', 'sigmoid', 'class_agnostic')),
    'yolox': HeadKind(YoloX, ('strides', 'sigmoid', 'class_agnostic')),
}
_MODEL = ('kind', 'num_classes', 'input_size')


def make_head(spec: HeadSpec) -> Head:
    """The head that a manifest describes.

    :raises ConfigError: an unknown kind, an option that this kind does not read, or options that don't belong together; names the
        manifest's key. For a kind of another package: the package is broken.
    """
    if spec.kind not in HEADS:
        return _other_head(spec)
    for name in _given(spec):
        if name not in HEADS[spec.kind].options:
            readers = ', '.join(kind for kind in HEADS if name in HEADS[kind].options)
            raise ConfigError(
                f"head.{name} is not for head '{spec.kind}'; it is for {readers}: leave it out, or change the kind of head"
            )
    return HEADS[spec.kind].make(spec)


def _given(spec: HeadSpec) -> Iterator[str]:
    """Options that are not at their default."""
    return (
        each.name
        for each in fields(spec)
        if each.name not in _MODEL and getattr(spec, each.name) != each.default
    )


def other_heads() -> tuple[str, ...]:
    """Kinds of the heads that other packages offer."""
    return tuple(kind for kind in offered(HEAD_GROUP) if kind not in HEADS)


def _other_head(spec: HeadSpec) -> Head:
    found = load_entry_point(HEAD_GROUP, spec.kind)
    if found is None:
        known = (*HEADS, *other_heads())
        raise ConfigError(
            f"head.kind '{spec.kind}' is unknown: one of {', '.join(known)}{nearest(spec.kind, known)}"
        )
    head: Head | None = found(spec) if callable(found) else None
    if not callable(getattr(head, 'decode', None)):
        raise ConfigError(
            f"head.kind '{spec.kind}' is {found!r}, which makes nothing with a method decode; "
            f'see {shipped_file("docs/models.md")}'
        )
    return head  # type: ignore[return-value]
