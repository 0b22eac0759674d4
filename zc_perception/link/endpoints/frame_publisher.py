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

"""A publisher of camera frames for your own node, with a default for every option."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
import contextlib
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, replace
import functools
import threading
import time
from types import TracebackType
from typing import Any

from builtin_interfaces.msg import Time
import numpy as np
from numpy.typing import NDArray
from rclpy.node import Node
from rclpy.qos import QoSProfile
from rclpy.time import Time as RclpyTime

from zc_perception.camera.camera import drawn_constraints, heap_pool
from zc_perception.errors import AcceleratorError, ConfigError, shown, ZcError
from zc_perception.frame import Frame, Header
from zc_perception.link.endpoints.frame_offer import FrameOffer, serve_frames
from zc_perception.link.endpoints.publisher import AdaptedPublisher, PublisherStatistics
from zc_perception.link.endpoints.qos import link_qos
from zc_perception.link.foreign_images import ForeignImages
from zc_perception.link.image_conversion import frame_adapter
from zc_perception.link.shared_memory.unix_socket import check_ids
from zc_perception.link.shared_memory.wire import frame_id_bytes
from zc_perception.log import Seldom
from zc_perception.mapping import map_buffers
from zc_perception.memory.dmabuf import CpuAccess
from zc_perception.memory.fence import fence_from_fd, SyncFile
from zc_perception.memory.heaps import OfferedHeaps, working_heaps
from zc_perception.memory.ledger import CopyLedger
from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.memory.pool import BufferPool, ForeignBufferPool, HeldBuffers, MAX_SLOTS, Slot
from zc_perception.negotiation.constraints import BufferConstraints, parse_stand_ins, Size
from zc_perception.negotiation.settings import Allocation, AllocationRequest
from zc_perception.pixel.colorimetry import BT601_LIMITED, Colorimetry, named_colorimetry, RGB_FULL
from zc_perception.pixel.format_names import named_format
from zc_perception.pixel.fourcc import PixelFormat
from zc_perception.pixel.layout import check_dimensions
from zc_perception.pixel.raw_picture import NATIVE
from zc_perception.pixel.readable import check_readable, READABLE

Stamp = Any
"""``builtin_interfaces/msg/Time``, ``rclpy.time.Time``, or nanoseconds as an ``int``."""
# The producer itself needs one slot, for the buffer that is being filled.
_RESERVE = 1
_LEAST_SLOTS = 2
_LAST_STAMP_NS = 2**31 * 1_000_000_000 - 1
_LONGEST_WAIT_S = 3600.0
_FIXED = (
    'make the publisher in {name} with renegotiate=True, start this consumer before that node, '
    "or name the consumer's needs in participants"
)
_FIXED_FDS = 'a library has allocated the buffers of {name}, which never change'


@dataclass(frozen=True)
class FramePublisherStatistics(PublisherStatistics):
    """
    The counters of a :class:`FramePublisher` since its start.

    :param dropped: number of frames that no consumer got, because no buffer was free for them.
    :param discarded: number of loans that ended with an exception, so that no frame was sent.
    :param shared_memory_consumers: number of subscriptions of other processes that get frames by
        shared memory now.
    """

    dropped: int = 0
    discarded: int = 0
    shared_memory_consumers: int = 0


class _Busy(threading.local):
    """
    Whether this thread is publishing, or calling a user's function ``released``.

    If so, further calls of ``released`` functions are postponed.
    """

    here = False


class LoanedFrame:
    """The frame that ``with publisher.loan() as out:`` gives you to fill inside the block."""

    __slots__ = ('_dropped', '_fence', '_frame_id', '_planes', '_stamp_ns')

    def __init__(self, planes: Sequence[NDArray[Any]], header: Header, dropped: bool) -> None:
        self._planes = planes
        self._dropped = dropped
        self._stamp_ns = header.stamp_ns
        self._frame_id = header.frame_id
        self._fence: SyncFile | None = None

    @property
    def planes(self) -> Sequence[NDArray[Any]]:
        """
        NumPy arrays over the buffer's planes; write the pixels to them.

        At first they show an older frame's pixels. NV12 has ``planes[0]`` of shape (height, width)
        and ``planes[1]`` of shape (height/2, width/2, 2), rgb8 has ``planes[0]`` of shape (height,
        width, 3).
        """
        return self._planes

    @property
    def dropped(self) -> bool:
        """Whether no buffer was free, so that the planes are scratch memory and are not sent."""
        return self._dropped

    @property
    def stamp(self) -> Time:
        """
        Time of exposure in the ROS clock; by default the time at which the loan began.

        Set it to a ``builtin_interfaces/msg/Time``, a ``rclpy.time.Time``, or nanoseconds.
        """
        seconds, nanoseconds = divmod(self._stamp_ns, 1_000_000_000)
        return Time(sec=seconds, nanosec=nanoseconds)

    @stamp.setter
    def stamp(self, stamp: Stamp) -> None:
        self._stamp_ns = _nanoseconds(stamp)

    @property
    def frame_id(self) -> str:
        """Name of the camera's optical coordinate frame; by default the publisher's *frame_id*."""
        return self._frame_id

    @frame_id.setter
    def frame_id(self, frame_id: str) -> None:
        self._frame_id = _checked_frame_id(frame_id)

    def set_fence(self, fd: int) -> None:
        """
        Set the fence of a device that is still writing to the buffer.

        Consumers wait until *fd* has signalled, or let their device wait.

        :param fd: a sync_file from the device's driver. It stays yours; you may close it after the
            call.
        :raises ConfigError: *fd* is not a sync_file.
        """
        fence = _sync_file(fd)
        self.close_fence()
        self._fence = fence

    def take_fence(self) -> SyncFile | None:
        """For :class:`FramePublisher`: return the fence; the caller then owns it."""
        fence, self._fence = self._fence, None
        return fence

    def close_fence(self) -> None:
        """For :class:`FramePublisher`: close the fence of a frame that isn't sent."""
        fence = self.take_fence()
        if fence is not None:
            fence.close()

    @property
    def header(self) -> Header:
        """For :class:`FramePublisher`: return the frame's stamp and frame id."""
        return Header(self._stamp_ns, self._frame_id)


