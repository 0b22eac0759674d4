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
What a manifest has to say for one engine.

The accelerator that runs the engine declares it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zc_perception.rules import Key, Place

Values = Mapping[str, Any]


class EngineRules:
    """
    An engine without rules of its own: any input, any outputs, with or without a file.

    Derive from it for an engine with rules.

    :param name: the value of key ``engine``.
    :param file: what key ``file`` names, in a few words.
    :param files: patterns of the names of models that it runs without a manifest.
    :param needs_file: whether there has to be one; ``None``: it may be left out.
    :param takes_frames: whether it can run on a frame as it is, at the frame's size (``resize:
        none``).
    :param keys: a manifest's keys that only this engine has, each a variant's own; their values
        are in ``ModelManifest.own``.
    """

    def __init__(
        self,
        name: str,
        *,
        file: str = '',
        files: Sequence[str] = (),
        needs_file: bool | None = None,
        takes_frames: bool = True,
        keys: Mapping[str, Key] | None = None,
    ) -> None:
        self.name, self.file, self.files, self.needs_file = name, file, files, needs_file
        self.takes_frames, self.keys = takes_frames, keys or {}

    def input_size(self, given: Values, file: Path | None, place: Place) -> tuple[int, int] | None:
        """
        Return the input's width and height if something other than the manifest tells them.

        ``None``: the manifest has to say them.

        :param given: the keys of ``input`` that are there, each checked by itself.
        :param file: the model's file, if it is there.
        :param place: of ``input``.
        :raises ConfigError: the engine takes no such input, or the file contradicts the manifest.
        """
        if given.get('resize') != 'none':
            return None
        if not self.takes_frames:
            raise place.at('resize').refuse(
                'none', f'one of letterbox, stretch for engine {self.name}'
            )
        return 0, 0

    def check_outputs(self, outputs: Sequence[Values] | None, place: Place) -> None:
        """
        Check the entries of ``outputs``; ``None``: there are none.

        Each entry has already been checked by itself.

        :raises ConfigError: something is missing that the engine needs.
        """

    def check_tensors(self, tensors: Sequence[Any], place: Place) -> None:
        """
        Check the tensors that the outputs became.

        :param tensors: each a :class:`~zc_perception.npu.manifest.TensorSpec`.
        :raises ConfigError: they can't be.
        """
