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
The shipped files for viewers, webcams and the aggregator of diagnostics, and the pages' tables.

The shipped parameter files are tested in ``params/test_parameter_yaml.py``, too. Launch files are
read as source, because not every environment of the tests has launch.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
import json
from pathlib import Path
import re
import subprocess
import sys
from typing import Any

from camera.jpeg_kit import need_decoder, without_tables
from camera.v4l2_double import exports_are_memfds, LiveWebcam, road_pictures
from nodes.ros_kit import Managed, overrides
import numpy as np
import pytest
import rclpy
from sensor_msgs.msg import Image
from vision_msgs.msg import Detection2DArray
import yaml

from zc_perception.memory.ledger import CopyLedger
from zc_perception.nodes.capture import CaptureNode
from zc_perception.nodes.inference import InferenceNode
from zc_perception.nodes.perception import PerceptionGraph
from zc_perception.nodes.recorder import RecorderNode
from zc_perception.observe.diagnostics import Level, Part

REPOSITORY = Path(__file__).resolve().parents[2]
CONFIG, DOCS = REPOSITORY / 'config', REPOSITORY / 'docs'
PICTURES = {'sensor_msgs/Image', 'sensor_msgs/CompressedImage', 'foxglove_msgs/CompressedVideo'}
KINDS = {
    'Image': PICTURES,
    'MarkerArray': {'visualization_msgs/MarkerArray'},
    'DiagnosticSummary': {'diagnostic_msgs/DiagnosticArray'},
    'RawMessages': {'vision_msgs/Detection2DArray'},
    'annotations': {'foxglove_msgs/ImageAnnotations'},
    'calibration': {'sensor_msgs/CameraInfo'},
}


def test_layouts_of_viewers_show_topics_that_there_are_with_their_types() -> None:
    layout = json.loads((CONFIG / 'foxglove_layout.json').read_text())

    def panels(tree: Any) -> set[str]:
        return {tree} if isinstance(tree, str) else panels(tree['first']) | panels(tree['second'])

    assert panels(layout['layout']) == layout['configById'].keys()
    shown = []
    for name, panel in layout['configById'].items():
        image = panel.get('imageMode', {})
        topic = image.get('imageTopic') or panel.get('topicToRender') or panel['topicPath']
        shown.append((topic.partition('.')[0], name.partition('!')[0]))
        shown += [(each, 'annotations') for each in image.get('annotations', ())]
        shown += [(each, 'MarkerArray') for each in panel.get('topics', ())]
        if 'calibrationTopic' in image:
            shown.append((image['calibrationTopic'], 'calibration'))
    rviz = yaml.safe_load((CONFIG / 'perception.rviz').read_text())
    for display in rviz['Visualization Manager']['Displays']:
        shown.append((display['Topic']['Value'], display['Class'].partition('/')[2]))
    text = ''.join((DOCS / f'{page}.md').read_text() for page in ('topics_and_links', 'gstreamer'))
    there = dict(re.findall(r'^\| `([\w/]+)` \| `([\w/]+)` \|', text, re.MULTILINE))
    types = [(there.get(topic) or there[topic[1:]], kind) for topic, kind in shown]
    assert len(shown) == 11 and all(found in KINDS[kind] for found, kind in types), types


def places(name: str) -> list[str]:
    """Return matching analyzers; like ``std::regex_match``, the whole name must match."""
    file = yaml.safe_load((CONFIG / 'diagnostics_aggregator.yaml').read_text(encoding='utf-8'))
    return [
        path
        for path, analyzer in file['analyzers']['ros__parameters'].items()
        if isinstance(analyzer, dict)
        and any(re.fullmatch(regex, name) for regex in analyzer['regex'])
    ]


def test_what_the_nodes_say_has_one_place_each(context: rclpy.Context, tmp_path: Path) -> None:
    record = overrides({'path': str(tmp_path / 'x'), 'disk_floor': 0})
    nodes: list[Any] = [*PerceptionGraph(context, {'inference': {'model': 'hog'}}).nodes]
    nodes.append(RecorderNode(context=context, parameter_overrides=record))
    # The page has a section for each part, also for parts that only some parameters bring.
    page = (DOCS / 'diagnostics.md').read_text(encoding='utf-8')
    headings = re.findall(r'^## ([a-z].*: .*)', page, re.MULTILINE)
    names = [part for heading in headings for part in heading.split(', ')]
    assert len(names) == 20
    for node in nodes:
        statuses = node.collect_diagnostics()
        assert statuses
        names += [f'{node.get_name()}: {status.part}' for status in statuses]
        node.destroy_node()
    for name in names:
        for full in (name, f'fleet/truck_7/front/{name}'):
            assert len(places(full)) == 1, f'{full}: {places(full)}'


def check_page(page: str, old: str, folder: Path) -> None:
    """Let its tool write the page's tables into *old*, and compare the result with the page."""
    copy, program = folder / f'{page}.md', f'tools/{page}_page.py'
    copy.write_text(old, encoding='utf-8')
    subprocess.run([sys.executable, REPOSITORY / program, copy], check=True, timeout=120)
    text = (DOCS / f'{page}.md').read_text(encoding='utf-8')
    anew = f'write it anew: .venv/bin/python {program} docs/{page}.md'
    assert copy.read_text(encoding='utf-8') == text, anew


