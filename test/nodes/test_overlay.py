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

"""The annotated picture: the right frame, the right place, and only while it has a subscriber."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
import itertools
import math
import threading
from typing import Any
from unittest.mock import Mock

import cv2
from frame_kit import written_frame
from nodes.ros_kit import alone, Onlooker, overrides, ros, set_or_why_not, spun
import numpy as np
from pixel.format_samples import rgb_planes
import pytest
import rclpy
from rclpy.qos import DurabilityPolicy, QoSProfile
from sensor_msgs.msg import CompressedImage, Image
from vision_msgs.msg import (
    Detection2D,
    Detection2DArray,
    LabelInfo,
    ObjectHypothesisWithPose,
    VisionClass,
)

from zc_perception.detection.detections import Detections
from zc_perception.errors import FormatError, StaleFrameError
from zc_perception.frame import Frame, Header
from zc_perception.link.image_conversion import stamp_ns
from zc_perception.nodes.capture import CaptureNode
from zc_perception.nodes.messages import DetectionsWriter
from zc_perception.nodes.overlay import draw_masks, Layer, OVERLAY, OverlayNode
from zc_perception.nodes.overlay_picture import (
    class_colour,
    LabelledBox,
    Painter,
    PictureHistory,
    Trails,
)
from zc_perception.nodes.perception import PerceptionGraph
from zc_perception.observe import metrics
from zc_perception.observe.diagnostics import Level, Status
from zc_perception.pixel.colorimetry import Colorimetry, Matrix, Range
from zc_perception.pixel.conversion import ToPicture
from zc_perception.pixel.fourcc import fourcc_code, NV12


class Viewer(Onlooker):
    """Another program, which publishes detections and collects the overlay's pictures."""

    def __init__(self, domain: int) -> None:
        super().__init__(domain, 'viewer')
        self.pictures: list[Image] = []
        self.jpegs: list[CompressedImage] = []
        self.detections = self.node.create_publisher(Detection2DArray, 'detections', 10)
        self._fed = 0

    def look(self, kind: type[Image | CompressedImage] = Image) -> Any:
        form, seen = ('', self.pictures) if kind is Image else ('/compressed', self.jpegs)
        return self.node.create_subscription(kind, f'detections/image{form}', seen.append, 10)

    def detect(self, stamp_ns: int, *boxes: tuple[float, float, float, float]) -> None:
        found = Detections(
            np.array(boxes, np.float32).reshape(-1, 4),
            np.full(len(boxes), 0.5, np.float32),
            np.zeros(len(boxes), np.int64),
        )
        self.detections.publish(DetectionsWriter(1).write(Header(stamp_ns, 'lens'), found))

    def feed(self, stamps: list[int], done: Callable[[], Any], what: str) -> None:
        """Publish detections of new frames until *done*."""

        def fed() -> Any:
            if stamps and stamps[-1] != self._fed:
                self._fed = stamps[-1]
                self.detect(self._fed)
            return done()

        self.until(fed, what)


@contextmanager
def camera_and_overlay(
    domain: int, **overlay: Any
) -> Iterator[tuple[CaptureNode, OverlayNode, Viewer, list[int]]]:
    """Yield a camera whose stamps are frame numbers, an overlay and a viewer, without a model."""
    stamps: list[int] = []
    camera = overrides({'framerate': 30.0, 'pattern': 'counter'})
    with ros(domain) as context, Viewer(domain) as viewer:
        capture = CaptureNode(context=context, parameter_overrides=camera)
        publish = capture.publisher.publish
        capture.publisher.publish = lambda frame: (  # type: ignore[method-assign]
            publish(frame),
            stamps.append(frame.header.stamp_ns),
        )[0]
        node = OverlayNode(context=context, parameter_overrides=overrides(overlay))
        with spun(context, capture, node):
            yield capture, node, viewer, stamps


def _stamp(number: int) -> int:
    return number * 1_000_000_000 + 7


