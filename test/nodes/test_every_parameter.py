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
Every declared parameter with a value that isn't its default, and its visible effect.

A parameter without an entry fails. Static parameters are set while the node is unconfigured,
dynamic ones on a running graph.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
import gc
import itertools
from operator import attrgetter
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import Mock

from nodes.ros_kit import Managed, overrides, status, WAIT_S
import pytest
from rcl_interfaces.msg import Parameter as ParameterMessage
from rcl_interfaces.msg import ParameterValue
from rcl_interfaces.srv import SetParameters, SetParametersAtomically
from rclpy.parameter import Parameter
from ros_domains import locked_domain
from sensor_msgs.msg import CompressedImage, Image
from std_srvs.srv import SetBool, Trigger
from test_architecture import node_specs
from vision_msgs.msg import Detection2DArray, LabelInfo

from zc_perception.camera import argus, libcamera, synthetic
from zc_perception.camera.camera import CameraOptions
from zc_perception.camera.gstreamer import camera as gstreamer_camera
from zc_perception.camera.replay import camera as replay_camera
from zc_perception.camera.stereo import Side
from zc_perception.camera.v4l2 import camera as v4l2_camera
from zc_perception.errors import CameraLostError, ZcError
from zc_perception.link.endpoints import frame_offer
from zc_perception.link.image_conversion import stamp_ns
from zc_perception.nodes import (
    capture,
    frame_links,
    gstreamer,
    inference,
    overlay,
    realtime,
    recorder,
    triggers,
)
from zc_perception.npu.axl.kind import Axl
from zc_perception.observe.diagnostics import Level

#: The kinds of nodes, and the parameters that each has beside the one under test.
KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    'capture': (capture.CaptureNode, {'width': 128, 'height': 128, 'heap': 'memfd'}),
    'inference': (inference.InferenceNode, {'model': 'hog'}),
    'overlay': (overlay.OverlayNode, {}),
    'recorder': (recorder.RecorderNode, {'path': '{tmp}/base', 'disk_floor': 0}),
    'gstreamer': (gstreamer.GStreamerNode, {}),
}


#: A node configured with the value, and the arguments that replaced functions received.
Seen = SimpleNamespace


@dataclass(frozen=True)
class Static:
    """
    A parameter that is read when the node is configured.

    :param effect: returns whether the effect is visible.
    :param others: other parameters that the effect needs.
    :param given_to: ``module, name`` of a function or class that is replaced by one that records
        its arguments.
    :param active: whether the node has to be active.
    """

    value: Any
    effect: Callable[[Seen], Any]
    others: dict[str, Any] = field(default_factory=dict)
    given_to: tuple[Any, str] | None = None
    active: bool = False
    options: Callable[[], dict[str, Any]] = dict


def finished(seen: Seen, name: str, value: float) -> bool:
    """Return whether a recording with this attribute ends."""
    setattr(seen.node, name, value)
    return bool(seen.node.finished)


CAMERAS: dict[str, tuple[Any, str]] = {
    'synthetic': (synthetic, 'SyntheticCamera'),
    'replay': (replay_camera, 'ReplayCamera'),
    'v4l2': (v4l2_camera, 'V4l2Camera'),
    'gstreamer': (gstreamer_camera, 'GStreamerCamera'),
    'argus': (argus, 'ArgusCamera'),
    'libcamera': (libcamera, 'LibcameraCamera'),
}


def passed(value: Any, to: tuple[Any, str], wanted: Any = None, **others: Any) -> Static:
    """Return an entry whose value, or *wanted*, is an argument of the function *to*."""
    return Static(
        value, lambda seen: (value if wanted is None else wanted) in seen.given[-1], others, to
    )


def camera(kind: str, value: Any, wanted: Any = None, **others: Any) -> Static:
    """Return an entry whose value, or *wanted*, the camera's class receives."""
    entry = passed(value, CAMERAS[kind], wanted, camera=kind, **others)
    return replace(entry, active=kind in ('gstreamer', 'argus'))


