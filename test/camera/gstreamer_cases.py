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

"""Cases for a process with GStreamer and ``gst_frames.c``; see ``test_gstreamer.py``."""

from __future__ import annotations

from contextlib import closing
from ctypes import byref, POINTER
import gc
from pathlib import Path
import re
import time
import weakref

from camera.gstreamer_kit import (
    awaited_error,
    CAPS,
    configure,
    inodes,
    next_frame,
    open_camera,
    shown,
    SIZE,
    streaming,
    TIGHT,
    WAIT_S,
)
import numpy as np
import pytest
from waiting import until

from zc_perception.camera.clock import StampClock
from zc_perception.camera.gstreamer.abi import (
    Error,
    load_gstreamer,
    Message,
    MessageType,
    PARSE_FATAL_ERRORS,
    State,
    VideoInfo,
)
from zc_perception.camera.gstreamer.camera import GStreamerCamera
from zc_perception.camera.gstreamer.image import READABLE_FORMATS
from zc_perception.camera.gstreamer.pipeline import check_description
from zc_perception.errors import CameraChangedError, CameraError, CameraLostError, ConfigError
from zc_perception.negotiation.constraints import BufferConstraints
from zc_perception.pixel.colorimetry import RGB_FULL
from zc_perception.pixel.conversion import ToPicture
from zc_perception.pixel.format_names import buffer_planes, default_layout, frame_caps
from zc_perception.pixel.fourcc import FORMATS, fourcc_code, NV12
from zc_perception.pixel.layout import compute_layout
from zc_perception.pixel.modifier import INVALID, LINEAR

CROPPED = TIGHT.replace('width=64,height=48', 'width=32,height=16')
NV21 = fourcc_code('NV21')
DMABUF, TILES = 'video/x-raw(memory:DMABuf)', 0x0100000000000002
Pixels = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]
pytestmark = pytest.mark.usefixtures('no_fd_leak')


@pytest.fixture(scope='module', autouse=True)
def _gstreamer_is_up() -> None:
    """Start GStreamer before descriptors are counted: it keeps some of its own."""
    open_camera(f'zcframes {TIGHT}').camera.close()
    with pytest.raises(CameraError):
        open_camera('v4l2src device=/dev/video99')


# Where the planes of TIGHT frames lie: buffer, offset and stride.
PLACES = [(0, 0, 64), (0, 3072, 64)]


@pytest.mark.parametrize(('options', 'expected', 'buffers'), [
    (TIGHT, PLACES, 1),
    (f'frame-size=16384 caps-text={CAPS} strides=128,256 offsets=0,8192',
     [(0, 0, 128), (0, 8192, 256)], 1),
    # Without GstVideoMeta, GStreamer's default strides and offsets apply.
    ('frame-size=4488 caps-text=video/x-raw,format=NV12,width=66,height=44',
     [(0, 0, 68), (0, 2992, 68)], 1),
    # NM12: a descriptor for each plane.
    (f'memories=2 frame-size=6144 caps-text={CAPS} strides=64,64 offsets=0,3072',
     [(0, 0, 64), (1, 0, 64)], 2),
    # Two memories in one dma-buf.
    (f'memories=0 frame-size=8192 caps-text={CAPS} strides=64,64 offsets=0,4096',
     [(0, 0, 64), (0, 4096, 64)], 1),
    # The frame begins inside of its buffer.
    (f'start=4096 memories=2 frame-size=6144 caps-text={CAPS} strides=64,64 offsets=0,3072',
     [(0, 4096, 64), (1, 4096, 64)], 2),
    # A crop rectangle; the caps have its size.
    (f'crop=16,8,32,16 whole=64,48 {CROPPED}', [(0, 16 + 8 * 64, 64), (0, 3072 + 16 + 4 * 64, 64)],
     1),
    # A pipeline may bring its own sink.
    (f'{TIGHT} ! appsink', PLACES, 1),
    (f'{TIGHT} ! queue ! appsink name=mine max-buffers=9 sync=true', PLACES, 1),
    # Old caps, which say nothing of the layout.
    (TIGHT.replace('x-raw', 'x-raw(memory:DMABuf)'), PLACES, 1),
    # Caps since GStreamer 1.24, from which it finds no layout.
    (f'frame-size=4608 caps-text="{DMABUF},format=DMA_DRM,drm-format=NV12,{SIZE}"', PLACES, 1),
])  # fmt: skip
def test_frames_are_taken_where_they_lie(
    options: str, expected: list[tuple[int, int, int]], buffers: int
) -> None:
    old = 'DMABuf),format=NV12' in options
    with streaming(f'zcframes {options}', assume_linear=old) as opened:
        camera = opened.camera
        planes = camera.pool.layout.planes
        assert [(plane.buffer, plane.offset, plane.stride) for plane in planes] == expected
        assert not camera.copy_reason and camera.heap_name == 'gstreamer/memfd'
        seen, differences = set(), set()
        for _ in range(12):
            with next_frame(camera) as frame:
                luma, chroma = shown(frame)
                differences.add((luma - frame.data.sequence) % 256)
                assert luma == chroma
                assert len(frame.data.buffers) == buffers and frame.data.modifier == LINEAR
                seen.add(inodes(frame))
        assert len(differences) == 1, 'sequences are the numbers in the pixels'
        assert 1 < len(seen) <= 4, "they are the source's own, and come back to it"
        assert opened.ledger.entries() == {} and opened.opened_heaps == []


