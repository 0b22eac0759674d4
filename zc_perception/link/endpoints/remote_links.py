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
Link one subscription of frames to the publishers in other processes of this host.

:class:`SharedMemoryLinks` has one client for each announced publisher. The number of frames of one
publisher that the subscription may hold at the same time is called a window.
:class:`WindowWarnings` warns if a publisher grants a smaller window than the subscription asked
for, or if a window is full.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
import contextlib
from dataclasses import dataclass
import errno
import itertools
import os
from pathlib import Path
import select
import threading
import time
from typing import NamedTuple

from zc_perception.errors import NO_DESCRIPTOR
from zc_perception.frame import Frame, Header
from zc_perception.frame_queue import KeepLastQueue
from zc_perception.link.announcement import Announcement, host_id, made_here
from zc_perception.link.bus import LinkQos
from zc_perception.link.rungs import RemotePublisher, RemoteState
from zc_perception.link.shared_memory.client import ClientStatistics, SharedMemoryClient
from zc_perception.link.shared_memory.protocol import ANYTHING, MAX_DEPTH, Requirements
from zc_perception.log import ONCE, Seldom
from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.native import compiled
from zc_perception.negotiation.session import Consumer
from zc_perception.negotiation.settings import TrialImport

STALLED_S = 1.0
"""Seconds for which a window must be full before a warning is logged."""


def full_s(window: int, in_hand: Sequence[tuple[int, float]]) -> float:
    """
    Return for how many seconds a window has been full; 0 if it isn't full.

    :param window: number of frames that may be held at the same time.
    :param in_hand: for each held frame, its sequence number and for how many seconds it was held.
    """
    return min(seconds for _, seconds in in_hand) if in_hand and len(in_hand) >= window else 0.0


def describe_in_hand(in_hand: Sequence[tuple[int, float]]) -> str:
    """Return a text for logs: which frames are held, and for how long."""
    return ', '.join(f'frame {sequence} for {seconds:.1f} s' for sequence, seconds in in_hand)


def describe_full(window: int, in_hand: Sequence[tuple[int, float]], slow: TooSlow | None) -> str:
    """
    Return a text for logs: this consumer holds all frames that it may hold, and which these are.

    :param window: number of frames that the consumer may hold.
    :param slow: the slow work, because of which the consumer holds the frames; ``None``: the
        consumer keeps them on purpose.
    """
    which = describe_in_hand(in_hand)
    if slow is None:
        return f'this consumer holds all {window} frame(s) that it may hold: {which}'
    return f'{slow.what}: this consumer holds all {window} frame(s) that it may hold: {which}'


@dataclass(frozen=True)
class Window:
    """
    How many frames of one publisher a subscription may hold at the same time.

    :param publisher_id: the publisher's id; empty for frames from messages.
    :param connection: two numbers that identify the connection; a new connection has new ones.
    :param granted: number of frames that may be held at the same time.
    :param asked: number of frames that the subscription asked to hold.
    :param in_hand: for each held frame, its sequence number and for how many seconds it was held.
    """

    publisher_id: str
    connection: tuple[int, int]
    granted: int
    asked: int
    in_hand: tuple[tuple[int, float], ...] = ()

    @property
    def full_s(self) -> float:
        """For how many seconds the window has been full; 0 if it isn't full."""
        return full_s(self.granted, self.in_hand)


class TooSlow(NamedTuple):
    """Work that holds frames so long that a :class:`Window` is full, and advice for the user."""

    what: str
    advice: str


SLOW_CALLBACK = TooSlow(
    'the callback is too slow', "make it quicker, or lower the camera's framerate"
)


