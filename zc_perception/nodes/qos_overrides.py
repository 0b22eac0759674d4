"""QoS of the package's topics, which ``qos_overrides.TOPIC.publisher.*`` and ``….subscription.*`` change at the start."""

from __future__ import annotations

from typing import Any

from rclpy.node import Node
from rclpy.publisher import Publisher
from rclpy.qos import DurabilityPolicy, QoSProfile
from rclpy.subscription import Subscription

from zc_perception.errors import ConfigError
from zc_perception.link.rclpy_compat import declare_qos_overrides

PREFIX = 'qos_overrides.'
# What the camera and a reader need, whatever is kept for late readers.
_CAMERA_SLOTS = 4


def publisher_qos(node: Node, topic: str, qos: QoSProfile) -> QoSProfile:
    """*qos* with what the user overrides for a publisher of *topic*.

    :raises ConfigError: a value that no policy has.
    """
    return _overridden(node, Publisher, topic, qos)


def image_qos(node: Node, slots: int) -> QoSProfile:
    """Of the publisher of ``image_raw``, whose frames are the camera's own *slots*: what is kept for late readers must leave it some.

    :raises ConfigError: it would not, or no policy has the value.
    """
    qos = publisher_qos(node, 'image_raw', QoSProfile(depth=1))
    room = slots - _CAMERA_SLOTS
    if qos.durability == DurabilityPolicy.TRANSIENT_LOCAL and qos.depth > room:
        raise ConfigError(
            f"topic 'image_raw': transient_local with depth {qos.depth} would pin {qos.depth} of {slots} slots; depth may be at most "
            f"{max(0, room)}, or raise parameter 'slots'"
        )
    return qos


def compressed_qos(node: Node) -> QoSProfile:
    """Of ``image_raw/compressed``, which has overrides of its own.

    :raises ConfigError: a value that no policy has.
    """
    return publisher_qos(node, f'{node.resolve_topic_name("image_raw")}/compressed', QoSProfile(depth=1))


def subscription_qos(node: Node, topic: str, qos: QoSProfile) -> QoSProfile:
    """Likewise for a subscription."""
    return _overridden(node, Subscription, topic, qos)


def _overridden(node: Node, kind: type[Any], topic: str, qos: QoSProfile) -> QoSProfile:
    resolved = node.resolve_topic_name(topic)
    try:
        declare_qos_overrides(node, kind, resolved, qos)
    except Exception as error:
        text = ' '.join(str(error).split())
        raise ConfigError(
            f"parameters '{PREFIX}{resolved}.{kind.__name__.lower()}.*' can't be used: {text}; there are history (keep_last, keep_all), "
            'depth, reliability (reliable, best_effort) and durability (volatile, transient_local)'
        ) from None
    return qos
