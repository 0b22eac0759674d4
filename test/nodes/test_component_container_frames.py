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
Frames of a loaded camera go to a loaded accelerator.

They are the same memory, or messages where that is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from nodes.container_kit import Client, client, Container, install
import pytest
from waiting import until

from zc_perception.link.rungs import IN_PROCESS, ROS_MESSAGE
from zc_perception.observe.frame_log import find_frame_logs, FoundFrameLogs, RecordKind

SMALL = {'width': 160, 'height': 120, 'framerate': 60.0}
CPU = {'accelerator': 'onnx'}
FRAMES = 20
DDS = {'use_intra_process_comms': False}


@pytest.fixture
def container(free_domain: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    with Container(
        install(tmp_path_factory.mktemp('packages')),
        free_domain,
        program='component_container_mt',
        cold=True,
    ) as running:
        yield running


@pytest.fixture
def ours(container: Container, free_domain: int) -> Iterator[Client]:
    with client(free_domain) as made:
        yield made


class Logs:
    """The frame logs of the container's nodes, read from outside of it."""

    def __init__(self, container: Container) -> None:
        self._pid = container.pid
        self.records: dict[str, dict[int, Any]] = {'capture': {}, 'inference': {}}
        self.facts: dict[str, dict[str, Any]] = {}

    def read(self) -> int:
        """How many frames are in both."""
        with self._find() as logs:
            for log in logs:
                self.facts[log.role] = log.facts()
                done = RecordKind.PUBLISHED if log.role == 'capture' else RecordKind.PROCESSED
                self.records[log.role] |= {
                    record.sequence: record for record in log.read() if record.kind == done
                }
        return len(self.both())

    def _find(self) -> FoundFrameLogs:
        return find_frame_logs(pids=[self._pid])

    def both(self) -> list[int]:
        """Sequence numbers that the camera has published and the accelerator has processed."""
        return sorted(self.records['capture'].keys() & self.records['inference'].keys())


def load_both(ours: Client, order: tuple[str, str], **options: Any) -> dict[str, int]:
    parameters = {'CaptureNode': SMALL, 'InferenceNode': CPU}
    return {
        name: ours.loaded(name, 'ours', parameters=parameters[name], **options) for name in order
    }


@pytest.mark.parametrize(
    'order',
    [
        pytest.param(('CaptureNode', 'InferenceNode'), marks=pytest.mark.long),
        ('InferenceNode', 'CaptureNode'),
    ],
)
def test_frames_pass_as_the_same_memory_whichever_was_loaded_first(
    order: tuple[str, str], container: Container, ours: Client
) -> None:
    ids = load_both(ours, order)
    logs = Logs(container)
    until(
        lambda: logs.read() >= FRAMES and logs.facts['inference'].get('rung') == IN_PROCESS,
        'frames through both',
    )
    for sequence in logs.both():
        published, processed = (
            logs.records['capture'][sequence],
            logs.records['inference'][sequence],
        )
        assert (published.st_dev, published.inodes, published.buffer_uid) == (
            processed.st_dev,
            processed.inodes,
            processed.buffer_uid,
        )
    assert all(record.inodes and all(record.inodes) for record in logs.records['capture'].values())
    pool = {inode for _, inode in logs.facts['capture']['pool']}
    assert {logs.records['inference'][sequence].inodes[0] for sequence in logs.both()} <= pool
    assert (logs.facts['capture']['conversions'], logs.facts['inference']['conversions']) == (0, 0)
    assert ours.unload(ids['InferenceNode']).success
    assert ours.unload(ids['CaptureNode']).success
    with find_frame_logs(pids=[container.pid]) as left:
        assert list(left) == []
    assert container.end() == 0
    assert 'left behind' not in container.output
    assert 'Traceback' not in container.output


@pytest.mark.parametrize(
    'forced', ['CaptureNode', pytest.param('InferenceNode', marks=pytest.mark.long)]
)
def test_without_in_process_communication_it_is_messages(
    forced: str, container: Container, ours: Client
) -> None:
    for name, parameters in (('CaptureNode', SMALL), ('InferenceNode', CPU)):
        ours.loaded(name, 'ours', parameters=parameters, extra=DDS if name == forced else None)
    logs = Logs(container)
    until(
        lambda: (
            logs.read() is not None and logs.facts.get('inference', {}).get('conversions', 0) >= 5
        ),
        'frames by messages',
    )
    assert logs.facts['inference']['rung'] == ROS_MESSAGE
    assert container.end() == 0


def test_cycles_of_the_package_s_own_components_leave_nothing(
    container: Container, ours: Client
) -> None:
    logs = Logs(container)

    def no_more(descriptors: int, threads: int) -> bool:
        return container.descriptors() <= descriptors and len(container.threads()) <= threads

    def cycle() -> None:
        ids = load_both(ours, ('CaptureNode', 'InferenceNode'))
        logs.records = {'capture': {}, 'inference': {}}
        until(lambda: logs.read() >= 3, 'frames through both')
        for name in ('CaptureNode', 'InferenceNode'):
            assert ours.unload(ids[name]).success

    for _ in range(3):
        cycle()
    descriptors, threads, resident = (
        container.descriptors(),
        len(container.threads()),
        container.resident_bytes(),
    )
    for _ in range(10):
        for _ in range(5):
            cycle()
        # A descriptor that ends with its last reference may wait for the garbage collector, which
        # no idle process runs.
        with suppress(AssertionError):
            until(partial(no_more, descriptors, threads), 'no more than before', 3.0)
            break
        # What is made once for the whole process, when it is needed first, stays; what leaks is
        # more after the next cycles.
        descriptors, threads = container.descriptors(), len(container.threads())
    else:
        raise AssertionError(
            f'{container.descriptors()} descriptors, {container.threads()}; before: '
            f'{descriptors}, {threads}'
        )
    assert container.resident_bytes() - resident < 40 << 20
    until(
        lambda: 'memfd:' not in Path(f'/proc/{container.pid}/maps').read_text(),
        'no frame and no log is mapped',
    )
    assert container.end() == 0
    assert 'left behind' not in container.output
