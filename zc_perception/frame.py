"""The type-adapted message: :class:`Frame`, one lease over the immutable, shared :class:`FrameData`."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from zc_perception.errors import AcceleratorError, FormatError, FrameReleasedError, StaleFrameError
from zc_perception.memory.dmabuf import CpuAccess, DmaBuf
from zc_perception.memory.fence import Fence
from zc_perception.memory.pool import BufferPool, Lease, Slot
from zc_perception.pixel.colorimetry import Colorimetry
from zc_perception.pixel.fourcc import fourcc_name
from zc_perception.pixel.layout import ImageLayout, PlaneLayout
from zc_perception.pixel.modifier import LINEAR, modifier_name


@dataclass(frozen=True)
class Header:
    """``std_msgs/Header`` without ROS: time of exposure in the ROS clock, and the camera's optical frame."""

    stamp_ns: int
    frame_id: str


@dataclass(frozen=True, eq=False)
class FrameData:
    """Everything that is known of a frame but its pixels. Shared by all of its leases.

    :param captured_ns: CLOCK_MONOTONIC of the moment the camera had the frame, for latencies.
    :param capture_cost_ns: how long the camera needed for it (drawing, decoding; 0 for a driver's own frame).
    :param buffer_uid: names the slot's buffers; a replaced buffer gets a new one.
    :param generation: the slot's generation; a descriptor with another one is stale.
    """

    header: Header
    layout: ImageLayout
    buffers: tuple[DmaBuf, ...]
    colorimetry: Colorimetry
    buffer_uid: int
    generation: int
    sequence: int
    captured_ns: int
    capture_cost_ns: int = 0
    acquire_fence: Fence | None = None

    @property
    def width(self) -> int:
        """Image width in pixels."""
        return self.layout.width

    @property
    def height(self) -> int:
        """Image height in pixels."""
        return self.layout.height

    @property
    def fourcc(self) -> int:
        """DRM fourcc."""
        return self.layout.fourcc

    @property
    def modifier(self) -> int:
        """DRM format modifier."""
        return self.layout.modifier

    @property
    def planes(self) -> tuple[PlaneLayout, ...]:
        """Buffer index, offset, stride and size of each plane."""
        return self.layout.planes


