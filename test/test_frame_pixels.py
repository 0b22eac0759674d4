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
What a frame says of itself, and its pixels without a block.

The calls are y, uv, planes(), bgr(), copy(), and descriptors to import elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import copy
import gc
import os
import threading
from typing import Any

import cv2
import numpy as np
import pytest

from zc_perception.errors import ConfigError, FormatError, FrameReleasedError, LayoutError
from zc_perception.frame import Frame
from zc_perception.memory.dmabuf import CpuAccess
from zc_perception.memory.fence import EventFence
from zc_perception.memory.ledger import FRAME_COPIES
from zc_perception.memory.pool import BufferPool
from zc_perception.pixel.fourcc import fourcc_code

pytestmark = pytest.mark.usefixtures('no_fd_leak')
MakePool = Callable[..., BufferPool]
MakeFrame = Callable[..., Frame]


def holders(pool: BufferPool) -> dict[str, int]:
    pool.collect()
    return dict(pool.statistics().holders)


@pytest.mark.parametrize(
    ('name', 'encoding'), [('NV21', 'nv21'), ('YUYV', 'yuyv'), ('RG24', 'bgr8'), ('R8  ', 'mono8')]
)
def test_encodings_have_the_names_of_sensor_msgs(
    make_pool: MakePool, make_frame: MakeFrame, name: str, encoding: str
) -> None:
    assert make_frame(make_pool(fourcc=fourcc_code(name))).encoding == encoding


def test_without_ros_a_frame_has_no_messages_and_says_what_to_use(
    make_frame: MakeFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Frame, '_messages', None)
    for ask in (lambda frame: frame.stamp, Frame.header_msg):
        with (
            make_frame() as frame,
            pytest.raises(ConfigError, match=r'use frame\.header\.stamp_ns'),
        ):
            ask(frame)


def test_planes_are_the_buffer_itself_and_stay_for_the_frame_s_time(
    make_pool: MakePool, make_frame: MakeFrame
) -> None:
    pool = make_pool(slots=1)
    frame = make_frame(pool)
    planes = frame.planes()
    memory = np.frombuffer(frame.data.buffers[0].mapping(), np.uint8)
    memory[0], memory[64 * 48 + 1] = 77, 99
    assert [plane.shape for plane in planes] == [(48, 64), (24, 32, 2)]
    assert planes[0][0, 0] == 77 and frame.y[0, 0] == 77 and frame.uv[0, 0, 1] == 99
    assert not any(plane.flags.writeable for plane in (*planes, frame.y, frame.uv))
    assert np.shares_memory(frame.y, planes[0]) and np.shares_memory(planes[0], memory)
    del planes, memory
    frame.release()
    assert holders(pool) == {}
    for ask in (
        Frame.planes,
        lambda f: f.y,
        lambda f: f.uv,
        Frame.bgr,
        Frame.copy,
        lambda f: f.fds,
        Frame.keep,
    ):
        with pytest.raises(
            FrameReleasedError, match=r'frame 0 was released: call frame\.keep\(\)'
        ):
            ask(frame)


def test_an_array_that_is_kept_keeps_the_release_away_and_never_sees_a_later_frame(
    make_pool: MakePool, make_frame: MakeFrame
) -> None:
    pool = make_pool(slots=1)
    frame = make_frame(pool, fill=lambda luma, chroma: luma.fill(50))
    kept = frame.y[1:3]
    with pytest.raises(BufferError, match='a NumPy view of its pixels is still alive'):
        frame.release()
    assert not frame.released and frame.y[0, 0] == 50, "the frame is still its owner's"
    frame.release_when_unseen()
    assert frame.released and pool.acquire() is None and (kept == 50).all()
    del kept
    pool.collect()
    slot = pool.acquire()
    assert slot is not None and pool.statistics().abandoned == 0
    pool.discard(slot)


def test_a_frame_whose_planes_were_looked_at_ends_without_the_collector_of_cycles(
    make_pool: MakePool, make_frame: MakeFrame
) -> None:
    pool = make_pool(slots=1)
    gc.disable()
    try:
        frame = make_frame(pool)
        assert frame.y.shape == (48, 64) and len(frame.planes()) == 2
        del frame
        assert holders(pool) == {}
    finally:
        gc.enable()


# What is older can't say in a capsule that memory is read-only, and refuses.
with_dlpack = pytest.mark.skipif(
    not hasattr(np, 'from_dlpack') or np.lib.NumpyVersion(np.__version__) < '2.1.0',
    reason="NumPy below 2.1 can't say that memory is read-only",
)