def _nanoseconds(stamp: Stamp) -> int:
    if isinstance(stamp, int) and not isinstance(stamp, bool):
        number = stamp
    elif isinstance(stamp, Time):
        number = stamp.sec * 1_000_000_000 + stamp.nanosec
    elif isinstance(stamp, RclpyTime):
        number = stamp.nanoseconds
    else:
        raise ConfigError(
            f'stamp {shown(stamp)}: give a builtin_interfaces/msg/Time, a rclpy.time.Time, '
            'or nanoseconds as an int'
        )
    if not 0 <= number <= _LAST_STAMP_NS:
        raise ConfigError(
            f'stamp {number} ns is outside 0 .. {_LAST_STAMP_NS}, the range of a ROS time; '
            'give nanoseconds since 1970'
        )
    return int(number)


def _sync_file(fd: int) -> SyncFile:
    """Return a fence that owns a duplicate of *fd*."""
    try:
        return fence_from_fd(OwnedFd.duplicate(fd))
    except (AcceleratorError, OSError, TypeError) as error:
        raise ConfigError(f'fence {fd!r}: {error}') from None


def _checked_frame_id(frame_id: str) -> str:
    frame_id_bytes(frame_id)
    return frame_id


class _Loan(AbstractContextManager[LoanedFrame]):
    """The context manager that :meth:`FramePublisher.loan` returns, for one ``with`` block."""

    def __init__(self, frame: AbstractContextManager[LoanedFrame]) -> None:
        self._frame = frame
        self._entered = False

    def __enter__(self) -> LoanedFrame:
        if self._entered:
            raise ConfigError('a loan is for one frame: call loan() anew for each with block')
        self._entered = True
        return self._frame.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        return self._frame.__exit__(kind, value, trace)


