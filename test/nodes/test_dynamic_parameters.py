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
Every dynamic parameter, each changed on a running graph.

The change has its effect within two frames, and no lease is lost. ``test_every_parameter.py``
tests the other parameters, and checks that none is missing here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
import itertools
import os
from typing import Any
from unittest.mock import Mock

from nodes.managed import Managed, managed, status
import pytest
from rcl_interfaces.msg import Parameter as ParameterMessage
from rcl_interfaces.msg import ParameterValue
from rcl_interfaces.srv import SetParameters, SetParametersAtomically
from rclpy.parameter import Parameter
from sensor_msgs.msg import CompressedImage, Image
from std_srvs.srv import SetBool, Trigger
from test_architecture import node_specs
from vision_msgs.msg import Detection2DArray, LabelInfo

from zc_perception.errors import ConfigError
from zc_perception.nodes.capture import CaptureNode
from zc_perception.nodes.inference import InferenceNode
from zc_perception.nodes.overlay import OverlayNode
from zc_perception.npu.axl.kind import Axl
from zc_perception.observe.diagnostics import Level

WITHIN = 2
JUDGED = 4
SIGN = 2


@dataclass
class Result:
    stamp_ns: int
    found: Any
    limits: Any
    in_flight: int


class Bench:
    """A running graph, all its output, and another program's subscriptions."""

    def __init__(self, run: Managed) -> None:
        self.run = run
        self.capture = run.make(
            CaptureNode, {'heap': 'memfd', 'framerate': 100.0, 'seed': 4, 'jpeg_quality': 90}
        )
        self.inference = run.make(InferenceNode, {'threads': 1, 'timeout': 20.0})
        self.overlay = run.make(OverlayNode)
        self.nodes = {
            'capture': self.capture,
            'inference': self.inference,
            'overlay': self.overlay,
        }
        self.results: list[Result] = []
        self.published: list[int] = []
        self.tuned: list[dict[str, Any]] = []
        self._spy()
        self.messages = {
            f'{topic}{form}': run.hear(kind, f'{topic}{form}', 5)
            for topic in ('image_raw', 'detections/image')
            for form, kind in (('', Image), ('/compressed', CompressedImage))
        }
        for node in (self.overlay, self.inference, self.capture):
            node.start()
        run.eventually(
            lambda: len(self.results) >= 5 and all(self.messages.values()), 'everything flows'
        )

    def _spy(self) -> None:
        limits: list[Any] = [None]
        head, accelerator = self.inference._stream.head, self.inference.accelerator
        decode, tune = head.decode, accelerator.tune

        def noted(outputs: Any, letterbox: Any, given: Any) -> Any:
            limits[0] = given
            return decode(outputs, letterbox, given)

        self.inference._stream.head = type('Head', (), {'decode': staticmethod(noted)})()
        accelerator.own = Axl.own  # so that it has the parameter import_cache
        accelerator.tune = lambda values: (self.tuned.append(values), tune(values))
        self.inference.observers.append(
            lambda entry, found: self.results.append(
                Result(
                    entry.frame.header.stamp_ns,
                    found,
                    limits[0],
                    self.inference.scheduler.statistics().in_flight,
                )
            )
        )
        publish = self.capture.publisher.publish

        def counted(frame: Any) -> None:
            self.published.append(frame.header.stamp_ns)
            publish(frame)

        self.capture.publisher.publish = counted

    def set(self, node: str, name: str, value: Any) -> None:  # noqa: A003
        done = self.nodes[node].set_parameters([Parameter(name, value=value)])[0]
        assert done.successful, done.reason

    def messages_since(self, topic: str, published: int) -> list[Any]:
        """Return messages of frames from the :data:`WITHIN`-th after the change."""
        if len(self.published) <= published + WITHIN:
            return []
        first = self.published[published + WITHIN]
        return [
            m
            for m in self.messages[topic]
            if m.header.stamp.sec * 1_000_000_000 + m.header.stamp.nanosec >= first
        ]


