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

"""The diagnostics derived from the counters of a camera and of links, from report to report."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
import grp
import os
from pathlib import Path
import pwd
import signal
import time
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

from link.shared_memory.memory_link import RawPeer
from nodes.programs import parameters, Program
from nodes.ros_kit import Managed, ros, spun, status
import pytest
import rclpy
from rclpy.qos import QoSProfile
from waiting import until

from zc_perception.camera.camera import CameraOptions, CameraStatistics
from zc_perception.camera.clock import ClockStatistics, StampClock
from zc_perception.camera.supervisor import CameraCondition, CameraState
from zc_perception.camera.synthetic import SyntheticCamera
from zc_perception.errors import CameraBusyError, ConfigError
from zc_perception.frame import Frame
from zc_perception.link.announcement import Announcement, host_id, write_announcement
from zc_perception.link.endpoints import (
    AdaptedPublisher,
    AdaptedSubscription,
    discovery,
    SubscriptionStatistics,
)
from zc_perception.link.endpoints.remote_links import OTHER_HOST
from zc_perception.link.image_conversion import frame_adapter
from zc_perception.link.shared_memory import wire
from zc_perception.link.shared_memory.connection import ConsumerStatistics
from zc_perception.link.shared_memory.protocol import MessageType, Requirements
from zc_perception.link.shared_memory.server import SharedMemoryServer
from zc_perception.memory.heaps import SealedMemfd
from zc_perception.memory.ledger import CopyLedger
from zc_perception.memory.pool import Holding, PoolStatistics, SlotState
from zc_perception.nodes.capture import CaptureNode
from zc_perception.nodes.capture_status import (
    camera_status,
    CaptureCounters,
    clock_status,
    pool_status,
)
from zc_perception.nodes.declarations import NODES
from zc_perception.nodes.frame_links import FrameServer, group_ids, subscription_status, user_ids
from zc_perception.observe import metrics
from zc_perception.observe.diagnostics import Level, Status
from zc_perception.observe.metrics import RecentCount
from zc_perception.pixel.fourcc import fourcc_code

TARGET = 20.0


class Desk:
    """A camera with the attributes that diagnostics read, a clock, and the counters of it."""

    def __init__(self, **facts: object) -> None:
        self.now = 100.0
        self.counters = CaptureCounters(lambda: self.now)
        self.open(**facts)

    def open(self, **facts: object) -> None:  # noqa: A003
        self.counts = {'captured': 0, 'dropped': 0, 'late': 0}
        self.camera: Any = SimpleNamespace(
            device='double',
            identity='double',
            width=64,
            height=48,
            framerate=TARGET,
            clock=StampClock(lambda: 1),
            facts=lambda: facts,
            statistics=lambda: CameraStatistics(**self.counts),
        )
        self.counters.begin(self.camera)

    def look(
        self,
        after_s: float = 1.0,
        *,
        paced: bool = True,
        state: CameraState = CameraState.STREAMING,
        **counts: int,
    ) -> Status:
        self.now += after_s
        for name, number in counts.items():
            self.counts[name] = self.counts.get(name, 0) + number
        condition = CameraCondition(state, 'unplugged' if state is CameraState.LOST else '')
        return camera_status(self.camera, condition, self.counters, started=True, paced=paced)


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
    assert after.values['captured'] == 80 + counts.get('captured', 0)
    assert after.values['framerate'] == '20.00'


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


def test_copies_of_all_frames_and_recorded_stamps_that_say_nothing_are_warnings() -> None:
    desk, copied = Desk(copy_reason='x:Memory'), 'every frame is copied by the CPU: x:Memory'
    status = desk.look(captured=20)
    assert (status.level, status.message) == (Level.WARN, copied)
    assert desk.look(captured=19, bad=1).message.endswith(f'1 bad; {copied}')
    trouble = "'a.mcap: /i' has stamps that are 0"
    status = Desk(stamp_trouble=trouble).look(captured=20)
    assert (status.level, status.message) == (Level.WARN, trouble)
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


def pooled(**counts: Any) -> Any:
    states = {SlotState.FREE: 1, SlotState.LEASED: 3}
    found = PoolStatistics(4, states, {'inference': 2}, 0, {}, 0, 0)
    held = (
        Holding('inference', 0, 7, 0.5),
        Holding('inference', 2, 7, 4.25),
        Holding('overlay', 0, 7, 0.1),
        Holding('camera', 1, 7, 0.01),
    )
    return SimpleNamespace(
        device='double',
        identity='double',
        heap_name='dma_heap/system',
        pool=Mock(holdings=lambda: held),
        pool_statistics=lambda: replace(found, **counts),
    )


def clocked(**counts: int) -> Any:
    camera = Mock(identity='double')
    camera.clock.statistics.return_value = ClockStatistics(**counts)
    return camera


def status_of_clock(camera: Any, counters: CaptureCounters) -> Status:
    return clock_status(camera, counters, 1)


POOL, CLOCK = (pooled, pool_status), (clocked, status_of_clock)


@pytest.mark.parametrize(
    ('of', 'counts', 'message', 'advice'),
    [
        (
            POOL,
            {'exhausted': 3},
            'no slot was free for 3 frame(s) lately: inference',
            'release frames',
        ),
        (
            POOL,
            {'abandoned': 1},
            '1 frame(s) were forgotten lately, not released',
            'call frame.release',
        ),
        (POOL, {'retired': 1}, '1 slot(s) were retired and 0 release fence(s) failed', 'dmesg'),
        (POOL, {'fence_errors': 2}, 'retired and 2 release fence(s) failed lately', 'dmesg'),
        (POOL, {'failures': 1, 'last_failure': 'full'}, 'retired: full', 'make room in the heap'),
        (CLOCK, {'steps': 1}, 'the ROS clock was set 1 time(s) lately', ''),
        (
            CLOCK,
            {'steps': 2, 'ahead_ns': 5_000_000},
            'set 2 time(s) lately, stamps are 5.0 ms ahead until the ROS clock catches up',
            '',
        ),
        (CLOCK, {'implausible': 4}, '4 stamp(s) of the driver lay in the future or far in', ''),
    ],
)
def test_what_goes_wrong_with_slots_and_clocks_is_said_for_a_while(
    of: tuple[Callable[..., Any], Callable[..., Status]],
    counts: dict[str, Any],
    message: str,
    advice: str,
) -> None:
    camera, look = of
    now = [10.0]
    counters, seen = CaptureCounters(lambda: now[0]), camera(**counts)
    well = look(camera(), counters)
    assert (well.level, well.hardware_id) == (Level.OK, 'double')
    status = look(seen, counters)
    assert status.level is Level.WARN and message in status.message
    assert status.advice and advice in status.advice and status.hardware_id == 'double'
    now[0] += 2.9
    assert look(seen, counters).level is Level.WARN
    now[0] += 0.2
    after = look(seen, counters)
    assert (after.level, after.message) == (Level.OK, well.message)


def test_a_pool_says_who_holds_what_for_how_long() -> None:
    camera = pooled()
    values = pool_status(camera, CaptureCounters()).values
    assert values['holders'].startswith(
        'inference holds 2 slot(s), the longest for 4.25 s, overlay holds 1 slot(s), the longest '
        'for 0.10 s'
    )
    assert (values['slots'], values['free'], values['heap']) == (4, 1, 'dma_heap/system')
    assert values['slot 2'] == 'inference for 4.250 s' and values['slot 1'] == 'camera for 0.010 s'
    camera.heap_name = 'memfd'
    message = pool_status(camera, CaptureCounters()).message
    assert message.startswith('memfd: ordinary memory, no dma-buf')
    assert pool_status(None, CaptureCounters()).level is Level.WARN


def test_a_silent_camera_is_an_error_a_second_later_however_often_one_looks() -> None:
    desk = Desk()
    for _ in range(15):
        assert desk.look(0.2, captured=4).level is Level.OK
    levels = [desk.look(0.2).level for _ in range(10)]
    assert levels.index(Level.ERROR) <= 5, 'within 1.2 s'
    assert set(levels[5:]) == {Level.ERROR}
    assert [desk.look(0.2, captured=4).level for _ in range(6)][-1] is Level.OK


def test_another_camera_on_the_topic_is_warned_of_at_both_ends_until_it_is_gone(
    run: Managed, free_domain: int
) -> None:
    capture = run.make(CaptureNode, {'framerate': 5.0})
    capture.start()
    assert status(capture, 'link').level is Level.OK
    words = *parameters(framerate='5.0'), '-r', '__node:=second'
    with Program('capture_node', *words, domain=free_domain).start(': ready') as other:
        rival = "'/image_raw' has another publisher "
        until(lambda: f'{rival}(/second)' in status(capture, 'link').message, 'a warning')
        warned = status(capture, 'link')
        assert warned.level is Level.WARN and 'ROS_DOMAIN_ID' in warned.advice
        until(lambda: f'{rival}(/capture)' in other.output, 'a line of the second camera')
        assert other.output.count(f'{rival}(/capture)') == 1, 'once, not at each look'
        assert not [name for name in warned.values if name.startswith('protocol_error')], (
            'to be asked whether it listens is no fault'
        )
        other.process.send_signal(signal.SIGKILL)
        other.process.wait(60)
        # Fast DDS keeps a killed publisher in the graph for 20 s.
        until(lambda: status(capture, 'link').level is Level.OK, 'the end of it', 18.0)
    assert capture.get_publishers_info_by_topic('/image_raw/_zc'), 'the graph was asked'


def test_a_camera_without_ros_on_the_topic_is_warned_of_too(
    run: Managed, free_domain: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, '_REFRESH_S', 0.0)
    capture = run.make(CaptureNode, {})
    capture.start()
    assert status(capture, 'link').level is Level.OK
    with SharedMemoryServer('in_c', 'c' * 32) as server:
        announced = Announcement(server.publisher_id, host_id(), str(server.path), 1, 1, (), '')
        write_announcement(announced, '/image_raw', free_domain)
        warned = status(capture, 'link')
        assert 'another publisher (a program that is not in the ROS graph)' in warned.message
    assert status(capture, 'link').level is Level.OK


YUYV = fourcc_code('YUYV'), 0


class Node(CaptureNode):
    """A node whose camera offers YUYV, too, but can't be opened while a consumer wants it."""

    def __init__(self, **options: Any) -> None:
        self.busy: list[bool] = []
        super().__init__(camera_factory=self._new, **options)

    def _new(self, identity: str) -> SyntheticCamera:
        self.busy.append(any(YUYV in (each.formats or ()) for each in self._known_consumers()))
        if self.busy[-1]:
            raise CameraBusyError('the driver has no such mode')
        drawn = {'heap': SealedMemfd(), 'now_ns': time.time_ns, 'ledger': CopyLedger()}
        camera = SyntheticCamera(128, 96, 60.0, 'lens', seed=1, pattern='counter', **drawn)
        own = camera.constraints()
        camera.possible = lambda: replace(own, formats=(*own.formats, YUYV))
        return camera


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


