"""Headers of frames as ROS messages: what ``Frame.stamp`` and ``Frame.header_msg()`` return, once endpoints are imported."""

from __future__ import annotations

from typing import Any

from rclpy.time import Time
from std_msgs.msg import Header as HeaderMessage

from zc_perception.frame import Header


class RosHeaders:
    """See :class:`~zc_perception.frame.HeaderMessages`."""

    def stamp(self, stamp_ns: int) -> Any:
        """A new message."""
        return Time(nanoseconds=stamp_ns).to_msg()

    def header(self, header: Header) -> HeaderMessage:
        """A new message."""
        return HeaderMessage(stamp=self.stamp(header.stamp_ns), frame_id=header.frame_id)
