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

"""The link benchmark's own honesty: pairing, losses, pacing, order, and environments."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
import socket
from typing import Any, cast
from xml.etree import ElementTree

from bench.environment import plain_environment, tuned_environment
from bench.link import (
    FloorCase,
    FLOORS,
    link_rows,
    LinkCase,
    LinkPlan,
    LINKS,
    PLAIN,
    READ,
    READERS,
    series_of,
    TornFrameError,
    WORKER,
)  # fmt: skip
from bench.link_roles import Arrivals, paced
from bench.peers.processes import PEERS
from bench.rows import Condition, Series
from bench.worker import BenchError, NoAnswerError, Worker
import pytest

PROFILE = Path(__file__).resolve().parents[2] / 'config/fastdds_images.xml'
VGA, HD, UHD_8K = (640, 480), (1920, 1080), (7680, 4320)


@pytest.mark.parametrize(
    ('frames', 'sent', 'arrived', 'latencies_us', 'lost'),
    [
        (2, [(0, 1000), (1, 5000)], [(0, 3000), (1, 6000)], [2.0, 1.0], 0),
        (3, [(7, 1000), (8, 2000), (9, 3000)], [(9, 4000)], [1.0], 2),
        (3, [(7, 1000)], [(7, 2000)], [1.0], 2),  # no slot was free for two of them
        (4, [], [], [], 4),
    ],
)
def test_sent_and_arrived_are_paired_by_number(
    frames: int, sent: Any, arrived: Any, latencies_us: list[float], lost: int
) -> None:
    series = series_of(frames, sent, arrived, 600.0)
    assert (list(series.latencies_us), series.lost) == (latencies_us, lost)
    assert series.cpu_us_per_frame == 600.0 / frames


@pytest.mark.parametrize('arrived', [[(5, 10)], [(0, 10), (0, 11)]])
def test_a_frame_that_was_not_sent_or_comes_twice_is_an_error(arrived: Any) -> None:
    with pytest.raises(BenchError, match='twice, or was never sent'):
        series_of(2, [(0, 1), (1, 2)], arrived, 1.0)


def test_unthrottled_each_frame_waits_for_the_answer_to_the_one_before() -> None:
    events: list[tuple[str, int]] = []

    def answered(number: int) -> bool:
        events.append(('answered', number))
        return True

    for number in paced(10, 3, 0.0, answered):
        events.append(('sent', number))
    assert events == [(what, number) for number in (10, 11, 12) for what in ('sent', 'answered')]


@pytest.mark.parametrize(
    ('answers', 'sent'),
    [
        ([True] * 9, 9),
        ([False] * 9, 3),
        ([True, False, False, True, False, False, True, True, True], 9),
        ([True] + [False] * 8, 4),
    ],
)
def test_after_three_lost_in_a_row_a_series_is_over(answers: list[bool], sent: int) -> None:
    assert len(list(paced(0, 9, 0.0, answers.__getitem__))) == sent


def test_a_frame_of_an_earlier_series_is_not_noted() -> None:
    arrivals = Arrivals()
    arrivals.begin(0)
    arrivals.note(0, 1)
    arrivals.begin(12)
    arrivals.note(11, 2)
    arrivals.note(12, 3)
    arrivals.note(14, 4)
    assert arrivals.wait_for(14) == [(12, 3), (14, 4)]
    assert arrivals.wait_for(11) == [(12, 3), (14, 4)], (
        'none was sent: there is nothing to wait for'
    )


class Ends:
    """Both ends of a link, played."""

    role = 'played'

    def __init__(self, conversions: int = 0, torn: int = 0) -> None:
        self.asked: list[dict[str, Any]] = []
        self._conversions = conversions
        self._torn = torn
        self._first = self._frames = 0

    def ask(self, timeout_s: float = 0.0, **command: Any) -> dict[str, Any]:
        self.asked.append(command)
        times = [
            (n, n)
            for n in range(
                command.get('first', 0), command.get('first', 0) + command.get('frames', 0)
            )
        ]
        if command['op'] == 'run':
            self._first, self._frames = command['first'], command['frames']
        return {
            'run': {'sent': times, 'arrived': times},
            'end': {'arrived': [(command.get('last', 0), command.get('last', 0))]},
            'spent': {'cpu_us': 30.0, 'conversions': self._conversions, 'torn': self._torn},
        }.get(command['op'], {})


def link_case(*ends: Ends) -> LinkCase:
    return LinkCase(cast(Worker, ends[0]), cast(Worker, ends[-1]))


def test_the_cpu_time_of_both_sides_counts_and_of_one_process_once() -> None:
    assert link_case(Ends()).measure('v', Condition(*VGA, 0.0), 10).cpu_us_per_frame == 3.0
    assert link_case(Ends(), Ends()).measure('v', Condition(*VGA, 0.0), 10).cpu_us_per_frame == 6.0


@pytest.mark.parametrize('read', [False, True])
def test_a_consumer_listens_before_the_first_frame_and_is_told_the_last(read: bool) -> None:
    producer, consumer = Ends(), Ends()
    series = link_case(producer, consumer).measure('v', Condition(*VGA, 30.0), 20, read=read)
    assert producer.asked[0] == consumer.asked[0] == {'op': 'prepare', 'width': 640, 'height': 480}
    assert [
        c['read'] for end in (producer, consumer) for c in end.asked if c['op'] in ('begin', 'run')
    ] == [read] * 4
    assert [c['op'] for c in consumer.asked] == ['prepare', *['begin', 'end', 'spent'] * 2]
    assert consumer.asked[4:6] == [
        {'op': 'begin', 'first': 12, 'rate_hz': 30.0, 'read': read},
        {'op': 'end', 'last': 31},
    ]
    assert series.lost == 19


@pytest.mark.parametrize('ends', [(Ends(torn=1),), (Ends(), Ends(torn=1))])
def test_a_torn_frame_is_an_error(ends: tuple[Ends, ...]) -> None:
    with pytest.raises(TornFrameError, match='torn'):
        link_case(*ends).measure('v', Condition(*VGA, 0.0), 10)


@pytest.mark.parametrize(
    'ends', [(Ends(conversions=1),), (Ends(), Ends(conversions=1)), (Ends(conversions=1), Ends())]
)
def test_a_conversion_is_an_error(ends: tuple[Ends, ...]) -> None:
    with pytest.raises(BenchError, match='converted'):
        link_case(*ends).measure('v', Condition(*VGA, 0.0), 10)


class Floor:
    """A floor's process, played: so many of its series get no answer."""

    def __init__(self, silent: int) -> None:
        self.silent = silent
        self.cpus = {1}
        self.closed = False

    def ask(self, timeout_s: float, **command: Any) -> dict[str, Any]:
        if self.silent:
            self.silent -= 1
            raise NoAnswerError('no answer')
        return {'latencies_ns': [2000] * command['frames'], 'cpu_us': 30.0}

    def set_cpus(self, cpus: set[int]) -> None:
        self.cpus = cpus

    def close(self) -> None:
        self.closed = True


