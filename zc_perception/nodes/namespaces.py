"""Which texts can be a namespace of nodes, and names of cameras. Needs no ROS.

Source: ``rmw_validate_namespace``: letters, digits and underscores between single slashes, and no part begins with a digit.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from zc_perception.errors import ConfigError

_PART = '[A-Za-z_][A-Za-z0-9_]*'
_NAMESPACE = re.compile(f'{_PART}(/{_PART})*')


def check_namespace(name: str, where: str) -> None:
    """Refuse what can't be a namespace.

    :param name: relative, without a slash in front or behind.
    """
    if not _NAMESPACE.fullmatch(name):
        allowed = "letters, digits and underscores, no digit first, and one '/' between parts"
        raise ConfigError(
            f"{where}: '{name}' can't be a namespace; use {allowed}, such as front_left or truck/front"
        )


def check_cameras(names: Sequence[str], where: str) -> None:
    """Refuse names of cameras that can't be namespaces, or are there twice."""
    for name in names:
        check_namespace(name, where)
        if names.count(name) > 1:
            raise ConfigError(
                f"{where}: '{name}' is there twice; each camera needs a name of its own"
            )
