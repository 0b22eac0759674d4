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

1. :mod:`~zc_perception.nodes.perception_node`: the base class of all nodes, and a node's states.
2. :mod:`~zc_perception.nodes.capture` and :mod:`~zc_perception.nodes.inference`: the nodes of a
   camera and of an accelerator. Their parameters are in :mod:`~zc_perception.nodes.declarations`.
3. :mod:`~zc_perception.nodes.perception`: both nodes with an overlay in one process, for one
   camera, several, or a stereo pair.
4. :mod:`~zc_perception.nodes.main`: the console scripts. Their options are in
   :mod:`~zc_perception.nodes.command_lines`; :mod:`~zc_perception.nodes.process` runs nodes.

``params/`` handles parameters; ``launching`` has the functions that launch files share. This
module imports almost nothing, so that :data:`STARTUP` can record a program's start from its
beginning.
"""

from __future__ import annotations

import time


class Startup:
    """Records when each stage of the program's start was first reached."""

    def __init__(self) -> None:
        self._reached: dict[str, int] = {}

    def reached(self, stage: str) -> None:
        """Record the present time for a stage, unless it was reached before."""
        self._reached.setdefault(stage, time.monotonic_ns())

    def facts(self) -> dict[str, int]:
        """Return each stage's time, in ns of CLOCK_MONOTONIC, in the order of the stages."""
        return dict(self._reached)


STARTUP = Startup()
"""The stages that this process has reached; empty in programs that don't run nodes."""
