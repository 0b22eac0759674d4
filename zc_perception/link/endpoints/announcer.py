"""Says where a publisher is to be found: the one place that announces it."""

from __future__ import annotations

import threading
from pathlib import Path

from rclpy.node import Node
from std_msgs.msg import String

from zc_perception.link.announcement import (
    Announcement,
    announcement_topic,
    remove_announcement,
    write_announcement,
)
from zc_perception.link.endpoints.qos import ANNOUNCEMENT_QOS
from zc_perception.link.rclpy_compat import publish
from zc_perception.link.shared_memory.socket_folder import announcement_path
from zc_perception.lookout import LOOKOUT, Watch

UNANNOUNCED = (
    'consumers find the publisher by its topic alone, some late; free room there, or name another '
    'folder in ZC_RUNTIME_DIR; it is tried again'
)
"""What a missing file costs, and what to do."""
_AGAIN_S = 5.0


class Announcer:
    """Announces one publisher: by the file beside its socket, and by the latched message on ``<topic>/_zc``.

    It owns the message's writer and the file. Any thread may call it.

    ``unannounced`` says why the file can't be written; empty: it is, or there is no socket.

    :param topic: in full.
    :raises ConfigError: the topic's name is too long.
    """

    def __init__(self, node: Node, topic: str) -> None:
        self._node = node
        self._topic = topic
        self.writer = node.create_publisher(String, announcement_topic(topic), ANNOUNCEMENT_QOS)
        self._lock = threading.Lock()
        self._announcement: Announcement | None = None
        self._again: Watch | None = None
        self._silent = False
        self.unannounced = ''

    def announce(self, announcement: Announcement) -> None:
        """Say it in place of what was said before. A file that can't be written now, as on a full disk, is tried again."""
        with self._lock:
            self._announcement = announcement
        self._say()

    def _say(self) -> None:
        with self._lock:
            announcement = self._announcement
            if announcement is None or self._silent:
                return
            before, again = self.unannounced, None
            # The file first: whoever has read the message finds nothing older there.
            try:
                if announcement.socket:
                    domain = self._node.context.get_domain_id()
                    write_announcement(announcement, self._topic, domain)
                self.unannounced = ''
                again, self._again = self._again, None
            except OSError as error:
                self.unannounced = error.strerror or str(error)
                if self._again is None:
                    self._again = LOOKOUT.watch(_AGAIN_S, self._say)
            publish(self.writer, String(data=announcement.to_json()))
        if again is not None:
            again.stop()  # without the lock, for which a look may wait
        if bool(before) is bool(self.unannounced):
            return
        path, logger = announcement_path(Path(announcement.socket)), self._node.get_logger()
        if self.unannounced:
            logger.warning(
                f"'{self._topic}': its announcement '{path}' can't be written: "
                f'{self.unannounced}; {UNANNOUNCED}'
            )
        else:
            logger.info(f"'{self._topic}': its announcement '{path}' is written now")

    def fall_silent(self) -> None:
        """Remove the file, before its socket goes. Nothing is said from here on."""
        with self._lock:
            self._silent = True
            announcement, again = self._announcement, self._again
            if announcement is not None and announcement.socket:
                remove_announcement(Path(announcement.socket))
        if again is not None:
            again.stop()

    def close(self) -> None:
        """Leave the graph, after the publisher's writer of messages."""
        self._node.destroy_publisher(self.writer)