def option(name: str, value: Any) -> Static:
    """Return an entry whose value is an option of the accelerator."""
    return Static(
        value, lambda seen: seen.given[-1][2][name] == value, {}, (inference, 'open_accelerator')
    )


def limit(value: float, place: int, wanted: int) -> Static:
    """Return an entry that is the *place*-th of the recording's limits."""
    return Static(value, lambda seen: seen.given[-1][place] == wanted, {}, (recorder, 'Limits'))


def in_pipeline(value: Any, words: str) -> Static:
    """Return an entry whose *words* are in the pipeline's description."""
    return Static(
        value, lambda seen: words in f' {seen.given[-1][0]} ', {}, (gstreamer, 'FrameFeed')
    )


UNIXFD, SERVER = (frame_links, 'UnixfdServer'), (frame_offer, 'SharedMemoryServer')
VIDEO = {'video': __file__}
TEST_SOURCE = {'pipeline': 'videotestsrc'}
OWN_GROUP = str(os.getgid())
SOCKET = '/folder/front.sock'
STEREO = capture.StereoRig()


def of_subscription(node: str, attribute: str) -> dict[tuple[str, str], Static]:
    active, look = node == 'overlay', attrgetter(attribute)
    users = passed(['0'], (frame_links, 'SharedMemoryLinks'), ('allowed_uids', [0]))
    off = Static(False, lambda seen: look(seen.node)._remote.off, active=active)
    required = Static('required', lambda seen: look(seen.node)._required is True, active=active)
    return {
        (node, 'shared_memory'): off,
        (node, 'shared_memory_users'): replace(users, active=active),
        (node, 'copy_free'): required,
    }


