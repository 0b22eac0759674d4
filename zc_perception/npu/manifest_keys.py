"""The keys of ``model.yaml``. The reader checks a file by this table; ``models/model.schema.json`` is this table for other programs."""

from __future__ import annotations

import json
from collections.abc import Iterable

from zc_perception.detection.heads import HEADS
from zc_perception.npu.manifest_rules import (
    Key,
    Schema,
    Table,
    TableList,
    WordOrTable,
    array,
    boolean,
    choice,
    either,
    integer,
    number,
    text,
)

ENGINES = ('onnx', 'opencv_hog', 'axl', 'axruntime')
DTYPES = ('int8', 'uint8', 'int16', 'int32', 'float32')
SCHEMA_NAME = 'model.schema.json'
_LARGEST_SIDE = 1 << 14
_INT32 = (-(1 << 31), (1 << 31) - 1)

_SCALE = either(number(above=0), array('numbers', number(above=0), 1), 'a number above 0, or one for each element of the last axis')
_PAIR = array('a pair', integer(0, _LARGEST_SIDE), 2, 2)
_ANCHOR = array('a pair', number(above=0), 2, 2)
_PRIOR = array('four numbers', number(), 4, 4)

INPUT = Table(
    {
        'width': Key(integer(2, _LARGEST_SIDE), 'Width of the network input in pixels, without padding.'),
        'height': Key(integer(2, _LARGEST_SIDE), 'Height of the network input in pixels, without padding.'),
        'layout': Key(choice('nchw', 'nhwc'), 'Order of the axes.', 'nchw'),
        'dtype': Key(choice('float32', 'uint8', 'int8'), 'Type of the values.', 'float32'),
        'colour': Key(choice('rgb', 'bgr'), 'Order of the channels.', 'rgb'),
        'range': Key(
            array('two different numbers, the tensor values of samples 0 and 255', number(), 2, 2, different=True),
            'Real values of samples 0 and 255.',
            [0.0, 1.0],
        ),
        'scale': Key(number(above=0), 'Types other than float32: value = (raw - zero_point) * scale.'),
        'zero_point': Key(integer(*_INT32), 'Types other than float32: the raw value of 0.', 0),
        'resize': Key(
            choice('letterbox', 'stretch', 'none'),
            'How a frame becomes that size: aspect kept and borders filled, or not kept; none: the model runs on the frame itself.',
            'letterbox',
        ),
        'pad': Key(integer(0, 255), 'Sample value of the borders of a letterbox.', 114),
    }
)
OUTPUTS = TableList(
    Table(
        {
            'name': Key(text('a name'), 'Name of the tensor.'),
            'layout': Key(choice('nchw', 'nhwc'), 'Order of the axes, if they have one.'),
            'dtype': Key(choice(*DTYPES), 'Type of the values.'),
            'shape': Key(array('a list of positive sizes', integer(1, 1 << 30), 1), 'Sizes without padding.'),
            'offset': Key(integer(0, 1 << 30), 'Bytes from the start of the result buffer.', 0),
            'scale': Key(_SCALE, 'value = (raw - zero_point) * scale; one, or one for each element of the last axis.', 1.0),
            'zero_point': Key(integer(*_INT32), 'The raw value of 0.', 0),
            'padding': Key(
                array('a list with two numbers for each axis, elements before and after', _PAIR, 1),
                'Elements before and after each axis in the result buffer.',
            ),
        },
        needed=('name',),
    ),
    'a list of at least one tensor',
)
# Every option of HeadSpec, but for what the manifest says elsewhere.
HEAD = Table(
    {
        'kind': Key(choice(*HEADS), 'How the outputs are read.'),
        'strides': Key(
            array('a list of integers from 1 to 1024', integer(1, 1024), 1), 'Input pixels per cell of each level.', [8, 16, 32]
        ),
        'anchors': Key(
            array('for each level a list of width and height in pixels', array('a list of pairs', _ANCHOR, 1), 1),
            'yolov5, ssd: for each level its anchors, width and height in input pixels.',
        ),
        'reg_max': Key(integer(1, 64), 'yolov8: bins of the distribution of each distance; 1: distances are given directly.', 16),
        'sigmoid': Key(boolean(), 'Whether the host has to apply it to scores; left out: as this kind of head is usually exported.'),
        'softmax': Key(boolean(), 'ssd: scores are logits of one softmax over all classes.', False),
        'class_agnostic': Key(boolean(), 'One suppression for all classes instead of one for each.', False),
        'variances': Key(array('two numbers above 0', number(above=0), 2, 2), 'ssd: centre and size variances.', [0.1, 0.2]),
        'background': Key(integer(-1, 1 << 16), 'ssd: index of the background class among the scores; -1: there is none.', 0),
        'priors': Key(array('a list of four numbers each', _PRIOR), 'ssd: cx, cy, w, h of each prior, relative to the input.'),
        'box_order': Key(choice('xyxy', 'yxyx'), 'ssd, boxes: which axis comes first in corners and deltas.', 'xyxy'),
        'coordinates': Key(choice('source', 'input', 'relative'), 'ssd, boxes: unit of corners; left out: as usual for the kind.'),
        'suppressed': Key(boolean(), 'boxes: whether the model has removed duplicates already.', True),
    },
    needed=('kind',),
)
# What a variant may change.
_VARIANT_KEYS = {
    'engine': Key(choice(*ENGINES), 'What runs the model.', 'onnx'),
    'file': Key(
        text("the weights' file name, relative to the manifest"), "onnx: the weights; axruntime: the model.json of Voyager's compiler."
    ),
    'model_id': Key(integer(0, (1 << 32) - 1), 'axl: number of the model on the card.', 0),
    'input': Key(INPUT, 'What the network takes (axruntime: layout, type, scale and zero point are those of the compiled model).'),
    'outputs': Key(OUTPUTS, 'What the network yields: needed for axl; for others only what their own files leave open.'),
    'head': Key(WordOrTable(choice(*HEADS), HEAD), 'How the outputs are read: the kind of head, or a mapping with its options.'),
    'classes': Key(
        array('a list of at least one class name', text('a name'), 1), 'Names of the classes, in the order of the scores, no background.'
    ),
    'classes_file': Key(text('the name of a text file with one class per line, relative to the manifest'), 'In place of classes.'),
    'score_threshold': Key(number(0.0, 1.0), 'Detections below are dropped.', 0.25),
    'nms_threshold': Key(number(0.0, 1.0), 'IoU above which the weaker of two boxes is dropped.', 0.45),
    'max_detections': Key(integer(1, 10000), 'At most so many per frame.', 300),
}
_ELSEWHERE = {name: 'head' for name in HEAD.keys if name != 'kind'} | {name: 'input' for name in INPUT.keys if name not in ('scale',)}
VARIANT = Table(_VARIANT_KEYS, elsewhere=_ELSEWHERE)
MANIFEST = Table(
    {
        'name': Key(text('a name'), "The model's name; left out: the folder's."),
        **_VARIANT_KEYS,
        'licence': Key(text('the name of a licence', empty=True), 'Of weights and training data.'),
        'variants': Key(
            TableList(VARIANT, 'a list of at least one mapping'),
            'The same model for other engines: each entry replaces keys of the top level, and has its own file, model_id and outputs.',
        ),
    },
    sets=(('head', 'classes'), ('head', 'classes_file'), ('variants',)),
    elsewhere=_ELSEWHERE,
)


def _with_references(table: Table, names: Iterable[str]) -> Schema:
    schema = table.schema()
    for name in names:
        schema['properties'][name] = {'$ref': f'#/$defs/{name}', 'description': table.keys[name].description}
    return schema


def manifest_schema() -> Schema:
    """``model.yaml`` as a JSON schema, draft 2020-12."""
    shared = ('input', 'outputs', 'head', 'classes')
    schema = _with_references(MANIFEST, shared)
    variants = schema['properties']['variants']
    schema['properties']['variants'] = {**variants, 'items': _with_references(VARIANT, shared)}
    return {
        '$schema': 'https://json-schema.org/draft/2020-12/schema',
        'title': 'zc_perception model.yaml',
        'description': 'What a model takes, what it yields, how to read it. Files are relative to the manifest.',
        **schema,
        '$defs': {name: MANIFEST.keys[name].rule.schema() for name in shared},
    }


def schema_text() -> str:
    """Content of ``models/model.schema.json``."""
    return json.dumps(manifest_schema(), indent=1) + '\n'
