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
Find the publishers on a topic: the ROS graph counts them, announcements name their sockets.

Each subscription has its own :class:`PublisherGraph` and :class:`Announcements`. A camera has a
:class:`Rivals` to warn about other publishers on its topic, because consumers would get the mixed
frames of all of them.
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
from zc_perception.link.rclpy_compat import publisher_count, publishers_of
from zc_perception.link.rungs import RemotePublisher, RemoteState
from zc_perception.link.shared_memory.unix_socket import default_folder
from zc_perception.link.shared_memory.unix_socket import SUFFIX as SOCKET_SUFFIX

_MAX_ANNOUNCEMENTS = 100
# An announcement is deleted if no process has answered at its socket for this long, and there are
# more announcements than publishers in the graph.
_UNMET_S = 60.0
# For this time, the graph may still count a killed publisher; Fast DDS forgets it after 20 s.
_GRAPH_REMEMBERS_S = 60.0
#: Even if no announcement is missing, the announcement files are read again after this many
#: seconds.
FILES_S = 2.0
# A publisher's writer on the topic appears in the graph within this time after its writer of
# announcements. Wait for the writer on the topic, because its QoS must match the subscription's.
_ALONE_S = 2.0
_LIKELY = (RemoteState.CONNECTED, RemoteState.CONNECTING, RemoteState.IMPOSSIBLE)
#: The graph returns this text in place of a node's name that is not known yet.
UNNAMED = '_UNKNOWN_'
# The graph learns a node's name within this time after the node's endpoints. Until then, a writer
# without an announcer is not known to be plain: its announcer may still belong to an old publisher
# of the same node, whose writer has not left the graph yet.
_UNNAMED_S = 1.0
# If one publisher replaces another between two checks, the number of publishers doesn't change. So
# names and QoS are read from the graph again after this time.
_REFRESH_S = 5.0
_WITHOUT_ROS = 'a program that is not in the ROS graph'
#: A publisher that was killed leaves the graph within this time (Fast DDS: after 20 s).
UNPROVED_S = 30.0


@dataclass(frozen=True)
class PublisherCount:
    """
    A topic's publishers in the graph, without the adapted publishers of this process.

    Adapted publishers are those of this package; all others are plain.

    :param adapted: number of adapted publishers, with any QoS.
    :param matching: number of adapted publishers whose QoS matches the subscription's QoS. The
        graph doesn't show which announcements on ``TOPIC/_zc`` these publishers sent.
    :param plain: names of the nodes whose publishers are not adapted and whose QoS matches.
    :param mismatch: why no publisher's QoS matches; empty if the QoS of one matches, or if there
        is no publisher.
    :param strangers: for each publisher of another message type, a text with its node and type.
    """

    adapted: int
    matching: int
    plain: tuple[str, ...]
    mismatch: str
    strangers: tuple[str, ...] = ()


class GraphSigns:
    """
    Detect when to read the names and QoS of a topic's publishers from the graph again.

    The number of publishers shows most changes, and can be read in a tenth of the time.
    """

    def __init__(self, node: Node, topic: str) -> None:
        self._node = node
        self._topics = topic, topic + SUFFIX
        self._seen: tuple[object, ...] = ()
        self._refresh_at = 0.0

    def changed(self, *others: object) -> bool:
        """
        Say whether the number of publishers has changed since the last call.

        Return ``True``, too, if one of the values *others* has changed, or if the last ``True``
        was 5 s ago or longer.
        """
        seen = (*(publisher_count(self._node, topic) for topic in self._topics), *others)
        now = time.monotonic()
        if seen == self._seen and now < self._refresh_at:
            return False
        self._seen, self._refresh_at = seen, now + _REFRESH_S
        return True


