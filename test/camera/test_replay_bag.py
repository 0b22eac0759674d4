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

"""Recordings written by other libraries, folders of pictures, and files that are neither."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
import gzip
import os
from pathlib import Path
import signal
import sys
import threading
import time
from typing import Any

from camera.replay_kit import (
    captured,
    compressed,
    IMAGE,
    image,
    NOW_NS,
    played,
    replay,
    serialized,
    STORE,
    write_bag,
    write_mcap,
)
from camera.video_kit import write_video
import cv2
from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest
from rosbags.rosbag2 import CompressionFormat, CompressionMode, StoragePlugin
from rosbags.rosbag2 import Writer as BagWriter
from waiting import until

from zc_perception.camera.replay import bag
from zc_perception.camera.replay.bag import BagSource, read_message
from zc_perception.camera.replay.pictures import ImageSource, natural_key
from zc_perception.camera.replay.source import FrameSource, recording_path
from zc_perception.errors import ConfigError, LayoutError, RecordingError
from zc_perception.frame import Frame, Header
from zc_perception.memory.ledger import CopyLedger, LedgerEntry
from zc_perception.terminal import Interrupted, interruptions

pytestmark = pytest.mark.usefixtures('no_fd_leak')
WIDTH, HEIGHT, FRAMES = 64, 48, 5
SECOND, START, PERIOD = 1_000_000_000, 1_700_000_000_000_000_000, 40_000_000
LATENCY = 3_000_000
PLANES = [
    (
        rng.integers(0, 256, (HEIGHT, WIDTH), np.uint8),
        rng.integers(0, 256, (HEIGHT // 2, WIDTH // 2, 2), np.uint8),
    )
    for rng in map(np.random.default_rng, range(FRAMES))
]
# Both planes as rows of one picture, like ROS's nv12.
ROWS = [np.vstack([luma, chroma.reshape(HEIGHT // 2, -1)]) for luma, chroma in PLANES]


def stamp(index: int) -> int:
    return START + index * PERIOD


def nv12_entries(topic: str = '/camera/image_raw', padding: int = 0) -> list[tuple[str, int, Any]]:
    return [
        (topic, stamp(i) + LATENCY, image(stamp(i), rows, 'nv12', WIDTH, HEIGHT, padding=padding))
        for i, rows in enumerate(ROWS)
    ]


def stamped(folder: Path, stamps: list[int]) -> Path:
    """Write frames with these stamps at the times of :func:`stamp`."""
    entries = [
        ('/i', stamp(i), image(stamps[i], rows, 'nv12', WIDTH, HEIGHT))
        for i, rows in enumerate(ROWS)
    ]
    return write_bag(folder / 'bag', entries)


def single(folder: Path, message: Any) -> Path:
    return write_bag(folder / 'bag', [('/i', START, message)])


def grey(topic: str, time_ns: int, stamp_ns: int) -> tuple[str, int, Any]:
    return topic, time_ns, image(stamp_ns, np.zeros((4, 4), np.uint8), 'mono8', 4, 4)


KINDS = (
    'sqlite3 folder',
    'mcap folder',
    'sqlite3 file',
    'mcap file',
    'mcap, no metadata',
    'mcap library, one file',
)


def make(kind: str, folder: Path, entries: list[tuple[str, int, Any]]) -> Path:
    """Return a recording, written by the library in the name *kind*."""
    if kind == 'mcap library, one file':
        return write_mcap(folder / 'one.mcap', entries)
    bag = write_bag(folder / 'bag', entries, 'mcap' if 'mcap' in kind else 'sqlite3')
    (file,) = [path for path in bag.iterdir() if path.name != 'metadata.yaml']
    if 'no metadata' in kind:
        (bag / 'metadata.yaml').unlink()
    return file if 'file' in kind else bag


@pytest.mark.parametrize(('kind', 'padding'), [(kind, 13) for kind in KINDS] + [(KINDS[0], 0)])
def test_nv12_comes_out_bit_by_bit_at_its_own_times(
    kind: str, padding: int, tmp_path: Path
) -> None:
    path, ledger = make(kind, tmp_path, nv12_entries(padding=padding)), CopyLedger()
    camera = replay(path, ledger=ledger, constraints={'stride_align': 96})
    said = camera.width, camera.height, camera.framerate, camera.device
    assert said == (WIDTH, HEIGHT, 25.0, str(path))
    found = played(camera)
    for i, ((frame, planes), expected) in enumerate(zip(found, PLANES, strict=True)):
        assert frame.header == Header(NOW_NS + i * PERIOD, 'lens')
        assert frame.data.planes[0].stride == 96
        assert all(np.array_equal(a, b) for a, b in zip(planes, expected, strict=True))
    assert ledger.entries()['decode'].count == FRAMES and set(ledger.entries()) == {'decode'}


@pytest.mark.parametrize('recorded', [True, False])
def test_recorded_stamps_go_on_when_the_recording_begins_again(
    recorded: bool, tmp_path: Path
) -> None:
    """Stamps of 0 are replaced by the times of recording."""
    path = stamped(tmp_path, [recorded * stamp(i) for i in range(FRAMES)])
    # rosbags adds 1 ns to the recording's duration.
    round_ns = (FRAMES - 1) * PERIOD + 1 + 100_000_000
    assert stamps_of_rounds(path, FRAMES) == [
        [stamp(i) + number * round_ns for i in range(FRAMES)] for number in range(3)
    ]


def test_a_pause_that_is_left_out_is_not_waited_for_between_rounds(tmp_path: Path) -> None:
    late = [i * PERIOD + (i > 5) * 7200 * SECOND for i in range(10)]
    bag = write_bag(tmp_path / 'bag', [grey('/i', START + at, START + at) for at in late])
    with closing(replay(bag, stamps='recorded', keep_all=False, loop=True)) as camera:
        stamps = []
        while len(stamps) < 25:
            with until(camera.capture) as frame:
                stamps.append(frame.header.stamp_ns)
        assert stamps == sorted(stamps) and camera._elapsed_ns() < 10 * SECOND


@pytest.mark.parametrize('speed', [0.5, 1.0, 4.0])
def test_topics_of_a_simulation_stay_together_whatever_its_speed(
    speed: float, tmp_path: Path
) -> None:
    count = 40
    entries = [
        grey(topic, START + round(i * PERIOD / speed), stamp(i))
        for i in range(count)
        for topic in ('/left', '/right')
        if topic == '/left' or 0 < i < count - 3
    ]
    bag = write_bag(tmp_path / 'bag', entries)
    left = stamps_of_rounds(bag, count, replay_topic='/left')
    right = stamps_of_rounds(bag, count - 4, replay_topic='/right')
    assert right == [stamps[1:-3] for stamps in left]
    assert left[1][0] - left[0][-1] == pytest.approx(100_000_000, abs=10)


def test_a_clock_that_was_set_is_no_simulation(tmp_path: Path) -> None:
    """A round is as long as the recording, also for a topic that began after the clock was set."""
    entries = [
        grey(topic, stamp(i), stamp(i) + (i >= 10) * 3600 * SECOND)
        for i in range(40)
        for topic in ('/left', '/right')
        if topic == '/left' or i >= 10
    ]
    bag = write_bag(tmp_path / 'bag', entries)
    for topic, frames in (('/left', 40), ('/right', 30)):
        with closing(BagSource(str(bag), topic)) as source:
            assert sum(source.advance() is not None for _ in range(frames + 1)) == frames
            assert source.duration_ns() == 39 * PERIOD + 1


def stamps_of_rounds(path: Path, frames: int, **options: Any) -> list[list[int]]:
    """Return the recorded stamps of three rounds, each of which has *frames* frames."""
    options |= {'stamps': 'recorded', 'keep_all': False, 'loop': True, 'replay_rate': 1000.0}
    stamps: list[int] = []
    with closing(replay(path, **options)) as camera:
        while len(stamps) < 3 * frames:
            with until(camera.capture) as frame:
                stamps.append(frame.header.stamp_ns)
    return [stamps[i : i + frames] for i in range(0, len(stamps), frames)]


CLOCKS = pytest.mark.parametrize(('recorded', 'jump'), [
    pytest.param(lambda i: i * PERIOD * 2, 0, id='simulation at half speed'),
    pytest.param(lambda i: i * PERIOD // 2, 0, id='simulation at double speed'),
    pytest.param(lambda i: i * PERIOD + (i > 0) * (SECOND - 2) + i % 3, 0, id='delay'),
    pytest.param(lambda i: i * PERIOD, 3600 * SECOND, id='clock set'),
    pytest.param(lambda i: i * PERIOD + (i >= 30) * 3600 * SECOND, 3600 * SECOND,
                 id="clock set that is the recorder's, too"),
])  # fmt: skip


@CLOCKS
def test_the_pace_is_even_whatever_the_recorder_s_clock_did(
    recorded: Callable[[int], int], jump: int, tmp_path: Path
) -> None:
    count = 60
    entries = [
        grey('/i', START + recorded(i), stamp(i) + (i >= 30) * jump) for i in range(count)
    ]
    with closing(BagSource(str(write_bag(tmp_path / 'bag', entries)))) as source:
        for _ in range(2):
            assert [source.advance().time_ns for _ in range(count)] == [
                i * PERIOD for i in range(count)
            ]
            assert source.advance() is None
            source.restart()


@CLOCKS
def test_a_later_start_is_the_same_whatever_is_read_before_it(
    recorded: Callable[[int], int], jump: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, read = 200, []
    entries = [
        grey('/i', START + recorded(i), stamp(i) + (i >= 30) * jump) for i in range(count)
    ]
    path = str(write_bag(tmp_path / 'bag', entries))
    with closing(BagSource(path)) as plain, closing(BagSource(path)) as source:
        monkeypatch.setattr(bag, 'read_message', lambda *a: (read.append(a), read_message(*a))[1])
        for start_ns in (5 * SECOND, 7 * SECOND + 1, 99 * SECOND):
            plain.restart()
            source.restart()
            expected = FrameSource.seek(plain, start_ns)
            read.clear()
            assert source.seek(start_ns) == expected
            assert len(read) < 60 or jump or recorded(100) != 100 * PERIOD
            assert source.advance() == plain.advance()


@pytest.mark.parametrize(
    ('suffix', 'text'),
    [('.jpg', 'bgr8; jpeg compressed bgr8'), ('.png', 'rgb8; png compressed bgr8')],
)
def test_compressed_pictures_are_decoded(suffix: str, text: str, tmp_path: Path) -> None:
    picture = np.full((HEIGHT, WIDTH, 3), (200, 60, 20), np.uint8)
    content = cv2.imencode(suffix, picture, [cv2.IMWRITE_JPEG_QUALITY, 98])[1]
    ((_, planes),) = played(replay(single(tmp_path, compressed(START, content, text))))
    bgr = cv2.cvtColorTwoPlane(planes[0], planes[1], cv2.COLOR_YUV2BGR_NV12)
    assert np.abs(bgr.astype(int) - picture).max() < 8


@pytest.mark.parametrize('kind', ['sqlite3', 'mcap'])
def test_the_topic_is_chosen_and_what_there_is_is_listed(kind: str, tmp_path: Path) -> None:
    entries = nv12_entries('/left/image_raw') + nv12_entries('/right/image_raw')[:2]
    entries += [('/thumbnail', START, compressed(START, np.zeros(4, np.uint8), 'jpeg'))]
    path = write_bag(tmp_path / 'bag', sorted(entries, key=lambda entry: entry[1]), kind)
    assert len(played(replay(path, replay_topic='/right/image_raw'))) == 2
    listed = (
        r'/left/image_raw \(sensor_msgs/msg/Image, 5 messages\), /right/image_raw '
        r'\(sensor_msgs/msg/Image, 2 messages\), '
        r'/thumbnail \(sensor_msgs/msg/CompressedImage, 1 messages\)'
    )
    words = rf"several topics with pictures; it has {listed}; set parameter 'replay_topic'"
    with pytest.raises(ConfigError, match=words):
        replay(path)
    words = rf"no topic '/left/image_row'; did you mean '/left/image_raw'\?; it has {listed}"
    with pytest.raises(ConfigError, match=words):
        replay(path, replay_topic='/left/image_row')


def test_a_topic_without_pictures_is_refused(tmp_path: Path) -> None:
    path = tmp_path / 'bag'
    text = b'\x00\x01\x00\x00\x02\x00\x00\x00a\x00'
    write_bag(path, [('/chatter', START, text)], msgtype='std_msgs/msg/String')
    listed = r'it has /chatter \(std_msgs/msg/String, 1 messages\)$'
    with pytest.raises(ConfigError, match=f'has no topic with pictures .*; {listed}'):
        replay(path)
    with pytest.raises(ConfigError, match="no pictures in topic '/chatter'"):
        replay(path, replay_topic='/chatter')


LEVELS = np.linspace(0, 65535, WIDTH * HEIGHT).astype(np.uint16).reshape(HEIGHT, WIDTH)
DEEP = cv2.imencode('.png', LEVELS)[1]


@pytest.mark.parametrize('encoding', ['mono16', 'bayer_rggb8', 'bayer_grbg16'])
def test_compressed_samples_are_played_as_the_raw_ones(encoding: str, tmp_path: Path) -> None:
    """image_transport compresses Bayer data as grey, and names the encoding in the format."""
    dtype, each = (np.uint16, 2) if encoding.endswith('16') else (np.uint8, 1)
    random = np.random.default_rng(1)
    samples = random.integers(0, np.iinfo(dtype).max, (HEIGHT, WIDTH), dtype)
    rows = samples.view(np.uint8).reshape(HEIGHT, each * WIDTH)
    raw = single(tmp_path / 'raw', image(START, rows, encoding, WIDTH, HEIGHT))
    content = cv2.imencode('.png', samples)[1]
    png = single(tmp_path / 'png', compressed(START, content, f'{encoding}; png compressed '))
    ((_, found),), ((_, wanted),) = played(replay(png)), played(replay(raw))
    assert all(np.array_equal(a, b) for a, b in zip(found, wanted, strict=True))
    assert encoding == 'mono16' or found[1].std() > 5, 'it has colours'


@pytest.mark.parametrize(
    ('message', 'reason'),
    [
        (
            image(START, PLANES[0][0], '32FC1', WIDTH // 4, HEIGHT),
            "encoding '32FC1' can't be read as a picture, it has depths",
        ),
        (
            image(START, PLANES[0][0], 'rgb8', WIDTH, HEIGHT),
            'needs a step of 192 or more; step is 64',
        ),
        (
            image(START, PLANES[0][0], 'nv12', WIDTH, 31),
            'height 31 is not a multiple of 2, which NV12 needs',
        ),
        (
            compressed(START, np.arange(9, dtype=np.uint8), 'jpeg'),
            "format 'jpeg' can't be decoded; a compressed picture must be a whole JPEG or PNG",
        ),
        (
            compressed(START, np.zeros(9, np.uint8), '16UC1; compressedDepth png'),
            'is a depth image',
        ),
        (
            compressed(START, DEEP, '16UC1; png compressed '),
            "format '16UC1; png compressed .*depth",
        ),
        (
            compressed(START, DEEP, 'png'),
            "format 'png' has grey levels of 16 bits, so it may be .* begins with 'mono16'",
        ),
    ],
)
def test_pictures_that_can_not_be_played_are_named(
    message: Any, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=f"can't be played: .*{reason}"):
        replay(single(tmp_path, message))


@pytest.mark.parametrize(
    ('another', 'step'),
    [
        ('notes.txt', 'save its messages: sqlite3 bag.db3 .recover'),
        ('bag_1.db3', "check each of its files: run 'mcap doctor', or"),
    ],
)
def test_a_recording_that_can_not_be_read_on_ends_with_the_reason_and_a_step(
    another: str, step: str, tmp_path: Path
) -> None:
    def failing() -> Iterator[Any]:
        raise OSError('Input/output error')
        yield

    camera = replay(write_bag(tmp_path / 'bag', nv12_entries()))
    camera._source._messages = failing()  # type: ignore[attr-defined]
    (tmp_path / 'bag' / another).touch()
    with pytest.raises(RecordingError, match=f"can't be read any further: .*error; {step}"):
        played(camera)


def test_the_frames_before_a_damaged_part_are_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, bad, ask = write_bag(tmp_path / 'bag', nv12_entries()), 3, BagSource._next_message

    def next_message(source: BagSource) -> Any:
        if source.number == bad:
            raise RecordingError('a chunk is damaged')
        return ask(source)

    monkeypatch.setattr(BagSource, '_next_message', next_message)
    camera = replay(path)
    with pytest.raises(RecordingError, match=r'^frame 3: a chunk is damaged'):
        played(camera)
    assert camera.statistics().captured == 3
    bad = 0
    with pytest.raises(ConfigError, match=r'^a chunk is damaged'):
        replay(path)


SINCE_BOOT = 77_000_000_000
TROUBLE = ('has stamps that are 0 or equal to the previous one: times of the '
           "recorder's clock replace them")
BACK = 'has stamps that go back: they stay as they are'


@pytest.mark.parametrize(('recorded', 'given', 'notices'), [
    pytest.param([SINCE_BOOT, SINCE_BOOT + PERIOD, 0, SINCE_BOOT + 3 * PERIOD, 0],
                 [SINCE_BOOT + i * PERIOD for i in range(FRAMES)], [TROUBLE], id='some 0'),
    pytest.param([stamp(3), stamp(4), stamp(0), stamp(1), stamp(2)],
                 [stamp(3), stamp(4), stamp(0), stamp(1), stamp(2)], [BACK], id='back'),
    pytest.param([0, SINCE_BOOT, SINCE_BOOT, SINCE_BOOT + 2 * PERIOD, SINCE_BOOT + 3 * PERIOD],
                 [stamp(0), *(SINCE_BOOT + i * PERIOD for i in range(4))], [TROUBLE, BACK],
                 id='0 at first'),
    pytest.param([stamp(i) for i in range(FRAMES)], None, [], id='good'),
])  # fmt: skip
def test_recorded_stamps_that_say_nothing_become_times_of_recording(
    recorded: list[int], given: list[int] | None, notices: list[str], tmp_path: Path
) -> None:
    path = stamped(tmp_path, recorded)
    camera = replay(path, stamps='recorded')
    said = ''.join(camera.notices())
    assert len(camera.notices()) == bool(notices) and all(words in said for words in notices)
    assert camera.facts()['stamp_trouble'] == said
    assert [frame.header.stamp_ns for frame, _ in played(camera)] == (given or recorded)
    # The replay's own stamps keep the recording's intervals, and nothing is reported.
    camera = replay(path)
    assert not camera.notices() and not camera.facts()
    own = [frame.header.stamp_ns - NOW_NS for frame, _ in played(camera)]
    assert BACK in notices or own == [i * PERIOD for i in range(FRAMES)]


def test_without_the_library_it_is_named_with_the_version_to_avoid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_bag(tmp_path / 'bag', nv12_entries())
    monkeypatch.setitem(sys.modules, 'rosbags.rosbag2', None)
    words = r"library rosbags, .* not installed: pip install rosbags 'apsw!=3\.54\.0\.0'"
    with pytest.raises(ConfigError, match=words):
        replay(path)


# Folders of pictures, and files of raw frames.


def write_picture(path: Path, level: int, width: int = WIDTH, height: int = HEIGHT) -> None:
    assert cv2.imwrite(str(path), np.full((height, width, 3), level, np.uint8))


def levels(found: list[Any]) -> list[int]:
    """Return the frames' grey levels to the nearest ten, from luma in limited range."""
    return [10 * round((float(planes[0].mean()) - 16) * 255 / 2190) for _, planes in found]