@pytest.mark.parametrize(('caps', 'fourcc', 'modifier'), [
    ('video/x-raw(memory:DMABuf),format=DMA_DRM,drm-format=NV12', 'NV12', LINEAR),
    (f'{DMABUF},format=DMA_DRM,drm-format=NV12:0x{TILES:016x}', 'NV12', TILES),
    ('video/x-raw(memory:DMABuf),format=NV12', 'NV12', INVALID),
    ('video/x-raw(memory:SystemMemory),format=NV12', 'NV12', LINEAR),
    (f'{DMABUF},format=DMA_DRM,drm-format=AR24:0x{TILES:016x}', 'AR24', TILES),
])  # fmt: skip
def test_every_style_of_caps_says_its_format(caps: str, fourcc: str, modifier: int) -> None:
    strides = 'strides=64,64 offsets=0,3072' if fourcc == 'NV12' else 'strides=256 offsets=0'
    opened = open_camera(f'zcframes frame-size=12288 caps-text="{caps},{SIZE}" {strides}')
    with closing(opened.camera) as camera:
        assert camera.constraints().formats == ((fourcc_code(fourcc), modifier),)
        assert camera.framerate == 200.0


def test_what_a_consumer_holds_is_not_written_again() -> None:
    with streaming(f'zcframes live=1 buffers=6 {TIGHT}', slots=6) as opened:
        camera = opened.camera
        held = [next_frame(camera) for _ in range(3)]
        before = [shown(frame) for frame in held]
        for _ in range(20):
            next_frame(camera).release()
        assert [shown(frame) for frame in held] == before
        kept = inodes(held[0])
        for frame in held:
            frame.release()

        def came_again() -> bool:
            with next_frame(camera) as frame:
                return inodes(frame) == kept

        until(came_again, 'the buffer is used again')


def test_a_leased_frame_outlives_its_camera() -> None:
    opened = open_camera(f'zcframes {TIGHT}')
    with pytest.raises(CameraError, match='not configured'):
        opened.camera.capture()
    configure(opened.camera)
    frame = next_frame(opened.camera)
    before = shown(frame)
    opened.camera.stop()
    assert opened.camera.capture() is None
    opened.camera.close()
    opened.camera.close()
    assert shown(frame) == before and opened.camera.capture() is None
    frame.release()


@pytest.mark.parametrize('memory', ['system', 'fd', 'unsealed'])
def test_a_copying_pipeline_is_reported_and_booked(memory: str) -> None:
    """An element maps its own memfd again to write to it, so that it can't be sealed."""
    with streaming(
        f'zcframes memory={memory} frame-size=16384 caps-text={CAPS} strides=128,256 '
        'offsets=0,8192'
    ) as opened:
        camera = opened.camera
        assert (
            'system memory' in camera.copy_reason
            and opened.opened_heaps == ['memfd']
            and camera.heap_name == 'memfd'
        )
        assert 'is copied by the CPU, frame by frame' in camera.notices()[0]
        for _ in range(5):
            with next_frame(camera) as frame:
                assert len(set(shown(frame))) == 1
        entry = opened.ledger.entries()['gstreamer_copy']
        assert (entry.count, entry.bytes) == (5, 5 * 4608)


def taken(pipeline: str) -> list[Pixels]:
    with streaming(pipeline) as opened, next_frame(opened.camera) as frame, frame.map() as planes:
        return [plane.copy() for plane in planes]


