"""Checks where start-up parameters are addressed to.

rcl applies a section of a parameter file, or a ``-p NODE:NAME:=VALUE``, to the nodes whose full name it matches, and says nothing when
it matches none: a vehicle then drives with defaults. Sections for other packages' nodes are fine, a file may serve many, and so are those
of cameras that aren't run here; what is refused is a section that was clearly meant for one of this process's nodes and misses it. One of
another name that sets nothing but what such a node has is worth a warning.

A key that none of our nodes has is refused where it was meant for one of them, by name or by a bare ``-p``. In a section for nodes of
any name (``/**``, ``/front/*``) it may be another package's: there it is a warning. So it is by a bare ``-p`` from a launch file, whose
``SetParameter`` reaches the programs of all packages that way.
"""

from __future__ import annotations

import importlib
import itertools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from zc_perception.errors import ConfigError, nearest
from zc_perception.nodes.parameter_yaml import Section, read_parameter_yaml

_NODE_PREFIX = re.compile(r'^([^:=]+):[^:=]+:=')
_WILDCARDS = ('*', '**')


def section_matches(section: str, node: str) -> bool:
    """rcl's wildcards: ``*`` is one token, ``**`` any number of them, also none."""
    pattern = ''.join('(/[^/]+)*' if token == '**' else '/' + re.escape(token).replace(r'\*', '[^/]*') for token in section.split('/')[1:])
    return re.fullmatch(pattern, node) is not None


def _listed(names: Iterable[str]) -> str:
    return ', '.join(f"'{name}'" for name in names)


def _spaces(name: str) -> list[str]:
    """The namespaces in front of a node's name."""
    return name.split('/')[1:-1]


def _is_its_own(section: str, node: str) -> bool:
    """Whether the section names that node rather than all of a kind: neither its name is a wildcard nor what is in front of it."""
    return section_matches(section, node) and not any(token in _WILDCARDS for token in section.split('/')[1:][-2:])


def _mistyped(written: Sequence[str], meant: Sequence[str]) -> bool:
    """Whether one looks like the other with a typing error. Names that differ in a number or in a whole word are different cameras'."""
    one, other = '_'.join(written), '_'.join(meant)
    pairs = list(zip(one.split('_'), other.split('_'), strict=False))
    if one.replace('_', '') == other.replace('_', ''):
        return True
    return one.count('_') == other.count('_') and all(
        re.sub(r'\D', '', first) == re.sub(r'\D', '', second) and nearest(first, [second]) for first, second in pairs
    )


def _miss(section: str, nodes: Sequence[str], among: Sequence[str]) -> str:
    """Why a section that matches none of *nodes*, all of its node's name, was meant for them; empty: it may be for another one."""
    shown, name = section.lstrip('/'), section.rsplit('/', 1)[-1]
    literal = [space for space in _spaces(section) if space not in _WILDCARDS]
    for node in nodes:
        right = '/'.join(['/**', *literal, name])
        if section_matches(right, node):
            return f"'{shown}' does not match node '{node}'; write '{right}'"
    for node in nodes:
        meant = _spaces(node)[-len(literal) :]
        if _mistyped(literal, meant) and not any(_is_its_own(other, node) for other in among):
            hint = f"did you mean '{'/'.join(meant)}'? If '{'/'.join(literal)}' is another camera, give '{node}' a section of its own"
            return f"'{shown}' does not match node '{node}'; {hint}"
    return ''


def judge_sections(sections: Sequence[str], nodes: Sequence[str], among: Sequence[str] = ()) -> tuple[list[str], list[str]]:
    """What is to be refused of a file's sections, and what is only worth a warning; sentences.

    :param sections: full names with wildcards.
    :param nodes: full names of the nodes that are going to have them.
    :param among: the sections of all files, where there are others.
    """
    among = among or sections
    names = [node.rsplit('/', 1)[-1] for node in nodes]
    refused: list[str] = []
    others: dict[str, list[str]] = {}
    for section in sections:
        name = section.rsplit('/', 1)[-1]
        if '*' in name or any(section_matches(section, node) for node in nodes):
            continue
        if name not in names:
            if hint := nearest(name, names):
                refused.append(f"there is no node '{name}' here{hint}; nodes are {', '.join(dict.fromkeys(names))}")
        elif problem := _miss(section, [node for node in nodes if node.rsplit('/', 1)[-1] == name], among):
            refused.append(problem)
        else:
            others.setdefault(name, []).append(section.lstrip('/'))
    warned = []
    for name, missing in others.items():
        without = [node for node, own in zip(nodes, names, strict=True) if own == name and not any(_is_its_own(s, node) for s in among)]
        if without:  # otherwise those are clearly other cameras'
            warned.append(f'no section names {_listed(without)}, and there are sections for nodes that are not here: {_listed(missing)}')
    return refused, warned