def test_pictures_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for number, level in ((10, 160), (9, 110), (1, 10), (100, 210), (2, 60)):
        write_picture(tmp_path / f'frame{number}.png', level)
    (tmp_path / '.hidden.png').write_bytes(b'')
    (tmp_path / 'notes.txt').write_text('no picture')
    (tmp_path / 'folder.png').mkdir()
    found = played(replay(tmp_path, framerate=10.0))
    assert levels(found) == [10, 60, 110, 160, 210]
    assert [frame.header.stamp_ns - NOW_NS for frame, _ in found] == [
        i * 100_000_000 for i in range(5)
    ]


@given(st.lists(st.integers(0, 10**12), min_size=2, max_size=6, unique=True))
def test_numbers_sort_as_numbers_with_or_without_leading_zeros(numbers: list[int]) -> None:
    for width in (0, 13):
        names = [f'a{number:0{width}d}b{number}.png' for number in numbers]
        assert sorted(names, key=natural_key) == [
            f'a{number:0{width}d}b{number}.png' for number in sorted(numbers)
        ]


@pytest.mark.parametrize('suffix', ['.png', '.webp', '.tiff', '.ppm', '.JPG'])
def test_kinds_of_pictures(suffix: str, tmp_path: Path) -> None:
    write_picture(tmp_path / f'a{suffix}', 90)
    camera = replay(tmp_path)
    assert camera.framerate == 30.0
    assert levels(played(camera)) == [90]


