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
Engine ``axl`` of a manifest: a model on the card.

Its result is one buffer that only the manifest describes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from zc_perception.npu.engine_rules import EngineRules, Values
from zc_perception.npu.manifest import OUTPUTS, TensorSpec
from zc_perception.rules import integer, Key, Place

_LARGEST_TENSOR = 1 << 30


class AxlRules(EngineRules):
    """Rules: each output says everything about itself, and the outputs don't overlap."""

    def check_outputs(self, outputs: Sequence[Values] | None, place: Place) -> None:
        if outputs is None:
            raise place.missing(f'a list of at least one tensor for engine {self.name}')
        for index, values in enumerate(outputs):
            for name in ('dtype', 'shape'):
                if name not in values:
                    raise place.item(index).at(name).missing(OUTPUTS.table.keys[name].rule.words)

    def check_tensors(self, tensors: Sequence[TensorSpec], place: Place) -> None:
        for index, tensor in enumerate(tensors):
            if tensor.num_bytes > _LARGEST_TENSOR:
                raise (
                    place.item(index)
                    .at('shape')
                    .refuse(
                        list(tensor.shape),
                        f'one of {_LARGEST_TENSOR} bytes at most, padding included',
                    )
                )
        for first, second in pairwise(sorted(tensors, key=lambda tensor: tensor.offset)):
            if second.offset < first.offset + first.num_bytes:
                where = place.item(tensors.index(second)).at('offset')
                raise where.refuse(
                    second.offset,
                    (
                        f"{first.offset + first.num_bytes} or more, where tensor '{first.name}' "
                        'has ended'
                    ),
                )


AXL = AxlRules(
    'axl',
    needs_file=False,
    keys={'model_id': Key(integer(0, (1 << 32) - 1), 'Number of the model on the card.', 0)},
)
