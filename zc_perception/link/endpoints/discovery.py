"""Who publishes on a topic: the graph says how many, announcements say where their memory is."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from rclpy.node import Node

from zc_perception.link.announcement import SUFFIX, Announcement, host_id
from zc_perception.link.bus import BusPublisher, LinkQos
from zc_perception.link.endpoints.qos import link_qos
from zc_perception.link.rungs import RemotePublisher, RemoteState

_MAX_ANNOUNCEMENTS = 100
# So long an announcement is believed at whose socket nobody was ever met, while there are more of them than publishers.
_UNMET_S = 60.0
_FILES_S = 2.0
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


class _Heard:
    """One publisher's announcement, and what came of it.

    :param confirmed: a file in the sockets' folder says the same, which only that folder's users can write.
    """

    def __init__(self, announcement: Announcement, confirmed: bool) -> None:
        self.announcement = announcement
        self.confirmed = confirmed
        self.since = time.monotonic()
        self.state: RemotePublisher | None = None

    def elsewhere(self, announcement: Announcement) -> bool:
        """Whether *announcement* says another place."""
        return (announcement.host_id, announcement.socket) != (self.announcement.host_id, self.announcement.socket)

    def connected(self) -> bool:
        return self.state is not None and self.state.state is RemoteState.CONNECTED

    def worth(self) -> int:
        """The least is forgotten first."""
        state = RemoteState.CONNECTING if self.state is None else self.state.state
        if state is RemoteState.CONNECTED:
            return 3
        if state is not RemoteState.GONE and (self.confirmed or (self.state is not None and self.state.listens)):
            return 2
        return int(state is RemoteState.CONNECTING)

    def unmet(self) -> bool:
        """Whether it has been tried in vain for long, and nothing speaks for it."""
        local = self.announcement.socket and self.announcement.host_id == host_id()
        return bool(local) and self.worth() == 0 and time.monotonic() - self.since >= _UNMET_S


class Announcements:
    """What publishers have said of themselves, the newest last. The graph doesn't say whose announcement ended: see :meth:`present`.

    Anybody in the ROS domain may announce anything, in any number: whoever is connected is kept and stays where it is, and of the others
    those go first at whose sockets nobody was met.
    """

    def __init__(self) -> None:
        self._known: dict[str, _Heard] = {}
        self._read_at = 0.0

    def add(self, announcement: Announcement, *, confirmed: bool = False, connected: Collection[str] = ()) -> None:
        """Take note of one; a publisher's later one replaces its earlier, unless that one is proved. One that makes no sense is as good as
        none.

        :param confirmed: it was read from a file in the sockets' folder.
        :param connected: ids of publishers that are connected, as far as is known.
        """
        publisher_id = announcement.publisher_id
        if not announcement.sensible:
            return
        known = self._known.get(publisher_id)
        if known is not None and known.elsewhere(announcement):
            if known.connected() or publisher_id in connected or (known.confirmed and not confirmed):
                return
            known = None
        if known is not None:
            known.announcement = announcement
            known.confirmed |= confirmed
        if known is None or not confirmed:
            self._known.pop(publisher_id, None)
            self._known[publisher_id] = known or _Heard(announcement, confirmed)
        if len(self._known) > _MAX_ANNOUNCEMENTS:
            del self._known[min(self._known, key=lambda each: (each in connected, self._known[each].worth()))]

    def known(self, own_ids: Collection[str]) -> list[Announcement]:
        """Those of other processes, of which some may have ended."""
        for publisher_id in own_ids:
            self._known.pop(publisher_id, None)
        return [heard.announcement for heard in self._known.values()]

    def incomplete(self, adapted: int) -> bool:
        """Whether to look for files: not all of the *adapted* ones are connected. Where as many were heard of, every two seconds only."""
        if adapted <= sum(heard.connected() for heard in self._known.values()):
            return False
        now = time.monotonic()
        if adapted <= len(self._known) and now < self._read_at + _FILES_S:
            return False
        self._read_at = now
        return True

    def judge(self, states: Sequence[RemotePublisher]) -> None:
        """What came of them."""
        for state in states:
            heard = self._known.get(state.publisher_id)
            if heard is not None:
                heard.state = state
                if state.state is RemoteState.CONNECTED:
                    heard.since = time.monotonic()

    def present(self, states: Sequence[RemotePublisher], adapted: int) -> list[RemotePublisher]:
        """The *adapted* ones that are most likely there: who is connected is; of the rest, the newest and who may yet be."""
        newest_first = list(reversed(states))
        ranked = sorted(newest_first, key=lambda state: _LIKELY.index(state.state))
        found = ranked[:adapted]
        # Nobody else is left to be found.
        complete = all(state.state is RemoteState.CONNECTED for state in found) and len(found) == adapted
        for state in ranked[adapted:]:
            heard = self._known.get(state.publisher_id)
            if heard is not None and (heard.unmet() or (complete and state.state in (RemoteState.IMPOSSIBLE, RemoteState.GONE))):
                del self._known[state.publisher_id]
        return found
