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
What can go wrong with a camera, injected by vivid's own controls.

Also what the controls do to the picture.
"""

from __future__ import annotations

import subprocess
import sys

import numpy as np
from waiting import until

from zc_perception.camera.v4l2.camera import V4l2Camera
from zc_perception.camera.v4l2.device import find_device, V4l2Controls, V4l2Device
from zc_perception.errors import (
    CameraBusyError,
    CameraChangedError,
    CameraError,
    CameraLostError,
    ConfigError,
)

from .camera_kit import (
    capture_until,
    configured,
    MULTI,
    next_frame,
    opened,
    settled,
    SINGLE,
    streaming,
)
from .harness import check, check_each, equal
from .kernel_api import any_heap
from .package_kit import kernel_crcs, refused

HDMI, WEBCAM = 3, 0


def until_raises(camera: V4l2Camera, kind: type[CameraError], *words: str) -> None:
    """Capture until that error."""
    with refused(kind, *words):
        capture_until(camera, lambda: False, kind.__name__)


@check
def a_frame_that_the_driver_marks_bad_is_counted_and_queued_again() -> None:
    with streaming(SINGLE) as camera:
        next_frame(camera).release()
        camera.set_control('inject_v4l2_buf_flag_error', 0)
        capture_until(camera, lambda: camera.statistics().bad == 1, 'a bad frame')
        good = camera.statistics().captured
        capture_until(
            camera,
            lambda: camera.statistics().captured > good + 2 * len(camera.slots),
            'good frames again',
        )
        equal((camera.statistics().bad, camera.restarts), (1, 0), 'bad frames and restarts')


@check
def frames_that_the_driver_drops_are_counted_as_lost() -> None:
    with streaming(SINGLE) as camera:
        camera.set_control('percentage_of_dropped_buffers', 40)
        first = next_frame(camera).data.sequence
        capture_until(camera, lambda: camera.statistics().lost >= 5, 'lost frames')
        camera.set_control('percentage_of_dropped_buffers', 0)
        with settled(camera) as frame:
            statistics = camera.statistics()
            equal(
                frame.data.sequence - first + 1 - statistics.captured,
                statistics.lost + statistics.no_slot,
                'gaps in the sequence',
            )


@check
def a_buffer_that_is_refused_once_is_queued_all_the_same() -> None:
    with streaming(SINGLE) as camera:
        next_frame(camera).release()
        camera.set_control('inject_vidioc_qbuf_error', 0)
        seen: set[int] = set()
        for _ in range(4 * len(camera.slots)):
            with next_frame(camera) as frame:
                seen.add(frame.data.buffers[0].identity.inode)
        seen.clear()
        for _ in range(4 * len(camera.slots)):
            with next_frame(camera) as frame:
                seen.add(frame.data.buffers[0].identity.inode)
        equal(seen, {slot.buffers[0].identity.inode for slot in camera.slots}, 'buffers in use')


@check
def a_stream_that_does_not_start_is_tried_again() -> None:
    with streaming(SINGLE) as camera:
        camera.set_control('inject_vidioc_streamon_error', 0)
        next_frame(camera).release()
        equal(camera.restarts, 1, 'attempts after the first')


@check_each('single', 'multi')
def a_stream_that_breaks_off_is_started_anew(name: str) -> None:
    with streaming(SINGLE if name == 'single' else MULTI) as camera:
        with next_frame(camera) as held:
            before, sequence = kernel_crcs(held), held.data.sequence
            camera.set_control('inject_fatal_streaming_error', 0)
            capture_until(camera, lambda: camera.restarts == 1, 'a restart')
            with settled(camera) as frame:
                assert frame.data.sequence > sequence
            equal(kernel_crcs(held), before, 'pixels of a frame that was leased meanwhile')
        for _ in range(2 * len(camera.slots)):
            next_frame(camera).release()


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
    camera = opened(SINGLE)
    camera.set_control('inject_vidioc_reqbufs_error', 0)
    camera.close()
    with streaming(SINGLE) as camera:
        equal((camera.memory, camera.heap_name), ('import', any_heap()), 'memory')
        assert any('REQBUFS' in note for note in camera.notices()), camera.notices()
        next_frame(camera).release()
    camera = opened(SINGLE)
    camera.set_control('inject_vidioc_reqbufs_error', 0)
    camera.close()
    with refused(CameraError, 'REQBUFS', 'try memory: import'):
        opened(SINGLE, memory='export')


@check
def a_silent_camera_is_started_anew_once_and_then_given_up() -> None:
    with streaming(SINGLE, silent=0.6) as camera:
        next_frame(camera).release()
        before = camera.restarts
        camera.set_control('percentage_of_dropped_buffers', 100)
        try:
            until_raises(camera, CameraLostError, 'is silent', '0.6 s')
        finally:
            camera.set_control('percentage_of_dropped_buffers', 0)
        equal(camera.restarts - before, 1, 'restarts')


@check
def sequence_numbers_go_on_over_their_32_bits() -> None:
    with streaming(SINGLE, size=(320, 180), rate=60.0) as camera:
        camera.set_control('wrap_sequence_number', True)
        try:
            sequences = []
            for _ in range(150):
                with next_frame(camera) as frame:
                    sequences.append(frame.data.sequence)
            assert sequences == sorted(set(sequences)), sequences
            assert sequences[-1] - sequences[0] < 1000, sequences
            assert sequences[0] < 1 << 32 <= sequences[-1], (sequences[0], sequences[-1])
        finally:
            camera.set_control('wrap_sequence_number', False)


@check_each('export', 'import')
def an_unplugged_camera_is_lost_and_found_again_by_its_identity(memory: str) -> None:
    with streaming(MULTI, memory=memory) as camera:
        identity = camera.identity
        held = next_frame(camera)
        before = kernel_crcs(held)
        camera.set_control('disconnect', 0)
        until_raises(camera, CameraLostError, MULTI, 'unplugged')
        with refused(CameraLostError, 'unplugged'):
            camera.set_control('brightness', 100)
        equal(find_device(identity), None, 'found while it is away')
        equal(kernel_crcs(held), before, 'pixels of a frame that was leased')
    # vivid comes back when its last user has closed it.
    until(lambda: find_device(identity) == MULTI, 'it is back', 10)
    with streaming(MULTI, memory=memory) as again:
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
        _show('Selected DV Timings', next(text for text in menu.values() if '720x480i' in text))
        with refused(CameraError, "can't take the 720x480 signal", 'another mode'):
            opened(SINGLE, size=(0, 0), input=HDMI)
    finally:
        _show('Current DV Timings')
        opened(SINGLE, size=(0, 0), input=WEBCAM).close()


def _show(mode: str, timings: str | None = None) -> None:
    """Let another signal come in at the input that the device is at."""
    device = V4l2Device.open(SINGLE)
    try:
        controls = V4l2Controls(device)
        controls.set('dv_timings_signal_mode', mode)
        if timings is not None:
            controls.set('dv_timings', timings)
    finally:
        device.close()


_STREAMER = """
import sys
from rig.guest.check_camera import opened
with opened({path!r}, 2):
    print('ready', flush=True)
    sys.stdin.read()
