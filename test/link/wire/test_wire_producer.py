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
The package's producer, in a process of its own, against client/.

Neither knows more of the other than what docs/wire.md says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import os
from pathlib import Path
import re
import socket
import tempfile
from typing import Any

import pytest
from wire_process import ConsumerProcess, FRAMES_READ
from wire_producer import ProducerProcess
from wire_raw import GOOD_HELLO, RawConsumer
import wire_spec as spec
from wire_violations import INSTEAD, INSTEAD_OF_RELEASE

pytestmark = pytest.mark.usefixtures('no_fd_leak')
Start = Callable[..., ConsumerProcess]
StartProducer = Callable[..., ProducerProcess]
VERSION, NOT_ALLOWED, CONSTRAINTS, BUSY, RULE, ANOTHER = range(1, 7)


@pytest.fixture
def start_producer(folder: Path) -> Iterator[StartProducer]:
    """Start producers; the newest is at ``folder / 'newest'``, as its announcement would tell."""
    running: list[ProducerProcess] = []

    def run(publisher_id: str = 'a' * 32, **options: int) -> ProducerProcess:
        running.append(ProducerProcess(folder, publisher_id, **options))
        newer = folder / 'newer'
        newer.symlink_to(running[-1].path)
        newer.rename(folder / 'newest')
        return running[-1]

    yield run
    for producer in running:
        producer.__exit__()


@pytest.fixture
def start(program: Path, folder: Path) -> Iterator[Start]:
    running: list[ConsumerProcess] = []

    def run(*options: str) -> ConsumerProcess:
        running.append(ConsumerProcess(program, folder / 'newest', *options))
        return running[-1]

    yield run
    for consumer in running:
        consumer.__exit__()


