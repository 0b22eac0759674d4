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

"""Metadata of a package with entry points, as an installer writes it."""

from __future__ import annotations

from collections.abc import Mapping
import functools
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from zc_perception import kinds as reader


def install(folder: Path, package: str, groups: Mapping[str, Mapping[str, str]]) -> None:
    """Write a package's metadata into *folder*; *groups* holds each group's values by name."""
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


def offer_alone(monkeypatch: pytest.MonkeyPatch, *folders: Path) -> None:
    """Put folders of :func:`install` on the path; hide other packages' entry points."""
    packages = set()
    for folder in folders:
        monkeypatch.syspath_prepend(folder)
        packages |= {info.name.split('-')[0] for info in folder.glob('*.dist-info')}

    everybodys = reader._entry_points

    def of_these(*which: str) -> list[EntryPoint]:
        return [
            entry
            for entry in everybodys(*which)
            if entry.dist is not None and entry.dist.name.replace('-', '_') in packages
        ]

    monkeypatch.setattr(reader, '_entry_points', of_these)
    # The reader caches entry points for the whole process: give the test a new cache.
    monkeypatch.setattr(reader, '_declared_by', functools.cache(reader._declared_by.__wrapped__))
