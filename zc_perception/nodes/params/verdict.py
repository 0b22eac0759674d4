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
Check whether nodes would start with a parameter file, before anything runs (:func:`judge`).

Three questions are answered, by the rules that nodes apply at their start:

1. Does each section match the node that it was meant for (:func:`judge_sections`)? rcl silently
   ignores a section that matches no node; the node then runs with defaults. Sections for nodes
   of other packages and for another program's cameras are allowed, since several programs may
   share a file. A section is refused if it clearly names one of the nodes but doesn't match it.
2. Does the node have each parameter? An unknown key is refused in a section that names the node.
   In a section for nodes of any name (``/**``, ``/front/*``) the key may be meant for another
   package's node, so it causes only a warning, and only if no node of this package has it.
3. Does the node accept the values (:func:`value_problems`)? Each value is checked by its
   declaration (``SPECS``) and the node's ``CHECKS``. Then the QoS parameters of the node's
   ``ENDPOINTS`` are checked. If nothing is refused, all values are checked together, by
   :meth:`~zc_perception.nodes.perception_node.PerceptionNode.check_together`. Checks that need a
   device, a driver or a pipeline are made only when the node starts.
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
"""Names of the nodes' kinds; each is also the name of a module in :mod:`zc_perception.nodes`."""


class NodeKind(Protocol):
    """The declarations of a node class, as ``PerceptionNode`` has them."""

    SPECS: NodeSpecs
    PREFIXES: Sequence[str]
    CHECKS: Mapping[str, Callable[[Any], object]]
    ENDPOINTS: Sequence[qos_overrides.Endpoint]

    def check_together(self, values: Mapping[str, Any], node: str) -> None:
        """Raise ConfigError if these values of the node named *node* contradict each other."""


@functools.cache
def node_kind(name: str) -> NodeKind:
    """Import and return the node class of the kind *name*, one of :data:`NAMES`."""
    kind: NodeKind = getattr(
        importlib.import_module(f'zc_perception.nodes.{name}'), _CLASSES[name]
    )
    return kind


def node_kinds() -> dict[str, NodeKind]:
    """Import and return all node classes of this package, by the name of their kind."""
    return {name: node_kind(name) for name in _CLASSES}


def declares(kind: NodeKind, parameter: str) -> bool:
    """
    Return whether a node of this kind has a parameter.

    If the node declares the parameter only while it runs, the parameter's prefix decides. For a
    QoS parameter, its topic decides: return ``True`` if this kind of node has the topic, or if no
    kind has it, because the topic may then be the new name of a remapped topic.
    """
    if parameter.startswith(qos_overrides.PREFIX):
        known = qos_overrides.known_in_any_namespace
        return known(parameter, kind.ENDPOINTS) or not any(
            known(parameter, other.ENDPOINTS) for other in node_kinds().values()
        )
    return parameter in EVERY_NODE or _has_own(kind, parameter)


def _has_own(kind: NodeKind, parameter: str) -> bool:
    """Return whether this kind of node has the parameter; false for QoS parameters."""
    return parameter.startswith(tuple(kind.PREFIXES)) or any(
        spec.name == parameter for spec in kind.SPECS
    )


def owners(parameter: str) -> list[str]:
    """Return the kinds of node that have this parameter; none for a QoS parameter."""
    return [name for name, kind in node_kinds().items() if _has_own(kind, parameter)]


def belongs_elsewhere(parameter: str) -> str:
    """
    Return the end of a message about an unknown parameter: the nodes that have the parameter.

    The text is empty if no node of this package has the parameter. ``NODE.NAME`` counts as
    parameter ``NAME`` of node ``NODE``.
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
    """
    Return the end of a message about a key that a node of this kind doesn't have.

    The text names the nodes that have the key, or else the most similar key of this node, if any.

    :param namespace: the node's namespace, which is part of the names of its QoS parameters.
    """
    names = [
        *(spec.name for spec in kind.SPECS),
        *EVERY_NODE,
        *qos_overrides.override_names(kind.ENDPOINTS, namespace),
    ]
    return belongs_elsewhere(parameter) or nearest(parameter, names)


def names_of(kinds: Iterable[NodeKind]) -> tuple[str, ...]:
    """Return the names of all parameters of *kinds*, and the prefixes of groups of parameters."""
    kinds = list(kinds)
    specs = (spec.name for kind in kinds for spec in kind.SPECS)
    return tuple(dict.fromkeys((*specs, *(prefix for kind in kinds for prefix in kind.PREFIXES))))


def somebody_has(parameter: str) -> bool:
    """
    Return whether a node of this package, whatever its namespace, has the parameter.

    The function imports the node classes one by one, and stops at the first class that has the
    parameter, because imports take time and each start of a node calls this function.
    """
    return any(
        _has_own(kind, parameter)
        or qos_overrides.known_in_any_namespace(parameter, kind.ENDPOINTS)
        for kind in map(node_kind, NAMES)
    )


_WILDCARDS = {'*', '**'}
Node = tuple[str, str]
"""A pair: the full name of a node, and the name of its kind."""


@dataclass(frozen=True)
class Problem:
    """
    One reason why a node would not start with a file.

    :param text: a sentence that says what is wrong, and what to write instead.
    :param node: kind of the node; empty: the problem concerns a section.
    :param section: the section that is wrong or has the wrong value. Empty if the value isn't from
        the file, if the problem concerns a QoS, or if several values contradict each other.
    :param line: line of the key or section in the file; 0: there is no such single line.
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
    The errors and warnings that the nodes would report about a file.

    :ivar misses: errors of sections whose last name is a kind of node, as in ``/front/capture``,
        but that match no node; the nodes would not start.
    :ivar problems: all other reasons why the nodes would not start.
    :ivar warnings: sentences that the nodes would only log as warnings.
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
    Return the errors and warnings that nodes would report about a file.

    :param nodes: the nodes that will get the file: kind (``capture``, ``inference`` …) by full
        name.
    :param on_top: by kind of node, values that replace the file's, such as launch arguments.
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
    """Raise one ConfigError with all errors that :func:`judge` finds; else return the warnings."""
    verdict = judge(file, nodes, on_top)
    wrong = dict.fromkeys(
        f'{one.node}: {one}' if one.node else str(one) for one in verdict.misses + verdict.problems
    )
    names = ', '.join(
        dict.fromkeys(name for kind in nodes.values() for name in (on_top or {}).get(kind, {}))
    )
    where = file.where + (f', with launch arguments {names}' if names else '')
    if wrong:
        raise ConfigError(f'{where}: {"; ".join(wrong)}')
    return [f'{where}: {sentence}' for sentence in verdict.warnings]


def component_values(
    file: ParameterYaml, node: str, kind: str, on_top: Mapping[str, Any]
) -> dict[str, Any]:
    """
    Return the values for a component, which doesn't get the file itself.

    They are the file's values for the component; a value in *on_top* replaces the file's. The
    result leaves out other nodes' parameters, which sections for nodes of any name may set. It
    also leaves out parameters that the chosen kind of camera or accelerator doesn't read;
    :func:`judge` warns about these. An empty list has no type in ROS, so it becomes a list with
    one empty string, which the node ignores.

    :param node: the component's full name.
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
    Guess which nodes will read a parameter file; return their full names, each with its kind.

    With *namespaces*, each namespace has a capture, an inference and an overlay node. Without
    *namespaces*, the capture, inference and overlay nodes are those that the file names. If the
    file names none of one kind, each namespace in the file has one node of this kind. A recorder
    or GStreamer node is added only if the file has a section for it: the programs for cameras
    start neither.

    :param sections: the file's sections.
    :param namespaces: the namespaces of all cameras; ``None``: unknown.
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
    Return why a node would not start with *values*, as pairs of parameter and sentence.

    The parameter is empty for an error of QoS parameters, and if several values contradict each
    other. Unknown keys are ignored.

    :param node: the node's full name.
    :param values: start values by parameter; a missing parameter has its default.
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
    """
    Return a sentence for each key of a file that is a parameter of no node of this package.

    Keys are taken only from sections for nodes of any name, such as ``/**``, and only from
    sections that match one of *nodes*.
    """
    sentences = []
    for key in dict.fromkeys(
        key for node in nodes for key in sorted(file.keys_for_any_name(node))
    ):
        if key in EVERY_NODE or key.startswith(PREFIX):
            continue
        if any(_has_own(node_kind(name), key) for name in NAMES):
            continue
        sections = [
            section
            for section, values in file.sections
            if '*' in last_name(section) and key in values
        ]
        where = ', '.join(f"'{section}'" for section in sections)
        line = f' (line {file.lines[sections[0], key][-1]})'
        hint = nearest(key, names_of(node_kinds().values()))
        sentences.append(
            f"section {where}: no node of zc_perception has a parameter '{key}'{hint}{line}"
        )
    return sentences


# The functions below find sections that don't match the node that they were meant for.


def judge_sections(
    file: ParameterYaml, nodes: Sequence[Node], among: Sequence[str] = ()
) -> list[Problem]:
    """
    Return errors: sections that don't match the node they were meant for, and keys given twice.

    :param nodes: all nodes that will get the file.
    :param among: the sections of all files that the nodes get; empty: they get only this file.
    """
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
                        f"parameter '{key}' is given in {places}, and ROS uses only one of "
                        'these lines; give the parameter once'
                    )
                    refused.append(Problem(text, '', section))
        elif '*' in name:
            continue
        elif own := [node for node, kind in nodes if _is_called(name, node, kind, among)]:
            if problem := _miss(section, own, among):
                refused.append(Problem(problem, '', section, line))
        elif hint := nearest(name, names):
            text = f"there is no node '{name}'{hint}; nodes are {', '.join(names)}"
            refused.append(Problem(text, '', section, line))
    return list(dict.fromkeys(refused))


def _is_called(name: str, node: str, kind: str, among: Sequence[str]) -> bool:
    """
    Return whether *name*, the last part of a section's name, is the name or the kind of *node*.

    The kind doesn't count if a section of *among* has the node's name and matches the node.
    """
    own = last_name(node)
    return name == own or (
        name == kind and not any(last_name(s) == own and section_matches(s, node) for s in among)
    )


def _mistyped(written: Sequence[str], meant: Sequence[str]) -> bool:
    """
    Return whether the namespace *written* is probably a misspelling of the namespace *meant*.

    If the two differ in a number or in a whole word, such as ``front`` and ``rear``, they are the
    namespaces of two cameras, and no misspelling. Each argument is a list of a namespace's parts.
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
    """
    Return the error of a section that matches no node but was meant for one of *nodes*.

    The error is empty if the section is probably for another program's camera.

    :param nodes: the full names of the nodes whose name or kind is the section's last part.
    :param among: the sections of all files that the nodes get.
    """
    shown = section.lstrip('/')
    literal = [space for space in section.split('/')[1:-1] if space not in _WILDCARDS]
    for node in nodes:
        right = '/'.join(['/**', *literal, last_name(node)])
        if section_matches(right, node):
            own = last_name(section)
            renamed = '' if last_name(node) == own else f', which is the {own} node'
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
    """Return whether a section matches *node*, and has no wildcard in its last two parts."""
    return section_matches(section, node) and not set(section.split('/')[-2:]) & _WILDCARDS
