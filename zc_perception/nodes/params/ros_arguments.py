"""What a command line's ROS arguments set, and for which nodes; in plain words what is wrong with them.

Only the command line says for whom a key was meant. A key that none of our nodes has is refused where it was meant for one of them, by name
or by a bare ``-p``. In a section for nodes of any name it may be another package's: there it is a warning. So it is by a bare ``-p`` from a
launch file, whose ``SetParameter`` reaches the programs of all packages that way.
"""

from __future__ import annotations

import itertools
import os
import re
import weakref
from collections.abc import Sequence

from rclpy.context import Context
from rclpy.node import Node

from zc_perception.errors import ConfigError
from zc_perception.nodes.params.kinds import known_among, names_of
from zc_perception.nodes.params.verdict import judge_sections, keys_for_any_name, likely_meant
from zc_perception.nodes.params.yaml_file import ParameterYaml, last_name, read_parameter_yaml, section_matches
from zc_perception.nodes.perception_node import PerceptionNode

_NODE_PREFIX = re.compile(r'^([^:=]+):[^:=]+:=')
_SOURCE_LINE = re.compile(r', at \S+:\d+')
_PREFIX = re.compile(r'^(Failed to parse ROS arguments|failed to initialize rcl): ', re.IGNORECASE)
_RULE = re.compile(r"Couldn't parse (parameter override|remap) rule: '(.*?)'\.")
_FORMS = {'parameter override': '-p NAME:=VALUE, or -p NODE:NAME:=VALUE', 'remap': '-r FROM:=TO'}
_ARGUMENTS: weakref.WeakKeyDictionary[Context, tuple[str, ...]] = weakref.WeakKeyDictionary()
"""What each context was initialised with."""
_TOLERANT: weakref.WeakSet[Context] = weakref.WeakSet()
"""Those in which a bare ``-p`` may be for another package's nodes."""


def explain_ros_arguments(arguments: Sequence[str], error: Exception) -> ConfigError:
    """The error to raise for what rclpy said of a command line: rcl's own message names lines of its C source.

    :param arguments: the command line, ROS arguments included.
    :param error: rclpy has several classes for this, which differ between its versions.
    """
    for flag, path in itertools.pairwise(arguments):
        # Only what can be read again: a pipe is empty after rcl has read it.
        if flag == '--params-file' and (os.path.isfile(path) or not os.path.exists(path)):
            try:
                read_parameter_yaml(path)
            except ConfigError as problem:
                return problem
    text = _PREFIX.sub('', _SOURCE_LINE.sub('', ' '.join(str(error).split())))
    rule = _RULE.search(text)
    if rule is not None:
        text = f"'{rule[2]}' can't be read; write {_FORMS[rule[1]]}"
    elif 'Unknown' in type(error).__name__:
        text = f'unknown: {text}; leave them out'
    return ConfigError(f'ROS arguments: {text}')


def remember_arguments(context: Context, arguments: Sequence[str], *, tolerant: bool) -> None:
    """What *context* was initialised with, for :func:`refuse_unknown_parameters`.

    :param tolerant: a bare ``-p`` that none of the package's nodes has is a warning.
    """
    _ARGUMENTS[context] = tuple(arguments)
    if tolerant:
        _TOLERANT.add(context)


def check_parameter_sources(argv: Sequence[str], nodes: Sequence[str]) -> list[str]:
    """Refuse parameters that miss the node that they were meant for.

    :param argv: the command line, ROS arguments included. Files were parsed by rcl before, so that they are valid.
    :param nodes: full names of this process's nodes.
    :returns: sentences to warn with: nodes without a section of their own, in a file that has such sections for others; sections that
        look as if they were meant for one of *nodes*.
    :raises ConfigError: names the file or argument, the section, and the node.
    """
    files: dict[str, ParameterYaml] = {}
    for flag, value in itertools.pairwise(argv):
        if flag == '--params-file':
            files[value] = read_parameter_yaml(value)
        elif flag in ('-p', '--param'):
            prefix = _NODE_PREFIX.match(value)
            if prefix is not None:
                _check_argument('/' + prefix[1].strip('/'), f"argument '{flag} {value}'", nodes)
    among = [section for file in files.values() for section, _ in file.sections]
    warnings: list[str] = []
    for path, file in files.items():
        refused, warned = judge_sections([section for section, _ in file.sections], nodes, among)
        for section, problem in refused:
            raise ConfigError(f"parameter file '{path}', line {file.lines[section, '']}: {problem}")
        warnings += [f"parameter file '{path}': {sentence}" for sentence in warned + likely_meant(file.sections, nodes)]
    return warnings


