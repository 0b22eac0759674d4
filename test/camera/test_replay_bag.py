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
Recordings of rosbag2 that other libraries wrote.

What comes out, when, under which header, and what is refused or left out.
"""

from __future__ import annotations

from pathlib import Path
import shutil
import sys
from typing import Any

from camera.replay_kit import (
    compressed,
    image,
    NOW_NS,
    nv12_rows,
    played,
    random_planes,
    replay,
    serialized,
    write_bag,
    write_mcap,
)
import cv2
import numpy as np
import pytest

from zc_perception.errors import ConfigError, RecordingError
from zc_perception.memory.ledger import CopyLedger

pytestmark = pytest.mark.usefixtures('no_fd_leak')
WIDTH, HEIGHT, FRAMES = 64, 48, 5
START, PERIOD = 1_700_000_000_000_000_000, 40_000_000
LATENCY = 3_000_000
PLANES = [random_planes(WIDTH, HEIGHT, seed) for seed in range(FRAMES)]


def stamp(index: int) -> int:
    return START + index * PERIOD


def nv12_entries(topic: str = '/camera/image_raw', padding: int = 0) -> list[tuple[str, int, Any]]:
    return [
        (topic, stamp(i) + LATENCY, image(stamp(i), nv12_rows(*planes), 'nv12', WIDTH, HEIGHT,
                                          padding=padding))
        for i, planes in enumerate(PLANES)
    ]  # fmt: skip


def make(kind: str, folder: Path, entries: list[tuple[str, int, Any]]) -> Path:
    """Return a recording of *kind*, by the library that it is named for."""
    if kind == 'mcap library, one file':
        return write_mcap(folder / 'one.mcap', entries)
    storage = 'mcap' if 'mcap' in kind else 'sqlite3'
    bag = write_bag(folder / 'bag', entries, storage)
    if 'folder' in kind:
        return bag
    (file,) = [path for path in bag.iterdir() if path.name != 'metadata.yaml']
    if 'no metadata' in kind:
        (bag / 'metadata.yaml').unlink()
        return bag
    return file


KINDS = (
    'sqlite3 folder',
    'mcap folder',
    'sqlite3 file',
    'mcap file',
    'mcap, no metadata',
    'mcap library, one file',
)


@pytest.mark.parametrize('padding', (0, 13))
@pytest.mark.parametrize('kind', KINDS)
def test_nv12_comes_out_bit_by_bit_at_its_own_times(
    kind: str, padding: int, tmp_path: Path
) -> None:
    path, ledger = make(kind, tmp_path, nv12_entries(padding=padding)), CopyLedger()
    camera = replay(path, ledger=ledger, constraints={'stride_align': 96})
    assert (camera.width, camera.height, camera.framerate, camera.device) == (
        WIDTH,
        HEIGHT,
        25.0,
        str(path),
    )
    found = played(camera)
    assert [frame.header.stamp_ns for frame, _ in found] == [
        NOW_NS + i * PERIOD for i in range(FRAMES)
    ]
    assert {frame.header.frame_id for frame, _ in found} == {'lens'}
    for (frame, planes), expected in zip(found, PLANES, strict=True):
        assert frame.data.planes[0].stride == 96
        assert all(np.array_equal(a, b) for a, b in zip(planes, expected, strict=True))
    assert ledger.entries()['decode'].count == FRAMES and set(ledger.entries()) == {'decode'}


def test_recorded_headers_are_kept_whole(tmp_path: Path) -> None:
    path = write_bag(tmp_path / 'bag', nv12_entries())
    headers = [frame.header for frame, _ in played(replay(path, stamps='recorded'))]
    assert [(h.stamp_ns, h.frame_id) for h in headers] == [
        (stamp(i), 'recorded_lens') for i in range(FRAMES)
    ]


@pytest.mark.parametrize('recorded', [True, False])
def test_recorded_stamps_go_on_when_the_recording_begins_again(
    recorded: bool, tmp_path: Path
) -> None:
    """Also those of 0, which become times of recording."""
    entries = [
        ('/i', stamp(i), image(recorded * stamp(i), nv12_rows(*planes), 'nv12', WIDTH, HEIGHT))
        for i, planes in enumerate(PLANES)
    ]
    path, stamps = write_bag(tmp_path / 'bag', entries), []
    camera = replay(path, stamps='recorded', keep_all=False, loop=True, replay_rate=1000.0)
    while len(stamps) < 3 * FRAMES:
        frame = camera.capture()
        if frame is not None:
            stamps.append(frame.header.stamp_ns)
            frame.release()
    camera.close()
    assert stamps == [stamp(i) for i in range(3 * FRAMES)]


@pytest.mark.parametrize(
    ('encoding', 'pixel', 'ycbcr'),
    [('rgb8', (200, 90, 30), (116, 85, 181)), ('bgra8', (30, 90, 200, 9), (116, 85, 181)),
     ('mono8', (110,), (110, 128, 128))],
)  # fmt: skip
def test_an_encoding_shows_its_colour(
    encoding: str, pixel: tuple[int, ...], ycbcr: tuple[int, ...], tmp_path: Path
) -> None:
    """As BT.601 limited; test/link has all encodings. A byte has no order, whatever it says."""
    rows = np.tile(np.array(pixel, np.uint8), (HEIGHT, WIDTH))
    message = image(START, rows, encoding, WIDTH, HEIGHT, padding=4, big=encoding == 'mono8')
    ((_, planes),) = played(replay(write_bag(tmp_path / 'bag', [('/i', START, message)])))
    assert np.abs(planes[0].astype(int) - ycbcr[0]).max() <= 2
    assert np.abs(planes[1].astype(int) - ycbcr[1:]).max() <= 2


def picture(index: int = 0) -> np.ndarray[Any, Any]:
    level = np.full((HEIGHT, WIDTH, 3), 40 + 30 * index, np.uint8)
    level[: HEIGHT // 2] = (200, 60, 20)
    return level


@pytest.mark.parametrize(
    ('suffix', 'text'),
    [
        ('.jpg', 'bgr8; jpeg compressed bgr8'),
        ('.png', 'rgb8; png compressed bgr8'),
        ('.jpg', 'jpeg'),
    ],
)
def test_compressed_pictures_are_decoded(suffix: str, text: str, tmp_path: Path) -> None:
    content = cv2.imencode(suffix, picture(), [cv2.IMWRITE_JPEG_QUALITY, 98])[1]
    path = write_bag(
        tmp_path / 'bag', [('/i/compressed', START, compressed(START, content, text))], 'mcap'
    )
    ((_, planes),) = played(replay(path))
    bgr = cv2.cvtColorTwoPlane(planes[0], planes[1], cv2.COLOR_YUV2BGR_NV12)
    assert np.abs(bgr[2:20].astype(int) - (200, 60, 20)).max() < 8


@pytest.mark.parametrize('kind', ['sqlite3', 'mcap'])
def test_the_topic_is_chosen_and_what_there_is_is_listed(kind: str, tmp_path: Path) -> None:
    entries = nv12_entries('/left/image_raw') + nv12_entries('/right/image_raw')[:2]
    info = compressed(START, np.zeros(4, np.uint8), 'jpeg')
    path = write_bag(
        tmp_path / 'bag', sorted([*entries, ('/thumbnail', START, info)], key=lambda e: e[1]), kind
    )
    assert len(played(replay(path, replay_topic='/right/image_raw'))) == 2
    listed = (
        r'/left/image_raw \(sensor_msgs/msg/Image, 5 messages\), /right/image_raw '
        r'\(sensor_msgs/msg/Image, 2 messages\), '
        r'/thumbnail \(sensor_msgs/msg/CompressedImage, 1 messages\)'
    )
    with pytest.raises(
        ConfigError,
        match=rf"several topics with pictures; it has {listed}; set parameter 'replay_topic'",
    ):
        replay(path)
    with pytest.raises(
        ConfigError,
        match=rf"no topic '/left/image_row'; did you mean '/left/image_raw'\?; it has {listed}",
    ):
        replay(path, replay_topic='/left/image_row')


def test_a_topic_without_pictures_is_refused(tmp_path: Path) -> None:
    path = tmp_path / 'bag'
    text = b'\x00\x01\x00\x00\x02\x00\x00\x00a\x00'
    write_bag(path, [('/chatter', START, text)], msgtype='std_msgs/msg/String')
    with pytest.raises(
        ConfigError,
        match=r'has no topic with pictures .*; it has /chatter \(std_msgs/msg/String, 1 '
        r'messages\)$',
    ):
        replay(path)
    with pytest.raises(ConfigError, match="topic '/chatter' has no pictures"):
        replay(path, replay_topic='/chatter')


LEVELS = np.linspace(0, 65535, WIDTH * HEIGHT).astype(np.uint16).reshape(HEIGHT, WIDTH)
DEEP = cv2.imencode('.png', LEVELS)[1]


def test_compressed_mono16_is_played_as_the_raw_one(tmp_path: Path) -> None:
    raw = image(START, LEVELS.view(np.uint8), 'mono16', WIDTH, HEIGHT)
    found = [
        played(replay(write_bag(tmp_path / name, [('/i', START, message)])))[0][1]
        for name, message in (
            ('raw', raw),
            ('png', compressed(START, DEEP, 'mono16; png compressed ')),
        )
    ]
    assert all(np.array_equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize('encoding', ['bayer_rggb8', 'bayer_gbrg8', 'bayer_grbg16'])
def test_compressed_bayer_is_debayered_as_the_raw_one(encoding: str, tmp_path: Path) -> None:
    """
    image_transport compresses its samples as if they were grey.

    It names them in the format.
    """
    dtype, each = (np.uint16, 2) if encoding.endswith('16') else (np.uint8, 1)
    random = np.random.default_rng(1)
    samples = random.integers(0, np.iinfo(dtype).max, (HEIGHT, WIDTH), dtype)
    raw = image(
        START, samples.view(np.uint8).reshape(HEIGHT, each * WIDTH), encoding, WIDTH, HEIGHT
    )
    png = compressed(START, cv2.imencode('.png', samples)[1], f'{encoding}; png compressed ')
    found = [
        played(replay(write_bag(tmp_path / name, [('/i', START, message)])))[0][1]
        for name, message in (('raw', raw), ('png', png))
    ]
    assert all(np.array_equal(a, b) for a, b in zip(*found, strict=True))
    assert found[0][1].std() > 5, 'it has colours'


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
            "format 'jpeg' can't be decoded; JPEG and PNG can",
        ),
        (compressed(START, np.zeros(0, np.uint8), 'jpeg'), "format 'jpeg' can't be decoded"),
        (
            compressed(START, np.zeros(9, np.uint8), '16UC1; compressedDepth png'),
            'is a depth image',
        ),
        (
            compressed(START, DEEP, '16UC1; png compressed '),
            "format '16UC1; png compressed .*depth",
        ),
        (compressed(START, DEEP, '32FC1; tiff compressed '), "format '32FC1; tiff .* is a depth"),
        (compressed(START, DEEP, '16UC1; compressedDepth rvl'), 'is a depth image'),
        (
            compressed(START, DEEP, 'png'),
            "format 'png' has grey levels of 16 bits, as depth has; .* begins with 'mono16'",
        ),
        (compressed(START, DEEP, 'mono8; png compressed '), 'has grey levels of 16 bits'),
    ],
)
def test_pictures_that_can_not_be_played_are_named(
    message: Any, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=f"can't be played: .*{reason}"):
        replay(write_bag(tmp_path / 'bag', [('/i', START, message)]))


def test_damaged_pictures_between_good_ones_are_left_out_and_counted(tmp_path: Path) -> None:
    entries = nv12_entries()
    whole = serialized(entries[1][2])
    entries[1] = ('/camera/image_raw', entries[1][1], whole[: len(whole) // 2])
    entries[3] = ('/camera/image_raw', entries[3][1], b'\xff\xff')
    camera = replay(write_bag(tmp_path / 'bag', entries))
    found = played(camera)
    assert [frame.data.sequence for frame, _ in found] == [0, 2, 4], 'gaps in the sequence'
    statistics = camera.statistics()
    assert (statistics.captured, statistics.bad, statistics.dropped) == (3, 2, 2)
    assert np.array_equal(found[1][1][0], PLANES[2][0])


def test_a_change_of_size_ends_it_with_both_sizes(tmp_path: Path) -> None:
    other = random_planes(32, 32)
    entries = [
        *nv12_entries(),
        ('/camera/image_raw', stamp(9), image(stamp(9), nv12_rows(*other), 'nv12', 32, 32)),
    ]
    camera = replay(write_bag(tmp_path / 'bag', entries))
    with pytest.raises(
        RecordingError,
        match=r'frame \d+: recording .* changes from 64x48 to 32x32; play its parts one by '
        r"one: parameter 'replay_start'",
    ):
        played(camera)
    assert camera.statistics().captured == FRAMES


@pytest.mark.parametrize(('start_s', 'first'), [(0.08, 2), (0.081, 3), (0.0, 0)])
def test_it_begins_where_it_is_told_to(start_s: float, first: int, tmp_path: Path) -> None:
    found = played(
        replay(
            write_bag(tmp_path / 'bag', nv12_entries()), stamps='recorded', replay_start=start_s
        )
    )
    assert [frame.header.stamp_ns for frame, _ in found] == [
        stamp(i) for i in range(first, FRAMES)
    ]


def test_a_start_behind_the_end_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="ends before 9 s; lower parameter 'replay_start'"):
        replay(write_bag(tmp_path / 'bag', nv12_entries()), replay_start=9.0)


def test_a_clock_that_was_set_while_recording_does_not_hold_the_replay_up(tmp_path: Path) -> None:
    hour = 3600 * 1_000_000_000
    entries = [
        ('/i', stamp(i), image(stamp(i) + (hour if i >= 2 else 0), nv12_rows(*planes), 'nv12',
                               WIDTH, HEIGHT))
        for i, planes in enumerate(PLANES)
    ]  # fmt: skip
    found = played(replay(write_bag(tmp_path / 'bag', entries)))
    assert [frame.header.stamp_ns - NOW_NS for frame, _ in found] == [
        i * PERIOD for i in range(FRAMES)
    ]


def test_stamps_that_repeat_are_told_apart(tmp_path: Path) -> None:
    entries = [
        ('/i', START + i, image(START, nv12_rows(*planes), 'nv12', WIDTH, HEIGHT))
        for i, planes in enumerate(PLANES)
    ]
    found = played(replay(write_bag(tmp_path / 'bag', entries)))
    assert [frame.header.stamp_ns - NOW_NS for frame, _ in found] == list(range(FRAMES))


SINCE_BOOT = 77_000_000_000
TROUBLE = 'has stamps that are 0 or repeat: these frames are stamped by the times of recording'
BACK = 'has stamps that go back: they stay as they are'


@pytest.mark.parametrize(
    ('recorded', 'given', 'notices'),
    [
        pytest.param([0] * FRAMES, [stamp(i) for i in range(FRAMES)], [TROUBLE], id='all 0'),
        pytest.param(
            [SINCE_BOOT] * FRAMES,
            [SINCE_BOOT + i * PERIOD for i in range(FRAMES)],
            [TROUBLE],
            id='all the same',
        ),
        pytest.param(
            [SINCE_BOOT, SINCE_BOOT + PERIOD, 0, SINCE_BOOT + 3 * PERIOD, 0],
            [SINCE_BOOT + i * PERIOD for i in range(FRAMES)],
            [TROUBLE],
            id='some 0',
        ),
        pytest.param(
            [stamp(3), stamp(4), stamp(0), stamp(1), stamp(2)],
            [stamp(3), stamp(4), stamp(0), stamp(1), stamp(2)],
            [BACK],
            id='back',
        ),
        pytest.param(
            [0, SINCE_BOOT, SINCE_BOOT, SINCE_BOOT + 2 * PERIOD, SINCE_BOOT + 3 * PERIOD],
            [stamp(0), *(SINCE_BOOT + i * PERIOD for i in range(4))],
            [TROUBLE, BACK],
            id='0 at first',
        ),
        pytest.param([stamp(i) for i in range(FRAMES)], None, [], id='good'),
    ],
)
def test_recorded_stamps_that_say_nothing_become_times_of_recording(
    recorded: list[int], given: list[int] | None, notices: list[str], tmp_path: Path
) -> None:
    entries = [
        ('/i', stamp(i), image(recorded[i], nv12_rows(*planes), 'nv12', WIDTH, HEIGHT))
        for i, planes in enumerate(PLANES)
    ]
    path = write_bag(tmp_path / 'bag', entries)
    camera = replay(path, stamps='recorded')
    assert [all(words in notice for words in notices) for notice in camera.notices()] == (
        [True] if notices else []
    )
    assert camera.facts()['stamp_trouble'] == ''.join(camera.notices())
    assert [frame.header.stamp_ns for frame, _ in played(camera)] == (given or recorded)
    # The replay's own stamps have the distances of the recording; nothing is wrong with them.
    camera = replay(path)
    assert not camera.notices() and not camera.facts()
    stamps = [frame.header.stamp_ns - NOW_NS for frame, _ in played(camera)]
    if BACK not in notices:
        assert stamps == [i * PERIOD for i in range(FRAMES)]


def test_a_folder_that_lost_its_storage_is_named(tmp_path: Path) -> None:
    path = write_bag(tmp_path / 'bag', nv12_entries())
    for file in path.iterdir():
        if file.suffix == '.db3':
            file.unlink()
    with pytest.raises(ConfigError, match=r"can't be opened: .*missing"):
        replay(path)
    shutil.rmtree(path)


def test_without_the_library_it_is_named_with_the_version_to_avoid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_bag(tmp_path / 'bag', nv12_entries())
    monkeypatch.setitem(sys.modules, 'rosbags.rosbag2', None)
    with pytest.raises(
        ConfigError,
        match=r"library rosbags, .* not installed: pip install rosbags 'apsw!=3\.54\.0\.0'",
    ):
        replay(path)


def test_a_topic_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / 'x.avi').write_bytes(bytes(96))
    with pytest.raises(
        ConfigError,
        match=r"parameter 'replay_topic' is '/i', but '.*x\.avi' is no rosbag2 recording",
    ):
        replay(tmp_path / 'x.avi', replay_topic='/i')
