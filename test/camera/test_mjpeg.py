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

"""A webcam whose driver fills buffers with JPEGs: frames are NV12, and the newest is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
import random
import threading
from typing import Any

from camera.jpeg_kit import jpeg, need_decoder, picture, SAMPLINGS, segments, without_tables
from camera.v4l2_double import DriverDouble, exports_are_memfds, opened, streaming
from camera.v4l2_double import Frame as Filled
import cv2
from fuzz.run_fuzz import mutated
from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
from numpy.typing import NDArray
import pytest
from waiting import until

from zc_perception.camera.v4l2 import abi, choice, mjpeg
from zc_perception.camera.v4l2.camera import V4l2Camera
from zc_perception.camera.v4l2.mjpeg import (
    BadJpegError,
    JPEG_COLORIMETRY,
    JpegDecoder,
    missing_library,
)
from zc_perception.errors import CameraError, CameraLostError, ConfigError
from zc_perception.frame import Frame
from zc_perception.memory.dmabuf import CpuAccess
from zc_perception.memory.ledger import CopyLedger, LedgerEntry
from zc_perception.negotiation.constraints import BufferConstraints
from zc_perception.negotiation.session import BufferSession, Consumer
from zc_perception.negotiation.settings import Allocation, AllocationRequest
from zc_perception.pixel.fourcc import fourcc_code, NV12
from zc_perception.pixel.modifier import LINEAR

pytestmark = pytest.mark.usefixtures('no_fd_leak')
YUYV = fourcc_code('YUYV')
SIZE = (640, 360)
GOOD = jpeg(picture(*SIZE))
GREY = cv2.imdecode(np.frombuffer(GOOD, np.uint8), cv2.IMREAD_GRAYSCALE)
READER = BufferConstraints('reader', cpu_access=CpuAccess.READ)
NPU = BufferConstraints('npu', formats=((NV12, LINEAR),))


@pytest.fixture(autouse=True)
def _exports_are_memfds(monkeypatch: pytest.MonkeyPatch) -> None:
    need_decoder()
    exports_are_memfds(monkeypatch)


def allocated(camera: V4l2Camera, request: AllocationRequest) -> Allocation:
    """Allocate, and return the answer of the capture node to its session."""
    camera.allocate(request)
    return Allocation(camera.slots[0].layout, tuple(slot.buffers for slot in camera.slots))


@contextmanager
def webcam(
    *formats: str, contents: Sequence[bytes] = (GOOD,), due: int | None = 0,
    consumers: Sequence[BufferConstraints] = (READER,),
    rates: dict[str, int] | None = None, slots: int = 6, **options: Any,
) -> Iterator[tuple[DriverDouble, V4l2Camera]]:  # fmt: skip
    """Yield a driver, and its camera after an agreement with *consumers*."""
    driver = DriverDouble(*(formats or ('MJPG',)))
    driver.contents, driver.due, driver.rates = list(contents), due, rates or {}
    with closing(opened(driver, **({'heap': 'memfd'} | options))) as camera:
        session = BufferSession(camera.constraints(), SIZE, wanted_slots=slots)
        session.allocate([*map(Consumer, consumers)], lambda request: allocated(camera, request))
        assert all(found.has_buffers for found in session.outcomes().values())
        yield driver, camera
    # close() waits for the decoding thread, but not for ever.
    until(lambda: not any(thread.name.startswith('jpeg ') for thread in threading.enumerate()))


def nothing_until(camera: V4l2Camera, condition: Callable[[], object]) -> None:
    """Capture until this is true; no frame may come."""
    while not condition():
        assert camera.capture() is None


def captured(driver: DriverDouble, camera: V4l2Camera) -> Frame:
    """Let the driver fill one buffer; return the frame."""
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
                found = data.fourcc, data.modifier, data.width, data.height, data.sequence
                assert found == (NV12, LINEAR, *SIZE, number)
                assert data.colorimetry == JPEG_COLORIMETRY
                assert data.capture_cost_ns > 0 and data.header.frame_id == 'cam'
                with frame.map() as planes:
                    assert np.array_equal(planes[0], GREY)
        assert ledger.entries()['decode'] == LedgerEntry(8, 8 * SIZE[0] * SIZE[1] * 3 // 2)
        assert camera.statistics().captured == 8 and not camera.statistics().dropped
        assert len(driver.queued) + len(driver.waiting) == driver.count, (
            'the driver has its buffers again'
        )
        assert 'ms for the last frame; 0 pictures skipped' in str(camera.facts()['decoding'])
        (decoding,) = camera.threads
        assert decoding.name.startswith('jpeg ') and decoding.is_alive(), (
            'who sets priorities finds the thread that frames pass through'
        )
    assert not decoding.is_alive()


@pytest.mark.parametrize(('memory', 'multiplanar'), [('export', True), ('import', False)])
def test_whose_memory_the_jpegs_are_in_makes_no_difference(memory: str, multiplanar: bool) -> None:
    driver = DriverDouble('MJPG', multiplanar=multiplanar, offset=64 if multiplanar else 0)
    driver.contents, driver.due = [without_tables(GOOD)], 0
    with streaming(driver, memory=memory, heap='memfd') as camera:
        for _ in range(3):
            captured(driver, camera).release()
        assert (camera.memory, camera.statistics().bad) == (memory, 0)


def test_broken_pictures_are_counted_and_cost_nothing_else() -> None:
    contents = [GOOD, GOOD[:3000], jpeg(picture(320, 180)), GOOD, b'', GOOD]
    with webcam(contents=contents) as (driver, camera):
        captured(driver, camera).release()
        for bad, reason in (
            (1, 'remature end'),
            (2, 'a JPEG of 320x180 came, but the camera is set to 640x360'),
        ):
            driver.due = 1
            nothing_until(camera, lambda bad=bad: camera.statistics().bad >= bad)
            assert reason in str(camera.facts()['last bad JPEG'])
        captured(driver, camera).release()
        driver.due = 1
        nothing_until(camera, lambda: camera.statistics().bad >= 3)
        with captured(driver, camera) as frame:
            assert frame.data.sequence == 5
        found = camera.statistics()
        assert (found.captured, found.bad, found.lost, found.dropped) == (3, 3, 0, 3)


def test_pictures_that_need_mending_are_counted_and_booked_and_cut_off_ones_are_bad() -> None:
    padded, cut = GOOD[:-2] + bytes(4000), GOOD[: len(GOOD) // 2] + bytes(4000)
    stray = GOOD[:2] + b'\0' + GOOD[2:]
    ledger = CopyLedger()
    with webcam(contents=[GOOD, padded, cut, stray, padded], ledger=ledger) as (driver, camera):
        for sequence in (0, 1, 3, 4):
            with captured(driver, camera) as frame, frame.map() as planes:
                assert frame.data.sequence == sequence and np.array_equal(planes[0], GREY)
            if sequence == 1:
                driver.due = 1
                nothing_until(camera, lambda: camera.statistics().bad)
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
        nothing_until(camera, begun.is_set)
        driver.due = 4
        nothing_until(camera, lambda: camera.statistics().late >= 3)
        go_on.set()
        for sequence in (1, 5):
            with until(camera.capture) as frame:
                assert frame.data.sequence == sequence
        assert (camera.statistics().late, camera.statistics().dropped) == (3, 3)


def test_consumers_that_hold_all_slots_cost_frames_not_the_camera() -> None:
    with webcam(slots=4) as (driver, camera):
        held = [captured(driver, camera) for _ in camera.slots]
        driver.due = 3
        nothing_until(camera, lambda: camera.statistics().no_slot and not driver.due)
        for frame in held:
            frame.release()
        captured(driver, camera).release()


def test_frames_outlive_the_camera_and_what_nobody_took_is_given_back() -> None:
    with webcam() as (driver, camera):
        frame = captured(driver, camera)
        driver.due = 3
        for _ in range(4):
            # The picture is decoded or waits when the camera is closed.
            driver.due and camera.capture()
    with frame, frame.map() as planes:
        assert planes[0].any()


@pytest.mark.parametrize(
    ('formats', 'rates', 'consumers', 'chosen', 'why'),
    [
        (
            ('YUYV', 'MJPG'),
            {},
            (READER,),
            'YUYV',
            'YUYV, without conversion: MJPG would have to be decoded',
        ),
        (
            ('YUYV', 'MJPG'),
            {'YUYV': 5},
            (READER,),
            'MJPG',
            'counted as decode in the copy ledger): YUYV does 5 Hz at this size',
        ),
        (
            ('YUYV', 'MJPG'),
            {},
            (NPU,),
            'MJPG',
            'counted as decode in the copy ledger): not every consumer accepts YUYV',
        ),
        (('MJPG', 'NV12', 'YUYV'), {}, (NPU,), 'NV12', 'NV12, without conversion'),
        (('MJPG', 'NV12'), {'NV12': 10}, (READER,), 'MJPG', 'NV12 does 10 Hz at this size'),
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


def test_without_the_library_other_formats_are_taken_and_what_to_install_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(choice, 'missing_library', lambda: 'apt install it')
    with webcam('YUYV', 'MJPG', contents=[], rates={'YUYV': 10}) as (driver, camera):
        with captured(driver, camera) as frame:
            assert frame.data.fourcc == YUYV
        assert camera.framerate == 10.0
        assert camera.facts()['choice'] == 'YUYV, without conversion'
        notes = ' '.join(camera.notices())
        assert 'Hz were asked for, but the driver gives 10' in notes and 'apt install it' in notes
    words = 'offers nothing but JPEGs in 640x360: apt install it'
    for formats, name in ((('MJPG',), 'auto'), (('YUYV', 'MJPG'), 'MJPG')):
        with pytest.raises(ConfigError, match=words):
            opened(DriverDouble(*formats), pixel_format=name)


def test_many_mutated_pictures_end_nothing() -> None:
    rng = random.Random(17)
    small = [jpeg(picture(*SIZE), sampling, 30) for sampling in ('420', '422', '444')]
    small.append(without_tables(small[1]))
    contents = [mutated(rng, rng.choice(small), small) for _ in range(300)]
    with webcam(contents=[*contents, GOOD], silent=3600.0) as (driver, camera):
        outcomes = 0
        while outcomes < len(contents):
            driver.due = 1
            while driver.due or camera.statistics().captured + camera.statistics().bad == outcomes:
                frame = camera.capture()
                if frame is not None:
                    frame.release()
            outcomes = camera.statistics().captured + camera.statistics().bad
        assert outcomes == len(contents) and 30 < camera.statistics().bad < 300
        captured(driver, camera).release()


# The decoder: every sampling, missing tables, and damaged data.

WIDTH, HEIGHT = 320, 176
WHOLE = jpeg(picture(WIDTH, HEIGHT), '420')
BARE = WHOLE[:-2]
Planes = tuple[NDArray[np.uint8], NDArray[np.uint8]]


def decoded(
    data: bytes, size: tuple[int, int] = (WIDTH, HEIGHT), *, padding: int = 0, mended: bool = False
) -> Planes:
    """Return the planes; *mended* is whether the decoder should report that it copied."""
    (width, height), wide, high = size, -(-size[0] // 2), -(-size[1] // 2)
    luma = np.full((height, width + padding), 7, np.uint8)
    chroma = np.full((high, wide * 2 + padding), 7, np.uint8)
    planes = luma[:, :width], chroma[:, : wide * 2].reshape(high, wide, 2)
    with closing(JpegDecoder(width, height)) as decoder:
        copied = decoder.decode(np.frombuffer(data, np.uint8), *planes)
    assert (copied > 0) is mended
    behind = luma[:, width:], chroma[:, slice(wide * 2, None)]
    assert all((part == 7).all() for part in behind), 'bytes between the rows were written'
    return planes


def in_full(luma: NDArray[np.uint8], chroma: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return B, G, R by JFIF's formula: BT.601, full range."""
    parts = (np.ascontiguousarray(chroma[..., i]) for i in (0, 1))
    u, v = (cv2.resize(part, luma.shape[::-1]) - 128.0 for part in parts)
    y = luma.astype(float)
    bgr = np.dstack([y + 1.772 * u, y - 0.344136 * u - 0.714136 * v, y + 1.402 * v])
    return np.rint(np.clip(bgr, 0, 255)).astype(int)


