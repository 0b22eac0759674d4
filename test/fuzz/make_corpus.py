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
Writes the files of ``corpus/`` whose formats are this package's own, by its own writers.

The other files stay: examples of foreign formats, and ``found-…``, inputs that once caused an
error, found by ``run_fuzz.py``.
"""

from __future__ import annotations

from pathlib import Path
import sys
import tempfile

if __name__ == '__main__':
    _TEST = Path(__file__).resolve().parents[1]
    sys.path[:0] = [str(_TEST), str(_TEST.parent), str(_TEST / 'link' / 'shared_memory')]

from fuzz.run_fuzz import CORPUS, TARGETS
from memory_link import FrameMessage, make_frame, make_layout, make_pool, pack_frame, PUBLISHER

from zc_perception.camera.calibration import format_calibration, uncalibrated
from zc_perception.camera.recording import Recorder
from zc_perception.link.announcement import Announcement
from zc_perception.link.shared_memory import wire
from zc_perception.link.shared_memory.protocol import RefusalCode, Requirements
from zc_perception.memory.dmabuf import BufferKind
from zc_perception.memory.ledger import CopyLedger
from zc_perception.observe.frame_log import FrameLog, RECORD_SIZE, RING_OFFSET
from zc_perception.pixel.colorimetry import BT601_LIMITED
from zc_perception.pixel.fourcc import NV12


def packets() -> dict[str, bytes]:
    layout = make_layout()
    formats = Requirements(((NV12, 0), (1, 2)), max_width=64)
    options = 'heap=dma_heap/linux,cma | udmabuf; cpu=read; contiguous'
    picky = wire.Hello(1, 1, requirements=Requirements(((NV12, 0),), options=options))
    sizes = (layout.buffer_size(0),)
    buffers = wire.BuffersMessage(7, layout, BT601_LIMITED, BufferKind.MEMFD, sizes)
    frame = FrameMessage(7, 1, 5, 1000, 1, 2, 3, 0, False)
    return {
        'hello': wire.pack_hello(wire.Hello(2, 3, 'npu', PUBLISHER, True, formats)),
        'hello-options': wire.pack_hello(picky),
        'hello-plain': wire.pack_hello(wire.Hello(1, 1)),
        'welcome': wire.pack_welcome(wire.Welcome(4, 1, PUBLISHER)),
        'refused': wire.pack_refused(wire.Refused(RefusalCode.BUSY, 'come back later')),
        'buffers': wire.pack_buffers(buffers),
        'frame': pack_frame(frame, b'camera_optical_frame'),
        'release': wire.pack_release(7, 1, False),
        'retired': wire.pack_retired(7),
    }


def recording() -> bytes:
    pool = make_pool(4, make_layout(16, 8))
    with tempfile.TemporaryDirectory() as folder:
        recorder = Recorder(Path(folder) / 'a', ledger=CopyLedger())
        for sequence in range(3):
            with make_frame(pool, sequence) as frame:
                recorder.put(frame, '/image_raw')
        recorder.close()
        pool.close()
        path = Path(folder) / 'a' / 'a_0.mcap'
        return path.read_bytes()[: recorder._finished[0][1].end]


def announcement() -> bytes:
    path = '/run/user/1000/zc_perception/x.sock'
    made = Announcement(PUBLISHER, 'a' * 32, path, 640, 480, ('NV12',), 'memfd')
    return made.to_json().encode()


def frame_log() -> bytes:
    pool = make_pool(2)
    with FrameLog('capture', '/capture') as log:
        log.describe({'heap': 'memfd', 'published': 2})
        for sequence in range(2):
            with make_frame(pool, sequence) as frame:
                log.published(frame, 1, 2)
        assert log._open is not None
        content = bytes(log._open[0][: RING_OFFSET + 2 * RECORD_SIZE])
    pool.close()
    return content.rstrip(b'\0')


def main() -> None:
    made = {
        'wire': packets(),
        'announcements': {'true': announcement()},
        'calibrations': {'uncalibrated': format_calibration(uncalibrated(64, 48)).encode()},
        'recordings': {'true': recording()},
        'frame_logs': {'true': frame_log()},
    }
    for target, files in made.items():
        for name, content in files.items():
            (CORPUS / target / f'{name}.{TARGETS[target].suffix}').write_bytes(content)


if __name__ == '__main__':
    main()
