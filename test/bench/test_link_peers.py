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
Peers of the link benchmark: absent, as they should be, stalling, dying.

Nothing of them is left behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import importlib.util
import json
import math
import os
from pathlib import Path
import re
import signal
import subprocess
import sys
import tempfile

from bench.environment import plain_environment
from bench.link import TornFrameError
from bench.peers import processes as peers
from bench.peers.processes import PeerCase, PeerProcesses, VARIANTS
from bench.rows import Condition
from bench.worker import Worker
import pytest
from waiting import until

DOUBLES = Path(__file__).with_name('peer_doubles')
SHARED = Path('/dev/shm')
VGA, HD = Condition(640, 480, 0.0), Condition(1920, 1080, 0.0)

Open = Callable[..., PeerCase]


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """
    Yield where the run's folders are; short enough for sockets.

    Fails a test that leaves something there or in shared memory.
    """
    with tempfile.TemporaryDirectory(prefix='zt') as name:
        monkeypatch.setattr(tempfile, 'tempdir', name)
        yield Path(name)
        assert not list(Path(name).glob('z*'))
    assert not [
        segment
        for segment in SHARED.iterdir()
        if segment.name.startswith('zcb') or segment.suffix.startswith('.zenoh_double')
    ]


@pytest.fixture
def open_double(
    place: Path, said: list[str], no_fd_leak: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Open]:
    """Open zenoh's double, which has the trouble that is named."""
    cases: list[PeerCase] = []

    def start(trouble: str = '', variant: str = 'zenoh') -> PeerCase:
        environment = {
            **plain_environment(),
            'PYTHONPATH': str(DOUBLES),
            'ZC_ZENOH_DOUBLE': trouble,
        }
        cases.append(PeerCase(variant, environment, said.append))
        cases[-1].open()
        return cases[-1]

    monkeypatch.setattr(peers, '_PATIENCE_S', 20.0)
    yield start
    for case in cases:
        case.close()
        case.close()


@pytest.mark.parametrize('variant', ['zenoh', 'zenoh_shared_memory'])
@pytest.mark.parametrize('read', [False, True])
def test_every_frame_is_measured(
    open_double: Open, said: list[str], variant: str, read: bool
) -> None:
    case = open_double(variant=variant)
    for condition in (VGA, Condition(64, 48, 200.0)):
        series = case.measure(variant, condition, 10, read=read)
        assert len(series.latencies_us) == 10 and series.lost == 0
        assert series.median_us > 0 and series.cpu_us_per_frame > 0
    assert case.stalled == '' and said == []


@pytest.mark.parametrize(
    ('trouble', 'reason'),
    [
        ('missing', 'eclipse-zenoh is not installed: pip install eclipse-zenoh'),
        ('broken', 'can not be used: libzenoh.so: wrong ELF class'),
    ],
)
def test_who_cannot_be_used_is_absent_and_says_why(
    place: Path,
    said: list[str],
    no_fd_leak: None,
    monkeypatch: pytest.MonkeyPatch,
    trouble: str,
    reason: str,
) -> None:
    monkeypatch.setenv('PYTHONPATH', str(DOUBLES))
    monkeypatch.setenv('ZC_ZENOH_DOUBLE', trouble)
    found = PeerProcesses(said.append)
    try:
        assert found.open(['zenoh']) == {} and found.stalled == {}
        assert reason in found.absent['zenoh']
        assert said == [f'absent: zenoh: {found.absent["zenoh"]}'] and '\n' not in said[0]
    finally:
        found.close()


def test_a_torn_frame_is_no_loss_but_an_error(open_double: Open) -> None:
    case = open_double('torn')
    with pytest.raises(TornFrameError, match='peer_in'):
        case.measure('zenoh', VGA, 5)


