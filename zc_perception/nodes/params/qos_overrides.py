"""QoS of the package's topics, which ``qos_overrides.TOPIC.publisher.*`` and ``….subscription.*`` change at the start."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rclpy.node import Node
from rclpy.publisher import Publisher
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy
from rclpy.subscription import Subscription

from zc_perception.errors import ConfigError, shown
from zc_perception.link.endpoints.qos import link_qos
from zc_perception.link.rclpy_compat import declare_qos_overrides, parameter_overrides

PREFIX = 'qos_overrides.'
# What the camera and a reader need, whatever is kept for late readers.
_CAMERA_SLOTS = 4
_ENUMS: Mapping[str, Any] = {'history': HistoryPolicy, 'reliability': ReliabilityPolicy, 'durability': DurabilityPolicy}
_USUAL = {
    'history': 'keep_last or keep_all',
    'depth': 'an integer from 0 to 2147483647',
    'reliability': 'reliable or best_effort',
    'durability': 'volatile or transient_local',
}
# The middleware's own number is of 32 bits.
_DEEPEST = 2**31 - 1
_KEY = re.compile(rf'{re.escape(PREFIX)}(/.+)\.(publisher|subscription)\.([a-z_]+)')


@dataclass(frozen=True)
class Endpoint:
    """A publisher or subscription whose QoS can be overridden.

    :param topic: relative to the node's namespace.
    :param direction: ``publisher`` or ``subscription``.
    :param adapted: whether it hands on frames themselves, which not every QoS allows.
    """

    topic: str
    direction: str
    adapted: bool = False

    def prefix(self, namespace: str) -> str:
        """Of the names of its parameters, where nothing is remapped.

        :param namespace: in full.
        """
        return f'{PREFIX}{namespace.rstrip("/")}/{self.topic}.{self.direction}.'


def _check_policy(name: str, value: Any) -> None:
    """:raises ConfigError: no such policy has that value."""
    policy = name.rpartition('.')[2]
    if policy == 'depth':
        good = type(value) is int and 0 <= value <= _DEEPEST
    else:
        # The middleware refuses the one that stands for "not known".
        good = isinstance(value, str) and value.upper() in _ENUMS[policy].__members__ and value.upper() != 'UNKNOWN'
    if not good:
        raise ConfigError(f"parameter '{name}' is {shown(value)}; it must be {_USUAL[policy]}")


def _apply(prefix: str, values: Mapping[str, Any], qos: QoSProfile) -> QoSProfile:
    """*qos* with the overrides below *prefix*.

    :raises ConfigError: one that is none.
    """
    for policy in _USUAL:
        if prefix + policy in values:
            value = values[prefix + policy]
            _check_policy(prefix + policy, value)
            setattr(qos, policy, _ENUMS[policy][value.upper()] if policy in _ENUMS else value)
    return qos


def qos_problems(endpoints: Iterable[Endpoint], namespace: str, values: Mapping[str, Any]) -> Iterator[str]:
    """Why a node's endpoints can't be made with these parameters; a sentence for each. What is remapped only the node itself judges.

    :param namespace: the node's, in full.
    """
    for endpoint in endpoints:
        try:
            qos = _apply(endpoint.prefix(namespace), values, QoSProfile(depth=1))
            if endpoint.adapted:
                link_qos(qos)
                _check_latched(endpoint, qos)
        except ConfigError as error:
            yield str(error)


def _check_latched(endpoint: Endpoint, qos: QoSProfile) -> None:
    """:raises ConfigError: as :class:`~zc_perception.link.endpoints.AdaptedPublisher`."""
    latched = qos.durability == DurabilityPolicy.TRANSIENT_LOCAL and endpoint.direction == 'publisher'
    if latched and qos.history == HistoryPolicy.KEEP_ALL:
        raise ConfigError(f"topic '{endpoint.topic}': transient_local with keep-all would pin every frame for ever; use keep-last")


def known_in_any_namespace(name: str, endpoints: Iterable[Endpoint]) -> bool:
    """Whether a parameter is for one of *endpoints*, in whatever namespace its node may be."""
    found = _KEY.fullmatch(name)
    return found is not None and any(
        f'{found[1]}.{found[2]}'.endswith(f'/{endpoint.topic}.{endpoint.direction}') and found[3] in _USUAL for endpoint in endpoints
    )


def override_names(endpoints: Iterable[Endpoint], namespace: str) -> list[str]:
    """All that a node has of them, where nothing is remapped."""
    return [endpoint.prefix(namespace) + policy for endpoint in endpoints for policy in _USUAL]


def publisher_qos(node: Node, topic: str, qos: QoSProfile) -> QoSProfile:
    """*qos* with what the user overrides for a publisher of *topic*.

    :raises ConfigError: a value that no policy has.
    """
    return _overridden(node, Publisher, topic, qos)


def check_room(qos: QoSProfile, slots: int) -> None:
    """Whether what ``image_raw`` keeps for late readers leaves the camera enough of its *slots*.

    :raises ConfigError: it doesn't.
    """
    room = slots - _CAMERA_SLOTS
    if qos.durability == DurabilityPolicy.TRANSIENT_LOCAL and qos.depth > room:
        raise ConfigError(
            f"topic 'image_raw': transient_local with depth {qos.depth} would pin {qos.depth} of {slots} slots; depth may be at most "
            f"{max(0, room)}, or raise parameter 'slots'"
        )


def check_image_room(endpoint: Endpoint, namespace: str, values: Mapping[str, Any]) -> None:
    """:func:`check_room` by a node's parameters.

    :raises ConfigError: see there.
    """
    check_room(_apply(endpoint.prefix(namespace), values, QoSProfile(depth=1)), values['slots'])


def image_qos(node: Node, slots: int) -> QoSProfile:
    """Of the publisher of ``image_raw``, whose frames are the camera's own *slots*.

    :raises ConfigError: see :func:`check_room`, or no policy has the value.
    """
    qos = publisher_qos(node, 'image_raw', QoSProfile(depth=1))
    check_room(qos, slots)
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
    prefix = f'{PREFIX}{resolved}.{kind.__name__.lower()}.'
    given = parameter_overrides(node)
    for name in (prefix + policy for policy in _USUAL):
        if name in given:
            _check_policy(name, given[name].value)
    try:
        declare_qos_overrides(node, kind, resolved, qos)
    except Exception as error:
        text = ' '.join(str(error).split())
        raise ConfigError(f"parameters '{prefix}*' can't be used: {text}; there are {', '.join(_USUAL)}") from None
    return qos
