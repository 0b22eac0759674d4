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

"""Cases for a process with GStreamer and the double ``gst_argus.c``; see ``test_gstreamer.py``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
import ctypes
import os
from typing import Any

from camera.camera_options import camera_options
from camera.gstreamer_kit import (
    awaited_error,
    configure,
    events_counted,
    inodes,
    next_frame,
    WAIT_S,
)
import numpy as np
import pytest

from zc_perception.camera.argus import ArgusCamera
from zc_perception.errors import CameraChangedError, CameraError, FormatError
from zc_perception.frame import Frame
from zc_perception.negotiation.agreement import agree
from zc_perception.negotiation.constraints import BufferConstraints
from zc_perception.pixel.colorimetry import Matrix, Range
from zc_perception.pixel.fourcc import NV12
from zc_perception.pixel.modifier import INVALID, LINEAR

LIBRARY, TRANSFORM = os.environ['NVBUF_LIBRARY'], os.environ['NVBUF_TRANSFORM']
BLOCK_LINEAR = {'double-layout': '1'}


def value(name: str, library: str = LIBRARY) -> int:
    return ctypes.c_int.in_dll(ctypes.CDLL(library), name).value


def opened(properties: dict[str, str] | None = None, **options: Any) -> ArgusCamera:
    options = {'width': 322, 'height': 46, 'framerate': 200.0, 'silent': WAIT_S, **options}
    if properties:
        words = ' '.join(f'{name}={text}' for name, text in properties.items())
        caps = 'video/x-raw(memory:NVMM),format=NV12,width=322,height=46,framerate=200/1'
        options['pipeline'] = f'nvarguscamerasrc {words} ! {caps}'
    events_counted(on=False)
    transform = options.pop('transform_library', TRANSFORM)
    return ArgusCamera(camera_options(**options), library=LIBRARY, transform_library=transform)


@contextmanager
def streaming(properties: dict[str, str]) -> Iterator[ArgusCamera]:
    with closing(opened(properties)) as camera:
        configure(camera)
        yield camera


def agreed(camera: ArgusCamera, *consumers: BufferConstraints) -> Any:
    size = camera.width, camera.height
    return agree([camera.constraints(), *consumers], size, wanted_slots=4)


@pytest.fixture(scope='module', autouse=True)
def _gstreamer_is_up() -> None:
    opened().close()


@pytest.fixture(autouse=True)
def _nothing_stays(no_fd_leak: None) -> Iterator[None]:
    live = value('double_live_surfaces')
    yield
    assert value('double_live_surfaces') <= live, 'surfaces that nobody destroyed'
    assert value('double_lost_descriptors') == 0, (
        "the descriptor in a surface is the surface's own"
    )


def check_picture(frame: Frame) -> None:
    """Check each row's number, which all of its pixels have; rows count on from the first."""
    with frame.map() as planes:
        first = int(planes[0][0].flat[0])
        for plane, count in zip(planes, (46, 23), strict=True):
            rows = plane.reshape(count, -1)
            numbers = (np.arange(count) + first).astype(np.uint8)
            assert (rows == numbers[:, None]).all(), 'a row of another plane, or padding'


@pytest.mark.parametrize(
    ('color', 'matrix', 'span'), [(7, Matrix.BT601, Range.FULL), (33, Matrix.BT709, Range.LIMITED)]
)
def test_frames_are_the_surfaces_themselves(color: int, matrix: Matrix, span: Range) -> None:
    with streaming({'double-color': str(color)}) as camera:
        # The double's pitch is 256 bytes and its planes 64 KiB; GstVideoInfo computes others.
        assert [(p.buffer, p.offset, p.stride, p.size) for p in camera.pool.layout.planes] == [
            (0, 0, 512, 0x10000), (0, 0x10000, 512, 0x10000),
        ]  # fmt: skip
        said = camera.heap_name, camera.copy_reason, camera.framerate
        assert said == ('nvbufsurface', '', 200.0)
        seen = set()
        for _ in range(10):
            with next_frame(camera) as frame:
                check_picture(frame)
                colours = frame.data.colorimetry
                found = frame.data.modifier, colours.matrix, colours.range
                assert found == (LINEAR, matrix, span)
                assert frame.data.buffers[0].heap == 'nvbufsurface'
                seen.add(inodes(frame))
        assert len(seen) > 1 and camera.facts()['converted_by_vic'] == 0


