"""Checks where start-up parameters are addressed to.

rcl applies a section of a parameter file, or a ``-p NODE:NAME:=VALUE``, to the nodes whose full name it matches, and says nothing when
it matches none: a vehicle then drives with defaults. Sections for other packages' nodes are fine, a file may serve many; what is
refused here is a section that was clearly meant for one of this process's nodes and misses it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from zc_perception.errors import ConfigError, nearest

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


def _matches(section: str, node: str) -> bool:
    """rcl's wildcards: ``*`` is one token, ``**`` any number of them, also none."""
    pattern = ''.join('(/[^/]+)*' if token == '**' else '/' + re.escape(token).replace(r'\*', '[^/]*') for token in section.split('/')[1:])
    return re.fullmatch(pattern, node) is not None


def _check(section: str, where: str, nodes: Sequence[str]) -> None:
    name = section.rsplit('/', 1)[-1]
    if '*' in name or any(_matches(section, node) for node in nodes):
        return
    for node in nodes:
        own = node.rsplit('/', 1)[-1]
        if name == own:
            raise ConfigError(f"{where}: '{section.lstrip('/')}' does not match node '{node}'; write '/**/{own}', in a parameter file")
    own_names = [node.rsplit('/', 1)[-1] for node in nodes]
    hint = nearest(name, own_names)
    if hint:
        raise ConfigError(f"{where}: there is no node '{name}' here{hint}; nodes are {', '.join(own_names)}")


def check_parameter_sources(argv: Sequence[str], nodes: Sequence[str]) -> None:
    """Refuse parameters that miss the node that they were meant for.

    :param argv: the command line, ROS arguments included. Files were parsed by rcl before, so that they are valid.
    :param nodes: full names of this process's nodes.
    :raises ConfigError: names the file or argument, the section, and the node.
    """
    for flag, value in itertools.pairwise(argv):
        if flag == '--params-file':
            with open(value, encoding='utf-8') as file:
                for section in _sections(yaml.safe_load(file)):
                    _check(section, f"parameter file '{value}'", nodes)
        elif flag in ('-p', '--param'):
            prefix = _NODE_PREFIX.match(value)
            if prefix is not None:
                _check('/' + prefix[1].strip('/'), f"argument '{flag} {value}'", nodes)
