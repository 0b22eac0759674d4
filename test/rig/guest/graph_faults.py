"""Faults while the whole graph streams: vivid camera → capture → link → axl → detections.

What each check demands of every fault: frames go on, or come back by themselves; meanwhile and afterwards the kernel holds no
more dma-bufs and the device no more attachments than before it; at the end nothing is left (the harness looks).
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from zc_perception.errors import ZcError

from .camera_kit import MULTI, SINGLE, check, check_each
from .harness import equal, eventually, settles
from .kernel_api import bufinfo, live, parameters, pulled, unbound

PATIENCE_S = 60.0
MODEL = Path(__file__).resolve().parent.parent / 'models' / 'virtual_metis.yaml'
CAPTURE = {'camera': 'v4l2', 'width': 640, 'height': 360, 'framerate': 10.0, 'slots': 12}
INFERENCE = {'accelerator': 'axl', 'model': str(MODEL), 'in_flight': 2, 'timeout': 1.0}


class Running:
    """A graph that streams, and what the kernel held when it did so undisturbed."""

    def __init__(self, graph: object, baseline: set[int]) -> None:
        self.capture, self.inference = graph.capture, graph.inference  # type: ignore[attr-defined]
        self._baseline = baseline
        self.expect_frames(12)
        self._objects, self._attachments = len(self.objects), self._most_attachments()

    @property
    def objects(self) -> set[int]:
        """The dma-bufs of this graph."""
        return set(bufinfo()) - self._baseline

    def _most_attachments(self) -> int:
        """One import of each slot, and a result buffer for each job in flight."""
        pool = self.capture.camera.pool
        return len(pool.slots) * len(pool.slots[0].buffers) + self.inference.parameters['in_flight']

    def set_control(self, name: str, value: object) -> None:
        """Of the camera that streams."""
        self.capture.camera.set_control(name, value)

    def expect_frames(self, count: int = 6) -> None:
        """So many more detections are published."""
        wanted = self.inference.processed + count
        eventually(lambda: self.inference.processed >= wanted, f'{count} more frames', PATIENCE_S)

    def expect_no_more_than_before(self) -> None:
        """Neither dma-bufs beyond the pool and the results, nor attachments beyond its imports."""
        gc.collect()
        eventually(
            lambda: len(self.objects) <= self._objects, f'no more than {self._objects} dma-bufs, not {len(self.objects)}', PATIENCE_S
        )
        eventually(lambda: live()['attachments'] <= self._attachments, f'no more than {self._attachments} attachments', PATIENCE_S)


@contextmanager
def streaming_graph(device: str = SINGLE, capture: Mapping[str, object] = MappingProxyType({}), **inference: object) -> Iterator[Running]:
    """Capture, inference and overlay in this process, started; with these parameters instead of those here."""
    import rclpy  # only these checks need ROS, whose import takes long in the guest

    from zc_perception.nodes.perception import PerceptionGraph
    from zc_perception.nodes.process import NodeGroup

    baseline = set(bufinfo())
    context = rclpy.Context()
    rclpy.init(context=context)
    try:
        graph = PerceptionGraph(context, {'capture': {**CAPTURE, 'device': device, **capture}, 'inference': INFERENCE | inference})
        with NodeGroup(context, graph.nodes, lambda: None) as group:
            group.start()
            yield Running(graph, baseline)
        assert group.failure is None, group.failure
    finally:
        context.try_shutdown()


@check
def the_graph_survives_jobs_that_the_device_fails() -> None:
    with streaming_graph() as running:
        failed = running.inference.failed
        with parameters(fail_every=4):
            eventually(lambda: running.inference.failed >= failed + 3, 'three lost frames', PATIENCE_S)
            running.expect_frames()
        running.expect_frames()
        running.expect_no_more_than_before()


@check
def the_graph_survives_a_device_that_hangs() -> None:
    with streaming_graph(timeout=0.3) as running:
        with parameters(hang_every=5):
            lost = running.inference.failed + running.inference.scheduler.statistics().losses
            eventually(
                lambda: running.inference.failed + running.inference.scheduler.statistics().losses >= lost + 2, 'hangs show', PATIENCE_S
            )
        running.expect_frames()
        running.expect_no_more_than_before()


@check_each('pulled', 'unbound from its driver')
def the_graph_survives_a_card_that_is(gone: str) -> None:
    with streaming_graph() as running:
        camera = running.capture.camera
        with pulled() if gone == 'pulled' else unbound():
            eventually(lambda: running.inference.scheduler.state.recovering, 'the loss is noticed', PATIENCE_S)
            equal(live()['attachments'], 0, 'attachments while there is no card')
            captured = camera.statistics().captured
            eventually(lambda: camera.statistics().captured > captured + 20, 'the camera streams on', PATIENCE_S)
        eventually(lambda: not running.inference.scheduler.state.recovering, 'the card works again', PATIENCE_S)
        running.expect_frames()
        running.expect_no_more_than_before()


@check
def the_driver_s_module_can_not_be_unloaded_under_the_graph() -> None:
    with streaming_graph() as running:
        command = [os.environ['RIG_BUSYBOX'], 'rmmod', 'metis_virtual']
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode != 0 and 'temporarily unavailable' in done.stderr, (done.returncode, done.stderr)
        running.expect_frames()
        running.expect_no_more_than_before()


def _once(name: str) -> Callable[[Running], None]:
    def inject(running: Running) -> None:
        running.set_control(name, 0)

    return inject


def _fatal_with_a_refused_restart(running: Running) -> None:
    running.set_control('inject_vidioc_streamon_error', 0)
    running.set_control('inject_fatal_streaming_error', 0)


CAMERA_FAULTS: dict[str, Callable[[Running], None]] = {
    'a bad frame': _once('inject_v4l2_buf_flag_error'),
    'a buffer that is not queued': _once('inject_vidioc_qbuf_error'),
    'a stream that breaks off': _once('inject_fatal_streaming_error'),
    'a stream that breaks off and does not start at once': _fatal_with_a_refused_restart,
    'unplugging': _once('disconnect'),
}


# The other API differs where buffers are queued and streams are started.
@check_each(*(f'single: {name}' for name in CAMERA_FAULTS), 'multi: a stream that breaks off', 'multi: unplugging')
def the_graph_survives_of_its_camera(fault: str) -> None:
    api, _, name = fault.partition(': ')
    with streaming_graph(SINGLE if api == 'single' else MULTI) as running:
        CAMERA_FAULTS[name](running)
        if name == 'unplugging':
            eventually(lambda: running.capture.supervisor.condition.losses == 1, 'the loss is noticed', PATIENCE_S)
        # Past everything that was under way at that moment.
        running.expect_frames(30)
        running.expect_no_more_than_before()


@check
def the_graph_survives_buffers_that_the_driver_drops() -> None:
    with streaming_graph() as running:
        running.set_control('percentage_of_dropped_buffers', 50)
        try:
            lost = running.capture.camera.statistics().lost
            eventually(lambda: running.capture.camera.statistics().lost > lost + 5, 'lost frames are counted', PATIENCE_S)
        finally:
            running.set_control('percentage_of_dropped_buffers', 0)
        running.expect_frames()
        running.expect_no_more_than_before()


def _consumer(name: str) -> subprocess.Popen[bytes]:
    """An inference node in another process, over rung 2, with an accelerator and imports of its own.

    It imports Python modules at once, which takes long here beside a graph that streams, and begins with the first line on its stdin.
    """
    values = INFERENCE | {'copy_free': 'required', 'in_flight': 2}
    words = [word for key, value in values.items() for word in ('-p', f'{key}:={value}')]
    code = 'import sys; from zc_perception.nodes import main, programs; sys.stdin.readline(); sys.exit(main.inference_node())'
    command = [sys.executable, '-c', code, '--ros-args', '-r', f'__node:={name}', *words]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)


def _consumers(running: Running) -> int:
    server = running.capture._server._server
    return len(server.statistics().consumers)


@check
def the_graph_survives_a_consumer_that_is_killed_with_its_imports() -> None:
    consumer = _consumer('killed')
    assert consumer.stdin is not None
    with consumer.stdin, streaming_graph() as running:
        attachments = live()['attachments']
        with parameters(latency_us=20000):
            try:
                consumer.stdin.write(b'\n')
                consumer.stdin.flush()
                eventually(lambda: _consumers(running) == 1 and live()['attachments'] > attachments + 3, 'it imports frames', 120)
                eventually(lambda: live()['jobs'] > 0, 'it has jobs in flight', PATIENCE_S)
            finally:
                consumer.send_signal(signal.SIGKILL)
                consumer.wait()
            settles(lambda: _consumers(running), 0, 'consumers')
            running.expect_frames()
        running.expect_no_more_than_before()
        pool = running.capture.camera.pool
        ours = {'inference', 'overlay'}
        eventually(lambda: set(pool.statistics().holders) <= ours, 'no slot is kept for it', PATIENCE_S)


@check
def a_graph_that_never_got_its_card_leaves_nothing() -> None:
    baseline = set(bufinfo())
    with unbound():
        try:
            with streaming_graph():
                raise AssertionError('accelerator: axl without a card did start')
        except ZcError as error:
            assert 'metis' in str(error).lower(), error
    gc.collect()
    settles(lambda: set(bufinfo()) - baseline, set(), 'dma-bufs')
