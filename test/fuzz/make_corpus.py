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
Writes ``corpus/``: small valid examples of everything that the package reads.

The package's own writers make them. Files named ``found-…`` are inputs that once caused an error,
found by ``run_fuzz.py``; they stay untouched.
"""

from __future__ import annotations

import os
from pathlib import Path
import sys
import tempfile

if __name__ == '__main__':
    _TEST = Path(__file__).resolve().parents[1]
    sys.path[:0] = [str(_TEST), str(_TEST.parent), str(_TEST / 'link' / 'shared_memory')]

from camera.jpeg_kit import FUZZED_SIZE, jpeg, picture, SAMPLINGS, without_tables
from camera.replay_kit import IMAGE, STORE
from fuzz.targets import CORPUS
from mcap.writer import Writer as McapWriter
from memory_link import FrameMessage, make_frame, make_layout, make_pool, pack_frame, PUBLISHER
import numpy as np
from rosbags.rosbag2 import StoragePlugin
from rosbags.rosbag2 import Writer as BagWriter

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

ROOT = Path(__file__).resolve().parents[2]


def packets() -> dict[str, bytes]:
    layout = make_layout()
    return {
        'hello': wire.pack_hello(
            wire.Hello(
                2, 3, 'npu', PUBLISHER, True, Requirements(((NV12, 0), (1, 2)), max_width=64)
            )
        ),
        'hello-options': wire.pack_hello(
            wire.Hello(
                1,
                1,
                requirements=Requirements(
                    ((NV12, 0),), options='heap=dma_heap/linux,cma | udmabuf; cpu=read; contiguous'
                ),
            )
        ),
        'hello-plain': wire.pack_hello(wire.Hello(1, 1)),
        'welcome': wire.pack_welcome(wire.Welcome(4, 1, PUBLISHER)),
        'refused': wire.pack_refused(wire.Refused(RefusalCode.BUSY, 'come back later')),
        'buffers': wire.pack_buffers(
            wire.BuffersMessage(
                7, layout, BT601_LIMITED, BufferKind.MEMFD, (layout.buffer_size(0),)
            )
        ),
        'frame': pack_frame(
            FrameMessage(7, 1, 5, 1000, 1, 2, 3, 0, False), b'camera_optical_frame'
        ),
        'release': wire.pack_release(7, 1, False),
        'retired': wire.pack_retired(7),
    }


def recording() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        recorder, pool = (
            Recorder(Path(folder) / 'a', ledger=CopyLedger()),
            make_pool(4, make_layout(16, 8)),
        )
        for sequence in range(3):
            with make_frame(pool, sequence) as frame:
                recorder.put(frame, '/image_raw')
        recorder.close()
        pool.close()
        path = Path(folder) / 'a' / 'a_0.mcap'
        return path.read_bytes()[: recorder._finished[0][1].end]


def image() -> bytes:
    kinds = STORE.types
    header = kinds['std_msgs/msg/Header'](kinds['builtin_interfaces/msg/Time'](1, 2), 'lens')
    message = kinds[IMAGE](header, 2, 4, 'mono8', 0, 4, np.arange(8, dtype=np.uint8))
    return bytes(STORE.serialize_cdr(message, IMAGE))


def compressed_image() -> bytes:
    kinds = STORE.types
    header = kinds['std_msgs/msg/Header'](kinds['builtin_interfaces/msg/Time'](1, 2), 'lens')
    name = 'sensor_msgs/msg/CompressedImage'
    return bytes(
        STORE.serialize_cdr(kinds[name](header, 'jpeg', np.arange(40, dtype=np.uint8)), name)
    )


def bags() -> tuple[bytes, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        mcap = Path(folder) / 'a.mcap'
        with mcap.open('wb') as file:
            writer = McapWriter(file)
            writer.start('ros2', 'fuzz')
            text = STORE.generate_msgdef(IMAGE)[0]
            schema = writer.register_schema(name=IMAGE, encoding='ros2msg', data=text.encode())
            channel = writer.register_channel('/image', 'cdr', schema)
            writer.add_message(channel, log_time=1, publish_time=1, data=image(), sequence=1)
            writer.finish()
        bag = Path(folder) / 'bag'
        with BagWriter(bag, version=9, storage_plugin=StoragePlugin.SQLITE3) as writer:
            connection = writer.add_connection('/image', IMAGE, typestore=STORE)
            writer.write(connection, 1, image())
        return mcap.read_bytes(), next(bag.glob('*.db3')).read_bytes()


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


def jpegs() -> dict[str, bytes]:
    colours = picture(*FUZZED_SIZE)
    made = {f's{sampling}': jpeg(colours, sampling) for sampling in SAMPLINGS}
    return {**made, 'grey': jpeg(colours[..., 1]), 'bare': without_tables(made['s422'])}


def examples() -> dict[str, dict[str, bytes]]:
    announcement = (
        Announcement(
            PUBLISHER,
            'a' * 32,
            '/run/user/1000/zc_perception/x.sock',
            640,
            480,
            ('NV12',),
            'memfd',
        )
        .to_json()
        .encode()
    )
    mcap, database = bags()
    configurations = {
        path.stem: path.read_bytes()
        for path in sorted((ROOT / 'config').glob('*.yaml'))
        if path.stem in ('sim', 'stereo')
    }
    return {
        'wire': packets(),
        'announcements': {'true': announcement, 'empty': b'{}', 'deep': b'[' * 3000,
                          'surrogate': b'"\\ud800"'},
        'parameters': {**configurations,
                       'alias': b'/**:\n  ros__parameters:\n    a: &x 1\n    b: *x\n',
                       'tag': b'/**:\n  ros__parameters: !!python/none ~\n'},
        'manifests': {**{path.parent.name: path.read_bytes()
                         for path in (ROOT / 'zc_perception' / 'models').glob('*/model.yaml')},
                      'tag': b'!!python/object/apply:os.system [x]\n'},
        'calibrations': {'uncalibrated': format_calibration(uncalibrated(64, 48)).encode(),
                         'opencv': b'%YAML:1.0\n---\nimage_width: 64\n'},
        'recordings': {'true': recording()},
        'bags_mcap': {'true': mcap},
        'bags_sqlite3': {'true': database},
        'images_cdr': {'true': image()},
        'compressed_images_cdr': {'true': compressed_image()},
        'jpegs': jpegs(),
        'frame_logs': {'true': frame_log()},
        'drm_formats': {'linear': b'NV12', 'tiled': b'NV12:0x0100000000000002'},
    }  # fmt: skip


def main() -> None:
    from fuzz.targets import TARGETS

    for target, files in examples().items():
        folder = CORPUS / target
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (folder / f'{name}.{TARGETS[target].suffix}').write_bytes(content)
    print(
        f'{sum(path.is_file() for path in CORPUS.rglob("*"))} files in {os.path.relpath(CORPUS)}'
    )


if __name__ == '__main__':
    main()
