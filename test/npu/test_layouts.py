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
Exporters' files, alone or with a manifest, give right boxes or a refusal.

A refusal names both values and the next step. Each model is a graph of constants in an exporter's
layout, for an input of 320 x 256, always with the same two boxes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from npu.onnx_kit import Axis, constant, FLOAT, INT8, INT64
import numpy as np
from numpy.typing import NDArray
import pytest
import yaml

from zc_perception.detection.detections import Detections
from zc_perception.detection.heads import make_head
from zc_perception.detection.heads.recognition import cells_of, recognise
from zc_perception.detection.heads.spec import DecodeLimits
from zc_perception.detection.letterbox import Letterbox
from zc_perception.errors import ConfigError
from zc_perception.npu.manifest import check_head, load_manifest
from zc_perception.npu.onnx.accelerator import OnnxEngine
from zc_perception.npu.zc_model import main

pytestmark = pytest.mark.usefixtures('warm_engines', 'no_fd_leak')
WIDTH, HEIGHT = 320, 256
CELLS = 40 * 32 + 20 * 16 + 10 * 8
# In pixels of the input: x0, y0, x1, y1; score, class. The letterbox has 38 rows on top; the head
# uses an even number of them.
CORNERS = np.array([[50, 60, 110, 200], [200, 100, 260, 130]], np.float32)
SCORES, LABELS = np.array([0.9, 0.7], np.float32), np.array([1, 0])
IMAGES: dict[str, tuple[int, tuple[Axis, ...]]] = {'images': (FLOAT, (1, 3, HEIGHT, WIDTH))}
NAMES = ('car', 'person', 'sign')
Arrays = dict[str, NDArray[Any]]


def ultralytics(count: int, **more: object) -> dict[str, str]:
    names = dict(enumerate(NAMES[:count]))
    said = {'names': names, 'imgsz': [HEIGHT, WIDTH], 'stride': 32, 'task': 'detect', 'batch': 1}
    return {key: str(value) for key, value in {**said, **more}.items()}


def centres(relative: bool) -> NDArray[np.float32]:
    size = np.array([WIDTH, HEIGHT] * 2, np.float32) if relative else np.float32(1)
    middle = (CORNERS[:, :2] + CORNERS[:, 2:]) / 2
    return np.concatenate((middle, CORNERS[:, 2:] - CORNERS[:, :2]), axis=1) / size


def padded(rows: NDArray[Any], count: int) -> NDArray[Any]:
    """Return one batch, with empty places at the end."""
    full = np.zeros((1, count, *rows.shape[1:]), rows.dtype)
    full[0, : len(rows)] = rows
    return full


def columns(*parts: NDArray[Any]) -> NDArray[np.float32]:
    return np.concatenate([p.reshape(len(p), -1) for p in parts], axis=1).astype(np.float32)


def table(boxes: NDArray[np.float32], count: int = 300) -> NDArray[np.float32]:
    return padded(columns(boxes, SCORES, LABELS), count)


def of_classes(classes: int, count: int) -> NDArray[np.float32]:
    scores = np.zeros((1, count, classes), np.float32)
    scores[0, [0, 1], LABELS] = SCORES
    return scores


