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
A webcam whose driver fills its buffers with JPEGs.

Frames are NV12, the newest wins, and broken pictures cost themselves alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
import random
import threading
from typing import Any

from camera.jpeg_kit import jpeg, need_decoder, picture, without_tables
from camera.live_webcam import exports_are_memfds
from camera.v4l2_double import DriverDouble, opened
from camera.v4l2_double import Frame as Filled
import cv2
from fuzz.mutation import mutated
import numpy as np
import pytest
from waiting import until

from zc_perception.camera.v4l2 import abi, choice
from zc_perception.camera.v4l2.camera import V4l2Camera
from zc_perception.camera.v4l2.mjpeg import JPEG_COLORIMETRY
from zc_perception.errors import CameraLostError, ConfigError
from zc_perception.frame import Frame
from zc_perception.memory.dmabuf import CpuAccess
from zc_perception.memory.ledger import CopyLedger
from zc_perception.negotiation.agreement import agree
from zc_perception.negotiation.constraints import BufferConstraints
from zc_perception.negotiation.session import BufferSession, Consumer
from zc_perception.negotiation.settings import Allocation, AllocationRequest
from zc_perception.pixel.fourcc import fourcc_code, NV12
from zc_perception.pixel.modifier import LINEAR

pytestmark = pytest.mark.usefixtures('no_fd_leak')
YUYV = fourcc_code('YUYV')
SIZE = (640, 360)
GOOD = jpeg(picture(*SIZE))
READER = BufferConstraints('reader', cpu_access=CpuAccess.READ)
NPU = BufferConstraints('npu', formats=((NV12, LINEAR),))
OLD = BufferConstraints('old program', formats=((YUYV, LINEAR),))
BOTH = BufferConstraints('both', formats=((YUYV, LINEAR), (NV12, LINEAR)))


@pytest.fixture(scope='module', autouse=True)
def _library() -> None:
    need_decoder()


@pytest.fixture(autouse=True)
def _exports_are_memfds(monkeypatch: pytest.MonkeyPatch) -> None:
    exports_are_memfds(monkeypatch)


def allocated(camera: V4l2Camera, request: AllocationRequest) -> Allocation:
    """Return what the capture node answers its session."""
    camera.allocate(request)
    return Allocation(camera.slots[0].layout, tuple(slot.buffers for slot in camera.slots))


@contextmanager
def webcam(
    *formats: str, contents: Sequence[bytes] = (GOOD,), due: int | None = 0,
    consumers: Sequence[BufferConstraints] = (READER,),
    rates: dict[str, int] | None = None, slots: int = 6, misfits: Set[str] = frozenset(),
    **options: Any,
) -> Iterator[tuple[DriverDouble, V4l2Camera]]:  # fmt: skip
    """Yield a driver and its camera, which agreed with *consumers* but for the *misfits*."""
    driver = DriverDouble(*(formats or ('MJPG',)))
    driver.contents, driver.due, driver.rates = list(contents), due, rates or {}
    camera = opened(driver, **({'heap': 'memfd'} | options))
    try:
        session = BufferSession(camera.constraints(), SIZE, wanted_slots=slots)
        session.allocate([*map(Consumer, consumers)], lambda request: allocated(camera, request))
        refused = {one for one, found in session.outcomes().items() if not found.has_buffers}
        assert refused == misfits
        yield driver, camera
    finally:
        camera.close()
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith('jpeg ')]


def captured(driver: DriverDouble, camera: V4l2Camera) -> Frame:
    """Return the frame of the next picture that the driver fills in."""
    driver.due = 1
    frame: Frame = until(camera.capture, camera.facts)
    return frame


def test_a_jpeg_becomes_an_nv12_frame_of_the_pool_and_is_booked_once() -> None:
    ledger = CopyLedger()
    with webcam(ledger=ledger) as (driver, camera):
        assert camera.heap_name == 'memfd' and camera.facts()['V4L2 format'] == 'MJPG'
        for number in range(8):
            driver.script = [Filled(flags=abi.BUF_FLAG_TIMESTAMP_MONOTONIC)]
            with captured(driver, camera) as frame:
                data = frame.data
                assert (data.fourcc, data.modifier, data.width, data.height, data.sequence) == (
                    NV12,
                    LINEAR,
                    *SIZE,
                    number,
                )
                assert (
                    data.colorimetry == JPEG_COLORIMETRY
                    and data.capture_cost_ns > 0
                    and data.header.frame_id == 'cam'
                )
                with frame.map() as planes:
                    assert np.array_equal(
                        planes[0],
                        cv2.imdecode(np.frombuffer(GOOD, np.uint8), cv2.IMREAD_GRAYSCALE),
                    )
        assert (
            ledger.entries()['decode'].count == 8
            and ledger.entries()['decode'].bytes == 8 * SIZE[0] * SIZE[1] * 3 // 2
        )
        assert camera.statistics().captured == 8 and not camera.statistics().dropped
        assert len(driver.queued) + len(driver.waiting) == driver.count, (
            'the driver has its buffers again'
        )
        assert 'ms for the last frame; 0 skipped' in str(camera.facts()['decoding'])
        (decoding,) = camera.threads
        assert decoding.name.startswith('jpeg ') and decoding.is_alive(), (
            'who sets priorities finds the thread that frames pass through'
        )
    assert not decoding.is_alive()


