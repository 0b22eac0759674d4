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

"""Implements ``zc_demo``: runs camera, detector and overlay, and writes a report."""

from __future__ import annotations

import argparse
from collections import OrderedDict
import json
import os
from pathlib import Path
import sys
import threading
import time
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
import rclpy
from rclpy.node import Node
from rclpy.qos import QoSProfile
from sensor_msgs.msg import Image
from vision_msgs.msg import Detection2DArray

from zc_perception.camera.road_scene import RoadScene
from zc_perception.camera.synthetic import SyntheticCamera
from zc_perception.detection.detections import box_iou, Detections
from zc_perception.errors import ConfigError, error_line, EXIT_FAILURE, EXIT_USAGE, ZcError
from zc_perception.link.image_conversion import stamp_ns
from zc_perception.nodes.perception import Overrides, PerceptionGraph
from zc_perception.nodes.perception_node import all_or_none
from zc_perception.nodes.process import NodeGroup, ros_context
from zc_perception.npu.scheduler import InFlight
from zc_perception.observe.metrics import StageLatencies
from zc_perception.terminal import Interrupted, Interruption, interruptions, put
from zc_perception.whole_file import check_writable, write_whole

_SUMMARY, _PICTURE = 'summary.json', 'detections.png'
_PROGRESS_S = 0.5
_DRAIN_S = 5.0
_PICTURE_AT = 0.5
_ENOUGH_BOXES = 5
_REMEMBERED = 64


def _check_folder(folder: Path) -> None:
    """Make the results' folder; check that the summary and the picture can be written to it."""
    try:
        if os.path.lexists(folder) and not folder.is_dir():
            raise ConfigError(f"--out '{folder}' is not a folder; name another folder")
        folder.mkdir(parents=True, exist_ok=True)
        for name in (_SUMMARY, _PICTURE):
            check_writable(folder / name)
    except OSError as error:
        raise ConfigError(
            f"--out '{folder}' can't be written: {error.strerror}; name another folder"
        ) from error


def overrides_from(options: argparse.Namespace) -> Overrides:
    """Return the parameters of capture and inference node that the command line sets."""
    capture = {
        'camera': options.camera,
        'width': options.width,
        'height': options.height,
        'framerate': options.framerate,
        'seed': options.seed,
        'heap': options.heap,
        'keep_all': options.keep_all,
    }
    if options.video is not None:
        capture['video'] = options.video
    return {
        'capture': capture,
        'inference': {
            'model': options.model,
            'accelerator': options.accelerator,
            'keep_all': options.keep_all,
        },
    }


class Truth:
    """Keeps recent detections by frame, and compares them with the true objects of a scene."""

    def __init__(self, scene: RoadScene | None) -> None:
        self._scene = scene
        self._recent: OrderedDict[int, tuple[int, Detections]] = OrderedDict()
        self._lock = threading.Lock()

    def observe(self, entry: InFlight, found: Detections) -> None:
        """Keep a frame's detections; the thread of the inference node's scheduler calls this."""
        data = entry.frame.data
        with self._lock:
            self._recent[data.header.stamp_ns] = data.sequence, found
            while len(self._recent) > _REMEMBERED:
                self._recent.popitem(last=False)

    def boxes_iou_min(self, stamp: int) -> float | None:
        """
        Return the IoU of a frame's worst box with its object.

        A box's object is the object of the scene that has the same class and the highest IoU with
        the box; without such an object the IoU is 0.

        ``None``: the frame has no box, its detections are no longer kept, or the camera has no
        scene with known objects.
        """
        with self._lock:
            entry = self._recent.get(stamp)
        if self._scene is None or entry is None or not len(entry[1]):
            return None
        sequence, found = entry
        smallest = 1.0
        for box, index in zip(found.boxes, found.classes, strict=True):
            same = [o for o in self._scene.truth(sequence) if o.class_index == index]
            corners = np.array(
                [[o.x, o.y, o.x + o.width, o.y + o.height] for o in same], np.float64
            ).reshape(-1, 4)
            best = box_iou(box[None].astype(np.float64), corners).max() if len(same) else 0.0
            smallest = min(smallest, float(best))
        return round(smallest, 4)