@pytest.mark.parametrize('sampling', SAMPLINGS)
@pytest.mark.parametrize('tables', [True, False])
def test_colours_are_those_of_libjpegs_own_conversion(sampling: str, tables: bool) -> None:
    data = jpeg(picture(WIDTH, HEIGHT), sampling)
    reference = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR).astype(int)
    found = in_full(*decoded(data if tables else without_tables(data)))
    difference = np.abs(found - reference)
    # For 4:1:1, libjpeg repeats chroma samples instead of interpolating.
    most = 3 if sampling != '411' else 8
    assert difference.mean() < most / 3 and np.percentile(difference, 99) <= most


@pytest.mark.parametrize('size', [(322, 182), (321, 181), (2, 2)])
@pytest.mark.parametrize('sampling', SAMPLINGS)
def test_sizes_that_are_no_whole_blocks_stay_within_their_planes(
    size: tuple[int, int], sampling: str
) -> None:
    flat = np.broadcast_to(np.array([30, 90, 200], np.uint8), (size[1], size[0], 3))
    data = jpeg(flat, sampling)
    luma, chroma = decoded(data, size, padding=13)
    reference = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR).astype(int)
    assert np.abs(in_full(luma, chroma) - reference).max() <= 3
    data = jpeg(picture(*size), sampling)
    luma, chroma = decoded(data, size, padding=13)
    assert np.array_equal(luma, cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_GRAYSCALE))