def _keep(
    history: PictureHistory, make_frame: Callable[..., Frame], number: int, **size: int
) -> None:
    with make_frame(stamp_ns=_stamp(number), **size) as frame:
        history.keep(frame)


def test_history_is_bounded_copies_and_pins_no_slot(
    make_pool: Callable, make_frame: Callable[..., Frame]
) -> None:
    pool, history = make_pool(slots=1), PictureHistory(limit=3, scale=0.5)
    for number in range(1, 10):
        with make_frame(pool, stamp_ns=_stamp(number)) as frame:
            history.keep(frame)
        assert pool.statistics().holders == {}
    assert len(history) == 3 and history.take(_stamp(6)) is None
    picture = history.take(_stamp(8))
    assert picture is not None and picture.scale == (0.5, 0.5)
    assert picture.luma.shape == (24, 32) and picture.chroma.shape == (12, 16, 2)
    assert history.take(_stamp(7)) is None and len(history) == 1
    history.clear()
    assert len(history) == 0


def test_a_picture_of_another_format_has_the_frame_s_colours(
    make_pool: Callable[..., Any],
) -> None:
    rgb = np.broadcast_to(np.array([200, 120, 40], np.uint8), (48, 64, 3))
    planes = rgb_planes('BG24', rgb, np.random.default_rng(0))
    pool, history = make_pool(slots=1, fourcc=fourcc_code('BG24')), PictureHistory(2, 0.5)
    options = {'header': Header(5, ''), 'colorimetry': Colorimetry(Matrix.RGB, Range.FULL)}
    with written_frame(pool, planes, **options) as frame:
        assert history.keep(frame) == sum(plane.nbytes for plane in planes)
    picture = history.take(5)
    assert picture is not None and picture.luma.shape == (24, 32)
    shown = ToPicture(NV12, 32, 24, picture.colorimetry).convert((picture.luma, picture.chroma))
    assert np.abs(shown - rgb[0, 0].astype(np.float64)).max() <= 3


def _box(
    number: int, left: float, top: float, size: float = 20.0, score: float = 0.5
) -> LabelledBox:
    return LabelledBox(left, top, left + size, top + size, str(number), f'class {number}', score)


def test_boxes_are_where_they_belong_in_a_scaled_picture() -> None:
    picture = np.zeros((180, 320, 3), np.uint8)
    Painter(180).paint(picture, [_box(1, 200, 120, 80)], (0.5, 0.25), '')
    rows, columns = np.nonzero((picture == class_colour('1')).all(axis=2))
    assert columns[rows >= 31].min() == 100 and columns.max() >= 139 and rows.max() == 49
    assert (picture[49, 101:139] == class_colour('1')).all(), 'the lower edge'
    assert not picture[31:49, 101:139].any(), 'nothing inside'


def test_labels_do_not_hide_each_other_and_the_most_certain_come_first() -> None:
    painter, picture = Painter(360), np.zeros((360, 640, 3), np.uint8)
    painter.paint(
        picture, [_box(i, 100 + i, 100, 60, i / 10) for i in range(10)], (1.0, 1.0), 'caption'
    )
    fields = list(painter._taken)
    assert 3 <= len(fields) <= 5
    for i, one in enumerate(fields):
        for other in fields[slice(i + 1, None)]:
            beside = one[2] <= other[0] or other[2] <= one[0]
            assert beside or one[3] <= other[1] or other[3] <= one[1]
    height = fields[1][3] - fields[1][1]
    assert fields[0][:2] == (0, 0) and fields[1][:2] == (109, 100 - height), (
        'the caption, then the best box'
    )
    assert all(min(f) >= 0 and f[2] <= 640 and f[3] <= 360 for f in fields)