class PublisherGraph:
    """
    Count the adapted and plain publishers of a topic in the graph.

    An adapted publisher (one of this package) has two writers on the same node: its announcer on
    ``<topic>/_zc``, and its writer on the topic. If it sends no messages, it has only the
    announcer.

    A writer that belonged to an adapted publisher counts as adapted until it leaves the graph,
    because the two writers of a killed publisher leave one after the other.
    """

    def __init__(self, node: Node, topic: str, wanted: LinkQos, ros_type: type[Any]) -> None:
        self._node = node
        self._topic = topic
        self._wanted = wanted
        self._type = f'{ros_type.__module__.split(".")[0]}/msg/{ros_type.__name__}'
        self._adapted: frozenset[bytes] = frozenset()
        # For each node that has only an announcer: the time at which this was first seen.
        self._alone: dict[str, float] = {}
        # For each writer without an announcer and without a node's name: the time at which the
        # writer was first seen.
        self._unnamed: dict[bytes, float] = {}

    def count(self, local: Collection[BusPublisher[object]]) -> PublisherCount:
        """Count the topic's publishers, except those of this package in this process: *local*."""
        # Read the topic's writers before the announcers: a publisher makes its announcer before
        # its writer, so for each adapted writer found here, the announcer is found below.
        found = publishers_of(self._node, self._topic)
        writers = [each for each in found if each.topic_type == self._type]
        strangers = [each for each in found if each.topic_type != self._type]
        announcers = Counter(map(node_name, publishers_of(self._node, self._topic + SUFFIX)))
        announcers -= Counter(map(node_name, strangers))
        own = Counter(publisher.name for publisher in local)
        adapted: list[str] = []
        plain: list[tuple[str, str, bytes]] = []
        known: dict[bytes, str] = {}
        strange: set[str] = set()
        # Assign announcers first to writers that are known as adapted, so that a plain writer of
        # the same node doesn't get them.
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
                plain.append((name, mismatch, gid))
                strange.add(name)
        # For each remaining announcer, no writer of a node with the same name was found. The graph
        # learns a node's name a little later than the node's endpoints. So if the name of the
        # announcer's or of a plain writer's node isn't known yet, assume that both belong to one
        # node.
        for name in list(announcers.elements()):
            late = next((each for each in plain if UNNAMED in each[0] or UNNAMED in name), None)
            if late is not None:
                announcers[name] -= 1
                plain.remove(late)
                adapted.append(late[1])
                strange.clear()
        adapted += [''] * self._without_messages(announcers - own)
        now = time.monotonic()
        self._unnamed = {
            gid: self._unnamed.get(gid, now) for name, _, gid in plain if UNNAMED in name
        }
        new = [each for each in plain if now - self._unnamed.get(each[2], 0.0) < _UNNAMED_S]
        adapted += [mismatch for _, mismatch, _ in new]
        plain = [each for each in plain if each not in new]
        # If a node has adapted and plain publishers, the graph shows how many of each kind there
        # are, but not which writer belongs to which kind. So add no writer of such a node to
        # self._adapted; keep those that are already in it.
        both = set(known.values()) & strange
        self._adapted = frozenset(
            gid for gid, name in known.items() if name not in both or gid in self._adapted
        )
        mismatches = [*adapted, *(mismatch for _, mismatch, _ in plain)]
        return PublisherCount(
            len(adapted),
            adapted.count(''),
            tuple(
                'a node without a known name' if UNNAMED in name else name
                for name, mismatch, _ in plain
                if not mismatch
            ),
            mismatches[0] if mismatches and all(mismatches) else '',
            tuple(f'{node_name(each)} publishes {each.topic_type}' for each in strangers),
        )

    @property
    def undecided(self) -> bool:
        """
        Whether the count may change although the graph doesn't.

        A publisher with a new announcer may still make its writer of messages, and a new writer
        may still get its node's name.
        """
        now = time.monotonic()
        return any(now - since < _ALONE_S for since in self._alone.values()) or any(
            now - since < _UNNAMED_S for since in self._unnamed.values()
        )

    def _without_messages(self, announcers: Counter[str]) -> int:
        """Count the announcers whose publisher has made no writer on the topic for _ALONE_S."""
        now = time.monotonic()
        self._alone = {
            name: self._alone.get(name, now) for name, count in announcers.items() if count > 0
        }
        return sum(
            announcers[name] for name, since in self._alone.items() if now - since >= _ALONE_S
        )


def endpoint_gid(endpoint: Any) -> bytes:
    """Return the id of an endpoint, unique in the graph."""
    return bytes(endpoint.endpoint_gid)


def node_name(endpoint: Any) -> str:
    """Return the full name of an endpoint's node."""
    return f'{endpoint.node_namespace.rstrip("/")}/{endpoint.node_name}'


def link_qos_or_default(profile: object) -> LinkQos:
    """Return the QoS of a remote endpoint; depth 0, which means unknown, becomes 1."""
    profile.depth = max(1, profile.depth)  # type: ignore[attr-defined]
    return link_qos(profile)  # type: ignore[arg-type]


class _Heard:
    """
    One publisher's announcement, and the state of the connection to that publisher.

    :param confirmed: whether the announcement was read from a file in the sockets' folder. Other
        announcements come from a ROS topic, where any program can publish; few users can write
        to the folder.
    """

    def __init__(self, announcement: Announcement, confirmed: bool) -> None:
        self.announcement = announcement
        self.confirmed = confirmed
        self.since = time.monotonic()
        self.state: RemotePublisher | None = None

    def elsewhere(self, announcement: Announcement) -> bool:
        """Say whether *announcement* names another host or socket than this entry's."""
        return (announcement.host_id, announcement.socket) != (
            self.announcement.host_id,
            self.announcement.socket,
        )

    def connected(self) -> bool:
        return self.state is not None and self.state.state is RemoteState.CONNECTED

    def worth(self) -> int:
        """Return this entry's rank, 0 to 3; entries with the lowest rank are deleted first."""
        state = RemoteState.CONNECTING if self.state is None else self.state.state
        if state is RemoteState.CONNECTED:
            return 3
        if self.confirmed or (self.state is not None and self.state.listens):
            return 2
        return int(state is RemoteState.CONNECTING)

    def unmet(self) -> bool:
        """Say whether connecting has failed for _UNMET_S, without a sign of a living publisher."""
        local = self.announcement.socket and self.announcement.host_id == host_id()
        return bool(local) and self.worth() == 0 and time.monotonic() - self.since >= _UNMET_S