def test_other_colours_are_refused() -> None:
    # Adobe's marker with transform 0 means that the components are R, G, B.
    data = jpeg(picture(WIDTH, HEIGHT), '444')
    adobe = b'\xff\xee' + (14).to_bytes(2, 'big') + b'Adobe' + bytes([0, 100, 0, 0, 0, 0, 0])
    end = 4 + int.from_bytes(data[4:6], 'big')  # the JFIF segment comes first, and contradicts it
    with pytest.raises(BadJpegError, match='a JPEG with RGB came'):
        decoded(data[:2] + adobe + data[end:])


def test_a_broken_picture_leaves_the_decoder_good() -> None:
    good = np.frombuffer(jpeg(picture(WIDTH, HEIGHT)), np.uint8)
    decoder = JpegDecoder(WIDTH, HEIGHT)
    planes = np.empty((HEIGHT, WIDTH), np.uint8), np.empty((HEIGHT // 2, WIDTH // 2, 2), np.uint8)
    for cut in range(0, good.size, 997):
        with pytest.raises(BadJpegError):
            decoder.decode(good[:cut] if cut else good[:1], *planes)
    decoder.decode(good, *planes)
    decoder.close()
    decoder.close()
    with pytest.raises(CameraError, match='closed'):
        decoder.decode(good, *planes)


def test_without_the_library_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mjpeg, '_LIBRARIES', ('libno-such-thing.so.9', 'libc.so.6'))
    mjpeg._library.cache_clear()
    words = r'apt install libturbojpeg0 .*libno-such-thing.*libc.so.6 has no tjInitDecompress'
    try:
        with pytest.raises(ConfigError, match=words):
            JpegDecoder(WIDTH, HEIGHT)
        assert 'apt install' in missing_library()
    finally:
        mjpeg._library.cache_clear()
    monkeypatch.undo()
    assert missing_library() == ''


# Whole pictures that break JPEG's rules are decoded; incomplete ones are refused.


def same(found: Planes, expected: Planes) -> bool:
    return all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))


