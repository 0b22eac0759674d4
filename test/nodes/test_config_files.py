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
The shipped files for viewers and for the aggregator of diagnostics.

The shipped parameter files are tested in ``params/test_parameter_schema.py``.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path
import re
from typing import Any

from nodes.ros_kit import overrides
import pytest
import rclpy
import yaml

import zc_perception
from zc_perception.nodes.perception import PerceptionGraph
from zc_perception.nodes.recorder import RecorderNode

CONFIG = Path(__file__).resolve().parents[2] / 'config'
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
    text = ''.join(
        (CONFIG.parent / 'docs' / page).read_text()
        for page in ('topics_and_links.md', 'gstreamer.md')
    )
    there = dict(re.findall(r'^\| `([\w/]+)` \| `([\w/]+)` \|', text, re.MULTILINE))
    types = [(there.get(topic) or there[topic[1:]], kind) for topic, kind in shown]
    assert len(shown) == 11 and all(found in KINDS[kind] for found, kind in types), types


# diagnostics_aggregator.yaml must match each part of our nodes exactly once.


PACKAGE = Path(zc_perception.__file__).parent
FILE = PACKAGE.parent / 'config' / 'diagnostics_aggregator.yaml'
ANALYZERS = {
    name: section
    for name, section in yaml.safe_load(FILE.read_text(encoding='utf-8'))['analyzers'][
        'ros__parameters'
    ].items()
    if isinstance(section, dict)
}


def places(name: str) -> list[str]:
    """Return matching analyzers; like ``std::regex_match``, the whole name must match."""
    return [
        path
        for path, analyzer in ANALYZERS.items()
        if any(re.fullmatch(regex, name) for regex in analyzer['regex'])
    ]


def parts_in_the_source() -> set[str]:
    """Return the first arguments of all ``Part(...)`` and ``Status(...)``."""
    found = set()
    for path in PACKAGE.glob('**/*.py'):
        for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
            named = (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in ('Part', 'Status')
            )
            if named and node.args and isinstance(node.args[0], ast.Constant):  # type: ignore
                found.add(node.args[0].value)  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize('namespace', ['', 'fleet/truck_7/front'])
def test_what_the_nodes_say_has_one_place_each(
    context: rclpy.Context, tmp_path: Path, namespace: str
) -> None:
    nodes = [*PerceptionGraph(context, {'inference': {'model': 'hog'}}, namespace).nodes]
    nodes.append(
        RecorderNode(
            context=context,
            parameter_overrides=overrides({'path': str(tmp_path / 'x'), 'disk_floor': 0}),
        )
    )
    for node in nodes:
        statuses = node.collect_diagnostics()
        assert statuses
        for status in statuses:
            name = f'{namespace}/{node.get_name()}: {status.part}'.lstrip('/')
            assert len(places(name)) == 1, f'{name}: {places(name)}'
        node.destroy_node()


def test_every_part_that_may_appear_has_a_place() -> None:
    parts = parts_in_the_source()
    assert {
        'camera',
        'pool',
        'link',
        'accelerator',
        'detections',
        'stereo',
        'clock',
        'copies',
        'overlay',
        'recording',
    } <= parts
    lost = [
        part
        for part in parts
        if not any(
            places(f'{node}: {part}')
            for node in ('capture', 'inference', 'overlay', 'recorder', 'gstreamer')
        )
    ]
    assert lost == []
