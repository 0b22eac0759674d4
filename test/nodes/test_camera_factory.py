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

"""From parameters to cameras: each class gets what it takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
import time
from typing import Any
from unittest.mock import create_autospec, Mock

from camera.camera_options import PARAMETERS
import pytest

from zc_perception.camera.camera import Camera, CameraOptions, DrawnCamera
from zc_perception.camera.clock import StampClock, SystemClocks
from zc_perception.camera.kinds import CAMERAS
from zc_perception.camera.v4l2 import camera as v4l2_camera
from zc_perception.errors import AllocationError, ConfigError
from zc_perception.memory import heaps as heaps_module
from zc_perception.memory.ledger import CopyLedger
from zc_perception.negotiation.agreement import agree
from zc_perception.negotiation.constraints import BufferConstraints
from zc_perception.nodes.capture import CameraFactory
from zc_perception.nodes.declarations import NODES


def factory(
    clock: StampClock | None = None,
    *,
    now_ns: Callable[[], int] = time.time_ns,
    heard: Callable[[], Sequence[BufferConstraints]] = tuple,
    **values: Any,
) -> CameraFactory:
    parameters = {spec.name: spec.default for spec in NODES['capture']} | values
    return CameraFactory(CameraOptions(parameters, now_ns, CopyLedger(), clock), heard)


def constructor(kind: type[Camera], monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Replace a class's constructor by one that only checks and notes its arguments."""
    double = create_autospec(kind.__init__, return_value=None)
    monkeypatch.setattr(kind, '__init__', double)
    return double  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    'kind', [kind for kind in CAMERAS.built_in if not issubclass(CAMERAS.load(kind), DrawnCamera)]
)
def test_each_camera_with_a_device_is_made_with_the_options(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    double = constructor(CAMERAS.load(kind), monkeypatch)
    clock = StampClock(time.time_ns)
    made = factory(clock, camera=kind, heap='memfd', width=640, pipeline='x').open('')
    assert type(made) is CAMERAS.load(kind)
    given = double.call_args.args[1]
    assert given.parameters['width'] == 640 and given.clock is clock


def test_tests_of_cameras_have_the_parameters_that_there_are() -> None:
    read = {
        name for name, kinds in CAMERAS.declared.readers.items() if tuple(kinds) != ('synthetic',)
    }
    of_all = {'width', 'height', 'framerate', 'frame_id', 'heap', 'silent'}
    assert PARAMETERS.keys() == read | of_all


@pytest.mark.parametrize('kind', ['gstreamer', 'argus'])
def test_pipelines_hear_of_their_consumers_at_each_opening(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    double = constructor(CAMERAS.load(kind), monkeypatch)
    consumers: list[BufferConstraints] = []
    made = factory(camera=kind, pipeline='x', heard=lambda: consumers)
    for name in ('npu', 'viewer'):
        consumers.append(BufferConstraints(name))
        made.open('')
        assert double.call_args.args[1].consumers == tuple(consumers)


def test_stamps_increase_over_openings_although_the_wall_clock_was_set_back() -> None:
    ahead = [0]

    def wall() -> int:
        return time.monotonic_ns() + 1_700_000_000_000_000_000 + ahead[0]

    made = factory(
        StampClock(wall, SystemClocks(realtime=wall)),
        now_ns=wall,
        heap='memfd',
        width=64,
        height=64,
        framerate=1000.0,
    )
    stamps = []
    for step in (0, -10_000_000_000, 0):
        ahead[0] += step
        camera = made.open('')
        try:
            camera.configure(agree([camera.constraints()], (64, 64)).settings())
            for _ in range(3):
                frame = camera.capture()
                assert frame is not None
                stamps.append(frame.header.stamp_ns)
                frame.release()
        finally:
            camera.close()
    assert len(stamps) == 9 and stamps == sorted(set(stamps))


def test_a_lost_v4l2_camera_is_looked_for_where_it_is_now(monkeypatch: pytest.MonkeyPatch) -> None:
    double = constructor(v4l2_camera.V4l2Camera, monkeypatch)
    monkeypatch.setattr(
        v4l2_camera, 'find_device', lambda identity: '/dev/video5' if identity == 'usb 7' else None
    )
    for identity, path in (
        ('', '/dev/video0'),
        ('usb 7', '/dev/video5'),
        ('usb 8', '/dev/video0'),
    ):
        factory(camera='v4l2').open(identity)
        options, found = double.call_args.args[1:]
        assert (found or options.parameters['device']) == path


@pytest.mark.parametrize(
    ('values', 'message'),
    [
        ({'camera': 'gstreamer'}, "'pipeline' is empty"),
        ({'camera': 'replay'}, "'video' is empty"),
        ({'pattern': 'bars', 'width': 321}, '321'),
        (
            {'heap': 'nvbufsurface'},
            "heap 'nvbufsurface' is not known; use auto, dma_heap/NAME .*, udmabuf or memfd",
        ),
        ({'heap': 'nvbufsurface', 'camera': 'v4l2'}, "heap 'nvbufsurface' is not known"),
    ],
)
def test_parameters_that_do_not_go_together_are_named(
    values: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        factory(**{'heap': 'memfd', **values}).open('')


def test_a_heap_that_is_not_there_is_an_error() -> None:
    with pytest.raises(AllocationError):
        factory(heap='dma_heap/nowhere').open('')


@pytest.mark.parametrize(
    ('heap', 'offered', 'note'),
    [
        ('memfd', ('memfd',), "parameter 'heap' is 'memfd'"),
        ('auto', ('udmabuf', 'memfd'), 'this machine has no {}'),
    ],
)
def test_a_named_heap_is_the_only_offer_and_auto_offers_all_that_work(
    heap: str, offered: tuple[str, ...], note: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heaps_module, 'DMA_HEAP_DIRECTORY', str(tmp_path / 'dma_heap'))
    monkeypatch.setattr(heaps_module, 'UDMABUF_DEVICE', '/dev/null')
    monkeypatch.setattr(heaps_module.Udmabuf, 'allocate', heaps_module.SealedMemfd.allocate)
    camera = factory(heap=heap, width=64, height=64).open('')
    constraints = camera.constraints()
    camera.close()
    assert (constraints.heaps, constraints.memory_note) == (
        offered,
        note.format(tmp_path / 'dma_heap'),
    )