def logits(scores: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.log(np.clip(scores, 1e-4, 1) / (1 - np.clip(scores, 1e-4, 0.9999)))


def raw(
    classes: int, *, objects: bool = False, count: int = CELLS, extra: int = 0
) -> NDArray[np.float32]:
    """Return rows of YOLOv8, or of YOLOv5, which have an objectness."""
    ones = [padded(np.ones((2, 1), np.float32), count)] if objects else []
    scores, more = of_classes(classes, count), np.zeros((1, count, extra), np.float32)
    return np.concatenate([padded(centres(False), count), *ones, scores, more], axis=2)


def _nms(boxes: NDArray[np.float32], names: tuple[str, ...]) -> Arrays:
    kinds = LABELS.astype(np.int32)
    parts = (padded(each, 100) for each in (boxes, SCORES, kinds))
    return dict(zip(names, (np.array([[2]], np.int32), *parts), strict=True))


YXYX = CORNERS[:, [1, 0, 3, 2]] / np.array([HEIGHT, WIDTH] * 2, np.float32)
TWO = {'classes': ['car', 'person']}
THREE = {'classes': list(NAMES)}
V8 = {'output0': raw(3).transpose(0, 2, 1)}
ROWS = {'output0': table(CORNERS)}
CENTRED = {'output0': table(centres(True))}
CENTRED_SCORES = np.concatenate((padded(centres(True), 300), of_classes(3, 300)), axis=2)
TURNED = {'output0': raw(3, extra=1).transpose(0, 2, 1)}
POSES = {'output0': padded(columns(CORNERS, SCORES, LABELS, np.ones((2, 51))), 300)}
OBJECTS = {'output': raw(3, objects=True)}
PARTS = {
    'output0': raw(3, extra=8).transpose(0, 2, 1),
    'output1': np.zeros((1, 8, 64, 80), np.float32),
}
TENSORFLOW = ('num_detections', 'detection_boxes', 'detection_scores', 'detection_classes')
RELATIVE = {**TWO, 'head': {'kind': 'boxes', 'coordinates': 'relative'}}
DETR = {
    'labels': padded(LABELS, 300),
    'boxes': padded(CORNERS, 300),
    'scores': padded(SCORES, 300),
}
PADDED_LOGITS = {'logits': logits(of_classes(3, 300)), 'pred_boxes': padded(centres(True), 300)}
RELATIVE_ROWS = columns(np.zeros(2), LABELS + 1, SCORES, CORNERS / ([WIDTH, HEIGHT] * 2))
SEGMENTS = padded(columns(CORNERS, SCORES, LABELS, np.ones((2, 32))), 300)
ANGLES = padded(columns(centres(False), SCORES, LABELS, np.zeros(2)), 300)

# Outputs, metadata, and what a manifest adds: nothing where the file alone is enough.
READ: dict[str, tuple[Any, ...]] = {
    'yolov8': (V8, ultralytics(3)),
    'end to end': (ROWS, ultralytics(2, end2end=True)),
    'end to end, before 8.4': (ROWS, ultralytics(2)),
    'with suppression': (ROWS, ultralytics(3, args={'nms': True})),
    'without metadata': (ROWS, {}, {**TWO, 'head': {'kind': 'boxes', 'coordinates': 'input'}}),
    'keypoints': (POSES, ultralytics(2, end2end=True, task='pose', kpt_shape=[17, 3])),
    'oriented': (TURNED, ultralytics(3, task='obb')),
    'oriented, end to end': ({'output0': ANGLES}, ultralytics(3, task='obb', end2end=True)),
    'segments': (PARTS, ultralytics(3, task='segment')),
    'segments without metadata': (PARTS, {}, THREE),
    'segments, end to end': (
        {'output0': SEGMENTS, 'output1': np.zeros((1, 32, 64, 80), np.float32)},
        ultralytics(2, end2end=True, task='segment'),
    ),
    'rtdetr': (CENTRED, ultralytics(3, head='RTDETRDecoder')),
    'rtdetr, older': (
        {'output0': CENTRED_SCORES}, ultralytics(3, description='A RT-DETR-l model'),
    ),
    'rtdetr of its authors': (DETR, {}, TWO),
    'rfdetr': (
        {'dets': padded(centres(True), 300), 'labels': logits(of_classes(4, 300))}, {}, THREE,
    ),
    'rtdetr of transformers': (PADDED_LOGITS, {}, THREE),
    'yolov7': ({'output': columns(np.zeros(2), CORNERS, LABELS, SCORES)}, {}, TWO),
    'yolo nas, flat': (
        {'graph2_flat_predictions': columns(np.zeros(2), CORNERS, SCORES, LABELS)}, {}, TWO,
    ),
    'efficient nms': (
        _nms(CORNERS, ('num_dets', 'det_boxes', 'det_scores', 'det_classes')), {}, TWO,
    ),
    'tensorflow with all outputs': (
        {'detection_anchor_indices': padded(LABELS, 100)} | _nms(YXYX, TENSORFLOW)
        | {'detection_classes': padded(LABELS.astype(np.float32) + 1, 100)}
        | {'raw_detection_boxes': np.ones((1, 500, 4), np.float32)},
        {}, TWO,
    ),
    'detection output': ({'detection_out': RELATIVE_ROWS.reshape(1, 1, 2, 7)}, {}, TWO),
    'mmdeploy': (
        {'dets': padded(columns(CORNERS, SCORES), 100), 'labels': padded(LABELS, 100)}, {}, TWO,
    ),
    'yolo nas': ({'boxes': padded(CORNERS, CELLS), 'scores': of_classes(3, CELLS)}, {}, THREE),
    'yolox decoded': (OBJECTS, {}, {**THREE, 'head': 'yolov5'}),
    'yolov5': ({'output': raw(3, objects=True, count=3 * CELLS)}, {}, THREE),
    'yolov5 before 6.2': (
        {'output': raw(3, objects=True, count=3 * CELLS)}
        | {f'{n}': np.ones((1, 3, HEIGHT // n, WIDTH // n, 8), np.float32) for n in (8, 16, 32)},
        {}, THREE,
    ),
}  # fmt: skip


@pytest.fixture
def model(tmp_path: Path) -> Callable[..., str]:
    """Write a model, and a manifest if given; return the value of parameter ``model``."""

    def write(
        outputs: Arrays, metadata: Mapping[str, str], manifest: Any = None, **more: Any
    ) -> str:
        inputs = {'images': more.pop('image', IMAGES['images'])}
        if set(outputs) == set(DETR):
            inputs = {'orig_target_sizes': (INT64, (1, 2)), **inputs}
        file = tmp_path / 'mine.onnx'
        file.write_bytes(constant(outputs, inputs, metadata, **more))
        if manifest is None:
            return str(file)
        (tmp_path / 'model.yaml').write_text(yaml.safe_dump({'file': 'mine.onnx', **manifest}))
        return str(tmp_path)

    return write


def found_by(path: str) -> Detections:
    manifest = load_manifest(path)
    engine = OnnxEngine(manifest, 1)
    outputs = engine.infer_blank()
    check_head(manifest, outputs)
    box = Letterbox.fit(640, 360, WIDTH, HEIGHT, stretch=manifest.input.resize == 'stretch')
    return make_head(manifest.head).decode(outputs, box, DecodeLimits(0.25, 0.45, 10))


@pytest.mark.parametrize('layout', READ)
def test_boxes_are_where_they_are(layout: str, model: Callable[..., str]) -> None:
    found = found_by(model(*READ[layout]))
    stretched = any(name in layout for name in ('rtdetr', 'rfdetr', 'tensorflow', 'detection'))
    expected = Letterbox.fit(640, 360, WIDTH, HEIGHT, stretch=stretched).to_source(CORNERS)
    assert np.abs(found.boxes - expected).max() < 0.02
    assert found.scores == pytest.approx(SCORES, abs=1e-3)
    assert found.classes.tolist() == LABELS.tolist()


_SIZES = dict.fromkeys(('im_shape', 'scale_factor'), (FLOAT, (1, 2)))


@pytest.mark.parametrize(
    ('outputs', 'inputs', 'shapes', 'words'),
    [
        ({'boxes': CORNERS, 'labels': LABELS, 'scores': SCORES}, IMAGES,
         {'boxes': ('n', 4), 'labels': ('n',), 'scores': ('n',)}, '[box, class, score]'),
        ({'nms.tmp_0': columns(LABELS, SCORES, CORNERS), 'nms.tmp_2': np.array([2])},
         {**IMAGES, **_SIZES}, {'nms.tmp_0': ('n', 6)}, '[class score box, -]'),
    ],
    ids=['torchvision', 'paddle'],
)  # fmt: skip
def test_a_message_offers_a_head_that_reads_the_outputs(
    outputs: Arrays, inputs: Any, shapes: Any, words: str, tmp_path: Path
) -> None:
    (tmp_path / 'mine.onnx').write_bytes(constant(outputs, inputs, {}, shapes))
    manifest = tmp_path / 'model.yaml'
    manifest.write_text('file: mine.onnx\nclasses: [car, person]\n')
    with pytest.raises(ConfigError) as caught:
        load_manifest(str(tmp_path))
    head = str(caught.value).partition('one of: ')[2].partition('}')[0] + '}'
    assert words in head
    manifest.write_text(f'{manifest.read_text()}{head}\n')
    assert found_by(str(tmp_path)).classes.tolist() == LABELS.tolist()


STEPS = np.round(np.where(np.arange(7)[:, None] < 4, 60 + np.arange(CELLS) % 200, 0) / 2.5)
OPEN_ROWS = {'kind': 'boxes', 'coordinates': 'input'}
HALVES = ROWS['output0'] + np.float32([0, 0, 0, 0, 0, 0.5])
FRACTIONS = V8['output0'] / np.float32([[320], [256], [320], [256], [1], [1], [1]])
NOT_DETECTION = {'output0': np.zeros((1, 3), np.float32)}
EIGHTY = {'output0': raw(80).transpose(0, 2, 1)}


@pytest.mark.parametrize(
    ('outputs', 'metadata', 'manifest', 'message'),
    [
        (ROWS, ultralytics(2, end2end=True), {'head': 'yolov8'},
         "'head' is 'yolov8', but mine.onnx .*are read by head: .kind: boxes"),
        (ROWS, {}, TWO, 'say how .* one of: head: .kind: boxes, coordinates: input'),
        (CENTRED, {}, RELATIVE, 'which have no area with box_order: xyxy'),
        ({'output0': table(CORNERS / 320)}, {}, {**TWO, 'head': 'boxes'}, 'these look relative'),
        (ROWS, {}, RELATIVE, 'these look like pixels'),
        ({'output0': FRACTIONS}, ultralytics(3), None, 'boxes in fractions of the input, as Ten'),
        (V8, ultralytics(3), TWO,
         'is 2 names .*, but mine.onnx says 3 names .*; leave classes out'),
        (V8, ultralytics(3), {'input': {'width': 640, 'height': 256}},
         'is 640, but .*; write width: 320'),
        (V8, ultralytics(2), None,
         'names in mine.onnx is 2, but head yolov8 reads 3 classes .*; export the model again'),
        (EIGHTY, {}, THREE, "names in key 'classes' is 3, but .*reads 80 .*; write one name"),
        ({'output': np.zeros((1, 84, 9), np.float32)}, {}, TWO, 'otherwise export the model with'),
        (OBJECTS, {}, {**THREE, 'head': 'yolox'}, 'decoded already'),
        (OBJECTS, {}, THREE, r'head: yolox and input: {colour: bgr, .* or head: yolov5 \(YOLOv6'),
        ({'boxes': padded(CORNERS, CELLS), 'scores': of_classes(3, CELLS).transpose(0, 2, 1)}, {},
         THREE, 'otherwise export the model with'),
        ({'dets': padded(centres(True), 300), 'labels': logits(of_classes(91, 300))}, {},
         {'classes': [f'c{n}' for n in range(1, 91)]}, 'background: 0}.*COCO.* background: 90}'),
        ({'logits': logits(of_classes(4, 100)), 'pred_boxes': padded(centres(True), 100)}, {},
         THREE, 'softmax that its scores need'),
        ({'output0': logits(V8['output0'])}, {}, {**THREE, 'head': 'yolov8'}, 'these are logits'),
        ({'output0': V8['output0'] * np.float32(np.nan)}, {}, {**THREE, 'head': 'yolov8'},
         r'scores that are not finite \(nan, inf\): .*; export the model in float32'),
        *[({name: rows[name] * np.float32(factors) for name in rows}, {}, given,
           'boxes that are not finite')
          for rows, factors, given in (
              (V8, [[np.nan], [1], [1], [1], *[[1]] * 3], {**THREE, 'head': 'yolov8'}),
              (ROWS, [1, np.nan, 1, 1, 1, 1], {**TWO, 'head': OPEN_ROWS}),
              (OBJECTS, [1, 1, np.nan, *[1] * 5], {**THREE, 'head': 'yolov5'}))],
        (ROWS, {}, {'classes': ['car'], 'head': 'boxes'}, 'class numbers from 0 to 1 for 1 '),
        ({'output0': HALVES}, {}, {**TWO, 'head': OPEN_ROWS}, 'numbers from 0.5 to 1.5 for 2'),
        (EIGHTY, {}, None, 'for its 80 classes; .*classes_file: coco'),
        ({'output0': STEPS[None].astype(np.float32) * 2.5}, ultralytics(3), None,
         'steps of 2.5 .float32., so that no score can lie between the score threshold 0.25'),
        (TURNED, {}, {**THREE, 'head': 'yolov8'}, 'can be an angle .oriented: true'),
        (POSES, {}, {**TWO, 'head': 'boxes'},
         r'51 further .* can be masks: 51 or keypoints: \[17, 3\]'),
        *[({'logits': np.zeros((1, n), np.float32)}, {}, {'classes': [*'abcdefg'[:n]]},
           r'are read .*1x\d.; if a head in') for n in (6, 7)],
        (NOT_DETECTION, ultralytics(3, task='classify'), None, 'task classify'),
        (V8, ultralytics(3, task='pose', kpt_shape=[17, 3]), None, "doesn't say how its outputs"),
        (POSES, ultralytics(2, task='pose', kpt_shape=['a', 3]), None, "'head' is missing"),
        *[(ROWS, {}, {**TWO, 'head': name}, f'for {name} use boxes')
          for name in ('yolov10n', 'yolo26', 'rt-detr')],
    ],
)  # fmt: skip
def test_what_can_t_be_meant_is_refused_at_the_start(
    outputs: Arrays, metadata: Any, manifest: Any, message: str, model: Callable[..., str]
) -> None:
    with pytest.raises(ConfigError, match=message):
        found_by(model(outputs, metadata, manifest))


@pytest.mark.parametrize(
    ('layout', 'metadata', 'shape'),
    [
        ('yolov8', ultralytics(3), ('batch', 7, 'anchors')),
        ('rtdetr', ultralytics(3, head='RTDETRDecoder'), ('batch', 300, 'anchors')),
        ('end to end', ultralytics(2), ('batch', 300, 'anchors')),
        ('yolov5', ultralytics(3), ('batch', 'anchors', 8)),
    ],
)
def test_a_dynamic_model_has_the_size_that_it_was_exported_with_and_its_rows(
    layout: str, metadata: dict[str, str], shape: tuple[Axis, ...], model: Callable[..., str]
) -> None:
    outputs, image = READ[layout][0], (FLOAT, ('batch', 3, 'height', 'width'))
    open_sizes: Any = {'image': image, 'shapes': {next(iter(outputs)): shape}}
    assert len(found_by(model(outputs, metadata, None, **open_sizes))) == 2
    with pytest.raises(ConfigError, match=r'width. is missing; .*model.yaml with file: mine.onnx'):
        load_manifest(model(outputs, {**metadata, 'imgsz': ''}, None, **open_sizes))
    size = {'input': {'width': 320, 'height': 250}}
    with pytest.raises(ConfigError, match=r"'input.height' is 250, but.*are 224 and 256"):
        load_manifest(model(outputs, metadata, size, **open_sizes))


@pytest.mark.parametrize(
    ('said', 'axes'),
    [
        ({'stride': 0}, IMAGES['images'][1]), ({'stride': ['a', None]}, IMAGES['images'][1]),
        ({'stride': []}, IMAGES['images'][1]), ({'imgsz': ['a', 'b']}, IMAGES['images'][1]),
        ({'imgsz': [256.0, 320.0]}, ('batch', 3, 'height', 'width')),
    ],
)  # fmt: skip
def test_a_size_in_metadata_that_is_no_size_is_left_out(
    said: dict[str, Any], axes: tuple[Axis, ...], model: Callable[..., str]
) -> None:
    assert len(found_by(model(V8, ultralytics(3, **said), image=(FLOAT, axes)))) == 2


def _levels(per_level: tuple[int, ...]) -> Arrays:
    return {
        f'o{stride}_{n}': np.zeros((1, n, HEIGHT // stride, WIDTH // stride), np.float32)
        for stride in (8, 16, 32)
        for n in per_level
    }


@pytest.mark.parametrize(
    ('channels', 'kind', 'reg_max'),
    [
        ((64, 3), 'yolov8', 16), ((4, 3), 'yolov8', 1), ((67,), 'yolov8', 16), ((7,), 'yolov8', 1),
        ((4, 1, 3), 'yolox', 0),
    ],
)  # fmt: skip
def test_raw_levels_are_known_by_their_channels(
    channels: tuple[int, ...], kind: str, reg_max: int, model: Callable[..., str]
) -> None:
    manifest = load_manifest(model(_levels(channels), {}, THREE))
    head, network = manifest.head, manifest.input
    assert head.kind == kind and head.options.get('reg_max', 0) == reg_max
    assert (network.bgr, network.high) == ((True, 255) if kind == 'yolox' else (False, 1))


@pytest.mark.parametrize('reg_max', [1, 16])
@pytest.mark.parametrize('split', [True, False])
@pytest.mark.parametrize(
    ('task', 'extra', 'head'),
    [
        ({'task': 'segment'}, 8, {'masks': 8}),
        ({'task': 'pose', 'kpt_shape': [17, 3]}, 51, {'keypoints': (17, 3)}),
        ({'task': 'obb'}, 1, {'oriented': True}),
    ],
)
def test_so_are_those_of_more_than_boxes(
    task: dict[str, Any], extra: int, head: dict[str, Any], split: bool, reg_max: int,
    model: Callable[..., str],
) -> None:  # fmt: skip
    outputs = _levels((4 * reg_max, 3, extra) if split else (4 * reg_max + 3 + extra,))
    if 'masks' in head:
        outputs['prototypes'] = np.zeros((1, extra, 64, 80), np.float32)
    path = model(outputs, ultralytics(3, **task), None)
    found = load_manifest(path).head
    assert {'kind': found.kind, **found.options} == {'kind': 'yolov8', 'reg_max': reg_max, **head}
    found_by(path)


@pytest.mark.parametrize('nhwc', [False, True])
@pytest.mark.parametrize('size', [(640, 384), (96, 64), (64, 64)])
def test_masks_are_known_by_prototypes_smaller_than_their_number(
    size: tuple[int, int], nhwc: bool
) -> None:
    rows, columns = size[1] // 4, size[0] // 4  # an input of 64x64 has 32 prototypes of 16x16
    grid = (1, rows, columns, 32) if nhwc else (1, 32, rows, columns)
    outputs = [('output0', (1, 4 + 3 + 32, sum(cells_of(size)))), ('output1', grid)]
    head = recognise(outputs, size, 3, {'task': 'segment'}).head
    assert head is not None and head['masks'] == 32


@pytest.mark.parametrize(
    ('content', 'what'),
    [
        (b'version https://git-lfs.github.com/spec/v1\noid sha256:0\n', 'Git LFS pointer'),
        (b'PK\x03\x04archive/data.pkl', 'a zip archive.*export it'),
        (constant({'y': np.zeros((1, 5), np.float32)}, IMAGES)[:-40], 'no complete ONNX file'),
        (constant(V8, {}, ultralytics(3)), r'has 0 inputs .*needs one for the picture'),
    ],
    ids=['lfs', 'pt', 'truncated', 'blind'],
)
def test_what_is_no_onnx_file_is_said(content: bytes, what: str, tmp_path: Path) -> None:
    (tmp_path / 'mine.onnx').write_bytes(content)
    with pytest.raises(ConfigError, match=what):
        load_manifest(str(tmp_path / 'mine.onnx'))


@pytest.mark.parametrize(
    'text',
    [
        '\ufeffcar\nperson\n', 'path: x\nnames:\n  0: car\n  1: person\n', '0 car\n1,person',
        '- car\n- person', '{"0": "car", "1": "person"}',
    ],
    ids=['bom', 'data.yaml', 'spaces', 'yaml', 'object'],
)  # fmt: skip
def test_names_in_files_as_people_have_them(
    text: str, model: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / 'names.txt').write_text(text, encoding='utf-8')
    path = model({'output0': table(CORNERS)}, {}, {'classes_file': 'names.txt', 'head': 'boxes'})
    assert load_manifest(path).classes == ('car', 'person')
    classes = load_manifest(model(EIGHTY, {}, {'classes_file': 'coco'})).classes
    assert (len(classes), classes[0], classes[79]) == (80, 'person', 'toothbrush')


def test_a_path_is_what_a_person_means(
    model: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model({'output0': table(CORNERS)}, ultralytics(2, end2end=True), None)
    folder = tmp_path / 'prefix' / 'share' / 'robot'
    folder.mkdir(parents=True)
    (tmp_path / 'mine.onnx').rename(folder / 'mine.onnx')
    monkeypatch.setenv('HOME', str(folder))
    monkeypatch.setenv('MODELS', str(folder))
    monkeypatch.setenv('AMENT_PREFIX_PATH', str(tmp_path / 'prefix'))
    for named in ('~/mine.onnx', '$MODELS/mine.onnx', 'package://robot/mine.onnx', str(folder)):
        assert load_manifest(named).file == folder / 'mine.onnx'
    (tmp_path / 'model.yaml').write_text('file: package://robot/mine.onnx\n')
    assert load_manifest(str(tmp_path)).file == folder / 'mine.onnx'
    with pytest.raises(ConfigError, match="no ROS package 'rowboat'"):
        load_manifest('package://rowboat/mine.onnx')


def test_zc_model_prints_a_manifest_that_says_the_same(
    model: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outputs, said = READ['rtdetr']
    path = model(outputs, {**said, 'comment': 'a\nb: c\x1b[31m'})
    assert main([path]) == 0
    printed = capsys.readouterr().out
    escaped = r'says comment: a\nb: c\x1b[31m'
    for words in ("# output 'output0' 1x300x6 float32", 'says head: RTDETRDecoder', escaped):
        assert words in printed
    (tmp_path / 'again.yaml').write_text(printed)
    again, first = load_manifest(str(tmp_path / 'again.yaml')), load_manifest(path)
    assert (again.head, again.classes, again.input) == (first.head, first.classes, first.input)
    (tmp_path / 'empty').mkdir()
    assert main([str(tmp_path / 'empty')]) == 2
    assert 'has no model.yaml, and no model' in capsys.readouterr().err


def test_zc_model_prints_every_key_of_a_model_yaml(
    model: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = (raw(3).transpose(0, 2, 1) * 100).astype(np.int32)
    values = {
        'input': {
            'colour': 'bgr', 'range': [-3, 255], 'mean': [1], 'std': [1, 2, 3], 'scale': 4.0,
            'zero_point': 7, 'pad': 0,
        },
        'outputs': [{'name': 'output0', 'scale': 0.01, 'zero_point': 1}],
        'max_detections': 7, 'finds': 'cars',
    }  # fmt: skip
    path = model({'output0': rows}, ultralytics(3), values, image=(INT8, (1, 3, HEIGHT, WIDTH)))
    assert main([path]) == 0
    (tmp_path / 'again.yaml').write_text(capsys.readouterr().out)
    again, first = load_manifest(str(tmp_path / 'again.yaml')), load_manifest(path)
    assert replace(again, path=first.path) == replace(first, file=first.file.resolve())
    assert main(['hog']) == 0
