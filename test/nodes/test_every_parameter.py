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

A parameter without an entry fails. Static parameters are set while the node is unconfigured.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
import gc
from operator import attrgetter
import os
from pathlib import Path
from typing import Any
from unittest.mock import Mock

from nodes.managed import Managed, managed, status
import pytest
from rclpy.parameter import Parameter
from test_architecture import node_specs

from zc_perception.camera import argus, libcamera, synthetic
from zc_perception.camera.camera import CameraOptions
from zc_perception.camera.gstreamer import camera as gstreamer_camera
from zc_perception.camera.replay import camera as replay_camera
from zc_perception.camera.stereo import Side
from zc_perception.camera.v4l2 import camera as v4l2_camera
from zc_perception.errors import CameraLostError, ZcError
from zc_perception.link.endpoints import frame_offer
from zc_perception.nodes import (
    capture,
    frame_links,
    gstreamer,
    inference,
    overlay,
    realtime,
    recorder,
)
from zc_perception.nodes.capture import CaptureNode, StereoRig, StereoSide
from zc_perception.nodes.gstreamer import GStreamerNode
from zc_perception.nodes.inference import InferenceNode
from zc_perception.nodes.overlay import OverlayNode
from zc_perception.nodes.recorder import RecorderNode

KINDS: dict[str, Any] = {
    'capture': CaptureNode,
    'inference': InferenceNode,
    'overlay': OverlayNode,
    'recorder': RecorderNode,
    'gstreamer': GStreamerNode,
}
BASE: dict[str, dict[str, Any]] = {
    'capture': {'width': 128, 'height': 128, 'heap': 'memfd'},
    'inference': {'model': 'hog'},
    'overlay': {},
    'recorder': {'path': '{tmp}/base', 'disk_floor': 0},
    'gstreamer': {},
}


@dataclass
class Seen:
    """A node configured with the value, and the arguments that replaced functions received."""

    node: Any
    given: list[Any] = field(default_factory=list)
    error: ZcError | None = None


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


def finished(seen: Seen, **recorded: float) -> bool:
    """Return whether a recording with these attributes ends."""
    for name, value in recorded.items():
        setattr(seen.node, name, value)
    return bool(seen.node.finished)


MODULES = {
    'SyntheticCamera': synthetic,
    'ReplayCamera': replay_camera,
    'V4l2Camera': v4l2_camera,
    'GStreamerCamera': gstreamer_camera,
    'ArgusCamera': argus,
    'LibcameraCamera': libcamera,
}


def camera(kind: str, class_name: str, value: Any, argument: Any = None, **others: Any) -> Static:
    """Return an entry whose value the camera's class receives."""
    wanted = value if argument is None else argument
    slow = kind in ('gstreamer', 'argus')
    return Static(
        value,
        lambda seen: wanted in seen.given[-1],
        {'camera': kind, **others},
        (MODULES[class_name], class_name),
        active=slow,
    )


def option(name: str, value: Any) -> Static:
    """Return an entry whose value is an option of the accelerator."""
    return Static(
        value, lambda seen: seen.given[-1][2][name] == value, {}, (inference, 'open_accelerator')
    )


def passed(value: Any, to: tuple[Any, str], wanted: Any = None, **others: Any) -> Static:
    """Return an entry whose value, or *wanted*, is an argument of the function *to*."""
    return Static(
        value, lambda seen: (value if wanted is None else wanted) in seen.given[-1], others, to
    )


def limit(value: float, place: int, wanted: int) -> Static:
    """Return an entry that is the *place*-th of the recording's limits."""
    return Static(value, lambda seen: seen.given[-1][place] == wanted, {}, (recorder, 'Limits'))


def in_pipeline(value: Any, words: str) -> Static:
    """Return an entry whose *words* are in the pipeline's description."""
    return Static(
        value, lambda seen: words in f' {seen.given[-1][0]} ', {}, (gstreamer, 'FrameFeed')
    )


UNIXFD = frame_links, 'UnixfdServer'
SERVER = frame_offer, 'SharedMemoryServer'
SYNTHETIC, REPLAY, V4L2 = (
    ('synthetic', 'SyntheticCamera'),
    ('replay', 'ReplayCamera'),
    ('v4l2', 'V4l2Camera'),
)
PIPELINE, ARGUS, LIBCAMERA = (
    ('gstreamer', 'GStreamerCamera'),
    ('argus', 'ArgusCamera'),
    ('libcamera', 'LibcameraCamera'),
)
VIDEO = {'video': __file__}
TEST_SOURCE = {'pipeline': 'videotestsrc'}
OWN_GROUP = str(os.getgid())
SOCKET = '/folder/front.sock'
STEREO = StereoRig()


def of_subscription(node: str, attribute: str) -> dict[tuple[str, str], Static]:
    active = node == 'overlay'
    look = attrgetter(attribute)
    links = frame_links, 'SharedMemoryLinks'
    entries = {
        'shared_memory': Static(False, lambda seen: look(seen.node)._remote.off, active=active),
        'shared_memory_users': Static(
            ['0'], lambda seen: ('allowed_uids', [0]) in seen.given[-1], {}, links, active
        ),
        'copy_free': Static(
            'required', lambda seen: look(seen.node)._required is True, active=active
        ),
    }
    return {(node, name): entry for name, entry in entries.items()}