@pytest.mark.parametrize('memory', ['export', 'import'])
@pytest.mark.parametrize('multiplanar', [False, True])
def test_whose_memory_the_jpegs_are_in_makes_no_difference(memory: str, multiplanar: bool) -> None:
    driver = DriverDouble('MJPG', multiplanar=multiplanar, offset=64 if multiplanar else 0)
    driver.contents, driver.due = [without_tables(GOOD)], 0
    camera = opened(driver, memory=memory, heap='memfd')
    try:
        camera.allocate(agree([camera.constraints()], SIZE))
        for _ in range(3):
            captured(driver, camera).release()
        assert (camera.memory, camera.statistics().bad) == (memory, 0)
    finally:
        camera.close()


def test_broken_pictures_are_counted_and_cost_nothing_else() -> None:
    contents = [GOOD, GOOD[:3000], jpeg(picture(320, 180)), GOOD, b'', GOOD]
    with webcam(contents=contents) as (driver, camera):
        captured(driver, camera).release()
        for bad, reason in (
            (1, 'remature end'),
            (2, 'a JPEG of 320x180 came, the camera is set to 640x360'),
        ):
            driver.due = 1
            while camera.statistics().bad < bad:
                assert camera.capture() is None
            assert reason in str(camera.facts()['last bad JPEG'])
        captured(driver, camera).release()
        driver.due = 1
        while camera.statistics().bad < 3:
            assert camera.capture() is None
        with captured(driver, camera) as frame:
            assert frame.data.sequence == 5
        statistics = camera.statistics()
        assert (statistics.captured, statistics.bad, statistics.lost, statistics.dropped) == (
            3,
            3,
            0,
            3,
        )


