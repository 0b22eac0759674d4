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
Judge, before anything runs, whether nodes would take a parameter file: :func:`judge`.

The judgement answers three questions, by the same rules as the nodes at their start:

1. Does each section reach the node that it was meant for (:func:`judge_sections`)? rcl applies a
   section to the nodes whose full name it matches, and says nothing if it matches none: a
   vehicle then drives with defaults. Sections for other packages' nodes are allowed, since a file
   may serve many nodes, and so are those of cameras that aren't run here. A section is refused if
   it was clearly meant for one of the nodes and misses it.
2. Does the node have each key? In a section that names the node, an unknown key is refused. In a
   section for nodes of any name (``/**``, ``/front/*``) it may be another package's: there it is a
   warning, if none of our nodes has it.
3. Does the node take the values (:func:`value_problems`)? They are checked one by one, by the
   declaration (``SPECS``) and the node's ``CHECKS``. Then comes the QoS of its ``ENDPOINTS``. If
   no value is refused so far, all values are checked together, by
   :meth:`~zc_perception.nodes.perception_node.PerceptionNode.check_together`. What needs a
   device, a driver or a pipeline is left to the start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
import functools
import importlib
import re
from typing import Any, Protocol

from zc_perception.errors import ConfigError, nearest
from zc_perception.nodes.declarations import NodeSpecs
from zc_perception.nodes.params import qos_overrides
from zc_perception.nodes.params.qos_overrides import PREFIX, qos_problems
from zc_perception.nodes.params.yaml_file import (
    last_name,
    nodes_named,
    ParameterYaml,
    Section,
    section_matches,
)
from zc_perception.parameters import EVERY_NODE, EVERY_NODE_SPECS

_CLASSES = {
    'capture': 'CaptureNode',
    'inference': 'InferenceNode',
    'overlay': 'OverlayNode',
    'recorder': 'RecorderNode',
    'gstreamer': 'GStreamerNode',
}
NAMES = tuple(_CLASSES)
"""Names of the nodes. A node's module in :mod:`zc_perception.nodes` has the node's name."""


class NodeKind(Protocol):
    """The declarations of a node class, under the names that ``PerceptionNode`` has."""

    SPECS: NodeSpecs
    PREFIXES: Sequence[str]
    CHECKS: Mapping[str, Callable[[Any], object]]
    ENDPOINTS: Sequence[qos_overrides.Endpoint]

    def check_together(self, values: Mapping[str, Any], node: str) -> None:
        """Raise ConfigError if these values can't be used together."""


@functools.cache
def node_kind(name: str) -> NodeKind:
    """Return the class of the node with this name."""
    kind: NodeKind = getattr(
        importlib.import_module(f'zc_perception.nodes.{name}'), _CLASSES[name]
    )
    return kind


def node_kinds() -> dict[str, NodeKind]:
    """Return the classes of all nodes."""
    return {name: node_kind(name) for name in _CLASSES}


def declares(kind: NodeKind, parameter: str) -> bool:
    """
    Say whether a node of this kind has a parameter.

    For parameters that the node declares later only the prefix is compared. A parameter of a
    topic's QoS counts as the node's unless it is known as another node's: the topic may be a
    remapped one.
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
    """Return the names of the nodes that have this parameter; QoS parameters don't count."""
    return [
        name
        for name, kind in node_kinds().items()
        if parameter.startswith(tuple(kind.PREFIXES))
        or any(spec.name == parameter for spec in kind.SPECS)
    ]


def belongs_elsewhere(parameter: str) -> str:
    """Return the end of a message: which other node has the parameter; empty: none has it."""
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
    """Return the end of a message about an unknown key: its right node, or the nearest key."""
    names = [
        *(spec.name for spec in kind.SPECS),
        *EVERY_NODE,
        *qos_overrides.override_names(kind.ENDPOINTS, namespace),
    ]
    return belongs_elsewhere(parameter) or nearest(parameter, names)


def names_of(kinds: Iterable[NodeKind]) -> tuple[str, ...]:
    """Return the names of these nodes' parameters; a prefix stands for later declared ones."""
    kinds = list(kinds)
    specs = (spec.name for kind in kinds for spec in kind.SPECS)
    return tuple(dict.fromkeys((*specs, *(prefix for kind in kinds for prefix in kind.PREFIXES))))


def somebody_has(parameter: str) -> bool:
    """Say whether any node of this package has the parameter, in any namespace."""
    endpoints = [endpoint for kind in node_kinds().values() for endpoint in kind.ENDPOINTS]
    return bool(owners(parameter)) or qos_overrides.known_in_any_namespace(parameter, endpoints)


_WILDCARDS = {'*', '**'}
Node = tuple[str, str]
"""A node's full name, and its kind: the name that the node has if nothing renames it."""


@dataclass(frozen=True)
class Problem:
    """
    Why a node would not start with a file.

    :param text: a sentence that says the value, what is allowed, and what to do.
    :param node: kind of the node that has the problem; empty: the problem is about a section.
    :param section: the section that has the value; empty: the problem is about several values.
    :param line: line of the key or section in the file; 0: the problem is about several lines.
    """

    text: str
    node: str = ''
    section: str = ''
    line: int = 0

    def __str__(self) -> str:
        return f'{self.text} (line {self.line})' if self.line else self.text


@dataclass
class Verdict:
    """
    The errors and warnings that the nodes would report.

    :ivar misses: sections that were meant for one of the nodes and match none, so that the nodes
        would not start.
    :ivar problems: other reasons why the nodes would not start.
    :ivar warnings: sentences of which the nodes would only warn.
    """

    misses: list[Problem] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def judge(
    file: ParameterYaml,
    nodes: Mapping[str, str],
    on_top: Mapping[str, Mapping[str, Any]] | None = None,
) -> Verdict:
    """
    Return the errors and warnings that the nodes would report about a file.

    :param nodes: the nodes that will get the file: kinds (``capture``, ``inference`` …) by full
        names.
    :param on_top: by kind of node, values that win over the file's values, such as those of launch
        arguments.
    """
    verdict = Verdict()
    for problem in judge_sections(file, list(nodes.items())):
        missed = last_name(problem.section) in nodes.values() and problem.line
        (verdict.misses if missed else verdict.problems).append(problem)
    problems: dict[Problem, None] = {}
    unread: list[str] = []
    for node, name in nodes.items():
        kind, given = node_kind(name), file.values(node)
        origins = {
            key: section
            for section, values in file.sections
            if section_matches(section, node)
            for key in values
        }
        meant_for_any = file.keys_for_any_name(node)
        found = [
            (
                key,
                f"parameter '{key}' is unknown{unknown_hint(kind, key, node.rpartition('/')[0])}",
            )
            for key in given
            if key not in meant_for_any and not declares(kind, key)
        ]
        above = (on_top or {}).get(name, {})
        for key, text in found + value_problems(kind, node, given | above):
            section = '' if key in above else origins.get(key, '')
            problems[Problem(text, name, section, file.lines.get((section, key), [0])[-1])] = None
        for key, text in kind.SPECS.unread(given | above).items():
            section = '' if key in above else origins.get(key, '')
            line = file.lines.get((section, key), [0])[-1]
            unread.append(f"section '{section}': {text} (line {line})" if line else text)
    verdict.problems += problems
    verdict.warnings += dict.fromkeys(unread)
    verdict.warnings += dict.fromkeys(
        sentence for name in nodes.values() for sentence in node_kind(name).SPECS.broken
    )
    verdict.warnings += _of_nobody(file, nodes)
    return verdict


def check_file(
    file: ParameterYaml,
    nodes: Mapping[str, str],
    on_top: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[str]:
    """Raise the errors that :func:`judge` finds, and return its warnings."""
    verdict = judge(file, nodes, on_top)
    wrong = dict.fromkeys(
        f'{one.node}: {one}' if one.node else str(one) for one in verdict.misses + verdict.problems
    )
    names = ', '.join(
        dict.fromkeys(name for kind in nodes.values() for name in (on_top or {}).get(kind, {}))
    )
    where = file.where + (f', with {names} as the launch arguments say' if names else '')
    if wrong:
        raise ConfigError(f'{where}: {"; ".join(wrong)}')
    return [f'{where}: {sentence}' for sentence in verdict.warnings]


def component_values(
    file: ParameterYaml, node: str, kind: str, on_top: Mapping[str, Any]
) -> dict[str, Any]:
    """
    Return the values for a component that doesn't get the file itself.

    These are the file's values for the component, and *on_top*. Two sorts of values are left out:
    parameters that a section for all nodes sets and only other nodes have, and parameters that the
    chosen kind of camera or accelerator doesn't read. :func:`judge` has reported the latter with
    their lines, which the node doesn't know. An empty list has no type in ROS, so it is passed as
    a list with one empty string, which the node ignores.
    """
    own, values = node_kind(kind), file.values(node)
    others = {name for name in file.keys_for_any_name(node) if not declares(own, name)}
    kept = {name: value for name, value in values.items() if name not in others}
    values = {**kept, **on_top}
    unread = own.SPECS.unread(values)
    return {
        name: [''] if value == [] else value
        for name, value in values.items()
        if name not in unread
    }


def expected_nodes(
    sections: Sequence[Section], namespaces: Sequence[str] | None
) -> dict[str, str]:
    """
    Return the nodes that will get a file, for :func:`judge`.

    These are the nodes in the given namespaces. Without given namespaces these are the nodes that
    the file names, or one node of each kind if it names none. A recorder or a GStreamer node is
    included only if the file has a section for it, because the programs for cameras start neither.

    :param namespaces: the namespaces of all cameras; ``None``: the namespaces that the file names.
    """
    named = {name: nodes_named(name, sections) for name in NAMES}
    alone = ('recorder', 'gstreamer')
    of_cameras = [name for name in NAMES if name not in alone]
    spaces = namespaces
    if spaces is None:
        spaces = list(
            dict.fromkeys(node.rpartition('/')[0] for name in of_cameras for node in named[name])
        ) or ['']
    nodes = {}
    for name in of_cameras:
        for node in (namespaces is None and named[name]) or [
            f'{space}/{name}' for space in spaces
        ]:
            nodes[node] = name
    for section, _ in sections:
        own = last_name(section)
        for name in alone:
            if own == name or (
                own not in NAMES and nearest(own, NAMES) == nearest(own, [name]) != ''
            ):
                nodes |= dict.fromkeys(
                    named[name] or [f'{space}/{name}' for space in spaces], name
                )
    return nodes


def value_problems(kind: NodeKind, node: str, values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """
    Return why a node would not start with *values*: a parameter and a sentence per reason.

    The parameter is empty if the reason is about several parameters. Unknown keys are ignored.

    :param values: start-up values by parameter; missing parameters have their defaults.
    """
    found: list[tuple[str, str]] = []
    taken: dict[str, Any] = {spec.name: spec.default for spec in kind.SPECS}
    for spec in (*kind.SPECS, *EVERY_NODE_SPECS):
        if spec.name not in values:
            continue
        try:
            taken[spec.name] = spec.convert(values[spec.name])
            if spec.name in kind.CHECKS:
                kind.CHECKS[spec.name](taken[spec.name])
        except ConfigError as error:
            found.append((spec.name, str(error)))
    found += [('', text) for text in qos_problems(kind.ENDPOINTS, node.rpartition('/')[0], values)]
    if not found:
        try:
            kind.check_together({**values, **taken}, node)
        except ConfigError as error:
            found.append(('', str(error)))
    return list(dict.fromkeys(found))


def _of_nobody(file: ParameterYaml, nodes: Iterable[str]) -> list[str]:
    """Return a sentence for each key that a section sets for all nodes and no node has."""
    sentences, known = [], names_of(node_kinds().values())
    for key in dict.fromkeys(
        key for node in nodes for key in sorted(file.keys_for_any_name(node))
    ):
        if key in EVERY_NODE or key.startswith(PREFIX) or owners(key):
            continue
        sections = [
            section
            for section, values in file.sections
            if '*' in last_name(section) and key in values
        ]
        where = ', '.join(f"'{section}'" for section in sections)
        line = f' (line {file.lines[sections[0], key][-1]})'
        sentences.append(
            f"section {where}: no node here has a parameter '{key}'{nearest(key, known)}{line}"
        )
    return sentences


# The functions below find sections that don't reach the node for which they are meant.


def judge_sections(
    file: ParameterYaml, nodes: Sequence[Node], among: Sequence[str] = ()
) -> list[Problem]:
    """Return the errors in a file's sections; *among* lists the sections of all given files."""
    among = among or [section for section, _ in file.sections]
    names = list(dict.fromkeys(last_name(node) for node, _ in nodes))
    refused: list[Problem] = []
    for section, values in file.sections:
        name, line = last_name(section), file.lines[section, ''][0]
        if any(section_matches(section, node) for node, _ in nodes):
            for key in values:
                if len(lines := file.lines[section, key]) > 1:
                    places = ' and '.join(f'line {number}' for number in lines)
                    text = (
                        f"parameter '{key}' is given in {places}, and ROS takes one of "
                        'them; write it once'
                    )
                    refused.append(Problem(text, '', section))
        elif '*' in name:
            continue
        elif own := [node for node, kind in nodes if _is_called(name, node, kind, among)]:
            if problem := _miss(section, own, among):
                refused.append(Problem(problem, '', section, line))
        elif hint := nearest(name, names):
            text = f"there is no node '{name}' here{hint}; nodes are {', '.join(names)}"
            refused.append(Problem(text, '', section, line))
    return list(dict.fromkeys(refused))


def _is_called(name: str, node: str, kind: str, among: Sequence[str]) -> bool:
    """
    Say whether *name*, of a section, means this node: by the node's name or by its kind.

    The kind doesn't count if another section has the node's own name and matches the node.
    """
    own = last_name(node)
    return name == own or (
        name == kind and not any(last_name(s) == own and section_matches(s, node) for s in among)
    )


def _mistyped(written: Sequence[str], meant: Sequence[str]) -> bool:
    """
    Say whether one camera's name is probably the other's, mistyped.

    If numbers or whole words differ, the names are those of different cameras.
    """
    one, other = '_'.join(written), '_'.join(meant)
    pairs = list(zip(one.split('_'), other.split('_'), strict=False))
    if one.replace('_', '') == other.replace('_', ''):
        return True
    return one.count('_') == other.count('_') and all(
        re.sub(r'\D', '', first) == re.sub(r'\D', '', second) and nearest(first, [second])
        for first, second in pairs
    )


def _miss(section: str, nodes: Sequence[str], among: Sequence[str]) -> str:
    """Return the error of a section that matches no node but was meant for one; else ''."""
    shown = section.lstrip('/')
    literal = [space for space in section.split('/')[1:-1] if space not in _WILDCARDS]
    for node in nodes:
        right = '/'.join(['/**', *literal, last_name(node)])
        if section_matches(right, node):
            own = last_name(section)
            renamed = '' if last_name(node) == own else f', as which {own} runs here'
            return f"'{shown}' does not match node '{node}'{renamed}; write '{right}'"
    for node in nodes:
        depth = -len(literal)
        meant = node.split('/')[1:-1][depth:]
        if literal and _mistyped(literal, meant) and not any(_names(s, node) for s in among):
            hint = (
                f"did you mean '{'/'.join(meant)}'? If '{'/'.join(literal)}' is another "
                f"camera, give '{node}' a section of its own"
            )
            return f"'{shown}' does not match node '{node}'; {hint}"
    return ''


def _names(section: str, node: str) -> bool:
    """Say whether the section means this node alone: its last two parts have no wildcard."""
    return section_matches(section, node) and not set(section.split('/')[-2:]) & _WILDCARDS
