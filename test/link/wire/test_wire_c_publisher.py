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

"""The producer of client/ against all kinds of consumers, with memory and UB sanitizers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import json
import os
from pathlib import Path
import signal
import socket
import subprocess
import tempfile
import time
from typing import Any
import zlib

from link.shared_memory.memory_link import attempt
from long_form import LONG
import numpy as np
import pytest
from waiting import eventually, until
from wire_builder import build, CHECKED, CLIENT
from wire_process import ConsumerProcess, FRAMES_READ
from wire_raw import GOOD_HELLO, RawConsumer
import wire_spec as spec
from wire_violations import INSTEAD, INSTEAD_OF_RELEASE

from zc_perception.link.shared_memory.client import SharedMemoryClient
from zc_perception.link.shared_memory.protocol import Requirements

pytestmark = pytest.mark.usefixtures('no_fd_leak')
# Changes its buffers each time as its arguments say, and prints the messages that it gets.
RESIZER = r"""
#include <stdio.h>
#include <stdlib.h>
#include "zc_client/zc_publisher.h"
int main(int count, char **words) {
    zc_publisher *camera;
    zc_publisher_options options = {.topic = "/image_raw", .heap = "memfd"};
    if (zc_publisher_open(&options, &camera) != 0) return 1;
    for (int i = 1; i < count; i++) {
        zc_image images[16];
        void *memory;
        zc_image *one = &images[0];
        if (zc_image_linear(one, ZC_FOURCC('N', 'V', '1', '2'), 64, 48, 1, 1) != 0) return 2;
        one->kind = ZC_MEMFD, one->matrix = ZC_BT709;
        one->range = ZC_LIMITED, one->transfer = ZC_TRANSFER_BT709;
        if ((one->fds[0] = zc_memfd("resizer", one->buffer_size[0], &memory)) < 0) return 3;
        for (int k = 1; k < atoi(words[i]); k++) images[k] = images[0];
        int refused = zc_publisher_set_buffers(camera, images, (size_t)atoi(words[i]));
        puts(refused ? zc_error() : "taken");
    }
    zc_publisher_close(camera);
}
"""
TOPIC, RATE, SIZE = '/image_raw', 100, (64, 48)
NOT_ALLOWED, CONSTRAINTS, BUSY, RULE, ANOTHER = range(2, 7)


class Bar:
    """The program ``moving_bar``; at the context's end it must exit without an error."""

    def __init__(
        self, program: Path, folder: Path, *, buffers: int = 12, rate: int = RATE
    ) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [program, TOPIC, *map(str, SIZE), str(rate), '0', str(buffers)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, 'ZC_RUNTIME_DIR': str(folder)},
        )

    def announcement(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        return dict(json.loads(self.process.stdout.readline()))

    @property
    def path(self) -> Path:
        """Wait until it listens, and return its socket's path."""
        return Path(until(lambda: list(self.folder.glob('*.sock')), 'it listens')[0])

    def descriptors(self) -> int:
        return len(os.listdir(f'/proc/{self.process.pid}/fd'))

    def end(self) -> str:
        """End it, and return its stderr, where the sanitizers report leaks."""
        self.process.send_signal(signal.SIGTERM)
        errors = self.process.communicate(timeout=60)[1]
        assert self.process.returncode == 0, errors
        return errors

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *exception: object) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture(scope='session')
def bar_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp('bar') / 'moving_bar'
    return build(target, CLIENT / 'examples' / 'moving_bar.c', flags=CHECKED)


@pytest.fixture
def bar(bar_program: Path, folder: Path) -> Iterator[Bar]:
    with Bar(bar_program, folder) as running:
        running.announcement()
        yield running


