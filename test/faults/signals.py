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

"""SIGKILL and SIGSTOP at random moments: a process ends or hangs, and the others must go on."""

from __future__ import annotations

import os
import signal
import time

from faults import harness
from faults.harness import EVERYBODY, fault, Trial, WITNESS
from faults.holdings import frame_mappings
from faults.stage import FRAMERATE
from memory_link import Forker


@fault('consumers killed with leases', ('a killed consumer costs its own frames only: its '
                                        'leases come back, nobody else misses a frame'),
       bystanders=EVERYBODY)  # fmt: skip
def consumers(trial: Trial) -> None:
    stage = trial.stage
    taken = stage.witness.number('capture: link', 'leases_taken_back')
    kills = trial.times(6, 60)
    with Forker(stage.socket(), 'hold', 2) as victims:
        for _ in range(kills):
            pid = victims.fork()
            if trial.random.random() < 0.8:
                stage.meanwhile(lambda pid=pid: frame_mappings(pid), 'the victim has a frame')
            time.sleep(trial.random.uniform(0.0, 0.08))
            os.kill(pid, signal.SIGKILL)
    stage.holders()
    back = stage.witness.number('capture: link', 'leases_taken_back') - taken
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
        pid = stage.inference.pid
        stage.meanwhile(lambda: not frame_mappings(pid), 'nor in the inference node')  # noqa: B023
        began = time.monotonic()
        stage.start('capture')
        ready = time.monotonic()
        stage.witness.expect(1, 1)
        trial.worst('from ready to the first detection, s', time.monotonic() - ready)
        trial.worst('from the start to ready, s', ready - began)


# One job in flight and one frame that waits for it.
_ITS_SLOTS = 2
# Frames of before the stop: one in work, one fetched, one waiting. Later ones are new.
_MOST_OLD = 3


@fault('inference stopped', ('a consumer that hangs holds its window and nothing else; when it '
                             'goes on it detects on the newest frames'),
       bystanders=(WITNESS,))  # fmt: skip
def inference_stops(trial: Trial) -> None:
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
        came, least = witness.received - received, harness.LEAST_RATE * FRAMERATE * lasted
        held = sum(count for name, count in stage.held().items() if name.startswith('inference'))
        trial.worst('slots that it held', float(held))
        slots = f'{held} slots held, {_ITS_SLOTS} are its own'
        trial.must(0 < held <= _ITS_SLOTS, f'windows that were not kept: {slots}')
        detected_ns, newest_ns = witness.last_detection_ns, witness.last_stamp_ns
        share = f'less than {harness.LEAST_RATE:.0%}'
        trial.must(came >= least, f'cameras that published {share} while a consumer hung')
        stage.inference.send(signal.SIGCONT)
        stage.meanwhile(
            lambda newest_ns=newest_ns: witness.last_detection_ns > newest_ns,
            'a detection of a new frame',
        )
        stamps = list(witness.detection_stamps)
        old = sum(detected_ns < stamp <= newest_ns for stamp in stamps)
        most = f'{old} old frames were run, at most {_MOST_OLD} may be'
        trial.must(old <= _MOST_OLD, f'hangs after which {most}')
        trial.worst('old frames that were run after it', float(old))


@fault(
    'capture stopped',
    (
        'a camera process that hangs makes nobody fall to messages or give up; frames go on where '
        'they stopped'
    ),
)
def capture_stops(trial: Trial) -> None:
    stage, witness = trial.stage, trial.stage.witness
    for _ in range(trial.times(1, 16)):
        time.sleep(trial.random.uniform(0.0, 0.1))
        stage.capture.send(signal.SIGSTOP)
        time.sleep(trial.random.uniform(0.5, trial.times(1, 5)))
        trial.must(witness.frames.statistics().rung == 'shared_memory', 'falls from shared memory')
        stage.capture.send(signal.SIGCONT)
        witness.expect(3, 2)
        stage.read_logs()


@fault(
    'everybody stopped',
    'after all processes stood still at once, as a suspended machine does, all go on',
)
def everybody_stops(trial: Trial) -> None:
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