def test_a_copy_is_the_picture_itself() -> None:
    # All frames are equal, because it depends on the machine which one comes first.
    pipeline = (
        'videotestsrc pattern=colors num-buffers=3 ! video/x-raw,format={},width=322,height=46'
    )
    luma, chroma = taken(pipeline.format('NV12'))
    wanted = taken(pipeline.format('I420'))
    assert all(map(np.array_equal, (luma, chroma[..., 0], chroma[..., 1]), wanted))
    assert luma.std() > 20


def test_a_source_that_runs_out_and_copies_is_found_out() -> None:
    with streaming(f'zcframes live=1 buffers=4 exhausted=copy {TIGHT}', slots=4) as opened:
        camera = opened.camera
        held = [next_frame(camera) for _ in range(4)]
        until(
            lambda: camera.capture() is None and camera.facts()['copied_upstream'] >= 3,
            'copies were seen',
        )
        assert camera.statistics().no_slot >= 3 and camera.statistics().dropped >= 3
        assert any(
            'ran out of buffers' in notice and "parameter 'slots'" in notice
            for notice in camera.notices()
        )
        for frame in held:
            frame.release()
        next_frame(camera).release()
        assert opened.ledger.entries() == {}


def test_a_slow_consumer_gets_the_newest_frame_and_never_holds_the_source_up() -> None:
    with streaming(f'zcframes live=1 rate=500 {TIGHT}') as opened:
        camera = opened.camera
        first = next_frame(camera).data.sequence
        gc.collect()
        until(
            lambda: (time.sleep(0.1), next_frame(camera).release(), camera.statistics().lost > 10)[
                2
            ],
            'skipped frames',
        )
        assert _sequence(camera) > first + 10


def test_stamps_are_the_source_s_time_on_the_ros_clock() -> None:
    clock = StampClock(time.time_ns)
    with streaming(f'zcframes live=1 {TIGHT}', clock=clock) as opened:
        assert opened.camera.clock is clock
        stamps = []
        for _ in range(10):
            asked = time.monotonic_ns()
            with next_frame(opened.camera) as frame:
                assert asked - 10_000_000_000 < frame.data.captured_ns <= time.monotonic_ns()
                stamps.append(frame.header.stamp_ns)
        assert stamps == sorted(set(stamps)) and opened.camera.clock.statistics().implausible == 0


def test_a_file_keeps_its_pace() -> None:
    started = time.monotonic()
    with streaming(f'zcframes rate=50 eos-at=20 {TIGHT}') as opened:
        camera = opened.camera
        while not camera.ended:
            frame = camera.capture()
            if frame is not None:
                frame.release()
        assert time.monotonic() - started > 0.3, '20 frames at 50 per second'


def test_frames_that_the_source_lost_or_marked_are_counted() -> None:
    # If the machine pauses the consumer, a later frame may replace the bad one.
    for _ in range(5):
        with streaming(f'zcframes live=1 skip-at=20 bad-at=30 rate=100 {TIGHT}') as opened:
            camera = opened.camera
            last = _sequence(camera) + 40
            until(lambda camera=camera, last=last: _sequence(camera) > last, 'forty frames')
            statistics = camera.statistics()
        assert statistics.bad <= 1 <= statistics.lost
        assert statistics.dropped == statistics.lost + statistics.bad + statistics.no_slot
        if statistics.bad:
            return
    raise AssertionError('the bad frame was never counted')


def _sequence(camera: GStreamerCamera) -> int:
    with next_frame(camera) as frame:
        return frame.data.sequence


def consumer(name: str, *formats: tuple[str, int]) -> BufferConstraints:
    return BufferConstraints(
        name, formats=tuple((fourcc_code(fourcc), modifier) for fourcc, modifier in formats)
    )


NPU = BufferConstraints('npu', formats=((NV12, LINEAR),))
TILED = 0x0300000000606010


