"""Parameter files as launch files need them: what a file says for one node, and whether our nodes would take it.

Programs leave their files to rcl. Components get values instead, which somebody has to pick from the file: launch_ros does so by rules
of its own, which differ between distributions, and a component that is refused leaves the launch running without it. So the file is read
here, by rcl's rules, and judged (:mod:`~zc_perception.nodes.params.verdict`) before anything starts.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from zc_perception.errors import ConfigError
from zc_perception.nodes.params.yaml_file import read_parameter_yaml


class ParameterFile:
    """A parameter file. rclpy and OpenCV are imported only to judge it: ``--show-args`` needs neither.

    :param hint: ends the message about a file that isn't there.
    :raises ConfigError: it isn't there, can't be read, or is no parameter file.
    """

    def __init__(self, path: str, hint: str = '') -> None:
        self.path = os.path.expanduser(path)
        if not os.path.isfile(self.path):
            # launch_ros itself only warns and starts with defaults, which on a vehicle is the wrong camera.
            raise ConfigError(f"params_file '{self.path}' does not exist or is not a file{'; ' if hint else ''}{hint}")
        self._read = read_parameter_yaml(self.path, 'params_file')

    def values(self, node: str) -> dict[str, Any]:
        """What the file says for a node, by parameter; nested ones by their names with dots.

        :param node: its full name. Sections apply as in rcl, a later one on top of an earlier, whichever is the more exact.
        """
        return self._read.values(node)

    def own_values(self, node: str, kind: str) -> dict[str, Any]:
        """:meth:`values` of one of our nodes, without those of a section for all nodes that are meant for others."""
        from zc_perception.nodes.params.kinds import declares, node_kind
        from zc_perception.nodes.params.verdict import keys_for_any_name

        others = {name for name in keys_for_any_name(node, self._read.sections) if not declares(node_kind(kind), name)}
        return {name: value for name, value in self.values(node).items() if name not in others}

    def check(self, nodes: Mapping[str, str], overrides: Mapping[str, Mapping[str, Any]] | None = None) -> list[str]:
        """Refuse what the nodes would refuse, as far as that can be known without opening a device.

        :param nodes: kinds (``capture``, ``inference`` …) by full names.
        :param overrides: parameters by kind that stand on top of the file's, such as those of launch arguments.
        :returns: what they would only warn of, each once.
        :raises ConfigError: everything that speaks against the file, see :func:`~zc_perception.nodes.params.verdict.judge`.
        """
        from zc_perception.nodes.params.verdict import judge

        verdict = judge(self._read, nodes, overrides)
        wrong = dict.fromkeys(f'{one.node}: {one}' if one.node else str(one) for one in verdict.misses + verdict.problems)
        if wrong:
            on_top = [(overrides or {}).get(kind, {}) for kind in nodes.values()]
            names = ', '.join(dict.fromkeys(name for values in on_top for name in values))
            besides = f', with {names} as the launch arguments say' if names else ''
            raise ConfigError(f"params_file '{self.path}'{besides}: {'; '.join(wrong)}")
        return [f"params_file '{self.path}': {sentence}" for sentence in verdict.warnings]


def parameter_messages(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values as they can travel to a component: an empty list has no type in ROS, so it goes as one empty string, which doesn't count."""
    return {name: [''] if value is None or value == [] else value for name, value in values.items()}