# How the nodes use the links: their reports, and which users may get frames.
def test_groups_and_users_are_given_by_name_or_number_and_who_does_not_exist_is_named() -> None:
    group, user = grp.getgrgid(os.getgid()), pwd.getpwuid(os.getuid())
    assert group_ids(group.gr_name) == group_ids(str(group.gr_gid)) == [group.gr_gid]
    assert group_ids('') == []
    assert user_ids([user.pw_name, str(user.pw_uid)]) == [user.pw_uid, user.pw_uid]
    with pytest.raises(ConfigError, match="_group': there is no group 'nobodys'; see /etc/group"):
        group_ids('nobodys')
    with pytest.raises(ConfigError, match="_users': there is no user 'no-one'; see /etc/passwd"):
        user_ids(['no-one'])


@pytest.fixture
def served(context: rclpy.Context) -> Iterator[Any]:
    """Yield a publisher and its server, as diagnostics see them; a test sets the counts."""
    node = rclpy.create_node('capture', context=context)
    values: Any = {'shared_memory': True, 'shared_memory_group': '', 'quarantine': 1.0}
    adapter = frame_adapter('rgb8', CopyLedger(), holder='capture')
    publisher = AdaptedPublisher(node, adapter, 'image_raw', QoSProfile(depth=1))
    links = FrameServer(node, values, publisher)
    topic = SimpleNamespace(node=node, publisher=publisher, links=links, counted={})
    assert links.server is not None
    real = links.server.statistics
    links.server.statistics = lambda: replace(real(), **topic.counted)  # type: ignore
    yield topic
    publisher.destroy()
    node.destroy_node()