class Announcements:
    """
    The announcements that publishers have sent, the newest last.

    One subscription owns this object and calls it under its ``_rung_lock``. The graph doesn't show
    which announcement belongs to an ended publisher: see :meth:`present`.

    Any program in the ROS domain may send any number of false announcements. So the announcements
    of connected publishers are kept, and no announcement that names another socket replaces them.
    If there are too many announcements, those of publishers that didn't answer are deleted first.

    An ended publisher is remembered for a while, because the graph still counts it.
    """

    def __init__(self) -> None:
        self._known: dict[str, _Heard] = {}
        # For each ended publisher, oldest first: when its end was noticed, and its last state.
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
        Store an announcement.

        A later announcement replaces the publisher's earlier one. But if it names another host or
        socket, it is ignored while the publisher is connected, or if only the earlier one is
        confirmed. An announcement with invalid values is ignored, too.

        :param confirmed: whether the announcement was read from a file in the sockets' folder.
        :param connected: ids of publishers that are known to be connected.
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
        """Return other processes' announcements; *own_ids* are this process's publishers."""
        for publisher_id in own_ids:
            self._known.pop(publisher_id, None)
        return [heard.announcement for heard in self._known.values()]

    def look_soon(self) -> None:
        """Make the next call of :meth:`incomplete` return ``True``: the folder has changed."""
        self._read_at = -FILES_S

    def incomplete(self, adapted: int) -> bool:
        """
        Say whether to look for announcement files now.

        Return ``True`` while fewer announcements are known than *adapted*, the number of adapted
        publishers in the graph. Else return ``True`` every :data:`FILES_S`, because a publisher
        without ROS is announced only by its file.
        """
        connected = any(heard.connected() for heard in self._known.values())
        now = time.monotonic()
        if (
            adapted <= len(self._known) + (len(self._ended) if connected else 0)
            and now < self._read_at + FILES_S
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
        """Add the announcements in *folder*'s files; *own_ids* are this process's publishers."""
        known = {announcement.socket for announcement in self.known(own_ids)}
        known |= {str(folder / f'{own_id}{SOCKET_SUFFIX}') for own_id in own_ids}
        for announcement in read_announcements(folder, topic, domain, known):
            self.add(announcement, confirmed=True, connected=connected)

    def judge(self, states: Sequence[RemotePublisher]) -> None:
        """Store the publishers' states; :meth:`known` no longer returns publishers that ended."""
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
        Return the publishers that are most likely alive.

        Take as many as the graph counts (*adapted*): first connected publishers, then those that
        are being connected, then those to which no connection is possible; always the newest
        first. Then add publishers that the graph doesn't count, but that are proved to be alive
        (see :meth:`_proved`). If these together are fewer than *adapted*, add publishers that have
        ended.
        """
        there = [state for state in reversed(states) if state.state is not RemoteState.GONE]
        ranked = sorted(there, key=lambda state: _LIKELY.index(state.state))
        found = ranked[:adapted] + [state for state in ranked[adapted:] if self._proved(state)]
        # Whether all publishers that the graph counts are connected.
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
        """
        Say whether it is proved that the publisher is alive.

        The proof is a connection, or an announcement file that names a socket at which a process
        listens.
        """
        heard = self._known.get(state.publisher_id)
        return state.state is RemoteState.CONNECTED or (
            state.listens and heard is not None and heard.confirmed
        )


class Rivals:
    """
    Look for other publishers on the topic of *publisher*.

    If the socket of at least one other publisher on this host answers, :meth:`look` returns all
    other publishers in the graph at once, or ``_WITHOUT_ROS`` if the graph shows none. If no
    socket answers (the publishers may be on another host), :meth:`look` returns a publisher only
    after the graph has shown this publisher for :data:`UNPROVED_S`, because the graph shows killed
    publishers for a while.

    :param monotonic: returns the time of a steady clock, in seconds.
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
        """Return the names of the other nodes that are known to publish on the topic."""
        if not self._signs.changed() and self._alone:
            return []
        topic = self._publisher.topic
        announcers = publishers_of(self._node, topic + SUFFIX)
        now = self._monotonic()
        self._since = {gid: self._since.get(gid, now) for gid in map(endpoint_gid, announcers)}
        answers = self._answers(topic)
        if len(announcers) > 1 and not answers:
            announcers = [
                each for each in announcers if now - self._since[endpoint_gid(each)] >= UNPROVED_S
            ]
        names = Counter(map(node_name, announcers))
        names -= Counter([self._node.get_fully_qualified_name()])
        if answers and not names:
            names[_WITHOUT_ROS] = 1
        self._alone = len(self._since) == 1 and not names
        # The graph learns a node's name a little later than its endpoints.
        return sorted('a node without a known name' if UNNAMED in name else name for name in names)

    def _answers(self, topic: str) -> bool:
        folder, own_id = default_folder(), self._publisher.publisher_id
        own_socket = str(folder / f'{own_id}{SOCKET_SUFFIX}')
        domain = self._node.context.get_domain_id()
        found = read_announcements(folder, topic, domain, {own_socket})
        return any(announcement.publisher_id != own_id for announcement in found)
