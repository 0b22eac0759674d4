"""Frame.map(): the pixels themselves, SYNC at both ends, and no release under a living view."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from zc_perception.errors import AcceleratorError, FormatError, FrameReleasedError
from zc_perception.frame import Frame, Header
from zc_perception.memory.dmabuf import BufferKind, CpuAccess, DmaBuf
from zc_perception.memory.fence import EventFence
from zc_perception.memory.heaps import SealedMemfd
from zc_perception.memory.pool import BufferPool
from zc_perception.pixel.colorimetry import BT601_LIMITED
from zc_perception.pixel.fourcc import NV12, fourcc_code
from zc_perception.pixel.layout import ImageLayout, PlaneLayout, compute_layout

pytestmark = pytest.mark.usefixtures('no_fd_leak')
MakePool = Callable[..., BufferPool]
MakeFrame = Callable[..., Frame]
P010 = fourcc_code('P010')
READ_WRITE = CpuAccess.READ | CpuAccess.WRITE


class CountingBuffer(DmaBuf):
    """Keeps the SYNC calls instead of making them."""

    def __init__(self, size: int) -> None:
        super().__init__(SealedMemfd().allocate(size).dup(), BufferKind.DMABUF, 'counting')
        self.calls: list[tuple[str, CpuAccess]] = []
        self.begin_error: OSError | None = None

    def begin_cpu_access(self, access: CpuAccess) -> None:
        if self.begin_error is not None:
            raise self.begin_error
        self.calls.append(('begin', access))

    def end_cpu_access(self, access: CpuAccess) -> None:
        self.calls.append(('end', access))


def frame_over(layout: ImageLayout, *buffers: DmaBuf) -> Frame:
    pool = BufferPool(layout, lambda: buffers, 1, name='camera')
    slot = pool.acquire()
    assert slot is not None
    frame = Frame.publish_slot(pool, slot, header=Header(0, ''), colorimetry=BT601_LIMITED, sequence=0, captured_ns=0)
    pool.close()
    return frame


def address(array: NDArray[np.generic]) -> int:
    return int(array.__array_interface__['data'][0])


@pytest.mark.parametrize('buffer_per_plane', [False, True])
def test_planes_are_the_mapping_s_own_memory(make_pool: MakePool, make_frame: MakeFrame, buffer_per_plane: bool) -> None:
    layout = {'stride_align': 256, 'offset_align': 4096, 'buffer_per_plane': buffer_per_plane}
    frame = make_frame(make_pool(64, 48, slots=1, layout=layout))
    with frame.map() as planes:
        assert [(p.shape, p.strides, p.dtype) for p in planes] == [((48, 64), (256, 1), np.uint8), ((24, 32, 2), (256, 2, 1), np.uint8)]
        for plane, where in zip(planes, frame.data.planes, strict=True):
            mapping = np.frombuffer(frame.data.buffers[where.buffer].mapping(), np.uint8)
            assert address(plane) == address(mapping) + where.offset
            del mapping
        del plane
    frame.release()


def test_what_is_written_is_what_another_mapping_reads(make_pool: MakePool, make_frame: MakeFrame) -> None:
    picture = np.random.default_rng(0).integers(0, 256, (48, 64), np.uint8)
    frame = make_frame(make_pool(slots=1, layout={'stride_align': 128}))
    with frame.map(write=True) as planes:
        planes[0][:] = picture
    (buffer,) = frame.data.buffers
    again = DmaBuf(buffer.dup(), BufferKind.MEMFD, 'memfd')
    stored = np.frombuffer(again.mapping()[: 48 * 128], np.uint8).reshape(48, 128)
    assert np.array_equal(stored[:, :64], picture)
    assert not stored[:, 64:].any()
    again.close()


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


def test_ten_bit_formats_have_sixteen_bit_samples(make_pool: MakePool, make_frame: MakeFrame) -> None:
    frame = make_frame(make_pool(6, 4, slots=1, fourcc=P010))
    with frame.map(write=True) as planes:
        planes[0][1, 2] = 0xABC0
    (buffer,) = frame.data.buffers
    luma, chroma = frame.data.planes
    with frame.map() as planes:
        assert [(p.shape, p.dtype.str) for p in planes] == [((4, 6), '<u2'), ((2, 3, 2), '<u2')]
        assert planes[1].strides == (chroma.stride, 4, 2)
    start = luma.stride + 2 * 2
    assert buffer.mapping()[start : start + 2] == b'\xc0\xab'


def test_packed_formats_have_one_plane_of_elements(make_pool: MakePool, make_frame: MakeFrame) -> None:
    for name, shape in (('RG24', (4, 6, 3)), ('YUYV', (4, 3, 4)), ('R8  ', (4, 6))):
        frame = make_frame(make_pool(6, 4, slots=1, fourcc=fourcc_code(name)))
        with frame.map() as planes:
            assert [p.shape for p in planes] == [shape]


def test_tiled_memory_has_no_rows_to_look_at() -> None:
    layout = ImageLayout(64, 48, NV12, 1 << 56 | 1, (PlaneLayout(0, 0, 64, 4096), PlaneLayout(0, 4096, 64, 2048)))
    frame = frame_over(layout, SealedMemfd().allocate(8192))
    with pytest.raises(FormatError, match='NV12 with modifier INTEL:0x00000000000001 has no rows that a CPU could read'), frame.map():
        pytest.fail('mapped')
    assert not frame.data.buffers[0].mapped
    frame.release()


@pytest.mark.parametrize(('write', 'access'), [(False, CpuAccess.READ), (True, READ_WRITE)])
@pytest.mark.parametrize('failing', [False, True])
def test_every_buffer_has_sync_at_both_ends_also_when_the_body_raises(write: bool, access: CpuAccess, failing: bool) -> None:
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


def test_a_buffer_that_could_not_begin_is_not_ended_and_those_before_it_are() -> None:
    layout = compute_layout(NV12, 64, 48, buffer_per_plane=True)
    first, second = (CountingBuffer(layout.buffer_size(i)) for i in range(2))
    frame = frame_over(layout, first, second)
    second.begin_error = OSError(5, 'Input/output error')
    with pytest.raises(OSError, match='Input/output error'), frame.map():
        pytest.fail('mapped')
    assert [name for name, _ in first.calls] == ['begin', 'end']
    assert second.calls == []
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


def test_an_acquire_fence_that_never_signals_costs_a_bounded_wait(make_frame: MakeFrame, monkeypatch: pytest.MonkeyPatch) -> None:
    fence, waits = EventFence(), []
    monkeypatch.setattr(fence, 'wait', lambda timeout_s: bool(waits.append(timeout_s)))
    frame = make_frame(sequence=4, acquire_fence=fence)
    with pytest.raises(AcceleratorError, match='frame 4: its acquire fence did not signal within 1 s'), frame.map():
        pytest.fail('mapped')
    assert waits == [1.0]
    fence.close()


def test_a_view_that_outlives_the_block_stops_the_release_and_not_for_ever(make_pool: MakePool, make_frame: MakeFrame) -> None:
    pool = make_pool(slots=1)
    frame = make_frame(pool, sequence=2, fill=lambda luma, chroma: luma.fill(50))
    with frame.map() as planes:
        part = planes[0][2:4, 3:5]
    with pytest.raises(BufferError, match="frame 2 can't be released: a NumPy view"):
        frame.release()
    assert not frame.released and pool.acquire() is None
    assert (part == 50).all()
    del part
    frame.release()
    assert pool.acquire() is not None


def test_a_copy_may_outlive_the_frame(make_frame: MakeFrame) -> None:
    frame = make_frame(fill=lambda luma, chroma: luma.fill(9))
    with frame.map() as planes:
        copy = planes[0].copy()
    frame.release()
    assert (copy == 9).all()


def test_an_open_block_stops_the_release(make_frame: MakeFrame) -> None:
    frame = make_frame()
    with frame.map() as planes:
        with pytest.raises(BufferError):
            frame.release()
        assert planes[0].shape == (48, 64)
    frame.release()


def test_with_a_fence_a_frame_can_be_released_while_the_job_still_maps_it(make_pool: MakePool, make_frame: MakeFrame) -> None:
    """How a pipeline gives up on a job that takes too long: the fence keeps the slot for it."""
    pool, fence = make_pool(slots=1), EventFence()
    frame = make_frame(pool, fill=lambda luma, chroma: luma.fill(8))
    with frame.map() as planes:
        frame.release(fence)
        assert pool.acquire() is None
        assert (planes[0] == 8).all()
    fence.signal()
    assert pool.acquire() is not None


def test_planes_end_with_the_block(make_frame: MakeFrame) -> None:
    frame = make_frame()
    with frame.map() as planes:
        assert len(planes) == 2 and len(planes[:1]) == 1
    with pytest.raises(FrameReleasedError, match="use the planes inside 'with frame"):
        planes[0]
    frame.release()


def test_blocks_can_be_nested(make_frame: MakeFrame) -> None:
    frame = make_frame()
    with frame.map() as outer:
        with frame.map(write=True) as inner:
            inner[0][0, 0] = 200
        assert outer[0][0, 0] == 200
    frame.release()
