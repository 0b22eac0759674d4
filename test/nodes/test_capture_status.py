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

"""The diagnostics derived from a camera's counters, from one report to the next."""

from __future__ import annotations

from dataclasses import replace
import os
from pathlib import Path
import signal
import time
from typing import Any, cast
from unittest.mock import Mock

from link.shared_memory.memory_link import RawPeer
from nodes.managed import Managed, status
from nodes.programs import parameters, Program
from nodes.ros_kit import ros, spun
import pytest
from waiting import until

from zc_perception.camera.camera import Camera, CameraOptions, CameraStatistics
from zc_perception.camera.clock import ClockStatistics, StampClock
from zc_perception.camera.supervisor import CameraCondition, CameraState
from zc_perception.camera.synthetic import SyntheticCamera
from zc_perception.errors import CameraBusyError
from zc_perception.link.shared_memory import wire
from zc_perception.link.shared_memory.protocol import MessageType, Requirements
from zc_perception.memory.heaps import SealedMemfd
from zc_perception.memory.ledger import CopyLedger
from zc_perception.memory.pool import Holding, PoolStatistics, SlotState
from zc_perception.negotiation.constraints import BufferConstraints
from zc_perception.nodes.capture import CaptureNode
from zc_perception.nodes.capture_status import (
    camera_status,
    CaptureCounters,
    clock_status,
    pool_status,
)
from zc_perception.nodes.declarations import NODES
from zc_perception.observe.diagnostics import Level, Status
from zc_perception.pixel.fourcc import fourcc_code

TARGET = 20.0


class CountingCamera:
    """A camera with only the attributes that diagnostics read."""

    device = identity = 'double'
    width, height, framerate = 64, 48, TARGET

    def __init__(self, **facts: object) -> None:
        self.clock = StampClock(lambda: 1)
        self._facts = facts
        self._counts: dict[str, int] = {}

    def facts(self) -> dict[str, object]:
        return self._facts

    def statistics(self) -> CameraStatistics:
        return CameraStatistics(**{'captured': 0, 'dropped': 0, 'late': 0, **self._counts})

    def count(self, **more: int) -> None:
        for name, number in more.items():
            self._counts[name] = self._counts.get(name, 0) + number


class Desk:
    """A camera, a clock, and the counters that diagnostics keep of it."""

    def __init__(self, **facts: object) -> None:
        self.now = 100.0
        self.counters = CaptureCounters(lambda: self.now)
        self.open(**facts)

    def open(self, **facts: object) -> None:  # noqa: A003
        self.camera = CountingCamera(**facts)
        self.counters.begin(cast(Camera, self.camera))

    def look(
        self,
        after_s: float = 1.0,
        *,
        paced: bool = True,
        state: CameraState = CameraState.STREAMING,
        **counts: int,
    ) -> Status:
        self.now += after_s
        self.camera.count(**counts)
        condition = CameraCondition(state, 'unplugged' if state is CameraState.LOST else '')
        return camera_status(
            cast(Camera, self.camera), condition, self.counters, started=True, paced=paced
        )


