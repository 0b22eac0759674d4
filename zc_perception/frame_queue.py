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

"""Pass objects between threads by a queue that drops its oldest object when it is full."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
import contextlib
import os
import queue
import select
import threading
import time
from typing import Generic, Protocol, TypeVar

from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.native import compiled

T = TypeVar('T')
T_co = TypeVar('T_co', covariant=True)
# The largest number of objects that one fetch() queues: without a limit, a source that sends
# without a pause would block the fetching thread. Sources that pause never have so many objects.
_FETCHED_AT_ONCE = 64


class Source(Protocol[T_co]):
    """A source of objects, such as another process's socket, for :meth:`KeepLastQueue.attach`."""

    def fileno(self) -> int:
        """Return a descriptor that is readable when :meth:`receive` may return an object."""

    def wait(self, epoll: select.epoll, timeout_s: float) -> None:
        """
        Wait for an event of *epoll*, at most *timeout_s* seconds.

        The source may already read an object during the wait; :meth:`receive` then returns it.

        :param epoll: an epoll object at which the descriptor of :meth:`fileno` is registered.
        """

    def receive(self) -> T_co | None:
        """
        Return the next object or ``None``.

        Never block or raise; report errors to the owner of the source.
        """


class KeepLastQueue(Generic[T]):
    """
    A queue that keeps the newest objects: when full, it releases the oldest; thread-safe.

    A consumer with its own thread may attach sources. :meth:`get` then also receives from the
    sources, in the caller's thread. Objects of sources are queued behind those that are queued
    already, so that all objects come out in the order of their arrival.

    :param depth: the maximum number of queued objects; ``None``: no maximum, because the
        producer's pool limits the number.
    :param release: called with each object that no consumer will get.
    :param gate: called with the oldest queued object; returns whether the consumer may have it
        now. If not, the queue is shut: it delivers nothing until :meth:`reopen`. An object that
        :meth:`get` receives directly from a source is not checked.
    """

    # The attributes that native/links.c reads and writes.
    __slots__ = (
        '__dict__', '__weakref__', '_depth', '_entries', '_epoll', '_event', '_fetching', '_gate',
        '_lock', '_receivers', '_refusing', '_shut', '_signalled', '_tokens', '_turn', '_wait',
        'closed',
    )  # fmt: skip

    def __init__(
        self,
        depth: int | None,
        release: Callable[[T], object],
        *,
        gate: Callable[[T], bool] | None = None,
    ) -> None:
        self._entries: deque[T] = deque()
        # Has one token for each entry. get() waits for a token, because a token wakes a thread
        # much faster than a descriptor that the thread polls.
        self._tokens: queue.SimpleQueue[None] = queue.SimpleQueue()
        # Held by the thread that waits for a token, so that only one thread waits. Before Python
        # 3.13, SimpleQueue.get() with a timeout can hang for ever if another thread takes the item
        # first and the timeout has passed by then.
        self._turn = threading.Lock()
        self._depth = depth
        self._release = release
        self._lock = threading.Lock()
        # Held from receiving a source's object until it is queued, so that no other thread
        # receives the next object in between. Acquired before _lock.
        self._fetching = threading.Lock()
        # The eventfd for fileno(), made when it is first needed: a consumer that only calls get()
        # of a queue without sources needs none.
        self._event: OwnedFd | None = None
        # The numbers of the eventfd and of the descriptor that fileno() returns, stored because
        # they are read for each frame.
        self._event_fd = self._polled_fd = -1
        self._signalled = False
        self._sources: tuple[Source[T], ...] = ()
        self._receivers: tuple[Callable[[], T | None], ...] = ()
        # The function by which get() waits: with exactly one source, wait() of that source, which
        # is cheaper; else epoll.poll.
        self._wait: Callable[[select.epoll, float], object] = select.epoll.poll
        self._epoll: select.epoll | None = None
        #: Whether close() was called; the descriptor of fileno() is then always readable. Other
        #: classes must not set this.
        self.closed = False
        self._refusing = False
        self._gate = gate
        self._shut = False
        # How many waiting entries have no token in _tokens: a consumer took the token, but not the
        # entry, because the gate was shut. reopen() adds these tokens again.
        self._tokens_due = 0
        self.dropped = 0

    def fileno(self) -> int:
        """
        Return a descriptor that is readable while the queue or a source has an object.

        After :meth:`close` it is always readable. Attaching the first source changes the
        descriptor.
        """
        if self._polled_fd < 0:
            with self._lock:
                self._polled_event()
                if self._entries or self.closed:
                    self._signal()
        return self._polled_fd

    def _polled_event(self) -> int:
        """Return the eventfd's number; make it at the first call. The caller holds the lock."""
        if self._event is None:
            self._event = OwnedFd(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
            self._event_fd = self._polled_fd = self._event.fileno()
        return self._event_fd

    def __len__(self) -> int:
        return len(self._entries)

    def _signal(self) -> None:
        """Make the eventfd readable, if it exists; the caller holds the lock."""
        if self._event is not None:
            self._signalled = True
            os.eventfd_write(self._event_fd, 1)

    def put(self, entry: T) -> None:
        """
        Queue an object, and take over its lease; never block.

        A full queue drops its oldest object.
        """
        with self._lock:
            if self._refusing:
                overflow = entry
            elif self._depth is not None and len(self._entries) >= self._depth:
                overflow = self._entries.popleft()
                self._entries.append(entry)
                self.dropped += 1
            else:
                self._entries.append(entry)
                self._tokens.put(None)
                if self._event is not None and not self._signalled and not self._shut:
                    self._signalled = True
                    os.eventfd_write(self._event_fd, 1)
                return
        self._release(overflow)

    def make_room(self, most: int | None = None, which: Callable[[T], bool] | None = None) -> None:
        """
        Drop the oldest object if the queue is full.

        A producer calls this before it makes an object for :meth:`put`, so that it can reuse the
        memory of the dropped object.

        :param most: the queue counts as full with this many objects; default: the depth.
        :param which: selects the objects to count and to drop; default: all.
        """
        most = self._depth if most is None else most
        if most is None or len(self._entries) < most:
            return
        with self._lock:
            full = sum(which is None or which(entry) for entry in self._entries) >= most
        if full:
            self.drop_oldest(which)

    def drop_oldest(self, which: Callable[[T], bool] | None = None) -> bool:
        """Drop the oldest entry that *which* selects; return ``False`` if there is none."""
        with self._lock:
            overflow = next(
                (entry for entry in self._entries if which is None or which(entry)), None
            )
            if overflow is None:
                return False
            self._entries.remove(overflow)
            self.dropped += 1
            self._untoken()
        self._release(overflow)
        return True

    def _untoken(self) -> None:
        """Remove one token, because one entry was removed; the caller holds the lock."""
        if self._tokens_due:
            self._tokens_due -= 1
            return
        if self._turn.locked():
            return  # a waiting thread takes the token, and finds no entry
        try:  # noqa: SIM105 - runs for every frame; suppress() would be slower
            self._tokens.get_nowait()
        except queue.Empty:  # another thread has taken the token, and will find no entry
            pass

    @property
    def shut(self) -> bool:
        """Whether the gate has refused the oldest entry, so that :meth:`get` returns no entry."""
        return self._shut

    def reopen(self) -> None:
        """Wake waiting consumers: the gate may now accept the entry that it has refused."""
        with self._lock:
            if not self._shut:
                return
            self._shut = False
            for _ in range(self._tokens_due):
                self._tokens.put(None)
            self._tokens_due = 0
            if self._entries and not self._signalled:
                self._signal()

    def attach(self, source: Source[T]) -> None:
        """Let :meth:`get` also receive from *source*; detach the source before closing it."""
        with self._lock:
            if self.closed:
                return
            if self._epoll is None:
                self._epoll = select.epoll()
                self._epoll.register(self._polled_event(), select.EPOLLIN)
                self._polled_fd = self._epoll.fileno()
            self._epoll.register(source.fileno(), select.EPOLLIN)
            self._set_sources((*self._sources, source))
            # Wake threads that wait only for a token or only on the eventfd, so that they wait on
            # the epoll descriptor instead.
            self._tokens.put(None)
            self._signal()

    def _set_sources(self, sources: tuple[Source[T], ...]) -> None:
        self._sources = sources
        self._receivers = tuple(source.receive for source in sources)
        self._wait = sources[0].wait if len(sources) == 1 else select.epoll.poll

    def detach(self, source: Source[T]) -> None:
        """Remove a source from the queue, if it is attached."""
        with self._lock:
            if source in self._sources:
                self._set_sources(tuple(s for s in self._sources if s is not source))
                if self._epoll is not None:
                    with contextlib.suppress(OSError, ValueError):
                        self._epoll.unregister(source.fileno())

    def get(self, timeout_s: float = 0.0) -> T | None:
        """
        Remove and return the oldest object; the caller then owns its lease.

        ``None``: no object came within *timeout_s* seconds, or the queue was closed.
        """
        if timeout_s <= 0.0:
            found = self._entries or self._signalled or self._sources
            return self._take() if found else None
        deadline = time.monotonic() + timeout_s
        while True:
            epoll = self._epoll
            if epoll is None:
                owing = True
                if self._turn.acquire(timeout=timeout_s):
                    try:
                        if self._epoll is None and not self.closed:
                            self._tokens.get(True, max(0.0, deadline - time.monotonic()))
                            owing = False
                    except queue.Empty:
                        pass
                    finally:
                        self._turn.release()
                entry = self._pop(owing=owing)
            else:
                # Wait on the epoll descriptor before receiving from a source: usually the source
                # has no frame yet, and receive() takes longer than the epoll.
                entry = self._take() if self._entries or self._signalled else None
                if entry is None and not self.closed:
                    self._wait(epoll, timeout_s)
                    entry = self._take()
            if entry is not None or self.closed:
                return entry
            timeout_s = deadline - time.monotonic()
            if timeout_s <= 0.0:
                return None

    def _take(self) -> T | None:
        while True:
            if self._entries or self._signalled:
                if self._entries and self._sources:
                    self.fetch()
                entry = self._pop(owing=True)
                if entry is not None:
                    return entry
            if self._shut or not self._sources:
                return None
            with self._fetching:
                if not self._entries:
                    receivers = self._receivers
                    entry = receivers[0]() if len(receivers) == 1 else self._receive()
                    if entry is None or not self._entries:
                        return entry
                    # While this thread received *entry*, other threads queued entries: deliver
                    # those first. A queued message is older than *entry*: before its
                    # thread queued it, the thread called fetch(), when *entry* had not come yet.
                    # A queued object of this process may be newer than *entry*, but its age is not
                    # known.
                    self.put(entry)

    def fetch(self) -> None:
        """Queue the objects that the sources have now, before :meth:`put` queues later ones."""
        if not self._sources:
            return
        with self._fetching:
            for _ in range(_FETCHED_AT_ONCE):
                entry = self._receive()
                if entry is None:
                    return
                self.put(entry)

    def _receive(self) -> T | None:
        """Return one object of any source, or ``None``; the caller holds ``_fetching``."""
        receivers = self._receivers
        for receive in receivers:
            entry = receive()
            if entry is not None:
                if len(receivers) > 1:
                    # Rotate the sources, so that one with many objects can't starve the others.
                    with self._lock:
                        self._receivers = (*self._receivers[1:], *self._receivers[:1])
                return entry
        return None

    def _pop(self, *, owing: bool, force: bool = False) -> T | None:
        """
        Remove and return the oldest entry, if the gate accepts it or *force* is set.

        :param owing: whether the caller has not taken the entry's token from ``_tokens`` yet.
        """
        with self._lock:
            entries, entry = self._entries, None
            if entries:
                gate = self._gate
                if gate is not None and not force and (self._shut or not gate(entries[0])):
                    self._shut = True
                    self._tokens_due += not owing
                    if self._signalled and not self.closed:
                        self._unsignal()
                    return None
                entry = entries.popleft()
                if owing:
                    self._untoken()
            if self._signalled and not entries and not self.closed:
                self._unsignal()
            return entry

    def _unsignal(self) -> None:
        """Make the eventfd unreadable; the caller holds the lock."""
        self._signalled = False
        if self._event is not None:
            try:  # noqa: SIM105 - runs for every frame; suppress() would be slower
                os.eventfd_read(self._event_fd)
            except BlockingIOError:
                pass

    def refuse(self) -> None:
        """Release all queued objects, and each new one until :meth:`accept`; keep the sources."""
        with self._lock:
            self._refusing = True
        while (entry := self._pop(owing=True, force=True)) is not None:
            self._release(entry)
        self.reopen()

    def accept(self) -> None:
        """Queue objects again after :meth:`refuse`, unless the queue is closed."""
        with self._lock:
            self._refusing = self.closed

    def close(self) -> None:
        """
        Release all queued objects, and wake the consumer; later objects are released at once.

        The queue's own descriptors stay open until nothing refers to them any more.
        """
        with self._lock:
            self.closed = self._refusing = True
            entries = list(self._entries)
            self._entries.clear()
            self._set_sources(())
            # Wake a consumer, whether it waits for a token or on a descriptor.
            self._tokens.put(None)
            self._signal()
        for entry in entries:
            self._release(entry)

    def end(self) -> None:
        """Close the queue and drop its epoll object; a waiting :meth:`get` returns ``None``."""
        self.close()
        with self._lock:
            # A thread that still polls holds a reference to the epoll object. So the object's
            # descriptor stays open, and no other file can get its number during the poll.
            self._epoll, self._polled_fd = None, self._event_fd


if compiled is not None:
    compiled.join(KeepLastQueue)