def test_a_floor_that_does_not_answer_is_started_again_on_its_cpus() -> None:
    started = [Floor(1), Floor(0)]
    coming, said = iter(started), list[str]()
    case = FloorCase(lambda: cast(Worker, next(coming)), said.append)
    started[0].cpus = {0}
    assert case.measure('guard', Condition(*VGA, 0.0), 20).median_us == 2.0
    assert started[0].closed and case.workers == (started[1],) and started[1].cpus == {0}
    assert said == ['floor guard: no answer; its process is started again']


def test_a_floor_that_does_not_answer_twice_ends_the_run() -> None:
    coming = iter([Floor(1), Floor(1)])
    with pytest.raises(NoAnswerError):
        FloorCase(lambda: cast(Worker, next(coming)), lambda line: None).measure(
            'guard', Condition(*VGA, 0.0), 20
        )


def plan(**changes: Any) -> LinkPlan:
    return LinkPlan(
        **{
            'sizes': [VGA, HD, UHD_8K],
            'rates_hz': [30.0, 0.0],
            'variants': [*LINKS, *PLAIN],
            **changes,
        }
    )


def test_each_repetition_has_every_case_once_beside_its_floors() -> None:
    steps = plan().steps(0)
    assert (
        set(Counter(steps).values()) == {1}
        and len(steps) == (len(LINKS) + len(PLAIN) + len(FLOORS)) * 6
    )
    conditions = [condition for *_, condition in steps]
    assert sum(before != after for before, after in pairwise(conditions)) == 5, (
        'cases of one condition are neighbours'
    )


def test_orders_differ_and_can_be_repeated() -> None:
    orders = [plan().steps(repetition) for repetition in range(7)]
    assert len({tuple(order) for order in orders}) == 7
    assert (
        len({order[0][2] for order in orders}) > 1 and len({order[0][1] for order in orders}) > 1
    )
    assert orders == [plan().steps(repetition) for repetition in range(7)]


def test_who_reads_every_pixel_does_so_beside_the_others_unthrottled_and_at_some_sizes() -> None:
    steps = plan(read_sizes=[HD]).steps(0)
    assert [step for step in steps if step[0] == READ and step[2] != Condition(*HD, 0.0)] == []
    readers = {variant for case, variant, _ in steps if case == READ}
    assert readers == {'in_process_mailbox', 'shared_memory', 'rclpy_image_tuned'} == set(READERS)
    beside = plan(read_sizes=[HD], variants=[*LINKS, *PLAIN, *PEERS.names], peers=PEERS).steps(0)
    peers = {variant for case, variant, _ in beside if case == READ} - readers
    assert peers == {'iceoryx2_in_place', 'iceoryx2_copy', 'zenoh_shared_memory'}