@pytest.mark.parametrize('formats', [((NV12, INVALID),), ((NV12, LINEAR), (NV12, INVALID)), ()])
def test_a_block_linear_image_stays_what_it_is_for_whoever_can_take_it(
    formats: tuple[tuple[int, int], ...],
) -> None:
    """Without a consumer, the camera gives what everybody can read."""
    taker = BufferConstraints('npu', formats=formats, heaps=('nvbufsurface',), slots=2)
    with closing(opened(BLOCK_LINEAR)) as camera:
        assert camera.constraints().formats == ((NV12, INVALID), (NV12, LINEAR))
        camera.allocate(agreed(camera, *([taker] if formats else [])))
        with next_frame(camera) as frame:
            found = frame.data.modifier, camera.facts()['converted_by_vic']
            assert found == ((INVALID, 0) if formats else (LINEAR, 1))
            assert not formats or (frame.data.planes[1].offset == 0x10000 and not camera.notices())


def test_without_a_vic_frames_stay_block_linear_and_that_is_said() -> None:
    formats = (NV12, LINEAR), (NV12, INVALID)
    other = BufferConstraints('npu', formats=formats, costs=(0.0, 9.0))
    words = 'NV12 with modifier INVALID has no rows that a CPU could read'
    with closing(opened(BLOCK_LINEAR, transform_library='libmissing.so')) as camera:
        camera.allocate(agreed(camera, other))
        with next_frame(camera) as frame:
            assert frame.data.modifier == INVALID
            with pytest.raises(FormatError, match=words), frame.map():
                pass
        (notice,) = camera.notices()
        assert 'the VIC needs libmissing.so' in notice and 'stay block-linear' in notice


def test_the_source_is_asked_for_what_consumers_accept() -> None:
    options = {'pipeline': 'nvarguscamerasrc', 'width': 0, 'height': 0}
    consumer = BufferConstraints('npu', formats=((NV12, INVALID),))
    with closing(opened(consumers=[consumer], **options)) as camera:
        offered = camera.facts()['caps_offered']
    assert offered == 'video/x-raw(memory:NVMM), format=(string){ "NV12" }'


def test_the_vic_makes_a_linear_image_where_a_consumer_needs_one_and_that_is_counted() -> None:
    with streaming(BLOCK_LINEAR) as camera:
        before, seen = value('double_transforms', TRANSFORM), set()
        for _ in range(8):
            with next_frame(camera) as frame:
                check_picture(frame)
                assert frame.data.modifier == LINEAR and frame.data.capture_cost_ns > 0
                seen.add(inodes(frame))
        made = value('double_transforms', TRANSFORM) - before
        assert camera.facts()['converted_by_vic'] == made == 8
        assert 'the VIC copies each frame' in camera.notices()[-1] and len(seen) <= 4


@pytest.mark.parametrize('properties', [{}, BLOCK_LINEAR])
def test_surfaces_of_another_size_are_a_changed_camera(properties: dict[str, str]) -> None:
    with streaming({**properties, 'double-change-at': '100'}) as camera:
        error = awaited_error(camera)
        assert isinstance(error, CameraChangedError) and '161x46' in str(error)


def test_what_cannot_be_is_said() -> None:
    with pytest.raises(CameraError, match='at least 32 bytes, this buffer has 16: it holds somet'):
        opened({'double-junk': '16'})
    with pytest.raises(CameraError, match=r'memory of type 2.*nvbuf-memory-type=4'):
        opened({'double-memory-type': '2'})
    with pytest.raises(CameraError, match=r'No cameras available \(sensor 7 of 2\)'):
        opened(sensor_id=7)
    with pytest.raises(
        CameraError, match=r'gives frames that are not in NVMM memory.*use camera: gstreamer'
    ):
        opened(pipeline='videotestsrc ! video/x-raw,format=NV12,width=322,height=46')
    with pytest.raises(CameraError, match=r'need libnvbufsurface_missing\.so of JetPack'):
        ArgusCamera(camera_options(), library='libnvbufsurface_missing.so')
    words = (
        'gives block-linear images, and the VIC can not convert them: the VIC needs libmissing.so'
    )
    with closing(opened(BLOCK_LINEAR, transform_library='libmissing.so')) as camera:
        request = agreed(camera, BufferConstraints('npu', formats=((NV12, LINEAR),)))
        with pytest.raises(CameraError, match=words):
            camera.allocate(request)
