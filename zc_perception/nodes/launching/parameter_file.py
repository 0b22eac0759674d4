"""Parameter files as launch files need them: what a file says for one node, and whether our nodes would take it.

Programs leave their files to rcl. Components get values instead, which somebody has to pick from the file: launch_ros does so by rules
of its own, which differ between distributions, and a component that is refused leaves the launch running without it. So the file is read
here, by rcl's rules, and checked by the nodes' own specifications before anything starts.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zc_perception.errors import ConfigError, nearest
from zc_perception.nodes.parameter_sources import belongs_elsewhere, check_parameter_sources, section_matches
from zc_perception.nodes.parameter_yaml import read_parameter_yaml


class ParameterFile:
    """A parameter file.

    :param hint: ends the message about a file that isn't there.
    :raises ConfigError: it isn't there, can't be read, or is no parameter file.
    """

    def __init__(self, path: str, hint: str = '') -> None:
        self.path = os.path.expanduser(path)
        if not os.path.isfile(self.path):
            # launch_ros itself only warns and starts with defaults, which on a vehicle is the wrong camera.
            raise ConfigError(f"params_file '{self.path}' does not exist or is not a file{'; ' if hint else ''}{hint}")
        self._sections = dict(read_parameter_yaml(self.path, 'params_file'))

    def values(self, node: str) -> dict[str, Any]:
        """What the file says for a node, by parameter; nested ones by their names with dots.

        :param node: its full name. Sections apply as in rcl, a later one on top of an earlier, whichever is the more exact.
        """
        values: dict[str, Any] = {}
        for section, parameters in self._sections.items():
            if section_matches(section, node):
                values |= parameters
        return values

    def own_values(self, node: str, kind: str) -> dict[str, Any]:
        """:meth:`values` of one of our nodes, without those of a section for all nodes that are meant for others."""
        declared = _Declared.of(_node_class(kind))
        others = {name for name in self._for_any_node(node) if name not in declared}
        return {name: value for name, value in self.values(node).items() if name not in others}

    def _for_any_node(self, node: str) -> set[str]:
        """Parameters that only sections of any node's name have, such as ``/**``: some are meant for others."""
        matching = [section for section in self._sections if section_matches(section, node)]
        named = {name for section in matching if not section.endswith('*') for name in self._sections[section]}
        return {name for section in matching for name in self._sections[section]} - named

    def check(self, nodes: Mapping[str, str], overrides: Mapping[str, Mapping[str, Any]] | None = None) -> list[str]:
        """Refuse what the nodes would refuse, as far as that can be known without opening a device.

        :param nodes: kinds (``capture``, ``inference`` …) by full names.
        :param overrides: parameters by kind that stand on top of the file's, such as those of launch arguments.
        :returns: what they would only warn of, each once: keys that nobody has in a section of any node's name, nodes without a section
            of their own where others have one.
        :raises ConfigError: a section that misses its node, a key that the node doesn't have, a value that isn't allowed, or values that
            don't go together; all of them.
        """
        from zc_perception.nodes.start_values import value_problems

        on_top = {kind: (overrides or {}).get(kind, {}) for kind in nodes.values()}
        warnings = check_parameter_sources(['--params-file', self.path], list(nodes))
        wrong: dict[str, None] = {}
        for node, kind in nodes.items():
            node_class = _node_class(kind)
            declared, given, passed_over = _Declared.of(node_class), self.values(node), self._for_any_node(node)
            unknown = (name for name in given if name not in passed_over and (name not in declared or declared.is_anothers(name)))
            wrong |= {f"{kind}: parameter '{name}' is unknown{declared.nearest(name, node)}": None for name in unknown}
            wrong |= {f'{kind}: {problem}': None for problem in value_problems(node_class, node, given | on_top[kind])}
        if wrong:
            names = ', '.join(dict.fromkeys(name for values in on_top.values() for name in values))
            besides = f', with {names} as the launch arguments say' if names else ''
            raise ConfigError(f"params_file '{self.path}'{besides}: {'; '.join(wrong)}")
        return warnings + self._nobodys(nodes)

    def _nobodys(self, nodes: Iterable[str]) -> list[str]:
        """Of the keys for any node's name that reach one of *nodes*, those that no node of the package has."""
        from zc_perception.nodes.components import KINDS
        from zc_perception.nodes.process import known_parameters

        known = known_parameters()
        declared = [_Declared.of(kind) for kind in KINDS]
        sentences = []
        for name in dict.fromkeys(name for node in nodes for name in sorted(self._for_any_node(node))):
            if not any(name in of_kind for of_kind in declared):
                sections = [section for section, keys in self._sections.items() if section.endswith('*') and name in keys]
                where = ', '.join(f"'{section}'" for section in sections)
                sentences.append(f"params_file '{self.path}', {where}: no node here has a parameter '{name}'{nearest(name, known)}")
        return sentences


def parameter_messages(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values as they can travel to a component: an empty list has no type in ROS, so it goes as one empty string, which doesn't count."""
    return {name: [''] if value is None or value == [] else value for name, value in values.items()}


@dataclass(frozen=True)
class _Declared:
    """Parameters that a node has.

    :param prefixes: of those that it declares later.
    """

    names: Collection[str]
    prefixes: tuple[str, ...]
    endpoints: Sequence[Any]

    @classmethod
    def of(cls, kind: Any) -> _Declared:
        """Of a node class."""
        from zc_perception.nodes.parameters import EVERY_NODE
        from zc_perception.nodes.qos_overrides import PREFIX

        return cls({*(spec.name for spec in kind.SPECS), *EVERY_NODE}, (*kind.PREFIXES, PREFIX), kind.ENDPOINTS)

    def __contains__(self, name: str) -> bool:
        return name in self.names or name.startswith(self.prefixes)

    def is_anothers(self, name: str) -> bool:
        """Whether it is the QoS of a topic as another of our nodes has it. Any other topic may be a remapped one: only the node knows."""
        from zc_perception.nodes.process import known_among
        from zc_perception.nodes.qos_overrides import PREFIX, known_in_any_namespace

        return name.startswith(PREFIX) and not known_in_any_namespace(name, self.endpoints) and bool(known_among([name]))

    def nearest(self, name: str, node: str) -> str:
        """A hint, or nothing."""
        from zc_perception.nodes.qos_overrides import override_names

        return belongs_elsewhere(name) or nearest(name, [*self.names, *override_names(self.endpoints, node.rpartition('/')[0])])


def _node_class(kind: str) -> Any:
    # Here, for they bring rclpy and OpenCV, and --show-args needs neither.
    from zc_perception.nodes.capture import CaptureNode
    from zc_perception.nodes.inference import InferenceNode
    from zc_perception.nodes.overlay import OverlayNode

    return {'capture': CaptureNode, 'inference': InferenceNode, 'overlay': OverlayNode}[kind]
