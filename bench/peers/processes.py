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
The list of the peers, their bars, and the code that runs their processes from the benchmark.

This module imports none of the peers' libraries.

A failing peer doesn't end the run. A peer that isn't installed is reported as absent. If a peer
stalls or ends, all frames of that series count as lost, and its files and shared memory are
removed.
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
    A peer in one setup.

    :param distribution: its name in the package index.
    :param module: the module of this folder that uses the peer.
    :param producer: the name of the :class:`~bench.link_roles.PicturesOut` in that module.
    :param consumer: the name of the :class:`~bench.link_roles.PicturesIn` in that module.
    :param options: keyword arguments of both classes.
    :param one_cpu: its threads never run at the same time. Its unthrottled series run on one CPU,
        where it is quickest, as the links do.
    :param copies: the library itself copies the pixels; a series has fewer frames.
    :param read: also measure it with a consumer that reads every pixel, as the best of its kind.
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
# Variants with bars that copy a camera's frame at least once.
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

# The module that the peers' processes run.
WORKER = 'bench.peers.worker'
_SEGMENTS = Path('/dev/shm')
_PATIENCE_S = 30.0
_TRIES = 3


class PeerAbsentError(BenchError):
    """A peer isn't installed, or can't be used on this machine."""


def _segments_of(worker: Worker) -> set[Path]:
    """Return the paths of the shared memory that a process has mapped."""
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
    Owns a peer's producer and consumer process, and starts them again after each failure.

    It also removes the files and shared memory that they leave behind.

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
        """How many series failed, and the last one's error; empty if none failed."""
        return (
            f'{len(self.failures)} of {self._series} series: {self.failures[-1]}'
            if self.failures
            else ''
        )

    def open(self) -> None:  # noqa: A003
        """
        Start both processes.

        :raises PeerAbsentError: the peer isn't installed, or can't be used on this machine.
        :raises BenchError: producer and consumer don't find each other.
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

        A failure is reported, and all frames of the series count as lost. After three failures in
        a row the peer isn't started again.

        :raises TornFrameError: a frame was torn; this is not counted as a lost frame.
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
        # Start the processes again now, because the CPUs of the next series are set before it
        # begins. If the start fails, the next series tries again and reports the error.
        if not given_up:
            with contextlib.suppress(BenchError):
                self.open()

    def _note_segments(self) -> None:
        for worker in self.workers:
            self._segments |= _segments_of(worker)

    def end(self) -> None:
        """Tell both processes to end, without waiting for that."""
        for worker in self.workers:
            worker.end()

    def close(self) -> None:
        """End both processes, and remove files and shared memory; :meth:`open` may follow."""
        self._note_segments()
        self.end()
        for worker in self.workers:
            worker.close()
        self._ends = None
        if self._place is None:
            return
        # iceoryx2's segments have the folder's name; the other peers' were found in their
        # mappings.
        for segment in (self._segments - self._others) | set(
            _SEGMENTS.glob(f'{self._place.name}_*')
        ):
            with contextlib.suppress(OSError):
                segment.unlink()
        self._segments.clear()
        shutil.rmtree(self._place, ignore_errors=True)
        self._place = None


class PeerProcesses:
    """A :class:`~bench.link.PeerCases` with the peers of :data:`VARIANTS`."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._cases: dict[str, PeerCase] = {}
        self.absent: dict[str, str] = {}

    def open(self, variants: Sequence[str]) -> dict[str, Case]:  # noqa: A003
        """Start these peers; :attr:`absent` has each that can't be measured, with the reason."""
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
        """By peer with failed series: how many failed, and why the last one did."""
        return {variant: case.stalled for variant, case in self._cases.items() if case.stalled}

    def end(self) -> None:
        """Tell all processes to end, without waiting for that."""
        for case in self._cases.values():
            case.end()

    def close(self) -> None:
        """End all processes."""
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