def test_trails_follow_who_has_an_id_and_end_with_it_or_with_a_jump_of_time() -> None:
    trails, colour = Trails(), class_colour('7')

    def columns(now_ns: int, left: float, name: str = '7') -> list[int]:
        picture = np.zeros((180, 320, 3), np.uint8)
        box = replace(_box(1, left, 100), track_id=name)
        trails.paint(picture, [box, _box(2, left, 20)], (0.5, 0.3), now_ns, 1)
        return np.nonzero((picture == colour).all(axis=2)[33])[0].tolist()

    for step in range(4):
        drawn = columns(step * 10**8, 100.0 + 50 * step)
        assert drawn == ([*range(55, 56 + 25 * step)] if step else [])
    assert columns(4 * 10**8, 100.0, name='') == [], 'the object is lost'
    assert columns(5 * 10**8, 300.0) == list(range(55, 156))
    assert columns(22 * 10**8, 300.0) == list(range(105, 156)), 'two seconds, no more'
    assert columns(10**8, 300.0) == [], 'time went back'


@pytest.mark.parametrize(
    ('form', 'drawn'),
    [
        ({}, True),
        ({'more': 8}, True),  # bytes after the last row
        ({'height': 0}, False),
        ({'width': 0}, False),
        ({'width': 9}, False),  # wider than a row
        ({'height': 5}, False),  # fewer bytes than rows
    ],
    ids=str,
)
def test_masks_of_another_program_are_drawn_if_they_fit(form: dict[str, int], drawn: bool) -> None:
    data = np.ones((4, 8), '<u2').tobytes() + bytes(form.get('more', 0))
    masks = Image(height=form.get('height', 4), width=form.get('width', 8), step=16, data=data)
    masks.encoding = 'mono16'
    found = Detection2DArray(detections=[Detection2D(results=[ObjectHypothesisWithPose()])])
    picture = np.zeros((8, 16, 3), np.uint8)
    draw_masks(picture, found, masks, (2.0, 2.0), 1)
    assert picture.any() == drawn


def test_pictures_are_drawn_only_while_subscribed_and_carry_the_frames_header(
    context: rclpy.Context, free_domain: int
) -> None:
    stamps: dict[int, int] = {}
    graph = PerceptionGraph(
        context, {'capture': {'framerate': 15.0, 'seed': 4}, 'inference': {'timeout': 20.0}}
    )
    graph.inference.observers.append(
        lambda entry, found: stamps.update({entry.frame.header.stamp_ns: len(found)})
    )
    with spun(context, *graph.nodes), Viewer(free_domain) as viewer:
        viewer.until(lambda: graph.inference.processed > 5, 'detections')
        assert graph.overlay.drawn == 0 and graph.ledger.count('overlay') == 0
        subscription = viewer.look()
        viewer.until(lambda: len(viewer.pictures) >= 5, 'pictures')
        viewer.node.destroy_subscription(subscription)
        viewer.until(lambda: verdict(graph.overlay).message.startswith('idle'), 'rest')
        viewer.until(lambda: 'Thread(overlay overlay,' not in str(threading.enumerate()))
    for picture in viewer.pictures:
        size = picture.width, picture.height, picture.step
        assert (picture.encoding, *size) == ('bgr8', 640, 360, 1920)
        assert stamp_ns(picture.header) in stamps
        assert picture.header.frame_id == 'camera_optical_frame'
    # Boxes have pure class colours, which are rare in the noisy scene.
    pixels = np.frombuffer(viewer.pictures[-1].data, np.uint8).reshape(-1, 3)
    colours = (60, 220, 60), (40, 160, 255)
    assert sum((pixels == colour).all(axis=1).sum() for colour in colours) > 20