def right_crcs(sequence: int) -> list[int]:
    width, height = SIZE
    row, at = np.full(width, 60, np.uint8), sequence * 4 % width
    row[slice(at, at + 16)] = 200
    return [zlib.crc32(row.tobytes() * height), zlib.crc32(bytes([128]) * width * (height // 2))]


def check(frames: list[dict[str, Any]], summary: dict[str, Any]) -> None:
    """Check order and pixels of one connection's frames; lost ones must have been reported."""
    numbers = [frame['sequence'] for frame in frames]
    assert [frame['crc'] for frame in frames] == [right_crcs(number) for number in numbers]
    assert numbers[-1] - numbers[0] + 1 - len(numbers) == sum(f['dropped'] for f in frames[1:])
    assert summary['reconnects'] == 0


def test_frames_arrive_with_the_right_pixels_in_the_same_memory(program: Path, bar: Bar) -> None:
    with ConsumerProcess(program, bar.path, '--frames', '200', '--window', '2') as consumer:
        code, frames, summary = consumer.result()
    assert code == FRAMES_READ and len(frames) == 200
    check(frames, summary)
    assert len({frame['inode'] for frame in frames}) == summary['slots'] <= 12
    assert ', 0 had no free slot' in bar.end()
    assert not list(bar.folder.iterdir())


def test_the_consumer_finds_it_by_its_topic_before_and_after_a_kill(
    program: Path, bar_program: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('ZC_RUNTIME_DIR', str(folder))
    command = [program, '--topic', TOPIC, '--reconnect', '--frames', '60']
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as consumer:
        assert consumer.stdout is not None
        for kill in range(3):
            with Bar(bar_program, folder) as bar:
                lines = [json.loads(consumer.stdout.readline()) for _ in range(20)]
                assert all(line['crc'] == right_crcs(line['sequence']) for line in lines), kill
        summary = json.loads(consumer.stdout.readline())
        assert consumer.wait(60) == 0 and summary['reconnects'] == 2
    with Bar(bar_program, folder) as bar:
        bar.announcement()
        assert len(list(folder.glob('*.sock'))) == 1, 'those of the killed ones are removed'
        bar.end()


@pytest.fixture(scope='module')
def survivor(bar_program: Path) -> Iterator[Bar]:
    """Yield one producer for all bad consumers; it must exit without an error."""
    with (
        tempfile.TemporaryDirectory(prefix='zc-') as name,
        Bar(bar_program, Path(name)) as running,
    ):
        running.announcement()
        yield running
        running.end()


@pytest.mark.parametrize('kind', [*INSTEAD, *INSTEAD_OF_RELEASE])
def test_a_consumer_that_breaks_a_rule_is_refused_and_a_good_one_goes_on(
    program: Path, survivor: Bar, kind: str
) -> None:
    with ConsumerProcess(program, survivor.path, '--frames', '20', '--window', '2') as good:
        before = good.line()
        with RawConsumer(survivor.path) as bad:
            bad.begin(kind)
            if kind in INSTEAD_OF_RELEASE:
                bad.release_first_frame(kind)
            code, text = bad.refusal()
        assert code == RULE and len(text) > 10, text
        result, frames, summary = good.result()
    assert result == FRAMES_READ
    check([before, *frames], summary)


def test_kills_with_frames_held_cost_the_witness_nothing(program: Path, bar: Bar) -> None:
    kills = 250 if LONG else 20
    with ConsumerProcess(program, bar.path, '--window', '2') as witness:
        first = witness.line()
        before = None
        for number in range(kills):
            with ConsumerProcess(program, bar.path, '--hold', '--window', '3') as victim:
                victim.line()
                victim.process.kill()
                victim.process.wait()
            if number == 5:
                before = bar.descriptors()
        assert before is not None and eventually(lambda: bar.descriptors() <= before + 2)
        witness.process.send_signal(signal.SIGSTOP)
        time.sleep(0.1)
        witness.process.send_signal(signal.SIGCONT)
        bar.end()
        _, frames, summary = witness.result()
    check([first, *frames[:-1]], summary)


@pytest.mark.parametrize(
    ('options', 'code', 'text'),
    [
        (('--publisher', 'd' * 32), ANOTHER, 'another publisher'),
        (('--format', 'YUYV:0'), CONSTRAINTS, 'NV12'),
        (('--align', '4096:1'), CONSTRAINTS, '4096'),
        (('--options', 'cpu=read; min_size=65x1'), CONSTRAINTS, 'min_size'),
        (('--options', 'polarised'), CONSTRAINTS, 'polarised'),
    ],
)
def test_what_does_not_fit_is_refused_with_its_reason(
    program: Path, bar: Bar, options: tuple[str, ...], code: int, text: str
) -> None:
    with ConsumerProcess(program, bar.path, *options) as consumer:
        found, reason = consumer.refusal()
    assert found == code and text in reason, reason


@pytest.mark.parametrize(
    ('need', 'keeps'),
    [
        (Requirements(stride_align=64), lambda image: image.planes[0].stride % 64 == 0),
        (Requirements(offset_align=4096), lambda image: image.planes[1].offset % 4096 == 0),
        (Requirements(options='cpu=read; one_buffer'), lambda image: image.num_buffers == 1),
    ],
)
def test_a_consumer_that_is_there_first_is_heard_first(
    bar_program: Path, folder: Path, need: Requirements, keeps: Callable[[Any], bool]
) -> None:
    """The package's own consumer must wait for it, too."""
    with (
        Bar(bar_program, folder) as bar,
        SharedMemoryClient(bar.path, name='first', window=1, requirements=need) as client,
    ):
        attempt(client)
        frame = until(client.receive, lambda: client.last_end)
        with frame:
            assert keeps(frame.data.layout)
        bar.end()


def test_fewer_buffers_than_consumers_were_promised_are_refused(
    tmp_path: Path, folder: Path
) -> None:
    source = tmp_path / 'resizer.c'
    source.write_text(RESIZER, encoding='utf-8')
    program = build(tmp_path / 'resizer', source, flags=CHECKED)
    words, here = [program, '6', '5', '3', '6', '8'], {'ZC_RUNTIME_DIR': str(folder)}
    done = subprocess.run(
        words, capture_output=True, text=True, env=os.environ | here, check=False
    )
    said = done.stdout.splitlines()
    assert done.returncode == 0 and [said[0], *said[3:]] == ['taken'] * 3, done
    assert 'there are 5 buffers; give 6 at least, as before' in said[1]
    assert 'there are 3 buffers; give 4 to 256' in said[2]


def test_more_consumers_than_there_are_slots_hear_that_it_is_busy(
    program: Path, bar_program: Path, folder: Path
) -> None:
    with Bar(bar_program, folder, buffers=4) as bar:
        bar.announcement()
        with ConsumerProcess(program, bar.path, '--window', '8', '--depth', '8') as first:
            first.line()
            with ConsumerProcess(program, bar.path) as second:
                code, text = second.refusal()
            assert code == BUSY and '4 of 4 slots' in text


def test_random_bytes_end_the_connection_that_sent_them_and_no_other(
    program: Path, bar: Bar
) -> None:
    rng = np.random.default_rng(1)
    right = [GOOD_HELLO, spec.release(1, 1), spec.packet(spec.REFUSED, b'\3\0\0\0no')]
    with ConsumerProcess(program, bar.path, '--window', '2') as witness:
        for _ in range(50_000 if LONG else 2_000):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
                peer.connect(str(bar.path))
                for packet in rng.permutation(len(right))[: rng.integers(1, 4)]:
                    data = bytearray(right[packet])
                    for _ in range(rng.integers(0, 4)):
                        data[rng.integers(len(data))] = rng.integers(256)
                    try:
                        peer.send(data)
                    except (BrokenPipeError, ConnectionResetError):
                        break
        bar.end()
        _, frames, summary = witness.result()
    check(frames[:-1], summary)