@pytest.mark.parametrize(('accepted', 'offers', 'expected'), [
    # The source prefers I420.
    ([('NV12', LINEAR)], f'video/x-raw,format=I420,{SIZE};{CAPS}', ('NV12', LINEAR)),
    ([], f'video/x-raw,format=ABGR64_LE,{SIZE};{CAPS}', ('NV12', LINEAR)),
    # Tiled dma-bufs, and LINEAR ones.
    ([('NV12', TILED)], f'{DMABUF},format=DMA_DRM,drm-format=NV12,{SIZE};'
     f'{DMABUF},format=DMA_DRM,drm-format=NV12:0x{TILED:016x},{SIZE}', ('NV12', TILED)),
    ([], f'{DMABUF},format=DMA_DRM,drm-format=NV12:0x{TILED:016x},{SIZE};'
     f'{DMABUF},format=DMA_DRM,drm-format=NV12,{SIZE}', ('NV12', LINEAR)),
    # NVIDIA's generic modifier has two numbers: the consumer uses one, the source the other.
    ([('NV12', 3 << 56 | 0x14)], f'{DMABUF},format=DMA_DRM,drm-format=NV12,{SIZE};'
     f'{DMABUF},format=DMA_DRM,drm-format=NV12:0x03000000000fe014,{SIZE}',
     ('NV12', 3 << 56 | 0xFE014)),
    # Old caps for dma-bufs don't name a modifier.
    ([], f'{DMABUF},format=NV12,{SIZE};{CAPS}', ('NV12', LINEAR)),
    ([('NV12', INVALID)], f'{CAPS};{DMABUF},format=NV12,{SIZE}', ('NV12', INVALID)),
])  # fmt: skip
def test_a_source_with_a_choice_gives_what_consumers_accept_or_a_program_can_read(
    accepted: list[tuple[str, int]], offers: str, expected: tuple[str, int]
) -> None:
    first, _, later = offers.partition(';')
    pipeline = (
        f'zcframes frame-size=4608 caps-text="{first}" caps-later="{later}" '
        'strides=64,64 offsets=0,3072'
    )
    consumers = [consumer('npu', *accepted)] if accepted else []
    with closing(open_camera(pipeline, consumers=consumers).camera) as camera:
        fourcc, modifier = expected
        assert camera.constraints().formats == ((fourcc_code(fourcc), modifier),)
        assert 'no format that all consumers accept' not in ' '.join(camera.notices())


@pytest.mark.parametrize(('elements', 'format_name'), [
    ('videotestsrc ! videorate ! videoflip method=clockwise', 'NV12'),
    # A converter loses as little as possible.
    ('videotestsrc ! video/x-raw,format=I420_10LE ! videoconvert', 'P010'),
    ('videotestsrc ! video/x-raw,format=RGBA64_LE ! videoconvert', 'AR24'),
    # Tiled frames in plain memory can't be copied.
    ('videotestsrc ! video/x-raw,format=NV12_4L4 ! videoconvert', 'NV12'),
    ('videotestsrc num-buffers=9 ! jpegenc ! decodebin', 'YU12'),
    # A fixed format stays.
    ('videotestsrc ! video/x-raw,format=UYVY', 'UYVY'),
])  # fmt: skip
def test_without_consumers_a_format_is_asked_for_that_a_program_can_read(
    elements: str, format_name: str
) -> None:
    with streaming(elements) as opened, next_frame(opened.camera) as frame:
        assert frame.data.fourcc == fourcc_code(format_name)


@pytest.mark.parametrize(
    ('elements', 'words'),
    [
        (
            'videotestsrc ! video/x-raw,format=ABGR64_LE',
            "'ABGR64_LE' has no DRM fourcc in this package; .*, that converts to one of NV12",
        ),
        ('videotestsrc ! video/x-raw,format=NV12_4L4', "can't be copied; .*videoconvert"),
        ('videotestsrc ! jpegenc', 'image/jpeg.* are no raw video; put a decoder'),
        (
            f'zcframes frame-size=4608 caps-text="{DMABUF},format=DMA_DRM,drm-format=XYZ9,{SIZE}"',
            "'XYZ9' .*converts to one of NV12",
        ),
    ],
)
@pytest.mark.parametrize('identity', ['', 'gstreamer: the same'])
def test_a_fixed_format_that_nobody_can_read_is_refused_for_good_unless_it_was_right_once(
    elements: str, words: str, identity: str
) -> None:
    with pytest.raises(CameraError if identity else ConfigError, match=words):
        open_camera(elements, identity=identity)


