"""The links of one subscription of frames to publishers in other processes of this host: one client for each that is announced."""

from __future__ import annotations

import errno
import itertools
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from zc_perception.frame import Frame, Header
from zc_perception.frame_queue import KeepLastQueue
from zc_perception.link.announcement import Announcement, host_id
from zc_perception.link.bus import LinkQos
from zc_perception.link.endpoints.windows import Window
from zc_perception.link.rungs import RemotePublisher, RemoteState
from zc_perception.link.shared_memory.client import (
    ClientStatistics,
    SharedMemoryClient,
    SharedMemoryReceiver,
)
from zc_perception.link.shared_memory.requirements import ANYTHING, Requirements
from zc_perception.negotiation.session import Consumer
from zc_perception.negotiation.settings import TrialImport

_MAX_DEPTH = 64
# A publisher that doesn't let us in within this time is read by messages meanwhile; we go on trying.
_PATIENCE_S = 2.0
_LOOK_S = 0.5
# While answers are awaited: so long a new link waits for its turn.
_STEP_S = 0.02
# Frames that nobody wants, in one call: whoever sends them for ever must not keep the queue's owner.
_UNWANTED_AT_ONCE = range(64)
_numbers = itertools.count(1)


class _Arrivals:
    """What comes from one publisher, in its order. Called for every frame, by one thread at a time.

    It is a source of the queue (:meth:`receive`), or what a receiver hands frames to (:meth:`hand_over`).

    :param again: it sends its history again after a connection has broken.
    :param take: of a source, whether the owner takes the frame with that header; otherwise it takes over the frame.
    """

    def __init__(
        self,
        client: SharedMemoryClient,
        again: bool,
        take: Callable[[Any], Any],
    ) -> None:
        self._client = client
        self._seen: deque[int] | None = deque(maxlen=2 * _MAX_DEPTH) if again else None
        self._take = take
        self._receive = client.receive
        self.fileno = client.fileno

    def _is_new(self, frame: Frame) -> bool:
        """Whether *frame* comes for the first time."""
        if self._seen is not None:
            if frame.published_ns in self._seen:
                return False
            self._seen.append(frame.published_ns)
        return True

    def hand_over(self, frame: Frame) -> None:
        """To the owner, if it is new."""
        if self._is_new(frame):
            self._take(frame)
        else:
            frame.release()

    def receive(self) -> Frame | None:
        """See :class:`~zc_perception.frame_queue.Source`."""
        for _ in _UNWANTED_AT_ONCE:
            frame = self._receive()
            if frame is None:
                return None
            if self._is_new(frame) and self._take(frame.data.header):
                return frame
            frame.release()
        return None


OTHER_HOST = 'it is on another host'


class _Link:
    """One publisher's client, and how its frames get to the queue."""

    def __init__(self, announcement: Announcement, client: SharedMemoryClient) -> None:
        self.announcement = announcement
        self.client = client
        self.number = next(_numbers)
        self.since = time.monotonic()
        self.source: _Arrivals | None = None
        self.receiver: SharedMemoryReceiver | None = None
        self.was_connected = False
        self.was_there = os.path.exists(announcement.socket)

    @property
    def folder(self) -> str:
        """Where its socket lies."""
        return os.path.dirname(self.announcement.socket)

    def window(self) -> Window | None:
        """What was granted; ``None`` while not connected."""
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
        """How far it is.

        :param shared: somebody else was met in the same folder.
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
        """Nobody listens at a socket that is there: it was killed. No socket may also mean that its folder isn't shared with us."""
        there = os.path.exists(self.announcement.socket)
        self.was_there |= there
        if there:
            return os.strerror(errno.ECONNREFUSED) in reason
        return self.was_there or shared


