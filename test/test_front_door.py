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

"""The names of ``zc_perception`` itself."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

from processes import ran
import pytest

import zc_perception

ROOT = Path(__file__).resolve().parent.parent
NAMES = {
    'AdaptedPublisher', 'AdaptedSubscription', 'Frame', 'FramePublisher', 'FrameReader',
    'FrameSubscription', 'TypeAdapter', 'create_camera_subscription', 'create_frame_subscription',
}  # fmt: skip
# As where ROS is not installed: no import finder finds it.
WITHOUT_ROS = """
import sys
from importlib.machinery import PathFinder
sys.meta_path = [finder for finder in sys.meta_path if finder is not PathFinder]
class WithoutRos(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name == 'rclpy' else super().find_spec(name, path, target)
sys.meta_path.append(WithoutRos)
"""


def run(code: str, **options: bool) -> subprocess.CompletedProcess[str]:
    return ran(sys.executable, '-c', code, **options)


def test_the_names_are_there_and_others_are_not() -> None:
    assert set(zc_perception.__all__) == NAMES | {'__version__'}
    assert set(dir(zc_perception)) >= set(zc_perception.__all__)
    for name in NAMES:
        value = getattr(zc_perception, name)
        assert value.__name__ == name and value is getattr(import_module(value.__module__), name)
    with pytest.raises(AttributeError, match="no attribute 'Fraem'"):
        _ = zc_perception.Fraem  # type: ignore[attr-defined]
    with pytest.raises(ImportError, match="cannot import name 'Fraem'"):
        exec('from zc_perception import Fraem')


def test_what_type_checkers_see_is_what_is_imported() -> None:
    tree = ast.parse(Path(zc_perception.__file__).read_text(encoding='utf-8'))
    seen = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith('zc_perception.')
        for alias in node.names
    }
    assert seen == zc_perception._MODULES


def test_the_package_alone_loads_nothing_else() -> None:
    use = 'import zc_perception; zc_perception.__version__; dir(zc_perception)'
    look = f'import sys; before = set(sys.modules); {use}; print(*set(sys.modules) - before)'
    done = run(look, check=True)
    loaded = {name.partition('.')[0] for name in done.stdout.split()}
    assert loaded - sys.stdlib_module_names == {'zc_perception'}


def test_without_ros_the_names_that_need_none_work_and_the_others_say_what_to_do() -> None:
    run(WITHOUT_ROS + 'from zc_perception import Frame, TypeAdapter, __version__', check=True)
    for name in sorted(NAMES - {'Frame', 'TypeAdapter'}):
        done = run(WITHOUT_ROS + f'from zc_perception import {name}')
        said = done.stderr.splitlines()[-1]
        assert said.startswith(f'ImportError: zc_perception.{name} needs rclpy'), done.stderr
        assert 'source /opt/ros/' in said


def test_another_module_that_is_missing_is_named_as_it_is() -> None:
    done = run("import sys; sys.modules['numpy'] = None\nfrom zc_perception import Frame")
    said = done.stderr.splitlines()[-1]
    assert said.startswith('ModuleNotFoundError') and 'numpy' in said


def test_the_version_is_the_same_everywhere() -> None:
    manifest = ElementTree.parse(ROOT / 'package.xml').findtext('version')
    set_up = ran(sys.executable, 'setup.py', '--version', cwd=ROOT, check=True)
    assert zc_perception.__version__ == manifest == set_up.stdout.split()[-1]