@pytest.mark.parametrize(
    ('counts', 'level', 'message', 'advice'),
    [
        ({'captured': 18, 'late': 2}, Level.OK, 'streaming', ''),
        ({'captured': 16, 'no_slot': 4}, Level.WARN, '4 without a free slot', "parameter 'slots'"),
        (
            {'captured': 17, 'bad': 1, 'lost': 2},
            Level.WARN,
            'frames left out lately: 1 bad; frames left out lately: 2 lost by the driver',
            'cable',
        ),
        ({'bad': 20}, Level.ERROR, 'no good frame comes any more, 20 bad frame(s) came', 'cable'),
        ({'no_slot': 20}, Level.ERROR, 'no slot is free, 20 frame(s) were', "parameter 'slots'"),
        ({'captured': 10}, Level.OK, 'streaming', ''),
        (
            {'captured': 5, 'bad': 15},
            Level.WARN,
            "only 25 % of the camera's framerate comes; frames left out lately: 15 bad",
            'cable',
        ),
        ({}, Level.ERROR, 'no frame comes', 'cable'),
    ],
)
def test_a_second_of_streaming(
    counts: dict[str, int], level: Level, message: str, advice: str
) -> None:
    desk = Desk()
    assert desk.look(captured=20).level is Level.OK
    status = desk.look(**counts)
    assert status.level is level and message in status.message and advice in status.advice
    assert bool(status.advice) is (level is not Level.OK)
    for _ in range(2):
        desk.look(captured=20)
    after = desk.look(captured=20)
    assert (after.level, after.message, after.advice) == (Level.OK, 'streaming', ''), (
        'what was is not said for ever'
    )
    assert (
        after.values['captured'] == 80 + counts.get('captured', 0)
        and after.values['framerate'] == '20.00'
    )


def test_the_time_of_a_loss_and_of_a_start_does_not_count() -> None:
    desk = Desk()
    assert desk.look(30.0, state=CameraState.CLOSED).message == 'waits for the first frame'
    assert desk.look(captured=1).level is Level.OK, 'it has just begun'
    assert desk.look(captured=20).level is Level.OK
    assert desk.look(30.0, state=CameraState.LOST).level is Level.ERROR
    assert desk.look(captured=1).level is Level.OK
    desk.open()
    assert desk.look(captured=1).level is Level.OK, 'opened anew between two looks'


@pytest.mark.parametrize('unpaced', [{'paced': False}, {}])
def test_who_has_no_rate_can_not_be_too_slow(unpaced: dict[str, Any]) -> None:
    desk = Desk()
    desk.camera.framerate = TARGET if unpaced else 0.0
    assert [desk.look(5.0, **unpaced).level for _ in range(3)] == [Level.OK] * 3
    assert desk.look(bad=1, **unpaced).level is Level.ERROR, 'bad frames are bad without a rate'


def test_a_pipeline_whose_frames_are_all_copied_is_a_warning() -> None:
    desk = Desk(copy_reason='memory:SystemMemory')
    status = desk.look(captured=20)
    copied = 'every frame is copied by the CPU: memory:SystemMemory'
    assert (status.level, status.message) == (Level.WARN, copied)
    assert desk.look(captured=19, bad=1).message.endswith(f'1 bad; {copied}')


def test_recorded_stamps_that_say_nothing_are_a_warning() -> None:
    status = Desk(stamp_trouble="'a.mcap: /i' has stamps that are 0").look(captured=20)
    assert status.level is Level.WARN and status.message == "'a.mcap: /i' has stamps that are 0"
    assert "set 'stamps' to now" in status.advice


def test_a_slow_pipeline_is_not_silent() -> None:
    defaults = {spec.name: spec.default for spec in NODES['capture']}
    for values, expected in (
        ({'framerate': 30.0}, 5.0),
        ({'framerate': 0.5}, 20.0),
        ({'framerate': 0.5, 'silent': 3.0}, 3.0),
    ):
        options = CameraOptions({**defaults, **values}, time.time_ns, CopyLedger())
        assert options.pipeline_silence_s() == expected


class PooledCamera(CountingCamera):
    heap_name = 'dma_heap/system'

    def __init__(self) -> None:
        super().__init__()
        self.found = PoolStatistics(
            4, {SlotState.FREE: 1, SlotState.LEASED: 3}, {'inference': 2}, 0, {}, 0, 0
        )
        held = [
            ('inference', 0, 0.5),
            ('inference', 2, 4.25),
            ('overlay', 0, 0.1),
            ('camera', 1, 0.01),
        ]
        self.pool = Mock(
            holdings=lambda: tuple(Holding(who, index, 7, seconds) for who, index, seconds in held)
        )

    def pool_statistics(self) -> PoolStatistics:
        return self.found

    def has(self, **counts: Any) -> None:
        self.found = replace(self.found, **counts)


