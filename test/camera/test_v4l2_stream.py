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
What a V4L2 stream does when frames, buffers or the device are missing.

The driver is made of Python.
"""

from __future__ import annotations

import ctypes
import errno

from camera.v4l2_double import DriverDouble, Frame, streaming, take
import pytest

from zc_perception.camera.v4l2 import abi
from zc_perception.errors import CameraError, CameraLostError
from zc_perception.memory.owned_fd import OwnedFd


def test_gaps_are_lost_frames_unless_consumers_held_all_slots() -> None:
    driver = DriverDouble('NV12')
    with streaming(driver, slots=4) as camera:
        driver.script = [Frame(), Frame(sequence=5)]
        assert take(camera, 2) == [0, 5]
        assert (camera.statistics().lost, camera.statistics().no_slot) == (4, 0)
        held = [frame for frame in (camera.capture() for _ in camera.slots) if frame is not None]
        assert len(held) == len(camera.slots) and camera.capture() is None
        for frame in held:
            frame.release()
        driver.script = [Frame(sequence=20)]
        assert take(camera) == [20]
        assert (
            camera.statistics().lost,
            camera.statistics().no_slot,
            camera.statistics().dropped,
        ) == (4, 10, 14)


@pytest.mark.parametrize(
    ('numbers', 'sequences', 'lost'),
    [((0, 0, 0, 0, 0), [0, 1, 2, 3, 4], 0), ((100, 3, 5), [100, 101, 103], 1)],
    ids=['never', 'anew'],
)
def test_a_driver_that_does_not_count_or_begins_anew_loses_nothing(
    numbers: tuple[int, ...], sequences: list[int], lost: int
) -> None:
    driver = DriverDouble('NV12')
    with streaming(driver) as camera:
        driver.script = [Frame(sequence=number) for number in numbers]
        assert take(camera, len(numbers)) == sequences
        assert camera.statistics().dropped == camera.statistics().lost == lost


def test_a_lease_that_ends_while_the_stream_starts_anew_has_its_buffer_queued_once() -> None:
    """
    The slot is free before its listener is called.

    Both the restart and the listener find it.
    """
    driver = DriverDouble('NV12')
    with streaming(driver) as camera:
        stream, start = camera._stream, driver._streamon
        assert stream is not None

        def late(argument: ctypes.c_int) -> None:
            stream.queue_again(camera.slots[0])
            start(argument)

        driver._streamon = late  # type: ignore[method-assign]
        driver.calls.clear()
        take(camera)
        assert (
            driver.calls.count('QBUF') == len(camera.slots) + 1
        )  # all, and the one that was taken


def test_a_pipeline_that_does_not_fit_is_no_matter_of_trying_again() -> None:
    driver = DriverDouble('NV12')
    with streaming(driver) as camera:
        driver.fail('STREAMON', errno.EPIPE)
        with pytest.raises(CameraError, match='media-ctl') as raised:
            camera.capture()
        assert not isinstance(raised.value, CameraLostError) and camera.restarts == 0
        assert not driver.queued


class PacedDriver(DriverDouble):
    """Whose frames take their time."""

    def poll(self, wake: OwnedFd, timeout_ms: int) -> int:
        self.now += 1 / 30
        return super().poll(wake, timeout_ms)


@pytest.mark.parametrize('bad', [Frame(flags=abi.BUF_FLAG_ERROR), Frame(used=100)])
def test_a_camera_that_gives_bad_frames_alone_is_as_good_as_silent(bad: Frame) -> None:
    driver = PacedDriver('NV12')
    with streaming(driver) as camera:
        take(camera)
        start, driver.script = driver.now, [bad] * 10_000
        while camera.restarts == 0:
            assert camera.capture() is None
        assert 2.0 <= driver.now - start < 2.6
        assert len(driver.queued) + len(driver.waiting) == len(camera.slots)
        with pytest.raises(CameraLostError, match='no good frame for 2 s'):
            while True:
                camera.capture()
        assert driver.now - start < 5.2 and camera.restarts == 1 and camera.statistics().bad > 20


def test_a_slow_camera_is_not_silent() -> None:
    driver = DriverDouble('NV12')
    with streaming(driver, framerate=1.0) as camera:
        take(camera)
        driver.silent, start = True, driver.now
        while driver.now - start < 9.5:
            camera.capture()
        assert camera.framerate == 1.0 and camera.restarts == 0
        while driver.now - start < 10.5:
            camera.capture()
        assert camera.restarts == 1


def test_a_camera_whose_slots_are_all_held_is_not_silent() -> None:
    driver = DriverDouble('NV12')
    with streaming(driver, silent=1.0) as camera:
        held = [camera.capture() for _ in camera.slots]
        start = driver.now
        while driver.now - start < 5.0:
            assert camera.capture() is None
        assert camera.restarts == 0
        for frame in held:
            assert frame is not None
            frame.release()
