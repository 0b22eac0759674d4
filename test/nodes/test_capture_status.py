"""What diagnostics make of a camera's counters, from look to look."""

from __future__ import annotations

import time
from typing import Any, cast
from unittest.mock import Mock, create_autospec

import pytest
import rclpy

from zc_perception.camera.camera import Camera, CameraStatistics
from zc_perception.camera.clock import StampClock
from zc_perception.camera.supervisor import CameraCondition, CameraState
from zc_perception.camera.synthetic import SyntheticCamera
from zc_perception.memory.heaps import SealedMemfd
from zc_perception.memory.ledger import CopyLedger
from zc_perception.nodes import camera_factory
from zc_perception.nodes.camera_factory import CAMERA_SPECS, CameraFactory
from zc_perception.nodes.capture import CaptureNode
from zc_perception.nodes.capture_status import CaptureCounters, camera_status
from zc_perception.observe.diagnostics import Level, Status

TARGET = 20.0


class CountingCamera:
    """Nothing but what diagnostics read."""

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
    """A camera, and who looks at it every now and then."""

    def __init__(self, **facts: object) -> None:
        self.now = 100.0
        self.counters = CaptureCounters(lambda: self.now)
        self.open(**facts)

    def open(self, **facts: object) -> None:
        self.camera = CountingCamera(**facts)
        self.counters.begin(cast(Camera, self.camera))

    def look(self, after_s: float = 1.0, *, paced: bool = True, state: CameraState = CameraState.STREAMING, **counts: int) -> Status:
        self.now += after_s
        self.camera.count(**counts)
        condition = CameraCondition(state, 'unplugged' if state is CameraState.LOST else '')
        return camera_status(cast(Camera, self.camera), condition, self.counters, started=True, paced=paced)


@pytest.mark.parametrize(
    ('counts', 'level', 'message'),
    [
        ({'captured': 20}, Level.OK, 'streaming'),
        ({'captured': 18, 'late': 2}, Level.OK, 'streaming'),
        ({'captured': 19, 'bad': 1}, Level.WARN, 'left out since the last look: 1 bad'),
        ({'captured': 17, 'lost': 3}, Level.WARN, '3 lost by the driver'),
        ({'captured': 16, 'no_slot': 4}, Level.WARN, "4 without a free slot (raise parameter 'slots'"),
        ({'captured': 17, 'bad': 1, 'lost': 2}, Level.WARN, '1 bad, 2 lost by the driver'),
        ({'bad': 20}, Level.ERROR, 'no good frame: all 20 since the last look are bad'),
        ({'captured': 10}, Level.OK, 'streaming'),
        ({'captured': 5}, Level.WARN, 'only 25 % of its framerate comes'),
        ({'captured': 5, 'bad': 15}, Level.WARN, 'only 25 % of its framerate comes; frames left out since the last look: 15 bad'),
        ({}, Level.ERROR, 'no frame comes'),
    ],
)
def test_a_second_of_streaming(counts: dict[str, int], level: Level, message: str) -> None:
    desk = Desk()
    assert desk.look(captured=20).level is Level.OK
    status = desk.look(**counts)
    assert status.level is level and message in status.message
    after = desk.look(captured=20)
    assert (after.level, after.message) == (Level.OK, 'streaming'), 'what was is not said again'
    assert after.values['captured'] == 40 + counts.get('captured', 0) and after.values['framerate'] == '20.00'


def test_the_rate_is_judged_over_enough_time_and_its_judgement_lasts_until_the_next() -> None:
    desk = Desk()
    desk.look(captured=1)
    assert desk.look(0.3).level is Level.OK, 'too short'
    assert desk.look(0.8, captured=2).level is Level.WARN
    assert desk.look(0.1, captured=2).level is Level.WARN
    assert desk.look(0.9, captured=20).level is Level.OK


def test_a_slow_camera_gets_time_for_ten_frames() -> None:
    desk = Desk()
    desk.camera.framerate = 0.5
    assert [desk.look(4.0).level for _ in range(6)] == [Level.OK] * 5 + [Level.ERROR]


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
    assert (status.level, status.message) == (Level.WARN, 'every frame is copied by the CPU: memory:SystemMemory')
    assert desk.look(captured=19, bad=1).message.endswith('1 bad; every frame is copied by the CPU: memory:SystemMemory')
    assert Desk(copy_reason='').look(captured=20).level is Level.OK


class TalkingCamera(SyntheticCamera):
    said: tuple[str, ...] = ('the recording has no end',)

    def notices(self) -> tuple[str, ...]:
        return self.said


def test_what_a_camera_has_to_say_is_said_once_and_also_when_it_comes_later(free_domain: int, monkeypatch: pytest.MonkeyPatch) -> None:
    camera = TalkingCamera(64, 64, 30.0, 'lens', seed=1, heap=SealedMemfd(), now_ns=time.time_ns, ledger=CopyLedger())
    context = rclpy.Context()
    rclpy.init(context=context, domain_id=free_domain)
    logger = Mock()
    monkeypatch.setattr(CaptureNode, 'get_logger', lambda node: logger)
    node = CaptureNode(camera_factory=lambda identity: camera, context=context)

    def said() -> list[str]:
        return [call.args[0] for call in logger.warning.call_args_list if 'not calibrated' not in call.args[0]]

    try:
        node.configure()
        assert said() == ['the recording has no end']
        camera.said = (*camera.said, 'ran out of buffers 3 times')
        for _ in range(2):
            node.collect_diagnostics()
        assert said() == list(camera.said)
    finally:
        node.stop()
        node.destroy_node()
        context.try_shutdown()


@pytest.mark.parametrize(
    ('values', 'expected'),
    [({}, 5.0), ({'framerate': 30.0}, 5.0), ({'framerate': 0.5}, 20.0), ({'framerate': 0.5, 'silent': 3.0}, 3.0)],
)
@pytest.mark.parametrize('kind', ['GStreamerCamera', 'ArgusCamera', 'LibcameraCamera'])
def test_a_slow_pipeline_is_not_silent(kind: str, values: dict[str, float], expected: float, monkeypatch: pytest.MonkeyPatch) -> None:
    double = create_autospec(getattr(camera_factory, kind))
    monkeypatch.setattr(camera_factory, kind, double)
    defaults = {spec.name: spec.default for spec in CAMERA_SPECS}
    given = {**defaults, 'camera': kind.removesuffix('Camera').lower(), 'pipeline': 'videotestsrc', **values}
    CameraFactory(given, time.time_ns, CopyLedger()).open('')
    assert double.call_args.kwargs['watchdog_s'] == expected
