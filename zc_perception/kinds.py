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
Kinds: what a parameter chooses among by name, such as cameras, accelerators and detector heads.

:class:`Kinds` is the one mechanism for all of them. A table has this package's kinds, one line for
each; other packages add kinds by entry points of a group that is named here. An entry point is in
the metadata of an installed package, so a kind's module is imported only when somebody asks for
this kind by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import contextlib
from dataclasses import dataclass, replace
import functools
import importlib
import os
import sys
from typing import Any, cast, Generic, TYPE_CHECKING, TypeVar

from zc_perception.errors import ConfigError, nearest, one_line
from zc_perception.parameters import ParameterSpec

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

CAMERA_GROUP = 'zc_perception.cameras'
ACCELERATOR_GROUP = 'zc_perception.accelerators'
HEAD_GROUP = 'zc_perception.heads'


@functools.cache
def _somebody_offers(path: tuple[str, ...]) -> bool:
    """
    Tell whether a package on *path* may offer something in a group of ours.

    This check is cheap. Reading all entry points by importlib takes 20 ms or more at each start of
    a node, and usually no other package has an entry point of our groups.
    """
    for folder in path:
        if os.path.isfile(folder):
            return True  # an archive: only importlib can look into it
        with contextlib.suppress(OSError):
            for name in os.listdir(folder or '.'):
                if name.endswith(('.dist-info', '.egg-info', 'EGG-INFO', '.egg')):
                    with (
                        contextlib.suppress(OSError),
                        open(os.path.join(folder, name, 'entry_points.txt'), 'rb') as file,
                    ):
                        if b'[zc_perception.' in file.read():
                            return True
    return False


def _entry_points(group: str, name: str = '') -> list[EntryPoint]:
    """Return entry points; only here, because it takes long, importlib.metadata is imported."""
    from importlib.metadata import entry_points

    return [entry for entry in entry_points(group=group) if name in ('', entry.name)]


def offered(group: str) -> tuple[str, ...]:
    """Return the names that installed packages offer in a group."""
    if not _somebody_offers(tuple(sys.path)):
        return ()
    return tuple(sorted({entry.name for entry in _entry_points(group)}))


def _package(entry: EntryPoint) -> str:
    return 'a package without a name' if entry.dist is None else f"package '{entry.dist.name}'"


