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
Hand objects from one thread to another; a full queue drops its oldest object.

The queue has a descriptor that poll(2) shows as readable while there is an object.
"""

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
# The most objects of one fetch, more than all windows together, so that a source that always has
# an object does not hold up the fetching thread.
_FETCHED_AT_ONCE = 64


class Source(Protocol[T_co]):
    """A source from which a queue's consumer itself fetches objects: another process's socket."""

    def fileno(self) -> int:
        """Return a descriptor that is readable when :meth:`receive` may have something."""

    def wait(self, epoll: select.epoll, timeout_s: float) -> None:
        """
        Wait until *epoll* is readable, for at most *timeout_s*.

        During the wait the source may fetch an object, which :meth:`receive` then returns.
        """

    def receive(self) -> T_co | None:
        """
        Return the next object, or ``None``.

        The method never blocks and never raises: a source that fails reports that to its owner.
        """


class KeepLastQueue(Generic[T]):
    """
    A queue that keeps the newest objects: when full, it releases and counts the oldest.

    Any number of threads may use it.

    A consumer with a thread of its own may attach sources: :meth:`get` then also takes objects
    from them, in the caller's thread. While objects are queued, the sources' objects are queued
    behind them, so that all objects come out in the order of their arrival.

    :param depth: the most objects that are kept; ``None``: all are kept, and the producer's pool
        limits their number.
    :param release: called with each object that no consumer will get.
    :param gate: called with each entry; returns whether the consumer may have the entry now. If
        not, the entry stays first in the queue until :meth:`reopen`. An object of a source is
        checked only if it is queued.
    """

    # Those that native/links.c reads and writes.
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
        # One token for each entry, because a thread that waits for a token wakes up much faster
        # than one that polls a descriptor.
        self._tokens: queue.SimpleQueue[None] = queue.SimpleQueue()
        # Held by the one thread that waits for a token. Before Python 3.13, get() of a SimpleQueue
        # with a timeout can hang for ever: it was woken, another thread took the item first, and
        # the timeout had passed by then.
        self._turn = threading.Lock()
        self._depth = depth
        self._release = release
        self._lock = threading.Lock()
        # Held from taking a source's frame until it is queued, so that no other thread fetches the
        # next one in between. Taken before the lock above.
        self._fetching = threading.Lock()
        # The eventfd for fileno(), made at its first call: a consumer that only calls get() needs
        # none.
        self._event: OwnedFd | None = None
        # The numbers of the eventfd and of the polled descriptor, kept here because each frame
        # needs them.
        self._event_fd = self._polled_fd = -1
        self._signalled = False
        self._sources: tuple[Source[T], ...] = ()
        self._receivers: tuple[Callable[[], T | None], ...] = ()
        # How get() waits: if there is only one source, by the source's own wait(), which is
        # cheaper; else by epoll.
        self._wait: Callable[[select.epoll, float], object] = select.epoll.poll
        self._epoll: select.epoll | None = None
        #: Whether the queue takes no more objects; its descriptor is then readable. Other classes
        #: only read this.
        self.closed = False
        self._refusing = False
        self._gate = gate
        self._shut = False
        # Tokens that were taken while the gate was shut.
        self._tokens_due = 0
        self.dropped = 0

    def fileno(self) -> int:
        """
        Return a descriptor that is readable while get() has something, or after close().

        That is while the queue or a source has an object. Attaching the first source changes the
        descriptor.
        """
        if self._polled_fd < 0:
            with self._lock:
                self._polled_event()
                if self._entries or self.closed:
                    self._signal()
        return self._polled_fd

    def _polled_event(self) -> int:
        """Return the descriptor that pollers watch; the caller holds the lock."""
        if self._event is None:
            self._event = OwnedFd(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
            self._event_fd = self._polled_fd = self._event.fileno()
        return self._event_fd

    def __len__(self) -> int:
        return len(self._entries)

    def _signal(self) -> None:
        """Make the eventfd readable, unless nobody polls it; the caller holds the lock."""
        if self._event is not None:
            self._signalled = True
            os.eventfd_write(self._event_fd, 1)

    def put(self, entry: T) -> None:
        """Take over an object and its lease. Never blocks."""
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

        Call this before an object is made for :meth:`put`, so that the dropped object's memory is
        free.

        :param most: the most objects for which *which* is true; it replaces the depth for all
            objects.
        """
        most = self._depth if most is None else most
        if most is None or len(self._entries) < most:
            return
        with self._lock:
            full = sum(which is None or which(entry) for entry in self._entries) >= most
        if full:
            self.drop_oldest(which)

    def drop_oldest(self, which: Callable[[T], bool] | None = None) -> bool:
        """
        Drop the oldest entry, or the oldest for which *which* is true.

        Return ``False`` if there is no such entry.
        """
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
        """Remove the token of an entry that was dropped. The caller holds the lock."""
        if self._tokens_due:
            self._tokens_due -= 1
            return
        if self._turn.locked():
            return  # a waiting thread takes the token, and finds no entry
        try:  # noqa: SIM105 - for every frame
            self._tokens.get_nowait()
        except queue.Empty:  # the thread that took the token is about to find no entry
            pass

    @property
    def shut(self) -> bool:
        """Whether the consumer gets no entry until :meth:`reopen`."""
        return self._shut

    def reopen(self) -> None:
        """Make waiting consumers ask the gate again, because it may let an entry through now."""
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
        """Let :meth:`get` also take from *source*, whose owner detaches it before closing it."""
        with self._lock:
            if self.closed:
                return
            if self._epoll is None:
                self._epoll = select.epoll()
                self._epoll.register(self._polled_event(), select.EPOLLIN)
                self._polled_fd = self._epoll.fileno()
            self._epoll.register(source.fileno(), select.EPOLLIN)
            self._set_sources((*self._sources, source))
            # Wake threads that wait for a token or on the other descriptor, so that they wait for
            # both.
            self._tokens.put(None)
            self._signal()

    def _set_sources(self, sources: tuple[Source[T], ...]) -> None:
        self._sources = sources
        self._receivers = tuple(source.receive for source in sources)
        self._wait = sources[0].wait if len(sources) == 1 else select.epoll.poll

    def detach(self, source: Source[T]) -> None:
        """Undo :meth:`attach`. A second call does nothing."""
        with self._lock:
            if source in self._sources:
                self._set_sources(tuple(s for s in self._sources if s is not source))
                if self._epoll is not None:
                    with contextlib.suppress(OSError, ValueError):
                        self._epoll.unregister(source.fileno())

    def get(self, timeout_s: float = 0.0) -> T | None:
        """Return the oldest object, or ``None`` after *timeout_s*. The caller owns its lease."""
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
                # Poll first: usually the source has no frame yet, and asking the source takes
                # longer.
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
                    # Deliver entries first that were queued meanwhile. A message is older than the
                    # fetched object, because a fetch comes before it is queued. An object of this
                    # process may be newer, but nothing shows that.
                    self.put(entry)

    def fetch(self) -> None:
        """Queue the objects that the sources have now, because they came before the next put."""
        if not self._sources:
            return
        with self._fetching:
            for _ in range(_FETCHED_AT_ONCE):
                entry = self._receive()
                if entry is None:
                    return
                self.put(entry)

    def _receive(self) -> T | None:
        """Receive from the sources; only one thread at a time."""
        receivers = self._receivers
        for receive in receivers:
            entry = receive()
            if entry is not None:
                if len(receivers) > 1:
                    # Limit the objects of one source, so that the other sources are asked, too.
                    with self._lock:
                        self._receivers = (*self._receivers[1:], *self._receivers[:1])
                return entry
        return None

    def _pop(self, *, owing: bool, force: bool = False) -> T | None:
        """
        Take the oldest entry, if the gate lets it through or *force* is set.

        *owing*: the entry's token was not taken yet, and is removed, too.
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
            try:  # noqa: SIM105 - for every frame
                os.eventfd_read(self._event_fd)
            except BlockingIOError:
                pass

    def refuse(self) -> None:
        """
        Release all queued and all later objects, until :meth:`accept` is called.

        The sources stay attached: their owner detaches them.
        """
        with self._lock:
            self._refusing = True
        while (entry := self._pop(owing=True, force=True)) is not None:
            self._release(entry)
        self.reopen()

    def accept(self) -> None:
        """Undo :meth:`refuse`. After :meth:`close` this has no effect."""
        with self._lock:
            self._refusing = self.closed

    def close(self) -> None:
        """
        Release all queued objects; later objects are released at once.

        The descriptor is closed when the last reference to it is dropped.
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
        """
        Close the queue, and the sources' descriptor at once, even if the queue is still in use.

        A :meth:`get` that waits returns ``None``.
        """
        self.close()
        with self._lock:
            # The descriptor is closed when the last reference is dropped. A thread that polls it
            # holds a reference, so that its number can't become another file's meanwhile.
            self._epoll, self._polled_fd = None, self._event_fd


if compiled is not None:
    compiled.join(KeepLastQueue)