def test_those_who_read_every_pixel_are_compared_to_each_other() -> None:
    condition = Condition(*HD, 0.0)
    medians = {
        ('floor', 'fd_socket'): 2.0, ('link', 'shared_memory'): 20.0, ('link', 'zenoh'): 1000.0,
        (READ, 'shared_memory'): 200.0, (READ, 'zenoh_shared_memory'): 1200.0,
    }  # fmt: skip
    rows = link_rows(
        {(*key, condition): [Series([median], 1.0)] for key, median in medians.items()}
    )
    assert sorted((row.case, row.variant) for row in rows) == sorted(medians), 'each once'
    ratios = {(row.case, row.variant): row.ratio_to for row in rows}
    assert ratios[READ, 'zenoh_shared_memory'] == {
        'floor/fd_socket': 600.0,
        f'{READ}/shared_memory': 6.0,
    }
    assert ratios['link', 'zenoh'] == {'floor/fd_socket': 500.0, 'link/shared_memory': 50.0}


def test_only_what_never_runs_at_the_same_time_is_kept_on_one_cpu_and_only_without_a_rate() -> (
    None
):
    measured = plan(peers=PEERS)
    one = {
        name
        for name in (*FLOORS, *LINKS, *PLAIN, *PEERS.names)
        if measured.on_one_cpu(name, Condition(*HD, 0.0))
    }
    assert one == {*FLOORS, *LINKS, 'iceoryx2_copy', 'iceoryx2_in_place'}
    assert not any(measured.on_one_cpu(name, Condition(*HD, 30.0)) for name in one)


@pytest.mark.parametrize(
    ('variant', 'size', 'rate_hz', 'most', 'frames'),
    [
        ('shared_memory', UHD_8K, 0.0, 300, 300),
        ('rclpy_image_default', VGA, 0.0, 300, 217),
        ('cyclonedds', UHD_8K, 0.0, 300, 8),
        ('iceoryx2_in_place', UHD_8K, 0.0, 300, 300),
        ('rclpy_image_tuned', UHD_8K, 0.0, 5, 5),
        ('rclpy_image_tuned', UHD_8K, 30.0, 300, 45),
        ('shared_memory', VGA, 1.0, 300, 20),
    ],
)
def test_fewer_large_messages_go_into_a_series(
    variant: str, size: tuple[int, int], rate_hz: float, most: int, frames: int
) -> None:
    assert (
        plan(peers=PEERS, frames_unthrottled=most).frames(variant, Condition(*size, rate_hz))
        == frames
    )


def test_the_default_is_the_default_whatever_the_shell_has_set() -> None:
    tuning = {
        'FASTRTPS_DEFAULT_PROFILES_FILE': 'x', 'FASTDDS_DEFAULT_PROFILES_FILE': 'x',
        'FASTDDS_BUILTIN_TRANSPORTS': 'LARGE_DATA',
        'CYCLONEDDS_URI': 'x', 'GLIBC_TUNABLES': 'x', 'MALLOC_MMAP_THRESHOLD_': '1',
        'MALLOC_ARENA_MAX': '1',
        'RMW_FASTRTPS_PUBLICATION_MODE': 'ASYNCHRONOUS', 'ZENOH_CONFIG': 'x', 'IOX2_CONFIG': 'x',
    }  # fmt: skip
    kept = {
        'HOME': '/h',
        'RMW_IMPLEMENTATION': 'rmw_fastrtps_cpp',
        'ROS_AUTOMATIC_DISCOVERY_RANGE': 'SUBNET',
    }
    assert plain_environment({**tuning, **kept}) == {
        **kept,
        'ROS_DOMAIN_ID': '101',
        'ROS_AUTOMATIC_DISCOVERY_RANGE': 'LOCALHOST',
    }
    assert plain_environment({'ROS_DOMAIN_ID': '7'})['ROS_DOMAIN_ID'] == '7'


def test_tuned_is_the_shipped_profile_with_32_mib_and_an_allocator_that_keeps_its_memory() -> None:
    environment = tuned_environment()
    assert (
        environment['FASTRTPS_DEFAULT_PROFILES_FILE']
        == environment['FASTDDS_DEFAULT_PROFILES_FILE']
        == str(PROFILE)
    )
    sizes = [
        element.text
        for element in ElementTree.parse(PROFILE).iter()
        if element.tag.endswith('segment_size')
    ]
    assert sizes == [str(32 << 20)]
    assert int(environment['MALLOC_MMAP_THRESHOLD_']) > 7680 * 4320 * 1.5, (
        'no message is mapped afresh'
    )


def test_a_producer_of_messages_that_nobody_answers_gives_up(
    free_domain: int, capfd: pytest.CaptureFixture[str]
) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        arguments = ['images_out', '/zc_bench/nobody', str(theirs.fileno())]
        worker = Worker(WORKER, arguments, plain_environment(), [theirs.fileno()])
    try:
        ours.close()
        assert worker.ask(op='matched') == {
            'matched': False,
            'reason': 'the publisher sees no subscriber',
        }
        worker.ask(op='prepare', width=64, height=48)
        sent = worker.ask(op='run', first=5, frames=100, rate_hz=0.0)['sent']
        assert [number for number, _ in sent] == [5, 6, 7]
    finally:
        worker.close()
    assert 'Traceback' not in capfd.readouterr().err