@pytest.mark.parametrize('kind', ['16.png', '10.pgm', '7.pgm', '16 bgr.png'])
def test_more_or_less_than_8_bits_are_brightness_of_the_same_range(
    kind: str, tmp_path: Path
) -> None:
    top, path = (1 << int(kind.split('.')[0].split()[0])) - 1, tmp_path / kind
    levels = np.linspace(0, top, WIDTH * HEIGHT).round().astype(np.uint16).reshape(HEIGHT, WIDTH)
    if path.suffix == '.pgm':
        head = b'P5\n# by a camera\n%d %d\n%d\n' % (WIDTH, HEIGHT, top)
        path.write_bytes(head + levels.astype('>u2' if top > 255 else 'u1').tobytes())
    else:
        assert cv2.imwrite(str(path), cv2.merge([levels] * 3) if 'bgr' in kind else levels)
    camera = replay(path)
    depth_is_none = [notice for notice in camera.notices() if 'if it is a depth image' in notice]
    assert len(depth_is_none) == (kind == '16.png')
    ((_, planes),) = played(camera)
    grey = np.round(levels * (255.0 / top)).astype(np.uint8)
    assert cv2.imwrite(str(tmp_path / 'wanted.bmp'), cv2.merge([grey] * 3))
    ((_, wanted),) = played(replay(tmp_path / 'wanted.bmp'))
    assert np.abs(planes[0].astype(int) - wanted[0]).max() <= 1
    assert np.abs(planes[1].astype(int) - 128).max() == 0


