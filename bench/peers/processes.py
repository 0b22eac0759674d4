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
The peers, what their rows are compared with, and their processes as the benchmark sees them.

It imports none of the peers.

Whatever becomes of them, the run goes on: one that isn't installed is absent, a series in which
one stalls or ends has lost all of its frames, and what it leaves behind is removed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import contextlib
from dataclasses import dataclass, field
import math
import os
from pathlib import Path
import shutil
import socket
import tempfile
from typing import Any

from bench.environment import KEPT_MEMORY, plain_environment
from bench.link import Case, link_key, LinkCase, Peers, SHARED_MEMORY, TornFrameError
from bench.rows import Condition, Series
from bench.subcommand import Bar, figure_of, FULL_HD, Say, UHD_4K, UHD_8K, VGA
from bench.worker import BenchError, Worker


@dataclass(frozen=True)
class Variant:
    """
    One.

    :param distribution: its name in the package index.
    :param module: of this folder.
    :param options: for both classes.
    :param one_cpu: nothing of it runs at the same time, so that unthrottled series run on one CPU,
        as the links' do; that is where it is quickest.
    :param copies: a frame's pixels by itself, so that fewer frames make a series.
    :param read: with a consumer that reads every pixel it is measured, too: the best of its kind.
    """

    distribution: str
    module: str
    producer: str
    consumer: str
    options: Mapping[str, Any] = field(default_factory=dict)
    one_cpu: bool = False
    copies: bool = False
    read: bool = False


VARIANTS: dict[str, Variant] = {
    'zenoh': Variant(
        'eclipse-zenoh', 'zenoh', 'ZenohOut', 'ZenohIn', {'shared_memory': False}, copies=True
    ),
    'zenoh_shared_memory': Variant(
        'eclipse-zenoh',
        'zenoh',
        'ZenohOut',
        'ZenohIn',
        {'shared_memory': True},
        copies=True,
        read=True,
    ),
    'iceoryx2_copy': Variant(
        'iceoryx2',
        'iceoryx2',
        'Iceoryx2Out',
        'Iceoryx2In',
        {'in_place': False},
        one_cpu=True,
        read=True,
    ),
    'iceoryx2_in_place': Variant(
        'iceoryx2',
        'iceoryx2',
        'Iceoryx2Out',
        'Iceoryx2In',
        {'in_place': True},
        one_cpu=True,
        read=True,
    ),
    'cyclonedds': Variant(
        'cyclonedds', 'cyclonedds', 'CycloneDdsOut', 'CycloneDdsIn', copies=True
    ),
}
# What copies a camera's frame at least once.
_COPYING = ('zenoh_shared_memory', 'cyclonedds', 'iceoryx2_copy')
_SIZES = {'VGA': VGA, '1080p': FULL_HD, '4K': UHD_4K, '8K': UHD_8K}


def _below_peer(peer: str, size: str) -> Bar:
    key = link_key(peer, size=_SIZES[size])
    figure = figure_of(key, lambda row: row.ratio_to.get(SHARED_MEMORY))
    involved = (key, link_key('shared_memory', size=_SIZES[size]))
    return Bar(
        f'{size} unthrottled: shared_memory below {peer}, times',
        figure,
        5,
        '×',
        at_least=True,
        involved=involved,
    )


def _above_in_place(size: str) -> Bar:
    key = link_key('iceoryx2_in_place', size=_SIZES[size])
    figure = figure_of(
        key, lambda row: -row.added_us[SHARED_MEMORY] if SHARED_MEMORY in row.added_us else None
    )
    return Bar(
        f'{size} unthrottled: shared_memory above iceoryx2_in_place',
        figure,
        25,
        ' µs',
        involved=(key,),
    )


BARS = (
    *(_below_peer(peer, size) for peer in _COPYING for size in _SIZES),
    *(_above_in_place(size) for size in _SIZES),
)

# Its processes are modules of this folder's package.
WORKER = 'bench.peers.worker'
_SEGMENTS = Path('/dev/shm')
_PATIENCE_S = 30.0
_TRIES = 3


class PeerAbsentError(BenchError):
    """It isn't installed, or can't be used here."""


def _segments_of(worker: Worker) -> set[Path]:
    """Return the shared memory that a process has mapped, by name."""
    with contextlib.suppress(OSError):
        lines = Path(f'/proc/{worker.pid}/maps').read_text(encoding='utf-8').splitlines()
        return {
            Path(_SEGMENTS, line.partition(f' {_SEGMENTS}/')[2])
            for line in lines
            if f' {_SEGMENTS}/' in line
        }
    return set()