class Watcher(Node):
    """
    A plain subscriber of standard messages, which keeps the best annotated picture.

    The best picture has the most boxes, counted up to :data:`_ENOUGH_BOXES`. Among pictures with
    equally many boxes, the best is the picture whose lowest score is highest. Whether the boxes
    are right doesn't matter for the choice.
    """

    def __init__(self, context: rclpy.Context, truth: Truth) -> None:
        super().__init__('zc_demo', context=context)
        self.arrays = 0
        self.picture: NDArray[np.uint8] | None = None
        self.boxes_iou_min: float | None = None
        self._truth = truth
        self._best = (-1, 0.0)
        self._ratings: OrderedDict[int, tuple[int, float]] = OrderedDict()
        self._image_subscription: Any = None
        self.create_subscription(
            Detection2DArray, 'detections', self._on_detections, QoSProfile(depth=50)
        )

    def _on_detections(self, message: Detection2DArray) -> None:
        self.arrays += 1
        scores = [d.results[0].hypothesis.score for d in message.detections]
        self._ratings[stamp_ns(message.header)] = (
            min(len(scores), _ENOUGH_BOXES),
            min(scores, default=0.0),
        )
        while len(self._ratings) > _REMEMBERED:
            self._ratings.popitem(last=False)

    @property
    def picture_wanted(self) -> bool:
        """Whether :meth:`want_picture` was called."""
        return self._image_subscription is not None

    def want_picture(self) -> None:
        """Subscribe to annotated pictures; without a subscriber, the overlay draws no picture."""
        if self._image_subscription is None:
            self._image_subscription = self.create_subscription(
                Image, 'detections/image', self._on_image, QoSProfile(depth=1)
            )

    def _on_image(self, message: Image) -> None:
        stamp = stamp_ns(message.header)
        rating = self._ratings.get(stamp, (0, 0.0))
        if rating > self._best:
            self._best = rating
            self.picture = (
                np.frombuffer(message.data, np.uint8)
                .reshape(message.height, message.width, 3)
                .copy()
            )
            self.boxes_iou_min = self._truth.boxes_iou_min(stamp)


def latencies_of(graph: PerceptionGraph) -> dict[str, dict[str, float]]:
    """Return p50 and p99 of each stage of capture and inference node, in milliseconds."""
    found: dict[str, dict[str, float]] = {}
    for latencies in (graph.capture.latencies, graph.inference.latencies):
        for stage, percentiles in latencies.summary().items():
            found[stage] = {'p50': round(percentiles.p50, 3), 'p99': round(percentiles.p99, 3)}
    return {stage: found[stage] for stage in StageLatencies.STAGES if stage in found}


def summarise(graph: PerceptionGraph, watcher: Watcher, elapsed_s: float) -> dict[str, Any]:
    """Return the content of ``summary.json``; other programs rely on its keys."""
    # Read these counts one right after the other, because frames continue to come.
    camera, processed = graph.capture.camera.statistics(), graph.inference.processed
    copies = graph.ledger.entries()
    link = graph.inference.subscription.statistics()
    return {
        'frames': processed,
        'detections': graph.inference.detected,
        'dropped': camera.dropped + link.dropped + graph.inference.failed,
        'fps': round(processed / elapsed_s, 2) if elapsed_s > 0 else 0.0,
        'rung': link.rung,
        'heap': graph.capture.camera.heap_name,
        'accelerator': graph.inference.accelerator.capabilities().name,
        'latency_ms': latencies_of(graph),
        'pixel_copies_per_frame': {
            reason: round(entry.count / max(1, camera.captured), 3)
            for reason, entry in sorted(copies.items())
        },
        'boxes_iou_min': watcher.boxes_iou_min,
        'captured': camera.captured,
        'received_by_plain_subscriber': watcher.arrays,
        'model': graph.inference.manifest.name,
        'camera': graph.capture.camera.device,
        'size': [graph.capture.camera.width, graph.capture.camera.height],
        'seconds': round(elapsed_s, 3),
    }


def _say(text: str, end: str = '\n') -> None:
    """Print to stdout; if stdout was closed, go on, because the run also writes files."""
    put(text, sys.stdout, end)


class Progress:
    """Prints progress: a terminal shows one line that changes; a file gets a new line each 2 s."""

    def __init__(self) -> None:
        self._live = sys.stdout is not None and sys.stdout.isatty()
        self._last = 0.0

    def show(self, text: str) -> None:
        """Print *text*, unless a text was printed less than 0.5 s ago (2 s if not a terminal)."""
        now = time.monotonic()
        if now - self._last >= (_PROGRESS_S if self._live else 4 * _PROGRESS_S):
            self._last = now
            _say(f'\r\x1b[K{text}' if self._live else text, end='' if self._live else '\n')

    def end(self) -> None:
        """End a terminal's progress line with a line break."""
        if self._live:
            _say('')


