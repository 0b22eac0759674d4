"""In the guest: vivid → capture → in-process link → axl → detections topic → a plain subscriber, watched from outside.

    python graph_run.py VARIANT:FRAMES ...        VARIANT: cached | uncached

Writes, for each, ``$RIG_OUT/VARIANT.json`` (figures), ``VARIANT.frames.json`` (one entry per frame) and ``VARIANT.trace``.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TEST = HERE.parents[1]
sys.path[:0] = [str(TEST), str(TEST.parent)]

import rclpy  # noqa: E402

from rig.guest.evidence import Watch, event_counts, inodes_of, recording, trace_text  # noqa: E402
from rig.guest.kernel_api import bufinfo, live  # noqa: E402
from rig.virtual_result import VirtualResult  # noqa: E402
from zc_perception.detection.detections import Detections  # noqa: E402
from zc_perception.frame import FrameData  # noqa: E402
from zc_perception.nodes.perception import PerceptionGraph  # noqa: E402
from zc_perception.nodes.process import NodeGroup  # noqa: E402
from zc_perception.npu.axl.accelerator import AxlJob  # noqa: E402
from zc_perception.npu.scheduler import InFlight  # noqa: E402

WIDTH, HEIGHT, FRAMERATE = 640, 360, 30.0
# vivid stamps the end of the frame by default, which lies in the future; 1 is the start of exposure.
VIVID_START_OF_EXPOSURE = 1
PROBE_CRC = 0xC0205561
RESULT_SIZE = ctypes.sizeof(VirtualResult)
PERIOD_S = 1.5


class Checker:
    """For each frame: the CRCs that the device computed, and those of the frame's content past IOMMU and mmap."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.frames: list[dict[str, Any]] = []
        self._probe = os.open('/dev/axl_probe', os.O_RDWR | os.O_CLOEXEC)

    def observe(self, entry: InFlight, found: Detections) -> None:
        """Called while the frame is still leased, so that the camera can't be writing it."""
        if len(self.frames) >= self.wanted:
            return
        data, job = entry.frame.data, entry.job
        assert isinstance(job, AxlJob)
        result = VirtualResult.from_buffer_copy(job.result_bytes(0, RESULT_SIZE))
        fence = job.fence.info()
        status, signalled_ns = fence.status, fence.timestamp_ns
        self.frames.append(
            {
                'sequence': data.sequence,
                'stamp_ns': data.header.stamp_ns,
                'inode': data.buffers[0].identity.inode,
                'device_crc': result.crcs(),
                'content_crc': [self._content_crc(data, plane) for plane in range(len(data.planes))],
                'device_boxes': result.num_boxes,
                'published_boxes': len(found),
                'fence_status': status,
                'fence_latency_ms': (signalled_ns - entry.received_ns) / 1e6,
                'captured_ns': data.captured_ns,
                'fence_ns': signalled_ns,
            }
        )

    def _content_crc(self, data: FrameData, index: int) -> int:
        plane, element = data.planes[index], data.layout.format.planes[index]
        buffer = data.buffers[plane.buffer]
        argument = bytearray(
            struct.pack(
                'iIIIQII', buffer.fileno(), element.row_bytes(data.width), plane.stride, element.rows(data.height), plane.offset, 0, 0
            )
        )
        fcntl.ioctl(self._probe, PROBE_CRC, argument)
        crc: int = struct.unpack('iIIIQII', argument)[5]
        return crc


class PlainSubscriber:
    """A process that knows standard messages only; it listens to all runs."""

    def __init__(self) -> None:
        command = [sys.executable, str(TEST / 'nodes' / 'plain_subscriber.py'), '600', '--until-eof']
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def wait_until_listening(self) -> None:
        """Its imports take as long as ours: start it first, wait for it late."""
        assert self._process.stdout is not None and self._process.stdout.readline().strip() == 'listening'

    def stamps(self) -> set[int]:
        """End it; the stamps of all detections that it received."""
        received = json.loads(self._process.communicate(timeout=60)[0])
        return {array['stamp'] for array in received['detections']}


def _graph(context: rclpy.Context, cached: bool) -> PerceptionGraph:
    overrides = {
        'capture': {'camera': 'v4l2', 'device': '/dev/video0', 'width': WIDTH, 'height': HEIGHT, 'framerate': FRAMERATE, 'slots': 12},
        'inference': {
            'accelerator': 'axl', 'model': str(HERE.parent / 'models' / 'virtual_metis.yaml'), 'import_cache': cached, 'in_flight': 2,
            # Every frame is to be checked; a guest that is slow for a moment catches up from the queue.
            'keep_all': True,
        },
    }  # fmt: skip
    graph = PerceptionGraph(context, overrides)
    graph.capture.camera.set_control('timestamp_source', VIVID_START_OF_EXPOSURE)
    return graph


def _wait(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)


