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
The window and what the nodes count meanwhile begin and end together.

That is so although a node tells its counters only once in a while.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
import os
from pathlib import Path
import time
from typing import Any

from observe.frame_log_kit import made_entry, made_frame
import pytest

from zc_perception.observe.frame_log import find_frame_logs, FrameLog
from zc_perception.verify import measurement
from zc_perception.verify.measurement import Ending, Measurement, Roots, WatchedNode
from zc_perception.verify.observation import NodeView, Observation

EVERY = 40


class Pipeline:
    """
    Two nodes of this process, which make a frame and a copy at each wait.

    They tell their counters every few frames.

    :param every: the capture node, and the inference node some frames later.
    """

    def __init__(
        self, capture: FrameLog, inference: FrameLog, every: int = 5, later: int = 0
    ) -> None:
        self._capture, self._inference = capture, inference
        self._every, self._later = every, later
        self.frames = 0
        self.copies = 0

    def frame(self) -> None:
        """One."""
        self.frames += 1
        self.copies += 1
        now = time.monotonic_ns()
        frame = made_frame(self.frames, captured_ns=now, published_ns=now)
        self._capture.published(frame, now, now)
        self._inference.processed(
            made_entry(frame, now, now, now, handle=1, device_seqno=self.frames), now, now, now, 1
        )
        if self.frames % self._every == 0:
            self._describe(self._capture)
        if self.frames % self._every == self._later:
            self._describe(self._inference)

    def _describe(self, log: FrameLog) -> None:
        log.describe(
            {
                'copies': {'draw': {'count': self.copies, 'bytes': 1}},
                'processed': self.frames,
                'accelerator': 'axl',
            }
        )

    def book(self) -> None:
        """Book copies of a bystander, as the next counters tell."""
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
    """Measure this process's nodes for so many frames, on a kernel that shows nothing."""
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

        class Sampler:
            """Stands in for the sampler."""

            def start(self) -> None:
                made.book()

            def drain(self) -> None:
                made.book()

            def kept(self, pid: int) -> int:
                return 10**6

            def stop(self) -> dict[int, Any]:
                return {}

            def close(self) -> None:
                pass

        def wait(seconds: float) -> bool:
            made.frame()
            return False

        monkeypatch.setattr(measurement, 'open_sampler', lambda pids: Sampler())
        ending, seen = watch(tmp_path, wait)
    assert ending is Ending.FRAMES and made.copies > 1000
    assert [booked(node) < 1000 for node in seen.nodes] == [True, True]


@pytest.mark.parametrize('later', [0, 2])
def test_counters_and_frames_are_of_the_same_time(tmp_path: Path, later: int) -> None:
    with pipeline(every=EVERY, later=later) as made:

        def wait(seconds: float) -> bool:
            made.frame()
            return False

        _, seen = watch(tmp_path, wait, sampling=False)
    frames = len(seen.all_submitted())
    assert frames >= 20
    # Nothing of the window is missing. What is counted besides lies between the renewals of
    # several nodes.
    besides = 2 if not later else 2 * EVERY
    assert all(frames <= booked(node) <= frames + besides for node in seen.nodes)


def test_a_signal_does_not_cut_off_what_the_nodes_count(tmp_path: Path) -> None:
    with pipeline(every=7) as made:

        def wait(seconds: float) -> bool:
            made.frame()
            return made.frames > 30

        ending, seen = watch(tmp_path, wait, frames=0, sampling=False)
    frames = len(seen.all_submitted())
    assert ending is Ending.WANTED and frames > 7
    assert all(node.described and frames <= booked(node) <= frames + 2 for node in seen.nodes)


def test_jobs_in_flight_at_the_end_are_waited_for(tmp_path: Path) -> None:
    """The counters come at once, the frame's record later."""
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
                frame = made_frame(count)
                log.processed(
                    made_entry(frame, at, at, at, handle=1, device_seqno=count), at, at, at, 1
                )
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

        def wait(seconds: float) -> bool:
            made.frame()
            return False

        _, seen = watch(tmp_path, wait, sampling=False)
    assert 0 < seen.looked_ns < looks[0] < seen.start_ns


@contextmanager
def node(role: str = 'capture') -> Iterator[tuple[FrameLog, WatchedNode]]:
    with FrameLog(role, '/made/node') as log, find_frame_logs(pids=[os.getpid()]) as (reader,):
        log.describe({'n': 1})
        watched = WatchedNode(reader)
        watched.expect_facts()
        yield log, watched


def publish(log: FrameLog) -> None:
    log.published(made_frame(), 1, 1)


def test_counters_that_a_busy_node_does_not_renew_are_old() -> None:
    with node() as (log, watched):
        publish(log)
        watched.read()
        watched.keep_facts()
        assert (watched.described, watched.counted) == (False, False)


def test_a_node_that_ends_before_it_has_told_its_counters_has_ended() -> None:
    def view(end_first: bool) -> Any:
        with node() as (log, watched):
            for step in (
                (log.close, watched.keep_facts) if end_first else (watched.keep_facts, log.close)
            ):
                step()
                watched.read()
            return watched

    early, late = view(True), view(False)
    assert early.ended_ns > 0 and not early.counted
    assert late.ended_ns == 0 and late.counted
