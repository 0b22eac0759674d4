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
Cases of a feed and its pipelines, with frames in memfds.

``test_feed.py`` runs them in a process that has GStreamer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
import ctypes
import os
from pathlib import Path
import threading
import time
from typing import Any

import av
from descriptors import open_descriptors
from frame_kit import next_frame, nv12, pool_of
import numpy as np
import pytest
from waiting import until

from zc_perception.camera.gstreamer.abi import Buffer, load_gstreamer, PadProbeInfo, ProbeCallback
from zc_perception.errors import ConfigError
from zc_perception.frame import Frame, Header
from zc_perception.frame_queue import KeepLastQueue
from zc_perception.link import gstreamer as feed_module
from zc_perception.link.gstreamer import AccessUnit, FrameFeed, nal_types, PipelineError
from zc_perception.memory.ledger import CopyLedger

SIZE = WIDTH, HEIGHT = 70, 48
# Rows of 70 bytes with a stride of 96: GStreamer can't derive this, so the feed must pass it on.
PADDED = nv12(*SIZE, stride_align=32, offset_align=4096)
SLOTS = 8
BUFFER_PROBE = 1 << 4
DROP, OK = 0, 1


class Bench:
    def __init__(self) -> None:
        self.pool = pool_of(PADDED, SLOTS)
        for slot in self.pool.slots:
            for buffer in slot.buffers:
                buffer.mapping()  # which takes a descriptor
        self.queue: KeepLastQueue[Frame] = KeepLastQueue(None, Frame.release)
        self.ledger = CopyLedger()
        self.said: list[str] = []
        self.sequence = 0

    def put(self, captured_ns: int | None = None) -> bool:
        """Queue one more frame with pixels of its own; return whether a slot was free."""
        slot = self.pool.acquire()
        if slot is None:
            return False
        self.sequence += 1
        for buffer in slot.buffers:
            buffer.mapping()[:] = bytes([self.sequence % 200 + 20]) * buffer.size
        header, captured_ns = Header(self.sequence, 'camera'), captured_ns or time.monotonic_ns()
        self.queue.put(
            next_frame(self.pool, self.sequence, slot, header=header, captured_ns=captured_ns)
        )
        return True

    def put_when_free(self) -> None:
        until(self.put, lambda: self.said)

    def inodes(self) -> set[int]:
        return {buffer.identity.inode for slot in self.pool.slots for buffer in slot.buffers}

    def all_back(self) -> bool:
        self.pool.collect()
        return not any(slot.leases or slot.fences for slot in self.pool.slots)

    @contextmanager
    def feed(self, pipeline: str, *, start: bool = True, **options: Any) -> Iterator[FrameFeed]:
        options |= {'name': 'bench', 'ledger': self.ledger, 'warn': self.said.append}
        made = FrameFeed(pipeline, **options)
        try:
            if start:
                made.start(self.queue)
            yield made
        finally:
            made.close()


def memfds() -> int:
    return sum(n for kind, n in open_descriptors().items() if kind.startswith('/memfd:'))


@pytest.fixture
def bench() -> Iterator[Bench]:
    """Yield a bench; check at the end that each frame is back and no descriptor is left."""
    made = Bench()
    before = memfds()
    yield made
    made.queue.close()
    until(made.all_back, lambda: [slot.leases for slot in made.pool.slots])
    # If an element delayed a stop, the stop ends in the background once the frames are back.
    until(
        lambda: not [t for t in threading.enumerate() if t.name.startswith('gstreamer ')],
        lambda: [t.name for t in threading.enumerate()],
    )
    until(lambda: memfds() <= before, memfds)
    made.queue.end()
    made.pool.close()


def spy(feed: FrameFeed, name: str, look: Callable[[int], int]) -> Any:
    """Call *look* with each buffer that leaves the element *name* of the running pipeline."""
    gst = load_gstreamer()
    pipeline = until(lambda: feed._pipeline)

    @ProbeCallback
    def probe(_pad: int, info: ctypes._Pointer[Any], _data: int) -> int:
        assert isinstance(info[0], PadProbeInfo)
        return look(info[0].data)

    element = pipeline.element(name)
    pad = gst.gst_element_get_static_pad(element, b'src')
    gst.gst_pad_add_probe(pad, BUFFER_PROBE, probe, None, None)
    gst.gst_object_unref(pad)
    return probe


