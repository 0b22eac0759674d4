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

"""What parameter video may be, and files that are told by their first bytes to be no recording."""

from __future__ import annotations

import bz2
from collections.abc import Callable
import gzip
import lzma
from pathlib import Path
import shutil
from typing import Any

from camera.replay_kit import image, played, replay, serialized, STORE, write_bag, write_mcap
import numpy as np
import pytest
from rosbags.rosbag2 import CompressionFormat, CompressionMode, StoragePlugin
from rosbags.rosbag2 import Writer as BagWriter

from zc_perception.camera.replay.source import recording_path
from zc_perception.errors import ConfigError, RecordingError

pytestmark = pytest.mark.usefixtures('no_fd_leak')
WIDTH, HEIGHT, START, PERIOD = 64, 48, 1_700_000_000_000_000_000, 40_000_000


def entries(count: int = 3) -> list[tuple[str, int, Any]]:
    grey = np.full((HEIGHT, WIDTH), 90, np.uint8)
    times = [START + i * PERIOD for i in range(count)]
    return [('/i', at, image(at, grey, 'mono8', WIDTH, HEIGHT)) for at in times]


def mcap_bytes(folder: Path) -> bytes:
    return write_mcap(folder / 'whole.mcap', entries()).read_bytes()


def compressed_bag(folder: Path, mode: CompressionMode, storage: StoragePlugin) -> Path:
    path = folder / f'{mode.name}_{storage.name}'
    writer = BagWriter(path, version=9, storage_plugin=storage)
    writer.set_compression(mode, CompressionFormat.ZSTD)
    with writer:
        connection = None
        for topic, time_ns, message in entries():
            if connection is None:
                connection = writer.add_connection(topic, message.__msgtype__, typestore=STORE)
            writer.write(connection, time_ns, serialized(message))
    return path


def zstd_file(folder: Path) -> bytes:
    (found,) = compressed_bag(folder, CompressionMode.FILE, StoragePlugin.MCAP).glob('*.zstd')
    return found.read_bytes()


LFS = b'version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n'
FOREIGN: dict[str, tuple[str, Callable[[Path], bytes], str]] = {
    'ROS 1': (
        'drive.bag',
        lambda folder: b'#ROSBAG V2.0\n',
        "is a bag of ROS 1, .*; run rosbags-convert --src '.*drive.bag' --dst '.*drive' ",
    ),
    'zstd': ('drive.mcap.zstd', zstd_file, "by zstd, .*zstd -dc '.*' > '.*drive.mcap' and play"),
    'gzip': ('drive.mcap.gz', lambda folder: gzip.compress(b'bag'), 'by gzip'),
    'xz': ('drive.db3.xz', lambda folder: lzma.compress(b'bag'), 'by xz'),
    'bzip2': ('drive.bz2', lambda folder: bz2.compress(b'bag'), 'by bzip2'),
    'zip': ('drive.zip', lambda folder: b'PK\x03\x04', "is a zip archive, .*; run unzip '"),
    'tar': (
        'drive.tar',
        lambda folder: bytes(257) + b'ustar',
        "is a tar archive, .*; run tar -xf '",
    ),
    'a wrong name': ('drive.mp4', lambda folder: b'PK\x03\x04', 'is a zip archive'),
    'LFS': ('drive.mp4', lambda folder: LFS, 'is only a pointer of Git LFS.*run git lfs pull'),
    'empty video': ('drive.mp4', lambda folder: b'', r'is empty \(0 bytes\): nothing was'),
    'empty bag': ('drive.mcap', lambda folder: b'', r'is empty \(0 bytes\)'),
    'text in MCAP': ('drive.mcap', lambda folder: b'I am text', r"no \.mcap .*b'I am tex'"),
    'text in SQLite': ('drive.db3', lambda folder: b'I am text', r'is no \.db3 file'),
    'MCAP in SQLite': ('drive.db3', mcap_bytes, "has the content of .mcap .* to 'drive.mcap'"),
    'MCAP in a video': ('drive.mp4', mcap_bytes, "has the content of .mcap .* to 'drive.mcap'"),
    'capitals': ('DRIVE.MCAP', mcap_bytes, "has the content of .mcap .* to 'DRIVE.mcap'"),
    'cut MCAP': (
        'cut.mcap',
        lambda folder: mcap_bytes(folder)[:-20],
        "'cut.mcap' has no end, .*: mcap recover cut.mcap -o whole.mcap keeps",
    ),
}


@pytest.mark.parametrize('case', FOREIGN)
def test_a_file_that_is_no_recording_is_told_by_its_content(case: str, tmp_path: Path) -> None:
    name, make, message = FOREIGN[case]
    content = make(tmp_path)
    for left in tmp_path.iterdir():
        shutil.rmtree(left) if left.is_dir() else left.unlink()
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=f'{name}.* {message}'):
        replay(tmp_path / name)


@pytest.mark.parametrize('storage', list(StoragePlugin))
@pytest.mark.parametrize('mode', [CompressionMode.FILE, CompressionMode.MESSAGE])
def test_a_compressed_bag_is_played_from_its_folder_only(
    mode: CompressionMode, storage: StoragePlugin, tmp_path: Path
) -> None:
    folder = compressed_bag(tmp_path, mode, storage)
    assert len(played(replay(folder))) == 3
    (file,) = [path for path in folder.iterdir() if path.suffix != '.yaml']
    advice = {CompressionMode.FILE: f"play its folder '{folder}'"}
    with pytest.raises(ConfigError, match=advice.get(mode, 'play the whole folder, whose meta')):
        replay(file)


def test_a_folder_without_a_recording_says_what_it_has(tmp_path: Path) -> None:
    (tmp_path / 'drive.bag').write_bytes(b'#ROSBAG V2.0\n')
    with pytest.raises(ConfigError, match=r'no picture and no recording, it has drive\.bag; '):
        replay(tmp_path)


def test_depth_does_not_make_the_pictures_topic_ambiguous(tmp_path: Path) -> None:
    depth = image(START, np.zeros((HEIGHT, 2 * WIDTH), np.uint8), '16UC1', WIDTH, HEIGHT)
    path = write_bag(tmp_path / 'bag', [('/depth', START, depth), *entries()])
    assert len(played(replay(path))) == 3
    with pytest.raises((ConfigError, RecordingError), match='it has depths and no colours'):
        replay(path, replay_topic='/depth')


def test_a_recording_is_named_as_a_shell_or_a_browser_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / 'my drive'
    folder.mkdir()
    path = write_mcap(folder / 'a.mcap', entries())
    monkeypatch.setenv('HOME', str(folder))
    monkeypatch.chdir(folder)
    for video in ('~/a.mcap', '$HOME/a.mcap', path.as_uri(), 'a.mcap', './a.mcap'):
        camera = replay(video)
        assert camera.device in (str(path), 'a.mcap', './a.mcap')
        assert len(played(camera)) == 3


@pytest.mark.parametrize(
    'video', ['rtsp://me:secret@10.0.0.1/s', 'http://a/b.mp4', 'https://a/b.mp4', 'udp://:5000']
)
def test_a_stream_is_gstreamers_business(video: str) -> None:
    with pytest.raises(ConfigError, match="set 'camera' to gstreamer and 'pipeline' to") as caught:
        recording_path(video)
    assert video.partition('://')[0] in str(caught.value) and 'secret' not in str(caught.value)
