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

"""Writes the trained network as ONNX, its weights stored as float16."""

from __future__ import annotations

import io
from pathlib import Path
import warnings

import numpy as np
import onnx
from onnx import helper, numpy_helper, TensorProto
from road_data import INPUT_HEIGHT, INPUT_WIDTH
from road_network import Decoded, RoadNetwork
import torch

OPSET = 17
INPUT_NAME, OUTPUT_NAME = 'image', 'detections'
SMALLEST_HALVED = 32


def export(network: RoadNetwork, path: Path) -> None:
    """Write ``network`` (evaluation mode, CPU) with its decoding to ``path``; fold batch norms."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        # The legacy exporter warns that it is legacy. The new one needs another package and names
        # every node.
        warnings.simplefilter('ignore')
        torch.onnx.export(
            Decoded(network).eval(),
            (torch.zeros(1, 3, INPUT_HEIGHT, INPUT_WIDTH),),
            buffer,
            opset_version=OPSET,
            input_names=[INPUT_NAME],
            output_names=[OUTPUT_NAME],
            dynamo=False,
        )
    model = onnx.load_from_string(buffer.getvalue())
    _store_as_float16(model.graph)
    model.producer_name, model.producer_version, model.doc_string = 'zc_perception', '', ''
    onnx.checker.check_model(model, full_check=True)
    path.write_bytes(model.SerializeToString(deterministic=True))


def _store_as_float16(graph: onnx.GraphProto) -> None:
    """Store every large float32 constant as float16; a Cast restores it, folded at loading."""
    _constants_to_initializers(graph)
    casts = []
    for tensor in graph.initializer:
        values = numpy_helper.to_array(tensor)
        if values.dtype != np.float32 or values.size < SMALLEST_HALVED:
            continue
        name = tensor.name
        tensor.CopyFrom(numpy_helper.from_array(values.astype(np.float16), f'{name}.h'))
        casts.append(helper.make_node('Cast', [tensor.name], [name], to=TensorProto.FLOAT))
    nodes = [*casts, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    for node in graph.node:
        node.ClearField('name')
        node.ClearField('doc_string')
    del graph.value_info[:]
    _shorten_names(graph)


def _constants_to_initializers(graph: onnx.GraphProto) -> None:
    kept = []
    for node in graph.node:
        if node.op_type == 'Constant':
            tensor = node.attribute[0].t
            tensor.name = node.output[0]
            graph.initializer.append(tensor)
        else:
            kept.append(node)
    del graph.node[:]
    graph.node.extend(kept)


def _shorten_names(graph: onnx.GraphProto) -> None:
    short = {'': '', INPUT_NAME: INPUT_NAME, OUTPUT_NAME: OUTPUT_NAME}
    for tensor in graph.initializer:
        tensor.name = short.setdefault(tensor.name, f't{len(short)}')
    for node in graph.node:
        for names in (node.input, node.output):
            names[:] = [short.setdefault(name, f't{len(short)}') for name in names]
