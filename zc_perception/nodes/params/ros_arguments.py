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
Read which parameters a command line sets for which nodes, and find mistakes in it.

A node gets only keys and values; only the command line shows for which node each key was meant. A
key that none of this package's nodes has is refused if it was set for one of them by name, or by a
bare ``-p`` (one without a node's name). A key in a section for nodes of any name may be meant for
another package's node, so it causes only a warning. The same holds for a bare ``-p`` with the
option ``--unknown-parameters warn``, which launch files use: the launch action ``SetParameter``
passes a bare ``-p`` to the programs of all packages.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
import functools
import itertools
import re
import weakref

from rclpy.context import Context

from zc_perception.errors import ConfigError, message_of, nearest
from zc_perception.nodes.params.verdict import (
    judge_sections,
    names_of,
    Node,
    node_kinds,
    somebody_has,
)
from zc_perception.nodes.params.yaml_file import (
    last_name,
    ParameterYaml,
    read_parameter_yaml,
    refuse_pipe,
    section_matches,
)
from zc_perception.nodes.perception_node import PerceptionNode

_NODE_PREFIX = re.compile(r'^([^:=]+):[^:=]+:=')
_SOURCE_LINE = re.compile(r', at \S+:\d+')
_PREFIX = re.compile(r'^(Failed to parse ROS arguments|failed to initialize rcl): ', re.IGNORECASE)
_RULE = re.compile(r"Couldn't parse (parameter override|remap) rule: '(.*?)'\.")
_FORMS = {
    'parameter override': "-p NAME:=VALUE, or -p NODE:NAME:=VALUE (NODE without '/'); the values "
    "of a list have one type, such as ['1', 'b']",
    'remap': "-r FROM:=TO; names have letters, digits and '_', no digit first, and one '/' "
    "between two parts; the value of __ns begins with '/', that of __node has no '/'",
}


def refuse_pipes(arguments: Sequence[str]) -> None:
    """Raise ConfigError if a parameter file of a command line is a pipe."""
    for flag, path in itertools.pairwise(arguments):
        if flag == '--params-file':
            refuse_pipe(path)


def explain_ros_arguments(arguments: Sequence[str], error: Exception) -> ConfigError:
    """Return a ConfigError that explains rclpy's error about a command line in plain words."""
    for flag, path in itertools.pairwise(arguments):
        if flag == '--params-file':
            try:
                read_parameter_yaml(path)
            except ConfigError as problem:
                return problem
    text = _PREFIX.sub('', _SOURCE_LINE.sub('', message_of(error)))
    if re.search('log(ging)? directory', text):
        return ConfigError(f'{text}; set ROS_LOG_DIR to a folder that this user may write to')
    rule = _RULE.search(text)
    if rule is not None:
        text = f"'{rule[2]}' can't be read; write {_FORMS[rule[1]]}"
    elif 'Unknown' in type(error).__name__:
        forms = '--params-file FILE or -p NAME:=VALUE, with a space before FILE or NAME'
        text = f'unknown: {text}; ' + (f'write {forms}' if '--param' in text else 'leave them out')
    return ConfigError(f'ROS arguments: {text}')


class MeantFor(Enum):
    """The nodes for which a command line sets a parameter."""

    ANY_NODE = 'any node, by a section such as /**'
    THIS_PROCESS = "all nodes of the process, by a -p without a node's name"
    THIS_NODE = 'the nodes that the command line or a section names'


class CommandLine:
    """
    The parameters of a command line.

    The parameter files that the command line names are read once, when they are first needed; rcl
    has found them valid before.

    :param words: the command line with its ROS arguments.
    :param tolerant: whether an unknown parameter causes only a warning if ``-p`` sets it without
        a node's name.
    """

    def __init__(self, words: Sequence[str] = (), *, tolerant: bool = False) -> None:
        self.tolerant = tolerant
        self._pairs = list(itertools.pairwise(words))
        self._arguments = [(flag, text) for flag, text in self._pairs if flag in ('-p', '--param')]

    @functools.cached_property
    def _files(self) -> list[ParameterYaml]:
        return [
            read_parameter_yaml(path)
            for path in dict.fromkeys(
                text for flag, text in self._pairs if flag == '--params-file'
            )
        ]

    def keys(self, node: str) -> dict[str, MeantFor]:
        """Return the keys that a node gets, each with the nodes for which it was set."""
        of_any: set[str] = set()
        bare: set[str] = set()
        named: set[str] = set()
        for file in self._files:
            wild = file.keys_for_any_name(node)
            of_any |= wild
            named |= file.values(node).keys() - wild
        for _, text in self._arguments:
            name, key = _named(text)
            if not name:
                bare.add(key)
            elif section_matches(name, node):
                named.add(key)
        return (
            dict.fromkeys(of_any, MeantFor.ANY_NODE)
            | dict.fromkeys(bare, MeantFor.THIS_PROCESS)
            | dict.fromkeys(named, MeantFor.THIS_NODE)
        )

    def place(self, node: str, key: str) -> str:
        """
        Return the end of a message: the file, section and line that set a node's key.

        The text is empty if no file sets the key, or if ``-p`` sets it for this node.

        :param node: the node's full name.
        """
        for _, text in self._arguments:
            name, set_key = _named(text)
            if set_key == key and (not name or section_matches(name, node)):
                return ''
        for file in reversed(self._files):
            for section, values in reversed(file.sections):
                if key in values and section_matches(section, node):
                    line = file.lines[section, key][-1]
                    return f" ({file.where}, section '{section}', line {line})"
        return ''

    def check(self, nodes: Sequence[Node]) -> None:
        """
        Refuse parameters that were clearly meant for one of *nodes* but don't reach it.

        :raises ConfigError: a parameter is refused, or a file gives a node's parameter twice in
            one section.
        """
        for flag, text in self._arguments:
            if prefix := _NODE_PREFIX.match(text):
                _check_argument(prefix[1].strip('/'), f"argument '{flag} {text}'", nodes)
        among = [section for file in self._files for section, _ in file.sections]
        for file in self._files:
            if refused := judge_sections(file, nodes, among):
                said = '; '.join(
                    str(one) if one.line else f"section '{one.section}': {one}" for one in refused
                )
                raise ConfigError(f'{file.where}: {said}')


def _named(text: str) -> tuple[str, str]:
    """Return the node's name of a ``-p`` argument, as '/NAME' or '' for none, and the key."""
    name, _, key = text.partition(':=')[0].rpartition(':')
    return (f'/{name.strip("/")}' if name else ''), key


def _check_argument(name: str, where: str, nodes: Sequence[Node]) -> None:
    """
    Refuse ``-p NODE:KEY:=VALUE`` if NODE matches no node, but probably means one of *nodes*.

    :param name: NODE, without slashes at its ends.
    :param where: how the message begins.
    :raises ConfigError: NODE is the kind or last name of a node, or similar to a last name.
    """
    own = last_name('/' + name)
    if '*' in own or any(section_matches('/' + name, node) for node, _ in nodes):
        return
    for node, kind in nodes:
        if own in (kind, last_name(node)):
            right = f"section '/**/{last_name(node)}' in a parameter file"
            if node.count('/') == 1:
                right = f"'{last_name(node)}' instead"
            raise ConfigError(f"{where}: '{name}' does not match node '{node}'; write {right}")
    names = list(dict.fromkeys(last_name(node) for node, _ in nodes))
    if hint := nearest(own, names):
        raise ConfigError(
            f"{where}: there is no node '{own}'{hint}; nodes are {', '.join(names)}"
        )


_LINES: weakref.WeakKeyDictionary[Context, CommandLine] = weakref.WeakKeyDictionary()


def remember_command_line(context: Context, line: CommandLine) -> None:
    """Store the command line with which *context* was initialised."""
    _LINES[context] = line


def command_line(context: Context) -> CommandLine:
    """Return the stored command line of a context; an empty command line if none is stored."""
    return _LINES.get(context) or CommandLine()


def check_start(
    nodes: Sequence[PerceptionNode], line: CommandLine, *, component: bool = False
) -> None:
    """
    Refuse or report keys, set at the start, that no node has: they are probably mistyped.

    A key that may be meant for another package's node causes a warning, see the docstring of this
    module. A key that only another node of this package has is ignored, unless a section or an
    argument that names this very node sets the key.

    :param nodes: all nodes of this process.
    :param component: whether the only node is a component of a container. Keys that a launch file
        or a section ``/**`` sets for all nodes reach every component, so unknown keys then cause
        only warnings.
    :raises ConfigError: a key is refused, or :meth:`CommandLine.check` refuses a section or an
        argument; the message names the file or the node, each wrong section or key, and the right
        one.
    """
    line.check([(node.get_fully_qualified_name(), node.kind) for node in nodes])
    declared = {name for node in nodes for name in node.parameters.qos_overrides()}
    for node in nodes:
        keys = line.keys(node.get_fully_qualified_name())
        refused = []
        for name in node.parameters.unclaimed():
            meant = keys.get(name)
            if meant is not MeantFor.THIS_NODE and (name in declared or somebody_has(name)):
                continue
            sentence = node.parameters.unknown(name, [*names_of(node_kinds().values()), *declared])
            if (
                component
                or meant is MeantFor.ANY_NODE
                or (meant is MeantFor.THIS_PROCESS and line.tolerant)
            ):
                node.get_logger().warning(sentence)
            else:
                refused.append(sentence)
        given = {name: node.parameters[name] for name in node.parameters.given()}
        for name, sentence in node.SPECS.unread(given).items():
            place = line.place(node.get_fully_qualified_name(), name)
            node.get_logger().warning(f'{sentence}{place}')
        for sentence in node.SPECS.broken:
            node.get_logger().warning(sentence)
        if refused:
            raise ConfigError(f"node '{node.get_name()}': {'; '.join(refused)}")
