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
The element v4l2src over both of vivid's APIs: it passes the driver's dma-bufs on.

Copying pipelines are detected.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
import os
import time

from camera.camera_options import camera_options
from waiting import until

from zc_perception.camera.gstreamer.camera import GStreamerCamera
from zc_perception.errors import CameraError
from zc_perception.memory.ledger import CopyLedger
from zc_perception.negotiation.agreement import agree
from zc_perception.negotiation.constraints import BufferConstraints
from zc_perception.pixel.modifier import LINEAR

from .camera_kit import next_frame
from .graph_variants import DEVICES, EXPORTERS
from .harness import check_each, equal
from .kernel_api import bufinfo
from .package_kit import accelerator, device_crcs, kernel_crcs, refused

NV12 = 'video/x-raw,format=NV12,width=640,height=360,framerate=30/1'


def _foreign() -> dict[int, str]:
    """Return descriptors of devices and sockets, none of which is the package's."""
    found = {}
    for name in os.listdir('/proc/self/fd'):
        with suppress(OSError):
            found[int(name)] = os.readlink(f'/proc/self/fd/{name}')
    return {fd: what for fd, what in found.items() if what.startswith(('/dev/video', 'socket:'))}


def warm_up() -> None:
    """Let GStreamer open descriptors that it keeps, for its clock and V4L2 elements."""
    with refused(CameraError, '/dev/video99'):
        _open('v4l2src device=/dev/video99', CopyLedger())


def _open(pipeline: str, ledger: CopyLedger) -> GStreamerCamera:
    return GStreamerCamera(
        camera_options(pipeline=pipeline, ledger=ledger, heap='dma_heap/system')
    )


@contextmanager
def _streaming(pipeline: str) -> Iterator[tuple[GStreamerCamera, CopyLedger]]:
    """Allow for pools: v4l2src 1.22 and 1.24 leaks a device descriptor and sockets per stream."""
    before, ledger = set(_foreign()), CopyLedger()
    camera = _open(pipeline, ledger)
    try:
        own = camera.constraints()
        others = BufferConstraints('slots', slots=6 - own.slots)
        camera.allocate(agree([own, others], (camera.width, camera.height)))
        yield camera, ledger
    finally:
        camera.close()
        left = {number: what for number, what in _foreign().items() if number not in before}
        for number in left:
            os.close(number)
    pools = sum(what.startswith('/dev/video') for what in left.values())
    assert pools <= 1 and len(left) <= 5 * pools, left


@check_each('multi', long=('single io-mode=dmabuf', 'multi_dma io-mode=dmabuf'))
def frames_of_v4l2src_are_the_drivers_own_buffers(variant: str) -> None:
    name, _, option = variant.partition(' ')
    before = set(bufinfo())
    exporter = EXPORTERS[name]
    with (
        accelerator() as npu,
        _streaming(f'v4l2src device={DEVICES[name]} {option} ! {NV12}') as (camera, ledger),
    ):
        equal(camera.copy_reason, '', 'why it is copied')
        equal(
            (camera.heap_name, camera.width, camera.height, camera.framerate),
            (f'gstreamer/{exporter}', 640, 360, 30.0),
            'camera',
        )
        contents, used, uids = set(), set(), set()
        for _ in range(12):
            with next_frame(camera) as frame:
                found = kernel_crcs(frame)
                equal(device_crcs(npu, frame), found, 'what the device saw')
                contents.add(tuple(found))
                used.update(buffer.identity.inode for buffer in frame.data.buffers)
                uids.add(frame.data.buffer_uid)
                assert not any(buffer.mapped for buffer in frame.data.buffers)
                equal(frame.data.modifier, LINEAR, 'modifier')
                age = time.time_ns() - frame.header.stamp_ns
                assert 0 <= age < 20_000_000_000, age  # a slow guest's, too
        equal({bufinfo()[inode].exporter for inode in used}, {exporter}, 'exporter')
        assert len(contents) > 8 and len(uids) > 1, (len(contents), uids)
        equal(
            (ledger.entries(), camera.statistics().bad, camera.facts()['copied_upstream']),
            ({}, 0, 0),
            'copies',
        )
        descriptors = frame.data.layout.num_buffers
        equal(descriptors, 2 if name.startswith('multi') else 1, 'descriptors of a frame')
        equal(len(used), len(uids) * descriptors, 'buffers')
    del frame
    until(lambda: set(bufinfo()) <= before, 'the buffers go')
