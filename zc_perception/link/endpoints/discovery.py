"""Who publishes on a topic: the graph says how many, announcements say where their memory is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from rclpy.node import Node

from zc_perception.link.announcement import SUFFIX, Announcement
from zc_perception.link.bus import BusPublisher, LinkQos
from zc_perception.link.endpoints.qos import link_qos
from zc_perception.link.rungs import RemotePublisher, RemoteState

_MAX_ANNOUNCEMENTS = 100
_LIKELY = (RemoteState.CONNECTED, RemoteState.CONNECTING, RemoteState.IMPOSSIBLE, RemoteState.GONE)


@dataclass(frozen=True)
class PublisherCount:
    """Publishers of a topic besides the adapted ones of this process.

    :param adapted: adapted ones, whatever their QoS.
    :param matching: how many of them match by QoS. Which ones, only the middleware knows.
    :param plain: plain ones that match.
    :param mismatch: why no publisher matches; empty when one does, or when there is none.
    """

    adapted: int
    matching: int
    plain: int
    mismatch: str


def count_publishers(node: Node, topic: str, wanted: LinkQos, local: Collection[BusPublisher[object]]) -> PublisherCount:
    """Ask the graph. An adapted publisher has a writer on ``<topic>/_zc`` beside that on the topic, from the same node."""
    if not node.count_publishers(topic):
        return PublisherCount(0, 0, 0, '')
    announcers = Counter(_node_name(endpoint) for endpoint in node.get_publishers_info_by_topic(topic + SUFFIX))
    own = Counter(publisher.name for publisher in local)
    adapted: list[str] = []
    plain: list[str] = []
    for endpoint in node.get_publishers_info_by_topic(topic):
        name, mismatch = _node_name(endpoint), wanted.mismatch(link_qos_or_default(endpoint.qos_profile))
        if announcers[name]:
            announcers[name] -= 1
            if own[name]:
                own[name] -= 1
            else:
                adapted.append(mismatch)
        else:
            plain.append(mismatch)
    # A node's name comes a little later than its endpoints, and maybe while we ask.
    while plain and announcers.total():
        announcers.subtract([next(iter(+announcers))])
        adapted.append(plain.pop())
    mismatches = [*adapted, *plain]
    return PublisherCount(len(adapted), adapted.count(''), plain.count(''), mismatches[0] if mismatches and all(mismatches) else '')


def _node_name(endpoint: Any) -> str:
    return f'{endpoint.node_namespace.rstrip("/")}/{endpoint.node_name}'


def link_qos_or_default(profile: object) -> LinkQos:
    """Discovery doesn't say a remote endpoint's depth; some middlewares report 0."""
    profile.depth = max(1, profile.depth)  # type: ignore[attr-defined]
    return link_qos(profile)  # type: ignore[arg-type]


class Announcements:
    """What publishers have said of themselves, the newest last. The graph doesn't say whose announcement ended: see :meth:`present`."""

    def __init__(self) -> None:
        self._known: dict[str, Announcement] = {}

    def add(self, announcement: Announcement, *, again: bool = True) -> None:
        """Take note of one; a publisher's later one replaces its earlier. One that makes no sense is as good as none.

        :param again: it is newer than what is known of the publisher.
        """
        if not announcement.sensible or (announcement.publisher_id in self._known and not again):
            return
        self._known.pop(announcement.publisher_id, None)
        self._known[announcement.publisher_id] = announcement
        if len(self._known) > _MAX_ANNOUNCEMENTS:
            del self._known[next(iter(self._known))]

    def known(self, own_ids: Collection[str]) -> list[Announcement]:
        """Those of other processes, of which some may have ended."""
        for publisher_id in own_ids:
            self._known.pop(publisher_id, None)
        return list(self._known.values())

    def present(self, states: Sequence[RemotePublisher], adapted: int) -> list[RemotePublisher]:
        """The *adapted* ones that are most likely there: who is connected is; of the rest, the newest and who may yet be."""
        newest_first = list(reversed(states))
        found = sorted(newest_first, key=lambda state: _LIKELY.index(state.state))[:adapted]
        if all(state.state is RemoteState.CONNECTED for state in found) and len(found) == adapted:
            # Nobody else is left to be found.
            for state in states:
                if state.state in (RemoteState.IMPOSSIBLE, RemoteState.GONE):
                    self._known.pop(state.publisher_id, None)
        return found
