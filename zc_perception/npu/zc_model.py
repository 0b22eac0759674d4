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
``zc_model``: print a model file's inputs, outputs and head, and whether the model runs.

The program also prints a manifest that you can complete. The program needs no ROS.
"""

from __future__ import annotations

from collections.abc import Sequence
import sys

from zc_perception.terminal import ending_quietly, put

TYPE_CHECKING = False  # only type checkers take this for true; importing typing would be slow
if TYPE_CHECKING:
    import argparse  # noqa: I300

    from zc_perception.npu.manifest import ModelInput, ModelManifest, TensorSpec
    from zc_perception.programs import OptionParser


def main(args: Sequence[str] | None = None) -> int:
    """Run ``zc_model``; return the exit status, which is 0 if the model runs."""
    with ending_quietly():
        from zc_perception.programs import start

        return start(_parser(), _run, args)


def _parser() -> OptionParser:
    from zc_perception.programs import OptionParser

    parser = OptionParser(
        'zc_model',
        (
            "Prints a model's metadata, inputs and outputs, runs it once on a blank picture, and "
            'prints a model.yaml to start from.'
        ),
        ['zc_model yolo11n.onnx', 'zc_model yolo11n_axelera_model/', 'zc_model road'],
        usage='[options] MODEL',
        after='Exit code: 0, or 2 if the model cannot be used; then the reason is printed.',
    )
    parser.main.add_argument(
        'model', metavar='MODEL', help='an ONNX file, a folder, a model.yaml or a shipped model'
    )
    parser.main.add_argument(
        '--accelerator', default='auto', help="auto (default), or an accelerator's name"
    )
    return parser


def _run(options: argparse.Namespace) -> int:
    from zc_perception.errors import printable
    from zc_perception.memory.ledger import CopyLedger
    from zc_perception.npu.manifest import find_manifest, load_manifest
    from zc_perception.npu.model_file import facts_of
    from zc_perception.npu.selection import open_accelerator

    path = find_manifest(options.model)
    if path.suffix.lower() not in ('.yaml', '.yml'):
        facts = facts_of(path)
        for name, value in facts.said.items():
            _say(printable(f'# {path.name} says {name}: {value!s:.200}'))
        for what, tensors in (('input', facts.inputs), ('output', facts.outputs)):
            for tensor in tensors:
                _say(printable(f'# {what} {tensor} {tensor.dtype}'))
    manifest = load_manifest(options.model)
    selected = open_accelerator(options.accelerator, manifest, {}, CopyLedger())
    try:
        capabilities = selected.accelerator.capabilities()
        _say(f'# the model runs on accelerator {capabilities.name} ({capabilities.device})')
    finally:
        selected.accelerator.close()
    _say(manifest_text(selected.manifest))
    return 0


def _say(text: str) -> None:
    put(text, sys.stdout)


def manifest_text(manifest: ModelManifest) -> str:
    """Return the text of a ``model.yaml`` with the values of *manifest*."""
    import yaml

    head, outputs = manifest.head, [_output(tensor) for tensor in manifest.tensors]
    values = {
        'name': manifest.name,
        'engine': manifest.engine,
        **({} if manifest.file is None else {'file': str(manifest.file.resolve())}),
        **{key: value for key, value in manifest.own.items() if value is not None},
        'input': _input(manifest.input),
        **({'outputs': outputs} if outputs else {}),
        'head': {'kind': head.kind, **{k: _listed(v) for k, v in head.options.items()}},
        'classes': list(manifest.classes),
        'score_threshold': manifest.score_threshold,
        'nms_threshold': manifest.nms_threshold,
        'max_detections': manifest.max_detections,
        **({'finds': manifest.finds} if manifest.finds else {}),
    }
    return yaml.safe_dump(values, default_flow_style=None, sort_keys=False, width=100).rstrip()


def _input(network: ModelInput) -> dict[str, object]:
    from zc_perception.npu.manifest import INPUT

    values = {
        **({'width': network.width, 'height': network.height} if network.width else {}),
        'resize': network.resize,
        'layout': network.layout,
        'dtype': network.dtype,
        'colour': 'bgr' if network.bgr else 'grey' if network.grey else 'rgb',
        'range': [network.low, network.high],
        'mean': list(network.mean),
        'std': list(network.std),
        'scale': None if network.scale == 1 and network.dtype != 'int8' else network.scale,
        'zero_point': network.zero_point,
        'pad': network.pad,
    }
    return {k: v for k, v in values.items() if k == 'resize' or v != INPUT.keys[k].default}


def _output(tensor: TensorSpec) -> dict[str, object]:
    from zc_perception.npu.manifest import OUTPUTS

    values = {name: _listed(value) for name, value in vars(tensor).items() if value}
    values['scale'] = tensor.scale[0] if len(tensor.scale) == 1 else list(tensor.scale)
    return {k: v for k, v in values.items() if v != OUTPUTS.table.keys[k].default}


def _listed(value: object) -> object:
    return [_listed(v) for v in value] if isinstance(value, tuple) else value
