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

"""The graphs that run in the rig: cameras, memory and layouts, as data for guest and tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

WIDTH, HEIGHT, FRAMERATE = 640, 360, 30.0
SLOTS, IN_FLIGHT = 12, 2

#: The instances of vivid, by API and memory: from vmalloc, or from the DMA API.
SINGLE, MULTI, SINGLE_DMA, MULTI_DMA = (f'/dev/video{number}' for number in range(4))
DEVICES = {'single': SINGLE, 'multi': MULTI, 'single_dma': SINGLE_DMA, 'multi_dma': MULTI_DMA}
EXPORTERS = {
    name: 'videobuf2_dma_contig' if name.endswith('_dma') else 'videobuf2_vmalloc'
    for name in DEVICES
}
VIVID = 'n_devs=4 node_types=0x1,0x1,0x1,0x1 multiplanar=1,2,1,2 allocators=0,0,1,1'
# vivid reaches only memory below 4 GiB; higher pages are bounced, which is a copy in the kernel.
MEMORY_MIB = 2560

# By default vivid stamps the end of the frame, which is in the future; 1 is the start of exposure.
VIVID_START_OF_EXPOSURE = 1
_V4L2 = {
    'camera': 'v4l2', 'device': SINGLE, 'width': WIDTH, 'height': HEIGHT, 'framerate': FRAMERATE,
    'slots': SLOTS, 'controls.timestamp_source': VIVID_START_OF_EXPOSURE,
}  # fmt: skip
# Rows of any size, which the webcam input lacks: the HDMI input scales.
_SCALED = {
    **_V4L2, 'device': SINGLE_DMA, 'input': 3, 'pixel_format': 'NV12', 'framerate': 0.0,
    'slots': 8,
}  # fmt: skip
#: Slow enough to leave the guest time for the watching processes.
_CALM = {**_V4L2, 'framerate': 5.0}


@dataclass(frozen=True)
class Variant:
    """
    One run of the graph.

    :param frames: minimum number of frames, all of which are checked.
    :param cached: whether the accelerator keeps its imports.
    :param capture: parameters of the capture node.
    :param strides: required strides of the planes.
    :param rows: required rows of each plane's memory.
    :param buffers: memory buffers of a frame.
    :param verified: minimum number of frames that ``zc_verify`` checks, which slows the guest
        down; 0: none.
    :param drawn: whether the CPU draws the camera's pixels; then a mapping is no fault.
    :param timeout: of a job, in seconds; a guest that pauses gives up no job.
    :param keep_all: whether every frame must be processed: a guest that is slow for a moment
        catches up from the queue.
    """

    frames: int
    cached: bool
    capture: Mapping[str, Any] = field(default_factory=dict)
    strides: tuple[int, int] = (WIDTH, WIDTH)
    rows: tuple[int, int] = (HEIGHT, HEIGHT // 2)
    buffers: int = 1
    verified: int = 0
    drawn: bool = False
    keep_all: bool = True
    timeout: float = 60.0

    def inference(self, model: str) -> dict[str, Any]:
        """Return parameters of the inference node."""
        return {
            'accelerator': 'axl', 'model': model, 'import_cache': self.cached,
            'in_flight': IN_FLIGHT, 'keep_all': self.keep_all, 'timeout': self.timeout,
        }  # fmt: skip


# The runs of ``make rig``. The document's literal four need a second attachment (vivid's own) on a
# buffer of the system heap. vivid takes that only if it is contiguous: if it fills a 1 MiB block
# of the page allocator to its last page.
RUNS: dict[str, Variant] = {
    'cached': Variant(300, True, _CALM, verified=8, keep_all=False),
    'uncached': Variant(60, False, _CALM, verified=8, keep_all=False),
    'document': Variant(
        60,
        False,
        {
            **_SCALED, 'memory': 'import', 'heap': 'dma_heap/system', 'width': 1248, 'height': 560,
        },
        strides=(1248, 1248), rows=(560, 280), verified=8, keep_all=False,
    ),
}  # fmt: skip

# Pixels as the device sees them, in every layout that an NV12 frame can have. vivid pads rows but
# not between planes.
LAYOUTS: dict[str, Variant] = {
    'two_buffers': Variant(
        30, True, {**_V4L2, 'device': MULTI, 'pixel_format': 'NM12'}, buffers=2
    ),
    'padded_both_ways': Variant(
        30,
        False,
        {
            'camera': 'synthetic', 'pattern': 'counter', 'width': WIDTH, 'height': 270,
            'framerate': 15.0, 'heap': 'dma_heap/system', 'slots': 6,
            'participants': ['large: NV12; height_align=32; stride_align=1024'],
        },
        strides=(1024, 1024), rows=(288, 144), drawn=True,
    ),
}  # fmt: skip
VARIANTS = {**RUNS, **LAYOUTS}

#: For checks of time instead of frames: each frame takes the guest a tenth of a second.
SLOW_FPS = 2
SLOW = {**_V4L2, 'framerate': float(SLOW_FPS)}
SPLIT = {**_SCALED, 'width': 1366, 'height': 768}
