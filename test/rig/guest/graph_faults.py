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
Faults while the whole graph streams: vivid camera → capture → link → axl → detections.

After each fault frames must go on or recover by themselves. The kernel must never have more
dma-bufs, nor the device more attachments, than before. The harness checks that nothing is left at
the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
import gc
from typing import Any

from waiting import until

from zc_perception.errors import ZcError

from .graph_variants import SINGLE, Variant
from .harness import check, equal, settles
from .kernel_api import bufinfo, live, parameters, pulled, unbound

CAPTURE = {'camera': 'v4l2', 'width': 640, 'height': 360, 'framerate': 10.0, 'slots': 12}


class Running:
    """A streaming graph, and the kernel's objects before any fault."""

    def __init__(self, graph: Any, baseline: set[int]) -> None:
        self.capture, self.inference = graph.capture, graph.inference
        self._baseline = baseline
        self.expect_frames(12)
        self._objects = len(self.objects)
        pool = self.capture.camera.pool
        # An import per slot, and a result buffer per job in flight.
        self._attachments = (
            len(pool.slots) * len(pool.slots[0].buffers) + self.inference.parameters['in_flight']
        )

    @property
    def objects(self) -> set[int]:
        return set(bufinfo()) - self._baseline

    def expect_frames(self, count: int = 6) -> None:
        wanted = self.inference.processed + count
        until(lambda: self.inference.processed >= wanted, f'{count} more frames')

    def expect_no_more_than_before(self) -> None:
        """Check dma-bufs against pool and results, and attachments against the pool's imports."""
        gc.collect()
        until(
            lambda: len(self.objects) <= self._objects,
            f'no more than {self._objects} dma-bufs, not {len(self.objects)}',
        )
        until(
            lambda: live()['attachments'] <= self._attachments,
            f'no more than {self._attachments} attachments',
        )


@contextmanager
def streaming_graph(timeout: float = 1.0, **capture: object) -> Iterator[Running]:
    """Start capture, inference and overlay in this process; *capture* replaces parameters."""
    # Only these checks need ROS, whose import takes long in the guest.
    from .graph_kit import ros, RunningGraph

    baseline = set(bufinfo())
    variant = Variant(
        0, True, {'device': SINGLE, **CAPTURE, **capture}, keep_all=False, timeout=timeout
    )
    with ros() as context, RunningGraph(context, variant) as running:
        running.start()
        yield Running(running.graph, baseline)
        assert not running.problems, running.problems


def _failing_jobs(running: Running) -> None:
    failed = running.inference.failed
    with parameters(fail_every=4):
        until(lambda: running.inference.failed >= failed + 3, 'three lost frames')
        running.expect_frames()


def _hanging_jobs(running: Running) -> None:
    inference = running.inference
    with parameters(hang_every=5):
        lost = inference.failed + inference.scheduler.statistics().losses
        until(
            lambda: inference.failed + inference.scheduler.statistics().losses >= lost + 2,
            'hangs show',
        )


def _pulled_card(running: Running) -> None:
    camera, state = running.capture.camera, lambda: running.inference.scheduler.state
    with pulled():
        until(lambda: state().recovering, 'the loss is noticed')
        equal(live()['attachments'], 0, 'attachments while there is no card')
        captured = camera.statistics().captured
        until(lambda: camera.statistics().captured > captured + 20, 'the camera streams on')
    until(lambda: not state().recovering, 'the card works again')


def _set(*controls: str) -> Callable[[Running], None]:
    def act(running: Running) -> None:
        supervisor = running.capture.supervisor
        losses = supervisor.condition.losses
        for control in controls:
            running.capture.camera.set_control(control, 0)
        if 'disconnect' in controls:
            until(lambda: supervisor.condition.losses > losses, 'it is noticed')

    return act


def _dropped_buffers(running: Running) -> None:
    camera = running.capture.camera
    camera.set_control('percentage_of_dropped_buffers', 50)
    lost = camera.statistics().lost
    until(lambda: camera.statistics().lost > lost + 5, 'lost frames are counted')
    camera.set_control('percentage_of_dropped_buffers', 0)


_STREAM_BREAKS_OFF = 'inject_fatal_streaming_error'
FAULTS: dict[str, Callable[[Running], None]] = {
    'jobs that fail': _failing_jobs,
    'jobs that hang': _hanging_jobs,
    'a card that is pulled': _pulled_card,
    'a bad frame': _set('inject_v4l2_buf_flag_error'),
    'a buffer that is not queued': _set('inject_vidioc_qbuf_error'),
    'a stream that breaks off': _set(_STREAM_BREAKS_OFF),
    'a stream that does not start at once': _set(
        'inject_vidioc_streamon_error', _STREAM_BREAKS_OFF
    ),
    'buffers that the driver drops': _dropped_buffers,
    'a camera that is unplugged': _set('disconnect'),
}


@check
def the_graph_survives_one_fault_after_the_other() -> None:
    with streaming_graph(timeout=0.3) as running:
        for name, act in FAULTS.items():
            print(f'          {name}', flush=True)
            act(running)
            # Wait past all frames that were in progress at that moment.
            running.expect_frames(8)
            running.expect_no_more_than_before()


@check
def a_graph_that_never_got_its_card_leaves_nothing() -> None:
    baseline = set(bufinfo())
    with unbound():
        try:
            with streaming_graph():
                raise AssertionError('accelerator: axl without a card did start')
        except ZcError as error:
            assert 'metis' in str(error).lower(), error
    gc.collect()
    settles(lambda: set(bufinfo()) - baseline, set(), 'dma-bufs')
