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

"""SIGKILL at random moments to processes that hold leases; the other processes must go on."""

from __future__ import annotations

import os
import signal
import time

from faults.accounts import WITNESS
from faults.harness import EVERYBODY, fault, Trial
from faults.holdings import frame_mappings
from memory_link import Forker


def served(pid: int) -> bool:
    return frame_mappings(pid) > 0


@fault('consumers killed with leases', ('a killed consumer costs its own frames only: its '
                                        'leases come back, nobody else misses a frame'),
       bystanders=EVERYBODY)  # fmt: skip
def consumers(trial: Trial) -> None:
    stage = trial.stage
    taken = int(stage.witness.values('capture: link').get('leases_taken_back', '0'))
    kills = trial.times(6, 60)
    with Forker(stage.socket(), 'hold', 2) as victims:
        for _ in range(kills):
            pid = victims.fork()
            if trial.random.random() < 0.8:
                stage.meanwhile(lambda pid=pid: served(pid), 'the victim has a frame')
            time.sleep(trial.random.uniform(0.0, 0.08))
            os.kill(pid, signal.SIGKILL)
    stage.holders()
    back = int(stage.witness.values('capture: link').get('leases_taken_back', '0')) - taken
    trial.note('kills', kills)
    trial.note('leases taken back', back)
    trial.must(back >= kills // 3, 'kills that hit no lease: the fault did not happen')


@fault('inference killed', ('a killed inference node costs the camera nothing; its successor '
                            'detects again by itself'),
       bystanders=(WITNESS,))  # fmt: skip
def inference(trial: Trial) -> None:
    stage = trial.stage
    for _ in range(trial.times(1, 6)):
        time.sleep(trial.random.uniform(0.0, 0.3))
        stage.inference.kill()
        began = time.monotonic()
        stage.start('inference')
        stage.witness.expect(1, 1)
        trial.worst('from the start to the first detection, s', time.monotonic() - began)
        stage.read_logs()


@fault(
    'capture killed',
    (
        'consumers of a killed camera process find its successor; nothing of the old buffers '
        'stays, no frame is converted'
    ),
)
def capture(trial: Trial) -> None:
    stage = trial.stage
    for _ in range(trial.times(1, 6)):
        time.sleep(trial.random.uniform(0.0, 0.3))
        stage.read_logs()
        stage.capture.kill()
        stage.meanwhile(lambda: not frame_mappings(os.getpid()), 'nothing of it is mapped here')
        stage.meanwhile(
            lambda: not frame_mappings(stage.inference.pid),
            'nothing of it is mapped in the inference node',
        )
        began = time.monotonic()
        stage.start('capture')
        ready = time.monotonic()
        stage.witness.expect(1, 1)
        trial.worst('from ready to the first detection, s', time.monotonic() - ready)
        trial.worst('from the start to ready, s', ready - began)
