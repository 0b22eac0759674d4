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

"""The benchmark's reference measurements run the reference code unmodified."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
import subprocess
import sys

from bench import floor
from bench.link import FLOOR_WORKER

REFERENCE = '3dc86bee80daf792ac5710b47d6bef8138636708782e56285833cade591e9774'


def test_it_is_the_reference_byte_for_byte() -> None:
    assert floor.__file__ is not None
    assert hashlib.sha256(Path(floor.__file__).read_bytes()).hexdigest() == REFERENCE


def test_its_process_loads_nothing_that_a_fork_would_have_to_copy() -> None:
    slow = '{"numpy", "rclpy", "cv2", "yaml"}'
    code = f'import sys, {FLOOR_WORKER}; print({slow} & {{*sys.modules}})'
    command = [sys.executable, '-c', code]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == 'set()'


def test_it_answers_with_latencies_and_cpu_time() -> None:
    commands = [
        {'floor': name, 'frames': 5, 'rate_hz': 0.0} for name in ('fd_socket', 'simple_queue')
    ]
    done = subprocess.run(
        [sys.executable, '-m', FLOOR_WORKER, 'floors'],
        input=''.join(json.dumps(command) + '\n' for command in commands),
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [len(answer['latencies_ns']) for answer in answers] == [5, 5]
    assert all(ns > 0 for answer in answers for ns in answer['latencies_ns'])
