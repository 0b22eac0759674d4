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
Run a graph in the guest: camera → capture → link → axl → detections → a plain subscriber.

Its words are VARIANT:FRAMES:VERIFIED[:OPTION ...]. VARIANT is one of graph_variants.py, VERIFIED
the number of frames that ``zc_verify`` checks, and OPTION one of its options. For each variant
``$RIG_OUT/VARIANT`` gets ``figures.json``, ``frames.json`` (one entry per frame),
``kernel.trace``, and the files of ``zc_verify`` if it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
import ctypes
from dataclasses import dataclass, field
from functools import partial
import json
import os
from pathlib import Path
import re
import threading
import time
from typing import Any

from long_form import LONG
from waiting import eventually

from zc_perception.detection.detections import Detections
from zc_perception.npu.axl.accelerator import AxlJob
from zc_perception.npu.scheduler import InFlight

from .graph_kit import plain_subscriber, ros, RunningGraph
from .graph_variants import Variant, VARIANTS
from .kernel_api import bufinfo, fence_info, live, recording, trace_events, trace_text
from .npu_client import VirtualResult
from .package_kit import kernel_crcs
from .verifier import Verifier

# zc_verify's patience, besides a second for each frame: nodes must not end before it has measured.
PATIENCE_S = 720.0
# Period of reading the kernel's lists, which takes the guest half a second.
PERIOD_S = 1.5 if LONG else 4.0
_MAP_LINE = re.compile(r'^\S+ \S+ \S+ \S+ (\d+)\s+(/dmabuf:|/dev/video)\S*')


def cpu_mappings(inodes: Iterable[int]) -> list[str]:
    """Return lines of all processes' ``maps`` that show these dma-bufs, or a video device."""
    wanted = set(inodes)
    found = []
    for maps in Path('/proc').glob('[0-9]*/maps'):
        # Read line by line: large copies in this process may count against it.
        with suppress(OSError), maps.open(errors='replace') as lines:  # a process may have ended
            for line in lines:
                match = _MAP_LINE.match(line)
                if match and (match[2] == '/dev/video' or int(match[1]) in wanted):
                    found.append(f'{maps.parent.name}: {line.rstrip()}')
    return found


@dataclass
class Watch:
    """
    Reads the kernel's own lists again and again while frames flow.

    :param find_inodes: returns the inodes of the frames' buffers that exist.
    :ivar attached: by inode, all devices that were ever listed.
    :ivar exporters: by inode.
    """

    find_inodes: Callable[[], set[int]]
    inodes: set[int] = field(default_factory=set)
    looks: int = 0
    attached: dict[int, set[str]] = field(default_factory=dict)
    exporters: dict[int, str] = field(default_factory=dict)
    mappings: list[str] = field(default_factory=list)

    def look(self) -> None:
        self.looks += 1
        self.inodes |= self.find_inodes()
        for inode, info in bufinfo().items():
            if inode in self.inodes:
                self.attached.setdefault(inode, set()).update(info.attached)
                self.exporters[inode] = info.exporter
        self.mappings += [line for line in cpu_mappings(self.inodes) if line not in self.mappings]

    @contextmanager
    def running(self, period_s: float) -> Iterator[None]:
        """Watch in a thread of its own."""
        stop = threading.Event()

        def loop() -> None:
            while not stop.wait(period_s):
                self.look()

        thread = threading.Thread(target=loop, name='evidence')
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