def test_a_folder_of_damaged_pictures_does_not_loop_for_ever(tmp_path: Path) -> None:
    for number in range(3):
        write_picture(tmp_path / f'{number}.png', 50)
    with closing(replay(tmp_path, loop=True, keep_all=False, framerate=1000.0)) as camera:
        captured(camera).release()
        for file in tmp_path.iterdir():
            file.write_bytes(b'nothing')
        with pytest.raises(RecordingError, match='has no frame that can be decoded'):
            for _ in range(20):
                assert camera.capture() is None


@pytest.mark.parametrize(('prepare', 'message'), [
    (lambda folder: None, 'has no picture and no recording, it has nothing; pictures end in .png'),
    (lambda folder: (folder / 'a.png').write_bytes(b'x'),
     "a.png' can't be decoded; remove it, or convert it to PNG"),
    (lambda folder: write_picture(folder / 'a.png', 1, 1, 1),
     "a.png' is 1x1; pictures must be at least 2x2"),
    (lambda folder: cv2.imwrite(str(folder / 'a.tiff'), np.ones((9, 9), np.float32)),
     r"a\.tiff' has pixels of type float32; only pixels of"),
])  # fmt: skip
def test_folders_that_can_not_be_played_are_named(
    prepare: Callable[[Path], object], message: str, tmp_path: Path
) -> None:
    prepare(tmp_path)
    with pytest.raises(ConfigError, match=message):
        replay(tmp_path)