def test_jpeg_is_made_while_somebody_looks_at_it_and_shows_the_same_and_names_come_from_labels(
    free_domain: int,
) -> None:
    with camera_and_overlay(free_domain, jpeg_quality=95) as (_, overlay, viewer, stamps):
        viewer.look(CompressedImage)
        viewer.feed(stamps, lambda: len(viewer.jpegs) >= 3, 'JPEG pictures')
        assert not viewer.pictures and overlay._message.header.stamp.sec == 0, (
            'nobody looks at the raw ones'
        )
        viewer.look()

        def both() -> list[tuple[Image, CompressedImage]]:
            pairs = itertools.product(viewer.pictures, viewer.jpegs)
            return [(p, j) for p, j in pairs if p.header.stamp == j.header.stamp]

        viewer.feed(stamps, both, 'the same picture in both forms')
        picture, jpeg = both()[0]
        assert jpeg.format == 'bgr8; jpeg compressed bgr8'
        assert jpeg.header.frame_id == picture.header.frame_id == 'lens'
        decoded = cv2.imdecode(np.frombuffer(jpeg.data, np.uint8), cv2.IMREAD_COLOR)
        pixels = np.frombuffer(picture.data, np.uint8).reshape(picture.height, picture.width, 3)
        assert decoded.shape == pixels.shape and np.abs(decoded.astype(int) - pixels).mean() < 4
        latched = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
        labels = viewer.node.create_publisher(LabelInfo, 'label_info', latched)
        labels.publish(LabelInfo(class_map=[VisionClass(class_id=2, class_name='traffic sign')]))
        viewer.until(lambda: overlay._names == {'2': 'traffic sign'}, 'labels')
        array = message(1, (30.0, 40.0, 40.0, 40.0, '2', 0.5))
        array.detections[0].id = '31'
        box = overlay._box(array.detections[0])
        assert box == LabelledBox(10.0, 20.0, 50.0, 60.0, '2', 'traffic sign', 0.5, '31')


def test_the_scale_changes_while_it_runs_and_boxes_stay_with_their_frames(
    free_domain: int,
) -> None:
    with camera_and_overlay(free_domain, history=256) as (_, overlay, viewer, _):
        kept, keep = list[int](), overlay._keep
        overlay._keep = lambda frame, history: (  # type: ignore[method-assign]
            stamp := frame.header.stamp_ns,
            keep(frame, history),
            kept.append(stamp),
        )
        viewer.look()
        viewer.feed(kept, lambda: viewer.pictures, 'all readers have found their writers')

        def draw(stamp: int, *boxes: tuple[float, float, float, float]) -> Image:
            viewer.detect(stamp, *boxes)
            drawn = lambda: [stamp_ns(each.header) for each in viewer.pictures]  # noqa: E731
            viewer.until(lambda: stamp in drawn(), 'its picture')
            assert drawn()[-1] == stamp
            return viewer.pictures[-1]

        start = len(kept)
        viewer.until(lambda: len(kept) >= start + 4, 'newer frames')
        # An older frame: late detections belong to the frame of their stamp.
        assert draw(kept[start]).width == 640
        assert not set_or_why_not(overlay, 'scale', 0.25)
        start = len(kept)
        viewer.until(lambda: len(kept) >= start + 4, 'frames of the new scale')
        # The first one noted may have been processed before the scale was set.
        small = draw(kept[start + 1], (320.0, 200.0, 480.0, 320.0))
        assert (small.width, small.height, small.step) == (160, 90, 480)
        pixels = np.frombuffer(small.data, np.uint8).reshape(90, 160, 3)
        rows, columns = np.nonzero((pixels[50:] == class_colour('0')).all(axis=2))
        assert (columns.min(), columns.max(), rows.max() + 50) == (80, 119, 79), (
            'the box is a quarter of its size in the frame'
        )
        unmatched = overlay.unmatched
        viewer.detect(12345)
        viewer.until(lambda: overlay.unmatched > unmatched, 'no such frame: it is counted')


@pytest.fixture
def overlay(free_domain: int) -> Iterator[OverlayNode]:
    with alone(free_domain, OverlayNode) as made:
        yield made


