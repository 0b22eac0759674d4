"""REP 2007 type adaptation for rclpy: the vocabulary of rclcpp's ``TypeAdapter``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

CustomT = TypeVar('CustomT')


@dataclass(frozen=True)
class TypeAdapter(Generic[CustomT]):
    """Says how a custom type stands in for a ROS type. The topic's type is always the ROS type.

    :param custom_type: what publishers and subscribers handle.
    :param ros_type: the message class on the wire.
    :param to_ros: custom → message. Called only while somebody needs the message. The message is valid until the next call.
    :param to_custom: message → custom. Called only for messages that did not come over a copy-free link.
    """

    custom_type: type[CustomT]
    ros_type: type[Any]
    to_ros: Callable[[CustomT], Any]
    to_custom: Callable[[Any], CustomT]