@pytest.mark.parametrize('form', ['nv12', 'yuv420p'])
def test_raw_frames_are_played_from_a_container(form: str, tmp_path: Path) -> None:
    three = [(luma, chroma[..., 0], chroma[..., 1]) for luma, chroma in PLANES]
    pictures = PLANES if form == 'nv12' else three
    path = write_video(tmp_path / 'clip.nut', 'rawvideo', pictures, form)
    for (_, planes), expected in zip(played(replay(path)), PLANES, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(planes, expected, strict=True))
    for name in ('clip.nv12', 'clip.yuv'):
        path.rename(tmp_path / name)
        path = tmp_path / name
        with pytest.raises(ConfigError, match=rf"raw file '.*{name}' states no size.*ffmpeg -f"):
            replay(path)


# Values of the parameter video, and files whose first bytes show that they are no recording.

ENTRIES = [
    (
        '/i',
        stamp(i),
        image(stamp(i), np.full((HEIGHT, WIDTH), 90, np.uint8), 'mono8', WIDTH, HEIGHT),
    )
    for i in range(3)
]
LFS = b'version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n'
# The name of a file, what it makes of the bytes of a whole MCAP, and what is said.
FOREIGN: dict[str, tuple[str, Callable[[bytes], bytes], str]] = {
    'ROS 1': (
        'drive.bag',
        lambda mcap: b'#ROSBAG V2.0\n',
        "is a bag of ROS 1, .*; run rosbags-convert --src '.*drive.bag' --dst '.*drive' ",
    ),
    'zstd': (
        'drive.mcap.zstd',
        lambda mcap: b'\x28\xb5\x2f\xfd',
        "by zstd, .*zstd -dc '.*' > '.*drive.mcap' and play",
    ),
    'gzip': ('drive.mcap.gz', gzip.compress, 'by gzip'),
    'zip': ('drive.zip', lambda mcap: b'PK\x03\x04', "is a zip archive, .*; run unzip '"),
    'tar': ('drive.tar', lambda mcap: bytes(257) + b'ustar', "a tar archive, .*; run tar -xf '"),
    'LFS': ('drive.mp4', lambda mcap: LFS, 'is only a pointer of Git LFS.*run git lfs pull'),
    'empty video': ('drive.mp4', lambda mcap: b'', r'is empty \(0 bytes\): nothing was'),
    'text in MCAP': ('drive.mcap', lambda mcap: b'I am text', r"no \.mcap .*b'I am tex'"),
    'MCAP in a video': ('drive.mp4', bytes, "has the content of .mcap .* to 'drive.mcap'"),
    'cut MCAP': (
        'cut.mcap',
        lambda mcap: mcap[:-20],
        "'cut.mcap' has no end: .*; save its messages: mcap recover cut.mcap -o whole",
    ),
}


