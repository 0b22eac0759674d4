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
Find the publishers on a topic: the graph counts them, announcements say where their memory is.

:class:`PublisherGraph` and :class:`Announcements` belong to one subscription each. :class:`Rivals`
belongs to a publisher: it finds others that publish on the same topic, because every consumer gets
the frames of all of them, mixed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
import time
from typing import Any

from rclpy.node import Node

from zc_perception.frame import Frame
from zc_perception.link.announcement import Announcement, host_id, read_announcements, SUFFIX
from zc_perception.link.bus import BusPublisher, LinkQos
from zc_perception.link.endpoints.publisher import AdaptedPublisher
from zc_perception.link.endpoints.qos import link_qos
from zc_perception.link.rclpy_compat import publisher_count
from zc_perception.link.rungs import RemotePublisher, RemoteState
from zc_perception.link.shared_memory.unix_socket import default_folder
from zc_perception.link.shared_memory.unix_socket import SUFFIX as SOCKET_SUFFIX

_MAX_ANNOUNCEMENTS = 100
# While there are more announcements than publishers, an announcement is believed for this time
# although nobody was ever met at its socket.
_UNMET_S = 60.0
# For this time the graph may know publishers that have been killed; Fast DDS forgets them after 20
# s.
_GRAPH_REMEMBERS_S = 60.0
_FILES_S = 2.0
# A publisher's writer on the topic comes a little after that of its announcements, and says
# whether its QoS matches.
_ALONE_S = 2.0
_LIKELY = (RemoteState.CONNECTED, RemoteState.CONNECTING, RemoteState.IMPOSSIBLE)
#: Stands in the graph for a node's name that has not come yet.
UNNAMED = '_UNKNOWN_'
# If one publisher replaces another between two looks, the numbers don't change. So everything is
# read again after this time.
_REFRESH_S = 5.0
#: Longer than a middleware keeps a publisher that was killed in the graph (Fast DDS: 20 s).
UNPROVED_S = 30.0


@dataclass(frozen=True)
class PublisherCount:
    """
    Publishers of a topic besides the adapted ones of this process.

    :param adapted: adapted ones, whatever their QoS.
    :param matching: how many of them match by QoS; only the middleware knows which ones.
    :param plain: the nodes of plain ones that match.
    :param mismatch: why no publisher matches; empty when one does, or when there is none.
    """

    adapted: int
    matching: int
    plain: tuple[str, ...]
    mismatch: str


class GraphSigns:
    """
    Signs that it is worth asking which nodes publish on a topic.

    To ask for the number of publishers costs a tenth of asking for their names and QoS.
    """

    def __init__(self, node: Node, topic: str) -> None:
        self._node = node
        self._topics = topic, topic + SUFFIX
        self._seen: tuple[object, ...] = ()
        self._refresh_at = 0.0

    def changed(self, *others: object) -> bool:
        """
        Say whether a number has changed since the last call, or one of *others* has.

        Also true if the last such answer is some seconds old.
        """
        seen = (*(publisher_count(self._node, topic) for topic in self._topics), *others)
        now = time.monotonic()
        if seen == self._seen and now < self._refresh_at:
            return False
        self._seen, self._refresh_at = seen, now + _REFRESH_S
        return True


