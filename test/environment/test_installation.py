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

"""A colcon install: files that messages name, and programs run by sudo, which drops variables."""

from __future__ import annotations

from collections.abc import Iterable
import functools
import os
from pathlib import Path
import re
import shutil
import sys

from environment.console import own_environment
from processes import ran
import pytest

ROOT = Path(__file__).resolve().parents[2]
COLCON = Path(sys.prefix, 'bin', 'colcon')
SOURCES = ('config', 'docs', 'examples', 'launch', 'resource', 'zc_perception')
FILES = ('setup.py', 'setup.cfg', 'package.xml', 'LICENSE')
INSTALLED = ('config', 'docs', 'examples', 'launch')
# colcon's scripts fail if the interpreter's path has a space.
ENVIRONMENT = {
    **own_environment(), 'COLCON_PYTHON_EXECUTABLE': os.path.realpath(sys.executable)
}  # fmt: skip

pytestmark = pytest.mark.skipif(
    not COLCON.is_file(), reason='needs the environment that `make env` sets up'
)


def copy_sources(source: Path, folders: Iterable[str], files: Iterable[str], ignored: str) -> None:
    for name in folders:
        leave_out = shutil.ignore_patterns('__pycache__', ignored)
        shutil.copytree(ROOT / name, source / name, ignore=leave_out)
    for name in files:
        shutil.copy2(ROOT / name, source)


@pytest.fixture(scope='module', params=[(), ('--symlink-install',)], ids=['copied', 'symlinks'])
def workspace(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a workspace that colcon has built, with a space in its name."""
    folder = tmp_path_factory.mktemp('a workspace')
    copy_sources(folder / 'src' / 'zc_perception', SOURCES, FILES, '*.egg-info')
    said(COLCON, 'build', *request.param, cwd=folder)
    return folder


def said(*command: str | Path, cwd: Path, **variables: str) -> str:
    done = ran(*command, cwd=cwd, env=ENVIRONMENT | variables)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def in_shell(workspace: Path, command: str) -> str:
    return said('bash', '-c', f'source install/local_setup.bash && {command}', cwd=workspace)


def files_below(folder: Path) -> set[str]:
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob('*')
        if path.is_file() and '__pycache__' not in path.parts
    }


def test_pages_examples_and_parameter_files_are_installed(workspace: Path) -> None:
    share = workspace / 'install/zc_perception/share/zc_perception'
    for name in INSTALLED:
        expected = files_below(workspace / 'src/zc_perception' / name)
        assert expected and files_below(share / name) == expected
        for path in expected:
            assert (share / name / path).read_bytes() == (ROOT / name / path).read_bytes()


def test_the_files_that_help_and_errors_name_are_there(workspace: Path) -> None:
    programs = f'"{sys.executable}" install/zc_perception/lib/zc_perception'
    shown = in_shell(workspace, f'{programs}/perception --help')
    wrong = f'{programs}/inference_node --ros-args -p model:=/etc/hostname'
    refused = in_shell(workspace, f'{{ {wrong} 2>&1; true; }}')
    path = rf'{re.escape(str(workspace))}\S+/(?:docs|config)/\w+\.\w+'
    named = re.findall(path, shown + refused)
    assert {Path(path).name for path in named} == {'parameters.md', 'perception.yaml', 'models.md'}
    assert [path for path in named if not Path(path).is_file()] == []


def test_the_command_of_zc_verifys_help_finds_its_modules_without_the_environment(
    workspace: Path,
) -> None:
    program = f'"{sys.executable}" install/zc_perception/lib/zc_perception/zc_verify'
    shown = in_shell(workspace, f'{program} --help')
    command = shown.splitlines()[-1].strip()
    assert command.startswith('sudo env "PATH=$PATH" "PYTHONPATH=$PYTHONPATH" ')
    # Like sudo: an empty environment with sudo's own PATH.
    stripped = command.replace('sudo ', 'env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin ', 1)
    where = 'import zc_perception; print(zc_perception.__file__)'
    environment, _, path = stripped.rpartition(" '")
    place = in_shell(workspace, f'{environment} "{sys.executable}" -c "{where}"').strip()
    assert workspace in Path(place).parents
    assert in_shell(workspace, f'{environment} "{sys.executable}" \'{path} --help') == shown


def test_a_wheel_of_the_source_archive_has_programs_that_run(tmp_path: Path) -> None:
    """Build archive and wheel from the tree, and install the wheel; without a network."""
    source, place = tmp_path / 'a source', tmp_path / 'a place'
    files = (*FILES, 'README.md', 'pyproject.toml')
    copy_sources(source, (*SOURCES, 'client'), files, '*.so')
    run = functools.partial(said, cwd=source)
    pip = (sys.executable, '-m', 'pip', '--disable-pip-version-check', '-q')
    run(sys.executable, 'setup.py', '-q', 'sdist', '--dist-dir', tmp_path)
    (archive,) = tmp_path.glob('*.tar.gz')
    run(*pip, 'wheel', '--no-deps', '--no-build-isolation', '--wheel-dir', tmp_path, archive)
    (wheel,) = tmp_path.glob('*.whl')
    run(*pip, 'install', '--no-deps', '--ignore-installed', '--prefix', place, wheel)
    (package,) = place.glob('**/site-packages/zc_perception')
    assert list(package.glob('native/compiled.*.so'))
    found = {'PYTHONPATH': str(package.parent)}
    for name in ('zc_doctor', 'zc_verify'):
        shown = run(place / 'bin' / name, '--help', **found)
        assert name in shown and str(ROOT) not in shown
    shown = run(place / 'bin/capture_node', '--help', **found)
    assert (place / 'share/zc_perception/config/perception.yaml').is_file()
    assert shown.splitlines()[-1].endswith(f'{place}/share/zc_perception/config/perception.yaml')