OF_CAPTURE: dict[str, Static] = {
    'camera': Static('libcamera', lambda seen: seen.given, {}, CAMERAS['libcamera']),
    'width': Static(320, lambda seen: seen.node.camera.width == 320),
    'height': Static(96, lambda seen: seen.node.camera.slots[0].layout.height == 96),
    'framerate': Static(12.5, lambda seen: seen.node.camera.framerate == 12.5),
    'frame_id': camera('synthetic', 'nose'),
    'seed': camera('synthetic', 4711),
    'palette': camera('synthetic', 'train'),
    'pattern': camera('synthetic', 'bars'),
    'device': camera('v4l2', '/dev/video7'),
    'input': camera('v4l2', 3),
    'pixel_format': camera('v4l2', 'YUYV'),
    'memory': camera('v4l2', 'import'),
    'silent': camera('v4l2', 4.25),
    'video': camera('replay', __file__),
    'loop': camera('replay', False, ('loop', False), **VIDEO),
    'keep_all': camera('replay', True, ('keep_all', True), **VIDEO),
    'replay_topic': camera('replay', '/front', **VIDEO),
    'replay_rate': camera('replay', 2.5, **VIDEO),
    'replay_start': camera('replay', 3.5, **VIDEO),
    'stamps': camera('replay', 'recorded', **VIDEO),
    'pipeline': camera('gstreamer', 'videotestsrc pattern=ball'),
    'pipeline_buffers': camera('gstreamer', 11, **TEST_SOURCE),
    'assume_linear': camera('gstreamer', True, ('assume_linear', True), **TEST_SOURCE),
    'sensor_id': camera('argus', 5),
    'sensor_mode': camera('argus', 6),
    'libcamera_id': camera('libcamera', 'imx219'),
    'require_dmabuf': camera('gstreamer', True, ('require_dmabuf', True), **TEST_SOURCE),
    'heap': Static(
        'dma_heap/nowhere',
        lambda seen: "heap 'dma_heap/nowhere' can't be opened" in str(seen.error),
    ),
    'camera_name': Static(
        'front', lambda seen: status(seen.node, 'calibration').values['camera_name'] == 'front'
    ),
    'rescale_camera_info': passed(True, (capture, 'CameraInfoStore'), ('rescale', True)),
    'camera_info_url': Static(
        'file:///x/y.yaml',
        lambda seen: status(seen.node, 'calibration').values['file'] == '/x/y.yaml',
    ),
    'stereo_tolerance': Static(
        0.0125,
        lambda seen: STEREO.sides.rule.tolerance_ns == 12_500_000,
        options=lambda: {'stereo': capture.StereoSide(STEREO, Side.LEFT)},
    ),
    'start_delay': Static(1.5, lambda seen: seen.node.supervisor._wait_s == 1.5),
    'slots': Static(5, lambda seen: len(seen.node.camera.slots) == 5),
    'participants': Static(
        ['display: NV12'],
        lambda seen: 'participant display' in status(seen.node, 'negotiation').values,
    ),
    'renegotiate': Static(False, lambda seen: '/capture to true' in seen.node._offer._fixed),
    'shared_memory': Static(
        False, lambda seen: 'shared_memory_consumers' not in status(seen.node, 'link').values
    ),
    'shared_memory_group': passed(OWN_GROUP, SERVER, ('allowed_gids', [int(OWN_GROUP)])),
    'quarantine': passed(7.5, SERVER),
    'unixfd': passed(SOCKET, UNIXFD, Path(SOCKET)),
    'unixfd_window': passed(7, UNIXFD, ('window', 7), unixfd=SOCKET),
    'unixfd_caps': passed('drm-format', UNIXFD, ('drm', True), unixfd=SOCKET),
}
OF_INFERENCE: dict[str, Static] = {
    'accelerator': Static('axl', lambda seen: 'no Metis card' in str(seen.error)),
    'model': Static('road', lambda seen: seen.node.manifest.name == 'road'),
    'keep_all': Static(True, lambda seen: seen.node.subscription._wanted.depth is None),
    'annotations': Static(
        True, lambda seen: seen.node.get_publishers_info_by_topic('/detections/annotations')
    ),
    'depth_topic': Static(
        'depth', lambda seen: seen.node.get_subscriptions_info_by_topic('/depth')
    ),
    'accelerator_device': option('accelerator_device', 'metis-0:1:0'),
    'axl_ioctls': option('axl_ioctls', ['submit=0x60']),
    'axruntime_library': option('axruntime_library', '/opt/lib.so'),
    'aipu_cores': option('aipu_cores', 3),
    'double_buffer': option('double_buffer', True),
    'output_dmabuf': option('output_dmabuf', 'false'),
    'roi': option('roi', '0,0,64,64'),
    'tiles': option('tiles', '2x3'),
    'tile_overlap': option('tile_overlap', 0.3),
    'threads': option('threads', 2),
    'providers': option('providers', ['CPUExecutionProvider']),
}
OF_RECORDER: dict[str, Static] = {
    'path': Static(
        '{tmp}/b', lambda seen: str(seen.given[-1][0]).endswith('/b'), {}, (recorder, 'Recorder')
    ),
    'frames': Static(False, lambda seen: seen.node._subscription is None),
    'topics': Static(
        ['/x', 'y/*'], lambda seen: seen.node._topics._patterns == ['/x', '/y/*'], active=True
    ),
    'black_box': Static(20.0, lambda seen: seen.node._box._window_ns == 20_000_000_000),
    'split_size': limit(3, 1, 3 << 20),
    'split_duration': limit(2.5, 2, 2_500_000_000),
    'disk_floor': limit(3, 3, 3 << 20),
    'buffer': limit(3, 0, 3 << 20),
    'max_frames': Static(2, lambda seen: finished(seen, '_taken', 2), active=True),
    'max_duration': Static(0.5, lambda seen: finished(seen, '_first_s', -1e9), active=True),
}
OF_GSTREAMER: dict[str, Static] = {
    'pipeline': in_pipeline('fakesink', ' fakesink '),
    'encoder': in_pipeline('openh264enc', ' openh264enc '),
    'bit_rate': in_pipeline(500, ' bitrate=500 '),
    'gop_size': in_pipeline(7, ' key-int-max=7 '),
    'window': Static(7, lambda seen: seen.node._subscription._bus_subscription.held == 7),
}
OF_PROCESS: dict[str, Static] = {
    'lock_memory': Static(
        True, lambda seen: seen.given[0][0] == 'mlockall', {}, (realtime, '_libc_call')
    ),
    'gc_freeze': Static(True, lambda seen: gc.get_freeze_count() > 0),
}
AUTOSTART = Static(False, lambda seen: seen.node.parameters['autostart'] is False)
ENTRIES: dict[tuple[str, str], Static] = {
    ('overlay', 'history'): passed(5, (overlay, 'PictureHistory')),
    **{(node, 'autostart'): AUTOSTART for node in KINDS},
    **{
        (node, name): entry
        for node, entries in (
            ('capture', OF_CAPTURE | OF_PROCESS),
            ('inference', OF_INFERENCE | OF_PROCESS),
            ('recorder', OF_RECORDER),
            ('gstreamer', OF_GSTREAMER),
        )
        for name, entry in entries.items()
    },
    **of_subscription('inference', 'subscription'),
    **of_subscription('overlay', '_frame_subscription'),
    **of_subscription('recorder', 'subscription'),
    **of_subscription('gstreamer', '_subscription'),
}