OF_CAPTURE: dict[str, Static] = {
    'camera': Static(
        'libcamera', lambda seen: seen.given, {}, (MODULES['LibcameraCamera'], 'LibcameraCamera')
    ),
    'width': Static(320, lambda seen: seen.node.camera.width == 320),
    'height': Static(96, lambda seen: seen.node.camera.slots[0].layout.height == 96),
    'framerate': Static(12.5, lambda seen: seen.node.camera.framerate == 12.5),
    'frame_id': camera(*SYNTHETIC, 'nose'),
    'seed': camera(*SYNTHETIC, 4711),
    'palette': camera(*SYNTHETIC, 'train'),
    'pattern': camera(*SYNTHETIC, 'bars'),
    'device': camera(*V4L2, '/dev/video7'),
    'input': camera(*V4L2, 3),
    'pixel_format': camera(*V4L2, 'YUYV'),
    'memory': camera(*V4L2, 'import'),
    'silent': camera(*V4L2, 4.25),
    'video': camera(*REPLAY, __file__),
    'loop': camera(*REPLAY, False, ('loop', False), **VIDEO),
    'keep_all': camera(*REPLAY, True, ('keep_all', True), **VIDEO),
    'replay_topic': camera(*REPLAY, '/front', **VIDEO),
    'replay_rate': camera(*REPLAY, 2.5, **VIDEO),
    'replay_start': camera(*REPLAY, 3.5, **VIDEO),
    'stamps': camera(*REPLAY, 'recorded', **VIDEO),
    'pipeline': camera(*PIPELINE, 'videotestsrc pattern=ball'),
    'pipeline_buffers': camera(*PIPELINE, 11, **TEST_SOURCE),
    'assume_linear': camera(*PIPELINE, True, ('assume_linear', True), **TEST_SOURCE),
    'sensor_id': camera(*ARGUS, 5),
    'sensor_mode': camera(*ARGUS, 6),
    'libcamera_id': camera(*LIBCAMERA, 'imx219'),
    'require_dmabuf': camera(*PIPELINE, True, ('require_dmabuf', True), **TEST_SOURCE),
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
        options=lambda: {'stereo': StereoSide(STEREO, Side.LEFT)},
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
    'max_frames': Static(2, lambda seen: finished(seen, _taken=2), active=True),
    'max_duration': Static(0.5, lambda seen: finished(seen, _first_s=-1e9), active=True),
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
DYNAMIC = {
    (node, name)
    for node, specs in node_specs().items()
    for name, spec in specs.items()
    if spec.dynamic
}


def test_every_parameter_has_an_entry_here_or_if_dynamic_in_the_other_table() -> None:
    from nodes.test_dynamic_parameters import ENTRIES as CHANGED_WHILE_RUNNING

    declared = {(node, name) for node, specs in node_specs().items() for name in specs}
    assert set(ENTRIES) == declared - DYNAMIC
    assert set(CHANGED_WHILE_RUNNING) == DYNAMIC
    for (node, name), entry in ENTRIES.items():
        assert entry.value != node_specs()[node][name].default or name in BASE[node], (
            f'{node}.{name}: the default shows nothing'
        )


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('ROS_HOME', str(tmp_path))
    # One entry makes it accessible to a group.
    monkeypatch.setenv('ZC_RUNTIME_DIR', str(tmp_path / 'run'))


class Bench:
    """A node of each kind, configured and cleaned up for each parameter."""

    def __init__(self, run: Managed) -> None:
        self.run = run
        self._nodes: dict[str, Any] = {}

    def node(self, kind: str, entry: Static) -> Any:
        options = entry.options()
        if not options and kind in self._nodes:
            return self._nodes[kind]
        node = self.run.make(KINDS[kind], {'autostart': False}, **options)
        if not options:
            self._nodes[kind] = node
        return node

    @staticmethod
    def set(kind: str, node: Any, values: dict[str, Any]) -> None:  # noqa: A003
        specs = node_specs()[kind]
        wanted = {
            name: values.get(name, spec.default) for name, spec in specs.items() if not spec.fixed
        }
        done = node.set_parameters_atomically(
            [
                Parameter(name, value=[''] if value == [] else value)
                for name, value in wanted.items()
            ]
        )
        assert done.successful, done.reason

    def leave(self, node: Any) -> None:
        if node.state == 'active':
            node.trigger_deactivate()
        if node.state == 'inactive':
            node.trigger_cleanup()
        assert node.state == 'unconfigured'


@pytest.fixture(scope='module')
def bench(module_domain: int) -> Iterator[Bench]:
    with managed(module_domain) as opened:
        yield Bench(opened)


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
    node = bench.node(kind, entry)
    seen, value = Seen(node), filled(entry.value)
    if entry.given_to is not None:
        module, replaced = entry.given_to
        if replaced.endswith('Camera'):
            module, replaced = getattr(module, replaced), '__init__'
        monkeypatch.setattr(
            module, replaced, note_arguments(seen.given, getattr(module, replaced), replaced)
        )
    if node_specs()[kind][name].fixed:
        refused = node.set_parameters([Parameter(name, value=not value)])[0]
        assert (
            not refused.successful
            and 'read-only: restart the node' in refused.reason
            and entry.effect(seen)
        )
        return
    bench.set(
        kind,
        node,
        {k: filled(v) for k, v in {**BASE[kind], **entry.others, name: entry.value}.items()},
    )
    try:
        try:
            node.configure_now()
            if entry.active:
                node.trigger_activate()
        except ZcError as error:
            seen.error = error
        bench.run.eventually(
            lambda: _holds(entry, seen), f'{kind}.{name}: {value} has no effect: {seen}'
        )
    finally:
        bench.leave(node)


def _holds(entry: Static, seen: Seen) -> bool:
    try:
        return bool(entry.effect(seen))
    except (IndexError, AttributeError, KeyError):
        return False
