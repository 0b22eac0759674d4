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

"""Rules of the package: which folder imports which, file sizes, all parameters in the YAML."""

from __future__ import annotations

import ast
from collections.abc import Iterator
import importlib
from pathlib import Path
import re
import sys

from processes import ran
import pytest
import yaml

import zc_perception
from zc_perception.parameters import ParameterSpec

PACKAGE = Path(zc_perception.__file__).parent
REPOSITORY = Path(__file__).resolve().parent.parent
CONFIG = REPOSITORY / 'config' / 'perception.yaml'

# A folder may import only from floors below its own, never from its own floor.
FLOORS = (('errors',), ('pixel',), ('memory',), ('negotiation', 'jetson', 'machine'), ('frame',),
          ('detection',), ('camera', 'npu'), ('link',),
          ('observe',), ('nodes',), ('verify', 'doctor'))  # fmt: skip
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
ROOM_OF_MODULE = {
    'frame_queue': 'frame', 'lookout': 'frame', 'mapping': 'frame', 'pictures': 'frame',
    'programs': 'errors', 'terminal': 'errors', 'kinds': 'errors', 'parameters': 'errors',
    'rules': 'errors', 'whole_file': 'errors', 'backoff': 'errors', 'shipped_files': 'errors',
    'local_path': 'errors', 'log': 'errors', 'forking': 'errors', 'c_structs': 'errors',
    'native': 'errors',
}  # fmt: skip
BELOW_ROS = [room for rooms in FLOORS[: FLOORS.index(('link',))] for room in rooms]
THIRD_PARTY_BELOW_ROS = {'numpy', 'cv2', 'yaml', 'onnxruntime'}
USE_RCLPY = ('link/endpoints/', 'link/rclpy_compat.py', 'observe/diagnostics.py', 'nodes/')
USE_MESSAGES = (*USE_RCLPY, 'link/image_conversion.py')

SOURCES = sorted(PACKAGE.rglob('*.py'))


