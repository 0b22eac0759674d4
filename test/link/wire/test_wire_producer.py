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

"""The package's producer against client/'s consumer, and consumers that break docs/wire.md."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
import socket
from typing import Any
import zlib

from link.shared_memory.memory_link import all_free, make_frame, make_pool, PUBLISHER, RawPeer
import numpy as np
import pytest
from waiting import until
from wire_process import ConsumerProcess, FRAMES_READ
from wire_raw import RawConsumer
import wire_spec as spec
from wire_violations import INSTEAD, INSTEAD_OF_RELEASE, patched

from zc_perception.frame import Frame
from zc_perception.link.shared_memory.server import SharedMemoryServer

pytestmark = pytest.mark.usefixtures('no_fd_leak')
VERSION, NOT_ALLOWED, CONSTRAINTS, BUSY, RULE, ANOTHER = range(1, 7)


def fill(frame: Frame) -> list[int]:
    source = np.random.default_rng(frame.data.sequence)
    with frame.map(write=True) as planes:
        for plane in planes:
            plane[...] = source.integers(0, 256, plane.shape, np.uint8)
        return [zlib.crc32(plane.tobytes()) for plane in planes]


class Source:
    """A producer of numbered frames."""

    def __init__(self, folder: Path) -> None:
        self.pool = make_pool(8)
        self.server = SharedMemoryServer(
            'camera', PUBLISHER, self.pool, folder=folder, quarantine_timeout_s=0.01
        )
        self.path = self.server.path
        self.sequence = 0

    def _ready(self, names: tuple[str, ...]) -> bool:
        waiting = [found for found in self.server.statistics().consumers if found.name in names]
        return len(waiting) == len(names) and all(
            found.pending == 0 and found.held < found.window for found in waiting
        )

    def publish(self, count: int, *names: str) -> list[dict[str, Any]]:
        """Publish frames once consumers *names* can take them; return the expected lines."""
        told = []
        for _ in range(count):
            until(lambda: self._ready(names), self.server.statistics)
            self.sequence += 1
            with make_frame(self.pool, self.sequence) as frame:
                told.append(
                    {
                        'sequence': self.sequence,
                        'stamp_ns': 1000 + self.sequence,
                        'frame_id': 'camera_optical_frame',
                        'crc': fill(frame),
                    }
                )
                self.server.publish(frame)
        return told

    def close(self) -> None:
        self.server.close()
        assert self.server.counters.internal_errors == 0, self.server.counters.last_internal_error
        until(lambda: all_free(self.pool), self.pool.describe_holders)
        self.pool.close()


@pytest.fixture
def source(folder: Path) -> Iterator[Source]:
    made = Source(folder)
    yield made
    made.close()


def test_frames_arrive_with_the_right_pixels(source: Source, program: Path) -> None:
    options = '--frames', '300', '--publisher', PUBLISHER, '--format', 'NV12:0', '--window', '2'
    with ConsumerProcess(program, source.path, *options, '--name', 'c') as consumer:
        published = source.publish(300, 'c')
        code, frames, summary = consumer.result()
    assert code == FRAMES_READ
    assert [{key: frame[key] for key in published[0]} for frame in frames] == published
    assert {frame['dropped'] for frame in frames} == {0}
    assert (summary['frames'], summary['reconnects']) == (300, 0)
    inodes, uids = ({frame[key] for frame in frames} for key in ('inode', 'uid'))
    assert summary['slots'] == len(inodes) == len(uids) <= 8
    until(lambda: not source.server.consumers, 'its end')
    counted = source.server.statistics()
    assert (counted.taken_back, counted.protocol_errors) == (0, {})


@pytest.mark.parametrize('kind', [*INSTEAD, *INSTEAD_OF_RELEASE])
def test_a_consumer_that_breaks_a_rule_is_refused_and_a_good_one_loses_nothing(
    source: Source, kind: str
) -> None:
    with RawPeer.welcomed(source.path, window=2, name='good') as good:

        def publish(*names: str) -> None:
            source.publish(1, 'good', *names)
            received = good.receive_frame()
            assert (received.sequence, received.dropped) == (source.sequence, 0)
            good.release(received)

        publish()
        with RawConsumer(source.path) as bad:
            bad.begin(kind)
            if kind in INSTEAD_OF_RELEASE:
                publish('bad')
                bad.release_first_frame(kind)
            code, text = bad.refusal()
        assert code == RULE and len(text) > 10, text
        publish()
    until(lambda: not source.server.consumers, 'their end')
    assert sum(source.server.statistics().protocol_errors.values()) == 1


@pytest.mark.parametrize(
    ('options', 'code', 'text'),
    [
        (('--publisher', 'd' * 32), ANOTHER, PUBLISHER),
        (('--format', 'NV12:1', '--format', 'R8:0'), CONSTRAINTS, 'NV12'),
        (('--align', '1:4096'), CONSTRAINTS, '4096'),
    ],
)
def test_what_does_not_fit_is_refused_with_its_reason(
    source: Source, program: Path, options: tuple[str, ...], code: int, text: str
) -> None:
    with ConsumerProcess(program, source.path, *options) as consumer:
        found, reason = consumer.refusal()
    assert found == code and text in reason, reason


BEGIN = spec.MAGIC.to_bytes(4, 'little')
LATER, NOBODYS = BEGIN + b'\2\0\x09\0', BEGIN + b'\2\0\1\0'
LONG_LATER = LATER + bytes(112)
PLAIN, ONE_FORMAT = spec.Hello().pack()[8:], spec.Hello(formats=((spec.NV12, 0),)).pack()
# Packets in place of a HELLO, their number of descriptors, and the refusal's code.
OTHER_HELLOS = {
    'later_as_always': (spec.Hello(min_version=2, max_version=9).pack(), 0, VERSION),
    'later_and_longer': (spec.packet(spec.HELLO, LATER + bytes(range(256))), 0, VERSION),
    'later_and_shortest': (spec.packet(spec.HELLO, LATER), 0, VERSION),
    'later_with_a_field_in_the_header': (spec.packet(spec.HELLO, LONG_LATER, zero=7), 0, VERSION),
    'later_with_descriptors': (spec.packet(spec.HELLO, LONG_LATER), 4, VERSION),
    'later_with_too_many_descriptors': (spec.packet(spec.HELLO, LONG_LATER), 5, RULE),
    'later_with_a_wrong_length': (spec.packet(spec.HELLO, LONG_LATER, length=127), 0, RULE),
    'later_cut_off': (spec.packet(spec.HELLO, LATER[:-1]), 0, RULE),
    'later_with_other_magic': (spec.packet(spec.HELLO, b'ZCLX' + LONG_LATER[4:]), 0, RULE),
    'later_of_another_type': (spec.packet(8, LONG_LATER), 0, RULE),
    'versions_the_wrong_way_round': (spec.packet(spec.HELLO, NOBODYS + PLAIN[8:]), 0, RULE),
    'format_with_a_field': (patched(ONE_FORMAT, 132, 4, 1), 0, RULE),
    **{
        name: (spec.Hello(**fields).pack(), 0, code)
        for name, code, fields in (
            ('id_with_a_gap', RULE, {'publisher_id': b'c\0c'}),
            ('id_that_begins_late', RULE, {'publisher_id': b'\0c'}),
            ('id_not_ascii', RULE, {'publisher_id': 'ü'.encode()}),
            ('id_with_a_line', RULE, {'publisher_id': b'c\n'}),
            ('id_with_a_delete', RULE, {'publisher_id': b'c\x7f'}),
            ('id_of_another', ANOTHER, {'publisher_id': b' ~'}),
            ('most_formats', CONSTRAINTS, {'formats': tuple((n, 0) for n in range(64))}),
            ('too_many_formats', RULE, {'formats': tuple((n, 0) for n in range(65))}),
            ('options_that_do_not_suit', CONSTRAINTS, {'options': b'max_stride=8'}),
            ('options_of_a_later_time', CONSTRAINTS, {'options': b'contiguous; polarised'}),
            ('options_too_long', RULE, {'options': bytes(1025)}),
            ('options_not_utf8', RULE, {'options': b'\xff'}),
            ('name_not_utf8', RULE, {'name': b'\xff'}),
            ('name_with_a_gap', RULE, {'name': b'a\0b'}),
        )
    },
}


@pytest.mark.parametrize('name', OTHER_HELLOS)
def test_other_hellos_are_refused_with_the_code_of_the_page(source: Source, name: str) -> None:
    data, descriptors, code = OTHER_HELLOS[name]
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(60)
        connection.connect(str(source.path))
        socket.send_fds(connection, [data], descriptors * [0])
        answer = connection.recv(spec.MAX_PACKET)
        assert connection.recv(1) == b'', 'the producer closes after it'
    assert spec.HEADER.unpack_from(answer)[:2] == (spec.REFUSED, len(answer))
    assert int.from_bytes(answer[8:12], 'little') == code, answer[12:]


def test_a_later_version_is_spoken_down(source: Source) -> None:
    with RawConsumer(source.path) as later:
        later.say(spec.Hello(max_version=7).pack())
        assert spec.WELCOME_BODY.unpack_from(later.wait_for(spec.WELCOME), 8)[0] == 1
