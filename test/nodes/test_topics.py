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

"""What a separate process that knows nothing of this package receives."""

from __future__ import annotations

from contextlib import suppress
import re
from typing import Any

from nodes.fault_kit import Reader
from nodes.managed import Managed
from nodes.programs import parameters, PERCEPTION_READY, PlainSubscriber, Program
from nodes.ros_kit import Onlooker, spun
import pytest
import rclpy
from rclpy.parameter import Parameter
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import CameraInfo, CompressedImage, Image
from vision_msgs.msg import Detection2DArray, LabelInfo
from waiting import until

from zc_perception.nodes.capture import CaptureNode
from zc_perception.nodes.perception import PerceptionGraph

SEED = 11


@pytest.fixture
def graph(free_domain: int):
    """``perception`` at a moderate rate, so that two noisy cores keep up."""
    args = parameters(
        capture__seed=SEED,
        capture__framerate=15,
        capture__frame_id='front_camera',
        inference__timeout=20.0,
    )
    with Program('perception', *args, domain=free_domain).start(*PERCEPTION_READY) as running:
        yield running
        assert running.process.poll() is None, running.output


def _diagnostics(domain: int, part: str) -> dict[str, str]:
    """Return what a status says; a reader that hears nothing of it is replaced."""
    heard = []
    for _ in range(4):
        with Reader(domain) as reader, suppress(AssertionError):
            reader.until(lambda: reader.values(part), timeout_s=20.0)
            return reader.values(part)
        heard.append(reader.messages())
    raise AssertionError(f'four readers of 20 s each heard nothing of {part}: {heard}')


def test_a_plain_process_gets_detections_info_and_labels_and_nothing_is_converted(
    graph: Program, free_domain: int
) -> None:
    seen = PlainSubscriber(
        ['120', '--until-detections', '25', '--with-others'], domain=free_domain
    ).result()

    assert seen['labels'] == {'0': 'car', '1': 'pedestrian', '2': 'sign', '3': 'cone'}
    assert len(seen['detections']) >= 25
    assert {d['frame_id'] for d in seen['detections']} == {'front_camera'}
    stamps = [d['stamp'] for d in seen['detections']]
    assert stamps == sorted(set(stamps))
    infos = {i['stamp']: i for i in seen['camera_info']}
    assert {tuple(i['size']) for i in infos.values()} == {(640, 360)}
    assert len(set(stamps) & set(infos)) > 5, "detections carry their frame's own header"
    boxes = [b for d in seen['detections'] for b in d['boxes']]
    assert boxes and all(
        0 <= b[0] <= 640 and 0 <= b[1] <= 360 and b[2] > 0 and b[3] > 0 and 0 <= b[5] <= 1
        for b in boxes
    )
    assert {b[4] for b in boxes} <= {'0', '1', '2', '3'}
    link = _diagnostics(free_domain, 'capture: link')
    assert (
        link['conversions'] == '0' and link['image_readers'] == '0' and int(link['published']) > 15
    )
    assert re.fullmatch(
        r'memfd|udmabuf|dma_heap/.+', _diagnostics(free_domain, 'capture: pool')['heap']
    )
    assert _diagnostics(free_domain, 'inference: link')['rung'] == 'in_process'


def test_separate_processes_share_the_memory(free_domain: int) -> None:
    capture = Program(
        'capture_node', *parameters(framerate=10, seed=SEED), domain=free_domain
    ).start('[capture]: ready')
    with (
        capture,
        Program('inference_node', *parameters(timeout=20.0), domain=free_domain).start(
            'link is shared_memory'
        ) as inference,
    ):
        seen = PlainSubscriber(['120', '--until-detections', '25'], domain=free_domain).result()
        assert len(seen['detections']) == 25 and any(d['boxes'] for d in seen['detections'])
        link = _diagnostics(free_domain, 'inference: link')
        assert (link['rung'], link['conversions']) == ('shared_memory', '0')
        served = _diagnostics(free_domain, 'capture: link')
        assert (
            served['shared_memory_consumers'],
            served['conversions'],
            served['image_readers'],
        ) == ('1', '0', '0')
        assert inference.interrupt() == 0
        assert capture.interrupt() == 0


def test_without_shared_memory_it_is_messages_and_an_error_where_copy_free_is_required(
    free_domain: int,
) -> None:
    required = parameters(copy_free='required')
    with Program(
        'capture_node', *parameters(framerate=10, shared_memory='false'), domain=free_domain
    ).start('[capture]: ready'):
        with Program('inference_node', *required, domain=free_domain).start(
            'link is refused'
        ) as inference:
            assert 'copy_free is required, but publisher' in inference.output
            link = _diagnostics(free_domain, 'inference: link')
            assert (link['rung'], link['received'], link['conversions']) == ('refused', '0', '0')
            assert _diagnostics(free_domain, 'capture: link')['image_readers'] == '0'
            assert inference.interrupt() == 0
        with Program('inference_node', *parameters(timeout=20.0), domain=free_domain).start(
            'link is ros_message'
        ) as inference:
            assert 'it offers no shared memory' in inference.output
            PlainSubscriber(['120', '--until-detections', '3'], domain=free_domain).result()


