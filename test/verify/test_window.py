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

"""The measuring window and the nodes' counters begin and end together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
import os
from pathlib import Path
import time
from types import SimpleNamespace as Made
from typing import Any

from observe.frame_log_kit import made_entry, made_frame, note_frame
import pytest
from verify import verify_kit as kit
from verify.verify_kit import MS, POOL, START

from zc_perception.observe.frame_log import find_frame_logs, FrameLog
from zc_perception.verify import measurement
from zc_perception.verify.invariants import all_checks
from zc_perception.verify.measurement import (
    Cameras,
    Ending,
    Measurement,
    memory_of,
    Roots,
    WatchedNode,
)
from zc_perception.verify.observation import NodeView, Observation

EVERY = 40


class Pipeline:
    """Two nodes of this process, which make a frame and a copy at each wait."""

    def __init__(
        self, capture: FrameLog, inference: FrameLog, every: int = 5, later: int = 0
    ) -> None:
        self._capture, self._inference = capture, inference
        self._every, self._later = every, later
        self.frames = self.copies = 0

    def wait(self, seconds: float) -> bool:
        """Make a frame and a copy in place of waiting."""
        self.frames += 1
        self.copies += 1
        note_frame(self._capture, self._inference, self.frames)
        if self.frames % self._every == 0:
            self._describe(self._capture)
        if self.frames % self._every == self._later:
            self._describe(self._inference)
        return False

    def _describe(self, log: FrameLog) -> None:
        copies = {'draw': {'count': self.copies, 'bytes': 1}}
        log.describe({'copies': copies, 'processed': self.frames, 'accelerator': 'axl'})

    def book(self) -> None:
        """Add copies of another process's work, which the next counters report."""
        self.copies += 1000
        self._describe(self._capture)


@contextmanager
def pipeline(**how: int) -> Iterator[Pipeline]:
    with (
        FrameLog('capture', '/made/capture') as capture,
        FrameLog('inference', '/made/inference') as inference,
    ):
        yield Pipeline(capture, inference, **how)


def watch(
    tmp_path: Path, wait: Callable[[float], bool], frames: int = 20, **options: bool
) -> tuple[Ending, Observation]:
    """Measure this process's nodes for some frames, on a kernel that shows nothing."""
    roots = Roots(tracing=tmp_path / 'tracing', debugfs=tmp_path / 'debug')
    with (
        find_frame_logs(pids=[os.getpid()]) as logs,
        Measurement(roots, memmove_probe=False, **options) as measured,
    ):
        return measured.watch(logs, 60, frames, wait, lambda: True), measured.observation()


def booked(node: NodeView) -> int:
    return node.copies()['draw']


def test_what_is_copied_behind_the_window_is_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pipeline() as made:
        sampler = Made(
            start=made.book, drain=made.book, kept=lambda pid: 10**6, stop=dict, close=lambda: None
        )
        monkeypatch.setattr(measurement, 'open_sampler', lambda pids: sampler)
        ending, seen = watch(tmp_path, made.wait)
    assert ending is Ending.FRAMES and made.copies > 1000
    assert [booked(node) < 1000 for node in seen.nodes] == [True, True]


@pytest.mark.parametrize('later', [0, 2])
def test_counters_and_frames_are_of_the_same_time(tmp_path: Path, later: int) -> None:
    with pipeline(every=EVERY, later=later) as made:
        _, seen = watch(tmp_path, made.wait, sampling=False)
    frames = len(seen.all_submitted())
    assert frames >= 20
    # Nothing of the window is missing. Extra counts come from between the renewals of several
    # nodes.
    besides = 2 if not later else 2 * EVERY
    assert all(frames <= booked(node) <= frames + besides for node in seen.nodes)


def test_a_signal_does_not_cut_off_what_the_nodes_count(tmp_path: Path) -> None:
    with pipeline(every=7) as made:

        def wait(seconds: float) -> bool:
            return made.wait(seconds) or made.frames > 30

        ending, seen = watch(tmp_path, wait, frames=0, sampling=False)
    frames = len(seen.all_submitted())
    assert ending is Ending.WANTED and frames > 7
    assert all(node.described and frames <= booked(node) <= frames + 2 for node in seen.nodes)


def test_jobs_in_flight_at_the_end_are_waited_for(tmp_path: Path) -> None:
    """The counters are renewed at once, the frame's record comes later."""
    with FrameLog('inference', '/made/inference') as log:
        submitted: list[int] = []
        count = 0

        def wait(seconds: float) -> bool:
            nonlocal count
            count += 1
            submitted.append(time.monotonic_ns())
            log.describe({'processed': count})
            if len(submitted) > 4:  # five jobs at a time
                at = submitted.pop(0)
                entry = made_entry(made_frame(count), at, at, at, handle=1, device_seqno=count)
                log.processed(entry, at, at, at, 1)
            return False

        _, seen = watch(tmp_path, wait, sampling=False)
    assert seen.nodes[0].records[-1].submitted_ns > seen.end_ns