class PeerCase:
    """
    Owns a peer's two processes, producer and consumer, and starts them again after each failure.

    It also removes what they leave behind: the run's folder, and shared memory.

    :param say: gets a line for each failure.
    """

    def __init__(self, variant: str, environment: Mapping[str, str], say: Say) -> None:
        self._variant = variant
        self._environment = environment
        self._say = say
        self._place: Path | None = None
        self._ends: LinkCase | None = None
        self._others: set[Path] = set()
        self._segments: set[Path] = set()
        self._failed_in_a_row = 0
        self._series = 0
        self.failures: list[str] = []

    @property
    def workers(self) -> tuple[Worker, ...]:
        return self._ends.workers if self._ends else ()

    @property
    def stalled(self) -> str:
        """What became of its series, if not all were measured."""
        return (
            f'{len(self.failures)} of {self._series} series: {self.failures[-1]}'
            if self.failures
            else ''
        )

    def open(self) -> None:  # noqa: A003
        """
        Start it.

        :raises PeerAbsentError: it isn't installed, or can't be used here.
        :raises BenchError: its ends don't find each other.
        """
        self._place = Path(tempfile.mkdtemp(prefix='zcb'))
        self._others = set(_SEGMENTS.glob('*'))
        workers = []
        answers = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with answers[0], answers[1]:
            for role, end in zip(('peer_out', 'peer_in'), answers, strict=True):
                arguments = [role, self._variant, str(self._place), str(end.fileno())]
                workers.append(Worker(WORKER, arguments, self._environment, [end.fileno()]))
        producer, consumer = workers
        self._ends = LinkCase(producer, consumer, _PATIENCE_S)
        for worker in workers:
            if reason := worker.receive(_PATIENCE_S).get('absent'):
                raise PeerAbsentError(reason)
        self._ends.wait_until_matched()
        self._note_segments()

    def measure(
        self, variant: str, condition: Condition, frames: int, *, read: bool = False
    ) -> Series:
        """
        See :class:`Case`.

        A failure is said, and all frames are lost.

        :raises TornFrameError: a frame was torn: that is no loss.
        """
        self._series += 1
        if self._failed_in_a_row == _TRIES:
            self.failures.append(self.failures[-1])
            return Series([], math.nan, frames)
        try:
            if self._ends is None:
                self.open()
            assert self._ends is not None
            series = self._ends.measure(variant, condition, frames, read=read)
        except TornFrameError:
            raise
        except BenchError as error:
            self._fail(
                error,
                f'{variant}: {condition.width}x{condition.height} at {condition.rate_hz:g} Hz',
            )
            return Series([], math.nan, frames)
        self._failed_in_a_row = 0
        self._note_segments()
        return series

    def _fail(self, error: BenchError, where: str) -> None:
        self._failed_in_a_row += 1
        self.failures.append(str(error))
        given_up = self._failed_in_a_row == _TRIES
        self._say(
            f'{where}: {error}; all frames are lost'
            + (f', and it is not tried again after {_TRIES} in a row' if given_up else '')
        )
        self.close()
        # At once: its next series may have to run on other CPUs from its start. If it fails, that
        # series says so.
        if not given_up:
            with contextlib.suppress(BenchError):
                self.open()

    def _note_segments(self) -> None:
        for worker in self.workers:
            self._segments |= _segments_of(worker)

    def end(self) -> None:
        """Tell both ends to end, without waiting for that."""
        for worker in self.workers:
            worker.end()

    def close(self) -> None:
        """End both, and remove what they left. It can be opened again."""
        self._note_segments()
        self.end()
        for worker in self.workers:
            worker.close()
        self._ends = None
        if self._place is None:
            return
        # iceoryx2 names them after the folder; others' names are known only by what was mapped.
        for segment in (self._segments - self._others) | set(
            _SEGMENTS.glob(f'{self._place.name}_*')
        ):
            with contextlib.suppress(OSError):
                segment.unlink()
        self._segments.clear()
        shutil.rmtree(self._place, ignore_errors=True)
        self._place = None


class PeerProcesses:
    """All of a run: a :class:`~bench.link.PeerCases`."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._cases: dict[str, PeerCase] = {}
        self.absent: dict[str, str] = {}

    def open(self, variants: Sequence[str]) -> dict[str, Case]:  # noqa: A003
        """Open those of *variants* that are there; the others are in :attr:`absent`."""
        environment = {**plain_environment(os.environ), **KEPT_MEMORY}
        for variant in variants:
            case = self._cases[variant] = PeerCase(variant, environment, self._say)
            try:
                case.open()
            except BenchError as error:
                case.close()
                del self._cases[variant]
                self.absent[variant] = str(error)
                self._say(f'absent: {variant}: {error}')
        return dict(self._cases)

    @property
    def stalled(self) -> dict[str, str]:
        """Of which series failed: how many, and why the last one did."""
        return {variant: case.stalled for variant, case in self._cases.items() if case.stalled}

    def end(self) -> None:
        """Tell all of them to end."""
        for case in self._cases.values():
            case.end()

    def close(self) -> None:
        """End all of them."""
        for case in self._cases.values():
            case.close()


PEERS = Peers(
    start=PeerProcesses,
    names=tuple(VARIANTS),
    copying=[name for name, variant in VARIANTS.items() if variant.copies],
    one_cpu=[name for name, variant in VARIANTS.items() if variant.one_cpu],
    readers=[name for name, variant in VARIANTS.items() if variant.read],
    bars=BARS,
)
