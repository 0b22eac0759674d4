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

"""The unixfd socket, with GStreamer 1.26's ``unixfdsrc`` and with hostile peers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
import os
from pathlib import Path
import socket
import struct
import subprocess
import sys
from typing import Any

from link.unixfd.unixfd_kit import Feed, gst, NV12, RawReader, SIZE
from long_form import LONG
import numpy as np
import pytest
from waiting import until

from zc_perception.errors import ConfigError
from zc_perception.frame import Frame
from zc_perception.link.shared_memory.unix_socket import Peer
from zc_perception.link.unixfd import COPIED
from zc_perception.pixel.fourcc import fourcc_code
from zc_perception.pixel.layout import compute_layout

pytestmark = pytest.mark.usefixtures('no_fd_leak')
MakeFeed = Callable[..., Feed]
FRAMES = 300 if LONG else 40
CAMERA_KILLS = 50 if LONG else 1


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path


@pytest.fixture
def make_feed(folder: Path) -> Iterator[MakeFeed]:
    feeds: list[Feed] = []

    def make(*arguments: Any, **options: Any) -> Feed:
        feeds.append(Feed(folder / 'front.sock', *arguments, **options))
        return feeds[-1]

    yield make
    for feed in feeds:
        for reader in feed.raw:
            reader.close()
        until(feed.all_free, feed.pool.describe_holders)
        feed.close()


# Formats that GStreamer converts without changing samples, and their order afterwards.
FORMATS = {
    'NV12': ('I420', lambda y, uv: [y, uv[:, ::2], uv[:, 1::2]]),
    'YUYV': ('UYVY', lambda yuyv: [yuyv.reshape(SIZE[1], -1, 2)[:, :, ::-1]]),
    'BG24': ('BGR', lambda rgb: [rgb.reshape(SIZE[1], -1, 3)[:, :, ::-1]]),
}


@pytest.mark.parametrize('name', FORMATS)
def test_each_frame_is_the_camera_s_with_padded_rows_too(
    make_feed: MakeFeed, folder: Path, name: str
) -> None:
    wanted, order = FORMATS[name]
    align = 3 * 256 if name == 'BG24' else 256
    feed = make_feed(compute_layout(fourcc_code(name), *SIZE, stride_align=align))
    target = folder / 'pixels'
    source = f'unixfdsrc socket-path={feed.server.path} num-buffers={FRAMES} ! videoconvert !'
    sink = f'video/x-raw,format={wanted} ! filesink location={target}'
    reader = gst(*source.split(), *sink.split())
    until(feed.readers, lambda: reader.poll())
    watched = feed.server._readers[0]  # it may leave the list with the last frame
    for number in range(1, FRAMES + 1):
        assert feed.publish()
        until(lambda number=number: watched.sent >= number, lambda: feed.said)
    assert reader.wait(60) == 0, reader.communicate()
    pictures = [order(*feed.picture(number)) for number in range(1, FRAMES + 1)]
    expected = [np.concatenate([part.ravel() for part in one]) for one in pictures]
    assert np.array_equal(np.fromfile(target, np.uint8).reshape(FRAMES, -1), expected)
    # Frames are copied until the reader has learned from one where padded planes lie.
    copied = feed.ledger.count(COPIED)
    assert 1 <= copied <= 4, copied


def test_the_reader_has_the_camera_s_own_memory(make_feed: MakeFeed) -> None:
    feed = make_feed()
    # The sink shows frames at their time, so the reader holds the newest frames.
    sink = 'queue ! fakesink sync=true ts-offset=1000000000000'
    reader = gst('unixfdsrc', f'socket-path={feed.server.path}', '!', *sink.split())
    until(feed.readers)
    until(lambda: feed.publish() and feed.server.statistics().readers[0].held == 4)
    own = {(b.identity.device, b.identity.inode) for slot in feed.pool.slots for b in slot.buffers}

    def theirs() -> set[tuple[int, int]]:
        found = set()
        for entry in Path(f'/proc/{reader.pid}/fd').iterdir():
            with contextlib.suppress(OSError):
                if 'memfd' in os.readlink(entry):
                    status = entry.stat()
                    found.add((status.st_dev, status.st_ino))
        return found

    until(lambda: len(theirs() & own) == 4, theirs)
    assert theirs() <= own, "the reader has memory that is not the camera's"
    assert feed.ledger.entries() == {}
    reader.kill()
    reader.communicate()
    until(feed.all_free, feed.pool.describe_holders)
    assert feed.server.statistics().taken_back == 4
    until(lambda: feed.server.statistics().ended == {'eof': 1})


def test_the_socket_of_a_killed_camera_is_taken_over(folder: Path) -> None:
    path = folder / 'front.sock'
    program = [sys.executable, str(Path(__file__).with_name('unixfd_kit.py')), str(path)]
    paths = os.pathsep.join(sys.path)
    for _ in range(CAMERA_KILLS + 1):
        camera = subprocess.Popen(
            program, stdout=subprocess.PIPE, text=True, env={**os.environ, 'PYTHONPATH': paths}
        )
        assert camera.stdout is not None and camera.stdout.readline() == 'ready\n'
        assert path.stat().st_mode & 0o777 == 0o600
        reader = RawReader(path)
        reader.buffer()
        camera.kill()
        camera.communicate()
        while reader.command()[0] >= 0:  # messages that were under way, then EOF
            pass
        reader.close()
    assert path.exists(), 'nobody has removed it'


@pytest.mark.parametrize(
    ('mode', 'name', 'words'),
    [
        (0o770, 'front.sock', 'written by other users'),
        (0o700, 'x' * 120, 'too long'),
        (0o700, 'none/front.sock', 'cannot be used'),
        (0o700, 'file', 'no socket'),
        (0o700, 'front.sock', 'another process listens'),
    ],
)
def test_a_place_where_others_are_or_could_be_is_refused(
    make_feed: MakeFeed, folder: Path, mode: int, name: str, words: str
) -> None:
    feed = make_feed()
    (folder / 'file').touch()
    folder.chmod(mode)
    with pytest.raises(ConfigError, match=words):
        Feed(folder / name)
    RawReader(feed.server.path).close()  # who listens already keeps the socket


def test_another_format_ends_the_stream(make_feed: MakeFeed) -> None:
    feed = make_feed()
    reader = feed.reader()
    feed.publish()
    kept = reader.buffer()
    feed.use(compute_layout(fourcc_code('YUYV'), *SIZE))
    feed.publish()
    assert reader.command()[0] == 3, 'EOS'
    feed.publish()
    reader.give_back(kept)
    later = feed.reader()
    feed.publish()
    number, payload = later.command()
    assert number == 2 and b'YUY2' in payload and payload.endswith(b'\0')
    later.buffer()


def test_a_reader_that_does_not_read_or_give_back_keeps_its_window(make_feed: MakeFeed) -> None:
    feed = make_feed(window=3)
    hoarder, good = feed.reader(), feed.reader()
    for _ in range(30):
        assert feed.publish()
        good.give_back(good.buffer())
    assert feed.server.statistics().readers[0].held == 3
    hoarder.close()
    until(lambda: feed.readers() == 1)
    assert feed.server.statistics().taken_back >= 3


LIES = {
    'unknown id': struct.pack('=IIQ', 1, 8, 1 << 60),
    'command': struct.pack('=II', 0, 8),
    'size': struct.pack('=II', 1, 1 << 31),
    'noise': bytes(range(256)) * 64,
}


@pytest.mark.parametrize('lie', LIES)
def test_a_reader_that_lies_is_disconnected(make_feed: MakeFeed, lie: str) -> None:
    feed = make_feed()
    liar, good = feed.reader(), feed.reader()
    feed.publish()
    liar.buffer()
    good.give_back(good.buffer())
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        liar.send(LIES[lie])
    until(lambda: feed.readers() == 1, feed.said)
    assert feed.server.statistics().last.startswith('reader pid')
    feed.publish()
    good.give_back(good.buffer())


def test_half_a_command_waits_for_the_other_half(make_feed: MakeFeed) -> None:
    feed = make_feed()
    reader = feed.reader()
    feed.publish()
    whole = struct.pack('=IIQ', 1, 8, reader.buffer())
    for byte in whole:
        reader.send(bytes([byte]))
    until(lambda: not feed.server.statistics().readers[0].held)
    # Half a message, with a descriptor that isn't expected, then EOF.
    socket.send_fds(reader.socket, [whole[:7]], [0])
    reader.close()
    until(lambda: feed.server.statistics().ended == {'eof': 1})


def test_other_users_are_turned_away(make_feed: MakeFeed, monkeypatch: pytest.MonkeyPatch) -> None:
    feed = make_feed()
    stranger = Peer(1, os.geteuid() + 1, 1)
    monkeypatch.setattr('zc_perception.link.unixfd.peer_of', lambda _: stranger)
    reader = RawReader(feed.server.path)
    assert reader.command()[0] == -1
    assert feed.server.statistics().ended == {'not_allowed': 1}
    reader.close()


def test_a_reader_that_ends_while_a_frame_is_published_disturbs_nobody(
    make_feed: MakeFeed,
) -> None:
    feed = make_feed()
    leaving, good = feed.reader(), feed.reader()
    feed.publish()
    leaving.buffer()
    good.give_back(good.buffer())

    def deliver(frame: Frame, holder: str) -> Frame | None:
        delivery = frame.deliver(holder)
        assert delivery is not None
        if leaving.socket.fileno() >= 0:
            leaving.close()
            until(lambda: delivery._lease.ended, 'the end of all leases of this reader')
        return delivery

    feed.publisher.deliver = deliver
    assert feed.publish()
    good.give_back(good.buffer())


@pytest.mark.parametrize('before_the_pool', [False, True])
def test_a_reader_without_a_slot_hears_the_end_and_the_log_says_why(
    make_feed: MakeFeed, before_the_pool: bool
) -> None:
    feed = make_feed(slots=12 if before_the_pool else 6, window=4)
    first = feed.reader()
    second = feed.reader() if before_the_pool else RawReader(feed.server.path)
    if before_the_pool:
        feed.use(NV12, slots=6)
    assert second.command()[0] == -1
    second.close()
    until(lambda: any("raise parameter 'slots'" in text for text in feed.said), feed.said)
    assert feed.server.statistics().ended == {'slots': 1}
    feed.publish()
    first.give_back(first.buffer())
