"""The type-adapted message: :class:`Frame`, one lease over the immutable, shared :class:`FrameData`."""

from __future__ import annotations

import contextlib
import os
import weakref
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NoReturn, SupportsIndex, cast

from numpy.typing import NDArray

from zc_perception.errors import AcceleratorError, FrameReleasedError, StaleFrameError
from zc_perception.mapping import PlaneViews
from zc_perception.memory.dmabuf import CpuAccess, DmaBuf
from zc_perception.memory.fence import Fence
from zc_perception.memory.pool import BufferPool, Lease, Slot
from zc_perception.pixel.colorimetry import Colorimetry
from zc_perception.pixel.layout import ImageLayout, PlaneLayout

_READ, _READ_WRITE = CpuAccess.READ, CpuAccess.READ | CpuAccess.WRITE
# Goes up in a forked child, whose copies of the parent's frames are no leases.
_process = 0
_new = object.__new__


def _forked() -> None:
    global _process
    _process += 1


os.register_at_fork(after_in_child=_forked)


@dataclass(frozen=True)
class Header:
    """``std_msgs/Header`` without ROS: time of exposure in the ROS clock, and the camera's optical frame."""

    stamp_ns: int
    frame_id: str


@dataclass(frozen=True, eq=False)
class FrameData:
    """Everything that is known of a frame except its pixels. It never changes, and all leases of one frame share it.

    :param header: ``stamp_ns``, the time of exposure in the ROS clock, and ``frame_id``, the camera's optical frame.
    :param layout: size, format and planes; the properties below are parts of it.
    :param buffers: the memory; ``buffers[plane.buffer].fileno()`` is the descriptor of a plane's buffer. The frame owns it: never close
        it, use ``os.dup()`` to keep it.
    :param colorimetry: which colours the numbers mean.
    :param buffer_uid: names the buffers; a buffer that replaces another one has another name.
    :param generation: goes up each time the buffers are used again.
    :param sequence: the camera's number of the frame; a gap means that frames were lost.
    :param captured_ns: CLOCK_MONOTONIC of the moment at which the camera had the frame.
    :param capture_cost_ns: how long the camera's software worked on it (drawing, decoding); 0 for a frame that a driver filled.
    :param acquire_fence: signals when the pixels are complete; ``None``: they are. :meth:`Frame.map` waits for it.
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
        """Image width in pixels, without padding."""
        return self.layout.width

    @property
    def height(self) -> int:
        """Image height in pixels, without padding."""
        return self.layout.height

    @property
    def fourcc(self) -> int:
        """The pixel format, as a DRM fourcc."""
        return self.layout.fourcc

    @property
    def modifier(self) -> int:
        """How the pixels are arranged, as a DRM format modifier; 0 is linear."""
        return self.layout.modifier

    @property
    def planes(self) -> tuple[PlaneLayout, ...]:
        """Each plane's ``buffer`` (an index), ``offset``, ``stride`` and ``size``, in bytes."""
        return self.layout.planes


def _abandon(lease: Lease, live: list[weakref.ref[NDArray[Any]]], forgotten: bool = True) -> None:
    """Take a frame's lease back once no view of its pixels is left. Runs in finalizers: takes no lock.

    :param forgotten: its owner forgot to release it.
    """
    for reference in live:
        root = reference()
        if root is not None:
            weakref.finalize(root, _abandon, lease, live, forgotten).atexit = False
            return
    lease.pool.abandon(lease, forgotten=forgotten)


class FrameMapping(PlaneViews):
    """The block of :meth:`Frame.map`. While it is open, the frame can't be released but with a fence."""

    __slots__ = ('_frame',)

    _frame: Frame | None

    def __enter__(self) -> PlaneViews:
        frame = self._frame
        if frame is None or self._views is not None:
            raise FrameReleasedError("a mapping is entered once: call 'frame.map()' again")
        # Before the lease is looked at, while release() takes the lease before it looks here: one of the two sees the other.
        frame._mappings.append(None)
        try:
            lease = frame._lease
            if lease is None or frame._process != _process:
                lease = frame._held()
            fence = frame.data.acquire_fence
            if fence is not None:
                frame._await_acquire(fence)
            if lease.ended or lease.slot.generation != lease.generation:
                raise StaleFrameError(
                    f'frame {frame.data.sequence}: the lease of {lease.holder} was {lease.ended or "taken back"}, its slot is not its own '
                    f'any more (generation {lease.generation}, now {lease.slot.generation}); use the newest frame'
                )
            self._begin()
        except BaseException:
            self._finish(frame)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        frame = self._frame
        if frame is not None:
            self._finish(frame)

    def _finish(self, frame: Frame) -> None:
        self._frame = None
        try:
            self._end()
        finally:
            frame._mappings.pop()
            if frame._borrowed is None and not frame._mappings:
                frame._end_with_views()

    def __del__(self) -> None:
        if self._views is not None:
            self.__exit__(None, None, None)