@pytest.mark.parametrize('case', FOREIGN)
def test_a_file_that_is_no_recording_is_told_by_its_content(case: str, tmp_path: Path) -> None:
    name, content, message = FOREIGN[case]
    whole = write_mcap(tmp_path / 'whole.mcap', ENTRIES)
    (tmp_path / name).write_bytes(content(whole.read_bytes()))
    whole.unlink()
    with pytest.raises(ConfigError, match=f'{name}.* {message}'):
        replay(tmp_path / name)


@pytest.mark.parametrize(('damage', 'advice'), [
    (lambda mcap: mcap[:8], "the fault is in 'bag.mcap'; save its messages: mcap recover bag"),
    (lambda mcap: mcap[:-28] + b'\1' + mcap[-27:], 'mcap recover bag.mcap -o whole.mcap'),
    (None, 'the folder lacks the files that metadata.yaml lists'),
])  # fmt: skip
def test_a_damaged_file_is_not_said_to_be_a_fault_of_the_folder_s_metadata(
    damage: Callable[[bytes], bytes] | None, advice: str, tmp_path: Path
) -> None:
    file = write_bag(tmp_path / 'bag', ENTRIES, 'mcap') / 'bag.mcap'
    content = file.read_bytes()
    file.unlink()
    if damage is not None:
        file.write_bytes(damage(content))
    with pytest.raises(ConfigError, match=f"can't be opened: .*{advice}"):
        replay(tmp_path / 'bag')


@pytest.mark.parametrize('storage', list(StoragePlugin))
@pytest.mark.parametrize('mode', [CompressionMode.FILE, CompressionMode.MESSAGE])
def test_a_compressed_bag_is_played_from_its_folder_only(
    mode: CompressionMode, storage: StoragePlugin, tmp_path: Path
) -> None:
    folder = tmp_path / 'bag'
    writer = BagWriter(folder, version=9, storage_plugin=storage)
    writer.set_compression(mode, CompressionFormat.ZSTD)
    with writer:
        connection = writer.add_connection('/i', IMAGE, typestore=STORE)
        for _, time_ns, message in ENTRIES:
            writer.write(connection, time_ns, serialized(message))
    assert len(played(replay(folder))) == 3
    (file,) = [path for path in folder.iterdir() if path.suffix != '.yaml']
    advice = {CompressionMode.FILE: f"play its folder '{folder}'"}
    with pytest.raises(ConfigError, match=advice.get(mode, 'play the whole folder, whose meta')):
        replay(file)


