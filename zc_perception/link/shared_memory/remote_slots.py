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
The consumer's end of one connection: the producer's slots, and this process's leases on them.

:class:`RemoteSlots` owns the socket and the slots. A :class:`RemoteSlot` owns its buffers. A
:class:`RemoteLease` is the right to read one frame in a slot. The slot's generation is a number
that the producer increments for each frame in the slot.

RemoteSlots is the pool of the received :class:`Frame` objects. It counts a slot's leases, and
sends RELEASE when the last lease has ended. The garbage collector must not take a lock, so a
frame's finalizer only puts the lease into a queue. :meth:`RemoteSlots.attend` empties the queue.
"""

from __future__ import annotations

import array
from collections import deque
from collections.abc import Callable
import contextlib
import os
import queue
import select
import socket
import threading
import time
from typing import Any, NamedTuple

from zc_perception.errors import AllocationError, FormatError, LayoutError, StaleFrameError
from zc_perception.forking import in_child, Turn
from zc_perception.frame import Frame, FrameData, Header
from zc_perception.link.shared_memory import wire
from zc_perception.link.shared_memory.protocol import (
    MAX_OTHERS,
    MAX_PACKET,
    MAX_SLOTS,
    MessageType,
    MisfitError,
    ProtocolError,
    RefusalCode,
    Requirements,
)
from zc_perception.link.shared_memory.unix_socket import (
    adopt,
    close_all,
    CONTROL_ROOM,
    own,
    Peer,
    RECEIVE_FLAGS,
    SEND_FLAGS,
    TRUNCATED,
)
from zc_perception.link.shared_memory.wire import BuffersMessage, Refused
from zc_perception.memory.dmabuf import BufferKind, DmaBuf, is_write_only, MAPPABLE
from zc_perception.memory.fence import Fence, SyncFile
from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.memory.pool import close_buffers
from zc_perception.native import compiled
from zc_perception.negotiation.session import trial_failure
from zc_perception.negotiation.settings import BufferSettings, TrialImport
from zc_perception.pixel.colorimetry import Colorimetry
from zc_perception.pixel.layout import ImageLayout, validate_layout

_new = object.__new__
_unpack, _LEAST, _MOST, _FRAME_TYPE = (
    wire.FRAME.unpack_from,
    wire.FRAME.size,
    wire.MAX_FRAME,
    int(MessageType.FRAME),
)


class RemoteSlot:
    """
    A slot of the producer's pool. Its buffers are mapped once, not for each frame.

    :param generation: the generation of the slot's newest frame. This process holds the frame
        while ``leases`` isn't 0.
    :param sequence: the sequence number of the newest frame in the slot.
    :param since_ns: when that frame was received, in nanoseconds of CLOCK_MONOTONIC.
    """

    __slots__ = (
        '_constants',
        'buffers',
        'fences',
        'generation',
        'leases',
        'retired',
        'sequence',
        'since_ns',
        'spare',
        'uid',
    )

    def __init__(
        self, uid: int, layout: ImageLayout, colorimetry: Colorimetry, buffers: tuple[DmaBuf, ...]
    ) -> None:
        self.uid = uid
        self.buffers = buffers
        self._constants = {
            'layout': layout,
            'buffers': buffers,
            'colorimetry': colorimetry,
            'buffer_uid': uid,
        }
        self.generation = -1
        self.leases = 0
        self.fences: list[Fence] = []
        self.retired = False
        self.sequence = self.since_ns = 0
        self.spare: Frame | None = None

    def prepare(self, owner: RemoteSlots) -> Frame:
        """
        Make the slot's next Frame object now, to save time when the next FRAME arrives.

        The object's lease is not valid until :meth:`RemoteSlots.admit` fills in the fields that
        are sent in the FRAME.
        """
        data = _new(FrameData)
        data.__dict__.update(self._constants, header=_new(Header))
        lease = RemoteLease(owner, self, -1, owner.name)
        lease.ended = True
        return Frame(data, lease)  # type: ignore[arg-type] # the lease has all that Frame uses

    def close(self) -> None:
        """Unmap and close the slot's buffers; call this when no frame uses them any more."""
        spare, self.spare = self.spare, None
        if spare is not None:
            spare._lease = None
        close_buffers(self.buffers)


