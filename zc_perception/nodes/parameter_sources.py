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
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from zc_perception.errors import ConfigError, nearest


class ParameterLoader(yaml.SafeLoader):
    """Reads what rcl reads: launch_ros writes lists as Python's tuples, of which the safe loader knows nothing."""


ParameterLoader.add_constructor('tag:yaml.org,2002:python/tuple', yaml.SafeLoader.construct_yaml_seq)
# Texts to PyYAML, which wants a point in them.
_POWER_OF_TEN = re.compile(r'^[-+]?[0-9]+[eE][-+]?[0-9]+$')
ParameterLoader.add_implicit_resolver('tag:yaml.org,2002:float', _POWER_OF_TEN, list('-+0123456789'))
_NODE_PREFIX = re.compile(r'^([^:=]+):[^:=]+:=')


def _sections(values: Any, prefix: str = '') -> Iterator[str]:
    """Full names of the sections of a parameter file; namespaces may be nested mappings."""
    if not isinstance(values, Mapping):
        return
    for key, value in values.items():
        name = f'{prefix}/{str(key).strip("/")}'
        if isinstance(value, Mapping) and 'ros__parameters' in value:
            yield name
        else:
            yield from _sections(value, name)


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


def _keys(values: Mapping[Any, Any], prefix: str = '') -> Iterator[str]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _keys(value, f'{prefix}{key}.')
        else:
            yield f'{prefix}{key}'


def _keys_by_section(values: Any, prefix: str = '') -> Iterator[tuple[str, str]]:
    if not isinstance(values, Mapping):
        return
    for key, value in values.items():
        name = f'{prefix}/{str(key).strip("/")}'
        if not isinstance(value, Mapping):
            continue
        if isinstance(value.get('ros__parameters'), Mapping):
            yield from ((name, parameter) for parameter in _keys(value['ros__parameters']))
        else:
            yield from _keys_by_section(value, name)


def keys_for_any_node(argv: Sequence[str]) -> frozenset[str]:
    """Keys that the command line's parameter files set only for nodes of whatever name."""
    wild: set[str] = set()
    meant: set[str] = set()
    for flag, value in itertools.pairwise(argv):
        if flag == '--params-file':
            with open(value, encoding='utf-8') as file:
                for section, key in _keys_by_section(yaml.load(file, Loader=ParameterLoader)):
                    (wild if '*' in section.rsplit('/', 1)[-1] else meant).add(key)
        elif flag in ('-p', '--param'):
            meant.add(value.partition(':=')[0].rpartition(':')[2])
    return frozenset(wild - meant)


def check_parameter_sources(argv: Sequence[str], nodes: Sequence[str]) -> None:
    """Refuse parameters that miss the node that they were meant for.

    :param argv: the command line, ROS arguments included. Files were parsed by rcl before, so that they are valid.
    :param nodes: full names of this process's nodes.
    :raises ConfigError: names the file or argument, the section, and the node.
    """
    for flag, value in itertools.pairwise(argv):
        if flag == '--params-file':
            with open(value, encoding='utf-8') as file:
                for section in _sections(yaml.load(file, Loader=ParameterLoader)):
                    _check(section, f"parameter file '{value}'", nodes)
        elif flag in ('-p', '--param'):
            prefix = _NODE_PREFIX.match(value)
            if prefix is not None:
                _check('/' + prefix[1].strip('/'), f"argument '{flag} {value}'", nodes)
