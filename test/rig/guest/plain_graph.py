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

"""
Camera, in-process link and accelerator without ROS, with frame logs as the nodes keep them.

``zc_verify`` checks it where no ROS can run the nodes. The parts below ``nodes/`` are joined as
the nodes do it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, ExitStack
from functools import partial
import os
from pathlib import Path
import threading
import time
import traceback
from types import SimpleNamespace
from typing import Any

from frame_kit import FrameQueue
from waiting import eventually

from zc_perception.camera.camera import Camera
from zc_perception.detection.heads import make_head
from zc_perception.detection.heads.spec import DecodeLimits
from zc_perception.frame import Frame
from zc_perception.link.bus import BusPublisher, BusSubscription, LinkQos
from zc_perception.memory.heaps import Heap, open_heap
from zc_perception.memory.ledger import CopyLedger
from zc_perception.npu.scheduler import InFlight, Scheduler
from zc_perception.observe.frame_log import FrameLog
from zc_perception.pixel.fourcc import fourcc_name

from .camera_kit import agreed, opened, ShadowHeap, unmapped, UntouchedCamera
from .graph_variants import HEIGHT, IN_FLIGHT, SINGLE, SLOTS, VIVID_START_OF_EXPOSURE, WIDTH
from .harness import left_behind
from .kernel_api import any_heap
from .package_kit import accelerator, MANIFEST
from .sabotage import Consumer, sabotaged
from .verifier import AFTERWARDS, guarded, judged, Outcome

FPS = 5.0
_DESCRIBE_S = 0.5
_QOS = LinkQos(1)


class _Inference:
    def __init__(self, publisher: BusPublisher[Frame]) -> None:
        self.processed = self.failed = 0
        self.import_cache = True
        self._ledger = CopyLedger()
        self._stack = ExitStack()
        self._head = make_head(MANIFEST.head)
        frames = FrameQueue(1)
        self._stack.callback(frames.close)
        publisher.rematch((BusSubscription('inference', _QOS, frames, held=IN_FLIGHT + 1),))
        self._stack.callback(publisher.rematch, ())
        npu = self._stack.enter_context(accelerator())
        self._log = self._stack.enter_context(FrameLog('inference', '/inference'))
        self.scheduler = Scheduler(
            npu, frames, self._on_result, self._on_error, in_flight=IN_FLIGHT, timeout_s=60.0
        )
        self._stack.callback(self.scheduler.stop)
        self.scheduler.start()
        self.accelerator, self.close = npu, self._stack.close

    def keep_imports(self, wanted: bool) -> None:
        self.scheduler.tune({'in_flight': IN_FLIGHT, 'timeout': 60.0, 'import_cache': wanted})
        self.import_cache = wanted
        self.describe()

    def _on_result(self, entry: InFlight) -> None:
        done_ns = time.monotonic_ns()
        limits = DecodeLimits(
            MANIFEST.score_threshold, MANIFEST.nms_threshold, MANIFEST.max_detections
        )
        found = len(self._head.decode(entry.job.outputs(), entry.job.letterbox, limits))
        decoded_ns = time.monotonic_ns()
        self._log.processed(entry, done_ns, decoded_ns, time.monotonic_ns(), found)
        self.processed += 1

    def _on_error(self, frame: Frame, error: Exception) -> None:
        self.failed += 1
        self._log.failed(frame, time.monotonic_ns(), self.scheduler.failing)

    def describe(self) -> None:
        self._log.describe(self._facts)

    def _facts(self) -> dict[str, Any]:
        npu, statistics = self.accelerator, self.scheduler.statistics()
        capabilities = npu.capabilities()
        counted = ('in_flight', 'imports', 'trial_imports', 'submitted')
        return {
            'accelerator': capabilities.name, 'device': capabilities.device,
            'pci_address': npu.facts().get('pci_address', ''), 'copy_free': capabilities.copy_free,
            'import_cache': self.import_cache, 'copies': _copies(self._ledger), 'conversions': 0,
            'rung': 'in_process', 'reason': '', 'processed': self.processed, 'failed': self.failed,
            **{name: getattr(statistics, name) for name in counted},
        }  # fmt: skip


def _copies(ledger: CopyLedger) -> dict[str, dict[str, int]]:
    return {
        reason: {'count': entry.count, 'bytes': entry.bytes}
        for reason, entry in ledger.entries().items()
    }


class PlainGraph(Consumer):
    """
    One camera, allocated and the graph's own, and one consumer; running until :meth:`close`.

    The thread of the camera is the saboteur's, too.
    """

    def __init__(self, camera: Camera) -> None:
        super().__init__()
        self._camera = camera
        self._ledger = CopyLedger()
        self._stop = threading.Event()
        self._log = FrameLog('capture', '/capture')
        self.publisher: BusPublisher[Frame] = BusPublisher(
            'capture', _QOS, pool_of=lambda frame: frame.pool
        )
        self.problems: list[str] = []
        self.inference = _Inference(self.publisher)
        self.graph = SimpleNamespace(
            capture=SimpleNamespace(camera=camera, frame_log=self._log), inference=self.inference
        )
        self._threads = [
            threading.Thread(target=partial(self._guarded, run))
            for run in (self._capture, self._describe)
        ]
        for thread in self._threads:
            thread.start()

    def _guarded(self, run: Callable[[], None]) -> None:
        try:
            run()
        except Exception:
            self.problems.append(traceback.format_exc())

    def _capture(self) -> None:
        while not self._stop.is_set():
            frame = self._camera.capture()
            if frame is None:
                self._stop.wait(0.01)
                continue
            with frame:
                began_ns = time.monotonic_ns()
                self.publisher.publish(frame)
                self._log.published(frame, began_ns, time.monotonic_ns())
                self.act(frame)
            self.seen += 1

    def _describe(self) -> None:
        while not self._stop.wait(_DESCRIBE_S):
            self._log.describe(self._facts)
            self.inference.describe()

    def _facts(self) -> dict[str, Any]:
        camera, statistics = self._camera, self._camera.statistics()
        layout = camera.slots[0].layout
        buffers = [buffer.identity for slot in camera.slots for buffer in slot.buffers]
        return {
            'camera': 'v4l2', 'conversions': 0, 'copies': _copies(self._ledger),
            'device': camera.device, 'heap': camera.heap_name, 'slots': len(camera.slots),
            'peers': [{'name': 'in_process', 'pid': os.getpid(), 'rung': 'in_process'}],
            'captured': statistics.captured, 'dropped': statistics.dropped,
            'fourcc': fourcc_name(layout.fourcc), 'layout': layout.describe(),
            'pool': [[identity.device, identity.inode] for identity in buffers],
            'width': layout.width, 'height': layout.height,
        }  # fmt: skip

    def keep_imports(self, wanted: bool) -> None:
        self.inference.keep_imports(wanted)

    def close(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self.inference.close()
        self._log.close()
        self._camera.close()


def _allocated(camera: Camera) -> Camera:
    """Return the camera with buffers that the accelerator takes as well."""
    with accelerator() as npu:
        agreed(camera, [npu.constraints()], slots=SLOTS)
    return camera


def _of_heap(out: Path, heap: Heap) -> Outcome:
    """Run with buffers of a heap, which the CPU never maps."""
    base = {'heap': heap, 'now_ns': time.time_ns, 'ledger': CopyLedger()}
    with unmapped():
        camera = _allocated(
            UntouchedCamera(WIDTH, HEIGHT, FPS, 'camera', seed=1, pattern='counter', **base)
        )
    with closing(PlainGraph(camera)) as running:
        flowing = eventually(lambda: running.inference.processed > 3 or running.problems, 60)
        assert flowing and not running.problems, running.problems
        return judged(out)


GRAPHS: dict[str, Callable[[Path], Outcome]] = {
    'known_exporter': lambda out: _of_heap(out, open_heap(any_heap())[0]),
    'unknown_exporter': lambda out: _of_heap(out, ShadowHeap()),
}


def cases(names: Sequence[str], out: Path) -> Iterator[tuple[str, Outcome]]:
    """Yield each case's outcome (from :data:`verifier.FRAMES` frames), then what is left."""
    try:
        # The kernel's camera, whose buffers are the driver's.
        camera = opened(SINGLE, size=(WIDTH, HEIGHT), rate=FPS)
        camera.set_control('timestamp_source', VIVID_START_OF_EXPOSURE)
        with closing(PlainGraph(_allocated(camera))) as running:
            yield from sabotaged(running, running, names, out)
    except Exception:
        yield 'sabotaged', {'error': traceback.format_exc()}
    for name, graph in GRAPHS.items():
        if name in names:
            yield name, guarded(partial(graph, out / name))
    yield AFTERWARDS, left_behind()