"""


@check
def another_program_that_streams_is_named() -> None:
    with streaming(SINGLE) as camera:
        next_frame(camera).release()
        with refused(
            CameraBusyError, 'busy', 'another program uses it: this process', 'end that one first'
        ):
            opened(SINGLE)
        next_frame(camera).release()
    paths = [entry for entry in sys.path if entry]
    script = f'import sys; sys.path[:0] = {paths!r}{_STREAMER.format(path=SINGLE)}'
    process = subprocess.Popen(
        [sys.executable, '-S', '-c', script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == 'ready\n'
        with refused(CameraBusyError, f'({process.pid})', 'another program uses it'):
            opened(SINGLE)
    finally:
        process.communicate()
    with streaming(SINGLE) as camera:
        next_frame(camera).release()


@check
def controls_change_the_picture() -> None:
    with streaming(SINGLE) as camera:
        means = {}
        for value in (64, 192):
            equal(camera.set_control('brightness', value), value, 'brightness in force')
            with settled(camera) as frame, frame.map() as planes:
                means[value] = float(planes[0].mean())
        camera.set_control('brightness', camera.controls()['brightness'].default)
        assert means[192] - means[64] > 60, means
        camera.set_control('osd_text_mode', 'None')
        bars = []
        for flipped in (False, True):
            equal(camera.set_control('horizontal_flip', flipped), int(flipped), 'flip in force')
            with settled(camera) as frame, frame.map() as planes:
                bars.append(np.array(planes[0][180]))
        camera.set_control('horizontal_flip', False)
        assert not np.array_equal(bars[0], bars[1])
        difference = np.abs(bars[0].astype(int) - bars[1][::-1].astype(int))
        assert np.median(difference) <= 1 and (difference > 2).mean() < 0.05, (
            'the flipped picture is the mirror image'
        )
        camera.set_control('test_pattern', '100% White')
        with settled(camera) as frame, frame.map() as planes:
            assert planes[0].min() == planes[0].max() > 200, (planes[0].min(), planes[0].max())
        camera.set_control('test_pattern', 0)
        camera.set_control('osd_text_mode', 'All')


@check
def controls_have_the_drivers_ranges_and_refuse_what_is_outside() -> None:
    camera = opened(MULTI)
    try:
        infos = camera.controls()
        brightness = infos['brightness']
        equal(
            (brightness.kind, brightness.minimum, brightness.maximum, brightness.step),
            ('integer', 0, 255, 1),
            'brightness',
        )
        equal(infos['horizontal_flip'].kind, 'boolean', 'kind')
        equal(infos['disconnect'].kind, 'button', 'kind')
        assert infos['test_pattern'].menu[0].startswith('75% Colorbar'), infos['test_pattern']
        integer64 = infos['integer_64_bits']
        assert integer64.minimum < -(1 << 40) and integer64.maximum > 1 << 40, integer64
        value = integer64.maximum - 12345
        equal(camera.set_control('integer_64_bits', value), value, '64 bits')
        mask = infos['bitmask']
        assert mask.kind == 'bitmask' and mask.maximum > 1 << 30, mask
        equal(camera.set_control('bitmask', mask.maximum), mask.maximum, 'all bits')
        numbers = infos['integer_menu']
        index, text = next(iter(numbers.menu.items()))
        assert text.lstrip('-').isdigit(), numbers
        equal(camera.set_control('integer_menu', text), index, 'integer menu by its number')
        assert infos['read_only_integer_32_bits'].read_only
        menu = infos['menu']
        hole = next(n for n in range(menu.minimum, menu.maximum + 1) if n not in menu.menu)
        for name, bad, words in (
            ('brightness', 256, ('256', '0 .. 255')),
            ('brightness', -1, ('-1', '0 .. 255')),
            ('brightness', True, ('True', '0 .. 255')),
            ('brightnes', 1, ("did you mean 'brightness'?",)),
            ('menu', hole, (str(hole), menu.menu[menu.maximum])),
            ('test_pattern', '75% Colourbar', ('did you mean',)),
            ('read_only_integer_32_bits', 1, ('read-only',)),
            ('string', 'text', ('v4l2-ctl',)),
        ):
            with refused(ConfigError, name, *words):
                camera.set_control(name, bad)
        compound = [
            name for name in infos if 'array' in name or 'area' in name or 'rectangle' in name
        ]
        equal(compound, [], 'compound controls')
    finally:
        camera.set_control('integer_64_bits', 0)
        camera.set_control('bitmask', 0)
        camera.close()