class PublisherGraph:
    """
    Ask the graph which nodes publish on a topic.

    An adapted publisher has a writer on ``<topic>/_zc``, and beside it one on the topic, from the
    same node. One that makes no messages has only the first.

    A writer that was an adapted publisher's stays one until it leaves the graph: after a publisher
    was killed, its two writers leave one after the other.
    """

    def __init__(self, node: Node, topic: str, wanted: LinkQos) -> None:
        self._node = node
        self._topic = topic
        self._wanted = wanted
        self._adapted: frozenset[bytes] = frozenset()
        # For each node's name, since when it has only a writer of announcements.
        self._alone: dict[str, float] = {}

    def count(self, local: Collection[BusPublisher[object]]) -> PublisherCount:
        """Count the publishers of now, without the adapted ones of this process, *local*."""
        # In this order: a publisher's writer on the topic is made after that of its announcement.
        writers = self._node.get_publishers_info_by_topic(self._topic)
        announcers = Counter(
            map(node_name, self._node.get_publishers_info_by_topic(self._topic + SUFFIX))
        )
        own = Counter(publisher.name for publisher in local)
        adapted: list[str] = []
        plain: list[tuple[str, str]] = []
        known: dict[bytes, str] = {}
        strange: set[str] = set()
        # Those that are known to be adapted take their announcers first.
        for writer in sorted(writers, key=lambda each: endpoint_gid(each) not in self._adapted):
            gid, name = endpoint_gid(writer), node_name(writer)
            mismatch = self._wanted.mismatch(link_qos_or_default(writer.qos_profile))
            if announcers[name] or gid in self._adapted:
                announcers[name] -= bool(announcers[name])
                if UNNAMED not in name:
                    known[gid] = name
                if own[name]:
                    own[name] -= 1
                else:
                    adapted.append(mismatch)
            else:
                plain.append((name, mismatch))
                strange.add(name)
        # A node's name comes a little later than its endpoints, and maybe while we ask.
        for name in list(announcers.elements()):
            late = next((each for each in plain if UNNAMED in each[0] or UNNAMED in name), None)
            if late is not None:
                announcers[name] -= 1
                plain.remove(late)
                adapted.append(late[1])
                strange.clear()
        adapted += [''] * self._without_messages(announcers - own)
        # A node may have both kinds. Then the graph says how many of each there are, and not
        # which.
        both = set(known.values()) & strange
        self._adapted = frozenset(
            gid for gid, name in known.items() if name not in both or gid in self._adapted
        )
        mismatches = [*adapted, *(mismatch for _, mismatch in plain)]
        return PublisherCount(
            len(adapted),
            adapted.count(''),
            tuple(
                'a node without a known name' if UNNAMED in name else name
                for name, mismatch in plain
                if not mismatch
            ),
            mismatches[0] if mismatches and all(mismatches) else '',
        )

    @property
    def undecided(self) -> bool:
        """Whether an announcer may still get its writer on the topic."""
        now = time.monotonic()
        return any(now - since < _ALONE_S for since in self._alone.values())

    def _without_messages(self, announcers: Counter[str]) -> int:
        """Count *announcers* that have been without a writer on the topic too long to get one."""
        now = time.monotonic()
        self._alone = {
            name: self._alone.get(name, now) for name, count in announcers.items() if count > 0
        }
        return sum(
            announcers[name] for name, since in self._alone.items() if now - since >= _ALONE_S
        )


def endpoint_gid(endpoint: Any) -> bytes:
    """Return an endpoint's number in the graph, which no other endpoint has."""
    return bytes(endpoint.endpoint_gid)


def node_name(endpoint: Any) -> str:
    """Return the full name of an endpoint's node."""
    return f'{endpoint.node_namespace.rstrip("/")}/{endpoint.node_name}'


def link_qos_or_default(profile: object) -> LinkQos:
    """Return the QoS of a remote endpoint, whose depth discovery doesn't tell or gives as 0."""
    profile.depth = max(1, profile.depth)  # type: ignore[attr-defined]
    return link_qos(profile)  # type: ignore[arg-type]


