"""Which sections of a ROS parameter file meet which node, and what the nodes would start with. Needs no ROS.

Source: the parameter files of ROS 2 (``rcl_yaml_param_parser``): namespaces may be nested, ``*`` is one token of a node's full name, ``**``
any number of them, nested parameters have dotted names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from zc_perception.nodes.parameter_sources import section_matches
from zc_perception.nodes.parameter_yaml import Section


def parameters_of(node: str, sections: Sequence[Section]) -> dict[str, Any]:
    """What a node starts with: a later section is on top of an earlier one, whichever is the more exact."""
    found: dict[str, Any] = {}
    for section, values in sections:
        if section_matches(section, node):
            found |= values
    return found


def nodes_named(name: str, sections: Sequence[Section]) -> list[str]:
    """Full names of the nodes of that name which sections name: without a wildcard, or with ``/**`` in front of a namespace."""
    named = []
    for section, _ in sections:
        below = section.removeprefix('/**')
        node = below if below.count('/') > 1 else section
        if '*' not in node and node.rsplit('/', 1)[-1] == name:
            named.append(node)
    return list(dict.fromkeys(named))
