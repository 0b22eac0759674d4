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
Cameras that break, go away or say nothing, cards that are pulled or hang.

Here they are doubles; in the rig they are devices of a real kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
from dataclasses import astuple, dataclass
import json
import os
import sys

import faults
from faults.harness import fault, Trial
from faults.holdings import frame_mappings, holding, settled_excess, with_slots
from faults.program import own_sockets
from nodes.fault_kit import Fleet, fleet
from rclpy.logging import get_logger_effective_level, LoggingSeverity, set_logger_level

_NODES = ('capture', 'inference')
CAMERA = ('unplugged', 'silent', 'bad')
SLOTS = 8


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Nodes of this process say nothing; what they would say is in diagnostics."""
    before = {name: get_logger_effective_level(name) for name in _NODES}
    for name in _NODES:
        set_logger_level(name, LoggingSeverity.FATAL)
    try:
        yield
    finally:
        for name, level in before.items():
            set_logger_level(name, level)


@dataclass(frozen=True)
class Books:
    """
    What a fleet's camera and inference node have each counted, while nothing flows.

    :ivar no_device: frames that came while the accelerator was opened anew.
    """

    captured: int
    processed: int
    failed: int
    newest_wins: int
    no_device: int

    @classmethod
    def of(cls, nodes: Fleet) -> Books:
        """
        Return the counts once the camera says nothing and all its frames are done with.

        The camera says nothing afterwards, too.
        """
        nodes.camera.silent.clear()
        nodes.camera.mode = 'silent'
        nodes.until(nodes.camera.silent.is_set, 'no frame comes')
        nodes.until(lambda: nodes.inference.idle, 'every frame is done with')
        captured = nodes.capture._counters.total().captured
        dropped, scheduler = (
            nodes.inference.subscription.statistics().dropped,
            nodes.inference.scheduler.statistics(),
        )
        return cls(
            captured,
            nodes.inference.processed,
            nodes.inference.failed,
            dropped,
            scheduler.refused_recovering,
        )

    def close(self, trial: Trial, before: Books) -> None:
        """Say where the frames since *before* went."""
        came, done, failed, dropped, no_device = (
            now - then for now, then in zip(astuple(self), astuple(before), strict=True)
        )
        trial.frames(came, done, newest_wins=dropped, failed_and_said=failed, no_device=no_device)


@fault('a camera that fails', ('a camera that is unplugged, silent or broken is waited for and '
                               'comes back by itself; nothing of it stays'),
       staged=False)  # fmt: skip
def camera(trial: Trial) -> None:
    with (
        quiet(),
        own_sockets(trial.folder),
        fleet(trial.domain, capture={'slots': SLOTS}) as nodes,
    ):
        before, books = with_slots(holding(os.getpid()), SLOTS), Books.of(nodes)
        for mode in CAMERA[:2] if trial.short else CAMERA * 4:
            nodes.camera.mode = mode
            nodes.until(
                lambda: (nodes.reader.level('capture: camera') or 0) > 0, f'{mode} is said'
            )
            nodes.camera.mode = ''
            nodes.well('capture: camera')
            processed = nodes.inference.processed
            nodes.until(lambda: nodes.inference.processed > processed + 5, 'boxes')  # noqa: B023
        Books.of(nodes).close(trial, books)
        trial.note('openings of the camera', nodes.capture._counters.openings)
        trial.leaked(settled_excess(before, lambda: holding(os.getpid())))
        trial.must_be_zero('frames that failed', nodes.inference.failed)
    trial.leaked(
        settled_excess({}, lambda: {'frame mappings afterwards': frame_mappings(os.getpid())})
    )


@fault('an accelerator that fails', ('a card that is pulled or late costs frames, each '
                                     'counted, and never the node; it is taken up again'),
       staged=False)  # fmt: skip
def accelerator(trial: Trial) -> None:
    with (
        quiet(),
        own_sockets(trial.folder),
        fleet(trial.domain, capture={'slots': SLOTS}, inference={'timeout': 0.2}) as nodes,
    ):
        before, books = with_slots(holding(os.getpid()), SLOTS), Books.of(nodes)
        nodes.camera.mode = ''
        nodes.well('capture: camera')
        for _ in range(trial.times(1, 6)):
            nodes.accelerator.present = False
            nodes.until(lambda: nodes.inference.scheduler.state.recovering, 'the loss is noticed')
            nodes.accelerator.present = True
            nodes.until(lambda: not nodes.inference.scheduler.state.recovering, 'it is back')
            lost = nodes.inference.failed
            nodes.accelerator.job_s = 0.5
            nodes.until(lambda: nodes.inference.failed > lost, 'a frame is late')  # noqa: B023
            nodes.accelerator.job_s = 0.0
            processed = nodes.inference.processed
            nodes.until(lambda: nodes.inference.processed > processed + 10, 'boxes')  # noqa: B023
        after = Books.of(nodes)
        after.close(trial, books)
        trial.must(
            after.failed > books.failed, 'cards that cost no frame: the fault did not happen'
        )
        trial.leaked(settled_excess(before, lambda: holding(os.getpid())))
    trial.leaked(
        settled_excess({}, lambda: {'frame mappings afterwards': frame_mappings(os.getpid())})
    )


@fault(
    'devices of a real kernel',
    'jobs that fail, cards and cameras that are pulled, '
    'consumers killed with imports: frames go on, '
    'the kernel keeps no dma-buf and no '
    'attachment',
    staged=False,
    long_only=True,
    needs='a kernel rig',
)
def rig(trial: Trial) -> None:
    from rig import Rig, RigUnavailable
    from rig.guest import camera_kit

    machine = Rig()
    try:
        kernel = machine.prepare()
    except RigUnavailable as error:
        if os.environ.get('ZC_RIG') == 'required':
            raise
        trial.absent(f'no kernel rig here: {error}')
    script = str(faults.TEST / 'rig' / 'guest' / 'run_checks.py')
    command = [sys.executable, script, 'camera', 'the graph survives', 'a graph that never got']
    result = machine.run(command, timeout=1800, out_dir=trial.folder, vivid=camera_kit.VIVID)
    try:
        found: dict[str, str] = json.loads(
            (trial.folder / 'camera.json').read_text(encoding='utf-8')
        )
    except FileNotFoundError:
        raise AssertionError(result.report()) from None
    trial.note('kernel', kernel.version)
    trial.note('faults in the guest', len(found))
    for name, text in found.items():
        trial.must_be_zero(f'{name}: {text}', bool(text))
    trial.must_be_zero('complaints of the kernel', len(result.complaints))
    trial.must(len(found) > 10, 'checks that did not run')
