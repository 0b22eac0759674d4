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

"""The message type of a camera frame: :class:`Frame`, a lease over :class:`FrameData`."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, SupportsIndex
import weakref

import numpy as np
from numpy.typing import NDArray

from zc_perception.errors import (
    AcceleratorError,
    ConfigError,
    FormatError,
    FrameReleasedError,
    StaleFrameError,
)
from zc_perception.forking import in_child, Turn
from zc_perception.mapping import PlaneViews
from zc_perception.memory import pool as pools
from zc_perception.memory.dmabuf import CpuAccess, DmaBuf
from zc_perception.memory.fence import Fence
from zc_perception.memory.ledger import FRAME_COPIES
from zc_perception.memory.pool import BufferPool, Lease, Slot
from zc_perception.native import compiled
from zc_perception.pixel.colorimetry import Colorimetry
from zc_perception.pixel.format_names import ros_encoding
from zc_perception.pixel.layout import ImageLayout, PlaneLayout

_READ, _READ_WRITE = CpuAccess.READ, CpuAccess.READ | CpuAccess.WRITE
# Each fork increments this number in the child. A frame stores the number of the process that made
# it. So a child recognizes a copy of a parent's frame; such a copy has no lease.
_process = 0
_new = object.__new__
_GREY_OR_LUMA = (('Y',), ('R',))
_DLPACK_CPU = (1, 0)


def _forked() -> None:
    global _process
    _process += 1


in_child(Turn.FRAMES, _forked)


@dataclass(frozen=True)
class Header:
    """
    The values of a ``std_msgs/Header``, for code that does not import ROS.

    :param stamp_ns: the time of exposure in the ROS clock, in nanoseconds.
    :param frame_id: the TF name of the camera's optical coordinate frame.
    """

    stamp_ns: int
    frame_id: str


class HeaderMessages(Protocol):
    """Makes ROS messages; a class elsewhere does this, because this module must not import ROS."""

    def stamp(self, stamp_ns: int) -> Any:
        """Return the time as a ``builtin_interfaces/msg/Time``."""

    def header(self, header: Header) -> Any:
        """Return the header as a ``std_msgs/msg/Header``."""


@dataclass(frozen=True, eq=False)
class FrameData:
    """
    The metadata of a frame: everything except its pixels.

    The object is immutable, and all leases of one frame share it.

    :param header: the time of exposure, and the name of the camera's optical coordinate frame.
    :param layout: size, format and planes; the properties below are parts of it.
    :param buffers: the memory; ``buffers[plane.buffer].fileno()`` is the descriptor of a plane's
        buffer. The frame owns the descriptor: never close it, use ``os.dup()`` to keep it.
    :param colorimetry: the colour space of the pixels.
    :param buffer_uid: identifies the slot's buffers; buffers that replace them have a new uid.
    :param generation: increases each time that the camera fills the buffers again.
    :param sequence: the camera's frame number; a gap means that frames were lost.
    :param captured_ns: the time, in CLOCK_MONOTONIC, at which the camera delivered the frame.
    :param capture_cost_ns: how long software worked on the frame (drawing, decoding), in
        nanoseconds; 0 for a frame that a driver filled.
    :param acquire_fence: signals when the pixels are complete; ``None``: they are complete
        already. :meth:`Frame.map` waits for the fence.
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
    """
    Return a frame's lease to the pool as soon as no array of its pixels is left.

    This runs in finalizers, so it takes no lock.

    :param live: for each buffer, a weak reference to one array. All arrays of the buffer's pixels
        are views of this array, which exists until the last of them is deleted.
    :param forgotten: whether the owner forgot to release the frame; the pool counts such frames.
    """
    for reference in live:
        root = reference()
        if root is not None:
            weakref.finalize(root, _abandon, lease, live, forgotten).atexit = False
            return
    lease.pool.abandon(lease, forgotten=forgotten)


