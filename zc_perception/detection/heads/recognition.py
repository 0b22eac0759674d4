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
Find the head that reads a model's outputs: :func:`recognise`.

The function compares the names and shapes of the outputs, and the file's metadata, with what known
exporters write. The table ``_SEVERAL`` and the rules in ``_one_output`` and ``_levels`` describe
what exporters write. If several heads are possible, the function doesn't guess: it returns all of
them, and a person chooses one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
import re
from typing import Any

from zc_perception.detection.heads.levels import possible_rows, STRIDES
from zc_perception.detection.heads.spec import HeadSpec

Output = tuple[str, tuple[int | None, ...]]
HeadOptions = dict[str, Any]
_USUAL = tuple(STRIDES.default)
_CHOSEN = 300  # the number of rows, if the exported model removes duplicate boxes itself
_INPUT: HeadOptions = {'kind': 'boxes', 'coordinates': 'input', 'box_order': 'xyxy'}
_RELATIVE: HeadOptions = {'kind': 'boxes', 'coordinates': 'relative', 'box_order': 'xyxy'}
_CENTRES: HeadOptions = {'kind': 'boxes', 'coordinates': 'relative', 'box_order': 'cxcywh'}
_TENSORFLOW: HeadOptions = {'kind': 'boxes', 'coordinates': 'relative', 'box_order': 'yxyx'}
_YOLO_NAS: HeadOptions = {**_INPUT, 'suppressed': False}
# Values of a manifest's key ``input``. Transformer networks, such as RT-DETR, were trained on
# stretched pictures. The pictures for RF-DETR also had colours normalised as for ImageNet. YOLOX
# was trained on OpenCV's pictures, which are BGR with values from 0 to 255.
_STRETCHED: HeadOptions = {'resize': 'stretch'}
_YOLOX: HeadOptions = {'colour': 'bgr', 'range': [0, 255]}
_IMAGENET = {**_STRETCHED, 'mean': [0.485, 0.456, 0.406], 'std': [0.229, 0.224, 0.225]}
_YOLOX_LINE = 'input: {colour: bgr, range: [0, 255]}'
# The columns of OpenVINO's and Caffe's SSDs, whose output is 1x1xnx7.
_DETECTION_OUTPUT: HeadOptions = {
    **_RELATIVE,
    'columns': ['image class score box'],
    'background': 0,
}
_COCO = 90  # COCO's highest class number; some lower numbers stand for no class
_RF_DETR, _HUGGING_FACE = '^(dets|labels)$', '^pred_boxes$'
# An entry has: the contents of the outputs (the words that _word() returns, sorted); a regular
# expression that the name of an output or input must match; the head; the usual values of the
# manifest's key ``input``.
_SEVERAL: tuple[tuple[tuple[str, ...], str, HeadOptions, HeadOptions], ...] = (
    (('box score', 'class'), '', _INPUT, {}),  # Exports of mmdeploy.
    # The next entry is for TensorFlow's Object Detection API.
    (('box', 'class', 'count', 'score'), 'detection_', {**_TENSORFLOW, 'background': 0},
     _STRETCHED),
    # The next entry is for outputs of TensorRT's plugin EfficientNMS.
    (('box', 'class', 'count', 'score'), 'num|count', _INPUT, {}),
    # The next entry is for RT-DETR and D-FINE with a second input, the picture's size.
    (('box', 'class', 'score'), 'target_sizes', _INPUT, _STRETCHED),
    (('box', 'scores'), _RF_DETR, {**_CENTRES, 'sigmoid': True}, _IMAGENET),
    # RT-DETR and D-FINE, as Hugging Face's library Transformers exports them
    (('box', 'scores'), _HUGGING_FACE, {**_CENTRES, 'sigmoid': True}, _STRETCHED),
)  # fmt: skip
_ANCHOR_OPTIONS = (
    'head: {kind: yolov5, anchors: […]} with the anchors that the model was trained with'
)

_PADDLE = (
    'head: {kind: boxes, columns: [class score box, -]} (PaddleDetection; infer_cfg.yml, which it '
    'writes beside the model, has the mean and std for input: …)'
)


