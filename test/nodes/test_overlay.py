"""The annotated picture: right frame, right place, and only while somebody looks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np
import rclpy
from rclpy.executors import SingleThreadedExecutor
from sensor_msgs.msg import Image

from zc_perception.frame import Frame
from zc_perception.nodes.overlay import PictureHistory
from zc_perception.nodes.perception import PerceptionGraph
from zc_perception.nodes.process import NodeGroup


def _stamp(number: int) -> tuple[int, int]:
    return number, 7


def _keep(history: PictureHistory, make_frame: Callable[..., Frame], number: int, **size: int) -> None:
    with make_frame(stamp_ns=number * 1_000_000_000 + 7, fill=lambda luma, chroma: luma.fill(number), **size) as frame:
        history.keep(frame)


def test_history_finds_the_frame_of_a_stamp_and_forgets_older_ones(make_frame: Callable[..., Frame]) -> None:
    history = PictureHistory(limit=8, scale=1.0)
    for number in range(1, 5):
        _keep(history, make_frame, number)
    planes = history.take(_stamp(3))
    assert planes is not None and (planes[0] == 3).all() and planes[0].shape == (48, 64)
    assert history.take(_stamp(1)) is None and history.take(_stamp(99)) is None
    assert len(history) == 1


def test_history_is_bounded_copies_and_pins_no_slot(make_pool: Callable, make_frame: Callable[..., Frame]) -> None:
    pool, history = make_pool(slots=1), PictureHistory(limit=3, scale=0.5)
    for number in range(1, 10):
        with make_frame(pool, stamp_ns=number * 1_000_000_000 + 7) as frame:
            history.keep(frame)
        assert pool.statistics().holders == {}
    assert len(history) == 3 and history.take(_stamp(6)) is None
    planes = history.take(_stamp(9))
    assert planes is not None and planes[0].shape == (24, 32) and planes[1].shape == (12, 16, 2)
    history.clear()
    assert len(history) == 0


def test_history_follows_a_change_of_size(make_frame: Callable[..., Frame]) -> None:
    history = PictureHistory(limit=1, scale=1.0)
    _keep(history, make_frame, 1)
    _keep(history, make_frame, 2, width=128, height=96)
    planes = history.take(_stamp(2))
    assert planes is not None and planes[0].shape == (96, 128) and (planes[0] == 2).all()


def test_pictures_are_drawn_only_while_subscribed_and_carry_the_frames_header(free_domain: int) -> None:
    context, viewer_context = rclpy.Context(), rclpy.Context()
    rclpy.init(context=context, domain_id=free_domain)
    rclpy.init(context=viewer_context, domain_id=free_domain)
    viewer = rclpy.create_node('viewer', context=viewer_context)
    executor = SingleThreadedExecutor(context=viewer_context)
    executor.add_node(viewer)
    pictures: list[Image] = []
    failed = threading.Event()
    stamps: dict[int, int] = {}

    def spin_until(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
        end = time.monotonic() + seconds
        while not condition() and time.monotonic() < end:
            executor.spin_once(timeout_sec=0.05)
        return condition()

    graph = PerceptionGraph(context, {'capture': {'framerate': 15.0, 'seed': 4}})
    graph.inference.observers.append(lambda entry, found: stamps.update({entry.frame.header.stamp_ns: len(found)}))
    with NodeGroup(context, graph.nodes, failed.set) as group:
        group.start()
        assert spin_until(lambda: graph.inference.processed > 5)
        assert graph.overlay.drawn == 0 and graph.ledger.count('overlay') == 0

        subscription = viewer.create_subscription(Image, 'detections/image', pictures.append, 1)
        assert spin_until(lambda: len(pictures) >= 5)
        viewer.destroy_subscription(subscription)
        assert spin_until(lambda: graph.overlay.collect_diagnostics()[0].message.startswith('idle'))
        drawn = graph.overlay.drawn
        spin_until(lambda: False, 1.0)
        assert graph.overlay.drawn == drawn
    assert not failed.is_set()
    for picture in pictures:
        assert (picture.encoding, picture.width, picture.height, picture.step) == ('bgr8', 640, 360, 1920)
        assert picture.header.stamp.sec * 1_000_000_000 + picture.header.stamp.nanosec in stamps
        assert picture.header.frame_id == 'camera_optical_frame'
    # Boxes are drawn in pure class colours, which the noisy scene hardly has.
    pixels = np.frombuffer(pictures[-1].data, np.uint8).reshape(-1, 3)
    assert (pixels == (60, 220, 60)).all(axis=1).sum() + (pixels == (40, 160, 255)).all(axis=1).sum() > 20
    executor.shutdown()
    viewer.destroy_node()
    for opened in (context, viewer_context):
        opened.try_shutdown()
