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

"""Resolve variables, ``~``, and file and package URLs in paths that a parameter or file gives."""

from __future__ import annotations

import os
import re
from urllib.parse import unquote_to_bytes

from zc_perception.errors import ConfigError

_VARIABLE = re.compile(r'\$(?:(\w+)|\{([^}]*)\})', re.ASCII)
_FILE = 'file:'
_PACKAGE = 'package://'


def expanded(named: str, parameter: str, kind: str = 'parameter') -> str:
    """
    Replace environment variables and a leading ``~`` in the path *named*.

    :param parameter: the name of the parameter, or of a file's key, that has the path; for
        messages.
    :param kind: what *parameter* is, for messages: ``parameter`` or ``key``.
    :raises ConfigError: an environment variable is empty or missing, or the user after ``~`` is
        unknown. ``os.path`` would leave the variable or ``~`` in the file's name.
    """
    beginning = f"{kind} '{parameter}' is '{named}'; "
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
            f"{beginning}'{user}' names no user of this machine: give the whole path, or begin "
            "with './' if this is a file's name"
        )
    return path


def local_path(named: str, parameter: str, kind: str = 'parameter') -> str:
    """
    Resolve *named*: a path, or a ``file://`` or ``package://PACKAGE/path`` URL.

    If a file with exactly the name *named* exists, *named* is returned unchanged. Otherwise
    variables and ``~`` are replaced first.

    :param parameter: see :func:`expanded`.
    :param kind: see :func:`expanded`.
    :raises ConfigError: :func:`expanded` raises it; or the URL is malformed, or names another host
        or an unknown ROS package.
    """
    if os.path.exists(named):
        return named
    path = expanded(named, parameter, kind)
    rest = _after(_PACKAGE, path)
    if rest is not None:
        return _in_package(rest, f"{kind} '{parameter}' is '{named}'; ")
    rest = _after(_FILE, path)
    if rest is None:
        return path
    host, slash, below = rest[2:].partition('/') if rest[:2] == '//' else ('', rest[:1], rest[1:])
    if host not in ('', 'localhost') or slash != '/':
        raise ConfigError(
            f"{kind} '{parameter}' is '{named}'; a file URL has an absolute path of this "
            'machine: file:///folder/name'
        )
    return os.fsdecode(unquote_to_bytes(f'/{below}'))


def _after(scheme: str, path: str) -> str | None:
    """Return the rest of *path* after *scheme*, ignoring case; ``None``: it has another scheme."""
    end = len(scheme)
    return path[end:] if path[:end].lower() == scheme else None


def _in_package(rest: str, beginning: str) -> str:
    """Resolve ``PACKAGE/path``, the rest of a package URL, below the package's share folder."""
    package, _, below = rest.partition('/')
    if not package or not below or '..' in below.split('/'):
        raise ConfigError(
            f"{beginning}a package URL is package://PACKAGE/PATH; PATH is in the package's share "
            "folder, without '..'"
        )
    prefixes = filter(None, os.environ.get('AMENT_PREFIX_PATH', '').split(os.pathsep))
    for prefix in prefixes:
        share = os.path.join(prefix, 'share', package)
        if os.path.isdir(share):
            return os.path.join(share, below)
    raise ConfigError(
        f"{beginning}there is no ROS package '{package}' in this environment: source its workspace"
    )