class FrameMapping(PlaneViews):
    """The context manager of :meth:`Frame.map`; while it is open, release() needs a fence."""

    __slots__ = ('_frame',)

    _frame: Frame | None

    def __enter__(self) -> PlaneViews:
        frame = self._frame
        if frame is None or self._views is not None:
            raise FrameReleasedError(
                "a mapping can be entered only once: call 'frame.map()' for each 'with'"
            )
        # Register the mapping before checking the lease. release() in another thread removes the
        # lease before it checks for mappings. So this method sees that the lease has ended, or
        # release() sees the mapping.
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
                    f'frame {frame.data.sequence}: the lease of {lease.holder} was '
                    f'{lease.ended or "taken back"}, and its slot is in use again (generation '
                    f'{lease.generation}, now {lease.slot.generation}); use the newest frame'
                )
            self._begin()
        except BaseException:
            self._finish(frame)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        frame = self._frame
        if frame is not None:
            self._finish(frame)
        else:
            self._end()

    def stay_open(self) -> None:
        """Keep the mapping open until the frame's release, without keeping the frame alive."""
        frame, self._frame = self._frame, None
        if frame is not None:
            frame._mappings.append(self)
            frame._mappings.remove(None)

    def _finish(self, frame: Frame) -> None:
        self._frame = None
        try:
            self._end()
        finally:
            frame._mappings.remove(None)
            if frame._borrowed is None and None not in frame._mappings:
                frame._end_with_views()

    def __del__(self) -> None:
        if self._views is not None:
            self.__exit__(None, None, None)