def _observe(frames: list[dict[str, Any]], entry: InFlight, found: Detections) -> None:
    """
    Compare contents, as an observer of the inference node.

    It runs while the frame is leased, so the camera can't write it. The kernel reads the buffer,
    without the device's IOMMU and without a mapping in any process.
    """
    data, job = entry.frame.data, entry.job
    assert isinstance(job, AxlJob)
    result = VirtualResult.of_job(job, ctypes.sizeof(VirtualResult))
    fence = fence_info(job.fence.fileno())
    frames.append({
        'sequence': data.sequence, 'stamp_ns': data.header.stamp_ns,
        'inodes': [buffer.identity.inode for buffer in data.buffers],
        'strides': [plane.stride for plane in data.planes],
        'rows': [plane.size // plane.stride for plane in data.planes],
        'device_crc': result.crcs(), 'content_crc': kernel_crcs(entry.frame),
        'device_boxes': result.num_boxes, 'published_boxes': len(found),
        'fence_status': fence.status, 'fence_ns': fence.timestamp_ns,
        'fence_latency_ms': (fence.timestamp_ns - entry.received_ns) / 1e6,
        'captured_ns': data.captured_ns,
    })  # fmt: skip


def _figures(frames: list[dict[str, Any]], watch: Watch, trace: str) -> dict[str, Any]:
    submitted = {inode for frame in frames for inode in frame['inodes']}
    span_s = (
        (frames[-1]['captured_ns'] - frames[0]['captured_ns']) / 1e9 if len(frames) > 1 else 0.0
    )
    steps = frames[-1]['sequence'] - frames[0]['sequence'] if frames else 0
    imported = [int(event['inode']) for event in trace_events('axl_dmabuf_import', trace)]
    return {
        'frames': len(frames),
        'camera_fps': round(steps / span_s, 2) if span_s else 0.0,
        'buffers': sorted({len(frame['inodes']) for frame in frames}),
        'strides': sorted({tuple(frame['strides']) for frame in frames}),
        'rows': sorted({tuple(frame['rows']) for frame in frames}),
        'pool_inodes': sorted(watch.inodes),
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
        'traced_submits': len(trace_events('axl_submit', trace)),
        'traced_import_inodes': sorted(set(imported)),
        'left_in_bufinfo': sorted(submitted & set(bufinfo())),
        'left_on_device': live(),
    }


def run_variant(
    variant: Variant, wanted: int, verified: int, options: Sequence[str], readers: int, out: Path
) -> dict[str, Any]:
    """Run until this many frames were checked, and ``zc_verify`` has seen as many as it shall."""
    frames: list[dict[str, Any]] = []
    verifier = None
    with recording():
        with ros() as context, RunningGraph(context, variant) as running:
            running.graph.inference.observers.append(partial(_observe, frames))
            watch = Watch(running.inodes)
            running.start(readers)
            eventually(lambda: len(frames) > 3 or running.problems, PATIENCE_S)
            if verified:
                watched = ['--pid', str(os.getpid()), '--frames', str(verified), *options]
                verifier = Verifier(out, watched)
            with watch.running(PERIOD_S):
                measured = verifier.measured.is_set if verifier else lambda: True
                eventually(
                    lambda: (len(frames) >= wanted and measured()) or running.problems,
                    PATIENCE_S + wanted,
                )
                watch.look()
            nodes = running.figures()
        nodes['processed'] = running.graph.inference.processed
        trace = trace_text()
    verdict = {} if verifier is None else verifier.result()
    out.mkdir(exist_ok=True)
    (out / 'kernel.trace').write_text(trace)
    (out / 'frames.json').write_text(json.dumps(frames))
    kernel = _figures(frames, watch, trace)
    stamps = [frame['stamp_ns'] for frame in frames]
    return {'stamps': stamps, 'verify': verdict, **nodes, **kernel}


def main(arguments: Sequence[str]) -> None:
    """Run the variants in turn; start the slow plain subscriber only for ``zc_verify``."""
    out = Path(os.environ['RIG_OUT'])
    chosen = [argument.split(':') for argument in arguments]
    judged = any(verified != '0' for _, _, verified, *_ in chosen)
    subscriber = plain_subscriber() if judged else None
    results = {}
    for name, frames, verified, *options in chosen:
        began = time.monotonic()
        results[name] = run_variant(
            VARIANTS[name], int(frames), int(verified), options, int(judged), out / name
        )
        took_s = time.monotonic() - began
        print(f'{took_s:7.2f} s  {name}: {results[name]["frames"]} frames', flush=True)
    received = set(json.loads(subscriber.communicate(timeout=60)[0])) if subscriber else set()
    for name, result in results.items():
        result['variant'] = name
        result['received_by_plain_subscriber'] = len(received.intersection(result.pop('stamps')))
        (out / name / 'figures.json').write_text(json.dumps(result, indent=1))