def test_who_dies_loses_its_series_and_is_given_up_after_three(
    open_double: Open, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = open_double('dies')
    started = []
    opening = case.open
    monkeypatch.setattr(case, 'open', lambda: (started.append(1), opening()))
    for _ in range(5):
        series = case.measure('zenoh', VGA, 30)
        assert (
            list(series.latencies_us) == []
            and series.lost == 30
            and math.isnan(series.cpu_us_per_frame)
        )
    assert len(started) == 2, 'started again after the first two failures, and not after the third'
    assert len(said) == 3 and all(
        'has ended with exit code 7' in line and '640x480 at 0 Hz' in line for line in said
    )
    assert 'not tried again' in said[2] and 'not tried again' not in said[1]
    assert case.stalled.startswith('5 of 5 series: ') and 'exit code 7' in case.stalled


def test_who_hangs_loses_its_series(
    open_double: Open, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = open_double('hangs')
    asking = Worker.ask
    # It never answers to this command, however long one waits.
    monkeypatch.setattr(
        Worker,
        'ask',
        lambda worker, patience_s=60.0, **command: asking(
            worker, 0.1 if command['op'] == 'run' else patience_s, **command
        ),
    )
    series = case.measure('zenoh', VGA, 30)
    assert (
        list(series.latencies_us) == []
        and series.lost == 30
        and math.isnan(series.cpu_us_per_frame)
    )
    assert len(said) == 1 and "'peer_out' doesn't answer" in said[0] and len(case.workers) == 2, (
        'it is started again'
    )


def test_who_is_killed_loses_one_series_and_what_it_left_is_removed(
    open_double: Open, said: list[str]
) -> None:
    before = set(SHARED.iterdir())
    case = open_double(variant='zenoh_shared_memory')
    assert case.measure('zenoh_shared_memory', VGA, 5).lost == 0
    segments = set(SHARED.glob('*.zenoh_double'))
    assert len(segments - before) == 2
    for worker in case.workers:
        os.kill(worker.pid, signal.SIGKILL)
    assert case.measure('zenoh_shared_memory', VGA, 5).lost == 5
    assert not segments & set(SHARED.iterdir()), 'nobody else would have removed them'
    assert case.measure('zenoh_shared_memory', VGA, 5).lost == 0
    assert (
        len(said) == 1
        and 'killed by SIGKILL' in said[0]
        and case.stalled.startswith('1 of 3 series')
    )


def test_others_segments_are_left_alone(open_double: Open) -> None:
    other = SHARED / f'{os.urandom(6).hex()}.other'
    other.write_bytes(b'x')
    try:
        case = open_double(variant='zenoh_shared_memory')
        case._segments.add(other)  # mapped by the peer, but there before it
        case.close()
        assert other.exists()
    finally:
        other.unlink()


def test_when_the_benchmark_is_killed_its_peers_end_and_remove_their_folder(
    free_domain: int, place: Path
) -> None:
    environment = {
        **os.environ,
        'PYTHONPATH': str(DOUBLES),
        'TMPDIR': str(place),
        'ZC_ZENOH_DOUBLE': '',
        'ZC_RUNTIME_DIR': str(place),
    }
    arguments = [
        'link',
        '--variants',
        'zenoh',
        '--sizes',
        'vga',
        '--rates',
        '0',
        '--repetitions',
        '1000',
    ]
    process = subprocess.Popen(
        [sys.executable, '-m', 'bench', *arguments],
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith('measuring'):
                break
        folders = list(place.glob('zcb*'))
        assert len(folders) == 1 and (folders[0] / 'zenoh.sock').exists()
    finally:
        process.kill()
        process.communicate()
    until(lambda: not list(place.iterdir()), lambda: list(place.iterdir()))


def test_a_run_with_peers_says_who_was_absent(
    free_domain: int, tmp_path: Path, place: Path
) -> None:
    environment = {
        **os.environ,
        'PYTHONPATH': str(DOUBLES),
        'TMPDIR': str(place),
        'ZC_ZENOH_DOUBLE': 'missing',
    }
    arguments = [
        'link',
        '--variants',
        'zenoh',
        '--sizes',
        'vga',
        '--rates',
        '0',
        '--repetitions',
        '1',
        '--frames',
        '20',
        '--check',
    ]
    program = [sys.executable, '-m', 'bench', *arguments, '--json', str(tmp_path / 'x.json')]
    done = subprocess.run(
        program, capture_output=True, text=True, env=environment, timeout=120, check=False
    )
    document = json.loads((tmp_path / 'x.json').read_text(encoding='utf-8'))
    assert list(document['environment']['absent']) == ['zenoh']
    assert {row['case'] for row in document['rows']} == {'floor'}
    assert (
        done.returncode == 1 and 'not measured' in done.stdout and 'absent: zenoh: ' in done.stderr
    )


def test_each_peer_is_imported_by_its_module_alone() -> None:
    """The others have to work where it is not installed."""
    modules = {peer.module for peer in VARIANTS.values()}
    for path in Path(peers.__file__).parent.glob('*.py'):
        text = path.read_text(encoding='utf-8')
        assert {
            one for one in modules if re.search(rf'^ *(import|from) {one}\b', text, re.MULTILINE)
        } == {path.stem} & modules, path.name


def installed(variant: str) -> bool:
    return importlib.util.find_spec(VARIANTS[variant].module) is not None


def needs_its_package(variant: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        not installed(variant),
        reason=f'the package {VARIANTS[variant].distribution} is not installed',
    )


@pytest.mark.parametrize(
    'variant', [pytest.param(name, marks=needs_its_package(name)) for name in VARIANTS]
)
def test_the_real_ones(
    free_domain: int, place: Path, said: list[str], no_fd_leak: None, variant: str
) -> None:
    before = set(SHARED.iterdir())
    case = PeerCase(variant, plain_environment(), said.append)
    try:
        case.open()
        for condition, read in ((VGA, False), (HD, True), (Condition(640, 480, 100.0), False)):
            series = case.measure(variant, condition, 12, read=read)
            assert (
                len(series.latencies_us) + series.lost == 12 and len(series.latencies_us) >= 6
            ), said
            assert series.cpu_us_per_frame > 0
    finally:
        case.close()
    assert said == []
    mine = {
        segment
        for segment in set(SHARED.iterdir()) - before
        if not segment.name.startswith(('fast', 'sem.', 'lttng'))
    }
    assert not mine, 'all of its shared memory is gone'