def test_a_source_without_a_choice_runs_as_it_is_and_that_is_said() -> None:
    consumers = [
        consumer('npu', ('NV21', LINEAR)),
        consumer('other', ('NV21', LINEAR), ('YUYV', LINEAR)),
    ]
    with streaming(f'zcframes {TIGHT}', consumers=consumers) as opened:
        (notice,) = opened.camera.notices()
        assert (
            'gives no format that all consumers accept (NV21 LINEAR)' in notice
            and 'videoconvert' in notice
        )
        with next_frame(opened.camera) as frame:
            assert frame.data.fourcc == fourcc_code('NV12')


def test_one_whom_nothing_suits_does_not_cost_the_others_a_format_that_they_can_read() -> None:
    """The source's first format is ABGR64, which no consumer here can read."""
    source = 'videotestsrc num-buffers=9 ! video/x-raw,width=64,height=48'
    with streaming(source, consumers=[consumer('odd', ('NV12', INVALID))]) as opened:
        with next_frame(opened.camera) as frame:
            assert (frame.data.fourcc, frame.data.layout.modifier) in READABLE_FORMATS
        assert any('accept (NV12 INVALID)' in notice for notice in opened.camera.notices())


@pytest.mark.parametrize(('what', 'silent', 'words'), [
    ('error-at=100', WAIT_S, r'The cable was pulled \(poll said POLLERR\)'),
    ('eos-at=100', WAIT_S, 'has ended although its source is live'),
    ('silent-at=100', 0.3, 'gave no frame for'),
])  # fmt: skip
def test_a_live_source_that_stops_is_lost(what: str, silent: float, words: str) -> None:
    with streaming(f'zcframes live=1 {what} {TIGHT}', silent=silent) as opened:
        error = awaited_error(opened.camera)
        assert isinstance(error, CameraLostError) and re.search(words, str(error))


@pytest.mark.parametrize(('first', 'later', 'consumers'), [
    ('video/x-raw,format=NV12', 'video/x-raw,format=NV12,width=32', ()),
    ('video/x-raw,format=NV12', 'video/x-raw,format=NV21', (NPU,)),
    (f'{DMABUF},format=DMA_DRM,drm-format=NV12', 'video/x-raw,format=NV12', (NPU,)),
])  # fmt: skip
def test_another_format_or_kind_of_memory_is_a_changed_camera(
    first: str, later: str, consumers: tuple[BufferConstraints, ...]
) -> None:
    later += f'{"" if "width" in later else ",width=64"},height=48,framerate=200/1'
    pipeline = (
        f'zcframes live=1 change-at=60 frame-size=4608 caps-text="{first},{SIZE}" '
        f'caps-later="{later}" strides=64,64 offsets=0,3072'
    )
    with streaming(pipeline, consumers=consumers) as opened:
        error = awaited_error(opened.camera)
        assert isinstance(error, CameraChangedError) and 'is opened again' in str(error)


def changed(pipeline: str) -> GStreamerCamera:
    """Return a camera that was closed after its caps changed."""
    camera: GStreamerCamera = open_camera(pipeline).camera
    configure(camera)
    assert isinstance(awaited_error(camera), CameraChangedError)
    camera.close()
    return camera


@pytest.mark.parametrize('live', [0, 1])
def test_the_next_camera_goes_on_where_the_caps_changed(live: int) -> None:
    later = 'video/x-raw,format=NV21,width=64,height=48,framerate=200/1'
    before = changed(f'zcframes live={live} change-at=60 caps-later="{later}" {TIGHT}')
    camera = open_camera('the same', before=before).camera
    assert before.continuation() is None
    try:
        assert camera.constraints().formats == ((NV21, LINEAR),)
        before.close()
        configure(camera)
        with next_frame(camera) as frame:
            assert len(set(shown(frame))) == 1
        for _ in range(10):
            next_frame(camera).release()
        kept = weakref.ref(before)
        del before
        gc.collect()
        assert kept() is None, 'nobody keeps the cameras of before'
    finally:
        camera.close()
        camera.close()


def test_a_changed_pipeline_that_nobody_goes_on_with_is_ended() -> None:
    later = 'video/x-raw,format=NV21,width=64,height=48,framerate=200/1'
    pipeline = f'zcframes live=1 change-at=60 caps-later="{later}" {TIGHT}'
    changed(pipeline).close_rest()
    # The camera is closed before the change: the pipeline must end with it.
    camera = open_camera(pipeline).camera
    configure(camera)
    camera.close_rest()
    assert isinstance(awaited_error(camera), CameraChangedError)
    camera.close()


