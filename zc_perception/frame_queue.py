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
Hands objects from one thread to another, the newest first to stay.

poll(2) tells when there is an object.
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

T = TypeVar('T')
T_co = TypeVar('T_co', covariant=True)
# More than all windows together: a source that always has an object must not hold up the thread
# that fetches.
_FETCHED_AT_ONCE = 64


class Source(Protocol[T_co]):
    """Where a queue's consumer fetches objects itself: the socket of another process."""

    def fileno(self) -> int:
        """Return a descriptor that is readable when :meth:`receive` may have something."""

    def wait(self, epoll: select.epoll, timeout_s: float) -> None:
        """
        Wait until *epoll* is readable, for at most *timeout_s*.

        It may fetch an object meanwhile, which :meth:`receive` then returns.
        """

    def receive(self) -> T_co | None:
        """
        Return the next object, or ``None``.

        It never blocks and never raises: a source that has failed tells its owner.
        """


class KeepLastQueue(Generic[T]):
    """
    Keep-last: when full, the oldest object is released and counted.

    So the newest objects stay. Any number of threads may use it.

    A consumer with a thread of its own may attach sources: :meth:`get` then also takes what they
    have, in the caller's thread. While something is queued, what they have is queued behind it, so
    that all objects come out in the order of their arrival.

    :param depth: objects kept; ``None`` keeps all, which the producer's pool bounds.
    :param release: ends an object that no consumer will get.
    :param gate: asked for each entry whether the consumer may have it now. An entry that it may
        not have stays, and no other one comes before it, until :meth:`reopen`. An object of a
        source is checked only if it is queued.
    """

    def __init__(
        self,
        depth: int | None,
        release: Callable[[T], object],
        *,
        gate: Callable[[T], bool] | None = None,
    ) -> None:
        self._entries: deque[T] = deque()
        # One for each entry: a thread that waits for a token wakes much faster than one that polls
        # a descriptor.
        self._tokens: queue.SimpleQueue[None] = queue.SimpleQueue()
        # Held by the one thread that waits for a token. Before Python 3.13 a SimpleQueue's get()
        # never ends if it was woken, another thread took what it was woken for, and its time was
        # over by then.
        self._turn = threading.Lock()
        self._depth = depth
        self._release = release
        self._lock = threading.Lock()
        # Held from taking a source's frame until it is queued, so that no other thread fetches the
        # next one in between. Taken before the lock above.
        self._fetching = threading.Lock()
        # Made at the first fileno(): a consumer that only waits in get() needs none.
        self._event: OwnedFd | None = None
        # Its number, and that of what is polled: of every frame, hence no calls.
        self._event_fd = self._polled_fd = -1
        self._signalled = False
        self._sources: tuple[Source[T], ...] = ()
        self._receivers: tuple[Callable[[], T | None], ...] = ()
        # How get() waits: with one source by that source's own wait(), which has less to do; else
        # by epoll.
        self._wait: Callable[[select.epoll, float], object] = select.epoll.poll
        self._epoll: select.epoll | None = None
        #: Whether it takes no more objects; it polls readable then. To be read only.
        self.closed = False
        self._refusing = False
        self._gate = gate
        self._shut = False
        # Tokens that were taken while the gate was shut.
        self._tokens_due = 0
        self.dropped = 0

    def fileno(self) -> int:
        """
        Return a descriptor that is readable while an object may be had, and once it is closed.

        That is while the queue is not empty or a source has something. The descriptor changes with
        the first source.
        """
        if self._polled_fd < 0:
            with self._lock:
                self._polled_event()
                if self._entries or self.closed:
                    self._signal()
        return self._polled_fd

    def _polled_event(self) -> int:
        """Lock held."""
        if self._event is None:
            self._event = OwnedFd(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
            self._event_fd = self._polled_fd = self._event.fileno()
        return self._event_fd

    def __len__(self) -> int:
        return len(self._entries)

    def _signal(self) -> None:
        """Lock held. Nothing to do while nobody polls."""
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
        Drop the oldest object if there is no place for one more.

        It is called before an object is made for :meth:`put`, so that its memory is free.

        :param most: places for objects for which *which* is true, in place of the depth for all.
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

        ``False`` if there is none.
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
        """Lock held: the token of an entry that goes untaken."""
        if self._tokens_due:
            self._tokens_due -= 1
            return
        if self._turn.locked():
            return  # whoever waits takes it, and finds nothing
        try:  # noqa: SIM105 - for every frame
            self._tokens.get_nowait()
        except queue.Empty:  # its taker is about to find nothing
            pass

    @property
    def shut(self) -> bool:
        """Whether the consumer gets no entry until :meth:`reopen`."""
        return self._shut

    def reopen(self) -> None:
        """Ask the gate again: it may let an entry through now."""
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
        """Let :meth:`get` also take from *source*, which its owner detaches before closing it."""
        with self._lock:
            if self.closed:
                return
            if self._epoll is None:
                self._epoll = select.epoll()
                self._epoll.register(self._polled_event(), select.EPOLLIN)
                self._polled_fd = self._epoll.fileno()
            self._epoll.register(source.fileno(), select.EPOLLIN)
            self._set_sources((*self._sources, source))
            # Whoever waits for a token or on the other descriptor looks again, and waits for both.
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
                # Nearly always there is no frame yet, and asking the source takes longer than a
                # poll.
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
                    # What was queued meanwhile is delivered first. A message was preceded by a
                    # fetch, so it is older. An object of this process may be newer, and nobody can
                    # tell.
                    self.put(entry)

    def fetch(self) -> None:
        """Queue the objects that the sources have by now, which came before the next put."""
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
                    # A source that always has an object must not keep us from asking the others.
                    with self._lock:
                        self._receivers = (*self._receivers[1:], *self._receivers[:1])
                return entry
        return None

    def _pop(self, *, owing: bool, force: bool = False) -> T | None:
        """
        Take the oldest entry, if the gate lets it through or *force*.

        *owing*: its token is still there, and goes with it.
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
        """Lock held."""
        self._signalled = False
        if self._event is not None:
            try:  # noqa: SIM105 - for every frame
                os.eventfd_read(self._event_fd)
            except BlockingIOError:
                pass

    def refuse(self) -> None:
        """
        Release what is queued, and what comes from now on, until :meth:`accept`.

        The sources' owner detaches them.
        """
        with self._lock:
            self._refusing = True
        while (entry := self._pop(owing=True, force=True)) is not None:
            self._release(entry)
        self.reopen()

    def accept(self) -> None:
        """Undo :meth:`refuse`. Not after :meth:`close`."""
        with self._lock:
            self._refusing = self.closed

    def close(self) -> None:
        """
        Release what is queued; later objects are released at once.

        The descriptor is closed with the last reference.
        """
        with self._lock:
            self.closed = self._refusing = True
            entries = list(self._entries)
            self._entries.clear()
            self._set_sources(())
            # Wakes a consumer, however it waits.
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
            # The last reference closes it. A thread that polls it holds one, so the number can't
            # become another file's meanwhile.
            self._epoll, self._polled_fd = None, self._event_fd
