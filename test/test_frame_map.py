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

"""Frame.map(): the pixels themselves, SYNC at both ends, and no release under a living view."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import threading

import numpy as np
from numpy.typing import NDArray
from pixel.layout_oracle import plane_bytes, PLANES
import pytest

from zc_perception.errors import AcceleratorError, FormatError, FrameReleasedError
from zc_perception.frame import Frame, Header
from zc_perception.memory.dmabuf import BufferKind, CpuAccess, DmaBuf
from zc_perception.memory.fence import EventFence
from zc_perception.memory.heaps import SealedMemfd
from zc_perception.memory.pool import BufferPool
from zc_perception.pixel.colorimetry import BT601_LIMITED
from zc_perception.pixel.fourcc import fourcc_code, NV12
from zc_perception.pixel.layout import compute_layout, ImageLayout, PlaneLayout
from zc_perception.pixel.modifier import INVALID

pytestmark = pytest.mark.usefixtures('no_fd_leak')
MakePool = Callable[..., BufferPool]
MakeFrame = Callable[..., Frame]
FrameOver = Callable[..., Frame]
P010 = fourcc_code('P010')
READ_WRITE = CpuAccess.READ | CpuAccess.WRITE


class CountingBuffer(DmaBuf):
    """Keeps the SYNC calls instead of making them."""

    def __init__(self, size: int) -> None:
        super().__init__(SealedMemfd().allocate(size).dup(), BufferKind.DMABUF, 'counting')
        self.calls: list[tuple[str, CpuAccess]] = []
        self.begin_error: OSError | None = None
        self.end_error: OSError | None = None

    def begin_cpu_access(self, access: CpuAccess, timeout_s: float = 1.0) -> None:
        if self.begin_error is not None:
            raise self.begin_error
        self.calls.append(('begin', access))

    def end_cpu_access(self, access: CpuAccess) -> None:
        self.calls.append(('end', access))
        if self.end_error is not None:
            raise self.end_error


@pytest.fixture
def frame_over() -> Iterator[FrameOver]:
    """Make frames of a given layout and buffers, which are closed at the end."""
    pools: list[BufferPool] = []

    def make(layout: ImageLayout, *buffers: DmaBuf) -> Frame:
        pools.append(BufferPool(layout, lambda: buffers, 1, name='camera'))
        slot = pools[-1].acquire()
        assert slot is not None
        return Frame.publish_slot(
            pools[-1],
            slot,
            header=Header(0, ''),
            colorimetry=BT601_LIMITED,
            sequence=0,
            captured_ns=0,
        )

    yield make
    for pool in pools:
        pool.close()


def address(array: NDArray[np.generic]) -> int:
    return int(array.__array_interface__['data'][0])


@pytest.mark.parametrize('buffer_per_plane', [False, True])
def test_planes_are_the_mapping_s_own_memory(
    make_pool: MakePool, make_frame: MakeFrame, buffer_per_plane: bool
) -> None:
    layout = {'stride_align': 256, 'offset_align': 4096, 'buffer_per_plane': buffer_per_plane}
    frame = make_frame(make_pool(64, 48, slots=1, layout=layout))
    with frame.map() as planes:
        assert [(p.shape, p.strides, p.dtype.str) for p in planes] == [
            ((48, 64), (256, 1), '|u1'),
            ((24, 32, 2), (256, 2, 1), '|u1'),
        ]
        for plane, where in zip(planes, frame.data.planes, strict=True):
            mapping = np.frombuffer(frame.data.buffers[where.buffer].mapping(), np.uint8)
            assert address(plane) == address(mapping) + where.offset
            del mapping
        del plane
    frame.release()


def test_planes_are_read_only_unless_asked(make_frame: MakeFrame) -> None:
    frame = make_frame()
    with frame.map() as planes:
        for plane in planes:
            assert not plane.flags.writeable
            with pytest.raises(ValueError, match='read-only'):
                plane[0, 0] = 1
        del plane
    with frame.map(write=True) as planes:
        planes[0][0, 0] = 5
        planes[1][0, 0, 1] = 6
    with frame.map() as planes:
        assert (planes[0][0, 0], planes[1][0, 0, 1]) == (5, 6)


@pytest.mark.parametrize('buffer_per_plane', [False, True])
@pytest.mark.parametrize('name', sorted(PLANES))
def test_every_format_s_samples_are_those_in_memory(
    make_pool: MakePool, make_frame: MakeFrame, name: str, buffer_per_plane: bool
) -> None:
    """Against every sample's address as the kernel's description of the format gives it."""
    width, height, odd = (
        8,
        4,
        {
            'stride_align': 11,
            'offset_align': 7,
            'height_align': 3,
            'buffer_per_plane': buffer_per_plane,
        },
    )
    frame = make_frame(make_pool(width, height, slots=1, fourcc=fourcc_code(name), layout=odd))
    data, chance = frame.data, np.random.default_rng(1)
    for buffer in data.buffers:
        buffer.mapping()[:] = chance.bytes(buffer.size)
    with frame.map() as planes:
        assert len(planes) == len(PLANES[name])
        for index, (sample, samples, across, down) in enumerate(PLANES[name]):
            memory = data.buffers[data.planes[index].buffer].mapping()
            rows = (height // down, width // across)
            assert planes[index].shape == (rows if samples == 1 else (*rows, samples))
            assert planes[index].dtype == np.dtype('<u2' if sample == 2 else 'u1')
            assert planes[index].flags.aligned
            assert planes[index].tobytes() == bytes(
                memory[address] for address in plane_bytes(name, index, data.layout)
            )


def test_padding_is_never_seen(frame_over: FrameOver) -> None:
    """1000 in 1024 and 1080 in 1088: the planes are 1000 by 1080 all the same."""
    layout = compute_layout(
        NV12, 1000, 1080, stride_align=1024, offset_align=4096, height_align=16
    )
    frame = frame_over(layout, SealedMemfd().allocate(layout.buffer_size(0)))
    with frame.map(write=True) as planes:
        assert [(p.shape, p.strides) for p in planes] == [
            ((1080, 1000), (1024, 1)),
            ((540, 500, 2), (1024, 2, 1)),
        ]
        assert address(planes[1]) - address(planes[0]) == 1024 * 1088
        for plane in planes:
            plane[:] = 0xFF
        del plane
    written = np.frombuffer(frame.data.buffers[0].mapping(), np.uint8)
    assert int(written.astype(np.uint32).sum()) == 255 * 1000 * (1080 + 540)
    del written
    frame.release()


@pytest.mark.parametrize('modifier', [1 << 56 | 1, INVALID])
def test_tiled_memory_has_no_rows_to_look_at(frame_over: FrameOver, modifier: int) -> None:
    layout = ImageLayout(
        64, 48, NV12, modifier, (PlaneLayout(0, 0, 64, 4096), PlaneLayout(0, 4096, 64, 2048))
    )
    frame = frame_over(layout, SealedMemfd().allocate(8192))
    with (
        pytest.raises(
            FormatError,
            match=r'^NV12 with modifier (INVALID|INTEL).* has no rows that a CPU could read',
        ),
        frame.map(),
    ):
        pytest.fail('mapped')
    assert not frame.data.buffers[0].mapped
    frame.release()


@pytest.mark.parametrize(('write', 'access'), [(False, CpuAccess.READ), (True, READ_WRITE)])
@pytest.mark.parametrize('failing', [False, True])
def test_every_buffer_has_sync_at_both_ends_also_when_the_body_raises(
    frame_over: FrameOver, write: bool, access: CpuAccess, failing: bool
) -> None:
    layout = compute_layout(NV12, 64, 48, buffer_per_plane=True)
    buffers = [CountingBuffer(layout.buffer_size(i)) for i in range(2)]
    frame = frame_over(layout, *buffers)
    try:
        with frame.map(write=write):
            assert [b.calls for b in buffers] == [[('begin', access)]] * 2
            if failing:
                raise KeyError
    except KeyError:
        assert failing
    assert [b.calls for b in buffers] == [[('begin', access), ('end', access)]] * 2
    frame.release()


@pytest.mark.parametrize('failing', [0, 1])
def test_a_buffer_that_can_t_end_does_not_keep_the_others_from_it(
    frame_over: FrameOver, failing: int
) -> None:
    layout = compute_layout(NV12, 64, 48, buffer_per_plane=True)
    buffers = [CountingBuffer(layout.buffer_size(i)) for i in range(2)]
    buffers[failing].end_error = OSError(5, 'Input/output error')
    frame = frame_over(layout, *buffers)
    with pytest.raises(OSError, match='Input/output error'), frame.map() as planes:
        view = planes[1]
    assert [[name for name, _ in b.calls] for b in buffers] == [['begin', 'end']] * 2
    with pytest.raises(FrameReleasedError):
        planes[0]
    with pytest.raises(BufferError):
        frame.release()
    del view
    frame.release()


def test_pixels_are_seen_only_once_the_acquire_fence_has_signalled(make_frame: MakeFrame) -> None:
    fence = EventFence()
    frame = make_frame(acquire_fence=fence)
    signaller = threading.Timer(0.03, fence.signal)
    signaller.start()
    with frame.map():
        assert fence.wait(0.0)
    signaller.join()
    fence.close()


def test_the_acquire_fence_s_error_is_raised(make_frame: MakeFrame) -> None:
    fence = EventFence()
    fence.signal(RuntimeError('capture failed'))
    frame = make_frame(acquire_fence=fence)
    with pytest.raises(AcceleratorError, match='capture failed'), frame.map():
        pytest.fail('mapped')
    assert not frame.data.buffers[0].mapped
    fence.close()


def test_an_acquire_fence_that_never_signals_costs_a_bounded_wait(
    make_frame: MakeFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    fence, waits = EventFence(), list[float]()

    def wait(timeout_s: float) -> bool:
        waits.append(timeout_s)
        return False

    monkeypatch.setattr(fence, 'wait', wait)
    frame = make_frame(sequence=4, acquire_fence=fence)
    with (
        pytest.raises(
            AcceleratorError, match='frame 4: its acquire fence did not signal within 1 s'
        ),
        frame.map(),
    ):
        pytest.fail('mapped')
    assert waits == [1.0]
    fence.close()
