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
Frames of vivid in every combination of API, format and memory.

Each is compared in the device with what the kernel says it holds.
"""

from __future__ import annotations

from pathlib import Path
import time

from waiting import until

from zc_perception.errors import CameraError
from zc_perception.frame import Frame
from zc_perception.memory.pool import SlotState
from zc_perception.negotiation.constraints import BufferConstraints, Placement
from zc_perception.npu.axl.accelerator import AxlAccelerator
from zc_perception.pixel.format_names import from_v4l2
from zc_perception.pixel.modifier import LINEAR

from .camera_kit import (
    capture_until,
    configured,
    MULTI,
    MULTI_DMA,
    next_frame,
    opened,
    RATE,
    SINGLE,
    SINGLE_DMA,
    SIZE,
    streaming,
)
from .harness import check, check_each, equal
from .kernel_api import any_heap, bufinfo, HEAP_EXPORTERS
from .package_kit import accelerator, device_crcs, kernel_crcs, refused

EXPORTERS = {
    SINGLE: 'videobuf2_vmalloc',
    MULTI: 'videobuf2_vmalloc',
    SINGLE_DMA: 'videobuf2_dma_contig',
    MULTI_DMA: 'videobuf2_dma_contig',
}
NAMES = {'single': SINGLE, 'multi': MULTI, 'single_dma': SINGLE_DMA, 'multi_dma': MULTI_DMA}


def _same_to_device_and_kernel(npu: AxlAccelerator, frame: Frame) -> list[int]:
    found = kernel_crcs(frame)
    equal(device_crcs(npu, frame), found, 'what the device saw')
    assert not any(buffer.mapped for buffer in frame.data.buffers)
    return found


@check_each(
    'single NV12 export',
    'single NV12 import',
    'multi NV12 export',
    'multi NV12 import',
    'multi NM12 export',
    'multi NM12 import',
    'single_dma NV12 export',
    'multi_dma NV12 export',
    'multi_dma NM12 export',
)
def frames_reach_the_device_as_the_camera_made_them(variant: str) -> None:
    name, pixel_format, memory = variant.split()
    before = set(bufinfo())
    with (
        accelerator() as npu,
        streaming(
            NAMES[name], [npu.constraints()], pixel_format=pixel_format, memory=memory
        ) as camera,
    ):
        equal(camera.memory, memory, 'memory')
        layout = camera.slots[0].layout
        equal(
            (layout.width, layout.height, layout.num_buffers),
            (*SIZE, 2 if pixel_format == 'NM12' else 1),
            'layout',
        )
        inodes = {buffer.identity.inode for slot in camera.slots for buffer in slot.buffers}
        exporter = EXPORTERS[NAMES[name]] if memory == 'export' else HEAP_EXPORTERS[any_heap()]
        equal({bufinfo()[inode].exporter for inode in inodes}, {exporter}, 'exporter')
        equal(len(inodes), len(camera.slots) * layout.num_buffers, 'buffers')
        contents, used = set(), set()
        for _ in range(8):
            with next_frame(camera) as frame:
                contents.add(tuple(_same_to_device_and_kernel(npu, frame)))
                used.add(frame.data.buffers[0].identity.inode)
                assert frame.data.buffers[0].writable is (memory == 'import')
        assert len(contents) > 4 and len(used) > 1, (contents, used)
        equal(camera.statistics().bad, 0, 'bad frames')
    until(lambda: set(bufinfo()) <= before, 'the buffers go')


@check
def a_device_without_iommu_imports_contiguous_memory_or_says_why_not() -> None:
    """
    Stream whether the system heap's pages are scattered or not, or say why not.

    What counts is that the camera knows before it streams.

    Not with two buffers per image: there this kernel's videobuf2 keeps a reference to one that it
    could not map.
    """
    try:
        camera = opened(SINGLE_DMA, memory='import', heap=any_heap())
    except CameraError as error:
        assert 'not contiguous' in str(error) and 'imports buffers of no heap' in str(error), error
        return
    with accelerator() as npu:
        try:
            configured(camera, [npu.constraints()])
        except CameraError as error:
            assert 'not contiguous' in str(error), error
        else:
            with next_frame(camera) as frame:
                _same_to_device_and_kernel(npu, frame)
        finally:
            camera.close()


@check
def every_frame_of_a_stream_at_640x360_comes_or_is_counted_as_lost() -> None:
    """
    Count the frames that vivid skips; the rate is by the driver's stamps.

    vivid skips frames while the machine under the guest stands still.
    """
    with streaming(SINGLE, [BufferConstraints('npu', slots=2)], slots=8) as camera:
        with next_frame(camera) as frame:
            first = last = (frame.data.sequence, frame.data.captured_ns)
        for _ in range(150):
            with next_frame(camera) as frame:
                assert frame.data.sequence > last[0] and frame.data.captured_ns > last[1], (
                    frame.data,
                    last,
                )
                last = (frame.data.sequence, frame.data.captured_ns)
        statistics, periods = camera.statistics(), last[0] - first[0]
        equal(
            statistics.lost + statistics.no_slot,
            periods + 1 - statistics.captured,
            'counted as missing',
        )
        equal(statistics.bad, 0, 'bad frames')
        rate = periods / (last[1] - first[1]) * 1e9
        # A stamp is late by as much as the machine stands still.
        assert abs(rate - RATE) < 3.0, rate
        equal(camera.facts()['timestamp source'], 'start of exposure', 'source of the timestamps')
        print(f'          {rate:.3f} Hz over {periods} periods, {statistics}')


@check
def the_negotiation_picks_the_format_and_the_placement() -> None:
    for wanted, code, buffers in (
        (BufferConstraints('both', placement=Placement.BUFFER_PER_PLANE), 'NM12', 2),
        (BufferConstraints('one', placement=Placement.ONE_BUFFER), 'NV12', 1),
        (BufferConstraints('packed', formats=((from_v4l2('YUYV').fourcc, LINEAR),)), 'YUYV', 1),
        (BufferConstraints('any'), 'NV12', 1),
    ):
        with streaming(MULTI, [wanted]) as camera, next_frame(camera) as frame:
            equal(
                (frame.data.fourcc, frame.data.layout.num_buffers),
                (from_v4l2(code).fourcc, buffers),
                wanted.participant,
            )
            assert kernel_crcs(frame)


@check_each('single', 'multi')
def strides_are_asked_of_the_driver(name: str) -> None:
    with (
        accelerator() as npu,
        streaming(
            NAMES[name], [npu.constraints(), BufferConstraints('wide', stride_align=256)]
        ) as camera,
    ):
        equal([plane.stride for plane in camera.slots[0].layout.planes], [768, 768], 'strides')
        with next_frame(camera) as frame:
            _same_to_device_and_kernel(npu, frame)


@check
def data_that_begins_behind_a_header_is_found() -> None:
    """Find the luma of NV16M behind some bytes, which vivid keeps."""
    with streaming(MULTI, pixel_format='NM16') as camera, next_frame(camera) as frame:
        offsets = [plane.offset for plane in frame.data.planes]
        assert offsets[0] > 0, offsets
        with frame.map() as planes:
            # Colour bars, and nothing of the header: every luma value is a legal one.
            assert (
                planes[0].shape == (360, 640) and planes[0].min() >= 16 and planes[0].std() > 20
            ), (planes[0].min(), planes[0].std())


@check
def stamps_are_the_drivers_own_mapped_to_the_ros_clock() -> None:
    with streaming(SINGLE) as camera:
        last = 0
        for _ in range(10):
            with next_frame(camera) as frame:
                # Who is interrupted between the two reads gets too little.
                data, offset = (
                    frame.data,
                    max(time.time_ns() - time.monotonic_ns() for _ in range(5)),
                )
                assert abs(data.header.stamp_ns - data.captured_ns - offset) < 1_000_000, (
                    data.header,
                    data.captured_ns,
                    offset,
                )
                assert frame.header.stamp_ns > last
                last = frame.header.stamp_ns
        equal(camera.clock.statistics().implausible, 0, 'implausible stamps')


@check_each('single export', 'single import', 'multi import')
def leased_frames_outlive_the_camera_and_nothing_leaks(variant: str) -> None:
    name, memory = variant.split()
    with streaming(NAMES[name], memory=memory) as camera:
        frames = [next_frame(camera) for _ in range(2)]
        before = [kernel_crcs(frame) for frame in frames]
    equal([kernel_crcs(frame) for frame in frames], before, 'pixels after the camera closed')
    inodes = {buffer.identity.inode for frame in frames for buffer in frame.data.buffers}
    assert inodes <= set(bufinfo())
    for frame in frames:
        frame.release()
    del frame, frames
    until(lambda: not inodes & set(bufinfo()), 'the buffers go with their last lease')


@check
def frames_that_consumers_hold_back_are_told_from_lost_ones() -> None:
    with streaming(SINGLE, slots=4) as camera:
        held = [next_frame(camera) for _ in camera.slots]
        time.sleep(0.4)
        assert camera.capture() is None, 'there was no buffer left to fill'
        for frame in held:
            frame.release()
        next_frame(camera).release()
        statistics = camera.statistics()
        assert (
            statistics.no_slot >= 5 and statistics.dropped == statistics.no_slot + statistics.lost
        ), statistics
        made = len(camera.slots)
        states = {SlotState.FREE: made}
        capture_until(
            camera,
            lambda: camera.pool_statistics().states == states,
            'all slots are with the driver again',
        )


@check
def the_same_device_has_one_identity_and_others_have_others() -> None:
    identities = []
    for path in NAMES.values():
        camera = opened(path)
        identities.append(camera.identity)
        camera.close()
    equal(len(set(identities)), len(NAMES), 'identities')
    assert all('vivid' in identity and '/dev/' not in identity for identity in identities), (
        identities
    )
    link = Path('/tmp/another_name')
    link.symlink_to(MULTI)
    try:
        camera = opened(str(link))
        equal(camera.identity, identities[1], 'identity by another name')
        camera.close()
    finally:
        link.unlink()


@check
def what_it_can_not_do_is_said_with_what_it_can() -> None:
    with refused(
        CameraError,
        "can't do 641x359",
        'the nearest is',
        'it offers NV12 in 320x180, 640x360',
        'also YUYV',
    ):
        opened(SINGLE, size=(641, 359))
    with refused(CameraError, "no pixel format 'NM12'", 'NV12', 'pixel_format'):
        opened(SINGLE, pixel_format='NM12')
    with refused(CameraError, '/dev/video77', f'devices found: {SINGLE} (vivid), {MULTI} (vivid)'):
        opened('/dev/video77')
    with refused(CameraError, 'has no input 9', '0 (Webcam 000-0)', '3 (HDMI 000-0)'):
        opened(SINGLE, input=9)
    camera = opened(SINGLE, size=(0, 0))
    assert camera.width and camera.height
    camera.close()