def test_another_rate_is_no_other_picture() -> None:
    with streaming(
        f'zcframes live=1 change-at=60 caps-later={CAPS.replace("200/1", "100/1")} {TIGHT}'
    ) as opened:
        last = _sequence(opened.camera) + 70
        until(lambda: _sequence(opened.camera) > last, 'it goes on')


def source(fmt: str, colorimetry: str, height: int) -> str:
    """Return a source of one colour, so that the position of chroma samples has no effect."""
    caps = f'video/x-raw,format={fmt},width={32},height={height}'
    return (
        f'videotestsrc pattern=solid-color foreground-color=0xff9050c0 num-buffers=4 '
        f'! {caps}{f",colorimetry={colorimetry}" if colorimetry else ""}'
    )


COLOURS = "{}.*put 'videoconvert ! video/x-raw,colorimetry"
TILED_CROP = (
    'caps-text="video/x-raw(memory:DMABuf),format=DMA_DRM,drm-format=NV12:0x0100000000000002,'
    'width=32,height=16" '
    'frame-size=4608 whole=64,48 strides=64,64 offsets=0,3072'
)


@pytest.mark.parametrize(('pipeline', 'kind', 'words'), [
    ('', ConfigError, "parameter 'pipeline' is empty"),
    ('nosuchsrc ! videoconvert', ConfigError, 'nosuchsrc.*gst-inspect-1.0.*apt install'),
    ('videotestsrc nosuchproperty=1', ConfigError, 'nosuchproperty'),
    (('videotestsrc ! video/x-raw,format=NV12,width=64,height=48 ! appsink name=x ! fakesink'),
     ConfigError, 'pipeline'),
    ('videotestsrc num-buffers=0 ! video/x-raw,format=NV12', CameraError,
     'ended before its first frame'),
    (f'zcframes {TIGHT.replace("raw", "raw(memory:VASurface)")}', ConfigError, 'VASurface'),
    (f'zcframes {TIGHT.replace("raw", "raw(memory:NVMM)")}', ConfigError, 'camera: argus'),
    (f'zcframes {TIGHT.replace(CAPS, f"{CAPS},interlace-mode=alternate")}', ConfigError,
     'deinterlace'),
    (f'zcframes {TIGHT.replace("4608", "4600")}', CameraError, 'plane 1'),
    ('zcframes frame-size=4608 caps-text="video/x-raw(memory:DMABuf),format=DMA_DRM,'
     'drm-format=NV12:0x0100000000000002,width=64,height=48" memory=system', ConfigError,
     "can't be copied"),
    ('filesrc location=/nowhere/a.mp4 ! decodebin', CameraError,
     '"/nowhere/a.mp4".*property location names a file'),
    ('multifilesrc location=/nowhere/%d.jpg ! jpegdec', CameraError,
     '/nowhere/0.jpg.*property location names a file'),
    (source('NV12', 'smpte240m', 48), ConfigError,
     COLOURS.format("'smpte240m': matrix 5 is not one of 3")),
    (source('GRAY8', 'bt2100-hlg', 48), ConfigError,
     COLOURS.format("'bt2100-hlg': transfer 15 is not one of")),
    (source('NV12', 'BT709', 48), ConfigError,
     COLOURS.format("'BT709' is neither one of bt601, bt709")),
    (f'zcframes crop=16,0,32,16 {TILED_CROP}', ConfigError,
     'only a LINEAR image can be cropped at its left and top'),
    (f'zcframes crop=15,8,1,16 whole=64,48 {CROPPED}', ConfigError, 'at least 2x2'),
    (f'zcframes crop=40,8,32,16 whole=64,48 {CROPPED}', ConfigError, 'not inside'),
])  # fmt: skip
def test_what_cannot_be_is_said_in_one_sentence(
    pipeline: str, kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words) as caught, streaming(pipeline, start_timeout_s=60.0):
        pass
    assert '\n' not in str(caught.value) and 'plug it in' not in str(caught.value)


_QUOTES = 'leave out quotes and backslashes'