def test_the_page_in_the_repository_is_the_nodes_declarations(tmp_path: Path) -> None:
    text = (DOCS / 'parameters.md').read_text(encoding='utf-8')
    kept = re.match(r'.*?<!-- tables:[^\n]*', text, re.DOTALL)
    assert kept is not None
    check_page('parameters', f'{kept[0]}\n| old |\n', tmp_path)


def test_the_page_of_diagnostics_has_the_rows_of_each_part(tmp_path: Path) -> None:
    text = (DOCS / 'diagnostics.md').read_text(encoding='utf-8')
    check_page('diagnostics', text.replace('\n| WARN', '\n| old'), tmp_path)
    on_page = set(re.findall(r'<!-- rows: ([\w.]+) -->', text))
    defined = {
        f'zc_perception.nodes.{file.stem}.{name}'
        for file in (REPOSITORY / 'zc_perception/nodes').glob('*.py')
        for name in re.findall(r'^(\w+) = Part\(', file.read_text(encoding='utf-8'), re.MULTILINE)
    }
    assert on_page == defined
    for place in defined:
        module, _, name = place.rpartition('.')
        part: Part = getattr(import_module(module), name)
        without = [r.sentence for r in part.rows if r.level is not Level.OK and not r.advice]
        assert without == [], f'{place}: rows that do not say what to do'


def rows(head: str) -> list[list[str]]:
    page = (DOCS / 'launch_and_lifecycle.md').read_text(encoding='utf-8')
    table = page.partition(f'\n{head}\n')[2].partition('\n\n')[0]
    return [[cell.strip() for cell in line.split('|')[1:-1]] for line in table.splitlines()[1:]]


def directly(source: str) -> set[str]:
    return set(re.findall(r"DeclareLaunchArgument\(\s*'(\w+)'", source))


def declared(file: Path) -> set[str]:
    source = file.read_text(encoding='utf-8')
    shared = (REPOSITORY / 'zc_perception/nodes/launching.py').read_text(encoding='utf-8')
    functions = dict(re.findall(r'^def (\w+)(.*?)(?=^\S)', shared, re.DOTALL | re.MULTILINE))
    found = directly(source)
    for name, options in re.findall(r'launching\.(\w+)\(([^()]*)\)', source):
        found |= directly(functions.get(name, '')) - set(re.findall(r'(\w+)=False', options))
    return found


def names(cells: Iterable[str]) -> set[str]:
    return {name for cell in cells for name in re.findall(r'`([\w.]+)`', cell)}


def test_the_tables_have_each_launch_file_and_its_arguments_and_no_other() -> None:
    there = {file.name for file in (REPOSITORY / 'launch').iterdir() if file.is_file()}
    assert names(row[0] for row in rows('| file | what it starts |')) == there
    expected = {
        file.name.removesuffix('.launch.py'): declared(file)
        for file in (REPOSITORY / 'launch').glob('*.launch.py')
    }
    assert all(expected.values())
    files = expected.keys()
    listed: dict[str, set[str]] = {file: set() for file in files}
    for argument, _, _, where in rows('| argument | default | meaning | files |'):
        assert names([where]) <= files
        for file in files - names([where]) if where.startswith('all') else names([where]):
            listed[file] |= names([argument])
    assert listed == expected


SIZE = (640, 360)


def test_a_webcam_with_yuyv_and_mjpg_works_with_the_shipped_file(
    free_domain: int, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    need_decoder()
    exports_are_memfds(monkeypatch)
    pictures = road_pictures(*SIZE, 12)
    pictures[6:] = map(without_tables, pictures[6:])
    webcam = LiveWebcam('YUYV', 'MJPG', pictures=pictures, size=SIZE)
    webcam.rates = {'YUYV': 5}
    ledger, file = CopyLedger(), yaml.safe_load((CONFIG / 'v4l2.yaml').read_text())
    values = file['/**/capture']['ros__parameters']
    asked = {name: values[name] for name in ('pixel_format', 'memory')}
    del values['device']
    opened = lambda identity: webcam.camera(ledger, heap='memfd', **asked)  # noqa: E731
    detector = {'model': 'road', 'accelerator': 'onnx', 'timeout': 20.0}
    with Managed(free_domain) as run:
        images, boxes = run.hear(Image, '/image_raw', 1), run.hear(Detection2DArray, '/detections')
        capture = run.make(CaptureNode, values, camera_factory=opened, ledger=ledger)
        inference = run.make(InferenceNode, detector, ledger=ledger)
        capture.start()
        inference.start()
        run.eventually(lambda: sum(len(found.detections) for found in boxes) > 20)
        run.eventually(lambda: len(images) > 2)
        image = images[-1]
        assert (image.encoding, image.width, image.height) == ('rgb8', *SIZE)
        pixels = np.frombuffer(bytes(image.data), np.uint8).reshape(SIZE[1], SIZE[0], 3)
        assert pixels.std(axis=(0, 1)).min() > 10, 'a picture with colours'
        statistics = capture.camera.statistics()
        assert capture.ledger.count('decode') >= statistics.captured > 0 and statistics.bad == 0
    assert (
        'MJPG, which the CPU decodes to NV12, about 3 to 6 ns for each pixel (counted as '
        'decode in the copy ledger): YUYV does 5 Hz at this size'
    ) in capfd.readouterr().err
