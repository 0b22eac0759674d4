"""Finds component classes: entry points of the group ``rclpy_components``, named ``package::Plugin``, with the value ``module:Class``.

That is the group of rclpy's pull request 599, so that packages that were written for it can be loaded. The ament resource index is
left to C++: its containers would try to open a Python class as a library.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points

from rclpy.node import Node

from zc_perception.errors import ZcError, nearest

GROUP = 'rclpy_components'
# Word for word as rclcpp says them: clients may compare.
NO_PACKAGE = 'Could not find requested resource in ament index'
NO_PLUGIN = 'Failed to find class with the requested plugin name.'
NO_LIBRARY = 'Failed to load library'


class LoadError(ZcError):
    """A component can't be loaded. The message is the answer to the client.

    :param detail: what the container's log says on top; empty: nothing.
    """

    def __init__(self, answer: str, detail: str = '') -> None:
        super().__init__(answer)
        self.detail = detail


def printable(text: str) -> str:
    """*text* as messages and logs can carry it: without lone surrogates, which names of files may have, and without NUL."""
    return text.encode(errors='replace').decode().replace('\0', '')


def one_line(error: BaseException) -> str:
    """An exception as a clause: its class unless it is ours, and its words."""
    try:
        text = printable(' '.join(str(error).split()))
    except BaseException:  # foreign code
        text = ''
    if isinstance(error, ZcError):
        return text
    return f'{type(error).__name__}: {text}' if text else type(error).__name__


def _belongs(entry: EntryPoint, package: str) -> bool:
    if entry.name.startswith(f'{package}::'):
        return True
    distribution = '' if entry.dist is None else entry.dist.name
    return distribution.replace('-', '_') == package.replace('-', '_')


def find_plugin(package: str, plugin: str, entries: Sequence[EntryPoint]) -> EntryPoint:
    """The entry point for *plugin* of *package*; the package's name in front of the plugin's may be left out.

    :param entries: those of :data:`GROUP`; of several with one name the first counts, as it is the first on the path.
    :raises LoadError: there is none.
    """
    own = [entry for entry in entries if _belongs(entry, package)]
    if not own:
        others = sorted({entry.name.partition('::')[0] for entry in entries})
        raise LoadError(
            NO_PACKAGE,
            f"package '{package}' has no entry point in group '{GROUP}'{nearest(package, others)}; packages that have: "
            f'{", ".join(others) or "none"}; is its workspace sourced in the shell that started this container?',
        )
    for name in (f'{package}::{plugin}', plugin):
        for entry in own:
            if entry.name == name:
                return entry
    names = sorted({entry.name for entry in own})
    raise LoadError(NO_PLUGIN, f"package '{package}' has no plugin '{plugin}'{nearest(plugin, names)}; it has: {', '.join(names)}")


def load_class(package: str, plugin: str) -> type[Node]:
    """The component's class; its module is imported now.

    :raises LoadError: there is none of that name, or it can't be had.
    """
    importlib.invalidate_caches()  # a package may have been installed since
    entry = find_plugin(package, plugin, tuple(entry_points(group=GROUP)))
    try:
        found = entry.load()
    except BaseException as error:  # a module may do anything, also exit
        raise LoadError(
            f"{NO_LIBRARY}: '{entry.value}' of plugin '{entry.name}' can't be imported: {one_line(error)}; "
            f'try: python3 -c "import {entry.module}"'
        ) from error
    if not (isinstance(found, type) and issubclass(found, Node)):
        raise LoadError(f"{NO_LIBRARY}: '{entry.value}' of plugin '{entry.name}' is not a class derived from rclpy.node.Node")
    return found
