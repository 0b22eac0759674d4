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
``make soak``: four cameras in one process for half an hour.

A consumer that holds frames is killed every 5 s, and parameters are changed every second.

    python test/faults/soak.py [--minutes 30] [--csv FILE]

It prints a line for each minute, and exits with 0 if all of this holds: After the warm-up the
process's memory grows by at most 0.5 MB, its descriptors and threads not at all, the middleware's
descriptors by at most 10. It never holds more frame buffers, or mappings and descriptors of them,
than its cameras have slots. It accepts every change of a parameter. No camera's detections pause
for more than 2 s.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Sequence
import contextlib
import csv
from dataclasses import asdict, dataclass, field, replace
import os
from pathlib import Path
import signal
import statistics
import sys
import tempfile
import threading
import time
from typing import Any

if __name__ == '__main__':
    sys.path[:0] = [str(Path(__file__).resolve().parent.parent)]


import faults
from faults.harness import fault, Trial
from faults.holdings import (
    descriptors,
    frame_buffers,
    FRAME_KIND,
    frame_mappings,
    is_ours,
    resident_bytes,
)
from faults.stage import own_sockets, Running
from faults.witness import Spinning
from nodes.programs import parameters
from nodes.ros_kit import Onlooker
from rcl_interfaces.srv import SetParameters
from rclpy.parameter import Parameter
from rclpy.qos import QoSProfile
from ros_domains import locked_domain
from vision_msgs.msg import Detection2DArray
from waiting import until

CAMERAS = ('front', 'left', 'right', 'rear')
MOST_GROWTH_MB = 0.5
MOST_PAUSE_S = 2.0
KILL_EVERY_S = 5.0
# A kill waits so long for the consumer to hold frames, where the machine is busy.
MOST_PATIENCE_S = 10.0
FRAMERATE = 10.0
SLOTS = 16
# Frame buffers of the process, and mappings; each has a descriptor, and so has its mapping.
MOST_BUFFERS = len(CAMERAS) * SLOTS
# How many more descriptors the middleware may have: it keeps a killed participant's for 20 s.
MOST_MIDDLEWARE = 10
# The share of the changes that may have no answer: a service may not be found yet.
MOST_MISSING = 0.1
_VALUES: tuple[tuple[str, str, tuple[Any, ...]], ...] = (
    ('inference', 'score_threshold', (0.3, 0.5, -1.0)),
    ('capture', 'image_encoding', ('rgb8', 'mono8', 'bgr8')),
    ('inference', 'max_rate', (0.0, 8.0)),
    ('overlay', 'scale', (1.0, 0.5)),
    ('inference', 'in_flight', (1, 2)),
    ('capture', 'jpeg_quality', (0, 60)),
    ('inference', 'enabled', (True,)),
    ('inference', 'max_detections', (0, 5)),
)


@dataclass
class Minute:
    """
    Measurements of one minute.

    :ivar memory_mb: memory of the process without shared pages; the median of the looks.
    :ivar descriptors: the minimum, as consumers come and go; without those of the middleware and
        of frame buffers.
    :ivar frame_mappings: the maximum; likewise *frame_buffers* (inodes) and *frame_descriptors*. A
        process's holdings of them have a bound.
    :ivar pause_s: the longest pause of any camera's detections.
    :ivar kills: kills of a consumer that held frames of every camera.
    :ivar attempts: all kills.
    :ivar changes: accepted changes of parameters.
    """

    minute: float
    memory_mb: float
    descriptors: int
    threads: int
    middleware_descriptors: int
    frame_mappings: int
    frame_buffers: int
    frame_descriptors: int
    detections: int
    pause_s: float
    kills: int
    attempts: int
    changes: int
    refused: int


@dataclass
class Soak:
    """
    The result of a soak.

    :ivar minutes: those after the warm-up.
    :ivar due: changes of parameters that were due until the last minute's end.
    :ivar missed: the output of the last consumer that was killed without frames.
    """

    minutes: list[Minute] = field(default_factory=list)
    due: int = 0
    exit_code: int | None = None
    tracebacks: int = 0
    missed: str = ''

    def more(self, name: str) -> float:
        """Return how much more of it the last minute has than the first."""
        return float(getattr(self.minutes[-1], name) - getattr(self.minutes[0], name))

    def most(self, name: str) -> float:
        return float(max(getattr(minute, name) for minute in self.minutes))

    def broken(
        self, most_growth_mb: float = MOST_GROWTH_MB, most_middleware: int = MOST_MIDDLEWARE
    ) -> list[str]:
        last = self.minutes[-1]
        limits = {
            'MB of memory more': (self.more('memory_mb'), most_growth_mb),
            'descriptors more': (self.more('descriptors'), 0),
            'threads more': (self.more('threads'), 0),
            "descriptors of the middleware's more":
                (self.more('middleware_descriptors'), most_middleware),
            'frame mappings': (self.most('frame_mappings'), MOST_BUFFERS),
            'frame buffers': (self.most('frame_buffers'), MOST_BUFFERS),
            'frame descriptors': (self.most('frame_descriptors'), 2 * MOST_BUFFERS),
            'changes of parameters refused': (last.refused, 0),
            'changes of parameters missing': (self.due - last.changes, MOST_MISSING * self.due),
            's without detections': (self.most('pause_s'), MOST_PAUSE_S),
            'tracebacks': (self.tracebacks, 0),
        }  # fmt: skip
        found = [
            f'{value:.5g} {what}, at most {most:g} may be'
            for what, (value, most) in limits.items()
            if value > most
        ]
        return found + [f'exit code {self.exit_code}'] * (self.exit_code != 0)


