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

"""The shell commands of the pages run as written, where this machine can run them."""

from __future__ import annotations

import os
from pathlib import Path
import tempfile

import pytest

from tools.page_commands import blocks, CommandError, copy_tree, PAGES, run


@pytest.fixture(scope='module')
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_tree(tmp_path_factory.mktemp('pages'))


def pages() -> list[Path]:
    return [
        page
        for page in PAGES
        if any(
            not command.left_out
            for block in blocks(page.read_text(encoding='utf-8'))
            for command in block.commands
        )
    ]


@pytest.mark.timeout(900)
@pytest.mark.parametrize('page', pages(), ids=lambda page: page.name)
def test_the_commands_of_a_page_run(
    page: Path, tree: Path, free_domain: int, tmp_path: Path
) -> None:
    own = {'HOME': str(tmp_path), 'ROS_HOME': str(tmp_path / 'ros')}
    # The folder's name is short, as a socket's path is limited. The folder is private, so that no
    # other test's nodes are seen.
    with tempfile.TemporaryDirectory() as folder:
        for block in blocks(page.read_text(encoding='utf-8')):
            run(block, tree, {**os.environ, **own, 'ZC_RUNTIME_DIR': folder})


def test_a_command_that_fails_is_named(tmp_path: Path) -> None:
    page = '```sh\ntrue   # well\nfalse\n```\n'
    (block,) = blocks(page)
    with pytest.raises(CommandError, match='false\nexit code 1'):
        run(block, tmp_path, os.environ)
    (block,) = blocks(f'<!-- not run: no need -->\n\n{page}')
    assert [command.left_out for command in block.commands] == ['no need'] * 2
    run(block, tmp_path, os.environ)
