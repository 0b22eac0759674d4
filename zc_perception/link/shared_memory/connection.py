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
The producer's end of the connection to one consumer.

The camera's thread sends frames, and the server's thread handles releases. One lock for each
connection protects the state that both threads share. This lock is held while packets are sent;
sending never blocks. Frames are released without the lock, because their pool may then call
:meth:`Connection.retire`, which takes the lock.
"""

from __future__ import annotations

import array
from collections import deque
from collections.abc import Callable, Sequence
import contextlib
from dataclasses import dataclass
import socket
import threading
import time

from zc_perception.errors import AcceleratorError, ConfigError, StaleFrameError
from zc_perception.frame import Frame, FrameData
from zc_perception.link.shared_memory import wire
from zc_perception.link.shared_memory.protocol import (
    FLAG_FENCE,
    MessageType,
    ProtocolError,
    RefusalCode,
)
from zc_perception.link.shared_memory.unix_socket import Peer, SEND_FLAGS
from zc_perception.link.shared_memory.wire import BuffersMessage, Hello, Refused, Welcome
from zc_perception.memory.dmabuf import DmaBuf
from zc_perception.memory.fence import Fence, SyncFile
from zc_perception.memory.pool import BufferPool, quarantine_fence
from zc_perception.native import compiled

_MAX_U32 = 0xFFFFFFFF
_FRAME_TYPE = int(MessageType.FRAME)
# A quarantine's fence signals within quarantine_timeout_s. The pool waits this many seconds
# longer, so that it doesn't give up before the fence has signalled.
_PATIENCE_S = 1.0


@dataclass(frozen=True)
class ConsumerStatistics:
    """
    The counters of one connected consumer, for diagnostics.

    :param holder: the consumer's name in the pool's leases.
    :param window: largest number of frames that the consumer may hold, as WELCOME granted it.
    :param asked: the window that HELLO asked for.
    :param depth: largest number of frames that may wait in the producer, as WELCOME granted it.
    :param held: number of frames that the consumer holds now.
    :param pending: number of frames that wait in the producer, because the window is full or a
        fence has not signalled.
    :param sent: number of frames sent so far.
    :param dropped: number of frames not sent, because the consumer was too slow or the frame's own
        fence failed.
    :param trusted_writer: whether the consumer could write to the pixels, because the memory can't
        be sealed against writing.
    :param in_hand: for each held frame its sequence number, and for how many seconds it is held.
    """

    name: str
    holder: str
    pid: int
    uid: int
    window: int
    asked: int
    depth: int
    held: int
    pending: int
    sent: int
    dropped: int
    trusted_writer: bool
    in_hand: tuple[tuple[int, float], ...] = ()


class Connection:
    """
    The connection to one consumer, from its HELLO on.

    The connection owns the socket, the leases that the consumer holds, and the frames that wait
    for it. The camera's thread calls :meth:`offer` and :meth:`move`. Any thread may call
    :meth:`retire` and :meth:`statistics`. The server's thread calls all other methods, and
    :meth:`offer` for the frames of the history.

    :param sock: the connected, non-blocking socket; :meth:`end` closes it.
    :param holder: the consumer's name in the pool's leases, unique in the process.
    :param window: largest number of frames that the consumer may hold at the same time.
    :param depth: largest number of frames that may wait for the consumer.
    :param watch: called with a fence, while the connection's lock is held; makes the server's
        thread call :meth:`flush` when the fence has signalled.
    """

    # __slots__ gives these attributes fixed offsets, by which native/links.c accesses them.
    __slots__ = (
        '__dict__', '__weakref__', '_dropped_untold', '_ended', '_frame_id', '_introduced',
        '_length', '_lock', '_out', '_packet', '_pending', '_send', '_sent', '_window', 'failure',
        'holder', 'socket',
    )  # fmt: skip

    def __init__(
        self,
        sock: socket.socket,
        peer: Peer,
        hello: Hello,
        holder: str,
        pool: BufferPool,
        window: int,
        depth: int,
        watch: Callable[[Fence], None],
    ) -> None:
        self.peer = peer
        self.hello = hello
        self.holder = holder
        self.pool = pool
        self.failure = ''
        self.socket = sock
        self._send = sock.send
        self._window = window
        self._depth = depth
        self._watch = watch
        self._lock = threading.Lock()
        self._ended = False
        self._out: dict[tuple[int, int], Frame] = {}
        self._pending: deque[Frame] = deque()
        # For each slot's uid, the newest generation that was sent; -1: only BUFFERS was sent.
        self._introduced: dict[int, int] = {}
        # Uids of an earlier pool's slots that frames in _pending still use; see move().
        self._parting: set[int] = set()
        self._trusted_writer = False
        self._sent = 0
        self._dropped = 0
        self._dropped_untold = 0
        self._frame_id: str | None = None
        self._packet = bytearray(wire.MAX_FRAME)
        self._view = memoryview(self._packet)
        self._length = 0
        self._pack = wire.FRAME.pack_into

    def offer(self, frame: Frame) -> None:
        """
        Send the frame, or append it to the waiting frames; never block.

        A frame waits if the window is full, if other frames wait already, or if it has a fence
        that can't be sent and hasn't signalled. The caller keeps its own lease.

        :raises FrameReleasedError: the caller's lease has ended.
        """
        if not self._pending and frame.data.acquire_fence is None:
            with self._lock:
                if self._ended or self.failure:
                    return
                if not self._pending and len(self._out) < self._window:
                    # Send first and make the consumer's lease afterwards, to send sooner. The
                    # caller's lease keeps the slot until then, and a RELEASE of the frame can't
                    # be handled earlier, because that needs this lock.
                    if self._transmit(frame, None):
                        self._hold(frame)
                    return
        self._offer_later(frame)

    def _hold(self, frame: Frame) -> None:
        """Make the consumer's lease of a frame just sent; called with the lock held."""
        try:
            delivery = frame.deliver(self.holder)
        except Exception as error:
            self._fail('lease', f'a frame was released before it was fully published: {error}')
            raise
        if delivery is None:
            self._fail('lease', f"the quota of '{self.holder}' was changed from outside this link")
        else:
            data = frame.data
            self._out[data.buffer_uid, data.generation] = delivery

    def _offer_later(self, frame: Frame) -> None:
        unwanted: list[Frame] = []
        if len(self._pending) >= self._depth:
            # Drop the oldest waiting frames now: the leases on them may use up the holder's quota,
            # and deliver() needs one more lease.
            with self._lock:
                while len(self._pending) >= self._depth:
                    unwanted.append(self._pending.popleft())
                    self._count_drop()
            _release(unwanted)
        delivery = frame.deliver(self.holder)
        if delivery is None:
            with self._lock:
                self._count_drop()
            return
        delivery.published_ns = frame.published_ns
        with self._lock:
            if self._ended or self.failure:
                unwanted = [delivery]
            else:
                self._pending.append(delivery)
                unwanted = self._flush()
                while len(self._pending) > self._depth:
                    unwanted.append(self._pending.popleft())
                    self._count_drop()
        _release(unwanted)

    def _count_drop(self) -> None:
        self._dropped += 1
        self._dropped_untold = min(self._dropped_untold + 1, _MAX_U32)

    def flush(self) -> None:
        """Send waiting frames; stop when the window is full or a frame's fence is pending."""
        if self._pending:
            with self._lock:
                unwanted = self._flush()
            _release(unwanted)

    def _flush(self) -> list[Frame]:
        """Do :meth:`flush` with the lock held; return frames to release without the lock."""
        unwanted: list[Frame] = []
        pending = self._pending
        while pending and len(self._out) < self._window and not self._ended and not self.failure:
            frame = pending[0]
            fence = frame.data.acquire_fence
            passed: SyncFile | None = None
            if fence is not None:
                try:
                    if fence.wait(0.0):
                        fence.check()
                    elif isinstance(fence, SyncFile):
                        passed = fence
                    else:
                        self._watch(fence)
                        break
                except (AcceleratorError, ValueError, OSError):
                    # The fence failed. If it is a sync_file, send it with the frame nevertheless:
                    # the consumer will see the error. Other fences can't be sent, so drop the
                    # frame.
                    if isinstance(fence, SyncFile):
                        passed = fence
                    else:
                        unwanted.append(pending.popleft())
                        self._count_drop()
                        continue
            pending.popleft()
            if self._transmit(frame, passed):
                self._out[frame.data.buffer_uid, frame.data.generation] = frame
            else:
                unwanted.append(frame)
        if self._parting:
            self._retire_parting()
        return unwanted

    def _transmit(self, frame: Frame, fence: SyncFile | None) -> bool:
        """
        Send a frame; called with the lock held.

        Return ``False`` if the frame wasn't sent. If it was, the caller must put the frame into
        ``_out``, because the consumer now holds the frame.
        """
        data = frame.data
        uid, generation = data.buffer_uid, data.generation
        newest = self._introduced.get(uid)
        if newest is None:
            if self.failure or not self._introduce(data):
                return False
        elif newest >= generation:
            self._count_drop()
            return False
        header = data.header
        if header.frame_id is not self._frame_id:
            try:
                self._set_frame_id(header.frame_id)
            except ConfigError as error:
                # Refuse only this consumer; the other consumers and the camera go on.
                self._refuse(RefusalCode.CONSTRAINTS, str(error))
                return False
        self._pack(
            self._packet,
            0,
            _FRAME_TYPE,
            self._length,
            0,
            uid,
            generation,
            data.sequence,
            header.stamp_ns,
            data.captured_ns,
            frame.published_ns,
            data.capture_cost_ns,
            self._dropped_untold,
            0 if fence is None else FLAG_FENCE,
        )
        try:
            if fence is None:
                self._send(self._view, SEND_FLAGS)
            else:
                self._send_with(self._view, [fence.fileno()])
        except BlockingIOError:  # the socket is full: the consumer doesn't read quickly enough
            self._count_drop()
            return False
        except (OSError, ValueError) as error:
            self._send_failed('FRAME', error)
            return False
        self._introduced[uid] = generation
        self._dropped_untold = 0
        self._sent += 1
        return True

    def _send_with(self, packet: bytes | memoryview, fds: list[int]) -> None:
        self.socket.sendmsg(
            [packet], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', fds))], SEND_FLAGS
        )

    def _set_frame_id(self, frame_id: str) -> None:
        raw = wire.frame_id_bytes(frame_id)
        self._length = wire.FRAME.size + len(raw)
        self._packet[slice(wire.FRAME.size, self._length)] = raw
        self._view = memoryview(self._packet)[: self._length]
        self._frame_id = frame_id

    def _introduce(self, data: FrameData) -> bool:
        """
        Send BUFFERS, which describes the slot of *data*; return whether it was sent.

        Called with the lock held, before the slot's first FRAME is sent.
        """
        kinds = {buffer.kind for buffer in data.buffers}
        kind = data.buffers[0].kind
        unfit = (
            self.hello.requirements.misfit(data.layout, kind, None)
            if len(kinds) == 1
            else 'the buffers of a frame are of two kinds'
        )
        if unfit:
            self._refuse(
                RefusalCode.CONSTRAINTS, f'the buffers have changed and no longer fit: {unfit}'
            )
            return False
        message = BuffersMessage(
            data.buffer_uid,
            data.layout,
            data.colorimetry,
            kind,
            tuple(buffer.size for buffer in data.buffers),
        )
        try:
            narrowed = [buffer.seal_for_sharing() for buffer in data.buffers]
            self._trusted_writer |= not all(narrowed)
            self._send_with(
                wire.pack_buffers(message), [buffer.fileno() for buffer in data.buffers]
            )
        except BlockingIOError:  # the socket is full; try again with the slot's next frame
            self._count_drop()
            return False
        except (OSError, ValueError) as error:
            self._send_failed('BUFFERS', error)
            return False
        # -1 means that BUFFERS was sent, but no FRAME. Store this now, because the FRAME that
        # comes next may fail.
        self._introduced[data.buffer_uid] = -1
        return True

    def retire(self, uid: int) -> None:
        """Tell the consumer by BUFFER_RETIRED that no more frames use the slot *uid*."""
        with self._lock:
            self._retire(uid)

    def _retire(self, uid: int) -> None:
        """Send BUFFER_RETIRED if BUFFERS was sent for this slot; the lock must be held."""
        if self._ended or self.failure or self._introduced.pop(uid, None) is None:
            return
        try:
            self._send(wire.pack_retired(uid), SEND_FLAGS)
        except OSError as error:
            self._send_failed('BUFFER_RETIRED', error)

    def move(self, pool: BufferPool) -> bool:
        """
        Continue with frames of *pool*.

        Before this call, the pool must have granted the consumer's window and depth.

        The consumer keeps the frames that it holds, and waiting frames are still sent. A slot of
        the earlier pool is retired after its last waiting frame. Return ``False`` if the
        connection has ended.
        """
        with self._lock:
            if self._ended:
                return False
            self.pool = pool
            waiting = {frame.data.buffer_uid for frame in self._pending}
            self._parting = {*self._introduced, *waiting}
            self._retire_parting()
            return True

    def _retire_parting(self) -> None:
        """Retire slots of the earlier pool that no waiting frame uses; the lock must be held."""
        waiting = {frame.data.buffer_uid for frame in self._pending}
        for uid in self._parting - waiting:
            self._retire(uid)
        self._parting &= waiting

    @property
    def granted(self) -> tuple[int, int]:
        """The window and the depth that WELCOME granted."""
        return self._window, self._depth

    def _send_failed(self, what: str, error: Exception) -> None:
        """
        Record that sending failed; called with the lock held.

        Ignore errors that mean that the peer closed its socket, because the server's thread will
        then read EOF.
        """
        if not isinstance(error, (BrokenPipeError, ConnectionResetError)):
            self._fail('send', f'{what} could not be sent: {error}')

    def _fail(self, reason: str, text: str) -> None:
        """
        Record a failure and shut the socket down; called with the lock held.

        The shutdown wakes the server's thread, which ends the connection.
        """
        self.failure = self.failure or f'{reason}: {text}'
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def _refuse(self, code: RefusalCode, text: str) -> None:
        with contextlib.suppress(OSError):
            self._send(wire.pack_refused(Refused(code, text)), SEND_FLAGS)
        self._fail(code.name.lower(), text)

    def welcome(self, welcome: Welcome, join: Callable[[], None]) -> None:
        """
        Send WELCOME, which must be the first message.

        :param join: adds the connection to those that get frames. It is called with the lock
            held, so that no frame is sent before WELCOME.
        """
        with self._lock:
            join()
            try:
                self._send(wire.pack_welcome(welcome), SEND_FLAGS)
            except OSError as error:
                self._send_failed('WELCOME', error)

    def refuse(self, code: RefusalCode, text: str) -> None:
        """Send REFUSED; the caller ends the connection."""
        with self._lock:
            if not self._ended:
                self._refuse(code, text)

    def release(self, uid: int, generation: int, fence: SyncFile | None) -> None:
        """
        Release the consumer's lease of a frame, because its RELEASE arrived.

        :param fence: signals when the consumer's device has finished reading. This method takes
            over the fence.
        :raises ProtocolError: the consumer doesn't hold that frame.
        """
        with self._lock:
            frame = self._out.pop((uid, generation), None)
        if frame is None:
            if fence is not None:
                fence.close()
            raise ProtocolError(
                'release',
                f'a RELEASE came for generation {generation} of slot {uid:#x}, but the consumer '
                'does not hold this frame',
            )
        try:  # noqa: SIM105 - runs for every frame; suppress() would make it a tenth slower
            frame.release(fence)
        except StaleFrameError:
            pass  # another thread has already taken back this consumer's leases
        if self._pending:
            self.flush()

    def end(self, quarantine_timeout_s: float) -> int:
        """Close the socket and take back all frames; return how many the consumer held."""
        with self._lock:
            self._ended = True
            held, self._out = list(self._out.values()), {}
            pending = list(self._pending)
            self._pending.clear()
            self.socket.close()
        _release(pending)
        take_back(self.pool, self.holder, held, quarantine_timeout_s)
        return len(held)

    def close_in_child(self) -> None:
        """Close a forked child's copy of the socket; else the parent couldn't end a connection."""
        self._ended = True
        self.socket.close()

    def _in_hand(self) -> tuple[tuple[int, float], ...]:
        """Return :attr:`ConsumerStatistics.in_hand`, sorted; called with the lock held."""
        now = time.monotonic()
        held = [(frame, frame._lease) for frame in self._out.values()]
        return tuple(
            sorted(
                (frame.data.sequence, now - lease.since)
                for frame, lease in held
                if lease is not None
            )
        )

    def statistics(self) -> ConsumerStatistics:
        """Return a snapshot of the counters."""
        with self._lock:
            return ConsumerStatistics(
                self.hello.name,
                self.holder,
                self.peer.pid,
                self.peer.uid,
                self._window,
                self.hello.window,
                self._depth,
                len(self._out),
                len(self._pending),
                self._sent,
                self._dropped,
                self._trusted_writer,
                self._in_hand(),
            )


def take_back(
    pool: BufferPool, holder: str, held: Sequence[Frame], quarantine_timeout_s: float
) -> None:
    """
    Take the frames *held* away from *holder*, whose connection has ended.

    The holder's devices may still read the frames. So no slot is reused until the fences of the
    slot's buffers have signalled, or *quarantine_timeout_s* is over.
    """
    revoked: set[DmaBuf] = set()

    def quarantine(buffers: Sequence[DmaBuf]) -> Fence:
        revoked.update(buffers)
        return quarantine_fence(buffers, quarantine_timeout_s)

    pool.revoke(holder, quarantine, timeout_s=quarantine_timeout_s + _PATIENCE_S)
    for frame in held:
        buffers = frame.data.buffers
        with contextlib.suppress(StaleFrameError):
            # revoke() doesn't take back leases of an earlier pool (see move()). Put their buffers
            # into quarantine, too.
            frame.release(
                None
                if revoked.issuperset(buffers)
                else quarantine_fence(buffers, quarantine_timeout_s)
            )


def _release(frames: list[Frame]) -> None:
    for frame in frames:
        with contextlib.suppress(StaleFrameError):
            frame.release()


if compiled is not None:
    compiled.join(Connection)