@dataclass(frozen=True)
class Recognised:
    """
    The manifest's keys that follow from a model's outputs.

    :param head: the kind of head and its options; ``None``: the head is unknown, or several heads
        are possible (*choices*).
    :param classes: the number of classes; 0: unknown.
    :param choices: if several heads are possible, each as a line of a manifest and an explanation.
    :param input: usual values of the keys below ``input`` for networks with such outputs.
    """

    head: HeadOptions | None = None
    classes: int = 0
    choices: tuple[str, ...] = ()
    input: Mapping[str, Any] = field(default_factory=dict)  # noqa: A003


def recognise(
    outputs: Sequence[Output],
    size: tuple[int, int] | None,
    classes: int,
    said: Mapping[str, Any],
    inputs: Sequence[str] = (),
) -> Recognised:
    """
    Return the head for these outputs.

    :param outputs: the name and the shape of each output. A shape has ``None`` for an axis of
        variable length.
    :param size: width and height of the network's input.
    :param classes: the number of classes; 0: unknown.
    :param said: the metadata in the model's file.
    :param inputs: the names of the model's inputs.
    """
    grids = [shape for _, shape in outputs if len(shape) == 4]
    if len(outputs) == 2 and len(grids) == 1:
        said = {'task': 'segment', **said}
    extras = _extras(said, grids, size)
    # Ignore the outputs with four axes (the pictures that masks are computed from): the kind of
    # head doesn't depend on them.
    if 'masks' in extras and len(grids) == 1:
        outputs = [output for output in outputs if len(output[1]) != 4]
    tables = [output for output in outputs if len(output[1]) == 3]
    if len(tables) == 1 and all(len(shape) in (3, 5) for _, shape in outputs):
        outputs = tables  # YOLOv5 before 6.2 also gives its raw levels
    if not outputs:
        return _unseen(said, extras)
    if len(outputs) == 1 and len(outputs[0][1]) < 4:
        return _one_output(outputs[0], size, classes, said, extras)
    if len(outputs) == 1 and outputs[0][1][:2] == (1, 1) and outputs[0][1][3] == 7:
        return Recognised(dict(_DETECTION_OUTPUT), input=_STRETCHED)
    if all(len(shape) == 5 for _, shape in outputs):
        return Recognised(None, 0, (_ANCHOR_OPTIONS,))
    if all(len(shape) == 4 for _, shape in outputs):
        return _levels(outputs, size, classes, extras)
    return _several(outputs, size, classes, inputs)


def _is_detr(said: Mapping[str, Any]) -> bool:
    words = f'{said.get("head", "")}{said.get("description", "")}'.lower()
    return 'rtdetr' in re.sub('[-_ ]', '', words)


def _has_chosen(said: Mapping[str, Any]) -> bool:
    """Return whether the model itself removes duplicate boxes."""
    args = said.get('args')
    return said.get('end2end') is True or (isinstance(args, Mapping) and args.get('nms') is True)


def _unseen(said: Mapping[str, Any], extras: HeadOptions) -> Recognised:
    """
    Return the head for an ``.axm`` file, which doesn't describe its outputs.

    If the metadata looks like Ultralytics', the result is the head of Ultralytics' exports. When
    the model is loaded, a run on a blank picture checks whether this head fits.
    """
    if 'stride' not in said or _is_detr(said):
        return Recognised()
    return Recognised(_chosen(extras) if _has_chosen(said) else {'kind': 'yolov8', **extras})


def _chosen(extras: HeadOptions) -> HeadOptions:
    """
    Return the head for an exported model that removes duplicate boxes itself.

    Such a model gives the corners of boxes; if boxes are oriented, it gives centre and size.
    """
    return {**_INPUT, **({'box_order': 'cxcywh'} if 'oriented' in extras else {}), **extras}