def test_all_maps_are_looked_at_before_the_window_and_it_is_known_since_when(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    scan = measurement.scan_maps

    def noted(*arguments: Any, **named: Any) -> Any:
        looks.append(time.monotonic_ns())
        return scan(*arguments, **named)

    monkeypatch.setattr(measurement, 'scan_maps', noted)
    with pipeline() as made:
        _, seen = watch(tmp_path, made.wait, sampling=False)
    assert 0 < seen.looked_ns < looks[0] < seen.start_ns


def test_a_node_that_ends_before_it_has_told_its_counters_has_ended() -> None:
    for end_first in (True, False):
        with (
            FrameLog('capture', '/made/node') as log,
            find_frame_logs(pids=[os.getpid()]) as (reader,),
        ):
            log.describe({'n': 1})
            watched = WatchedNode(reader)
            watched.expect_facts()
            steps = [log.close, watched.keep_facts]
            for step in steps if end_first else reversed(steps):
                step()
                watched.read()
        assert (watched.ended_ns > 0, watched.counted) == (end_first, not end_first)


# Frames whose origin can't be proved.


MIDDLE = START + 10 * kit.PERIOD


def only_i4(holds: bool | None) -> dict[str, bool | None]:
    return {'I1': True, 'I2': True, 'I3': True, 'I4': holds}


def reason(seen: Observation) -> str:
    return all_checks(seen)[3].reason


def of_other_buffers(seen: Observation) -> Observation:
    """Let the watched capture node use other buffers than the submitted ones."""
    both = (*POOL, *(inode + 10 for inode in POOL))
    seen = replace(seen, exporters=dict.fromkeys(both, 'system'), dmabufs=frozenset(both))
    return kit.with_records(
        seen, lambda old: old._replace(inodes=(old.inodes[0] + 10,)), role='capture'
    )


def test_frames_of_a_node_that_is_not_seen_are_not_measured() -> None:
    seen = of_other_buffers(kit.cached_graph())
    assert kit.verdicts(seen) == only_i4(None)
    assert (
        reason(seen)
        == f'20 frames of /inference (process {kit.PID}) come from a node that is not measured'
    )
    assert 'measure all nodes of the pipeline' in all_checks(seen)[3].next_step


@pytest.mark.parametrize('when', ['before', 'after'])
def test_a_pool_at_either_end_of_the_window_is_known(when: str) -> None:
    """After a format change, frames of the old or the new pool are submitted."""
    seen = of_other_buffers(kit.cached_graph())
    pool = {'pool': [[12, inode] for inode in POOL]}
    before, after = (pool, {}) if when == 'before' else ({}, pool)
    assert kit.verdicts(kit.with_facts(seen, 'capture', before, **after)) == only_i4(True)
    elsewhere = {'pool': [[13, inode] for inode in POOL]}
    assert kit.verdicts(kit.with_facts(seen, 'capture', elsewhere, **elsewhere)) == only_i4(None)


def test_a_frame_from_before_the_window_may_be_of_a_pool_that_is_gone() -> None:
    seen = kit.cached_graph()
    lost = (POOL[0],)
    gone = kit.with_records(seen, lambda old: old if old.inodes != lost else None, role='capture')
    assert kit.verdicts(gone) == only_i4(None)
    before = START - MS
    early = kit.with_records(
        gone, lambda old: old._replace(published_ns=before) if old.inodes == lost else old
    )
    assert kit.verdicts(early) == only_i4(True)


def test_memory_below_udmabuf_is_not_measured_where_somebody_has_it() -> None:
    line = 'process 7 (x) maps memfd 5 of 4096 bytes'
    other = kit.cached_graph(backing=(line,))
    assert kit.verdicts(other) == only_i4(True)
    seen = replace(other, exporters=dict.fromkeys(POOL, 'udmabuf'))
    assert kit.verdicts(seen) == only_i4(None) and line in reason(seen)
    assert kit.verdicts(replace(seen, backing=())) == only_i4(True)


def test_pages_that_may_be_held_without_a_mapping_are_not_measured() -> None:
    line = 'process 7 (x) has a pipe with 65536 bytes in it'
    seen = kit.cached_graph(pins=(line,))
    assert kit.verdicts(seen) == only_i4(None) and line in reason(seen)
    assert 'whatever reads the pipe too slowly' in all_checks(seen)[3].next_step


@pytest.mark.parametrize('second', [['a pipe'], []])
def test_a_pipe_that_becomes_empty_in_a_moment_holds_nothing(
    second: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter([['a pipe'], second])
    monkeypatch.setattr(measurement, 'find_pins', lambda proc: next(looks))
    measured = Measurement()
    measured._look_at_pins()
    assert measured.observation().pins == second


BEFORE = [('dma_buf_mmap_internal', {'ino': POOL[1]}), ('vb2_mmap', {'rdev': 81 << 20})]


@pytest.mark.parametrize(('name', 'fields'), BEFORE)
def test_a_mapping_between_the_first_look_and_the_window_may_have_ended_in_it(
    name: str, fields: dict[str, int]
) -> None:
    seen = kit.cached_graph(looked_ns=START - 100 * MS)
    mapped = kit.event(START - 50 * MS, name, 4242, **fields)
    unsure = kit.with_events(seen, mapped)
    assert kit.verdicts(unsure) == only_i4(None)
    assert 'frames were mapped 1 times just before the window' in reason(unsure)
    early = kit.with_events(seen, replace(mapped, time_ns=START - 150 * MS))
    assert kit.verdicts(early) == only_i4(True), 'the first look would have shown it'
    again = kit.with_events(unsure, replace(mapped, time_ns=MIDDLE))
    assert kit.verdicts(again) == only_i4(False)


@pytest.mark.parametrize(
    'cameras', [{'camera_rdevs': frozenset[int]()}, {'lost_cameras': frozenset(('/dev/video7',))}]
)
def test_a_camera_of_unknown_number_may_be_any_device_that_a_node_maps(
    cameras: dict[str, Any],
) -> None:
    seen = kit.cached_graph(**cameras)
    assert kit.verdicts(seen) == only_i4(True)
    mapped = kit.event(MIDDLE, 'vb2_mmap', rdev=(81 << 20) + 2)
    assert kit.verdicts(kit.with_events(seen, mapped)) == only_i4(False)
    assert kit.verdicts(kit.with_events(seen, replace(mapped, tid=4242))) == only_i4(True)
    assert kit.verdicts(kit.with_events(kit.cached_graph(), mapped)) == only_i4(True)


def test_a_camera_that_nobody_names_may_be_any_device_that_anybody_maps() -> None:
    mapped = kit.event(MIDDLE, 'vb2_mmap', 4242, rdev=(81 << 20) + 2)
    any_camera, named = kit.cached_graph(any_camera=True), kit.cached_graph()
    assert kit.verdicts(kit.with_events(any_camera, mapped)) == only_i4(None)
    assert kit.verdicts(kit.with_events(named, mapped)) == only_i4(True)
    assert kit.verdicts(any_camera) == only_i4(True)


@pytest.mark.parametrize(
    ('device', 'exporter', 'wanted'),
    [
        ('/dev/video0 (vivid)', 'videobuf2_vmalloc', False),
        ('v4l2src ! appsink', 'videobuf2_vmalloc', True),
        ('pattern', 'system', False),
    ],
)
def test_a_camera_is_unnamed_if_its_frames_are_of_a_device_that_it_does_not_name(
    device: str, exporter: str, wanted: bool
) -> None:
    node = capture_node(5, device, [[12, 41]])
    memory = memory_of([node], {}, Cameras(), {41: exporter})
    assert memory.any_camera is wanted and memory.dmabufs == {41}


def capture_node(pid: int, device: str, pool: Sequence[Sequence[int]] = ()) -> Any:
    facts = {'device': device, 'pool': pool}
    return Made(role='capture', pid=pid, facts=lambda: facts, before=facts, records=())


def test_a_camera_is_what_its_node_sees_under_that_name(tmp_path: Path) -> None:
    """In a container, for example, /dev/zero may be another device than ours of that name."""
    dev = tmp_path / '5' / 'root' / 'dev'
    dev.mkdir(parents=True)
    (dev / 'zero').symlink_to('/dev/null')
    (dev / 'front').symlink_to('zero')
    (tmp_path / '6' / 'root').mkdir(parents=True)
    cameras = Cameras(tmp_path)
    devices = ('/dev/zero (vivid)', '/dev/front', 'libcamera 1')
    cameras.look([capture_node(5, device) for device in devices])
    null = os.stat('/dev/null').st_rdev
    assert (
        cameras.numbers == {os.major(null) << 20 | os.minor(null)} and cameras.lost == frozenset()
    )
    assert {'/dev/zero', '/dev/front'} <= cameras.paths
    cameras.look([capture_node(6, '/dev/zero')])
    assert cameras.lost == {'/dev/zero'}
    (tmp_path / '6' / 'root').rmdir()
    (tmp_path / '6' / 'root').symlink_to('/')
    cameras.look([capture_node(6, '/dev/zero')])
    zero = os.stat('/dev/zero').st_rdev
    assert cameras.lost == frozenset() and os.major(zero) << 20 | os.minor(zero) in cameras.numbers