class _Heard:
    """
    One publisher's announcement, and what became of it.

    :param confirmed: a file in the sockets' folder says the same, which only that folder's users
        can write.
    """

    def __init__(self, announcement: Announcement, confirmed: bool) -> None:
        self.announcement = announcement
        self.confirmed = confirmed
        self.since = time.monotonic()
        self.state: RemotePublisher | None = None

    def elsewhere(self, announcement: Announcement) -> bool:
        """Say whether *announcement* names another place."""
        return (announcement.host_id, announcement.socket) != (
            self.announcement.host_id,
            self.announcement.socket,
        )

    def connected(self) -> bool:
        return self.state is not None and self.state.state is RemoteState.CONNECTED

    def worth(self) -> int:
        """Return a rank; the lowest is forgotten first."""
        state = RemoteState.CONNECTING if self.state is None else self.state.state
        if state is RemoteState.CONNECTED:
            return 3
        if self.confirmed or (self.state is not None and self.state.listens):
            return 2
        return int(state is RemoteState.CONNECTING)

    def unmet(self) -> bool:
        """Say whether connecting has failed for long, and nothing shows that it lives."""
        local = self.announcement.socket and self.announcement.host_id == host_id()
        return bool(local) and self.worth() == 0 and time.monotonic() - self.since >= _UNMET_S


class Announcements:
    """
    What publishers have said about themselves, the newest last.

    One subscription owns it and calls it under its ``_rung_lock``. The graph doesn't say which
    announcement has ended: see :meth:`present`.

    Any program in the ROS domain may announce anything, in any number. So publishers that are
    connected are kept and stay where they are. Of the others, the first to go are those at whose
    sockets no process was met.

    An announcement ends with its publisher. Its name is kept for a while, because the graph goes
    on counting the publisher.
    """

    def __init__(self) -> None:
        self._known: dict[str, _Heard] = {}
        # Announcements that were found dead, with the time of that; the latest last.
        self._ended: dict[str, tuple[float, RemotePublisher]] = {}
        self._read_at = 0.0

    def add(
        self,
        announcement: Announcement,
        *,
        confirmed: bool = False,
        connected: Collection[str] = (),
    ) -> None:
        """
        Take note of an announcement.

        A publisher's later one replaces its earlier, unless that one is proved. An announcement
        that makes no sense counts as none.

        :param confirmed: it was read from a file in the sockets' folder.
        :param connected: ids of publishers that are connected, as far as is known.
        """
        publisher_id = announcement.publisher_id
        if not announcement.sensible:
            return
        known = self._known.get(publisher_id)
        if known is not None and known.elsewhere(announcement):
            if (
                known.connected()
                or publisher_id in connected
                or (known.confirmed and not confirmed)
            ):
                return
            known = None
        if known is not None:
            known.announcement = announcement
            known.confirmed |= confirmed
        self._ended.pop(publisher_id, None)
        if known is None or not confirmed:
            self._known.pop(publisher_id, None)
            self._known[publisher_id] = known or _Heard(announcement, confirmed)
        if len(self._known) > _MAX_ANNOUNCEMENTS:
            del self._known[
                min(self._known, key=lambda each: (each in connected, self._known[each].worth()))
            ]

    def known(self, own_ids: Collection[str]) -> list[Announcement]:
        """Return the announcements of other processes that aren't known to have ended."""
        for publisher_id in own_ids:
            self._known.pop(publisher_id, None)
        return [heard.announcement for heard in self._known.values()]

    def incomplete(self, adapted: int) -> bool:
        """
        Say whether to look for files.

        Yes, if not all of the *adapted* ones have been heard of. If they have, every two seconds,
        because a publisher without ROS has only its file.
        """
        connected = any(heard.connected() for heard in self._known.values())
        now = time.monotonic()
        if (
            adapted <= len(self._known) + (len(self._ended) if connected else 0)
            and now < self._read_at + _FILES_S
        ):
            return False
        self._read_at = now
        return True

    def read_files(
        self,
        folder: Path,
        topic: str,
        domain: int,
        own_ids: Collection[str] = (),
        connected: Collection[str] = (),
    ) -> None:
        """
        Take note of the files in *folder*; see :meth:`add`.

        :param own_ids: ids of publishers of this process.
        """
        known = {announcement.socket for announcement in self.known(own_ids)}
        known |= {str(folder / f'{own_id}{SOCKET_SUFFIX}') for own_id in own_ids}
        for announcement in read_announcements(folder, topic, domain, known):
            self.add(announcement, confirmed=True, connected=connected)

    def judge(self, states: Sequence[RemotePublisher]) -> None:
        """Note what became of them. Those that have ended are no longer :meth:`known`."""
        now = time.monotonic()
        for state in states:
            heard = self._known.get(state.publisher_id)
            if heard is None:
                continue
            heard.state = state
            if state.state is RemoteState.CONNECTED:
                heard.since = now
            elif state.state is RemoteState.GONE:
                del self._known[state.publisher_id]
                self._ended[state.publisher_id] = now, state
        for publisher_id in [
            each for each, (since, _) in self._ended.items() if now - since >= _GRAPH_REMEMBERS_S
        ]:
            del self._ended[publisher_id]
        while len(self._ended) > _MAX_ANNOUNCEMENTS:
            del self._ended[next(iter(self._ended))]

    def present(self, states: Sequence[RemotePublisher], adapted: int) -> list[RemotePublisher]:
        """
        Return the *adapted* ones that are most likely there.

        First come those that are connected, then the newest of the rest and those that may still
        be there. Beyond the number that the graph knows, those that listen although the graph
        doesn't know them. Those that have ended come last: as many of them as the graph knows
        beyond all others.
        """
        there = [state for state in reversed(states) if state.state is not RemoteState.GONE]
        ranked = sorted(there, key=lambda state: _LIKELY.index(state.state))
        found = ranked[:adapted] + [state for state in ranked[adapted:] if self._proved(state)]
        # No other publisher is left to be found.
        complete = (
            bool(found)
            and all(state.state is RemoteState.CONNECTED for state in found)
            and len(found) >= adapted
        )
        for state in ranked:
            heard = self._known.get(state.publisher_id)
            if (
                heard is not None
                and state not in found
                and (heard.unmet() or (complete and state.state is RemoteState.IMPOSSIBLE))
            ):
                del self._known[state.publisher_id]
        ended = [state for _, state in reversed(self._ended.values())]
        return [*found, *ended[: max(0, adapted - len(found))]]

    def _proved(self, state: RemotePublisher) -> bool:
        """Say whether we have met the publisher itself, without asking the graph."""
        heard = self._known.get(state.publisher_id)
        return state.state is RemoteState.CONNECTED or (
            state.listens and heard is not None and heard.confirmed
        )


