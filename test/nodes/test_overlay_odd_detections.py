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

"""Detections are anybody's: whatever is in them costs a box or a picture, never the overlay."""

from __future__ import annotations

import math
import threading
from typing import Any

from nodes.overlay_kit import camera_and_overlay, Viewer
import numpy as np
import pytest
from sensor_msgs.msg import Image
from vision_msgs.msg import Detection2D, Detection2DArray, ObjectHypothesisWithPose

from zc_perception.nodes.capture import CaptureNode
from zc_perception.nodes.overlay import OverlayNode
from zc_perception.nodes.overlay_picture import class_colour
from zc_perception.observe import metrics
from zc_perception.observe.diagnostics import Level, Status

NAN, INF = math.nan, math.inf
#  x, y, width, height, class_id, score: none of them is what a good model gives, each comes over
#  the wire.
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
    """Written field by field, as another program would."""
    array = Detection2DArray()
    array.header.stamp.sec, array.header.stamp.nanosec = divmod(stamp_ns, 10**9)
    for x, y, width, height, class_id, score in boxes:
        detection, hypothesis = Detection2D(), ObjectHypothesisWithPose()
        detection.bbox.center.position.x, detection.bbox.center.position.y = x, y
        detection.bbox.size_x, detection.bbox.size_y = width, height
        hypothesis.hypothesis.class_id, hypothesis.hypothesis.score = class_id, score
        detection.results.append(hypothesis)
        array.detections.append(detection)
    array.detections.append(Detection2D())  # without any hypothesis
    return array


def picture_of(
    viewer: Viewer, stamps: list[int], *boxes: tuple[float, float, float, float, str, float]
) -> Image:
    """Return what becomes of these boxes in some frame."""
    viewer.pictures.clear()
    # Frames that nobody has sent boxes for yet: pictures of what was sent before may still come.
    sent, before = set[int](), stamps[-1] if stamps else 0

    def drawn() -> Image | None:
        if stamps and stamps[-1] > before and stamps[-1] not in sent:
            sent.add(stamps[-1])
            viewer.detections.publish(message(stamps[-1], *boxes))
        ours = (
            picture
            for picture in viewer.pictures
            if picture.header.stamp.sec * 10**9 + picture.header.stamp.nanosec in sent
        )
        return next(ours, None)

    viewer.until(lambda: drawn() is not None, 'a picture')
    picture = drawn()
    assert picture is not None
    return picture


def shows_good_box(picture: Image) -> bool:
    pixels = np.frombuffer(picture.data, np.uint8).reshape(picture.height, picture.width, 3)
    return bool((pixels[289, 101:199] == class_colour('0')).all())


def verdict(overlay: OverlayNode) -> Status:
    return overlay.collect_diagnostics()[0]


def leases_come_back(capture: CaptureNode, overlay: OverlayNode, viewer: Viewer) -> None:
    viewer.until(lambda: verdict(overlay).message.startswith('idle'), 'rest')
    viewer.until(
        lambda: (
            not any('overlay' in holder for holder in capture.camera.pool.statistics().holders)
        ),
        'its leases',
    )


@pytest.fixture(autouse=True)
def short_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, 'RECENT_S', 0.5)


def test_boxes_that_no_model_gives_cost_neither_the_others_nor_the_thread(
    free_domain: int,
) -> None:
    with camera_and_overlay(free_domain) as (capture, overlay, viewer, stamps):
        raw, jpeg = viewer.look('raw'), viewer.look('jpeg')
        assert shows_good_box(picture_of(viewer, stamps, GOOD))
        thread = overlay._thread
        assert thread is not None
        for name, odd in DRAWN.items():
            assert shows_good_box(picture_of(viewer, stamps, odd, GOOD)), name
        assert (overlay.left_out, overlay.failed) == (0, 0)
        # Detections of frames that the overlay had no time for are a warning, for a while.
        viewer.until(lambda: verdict(overlay).level is Level.OK, 'no warning')
        for name, odd in LEFT_OUT.items():
            before = overlay.left_out
            assert shows_good_box(picture_of(viewer, stamps, odd, GOOD, odd)), name
            assert overlay.left_out - before >= 2, name
        warnings: list[Status] = []

        def warned() -> bool:
            picture_of(viewer, stamps, odd, GOOD)
            warnings.append(verdict(overlay))
            return (
                'box(es) with NaN or infinite numbers were left out lately' in warnings[-1].message
            )

        viewer.until(warned, 'a warning')
        assert (warnings[-1].level, overlay.failed) == (Level.WARN, 0)
        assert 'ros2 topic echo /detections' in warnings[-1].advice
        assert overlay._thread is thread and thread.is_alive()
        viewer.until(lambda: verdict(overlay).level is Level.OK, 'no warning any more')
        viewer.node.destroy_subscription(raw)
        viewer.node.destroy_subscription(jpeg)
        leases_come_back(capture, overlay, viewer)
        assert not thread.is_alive()


def test_a_thread_that_has_ended_is_an_error_and_holds_no_frame(
    free_domain: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[BaseException | None] = []
    monkeypatch.setattr(
        threading, 'excepthook', lambda arguments: ended.append(arguments.exc_value)
    )
    with camera_and_overlay(free_domain) as (capture, overlay, viewer, stamps):
        viewer.look('raw')
        picture_of(viewer, stamps, GOOD)
        draw = overlay._draw_newest

        def fail(*_: Any) -> None:
            raise RuntimeError('what nobody has thought of')

        overlay._draw_newest = fail  # type: ignore[method-assign]
        viewer.until(lambda: bool(ended), 'the end of the thread')
        thread = overlay._thread
        assert thread is not None
        thread.join(60.0)
        status = verdict(overlay)
        assert status.level is Level.ERROR
        assert (
            status.message
            == "the thread that draws has ended; its traceback is on the node's stderr"
        )
        assert 'deactivate and activate the node' in status.advice
        captured = len(stamps)
        viewer.until(lambda: len(stamps) > captured + 5, 'more frames')
        viewer.until(
            lambda: (
                not any('overlay' in holder for holder in capture.camera.pool.statistics().holders)
            ),
            'no lease is kept',
        )
        overlay._draw_newest = draw  # type: ignore[method-assign]
        overlay.trigger_deactivate()
        overlay.trigger_activate()
        assert shows_good_box(picture_of(viewer, stamps, GOOD)), 'the advice helps'
        viewer.until(lambda: verdict(overlay).level is Level.OK, 'no warning')
