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

"""The type-adapted message: :class:`Frame`, a lease over the immutable :class:`FrameData`."""

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
# This number grows in a forked child, because the child's copies of frames are no leases.
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
    The values of a ``std_msgs/Header``, without ROS.

    They are the time of exposure in the ROS clock, and the name of the camera's optical frame.
    """

    stamp_ns: int
    frame_id: str


class HeaderMessages(Protocol):
    """Makes ROS messages of headers, for modules that must not import ROS."""

    def stamp(self, stamp_ns: int) -> Any:
        """Return a ``builtin_interfaces/msg/Time``."""

    def header(self, header: Header) -> Any:
        """Return a ``std_msgs/msg/Header``."""


@dataclass(frozen=True, eq=False)
class FrameData:
    """
    Everything that is known about a frame except its pixels.

    The values never change, and all leases of one frame share this object.

    :param header: ``stamp_ns``, the time of exposure in the ROS clock, and ``frame_id``, the
        camera's optical frame.
    :param layout: size, format and planes; the properties below are parts of it.
    :param buffers: the memory; ``buffers[plane.buffer].fileno()`` is the descriptor of a plane's
        buffer. The frame owns it: never close it, use ``os.dup()`` to keep it.
    :param colorimetry: which colours the pixels' numbers mean.
    :param buffer_uid: identifies the buffers; a buffer that replaces another one has a new uid.
    :param generation: grows by each new use of the buffers.
    :param sequence: the camera's number of the frame; a gap means that frames were lost.
    :param captured_ns: CLOCK_MONOTONIC of the moment at which the camera had the frame.
    :param capture_cost_ns: how long the camera's software worked on it (drawing, decoding); 0 for
        a frame that a driver filled.
    :param acquire_fence: signals when the pixels are complete; ``None``: they are complete
        already. :meth:`Frame.map` waits for it.
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
    Take a frame's lease back as soon as no view of its pixels is left.

    This runs in finalizers, so it takes no lock.

    :param forgotten: whether the owner forgot to release the frame.
    """
    for reference in live:
        root = reference()
        if root is not None:
            weakref.finalize(root, _abandon, lease, live, forgotten).atexit = False
            return
    lease.pool.abandon(lease, forgotten=forgotten)


class FrameMapping(PlaneViews):
    """
    The context manager that :meth:`Frame.map` returns.

    While its block is open, the frame can be released only with a fence.
    """

    __slots__ = ('_frame',)

    _frame: Frame | None

    def __enter__(self) -> PlaneViews:
        frame = self._frame
        if frame is None or self._views is not None:
            raise FrameReleasedError("a mapping is entered once: call 'frame.map()' again")
        # Register the mapping first, and check the lease afterwards. release() takes the lease
        # first, and checks for mappings afterwards. So of two threads at least one sees the other.
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
                    f'{lease.ended or "taken back"}, its slot is not its own any more (generation '
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
        """
        Let the frame end the mapping, instead of the end of a block.

        From then on the mapping doesn't keep the frame alive.
        """
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
    A camera frame, in the camera's own buffer.

    ::

        from zc_perception import Frame

        def on_frame(frame: Frame) -> None:      # the subscription calls it with each frame
            print(frame.sequence, frame.width, frame.y.mean())    # y is a NumPy array: no copy

    A Frame is a lease: while you hold it, the camera does not write to the buffer. :attr:`data`
    says everything about the frame except its pixels, see :class:`FrameData`. Each subscriber gets
    a Frame of its own, and no subscriber can end the Frame of another.

    **Owner.** In a callback the subscription owns the frame and releases it when the callback
    returns. In the loop of a :class:`FrameReader` the reader owns it and releases it at the next
    step. Call :meth:`keep` to keep it. Everywhere else you own it: call :meth:`release`, or write
    ``with frame:``. A frame that you forget is taken back late, and is counted as abandoned.

    **Pixels.** :attr:`y`, :attr:`uv` and :meth:`planes` give NumPy arrays over the camera's
    buffer. Use them while you hold the frame. An array that you keep longer keeps the buffer from
    the camera, so that it never shows a later frame. :meth:`copy` and :meth:`bgr` give arrays of
    your own. Both are counted under the names ``copy`` and ``bgr`` in
    ``zc_perception.memory.ledger.FRAME_COPIES``, the ledger of the process.

    **Threads.** A frame may be handed to another thread, and read and released there. After a fork
    the child's frames count as released.

    **Errors.** Each method lists its own. ``copy.copy``, ``pickle`` and ``numpy.asarray`` raise
    TypeError and name the right call.
    """

    # makes ROS messages; a module that needs ROS sets this when it is loaded
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
        # Has None for each open map() block, and the mapping itself that planes() has opened. It
        # is a list, because several threads may be in map() blocks.
        self._mappings: list[FrameMapping | None] = []
        # Whether the link releases the frame, not the callback. None: the link ended the frame
        # while a map() block was open.
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
        """For cameras: return the producer's own Frame over a slot that it has just filled."""
        # Do what the constructor does, in a third of the time: a frozen dataclass sets each field
        # by a call.
        data = _new(FrameData)
        data.__dict__.update(
            header=header, layout=slot.layout, buffers=slot.buffers, colorimetry=colorimetry,
            buffer_uid=slot.buffer_uid, generation=slot.generation, sequence=sequence,
            captured_ns=captured_ns, capture_cost_ns=capture_cost_ns, acquire_fence=acquire_fence,
        )  # fmt: skip
        slot.sequence = sequence
        lease = pool.lease(slot, slot.generation, pool.name)
        if lease is None:
            raise StaleFrameError(f'{pool.name} has a quota on itself; remove it')
        return cls(data, lease)

    @property
    def released(self) -> bool:
        """Whether the frame was released; in a forked child this is always true."""
        return self._lease is None or self._process != _process

    @property
    def header(self) -> Header:
        """The frame's ``stamp_ns`` and ``frame_id``, without ROS."""
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

        :raises FormatError: ROS has no name for it: use :attr:`fourcc`.
        """
        return ros_encoding(self.data.layout.fourcc)

    @property
    def sequence(self) -> int:
        """The camera's number of the frame; a gap means that frames were lost."""
        return self.data.sequence

    @property
    def stamp(self) -> Any:
        """
        Time of exposure in the ROS clock, as a new ``builtin_interfaces/msg/Time``.

        ``header.stamp_ns`` is the same as a number.
        """
        return self._made_by().stamp(self.data.header.stamp_ns)

    def header_msg(self) -> Any:
        """Return the header as a new ``std_msgs/msg/Header``, for messages of your own."""
        return self._made_by().header(self.data.header)

    def _made_by(self) -> HeaderMessages:
        if self._messages is None:
            raise ConfigError(
                'nothing of this program has loaded ROS, so that a frame has no ROS messages: '
                'use frame.header.stamp_ns and frame.header.frame_id, or import '
                'zc_perception.link.endpoints first'
            )
        return self._messages

    @classmethod
    def make_messages_by(cls, messages: HeaderMessages) -> None:
        """For links: how :attr:`stamp` and :meth:`header_msg` become messages, from now on."""
        cls._messages = messages

    @property
    def fds(self) -> tuple[int, ...]:
        """
        The file descriptor of each plane's buffer, to import it elsewhere.

        Planes in one buffer have the same descriptor.

        ``data.planes`` has each plane's ``offset`` and ``stride``. The frame owns the descriptors:
        never close them, and ``os.dup()`` what you use longer. A device has to wait for
        ``data.acquire_fence`` first, if there is one.

        :raises FrameReleasedError: the frame was released before.
        """
        self._held()
        buffers = self.data.buffers
        return tuple(buffers[plane.buffer].fileno() for plane in self.data.layout.planes)

    def _held(self) -> Lease:
        if self._lease is None:
            raise FrameReleasedError(
                f'frame {self.data.sequence} was released: call frame.keep() in the callback or '
                'loop to keep it, and release what it returns'
            )
        if self._process != _process:
            raise FrameReleasedError(
                f'frame {self.data.sequence} belongs to the parent process, a forked child owns '
                'no leases: subscribe in the child, or copy the pixels before the fork'
            )
        return self._lease

    def deliver(self, holder: str) -> Frame | None:
        """
        For links: return a new Frame for *holder*; ``None``: the holder is at its quota.

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
        """For links: note that the frame ends when the callback that gets it returns."""
        self._borrowed = True

    @property
    def borrowed(self) -> bool:
        """For links: whether the link releases the frame, not the callback."""
        return bool(self._borrowed)

    @property
    def pool(self) -> BufferPool:
        """
        For links: the pool of the frame's buffers.

        :raises FrameReleasedError: this frame was released before.
        """
        return self._held().pool

    def hand_out(self) -> bool:
        """
        For links: hand this frame to its holder, for which it has waited.

        Return ``False`` while the holder has as many frames as its quota allows.
        """
        lease = self._lease
        return lease is None or lease.pool.hand_out(lease)

    def keep(self) -> Frame:
        """
        Keep the frame beyond the callback, or the step of a loop.

        You own the Frame that is returned: release it. Each call needs its own release.

        The first call in a callback returns this very object. Each further call returns another
        Frame over the same buffer, which counts as the same frame.

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
        """
        For links: release the frame as soon as no array of its pixels is left.

        This may happen on any thread.
        """
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

        Arrays that are still in use are noted in ``_live``.
        """
        for mapping in [each for each in self._mappings if each is not None]:
            with contextlib.suppress(ValueError):  # another thread has ended the mapping
                self._mappings.remove(mapping)
            mapping.__exit__(None, None, None)

    def _open(self) -> FrameMapping:
        """Open the CPU's access to the pixels, which lasts as long as the frame."""
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
        width) and one of (height/2, width/2, 2). Use them while you hold the frame. An array that
        you keep longer keeps the buffer from the camera: the frame counts as held until its last
        array is gone.

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
        The plane of luma or grey: one of :meth:`planes`' arrays, with the same errors.

        :raises FormatError: the format has no such plane; the message names what to use.
        """
        components = self.data.layout.format.components
        if components[0] not in _GREY_OR_LUMA:
            raise self._lacks('plane of luma')
        return self._open()[0]

    @property
    def uv(self) -> NDArray[Any]:
        """
        The plane of chroma pairs, U first.

        It is an array as :meth:`planes` returns them, with the same errors. For formats that have
        V first, such as NV21, it shows the pairs reversed, also without a copy.

        :raises FormatError: the format has no such plane; the message names what to use.
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
            f'{name} has no {what}: frame.planes() has its samples as they are, frame.bgr() '
            'makes a picture of them'
        )

    def bgr(self, out: NDArray[np.uint8] | None = None) -> NDArray[np.uint8]:
        """
        Return a colour picture as OpenCV uses: an array (height, width, 3) of your own.

        The conversion is counted as ``bgr``.

        :param out: an array for the picture, so that no memory is allocated; by default a new
            array.
        :raises FormatError: the format or colorimetry has no conversion, or the frame is not
            linear.
        :raises LayoutError: *out* is not uint8 of that shape.
        :raises FrameReleasedError: the frame was released before.
        """
        from zc_perception.pictures import (
            bgr_picture,
        )  # imported here: it needs OpenCV, which most users of frames don't

        with self.map() as planes:
            picture = bgr_picture(planes, self.data.layout, self.data.colorimetry, out)
        FRAME_COPIES.book('bgr', picture.nbytes)
        return picture

    def copy(self) -> tuple[NDArray[Any], ...]:
        """
        Return the arrays of :meth:`planes` as copies of your own.

        You can keep the copies as long as you like. The call is counted as ``copy``.

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
            f'frame {self.data.sequence} is no array, it has {len(self.data.layout.planes)} '
            'plane(s): frame.y, frame.uv or frame.planes() '
            'are arrays without a copy, frame.bgr() is a colour picture, frame.copy() copies'
        )

    def __dlpack__(self, **asked: Any) -> Any:
        """
        Export the whole image as one read-only array, without a copy.

        ``from_dlpack()`` of NumPy, torch and others calls it. NV12 is (height * 3/2, width), as
        OpenCV's conversions take it. A plane alone is ``from_dlpack(frame.y)``. While you keep the
        result, the camera can't use the buffer, as with an array of :meth:`planes`. The export
        needs NumPy 2.1, and a library that asks for DLPack 1.0: older versions can't say that
        memory is read-only.

        :raises BufferError: the planes don't form one array, or the library can't be told that
            memory is read-only.
        :raises FrameReleasedError: the frame was released before.
        """
        return self._open().whole().__dlpack__(**asked)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return the CPU's device numbers."""
        return _DLPACK_CPU

    def _await_acquire(self, fence: Fence) -> None:
        if not fence.wait(1.0):
            raise AcceleratorError(
                f'frame {self.data.sequence}: its acquire fence did not signal within 1 s'
            )
        fence.check()

    def map(self, *, write: bool = False) -> FrameMapping:  # noqa: A003
        """
        Read the pixels with the CPU in a block, without a copy.

        For example ``with frame.map() as planes:``. ``planes[i]`` is a NumPy array over the
        buffer, read-only unless *write*. NV12 has ``planes[0]`` of shape (height, width) and
        ``planes[1]`` of shape (height/2, width/2, 2). The arrays end with the block: copy what you
        keep (``planes[0].copy()``). The ``with`` statement raises the errors, not this call.

        :param write: whether the arrays can be written. Only the producer of a frame should write:
            all consumers read the same memory.
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
        :raises BufferError: an array of the pixels is still alive, or without *fence* a ``map``
            block is open. The frame stays yours.
        :raises FrameReleasedError: the frame was released before.
        """
        if self._process != _process:
            # The same clean-up runs in a forked child, where the frame has no lease to release.
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
            # The traceback of an exception keeps the views alive that its functions hold. Don't
            # raise here, so that the exception isn't hidden; the views end with its traceback.
            if kind is None:
                raise

    def __del__(self) -> None:
        lease = getattr(self, '_lease', None)
        if lease is not None and self._process == _process:
            try:
                if self._mappings:
                    self._end_planes()
            finally:
                # If the frame is in a collected cycle, a coroutine that is closed only now may
                # still use it.
                self._lease = None
                _abandon(lease, self._live)

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(
            f"frame {self.data.sequence} can't be copied or pickled, it is one lease: call "
            'frame.keep() for another lease, or frame.copy() for the pixels'
        )

    def __repr__(self) -> str:
        state = (
            'released' if self._lease is None or self.released else f'held by {self._lease.holder}'
        )
        return f'Frame({self.data.sequence}, {self.data.layout.describe()}, {state})'


if compiled is not None:
    compiled.take_over(globals(), vars(pools))