def told(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of a consumer's lines what the producer knows too."""
    return [
        {key: line[key] for key in ('sequence', 'stamp_ns', 'frame_id', 'crc')} for line in lines
    ]


def test_a_thousand_frames_arrive_with_the_right_pixels(
    start_producer: StartProducer, start: Start
) -> None:
    producer = start_producer()
    consumer = start(
        '--frames',
        '1000',
        '--publisher',
        producer.publisher_id,
        '--name',
        'c',
        '--format',
        'NV12:0',
        '--window',
        '2',
    )
    published = producer.publish(1000, 'c')
    code, frames, summary = consumer.result()
    assert code == FRAMES_READ
    assert told(frames) == published
    assert {frame['dropped'] for frame in frames} == {0}
    assert (summary['frames'], summary['reconnects']) == (1000, 0)
    assert (
        summary['slots']
        == len({frame['inode'] for frame in frames})
        == len({frame['uid'] for frame in frames})
        <= 8
    )
    producer.wait_for('consumers', 0)
    statistics = producer.statistics()
    assert (
        statistics['taken_back'],
        statistics['protocol_errors'],
        statistics['internal_errors'],
    ) == (0, {}, 0)
    producer.close()


@pytest.mark.parametrize('orderly', [True, False])
def test_a_restart_of_the_producer_is_survived(
    start_producer: StartProducer, start: Start, orderly: bool
) -> None:
    first = start_producer('a' * 32)
    consumer = start('--frames', '20', '--name', 'c', '--reconnect')
    published = first.publish(10, 'c')
    lines = [consumer.line() for _ in range(10)]
    first.close() if orderly else first.kill()
    published += start_producer('b' * 32).publish(10, 'c')
    code, rest, summary = consumer.result()
    assert code == FRAMES_READ
    assert told(lines + rest) == published
    assert summary['reconnects'] == 1


def test_frames_stay_readable_after_the_producer_was_killed(
    start_producer: StartProducer, start: Start
) -> None:
    producer = start_producer()
    consumer = start('--hold', '--window', '3', '--depth', '1', '--name', 'c')
    producer.publish(3, 'c')
    for _ in range(3):
        consumer.line()
    producer.kill()
    code, _, summary = consumer.result()
    assert (code, summary['reread']) == (FRAMES_READ, 3)


def test_what_a_slow_consumer_loses_is_told(start_producer: StartProducer, start: Start) -> None:
    """
    A consumer that holds its window gets no more; once it has ended, another gets all.

    No other consumer loses a frame.
    """
    producer = start_producer()
    quick = start('--name', 'quick', '--frames', '40')
    slow = start('--name', 'slow', '--hold', '--window', '2')
    published = producer.publish(2, 'quick', 'slow') + producer.publish(28, 'quick')
    assert [slow.line()['sequence'] for _ in range(2)] == [1, 2]
    by_name = {found['name']: found for found in producer.statistics()['consumers']}
    assert (by_name['slow']['held'], by_name['slow']['pending'], by_name['slow']['dropped']) == (
        2,
        1,
        27,
    )
    slow.process.kill()
    producer.wait_for('consumers', 1)
    published += producer.publish(10, 'quick')
    code, frames, _ = quick.result()
    assert code == FRAMES_READ and told(frames) == published
    assert producer.statistics()['taken_back'] >= 2


def test_drops_are_counted_in_the_next_frame(start_producer: StartProducer) -> None:
    """With a window of 1 and a depth of 1 out of 10 frames the first and the newest come."""
    producer = start_producer()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(60)
        connection.connect(str(producer.path))
        connection.send(spec.Hello(window=1, depth=1, name=b'raw').pack())
        producer.publish(1, 'raw')
        producer.publish(9)
        frames = []
        while len(frames) < 2:
            data, fds, _, _ = socket.recv_fds(connection, spec.MAX_PACKET, 4)
            for fd in fds:
                os.close(fd)
            if spec.HEADER.unpack_from(data)[0] == spec.FRAME:
                frames.append(spec.FRAME_BODY.unpack_from(data, 8))
                connection.send(spec.release(*frames[-1][:2]))
    assert [(sequence, dropped) for _, _, sequence, _, _, _, _, dropped, _ in frames] == [
        (1, 0),
        (10, 8),
    ]


def test_a_late_joiner_gets_the_history_that_it_asked_for(
    start_producer: StartProducer, start: Start
) -> None:
    producer = start_producer(history=2)
    published = producer.publish(5)
    late = start('--history', '--frames', '2', '--window', '1', '--depth', '2')
    code, frames, _ = late.result()
    assert code == FRAMES_READ and told(frames) == published[-2:]
    other = start('--frames', '1', '--name', 'other')
    published = producer.publish(1, 'other')
    assert told(other.result()[1]) == published


def test_slots_whose_place_others_take_are_retired(
    start_producer: StartProducer, start: Start
) -> None:
    producer = start_producer()
    consumer = start('--frames', '20', '--name', 'c')
    published = producer.publish(10, 'c')
    producer.ask('replace')
    published += producer.publish(10, 'c')
    code, frames, _ = consumer.result()
    assert code == FRAMES_READ and told(frames) == published
    earlier = {frame['uid'] for frame in frames[:10]}
    assert earlier and not earlier & {frame['uid'] for frame in frames[10:]}


@pytest.fixture(scope='module')
def living_producer() -> Iterator[Callable[[], ProducerProcess]]:
    """
    Yield one producer that all of the bad consumers meet, one after the other.

    There is another one only where it didn't survive.
    """
    running: list[ProducerProcess] = []

    def living() -> ProducerProcess:
        if not running or running[-1].process.poll() is not None:
            running.append(ProducerProcess(Path(folder), 'c' * 32, slots=16))
        return running[-1]

    with tempfile.TemporaryDirectory(prefix='zc_wire_') as folder:
        living()  # before the tests count descriptors
        yield living
        for producer in running:
            producer.__exit__()


@pytest.mark.parametrize('kind', [*INSTEAD, *INSTEAD_OF_RELEASE])
def test_a_consumer_that_breaks_a_rule_is_refused_and_a_good_one_loses_nothing(
    living_producer: Callable[[], ProducerProcess], program: Path, kind: str
) -> None:
    producer = living_producer()
    before = producer.statistics()
    with ConsumerProcess(program, producer.path, '--name', 'good', '--frames', '6') as good:
        published = producer.publish(2, 'good')
        with RawConsumer(producer.path) as bad:
            bad.begin(kind)
            if kind in INSTEAD_OF_RELEASE:
                published += producer.publish(1, 'good', 'bad')
                bad.release_first_frame(kind)
            code, text = bad.refusal()
        assert code == RULE and len(text) > 10, text
        published += producer.publish(6 - len(published), 'good')
        result, frames, _ = good.result()
    assert result == FRAMES_READ and told(frames) == published
    assert {frame['dropped'] for frame in frames} == {0}
    producer.wait_for('consumers', 0)
    after = producer.statistics()
    assert sum(after['protocol_errors'].values()) == sum(before['protocol_errors'].values()) + 1
    assert after['internal_errors'] == 0, after['last_internal_error']


@pytest.mark.parametrize('kind', ['never-read', 'never-release', 'empty-packet'])
def test_a_consumer_that_only_takes_costs_the_others_nothing(
    living_producer: Callable[[], ProducerProcess], program: Path, kind: str
) -> None:
    producer = living_producer()
    with (
        ConsumerProcess(program, producer.path, '--name', 'good', '--frames', '100') as good,
        RawConsumer(producer.path) as bad,
    ):
        bad.say(b'' if kind == 'empty-packet' else GOOD_HELLO)
        published = [] if kind == 'empty-packet' else producer.publish(1, 'good', 'bad')
        if kind == 'never-release':
            bad.wait_for(spec.FRAME)
        published += producer.publish(100 - len(published), 'good')
        code, frames, _ = good.result()
    assert code == FRAMES_READ and told(frames) == published
    producer.wait_for('consumers', 0)


@pytest.mark.parametrize(
    ('options', 'code', 'text'),
    [
        (('--publisher', 'd' * 32), ANOTHER, 'c' * 32),
        (('--format', 'YUYV:0'), CONSTRAINTS, 'NV12'),
        (('--format', 'NV12:1', '--format', 'R8:0'), CONSTRAINTS, 'NV12'),
        (('--memory', 'dmabuf'), CONSTRAINTS, 'memfd'),
        (('--align', '4096:1'), CONSTRAINTS, '4096'),
        (('--align', '1:4096'), CONSTRAINTS, '4096'),
        (('--max-size', '63:0'), CONSTRAINTS, '63'),
        (('--max-size', '0:47'), CONSTRAINTS, '47'),
    ],
)
def test_what_does_not_fit_is_refused_with_its_reason(
    living_producer: Callable[[], ProducerProcess],
    program: Path,
    options: tuple[str, ...],
    code: int,
    text: str,
) -> None:
    with ConsumerProcess(program, living_producer().path, *options) as consumer:
        found, reason = consumer.refusal()
    assert found == code
    assert re.search(text, reason), reason


BEGIN = spec.MAGIC.to_bytes(4, 'little')
LATER, NOBODYS = BEGIN + b'\2\0\x09\0', BEGIN + b'\2\0\1\0'
PLAIN = spec.Hello().pack()[8:]
# What comes instead of a HELLO, how many descriptors with it, and the code of the refusal.
OTHER_HELLOS = {
    'later_as_always': (spec.Hello(min_version=2, max_version=9).pack(), 0, VERSION),
    'later_and_longer': (spec.packet(spec.HELLO, LATER + bytes(range(256))), 0, VERSION),
    'later_and_shortest': (spec.packet(spec.HELLO, LATER), 0, VERSION),
    'later_with_a_field_in_the_header': (
        spec.packet(spec.HELLO, LATER + bytes(112), zero=7),
        0,
        VERSION,
    ),
    'later_with_descriptors': (spec.packet(spec.HELLO, LATER + bytes(112)), 4, VERSION),
    'later_with_too_many_descriptors': (spec.packet(spec.HELLO, LATER + bytes(112)), 5, RULE),
    'later_with_a_wrong_length': (
        spec.packet(spec.HELLO, LATER + bytes(112), length=127),
        0,
        RULE,
    ),
    'later_cut_off': (spec.packet(spec.HELLO, LATER[:-1]), 0, RULE),
    'later_with_other_magic': (spec.packet(spec.HELLO, b'ZCLX' + LATER[4:] + bytes(112)), 0, RULE),
    'later_of_another_type': (spec.packet(8, LATER + bytes(112)), 0, RULE),
    'versions_the_wrong_way_round': (spec.packet(spec.HELLO, NOBODYS + PLAIN[8:]), 0, RULE),
    'id_with_a_gap': (spec.Hello(publisher_id=b'c\0c').pack(), 0, RULE),
    'id_that_begins_late': (spec.Hello(publisher_id=b'\0c').pack(), 0, RULE),
    'id_not_ascii': (spec.Hello(publisher_id='ü'.encode()).pack(), 0, RULE),
    'id_with_a_line': (spec.Hello(publisher_id=b'c\n').pack(), 0, RULE),
    'id_of_another': (spec.Hello(publisher_id=b' ~').pack(), 0, ANOTHER),
    'most_formats': (
        spec.Hello(formats=tuple((number, 0) for number in range(64))).pack(),
        0,
        CONSTRAINTS,
    ),
    'too_many_formats': (
        spec.Hello(formats=tuple((number, 0) for number in range(65))).pack(),
        0,
        RULE,
    ),
    'options_that_do_not_suit': (spec.Hello(options=b'max_stride=8').pack(), 0, CONSTRAINTS),
    'options_of_a_later_time': (
        spec.Hello(options=b'contiguous; polarised').pack(),
        0,
        CONSTRAINTS,
    ),
    'options_too_long': (spec.Hello(options=bytes(1025)).pack(), 0, RULE),
    'options_not_utf8': (spec.Hello(options=b'\xff').pack(), 0, RULE),
    'name_not_utf8': (spec.Hello(name=b'\xff').pack(), 0, RULE),
    'name_with_a_gap': (spec.Hello(name=b'a\0b').pack(), 0, RULE),
}


@pytest.mark.parametrize('name', OTHER_HELLOS)
def test_other_hellos_are_refused_with_the_code_of_the_page(
    living_producer: Callable[[], ProducerProcess], name: str
) -> None:
    data, descriptors, code = OTHER_HELLOS[name]
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(60)
        connection.connect(str(living_producer().path))
        socket.send_fds(connection, [data], descriptors * [0])
        answer = connection.recv(spec.MAX_PACKET)
        assert connection.recv(1) == b'', 'the producer closes after it'
    assert spec.HEADER.unpack_from(answer)[:2] == (spec.REFUSED, len(answer))
    assert int.from_bytes(answer[8:12], 'little') == code, answer[12:]


def test_a_later_version_is_spoken_down(living_producer: Callable[[], ProducerProcess]) -> None:
    with RawConsumer(living_producer().path) as later:
        later.say(spec.Hello(max_version=7).pack())
        assert spec.WELCOME_BODY.unpack_from(later.wait_for(spec.WELCOME), 8)[0] == 1


def test_a_busy_producer_says_so(start_producer: StartProducer, start: Start) -> None:
    producer = start_producer(slots=2)
    start('--hold', '--window', '1')
    producer.wait_for('consumers', 1)
    assert start().refusal()[0] == BUSY


def test_window_and_depth_shrink_to_what_is_free(
    start_producer: StartProducer, start: Start
) -> None:
    producer = start_producer(slots=6)
    consumer = start('--window', '64', '--depth', '64', '--name', 'c', '--frames', '30')
    published = producer.publish(30, 'c')
    code, frames, summary = consumer.result()
    assert code == FRAMES_READ and told(frames) == published
    assert summary['slots'] <= 6