# What belongs to one frame carries that frame's header, in any order of joining.


LATCHED = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)


class Listener(Onlooker):
    """
    Another program that knows nothing of this package.

    It notes the headers of all topics of each camera.
    """

    def __init__(self, domain: int, cameras: list[str]) -> None:
        super().__init__(domain)
        self.headers: dict[tuple[str, str], list[tuple[int, str]]] = {}
        self.inner: list[tuple[int, str]] = []
        self.sizes: dict[str, set[tuple[int, int]]] = {}
        for camera in cameras:
            for kind, topic in (
                (Image, 'image_raw'),
                (CameraInfo, 'camera_info'),
                (Detection2DArray, 'detections'),
            ):
                self._listen(camera, kind, topic)

    def _listen(self, camera: str, kind: Any, topic: str) -> None:
        seen = self.headers.setdefault((camera, topic), [])

        def on_message(message: Any) -> None:
            seen.append(_header(message))
            if kind is Detection2DArray:
                self.inner += [
                    _header(detection)
                    for detection in message.detections
                    if _header(detection) != _header(message)
                ]
            else:
                self.sizes.setdefault(camera, set()).add((message.width, message.height))

        self.node.create_subscription(kind, f'/{camera}/{topic}', on_message, 50)

    def labels(self, camera: str) -> list[LabelInfo]:
        found: list[LabelInfo] = []
        self.node.create_subscription(LabelInfo, f'/{camera}/label_info', found.append, LATCHED)
        return found

    def heard(self) -> dict[tuple[str, str], int]:
        return {key: len(seen) for key, seen in self.headers.items()}


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
        # Late: everything runs already.
        until(
            lambda: all(graph.inference.processed >= 3 for graph in graphs.values()), 'detections'
        )
        with Listener(free_domain, cameras) as listener:
            labels = {camera: listener.labels(camera) for camera in cameras}
            listener.until(
                lambda: all(len(seen) >= 10 for seen in listener.headers.values()), listener.heard
            )
            listener.until(lambda: all(labels.values()), 'labels, which were published long ago')
    for camera in cameras:
        images, infos, detections = (
            listener.headers[camera, topic] for topic in ('image_raw', 'camera_info', 'detections')
        )
        assert {frame_id for seen in (images, infos, detections) for _, frame_id in seen} == {
            f'{camera}_optical'
        }
        for seen in (images, infos, detections):
            assert seen == sorted(set(seen)), 'each once, in order'
        assert set(detections) <= published[camera], "an array's header is its frame's, whole"
        # Exact-time synchronisation finds partners: what came while all three were listened to.
        common = set(images) & set(infos) & set(detections)
        assert len(common) >= 5
        first, last = max(images[0], infos[0]), min(images[-1], infos[-1])
        assert {stamp for stamp in images if first <= stamp <= last} <= set(infos), (
            'no picture without its camera_info'
        )
        assert {c.class_name for c in labels[camera][0].class_map} >= {'car', 'pedestrian'}
    assert listener.inner == [], "each detection has its array's header"
    assert listener.sizes == {'left': {(320, 192)}, 'right': {(320, 160)}}, (
        'nothing of the other camera'
    )


# Overrides of quality of service reach every topic, those that come later too.


SMALL = {'width': 128, 'height': 128, 'heap': 'memfd', 'framerate': 30.0}
RAW, COMPRESSED = (
    'qos_overrides./image_raw.publisher',
    'qos_overrides./image_raw/compressed.publisher',
)
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
    pictures: list[Any] = []
    qos = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
    run.manager.create_subscription(CompressedImage, TOPIC, pictures.append, qos)
    run.eventually(lambda: pictures, 'the last one')
    assert node.publisher.statistics().image_readers == 0


def test_a_latched_picture_is_kept_for_consumers_of_other_processes_that_come_late(
    run: Managed,
) -> None:
    node = run.make(
        CaptureNode, {**SMALL, f'{RAW}.durability': 'transient_local', f'{RAW}.depth': 3}
    )
    node.start()
    run.eventually(lambda: node.publisher.statistics().published >= 5)
    pool = node.camera.pool
    assert pool is not None
    kept = f'{node.get_fully_qualified_name()}:shared_memory_history'
    run.eventually(lambda: pool.statistics().holders.get(kept) == 3, 'the newest three')