def _run(
    options: argparse.Namespace,
    graph: PerceptionGraph,
    watcher: Watcher,
    group: NodeGroup,
    stop: Interruption,
) -> float:
    """
    Run until the camera's end, a signal, a node's failure, or the limit of time or frames.

    Return the seconds from the first processed frame to the last one.
    """
    progress = Progress()
    started = time.monotonic()
    first = last = 0.0
    seen = 0
    while not stop.wait(0.02) and group.failure is None:
        now, processed = time.monotonic(), graph.inference.processed
        if processed > seen:
            first, last, seen = first or now, now, processed
        fraction = max(
            (now - started) / options.duration,
            processed / options.frames if options.frames else 0.0,
        )
        if (
            fraction >= _PICTURE_AT
            or graph.capture.finished
            or graph.capture.parameters['keep_all']
        ):
            watcher.want_picture()
        progress.show(
            f'{now - started:5.1f} s  {processed:5d} frames  {graph.inference.detected:6d} '
            f'detections  {graph.inference.subscription.statistics().rung}'
        )
        if fraction >= 1.0 or graph.drained:
            break
    # Wait for the last detections and a picture, which are still on their way to the watcher.
    deadline = time.monotonic() + _DRAIN_S
    while time.monotonic() < deadline and not stop.wait(0.02):
        ended = graph.capture.finished
        if (watcher.picture is not None or ended) and (
            watcher.arrays >= graph.inference.processed or not ended
        ):
            break
        watcher.want_picture()
    progress.end()
    return last - first


def _print_summary(summary: dict[str, Any]) -> None:
    _say(
        f'{summary["frames"]} frames of {summary["camera"]} in {summary["seconds"]} s '
        f'({summary["fps"]} per second), '
        f'{summary["detections"]} detections, {summary["dropped"]} frames dropped'
    )
    _say(
        f'link {summary["rung"]}, buffers from {summary["heap"]}, accelerator '
        f'{summary["accelerator"]}, model {summary["model"]}'
    )
    _say(
        'how often the CPU read or wrote the pixels of a frame: '
        + ', '.join(f'{k} {v:g}' for k, v in summary['pixel_copies_per_frame'].items())
    )
    for stage, values in summary['latency_ms'].items():
        _say(f'  {stage:<11} p50 {values["p50"]:8.3f} ms   p99 {values["p99"]:8.3f} ms')
    if summary['boxes_iou_min'] is not None:
        _say(
            'smallest IoU of a detected box in the picture with the true box of its object: '
            f'{summary["boxes_iou_min"]}'
        )


def run(options: argparse.Namespace) -> int:
    """Run the program; return the exit code: 0 after a complete run or a signal."""
    _check_folder(options.out)
    # Let no other machine see the demo's topics, unless the user has set this variable.
    os.environ.setdefault('ROS_AUTOMATIC_DISCOVERY_RANGE', 'LOCALHOST')
    with interruptions(for_good=True) as stop:
        try:
            with ros_context([]) as context:
                graph = PerceptionGraph(context, overrides_from(options))
                with all_or_none(graph.nodes):
                    graph.capture.configure_now()
                camera = graph.capture.camera
                synthetic = isinstance(camera, SyntheticCamera)
                truth = Truth(
                    RoadScene(camera.width, camera.height, options.seed) if synthetic else None
                )
                graph.inference.observers.append(truth.observe)
                watcher = Watcher(context, truth)
                try:
                    with NodeGroup(context, graph.nodes, stop.set) as group:
                        group.add_node(watcher)
                        group.start(stop.check)
                        elapsed = _run(options, graph, watcher, group, stop)
                        summary = summarise(graph, watcher, elapsed)
                finally:
                    watcher.destroy_node()
                if group.failure is not None:
                    print(group.failure, file=sys.stderr)
                    return EXIT_FAILURE
        except Interrupted:
            return _nothing_written()
        except ZcError as error:
            print(error_line('zc_demo', error), file=sys.stderr)
            return EXIT_USAGE
        if not summary['frames'] and stop.wait(0.0):
            return _nothing_written()
        return _report(options.out, summary, watcher)


def _nothing_written() -> int:
    _say('zc_demo: ended before the first frame; nothing was written')
    return 0


def _write_results(folder: Path, summary: dict[str, Any], watcher: Watcher) -> str:
    """Write the result files; return a sentence that names them."""
    summary_path, picture_path = folder / _SUMMARY, folder / _PICTURE
    write_whole(summary_path, json.dumps(summary, indent=2) + '\n')
    if watcher.picture is not None:
        write_whole(picture_path, cv2.imencode('.png', watcher.picture)[1].tobytes())
        return f'wrote {summary_path} and {picture_path}'
    late = 'the picture is taken after half of the planned time, and the run ended earlier'
    reason = 'no annotated picture came in time' if watcher.picture_wanted else late
    older = f'; the old {_PICTURE} is from an earlier run' if picture_path.exists() else ''
    return f'wrote {summary_path}, no {_PICTURE}: {reason}{older}'


def _report(folder: Path, summary: dict[str, Any], watcher: Watcher) -> int:
    written = ''
    try:
        written = _write_results(folder, summary, watcher)
    except OSError as error:
        problem = ConfigError(f"the results can't be written to '{folder}': {error.strerror}")
        print(error_line('zc_demo', problem), file=sys.stderr)
    _print_summary(summary)
    if written:
        _say(written)
    if not summary['frames']:
        print('zc_demo: error: the detector has run on no frame', file=sys.stderr)
    return 0 if written and summary['frames'] else EXIT_FAILURE