@pytest.mark.parametrize(
    ('counted', 'words', 'advice'),
    [
        (
            {'refused': {'not_allowed': 2}},
            'consumers were refused 2 time(s) lately: not_allowed',
            "'shared_memory_group'",
        ),
        ({'refused': {'constraints': 1}}, '1 time(s) lately: constraints', 'the refusal names'),
        (
            {'protocol_errors': {'state': 1, 'value': 2}},
            'peers broke a rule of the protocol 3 time(s)',
            'same version',
        ),
        ({'internal_errors': 1, 'last_internal_error': 'KeyError: 7'}, 'KeyError: 7', 'report'),
    ],
)
def test_trouble_with_consumers_is_a_warning_for_a_while(
    served: Any,
    counted: dict[str, Any],
    words: str,
    advice: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert served.links.status().level is Level.OK
    served.counted = counted
    status = served.links.status()
    assert status.level is Level.WARN and words in status.message and advice in status.advice
    monkeypatch.setattr(metrics, 'RECENT_S', 0.0)
    assert served.links.status().level is Level.OK, 'what was is not said for ever'


def test_consumers_are_named_with_their_rung_and_what_they_lost(
    served: Any, make_frame: Callable[..., Frame]
) -> None:
    remote = ConsumerStatistics(
        'overlay', 'x', 42, 0, 2, 2, 1, held=1, pending=0, sent=9, dropped=3, trusted_writer=True
    )
    narrow = replace(remote, name='tracker elsewhere', asked=3, trusted_writer=False)
    served.counted = {'consumers': (remote, narrow)}
    adapter = frame_adapter('rgb8', CopyLedger(), holder='tracker')
    subscription = AdaptedSubscription(
        served.node, adapter, 'image_raw', QoSProfile(depth=1), holder='tracker'
    )
    for _ in range(3):
        with make_frame() as frame:
            served.publisher.publish(frame)
    status = served.links.status()
    elsewhere = 'shared_memory, pid 42, sent 9, dropped 3, holds 1 of 2'
    for name, said in (
        (
            'tracker',
            'in_process, sent 3, dropped 2, refused because of its quota: 0, holds 0 of 1',
        ),
        ('overlay', elsewhere),
        ('tracker elsewhere', f'{elsewhere}, asked for 3'),
    ):
        assert status.values[f'consumer {name}'] == said
    can_write = 'consumers (overlay) can write to the buffers; the heap cannot prevent it'
    assert (status.level, status.message) == (Level.OK, can_write)
    subscription.destroy()


def test_an_announcement_that_can_not_be_written_is_a_warning(served: Any) -> None:
    served.publisher.announcer.unannounced = 'No space left on device'
    status = served.links.status()
    assert status.level is Level.WARN and 'free room in' in status.advice
    assert status.message == (
        "the file that announces the socket can't be written: No space left on device"
    )


def _subscription(rung: str, reason: str, errors: int = 0, **window: int) -> Any:
    found = SubscriptionStatistics(rung, reason, 5, 1, 2, errors, **window)
    return SimpleNamespace(statistics=lambda: found)


@pytest.mark.parametrize(
    ('rung', 'reason', 'level', 'advice'),
    [
        ('shared_memory', 'publisher 1a2b is in another process of this host', Level.OK, ''),
        (
            'ros_message',
            '/driver is a plain publisher: stop it',
            Level.WARN,
            'each frame is copied',
        ),
        ('ros_message', f'publisher 1a2b: {OTHER_HOST}', Level.OK, ''),
        ('unmatched', 'no publisher', Level.WARN, 'start the camera'),
        (
            'unmatched',
            "connecting to publisher 1a2b: the link can't be made; raise the limit ('ulimit -n')",
            Level.WARN,
            'if this lasts',
        ),
        (
            'refused',
            'copy_free is required, but ...',
            Level.ERROR,
            "set 'copy_free' to 'preferred'",
        ),
    ],
)
def test_each_rung_has_its_level_and_advice(
    rung: str, reason: str, level: Level, advice: str
) -> None:
    status = subscription_status(_subscription(rung, reason), RecentCount())
    assert status.level is level and status.message == f'{rung}: {reason}'
    assert advice in status.advice and bool(status.advice) is (level is not Level.OK)
    assert status.values['conversions'] == 2 and status.values['dropped_newest_wins'] == 1


@pytest.mark.parametrize('rung', ['shared_memory', 'in_process'])
def test_lost_messages_and_a_small_window_are_warnings_as_long_as_it_is_so(rung: str) -> None:
    errors = RecentCount()

    def look(failed: int = 4, **window: int) -> Status:
        return subscription_status(_subscription(rung, 'x', failed, **window), errors)

    before = look(1)
    assert before.level is Level.OK and 'window' not in before.values, 'nobody grants anything'
    status = look()
    assert status.level is Level.WARN and status.advice
    assert status.message.startswith('3 message(s) could not be converted lately')
    errors = RecentCount()
    status = look(window=2, asked=3)
    assert status.level is Level.WARN
    assert 'may hold 2 frame(s) at a time, 3 were asked for' in status.message
    assert "'slots'" in status.advice and 'end other consumers' in status.advice
    assert [status.values[name] for name in ('window', 'window_asked', 'reason')] == [2, 3, 'x']
    status = look(window=3, asked=3)
    assert (status.level, status.advice, status.values['window']) == (Level.OK, '', 3)