def test_detections_wait_for_a_frame_that_comes_later_and_the_newest_win(
    overlay: OverlayNode, make_frame: Callable[..., Frame]
) -> None:
    history = PictureHistory(limit=8, scale=1.0)
    for number in (2, 3, 5):
        _keep(history, make_frame, number)
    waiting = deque(message(_stamp(number)) for number in (1, 2, 4, 5, 6, 7))
    overlay._draw_newest(history, waiting)
    assert overlay._message.header.stamp.sec == 0 and overlay.drawn == 1, (
        'drawn, though nobody reads it'
    )
    assert (overlay.skipped, overlay.unmatched) == (1, 2), (
        'one has its picture and is out of date, two have none'
    )
    assert [m.header.stamp.sec for m in waiting] == [6, 7] and len(history) == 0
    _keep(history, make_frame, 7)
    overlay._draw_newest(history, waiting)
    assert (overlay.drawn, overlay.skipped, overlay.unmatched, len(waiting)) == (2, 1, 3, 0)


def test_pictures_at_the_start_of_a_simulation_do_not_wait_for_masks_that_no_model_gives(
    overlay: OverlayNode, make_frame: Callable[..., Frame]
) -> None:
    layer = Layer(overlay, Image, 'masks', QoSProfile(depth=1), draw_masks, Mock())
    overlay._layers = [layer]
    history, masks = PictureHistory(limit=8, scale=1.0), Image()
    for number, masks_come in ((81, False), (82, True)):
        if masks_come:
            masks.header.stamp.nanosec = 81
            layer._take(masks)
        with make_frame(stamp_ns=number) as frame:
            history.keep(frame)
        overlay._draw_newest(history, deque([message(number)]))
    assert (overlay.drawn, len(history)) == (1, 1), 'only the one after the masks waits'


NAN, INF = math.nan, math.inf
# x, y, width, height, class_id, score: a good model gives none of these, but any may arrive.
DRAWN: dict[str, tuple[float, float, float, float, str, float]] = {
    'far away': (1e12, -1e12, 1e12, 1e12, '1', 0.5),
    'turned inside out': (300.0, 200.0, -50.0, -1e15, '1', 0.5),
    'a class of 5000 digits': (300.0, 100.0, 50.0, 50.0, '7' * 5000, 0.5),
    'a class of many words': (300.0, 100.0, 50.0, 50.0, 'Größe \U0001f697\n' * 10_000, 0.5),
}
LEFT_OUT: dict[str, tuple[float, float, float, float, str, float]] = {
    'NaN': (NAN, NAN, NAN, NAN, '1', 0.5),
    'infinite': (INF, -INF, 10.0, 10.0, '1', 0.5),
    'infinitely certain': (300.0, 100.0, 50.0, 50.0, '1', INF),
}
GOOD = (150.0, 250.0, 100.0, 80.0, '0', 0.9)


def message(
    stamp_ns: int, *boxes: tuple[float, float, float, float, str, float]
) -> Detection2DArray:
    """Build the message field by field, as another program would."""
    array = Detection2DArray()
    array.header.stamp.sec, array.header.stamp.nanosec = divmod(stamp_ns, 10**9)
    for x, y, width, height, class_id, score in boxes:
        detection, hypothesis = Detection2D(), ObjectHypothesisWithPose()
        detection.bbox.center.position.x, detection.bbox.center.position.y = x, y
        detection.bbox.size_x, detection.bbox.size_y = width, height
        hypothesis.hypothesis.class_id, hypothesis.hypothesis.score = class_id, score
        detection.results.append(hypothesis)
        array.detections.append(detection)
    array.detections.append(Detection2D())  # without a hypothesis
    return array


def verdict(overlay: OverlayNode) -> Status:
    return overlay.collect_diagnostics()[0]


@pytest.fixture(autouse=True)
def short_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, 'RECENT_S', 0.5)