class WindowWarnings:
    """
    Logs a warning if a window of one subscription is too small or full; see :class:`Window`.

    :param warn: logs a text as a warning.
    """

    def __init__(self, warn: Callable[[str], object]) -> None:
        self._narrow = Seldom(warn, ONCE)
        self._full = Seldom(warn, 10.0)

    def say(self, windows: Sequence[Window], slow: TooSlow | None = None) -> None:
        """
        Warn about windows that are too small or full.

        A window that is smaller than the subscription asked for is reported once per connection. A
        full window is reported after :data:`STALLED_S`, and then at most every 10 s.

        :param slow: the slow work that holds the frames of full windows; ``None``: the user's
            code keeps the frames on purpose.
        """
        for window in windows:
            publisher = (
                f'publisher {window.publisher_id[:8]}' if window.publisher_id else 'messages'
            )
            if window.granted < window.asked:
                self._narrow(
                    f'{publisher} lets this consumer hold {window.granted} frame(s) at a time, '
                    f'{window.asked} were asked for: the publisher has too few slots left; raise '
                    "its parameter 'slots', or end other consumers and start this one anew",
                    str(window.connection),
                )
            if window.full_s >= STALLED_S:
                self._full(
                    (
                        f'no frame comes from {publisher}, because '
                        f'{describe_full(window.granted, window.in_hand, slow)}; '
                    )
                    + (
                        slow.advice
                        if slow
                        else 'release these frames, or drop the arrays of their pixels'
                    ),
                    window.publisher_id,
                )


# If a publisher doesn't accept our connection within this time, the subscription reads messages
# until the publisher does.
_PATIENCE_S = 2.0
_LOOK_S = 0.5
# The largest number of frames that one call of receive() skips because the subscription doesn't
# take them. A publisher that sends without a pause must not block the calling thread.
_UNWANTED_AT_ONCE = range(64)
_numbers = itertools.count(1)


# The reason why a publisher can't send its frames through shared memory; "it" is the publisher.
OTHER_HOST = 'it is on another host'


class _Link:
    """
    A source of the subscription's queue: the client that receives one publisher's frames.

    :param again: whether the publisher sends its history again after a new connection, so that
        frames may come twice.
    :param accept: called with the header of each frame that comes for the first time; returns
        whether to take the frame.
    :param parted: called when the connection has ended.
    """

    # The attributes that native/links.c reads have a fixed place in the object.
    __slots__ = ('__dict__', '__weakref__', '_accept', '_seen', 'client')

    def __init__(
        self,
        announcement: Announcement,
        client: SharedMemoryClient,
        again: bool,
        accept: Callable[[Header], bool],
        parted: Callable[[], None],
    ) -> None:
        self.announcement = announcement
        self.client = client
        self.number = next(_numbers)
        self.since = time.monotonic()
        self.was_connected = False
        # Whether the publisher's socket has ever existed. If so, and the socket is gone now, the
        # publisher has ended. If this process made the publisher, the socket has existed, even if
        # nobody saw it: the publisher may have ended before this link was made.
        self.was_there = made_here(announcement.publisher_id) or os.path.exists(
            announcement.socket
        )
        self.fileno = client.fileno
        self.wait = client.wait
        self._receive = client.receive
        self._accept = accept
        self._parted = parted
        self._seen: deque[int] | None = deque(maxlen=2 * MAX_DEPTH) if again else None

    def receive(self) -> Frame | None:
        """
        Receive the next frame that *accept* takes, and release frames before it.

        See :class:`~zc_perception.frame_queue.Source`.
        """
        for _ in _UNWANTED_AT_ONCE:
            frame = self._receive()
            if frame is None:
                if self.was_connected and not self.client.connected:
                    self._parted()
                return None
            new = True
            if self._seen is not None:
                new = frame.published_ns not in self._seen
                self._seen.append(frame.published_ns)
            if new and self._accept(frame.data.header):
                return frame
            frame.release()
        return None

    def needs_a_thread(self) -> bool:
        """Say whether a thread must connect this link, or report a new or ended connection."""
        return self.client.approachable or self.client.connected is not self.was_connected

    @property
    def folder(self) -> str:
        """The folder of the publisher's socket."""
        return os.path.dirname(self.announcement.socket)

    def window(self) -> Window | None:
        """Return the window that the publisher granted; ``None`` while not connected."""
        found = self.client.statistics()
        if not found.connected:
            return None
        return Window(
            self.announcement.publisher_id,
            (self.number, found.connections),
            found.window,
            found.asked,
            found.in_hand,
        )

    def state(self, shared: bool) -> RemotePublisher:
        """
        Return the state of the link.

        :param shared: whether this process has ever connected to any socket in the folder that
            holds the publisher's socket.
        """
        publisher_id = self.announcement.publisher_id
        now = time.monotonic()
        if self.client.connected:
            self.since = now
            return RemotePublisher(publisher_id, RemoteState.CONNECTED)
        reason = self.client.last_end
        if self.client.noted:
            self.since = now
            return RemotePublisher(publisher_id, RemoteState.CONNECTING, reason, listens=True)
        if now - max(self.since, self.client.parted_s) < _PATIENCE_S:
            return RemotePublisher(
                publisher_id, RemoteState.CONNECTING, reason, self.client.listens
            )
        reason = reason or f"no answer from '{self.announcement.socket}' yet"
        state = RemoteState.GONE if self._has_ended(reason, shared) else RemoteState.IMPOSSIBLE
        return RemotePublisher(publisher_id, state, reason, self.client.listens)

    def _has_ended(self, reason: str, shared: bool) -> bool:
        """
        Say whether the publisher has ended.

        If the socket exists and no process listens, the publisher was killed. If there is no
        socket, the publisher has ended only if we saw the socket before, or another socket in
        its folder. Else it is possible that our container can't see the folder.
        """
        there = os.path.exists(self.announcement.socket)
        self.was_there |= there
        if there:
            return os.strerror(errno.ECONNREFUSED) in reason
        return self.was_there or shared