class Frame:
    """
    A camera frame in the camera's own buffer.

    ::

        from zc_perception import Frame

        def on_frame(frame: Frame) -> None:      # the subscription calls it with each frame
            print(frame.sequence, frame.width, frame.y.mean())    # y is a NumPy array: no copy

    A Frame is a lease: while you hold it, the camera does not write to the buffer. :attr:`data`
    has the frame's metadata, see :class:`FrameData`. Each subscriber gets its own Frame, which no
    other subscriber can release.

    **Owner.** In a callback, the subscription owns the frame and releases it when the callback
    returns. In the loop of a :class:`FrameReader`, the reader owns the frame and releases it at
    the next step. Call :meth:`keep` to keep the frame. Everywhere else you own it: call
    :meth:`release`, or write ``with frame:``. If you forget this, the frame is released when
    Python collects it, and is counted as abandoned.

    **Pixels.** :attr:`y`, :attr:`uv` and :meth:`planes` return NumPy arrays over the camera's
    buffer. Use them while you hold the frame. An array that you keep longer never shows a later
    frame, because the camera can't use the buffer while the array exists. :meth:`copy` and
    :meth:`bgr` return new arrays. Their calls are counted, as ``copy`` and ``bgr``, in
    ``zc_perception.memory.ledger.FRAME_COPIES``, the ledger of the process.

    **Threads.** A frame may be passed to another thread, and read and released there. In a forked
    child, the parent's frames count as released.

    **Errors.** Each method lists its errors. ``copy.copy``, ``pickle`` and ``numpy.asarray`` raise
    TypeError and name the right call.
    """

    # Makes ROS messages; zc_perception.link.endpoints sets this when it is imported.
    _messages: HeaderMessages | None = None

    __slots__ = (
        '__weakref__',
        '_borrowed',
        '_lease',
        '_live',
        '_mappings',
        '_process',
        'data',
        'published_ns',
    )

    def __init__(self, data: FrameData, lease: Lease) -> None:
        self.data = data
        self.published_ns = 0
        self._lease: Lease | None = lease
        self._live: list[weakref.ref[NDArray[Any]]] = []
        # Has None for each open map() block (several threads may have one), and the mapping that
        # planes() has opened.
        self._mappings: list[FrameMapping | None] = []
        # True: the link will release the frame when the callback returns. False: the frame's owner
        # must release it. None: the link has released the frame, but its pixels are still in use.
        # The lease ends with the last map() block and the last array of these pixels.
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
        """For cameras: make the camera's own Frame over a slot that it has just filled."""
        # Set the fields without FrameData's constructor, which takes three times as long: a frozen
        # dataclass sets each field by a call.
        data = _new(FrameData)
        data.__dict__.update(
            header=header, layout=slot.layout, buffers=slot.buffers, colorimetry=colorimetry,
            buffer_uid=slot.buffer_uid, generation=slot.generation, sequence=sequence,
            captured_ns=captured_ns, capture_cost_ns=capture_cost_ns, acquire_fence=acquire_fence,
        )  # fmt: skip
        slot.sequence = sequence
        lease = pool.lease(slot, slot.generation, pool.name)
        if lease is None:
            raise StaleFrameError(
                f"holder {pool.name} can't lease the frame that it fills, because of its quota; "
                'remove the quota'
            )
        return cls(data, lease)

    @property
    def released(self) -> bool:
        """Whether the frame was released; always true for a parent's frame in a forked child."""
        return self._lease is None or self._process != _process

    @property
    def header(self) -> Header:
        """The frame's ``stamp_ns`` and ``frame_id``, for code that does not import ROS."""
        return self.data.header

    @property
    def width(self) -> int:
        """Image width in pixels, without padding."""
        return self.data.layout.width

    @property
    def height(self) -> int:
        """Image height in pixels, without padding."""
        return self.data.layout.height

    @property
    def fourcc(self) -> int:
        """The pixel format, as a DRM fourcc."""
        return self.data.layout.fourcc

    @property
    def modifier(self) -> int:
        """How the pixels are arranged, as a DRM format modifier; 0 is linear."""
        return self.data.layout.modifier

    @property
    def encoding(self) -> str:
        """
        The pixel format as ``sensor_msgs/Image`` names it, such as ``nv12`` or ``bgr8``.

        :raises FormatError: ROS has no name for the format: use :attr:`fourcc`.
        """
        return ros_encoding(self.data.layout.fourcc)

    @property
    def sequence(self) -> int:
        """The camera's frame number; a gap means that frames were lost."""
        return self.data.sequence

    @property
    def stamp(self) -> Any:
        """
        Time of exposure in the ROS clock, as a new ``builtin_interfaces/msg/Time``.

        ``header.stamp_ns`` is the same time in nanoseconds.
        """
        return self._made_by().stamp(self.data.header.stamp_ns)

    def header_msg(self) -> Any:
        """Return the header as a new ``std_msgs/msg/Header``, for messages of your own."""
        return self._made_by().header(self.data.header)

    def _made_by(self) -> HeaderMessages:
        if self._messages is None:
            raise ConfigError(
                "a frame can't make ROS messages, because this program has not loaded ROS: "
                'use frame.header.stamp_ns and frame.header.frame_id, or import '
                'zc_perception.link.endpoints first'
            )
        return self._messages

    @classmethod
    def make_messages_by(cls, messages: HeaderMessages) -> None:
        """For links: set the object that makes the ROS messages of all frames of this process."""
        cls._messages = messages

    @property
    def fds(self) -> tuple[int, ...]:
        """
        The file descriptor of each plane's buffer, to import the buffer into a device.

        Planes in one buffer have the same descriptor; ``data.planes`` has each plane's ``offset``
        and ``stride``. The frame owns the descriptors: never close them; call ``os.dup()`` for one
        that you use longer than the frame. A device must wait for ``data.acquire_fence`` first, if
        there is one.

        :raises FrameReleasedError: the frame was released before.
        """
        self._held()
        buffers = self.data.buffers
        return tuple(buffers[plane.buffer].fileno() for plane in self.data.layout.planes)

    def _held(self) -> Lease:
        if self._lease is None:
            raise FrameReleasedError(
                f'frame {self.data.sequence} was released: call frame.keep() in the callback or '
                'loop to keep it, and release the frame that keep() returns'
            )
        if self._process != _process:
            raise FrameReleasedError(
                f'frame {self.data.sequence} belongs to the parent process; a forked child owns '
                'no leases: subscribe in the child, or copy the pixels before the fork'
            )
        return self._lease

    def deliver(self, holder: str) -> Frame | None:
        """
        For links: lease the frame to *holder*; return ``None`` if its quota allows no more leases.

        :raises FrameReleasedError: this frame was released before.
        """
        lease = self._lease
        if lease is None or self._process != _process:
            lease = self._held()
        other = lease.pool.lease(lease.slot, lease.generation, holder)
        if other is None:
            return None
        frame = Frame(self.data, other)
        frame.published_ns = self.published_ns
        return frame

    def lend(self) -> None:
        """For links: mark the frame as borrowed by a callback; the link releases it afterwards."""
        self._borrowed = True

    @property
    def borrowed(self) -> bool:
        """For links: whether the link will release the frame, even if the callback doesn't."""
        return bool(self._borrowed)

    @property
    def pool(self) -> BufferPool:
        """For links: the pool of the frame's buffers; raise FrameReleasedError if released."""
        return self._held().pool

    def hand_out(self) -> bool:
        """
        For links: count a queued frame as delivered to its holder.

        Return ``False`` if the holder already holds as many frames as it may.
        """
        lease = self._lease
        return lease is None or lease.pool.hand_out(lease)

    def keep(self) -> Frame:
        """
        Keep the frame after the callback returns, or after this pass of the ``for`` loop.

        You own the returned Frame: release it. Each call needs its own release. The first call in
        a callback or loop returns this object itself. Each further call returns another Frame over
        the same buffer; all these Frames count as one frame for quotas.

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
        """For links: release the frame now, or when the last array of its pixels is deleted."""
        with contextlib.suppress(BufferError):
            self.release()
            return
        self._borrowed = None
        if None not in self._mappings:
            self._end_with_views()

    def _end_with_views(self) -> None:
        lease, self._lease = self._lease, None
        try:
            self._end_planes()
        finally:
            if lease is not None:
                _abandon(lease, self._live, False)

    def _end_planes(self) -> None:
        """
        End the mapping that :meth:`planes` has opened.

        If arrays of a buffer's pixels are still in use, ``_live`` gets a weak reference to the
        array of the whole buffer, of which these arrays are views.
        """
        for mapping in [each for each in self._mappings if each is not None]:
            with contextlib.suppress(ValueError):  # another thread has ended the mapping
                self._mappings.remove(mapping)
            mapping.__exit__(None, None, None)

    def _open(self) -> FrameMapping:
        """Return the mapping that lasts until the frame's release; open it at the first call."""
        for mapping in self._mappings:
            if mapping is not None:
                return mapping
        mapping = self.map()
        mapping.__enter__()
        mapping.stay_open()
        return mapping

    def planes(self) -> tuple[NDArray[Any], ...]:
        """
        Return the pixels as read-only NumPy arrays over the camera's buffer.

        There is one array for each plane, without a copy. NV12 has an array of shape (height,
        width) and one of (height/2, width/2, 2). Use the arrays while you hold the frame. If you
        keep one longer, the camera can't use the buffer: the frame counts as held until its last
        array is deleted.

        :raises FrameReleasedError: the frame was released before.
        :raises StaleFrameError: the camera took the lease back and uses the buffer again.
        :raises FormatError: the frame is not linear: only a device that knows its modifier can
            read it.
        :raises AllocationError: the memory can't be mapped.
        :raises AcceleratorError: a device did not finish with the buffer in time, or its fence
            signalled an error.
        """
        return tuple(self._open())

    @property
    def y(self) -> NDArray[Any]:
        """
        The luma or grey plane: one of the arrays of :meth:`planes`.

        The errors of :meth:`planes` are raised, too.

        :raises FormatError: the format has no such plane; the message names an alternative.
        """
        components = self.data.layout.format.components
        if components[0] not in _GREY_OR_LUMA:
            raise self._lacks('plane of luma')
        return self._open()[0]

    @property
    def uv(self) -> NDArray[Any]:
        """
        The plane of chroma pairs, U first: one of the arrays of :meth:`planes`.

        For formats with V first, such as NV21, the array is a reversed view, also without a copy.
        The errors of :meth:`planes` are raised, too.

        :raises FormatError: the format has no such plane; the message names an alternative.
        """
        components = self.data.layout.format.components
        if len(components) == 2 and components[1] == ('U', 'V'):
            return self._open()[1]
        if len(components) == 2 and components[1] == ('V', 'U'):
            return self._open()[1][..., ::-1]
        raise self._lacks('plane of U, V pairs')

    def _lacks(self, what: str) -> FormatError:
        name = self.data.layout.format.name.strip()
        return FormatError(
            f'{name} has no {what}: frame.planes() returns the samples as they are stored, '
            'frame.bgr() returns a BGR picture'
        )

    def bgr(self, out: NDArray[np.uint8] | None = None) -> NDArray[np.uint8]:
        """
        Return a copy as a colour picture for OpenCV: a BGR array (height, width, 3).

        :param out: an array to write the picture to, so that no memory is allocated; by default a
            new array is made.
        :raises FormatError: the format or colorimetry has no conversion, or the frame is not
            linear.
        :raises LayoutError: *out* does not have that shape, or is not uint8.
        :raises FrameReleasedError: the frame was released before.
        """
        from zc_perception.pictures import (
            bgr_picture,
        )  # imported here, because it imports OpenCV, which most programs don't need

        with self.map() as planes:
            picture = bgr_picture(planes, self.data.layout, self.data.colorimetry, out)
        FRAME_COPIES.book('bgr', picture.nbytes)
        return picture

    def copy(self) -> tuple[NDArray[Any], ...]:
        """
        Return copies of the arrays of :meth:`planes`, which you may keep after the release.

        :raises FormatError: the frame is not linear: only a device that knows its modifier can
            read it.
        :raises FrameReleasedError: the frame was released before.
        """
        with self.map() as planes:
            copies = tuple(np.array(plane, order='C') for plane in planes)
        FRAME_COPIES.book('copy', sum(each.nbytes for each in copies))
        return copies

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError(
            f'frame {self.data.sequence} is no array but has {len(self.data.layout.planes)} '
            'plane(s): use frame.y, frame.uv or frame.planes() for arrays without a copy, '
            'frame.bgr() for a colour picture, or frame.copy() for copies of the planes'
        )

    def __dlpack__(self, **asked: Any) -> Any:
        """
        Export the whole image as one read-only array, without a copy.

        ``from_dlpack()`` of NumPy, torch and others calls this. The array of NV12 has the shape
        (height * 3/2, width), as OpenCV's conversions expect it. For one plane, use
        ``from_dlpack(frame.y)``. While you keep the result, the camera can't use the buffer, as
        with an array of :meth:`planes`. The export needs NumPy 2.1, and a library that requests
        DLPack 1.0: older versions can't mark memory as read-only.

        :raises BufferError: the planes don't form one array, or the library requests a version
            that can't mark memory as read-only.
        :raises FrameReleasedError: the frame was released before.
        """
        return self._open().whole().__dlpack__(**asked)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return DLPack's device type and id: the CPU."""
        return _DLPACK_CPU

    def _await_acquire(self, fence: Fence) -> None:
        if not fence.wait(1.0):
            raise AcceleratorError(
                f'frame {self.data.sequence}: its acquire fence did not signal within 1 s'
            )
        fence.check()

    def map(self, *, write: bool = False) -> FrameMapping:  # noqa: A003
        """
        Map the pixels for the CPU in a block, without a copy: ``with frame.map() as planes:``.

        ``planes[i]`` is a NumPy array over the buffer, read-only unless *write*. NV12 has
        ``planes[0]`` of shape (height, width) and ``planes[1]`` of shape (height/2, width/2, 2).
        Don't use the arrays after the block; copy one to keep it (``planes[0].copy()``). The
        ``with`` statement raises the errors, not this call.

        :param write: whether the arrays can be written. Only the producer of a frame should write,
            because all consumers read the same memory.
        :raises FrameReleasedError: the frame was released before.
        :raises StaleFrameError: the camera took the lease back and uses the buffer again.
        :raises FormatError: the frame is not linear: only a device that knows its modifier can
            read it.
        :raises AllocationError: the memory can't be mapped, or *write* is set and this process may
            only read the memory.
        :raises AcceleratorError: a device did not finish with the buffer in time, or its fence
            signalled an error.
        """
        data = self.data
        mapping = FrameMapping(
            data.layout, data.buffers, _READ_WRITE if write else _READ, self._live
        )
        mapping._frame = self
        return mapping

    def release(self, fence: Fence | None = None) -> None:
        """
        Give the buffer back to the camera.

        With *fence*, the camera uses the buffer again only after *fence* has signalled.

        :param fence: the fence of a device that may still read the buffer; the pool owns it from
            this call on.
        :raises BufferError: an array of the pixels still exists, or a ``map`` block is open and
            *fence* is missing. You still own the frame, and *fence*.
        :raises FrameReleasedError: the frame was released before.
        """
        if self._process != _process:
            # A forked child may run the parent's clean-up code; the child's frames have no lease.
            return
        if self._mappings:
            self._end_planes()
        lease = self._lease
        if lease is None:
            lease = self._held()
        self._lease = None
        if (self._mappings and fence is None) or (
            self._live and any(reference() is not None for reference in self._live)
        ):
            self._lease = lease
            raise BufferError(
                f"frame {self.data.sequence} can't be released: a NumPy view of its pixels is "
                "still alive; drop it ('del view') or copy what you keep ('view.copy()')"
            )
        lease.pool.release(lease, fence)

    def __enter__(self) -> Frame:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self._lease is None:
            return
        try:
            self.release()
        except BufferError:
            # release() failed because arrays of the frame's planes are still in use. If the block
            # has raised an exception, don't replace it: its traceback refers to these arrays, and
            # they are freed together with the traceback.
            if kind is None:
                raise

    def __del__(self) -> None:
        lease = getattr(self, '_lease', None)
        if lease is not None and self._process == _process:
            try:
                if self._mappings:
                    self._end_planes()
            finally:
                # Mark the frame as released. If the garbage collector deletes this frame together
                # with a coroutine, the coroutine's 'finally' may still try to use the frame.
                self._lease = None
                # A borrowed frame doesn't count as forgotten: the code that lent it releases it.
                _abandon(lease, self._live, not self._borrowed)

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(
            f"frame {self.data.sequence} can't be copied or pickled, because it has one lease: "
            'call frame.keep() for another lease, or frame.copy() for the pixels'
        )

    def __repr__(self) -> str:
        state = (
            'released' if self._lease is None or self.released else f'held by {self._lease.holder}'
        )
        return f'Frame({self.data.sequence}, {self.data.layout.describe()}, {state})'


if compiled is not None:
    compiled.take_over(globals(), vars(pools))