def _thread_seconds() -> dict[str, float]:
    """CPU seconds of each thread of ours so far, and of the rest of the machine's two processors."""
    ticks = os.sysconf('SC_CLK_TCK')
    found: dict[str, float] = {}
    for thread in threading.enumerate():
        fields = Path(f'/proc/self/task/{thread.native_id}/stat').read_text().rpartition(')')[2].split()
        found[thread.name] = (int(fields[11]) + int(fields[12])) / ticks
    fields = Path('/proc/self/stat').read_text().rpartition(')')[2].split()
    found['process'] = (int(fields[11]) + int(fields[12])) / ticks
    return found


def _stream(graph: PerceptionGraph, context: rclpy.Context, wanted: int, watch: Watch) -> tuple[Checker, dict[str, Any]]:
    """Run until *wanted* frames were checked; the figures of the nodes themselves."""
    checker = Checker(wanted)
    graph.inference.observers.append(checker.observe)
    problems: list[str] = []
    with NodeGroup(context, graph.nodes, lambda: problems.append('the executor failed')) as group:
        _wait(lambda: graph.inference.detection_readers() > 0, 20)
        before = _thread_seconds()
        group.start()
        with watch.running(PERIOD_S):
            _wait(lambda: len(checker.frames) >= wanted or bool(problems), 30 + wanted / 2)
        cpu = {name: round(seconds - before.get(name, 0.0), 2) for name, seconds in _thread_seconds().items()}
        camera = graph.capture.camera.statistics()
        link = graph.inference.subscription.statistics()
        figures = {
            'processed': graph.inference.processed,
            'failed': graph.inference.failed,
            'captured': camera.captured,
            'lost_by_camera': camera.dropped,
            'dropped_by_link': link.dropped,
            'rung': link.rung,
            'conversions': link.conversions + graph.capture.publisher.statistics().conversions,
            'imports': graph.inference.accelerator.imports,
            'trial_imports': graph.inference.accelerator.trial_imports,
            'accelerator': graph.inference.accelerator.capabilities().name,
            'heap': graph.capture.camera.heap_name,
            'copies': {reason: entry.count for reason, entry in graph.ledger.entries().items()},
            'latency_ms': {s: [round(p.p50, 2), round(p.p99, 2)] for s, p in graph.inference.latencies.summary().items()},
            'cpu_s': cpu,
            'problems': problems,
        }
    return checker, figures


def _figures(frames: list[dict[str, Any]], watch: Watch, trace: str) -> dict[str, Any]:
    """What the frames and the kernel say."""
    submitted = {frame['inode'] for frame in frames}
    span_s = (frames[-1]['captured_ns'] - frames[0]['captured_ns']) / 1e9 if len(frames) > 1 else 0.0
    steps = frames[-1]['sequence'] - frames[0]['sequence'] if frames else 0
    imported = inodes_of(trace, 'axl_dmabuf_import')
    return {
        'frames': len(frames),
        'camera_fps': round(steps / span_s, 2) if span_s else 0.0,
        'checked_fps': round((len(frames) - 1) / span_s, 2) if span_s else 0.0,
        'submitted_inodes': sorted(submitted),
        'crc_equal': sum(frame['device_crc'] == frame['content_crc'] for frame in frames),
        'distinct_contents': len({tuple(frame['device_crc']) for frame in frames}),
        'boxes_equal': sum(frame['device_boxes'] == frame['published_boxes'] for frame in frames),
        'fences_good': sum(frame['fence_status'] == 1 for frame in frames),
        'looks': watch.looks,
        'attached': {str(inode): sorted(devices) for inode, devices in watch.attached.items()},
        'exporters': sorted(set(watch.exporters.values())),
        'cpu_mappings': watch.mappings,
        'traced_imports': len(imported),
        'traced_submits': event_counts(trace)['submit'],
        'traced_import_inodes': sorted(set(imported)),
        'events': dict(event_counts(trace)),
        'left_in_bufinfo': sorted(submitted & set(bufinfo())),
        'left_on_device': live(),
    }


def run_variant(variant: str, wanted: int, out: Path) -> dict[str, Any]:
    """One run from opening the camera to closing everything."""
    watch = Watch()
    context = rclpy.Context()
    rclpy.init(context=context)
    with recording():
        graph = _graph(context, cached=variant == 'cached')
        watch.inodes |= {slot.buffers[0].identity.inode for slot in graph.capture.camera._pool.slots}
        checker, figures = _stream(graph, context, wanted, watch)
        context.try_shutdown()
    trace = trace_text()
    (out / f'{variant}.trace').write_text(trace)
    (out / f'{variant}.frames.json').write_text(json.dumps(checker.frames))
    stamps = [frame['stamp_ns'] for frame in checker.frames]
    return {'variant': variant, 'stamps': stamps} | figures | _figures(checker.frames, watch, trace)


def main(arguments: Sequence[str]) -> int:
    """Run the variants, one after the other."""
    out = Path(os.environ['RIG_OUT'])
    subscriber = PlainSubscriber()
    variants = [argument.partition(':') for argument in arguments]
    subscriber.wait_until_listening()
    results = [run_variant(variant, int(frames), out) for variant, _, frames in variants]
    received = subscriber.stamps()
    for result in results:
        stamps = result.pop('stamps')
        result['received_by_plain_subscriber'] = len(received.intersection(stamps))
        (out / f'{result["variant"]}.json').write_text(json.dumps(result, indent=1))
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
