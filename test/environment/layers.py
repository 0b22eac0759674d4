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
Content hashes that show which part of an environment is out of date.

An environment is a stack of layers (wheels, interface packages, the package itself). A layer's key
covers its own inputs and the key of the layer below, so that a change makes exactly the layers
above it stale.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
import hashlib
import json
import os
from pathlib import Path


@dataclass(frozen=True)
class Layer:
    name: str
    inputs: tuple[Path, ...]
    build: Callable[[], None]


def keys(layers: Sequence[Layer], base: str) -> dict[str, str]:
    """Return each layer's key, bottom first; ``base`` is the key below the first layer."""
    result: dict[str, str] = {}
    for layer in layers:
        digest = hashlib.sha256(base.encode())
        for path in layer.inputs:
            content = path.read_bytes() if path.is_file() else b'missing'
            # With the length, the end of one file can't pass for the beginning of the next.
            digest.update(f'\0{path.name}\0{len(content)}\0'.encode())
            digest.update(content)
        base = result[layer.name] = digest.hexdigest()
    return result


def stale_layers(
    layers: Sequence[Layer], expected: Mapping[str, str], recorded: Mapping[str, str]
) -> list[Layer]:
    """Return the layers to build: the first one whose recorded key differs, and all above it."""
    for number, layer in enumerate(layers):
        if recorded.get(layer.name) != expected[layer.name]:
            return list(layers[number:])
    return []


def read_record(file: Path) -> dict[str, str]:
    try:
        record = json.loads(file.read_text(encoding='utf-8'))
    except (OSError, ValueError):
        return {}
    return (
        {str(name): str(key) for name, key in record.items()} if isinstance(record, dict) else {}
    )


def write_record(file: Path, record: Mapping[str, str]) -> None:
    """Replace the record atomically: an interruption leaves the old one."""
    unfinished = file.with_name(file.name + '.new')
    unfinished.write_text(json.dumps(dict(record), indent=1), encoding='utf-8')
    os.replace(unfinished, file)
