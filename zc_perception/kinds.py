"""Kinds: what a parameter chooses among by name, such as cameras, accelerators and detector heads.

:class:`Kinds` is the one mechanism for all of them. This package's kinds stand in a table, one line each; other packages add
theirs by entry points of a group that is named here. An entry point stands in the metadata of an installed package, so nothing is
imported before somebody asks for it by name.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar, cast

from zc_perception.errors import ConfigError, nearest, one_line

CAMERA_GROUP = 'zc_perception.cameras'
ACCELERATOR_GROUP = 'zc_perception.accelerators'
HEAD_GROUP = 'zc_perception.heads'


def offered(group: str) -> tuple[str, ...]:
    """Names that installed packages offer in a group."""
    return tuple(sorted({entry.name for entry in entry_points(group=group)}))


def _package(entry: EntryPoint) -> str:
    return 'a package without a name' if entry.dist is None else f"package '{entry.dist.name}'"


def load_entry_point(group: str, name: str) -> object | None:
    """What an installed package offers under that name, its module imported now; ``None``: no package offers it.

    :raises ConfigError: its module can't be imported, or two packages offer the name; names the package and what to do.
    """
    entries = list(
        {
            (entry.value, _package(entry)): entry for entry in entry_points(group=group, name=name)
        }.values()
    )
    if not entries:
        return None
    if len(entries) > 1:
        packages = ' and '.join(map(_package, entries))
        raise ConfigError(
            f"'{name}' of group {group} is offered by {packages}; uninstall one of them"
        )
    entry = entries[0]
    try:
        return entry.load()  # type: ignore[no-any-return]
    except Exception as error:  # the module is another package's, and may raise anything
        # AttributeError: the module has no such class. To import the module alone would succeed.
        outermost = entry.attr.partition('.')[0]
        trial = (
            f'from {entry.module} import {outermost}'
            if isinstance(error, AttributeError) and outermost
            else f'import {entry.module}'
        )
        raise ConfigError(
            f"'{name}' of {_package(entry)} can't be imported ({entry.value}): {one_line(error)}; try: python3 -c \"{trial}\""
        ) from error

T = TypeVar('T')


@dataclass(frozen=True)
class Kinds(Generic[T]):
    """What one parameter chooses among by name: this package's classes and other packages'.

    A kind's class declares everything about itself; nodes, launch files, ``--help``, the YAML schema and ``zc_doctor`` read it
    from here. No module is imported before its kind is asked for.

    :param noun: what messages call one of them, such as ``camera``.
    :param group: the entry points' group in which other packages offer theirs.
    :param built_in: ``module:Class`` of this package's kinds by name, in the order in which people read them.
    :param base: the class that each is derived from, as ``module:Class``.
    """

    noun: str
    group: str
    built_in: Mapping[str, str]
    base: str

    @property
    def others(self) -> tuple[str, ...]:
        """Names that other packages offer."""
        return tuple(name for name in offered(self.group) if name not in self.built_in)

    @property
    def names(self) -> tuple[str, ...]:
        """All of them, this package's first."""
        return (*self.built_in, *self.others)

    def load(self, name: str) -> type[T]:
        """Import the class of a kind.

        :raises ConfigError: there is no such kind, its package is broken, or it offers something else than such a class.
        """
        if name in self.built_in:
            return cast('type[T]', _named(self.built_in[name]))
        found = load_entry_point(self.group, name)
        if found is None:
            known = self.names
            raise ConfigError(
                f"{self.noun} '{name}' is not known; it must be one of {', '.join(known)}{nearest(name, known)}"
            )
        if not (isinstance(found, type) and issubclass(found, _named(self.base))):
            raise ConfigError(
                f"{self.noun} '{name}' is {found!r}, which is no class derived from {self.base.replace(':', '.')}"
            )
        return found


def _named(place: str) -> Any:
    module, _, name = place.partition(':')
    return getattr(importlib.import_module(module), name)
