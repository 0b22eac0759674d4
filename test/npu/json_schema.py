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
JSON Schema, draft 2020-12: the keywords that this repository's schemas use.

Written from the specification alone. A schema with any other keyword is refused, so that none is
ignored. NaN and infinity are no JSON, and match no schema of a number.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
import math
from operator import ge, gt, le
import re
from typing import Any

ANNOTATIONS = {'$schema', '$defs', 'title', 'description', 'default'}
KINDS = {'object': dict, 'array': list, 'string': str, 'boolean': bool, 'null': type(None)}
HOLDS = {'minimum': ge, 'minLength': ge, 'minItems': ge, 'maximum': le, 'maxItems': le}
HOLDS['exclusiveMinimum'] = gt


def _is(value: Any, kind: str) -> bool:
    if kind in KINDS:
        return isinstance(value, KINDS[kind])
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and math.isfinite(value) and (kind == 'number' or value == int(value))


def _equal(one: Any, other: Any) -> bool:
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def conforms(value: Any, schema: Mapping[str, Any], root: Mapping[str, Any] | None = None) -> bool:
    """Return whether *value* matches; NotImplementedError for an unsupported keyword."""
    root = schema if root is None else root
    return all(_keyword(name, operand, value, schema, root) for name, operand in schema.items())


def _keyword(
    name: str, operand: Any, value: Any, schema: Mapping[str, Any], root: Mapping[str, Any]
) -> bool:
    number = _is(value, 'number')
    array, table = isinstance(value, list), isinstance(value, dict)
    match name:
        case 'type':
            kinds = [operand] if isinstance(operand, str) else operand
            return any(_is(value, kind) for kind in kinds)
        case 'enum':
            return any(_equal(value, option) for option in operand)
        case 'multipleOf':
            return not number or value % operand == 0
        case 'minimum' | 'maximum' | 'exclusiveMinimum':
            return not number or HOLDS[name](value, operand)
        case 'minLength' | 'minItems' | 'maxItems':
            other_kind = not isinstance(value, str if name == 'minLength' else list)
            return other_kind or HOLDS[name](len(value), operand)
        case 'uniqueItems':
            pairs = combinations(value, 2) if array and operand else ()
            return not any(_equal(one, other) for one, other in pairs)
        case 'items':
            return not array or all(conforms(item, operand, root) for item in value)
        case 'required':
            return not table or all(key in value for key in operand)
        case 'properties':
            known = set(operand) & set(value) if table else ()
            return all(conforms(value[key], operand[key], root) for key in known)
        case 'patternProperties':
            return not table or all(
                conforms(value[key], rule, root)
                for pattern, rule in operand.items()
                for key in value
                if re.search(pattern, key)
            )
        case 'additionalProperties':
            patterns = schema.get('patternProperties', ())
            others = set(value) - set(schema.get('properties', ())) if table else set()
            others -= {key for key in others if any(re.search(each, key) for each in patterns)}
            if operand is False:
                return not others
            return all(conforms(value[key], operand, root) for key in others)
        case 'anyOf':
            return any(conforms(value, option, root) for option in operand)
        case '$ref':
            target: Any = root
            for step in operand.removeprefix('#/').split('/'):
                target = target[step]
            return conforms(value, target, root)
    if name in ANNOTATIONS:
        return True
    raise NotImplementedError(f"keyword '{name}'")
