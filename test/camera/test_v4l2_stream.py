"""What a V4L2 stream does when frames, buffers or the device are missing, against a driver made of Python."""

from __future__ import annotations

import ctypes
import errno

import pytest
from camera.v4l2_double import DriverDouble, Frame, streaming, take

from zc_perception.camera.v4l2 import abi
from zc_perception.camera.v4l2.camera import MAX_RESTARTS
from zc_perception.errors import CameraChangedError, CameraError, CameraLostError
from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.memory.pool import SlotState


@pytest.mark.parametrize(
    ('bad', 'expected'),
    [
        (Frame(flags=abi.BUF_FLAG_ERROR), 'error flag'),
        (Frame(used=640 * 360 * 3 // 2 - 1), 'a byte too few'),
        (Frame(used=0), 'empty'),
    ],
)
def test_bad_frames_are_counted_and_their_buffers_queued_again(bad: Frame, expected: str) -> None:
    driver = DriverDouble('NV12')
    with streaming(driver) as camera:
        driver.script = [Frame(), bad]
        assert take(camera, 3) == [0, 2, 3], expected
        assert (
            camera.statistics().bad,
            camera.statistics().lost,
            camera.statistics().dropped,
        ) == (1, 0, 1)
        assert len(driver.queued) + len(driver.waiting) == len(camera.slots)


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


def test_sequences_go_on_over_32_bits_and_over_a_restart() -> None:
    driver = DriverDouble('NV12')
    with streaming(driver) as camera:
        driver.script = [Frame(sequence=0xFFFFFFFE), Frame(), Frame(), Frame(sequence=3)]
        top = 1 << 32
        assert take(camera, 4) == [top - 2, top - 1, top, top + 3]
        assert camera.statistics().lost == 2
        driver.broken = True
        assert take(camera, 2) == [top + 4, top + 5]
        assert camera.restarts == 1 and camera.statistics().lost == 2


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
    """The slot is free before its listener is called: both the restart and the listener find it."""
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


@pytest.mark.parametrize('number', [errno.EIO, errno.EPIPE])
def test_a_broken_stream_is_started_anew_a_bounded_number_of_times(number: int) -> None:
    driver = DriverDouble('NV12')
    with streaming(driver) as camera:
        take(camera)
        driver.fail('DQBUF', *[number] * MAX_RESTARTS)
        assert len(take(camera)) == 1 and camera.restarts == MAX_RESTARTS
        driver.fail('DQBUF', number)
        with pytest.raises(CameraLostError, match='did not help'):
            take(camera, 5)


def test_frames_without_trouble_make_up_for_restarts() -> None:
    driver = DriverDouble('NV12')
    with streaming(driver) as camera:
        for _ in range(3):
            driver.fail('DQBUF', *[errno.EIO] * MAX_RESTARTS)
            take(camera, 40)
        assert camera.restarts == 3 * MAX_RESTARTS


def test_frames_that_are_leased_over_a_restart_are_queued_when_they_come_back() -> None:
    driver = DriverDouble('NV12')
    with streaming(driver) as camera:
        held = camera.capture()
        assert held is not None
        index = next(slot.index for slot in camera.slots if slot.state is SlotState.LEASED)
        driver.broken = True
        assert len(take(camera, 2)) == 2
        assert index not in driver.queued
        held.release()
        assert index in driver.queued


@pytest.mark.parametrize('where', ['DQBUF', 'QBUF', 'STREAMON'])
def test_an_unplugged_camera_is_lost(where: str) -> None:
    driver = DriverDouble('NV12')
    with streaming(driver) as camera:
        if where != 'STREAMON':
            take(camera)
        driver.fail(where, *[errno.ENODEV] * 9)
        with pytest.raises(CameraLostError, match='unplugged'):
            take(camera, 9)


def test_an_error_of_poll_without_a_frame_is_a_broken_stream() -> None:
    driver = DriverDouble('NV12')
    with streaming(driver) as camera:
        take(camera)
        driver.streaming = False  # another process took the stream away; DQBUF has nothing to say
        assert len(take(camera)) == 1 and camera.restarts == 1


def test_a_pipeline_that_does_not_fit_is_no_matter_of_trying_again() -> None:
    driver = DriverDouble('NV12')
    with streaming(driver) as camera:
        driver.fail('STREAMON', errno.EPIPE)
        with pytest.raises(CameraError, match='media-ctl') as raised:
            camera.capture()
        assert not isinstance(raised.value, CameraLostError) and camera.restarts == 0
        assert not driver.queued


def test_a_silent_camera_is_started_anew_once() -> None:
    driver = DriverDouble('NV12')
    with streaming(driver) as camera:
        take(camera)
        start, driver.silent = driver.now, True
        while camera.restarts == 0:
            assert camera.capture() is None
        assert 2.0 <= driver.now - start < 2.6
        with pytest.raises(CameraLostError, match='silent'):
            while True:
                camera.capture()
        assert driver.now - start < 5.2 and camera.restarts == 1


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


def test_a_good_frame_among_many_bad_ones_is_enough() -> None:
    driver = PacedDriver('NV12')
    with streaming(driver) as camera:
        driver.script = ([Frame(flags=abi.BUF_FLAG_ERROR)] * 10 + [Frame()]) * 30
        start = driver.now
        assert len(take(camera, 30)) == 30 and driver.now - start > 5.0
        assert camera.restarts == 0 and camera.statistics().bad == 300


def test_a_frame_after_the_restart_ends_the_silence() -> None:
    driver = DriverDouble('NV12')
    with streaming(driver, silent=1.0) as camera:
        for _ in range(3):
            driver.silent = True
            restarts = camera.restarts
            while camera.restarts == restarts:
                assert camera.capture() is None
            driver.silent = False
            assert len(take(camera)) == 1


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


def test_a_source_change_is_an_error_of_its_own() -> None:
    driver = DriverDouble('NV12')
    with streaming(driver) as camera:
        take(camera)
        driver.events = [0]
        assert len(take(camera)) == 1  # an event about something else
        driver.events = [0, abi.EVENT_SRC_CH_RESOLUTION]
        with pytest.raises(CameraChangedError, match='negotiate anew'):
            take(camera, 3)


def test_a_buffer_that_is_refused_is_tried_once_more() -> None:
    driver = DriverDouble('NV12')
    with streaming(driver) as camera:
        take(camera)
        driver.fail('QBUF', errno.EINVAL)
        take(camera, 3)
        assert len(driver.queued) + len(driver.waiting) == len(camera.slots)