class Rivals:
    """
    Look for publishers of the same topic.

    If its socket on this host answers, a publisher is there. Others, such as those on another
    host,
    only the graph knows, and it keeps the dead for a while. Such a one counts once it has stayed
    for
    :data:`UNPROVED_S`.

    :param monotonic: seconds.
    """

    def __init__(
        self,
        node: Node,
        publisher: AdaptedPublisher[Frame],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._node = node
        self._publisher = publisher
        self._monotonic = monotonic
        self._since: dict[bytes, float] = {}
        self._signs = GraphSigns(node, publisher.topic)
        self._alone = False

    def look(self) -> list[str]:
        """
        Return names of the nodes that publish there too.

        Empty: there is none, or none that is known to be alive.
        """
        if not self._signs.changed() and self._alone:
            return []
        topic = self._publisher.topic
        announcers = self._node.get_publishers_info_by_topic(topic + SUFFIX)
        now = self._monotonic()
        self._since = {gid: self._since.get(gid, now) for gid in map(endpoint_gid, announcers)}
        if len(announcers) > 1 and not self._answers(topic):
            announcers = [
                each for each in announcers if now - self._since[endpoint_gid(each)] >= UNPROVED_S
            ]
        names = Counter(map(node_name, announcers))
        names -= Counter([self._node.get_fully_qualified_name()])
        self._alone = len(self._since) == 1 and not names
        # A node's name comes a little later than its endpoints.
        return sorted('its name is not known yet' if UNNAMED in name else name for name in names)

    def _answers(self, topic: str) -> bool:
        found = read_announcements(default_folder(), topic, self._node.context.get_domain_id())
        return any(
            announcement.publisher_id != self._publisher.publisher_id for announcement in found
        )