def _one_output(
    output: Output,
    size: tuple[int, int] | None,
    classes: int,
    said: Mapping[str, Any],
    extras: HeadOptions,
) -> Recognised:
    shape = output[1]
    if len(shape) == 2 and shape[0] == 1:
        return Recognised()  # classifiers give one row for the whole picture, and no boxes
    if len(shape) == 2 and shape[1] == 7 and not extras:
        # YOLO-NAS writes the score before the class; YOLOv7 writes the class before the score.
        last = 'score class' if 'flat_predictions' in output[0] else 'class score'
        return Recognised({**_INPUT, 'columns': [f'image box {last}']})
    if len(shape) not in (2, 3):
        return Recognised()
    rows, columns = shape[-2:]
    extra = HeadSpec('', 0, **extras).extra
    detr = _is_detr(said)
    # Newer exports of RT-DETR have metadata 'head' and 6 columns (box, score and class). Older
    # exports of RT-DETR have the box and all scores. A file exported with axes of variable length
    # may leave out the number of columns, though this number never varies.
    new = 'head' in said
    if detr and (columns == 6 or (columns is None and new)) and (classes != 2 or new):
        return Recognised(dict(_CENTRES), input=_STRETCHED)
    if detr and (columns in (4 + classes, None) or not classes):
        classes = classes if columns is None else columns - 4
        return Recognised({**_CENTRES, 'columns': ['box scores']}, classes, input=_STRETCHED)
    if _has_chosen(said) and columns in (6 + extra, None):
        return Recognised(_chosen(extras))
    cells = possible_rows(size, _USUAL) if size else frozenset()
    for count, width, first in ((columns, rows, True), (rows, columns, False)):
        # A file exported with axes of variable length may have no number of rows. Such a file is
        # recognised only if it has Ultralytics' metadata, which contain 'stride'.
        dynamic = count is None and 'stride' in said
        known = count in cells or dynamic
        if width is None or (not known and not (count and size)):
            continue
        fits = width == 4 + classes + extra if classes else first
        if known and fits:
            return Recognised({'kind': 'yolov8', **extras}, width - 4 - extra)
        anchors = (size and count == 3 * sum(cells_of(size))) or (
            dynamic and classes and not first
        )
        if anchors and not extras and (not classes or width == 5 + classes):
            return Recognised({'kind': 'yolov5'}, width - 5)
        if count in cells and width == 5 + classes and not first:
            return Recognised(
                None,
                classes,
                (
                    f'head: yolox and {_YOLOX_LINE} (YOLOX exported without '
                    '--decode_in_inference)',
                    f'head: yolov5 and {_YOLOX_LINE} (YOLOX exported with --decode_in_inference)',
                    'head: yolov5 (YOLOv6)',
                ),
            )
    # Ultralytics' releases before 8.4 don't write the key end2end into a model's file, not even
    # for YOLOv10, which removes duplicates itself. A row of YOLOv10's output has 6 numbers.
    old = said.get('task') == 'detect' and 'stride' in said and 'end2end' not in said
    if old and rows not in cells and (columns == 6 or (columns is None and rows == _CHOSEN)):
        return Recognised(dict(_INPUT))
    if columns == 6:
        return Recognised(
            None,
            classes,
            (
                (
                    'head: {kind: boxes, coordinates: input} (x0, y0, x1, y1 in pixels of the '
                    'input, score, class: YOLOv10, YOLO26)'
                ),
                (
                    'head: {kind: boxes, coordinates: relative, box_order: cxcywh} (centre and '
                    'size from 0 to 1, score, class: RT-DETR)'
                ),
                'head: {kind: boxes, coordinates: relative} (corners from 0 to 1, score, class)',
            ),
        )
    return Recognised()