class RemoteLease:
    """
    This process's right to read one frame in a remote slot.

    A :class:`RemoteSlots` limits no leases: the producer sends no more frames than this consumer
    may hold.
    """

    __slots__ = ('ended', 'generation', 'holder', 'pool', 'slot')

    def __init__(self, pool: RemoteSlots, slot: RemoteSlot, generation: int, holder: str) -> None:
        self.pool = pool
        self.slot = slot
        self.generation = generation
        self.holder = holder
        self.ended = False


class CameUnread(NamedTuple):
    """
    A packet that the receiver read but didn't parse; :class:`SharedMemoryClient` parses it.

    :param packet: the packet's bytes; empty when the connection has ended.
    :param fds: the descriptors that came with the packet.
    :param truncated: whether the packet was too long, or had too many descriptors.
    :param error: the errno if reading the socket failed, or 0.
    """

    packet: wire.Packet
    fds: list[OwnedFd]
    truncated: bool
    error: int


class PlainReceiver:
    """
    Receives packets from a socket; ``native/receiver.c``, if compiled, replaces this class.

    It passes FRAMEs without a fence to :meth:`RemoteSlots.admit`, and returns all other packets as
    :class:`CameUnread`.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._receive_into = sock.recvmsg_into
        buffer = bytearray(MAX_PACKET)
        self._buffers = [buffer]
        self._packet = memoryview(buffer)

    def wait(self, epoll: select.epoll, timeout_s: float) -> None:
        """
        Wait for an event of *epoll*, at most *timeout_s* seconds.

        The C version may read a packet during the wait; its :meth:`receive` returns that packet.
        """
        epoll.poll(timeout_s)

    def receive(self, slots: RemoteSlots) -> tuple[Frame, int] | CameUnread | None:
        """
        Read one packet; only one thread at a time may call this.

        :return: for a FRAME without a fence, the frame and how many frames were dropped before
            it; for another packet a :class:`CameUnread`; ``None`` if no packet has arrived.
        :raises ProtocolError: the FRAME breaks a rule.
        """
        try:
            try:
                size, ancillary, flags, _ = self._receive_into(
                    self._buffers, CONTROL_ROOM, RECEIVE_FLAGS
                )
            except (
                ConnectionResetError
                # The kernel reports a reset once. The next call returns the packets that came
                # before the reset.
            ):
                size, ancillary, flags, _ = self._receive_into(
                    self._buffers, CONTROL_ROOM, RECEIVE_FLAGS
                )
        except BlockingIOError:
            return None
        except OSError as error:
            return CameUnread(b'', [], False, error.errno or 0)
        if size and self._packet[0] == _FRAME_TYPE and not ancillary and not flags & TRUNCATED:
            return slots.admit(self._packet, size, None)
        return CameUnread(self._packet[:size], adopt(ancillary), bool(flags & TRUNCATED), 0)

    def close(self) -> None:
        """Do nothing; in the C version of this class, this method stops receiving."""

    forked = close


def _unread(packet: bytes, numbers: list[int], truncated: bool, error: int) -> CameUnread:
    """Make a :class:`CameUnread` that owns descriptors *numbers*; called by native/receiver.c."""
    return CameUnread(packet, own(numbers), truncated, error)


class RemoteSlots:
    """
    The producer's slots on one connection; this object is the pool of the received frames.

    Any thread may call the methods, but only one thread at a time may receive.

    The lock guards leases, fences and RELEASEs. :meth:`admit`, which runs for every frame, takes
    no lock, because it writes only to a slot without leases, which no other code uses.

    :param sock: the non-blocking socket on which WELCOME came; this object closes it.
    :param epoll: the client's epoll. Fences are added to it if a RELEASE must wait for them.
    :param holder: this consumer's name, for leases and error texts.
    :param window: largest number of frames that this consumer may hold, as WELCOME granted it.
    :param requirements: the constraints that buffers must satisfy.
    :param trial_import: imports a slot's buffers before its first frame, in the same way as each
        frame is imported later; ``None``: skip this.
    :param ring: makes the client's descriptor readable; called in finalizers.

    ``attention`` is ``True`` if :meth:`attend` must be called.
    """

    def __init__(
        self,
        sock: socket.socket,
        epoll: select.epoll,
        peer: Peer,
        holder: str,
        window: int,
        requirements: Requirements,
        trial_import: TrialImport | None,
        ring: Callable[[], object],
    ) -> None:
        self.name = holder
        self.peer = peer
        self.window = window
        self.receiver: PlainReceiver = (
            PlainReceiver(sock) if compiled is None else compiled.Receiver(sock.fileno(), _unread)
        )
        self.abandoned = 0
        self.released = 0
        self.attention = False
        self._requirements = requirements
        self._ring = ring
        self._trial_import = trial_import
        self._socket = sock
        self._send = sock.send
        self._epoll = epoll
        self._lock = threading.Lock()
        self._ended = False
        self._leaving = False
        self._slots: dict[int, RemoteSlot] = {}
        # How many valid FRAMEs came. Only the receiving thread changes it, so it needs no lock.
        self.admitted = 0
        self._others = self._others_since = 0
        self._abandoned_leases: queue.SimpleQueue[tuple[RemoteLease, bool]] = queue.SimpleQueue()
        # _held_back: slots whose RELEASE waits for a fence of this process. _unsent: RELEASEs that
        # could not be sent because the socket was full.
        self._held_back: list[RemoteSlot] = []
        self._unsent: deque[tuple[bytes, SyncFile | None]] = deque()
        self._awaits_room = False
        self._raw_frame_id = b''
        self._frame_id = ''

    @property
    def out(self) -> int:
        """The number of FRAMEs that wait for their RELEASE; 0 after the connection has ended."""
        return 0 if self._ended else self.admitted - self.released

    def count_other(self) -> None:
        """
        Count a message that isn't a FRAME.

        :raises ProtocolError: more than MAX_OTHERS such messages came without a FRAME in between.
        """
        if self._others_since != self.admitted:
            self._others_since, self._others = self.admitted, 0
        self._others += 1
        if self._others > MAX_OTHERS:
            raise ProtocolError(
                'flood', f'more than {MAX_OTHERS} messages came without a FRAME among them'
            )

    def introduce(self, message: BuffersMessage, fds: list[OwnedFd]) -> None:
        """
        Add the slot that a BUFFERS message describes; take over the descriptors *fds*.

        :raises ProtocolError: the buffers don't match the message, or the producer must not send
            this message now.
        :raises MisfitError: this consumer can't use the buffers.
        """
        with self._lock:
            known = sum(not slot.retired for slot in self._slots.values())
        if message.uid in self._slots or known >= MAX_SLOTS or len(fds) != len(message.sizes):
            close_all(fds)
            if message.uid in self._slots:
                raise ProtocolError('state', f'BUFFERS of slot {message.uid:#x} came twice')
            if len(fds) != len(message.sizes):
                raise ProtocolError(
                    'descriptors',
                    f'BUFFERS of {len(message.sizes)} buffers came with {len(fds)} descriptors',
                )
            raise ProtocolError('value', f'BUFFERS messages for more than {MAX_SLOTS} slots came')
        buffers: list[DmaBuf] = []
        try:
            must_map = message.kind is BufferKind.MEMFD or self._requirements.reads_with_cpu
            for index, fd in enumerate(fds):
                # Refuse a write-only buffer only if the CPU must map it: a device can import such
                # a buffer.
                if must_map and is_write_only(fd.fileno()):
                    raise MisfitError(
                        f'buffer {index}, a {message.kind.value}, was opened with O_WRONLY, '
                        f"so it can't be mapped; {MAPPABLE}"
                    )
            for fd, size in zip(fds, message.sizes, strict=True):
                buffer = DmaBuf.from_fd(fd, expected_size=size)
                buffers.append(buffer)
                if buffer.kind is not message.kind:
                    raise AllocationError(
                        f'the message names a {message.kind.value}, but a {buffer.kind.value} came'
                    )
                stranger = self.peer.uid != os.geteuid()
                if buffer.kind is BufferKind.MEMFD and stranger and buffer.peers_can_write:
                    raise AllocationError(
                        f'user {self.peer.uid} sent a memfd that other processes can write to; '
                        'it has to be sealed with FUTURE_WRITE'
                    )
            # Check that the planes fit into the sizes that BUFFERS names. A buffer may be larger,
            # but its rest must not be used. from_fd() has refused smaller buffers.
            validate_layout(message.layout, message.sizes, [buffer.identity for buffer in buffers])
        except (AllocationError, LayoutError, FormatError, OSError, ValueError) as error:
            close_buffers(buffers)
            close_all(fds)
            raise ProtocolError('buffers', f'BUFFERS of slot {message.uid:#x}: {error}') from error
        except BaseException:
            close_buffers(buffers)
            close_all(fds)
            raise
        # Import the buffers now, so that unusable ones are refused before the first frame.
        unfit = self._requirements.misfit(message.layout, message.kind, None) or trial_failure(
            self._trial_import,
            BufferSettings(message.layout, MAX_SLOTS),
            [tuple(buffers)],
            len(self._slots),
        )
        if unfit:
            close_buffers(buffers)
            raise MisfitError(unfit)
        slot = self._slots[message.uid] = RemoteSlot(
            message.uid, message.layout, message.colorimetry, tuple(buffers)
        )
        slot.spare = slot.prepare(self)

    def refuse(self, text: str) -> None:
        """Send REFUSED with the reason why the buffers can't be used; the caller disconnects."""
        with contextlib.suppress(OSError):
            self._send(wire.pack_refused(Refused(RefusalCode.CONSTRAINTS, text)), SEND_FLAGS)

    def admit(self, packet: wire.Packet, size: int, fence: SyncFile | None) -> tuple[Frame, int]:
        """
        Parse a FRAME; return the frame, and how many frames were dropped before it.

        This takes over *fence*.

        :raises ProtocolError: the packet isn't a valid FRAME, or the producer must not send it
            now.
        """
        try:
            # Keep this code short: the CPU loads this code into the caches anew for each frame.
            (
                kind,
                length,
                zero,
                uid,
                generation,
                sequence,
                stamp_ns,
                captured_ns,
                published_ns,
                cost_ns,
                dropped,
                flags,
            ) = _unpack(packet)
            if (
                length != size
                or not _LEAST <= size <= _MOST
                or kind != _FRAME_TYPE
                or zero
                or flags > 1
            ):
                wire.parse_frame(packet, size)  # raises the error that says what is invalid
            if flags != (fence is not None):
                raise ProtocolError(
                    'descriptors',
                    f'FRAME with flags {flags} and {int(fence is not None)} descriptors; only a '
                    'FRAME with flag 1 (FENCE) has a descriptor',
                )
            slot = self._slots.get(uid)
            if slot is None or slot.retired or slot.generation >= generation:
                what = (
                    'was not announced by BUFFERS'
                    if slot is None
                    else 'is retired'
                    if slot.retired
                    else f'had generation {slot.generation} before'
                )
                raise ProtocolError(
                    'state', f'FRAME of slot {uid:#x} generation {generation}: the slot {what}'
                )
            raw = bytes(packet[72:size])
            if raw != self._raw_frame_id:
                try:
                    self._raw_frame_id, self._frame_id = raw, raw.decode()
                except UnicodeDecodeError:
                    raise ProtocolError('text', 'FRAME: frame_id is not UTF-8') from None
            if slot.leases or slot.fences:
                raise ProtocolError(
                    'state',
                    f'FRAME of slot {uid:#x} came before generation {slot.generation} of the slot '
                    'was released',
                )
            if self.admitted - self.released >= self.window:
                raise ProtocolError(
                    'window', f'more than {self.window} FRAMEs came without a RELEASE'
                )
        except BaseException:
            if fence is not None:
                fence.close()
            raise
        self.admitted += 1
        slot.generation = generation
        slot.sequence = sequence
        slot.since_ns = time.monotonic_ns()
        slot.leases = 1
        frame, slot.spare = slot.spare or slot.prepare(self), None
        data = frame.data
        # Write the fields into __dict__: the constructors of these frozen dataclasses call a
        # function for each field and take three times as long.
        data.header.__dict__.update(stamp_ns=stamp_ns, frame_id=self._frame_id)
        data.__dict__.update(
            generation=generation,
            sequence=sequence,
            captured_ns=captured_ns,
            capture_cost_ns=cost_ns,
            acquire_fence=fence,
        )
        lease: Any = frame._lease
        lease.generation = generation
        lease.ended = False
        frame.published_ns = published_ns
        return frame, dropped

    def lease(self, slot: RemoteSlot, generation: int, holder: str) -> RemoteLease:
        """
        Return another lease on a generation that this process holds; called by :class:`Frame`.

        :raises StaleFrameError: that generation was released.
        """
        with self._lock:
            if slot.generation != generation or not slot.leases:
                raise StaleFrameError(
                    f'{self.name}: this process has released the frame (generation {generation} '
                    'of its slot); use the newest frame'
                )
            slot.leases += 1
        if self._leaving:
            self._take_abandoned()
        return RemoteLease(self, slot, generation, holder)

    def release(self, lease: RemoteLease, fence: Fence | None = None) -> None:
        """
        End a lease, and send RELEASE after the slot's last lease; called by :class:`Frame`.

        The slot owns *fence* from now on. A fence that isn't a sync_file can't be sent; then
        :meth:`attend` sends RELEASE after the fence has signalled.

        :raises StaleFrameError: the lease had ended already.
        """
        slot = lease.slot
        with self._lock:
            if lease.ended:
                if fence is not None:
                    fence.close()
                raise StaleFrameError(
                    f'{self.name}: the lease of {lease.holder} was released before'
                )
            lease.ended = True
            if fence is not None:
                slot.fences.append(fence)
            slot.leases -= 1
            if not slot.leases:
                self._give_back(slot)
        if self._leaving:
            self._take_abandoned()

    def again(self, lease: RemoteLease) -> RemoteLease:
        """Return another lease for the frame and holder of *lease*; see BufferPool.again()."""
        return self.lease(lease.slot, lease.generation, lease.holder)

    def hand_out(self, lease: RemoteLease) -> bool:
        """Return ``True``, because this pool has no quota; see :meth:`BufferPool.hand_out`."""
        return True

    def in_hand(self) -> tuple[tuple[int, float], ...]:
        """Return (sequence, seconds held) of each frame that was not released yet."""
        with self._lock:
            now = time.monotonic_ns()
            held = [slot for slot in self._slots.values() if slot.leases or slot.fences]
            return tuple(sorted((slot.sequence, (now - slot.since_ns) / 1e9) for slot in held))

    def abandon(self, lease: RemoteLease, *, forgotten: bool = True) -> None:
        """
        Queue *lease*, so that :meth:`attend` ends it. Take no lock, because finalizers call this.

        :param forgotten: whether to count *lease* as abandoned, because its owner didn't release
            it.
        """
        self._abandoned_leases.put((lease, forgotten))
        self.attention = True
        if self._leaving:
            self._take_abandoned()
        elif not self._ended:
            self._ring()

    def _take_abandoned(self) -> None:
        """
        End abandoned leases after :meth:`leave`, because :meth:`attend` isn't called any more.

        Finalizers call this method, too, so the method never waits for the lock. A thread that
        holds the lock calls this method after it has released the lock.
        """
        while not self._abandoned_leases.empty() and self._lock.acquire(blocking=False):
            try:
                self._drop_abandoned()
            finally:
                self._lock.release()

    def _drop_abandoned(self) -> None:
        """End abandoned leases; called with the lock held."""
        while not self._abandoned_leases.empty():
            lease, forgotten = self._abandoned_leases.get_nowait()
            if lease.ended:
                continue
            lease.ended = True
            self.abandoned += forgotten
            lease.slot.leases -= 1
            if not lease.slot.leases:
                self._give_back(lease.slot)

    def attend(self) -> None:
        """End abandoned leases, and send RELEASEs that waited for a fence or for the socket."""
        with self._lock:
            # Clear the flag before the work, because a finalizer may set it again at any time.
            self.attention = False
            self._drop_abandoned()
            waiting, self._held_back = self._held_back, []
            for slot in waiting:
                self._give_back(slot)
            while self._unsent and not self._ended:
                packet, fd = self._unsent.popleft()
                if not self._try_send(packet, fd):
                    self._unsent.appendleft((packet, fd))
                    self.attention = True
                    return
            self._await_room(False)

    def _give_back(self, slot: RemoteSlot) -> None:
        """Send RELEASE of a slot without leases, now or later; called with the lock held."""
        if self._ended:
            self._forget_fences(slot)
        elif self._leaving:
            self._give_back_last(slot)
        else:
            fence = self._settle_fences(slot) if slot.fences else None
            if slot.fences:
                self._held_back.append(slot)
                self.attention = True
                return
            # Prepare the object for the slot's next frame before RELEASE is sent, because the
            # publisher may send that frame right afterwards.
            slot.spare = slot.spare or slot.prepare(self)
            self.released += 1
            packet = wire.pack_release(slot.uid, slot.generation, fence is not None)
            if self._unsent or not self._try_send(packet, fence):
                self._unsent.append((packet, fence))
                self.attention = True
                self._await_room(True)
        if slot.retired or self._ended or self._leaving:
            self._slots.pop(slot.uid, None)
            slot.close()
        if self._leaving and not self._slots:
            self._part()

    def _await_room(self, wanted: bool) -> None:
        """Set whether the client's epoll watches for room in the socket; the lock must be held."""
        if wanted is not self._awaits_room:
            self._awaits_room = wanted
            with contextlib.suppress(OSError, ValueError):  # the epoll was closed
                self._epoll.modify(
                    self._socket.fileno(), select.EPOLLIN | (select.EPOLLOUT if wanted else 0)
                )

    def _give_back_last(self, slot: RemoteSlot) -> None:
        """
        Send RELEASE of a slot after :meth:`leave`, if possible now; called with the lock held.

        A RELEASE can't wait, because :meth:`attend` isn't called any more. Without a RELEASE, the
        producer takes back the slot when the socket closes, and reuses it only after this
        consumer's devices have finished.
        """
        fence = self._settle_fences(slot) if slot.fences else None
        if slot.fences:
            self._forget_fences(slot)
        elif (
            not self._try_send(
                wire.pack_release(slot.uid, slot.generation, fence is not None), fence
            )
            and fence is not None
        ):
            fence.close()

    def _settle_fences(self, slot: RemoteSlot) -> SyncFile | None:
        """
        Return the fence to send with RELEASE, or ``None``; called with the lock held.

        ``slot.fences`` keeps the fences that must signal before RELEASE can be sent.
        """
        pending: list[Fence] = []
        for fence in slot.fences:
            try:
                signalled = fence.wait(0.0)
            except (OSError, ValueError):
                signalled = True  # the fence was closed by the caller of release()
            if signalled:
                self._unwatch(fence)
            else:
                pending.append(fence)
        slot.fences = [fence for fence in pending if not isinstance(fence, SyncFile)]
        files = [fence for fence in pending if isinstance(fence, SyncFile)]
        if slot.fences or len(files) > 1:
            # A RELEASE can carry only one sync_file, and merging several needs a new descriptor,
            # which may not be available. So if there are several sync_files, wait until all have
            # signalled before sending RELEASE.
            slot.fences += files
            for fence in slot.fences:
                self._watch(fence)
            return None
        if not files:
            return None
        self._unwatch(files[0], close=False)
        return files[0]

    def _forget_fences(self, slot: RemoteSlot) -> None:
        for fence in slot.fences:
            self._unwatch(fence)
        slot.fences.clear()

    def _watch(self, fence: Fence) -> None:
        with contextlib.suppress(FileExistsError, ValueError, OSError):
            self._epoll.register(fence.fileno(), select.EPOLLIN)

    def _unwatch(self, fence: Fence, close: bool = True) -> None:
        with contextlib.suppress(ValueError, OSError):
            self._epoll.unregister(fence.fileno())
        if close:
            with contextlib.suppress(OSError, ValueError):
                fence.close()

    def _try_send(self, packet: bytes, fence: SyncFile | None) -> bool:
        """
        Try to send a packet; called with the lock held.

        Return ``False`` if the socket is full; the caller still owns *fence* then. Otherwise close
        *fence*.
        """
        try:
            if fence is None:
                self._send(packet, SEND_FLAGS)
            else:
                rights = array.array('i', [fence.fileno()])
                self._socket.sendmsg(
                    [packet], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)], SEND_FLAGS
                )
        except BlockingIOError:
            return False
        except OSError:
            pass  # the producer closed its socket and took back all frames; receive() reads EOF
        if fence is not None:
            fence.close()
        return True

    def retire(self, uid: int) -> None:
        """
        Handle BUFFER_RETIRED: close the slot's buffers after the last lease.

        :raises ProtocolError: there is no such slot, or it is retired already.
        """
        with self._lock:
            slot = self._slots.get(uid)
            if slot is None or slot.retired:
                raise ProtocolError(
                    'state',
                    f'BUFFER_RETIRED of slot {uid:#x}, which BUFFERS did not announce, or which '
                    'is retired already',
                )
            slot.retired = True
            if not slot.leases and not slot.fences:
                del self._slots[uid]
                slot.close()

    def leave(self) -> None:
        """
        End the connection because this consumer is closed or can't use the buffers.

        The producer must not reuse the buffers of frames that this process still holds. So the
        socket stays open until the last of these frames is released, but nothing more is received.
        """
        with self._lock:
            if self._ended or self._leaving:
                return
            self._leaving = True
            in_child(Turn.LINKS, self.close_in_child)
            with contextlib.suppress(OSError, ValueError):
                self._epoll.unregister(self._socket.fileno())
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RD)
            for slot in [
                slot
                for slot in self._slots.values()
                if not slot.leases and slot not in self._held_back
            ]:
                del self._slots[slot.uid]
                slot.close()
            waiting, self._held_back = self._held_back, []
            for slot in waiting:
                self._give_back(slot)
            if self._leaving and not self._slots:
                self._part()
        self._take_abandoned()

    def _part(self) -> None:
        """Finish :meth:`leave` when no frame is held any more; called with the lock held."""
        while self._unsent:
            packet, fence = self._unsent.popleft()
            if not self._try_send(packet, fence):
                self._unsent.appendleft((packet, fence))
                break
        self._close()

    def end(self) -> None:
        """
        End the connection because the producer closed it or broke the protocol.

        Held frames stay readable; a slot's buffers are closed after its last lease.
        """
        with self._lock:
            if self._ended:
                return
            self._close()
            for slot in self._held_back:
                self._forget_fences(slot)
            self._held_back.clear()
            idle = [slot for slot in self._slots.values() if not slot.leases]
            for slot in idle:
                del self._slots[slot.uid]
                slot.close()

    def _close(self) -> None:
        """Close the socket and the fences of unsent RELEASEs; called with the lock held."""
        self._ended = True
        self._leaving = False
        self.receiver.close()
        self._socket.close()
        for _, fence in self._unsent:
            if fence is not None:
                fence.close()
        self._unsent.clear()

    def close_in_child(self) -> None:
        """Close a forked child's copy of the socket; else the parent couldn't end a connection."""
        self._ended = True
        self._lock = threading.Lock()
        self.receiver.forked()
        self._socket.close()