@pytest.fixture(scope='module')
def bench(module_domain: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp('ros_home')
    with pytest.MonkeyPatch.context() as patch, managed(module_domain) as run:
        patch.setenv('ROS_HOME', str(folder))
        yield Bench(run)


@dataclass(frozen=True)
class Dynamic:
    """
    A change of one parameter.

    :param check: makes the change and checks its effect.
    :param back: the value set afterwards, by default the old value.
    """

    value: Any
    check: Callable[[Bench, str, str, Any], None]
    costs_frames: bool = field(default=False)


def results(holds: Callable[[Result], bool], *, some: bool = False) -> Any:
    """Check that results from the third frame after the change satisfy *holds*, not all before."""

    def check(bench: Bench, node: str, name: str, value: Any) -> None:
        before = bench.results[-JUDGED:]
        assert not all(holds(result) for result in before), 'it would hold without the change'
        bench.set(node, name, value)
        start = len(bench.results) + WITHIN
        bench.run.eventually(lambda: len(bench.results) >= start + JUDGED)
        verdicts = [holds(result) for result in bench.results[start:]]
        assert any(verdicts) if some else all(verdicts), verdicts

    return check


def messages(topic: str, holds: Callable[[Any], bool]) -> Any:
    """Check that messages from the third frame after the change satisfy *holds*, none before."""

    def check(bench: Bench, node: str, name: str, value: Any) -> None:
        assert not holds(bench.messages[topic][-1]), 'it would hold without the change'
        bench.set(node, name, value)
        start = len(bench.published)
        bench.run.eventually(
            lambda: len(bench.messages_since(topic, start)) >= JUDGED, f'messages on {topic}'
        )
        assert all(holds(message) for message in bench.messages_since(topic, start))

    return check


def tracked(holds: Callable[[Any, Any], bool]) -> Any:
    """Switch tracking on, and check that ids of consecutive frames satisfy *holds*."""

    def check(bench: Bench, node: str, name: str, value: Any) -> None:
        bench.run.eventually(lambda: all(r.found.ids is None for r in bench.results[-JUDGED:]))
        bench.set(node, name, value)
        bench.set(node, 'tracking', 'bytetrack')
        start = len(bench.results) + WITHIN
        bench.run.eventually(lambda: len(bench.results) >= start + JUDGED)
        ids = [result.found.ids for result in bench.results[slice(start, start + JUDGED)]]
        bench.set(node, 'tracking', 'none')
        bench.run.eventually(lambda: bench.results[-1].found.ids is None)
        assert all(map(holds, ids, ids[1:])), ids

    return check


def keeps_ids(bench: Bench, node: str, name: str, value: Any) -> None:
    """Check ids; a busy machine skips frames, so wait for two that are close enough to track."""
    start = len(bench.results)
    bench.set(node, name, value)

    def kept() -> bool:
        ids = [
            set([] if result.found.ids is None else result.found.ids) - {0}
            for result in bench.results[start:]
        ]
        return any(one & next_one for one, next_one in itertools.pairwise(ids))

    bench.run.eventually(kept)


def all_new(one: Any, next_one: Any) -> bool:
    return len(one) > 0 and not set(one) & set(next_one)


def paced(bench: Bench, node: str, name: str, value: float) -> None:
    bench.set(node, name, value)
    start = len(bench.results) + WITHIN
    bench.run.eventually(lambda: len(bench.results) >= start + JUDGED)
    stamps = [result.stamp_ns for result in bench.results[start:]]
    # Frames come every 10 ms. After a late frame the next may follow sooner, so check the average.
    assert stamps[-1] - stamps[0] > 0.8e9 / value * (len(stamps) - 2), stamps


def disabled(bench: Bench, node: str, name: str, value: bool) -> None:
    bench.set(node, name, value)
    start, refused = (
        len(bench.results) + WITHIN,
        bench.inference.scheduler.statistics().refused_disabled,
    )
    bench.run.eventually(
        lambda: bench.inference.scheduler.statistics().refused_disabled >= refused + 10
    )
    assert len(bench.results) <= start


def too_late(bench: Bench, node: str, name: str, value: float) -> None:
    failed = bench.inference.failed
    bench.set(node, name, value)
    bench.run.eventually(lambda: bench.inference.failed >= failed + 2, 'frames are given up')


def broken(bench: Bench, node: str, name: str, value: float) -> None:
    assert not any(status.part == 'budget' for status in bench.inference.collect_diagnostics())
    bench.set(node, name, value)

    def named() -> bool:
        budget = next(s for s in bench.inference.collect_diagnostics() if s.part == 'budget')
        late = sum(int(n) for key, n in budget.values.items() if key.startswith('late_by_'))
        return bool(late) and budget.level is Level.WARN and 'the worst ' in budget.message

    bench.run.eventually(named, 'the stage that broke it')


def reaches_the_accelerator(bench: Bench, node: str, name: str, value: bool) -> None:
    bench.set(node, name, value)
    assert bench.tuned[-1]['import_cache'] is value, 'it has it when the call returns'


def of_thread(look: Callable[[int], Any], allowed: Callable[[], bool], knob: str) -> Any:
    """Check the node's hot-path thread, or if the system refuses, the one warning with advice."""

    def check(bench: Bench, node: str, name: str, value: Any) -> None:
        bench.set(node, name, value)
        thread = (
            bench.capture.supervisor.threads[0]
            if node == 'capture'
            else bench.inference.scheduler.thread
        )
        assert thread.native_id is not None
        if allowed():
            bench.run.eventually(lambda: look(thread.native_id))
        else:
            refused = status(bench.nodes[node], 'realtime')
            assert (
                refused.level is Level.WARN
                and knob in refused.message
                and 'grant the process' in refused.message
            )

    return check


def may_use_fifo() -> bool:
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except PermissionError:
        return False
    os.sched_setscheduler(0, *before)
    return True


def snapshot_goes_there(bench: Bench, node: str, name: str, value: str) -> None:
    value = value.replace('{tmp}', os.environ['ROS_HOME'])
    bench.set(node, name, value)
    answer = bench.run.call(Trigger, '/capture/snapshot', Trigger.Request())
    assert answer.success and value in answer.message, answer.message


CPU = str(min(os.sched_getaffinity(0)))
BOUND = of_thread(
    lambda number: os.sched_getaffinity(number) == {int(CPU)}, lambda: True, 'cpu_affinity'
)
FIFO = of_thread(
    lambda number: os.sched_getscheduler(number) == os.SCHED_FIFO,
    may_use_fifo,
    'realtime_priority',
)
ENTRIES: dict[tuple[str, str], Dynamic] = {
    ('capture', 'image_encoding'): Dynamic(
        'mono8', messages('image_raw', lambda m: m.encoding == 'mono8')
    ),
    ('capture', 'jpeg_quality'): Dynamic(
        5, messages('image_raw/compressed', lambda m: len(m.data) < 15_000)
    ),
    ('capture', 'snapshot_folder'): Dynamic('{tmp}/elsewhere', snapshot_goes_there),
    ('capture', 'cpu_affinity'): Dynamic([CPU], BOUND),
    ('capture', 'realtime_priority'): Dynamic(2, FIFO),
    ('inference', 'score_threshold'): Dynamic(0.9999, results(lambda r: len(r.found) == 0)),
    ('inference', 'nms_threshold'): Dynamic(0.9, results(lambda r: r.limits.iou == 0.9)),
    ('inference', 'max_detections'): Dynamic(1, results(lambda r: len(r.found) <= 1)),
    ('inference', 'enabled'): Dynamic(False, disabled),
    ('inference', 'classes'): Dynamic(
        ['sign'], results(lambda r: set(r.found.classes.tolist()) <= {SIGN})
    ),
    ('inference', 'max_rate'): Dynamic(4.0, paced),
    ('inference', 'deadline'): Dynamic(1e-6, broken),
    ('inference', 'in_flight'): Dynamic(2, results(lambda r: r.in_flight == 2, some=True)),
    ('inference', 'timeout'): Dynamic(0.01, too_late, costs_frames=True),
    ('inference', 'import_cache'): Dynamic(False, reaches_the_accelerator),
    ('inference', 'tracking'): Dynamic('bytetrack', keeps_ids),
    ('inference', 'track_score'): Dynamic(1.0, tracked(lambda one, _: not any(one))),
    ('inference', 'track_iou'): Dynamic(1.0, tracked(all_new)),
    ('inference', 'track_lost'): Dynamic(0.0, tracked(all_new)),
    ('inference', 'cpu_affinity'): Dynamic([CPU], BOUND),
    ('inference', 'realtime_priority'): Dynamic(2, FIFO),
    ('overlay', 'scale'): Dynamic(0.5, messages('detections/image', lambda m: m.width == 320)),
    ('overlay', 'jpeg_quality'): Dynamic(
        5, messages('detections/image/compressed', lambda m: len(m.data) < 15_000)
    ),
}


@pytest.mark.parametrize('key', ENTRIES, ids='.'.join)
def test_a_change_is_in_force_within_two_frames_and_loses_no_lease(
    key: tuple[str, str], bench: Bench
) -> None:
    (node, name), entry = key, ENTRIES[key]
    before = bench.nodes[node].parameters[name]
    assert entry.value != before and node_specs()[node][name].dynamic
    failed, captured = bench.inference.failed, len(bench.published)
    bench.run.eventually(lambda: len(bench.results) >= JUDGED)
    try:
        entry.check(bench, node, name, entry.value)
    finally:
        bench.set(node, name, [''] if before == [] else before)
    seen = len(bench.results)
    bench.run.eventually(
        lambda: len(bench.results) >= seen + WITHIN and len(bench.published) > captured,
        'frames flow after it was set back',
    )
    pool = bench.capture.camera.pool_statistics()
    assert pool.abandoned == 0 and pool.retired == 0
    assert pool.states and sum(pool.holders.values()) <= len(bench.capture.camera.slots)
    assert entry.costs_frames or bench.inference.failed == failed


def test_of_a_set_that_fails_every_reason_is_said_and_nothing_is_taken(bench: Bench) -> None:
    values = {
        'score_threshold': 7.0,
        'classes': ['crocodile'],
        'model': 'hog',
        'max_rate': 3.0,
        'autostart': False,
    }
    done = bench.inference.set_parameters_atomically(
        [Parameter(name, value=value) for name, value in values.items()]
    )
    assert not done.successful
    for reason in (
        "parameter 'score_threshold' is 7.0; it must be a number from 0 to 1, or -1",
        (
            "parameter 'classes' has 'crocodile', which the model doesn't know; it has car, "
            'pedestrian, sign, cone'
        ),
        (
            "parameter 'model' can't change now, the node is active: set the parameter "
            'while the node is unconfigured (ros2 lifecycle set /inference deactivate and'
        ),
        "parameter 'autostart' is read-only: restart the node with the new value",
    ):
        assert reason in done.reason, done.reason
    assert bench.inference.parameters['max_rate'] == 0.0, 'all or nothing'


def test_label_info_says_the_threshold_in_force(bench: Bench) -> None:
    seen = bench.run.hear(LabelInfo, 'label_info', 1, latched=True)
    for value in (0.25, 1.0):
        bench.set('inference', 'score_threshold', value)
        bench.run.eventually(lambda value=value: seen and seen[-1].threshold == value)
    arrays = bench.run.hear(Detection2DArray, 'detections', 5)
    bench.run.eventually(
        lambda: len(arrays) > WITHIN and not arrays[-1].detections,
        'an empty array where nothing was found',
    )
    bench.set('inference', 'score_threshold', -1.0)
    bench.run.eventually(lambda: round(seen[-1].threshold, 3) == 0.6)


# Requests of other programs: each wrong one is refused with a reason, and none ends the executor.


def messages_of(*parameters: Any) -> list[ParameterMessage]:
    return [
        each.to_parameter_msg() if isinstance(each, Parameter) else each for each in parameters
    ]


def asked(bench: Bench, node: str, *parameters: Any) -> list[str]:
    """Set each parameter separately; return the reasons of refusals, empty if it was set."""
    request = SetParameters.Request(parameters=messages_of(*parameters))
    results = bench.run.call(SetParameters, f'/{node}/set_parameters', request).results
    assert all(result.successful == (not result.reason) for result in results)
    return [result.reason for result in results]


def asked_together(bench: Bench, node: str, *parameters: Any) -> str:
    """Set all or none; return the reason of a refusal, empty if they were set."""
    request = SetParametersAtomically.Request(parameters=messages_of(*parameters))
    service = f'/{node}/set_parameters_atomically'
    result = bench.run.call(SetParametersAtomically, service, request).result
    assert result.successful == (not result.reason)
    return str(result.reason)


def value(bench: Bench, node: str, name: str) -> Any:
    """Return the value, which must be the same in the node and in ROS."""
    shown = bench.nodes[node].get_parameter(name).value
    own = bench.nodes[node].parameters[name]
    assert shown == own or (own, shown) == ([], [''])
    return own


def named(name: str, value: Any) -> Parameter:
    return Parameter(name, value=value)


def test_what_the_start_takes_is_taken_while_the_node_runs_too(bench: Bench) -> None:
    assert asked(bench, 'inference', named('max_rate', 50)) == ['']
    assert type(value(bench, 'inference', 'max_rate')) is float
    both = named('max_rate', 0), named('classes', [1, 2])
    assert asked_together(bench, 'inference', *both) == ''
    assert value(bench, 'inference', 'max_rate') == 0.0
    assert value(bench, 'inference', 'classes') == ['1', '2']
    for kind in (Parameter.Type.BYTE_ARRAY, Parameter.Type.STRING_ARRAY):
        nothing = Parameter('classes', kind, [])
        assert asked(bench, 'inference', named('classes', ['', 'car']), nothing) == ['', '']
        assert value(bench, 'inference', 'classes') == []
    assert asked(bench, 'capture', named('cpu_affinity', [int(CPU)])) == ['']
    assert value(bench, 'capture', 'cpu_affinity') == [CPU]
    assert asked(bench, 'capture', named('cpu_affinity', [''])) == ['']


def test_a_request_that_rclpy_can_not_read_is_refused(bench: Bench) -> None:
    on, off = named('enabled', True), named('enabled', False)
    no_type = ParameterMessage(name='enabled', value=ParameterValue(type=42))
    first, second, third = asked(bench, 'inference', off, no_type, on)
    assert first == '' and "can't be read, so" in second and third == second
    assert "can't be read, so" in asked_together(bench, 'inference', on, no_type)
    assert value(bench, 'inference', 'enabled') is False
    assert asked(bench, 'inference', on) == ['']


def test_a_mistake_of_ours_is_a_reason_that_asks_for_a_report(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench.overlay.parameters, 'judged', Mock(side_effect=KeyError('x')))
    (reason,) = asked(bench, 'overlay', named('scale', 0.5))
    assert reason.startswith('nothing was set: ') and 'please report this line' in reason


def test_the_enable_service_sets_the_parameter(bench: Bench) -> None:
    for on in (False, True):
        assert bench.run.call(SetBool, '/inference/enable', SetBool.Request(data=on)).success
        assert value(bench, 'inference', 'enabled') is on


def test_a_user_that_does_not_exist_is_refused_at_once(bench: Bench) -> None:
    node = bench.run.make(OverlayNode, {'autostart': False}, namespace='/other')
    done = node.set_parameters([named('shared_memory_users', ['²'])])[0]
    assert not done.successful and "there is no user '²'; see /etc/passwd" in done.reason
    with pytest.raises(ConfigError, match="there is no user '²'"):
        bench.run.make(OverlayNode, {'shared_memory_users': ['²']}, namespace='/other')
