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

"""The programs written from docs/wire.md alone work with the stock camera and detector."""

from __future__ import annotations

from collections.abc import Callable
import json
import os
from pathlib import Path
import sys
from typing import Any

from link.wire.wire_process import build_consumer, ConsumerProcess, Lines
from nodes.programs import Program
from nodes.ros_kit import ros
import pytest
import rclpy
from rclpy.executors import SingleThreadedExecutor
from waiting import eventually, until

from zc_perception import create_frame_subscription
from zc_perception.link.endpoints import UNMATCHED
from zc_perception.negotiation.constraints import BufferConstraints
from zc_perception.pixel.fourcc import NV12
from zc_perception.pixel.modifier import LINEAR

CAMERA = [
    '--ros-args', '-p', 'camera:=synthetic', '-p', 'width:=64', '-p', 'height:=64',
    '-p', 'framerate:=20.0',
]  # fmt: skip


class PageProcess(Lines):
    """page_consumer.py or page_producer.py, with its sockets in *folder*; notes its lines."""

    def __init__(self, name: str, folder: Path, domain: int, *options: str) -> None:
        self.events: list[dict[str, Any]] = []
        program = Path(__file__).with_name('wire') / f'page_{name}.py'
        super().__init__(
            self.came,
            [sys.executable, program, '--domain', str(domain), *options],
            env={**os.environ, 'ZC_RUNTIME_DIR': str(folder)},
        )

    def came(self, line: str | None) -> None:
        if line and line.endswith('\n'):  # a killed program may leave half a line
            self.events.append(json.loads(line))

    def told(self, event: str, **details: object) -> list[dict[str, Any]]:
        wanted = {'event': event, **details}
        return [each for each in list(self.events) if wanted.items() <= each.items()]

    def wait_for(self, event: str, count: int = 1, **details: object) -> list[dict[str, Any]]:
        self.wait_until(lambda: len(self.told(event, **details)) >= count)
        return self.told(event, **details)

    def wait_for_more(self, event: str, count: int, **details: object) -> None:
        self.wait_for(event, len(self.told(event, **details)) + count, **details)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        until(condition, lambda: self.events[-20:])

    def pixels(self) -> set[tuple[int, ...]]:
        return {(each['sequence'], *each['crcs']) for each in self.told('frame')}


@pytest.fixture
def folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv('ZC_RUNTIME_DIR', str(folder))
    return folder


def camera(domain: int) -> Program:
    return Program('capture_node', *CAMERA, domain=domain).start('ready')


def test_the_consumer_reads_the_stock_camera_as_the_c_consumer_does(
    free_domain: int, folder: Path, tmp_path: Path
) -> None:
    program = build_consumer(tmp_path)
    expected: set[tuple[int, ...]] = set()

    def common() -> set[tuple[int, ...]]:
        sequences = {sequence for sequence, *_ in reader.pixels()}
        return {each for each in expected if each[0] in sequences}

    with camera(free_domain) as stock, PageProcess('consumer', folder, free_domain) as reader:
        publisher = reader.wait_for('welcome')[0]['publisher_id']
        with ConsumerProcess(program, folder / f'{publisher}.sock') as other:

            def enough() -> bool:
                line = other.line()
                expected.add((line['sequence'], *line['crc']))
                return len(expected) >= 60 and len(common()) > 10

            # A slow machine may let one of them miss seconds of frames.
            until(enough, lambda: reader.events[-20:])
            assert stock.interrupt() == 0
            other.result()
    assert common() <= reader.pixels()


def test_a_consumer_that_comes_late_gets_buffers_of_the_layout_that_it_needs(
    free_domain: int, folder: Path
) -> None:
    needs = '--formats', 'NV12', '--offset-align', '65536'
    with camera(free_domain), PageProcess('consumer', folder, free_domain, *needs) as late:
        late.wait_for('noted')
        late.wait_for('frame', 5)
        assert late.told('buffers')[0]['offsets'][1] % 65536 == 0


def test_the_consumer_finds_the_stock_camera_again(free_domain: int, folder: Path) -> None:
    options = '--hold', '2', '--answer', '60'
    with PageProcess('consumer', folder, free_domain, *options) as reader:
        with camera(free_domain) as first:
            reader.wait_for('frame', 10)
            assert first.interrupt() == 0
        reader.wait_for('ended', why='eof')
        with camera(free_domain) as second:
            reader.wait_for('welcome', 2)
            reader.wait_for_more('frame', 5)
            second.process.kill()
        reader.wait_for('ended', 2, why='eof')
        with camera(free_domain):
            reader.wait_for('welcome', 3)
            reader.wait_for_more('frame', 5)
    ends = {each['why'].partition(':')[0] for each in reader.told('ended')}
    assert ends <= {'eof', 'nobody'}, ends


def test_the_stock_detector_takes_frames_of_the_producer(free_domain: int, folder: Path) -> None:
    """Some producers change their buffers; each producer replaces one that was killed."""
    words = ('--ros-args', '-p', 'model:=road', '-p', 'timeout:=20.0')
    program = Program('inference_node', *words, domain=free_domain)
    with program.start('ready') as detector:
        for options in ((), ('--reconfigure', '10')):
            words = '--format', 'YUYV', *options
            with PageProcess('producer', folder, free_domain, *words) as producer:
                publisher = producer.wait_for('announced')[0]['publisher_id']
                producer.wait_for('released', 25, name='inference')
                line = f'link is shared_memory: publisher {publisher[:8]}'
                assert eventually(lambda line=line: line in detector.output), detector.output
                # If the producer's first answer takes more than a second, it is asked again.
                met = [e['event'] for e in list(producer.events) if e.get('name') == 'inference']
                assert 'welcome' not in met[slice(met.index('released'), None)], met
                producer.kill()
        assert eventually(lambda: 'link is unmatched' in detector.output.rpartition(line)[2]), (
            detector.output
        )
        assert detector.interrupt() == 0
    assert 'ERROR' not in detector.output, detector.output


def test_who_is_refused_by_a_producer_without_ros_is_told_that_no_frame_comes(
    free_domain: int, folder: Path
) -> None:
    with PageProcess('producer', folder, free_domain, '--format', 'YUYV') as producer:
        publisher = producer.wait_for('announced')[0]['publisher_id']
        with ros(free_domain) as context:
            node = rclpy.create_node('viewer', context=context)
            needs = BufferConstraints('viewer', formats=((NV12, LINEAR),))
            frames = create_frame_subscription(node, 'image_raw', print, constraints=needs)

            def reason() -> str:
                rclpy.spin_once(node, executor=executor, timeout_sec=0.1)
                return frames.statistics().reason

            executor = SingleThreadedExecutor(context=context)
            until(lambda: 'so no frame comes' in reason())
            assert reason().startswith(f'publisher {publisher[:8]}: ')
            assert frames.statistics().rung == UNMATCHED
            assert not node.count_subscribers('image_raw')
            node.destroy_node()
