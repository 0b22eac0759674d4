"""What a person means by a path: with variables, with ``~``, or as a ``file://`` URL."""

from __future__ import annotations

import os
import re
from urllib.parse import unquote_to_bytes

from zc_perception.errors import ConfigError

_VARIABLE = re.compile(r'\$(?:(\w+)|\{([^}]*)\})', re.ASCII)
_FILE = 'file:'


def expanded(named: str, parameter: str) -> str:
    """*named* with its variables and its ``~`` replaced.

    :param parameter: whose value it is, for messages.
    :raises ConfigError: it has a variable or a user that isn't known here, which would become a
        part of the name.
    """
    beginning = f"parameter '{parameter}' is '{named}'; "
    for plain, braced in _VARIABLE.findall(named):
        name = plain or braced
        if not os.environ.get(name):
            has = 'an empty' if name in os.environ else 'no'
            raise ConfigError(
                f"{beginning}the environment of this node has {has} variable '{name}': "
                'set it, or give the whole path'
            )
    path = os.path.expanduser(os.path.expandvars(named))
    if path.startswith('~'):
        user = path.partition('/')[0]
        raise ConfigError(
            f"{beginning}'{user}' is nobody's home here: give the whole path, or begin with './' "
            'for that name'
        )
    return path


def local_path(named: str, parameter: str) -> str:
    """The path that *named* means: a path, which may be relative, or a ``file://`` URL.

    What is there under exactly this name is meant, whatever else the name could mean.

    :param parameter: whose value it is, for messages.
    :raises ConfigError: as :func:`expanded`, or a URL that is no file of this machine.
    """
    if os.path.exists(named):
        return named
    path = expanded(named, parameter)
    if path[: len(_FILE)].lower() != _FILE:
        return path
    rest = path[len(_FILE) :]
    host, slash, below = rest[2:].partition('/') if rest[:2] == '//' else ('', rest[:1], rest[1:])
    if host not in ('', 'localhost') or slash != '/':
        raise ConfigError(
            f"parameter '{parameter}' is '{named}'; a file URL has an absolute path of this "
            'machine: file:///folder/name'
        )
    return os.fsdecode(unquote_to_bytes(f'/{below}'))
