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

"""Console scripts start and report missing modules, and so do the names of ``zc_perception``."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path
import re
import subprocess
import sys
from unittest.mock import Mock
import xml.etree.ElementTree as ElementTree

from processes import ran
import pytest

import zc_perception
from zc_perception.errors import ConfigError
from zc_perception.programs import NodeOptionParser, OptionParser, start, without_ros_args

REPOSITORY = Path(__file__).resolve().parent.parent
ROS = (
    'rclpy', 'vision_msgs', 'sensor_msgs', 'std_msgs', 'rcl_interfaces', 'diagnostic_msgs',
    'composition_interfaces',
)  # fmt: skip
ALL = ('cv2', 'numpy', 'yaml', *ROS)
# The script that pip makes for an entry point, on a machine without some modules.
SCRIPT = """
import importlib, importlib.abc, sys

missing = sys.argv[1].split(',')

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in missing:
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)

sys.meta_path.insert(0, Missing())
module, function = sys.argv[2].split(':')
del sys.argv[:3]
sys.exit(getattr(importlib.import_module(module), function)())
"""


#: The entry points by script name.
SCRIPTS: dict[str, str] = dict(
    re.findall(r"'(\w+) = ([\w.]+:\w+)'", (REPOSITORY / 'setup.py').read_text(encoding='utf-8'))
)
# Not installed: exists in a clone only.
BENCH = {'zc_bench': 'bench.__main__:main'}


def run(
    program: str, *arguments: str, missing: tuple[str, ...]
) -> subprocess.CompletedProcess[str]:
    entry = (SCRIPTS | BENCH)[program]
    command = [sys.executable, '-c', SCRIPT, ','.join(missing), entry, program, *arguments]
    return ran(*command, cwd=REPOSITORY)


@pytest.mark.parametrize('module', sorted({entry.partition(':')[0] for entry in SCRIPTS.values()}))
def test_little_is_imported_before_signals_are_handled(module: str) -> None:
    """Before signals are handled, SIGINT gives a traceback: imports make that time longer."""
    program = (
        'import contextlib, functools, importlib, os, re, sys; before = set(sys.modules); '
        f'importlib.import_module({module!r}); print(*(set(sys.modules) - before))'
    )
    done = ran(sys.executable, '-S', '-c', program, check=True, cwd=REPOSITORY)
    others = {name for name in done.stdout.split() if not name.startswith('zc_perception')}
    assert others <= {'__future__', 'signal', 'time', 'errno', 'collections.abc'}


@pytest.mark.parametrize('program', SCRIPTS)
def test_help_and_version_need_no_other_module(program: str) -> None:
    shown = run(program, '--help', missing=ALL)
    assert (shown.returncode, shown.stderr) == (0, '')
    usage, _, what, *rest = shown.stdout.splitlines()
    assert usage.startswith(f'usage: {program} ') and what
    assert any(program in line for line in rest[slice(rest.index('examples:') + 1, None)])
    assert shown.stdout.index('--version') > shown.stdout.index('examples:')
    version = run(program, '--version', missing=ALL)
    assert (version.returncode, version.stderr) == (0, '')
    assert version.stdout == f'{program} {zc_perception.__version__}\n'


@pytest.mark.parametrize('program', ['perception', 'component_container'])
def test_help_is_help_beside_ros_arguments_too(program: str) -> None:
    shown = run(program, '--ros-args', '-p', 'x:=1', '--', '-h', missing=ALL)
    assert shown.returncode == 0 and shown.stdout.startswith(f'usage: {program} ')


CONTAINERS = ('component_container', 'component_container_mt')
OPENCV = ('cv2', "pip install 'opencv-python-headless<5'")
VISION = ('vision_msgs', 'sudo apt install ros-<distro>-vision-msgs')
COMPOSITION = ('composition_interfaces', 'sudo apt install ros-<distro>-composition-interfaces')


def one_line(done: subprocess.CompletedProcess[str], program: str) -> str:
    assert done.returncode == 2 and done.stdout == '', done.stdout + done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith(f'{program}: error: Python module ')
    return line


@pytest.mark.parametrize(
    ('program', 'missing', 'words'),
    [
        ('capture_node', *OPENCV),
        ('zc_demo', *OPENCV),
        ('perception', *VISION),
        (CONTAINERS[0], *COMPOSITION),
    ],
)
def test_a_missing_module_is_one_line_that_says_what_to_install(
    program: str, missing: str, words: str, tmp_path: Path
) -> None:
    arguments = ['--out', str(tmp_path)] if program == 'zc_demo' else []
    line = one_line(run(program, *arguments, missing=(missing,)), program)
    assert f"Python module '{missing}' is missing; " in line and words in line


@pytest.mark.parametrize(
    'program', ['inference_node', 'zc_demo', 'zc_record', CONTAINERS[1], 'zc_bench']
)
def test_without_ros_the_line_says_how_to_set_it_up(program: str, tmp_path: Path) -> None:
    arguments = {'zc_demo': ['--out', str(tmp_path)], 'zc_bench': ['link']}.get(program, [])
    line = one_line(run(program, *arguments, missing=ROS), program)
    assert 'source /opt/ros/<distro>/setup.bash' in line


def test_a_module_that_is_there_and_can_not_be_loaded_says_why(
    capsys: pytest.CaptureFixture[str],
) -> None:
    error = ImportError('libGL.so.1: cannot open shared object file', name='cv2')
    assert start(OptionParser('x', 'Does x.', ['x']), Mock(side_effect=error), []) == 2
    (line,) = capsys.readouterr().err.splitlines()
    for words in ("Python module 'cv2' can't be loaded", 'libGL.so.1: cannot open', OPENCV[1]):
        assert words in line


@pytest.mark.parametrize(
    'words',
    [
        'x --ros-args -p a:=1 -- y --',
        '--ros-args --ros-args -r __ns:=/a -- --ros-args --log-level info -- -h',
        '-- x --ros-args',
    ],
)
def test_ros_arguments_are_told_apart_as_rclpy_does(words: str) -> None:
    by_rclpy = pytest.importorskip('rclpy.utilities').remove_ros_args(['program', *words.split()])
    assert without_ros_args(words.split()) == by_rclpy[1:]


def test_an_unknown_argument_is_refused() -> None:
    parser = NodeOptionParser('x', 'Does x.', ['x'], {}, {})
    with pytest.raises(ConfigError, match="argument '--fps' is unknown"):
        parser.read(['--fps', '3', '--ros-args', '-p', 'a:=1'])


# The names of ``zc_perception`` itself.
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


def run_code(code: str, **options: bool) -> subprocess.CompletedProcess[str]:
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
    done = run_code(look, check=True)
    loaded = {name.partition('.')[0] for name in done.stdout.split()}
    assert loaded - sys.stdlib_module_names == {'zc_perception'}


def test_without_ros_the_names_that_need_none_work_and_the_others_say_what_to_do() -> None:
    run_code(WITHOUT_ROS + 'from zc_perception import Frame, TypeAdapter, __version__', check=True)
    for name in sorted(NAMES - {'Frame', 'TypeAdapter'}):
        done = run_code(WITHOUT_ROS + f'from zc_perception import {name}')
        said = done.stderr.splitlines()[-1]
        assert said.startswith(f'ImportError: zc_perception.{name} needs rclpy'), done.stderr
        assert 'source /opt/ros/' in said


def test_another_module_that_is_missing_is_named_as_it_is() -> None:
    done = run_code("import sys; sys.modules['numpy'] = None\nfrom zc_perception import Frame")
    said = done.stderr.splitlines()[-1]
    assert said.startswith('ModuleNotFoundError') and 'numpy' in said


def test_the_version_is_the_same_everywhere() -> None:
    manifest = ElementTree.parse(REPOSITORY / 'package.xml').findtext('version')
    set_up = ran(sys.executable, 'setup.py', '--version', cwd=REPOSITORY, check=True)
    assert zc_perception.__version__ == manifest == set_up.stdout.split()[-1]