def test_an_element_gets_the_frames_own_memory_and_nothing_is_booked(bench: Bench) -> None:
    seen: list[tuple[int, int, int]] = []
    allocators = ctypes.CDLL('libgstallocators-1.0.so.0')
    allocators.gst_fd_memory_get_fd.argtypes = [ctypes.c_void_p]

    def look(buffer: int) -> int:
        memory = load_gstreamer().gst_buffer_peek_memory(buffer, 0)
        inode = os.fstat(allocators.gst_fd_memory_get_fd(memory)).st_ino
        record = Buffer.from_address(buffer)
        seen.append((inode, record.offset, record.pts))
        return OK

    with bench.feed('identity name=spy ! fakesink') as feed:
        bench.put()  # the feed learns the rate from the next frame
        bench.put_when_free()
        probe = spy(feed, 'spy', look)
        for _ in range(3 * SLOTS):
            bench.put_when_free()
        until(lambda: len(seen) >= 3 * SLOTS, lambda: feed.statistics())
        # fakesink keeps its last buffer.
        until(lambda: feed.statistics().held <= 1, lambda: feed.statistics())
        assert not feed.statistics().mapped
    del probe
    assert {inode for inode, _, _ in seen} <= bench.inodes()
    numbers = [number for _, number, _ in seen]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    stamps = [pts for _, _, pts in seen]
    assert stamps == sorted(set(stamps)) and all(pts % 1000 == 0 for pts in stamps)
    assert not bench.ledger.entries() and not bench.said


def test_padded_rows_are_read_where_they_are_and_that_is_booked(
    bench: Bench, tmp_path: Path
) -> None:
    file = tmp_path / 'pictures'
    sink = f'filesink location={file} buffer-mode=unbuffered'
    # GStreamer pads rows of 70 luma and 35 chroma bytes to multiples of four.
    size = 72 * 48 + 2 * 36 * 24
    with bench.feed(f'videoconvert ! video/x-raw,format=I420 ! {sink}') as feed:
        for _ in range(41):
            bench.put_when_free()
        until(lambda: feed.statistics().frames == 40, lambda: (feed.statistics(), bench.said))
        # Closing waits for the last pictures, but only for a second.
        until(lambda: file.stat().st_size == 40 * size, lambda: file.stat().st_size)
    picture = np.fromfile(file, np.uint8).reshape(40, size)
    for number, pixels in enumerate(picture):
        luma, chroma = np.split(pixels, [72 * 48])
        rows = luma.reshape(48, 72)[:, :70], chroma.reshape(48, 36)[:, :35]
        assert {int(v) for part in rows for v in np.unique(part)} == {(number + 2) % 200 + 20}
    assert bench.ledger.count('gstreamer') == 40
    assert feed.statistics().mapped