def place(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def room(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0].removesuffix('.py')
    return ROOM_OF_MODULE.get(first, first)


def imports(path: Path) -> Iterator[str]:
    """Yield full dotted names of all imports of a file, including those in functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f'{place(path)}:{node.lineno}: import by the full name'
            yield from (f'{node.module}.{alias.name}' for alias in node.names)


def rooms_imported(path: Path) -> Iterator[str]:
    for name in imports(path):
        parts = name.split('.')
        if parts[0] == 'zc_perception' and len(parts) > 1:
            yield ROOM_OF_MODULE.get(parts[1], parts[1])


def foreign_packages(path: Path) -> set[str]:
    own = sys.stdlib_module_names | {'zc_perception'}
    return {name.split('.')[0] for name in imports(path)} - own


def modules(*rooms: str) -> list[Path]:
    return [path for path in SOURCES if room(path) in rooms]


def test_a_room_imports_lower_rooms_only() -> None:
    assert {room(path) for path in SOURCES} - set(FLOOR) <= {'__init__', 'models'}
    wrong = [
        f'{place(path)} imports {other}'
        for path in modules(*FLOOR)
        for other in rooms_imported(path)
        if other != room(path) and not FLOOR[other] < FLOOR[room(path)]
    ]
    assert wrong == []


def reached_from(module: str, imported: dict[str, set[str]]) -> set[str]:
    """Return the package's modules that importing *module* loads."""
    found: set[str] = set()
    waiting = [module]
    while waiting:
        new = imported[waiting.pop()] - found
        found |= new
        waiting += new
    return found


def test_no_import_comes_back_to_where_it_began() -> None:
    names = {}
    for path in SOURCES:
        parts = path.relative_to(PACKAGE.parent).with_suffix('').parts
        names['.'.join(parts).removesuffix('.__init__')] = path
    imported = {}
    for name, path in names.items():
        found = {one if one in names else one.rpartition('.')[0] for one in imports(path)}
        imported[name] = (found & names.keys()) - {name}
    assert [name for name in names if name in reached_from(name, imported)] == []


def test_the_rooms_below_ros_import_neither_rclpy_nor_messages() -> None:
    files = modules(*BELOW_ROS)
    found = {place(path): foreign_packages(path) - THIRD_PARTY_BELOW_ROS for path in files}
    assert not {where: packages for where, packages in found.items() if packages}
    assert len(found) > 20, 'the rooms were found'


def test_ros_is_used_in_few_places() -> None:
    for path in SOURCES:
        for package in foreign_packages(path):
            if package.startswith('rclpy'):
                assert place(path).startswith(USE_RCLPY), f'{place(path)} imports {package}'
            if package.endswith(('_msgs', '_interfaces', '_srvs')):
                assert place(path).startswith(USE_MESSAGES), f'{place(path)} imports {package}'


def test_files_are_named_for_what_they_are() -> None:
    assert not {path.stem for path in SOURCES} & {'utils', 'util', 'common', 'helpers', 'misc'}


def test_no_file_names_a_place_on_somebody_s_machine() -> None:
    somewhere = re.compile(r'(?<![\w.~})-])/(?:home|root|work|Users)/\w')
    assert somewhere.search('/'.join(('open("', 'home', 'me"'))), 'the pattern works'
    listed = ran('git', 'ls-files', '-z', cwd=REPOSITORY)
    if listed.returncode:
        pytest.skip('not a git checkout')
    files = filter(Path.is_file, (REPOSITORY / name for name in listed.stdout.split('\0') if name))
    texts = {path: path.read_bytes() for path in files}
    found = {
        path: match.group()
        for path, content in texts.items()
        if b'\0' not in content and (match := somewhere.search(content.decode(errors='replace')))
    }
    assert found == {}


def node_specs() -> dict[str, dict[str, ParameterSpec]]:
    """Return the parameters of every node class, by the node's name."""
    importlib.import_module('zc_perception.nodes.components')  # imports all node classes
    base = importlib.import_module('zc_perception.nodes.perception_node').PerceptionNode
    return {
        kind.__module__.rpartition('.')[2]: {spec.name: spec for spec in kind.SPECS}
        for kind in base.__subclasses__()
        if kind.SPECS.own
    }


def yaml_comments(path: Path) -> Iterator[tuple[str, str, str]]:
    """Yield node, parameter and comment of each parameter in a file."""
    node = ''
    for line in path.read_text(encoding='utf-8').splitlines():
        if section := re.match(r'/\S*?(\w+):$', line):
            node = section[1]
        elif parameter := re.match(r'    (\w+): [^#]*(?:# (.*))?$', line):
            yield node, parameter[1], parameter[2] or ''


def test_the_shipped_yaml_has_every_parameter_with_its_default() -> None:
    def typed(value: object) -> tuple[type, object]:
        return type(value), value  # 1 == 1.0 == True, but a parameter has one type

    shipped = {
        (node.removeprefix('/**/'), name): typed(value)
        for node, section in yaml.safe_load(CONFIG.read_text(encoding='utf-8')).items()
        for name, value in section['ros__parameters'].items()
    }
    assert shipped == {
        (node, name): typed(spec.default)
        for node, specs in node_specs().items()
        for name, spec in specs.items()
    }
    assert {node for node, _ in shipped} >= {'capture', 'inference', 'overlay'}


RANGE = re.compile(r'(-?\d[\d.e]*?)\.\.(-?\d[\d.e]*)')


@pytest.mark.parametrize('path', sorted(CONFIG.parent.glob('*.yaml')), ids=lambda path: path.name)
def test_each_comment_has_choices_or_range_and_says_whether_it_can_change_at_run_time(
    path: Path,
) -> None:
    specs = node_specs()
    for node, name, comment in yaml_comments(path):
        if node not in specs:
            continue
        spec = specs[node][name]
        assert comment.endswith(f'run time: {"yes" if spec.dynamic else "no"}'), f'{node}.{name}'
        if said := RANGE.search(comment):
            # For a list the range is of its elements; the node checks that.
            assert isinstance(spec.default, list) or (float(said[1]), float(said[2])) == (
                spec.low,
                spec.high,
            ), f'{path.name}: {node}.{name}: {comment}'
        if path == CONFIG and spec.choices:
            page = re.search(r'docs/\w+\.md', comment)
            told = (REPOSITORY / page[0]).read_text(encoding='utf-8') if page else comment
            missing = [choice for choice in spec.choices if choice not in told]
            assert not missing, f'{node}.{name}: {missing} is not in its comment or its page'