class FramePublisher:
    """
    Publishes camera frames of your own.

    Subscriptions of this package get the frames without a copy; other subscribers get messages.

    ::

        import rclpy
        from zc_perception import FramePublisher

        rclpy.init()
        node = rclpy.create_node('camera')
        publisher = FramePublisher(node, 'image_raw', width=640, height=480, format='NV12')


        def publish() -> None:
            with publisher.loan() as out:       # a free buffer
                out.planes[0][:] = 128          # NumPy arrays: write the pixels here
                out.planes[1][:] = 128
                                                # the frame is sent at the end of the block


        timer = node.create_timer(1 / 30, publish)
        rclpy.spin(node)

    The topic's type is ``sensor_msgs/msg/Image``. Plain subscribers and RViz get messages, which
    are made only while there are such subscribers. The publisher and its consumers negotiate the
    buffers, as a camera and its consumers do. The log names consumers that can't use the buffers.

    If a library of yours owns the buffers, pass their descriptors as *fds* and publish each frame
    by :meth:`publish_fd`. Nothing is copied.

    **Owner.** The publisher ends with :meth:`destroy`, at the end of a ``with`` block, or with
    ``node.destroy_node()``. Frames that consumers hold stay readable. Descriptors that you pass
    stay yours: the publisher duplicates them.

    **Threads.** Any thread may publish. Several threads may have loans at the same time. A
    publisher never waits for a subscriber.

    **Errors.** Each method lists its exceptions. While consumers hold all buffers, a new frame is
    dropped: no consumer gets it, a warning names the holders, and :meth:`statistics` counts it.
    No other frame gets the sequence number of a dropped frame.

    :param node: the node that publishes; its clock stamps the frames.
    :param topic: name of the topic, relative or absolute; remaps apply.
    :param width: width of the image, in pixels.
    :param height: height of the image, in pixels.
    :param format: the name of a DRM format such as ``NV12``, ``YUYV``, ``YU12`` (three planes), or
        a ROS encoding such as ``rgb8``, ``bgr8``, ``mono8``.
    :param slots: number of buffers, 2 to 64. You need one to fill, and one for each frame that
        consumers hold, or that waits for them, at the same time.
    :param frame_id: name of the camera's optical coordinate frame.
    :param qos: QoS of the topic; by default reliable, volatile, depth 1.
    :param colorimetry: matrix, range and transfer function of the samples, such as ``bt709`` or
        ``bt601 full``. By default ``bt601 limited`` for Y'CbCr, and ``rgb full srgb`` for R, G, B
        and grey.
    :param image_encoding: encoding of the messages for plain subscribers: ``rgb8``, ``bgr8``,
        ``mono8``, ``nv12``, or ``native`` for *format* itself if ROS has an encoding for it. By
        default ``rgb8`` for Y'CbCr, because every viewer shows it, and else ``native``.
    :param heap: allocator of the buffers: ``auto``, or a name as in parameter ``heap`` of
        ``capture_node``.
    :param participants: constraints of consumers that come later, as in parameter
        ``participants`` of ``capture_node``.
    :param renegotiate: whether to agree on other buffers that suit all consumers, when a consumer
        comes that can't use the current ones. :meth:`loan` does this, at most once in 10 s.
        Buffers that you pass as *fds* never change.
    :param trusted_gids: groups whose members may connect, besides your own user and root.
    :param fds: descriptors of the buffers that a library of yours owns, for at least two images.
        Give one descriptor for each image, or a sequence with one for each plane. A descriptor is
        a dma-buf or a memfd with the seals SHRINK and GROW. Pass the descriptors of all buffers
        that the library has at this time; it may make further buffers later.
    :param modifier: with *fds*: how the pixels are arranged, a DRM format modifier; 0 is LINEAR.
    :param strides: with *fds*: bytes from one row to the next, for each plane.
    :param offsets: with *fds*: byte at which each plane begins in its buffer; by default 0.
    :param ledger: counts how often the CPU touches pixels: ``draw`` for each loan, ``to_ros`` for
        each message. By default, the publisher makes its own ledger.
    :raises FormatError: *format* or *colorimetry* isn't known; the message lists the known ones.
    :raises LayoutError: the format doesn't allow the size, or a plane ends outside of its buffer.
    :raises ConfigError: another parameter has an invalid value.
    :raises NegotiationError: the *participants* can't use buffers of this format and size.
    :raises AllocationError: no memory is left for the buffers, or one of *fds* is neither a
        dma-buf nor a sealed memfd.
    """

    def __init__(
        self,
        node: Node,
        topic: str,
        *,
        width: int,
        height: int,
        format: str = 'NV12',  # noqa: A002
        slots: int = 8,
        frame_id: str = '',
        qos: QoSProfile | None = None,
        colorimetry: str | Colorimetry | None = None,
        image_encoding: str = '',
        heap: str = 'auto',
        participants: Sequence[str] = (),
        renegotiate: bool = True,
        trusted_gids: Collection[int] = (),
        fds: Sequence[int | Sequence[int]] = (),
        modifier: int | None = None,
        strides: Sequence[int] = (),
        offsets: Sequence[int] = (),
        ledger: CopyLedger | None = None,
    ) -> None:
        fmt, name = named_format(format), node.get_name()
        check_dimensions(fmt, width, height)
        if (
            isinstance(slots, bool)
            or not isinstance(slots, int)
            or not _LEAST_SLOTS <= slots <= MAX_SLOTS
        ):
            raise ConfigError(
                f'slots {slots!r} is not a whole number in {_LEAST_SLOTS} .. {MAX_SLOTS}; try 8'
            )
        self._colorimetry = _colorimetry(fmt, colorimetry)
        self._frame_id = _checked_frame_id(frame_id)
        check_ids(trusted_gids, 'trusted_gids')
        qos = QoSProfile(depth=1) if qos is None else qos
        _check_history(qos, len(fds) or slots)
        stand_ins = parse_stand_ins(list(participants))
        images = _foreign_images(fmt, (width, height), fds, modifier, strides, offsets)
        self.ledger = CopyLedger() if ledger is None else ledger
        self._node = node
        self._images = images
        self._bytes = sum(plane.rows(height) * plane.row_bytes(width) for plane in fmt.planes)
        self._lock = threading.Lock()
        self._busy = _Busy()
        self._due: deque[Callable[[], object]] = deque()
        self._held = HeldBuffers()
        self._heaps: OfferedHeaps | None = None
        self._pool: BufferPool | None = None
        self._scratch: tuple[NDArray[Any], ...] = ()
        self._sequence = self._dropped = self._discarded = self._lent = 0
        self._warn = Seldom(lambda text: node.get_logger().warning(text), 5.0)
        self._closed = False
        adapter = frame_adapter(
            image_encoding or ('rgb8' if fmt.is_yuv else NATIVE),
            self.ledger,
            holder=f'{name}:{topic}',
        )
        self._publisher: AdaptedPublisher[Frame] = AdaptedPublisher(node, adapter, topic, qos)
        self._publisher.tell_end(self._end)
        self.topic: str = self._publisher.topic
        try:
            self._server = serve_frames(node, self._publisher, allowed_gids=trusted_gids)
            fixed = _FIXED_FDS if fds else '' if renegotiate else _FIXED
            self._offer = FrameOffer(
                node, self._publisher, self._server, fixed=fixed.format(name=name)
            )
            self._offer.open()
            self._offer.listen((width, height))
            self._offer.await_consumers()
            self._begin = functools.partial(
                self._agree, fmt, (width, height), len(fds) or slots, stand_ins
            )
            if images is None:
                self._heaps = working_heaps(heap)
            self._begin()
        except BaseException:
            self._publisher.destroy()
            raise

    def _agree(
        self, fmt: PixelFormat, size: Size, slots: int, stand_ins: Sequence[BufferConstraints]
    ) -> None:
        """Agree on buffers with the present consumers, get the buffers and announce them."""
        name = f'{self._node.get_name()}:{self.topic}'
        images, before = self._images, self._pool
        if images is None:
            assert self._heaps is not None
            producer = replace(
                drawn_constraints(fmt.code, size, self._heaps), participant=name, slots=_RESERVE
            )
            session = self._offer.agree(
                producer, size, self._allocate, wanted_slots=slots, stand_ins=stand_ins
            )
            heap = self._heaps.name
        else:
            producer = images.constraints(name, slots=_RESERVE)
            session = self._offer.agree(
                producer, size, self._adopt, wanted_slots=slots, stand_ins=stand_ins
            )
            heap = images.heap
        self._offer.begin(session, self._pool, heap)
        self._offer.say_agreement(session)
        if before is not None:
            before.close()

    def _renew(self) -> None:
        """Agree on other buffers if a consumer waits for them and no buffer is lent."""
        with self._turn():
            if self._closed or self._lent or time.monotonic() < self._offer.due:
                return
            logger, began_s = self._node.get_logger(), time.monotonic()
            names = self._offer.renew()
            try:
                self._begin()
            except ZcError as error:
                logger.error(
                    f"'{self.topic}': no other buffers can be agreed on for {names}: {error}"
                )
                self._offer.give_up(f'there are no buffers that suit this consumer: {error}')
                return
            pause_s = time.monotonic() - began_s
            logger.info(
                f"'{self.topic}': the buffers were agreed on anew for {names}, which took "
                f'{pause_s:.2f} s'
            )

    def _allocate(self, request: AllocationRequest) -> Allocation:
        assert self._heaps is not None
        settings = request.settings()
        self._pool = heap_pool(
            settings, self._heaps, name=f'{self._node.get_name()}:loans', reserve=_RESERVE
        )
        return Allocation(settings.layout, tuple(slot.buffers for slot in self._pool.slots))

    def _adopt(self, request: AllocationRequest) -> Allocation:
        images = self._images
        assert images is not None
        pool = self._pool = ForeignBufferPool(
            images.layout,
            images.known(),
            name=f'{self._node.get_name()}:fds',
            on_free=self._held.free,
            reserve=_RESERVE,
        )
        pool.add_retire_listener(self._held.ended)
        return Allocation(images.layout, tuple(slot.buffers for slot in pool.slots))

    def loan(self, *, wait_s: float = 0.0) -> AbstractContextManager[LoanedFrame]:
        """
        Lend a free buffer to write a frame to, see :class:`LoanedFrame`.

        Use it in a block: ``with publisher.loan() as out:``.

        The frame is sent at the end of the block. If the block raises, nothing is sent and the
        buffer is free again. If no buffer is free, ``out.dropped`` is true, and your pixels are
        not sent. After the block don't write to ``out.planes``: consumers read the frame.

        :param wait_s: seconds to wait for a free buffer, 0 to 3600. Set it for a source that can
            wait, such as a file; a camera can't.
        :raises ConfigError: the publisher was made with *fds* and so has no buffers to lend; or
            *wait_s* is not in its range; or the same loan is entered twice: call ``loan()`` for
            each frame.
        """
        if not isinstance(wait_s, (int, float)) or not 0.0 <= wait_s <= _LONGEST_WAIT_S:
            raise ConfigError(
                f'wait_s is {shown(wait_s)}; it must be a number of seconds from 0 to '
                f'{_LONGEST_WAIT_S:g}'
            )
        if self._images is not None:
            raise ConfigError(
                f"'{self.topic}' was made with fds and has no buffers to lend: publish frames by "
                'publish_fd()'
            )
        return _Loan(self._lend(wait_s))

    @contextlib.contextmanager
    def _lend(self, wait_s: float) -> Iterator[LoanedFrame]:
        if time.monotonic() >= self._offer.due:
            self._renew()
        with self._lock:
            self._lent += 1
        out: LoanedFrame | None = None
        try:
            pool, header = self._pool, Header(self._now_ns(), self._frame_id)
            assert pool is not None
            slot = pool.acquire(wait_s=wait_s)
            if slot is None:
                if not self._scratch:
                    # All dropped frames share this memory.
                    self._scratch = tuple(
                        np.zeros(array.shape, array.sample) for array in pool.layout.arrays
                    )
                out = LoanedFrame(self._scratch, header, dropped=True)
                yield out
                self._drop(pool, 'no buffer was free')
                return
            started_ns, generation = time.monotonic_ns(), slot.generation
            try:
                with map_buffers(
                    slot.layout, slot.buffers, CpuAccess.READ | CpuAccess.WRITE, []
                ) as planes:
                    out = LoanedFrame(planes, header, dropped=False)
                    yield out
            except BaseException:
                pool.discard(slot, generation)
                with self._lock:
                    self._discarded += 1
                raise
            self.ledger.book('draw', self._bytes)
            cost_ns = time.monotonic_ns() - started_ns
            self._send(pool, slot, out.header, cost_ns, out.take_fence())
        finally:
            if out is not None:
                # If the frame wasn't sent, close its fence now. The garbage collector may do it
                # much later, because the user's code may keep 'out'.
                out.close_fence()
            with self._lock:
                self._lent -= 1

    def publish_fd(
        self,
        fd: int,
        *,
        stamp: Stamp = None,
        frame_id: str | None = None,
        released: Callable[[], object] | None = None,
        fence: int | None = None,
    ) -> bool:
        """
        Publish a frame that is in one buffer of a library of yours; nothing is copied.

        Return whether the frame was sent. The frame is dropped if consumers still hold this
        buffer, if no slot is left for a new buffer, or if the publisher has ended.

        The pixels must be complete at the call, or when *fence* signals. The descriptor stays
        yours; you may close it after the call. The buffer need not be among the publisher's *fds*,
        but must have the same layout. Do not write to the buffer until *released* is called. Once
        a memfd was sent to another process, it is sealed: the kernel makes no new writable mapping
        of it. So map the memfd before you publish it for the first time.

        :param fd: descriptor of the buffer.
        :param stamp: time of exposure, see :class:`LoanedFrame`; by default the time of the call.
        :param frame_id: name of the camera's optical coordinate frame; by default the publisher's.
        :param released: called once, on any thread, when the buffer is not used any more; it must
            not wait. It is also called for a frame that was not sent.
        :param fence: a sync_file of the device that still writes the pixels. Consumers wait for
            the fence, or let their device wait. The sync_file stays yours.
        :raises ConfigError: the publisher was made without *fds*, or a value is invalid.
            *released* is not called in this case.
        :raises AllocationError: the descriptor is neither a dma-buf nor a sealed memfd, or isn't
            of the same kind as the publisher's *fds*.
        :raises LayoutError: a plane ends outside of the buffer, or another image already has this
            buffer.
        """
        return self.publish_fds(
            (fd,), stamp=stamp, frame_id=frame_id, released=released, fence=fence
        )

    def publish_fds(
        self,
        fds: Sequence[int],
        *,
        stamp: Stamp = None,
        frame_id: str | None = None,
        released: Callable[[], object] | None = None,
        fence: int | None = None,
    ) -> bool:
        """Do the same as :meth:`publish_fd` for a frame that has one descriptor for each plane."""
        images, pool = self._images, self._pool
        if images is None or not isinstance(pool, ForeignBufferPool):
            raise ConfigError(
                f"the publisher of '{self.topic}' has buffers of its own: write to them by "
                'loan(), or make the publisher with fds, modifier and strides'
            )
        header = Header(
            self._now_ns() if stamp is None else _nanoseconds(stamp),
            self._frame_id if frame_id is None else _checked_frame_id(frame_id),
        )
        identities = images.identities(fds)
        acquire = None if fence is None else _sync_file(fence)

        def give_back() -> None:
            self._give_back(released)

        with self._turn():
            slot = pool.slot_of(identities)
            if slot is None:
                slot = pool.adopt(images.buffers(fds))
            taken = None if slot is None else pool.acquire(slot.index)
            if taken is not None:
                self._held.hold(taken, give_back)
            elif slot is None or not self._held.hold_too(slot, give_back):
                give_back()
        if taken is None:
            self._drop(
                pool,
                'no slot is left for its buffer'
                if slot is None
                else 'consumers still hold its buffer',
            )
            return False
        return self._send(pool, taken, header, 0, acquire)

    def _give_back(self, released: Callable[[], object] | None) -> None:
        """
        Call *released*, which came with a buffer in publish_fds(): the buffer is free now.

        If this thread is publishing, or is inside another ``released``, the call is postponed.
        *released* may publish the next frame, so the publisher's lock must not be held.
        """
        if released is not None:
            self._due.append(released)
            if not self._busy.here:
                self._tell()

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """Hold the publisher's lock; afterwards make the calls that _give_back() postponed."""
        outermost, self._busy.here = not self._busy.here, True
        try:
            with self._lock:
                yield
        finally:
            self._busy.here = not outermost
            if outermost:
                self._tell()

    def _tell(self) -> None:
        """Call the postponed ``released`` functions; each call may postpone more calls."""
        self._busy.here = True
        try:
            while self._due:
                try:
                    released = self._due.popleft()
                except IndexError:  # another thread has taken the last function
                    return
                try:
                    released()
                except Exception as error:
                    self._node.get_logger().error(
                        f"'{self.topic}': the function 'released' of a buffer raised "
                        f'{type(error).__name__}: {error}'
                    )
        finally:
            self._busy.here = False

    def _send(
        self,
        pool: BufferPool,
        slot: Slot,
        header: Header,
        cost_ns: int,
        fence: SyncFile | None = None,
    ) -> bool:
        """Publish the frame in *slot*; return ``False`` if the publisher has already ended."""
        with self._turn():
            if self._closed:
                pool.discard(slot)
                return False
            frame = Frame.publish_slot(
                pool,
                slot,
                header=header,
                colorimetry=self._colorimetry,
                sequence=self._sequence,
                captured_ns=time.monotonic_ns(),
                capture_cost_ns=cost_ns,
                acquire_fence=fence,
            )
            self._sequence += 1
            try:
                self._publisher.publish(frame)
            finally:
                frame.release()
        return True

    def _drop(self, pool: BufferPool, why: str) -> None:
        """Count a frame that no consumer gets, and warn."""
        with self._lock:
            if self._closed:
                return
            sequence = self._sequence
            self._sequence += 1
            self._dropped += 1
        more = "raise 'slots'" if self._images is None else 'give the publisher more buffers'
        self._warn(
            lambda: (
                f"'{self.topic}': frame {sequence} was dropped, because {why} "
                f'({pool.describe_holders()}); let consumers release frames sooner, or {more}'
            ),
            'dropped',
        )

    def _now_ns(self) -> int:
        return int(self._node.get_clock().now().nanoseconds)

    def get_subscription_count(self) -> int:
        """Return the number of subscriptions, in any process, that get frames or messages now."""
        found = self.statistics()
        return found.in_process_subscriptions + found.shared_memory_consumers + found.image_readers

    def statistics(self) -> FramePublisherStatistics:
        """Return the counters, see :class:`FramePublisherStatistics`; any thread may call this."""
        found = self._publisher.statistics()
        common = {field.name: getattr(found, field.name) for field in fields(found)}
        consumers = 0 if self._server is None else self._server.consumers
        return FramePublisherStatistics(
            **common,
            dropped=self._dropped,
            discarded=self._discarded,
            shared_memory_consumers=consumers,
        )

    def destroy(self) -> None:
        """Stop publishing. Idempotent. Frames that were delivered stay with their holders."""
        self._publisher.destroy()

    def _end(self) -> None:
        """Close all buffers, after the publisher has ended by :meth:`destroy` or with its node."""
        with self._lock:
            self._closed = True
        offer = getattr(self, '_offer', None)
        if offer is not None:
            offer.close()
        self._held.begin_close()
        if self._pool is not None:
            self._pool.close()
        self._held.end_close()
        if self._heaps is not None:
            self._heaps.close()

    def __enter__(self) -> FramePublisher:
        return self

    def __exit__(self, *_: object) -> None:
        self.destroy()


