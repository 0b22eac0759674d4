"""What other packages add to this one: cameras, accelerators and detector heads, each by an entry point of a group
that is named here.

An entry point stands in the metadata of an installed package, so nothing is imported before somebody asks for it by name.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

from zc_perception.errors import ConfigError, one_line

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
