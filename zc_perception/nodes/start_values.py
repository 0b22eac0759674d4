"""What a node says to its parameters at the start, told without the node: for launch files and ``zc_doctor``, before anything runs.

The rules are the node's own: what it declares (``SPECS``, ``ENDPOINTS``), what it checks of single values (``CHECKS``), and of all together
(:meth:`~zc_perception.nodes.perception_node.PerceptionNode.check_together`). Whatever needs a device, a driver or a pipeline is left to
the start.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zc_perception.errors import ConfigError
from zc_perception.nodes.parameters import EVERY_NODE_SPECS
from zc_perception.nodes.perception_node import PerceptionNode
from zc_perception.nodes.qos_overrides import qos_problems


def value_problems(kind: type[PerceptionNode], node: str, values: Mapping[str, Any]) -> list[str]:
    """Why a node would not start with *values*: a sentence for each reason. Keys that it doesn't have are passed over.

    :param node: its full name.
    :param values: start-up values by parameter; what is left out has its default.
    """
    found: list[str] = []
    taken: dict[str, Any] = {spec.name: spec.default for spec in kind.SPECS}
    for spec in (*kind.SPECS, *EVERY_NODE_SPECS):
        if spec.name not in values:
            continue
        try:
            taken[spec.name] = spec.convert(values[spec.name])
            if spec.name in kind.CHECKS:
                kind.CHECKS[spec.name](taken[spec.name])
        except ConfigError as error:
            found.append(str(error))
    found += qos_problems(kind.ENDPOINTS, node.rpartition('/')[0], values)
    if not found:
        try:
            kind.check_together({**values, **taken}, node)
        except ConfigError as error:
            found.append(str(error))
    return list(dict.fromkeys(found))