@with_dlpack
@pytest.mark.parametrize('kept', ['an array', 'a capsule'])
def test_by_dlpack_the_image_is_seen_where_it_lies_and_keeps_its_slot_alone(
    make_pool: MakePool, make_frame: MakeFrame, kept: str
) -> None:
    pool = make_pool(slots=2, layout={'stride_align': 256})
    frame = make_frame(pool, fill=lambda luma, chroma: (luma.fill(50), chroma.fill(60)))
    whole, luma = np.from_dlpack(frame), np.from_dlpack(frame.y)
    assert whole.shape == (72, 64) and whole.strides == (256, 1) and luma.shape == (48, 64)
    assert (whole[:48] == 50).all() and (whole[48:] == 60).all()
    assert np.shares_memory(whole, frame.y) and np.shares_memory(whole, frame.uv)
    assert np.shares_memory(luma, frame.y) and frame.__dlpack_device__() == (1, 0)
    assert not whole.flags.writeable and not luma.flags.writeable
    with pytest.raises(BufferError, match='readonly'):
        frame.__dlpack__()
    held: Any = whole if kept == 'an array' else frame.__dlpack__(max_version=(1, 0))
    del whole, luma
    frame.release_when_unseen()  # as a link does when its callback has returned
    other = make_frame(pool)
    assert pool.acquire() is None, 'the slot of what is kept, and that of the other frame'
    other.release()
    if kept == 'an array':
        assert (held[:48] == 50).all()
    del held
    assert holders(pool) == {}
    with pytest.raises(FrameReleasedError):
        np.from_dlpack(frame)


@with_dlpack
@pytest.mark.parametrize(
    ('name', 'layout'), [('YU12', {}), ('NV12', {'buffer_per_plane': True}), ('RG24', {})]
)
def test_by_dlpack_planes_that_are_no_one_array_are_taken_one_by_one(
    make_pool: MakePool, make_frame: MakeFrame, name: str, layout: dict[str, Any]
) -> None:
    frame = make_frame(make_pool(fourcc=fourcc_code(name), layout=layout))
    if len(frame.planes()) == 1:
        assert np.from_dlpack(frame).shape == frame.planes()[0].shape == (48, 64, 3)
        return
    with pytest.raises(BufferError, match=r'form one array; use them one by one, .*frame\.y'):
        np.from_dlpack(frame)
    for plane in frame.planes():
        assert np.shares_memory(np.from_dlpack(plane), plane)