@pytest.mark.parametrize('name', [*DRAWN, *LEFT_OUT])
def test_boxes_that_no_model_gives_cost_the_others_nothing(
    name: str, overlay: OverlayNode, make_frame: Callable[..., Frame]
) -> None:
    history = PictureHistory(limit=1, scale=1.0)
    _keep(history, make_frame, 1, width=640, height=360)
    odd = {**DRAWN, **LEFT_OUT}[name]
    overlay._draw_newest(history, deque([message(_stamp(1), odd, GOOD, odd)]))
    assert (overlay.drawn, overlay.failed) == (1, 0)
    assert overlay.left_out == (2 if name in LEFT_OUT else 0)
    assert (overlay._picture[289, 101:199] == class_colour('0')).all(), 'the good box is drawn'


@pytest.mark.parametrize(
    ('seen', 'words', 'advice'),
    [
        ({'failed': 2}, '2 picture(s) could not be drawn lately, last error: ', 'ros2 topic'),
        ({'left_out': 3}, '3 box(es) with NaN or infinite numbers were left out', 'ros2 topic'),
        ({'unfit': 'NV15'}, 'no picture: NV15', 'pixel_format'),
        ({'unconverted': 1}, 'no picture: 1 message(s) could not be converted lately', ''),
        ({'unmatched': 2, 'drawn': 1}, '2 detections came lately, but', "'history'"),
    ],
)
def test_what_costs_pictures_is_a_warning(seen: dict[str, Any], words: str, advice: str) -> None:
    names = 'idle', 'dead', 'failed', 'left_out', 'unfit', 'unconverted', 'unmatched', 'drawn'
    others = {'topic': '/detections', 'last_error': 'KeyError'}
    found = OVERLAY.status({}, **{**dict.fromkeys(names, 0), **others, **seen})
    assert (found.level, found.message.startswith(words)) == (Level.WARN, True), found.message
    assert found.advice and advice in found.advice


def test_a_frame_that_its_camera_took_back_says_nothing_about_the_format(
    overlay: OverlayNode, make_frame: Callable[..., Frame]
) -> None:
    overlay._keep(make_frame(), Mock(keep=Mock(side_effect=StaleFrameError('taken back'))))
    assert overlay._unfit == ''


def test_frames_that_can_not_be_drawn_are_a_warning_and_a_thread_that_has_ended_is_an_error(
    free_domain: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[BaseException | None] = []
    monkeypatch.setattr(threading, 'excepthook', lambda args: ended.append(args.exc_value))
    with camera_and_overlay(free_domain) as (capture, overlay, viewer, stamps):
        viewer.look()
        viewer.until(lambda: overlay.ledger.count('overlay') > 0, 'frames')
        with monkeypatch.context() as patch:
            refuse = Mock(side_effect=FormatError("NV15 frames can't be read"))
            patch.setattr(overlay._history, 'keep', refuse)
            viewer.until(lambda: verdict(overlay).level is Level.WARN, 'a warning')
            assert "NV15 frames can't be read" in verdict(overlay).message
        viewer.until(lambda: verdict(overlay).level is Level.OK, 'no warning any more')
        viewer.feed(stamps, lambda: viewer.pictures, 'a picture')
        with monkeypatch.context() as patch:
            patch.setattr(overlay, '_draw_newest', Mock(side_effect=RuntimeError('unforeseen')))
            viewer.until(lambda: bool(ended), 'the end of the thread')
        overlay._thread.join(60.0)  # type: ignore[union-attr]
        status = verdict(overlay)
        assert status.level is Level.ERROR and status.message == (
            "the thread that draws has ended; its traceback is on the node's stderr"
        )
        assert 'deactivate and activate the node' in status.advice
        captured = len(stamps)
        viewer.until(lambda: len(stamps) > captured + 5, 'more frames')
        held = capture.camera.pool.statistics
        viewer.until(lambda: 'overlay' not in str(held().holders), 'no lease is kept')
        overlay.trigger_deactivate()
        overlay.trigger_activate()
        viewer.pictures.clear()
        viewer.feed(stamps, lambda: viewer.pictures, 'a picture')
        viewer.until(lambda: verdict(overlay).level is Level.OK, 'the advice helps')