def with_stray(data: bytes, stray: bytes, place: int | None = None) -> bytes:
    """Return *data* with *stray* before each of its segments, or before the *place*-th."""
    return data[:2] + b''.join(
        (stray if place in (None, number) else b'') + segment
        for number, (_, segment) in enumerate(segments(data))
    )


IRREGULAR = {
    'no end': BARE, 'no end, zeros': BARE + bytes(5000), 'no end, ones': BARE + b'\xff' * 300,
    'half of the end, zeros': BARE + b'\xff' + bytes(500),
    'no tables, no end, zeros': without_tables(WHOLE)[:-2] + bytes(777),
    'a zero before each segment': with_stray(WHOLE, b'\0'),
    'a byte before the first segment': with_stray(WHOLE, b'\x42', 0),
    'a half marker before the data': with_stray(WHOLE, b'\xff\0', len(segments(WHOLE)) - 1),
    'begins twice': WHOLE[:2] + WHOLE, 'zeros before the beginning': bytes(4) + WHOLE,
    'stray bytes, no end, zeros': with_stray(WHOLE, b'\0\x17')[:-2] + bytes(900),
}  # fmt: skip


@pytest.mark.parametrize('data', IRREGULAR.values(), ids=IRREGULAR)
def test_a_whole_picture_is_decoded_whatever_is_around_its_segments(data: bytes) -> None:
    assert same(decoded(data, mended=True), decoded(WHOLE))