def look_at_pool(camera: PooledCamera, counters: CaptureCounters) -> Status:
    return pool_status(cast(Camera, camera), counters)


@pytest.mark.parametrize(
    ('counts', 'message', 'advice'),
    [
        ({'exhausted': 3}, 'no slot was free for 3 frame(s) lately: inference', 'release frames'),
        ({'abandoned': 1}, '1 frame(s) were forgotten lately, not released', 'call frame.release'),
        ({'retired': 1}, '1 slot(s) were retired and 0 release fence(s) failed lately', 'dmesg'),
        ({'fence_errors': 2}, 'retired and 2 release fence(s) failed lately', 'dmesg'),
        ({'failures': 1, 'last_failure': 'no memory'}, 'given back: no memory', 'free memory'),
    ],
)
def test_what_goes_wrong_with_slots_is_said_for_a_while(
    counts: dict[str, Any], message: str, advice: str
) -> None:
    now = [10.0]
    counters, camera = CaptureCounters(lambda: now[0]), PooledCamera()
    assert look_at_pool(camera, counters).level is Level.OK
    camera.has(**counts)
    status = look_at_pool(camera, counters)
    assert status.level is Level.WARN and message in status.message and advice in status.advice
    now[0] += 2.9
    assert look_at_pool(camera, counters).level is Level.WARN
    now[0] += 0.2
    assert (look_at_pool(camera, counters).level, look_at_pool(camera, counters).message) == (
        Level.OK,
        'dma-bufs',
    )


def test_a_pool_says_who_holds_what_for_how_long() -> None:
    camera = PooledCamera()
    values = look_at_pool(camera, CaptureCounters()).values
    assert values['holders'].startswith(
        'inference holds 2 slot(s) for up to 4.25 s, overlay holds 1 slot(s) for up to 0.10 s'
    )
    assert (values['slots'], values['free'], values['heap']) == (4, 1, 'dma_heap/system')
    assert values['slot 2'] == 'inference for 4.250 s' and values['slot 1'] == 'camera for 0.010 s'
    camera.heap_name = 'memfd'
    assert look_at_pool(camera, CaptureCounters()).message.startswith(
        'memfd: ordinary memory, no dma-buf'
    )
    assert pool_status(None, CaptureCounters()).level is Level.WARN


@pytest.mark.parametrize(
    ('counted', 'message'),
    [
        (ClockStatistics(steps=1), 'the ROS clock was set 1 time(s) lately'),
        (
            ClockStatistics(steps=2, ahead_ns=5_000_000),
            'set 2 time(s) lately, stamps are 5.0 ms ahead until it has caught up',
        ),
        (
            ClockStatistics(implausible=4),
            '4 stamp(s) of the driver lay in the future or far in the past lately',
        ),
    ],
)
def test_a_clock_that_is_not_steady_is_a_warning_for_a_while(
    counted: ClockStatistics, message: str
) -> None:
    now = [10.0]
    counters, camera = CaptureCounters(lambda: now[0]), Mock(identity='serial 7')
    camera.clock.statistics.return_value = ClockStatistics()
    assert clock_status(camera, counters, 1).level is Level.OK
    camera.clock.statistics.return_value = counted
    status = clock_status(camera, counters, 1)
    assert (
        status.level is Level.WARN
        and message in status.message
        and status.advice
        and status.hardware_id == 'serial 7'
    )
    now[0] += 3.1
    assert clock_status(camera, counters, 1).level is Level.OK


def test_a_silent_camera_is_an_error_a_second_later_however_often_one_looks() -> None:
    desk = Desk()
    for _ in range(15):
        assert desk.look(0.2, captured=4).level is Level.OK
    levels = [desk.look(0.2).level for _ in range(10)]
    assert levels.index(Level.ERROR) <= 5, 'within 1.2 s'
    assert levels[slice(levels.index(Level.ERROR), None)] == [Level.ERROR] * (
        10 - levels.index(Level.ERROR)
    )
    assert [desk.look(0.2, captured=4).level for _ in range(6)][-1] is Level.OK


