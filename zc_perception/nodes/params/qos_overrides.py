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
Handle the QoS parameters, which change the QoS of a node's publishers and subscriptions.

The parameters' names are ``qos_overrides.TOPIC.publisher.POLICY`` and
``qos_overrides.TOPIC.subscription.POLICY``, such as ``qos_overrides./image_raw.publisher.depth``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
import re
from typing import Any

from rclpy.node import Node
from rclpy.publisher import Publisher
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy
from rclpy.subscription import Subscription

from zc_perception.errors import ConfigError, message_of, shown
from zc_perception.link.endpoints.qos import leased_publisher_qos, link_qos
from zc_perception.link.rclpy_compat import declare_qos_overrides, parameter_overrides

PREFIX = 'qos_overrides.'
_ENUMS: Mapping[str, Any] = {
    'history': HistoryPolicy,
    'reliability': ReliabilityPolicy,
    'durability': DurabilityPolicy,
}
_USUAL = {
    'history': 'keep_last or keep_all',
    'depth': 'an integer from 0 to 2147483647',
    'reliability': 'reliable or best_effort',
    'durability': 'volatile or transient_local',
}
# The largest depth: the middleware stores the depth in 32 bits.
_DEEPEST = 2**31 - 1
_KEY = re.compile(rf'{re.escape(PREFIX)}(/.+)\.(publisher|subscription)\.([a-z_]+)')


@dataclass(frozen=True)
class Endpoint:
    """
    A publisher or subscription with a QoS that parameters may override.

    :param topic: the topic's name relative to the node's namespace.
    :param direction: ``publisher`` or ``subscription``.
    :param adapted: whether the endpoint passes frames as objects or shared memory, not only as
        messages. Such an endpoint refuses some QoS, see :func:`qos_problems`.
    """

    topic: str
    direction: str
    adapted: bool = False

    def prefix(self, namespace: str) -> str:
        """Return the prefix of this endpoint's QoS parameters, for a topic that isn't remapped."""
        return f'{PREFIX}{namespace.rstrip("/")}/{self.topic}.{self.direction}.'


def _check_policy(name: str, value: Any) -> None:
    """Raise ConfigError if *value* isn't allowed for the QoS parameter *name*."""
    policy = name.rpartition('.')[2]
    if policy == 'depth':
        good = type(value) is int and 0 <= value <= _DEEPEST
    else:
        # rclpy's enums have a member UNKNOWN, but the middleware refuses it.
        good = (
            isinstance(value, str)
            and value.upper() in _ENUMS[policy].__members__
            and value.upper() != 'UNKNOWN'
        )
    if not good:
        raise ConfigError(f"parameter '{name}' is {shown(value)}; it must be {_USUAL[policy]}")


def overridden(endpoint: Endpoint, namespace: str, values: Mapping[str, Any]) -> QoSProfile:
    """
    Return the QoS that QoS parameters set for an endpoint whose topic isn't remapped.

    :param values: values by parameter name; a policy without a value is as in rclpy's
        ``QoSProfile(depth=1)``.
    :raises ConfigError: a value isn't allowed.
    """
    qos, prefix = QoSProfile(depth=1), endpoint.prefix(namespace)
    for policy in _USUAL:
        if prefix + policy in values:
            value = values[prefix + policy]
            _check_policy(prefix + policy, value)
            setattr(qos, policy, _ENUMS[policy][value.upper()] if policy in _ENUMS else value)
    return qos


def qos_problems(
    endpoints: Iterable[Endpoint], namespace: str, values: Mapping[str, Any]
) -> Iterator[str]:
    """
    Yield the errors of QoS parameters, for endpoints whose topics aren't remapped.

    A value that isn't allowed is an error. Endpoints with ``adapted`` also refuse keep-last with
    depth 0, and publishers with ``adapted`` refuse transient_local with keep-all.

    :param values: the node's parameter values by name.
    """
    for endpoint in endpoints:
        try:
            qos = overridden(endpoint, namespace, values)
            if endpoint.adapted and endpoint.direction == 'publisher':
                leased_publisher_qos(qos, endpoint.topic)
            elif endpoint.adapted:
                link_qos(qos)
        except ConfigError as error:
            yield str(error)


def known_in_any_namespace(name: str, endpoints: Iterable[Endpoint]) -> bool:
    """Return whether parameter *name* sets the QoS of one of *endpoints*, in any namespace."""
    found = _KEY.fullmatch(name)
    return found is not None and any(
        f'{found[1]}.{found[2]}'.endswith(f'/{endpoint.topic}.{endpoint.direction}')
        and found[3] in _USUAL
        for endpoint in endpoints
    )


def override_names(endpoints: Iterable[Endpoint], namespace: str) -> list[str]:
    """Return the names of all QoS parameters of these endpoints, if no topic is remapped."""
    return [endpoint.prefix(namespace) + policy for endpoint in endpoints for policy in _USUAL]


def publisher_qos(node: Node, topic: str, qos: QoSProfile) -> QoSProfile:
    """Return *qos*, changed by the QoS parameters for a publisher of *topic*."""
    return _overridden(node, Publisher, topic, qos)


def subscription_qos(node: Node, topic: str, qos: QoSProfile) -> QoSProfile:
    """Return *qos*, changed by the QoS parameters for a subscription of *topic*."""
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
        text = message_of(error)
        raise ConfigError(
            f"parameters '{prefix}*' can't be used: {text}; the policies are {', '.join(_USUAL)}"
        ) from None
    return qos
