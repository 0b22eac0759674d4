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

"""The nodes in one process: agreement, leaks, boxes, and what another program receives."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import Mock

from camera.video_kit import pictures_of
import cv2
from long_form import LONG
from nodes.ros_kit import (
    alone,
    given_back,
    held,
    Managed,
    Onlooker,
    Reader,
    ros,
    set_or_why_not,
    spun,
    status,
)
import numpy as np
import pytest
import rclpy
from sensor_msgs.msg import CameraInfo, CompressedImage, Image
from vision_msgs.msg import Detection2DArray, LabelInfo
from waiting import until

from zc_perception.camera.stereo import Side, StereoSides
from zc_perception.detection.detections import box_iou, Detections
from zc_perception.errors import AcceleratorError, ConfigError
from zc_perception.link.bus import MEETING
from zc_perception.link.endpoints.qos import bus_key
from zc_perception.link.image_conversion import stamp_ns
from zc_perception.memory.dmabuf import DmaBuf
from zc_perception.memory.pool import SlotState
from zc_perception.negotiation.constraints import BufferConstraints, parse_stand_in
from zc_perception.negotiation.session import Consumer
from zc_perception.negotiation.settings import BufferSettings
from zc_perception.nodes.capture import CaptureNode, StereoRig, StereoSide
from zc_perception.nodes.perception import Overrides, PerceptionGraph, stereo_nodes
from zc_perception.observe.diagnostics import Level

VIDEO = Path(__file__).parents[2] / 'build' / 'fixtures' / 'vtest.avi'


@contextmanager
def running(domain: int, overrides: Overrides) -> Iterator[PerceptionGraph]:
    with ros(domain) as context:
        inference = {'timeout': 20.0, **overrides.get('inference', {})}
        graph = PerceptionGraph(context, {**overrides, 'inference': inference})
        with spun(context, *graph.nodes):
            yield graph


def test_descriptors_threads_and_slots_are_flat_over_thousands_of_frames(free_domain: int) -> None:
    frames = 10_000 if LONG else 700
    overrides = {
        'capture': {'framerate': 1000.0, 'width': 64, 'height': 128},
        'inference': {'model': 'hog', 'timeout': 60.0},
    }
    with running(free_domain, overrides) as graph:

        captured = lambda: graph.capture.camera.statistics().captured  # noqa: E731
        until(lambda: captured() >= 300, captured, 150.0)
        before = held()
        for step in range(1, 11):
            until(lambda at=300 + frames // 10 * step: captured() >= at, captured, 150.0)
            until(lambda: given_back(before), lambda: f'{held()}, before: {before}')
            pool = graph.capture.camera.pool_statistics()
            assert (pool.slots, pool.abandoned, pool.retired) == (8, 0, 0)
        until(lambda: graph.inference.processed > frames // 10, 'results')
        assert graph.inference.failed == 0
        graph.capture.camera.stop()
        pool = graph.capture.camera.pool_statistics
        until(lambda: pool().states == {SlotState.FREE: 8}, 'all slots are free')
        assert pool().holders == {}


NAMES = 'camera', 'onnx accelerator', 'display'


def test_camera_accelerator_and_stand_ins_agree_and_diagnostics_say_on_what(
    free_domain: int,
) -> None:
    stand_in = 'display: NV12 XR24; stride_align=256; slots=2'
    overrides = {
        'capture': {'width': 128, 'height': 128, 'participants': [stand_in], 'slots': 3},
        'inference': {'model': 'hog', 'in_flight': 2},
    }
    with running(free_domain, overrides) as graph:
        found = status(graph.capture, 'negotiation')
        said = {name: found.values[f'participant {name}'] for name in NAMES}
        slots = graph.capture.camera.slots
        assert len(slots) == 2 + 3 + 2, 'camera, two in flight and one that waits, display'
        assert {plane.stride for plane in slots[0].layout.planes} == {256}
        assert graph.capture.session is not None
        assert graph.capture.session.join(Consumer(parse_stand_in(stand_in))).has_buffers
    assert found.level is Level.OK and 'NV12 LINEAR 128x128' in found.message
    assert '7 slots from heap' in found.message
    assert list(said.values()) == ['accepted', 'accepted', 'stand-in']


def test_each_slot_is_imported_on_trial_before_the_first_frame_and_who_gets_none_is_named(
    free_domain: int,
) -> None:
    seen: list[tuple[int, int, bool]] = []

    def trial(settings: BufferSettings, buffers: tuple[DmaBuf, ...]) -> None:
        seen.append((buffers[0].identity.inode, settings.slots, any(buffers[0].memory())))

    consumers = (
        Consumer(BufferConstraints('metis', heaps=('dma_heap/', 'udmabuf'))),
        Consumer(BufferConstraints('gpu'), Mock(side_effect=AcceleratorError('EINVAL'))),
        Consumer(BufferConstraints('npu', slots=1), trial),
    )
    values = {'width': 128, 'height': 128, 'heap': 'memfd'}
    with alone(free_domain, CaptureNode, values) as node, ExitStack() as stack:
        key = bus_key(node, '/image_raw', Image)
        for consumer in consumers:
            MEETING.add_consumer(key, consumer)
            stack.callback(MEETING.remove_consumer, key, consumer)
        assert status(node, 'negotiation').level is Level.WARN, 'it waits for the camera'
        node.configure_now()
        slots = node.camera.slots
        assert seen == [(slot.buffers[0].identity.inode, len(slots), False) for slot in slots], (
            'nothing is drawn yet'
        )
        found = status(node, 'negotiation')
        assert found.level is Level.WARN
        assert "metis can't use buffers of heap 'memfd'" in found.message
        failed = f'gpu fell back: trial import of slot 0 of {len(slots)} failed: EINVAL'
        assert failed in found.message
        assert str(found.values['participant metis']).startswith('refused: ')
        assert found.values['participant npu'] == 'accepted'
        node.start()
        until(lambda: node.camera.statistics().captured, 'frames')
        assert len(seen) == len(slots), 'once each'


def test_hog_boxes_equal_those_of_the_detector_on_the_same_luma(
    free_domain: int, tmp_path: Path
) -> None:
    """The frames are those of a real video of pedestrians."""
    assert VIDEO.is_file(), 'make test fetches it from the Debian package opencv-doc'
    frames = 45 if LONG else 6
    clip = tmp_path / 'clip.avi'
    pictures = pictures_of(VIDEO, frames, 'bgr24')
    size = pictures[0].shape[1::-1]
    writer = cv2.VideoWriter(str(clip), cv2.VideoWriter_fourcc(*'MJPG'), 10, size)
    for picture in pictures:
        writer.write(picture)
    writer.release()

    values = {
        'capture': {'camera': 'replay', 'video': str(clip), 'keep_all': True, 'start_delay': 0.0},
        'inference': {'model': 'hog', 'keep_all': True, 'max_rate': 1.0, 'timeout': 30.0},
    }
    published: list[tuple[int, Detections]] = []
    with ros(free_domain) as context:
        graph = PerceptionGraph(context, values)
        graph.inference.observers.append(
            lambda entry, found: published.append((entry.frame.header.stamp_ns, found))
        )
        with spun(context, *graph.nodes):
            until(lambda: len(published) >= frames, lambda: len(published), 200.0)
    hog = cv2.HOGDescriptor()
    hog.setSVMDetector(cv2.HOGDescriptor.getDefaultPeopleDetector())
    total = 0
    for number, luma in enumerate(pictures_of(clip, frames, 'gray')):
        stamp, found = published[number]
        assert stamp - published[0][0] == number * 100_000_000, 'every frame once, in order'
        boxes = np.asarray(hog.detectMultiScale(luma, winStride=(8, 8), scale=1.05)[0])
        expected = np.array([[x, y, x + w, y + h] for x, y, w, h in boxes.tolist()]).reshape(-1, 4)
        assert len(found) == len(expected)
        assert not len(found) or box_iou(expected, found.boxes).max(axis=1).min() >= 0.95
        total += len(found)
    assert total > frames, 'people were really found'


# What a program that doesn't use this package receives.
def _header(message: Any) -> tuple[int, str]:
    return stamp_ns(message.header), message.header.frame_id


def test_image_info_and_detections_of_a_frame_have_one_header_in_each_camera(
    context: rclpy.Context, free_domain: int
) -> None:
    """In any order of joining: the listener comes when everything runs already."""
    heights = {'left': 192, 'right': 160}
    kinds = {'image_raw': Image, 'camera_info': CameraInfo, 'detections': Detection2DArray}
    published: dict[str, set[tuple[int, str]]] = {camera: set() for camera in heights}
    graphs = {}
    for camera, height in heights.items():
        size = {'width': 320, 'height': height}
        values = {'framerate': 10.0, 'frame_id': f'{camera}_optical', **size}
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
        until(lambda: all(graph.inference.processed >= 3 for graph in graphs.values()))
        with Onlooker(free_domain) as listener:
            infos = listener.hear(CameraInfo, '/left/camera_info', 50)
            listener.until(lambda: len(infos) > 5)
            links = [status(graph.capture, 'link').values for graph in graphs.values()]
            assert [(each['conversions'], each['image_readers']) for each in links] == [(0, 0)] * 2
            heard = {
                (camera, topic): listener.hear(kind, f'/{camera}/{topic}', 50)
                for camera in heights
                for topic, kind in kinds.items()
            }
            labels = {
                camera: listener.hear(LabelInfo, f'/{camera}/label_info', 1, latched=True)
                for camera in heights
            }
            listener.until(
                lambda: all(len(seen) >= 10 for seen in heard.values()),
                lambda: {key: len(seen) for key, seen in heard.items()},
            )
            # Exact-time synchronisation finds partners among messages received by all three.
            listener.until(
                lambda: all(
                    len(set.intersection(*(set(map(_header, heard[each, t])) for t in kinds))) >= 5
                    for each in heights
                ),
                'partners',
            )
            listener.until(lambda: all(labels.values()), 'labels, which were published long ago')
    for camera, height in heights.items():
        images, infos, detections = (list(map(_header, heard[camera, topic])) for topic in kinds)
        for seen in (images, infos, detections):
            assert {frame_id for _, frame_id in seen} == {f'{camera}_optical'}
            assert seen == sorted(set(seen)), 'each once, in order'
        assert set(detections) <= published[camera], "an array's header is its frame's, whole"
        first, last = max(images[0], infos[0]), min(images[-1], infos[-1])
        assert {stamp for stamp in images if first <= stamp <= last} <= set(infos), (
            'no picture without its camera_info'
        )
        (message,) = labels[camera]
        names = [(each.class_id, each.class_name) for each in message.class_map]
        assert names == [*enumerate(('car', 'pedestrian', 'sign', 'cone'))]
        boxes = [box for array in heard[camera, 'detections'] for box in array.detections]
        assert boxes and {box.results[0].hypothesis.class_id for box in boxes} <= set('0123')
        centres = [box.bbox.center.position for box in boxes]
        assert all(0 <= at.x <= 320 and 0 <= at.y <= height for at in centres)
        assert {_header(box) for box in boxes} <= set(detections)
        sizes = {(each.width, each.height) for each in heard[camera, 'image_raw']}
        assert sizes == {(320, height)}, 'nothing of the other camera'


# QoS overrides reach every topic, also those created later.
SMALL = {'width': 128, 'height': 128, 'heap': 'memfd', 'framerate': 30.0}
TOPIC = '/image_raw/compressed'
COMPRESSED = f'qos_overrides.{TOPIC}.publisher'


def test_the_compressed_topic_has_its_own_whenever_it_comes(run: Managed) -> None:
    node = run.make(CaptureNode, {**SMALL, f'{COMPRESSED}.reliability': 'best_effort'})
    assert node.parameters.unclaimed() == []
    for wanted in (0, 60):
        assert not set_or_why_not(node, 'jpeg_quality', wanted)
    run.eventually(lambda: len(node.get_publishers_info_by_topic(TOPIC)) == 1)
    for topic, wanted in ((TOPIC, 'BEST_EFFORT'), ('/image_raw', 'RELIABLE')):
        (offered,) = node.get_publishers_info_by_topic(topic)
        assert offered.qos_profile.reliability.name == wanted


def test_a_latched_compressed_topic_has_a_picture_for_who_comes_late(run: Managed) -> None:
    values = {'jpeg_quality': 50, f'{COMPRESSED}.durability': 'transient_local'}
    node = run.make(CaptureNode, SMALL | values)
    node.start()
    unread = 'converted, though nobody reads'
    run.eventually(lambda: node.publisher.statistics().conversions >= 2, unread)
    node.trigger_deactivate()
    pictures = run.hear(CompressedImage, TOPIC, 1, latched=True)
    run.eventually(lambda: pictures, 'the last one')
    assert node.publisher.statistics().image_readers == 0


# ``perception --stereo`` as seen by another program: pairs with one stamp, and diagnostics.
BOTH = {'camera': 'synthetic', 'stamps': 'now', 'keep_all': False, 'stereo_tolerance': 0.005}
SIDES = ('left', 'right')


@contextmanager
def pair(domain: int, folder: Path, sections: dict[str, str]) -> Iterator[Reader]:
    """Run both sides in the namespace ``truck`` with these parameters; yield a reader."""
    file = folder / 'stereo.yaml'
    values = {**sections, 'inference': 'model: hog'}.items()
    file.write_text(''.join(f'/**/{n}: {{ros__parameters: {{{these}}}}}\n' for n, these in values))
    arguments = '--params-file', str(file), '-r', '__ns:=/truck'
    with (
        ros(domain, *arguments) as context,
        spun(context, *stereo_nodes(context, lambda: None)),
        Reader(domain) as reader,
    ):
        yield reader


def stamps(messages: list[Any]) -> set[int]:
    return {_header(message)[0] for message in messages}


def test_two_cameras_give_pairs_in_two_namespaces(tmp_path: Path, free_domain: int) -> None:
    # Synthetic cameras have no common trigger: a tolerance above one frame's time pairs any two.
    both = 'width: 128, height: 128, framerate: 60.0, pattern: counter, stereo_tolerance: 0.02'
    names = [f'truck/{side}/capture: stereo' for side in SIDES]
    own = {f'{side}/capture': f'frame_id: {side[0]}' for side in SIDES}
    with pair(free_domain, tmp_path, {'capture': both, **own}) as reader:
        infos = [reader.hear(CameraInfo, f'/truck/{side}/camera_info', 50) for side in SIDES]
        images = [reader.hear(Image, f'/truck/{side}/image_raw', 50) for side in SIDES]
        pairs = lambda of: len(stamps(of[0]) & stamps(of[1]))  # noqa: E731
        # Best-effort readers may miss big messages; camera_info is small.
        reader.until(lambda: pairs(infos) >= 30 and pairs(images) >= 5, reader.messages)
        counted = lambda name: int(reader.values(name).get('pairs', 0))  # noqa: E731
        reader.until(lambda: all(map(counted, names)), reader.messages)
        left, right = map(stamps, infos)
        values = [reader.values(name) for name in names]
    first, last = max(min(left), min(right)), min(max(left), max(right))
    both_ran = {stamp for stamp in left | right if first <= stamp <= last}
    # There is nothing but pairs, but the middleware may lose some messages.
    assert len(left & right) >= 0.8 * len(both_ran)
    assert [{image.header.frame_id for image in one} for one in images] == [{'l'}, {'r'}]
    for found, side in zip(values, SIDES, strict=True):
        assert {'unmatched_left', 'unmatched_right'} <= set(found)
        assert (found['side'], found['tolerance']) == (side, '20 ms')


def test_both_sides_name_the_camera_that_is_not_there(tmp_path: Path, free_domain: int) -> None:
    name, own = (f'truck/{side}/capture: stereo' for side in SIDES)
    gone = 'camera: v4l2, device: /dev/video77'
    sections = {'capture': 'width: 128, height: 128', 'right/capture': gone}
    with pair(free_domain, tmp_path, sections) as reader:
        infos = reader.hear(CameraInfo, '/truck/left/camera_info')
        alone = lambda: int(reader.values(name).get('unmatched_left', 0))  # noqa: E731
        reader.until(lambda: alone() > 5, reader.messages)
        assert 'the right camera is not open' in reader.text(name) and not infos
        reader.until(lambda: 'the right camera is not open' in reader.text(own), reader.messages)
        assert reader.values(name)['pairs'] == '0'


def test_both_sides_name_the_camera_that_gives_no_frames() -> None:
    rig = StereoRig()
    sides = [StereoSide(rig, side) for side in Side]
    for side in sides:
        side.begin('node', BOTH)
        rig.sides._members[side.side] = Mock()
    for count, silent in enumerate(Side, 1):
        rig.sides._matcher.clear()
        for side in Side:
            rig.sides._matcher.offer(side, 0, Mock())
        assert {side.status().message for side in sides} == {f'{count} pairs'}
        for time_ns in range(1, 9):
            rig.sides._matcher.offer(silent.other, time_ns, Mock())
        found = {side.status().message for side in sides}
        assert found == {f'frames of the {silent.value} camera do not come'}


def test_the_rule_is_the_parameters() -> None:
    rig = StereoRig()
    recorded = {'camera': 'replay', 'stamps': 'recorded', 'stereo_tolerance': 0.0123}
    StereoSide(rig, Side.LEFT).begin('left', BOTH | recorded)
    assert isinstance(rig.sides, StereoSides) and rig.sides.rule.by_stamp
    assert rig.sides.rule.tolerance_ns == 12_300_000
    said = "node 'right'.*replays a recording with the recorded stamps"
    with pytest.raises(ConfigError, match=said):
        StereoSide(rig, Side.RIGHT).begin('right', {**BOTH, 'stereo_tolerance': 0.0123})
    rig = StereoRig()
    for name, loop in (('a', True), ('b', False), ('a', True)):
        values = {**BOTH, **recorded, 'video': name, 'loop': loop}
        StereoSide(rig, Side.LEFT).begin('left', values)
    with pytest.raises(ConfigError, match=r"repeats recording 'a', the other 'b'.*wrong pairs"):
        StereoSide(rig, Side.RIGHT).begin('right', {**values, 'video': 'b'})
    keeps = {**BOTH, 'camera': 'replay', 'keep_all': True}
    with pytest.raises(ConfigError, match="parameter 'keep_all' is true"):
        StereoSide(StereoRig(), Side.LEFT).begin('left', keeps)