# Two cameras on one topic: each warns until the other one has ended.


# Fast DDS keeps a killed publisher in the graph for 20 s.
SOON_S = 18.0


def test_another_camera_on_the_topic_is_warned_of_at_both_ends_until_it_is_gone(
    run: Managed, free_domain: int
) -> None:
    capture = run.make(CaptureNode, {'framerate': 5.0})
    capture.start()
    assert status(capture, 'link').level is Level.OK
    words = *parameters(framerate='5.0'), '-r', '__node:=second'
    with Program('capture_node', *words, domain=free_domain).start(': ready') as other:
        rival = "'/image_raw' has another publisher "
        until(
            lambda: f'{rival}(/second)' in status(capture, 'link').message,
            'a warning of the second camera',
        )
        warned = status(capture, 'link')
        assert warned.level is Level.WARN and 'ROS_DOMAIN_ID' in warned.advice
        until(lambda: f'{rival}(/capture)' in other.output, 'a line of the second camera')
        assert other.output.count(f'{rival}(/capture)') == 1, 'once, not at each look'
        assert not [name for name in warned.values if name.startswith('protocol_error')], (
            'to be asked whether it listens is no fault'
        )
        other.process.send_signal(signal.SIGKILL)
        other.process.wait(60)
        until(lambda: status(capture, 'link').level is Level.OK, 'the end of it', SOON_S)
    assert capture.get_publishers_info_by_topic('/image_raw/_zc'), 'the graph was asked'


# The camera must be reopened for other buffers, which fails, or works only once.


YUYV = fourcc_code('YUYV'), 0


class Sensor(SyntheticCamera):
    """A camera that offers another format once it is reopened."""

    def __init__(self) -> None:
        super().__init__(
            128,
            96,
            60.0,
            'lens',
            seed=1,
            pattern='counter',
            heap=SealedMemfd(),
            now_ns=time.time_ns,
            ledger=CopyLedger(),
        )

    def possible(self) -> BufferConstraints:
        found = self.constraints()
        return replace(found, formats=(*(found.formats or ()), YUYV))


class Node(CaptureNode):
    """A node whose camera can't be opened while a consumer wants YUYV."""

    def __init__(self, **options: Any) -> None:
        self.busy: list[bool] = []
        super().__init__(camera_factory=self._new, **options)

    def _new(self, identity: str) -> Sensor:
        self.busy.append(any(YUYV in (each.formats or ()) for each in self._known_consumers()))
        if self.busy[-1]:
            raise CameraBusyError('the driver has no such mode')
        return Sensor()


def take_frames(peer: RawPeer, count: int) -> None:
    while count:
        packet, fds = peer.receive()
        for fd in fds:
            os.close(fd)
        if wire.message_type(packet) is MessageType.FRAME:
            uid, generation = wire.parse_frame(packet, len(packet))[3:5]
            peer.send(wire.pack_release(uid, generation, False))
            count -= 1


def test_who_waits_for_what_the_camera_can_not_be_opened_for_is_refused_and_the_others_go_on(
    free_domain: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('ZC_RUNTIME_DIR', str(tmp_path))
    with ros(free_domain) as context:
        node = Node(context=context)
        with spun(context, node):
            assert node._server is not None and node._server.server is not None
            path = node._server.server.path
            until(lambda: node.session is not None)
            with RawPeer.welcomed(path) as witness, RawPeer.connected(path) as late:
                take_frames(witness, 3)
                late.hello(waits=True, requirements=Requirements(formats=(YUYV,)))
                assert late.receive_type() is MessageType.NOTED
                refused = late.receive_refused()
                assert refused.code == 3 and 'no such mode' in refused.text
            until(lambda: node.busy == [False, True, False])
            with RawPeer.connected(path) as witness:
                witness.hello(waits=True)
                take_frames(witness, 3)