class SoakOnlooker(Onlooker):
    def __init__(self, domain: int) -> None:
        super().__init__(domain, 'soak_onlooker')
        self._lock = threading.Lock()
        self.detections: Counter[str] = Counter()
        self._last_s: dict[str, float] = {}
        self._pause_s = 0.0
        self._clients: dict[str, Any] = {}
        self._futures: list[Any] = []
        self.refused = self.changed = 0
        for camera in CAMERAS:
            self.node.create_subscription(
                Detection2DArray,
                f'/{camera}/detections',
                lambda message, camera=camera: self._on_detections(camera),
                QoSProfile(depth=10),
            )
        self._spinning = Spinning(self)

    def _on_detections(self, camera: str) -> None:
        now = time.monotonic()
        with self._lock:
            self._pause_s = max(self._pause_s, now - self._last_s.get(camera, now))
            self._last_s[camera] = now
            self.detections[camera] += 1

    def longest_pause_s(self) -> float:
        """Return the longest pause since the last call, pauses in progress included."""
        now = time.monotonic()
        with self._lock:
            longest = max([self._pause_s, *(now - last for last in self._last_s.values())])
            self._pause_s = 0.0
            return longest

    def change(self, number: int) -> None:
        """Change a parameter of one of the nodes, without waiting for the answer."""
        node, name, values = _VALUES[number % len(_VALUES)]
        service = f'/{CAMERAS[number // len(_VALUES) % len(CAMERAS)]}/{node}/set_parameters'
        if service not in self._clients:
            self._clients[service] = self.node.create_client(SetParameters, service)
        client = self._clients[service]
        value = values[number // (len(_VALUES) * len(CAMERAS)) % len(values)]
        if client.service_is_ready():
            wanted = [Parameter(name, value=value).to_parameter_msg()]
            self._futures.append(client.call_async(SetParameters.Request(parameters=wanted)))
        done = [future for future in self._futures if future.done()]
        self._futures = [future for future in self._futures if future not in done]
        results = [result.successful for future in done for result in future.result().results]
        self.changed += sum(results)
        self.refused += len(results) - sum(results)

    def close(self) -> None:
        self._spinning.stop()
        super().close()


def _look(pid: int) -> tuple[int, ...]:
    """Return what the process holds: the fields of :class:`Minute` from its memory on."""
    kinds = descriptors(pid)
    frames = kinds[FRAME_KIND]
    ours = sum(count for kind, count in kinds.items() if is_ours(kind)) - frames
    least = ours, len(os.listdir(f'/proc/{pid}/task')), kinds.total() - ours - frames
    return resident_bytes(pid), *least, frame_mappings(pid), len(frame_buffers([pid])), frames


def _minute(
    minute: float, looks: list[tuple[int, ...]], onlooker: SoakOnlooker, kills: int, attempts: int
) -> Minute:
    memory, *held = zip(*looks, strict=True)
    looks.clear()
    return Minute(
        round(minute, 2), round(statistics.median(memory) / 1e6, 3), *map(min, held[:3]),
        *map(max, held[3:]), onlooker.detections.total(), round(onlooker.longest_pause_s(), 3),
        kills, attempts, onlooker.changed, onlooker.refused,
    )  # fmt: skip


def soak(
    minutes: int,
    warm_up_s: float,
    minute_s: float,
    domain: int,
    folder: Path,
    say: Callable[[Minute], object] = lambda minute: None,
) -> Soak:
    """
    Run the soak: measure *minutes* of *minute_s* each, after the warm-up.

    :param folder: folder for sockets and logs; its path must be short.
    """
    values = parameters(
        pattern='counter', width=128, height=128, framerate=FRAMERATE, slots=SLOTS,
        quarantine=0.2, model='hog', heap='memfd',
    )  # fmt: skip
    topics = [f'/{camera}/image_raw' for camera in CAMERAS]
    view = [sys.executable, str(Path(faults.__file__).with_name('viewer.py')), '2', *topics]
    found, kills, attempts = Soak(), 0, 0
    viewer: Running | None = None
    with contextlib.ExitStack() as ending:
        ending.enter_context(own_sockets(folder))
        onlooker = ending.enter_context(contextlib.closing(SoakOnlooker(domain)))
        command = ('perception', '--cameras', *CAMERAS, *values)
        program = ending.enter_context(Running(*command, domain=domain))

        ending.callback(lambda: viewer and viewer.__exit__())
        program.start(*(f'[{camera}.overlay]: ready' for camera in CAMERAS))
        until(lambda: len(onlooker.detections) == len(CAMERAS), 'detections of all cameras')
        onlooker.longest_pause_s()
        looks: list[tuple[int, ...]] = []
        began = time.monotonic()
        next_minute, kill_at, turn = began + warm_up_s, began + KILL_EVERY_S, 0
        warm = False
        while len(found.minutes) < minutes:
            now = time.monotonic()
            assert program.alive, f'perception has ended with {program.process.returncode}'
            if viewer is None:
                viewer = Running(view, domain=domain)
                viewer.start()
            holds = any('holding' in text for text in viewer.lines)
            if now >= kill_at and (holds or now >= kill_at + MOST_PATIENCE_S):
                kills, attempts = kills + holds, attempts + 1
                found.missed = found.missed if holds else viewer.output[-1500:]
                viewer.__exit__()
                viewer, kill_at = None, now + KILL_EVERY_S
            onlooker.change(turn)
            looks.append(_look(program.pid))
            if now >= next_minute:
                minute = _minute((now - began) / 60.0, looks, onlooker, kills, attempts)
                if warm:
                    found.minutes.append(minute)
                say(minute)
                warm, next_minute, found.due = True, next_minute + minute_s, turn
            turn += 1
            time.sleep(max(0.0, began + turn - time.monotonic()))
        found.tracebacks = program.output.count('Traceback')
        found.exit_code = program.end()
        return found


@fault('four cameras for a while', 'while consumers are killed and parameters change, memory, '
                                   'descriptors and threads stay and detections '
       'never stop for 2 s', staged=False, long_only=True)  # fmt: skip
def four_cameras(trial: Trial) -> None:
    found = soak(
        trial.times(2, 4), trial.times(22, 40), trial.times(4, 12), trial.domain, trial.folder
    )
    # These limits are coarse: only half an hour separates growth from memory that the allocator or
    # the middleware has not returned yet.
    for broken in found.broken(most_growth_mb=4.0, most_middleware=60):
        trial.must(False, broken)
    last = found.minutes[-1]
    trial.outcome.frames_out = last.detections
    for what, value in {
        'kills with frames held': last.kills, 'parameters changed': last.changes,
        'growth, MB': found.more('memory_mb'), 'memory, MB': last.memory_mb,
        'longest pause of detections, s': found.most('pause_s'),
        'frame buffers': last.frame_buffers, 'kills': last.attempts,
    }.items():  # fmt: skip
        trial.note(what, value)
    hit = last.kills > 0 and last.kills * 2 >= last.attempts
    trial.must(hit, f'kills that hit no frame: {found.missed}')


@fault('all of it together', 'after all faults, no process that lives on holds a descriptor, '
                             'thread, mapping or socket more than at first')  # fmt: skip
def together(trial: Trial) -> None:
    stage = trial.stage
    held = {role: stage.first.held[role] for role in stage.pids()}
    lines = {role: len(program.lines) for role, program in stage.programs.items()}
    stage.settle(trial, replace(stage.first, held=held, lines=lines), final=True)
    stage.account()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--minutes', type=int, default=30)
    parser.add_argument(
        '--warm-up', type=float, default=3.0, metavar='MINUTES', help='that count for nothing'
    )
    parser.add_argument('--csv', type=Path, default=Path('build/faults/soak.csv'))
    options = parser.parse_args(arguments)
    if options.minutes < 2 or options.warm_up < 0.0:
        parser.error('growth shows in two minutes or more, and the warm-up is 0 or more')
    options.csv.parent.mkdir(parents=True, exist_ok=True)
    with options.csv.open('w', newline='', encoding='utf-8') as file, locked_domain() as domain:
        writer = csv.DictWriter(file, list(Minute.__dataclass_fields__))
        writer.writeheader()

        def say(minute: Minute) -> None:
            writer.writerow(asdict(minute))
            file.flush()
            print(
                f'{minute.minute:6.1f} min  {minute.memory_mb:8.3f} MB  '
                f'{minute.descriptors:4d} descriptors  {minute.threads:3d} threads  '
                f'{minute.frame_buffers:3d} frame buffers, {minute.frame_mappings:3d} mapped  '
                f'{minute.detections:7d} detections, longest pause {minute.pause_s:.2f} s  '
                f'{minute.kills:4d} kills  '
                f'{minute.changes:5d} changes ({minute.refused} refused)', flush=True,
            )  # fmt: skip

        with tempfile.TemporaryDirectory(prefix='zf-') as folder:
            found = soak(options.minutes, 60.0 * options.warm_up, 60.0, domain, Path(folder), say)
    broken = found.broken()
    print(
        f'soak: {"; ".join(broken) or "held"}: memory {found.more("memory_mb"):+.3f} MB, '
        f'{found.more("descriptors"):g} descriptors and '
        f'{found.more("threads"):g} threads more, longest pause of detections '
        f'{found.most("pause_s"):.2f} s; wrote {options.csv}'
    )
    return 1 if broken else 0


if __name__ == '__main__':
    # Ctrl-C ends its children, too.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(130))
    sys.exit(main())
