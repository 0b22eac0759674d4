"""Parameter files as launch files need them: what a file says for one node, and whether our nodes would take it.

Programs leave their files to rcl. Components get values instead, which somebody has to pick from the file: launch_ros does so by rules
of its own, which differ between distributions, and a component that is refused leaves the launch running without it. So the file is read
here, by rcl's rules, and checked by the nodes' own specifications before anything starts.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from zc_perception.errors import ConfigError, nearest
from zc_perception.nodes.parameter_sources import check_parameter_sources, section_matches
from zc_perception.nodes.parameter_yaml import read_parameter_yaml

# Parameters that every ROS node has.
_EVERY_NODE = ('use_sim_time', 'start_type_description_service')
_EVERY_NODE_PREFIXES = ('qos_overrides.',)


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
        specs, prefixes = _specs(kind)
        prefixes = (*prefixes, *_EVERY_NODE_PREFIXES)
        others = {
            name for name in self._for_any_node(node) if name not in specs and name not in _EVERY_NODE and not name.startswith(prefixes)
        }
        return {name: value for name, value in self.values(node).items() if name not in others}

    def _for_any_node(self, node: str) -> set[str]:
        """Parameters that only sections of any node's name have, such as ``/**``: some are meant for others."""
        matching = [section for section in self._sections if section_matches(section, node)]
        named = {name for section in matching if not section.endswith('*') for name in self._sections[section]}
        return {name for section in matching for name in self._sections[section]} - named

    def check(self, nodes: Mapping[str, str]) -> list[str]:
        """Refuse what the nodes would refuse.

        :param nodes: kinds (``capture``, ``inference`` …) by full names.
        :returns: what they would only warn of, each once: keys that nobody has in a section of any node's name, nodes without a section
            of their own where others have one.
        :raises ConfigError: a section that misses its node, a key that the node doesn't have, or a value that isn't allowed; all of them.
        """
        warnings = check_parameter_sources(['--params-file', self.path], list(nodes))
        specs = {kind: _specs(kind) for kind in dict.fromkeys(nodes.values())}
        wrong: dict[str, None] = {}
        for node, kind in nodes.items():
            own, own_prefixes = specs[kind]
            passed_over, prefixes = self._for_any_node(node), (*own_prefixes, *_EVERY_NODE_PREFIXES)
            for name, value in self.values(node).items():
                if name in own:
                    try:
                        own[name].convert(value)
                    except ConfigError as error:
                        wrong[f'{kind}: {error}'] = None
                elif name not in passed_over and name not in _EVERY_NODE and not name.startswith(prefixes):
                    wrong[f"{kind}: parameter '{name}' is unknown{nearest(name, own)}"] = None
        if wrong:
            raise ConfigError(f"params_file '{self.path}': {'; '.join(wrong)}")
        return warnings + self._nobodys(nodes)

    def _nobodys(self, nodes: Iterable[str]) -> list[str]:
        """Of the keys for any node's name that reach one of *nodes*, those that no node of the package has."""
        from zc_perception.nodes.process import known_parameters

        known = known_parameters()
        prefixes = (*_EVERY_NODE_PREFIXES, *(name for name in known if name.endswith('.')))
        sentences = []
        for name in dict.fromkeys(name for node in nodes for name in sorted(self._for_any_node(node))):
            if name not in known and name not in _EVERY_NODE and not name.startswith(prefixes):
                sections = [section for section, keys in self._sections.items() if section.endswith('*') and name in keys]
                where = ', '.join(f"'{section}'" for section in sections)
                sentences.append(f"params_file '{self.path}', {where}: no node here has a parameter '{name}'{nearest(name, known)}")
        return sentences


def parameter_messages(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values as they can travel to a component: an empty list has no type in ROS, so it goes as one empty string, which doesn't count."""
    return {name: [''] if value is None or value == [] else value for name, value in values.items()}


def _specs(kind: str) -> tuple[Mapping[str, Any], Sequence[str]]:
    """Specifications by name, and prefixes of parameters that are declared later."""
    # Here, for they bring rclpy and OpenCV, and --show-args needs neither.
    from zc_perception.nodes.capture import CaptureNode
    from zc_perception.nodes.inference import InferenceNode
    from zc_perception.nodes.overlay import OverlayNode

    node = {'capture': CaptureNode, 'inference': InferenceNode, 'overlay': OverlayNode}[kind]
    return {spec.name: spec for spec in node.SPECS}, node.PREFIXES
