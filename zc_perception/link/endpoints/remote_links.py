"""What a subscription needs of rung 2, without knowing sockets; and the one that has none."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol, TypeVar

from zc_perception.frame import Header
from zc_perception.frame_queue import KeepLastQueue
from zc_perception.link.announcement import Announcement
from zc_perception.link.bus import LinkQos
from zc_perception.link.endpoints.windows import Window
from zc_perception.link.rungs import RemotePublisher, RemoteState
from zc_perception.negotiation.session import Consumer

T = TypeVar('T')


class RemoteLinks(Protocol[T]):
    """The connections of one subscription to publishers of other processes on this host."""

    def open(
        self,
        queue: KeepLastQueue[T],
        wanted: LinkQos,
        accept: Callable[[T], bool],
        deliver: Callable[[T], None] | None,
        changed: Callable[[], None],
        missed: Callable[[Header, Header, int], None],
    ) -> None:
        """Called once, before anything else.

        :param queue: to which sources are attached when the queue's owner fetches objects itself.
        :param accept: asked for each object that a source has; one that it doesn't take is released.
        :param deliver: takes over each object, from any thread; ``None``: there are sources instead.
        :param changed: a connection came or went.
        :param missed: between the objects with these two headers a publisher has left out so many, because this end was too slow. Called
            before the second one is accepted or delivered.
        """

    def update(self, reachable: Sequence[Announcement], announced: Sequence[Announcement]) -> Sequence[RemotePublisher]:
        """Connect to *reachable*, leave others, and say how far it is with each of *announced*."""

    def take_part(self, consumer: Consumer) -> None:
        """What the owner needs of buffers, for connections from here on."""

    @property
    def held(self) -> int:
        """Frames that the owner holds at the same time."""

    def hold(self, held: int) -> None:
        """The owner holds so many frames at a time from now on. If that is more than before, all publishers are left, and met again by
        :meth:`update`.
        """

    def connected(self) -> Collection[str]:
        """Ids of the publishers that are connected."""

    def dropped(self) -> int:
        """Objects that were dropped on the other side, because this one was too slow, as far as it has told."""

    def windows(self) -> Sequence[Window]:
        """What each publisher that is connected lets the owner hold."""

    def close(self) -> None:
        """End all connections. Idempotent."""


class NoLinks:
    """For types that have no memory to share, and for owners that don't want it.

    :param reason: why there are none, for people.
    """

    def __init__(self, reason: str = 'this subscription takes no shared memory') -> None:
        self._reason = reason
        self.held = 1

    def open(self, *_: Any) -> None:
        """See :class:`RemoteLinks`."""

    def update(self, reachable: Sequence[Announcement], announced: Sequence[Announcement]) -> Sequence[RemotePublisher]:
        """See :class:`RemoteLinks`."""
        return [RemotePublisher(a.publisher_id, RemoteState.IMPOSSIBLE, self._reason) for a in announced]

    def take_part(self, consumer: Consumer) -> None:
        """See :class:`RemoteLinks`."""

    def hold(self, held: int) -> None:
        """See :class:`RemoteLinks`."""

    def connected(self) -> Collection[str]:
        """See :class:`RemoteLinks`."""
        return ()

    def dropped(self) -> int:
        """See :class:`RemoteLinks`."""
        return 0

    def windows(self) -> Sequence[Window]:
        """See :class:`RemoteLinks`."""
        return ()

    def close(self) -> None:
        """See :class:`RemoteLinks`."""


NO_LINKS: Any = NoLinks()
DDS_ONLY: Any = NoLinks('use_intra_process_comms is false for this node')
