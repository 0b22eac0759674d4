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

"""V4L2 cameras on vivid: frames as the kernel wrote them; faults by vivid's controls."""

from __future__ import annotations

import socket

from waiting import until

from zc_perception.camera.v4l2.device import find_device
from zc_perception.errors import CameraBusyError, CameraChangedError, CameraError, CameraLostError
from zc_perception.frame import Frame
from zc_perception.negotiation.constraints import BufferConstraints
from zc_perception.npu.axl.accelerator import AxlAccelerator

from .camera_kit import (
    capture_until,
    configured,
    next_frame,
    opened,
    set_controls,
    SIZE,
    streaming,
    until_raises,
)
from .graph_variants import DEVICES, EXPORTERS, MULTI, SINGLE, SINGLE_DMA
from .harness import check, check_each, Child, equal
from .kernel_api import any_heap, bufinfo, HEAP_EXPORTERS
from .package_kit import accelerator, device_crcs, kernel_crcs, refused


def _same_to_device_and_kernel(npu: AxlAccelerator, frame: Frame) -> list[int]:
    found = kernel_crcs(frame)
    equal(device_crcs(npu, frame), found, 'what the device saw')
    assert not any(buffer.mapped for buffer in frame.data.buffers)
    return found


@check_each(
    'single NV12 import', 'multi NM12 export', 'multi NM12 import', 'single_dma NV12 export'
)
def frames_reach_the_device_as_the_camera_made_them(variant: str) -> None:
    name, pixel_format, memory = variant.split()
    before = set(bufinfo())
    with (
        accelerator() as npu,
        streaming(
            DEVICES[name], [npu.constraints()], pixel_format=pixel_format, memory=memory
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
        exporter = EXPORTERS[name] if memory == 'export' else HEAP_EXPORTERS[any_heap()]
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
    Stream if the system heap's pages are contiguous, else refuse before streaming.

    Not with two buffers per image: there this kernel's videobuf2 keeps a reference to a buffer
    that it could not map.
    """
    try:
        camera = opened(SINGLE_DMA, memory='import', heap=any_heap())
    except CameraError as error:
        assert 'not contiguous' in str(error) and 'import buffers of any heap' in str(error), error
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
def strides_are_asked_of_the_driver() -> None:
    wide = BufferConstraints('wide', stride_align=256)
    with accelerator() as npu, streaming(MULTI, [npu.constraints(), wide]) as camera:
        equal([plane.stride for plane in camera.slots[0].layout.planes], [768, 768], 'strides')
        with next_frame(camera) as frame:
            _same_to_device_and_kernel(npu, frame)


HDMI, WEBCAM = 3, 0


@check
def a_stream_that_breaks_off_again_and_again_is_given_up() -> None:
    with streaming(SINGLE) as camera:
        next_frame(camera).release()
        with refused(CameraLostError, 'starting the stream anew 3 times did not help'):
            for _ in range(20):
                camera.set_control('inject_fatal_streaming_error', 0)
                restarts = camera.restarts
                capture_until(camera, lambda seen=restarts: camera.restarts > seen, 'a restart')


@check
def a_driver_that_exports_nothing_is_given_our_memory() -> None:
    set_controls(SINGLE, inject_vidioc_reqbufs_error=0)
    with streaming(SINGLE) as camera:
        equal((camera.memory, camera.heap_name), ('import', any_heap()), 'memory')
        assert any('REQBUFS' in note for note in camera.notices()), camera.notices()
        next_frame(camera).release()
    set_controls(SINGLE, inject_vidioc_reqbufs_error=0)
    with refused(CameraError, 'REQBUFS', "set parameter 'memory' to import"):
        opened(SINGLE, memory='export')


@check
def an_unplugged_camera_is_lost_and_found_again_by_its_identity() -> None:
    with streaming(MULTI, memory='import') as camera:
        identity = camera.identity
        held = next_frame(camera)
        before = kernel_crcs(held)
        camera.set_control('disconnect', 0)
        until_raises(camera, CameraLostError, MULTI, 'unplugged')
        with refused(CameraLostError, 'unplugged'):
            camera.set_control('brightness', 100)
        equal(find_device(identity), None, 'found while it is away')
        equal(kernel_crcs(held), before, 'pixels of a frame that was leased')
    # vivid's node returns when its last user has closed it.
    until(lambda: find_device(identity) == MULTI, 'it is back', 10)
    with streaming(MULTI, memory='import') as again:
        equal(again.identity, identity, 'identity')
        next_frame(again).release()
    equal(kernel_crcs(held), before, 'pixels of a frame that was leased')
    held.release()


@check
def a_source_that_changes_is_negotiated_anew() -> None:
    try:
        camera = opened(SINGLE, size=(0, 0), input=HDMI)
        try:
            first = (camera.width, camera.height)
            menu = camera.controls()['dv_timings'].menu
            size = next(size for size in ((1280, 720), (720, 576)) if size != first)
            other = next(text for text in menu.values() if f'{size[0]}x{size[1]}p' in text)
            configured(camera)
            held = next_frame(camera)
            before = kernel_crcs(held)
            camera.set_control('dv_timings', other)
            camera.set_control('dv_timings_signal_mode', 'Selected DV Timings')
            until_raises(camera, CameraChangedError, f'{size[0]}x{size[1]}', 'negotiate anew')
        finally:
            camera.close()
        with streaming(SINGLE, size=(0, 0), input=HDMI) as again:
            equal((again.width, again.height), size, 'size')
            with next_frame(again) as frame:
                equal((frame.data.width, frame.data.height), size, 'size of a frame')
            equal(kernel_crcs(held), before, 'pixels of a frame of the old format')
            again.set_control('dv_timings_signal_mode', 'No Signal')
            until_raises(again, CameraLostError, 'no signal', 'HDMI')
        with refused(CameraLostError, 'no signal', 'cable'):
            opened(SINGLE, size=(0, 0), input=HDMI)
        held.release()
        interlaced = next(text for text in menu.values() if '720x480i' in text)
        set_controls(SINGLE, dv_timings_signal_mode='Selected DV Timings', dv_timings=interlaced)
        with refused(CameraError, "can't take the 720x480 signal", 'another mode'):
            opened(SINGLE, size=(0, 0), input=HDMI)
    finally:
        set_controls(SINGLE, dv_timings_signal_mode='Current DV Timings')
        opened(SINGLE, size=(0, 0), input=WEBCAM).close()


def _stream_until_told(theirs: socket.socket) -> None:
    with streaming(SINGLE) as camera:
        next_frame(camera).release()
        theirs.send(b'ready')
        theirs.recv(1)


@check
def another_program_that_streams_is_named() -> None:
    with streaming(SINGLE) as camera:
        next_frame(camera).release()
        with refused(
            CameraBusyError,
            'busy',
            'another program uses it: this process',
            'end that program first',
        ):
            opened(SINGLE)
        next_frame(camera).release()
    child = Child(_stream_until_told)
    equal(child.answer(), b'ready', 'the other program')
    with refused(CameraBusyError, f'({child.pid})', 'another program uses it'):
        opened(SINGLE)
    child.join()
    with streaming(SINGLE) as camera:
        next_frame(camera).release()
