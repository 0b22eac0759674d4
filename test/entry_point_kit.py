"""Metadata of a package with entry points, as an installer writes it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def install(folder: Path, package: str, groups: Mapping[str, Mapping[str, str]]) -> None:
    """Write a package's metadata below *folder*, which is to be put on the path. *groups*: for each group values by name."""
    info = folder / f'{package.replace("-", "_")}-1.0.dist-info'
    info.mkdir(parents=True)
    (info / 'METADATA').write_text(
        f'Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n', encoding='utf-8'
    )
    sections = (
        f'[{group}]\n' + ''.join(f'{name} = {value}\n' for name, value in entries.items())
        for group, entries in groups.items()
    )
    (info / 'entry_points.txt').write_text('\n'.join(sections), encoding='utf-8')
