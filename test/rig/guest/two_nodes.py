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
Start ``capture_node`` and ``inference_node`` as separate processes, until SIGINT.

    python two_nodes.py PARAMETERS.yaml
"""

from __future__ import annotations

from pathlib import Path
import signal
import subprocess
import sys
from types import FrameType

PROGRAMS = ('capture_node', 'inference_node')


def main() -> int:
    folder = Path(sys.executable).parent
    arguments = ['--ros-args', '--params-file', sys.argv[1]]
    nodes = [
        subprocess.Popen(
            [str(folder / name), *arguments], stdin=subprocess.DEVNULL, start_new_session=True
        )
        for name in PROGRAMS
    ]

    def pass_on(number: int, frame: FrameType | None) -> None:
        for node in nodes:
            node.send_signal(signal.SIGINT)

    signal.signal(signal.SIGINT, pass_on)
    signal.signal(signal.SIGTERM, pass_on)
    return max(abs(node.wait()) for node in nodes)


if __name__ == '__main__':
    sys.exit(main())