def _colorimetry(fmt: PixelFormat, given: str | Colorimetry | None) -> Colorimetry:
    if given is None:
        return BT601_LIMITED if fmt.is_yuv else RGB_FULL
    found = named_colorimetry(given) if isinstance(given, str) else given
    if fmt.code in READABLE:
        check_readable(fmt.code, found)
    return found


def _check_history(qos: QoSProfile, slots: int) -> None:
    """Check that the publisher has enough buffers besides those that transient_local QoS keeps."""
    offered = link_qos(qos)
    kept = (offered.depth or 0) if offered.transient_local else 0
    if kept and kept + 1 + _RESERVE > slots:
        raise ConfigError(
            f'qos: transient_local with depth {kept} would keep {kept} of {slots} buffers; '
            f'give {kept + 1 + _RESERVE} or more buffers'
        )


def _foreign_images(
    fmt: PixelFormat,
    size: Size,
    fds: Sequence[int | Sequence[int]],
    modifier: int | None,
    strides: Sequence[int],
    offsets: Sequence[int],
) -> ForeignImages | None:
    """Return the images in the buffers *fds*; ``None`` if *fds* is empty."""
    if not fds:
        if modifier is not None or strides or offsets:
            raise ConfigError(
                "modifier, strides and offsets describe the buffers of 'fds': give fds, or leave "
                'these three out'
            )
        return None
    if modifier is None:
        raise ConfigError(
            'with fds, set modifier to say how the pixels are arranged: modifier=0 means rows '
            'one after the other (LINEAR)'
        )
    return ForeignImages(fmt, size, fds, modifier=modifier, strides=strides, offsets=offsets)