class SharedMemoryLinks:
    """Rung 2 for a subscription, its owner: one client for each announced publisher of another process on this host.

    **Who owns what.** The subscription owns this object. This object owns the clients, and with them all frames that have not been handed
    over yet.

    **Threads.** With a callback, each publisher has a thread that receives. Without one, the queue's owner receives in its own thread, and
    one thread here only connects. ``update``, ``hold`` and ``close`` come from the executor or from the thread of whoever owns the
    subscription. The lock guards the table of links. No callback of the owner is called under it.

    :param name: this consumer's, for diagnostics at both ends.
    :param held: frames that the owner holds at the same time: those in work and those that it shared. It gets no more until one of them is
        released. A publisher with fewer slots left grants fewer, see :meth:`windows`.
    :param allowed_uids: users whose producers are trusted, besides this one and root.
    :param off: why nobody is connected to, for people; empty: everybody is whom :meth:`update` names.
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
        # In which somebody was met.
        self._folders: set[str] = set()
        self._lock = threading.Lock()
        self._dropped = 0
        self._stop = threading.Event()
        self._look = threading.Event()
        self._connector: threading.Thread | None = None

    def open(
        self,
        queue: KeepLastQueue[Frame],
        wanted: LinkQos,
        accept: Callable[[Header], bool],
        deliver: Callable[[Frame], None] | None,
        changed: Callable[[], None],
    ) -> None:
        """Called once, before anything else.

        :param queue: to which sources are attached when the queue's owner fetches frames itself.
        :param accept: asked by the header of each frame that a source has; one that the owner doesn't take is released.
        :param deliver: takes over each frame, from any thread; ``None``: there are sources instead.
        :param changed: a connection came or went.
        """
        self._queue = queue
        self._depth = min(_MAX_DEPTH, wanted.depth or _MAX_DEPTH)
        self._history = wanted.transient_local
        self._accept = accept
        self._deliver = deliver
        self._changed = changed

    def update(
        self, reachable: Sequence[Announcement], announced: Sequence[Announcement]
    ) -> Sequence[RemotePublisher]:
        """Connect to *reachable*, leave others, and say how far it is with each of *announced*."""
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
                except OSError as error:  # this process has no descriptor left; it is asked again
                    text = f"no link to it: {error.strerror}; raise the limit ('ulimit -n')"
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
        self._look.set()
        impossible = RemoteState.IMPOSSIBLE
        return [
            states.get(a.publisher_id)
            or RemotePublisher(a.publisher_id, impossible, self.off or _why_not(a))
            for a in announced
        ]

    def _point(self, publisher_id: str, announcement: Announcement) -> None:
        """Lock held: have a link to where *announcement* says."""
        link = self._links.get(publisher_id)
        if link is None:
            self._links[publisher_id] = self._start(announcement)
        elif link.announcement != announcement:
            link.announcement = announcement
            (link.receiver or link.client).retarget(Path(announcement.socket), publisher_id)

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
        link = _Link(announcement, client)
        if self._deliver is not None:
            arrivals = _Arrivals(client, self._history, self._deliver)
            link.receiver = SharedMemoryReceiver(
                client, arrivals.hand_over, lambda connected, reason: self._changed()
            )
            return link
        link.source = _Arrivals(client, self._history, self._accept)
        self._queue.attach(link.source)
        if self._connector is None:
            self._connector = threading.Thread(
                target=self._connect, name=f'shared-memory connector {self._name}', daemon=True
            )
            self._connector.start()
        return link

    def _connect(self) -> None:
        """Connecting may wait for a producer that is busy or stopped: neither an executor nor the owner's thread has time for that, and no
        publisher waits for another one.
        """
        while not self._stop.is_set():
            with self._lock:
                links = list(self._links.values())
            waits = [wait for link in links if (wait := link.client.approach()) is not None]
            for link in links:
                if link.client.connected is not link.was_connected:
                    link.was_connected = link.client.connected
                    self._changed()
            self._wait(
                min([_LOOK_S, *waits]),
                [fd for link in links if (fd := link.client.awaited) is not None],
            )

    def _wait(self, patience_s: float, awaited: Sequence[int]) -> None:
        if not awaited:
            self._look.wait(patience_s)
            self._look.clear()
            return
        poller = select.poll()
        for fd in awaited:
            poller.register(fd, select.POLLIN)
        poller.poll(min(patience_s, _STEP_S) * 1000 + 1)

    def _end(self, link: _Link) -> None:
        self._dropped += link.client.statistics().dropped
        if link.source is not None:
            self._queue.detach(link.source)
        (link.receiver or link.client).close()

    def take_part(self, consumer: Consumer) -> None:
        """What the owner needs of buffers, for connections from here on."""
        with self._lock:
            self._requirements, self._trial_import = (
                Requirements.of(consumer.constraints),
                consumer.trial_import,
            )

    def hold(self, held: int) -> None:
        """The owner holds so many frames at a time from now on. If that is more than before, all publishers are left, and met again by
        :meth:`update`.
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
        """Ids of the publishers that are connected."""
        with self._lock:
            return {
                publisher_id for publisher_id, link in self._links.items() if link.client.connected
            }

    def dropped(self) -> int:
        """Frames that publishers have dropped, because this end was too slow, as far as they have told."""
        with self._lock:
            return self._dropped + sum(
                link.client.statistics().dropped for link in self._links.values()
            )

    def windows(self) -> Sequence[Window]:
        """What each publisher that is connected lets the owner hold."""
        with self._lock:
            return [
                window for link in self._links.values() if (window := link.window()) is not None
            ]

    def statistics(self) -> dict[str, ClientStatistics]:
        """Each publisher's connection."""
        with self._lock:
            return {
                publisher_id: link.client.statistics()
                for publisher_id, link in self._links.items()
            }

    def close(self) -> None:
        """End all connections. Idempotent."""
        self._stop.set()
        self._look.set()
        if self._connector is not None:
            self._connector.join(timeout=2.0)
        with self._lock:
            links = list(self._links.values())
            self._links.clear()
        for link in links:
            self._end(link)


def _why_not(announcement: Announcement) -> str:
    if announcement.host_id != host_id():
        return OTHER_HOST
    if not announcement.socket:
        return 'it offers no shared memory'
    return "not every publisher's QoS matches"
