"""Graphs in this process that ``zc_verify`` judges from outside: sabotaged while they run, over a plain link, from GStreamer pipelines."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from rclpy.node import Node
from rclpy.parameter import Parameter
from sensor_msgs.msg import Image

from zc_perception.camera import camera as camera_module
from zc_perception.camera import synthetic
from zc_perception.memory.heaps import OfferedHeaps, working_heaps
from zc_perception.nodes.inference import InferenceNode
from zc_perception.nodes.process import NodeGroup

from .graph_kit import MODEL, RunningGraph, ros
from .graph_variants import HEIGHT, PLAIN, SLOW, SLOW_FPS, WIDTH, Variant
from .harness import wait
from .sabotage import SABOTAGES, mapped_by_the_device
from .spectator import Spectator
from .untouched_camera import OneMemfd, ShadowHeap, UntouchedCamera, unmapped, writing_camera
from .verifier import FRAMES, NOBODY, Outcome, judged

_NV12 = f'video/x-raw,format=NV12,width={WIDTH},height={HEIGHT},framerate={SLOW_FPS}/1'


def _own() -> list[str]:
    return ['--pid', str(os.getpid())]


def sabotaged(names: Sequence[str], out: Path) -> Iterator[tuple[str, Outcome]]:
    """One graph that runs all the time, and is sabotaged in one way after the other."""
    variant = Variant(FRAMES, True, SLOW, keep_all=False)
    with ros() as context, RunningGraph(context, variant) as running:
        spectator = Spectator(context)
        running.add_node(spectator.node)
        running.start()
        assert wait(lambda: running.graph.inference.processed > 3 and spectator.seen > 3, 60), running.problems
        for name in names:
            seen, processed = spectator.seen, running.graph.inference.processed
            with SABOTAGES[name](running, spectator):
                outcome = judged(out / name, _own(), user=NOBODY if name == 'nobody' else None)
            outcome['seen'] = spectator.seen - seen
            outcome['processed'] = running.graph.inference.processed - processed
            outcome['problems'] = list(running.problems)
            yield name, outcome
        spectator.close()


def plain_link(out: Path) -> Outcome:
    """A publisher of ``sensor_msgs/Image`` that knows nothing of us, and the inference node."""
    message = Image(width=WIDTH, height=HEIGHT, encoding='nv12', step=WIDTH)
    message.data = np.random.default_rng(1).integers(16, 235, HEIGHT * 3 // 2 * WIDTH, np.uint8).tobytes()
    with ExitStack() as stack:
        context = stack.enter_context(ros())
        parameters = Variant(FRAMES, True, keep_all=False).inference(MODEL)
        node = InferenceNode(context=context, parameter_overrides=[Parameter(name, value=value) for name, value in parameters.items()])
        camera = Node('plain_camera', context=context)
        publisher = camera.create_publisher(Image, 'image_raw', 1)

        def publish() -> None:
            message.header.stamp = camera.get_clock().now().to_msg()
            publisher.publish(message)

        camera.create_timer(1 / SLOW_FPS, publish)
        group = stack.enter_context(NodeGroup(context, [node], lambda: None))
        group.add_node(camera)
        group.start()
        assert wait(lambda: node.processed > 3, 60), 'no frame came over the plain link'
        outcome = judged(out, _own())
        outcome['rung'] = node.subscription.statistics().rung
        outcome['copies'] = {reason: entry.count for reason, entry in node.ledger.entries().items()}
    camera.destroy_node()
    return outcome


def _of_heap(out: Path, heaps: Callable[[str], OfferedHeaps], camera: type[UntouchedCamera] = UntouchedCamera) -> Outcome:
    capture = {'camera': 'synthetic', 'pattern': 'counter', 'width': WIDTH, 'height': HEIGHT, 'framerate': float(SLOW_FPS), 'slots': 8}
    with (
        mock.patch.object(synthetic, 'SyntheticCamera', camera),
        mock.patch.object(camera_module, 'working_heaps', heaps),
        unmapped(),
    ):
        return _streaming(out, capture)


def known_exporter(out: Path) -> Outcome:
    """Buffers of the system heap."""
    return _of_heap(out, lambda name: working_heaps('dma_heap/system'))


def udmabuf(out: Path) -> Outcome:
    """Buffers of memfds that nobody has any more."""
    return _of_heap(out, lambda name: working_heaps('udmabuf'))


def writes_through_a_memfd(out: Path) -> Outcome:
    """The same, and the camera has kept the memfd."""
    heap = OneMemfd()
    return _of_heap(out, lambda name: OfferedHeaps.only(heap), writing_camera(heap))


def unknown_exporter(out: Path) -> Outcome:
    """The same with buffers of an exporter that nobody knows."""
    return _of_heap(out, lambda name: OfferedHeaps.only(ShadowHeap()))


def _streaming(
    out: Path, capture: dict[str, Any], sabotage: Callable[[RunningGraph], AbstractContextManager[None]] = lambda running: nullcontext()
) -> Outcome:  # fmt: skip
    """The newest frame is enough: a pipeline has only so many buffers."""
    with ros() as context, RunningGraph(context, Variant(FRAMES, True, capture, keep_all=False)) as running:
        running.start()
        assert wait(lambda: running.graph.inference.processed > 3, 60), running.problems
        with sabotage(running):
            outcome = judged(out, _own())
        return outcome | running.figures()


def _of_pipeline(pipeline: str) -> dict[str, Any]:
    return {'camera': 'gstreamer', 'pipeline': pipeline, 'slots': 10, 'heap': 'dma_heap/system'}


_DRIVERS_BUFFERS = _of_pipeline(f'v4l2src device={PLAIN} io-mode=dmabuf ! {_NV12}')


def gstreamer_dmabuf(out: Path) -> Outcome:
    """A pipeline that hands the driver's own buffers on."""
    return _streaming(out, _DRIVERS_BUFFERS)


def maps_a_pipelines_camera(out: Path) -> Outcome:
    """The same, and a buffer of the camera is mapped by its device, which the pipeline's node does not name."""
    return _streaming(out, _DRIVERS_BUFFERS, lambda running: mapped_by_the_device(PLAIN, WIDTH * HEIGHT))


def gstreamer_copy(out: Path) -> Outcome:
    """A pipeline whose frames are in system memory: the camera has to copy them."""
    scaled = f'v4l2src device={PLAIN} io-mode=dmabuf ! {_NV12} ! videoscale ! video/x-raw,width=480,height=270'
    return _streaming(out, _of_pipeline(scaled))


#: Graphs of their own.
GRAPHS: dict[str, Callable[[Path], Outcome]] = {
    'known_exporter': known_exporter,
    'unknown_exporter': unknown_exporter,
    'udmabuf': udmabuf,
    'writes_through_a_memfd': writes_through_a_memfd,
    'plain_link': plain_link,
    'gstreamer_dmabuf': gstreamer_dmabuf,
    'gstreamer_copy': gstreamer_copy,
    'maps_a_pipelines_camera': maps_a_pipelines_camera,
}