def test_a_hundred_stops_bring_every_lease_back(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A feed can't start again before its thread has ended.
    monkeypatch.setattr(feed_module, '_JOIN_S', 60.0)
    pipeline = 'queue ! videoconvert ! video/x-raw,format=I420 ! queue ! fakesink'
    with bench.feed(pipeline, start=False) as feed:
        for turn in range(100):
            before = feed.statistics().frames
            for _ in range(4):
                bench.put_when_free()
            feed.start(bench.queue)
            # Stop while no frame, one or several are in the pipeline.
            wanted = before + turn % 4
            until(lambda: feed.statistics().frames >= wanted, lambda: bench.said)  # noqa: B023
            feed.stop()
            while (frame := bench.queue.get()) is not None:
                frame.release()
            until(bench.all_back, lambda: feed.statistics())
    assert not bench.said


@pytest.mark.parametrize(
    ('pipeline', 'named'),
    [
        ('identity error-after=3 ! fakesink', 'identity'),
        ('identity eos-after=3 ! fakesink', 'has ended its stream (EOS)'),
        ('video/x-raw,format=I420 ! fakesink', ('takes none of the frames: their caps are '
                                                "'video/x-raw, format=(string)NV12")),
        ('filesink location=/nowhere/at/all', '/nowhere/at/all'),
    ],
)  # fmt: skip
def test_what_fails_is_named_and_tried_again_and_keeps_no_frame(
    pipeline: str, named: str, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, '_FIRST_PAUSE_S', 0.001)
    monkeypatch.setattr(feed_module, '_LAST_PAUSE_S', 0.001)
    with bench.feed(pipeline) as feed:
        until(lambda: (bench.put(), feed.statistics().failed >= 3)[1], lambda: bench.said)
        assert named in feed.statistics().failure
    assert all(named in text and 'the next try is in' in text for text in bench.said)


def test_a_pipeline_that_takes_no_picture_is_refused_with_its_caps(bench: Bench) -> None:
    refused = pytest.raises(ConfigError, match="takes 'audio/x-raw', but no camera frame can")
    with bench.feed('audio/x-raw ! fakesink', start=False) as feed, refused:
        feed.formats()


def test_h264_has_the_frames_stamps_and_a_key_frame_for_each_new_listener(bench: Bench) -> None:
    encoder = 'x264enc tune=zerolatency speed-preset=ultrafast bframes=0 key-int-max=1000'
    tail = f'{encoder} ! h264parse config-interval=-1 ! appsink name=zc_sink'
    pipeline = f'videoconvert ! video/x-raw,format=I420 ! {tail}'
    listeners, units = [0], list[AccessUnit]()
    with bench.feed(pipeline, listeners=lambda: listeners[0], take=units.append) as feed:
        for _ in range(3):
            bench.put_when_free()
            until(bench.all_back)
        assert feed.statistics().frames == 0
        listeners[0] = 1
        for number in range(300):
            bench.put_when_free()
            until(lambda: len(units) == number + 1, lambda: bench.said)  # noqa: B023
        listeners[0] = 2
        until(
            lambda: (bench.put(), any(unit.key for unit in units[300:]))[1],
            lambda: feed.statistics(),
        )
    assert [unit.header.stamp_ns for unit in units[:300]] == [*range(4, 304)]
    assert [at for at, unit in enumerate(units[:300]) if unit.key] == [0]
    assert all({7, 8} <= {*nal_types(unit.data)} for unit in units if unit.key)
    assert {(unit.width, unit.height) for unit in units} == {SIZE}
    seen = feed.statistics()
    assert (seen.unknown, seen.reordered, seen.bare, seen.lost) == (0, 0, 0, 0)
    assert bench.ledger.count('gstreamer') == seen.frames
    decoder = av.CodecContext.create('h264', 'r')
    frames = [frame for unit in units for frame in decoder.decode(av.Packet(unit.data))]
    frames += decoder.decode(None)
    for unit, frame in zip(units, frames, strict=True):
        rows = np.frombuffer(frame.planes[0], np.uint8).reshape(HEIGHT, -1)[:, :WIDTH]
        error = np.mean((rows - float(unit.header.stamp_ns % 200 + 20)) ** 2)
        assert 10 * np.log10(255**2 / max(error, 1e-9)) >= 35
    # A listener that joins with the second one can start decoding at this key frame.
    late = av.CodecContext.create('h264', 'r')
    (begin,) = (at for at, unit in enumerate(units) if unit.key and at)
    assert [*late.decode(av.Packet(units[begin].data)), *late.decode(None)]


def test_the_caps_have_the_rate_of_several_frames_of_one_camera(bench: Bench) -> None:
    listeners = [0]

    def put(captured_ms: int) -> None:
        until(lambda: bench.put(captured_ms * 1_000_000))

    with bench.feed('fakesink', listeners=lambda: listeners[0]) as feed:
        for captured_ms in (1000, 1040, 1095, 1115, 1160, 1205, 1235):
            put(captured_ms)
        until(bench.all_back)
        listeners[0] = 1
        put(1280)
        until(lambda: 'framerate=(fraction)25/1' in feed.statistics().caps, lambda: bench.said)
        feed.stop()
        bench.sequence = 0  # a new camera counts from 0
        feed.start(bench.queue)
        put(61_000)
        put(61_020)
        until(lambda: 'framerate=(fraction)50/1' in feed.statistics().caps, lambda: bench.said)
    assert not bench.said


def test_a_stuck_element_keeps_its_frames_until_it_lets_go(bench: Bench) -> None:
    let_go = threading.Event()

    def hang(_buffer: int) -> int:
        let_go.wait()
        return DROP

    with bench.feed('identity name=spy ! fakesink') as feed:
        bench.put()  # the feed learns the rate from the next frame
        bench.put_when_free()
        probe = spy(feed, 'spy', hang)
        for _ in range(4):
            bench.put_when_free()
        until(lambda: feed.statistics().held >= 4, lambda: feed.statistics())
        feed.stop()
        until(lambda: feed.statistics().stuck == 1, lambda: feed.statistics())
        assert not bench.all_back()
        let_go.set()
    del probe


def test_a_feed_starts_again_only_after_its_last_run(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, '_JOIN_S', 0.1)
    came, let_go = threading.Event(), threading.Event()

    def hang() -> int:
        came.set()
        let_go.wait()
        return 1

    with bench.feed('fakesink', listeners=hang) as feed:
        assert came.wait(60)
        feed.stop()
        with pytest.raises(PipelineError, match="'fakesink' has not ended yet"):
            feed.start(bench.queue)
        let_go.set()
        until(lambda: not feed.alive)
        feed.start(bench.queue)
        assert feed.alive
        bench.put()
        bench.put_when_free()
        until(lambda: feed.statistics().frames, lambda: feed.statistics())


@pytest.mark.parametrize(
    ('pipeline', 'text'),
    [
        ('nosuchelement ! fakesink', 'nosuchelement'),
        ('appsrc ! fakesink', "begins with 'appsrc'"),
        ('! fakesink', "begins with '!'"),
        ('gst-launch-1.0 fakesink', 'leave out that program'),
        ('identity name=zc_sink ! fakesink', 'is not an appsink'),
    ],
)
def test_a_text_that_is_no_pipeline_is_a_mistake(pipeline: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        FrameFeed(pipeline, name='bench', ledger=CopyLedger())