def test_the_cpu_s_access_begins_once_and_ends_with_the_release(
    make_frame: MakeFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    frame = make_frame()
    (buffer,) = frame.data.buffers
    monkeypatch.setattr('zc_perception.mapping._DMABUF', buffer.kind)
    monkeypatch.setattr(
        buffer, 'begin_cpu_access', lambda access: calls.append(f'begin {CpuAccess(access).name}')
    )
    monkeypatch.setattr(
        buffer, 'end_cpu_access', lambda access: calls.append(f'end {CpuAccess(access).name}')
    )
    assert frame.y.shape == frame.planes()[0].shape and frame.uv.shape == (24, 32, 2)
    assert calls == ['begin READ']
    with frame.map():
        assert calls == ['begin READ', 'begin READ'], 'a block has its own'
    assert calls[2:] == ['end READ']
    fence = EventFence()
    fence.signal()
    frame.release(fence)
    assert calls[3:] == ['end READ']


def test_threads_that_look_and_release_at_once_leave_nothing(
    make_pool: MakePool, make_frame: MakeFrame
) -> None:
    pool = make_pool(slots=1)
    for sequence in range(200):
        frame, start = make_frame(pool, sequence=sequence), threading.Barrier(3)

        def look(frame: Frame = frame, start: threading.Barrier = start) -> None:
            start.wait()
            with contextlib.suppress(FrameReleasedError):
                assert frame.y.shape == (48, 64)

        threads = [threading.Thread(target=look) for _ in range(2)]
        for thread in threads:
            thread.start()
        start.wait()
        try:
            frame.release()
        except BufferError:
            for thread in threads:
                thread.join()
            frame.release()
        for thread in threads:
            thread.join()
        assert holders(pool) == {}


@pytest.mark.parametrize('name', ['NV12', 'NV21', 'NV16', 'P010'])
def test_uv_has_u_first_whatever_the_format_has(
    make_pool: MakePool, make_frame: MakeFrame, name: str
) -> None:
    frame = make_frame(make_pool(fourcc=fourcc_code(name)))
    with frame.map(write=True) as planes:
        planes[1][..., 0], planes[1][..., 1] = (20, 10) if name == 'NV21' else (10, 20)
    assert (frame.uv[..., 0] == 10).all() and (frame.uv[..., 1] == 20).all()
    assert np.shares_memory(frame.uv, frame.planes()[1])


@pytest.mark.parametrize(
    ('name', 'y', 'uv'),
    [('YU12', True, False), ('R8  ', True, False), ('YUYV', False, False), ('BG24', False, False)],
)
def test_a_plane_that_a_format_lacks_is_told_with_what_to_use(
    make_pool: MakePool, make_frame: MakeFrame, name: str, y: bool, uv: bool
) -> None:
    frame = make_frame(make_pool(fourcc=fourcc_code(name)))
    for what, there in (('y', y), ('uv', uv)):
        if there:
            assert getattr(frame, what).shape == (48, 64)
        else:
            with pytest.raises(
                FormatError,
                match=rf'^{name.strip()} has no plane of .*: frame\.planes\(\).*frame\.bgr\(\)',
            ):
                getattr(frame, what)


def test_bgr_is_opencv_s_picture_and_is_booked(make_frame: MakeFrame) -> None:
    chance = np.random.default_rng(3)

    def fill(luma: Any, chroma: Any) -> None:
        luma[:] = chance.integers(16, 235, luma.shape)
        chroma[:] = chance.integers(16, 240, chroma.shape)

    frame, before = make_frame(fill=fill), FRAME_COPIES.count('bgr')
    wanted = cv2.cvtColorTwoPlane(frame.y.copy(), frame.uv.copy(), cv2.COLOR_YUV2BGR_NV12)
    first = frame.bgr()
    assert np.array_equal(first, wanted)
    out = np.zeros((48, 64, 3), np.uint8)
    assert frame.bgr(out) is out and np.array_equal(out, wanted) and frame.bgr() is not first
    assert FRAME_COPIES.count('bgr') == before + 3
    with pytest.raises(LayoutError, match=r'this conversion writes uint8 \(48, 64, 3\)'):
        frame.bgr(np.zeros((64, 48, 3), np.uint8))
    frame.release()
    assert np.array_equal(first, wanted), "it is the caller's"


def test_a_copy_is_the_caller_s_and_is_booked(make_pool: MakePool, make_frame: MakeFrame) -> None:
    pool = make_pool(slots=1, layout={'stride_align': 256})
    frame, before = (
        make_frame(pool, fill=lambda luma, chroma: luma.fill(50)),
        FRAME_COPIES.entries().get('copy'),
    )
    luma, chroma = frame.copy()
    frame.release()
    assert holders(pool) == {}
    with make_frame(pool, fill=lambda luma, chroma: luma.fill(90)):
        assert (
            (luma == 50).all()
            and chroma.shape == (24, 32, 2)
            and luma.flags.writeable
            and luma.flags.c_contiguous
        )
    entry = FRAME_COPIES.entries()['copy']
    assert entry.bytes - (before.bytes if before else 0) == 64 * 48 * 3 // 2


@pytest.mark.parametrize('ask', [np.asarray, np.array, lambda frame: np.mean(frame), copy.copy])
def test_what_takes_a_frame_for_an_array_is_told_the_right_call(
    make_frame: MakeFrame, ask: Callable[[Frame], object]
) -> None:
    frame = make_frame(sequence=4)
    with pytest.raises(TypeError, match=r'frame 4 .*frame\.copy\(\)'):
        ask(frame)
    frame.release()


@pytest.mark.parametrize('buffer_per_plane', [False, True])
def test_fds_are_those_of_each_plane_s_buffer(
    make_pool: MakePool, make_frame: MakeFrame, buffer_per_plane: bool
) -> None:
    frame = make_frame(
        make_pool(layout={'buffer_per_plane': buffer_per_plane}),
        fill=lambda luma, chroma: chroma.fill(5),
    )
    assert len(frame.fds) == 2 and len(set(frame.fds)) == 1 + buffer_per_plane
    plane = frame.data.planes[1]
    assert os.pread(frame.fds[1], 64, plane.offset) == bytes([5]) * 64
    frame.release()
