"""Other adapted publishers of a publisher's topic: every consumer gets the frames of all of them, mixed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from rclpy.node import Node

from zc_perception.frame import Frame
from zc_perception.link.announcement import SUFFIX
from zc_perception.link.announcement_files import read_announcements
from zc_perception.link.endpoints.discovery import UNNAMED, endpoint_gid, node_name
from zc_perception.link.endpoints.publisher import AdaptedPublisher
from zc_perception.link.shared_memory.socket_folder import default_folder

#: Longer than a middleware keeps a publisher that was killed in the graph (Fast DDS: 20 s).
UNPROVED_S = 30.0


class Rivals:
    """Looks for publishers of the same topic.

    One whose socket on this host answers is there. Of another one, such as on another host, only the graph knows, which keeps the dead for
    a while: it counts once it has stayed for :data:`UNPROVED_S`.

    :param monotonic: seconds.
    """

    def __init__(self, node: Node, publisher: AdaptedPublisher[Frame], monotonic: Callable[[], float] = time.monotonic) -> None:
        self._node = node
        self._publisher = publisher
        self._monotonic = monotonic
        self._since: dict[bytes, float] = {}

    def look(self) -> list[str]:
        """Names of the nodes that publish there too; empty: there is none, or none that is known to be alive."""
        topic = self._publisher.topic
        announcers = self._node.get_publishers_info_by_topic(topic + SUFFIX)
        now = self._monotonic()
        self._since = {gid: self._since.get(gid, now) for gid in map(endpoint_gid, announcers)}
        if len(announcers) > 1 and not self._answers(topic):
            announcers = [each for each in announcers if now - self._since[endpoint_gid(each)] >= UNPROVED_S]
        names = Counter(map(node_name, announcers))
        names -= Counter([self._node.get_fully_qualified_name()])
        # A node's name comes a little later than its endpoints.
        return sorted('its name is not known yet' if UNNAMED in name else name for name in names)

    def _answers(self, topic: str) -> bool:
        found = read_announcements(default_folder(), topic, self._node.context.get_domain_id())
        return any(announcement.publisher_id != self._publisher.publisher_id for announcement in found)
