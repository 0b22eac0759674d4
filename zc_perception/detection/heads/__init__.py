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
Heads, which decode a network's raw outputs into boxes. :data:`HEADS` registers them.

Each kind of head is a class derived from :class:`~zc_perception.detection.heads.spec.Head`. Its
docstring describes the outputs that it reads, and its ``OPTIONS`` declare its options.

All heads work in the same steps. ``levels`` finds out what each output holds. ``score_filter``
finds the cells whose score reaches the threshold, before any box is computed. The head computes
the boxes of these cells. ``candidates`` removes duplicates and maps the boxes to source pixels.

Other packages add heads by entry points of the group ``zc_perception.heads``.
"""

from __future__ import annotations

from collections.abc import Mapping
import re
from typing import Any

from zc_perception.detection.heads.spec import Head, HeadSpec
from zc_perception.errors import ConfigError
from zc_perception.kinds import HEAD_GROUP, Kinds
from zc_perception.rules import choice, Key, Leaf, Place, Rule, Schema, Table

_HERE = 'zc_perception.detection.heads'
HEADS: Kinds[Head] = Kinds(
    'head',
    HEAD_GROUP,
    {
        'boxes': f'{_HERE}.boxes:Boxes',
        'ssd': f'{_HERE}.ssd:Ssd',
        'yolov5': f'{_HERE}.yolov5:YoloV5',
        'yolov8': f'{_HERE}.yolov8:YoloV8',
        'yolox': f'{_HERE}.yolox:YoloX',
    },
    f'{_HERE}.spec:Head',
)


_END_TO_END = 'boxes, or yolov8 if the model was exported without non-maximum suppression'
# Patterns for names of networks that a user may write in place of a kind of head, each with the
# head to suggest.
_MEANT = (
    (r'yolov?(8|9|1[1-9])u?[nsmblxtce]?|yolov5u|yolov3u', 'yolov8'),
    (r'yolov?(10|26)[nsmblx]?', _END_TO_END),
    (r'yolov?[347](tiny|x)?', 'yolov5 (without --end2end), or boxes'),
    (
        r'(rt|rf|d)?detr.*|dfine.*|yolonas.*|efficient(nms|det).*|nms|end2end|'
        r'(fast|mask).*rcnn.*|retinanet',
        'boxes',
    ),
)


def make_head(spec: HeadSpec) -> Head:
    """
    Return the head that a manifest describes.

    :raises ConfigError: the kind is unknown, an option belongs to other kinds, options don't fit
        together, or another package's head can't be imported. The message names the manifest's
        key.
    """
    head = HEADS.load(spec.kind)
    _refuse_foreign(spec.kind, head, spec.options)
    return head(spec)


def _refuse_foreign(kind: str, head: type[Head], given: Mapping[str, Any]) -> None:
    """Raise ConfigError if an option belongs only to other heads of this package."""
    for name in given:
        readers = [
            other
            for other in HEADS.built_in
            if name not in head.OPTIONS and name in HEADS.load(other).OPTIONS
        ]
        if readers:
            raise ConfigError(
                f"head.{name} is not for head '{kind}'; it is for {', '.join(readers)}: leave "
                'the option out, or change the kind of head; '
                "if the model's own file names its head, leave out the manifest's key 'head'"
            )


class HeadRule(Rule):
    """The rule for a manifest's key ``head``: a kind, or a mapping with ``kind`` and options."""

    @property
    def _kind(self) -> Leaf:
        return choice(*HEADS.built_in, others=lambda: HEADS.others)

    @property
    def words(self) -> str:  # type: ignore[override]
        return self._kind.words

    def check(self, value: Any, place: Place) -> None:
        if not isinstance(value, Mapping):
            self._check_kind(value, place)
            return
        if 'kind' not in value:
            raise place.at('kind').missing(self.words)
        self._check_kind(value['kind'], place.at('kind'))
        head = HEADS.load(value['kind'])
        try:
            _refuse_foreign(value['kind'], head, value)
        except ConfigError as error:
            raise ConfigError(f'{place.path}: {place.key.removesuffix("head")}{error}') from None
        _options(self._kind, head).check(value, place)

    def _check_kind(self, value: Any, place: Place) -> None:
        kind = re.sub('[-_ .]', '', str(value).lower())
        near = next((means for pattern, means in _MEANT if re.fullmatch(pattern, kind)), '')
        if near and value not in HEADS.names:
            kinds = ', '.join((self.words, *HEADS.others))
            raise place.refuse(
                value,
                f"{kinds}; for {value} use {near}, or leave the key out if the model's file "
                'names the head',
            )
        self._kind.check(value, place)

    def schema(self) -> Schema:
        kinds = [
            _options(choice(kind), HEADS.load(kind), kind).schema() for kind in HEADS.built_in
        ]
        return {'anyOf': [self._kind.schema(), *kinds]}


def _options(kind: Leaf, head: type[Head], name: str = '') -> Table:
    return Table(
        {
            'kind': Key(kind, f'How the outputs are read{f": {name}" if name else ""}.'),
            **head.OPTIONS,
        },
        needed=('kind',),
    )