def test_depth_does_not_make_the_pictures_topic_ambiguous(tmp_path: Path) -> None:
    depth = image(START, np.zeros((HEIGHT, 2 * WIDTH), np.uint8), '16UC1', WIDTH, HEIGHT)
    path = write_bag(tmp_path / 'bag', [('/depth', START, depth), *ENTRIES])
    assert len(played(replay(path))) == 3
    with pytest.raises((ConfigError, RecordingError), match='it has depths and no colours'):
        replay(path, replay_topic='/depth')


def test_a_recording_is_named_as_a_shell_or_a_browser_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / 'my drive'
    folder.mkdir()
    path = write_mcap(folder / 'a.mcap', ENTRIES)
    monkeypatch.setenv('HOME', str(folder))
    monkeypatch.chdir(folder)
    for video in ('~/a.mcap', '$HOME/a.mcap', path.as_uri(), 'a.mcap', './a.mcap'):
        camera = replay(video)
        assert camera.device in (str(path), 'a.mcap', './a.mcap')
        assert len(played(camera)) == 3


@pytest.mark.parametrize('video', ['rtsp://me:secret@10.0.0.1/s', 'udp://:5000'])
def test_a_stream_is_gstreamers_business(video: str) -> None:
    with pytest.raises(ConfigError, match="set 'camera' to gstreamer and 'pipeline' to") as caught:
        recording_path(video)
    assert video.partition('://')[0] in str(caught.value) and 'secret' not in str(caught.value)


# Serialised messages.


def test_an_image_of_rclpy_is_read() -> None:
    serialization = pytest.importorskip('rclpy.serialization')
    message = pytest.importorskip('sensor_msgs.msg').Image(
        height=2, width=3, encoding='mono8', step=4, is_bigendian=1, data=bytes(range(8))
    )
    message.header.stamp.sec, message.header.stamp.nanosec, message.header.frame_id = -5, 6, 'lens'
    header, picture = read_message(STORE, IMAGE, serialization.serialize_message(message))
    assert (header.stamp_ns, header.frame_id) == (-4_999_999_994, 'lens')
    assert picture[:5] == (3, 2, 'mono8', True, 4) and picture.data.tobytes() == bytes(range(8))


def test_the_pixels_are_not_copied() -> None:
    content = bytearray(serialized(image(1, np.zeros((4, 8), np.uint8), 'mono8', 8, 4)))
    picture = read_message(STORE, IMAGE, content)[1]
    content[-1] = 77
    assert picture.data[-1] == 77


# The replay camera on a small MJPEG file whose frames have numbers as grey levels.

LENGTH, FPS, STEP = 8, 25.0, 28


def write_levels(path: Path, width: int, height: int) -> str:
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*'MJPG'), FPS, (width, height))
    assert writer.isOpened()
    for index in range(LENGTH):
        writer.write(np.full((height, width, 3), 10 + STEP * index, np.uint8))
    writer.release()
    return str(path)