@pytest.mark.parametrize(('pipeline', 'words'), [
    ('"videotestsrc ! videoconvert"', 'begins with a quote; leave out'),
    ('gst-launch-1.0 -v videotestsrc ! videoconvert', 'leave out that program and its options'),
    ('videotestsrc ! "video/x-raw, format=NV12" ! videoscale', f'syntax error; {_QUOTES}'),
    (r'videotestsrc ! video/x-raw\(memory:DMABuf\)', f'caps.*{_QUOTES}'),
    ('videotestsrc ! autovideosink', "ends with the sink 'autovideosink'; leave that out"),
])  # fmt: skip
def test_what_is_for_a_shell_is_named(pipeline: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_description(pipeline)
    # Quotes around the value of a property are no mistake.
    check_description('videotestsrc ! capsfilter caps="video/x-raw, format=NV12"')


def test_a_source_without_a_frame_is_given_up_or_stopped_with_its_node() -> None:
    silent = f'zcframes live=1 {TIGHT} ! valve drop=true'
    with pytest.raises(CameraLostError, match=r'gave no frame within 0.3 s'):
        open_camera(silent, start_timeout_s=0.3)
    asked = iter((False, True))
    with pytest.raises(CameraLostError, match=r'was stopped before its first frame'):
        open_camera(silent, start_timeout_s=600.0, stopping=lambda: next(asked, True))


def test_what_parameters_ask_for_is_had_or_refused() -> None:
    with pytest.raises(ConfigError, match='gives 64x48, parameters width and height say 640x0'):
        open_camera(f'zcframes {TIGHT}', width=640)
    with pytest.raises(
        CameraError, match="would be copied: the pipeline's frames are in system memory; use"
    ):
        open_camera(f'zcframes memory=system {TIGHT}', require_dmabuf=True)
    with (
        pytest.raises(
            CameraError, match='gives only 1 buffers before it wants them back, but 2 are needed'
        ),
        streaming(f'zcframes buffers=1 {TIGHT}'),
    ):
        pass


def test_default_layouts_are_gstreamer_s() -> None:
    gst = load_gstreamer()
    for entry in FORMATS.values():
        for width in (64, 66, 68, 70, 642):
            if entry.gstreamer is None or width % entry.horizontal:
                continue
            layout = compute_layout(entry.code, width, 48)
            text = frame_caps(layout, RGB_FULL, dmabuf=False)
            caps, info = gst.gst_caps_from_string(text.encode()), VideoInfo()
            assert gst.gst_video_info_from_caps(byref(info), caps), text
            gst.gst_mini_object_unref(caps)
            ours = buffer_planes(default_layout(layout))
            count = len(ours.strides)
            assert tuple(info.stride[:count]) == ours.strides, text
            assert tuple(info.offset[:count]) == ours.offsets, text


# Colours and crops, compared with GStreamer's own conversion.


def written_by_gstreamer(description: str, file: Path) -> Pixels:
    """Return the first frame as written by filesink, which doesn't support GstVideoMeta."""
    gst, failure = load_gstreamer(), POINTER(Error)()
    text = f'{description} ! identity eos-after=2 ! filesink location={file}'
    made = gst.gst_parse_launch_full(text.encode(), None, PARSE_FATAL_ERRORS, byref(failure))
    assert made, gst.take_error(failure)
    pipeline = gst.gst_object_ref_sink(made)
    bus = gst.gst_element_get_bus(pipeline)
    try:
        gst.gst_element_set_state(pipeline, State.PLAYING)
        until(lambda: _said(bus) & (MessageType.EOS | MessageType.ERROR), 'the end of the stream')
    finally:
        gst.gst_element_set_state(pipeline, State.NULL)
        gst.gst_object_unref(bus)
        gst.gst_object_unref(pipeline)
    return np.fromfile(file, np.uint8)


def _said(bus: int) -> int:
    """Return the type of the bus's next message, 0 for none."""
    gst = load_gstreamer()
    message = gst.gst_bus_pop(bus)
    if not message:
        return 0
    kind = Message.from_address(message).type
    gst.gst_mini_object_unref(message)
    return int(kind)


@pytest.mark.parametrize(('fmt', 'colorimetry', 'height'), [
    ('NV12', '', 48),
    ('NV12', '', 720),
    ('YUY2', 'bt2020', 48),
    ('NV12', '1:3:5:1', 48),
    # From a webcam, and from jpegdec, which has no more information about the colours.
    ('I420', '1:4:7:1', 720),
    ('I420', '1:4:0:0', 48),
    # NTSC as MPEG-2 decoders describe it.
    ('I420', '2:4:4:2', 720),
    ('GRAY8', '', 720),
    ('GRAY8', '1:4:0:0', 48),
    ('GRAY16_LE', 'bt709', 48),
    # The string's range is used, and the matrix of R, G, B.
    ('RGB', '', 48),
    ('BGRx', '2:1:7:1', 48),
    ('RGB', 'bt709', 48),
])  # fmt: skip
def test_pictures_have_the_colours_that_gstreamer_shows(
    fmt: str, colorimetry: str, height: int, tmp_path: Path
) -> None:
    made = shown_from = source(fmt, colorimetry, height)
    if fmt in ('RGB', 'BGRx'):
        shown_from = source('NV12', '', height)
        made = f'{shown_from} ! videoconvert ! {made.rpartition(" ! ")[2]}'
    # Convert the frame as a consumer does.
    with streaming(made) as opened, next_frame(opened.camera) as frame, frame.map() as planes:
        data = frame.data
        picture = ToPicture(data.fourcc, data.width, data.height, data.colorimetry)
        got = picture.convert(planes)[0, 0].copy()
    rgb = f'{shown_from} ! videoconvert ! video/x-raw,format=RGB,colorimetry=sRGB'
    expected = written_by_gstreamer(rgb, tmp_path / 'rgb')[:3]
    assert np.abs(got.astype(int) - expected).max() <= 4, (got, expected)


# Cropping elements set the visible part of the frame.

WHOLE_WIDTH, WHOLE_HEIGHT = 128, 96
# For each plane: bytes of an element, and the pixels in x and y that it covers.
PLANES = {
    'NV12': ((1, 1, 1), (2, 2, 2)), 'I420': ((1, 1, 1), (1, 2, 2), (1, 2, 2)),
    'Y42B': ((1, 1, 1), (1, 2, 1), (1, 2, 1)), 'YUY2': ((4, 2, 1),), 'RGB': ((3, 1, 1),),
    'GRAY16_LE': ((2, 1, 1),),
}  # fmt: skip


# Elements, and the part of the picture that they keep: x, y, width and height.
CROPS = (
    ('videocrop left=16 top=8 right=4 bottom=2', 16, 8, 108, 86),
    # Each is odd, but their sum is even.
    ('videocrop left=3 top=1 ! queue ! videocrop left=5 top=3', 8, 4, 120, 92),
    ('aspectratiocrop aspect-ratio=1/1', 16, 0, 96, 96),
    ('videocrop left=3', 3, 0, 125, 96),
    ('videocrop left=5 top=7 right=2 bottom=2', 5, 7, 121, 87),
)


def changing(fmt: str) -> str:
    """Return a source whose brightness and colours change in both directions."""
    caps = f'video/x-raw,format={fmt},width={WHOLE_WIDTH},height={WHOLE_HEIGHT}'
    return f'videotestsrc pattern=colors num-buffers=4 ! {caps}'


def cut(picture: Pixels, fmt: str, left: int, top: int, *size: int) -> list[Pixels]:
    """
    Return each plane's rows of the crop, from the bytes of a whole picture.

    As in videocrop's copies, each plane begins at the sample of the crop's corner, and columns and
    rows without a whole chroma sample are omitted.
    """
    grid = [max(plane[i] for plane in PLANES[fmt]) for i in (1, 2)]
    width, height = (side - side % step for side, step in zip(size, grid, strict=True))
    found, start = [], 0
    for size, horizontal, vertical in PLANES[fmt]:
        rows, columns = WHOLE_HEIGHT // vertical, WHOLE_WIDTH // horizontal
        plane = picture[slice(start, start + rows * columns * size)].reshape(rows, columns, size)
        start += plane.size
        y, x = top // vertical, left // horizontal
        found.append(plane[slice(y, y + height // vertical), slice(x, x + width // horizontal)])
    return found


@pytest.mark.parametrize('fmt', PLANES)
def test_the_part_that_is_left_is_taken(fmt: str, tmp_path: Path) -> None:
    picture = written_by_gstreamer(changing(fmt), tmp_path / 'whole')
    for elements, *part in CROPS:
        found = taken(f'{changing(fmt)} ! {elements}')
        for plane, expected in zip(found, cut(picture, fmt, *part), strict=True):
            got = plane.view(np.uint8).reshape(plane.shape[0], -1)
            assert (got == expected.reshape(expected.shape[0], -1)).all(), (fmt, elements)


def test_the_padding_of_a_tiled_frame_is_left_out() -> None:
    with closing(open_camera(f'zcframes crop=0,0,32,16 {TILED_CROP}').camera) as camera:
        assert (camera.width, camera.height) == (32, 16)