def test_every_parameter_has_an_entry_in_one_of_the_tables() -> None:
    declared = {
        (node, name): spec for node, specs in node_specs().items() for name, spec in specs.items()
    }
    dynamic = {key for key, spec in declared.items() if spec.dynamic}
    assert (set(ENTRIES), set(DYNAMIC)) == (set(declared) - dynamic, dynamic)
    for key, entry in ENTRIES.items():
        assert entry.value != declared[key].default or key[1] in KINDS[key[0]][1], (
            f'{key}: the default shows nothing'
        )


@pytest.fixture(autouse=True)
def patient(ros_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A running camera gives a frame in time on a slow machine.
    monkeypatch.setattr(triggers, 'FRAME_WAIT_S', WAIT_S)


class Bench(Managed):
    """A node of each kind, configured and cleaned up for each parameter."""

    @cached_property
    def kinds(self) -> dict[str, Any]:
        return {kind: self.made(kind) for kind in KINDS}

    def made(self, kind: str, **options: Any) -> Any:
        return self.make(KINDS[kind][0], {'autostart': False}, **options)


@pytest.fixture(scope='module')
def bench(module_domain: int) -> Iterator[Bench]:
    with Bench(module_domain) as opened:
        yield opened


class Noting(UserDict[str, Any]):
    def __init__(self, values: Mapping[str, Any], read: list[Any]) -> None:
        super().__init__(values)
        self._read = read

    def __getitem__(self, name: str) -> Any:
        self._read += [self.data[name], (name, self.data[name])]
        return self.data[name]


def note_arguments(seen: list[Any], original: Any, name: str) -> Any:
    """Wrap *original* so that its arguments are recorded; constructors of cameras then fail."""

    def noted(*args: Any, **kwargs: Any) -> Any:
        seen.append(given := [*args, *kwargs.values(), *kwargs.items()])
        if name == '__init__':
            # A camera reads its parameters before it looks for its device.
            taken = [
                replace(arg, parameters=Noting(arg.parameters, given))
                if isinstance(arg, CameraOptions)
                else Noting(arg, given)
                if isinstance(arg, Mapping)
                else arg
                for arg in args
            ]
            with suppress(ZcError):
                original(*taken, **kwargs)
            raise CameraLostError('only noted')
        return None if name == '_libc_call' else original(*args, **kwargs)

    return noted


@pytest.mark.parametrize('key', ENTRIES, ids='.'.join)
def test_a_parameter_set_while_unconfigured_takes_effect_at_configure(
    key: tuple[str, str], bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (kind, name), entry = key, ENTRIES[key]

    def filled(value: Any) -> Any:
        return value.replace('{tmp}', str(tmp_path)) if isinstance(value, str) else value

    monkeypatch.setattr(gstreamer_camera, 'check_description', lambda description: None)
    monkeypatch.setattr(argus, 'load_gstreamer', Mock)
    monkeypatch.setattr(overlay, 'subscription_count', lambda publisher: 1)
    monkeypatch.setattr(gstreamer, 'load_gstreamer', Mock)
    feed = Mock(has_sink=False, formats=lambda: None)
    monkeypatch.setattr(gstreamer, 'FrameFeed', lambda text, **_: feed)
    options, specs = entry.options(), node_specs()[kind]
    node = bench.made(kind, **options) if options else bench.kinds[kind]
    seen, value = Seen(node=node, given=[], error=None), filled(entry.value)
    if entry.given_to is not None:
        module, replaced = entry.given_to
        if replaced.endswith('Camera'):
            module, replaced = getattr(module, replaced), '__init__'
        monkeypatch.setattr(
            module, replaced, note_arguments(seen.given, getattr(module, replaced), replaced)
        )
    if specs[name].fixed:
        refused = node.set_parameters([Parameter(name, value=not value)])[0]
        assert not refused.successful and 'read-only: restart the node' in refused.reason
        assert entry.effect(seen)
        return
    defaults = {each.name: each.default for each in specs.values() if not each.fixed}
    values = {**defaults, **KINDS[kind][1], **entry.others, name: entry.value}
    done = node.set_parameters_atomically(
        overrides({name: [''] if given == [] else filled(given) for name, given in values.items()})
    )
    assert done.successful, done.reason
    try:
        try:
            node.configure_now()
            if entry.active:
                node.trigger_activate()
        except ZcError as error:
            seen.error = error
        bench.eventually(
            lambda: _holds(entry, seen), f'{kind}.{name}: {value} has no effect: {seen}'
        )
    finally:
        if node.state == 'active':
            node.trigger_deactivate()
        if node.state == 'inactive':
            node.trigger_cleanup()
        assert node.state == 'unconfigured'


def _holds(entry: Static, seen: Seen) -> bool:
    try:
        return bool(entry.effect(seen))
    except (IndexError, AttributeError, KeyError):
        return False


# Dynamic parameters, each changed on a running graph: the change has its effect within two frames,
# and no lease is lost.
WITHIN = 2
JUDGED = 4
SIGN = 2


class Result(NamedTuple):
    stamp_ns: int
    found: Any
    limits: Any
    in_flight: int


class Graph:
    """A running graph, all its output, and another program's subscriptions."""

    def __init__(self, run: Managed) -> None:
        self.run = run
        camera = {'heap': 'memfd', 'framerate': 100.0, 'seed': 4, 'jpeg_quality': 90}
        self.capture = run.make(capture.CaptureNode, camera)
        self.inference = run.make(inference.InferenceNode, {'threads': 1, 'timeout': 20.0})
        self.overlay = run.make(overlay.OverlayNode)
        self.nodes = {node.get_name(): node for node in run.nodes}
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
        run.eventually(lambda: len(self.results) >= 5 and all(self.messages.values()))

    def _spy(self) -> None:
        limits: list[Any] = [None]
        head, accelerator = self.inference._stream.head, self.inference.accelerator
        decode, tune = head.decode, accelerator.tune

        def noted(outputs: Any, letterbox: Any, given: Any) -> Any:
            limits[0] = given
            return decode(outputs, letterbox, given)

        self.inference._stream.head = type('Head', (), {'decode': staticmethod(noted)})()
        accelerator.hot_threads = lambda: accelerator._thread.threads
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
        self.capture.publisher.publish = lambda frame: (
            self.published.append(frame.header.stamp_ns),
            publish(frame),
        )

    def set(self, node: str, name: str, value: Any) -> None:  # noqa: A003
        done = self.nodes[node].set_parameters([Parameter(name, value=value)])[0]
        assert done.successful, done.reason

    def results_with(self, node: str, name: str, value: Any) -> list[Result]:
        """Set a parameter; return results from the third frame after the change."""
        self.set(node, name, value)
        start = len(self.results) + WITHIN
        self.run.eventually(lambda: len(self.results) >= start + JUDGED)
        return self.results[start:]

    def messages_since(self, topic: str, published: int) -> list[Any]:
        """Return messages of frames from the :data:`WITHIN`-th after the change."""
        if len(self.published) <= published + WITHIN:
            return []
        first = self.published[published + WITHIN]
        return [m for m in self.messages[topic] if stamp_ns(m.header) >= first]


@pytest.fixture(scope='module')
def graph() -> Iterator[Graph]:
    with locked_domain() as domain, Managed(domain) as run:
        yield Graph(run)


class Dynamic(NamedTuple):
    """A change of one parameter; *check* makes it and checks its effect."""

    value: Any
    check: Callable[[Graph, str, str, Any], None]
    costs_frames: bool = False


def results(holds: Callable[[Result], bool], *, some: bool = False) -> Any:
    """Check that results from the third frame after the change satisfy *holds*, not all before."""

    def check(graph: Graph, node: str, name: str, value: Any) -> None:
        assert not all(map(holds, graph.results[-JUDGED:])), 'it would hold without the change'
        found = graph.results_with(node, name, value)
        if some:  # frames that come one by one are never together in flight
            graph.run.eventually(lambda: any(map(holds, graph.results[-JUDGED:])))
        else:
            assert all(map(holds, found)), found

    return check


def messages(topic: str, holds: Callable[[Any], bool]) -> Any:
    """Check that messages from the third frame after the change satisfy *holds*, none before."""

    def check(graph: Graph, node: str, name: str, value: Any) -> None:
        assert not holds(graph.messages[topic][-1]), 'it would hold without the change'
        graph.set(node, name, value)
        start = len(graph.published)
        graph.run.eventually(
            lambda: len(graph.messages_since(topic, start)) >= JUDGED, f'messages on {topic}'
        )
        assert all(holds(message) for message in graph.messages_since(topic, start))

    return check


def tracked(holds: Callable[[Any, Any], bool]) -> Any:
    """Switch tracking on, and check that ids of consecutive frames satisfy *holds*."""

    def check(graph: Graph, node: str, name: str, value: Any) -> None:
        graph.run.eventually(lambda: all(r.found.ids is None for r in graph.results[-JUDGED:]))
        graph.set(node, name, value)
        found = graph.results_with(node, 'tracking', 'bytetrack')
        ids = [result.found.ids for result in found[:JUDGED]]
        graph.set(node, 'tracking', 'none')
        graph.run.eventually(lambda: graph.results[-1].found.ids is None)
        assert all(map(holds, ids, ids[1:])), ids

    return check


def keeps_ids(graph: Graph, node: str, name: str, value: Any) -> None:
    """Check ids; a busy machine skips frames, so wait for two that are close enough to track."""
    start = len(graph.results)
    graph.set(node, name, value)

    def kept() -> bool:
        found = [result.found.ids for result in graph.results[start:]]
        ids = [set() if each is None else set(each) - {0} for each in found]
        return any(one & next_one for one, next_one in itertools.pairwise(ids))

    graph.run.eventually(kept)


def all_new(one: Any, next_one: Any) -> bool:
    return len(one) > 0 and not set(one) & set(next_one)


def paced(graph: Graph, node: str, name: str, value: float) -> None:
    stamps = [result.stamp_ns for result in graph.results_with(node, name, value)]
    # Frames come every 10 ms. After a late frame the next may follow sooner, so check the average.
    assert stamps[-1] - stamps[0] > 0.8e9 / value * (len(stamps) - 2), stamps


def disabled(graph: Graph, node: str, name: str, value: bool) -> None:
    graph.set(node, name, value)
    start = len(graph.results) + WITHIN
    graph.run.grows(lambda: graph.inference.scheduler.statistics().refused_disabled, 10)
    assert len(graph.results) <= start


def too_late(graph: Graph, node: str, name: str, value: float) -> None:
    graph.set(node, name, value)
    graph.run.grows(lambda: graph.inference.failed, 2, 'frames are given up')


def broken(graph: Graph, node: str, name: str, value: float) -> None:
    assert not any(status.part == 'budget' for status in graph.inference.collect_diagnostics())
    graph.set(node, name, value)

    def named() -> bool:
        budget = next(s for s in graph.inference.collect_diagnostics() if s.part == 'budget')
        late = sum(int(n) for key, n in budget.values.items() if key.startswith('late_by_'))
        return bool(late) and budget.level is Level.WARN and 'the worst ' in budget.message

    graph.run.eventually(named, 'the stage that broke it')


def reaches_the_accelerator(graph: Graph, node: str, name: str, value: bool) -> None:
    graph.set(node, name, value)
    assert graph.tuned[-1]['import_cache'] is value, 'it has it when the call returns'


def of_thread(look: Callable[[int], Any], allowed: Callable[[], bool], knob: str) -> Any:
    """Check the node's hot-path threads, or if the system refuses, the one warning with advice."""

    def check(graph: Graph, node: str, name: str, value: Any) -> None:
        graph.set(node, name, value)
        inference = graph.inference
        of_inference = inference.scheduler.thread, *inference.accelerator._thread.threads
        threads = of_inference if node == 'inference' else graph.capture.supervisor.threads[:1]
        if allowed():
            graph.run.eventually(lambda: all(look(thread.native_id) for thread in threads))
            return
        refused = status(graph.nodes[node], 'realtime')
        assert refused.level is Level.WARN
        assert knob in refused.message and 'grant the process' in refused.message

    return check


def may_use_fifo() -> bool:
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except PermissionError:
        return False
    os.sched_setscheduler(0, *before)
    return True


def snapshot_goes_there(graph: Graph, node: str, name: str, value: str) -> None:
    value = value.replace('{tmp}', os.environ['ROS_HOME'])
    graph.set(node, name, value)
    answer = graph.run.call(Trigger, '/capture/snapshot', Trigger.Request())
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
DYNAMIC: dict[tuple[str, str], Dynamic] = {
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


@pytest.mark.parametrize('key', DYNAMIC, ids='.'.join)
def test_a_change_is_in_force_within_two_frames_and_loses_no_lease(
    key: tuple[str, str], graph: Graph
) -> None:
    (node, name), entry = key, DYNAMIC[key]
    before = graph.nodes[node].parameters[name]
    assert entry.value != before and node_specs()[node][name].dynamic
    failed, captured = graph.inference.failed, len(graph.published)
    graph.run.eventually(lambda: len(graph.results) >= JUDGED)
    try:
        entry.check(graph, node, name, entry.value)
    finally:
        graph.set(node, name, [''] if before == [] else before)
    seen = len(graph.results)
    graph.run.eventually(
        lambda: len(graph.results) >= seen + WITHIN and len(graph.published) > captured,
        'frames flow after it was set back',
    )
    pool = graph.capture.camera.pool_statistics()
    assert pool.abandoned == 0 and pool.retired == 0
    assert pool.states and sum(pool.holders.values()) <= len(graph.capture.camera.slots)
    assert entry.costs_frames or graph.inference.failed == failed


def test_of_a_set_that_fails_every_reason_is_said_and_nothing_is_taken(graph: Graph) -> None:
    values = {'score_threshold': 7.0, 'classes': ['crocodile'], 'model': 'hog', 'max_rate': 3.0}
    done = graph.inference.set_parameters_atomically(
        [named(name, value) for name, value in {**values, 'autostart': False}.items()]
    )
    assert not done.successful
    for reason in (
        "parameter 'score_threshold' is 7.0; it must be a number from 0 to 1, or -1",
        (
            "parameter 'classes' has 'crocodile', which the model doesn't know; write car, "
            'pedestrian, sign, cone'
        ),
        (
            "parameter 'model' can't change now, the node is active: set the parameter "
            'while the node is unconfigured (ros2 lifecycle set /inference deactivate, then '
        ),
        "parameter 'autostart' is read-only: restart the node with the new value",
    ):
        assert reason in done.reason, done.reason
    assert graph.inference.parameters['max_rate'] == 0.0, 'all or nothing'


def test_label_info_says_the_threshold_in_force(graph: Graph) -> None:
    seen = graph.run.hear(LabelInfo, 'label_info', 1, latched=True)
    for value in (0.25, 1.0):
        graph.set('inference', 'score_threshold', value)
        graph.run.eventually(lambda value=value: seen and seen[-1].threshold == value)
    arrays = graph.run.hear(Detection2DArray, 'detections', 5)
    empty = 'an empty array where nothing was found'
    graph.run.eventually(lambda: len(arrays) > WITHIN and not arrays[-1].detections, empty)
    graph.set('inference', 'score_threshold', -1.0)
    graph.run.eventually(lambda: round(seen[-1].threshold, 3) == 0.6)


# Requests of other programs: each wrong one is refused with a reason, and none ends the executor.
def asked(graph: Graph, node: str, *parameters: Any, together: bool = False) -> list[str]:
    """Set each alone, or all or none; return the reasons of refusals, empty if it was set."""
    kind, service = (
        (SetParametersAtomically, 'set_parameters_atomically')
        if together
        else (SetParameters, 'set_parameters')
    )
    messages = [
        each.to_parameter_msg() if isinstance(each, Parameter) else each for each in parameters
    ]
    answer = graph.run.call(kind, f'/{node}/{service}', kind.Request(parameters=messages))
    results = [answer.result] if together else answer.results
    assert all(result.successful == (not result.reason) for result in results)
    return [result.reason for result in results]


def value(graph: Graph, node: str, name: str) -> Any:
    """Return the value, which must be the same in the node and in ROS."""
    shown = graph.nodes[node].get_parameter(name).value
    own = graph.nodes[node].parameters[name]
    assert shown == own or (own, shown) == ([], [''])
    return own


def named(name: str, value: Any) -> Parameter:
    return Parameter(name, value=value)


def test_what_the_start_takes_is_taken_while_the_node_runs_too(graph: Graph) -> None:
    assert asked(graph, 'inference', named('max_rate', 50)) == ['']
    assert type(value(graph, 'inference', 'max_rate')) is float
    both = named('max_rate', 0), named('classes', [1, 2])
    assert asked(graph, 'inference', *both, together=True) == ['']
    assert value(graph, 'inference', 'max_rate') == 0.0
    assert value(graph, 'inference', 'classes') == ['1', '2']
    for kind in (Parameter.Type.BYTE_ARRAY, Parameter.Type.STRING_ARRAY):
        nothing = Parameter('classes', kind, [])
        assert asked(graph, 'inference', named('classes', ['', 'car']), nothing) == ['', '']
        assert value(graph, 'inference', 'classes') == []
    assert asked(graph, 'capture', named('cpu_affinity', [int(CPU)])) == ['']
    assert value(graph, 'capture', 'cpu_affinity') == [CPU]
    assert asked(graph, 'capture', named('cpu_affinity', [''])) == ['']


def test_a_request_that_rclpy_can_not_read_is_refused(graph: Graph) -> None:
    on, off = named('enabled', True), named('enabled', False)
    no_type = ParameterMessage(name='enabled', value=ParameterValue(type=42))
    first, second, third = asked(graph, 'inference', off, no_type, on)
    assert first == '' and "can't be read, so" in second and third == second
    (both,) = asked(graph, 'inference', on, no_type, together=True)
    assert "can't be read, so" in both
    assert value(graph, 'inference', 'enabled') is False
    assert asked(graph, 'inference', on) == ['']


def test_a_mistake_of_ours_is_a_reason_that_asks_for_a_report(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph.overlay.parameters, 'judged', Mock(side_effect=KeyError('x')))
    (reason,) = asked(graph, 'overlay', named('scale', 0.5))
    assert reason.startswith('nothing was set: ') and 'please report this line' in reason


def test_the_enable_service_sets_the_parameter(graph: Graph) -> None:
    for on in (False, True):
        assert graph.run.call(SetBool, '/inference/enable', SetBool.Request(data=on)).success
        assert value(graph, 'inference', 'enabled') is on


def test_a_user_that_does_not_exist_is_refused_at_once(graph: Graph) -> None:
    node = graph.run.make(overlay.OverlayNode, {'autostart': False}, namespace='/other')
    done = node.set_parameters([named('shared_memory_users', ['²'])])[0]
    assert not done.successful and "there is no user '²'; see /etc/passwd" in done.reason
