"""The V4L2 camera's decisions against a driver made of Python; a real driver's turn comes in the rig."""

from __future__ import annotations

import ctypes
import errno
import os
import select

import pytest
from camera.v4l2_double import Control, DriverDouble, Frame, opened, streaming

from zc_perception.camera import v4l2_abi as abi
from zc_perception.camera import v4l2_control_abi as cabi
from zc_perception.camera.v4l2 import V4l2Camera
from zc_perception.camera.v4l2_stream import MAX_RESTARTS
from zc_perception.errors import CameraBusyError, CameraChangedError, CameraError, CameraLostError, ConfigError
from zc_perception.memory.pool import SlotState
from zc_perception.negotiation.collection import negotiate
from zc_perception.negotiation.constraints import BufferConstraints, Placement
from zc_perception.pixel.fourcc import NV12, fourcc_code
from zc_perception.pixel.modifier import LINEAR


def open_buffers() -> list[str]:
    """Descriptors of frames' memory. Other threads' own come and go."""
    links = (os.readlink(entry.path) for entry in os.scandir('/proc/self/fd') if os.path.islink(entry.path))
    return sorted(link for link in links if 'memfd' in link)


def take(camera: V4l2Camera, count: int = 1) -> list[int]:
    """Sequence numbers of the next frames."""
    found: list[int] = []
    for _ in range(20 * count):
        frame = camera.capture()
        if frame is not None:
            found.append(frame.data.sequence)
            frame.release()
        if len(found) == count:
            break
    return found


@pytest.mark.parametrize(
    ('formats', 'multiplanar', 'chosen', 'placement'),
    [
        (('YUYV', 'NV12', 'MJPG'), False, (NV12, fourcc_code('YUYV')), Placement.ONE_BUFFER),
        (('NM12', 'NV12', 'YUYV'), True, (NV12, fourcc_code('YUYV')), None),
        (('YUYV', 'NM12'), True, (NV12, fourcc_code('YUYV')), Placement.BUFFER_PER_PLANE),
        (('YUYV', 'MJPG'), False, (fourcc_code('YUYV'),), None),
    ],
)
def test_formats_are_offered_the_best_first(
    formats: tuple[str, ...], multiplanar: bool, chosen: tuple[int, ...], placement: Placement | None
) -> None:
    camera = opened(DriverDouble(*formats, multiplanar=multiplanar))
    constraints = camera.constraints()
    assert constraints.formats == tuple((code, LINEAR) for code in chosen)
    assert constraints.placement is placement
    camera.close()


@pytest.mark.parametrize('memory', ['export', 'import'])
@pytest.mark.parametrize(('formats', 'multiplanar', 'buffers'), [(('NV12',), False, 1), (('NV12',), True, 1), (('NM12',), True, 2)])
def test_frames_come_from_the_memory_that_was_asked_for(memory: str, formats: tuple[str, ...], multiplanar: bool, buffers: int) -> None:
    before = open_buffers()
    driver = DriverDouble(*formats, multiplanar=multiplanar)
    with streaming(driver, memory=memory, heap='memfd') as camera:
        assert (camera.memory, camera.heap_name) == (memory, 'v4l2/double' if memory == 'export' else 'memfd')
        assert camera.slots[0].layout.num_buffers == buffers
        assert take(camera, 12) == list(range(12))
        assert set(driver.queue_order) == {slot.index for slot in camera.slots}
        assert camera.statistics().captured == 12 and not camera.statistics().dropped
    assert driver.closed
    assert open_buffers() == before


def test_auto_falls_to_import_and_says_why() -> None:
    driver = DriverDouble('NV12', memory=abi.BUF_CAP_SUPPORTS_DMABUF)
    with streaming(driver, heap='memfd') as camera:
        assert camera.memory == 'import'
        assert any('REQBUFS' in note for note in camera.notes)
        assert take(camera, 3) == [0, 1, 2]
    driver = DriverDouble('NV12')
    driver.fail('EXPBUF', errno.ENOTTY)
    with streaming(driver, heap='memfd') as camera:
        assert camera.memory == 'import'


def test_what_memory_can_not_be_is_refused() -> None:
    with pytest.raises(CameraError, match=r'try memory: import'):
        opened(DriverDouble('NV12', memory=abi.BUF_CAP_SUPPORTS_DMABUF), memory='export')
    driver = DriverDouble('NV12', memory=abi.BUF_CAP_SUPPORTS_MMAP)
    with pytest.raises(CameraError, match=r'imports buffers of no heap: memfd: .*try memory: export'):
        opened(driver, memory='import', heap='memfd')
    assert driver.closed
    with pytest.raises(ConfigError, match=r"'memory' is 'copy'; it can be auto, export, import"):
        opened(DriverDouble(), memory='copy')


@pytest.mark.parametrize('readable', [True, False])
def test_exports_can_only_be_read_where_the_driver_has_that_and_else_it_is_said(readable: bool) -> None:
    driver = DriverDouble('NV12')
    driver.readable_exports = readable
    with streaming(driver) as camera:
        assert camera.memory == 'export'
        assert {buffer.writable for slot in camera.slots for buffer in slot.buffers} == {not readable}
        assert any('trusted' in note for note in camera.notes) is not readable


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
        assert (camera.statistics().bad, camera.statistics().lost, camera.statistics().dropped) == (1, 0, 1)
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
        assert (camera.statistics().lost, camera.statistics().no_slot, camera.statistics().dropped) == (4, 10, 14)


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


def test_a_driver_that_does_not_count_loses_nothing() -> None:
    driver = DriverDouble('NV12')
    with streaming(driver) as camera:
        driver.script = [Frame(sequence=0)] * 5
        assert take(camera, 5) == [0, 1, 2, 3, 4]
        assert camera.statistics().dropped == 0