def _check_argument(name: str, where: str, nodes: Sequence[str]) -> None:
    """:raises ConfigError: a command line's own node of that name isn't there, or is in a namespace."""
    own = last_name(name)
    for node in nodes:
        if '*' not in own and node.endswith(f'/{own}') and not any(section_matches(name, other) for other in nodes):
            raise ConfigError(f"{where}: '{name.lstrip('/')}' does not match node '{node}'; write '/**/{own}', in a parameter file")
    for _, problem in judge_sections([name], nodes)[0]:
        raise ConfigError(f'{where}: {problem}')


def _keys(argv: Sequence[str], node: str) -> tuple[set[str], set[str], set[str]]:
    """Keys that the command line sets for a node: for one of any name, for one of its name, and for all of the process."""
    wild: set[str] = set()
    named: set[str] = set()
    bare: set[str] = set()
    for flag, value in itertools.pairwise(argv):
        if flag == '--params-file':
            file = read_parameter_yaml(value)
            of_any = keys_for_any_name(node, file.sections)
            wild |= of_any
            named |= file.values(node).keys() - of_any
        elif flag in ('-p', '--param'):
            name, _, key = value.partition(':=')[0].rpartition(':')
            if not name:
                bare.add(key)
            elif section_matches('/' + name.strip('/'), node):
                named.add(key)
    return wild, named, bare


def keys_for_any_node(argv: Sequence[str], node: str, *, bare_too: bool = False) -> frozenset[str]:
    """Keys that the command line sets for a node only in parameter files' sections for nodes of whatever name.

    :param node: its full name.
    :param bare_too: those of a bare ``-p`` as well, which is for all nodes of the process.
    """
    wild, named, bare = _keys(argv, node)
    return frozenset((wild | bare) - named if bare_too else wild - named - bare)


def keys_by_name(argv: Sequence[str], node: str) -> frozenset[str]:
    """Keys that it sets for nodes of that name: what such a node doesn't have is a mistake, whoever else has it."""
    return frozenset(_keys(argv, node)[1])


def parameters_for_any_node(node: Node, *, bare_too: bool = False) -> frozenset[str]:
    """:func:`keys_for_any_node` of *node*, by the command line of its context."""
    return keys_for_any_node(_ARGUMENTS.get(node.context, ()), node.get_fully_qualified_name(), bare_too=bare_too)


def refuse_unknown_parameters(nodes: Sequence[PerceptionNode], known: Sequence[type[PerceptionNode]]) -> None:
    """Check every node's start-up keys. Those that were set for nodes of any name, or by a bare ``-p``, may be another node's. What none
    has is warned of in the former, and in the latter where the context is tolerant.

    :param known: kinds of the process's nodes.
    :raises ConfigError: a key that none has.
    """
    elsewhere = [*names_of(known), *(name for node in nodes for name in node.parameters.qos_overrides())]
    for node in nodes:
        tolerated = parameters_for_any_node(node, bare_too=node.context in _TOLERANT)
        named = keys_by_name(_ARGUMENTS.get(node.context, ()), node.get_fully_qualified_name())
        others = [name for name in elsewhere if name not in named]
        others += known_among(parameters_for_any_node(node, bare_too=True).intersection(node.parameters.unclaimed()))
        for sentence in node.parameters.refuse_unknown(others, tolerated):
            node.get_logger().warning(sentence)