def load_entry_point(group: str, name: str) -> object | None:
    """
    Import and return what an installed package offers under that name.

    ``None``: no package offers it.

    :raises ConfigError: the module can't be imported, or two packages offer the name; the message
        names the package and what to do.
    """
    entries = list(
        {
            (entry.value, _package(entry)): entry for entry in _entry_points(group, name)
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
            f"'{name}' of {_package(entry)} can't be imported ({entry.value}): "
            f'{one_line(error)}; try: python3 -c "{trial}"'
        ) from error


T = TypeVar('T')


@dataclass(frozen=True)
class Declared(Generic[T]):
    """
    The declarations of all kinds of one noun, such as all cameras.

    :param classes: the classes that can be imported.
    :param broken: for each class that can't be imported, a sentence with the reason and the
        package.
    :param parameters: the parameters of all kinds, each once; their texts say which kind reads
        them.
    :param readers: by parameter, the kinds that read it.
    """

    classes: Mapping[str, type[T]]
    broken: Sequence[str]
    parameters: Sequence[ParameterSpec]
    readers: Mapping[str, Sequence[str]]


@dataclass(frozen=True, eq=False)
class Kinds(Generic[T]):
    """
    The classes that one parameter chooses among by name.

    The classes come from this package and from other packages.

    A kind's class declares everything about itself, such as its parameters in ``PARAMETERS``
    (whose texts don't name the kind). Nodes, launch files, ``--help``, the YAML schema and
    ``zc_doctor`` get these declarations from this object. No module is imported before its kind is
    asked for.

    :param noun: the word for one of the kinds in messages, such as ``camera``.
    :param group: the group of entry points by which other packages offer kinds.
    :param built_in: ``module:Class`` of this package's kinds by name, in the order in which people
        read them.
    :param base: the class from which each kind's class is derived, as ``module:Class``.
    """

    noun: str
    group: str
    built_in: Mapping[str, str]
    base: str

    @property
    def others(self) -> tuple[str, ...]:
        """The names of the kinds that other packages offer."""
        return tuple(name for name in offered(self.group) if name not in self.built_in)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all kinds, this package's first."""
        return (*self.built_in, *self.others)

    @property
    def declared(self) -> Declared[T]:
        """
        The declarations of all kinds; the first use imports all of them.

        :raises ConfigError: two kinds declare parameters of one name that differ.
        """
        return _declared_by(self, tuple(sys.path))

    def whose(self, name: str) -> str:
        """Return a phrase for messages: the kind, and its package if it is another package."""
        entries = () if name in self.built_in else _entry_points(self.group, name)
        return f"{self.noun} '{name}'" + ''.join(f' of {_package(entry)}' for entry in entries)

    def load(self, name: str) -> type[T]:
        """
        Import the class of a kind.

        :raises ConfigError: there is no such kind, its package is broken, or its entry point is no
            class derived from :attr:`base`.
        """
        if name in self.built_in:
            return cast('type[T]', _named(self.built_in[name]))
        if name in self.declared.classes:
            return self.declared.classes[name]
        return cast('type[T]', self._imported(name))

    def _imported(self, name: str) -> type[Any]:
        """Return the class of another package's kind, or the reason why it can't be imported."""
        found = load_entry_point(self.group, name)
        if found is None:
            known = self.names
            raise ConfigError(
                f"{self.noun} '{name}' is not known; it must be one of "
                f'{", ".join(known)}{nearest(name, known)}'
            )
        if not (isinstance(found, type) and issubclass(found, _named(self.base))):
            raise ConfigError(
                f"{self.noun} '{name}' is {found!r}, which is no class derived from "
                f'{self.base.replace(":", ".")}'
            )
        return found


@functools.cache
def _declared_by(kinds: Kinds[T], path: tuple[str, ...]) -> Declared[T]:
    """Return the kinds' declarations, with the packages that are installed on *path*."""
    classes: dict[str, type[T]] = {}
    broken: list[str] = []
    declarations: dict[str, dict[str, ParameterSpec]] = {}
    for name in kinds.names:
        try:
            classes[name] = kinds.load(name) if name in kinds.built_in else kinds._imported(name)
        except ConfigError as error:
            broken.append(str(error))
            continue
        for spec in getattr(classes[name], 'PARAMETERS', ()):
            declarations.setdefault(spec.name, {})[name] = spec
    return Declared(
        classes,
        broken,
        tuple(_merged(kinds, by_kind) for by_kind in declarations.values()),
        {name: tuple(by_kind) for name, by_kind in declarations.items()},
    )


def _merged(kinds: Kinds[Any], by_kind: Mapping[str, ParameterSpec]) -> ParameterSpec:
    """
    Merge one parameter of several kinds; the new text says its meaning for each kind.

    :raises ConfigError: their declarations differ in more than their texts.
    """
    first, *_ = by_kind
    texts: dict[str, list[str]] = {}
    for kind, spec in by_kind.items():
        if replace(spec, description='') != replace(by_kind[first], description=''):
            raise ConfigError(
                f"parameter '{spec.name}' of {kinds.whose(kind)} differs from that of "
                f'{kinds.whose(first)}: {spec.said()}, '
                f'and {by_kind[first].said()}; give one of them another name'
            )
        texts.setdefault(spec.description, []).append(kind)
    said = (f'{", ".join(which)}: {text}' for text, which in texts.items())
    return replace(by_kind[first], description=' '.join(said))


def _named(place: str) -> Any:
    module, _, name = place.partition(':')
    return getattr(importlib.import_module(module), name)