if compiled is not None:
    compiled.join(_Link)


class SharedMemoryLinks:
    """
    One subscription's connections to publishers in other processes of this host.

    **Owner.** The subscription owns this object. This object owns the clients, and with them all
    frames that the subscription has not taken yet.

    **Threads.** The thread that takes frames from the subscription's queue also receives them from
    the sockets. A thread of this object connects to the publishers, and ends when all are
    connected. But if an executor takes the frames, this thread stays, to wake the executor when
    frames come. The executor or a thread of the subscription calls ``update``, ``hold`` and
    ``close``. The lock guards the table of links and the reference to the thread. No callback of
    the subscription is called while the lock is held.

    :param name: this consumer's name in the diagnostics of consumer and publisher.
    :param held: number of frames of each publisher that the subscription may hold at the same
        time, including those that the user keeps by :meth:`Frame.keep`. A publisher with fewer
        slots left grants fewer, see :meth:`windows`.
    :param allowed_uids: ids of users whose publishers are trusted, besides our own user and root.
    :param off: why this object makes no connections, a text for logs; empty: it connects to each
        publisher that is passed to :meth:`update`.
    """

    def __init__(
        self, name: str, *, held: int = 1, allowed_uids: Collection[int] = (), off: str = ''
    ) -> None:
        self.held = held
        self.off = off
        self._name = name
        self._requirements = ANYTHING
        self._trial_import: TrialImport | None = None
        self._allowed_uids = allowed_uids
        self._links: dict[str, _Link] = {}
        # The folders that contain the socket of a publisher to which we have connected.
        self._folders: set[str] = set()
        self._lock = threading.Lock()
        self._dropped = 0
        self._closed = False
        self._thread: threading.Thread | None = None
        # The thread waits on _epoll until _ring() writes to the eventfd _bell. If an executor
        # takes the frames, each arrival of a frame ends the wait, too.
        self._epoll: select.epoll | None = None
        self._bell: OwnedFd | None = None

    def open(  # noqa: A003
        self,
        queue: KeepLastQueue[Frame],
        wanted: LinkQos,
        accept: Callable[[Header], bool],
        wake: Callable[[], None] | None,
        changed: Callable[[], None],
    ) -> None:
        """
        Set the subscription's queue and functions; call this once, before any other method.

        :param queue: the queue to which each publisher is attached as a source.
        :param accept: called with the header of each frame; returns whether to take the frame. A
            frame that isn't taken is released.
        :param wake: wakes the executor, which takes frames from the queue; ``None``: a thread of
            the subscription waits for the queue.
        :param changed: called when a connection began or ended.
        """
        self._queue = queue
        self._depth = min(MAX_DEPTH, wanted.depth or MAX_DEPTH)
        self._history = wanted.transient_local
        self._accept = accept
        self._wake = wake
        self._changed = changed

    def update(
        self, reachable: Sequence[Announcement], announced: Sequence[Announcement]
    ) -> Sequence[RemotePublisher]:
        """
        Connect to the publishers in *reachable*, and end the links to all other publishers.

        :return: the state of each publisher in *announced*.
        """
        wanted = {} if self.off else {a.publisher_id: a for a in reachable}
        with self._lock:
            gone = [
                self._links.pop(publisher_id)
                for publisher_id in list(self._links)
                if publisher_id not in wanted
            ]
            unreachable = {}
            for publisher_id, announcement in wanted.items():
                try:
                    self._point(publisher_id, announcement)
                except OSError as error:  # no free file descriptor; the next update() tries again
                    reason = NO_DESCRIPTOR.get(error.errno or 0, error.strerror)
                    text = f"the link can't be made: {reason}"
                    unreachable[publisher_id] = RemotePublisher(
                        publisher_id, RemoteState.CONNECTING, text
                    )
            self._folders |= {
                link.folder for link in self._links.values() if link.client.connected
            }
            states = unreachable | {
                publisher_id: link.state(link.folder in self._folders)
                for publisher_id, link in self._links.items()
            }
        for link in gone:
            self._end(link)
        self._connect()
        impossible = RemoteState.IMPOSSIBLE
        return [
            states.get(a.publisher_id)
            or RemotePublisher(a.publisher_id, impossible, self.off or _why_not(a))
            for a in announced
        ]

    def _point(self, publisher_id: str, announcement: Announcement) -> None:
        """Make a publisher's link, or tell its old link a new announcement; with the lock held."""
        link = self._links.get(publisher_id)
        if link is None:
            self._links[publisher_id] = self._start(announcement)
        elif link.announcement != announcement:
            link.announcement = announcement
            link.client.retarget(Path(announcement.socket), publisher_id)

    def _start(self, announcement: Announcement) -> _Link:
        client = SharedMemoryClient(
            Path(announcement.socket),
            name=self._name,
            publisher_id=announcement.publisher_id,
            window=self.held,
            depth=self._depth,
            history=self._history,
            requirements=self._requirements,
            trial_import=self._trial_import,
            allowed_uids=self._allowed_uids,
        )
        link = _Link(announcement, client, self._history, self._accept, self._connect)
        try:
            self._queue.attach(link)
            if self._epoll is not None:
                self._watch(self._epoll, link)
        except OSError:
            self._end(link)
            raise
        return link

    def _watch(self, epoll: select.epoll, link: _Link) -> None:
        if self._wake is not None:
            epoll.register(link.fileno(), select.EPOLLIN | select.EPOLLET)

    def _connect(self) -> None:
        """Wake or start the thread if a link has to connect or its connection has ended."""
        with self._lock:
            if self._closed or not any(map(_Link.needs_a_thread, self._links.values())):
                return
            if self._epoll is None:
                try:
                    bell = OwnedFd(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
                    epoll = select.epoll()
                    epoll.register(bell.fileno(), select.EPOLLIN)
                    for link in self._links.values():
                        self._watch(epoll, link)
                except OSError:  # no free file descriptor; update() tries again twice a second
                    return
                self._bell, self._epoll = bell, epoll
            self._ring()
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name=f'shared-memory links {self._name}', daemon=True
                )
                self._thread.start()

    def _ring(self) -> None:
        """Wake the thread, because the links have changed; called with the lock held."""
        if self._bell is not None:
            os.eventfd_write(self._bell.fileno(), 1)

    def _run(self) -> None:
        """
        Connect to publishers, and wake the executor when frames come; the thread's function.

        Connecting has its own thread, so that a wait for a busy or stopped publisher doesn't delay
        the executor.
        """
        while (links := self._to_serve()) is not None:
            waits = [wait for link in links if (wait := link.client.approach()) is not None]
            for link in links:
                if link.client.connected is not link.was_connected:
                    link.was_connected = link.client.connected
                    self._changed()
            if self._await(links, min([_LOOK_S, *waits])) and self._wake is not None:
                self._wake()

    def _to_serve(self) -> list[_Link] | None:
        """Return the links; ``None`` if the thread has nothing more to do and must end."""
        with self._lock:
            links = list(self._links.values())
            idle = self._wake is None and not any(map(_Link.needs_a_thread, links))
            if self._closed or idle:
                self._thread = None
                return None
            return links

    def _await(self, links: Sequence[_Link], patience_s: float) -> bool:
        """
        Wait for a publisher's answer, _ring(), or a frame; return whether frames may have come.

        The epoll reports each frame once. After *patience_s* without an event, look for frames
        that were reported but not taken, for example because the node had no executor yet.
        """
        epoll, bell = self._epoll, self._bell
        if epoll is None or bell is None:
            return False
        awaited = []
        for link in links:
            fd = link.client.awaited
            if fd is not None:
                with contextlib.suppress(OSError):  # another thread may have closed fd
                    epoll.register(fd, select.EPOLLIN)
                    awaited.append(fd)
        events = epoll.poll(patience_s + 0.001)
        for fd in awaited:
            with contextlib.suppress(OSError):
                epoll.unregister(fd)
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(bell.fileno())
        if not events and self._wake is not None:
            poller = select.poll()
            for link in links:
                with contextlib.suppress(ValueError):  # another thread has closed the link
                    poller.register(link.fileno(), select.POLLIN)
            return bool(poller.poll(0))
        others = {bell.fileno(), *awaited}
        return any(fd not in others for fd, _ in events)

    def _end(self, link: _Link) -> None:
        self._dropped += link.client.statistics().dropped
        self._queue.detach(link)
        link.client.close()

    def take_part(self, consumer: Consumer) -> None:
        """Set the subscription's constraints on buffers; they apply to all later connections."""
        with self._lock:
            self._requirements, self._trial_import = (
                Requirements.of(consumer.constraints),
                consumer.trial_import,
            )

    def hold(self, held: int) -> None:
        """
        Let the subscription hold up to *held* frames of each publisher at once from now on.

        If that is more than before, end all links; the next :meth:`update` makes new ones that
        ask for more frames.
        """
        with self._lock:
            if held <= self.held:
                return
            self.held = held
            links = list(self._links.values())
            self._links.clear()
        for link in links:
            self._end(link)

    def connected(self) -> Collection[str]:
        """Return the ids of the connected publishers."""
        with self._lock:
            return {
                publisher_id for publisher_id, link in self._links.items() if link.client.connected
            }

    def dropped(self) -> int:
        """Return how many frames publishers reported as dropped, because we were too slow."""
        with self._lock:
            return self._dropped + sum(
                link.client.statistics().dropped for link in self._links.values()
            )

    def windows(self) -> Sequence[Window]:
        """Return how many frames of each connected publisher the subscription may hold."""
        with self._lock:
            return [
                window for link in self._links.values() if (window := link.window()) is not None
            ]

    def statistics(self) -> dict[str, ClientStatistics]:
        """Return the statistics of each publisher's connection."""
        with self._lock:
            return {
                publisher_id: link.client.statistics()
                for publisher_id, link in self._links.items()
            }

    def close(self) -> None:
        """End all connections. Idempotent."""
        with self._lock:
            self._closed = True
            thread, links = self._thread, list(self._links.values())
            self._links.clear()
            self._ring()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=2.0)
        with self._lock:
            self._epoll = self._bell = None  # closes both, unless the thread still refers to them
        for link in links:
            self._end(link)


def _why_not(announcement: Announcement) -> str:
    """Return why the announced publisher can't send frames to this process."""
    if announcement.host_id != host_id():
        return OTHER_HOST
    if not announcement.socket:
        return 'it offers no shared memory'
    return (
        "at least one publisher of this topic has a QoS that does not match the subscription's"
    )