def test_a_driver_that_begins_to_count_anew_loses_nothing() -> None:
    driver = DriverDouble('NV12')
    with streaming(driver) as camera:
        driver.script = [Frame(sequence=100), Frame(sequence=3), Frame(sequence=5)]
        assert take(camera, 3) == [100, 101, 103]
        assert camera.statistics().lost == 1


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
        assert driver.calls.count('QBUF') == len(camera.slots) + 1  # all, and the one that was taken


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


@pytest.mark.parametrize('where', ['S_FMT', 'REQBUFS', 'STREAMON'])
def test_a_camera_of_somebody_else_is_busy(where: str) -> None:
    driver = DriverDouble('NV12')
    if where != 'STREAMON':
        driver.fail(where, errno.EBUSY)
        with pytest.raises(CameraBusyError, match='another program uses it'):
            opened(driver)
        assert driver.closed
        return
    with streaming(driver) as camera:
        driver.fail(where, errno.EBUSY)
        with pytest.raises(CameraBusyError, match='another program uses it'):
            camera.capture()


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


def test_a_frame_after_the_restart_ends_the_silence() -> None:
    driver = DriverDouble('NV12')
    with streaming(driver, silent_s=1.0) as camera:
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
    with streaming(driver, silent_s=1.0) as camera:
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
        driver.events = [0, cabi.EVENT_SRC_CH_RESOLUTION]
        with pytest.raises(CameraChangedError, match='negotiate anew'):
            take(camera, 3)


def test_a_buffer_that_is_refused_is_tried_once_more() -> None:
    driver = DriverDouble('NV12')
    with streaming(driver) as camera:
        take(camera)
        driver.fail('QBUF', errno.EINVAL)
        take(camera, 3)
        assert len(driver.queued) + len(driver.waiting) == len(camera.slots)


def test_data_behind_a_header_is_where_the_layout_says() -> None:
    driver = DriverDouble('NM12', multiplanar=True, offset=128)
    with streaming(driver) as camera:
        assert [plane.offset for plane in camera.slots[0].layout.planes] == [128, 128]
        assert len(take(camera, 2)) == 2
        driver.script = [Frame(offset=64)]
        with pytest.raises(CameraError, match=r'begins at \(64, 64\)'):
            take(camera)


def test_the_driver_is_asked_for_strides_that_suit_consumers() -> None:
    driver = DriverDouble('NV12')
    camera = opened(driver, 320, 180)
    try:
        settings = negotiate([camera.constraints(), BufferConstraints('wide', stride_align=256)], 320, 180, heap=camera.heap_name)
        camera.configure(settings)
        assert [plane.stride for plane in camera.slots[0].layout.planes] == [512, 512]
    finally:
        camera.close()


def test_what_the_device_can_not_do_is_said_with_what_it_can() -> None:
    with pytest.raises(CameraError, match=r"can't do 600x300; the nearest is 640x360: .* it offers NV12 in 320x180, 640x360; also YUYV"):
        opened(DriverDouble(), 600, 300)
    with pytest.raises(CameraError, match=r"no pixel format 'NM12'; it offers YUYV, NV12"):
        opened(DriverDouble(), pixel_format='NM12')
    with pytest.raises(CameraError, match=r'no pixel format that can be used; it offers MJPG; .*compressed stream'):
        opened(DriverDouble('MJPG'))
    with pytest.raises(CameraError, match=r'has no input 2'):
        opened(DriverDouble(), input=2)
    with pytest.raises(ConfigError, match='silent after -1'):
        opened(DriverDouble(), silent_s=-1)


def test_a_rate_that_it_does_not_have_is_noted() -> None:
    camera = opened(DriverDouble(), framerate=60.0)
    assert camera.framerate == 30.0
    assert '60 Hz were asked for, the driver does 30; it offers 1 to 30' in camera.notes
    camera.close()


def test_tiled_formats_carry_their_modifier() -> None:
    camera = opened(DriverDouble('MM21', multiplanar=True))
    ((code, modifier),) = camera.constraints().formats or ()
    assert code == NV12 and modifier != LINEAR
    camera.close()


def test_zero_keeps_what_the_device_is_set_to() -> None:
    driver = DriverDouble()
    camera = opened(driver, 0, 0, 0.0)
    assert (camera.width, camera.height, camera.framerate) == (320, 180, 30.0)
    camera.close()


def test_stop_ends_the_stream_of_frames_and_close_twice_is_fine() -> None:
    driver = DriverDouble('NV12')
    with streaming(driver) as camera:
        take(camera)
        camera.stop()
        assert camera.capture() is None
        camera.close()
        camera.close()
    assert not driver.streaming


def test_frames_outlive_the_camera() -> None:
    before = open_buffers()
    with streaming(DriverDouble('NV12')) as camera:
        frame = camera.capture()
    assert frame is not None and os.fstat(frame.data.buffers[0].fileno()).st_size > 0
    frame.release()
    assert open_buffers() == before


def test_a_driver_that_needs_more_buffers_gets_them() -> None:
    driver = DriverDouble('NV12')
    driver.controls[cabi.CID_MIN_BUFFERS_FOR_CAPTURE] = Control(
        'Min Number of Capture Buffers', cabi.CTRL_TYPE_INTEGER, 0, 32, value=5, flags=cabi.CTRL_FLAG_READ_ONLY
    )
    camera = opened(driver)
    assert camera.constraints().slots == 6
    camera.close()


def test_poll_bits_are_those_of_the_kernel() -> None:
    """The double answers in the same bits as poll(2) does."""
    assert (select.POLLIN, select.POLLPRI, select.POLLERR) == (1, 2, 8)
