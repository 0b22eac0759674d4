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
Find the classes that a user selects by name: the kinds of camera, accelerator and head.

Each :class:`Kinds` lists this package's kinds. Other packages add kinds by entry points, in the
groups ``zc_perception.*`` below. An entry point is part of the metadata of an installed package,
so its name can be read without an import of the kind's module.
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

from zc_perception.errors import ConfigError, nearest, one_line, shown
from zc_perception.parameters import ParameterSpec

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

CAMERA_GROUP = 'zc_perception.cameras'
ACCELERATOR_GROUP = 'zc_perception.accelerators'
HEAD_GROUP = 'zc_perception.heads'


@functools.cache
def _somebody_offers(path: tuple[str, ...]) -> bool:
    """
    Return whether a package in a folder of *path* may have entry points for new kinds.

    This check is fast. Reading all entry points by importlib would add 20 ms or more to each start
    of a node, and usually no other package has such an entry point.
    """
    for folder in path:
        if os.path.isfile(folder):
            return True  # an archive: only importlib can read it
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
    """Return the entry points in *group*; with *name*, only those that have this name."""
    from importlib.metadata import entry_points  # imported here, because this import is slow

    return [entry for entry in entry_points(group=group) if name in ('', entry.name)]


def offered(group: str) -> tuple[str, ...]:
    """Return the names of all entry points that installed packages have in *group*."""
    if not _somebody_offers(tuple(sys.path)):
        return ()
    return tuple(sorted({entry.name for entry in _entry_points(group)}))


def _package(entry: EntryPoint) -> str:
    return 'a package without a name' if entry.dist is None else f"package '{entry.dist.name}'"


def load_entry_point(group: str, name: str) -> object | None:
    """
    Import the object of the entry point *name* in *group*; ``None``: no package has it.

    :raises ConfigError: the object can't be imported, or two packages have the entry point; the
        message names the packages and the next step.
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
    # The module is another package's: it may raise anything, and end itself by sys.exit().
    except (Exception, SystemExit) as error:
        # If the module lacks the class, an import of the module alone would succeed. The message
        # then suggests a command that imports the class.
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
    The declarations of all classes that a :class:`Kinds` lists, such as all camera classes.

    :param classes: by name, the classes that can be imported.
    :param broken: for each class that can't be used, a message with the reason and package.
    :param parameters: the parameters of all kinds, each once. A parameter's description names the
        kinds that read it.
    :param readers: by parameter name, the kinds that read the parameter.
    """

    classes: Mapping[str, type[T]]
    broken: Sequence[str]
    parameters: Sequence[ParameterSpec]
    readers: Mapping[str, Sequence[str]]


@dataclass(frozen=True, eq=False)
class Kinds(Generic[T]):
    """
    All kinds of camera (or of accelerator, or of head): this package's and other packages'.

    A kind's class declares everything about itself, such as its parameters in ``PARAMETERS``,
    whose descriptions don't name the kind. Nodes, launch files, ``--help``, the YAML schema and
    ``zc_doctor`` get the declarations from :attr:`declared`, which imports the modules of all
    kinds. Otherwise a module is imported only when its kind is used.

    :param noun: the word for one of the kinds in messages, such as ``camera``.
    :param group: the group of entry points by which other packages add kinds.
    :param built_in: by name, ``module:Class`` of this package's kinds, in the order of
        documentation and messages.
    :param base: the class from which each kind's class is derived, as ``module:Class``.
    """

    noun: str
    group: str
    built_in: Mapping[str, str]
    base: str

    @property
    def others(self) -> tuple[str, ...]:
        """The names of the kinds that other packages add."""
        return tuple(name for name in offered(self.group) if name not in self.built_in)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all kinds, this package's first."""
        return (*self.built_in, *self.others)

    @property
    def declared(self) -> Declared[T]:
        """
        The declarations of all kinds; the first use imports the modules of all kinds.

        :raises ConfigError: two kinds declare the same parameter differently.
        """
        return _declared_by(self, tuple(sys.path))

    def whose(self, name: str) -> str:
        """Return a kind's name for messages; for another package's kind, also that package."""
        entries = () if name in self.built_in else _entry_points(self.group, name)
        return f"{self.noun} '{name}'" + ''.join(f' of {_package(entry)}' for entry in entries)

    def load(self, name: str) -> type[T]:
        """
        Import the class of a kind.

        :raises ConfigError: the kind is unknown, can't be imported, or is not a class derived from
            :attr:`base`; for another package's kind, also if two kinds declare the
            same parameter differently.
        """
        if name in self.built_in:
            return cast('type[T]', _named(self.built_in[name]))
        if name in self.declared.classes:
            return self.declared.classes[name]
        return cast('type[T]', self._imported(name))

    def _imported(self, name: str) -> type[Any]:
        """Import the class of another package's kind; raise the errors of :meth:`load`."""
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
        declared = getattr(found, 'PARAMETERS', ())
        if not (
            isinstance(declared, (tuple, list))
            and all(isinstance(spec, ParameterSpec) for spec in declared)
        ):
            raise ConfigError(
                f'{self.whose(name)} has PARAMETERS = {shown(declared)}; it must be a tuple of '
                'zc_perception.parameters.ParameterSpec'
            )
        return found


@functools.cache
def _declared_by(kinds: Kinds[T], path: tuple[str, ...]) -> Declared[T]:
    """Return the declarations of *kinds*, cached for each value of sys.path (*path*)."""
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
    Merge several kinds' declarations of one parameter; the description names the kinds.

    :raises ConfigError: the declarations differ in more than their descriptions.
    """
    first, *_ = by_kind
    texts: dict[str, list[str]] = {}
    for kind, spec in by_kind.items():
        if replace(spec, description='') != replace(by_kind[first], description=''):
            raise ConfigError(
                f"parameter '{spec.name}' of {kinds.whose(kind)} differs from that of "
                f'{kinds.whose(first)}: {spec.said()}, '
                f'and {by_kind[first].said()}; give one of the parameters another name, or '
                'uninstall a package'
            )
        texts.setdefault(spec.description, []).append(kind)
    said = (f'{", ".join(which)}: {text}' for text, which in texts.items())
    return replace(by_kind[first], description=' '.join(said))


def _named(place: str) -> Any:
    module, _, name = place.partition(':')
    return getattr(importlib.import_module(module), name)
