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
The package's nodes by name, and which of them has a parameter.

Node classes are imported on demand: a program that runs one node needs none of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
import functools
import importlib
from typing import Any, Protocol

from zc_perception.errors import nearest
from zc_perception.nodes.declarations import NodeSpecs
from zc_perception.nodes.params import qos_overrides
from zc_perception.parameters import EVERY_NODE

_CLASSES = {
    'capture': 'CaptureNode',
    'inference': 'InferenceNode',
    'overlay': 'OverlayNode',
    'recorder': 'RecorderNode',
    'gstreamer': 'GStreamerNode',
}
NAMES = tuple(_CLASSES)
"""Names of the nodes; a node's module in :mod:`zc_perception.nodes` has the same name."""


class NodeKind(Protocol):
    """
    What a node class declares.

    See :class:`~zc_perception.nodes.perception_node.PerceptionNode`.
    """

    SPECS: NodeSpecs
    PREFIXES: Sequence[str]
    CHECKS: Mapping[str, Callable[[Any], object]]
    ENDPOINTS: Sequence[qos_overrides.Endpoint]

    def check_together(self, values: Mapping[str, Any], node: str) -> None:
        """Refuse values that don't go together."""


@functools.cache
def node_kind(name: str) -> NodeKind:
    """Return the class of the node of that name."""
    kind: NodeKind = getattr(
        importlib.import_module(f'zc_perception.nodes.{name}'), _CLASSES[name]
    )
    return kind


def node_kinds() -> dict[str, NodeKind]:
    """Return the classes of all nodes."""
    return {name: node_kind(name) for name in _CLASSES}


def declares(kind: NodeKind, parameter: str) -> bool:
    """
    Say whether such a node has a parameter.

    Of parameters that the node declares later only the prefix is known. A parameter of a topic's
    QoS counts as the node's unless it is known as another node's: the topic may be a remapped one.
    """
    if parameter.startswith(qos_overrides.PREFIX):
        known = qos_overrides.known_in_any_namespace
        return known(parameter, kind.ENDPOINTS) or not any(
            known(parameter, other.ENDPOINTS) for other in node_kinds().values()
        )
    return (
        parameter in EVERY_NODE
        or parameter.startswith(tuple(kind.PREFIXES))
        or any(spec.name == parameter for spec in kind.SPECS)
    )


def owners(parameter: str) -> list[str]:
    """Return the names of the nodes that have a parameter of their own of that name."""
    return [
        name
        for name, kind in node_kinds().items()
        if parameter.startswith(tuple(kind.PREFIXES))
        or any(spec.name == parameter for spec in kind.SPECS)
    ]


def belongs_elsewhere(parameter: str) -> str:
    """
    Return the rest of a sentence that a node doesn't know a parameter.

    It says which of the package's nodes has the parameter, or is meant by ``NODE.NAME``; empty:
    none.
    """
    names = [f"'{name}'" for name in owners(parameter)]
    if names:
        return (
            f'; it belongs to {"nodes" if names[1:] else "node"} {" and ".join(names)}: '
            'set it there'
        )
    node, _, own = parameter.partition('.')
    if node in _CLASSES and declares(node_kind(node), own):
        return f"; '{own}' of node '{node}' is set by -p {node}:{own}:=VALUE"
    return ''


def unknown_hint(kind: NodeKind, parameter: str, namespace: str) -> str:
    """Return the rest of such a sentence: which node has the parameter, or which one was meant."""
    names = [
        *(spec.name for spec in kind.SPECS),
        *EVERY_NODE,
        *qos_overrides.override_names(kind.ENDPOINTS, namespace),
    ]
    return belongs_elsewhere(parameter) or nearest(parameter, names)


def names_of(kinds: Iterable[NodeKind]) -> tuple[str, ...]:
    """Return the names, and the prefixes that end in a dot, of these nodes' parameters."""
    kinds = list(kinds)
    specs = (spec.name for kind in kinds for spec in kind.SPECS)
    return tuple(dict.fromkeys((*specs, *(prefix for kind in kinds for prefix in kind.PREFIXES))))


def somebody_has(parameter: str) -> bool:
    """
    Say whether any node of the package has the parameter.

    Also whether it would have it for its topics' QoS in another namespace.
    """
    endpoints = [endpoint for kind in node_kinds().values() for endpoint in kind.ENDPOINTS]
    return bool(owners(parameter)) or qos_overrides.known_in_any_namespace(parameter, endpoints)
