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
A small process that measures the floors of ``floor.py``: ``python -m bench.floor_worker NAME``.

It imports as little as possible: the floor ``fd_socket`` forks, and a large parent would slow it
down. For the same reason the floor ``guard``, which loads rclpy, runs in another such process.
"""

from __future__ import annotations

from collections.abc import Callable
import gc

from bench import floor
from bench.obeying import answer, commands

# Each function takes the number of frames and the rate in Hz, and returns the latencies in ns and
# the CPU time in s.
FLOORS: dict[str, Callable[[int, float], tuple[list[int], float]]] = {
    'fd_socket': floor.fd_socket,
    'simple_queue': floor.simple_queue,
    'guard': floor.guard,
}


def _measure_floors() -> None:
    for command in commands():
        gc.collect()
        latencies_ns, cpu_s = FLOORS[command['floor']](command['frames'], command['rate_hz'])
        answer({'latencies_ns': latencies_ns, 'cpu_us': cpu_s * 1e6})


if __name__ == '__main__':
    _measure_floors()