def cells_of(size: tuple[int, int]) -> list[int]:
    """Return how many cells each level has at the usual strides, for an input of *size*."""
    return [-(-size[0] // stride) * -(-size[1] // stride) for stride in _USUAL]


def _extras(
    said: Mapping[str, Any], grids: Sequence[tuple[int | None, ...]], size: tuple[int, int] | None
) -> HeadOptions:
    """Return the option for masks, keypoints or angles, as the model's task needs it."""
    task, keypoints = said.get('task'), said.get('kpt_shape')
    keypoints = keypoints if isinstance(keypoints, (list, tuple)) else ()
    if task == 'pose' and len(keypoints) == 2 and all(isinstance(n, int) for n in keypoints):
        return {'keypoints': list(keypoints)}
    if task == 'segment':
        return {'masks': _channels(grids[0], size) if len(grids) == 1 else 32}
    return {'oriented': True} if task == 'obb' else {}


def _channels(shape: tuple[int | None, ...], size: tuple[int, int] | None) -> int:
    """Return the number of channels of the masks' prototypes, for an input of *size*."""
    _, first, second, last = (n or 0 for n in shape)
    width, height = size or (0, 0)
    # The two axes with the input's aspect ratio are height and width; the third is the channels.
    if first and second * width == last * height > 0:
        return first
    if last and first * width == second * height > 0:
        return last
    return min((n for n in (first, last) if n), default=32)


def _word(name: str, shape: tuple[int | None, ...], alone: bool) -> str:
    """Guess what an output contains, in words of the head's option ``columns``; empty: unknown."""
    batch = len(shape) > 1 and shape[0] in (1, None) and shape != (None, 4)
    inner = shape[1:] if batch else shape
    label = re.search('label|class|cls', name)
    if re.search('^raw_|multiclass_scores|anchor_indices', name):
        return '-'  # TensorFlow's models have these outputs, but no head reads them
    if all(n == 1 for n in shape) or ('num' in name and len(inner) <= 1):
        return 'count'
    if len(inner) == 2 and inner[1] == 5 and 'det' in name and not alone:
        return 'box score'
    if (
        len(inner) == 2
        and inner[1] == 4
        and not re.search('label|class|cls|score|conf|logit', name)
    ):
        return 'box'
    if len(inner) == 1:
        return 'class' if label else 'score' if re.search('score|conf', name) else ''
    return 'scores' if len(inner) == 2 else ''


def _several(
    outputs: Sequence[Output], size: tuple[int, int] | None, classes: int, inputs: Sequence[str]
) -> Recognised:
    words = [_word(name.lower(), shape, len(outputs) == 1) for name, shape in outputs]
    names = [name for name, _ in outputs] + list(inputs)
    if 'scale_factor' in inputs and outputs[0][1][1:] == (6,):
        return Recognised(None, classes, (_PADDLE,), _STRETCHED)
    for wanted, pattern, head, usual in _SEVERAL:
        if tuple(sorted(set(words) - {'-'})) == wanted and any(
            re.search(pattern, name) for name in names
        ):
            found = _with_scores({**head, 'columns': words}, outputs, words, classes)
            if pattern == _RF_DETR and (found.classes, classes) == (_COCO + 1, _COCO):
                return Recognised(None, classes, _rf_detr(words), usual)
            if pattern == _HUGGING_FACE and 'background' in (found.head or {}):
                return Recognised(None, classes, (_softmax(words, classes),))
            background = int(pattern == _RF_DETR and not classes)
            return replace(found, classes=found.classes - background, input=usual)
    if sorted(words) == ['box', 'scores']:
        rows, scored = (outputs[words.index(word)][1][-2] for word in ('box', 'scores'))
        if None not in (rows, scored) and rows != scored:
            # PP-YOLOE without its NMS: 'scores' has a row for each class. No head reads this.
            return Recognised()
        if size and rows in possible_rows(size, _USUAL):
            return _with_scores({**_YOLO_NAS, 'columns': words}, outputs, words, classes)
    if 'box' in ' '.join(words) and '' not in words:
        return Recognised(
            None,
            classes,
            tuple(
                f'head: {{kind: boxes, columns: {words}, coordinates: {unit}{more}}}'.replace(
                    "'", ''
                )
                for unit, more in (
                    ('input', ''),
                    ('relative', ''),
                    ('relative', ', box_order: cxcywh, sigmoid: true'),
                )
            )
            + (
                ('the same with background: 0 if class 0 is the background',)
                if 'class' in words
                else ()
            ),
        )
    return Recognised()


def _rf_detr(words: Sequence[str]) -> tuple[str, str]:
    head = (
        f'head: {{kind: boxes, columns: [{", ".join(words)}], coordinates: relative, '
        'box_order: cxcywh, sigmoid: true, background: '
    )
    return (
        f'{head}0}} (weights trained on COCO, whose classes begin at 1)',
        f'{head}{_COCO}}} (weights of your own, whose classes begin at 0)',
    )


def _softmax(words: Sequence[str], classes: int) -> str:
    head = (
        f'head: {{kind: boxes, columns: [{", ".join(words)}], coordinates: relative, '
        f'box_order: cxcywh, background: {classes}'
    )
    return (
        f'{head}}} if the model ends in the softmax that its scores need (DETR and YOLOS must be '
        f'exported with this softmax), or {head}, sigmoid: true}} if '
        'each class has a sigmoid of its own'
    )


def _with_scores(
    head: HeadOptions, outputs: Sequence[Output], words: Sequence[str], classes: int
) -> Recognised:
    if 'scores' not in words:
        return Recognised(head)
    columns = outputs[words.index('scores')][1][-1] or 0
    if classes and columns == classes + 1:
        head['background'] = classes
    return Recognised(head, columns)


def _levels(
    outputs: Sequence[Output], size: tuple[int, int] | None, classes: int, extras: HeadOptions
) -> Recognised:
    """Find the head for grids of undecoded predictions, by each grid's number of channels."""
    if size is None:
        return Recognised()
    for channel in (1, 3):
        grids: dict[int, list[int]] = {}
        for _, shape in outputs:
            rows, columns = [n or 0 for axis, n in enumerate(shape) if axis not in (0, channel)]
            stride = size[0] // columns if columns else 0
            if not stride or (columns * stride, rows * stride) != size:
                break
            grids.setdefault(stride, []).append(shape[channel] or 0)
        else:
            if 'masks' in extras and len(grids) > 1 and len(grids[min(grids)]) == 1:
                # If only one output has the finest grid, this output is the masks' prototypes.
                extras = {'masks': grids.pop(min(grids))[0]}
            found = _of_channels(
                [sorted(channels) for channels in grids.values()], classes, extras
            )
            if found.head is not None and sorted(grids) != list(_USUAL):
                found.head['strides'] = sorted(grids)
            return found
    return Recognised()


def _of_channels(levels: Sequence[list[int]], classes: int, extras: HeadOptions) -> Recognised:
    channels = levels[0]
    if any(level != channels for level in levels):
        return Recognised()
    if extras:
        extra = HeadSpec('', 0, **extras).extra
        channels = [channels[0] - extra] if len(channels) == 1 else [*channels]
        if len(channels) == 3 and extra in channels:
            channels.remove(extra)
        found = _of_channels([channels], classes, {})
        if found.head is None or found.head['kind'] != 'yolov8':
            return Recognised()
        return replace(found, head={**found.head, **extras})
    if len(channels) == 3 and channels[:2] in ([1, 4], [1, classes]) and 4 in channels:
        return Recognised({'kind': 'yolox'}, classes, input=_YOLOX)
    if len(channels) == 2:
        left = (
            [n for n in channels if n != classes]
            if classes
            else [n for n in channels if n in (4, 64)]
        )
        box = left[0] if len(left) == 1 else channels[0] if channels[0] == channels[1] else 0
        if box and box % 4 == 0:
            return Recognised({'kind': 'yolov8', 'reg_max': box // 4}, sum(channels) - box)
    if len(channels) == 1 and classes:
        for kind, reg in (('yolov8', 16), ('yolov8', 1)):
            if channels[0] == 4 * reg + classes:
                return Recognised({'kind': kind, 'reg_max': reg}, classes)
        if channels[0] == 5 + classes:
            return Recognised({'kind': 'yolox'}, classes, input=_YOLOX)
        if channels[0] == 3 * (5 + classes):
            return Recognised(None, classes, (_ANCHOR_OPTIONS,))
    return Recognised()