def test_pictures_that_need_mending_are_counted_and_booked_and_cut_off_ones_are_bad() -> None:
    padded, cut = GOOD[:-2] + bytes(4000), GOOD[: len(GOOD) // 2] + bytes(4000)
    stray = GOOD[:2] + b'\0' + GOOD[2:]
    ledger = CopyLedger()
    with webcam(contents=[GOOD, padded, cut, stray, padded], ledger=ledger) as (driver, camera):
        expected = cv2.imdecode(np.frombuffer(GOOD, np.uint8), cv2.IMREAD_GRAYSCALE)
        for sequence in (0, 1, 3, 4):
            with captured(driver, camera) as frame, frame.map() as planes:
                assert frame.data.sequence == sequence and np.array_equal(planes[0], expected)
            if sequence == 1:
                driver.due = 1
                while not camera.statistics().bad:
                    assert camera.capture() is None
        assert camera.facts()['mended JPEGs'] == 3 and camera.statistics().bad == 1
        booked = ledger.entries()['mend']
        assert booked.count == 3 and booked.bytes < 4 * len(GOOD), 'not the zeros'


def test_a_camera_that_gives_only_broken_pictures_is_lost_and_the_reason_is_said() -> None:
    with webcam(contents=[b'no picture'], due=None) as (driver, camera):
        with pytest.raises(
            CameraLostError,
            match=r'no good frame .*the last picture was bad: a broken JPEG came: its first bytes',
        ):
            while True:
                driver.now += 0.5
                camera.capture()
        assert camera.restarts == 1 and camera.statistics().captured == 0


def test_the_newest_picture_wins_where_decoding_is_too_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with webcam(contents=[GOOD]) as (driver, camera):
        captured(driver, camera).release()
        jpegs = camera._jpegs
        assert jpegs is not None
        go_on, begun, decode = threading.Event(), threading.Event(), jpegs._decoder.decode

        def slow(*arguments: Any) -> None:
            begun.set()
            assert go_on.wait(60.0)
            decode(*arguments)

        monkeypatch.setattr(jpegs._decoder, 'decode', slow)
        driver.due = 1
        while not begun.is_set():
            assert camera.capture() is None
        driver.due = 4
        while camera.statistics().late < 3:
            assert camera.capture() is None
        go_on.set()
        found: list[int] = []
        while len(found) < 2:
            frame = camera.capture()
            if frame is not None:
                found.append(frame.data.sequence)
                frame.release()
        assert found == [1, 5]
        assert (camera.statistics().late, camera.statistics().dropped) == (3, 3)


def test_consumers_that_hold_all_slots_cost_frames_not_the_camera() -> None:
    with webcam(slots=4) as (driver, camera):
        held = [captured(driver, camera) for _ in camera.slots]
        driver.due = 3
        while camera.statistics().no_slot < 1:
            assert camera.capture() is None
        while driver.due:
            camera.capture()
        for frame in held:
            frame.release()
        captured(driver, camera).release()


def test_frames_outlive_the_camera_and_what_nobody_took_is_given_back() -> None:
    with webcam() as (driver, camera):
        frame = captured(driver, camera)
        driver.due = 3
        for _ in range(4):
            driver.due and camera.capture()  # decoded or waiting when the camera is closed
    with frame.map() as planes:
        assert planes[0].any()
    frame.release()


@pytest.mark.parametrize(
    ('formats', 'rates', 'consumers', 'chosen', 'why'),
    [
        (
            ('YUYV', 'MJPG'),
            {},
            (READER,),
            'YUYV',
            'YUYV, taken as the driver fills it: MJPG would have to be decoded',
        ),
        (
            ('YUYV', 'MJPG'),
            {'YUYV': 5},
            (READER,),
            'MJPG',
            'booked as decode): YUYV does 5 Hz there',
        ),
        (('YUYV', 'MJPG'), {}, (NPU,), 'MJPG', 'booked as decode): not everybody here takes YUYV'),
        (('MJPG', 'NV12', 'YUYV'), {}, (NPU,), 'NV12', 'NV12, taken as the driver fills it'),
        (('MJPG', 'NV12'), {'NV12': 10}, (READER,), 'MJPG', 'NV12 does 10 Hz there'),
        (('MJPG',), {}, (READER,), 'MJPG', 'booked as decode)'),
    ],
)
def test_auto_takes_what_nobody_converts_and_then_the_cheapest(
    formats: tuple[str, ...],
    rates: dict[str, int],
    consumers: tuple[BufferConstraints, ...],
    chosen: str,
    why: str,
) -> None:
    contents = [GOOD] if chosen == 'MJPG' else []
    with webcam(*formats, contents=contents, rates=rates, consumers=consumers) as (driver, camera):
        with captured(driver, camera) as frame:
            assert frame.data.fourcc == (NV12 if chosen == 'MJPG' else fourcc_code(chosen))
        assert camera.facts()['V4L2 format'] == chosen and camera.framerate == 30.0
        assert str(camera.facts()['choice']).endswith(why)
        assert camera.heap_name == ('memfd' if chosen == 'MJPG' else 'v4l2/double')


@pytest.mark.parametrize(
    ('consumers', 'misfits', 'chosen'),
    [
        ((NPU,), set(), NV12),
        ((BOTH,), set(), YUYV),
        ((BOTH, NPU), set(), NV12),
        ((NPU, OLD), {'old program'}, NV12),
        ((OLD, NPU), {'npu'}, YUYV),
        ((BOTH, OLD, READER), set(), YUYV),
    ],
)
@pytest.mark.parametrize('memory', ['export', 'import'])
def test_who_takes_nv12_only_gets_it_from_a_webcam_that_has_yuyv_as_well(
    consumers: tuple[BufferConstraints, ...], misfits: set[str], chosen: int, memory: str
) -> None:
    contents = [GOOD] if chosen == NV12 else []
    asked = {'consumers': consumers, 'misfits': misfits, 'memory': memory}
    with (
        webcam('YUYV', 'MJPG', contents=contents, **asked) as (driver, camera),
        captured(driver, camera) as frame,
        frame.map() as planes,
    ):
        assert frame.data.fourcc == chosen
        if chosen == NV12:
            expected = cv2.imdecode(np.frombuffer(GOOD, np.uint8), cv2.IMREAD_GRAYSCALE)
            assert np.array_equal(planes[0], expected)


def test_without_the_library_other_formats_are_taken_and_what_to_install_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(choice, 'missing_library', lambda: 'apt install it')
    with webcam('YUYV', 'MJPG', contents=[], rates={'YUYV': 10}) as (driver, camera):
        with captured(driver, camera) as frame:
            assert frame.data.fourcc == YUYV
        assert camera.framerate == 10.0
        assert camera.facts()['choice'] == 'YUYV, taken as the driver fills it'
        assert any('30 Hz were asked for, the driver does 10' in note for note in camera.notices())
        assert any('apt install it' in note for note in camera.notices())
    for options in ({'formats': ('MJPG',)}, {'formats': ('YUYV', 'MJPG'), 'pixel_format': 'MJPG'}):
        formats = options.pop('formats')
        with pytest.raises(
            ConfigError, match='offers nothing but JPEGs in 640x360: apt install it'
        ):
            opened(DriverDouble(*formats), **options)  # type: ignore[arg-type]


def test_a_thousand_mutated_pictures_end_nothing() -> None:
    rng = random.Random(17)
    small = [jpeg(picture(*SIZE), sampling, 30) for sampling in ('420', '422', '444')]
    small.append(without_tables(small[1]))
    contents = [mutated(rng, rng.choice(small), small) for _ in range(1000)]
    with webcam(contents=[*contents, GOOD], silent=3600.0) as (driver, camera):
        outcomes = 0
        while outcomes < len(contents):
            driver.due = 1
            while driver.due or camera.statistics().captured + camera.statistics().bad == outcomes:
                frame = camera.capture()
                if frame is not None:
                    frame.release()
            outcomes = camera.statistics().captured + camera.statistics().bad
        assert outcomes == len(contents) and 100 < camera.statistics().bad < 1000
        captured(driver, camera).release()
