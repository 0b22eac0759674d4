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
Make the JSON schema of parameter files, with which editors complete and check them.

The schema is made from the nodes' declarations. ``python -m zc_perception.nodes.params.schema
config/perception.schema.json`` writes it; a test fails if that file is out of date. A parameter
file names the schema in its first line:
``# yaml-language-server: $schema=perception.schema.json``.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
import json
from pathlib import Path
import sys
from typing import Any

from zc_perception.nodes.params.verdict import node_kinds
from zc_perception.parameters import EVERY_NODE_SPECS, ParameterSpec

_KEY = 'ros__parameters'
_TYPES = {bool: 'boolean', int: 'integer', float: 'number', str: 'string'}
_EVERY_NODE = {
    spec.name: {'type': _TYPES[type(spec.default)], 'description': spec.description}
    for spec in EVERY_NODE_SPECS
}
# Prefixes of parameters that a node's `SPECS` doesn't list, because the node declares them only
# when it opens its topics or camera. In a file, a prefix is a key with nested keys, or a dot joins
# it to the rest of a parameter's name.
OPEN_ENDED = {
    'qos_overrides': (
        'Quality of service of a topic, such as qos_overrides./image_raw.publisher.depth.'
    ),
    'controls': (
        'Controls of the camera, such as controls.brightness. They exist once the camera is open.'
    ),
}


def parameter_schema(spec: ParameterSpec) -> dict[str, Any]:
    """Return the schema of one parameter's value."""
    when = ' Can change while the node runs.' if spec.dynamic else ''
    unit = f' [{spec.unit}]' if spec.unit else ''
    return {
        'description': spec.description + unit + when,
        'default': spec.default,
        **_value_schema(spec),
    }


def _value_schema(spec: ParameterSpec) -> dict[str, Any]:
    kind = type(spec.default)
    if spec.choices:
        booleans = [text == 'true' for text in spec.choices if text in ('true', 'false')]
        return {'enum': [*spec.choices, *spec.other_choices(), *booleans]}
    text: dict[str, Any] = {'type': 'string'}
    if spec.whole_numbers:
        text = {'anyOf': [text, {'type': 'integer'}]}
    if kind is list:
        return {'type': 'array', 'items': text}
    if kind is str:
        return text
    value: dict[str, Any] = {'type': _TYPES[kind]}
    if spec.low is not None and spec.high is not None:
        value |= {'minimum': spec.low, 'maximum': spec.high}
    if spec.even:
        value['multipleOf'] = 2
    return value if spec.besides is None else {'anyOf': [value, {'enum': [spec.besides]}]}


def _parameters(specs: Iterable[ParameterSpec], open_ended: Sequence[str]) -> dict[str, Any]:
    properties: dict[str, Any] = {spec.name: parameter_schema(spec) for spec in specs}
    properties |= _EVERY_NODE
    properties |= {
        name: {'type': 'object', 'description': OPEN_ENDED[name]} for name in open_ended
    }
    dotted = {f'^{name}\\..+': {'description': OPEN_ENDED[name]} for name in open_ended}
    return {'type': 'object', 'properties': properties, 'patternProperties': dotted}


def _section(parameters: str) -> dict[str, Any]:
    return {
        'type': 'object',
        'required': [_KEY],
        'properties': {_KEY: {'$ref': f'#/$defs/{parameters}'}},
        'additionalProperties': False,
    }


def file_schema() -> dict[str, Any]:
    """Return the schema of a parameter file; it allows sections for other packages' nodes."""
    definitions: dict[str, Any] = {}
    everywhere: dict[str, Any] = {}
    for name, node in node_kinds().items():
        open_ended = ('qos_overrides', *(prefix.rstrip('.') for prefix in node.PREFIXES))
        definitions[name] = {
            'title': f"Parameters of node '{name}'",
            **_parameters(node.SPECS, open_ended),
            'additionalProperties': False,
        }
        for parameter, schema in definitions[name]['properties'].items():
            others = everywhere.setdefault(parameter, [])
            others += [] if schema in others else [schema]
    definitions['all_nodes'] = {
        'title': 'Parameters of all nodes that the section matches, of this package and of others',
        'type': 'object',
        'properties': {
            name: some[0] if len(some) == 1 else {'anyOf': some}
            for name, some in everywhere.items()
        },
    }
    patterns = {f'^(.*/)?{name}$': _section(name) for name in node_kinds()} | {
        r'^(.*/)?\*{1,2}$': {'$ref': '#/$defs/wildcard'}
    }
    below = {'patternProperties': patterns, 'additionalProperties': {'$ref': '#/$defs/names'}}
    definitions['wildcard'] = {
        'type': 'object',
        'properties': {_KEY: {'$ref': '#/$defs/all_nodes'}},
        **below,
    }
    definitions['names'] = {
        'description': "A namespace, or another package's node.",
        'type': 'object',
        'properties': {_KEY: {'type': 'object'}},
        **below,
    }
    return {
        '$schema': 'https://json-schema.org/draft/2020-12/schema',
        'title': 'Parameter file of zc_perception',
        'description': 'Each section sets parameters of nodes: /**/capture is for the node '
        'capture in any namespace, /front/capture only in /front, /** for all nodes. Values of '
        'a later section win over those of an earlier section.',
        'type': 'object',
        **below,
        '$defs': definitions,
    }


def text() -> str:
    """Return the schema of a parameter file as JSON text."""
    return json.dumps(file_schema(), indent=2, ensure_ascii=False) + '\n'


def main(args: Sequence[str] | None = None) -> int:
    """Write the schema to the file given as argument."""
    parser = argparse.ArgumentParser(
        prog='schema', description='Writes the JSON schema of parameter files.'
    )
    parser.add_argument('path', type=Path, help='file to write')
    parser.parse_args(args).path.write_text(text(), encoding='utf-8')
    return 0


if __name__ == '__main__':
    sys.exit(main())
