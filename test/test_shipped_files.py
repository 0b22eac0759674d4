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

"""Messages name pages, parameter files and examples by their paths in this installation."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
import re
import shutil
import sys

from processes import ran
import pytest

import zc_perception
from zc_perception.shipped_files import shipped_file

PACKAGE = Path(zc_perception.__file__).parent
ROOT = Path(__file__).resolve().parent.parent
NAMED = re.compile(r'(?<![\w/])(?:docs|config|examples)/[\w./-]*\w')


def named(text: str) -> Iterator[tuple[str, bool]]:
    """Yield file names in a module's strings, and whether ``shipped_file`` gets each."""
    nodes = [*ast.walk(ast.parse(text))]
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    asked = {id(c.args[0]) for c in calls if getattr(c.func, 'id', '') == 'shipped_file'}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            for name in [] if id(node) in docstrings else NAMED.findall(node.value):
                yield name, id(node) in asked


def test_whoever_names_a_file_asks_where_it_is_installed() -> None:
    found = [
        (path, *each)
        for path in PACKAGE.rglob('*.py')
        for each in named(path.read_text(encoding='utf-8'))
    ]
    assert len(found) > 5
    assert [each for each in found if not each[2]] == [], "write shipped_file('docs/…')"
    assert [each for each in found if not (ROOT / each[1]).is_file()] == []


def test_in_the_source_tree_the_files_are_those_of_the_repository() -> None:
    assert shipped_file('docs/models.md') == str(ROOT / 'docs/models.md')


def asked(folder: Path) -> str:
    """Copy the module into a package of its own in *folder*; ask it for a page."""
    package = folder / 'zc_perception'
    package.mkdir(parents=True)
    shutil.copy2(PACKAGE / 'shipped_files.py', package)
    say = "import shipped_files; print(shipped_files.shipped_file('docs/models.md'))"
    return ran(sys.executable, '-c', say, cwd=package, check=True).stdout.strip()


@pytest.mark.parametrize(
    ('packages', 'share'),
    [
        ('install/zc_perception/lib/python3.12/site-packages', 'install/zc_perception/share'),
        ('ws/local/lib/python3.10/dist-packages', 'ws/share'),
        ('usr/lib/python3/dist-packages', 'usr/share'),
    ],
)
def test_in_an_installation_they_are_in_its_share_folder(
    packages: str, share: str, tmp_path: Path
) -> None:
    folder = tmp_path / share / 'zc_perception'
    folder.mkdir(parents=True)
    (folder / 'package.xml').touch()
    assert asked(tmp_path / packages) == str(folder / 'docs/models.md')


def test_code_that_was_copied_alone_names_the_file_as_the_repository_has_it(
    tmp_path: Path,
) -> None:
    assert asked(tmp_path) == 'docs/models.md'