@settings(max_examples=40)
@given(
    st.lists(st.binary(max_size=4).map(lambda stray: stray.replace(b'\xff', b'\0')), max_size=8),
    st.integers(0, 70_000),
    st.booleans(),
)
def test_stray_bytes_anywhere_in_the_header_and_any_number_of_zeros_change_no_pixel(
    stray: list[bytes], zeros: int, ended: bool
) -> None:
    parts = [segment for _, segment in segments(WHOLE if ended else BARE)]
    before = [*stray, *[b''] * len(parts)]
    data = WHOLE[:2] + b''.join(b''.join(pair) for pair in zip(before, parts, strict=False))
    found = decoded(data + bytes(zeros), mended=any(stray[: len(parts)]) or not ended)
    assert same(found, decoded(WHOLE))


@settings(max_examples=30)
@given(st.integers(0, 255), st.sampled_from(SAMPLINGS), st.integers(1, 9), st.integers(1, 9))
def test_zeros_that_are_the_pictures_own_are_kept(
    grey: int, sampling: str, across: int, down: int
) -> None:
    """The data of flat pictures end with zero bits, in some sizes with a zero byte."""
    size = 16 * across, 16 * down
    whole = jpeg(np.full((size[1], size[0], 3), grey, np.uint8), sampling)
    assert same(decoded(whole[:-2] + bytes(40), size, mended=True), decoded(whole, size))


@settings(max_examples=60)
@given(st.integers(1, 20_000), st.sampled_from([0, 1, 5000, 200_000]), st.booleans())
def test_a_picture_that_is_cut_off_is_refused_and_zeros_make_nothing_up(
    missing: int, zeros: int, tables: bool
) -> None:
    whole = BARE if tables else without_tables(WHOLE)[:-2]
    start = whole.index(b'\xff\xda') + 14
    try:
        found = decoded(whole[: max(start, len(whole) - missing)] + bytes(zeros), mended=True)
    except BadJpegError:
        return
    expected = decoded(WHOLE)
    # The last block's last bits may be zeros, like the padding that follows.
    assert np.array_equal(found[0][:-16, :-16], expected[0][:-16, :-16])
    assert same((found[0][:-16], found[1][:-8]), (expected[0][:-16], expected[1][:-8]))
    assert missing < 16


@given(st.binary(max_size=300) | st.binary(max_size=40).map(lambda some: WHOLE[:90] + some))
def test_anything_is_mended_once_or_left_as_it_is(raw: bytes) -> None:
    data = np.frombuffer(raw, np.uint8)
    once = mjpeg.mended(data)
    assert once is data or once.tobytes() != raw
    assert mjpeg.mended(once) is once
