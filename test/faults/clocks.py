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
The system's clock is set, forwards and back, while frames flow.

It is set for all processes at once, also for the witness, as on a real machine.

``python clocks.py FOLDER DOMAIN SEED short|long`` is that machine: run with the clock that can be
set, it prints its outcome as JSON.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
import shutil
import struct
import subprocess
import sys

if __name__ == '__main__':
    sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from faults.harness import EVERYBODY, Fault, fault, run_fault, Trial
from faults.stage import Stage

SOURCE = Path(__file__).with_name('clock_double.c')
STEPS_S = (0.5, -0.5, 3600.0, -7200.0, 86400.0 * 365, 0.0)
_CLOCK = 'FAULT_CLOCK'


def steps(trial: Trial) -> None:
    """Where the clock can be set."""
    stage, witness = trial.stage, trial.stage.witness
    steps_s = STEPS_S[1:4] if trial.short else STEPS_S * 3
    with Path(os.environ[_CLOCK]).open('r+b', buffering=0) as clock:
        for step in steps_s:
            clock.seek(0)
            clock.write(struct.pack('=q', round(step * 1e9)))
            witness.expect(20, 10)
            stage.read_logs()
    stage.meanwhile(
        lambda: int(witness.values('capture: clock').get('clock_steps', '0')) >= len(steps_s),
        'steps are counted',
    )
    trial.note('steps', len(steps_s))
    trial.note('said', witness.text('capture: clock'))


@fault('steps of the clock', ('whatever the clock is set to, stamps only increase, no frame is '
                              'lost, diagnostics say so'),
       staged=False, long_only=True, needs='gcc')  # fmt: skip
def machine(trial: Trial) -> None:
    if shutil.which('gcc') is None:
        trial.absent('there is no gcc, which makes the clock that can be set')
    library, clock = trial.folder / 'clock.so', trial.folder / 'clock'
    subprocess.run(
        ['gcc', '-shared', '-fPIC', '-O1', '-Wall', '-Werror', '-o', library, SOURCE, '-ldl'],
        check=True,
        capture_output=True,
    )
    clock.write_bytes(bytes(8))
    arguments = [
        str(trial.folder),
        str(trial.domain),
        str(trial.random.randrange(1 << 30)),
        'short' if trial.short else 'long',
    ]
    done = subprocess.run(
        [sys.executable, __file__, *arguments],
        env=os.environ | {'LD_PRELOAD': str(library), _CLOCK: str(clock)},
        capture_output=True,
        text=True,
        timeout=300.0,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    trial.outcome.frames_in, trial.outcome.frames_out = found['frames_in'], found['frames_out']
    for name in ('drops', 'leaks', 'zero', 'figures'):
        getattr(trial.outcome, name).update(found[name])
    assert found['status'] == 'held', found['reason']


def main() -> None:
    """Run the machine whose clock is set."""
    folder, domain, seed, form = sys.argv[1:]
    with Stage(Path(folder), int(domain)) as stage:
        each = Fault(
            'steps',
            'clocks',
            'see above',
            steps,
            staged=True,
            long_only=False,
            bystanders=EVERYBODY,
        )
        outcome = run_fault(
            each, stage, Path(folder) / 'steps', int(domain), seed=int(seed), short=form == 'short'
        )
    print(json.dumps(outcome.as_dict()))


if __name__ == '__main__':
    main()