class Frame:
    """A camera frame, in the camera's own buffer.

    ::

        from zc_perception import Frame


        def on_frame(frame: Frame) -> None:      # a FrameSubscription calls it with each frame
            with frame.map() as planes:          # NumPy arrays of the planes: nothing is copied
                print(frame.data.sequence, frame.data.width, planes[0].mean())

    A Frame is a lease: while you hold it, the camera does not write to the buffer. :attr:`data` says everything about the frame except
    its pixels, see :class:`FrameData`. Each subscriber gets a Frame of its own, and nobody can end the Frame of another.

    **Owner.** In a callback the subscription owns the frame and releases it when the callback returns. Call :meth:`share` in the
    callback to keep it. Everywhere else you own it: call :meth:`release`, or write ``with frame:``. A frame that you forget is taken
    back late, and is counted as abandoned.

    **Threads.** A frame may be handed to another thread, and read and released there. After a fork the child's frames count as
    released.

    **Errors.** Each method lists its own. ``copy.copy`` and ``pickle`` raise TypeError: a lease can't be copied.
    """

    __slots__ = ('__weakref__', '_borrowed', '_lease', '_live', '_mappings', '_process', 'data', 'published_ns')

    def __init__(self, data: FrameData, lease: Lease) -> None:
        self.data = data
        self.published_ns = 0
        self._lease: Lease | None = lease
        self._live: list[weakref.ref[NDArray[Any]]] = []
        # One entry for each map() block that is open; a list, because another thread may be in one.
        self._mappings: list[None] = []
        # None: its link has ended it, while somebody is in a map() block.
        self._borrowed: bool | None = False
        self._process = _process

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
        """For cameras: the producer's own lease over a slot that it has just filled."""
        # What its constructor does, in a third of the time: a frozen dataclass sets each field by a call.
        data = _new(FrameData)
        data.__dict__.update(
            header=header, layout=slot.layout, buffers=slot.buffers, colorimetry=colorimetry, buffer_uid=slot.buffer_uid,
            generation=slot.generation, sequence=sequence, captured_ns=captured_ns, capture_cost_ns=capture_cost_ns,
            acquire_fence=acquire_fence,
        )  # fmt: skip
        slot.sequence = sequence
        lease = pool.lease(slot, slot.generation, pool.name)
        if lease is None:
            raise StaleFrameError(f'{pool.name} has a quota on itself; remove it')
        return cls(data, lease)

    @property
    def released(self) -> bool:
        """Whether it was released. In a forked child it always is."""
        return self._lease is None or self._process != _process

    @property
    def header(self) -> Header:
        """The frame's ``stamp_ns`` and ``frame_id``."""
        return self.data.header

    def _held(self) -> Lease:
        if self._lease is None:
            raise FrameReleasedError(
                f'frame {self.data.sequence} was released: call frame.share() in the callback to keep it, and release what it returns'
            )
        if self._process != _process:
            raise FrameReleasedError(
                f'frame {self.data.sequence} belongs to the parent process, a forked child owns no leases: '
                'subscribe in the child, or copy the pixels before the fork'
            )
        return self._lease

    def deliver(self, holder: str) -> Frame | None:
        """For links: a Frame of its own for *holder*, or ``None`` when that is at its quota.

        :raises FrameReleasedError: this one was released.
        """
        lease = self._held()
        other = lease.pool.lease(lease.slot, lease.generation, holder)
        if other is None:
            return None
        frame = Frame(self.data, other)
        frame.published_ns = self.published_ns
        return frame

    def lend(self) -> None:
        """For links: mark the frame as ending with the callback that it is handed to."""
        self._borrowed = True

    @property
    def borrowed(self) -> bool:
        """For links: whether the link, not the callback, releases it."""
        return bool(self._borrowed)

    @property
    def pool(self) -> BufferPool:
        """For links: whose buffers these are.

        :raises FrameReleasedError: this one was released.
        """
        return cast(BufferPool, self._held().pool)

    def hand_out(self) -> bool:
        """For links: the holder gets this frame, which has been waiting for it; ``False`` while it has as many as it may."""
        lease = self._lease
        if lease is None:
            return True
        account = lease.account
        window = account.window
        if window is None:
            return True
        if account.frames <= window:  # as nearly always: all that it has is no more than it may have
            lease.handed = True
            return True
        return lease.pool.hand_out(lease)

    def share(self) -> Frame:
        """Keep the frame beyond the callback. You own the Frame that is returned: release it, once for each call of ``share``.

        The first call in a callback returns this very object. Each further call returns another Frame over the same buffer, which counts
        as the same frame.

        :raises FrameReleasedError: the frame was released before.
        :raises StaleFrameError: the camera took the lease back and uses the buffer again.
        """
        lease = self._held()
        if self._borrowed:
            self._borrowed = False
            return self
        frame = Frame(self.data, lease.pool.again(lease))
        frame.published_ns = self.published_ns
        return frame

    def release_when_unseen(self) -> None:
        """For links: release the frame as soon as no array of its pixels is left, on whichever thread that is."""
        with contextlib.suppress(BufferError):
            self.release()
            return
        self._borrowed = None
        if not self._mappings:
            self._end_with_views()

    def _end_with_views(self) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            _abandon(lease, self._live, False)

    def _await_acquire(self, fence: Fence) -> None:
        if not fence.wait(1.0):
            raise AcceleratorError(f'frame {self.data.sequence}: its acquire fence did not signal within 1 s')
        fence.check()

    def map(self, *, write: bool = False) -> FrameMapping:
        """Read the pixels with the CPU, without a copy: ``with frame.map() as planes:``.

        ``planes[i]`` is a NumPy array over the buffer, read-only unless *write*. NV12 has ``planes[0]`` of shape (height, width) and
        ``planes[1]`` of shape (height/2, width/2, 2). The arrays end with the block: copy what you keep (``planes[0].copy()``).
        The ``with`` statement raises the errors, not this call.

        :param write: whether the arrays can be written. Only the producer of a frame should: everybody else reads the same memory.
        :raises FrameReleasedError: the frame was released before.
        :raises StaleFrameError: the camera took the lease back and uses the buffer again.
        :raises FormatError: the frame is not linear: only a device that knows its modifier can read it.
        :raises AllocationError: the memory can't be mapped, or *write* is set and this process may only read it.
        :raises AcceleratorError: a device did not finish with the buffer in time, or its fence signalled an error.
        """
        data = self.data
        mapping = FrameMapping(data.layout, data.buffers, _READ_WRITE if write else _READ, self._live)
        mapping._frame = self
        return mapping

    def release(self, fence: Fence | None = None) -> None:
        """Give the buffer back to the camera. With *fence*, the camera uses it again only when *fence* has signalled.

        :param fence: of a device that may still read the buffer; it belongs to the pool from here on.
        :raises BufferError: an array from :meth:`map` is still alive, or without *fence* a ``map`` block is open. The frame stays yours.
        :raises FrameReleasedError: it was released before.
        """
        if self._process != _process:
            return  # The same clean-up runs in a forked child, which has nothing to give back.
        lease, self._lease = self._held(), None
        if (self._mappings and fence is None) or (self._live and any(reference() is not None for reference in self._live)):
            self._lease = lease
            raise BufferError(
                f"frame {self.data.sequence} can't be released: a NumPy view of its pixels is still alive; "
                "drop it ('del view') or copy what you keep ('view.copy()')"
            )
        lease.pool.release(lease, fence)

    def __enter__(self) -> Frame:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        # The traceback of an exception keeps views alive that its functions hold; it matters more than they, and ends with them.
        with contextlib.suppress(BufferError) if kind is not None else contextlib.nullcontext():
            if self._lease is not None:
                self.release()

    def __del__(self) -> None:
        lease = getattr(self, '_lease', None)
        if lease is not None and self._process == _process:
            _abandon(lease, self._live)

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(
            f"frame {self.data.sequence} can't be copied or pickled, it is one lease: call frame.share() for another lease, "
            "or copy the pixels ('view.copy()')"
        )

    def __repr__(self) -> str:
        state = 'released' if self._lease is None or self.released else f'held by {self._lease.holder}'
        return f'Frame({self.data.sequence}, {self.data.layout.describe()}, {state})'