def likely_meant(sections: Sequence[Section], nodes: Sequence[str], keys: Mapping[str, Collection[str]]) -> list[str]:
    """Sections that no node here has the name of, but one has every key of: a sentence to warn with for each. Another package's node
    mostly has a key of its own, too.

    :param nodes: full names of the nodes that are going to have the sections.
    :param keys: what our nodes have, by their names.
    """
    names = list(dict.fromkeys(node.rsplit('/', 1)[-1] for node in nodes))
    found = []
    for section, values in sections:
        name = section.rsplit('/', 1)[-1]
        if '*' in name or name in keys or not values or any(section_matches(section, node) for node in nodes):
            continue
        meant = next((own for own in names if values.keys() <= set(keys.get(own, ()))), '')
        if meant:
            sets = f"all that section '{section.lstrip('/')}' sets is a parameter of '{meant}'"
            found.append(f"there is no node '{name}' here, but {sets}; if that is meant, write '/**/{meant}'")
    return found


def _kinds() -> dict[str, Any]:
    """Classes of the package's nodes, by the nodes' names. They are imported here, because nothing else in this module needs ROS."""
    return {kind.__module__.rpartition('.')[2]: kind for kind in importlib.import_module('zc_perception.nodes.components').KINDS}


def _keys_of_kinds() -> dict[str, set[str]]:
    return {name: {spec.name for spec in kind.SPECS} for name, kind in _kinds().items()}


def belongs_elsewhere(parameter: str) -> str:
    """The rest of a sentence that a node doesn't know a parameter: which of the package's nodes has it; empty: none of them."""
    owners = []
    for name, kind in _kinds().items():
        if parameter.startswith(tuple(kind.PREFIXES)) or parameter in (spec.name for spec in kind.SPECS):
            owners.append(f"'{name}'")
    if not owners:
        return ''
    return f'; it belongs to {"nodes" if owners[1:] else "node"} {" and ".join(owners)}: set it there'


def _check_argument(name: str, where: str, nodes: Sequence[str]) -> None:
    """:raises ConfigError: a command line's own node of that name isn't there, or is in a namespace."""
    own = name.rsplit('/', 1)[-1]
    for node in nodes:
        if '*' not in own and node.endswith(f'/{own}') and not any(section_matches(name, other) for other in nodes):
            raise ConfigError(f"{where}: '{name.lstrip('/')}' does not match node '{node}'; write '/**/{own}', in a parameter file")
    for problem in judge_sections([name], nodes)[0]:
        raise ConfigError(f'{where}: {problem}')


def _keys(argv: Sequence[str], node: str) -> tuple[set[str], set[str], set[str]]:
    """Keys that the command line sets for a node: for one of any name, for one of its name, and for all of the process."""
    wild: set[str] = set()
    named: set[str] = set()
    bare: set[str] = set()
    for flag, value in itertools.pairwise(argv):
        if flag == '--params-file':
            for section, keys in read_parameter_yaml(value):
                if section_matches(section, node):
                    (wild if '*' in section.rsplit('/', 1)[-1] else named).update(keys)
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


def check_parameter_sources(argv: Sequence[str], nodes: Sequence[str]) -> list[str]:
    """Refuse parameters that miss the node that they were meant for.

    :param argv: the command line, ROS arguments included. Files were parsed by rcl before, so that they are valid.
    :param nodes: full names of this process's nodes.
    :returns: sentences to warn with: nodes without a section of their own, in a file that has such sections for others; sections that
        look as if they were meant for one of *nodes*.
    :raises ConfigError: names the file or argument, the section, and the node.
    """
    files: dict[str, list[Section]] = {}
    for flag, value in itertools.pairwise(argv):
        if flag == '--params-file':
            files[value] = read_parameter_yaml(value)
        elif flag in ('-p', '--param'):
            prefix = _NODE_PREFIX.match(value)
            if prefix is not None:
                _check_argument('/' + prefix[1].strip('/'), f"argument '{flag} {value}'", nodes)
    among = [section for sections in files.values() for section, _ in sections]
    warnings: list[str] = []
    for path, sections in files.items():
        refused, warned = judge_sections([section for section, _ in sections], nodes, among)
        if refused:
            raise ConfigError(f"parameter file '{path}': {refused[0]}")
        names = {node.rsplit('/', 1)[-1] for node in nodes}
        if any('*' not in name and name not in names for name in (section.rsplit('/', 1)[-1] for section, _ in sections)):
            warned += likely_meant(sections, nodes, _keys_of_kinds())
        warnings += [f"parameter file '{path}': {sentence}" for sentence in warned]
    return warnings
