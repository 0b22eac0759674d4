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

"""The link benchmark is honest: floors, pairing, losses, pacing, order and environments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
import hashlib
import importlib.util
from itertools import pairwise
import json
import math
import os
from pathlib import Path
import signal
import subprocess
import sys
import tempfile
from typing import Any
from unittest.mock import Mock
from xml.etree import ElementTree

from bench import floor
from bench.environment import plain_environment, tuned_environment
from bench.link import (
    FLOOR_WORKER,
    FLOORS,
    LinkCase,
    LinkPlan,
    LINKS,
    PLAIN,
    series_of,
    TornFrameError,
)
from bench.link_roles import Arrivals, FILL, Look, paced, Planes, stamp, sum_expected, sum_of
from bench.peers import processes as peers
from bench.peers.processes import PeerCase, VARIANTS
from bench.rows import Condition
from bench.worker import BenchError
from hypothesis import given
from hypothesis import strategies as st
import numpy as np
from processes import ran
import pytest
from waiting import until

PROFILE = Path(__file__).resolve().parents[2] / 'config/fastdds_images.xml'
VGA, HD, UHD_8K = (640, 480), (1920, 1080), (7680, 4320)
VGA_AT_ONCE = Condition(*VGA, 0.0)
REFERENCE = '3dc86bee80daf792ac5710b47d6bef8138636708782e56285833cade591e9774'


def test_the_floor_is_the_reference_byte_for_byte() -> None:
    assert hashlib.sha256(Path(floor.__file__).read_bytes()).hexdigest() == REFERENCE


def test_the_floor_s_process_loads_nothing_that_a_fork_would_have_to_copy() -> None:
    slow = '{"numpy", "rclpy", "cv2", "yaml"}'
    code = f'import sys, {FLOOR_WORKER}; print({slow} & {{*sys.modules}})'
    assert ran(sys.executable, '-c', code, check=True).stdout.strip() == 'set()'


@pytest.mark.parametrize(
    ('frames', 'sent', 'arrived', 'latencies_us', 'lost'),
    [
        (2, [(0, 1000), (1, 5000)], [(0, 3000), (1, 6000)], [2.0, 1.0], 0),
        (3, [(7, 1000), (8, 2000), (9, 3000)], [(9, 4000)], [1.0], 2),
        (3, [(7, 1000)], [(7, 2000)], [1.0], 2),  # two frames found no free slot
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
    for number in paced(10, 3, 0.0, lambda number: not events.append(('answered', number))):
        events.append(('sent', number))
    assert events == [(what, number) for number in (10, 11, 12) for what in ('sent', 'answered')]


@pytest.mark.parametrize(
    ('answers', 'sent'),
    [
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
    for number, at in ((11, 2), (12, 3), (14, 4)):
        arrivals.note(number, at)
    assert arrivals.wait_for(14) == [(12, 3), (14, 4)]
    assert arrivals.wait_for(11) == [(12, 3), (14, 4)], (
        'none was sent: there is nothing to wait for'
    )


class Ends:
    """Both ends of a link, simulated."""

    role = 'played'

    def __init__(self, conversions: int = 0, torn: int = 0) -> None:
        self.asked: list[dict[str, Any]] = []
        self._conversions, self._torn = conversions, torn

    def ask(self, timeout_s: float = 0.0, **command: Any) -> dict[str, Any]:
        self.asked.append(command)
        first, last = command.get('first', 0), command.get('last', 0)
        times = [(n, n) for n in range(first, first + command.get('frames', 0))]
        return {
            'run': {'sent': times, 'arrived': times},
            'end': {'arrived': [(last, last)]},
            'spent': {'cpu_us': 30.0, 'conversions': self._conversions, 'torn': self._torn},
        }.get(command['op'], {})


def test_a_consumer_listens_first_is_told_the_last_frame_and_its_cpu_time_counts() -> None:
    one = Ends()
    assert LinkCase(one, one).measure('v', VGA_AT_ONCE, 10).cpu_us_per_frame == 3.0
    assert LinkCase(one, Ends()).measure('v', VGA_AT_ONCE, 10).cpu_us_per_frame == 6.0
    producer, consumer = Ends(), Ends()
    series = LinkCase(producer, consumer).measure('v', Condition(*VGA, 30.0), 20, read=True)
    assert producer.asked[0] == consumer.asked[0] == {'op': 'prepare', 'width': 640, 'height': 480}
    assert [c['op'] for c in consumer.asked] == ['prepare', *['begin', 'end', 'spent'] * 2]
    assert consumer.asked[4:6] == [
        {'op': 'begin', 'first': 12, 'rate_hz': 30.0, 'read': True},
        {'op': 'end', 'last': 31},
    ]
    assert series.lost == 19


@pytest.mark.parametrize(
    ('ends', 'words'),
    [
        ((Ends(), Ends(torn=1)), 'torn'),
        ((Ends(), Ends(conversions=1)), 'converted'),
        ((Ends(conversions=1), Ends()), 'converted'),
    ],
)
def test_a_torn_frame_and_a_conversion_are_errors(ends: tuple[Ends, Ends], words: str) -> None:
    with pytest.raises(TornFrameError if words == 'torn' else BenchError, match=words):
        LinkCase(*ends).measure('v', VGA_AT_ONCE, 10)


def test_each_repetition_has_every_case_once_beside_its_floors() -> None:
    plan = LinkPlan(sizes=[VGA, HD, UHD_8K], rates_hz=[30.0, 0.0], variants=[*LINKS, *PLAIN])
    steps = plan.steps(0)
    assert set(Counter(steps).values()) == {1}
    assert len(steps) == (len(LINKS) + len(PLAIN) + len(FLOORS)) * 6
    changes = sum(before[-1] != after[-1] for before, after in pairwise(steps))
    assert changes == 5, 'cases of one condition are neighbours'


def test_the_default_is_the_default_whatever_the_shell_has_set() -> None:
    tuning = {
        'FASTRTPS_DEFAULT_PROFILES_FILE': 'x', 'FASTDDS_DEFAULT_PROFILES_FILE': 'x',
        'FASTDDS_BUILTIN_TRANSPORTS': 'LARGE_DATA', 'CYCLONEDDS_URI': 'x', 'GLIBC_TUNABLES': 'x',
        'MALLOC_MMAP_THRESHOLD_': '1', 'MALLOC_ARENA_MAX': '1',
        'RMW_FASTRTPS_PUBLICATION_MODE': 'ASYNCHRONOUS', 'ZENOH_CONFIG': 'x', 'IOX2_CONFIG': 'x',
    }  # fmt: skip
    kept = {'HOME': '/h', 'RMW_IMPLEMENTATION': 'rmw_fastrtps_cpp'}
    reach = 'ROS_AUTOMATIC_DISCOVERY_RANGE'
    plain = {**kept, 'ROS_DOMAIN_ID': '101', reach: 'LOCALHOST'}
    assert plain_environment({**tuning, **kept, reach: 'SUBNET'}) == plain
    assert plain_environment({'ROS_DOMAIN_ID': '7'})['ROS_DOMAIN_ID'] == '7'


def test_tuned_is_the_shipped_profile_with_32_mib_and_an_allocator_that_keeps_its_memory() -> None:
    environment = tuned_environment()
    for name in ('FASTRTPS', 'FASTDDS'):
        assert environment[f'{name}_DEFAULT_PROFILES_FILE'] == str(PROFILE)
    elements = ElementTree.parse(PROFILE).iter()
    sizes = [element.text for element in elements if element.tag.endswith('segment_size')]
    assert sizes == [str(32 << 20)]
    assert int(environment['MALLOC_MMAP_THRESHOLD_']) > 7680 * 4320 * 1.5, (
        'no message is mapped afresh'
    )


# Peers of the link benchmark: missing, working, stalling, dying.
DOUBLES = Path(__file__).with_name('peer_doubles')
SHARED = Path('/dev/shm')

Open = Callable[..., tuple[PeerCase, list[str]]]


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield the folder for a run's folders; its name is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix='zt') as name:
        monkeypatch.setattr(tempfile, 'tempdir', name)
        yield Path(name)
        assert not list(Path(name).glob('z*'))
    assert not [*SHARED.glob('zcb*'), *SHARED.glob('*.zenoh_double*')]


@pytest.fixture
def open_double(
    place: Path, no_fd_leak: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Open]:
    """Open the zenoh stand-in with the given fault; return it and the list of what it says."""
    cases: list[PeerCase] = []

    def start(trouble: str = '', variant: str = 'zenoh') -> tuple[PeerCase, list[str]]:
        own = {'PYTHONPATH': str(DOUBLES), 'ZC_ZENOH_DOUBLE': trouble}
        said: list[str] = []
        cases.append(PeerCase(variant, plain_environment() | own, said.append))
        cases[-1].open()
        return cases[-1], said

    monkeypatch.setattr(peers, '_PATIENCE_S', 20.0)
    yield start
    for case in cases:
        case.close()
        case.close()


@pytest.mark.parametrize(('variant', 'read'), [('zenoh', False), ('zenoh_shared_memory', True)])
def test_every_frame_is_measured(open_double: Open, variant: str, read: bool) -> None:
    case, said = open_double(variant=variant)
    for condition in (VGA_AT_ONCE, Condition(64, 48, 200.0)):
        series = case.measure(variant, condition, 10, read=read)
        assert len(series.latencies_us) == 10 and series.lost == 0
        assert series.median_us > 0 and series.cpu_us_per_frame > 0
    assert case.stalled == '' and said == []


def test_a_torn_frame_is_no_loss_but_an_error(open_double: Open) -> None:
    case, _ = open_double('torn')
    with pytest.raises(TornFrameError, match='peer_in'):
        case.measure('zenoh', VGA_AT_ONCE, 5)


def test_who_dies_loses_its_series_and_is_given_up_after_three(
    open_double: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, said = open_double('dies')
    opening = Mock(wraps=case.open)
    monkeypatch.setattr(case, 'open', opening)
    for _ in range(5):
        series = case.measure('zenoh', VGA_AT_ONCE, 30)
        assert list(series.latencies_us) == [] and series.lost == 30
        assert math.isnan(series.cpu_us_per_frame)
    assert opening.call_count == 2, 'started after the first two failures, not after the third'
    assert len(said) == 3 and all(
        'has ended with exit code 7' in line and '640x480 at 0 Hz' in line for line in said
    )
    assert 'not tried again' in said[2] and 'not tried again' not in said[1]
    assert case.stalled.startswith('5 of 5 series: ') and 'exit code 7' in case.stalled


def test_who_is_killed_loses_one_series_and_what_it_left_is_removed(open_double: Open) -> None:
    before = set(SHARED.iterdir())
    case, said = open_double(variant='zenoh_shared_memory')
    assert case.measure('zenoh_shared_memory', VGA_AT_ONCE, 5).lost == 0
    segments = set(SHARED.glob('*.zenoh_double'))
    assert len(segments - before) == 2
    for worker in case.workers:
        os.kill(worker.pid, signal.SIGKILL)
    assert case.measure('zenoh_shared_memory', VGA_AT_ONCE, 5).lost == 5
    assert not segments & set(SHARED.iterdir()), 'nobody else would have removed them'
    assert case.measure('zenoh_shared_memory', VGA_AT_ONCE, 5).lost == 0
    (line,) = said
    assert 'killed by SIGKILL' in line and case.stalled.startswith('1 of 3 series')


def command(place: Path, trouble: str, arguments: str) -> dict[str, Any]:
    """Return the command line and environment to run ``zc_bench link`` with the zenoh stand-in."""
    own = {'PYTHONPATH': str(DOUBLES), 'TMPDIR': str(place), 'ZC_ZENOH_DOUBLE': trouble}
    words = f'link --variants zenoh --sizes vga --rates 0 {arguments}'
    program = [sys.executable, '-m', 'bench', *words.split()]
    return {'args': program, 'env': {**os.environ, **own}, 'text': True}


def test_when_the_benchmark_is_killed_its_peers_end_and_remove_their_folder(
    free_domain: int, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('ZC_RUNTIME_DIR', str(place))
    process = subprocess.Popen(**command(place, '', '--repetitions 1000'), stderr=subprocess.PIPE)
    try:
        assert any(line.startswith('measuring') for line in process.stderr)
        (folder,) = place.glob('zcb*')
        assert (folder / 'zenoh.sock').exists()
    finally:
        process.kill()
        process.communicate()
    until(lambda: not list(place.iterdir()), lambda: list(place.iterdir()))


def test_a_run_with_peers_says_who_was_absent(
    free_domain: int, tmp_path: Path, place: Path
) -> None:
    arguments = f'--repetitions 1 --frames 20 --check --json {tmp_path}/x.json'
    how = command(place, 'missing', arguments)
    done = subprocess.run(**how, capture_output=True, timeout=120, check=False)
    document = json.loads((tmp_path / 'x.json').read_text(encoding='utf-8'))
    assert list(document['environment']['absent']) == ['zenoh']
    assert {row['case'] for row in document['rows']} == {'floor'}
    assert done.returncode == 1 and 'not measured' in done.stdout
    assert 'absent: zenoh: eclipse-zenoh is not installed: pip install ecl' in done.stderr


@pytest.mark.parametrize('variant', VARIANTS)
def test_the_real_ones(
    free_domain: int, place: Path, no_fd_leak: None, variant: str
) -> None:
    if importlib.util.find_spec(VARIANTS[variant].module) is None:
        pytest.skip(f'the package {VARIANTS[variant].distribution} is not installed')
    before, said = set(SHARED.iterdir()), []
    case = PeerCase(variant, plain_environment(), said.append)
    try:
        case.open()
        for size, rate_hz, read in ((VGA, 0.0, False), (HD, 0.0, True), (VGA, 100.0, False)):
            series = case.measure(variant, Condition(*size, rate_hz), 12, read=read)
            arrived = len(series.latencies_us)
            assert arrived + series.lost == 12 and arrived >= 6, said
            assert series.cpu_us_per_frame > 0
    finally:
        case.close()
    assert said == []
    others = ('fast', 'sem.', 'lttng')
    left = {each for each in SHARED.iterdir() if not each.name.startswith(others)} - before
    assert not left, 'all of its shared memory is gone'


# A frame's pixels in the link benchmark identify the frame: mixed frames are detected.
def flat(width: int, height: int) -> Planes:
    return [np.full(width * height * 3 // 2, FILL, np.uint8)]


def nv12(width: int, height: int) -> Planes:
    shapes = (height, width), (height // 2, width // 2, 2)
    return [np.full(shape, FILL, np.uint8) for shape in shapes]


@pytest.fixture(params=[flat, nv12])
def planes(request: pytest.FixtureRequest) -> Planes:
    return request.param(64, 48)


@pytest.mark.parametrize('every_pixel', [False, True])
def test_a_whole_frame_is_its_number_and_not_torn(planes: Planes, every_pixel: bool) -> None:
    look = Look()
    look.begin(every_pixel)
    for number in (0, 7, 123_456):
        stamp(planes, number)
        assert look(planes)[0] == number
    assert look.torn == 0


@pytest.mark.parametrize('part', ['middle', 'last'])
def test_a_frame_of_two_is_torn(planes: Planes, part: str) -> None:
    stamp(planes, 5)
    other = [plane.copy() for plane in planes]
    stamp(other, 6)
    half = planes[0].nbytes // 2
    plane, where = (0, slice(half, half + 8)) if part == 'middle' else (-1, slice(-8, None))
    planes[plane].reshape(-1)[where] = other[plane].reshape(-1)[where]
    look = Look()
    look(planes)
    assert look.torn == 1
    look.begin(False)
    assert look.torn == 0, 'of a series'


@given(place=st.integers(0, 64 * 48 * 3 // 2 - 1), number=st.integers(0, 2**40))
def test_who_reads_every_pixel_misses_none(place: int, number: int) -> None:
    picture = flat(64, 48)
    stamp(picture, number)
    assert sum_of(picture) == sum_expected(picture[0].nbytes, number)
    picture[0][place] ^= 0x40
    look = Look()
    look.begin(True)
    look(picture)
    assert look.torn == 1
