"""Checks where start-up parameters are addressed to.

rcl applies a section of a parameter file, or a ``-p NODE:NAME:=VALUE``, to the nodes whose full name it matches, and says nothing when
it matches none: a vehicle then drives with defaults. Sections for other packages' nodes are fine, a file may serve many; what is
refused here is a section that was clearly meant for one of this process's nodes and misses it.

A key that none of our nodes has is refused where it was meant for one of them, by name or by a bare ``-p``. In a section for nodes of
any name (``/**``, ``/front/*``) it may be another package's: there it is a warning.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from zc_perception.errors import ConfigError, nearest
from zc_perception.nodes.parameter_yaml import read_parameter_yaml

_NODE_PREFIX = re.compile(r'^([^:=]+):[^:=]+:=')


def section_matches(section: str, node: str) -> bool:
    """rcl's wildcards: ``*`` is one token, ``**`` any number of them, also none."""
    pattern = ''.join('(/[^/]+)*' if token == '**' else '/' + re.escape(token).replace(r'\*', '[^/]*') for token in section.split('/')[1:])
    return re.fullmatch(pattern, node) is not None


def _check(section: str, where: str, nodes: Sequence[str]) -> None:
    name = section.rsplit('/', 1)[-1]
    if '*' in name or any(section_matches(section, node) for node in nodes):
        return
    for node in nodes:
        own = node.rsplit('/', 1)[-1]
        if name == own:
            raise ConfigError(f"{where}: '{section.lstrip('/')}' does not match node '{node}'; write '/**/{own}', in a parameter file")
    own_names = [node.rsplit('/', 1)[-1] for node in nodes]
    hint = nearest(name, own_names)
    if hint:
        raise ConfigError(f"{where}: there is no node '{name}' here{hint}; nodes are {', '.join(own_names)}")


def keys_for_any_node(argv: Sequence[str], node: str) -> frozenset[str]:
    """Keys that the command line sets for a node only in parameter files' sections for nodes of whatever name.

    :param node: its full name.
    """
    wild: set[str] = set()
    meant: set[str] = set()
    for flag, value in itertools.pairwise(argv):
        if flag == '--params-file':
            for section, keys in read_parameter_yaml(value):
                if section_matches(section, node):
                    (wild if '*' in section.rsplit('/', 1)[-1] else meant).update(keys)
        elif flag in ('-p', '--param'):
            name, _, key = value.partition(':=')[0].rpartition(':')
            if not name or section_matches('/' + name.strip('/'), node):
                meant.add(key)
    return frozenset(wild - meant)


def check_parameter_sources(argv: Sequence[str], nodes: Sequence[str]) -> None:
    """Refuse parameters that miss the node that they were meant for.

    :param argv: the command line, ROS arguments included. Files were parsed by rcl before, so that they are valid.
    :param nodes: full names of this process's nodes.
    :raises ConfigError: names the file or argument, the section, and the node.
    """
    for flag, value in itertools.pairwise(argv):
        if flag == '--params-file':
            for section, _ in read_parameter_yaml(value):
                _check(section, f"parameter file '{value}'", nodes)
        elif flag in ('-p', '--param'):
            prefix = _NODE_PREFIX.match(value)
            if prefix is not None:
                _check('/' + prefix[1].strip('/'), f"argument '{flag} {value}'", nodes)