class PlaneViews(Sequence[NDArray[Any]]):
    """The planes' samples as NumPy arrays over the mapping itself: (rows, columns) or (rows, columns, components).

    They end with the ``with`` block; an array that was taken out and kept makes the frame's release raise.
    """

    def __init__(self, views: list[NDArray[Any]]) -> None:
        self._views = views

    @overload
    def __getitem__(self, index: int) -> NDArray[Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[NDArray[Any]]: ...
    def __getitem__(self, index: int | slice) -> NDArray[Any] | list[NDArray[Any]]:
        if not self._views:
            raise FrameReleasedError("the frame's mapping has ended: use the planes inside 'with frame.map() as planes:'")
        return self._views[index]

    def __len__(self) -> int:
        return len(self._views)

    def _end(self) -> None:
        self._views = []


def _plane_view(layout: ImageLayout, index: int, root: NDArray[np.uint8]) -> NDArray[Any]:
    plane, fmt = layout.planes[index], layout.format
    element = fmt.planes[index]
    sample = np.dtype('<u2') if fmt.bits > 8 else np.dtype(np.uint8)
    components = element.element_bytes // sample.itemsize
    columns = element.row_bytes(layout.width) // element.element_bytes
    shape: tuple[int, ...] = (element.rows(layout.height), columns, components)
    strides: tuple[int, ...] = (plane.stride, element.element_bytes, sample.itemsize)
    if components == 1:
        shape, strides = shape[:2], strides[:2]
    view: NDArray[Any] = np.ndarray(shape, sample, buffer=root, offset=plane.offset, strides=strides)
    return view


@contextlib.contextmanager
def map_buffers(
    layout: ImageLayout, buffers: tuple[DmaBuf, ...], access: CpuAccess, live: list[weakref.ref[NDArray[Any]]]
) -> Iterator[PlaneViews]:
    """The one place where pixels become visible to the CPU, with SYNC brackets at both ends.

    :param live: gets a weak reference to each buffer's root array that outlived the block.
    :raises FormatError: the layout isn't LINEAR.
    """
    if layout.modifier != LINEAR:
        raise FormatError(
            f'{fourcc_name(layout.fourcc)} with modifier {modifier_name(layout.modifier)} has no rows that a CPU could read: '
            'negotiate LINEAR, or import it into a device that knows the modifier'
        )
    roots: list[NDArray[np.uint8]] = []
    synced: list[DmaBuf] = []
    views = PlaneViews([])
    try:
        for buffer in buffers:
            roots.append(np.frombuffer(buffer.mapping(), np.uint8))
            if not access & CpuAccess.WRITE:
                roots[-1].flags.writeable = False
            buffer.begin_cpu_access(access)
            synced.append(buffer)
        views = PlaneViews([_plane_view(layout, i, roots[p.buffer]) for i, p in enumerate(layout.planes)])
        yield views
    finally:
        for buffer in synced:
            buffer.end_cpu_access(access)
        views._end()
        live.extend(map(weakref.ref, roots))
        roots.clear()


def _abandon(lease: Lease, live: list[weakref.ref[NDArray[Any]]]) -> None:
    """Take a forgotten frame's lease back once no view of its pixels is left. Runs in finalizers: takes no lock."""
    for reference in live:
        root = reference()
        if root is not None:
            weakref.finalize(root, _abandon, lease, live).atexit = False
            return
    lease.pool.abandon(lease)


class Frame:
    """One lease over a :class:`FrameData`. Every delivery is its own Frame, so that no subscriber can end another's.

    In a subscription's callback the frame ends when the callback returns, unless the callback called :meth:`share`. Everywhere else
    the owner calls :meth:`release` or uses it as a context manager. A frame that is only forgotten is taken back late, and counted.
    """

    __slots__ = ('__weakref__', '_borrowed', '_lease', '_live', '_mappings', 'data', 'published_ns')

    def __init__(self, data: FrameData, lease: Lease) -> None:
        self.data = data
        self.published_ns = 0
        self._lease: Lease | None = lease
        self._live: list[weakref.ref[NDArray[Any]]] = []
        # One entry for each map() block that is open; a list, because another thread may be in one.
        self._mappings: list[None] = []
        self._borrowed = False

    @classmethod
    def publish_slot(
        cls,
        pool: BufferPool,
        slot: Slot,
        *,
        header: Header,
        colorimetry: Colorimetry,
        sequence: int,
        captured_ns: int,
        capture_cost_ns: int = 0,
        acquire_fence: Fence | None = None,
    ) -> Frame:
        """The producer's own lease over a slot that it has just filled."""
        data = FrameData(
            header, pool.layout, slot.buffers, colorimetry, slot.buffer_uid, slot.generation, sequence, captured_ns,
            capture_cost_ns, acquire_fence,
        )  # fmt: skip
        lease = pool.lease(slot, slot.generation, pool.name)
        if lease is None:
            raise StaleFrameError(f'{pool.name} has a quota on itself; remove it')
        return cls(data, lease)

    @property
    def released(self) -> bool:
        """Whether the lease has been dropped."""
        return self._lease is None

    @property
    def header(self) -> Header:
        """The frame's stamp and frame_id."""
        return self.data.header

    def _held(self) -> Lease:
        if self._lease is None:
            raise FrameReleasedError(
                f'frame {self.data.sequence} was released: call frame.share() in the callback to keep it, and release what it returns'
            )
        return self._lease

    def deliver(self, holder: str) -> Frame | None:
        """A Frame of its own for *holder*, or ``None`` when that is at its quota. For links.

        :raises FrameReleasedError: this one was released.
        """
        lease = self._held()
        other = lease.pool.lease(lease.slot, lease.generation, holder)
        return None if other is None else Frame(self.data, other)

    def lend(self) -> None:
        """For links: mark the frame as ending with the callback that it is handed to."""
        self._borrowed = True

    @property
    def borrowed(self) -> bool:
        """Whether the link, not the callback, releases it."""
        return self._borrowed

    def share(self) -> Frame:
        """Keep the frame: what is returned is the caller's to release.

        In a callback the first call takes over the delivery's own lease and returns this very object; any further call, or one on a
        frame that the caller owns already, returns a Frame with a lease of its own. One release for each share, always.

        :raises FrameReleasedError: after release.
        :raises StaleFrameError: the holder is at its quota.
        """
        lease = self._held()
        if self._borrowed:
            self._borrowed = False
            return self
        other = self.deliver(lease.holder)
        if other is None:
            raise StaleFrameError(f'{lease.holder} is at its quota of leases; release one first')
        return other

    @contextlib.contextmanager
    def map(self, *, write: bool = False) -> Iterator[PlaneViews]:
        """CPU access to a LINEAR frame's planes, without a copy, read-only unless *write*.

        :raises FrameReleasedError: after release.
        :raises FormatError: not LINEAR.
        :raises AllocationError: the exporter refuses mmap.
        :raises AcceleratorError: the acquire fence signalled an error, or didn't within a second.
        """
        self._held()
        fence = self.data.acquire_fence
        if fence is not None:
            if not fence.wait(1.0):
                raise AcceleratorError(f'frame {self.data.sequence}: its acquire fence did not signal within 1 s')
            fence.check()
        access = CpuAccess.READ | CpuAccess.WRITE if write else CpuAccess.READ
        self._mappings.append(None)
        try:
            with map_buffers(self.data.layout, self.data.buffers, access, self._live) as views:
                yield views
        finally:
            self._mappings.pop()

    def release(self, fence: Fence | None = None) -> None:
        """Drop the lease; with *fence*, the slot is reused only once that has signalled.

        A job that was given up may still be inside :meth:`map` in its own thread: release with the job's fence then.

        :raises BufferError: a NumPy view of the pixels is still alive, or without *fence* a ``map`` block is open; the frame stays leased.
        :raises FrameReleasedError: released before.
        """
        lease = self._held()
        self._live = [ref for ref in self._live if ref() is not None]
        if self._live or (self._mappings and fence is None):
            raise BufferError(
                f"frame {self.data.sequence} can't be released: a NumPy view of its pixels is still alive; "
                "drop it ('del view') or copy what you keep ('view.copy()')"
            )
        self._lease = None
        lease.pool.release(lease, fence)

    def __enter__(self) -> Frame:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if self._lease is not None:
            self.release()

    def __del__(self) -> None:
        lease = getattr(self, '_lease', None)
        if lease is not None:
            _abandon(lease, self._live)

    def __repr__(self) -> str:
        state = 'released' if self._lease is None else f'held by {self._lease.holder}'
        return f'Frame({self.data.sequence}, {self.data.layout.describe()}, {state})'
