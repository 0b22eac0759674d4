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

"""SIGSTOP: one process hangs, and the other processes must go on."""

from __future__ import annotations

import signal
import time

from faults import accounts
from faults.accounts import WITNESS
from faults.harness import fault, Trial
from faults.stage import FRAMERATE

# One job in flight and one frame that waits for it.
_ITS_SLOTS = 2
# Frames of before the stop: one in work, one fetched, one waiting. Later ones are new.
_MOST_OLD = 3


@fault('inference stopped', ('a consumer that hangs holds its window and nothing else; when it '
                             'goes on it detects on the newest frames'),
       bystanders=(WITNESS,))  # fmt: skip
def inference(trial: Trial) -> None:
    stage, witness = trial.stage, trial.stage.witness
    for _ in range(trial.times(1, 20)):
        time.sleep(trial.random.uniform(0.0, 0.1))
        stage.inference.send(signal.SIGSTOP)
        received, began, stalled = witness.received, time.monotonic(), witness.stalled_s()
        while time.monotonic() - began < trial.times(3, 4):
            stage.read_logs()
            time.sleep(0.05)
        stage.meanwhile(lambda: witness.received > received, 'frames meanwhile')  # noqa: B023
        lasted = time.monotonic() - began - (witness.stalled_s() - stalled)
        came, least = witness.received - received, accounts.LEAST_RATE * FRAMERATE * lasted
        held = sum(count for name, count in stage.held().items() if name.startswith('inference'))
        trial.worst('slots that it held', float(held))
        trial.must(
            0 < held <= _ITS_SLOTS,
            f'windows that were not kept: {held} slots held, {_ITS_SLOTS} are its own',
        )
        detected_ns, newest_ns = witness.last_detection_ns, witness.last_stamp_ns
        trial.must(
            came >= least,
            f'cameras that published less than {accounts.LEAST_RATE:.0%} while a consumer hung',
        )
        stage.inference.send(signal.SIGCONT)
        stage.meanwhile(
            lambda newest_ns=newest_ns: witness.last_detection_ns > newest_ns,
            'a detection of a new frame',
        )
        old = witness.detections_of(detected_ns + 1, newest_ns)
        trial.must(
            old <= _MOST_OLD,
            f'hangs after which {old} old frames were run, at most {_MOST_OLD} may be',
        )
        trial.worst('old frames that were run after it', float(old))


@fault(
    'capture stopped',
    (
        'a camera process that hangs makes nobody fall to messages or give up; frames go on where '
        'they stopped'
    ),
)
def capture(trial: Trial) -> None:
    stage, witness = trial.stage, trial.stage.witness
    for _ in range(trial.times(1, 16)):
        time.sleep(trial.random.uniform(0.0, 0.1))
        stage.capture.send(signal.SIGSTOP)
        time.sleep(trial.random.uniform(0.5, trial.times(1, 5)))
        assert witness.frames is not None
        trial.must(witness.frames.statistics().rung == 'shared_memory', 'falls from shared memory')
        stage.capture.send(signal.SIGCONT)
        witness.expect(3, 2)
        stage.read_logs()


@fault(
    'everybody stopped',
    'after all processes stood still at once, as a suspended machine does, all go on',
)
def everybody(trial: Trial) -> None:
    stage = trial.stage
    programs = [stage.capture, stage.inference]
    for _ in range(trial.times(1, 6)):
        for program in trial.random.sample(programs, 2):
            program.send(signal.SIGSTOP)
        time.sleep(trial.random.uniform(0.5, trial.times(1, 4)))
        for program in trial.random.sample(programs, 2):
            program.send(signal.SIGCONT)
        stage.witness.expect(3, 2)
        stage.read_logs()
