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

"""What a program that doesn't use this package receives."""

from __future__ import annotations

import re
from typing import Any

from nodes.fault_kit import Reader
from nodes.managed import Managed
from nodes.programs import parameters, PERCEPTION_READY, Program
from nodes.ros_kit import Onlooker, spun
import rclpy
from rclpy.parameter import Parameter
from rclpy.qos import ReliabilityPolicy
from sensor_msgs.msg import CameraInfo, CompressedImage, Image
from vision_msgs.msg import Detection2DArray, LabelInfo
from waiting import until

from zc_perception.nodes.capture import CaptureNode
from zc_perception.nodes.perception import PerceptionGraph


def test_a_plain_program_gets_detections_info_and_labels_and_nothing_is_converted(
    free_domain: int,
) -> None:
    """The rate is moderate, so that two busy cores keep up."""
    args = parameters(
        capture__framerate=15, capture__frame_id='front_camera', inference__timeout=20.0
    )
    with (
        Program('perception', *args, domain=free_domain).start(*PERCEPTION_READY),
        Reader(free_domain) as reader,
    ):
        arrays = reader.hear(Detection2DArray, 'detections', 50)
        infos = reader.hear(CameraInfo, 'camera_info', 50)
        labels = reader.hear(LabelInfo, 'label_info', 1, latched=True)
        parts = 'capture: link', 'capture: pool', 'inference: link'
        reader.until(lambda: len(arrays) >= 25 and len(infos) >= 25 and labels, 'all topics')
        reader.until(lambda: all(map(reader.values, parts)), reader.messages)
        link, pool, received = map(reader.values, parts)
    assert [c.class_name for c in labels[0].class_map] == ['car', 'pedestrian', 'sign', 'cone']
    headers = list(map(_header, arrays))
    assert headers == sorted(set(headers))
    assert {frame_id for _, frame_id in headers} == {'front_camera'}
    assert len(set(headers) & set(map(_header, infos))) > 5, "detections have their frame's header"
    assert {(info.width, info.height) for info in infos} == {(640, 360)}
    boxes = [detection for array in arrays for detection in array.detections]
    assert {box.results[0].hypothesis.class_id for box in boxes} <= {'0', '1', '2', '3'}
    centres = [box.bbox.center.position for box in boxes]
    assert centres and all(0 <= at.x <= 640 and 0 <= at.y <= 360 for at in centres)
    assert (link['conversions'], link['image_readers']) == ('0', '0')
    assert int(link['published']) > 15 and received['rung'] == 'in_process'
    assert re.fullmatch(r'memfd|udmabuf|dma_heap/.+', pool['heap'])


# All messages of one frame have its header, in any order of joining.


def _header(message: Any) -> tuple[int, str]:
    return message.header.stamp.sec * 10**9 + message.header.stamp.nanosec, message.header.frame_id


def test_image_info_and_detections_of_a_frame_have_one_header_in_each_camera(
    context: rclpy.Context, free_domain: int
) -> None:
    cameras = ['left', 'right']
    published: dict[str, set[tuple[int, str]]] = {camera: set() for camera in cameras}
    graphs = {}
    for number, camera in enumerate(cameras):
        values = {
            'framerate': 10.0,
            'width': 320,
            'height': 192 - 32 * number,
            'frame_id': f'{camera}_optical',
        }
        graphs[camera] = PerceptionGraph(
            context, {'capture': values, 'inference': {'timeout': 20.0}}, camera
        )
        graphs[camera].inference.observers.append(
            lambda entry, found, camera=camera: published[camera].add(
                (entry.frame.header.stamp_ns, entry.frame.header.frame_id)
            )
        )
    nodes = [node for graph in graphs.values() for node in graph.nodes]
    with spun(context, *sorted(nodes, key=lambda node: node.get_name() != 'capture')):
        # A late subscriber: everything runs already.
        until(
            lambda: all(graph.inference.processed >= 3 for graph in graphs.values()), 'detections'
        )
        with Onlooker(free_domain) as listener:
            kinds = {'image_raw': Image, 'camera_info': CameraInfo, 'detections': Detection2DArray}
            heard = {
                (camera, topic): listener.hear(kind, f'/{camera}/{topic}', 50)
                for camera in cameras
                for topic, kind in kinds.items()
            }
            labels = {
                camera: listener.hear(LabelInfo, f'/{camera}/label_info', 1, latched=True)
                for camera in cameras
            }
            listener.until(
                lambda: all(len(seen) >= 10 for seen in heard.values()),
                lambda: {key: len(seen) for key, seen in heard.items()},
            )
            listener.until(lambda: all(labels.values()), 'labels, which were published long ago')
    for number, camera in enumerate(cameras):
        images, infos, detections = (list(map(_header, heard[camera, topic])) for topic in kinds)
        for seen in (images, infos, detections):
            assert {frame_id for _, frame_id in seen} == {f'{camera}_optical'}
            assert seen == sorted(set(seen)), 'each once, in order'
        assert set(detections) <= published[camera], "an array's header is its frame's, whole"
        # Exact-time synchronisation finds partners among messages received by all three.
        assert len(set(images) & set(infos) & set(detections)) >= 5
        first, last = max(images[0], infos[0]), min(images[-1], infos[-1])
        assert {stamp for stamp in images if first <= stamp <= last} <= set(infos), (
            'no picture without its camera_info'
        )
        assert {c.class_name for c in labels[camera][0].class_map} >= {'car', 'pedestrian'}
        for array in heard[camera, 'detections']:
            assert all(_header(each) == _header(array) for each in array.detections)
        sizes = {(m.width, m.height) for m in heard[camera, 'image_raw']}
        assert sizes == {(320, 192 - 32 * number)}, 'nothing of the other camera'


# QoS overrides reach every topic, also those created later.


SMALL = {'width': 128, 'height': 128, 'heap': 'memfd', 'framerate': 30.0}
COMPRESSED = 'qos_overrides./image_raw/compressed.publisher'
TOPIC = '/image_raw/compressed'


def offered(node: CaptureNode) -> Any:
    (found,) = node.get_publishers_info_by_topic(TOPIC)
    return found.qos_profile


def test_the_compressed_topic_has_its_own_whenever_it_comes(run: Managed) -> None:
    node = run.make(CaptureNode, {**SMALL, f'{COMPRESSED}.reliability': 'best_effort'})
    assert node.parameters.unclaimed() == []
    for wanted in (0, 60):
        assert node.set_parameters_atomically([Parameter('jpeg_quality', value=wanted)]).successful
    run.eventually(lambda: len(node.get_publishers_info_by_topic(TOPIC)) == 1)
    assert offered(node).reliability == ReliabilityPolicy.BEST_EFFORT
    (raw,) = node.get_publishers_info_by_topic('/image_raw')
    assert raw.qos_profile.reliability == ReliabilityPolicy.RELIABLE


def test_a_latched_compressed_topic_has_a_picture_for_who_comes_late(run: Managed) -> None:
    node = run.make(
        CaptureNode, {**SMALL, 'jpeg_quality': 50, f'{COMPRESSED}.durability': 'transient_local'}
    )
    node.start()
    run.eventually(
        lambda: node.publisher.statistics().conversions >= 2, 'converted, though nobody reads'
    )
    node.trigger_deactivate()
    pictures = run.hear(CompressedImage, TOPIC, 1, latched=True)
    run.eventually(lambda: pictures, 'the last one')
    assert node.publisher.statistics().image_readers == 0
