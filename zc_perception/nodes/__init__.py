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
The ROS nodes, their parameters, and the programs that run them.

Read in this order:

1. :mod:`~zc_perception.nodes.perception_node`: what all nodes have in common, and the states that
   a node lives through.
2. :mod:`~zc_perception.nodes.capture` and :mod:`~zc_perception.nodes.inference`: a camera's node
   and an accelerator's. Each has its parameters at the top.
3. :mod:`~zc_perception.nodes.perception`: both nodes with an overlay in one process, for one
   camera, several, or a pair.
4. :mod:`~zc_perception.nodes.main`: the console scripts. Their options are in
   :mod:`~zc_perception.nodes.command_lines`; :mod:`~zc_perception.nodes.process` runs nodes.

``params/`` has everything about parameters, ``launching`` the code that launch files share.
:data:`STARTUP` says when a program has reached each stage of its start. This file imports almost
nothing.
"""

from __future__ import annotations

import time


class Startup:
    """The time at which each stage of the start was first reached, in ns of CLOCK_MONOTONIC."""

    def __init__(self) -> None:
        self._reached: dict[str, int] = {}

    def reached(self, stage: str) -> None:
        """Note that a stage was reached now."""
        self._reached.setdefault(stage, time.monotonic_ns())

    def facts(self) -> dict[str, int]:
        """Return the stages in the order in which they were reached; empty in other programs."""
        return dict(self._reached)


STARTUP = Startup()
"""The process's."""