@pytest.fixture(scope='module')
def video(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_levels(tmp_path_factory.mktemp('video') / 'levels.avi', 64, 48)


def index_of(frame: Frame) -> int:
    """Return the number of the frame in the file, from its grey level."""
    picture = frame.bgr()
    level = float(picture.mean())
    assert np.ptp(picture.astype(int), axis=2).max() <= 6, 'grey has no colour'
    index = round((level - 10) / STEP)
    assert abs(level - 10 - STEP * index) < 5
    return index


def test_keep_all_gives_every_frame_once_with_the_file_s_times(video: str) -> None:
    ledger, seen = CopyLedger(), []
    camera = replay(video, ledger=ledger, loop=True)
    assert (camera.width, camera.height, camera.framerate) == (64, 48, FPS)
    with closing(camera):
        while (frame := camera.capture()) is not None:
            with frame:
                seen.append((index_of(frame), frame.data.sequence, frame.header.stamp_ns))
        assert camera.ended and camera.capture() is None
    assert seen == [(i, i, NOW_NS + round(i * 1e9 / FPS)) for i in range(LENGTH)]
    assert (camera.statistics().captured, camera.statistics().dropped) == (LENGTH, 0)
    assert ledger.entries() == {'decode': LedgerEntry(LENGTH, LENGTH * 64 * 48 * 3 // 2)}


def test_keep_all_waits_for_a_slot_instead_of_dropping(video: str) -> None:
    camera = replay(video, constraints={'slots': 2})
    held = [captured(camera), captured(camera)]
    threading.Timer(0.03, lambda: [frame.release() for frame in held]).start()
    frames = [*held, *(frame for frame, _ in played(camera))]
    assert [frame.data.sequence for frame in frames] == list(range(LENGTH))
    assert camera.statistics().dropped == 0


def test_a_frame_that_has_no_slot_is_left_out_as_if_it_had_been_live(video: str) -> None:
    ledger, live = CopyLedger(), {'keep_all': False, 'framerate': 1000.0}
    with closing(replay(video, ledger=ledger, constraints={'slots': 2}, **live)) as camera:
        with captured(camera), captured(camera):
            assert [camera.capture() for _ in range(3)] == [None] * 3
        with captured(camera) as after:
            assert index_of(after) == after.data.sequence == 5
        assert ledger.count('decode') == 3, 'what nobody gets is not decoded'
        assert camera.statistics().no_slot == 3


@pytest.mark.parametrize(
    ('rate', 'framerate', 'pace'), [(1.0, 0.0, FPS), (0.5, 0.0, FPS / 2), (2.0, 12.5, 12.5)]
)
def test_the_file_s_own_pace_times_the_rate_or_the_pace_that_is_asked_for(
    video: str, rate: float, framerate: float, pace: float
) -> None:
    with closing(replay(video, replay_rate=rate, framerate=framerate, keep_all=False)) as camera:
        assert camera.framerate == pace


@pytest.mark.parametrize(
    ('stored', 'asked', 'given'),
    [
        ((64, 48), (32, 24), (32, 24)),
        ((64, 48), (40, 60), (40, 60)),
        ((65, 49), (0, 0), (64, 48)),  # an odd last row and column are cut off
    ],
)
def test_other_sizes_are_scaled(
    stored: tuple[int, int], asked: tuple[int, int], given: tuple[int, int], tmp_path: Path
) -> None:
    path = write_levels(tmp_path / 'levels.avi', *stored)
    with closing(replay(path, width=asked[0], height=asked[1])) as camera:
        assert (camera.width, camera.height) == given
        for wanted in range(LENGTH):
            with captured(camera) as frame:
                assert (frame.data.width, frame.data.height, index_of(frame)) == (*given, wanted)


def test_what_can_not_be_opened_is_refused_with_advice(video: str, tmp_path: Path) -> None:
    with pytest.raises(LayoutError, match='is not a multiple of 2, which NV12 needs; use '):
        replay(video, width=33)
    wrong = "'replay_topic' is '/i', but '.*levels.avi' is no rosbag2 recording"
    nothing = "/nothing.avi' does not exist; set parameter 'video' to the path of a video file or"
    cases: tuple[tuple[str, dict[str, Any], str], ...] = (
        (video, {'stamps': 'recorded'}, "has no headers: set parameter 'stamps' to 'now'"),
        (video, {'replay_start': 9.0}, "ends before 9 s; lower parameter 'replay_start'"),
        (video, {'replay_topic': '/i'}, wrong),
        (str(tmp_path / 'nothing.avi'), {}, f"video '{tmp_path}{nothing} an"),
        ('', {}, "parameter 'video' is empty"),
    )
    for path, options, words in cases:
        with pytest.raises(ConfigError, match=words):
            replay(path, **options)
    for suffix in ('avi', 'mcap', 'png'):
        pipe = tmp_path / f'pipe.{suffix}'
        os.mkfifo(pipe)  # it is not waited for
        words = f"video '{pipe}' is neither a file nor a folder; set parameter 'video' to"
        with pytest.raises(ConfigError, match=words):
            replay(pipe, width=64, height=48)


def test_stopping_wakes_a_waiting_capture(video: str) -> None:
    with closing(replay(video, keep_all=False, framerate=0.01)) as camera:
        captured(camera).release()
        threading.Timer(0.03, camera.stop).start()
        started = time.monotonic()
        assert camera.capture() is None
        assert time.monotonic() - started < 60.0, 'the next frame would be due after 100 s'


def test_a_recording_that_fails_in_the_middle_ends_there_for_good(tmp_path: Path) -> None:
    """Reopening would start it at its first frame, again and again: see test_supervisor.py."""
    for number, size in enumerate((64, 64, 64, 32, 64)):
        write_picture(tmp_path / f'{number}.png', 10, size, size)
    camera = replay(tmp_path)
    with pytest.raises(RecordingError, match=r'^frame 3: picture .*3\.png'):
        played(camera)
    assert camera.statistics().captured == 3


def test_a_recording_that_can_not_be_read_up_to_its_start_is_no_matter_of_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: ImageSource) -> None:
        raise RecordingError('the disk has gone')

    monkeypatch.setattr(ImageSource, 'advance', fail)
    write_picture(tmp_path / '0.png', 10)
    with pytest.raises(ConfigError, match='frame 0: the disk has gone'):
        replay(tmp_path)


def test_a_signal_ends_the_search_for_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def search(self: ImageSource, offset_ns: int) -> None:
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
        time.sleep(60.0)

    monkeypatch.setattr(ImageSource, 'seek', search)
    write_picture(tmp_path / '0.png', 10)
    began = time.monotonic()
    with pytest.raises(Interrupted), interruptions():
        replay(tmp_path)
    assert time.monotonic() - began < 60.0
