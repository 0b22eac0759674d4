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

"""Samples become rows: medians, ratios, losses, no NaN; bars; and the report of ``make bench``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
import getpass
import json
import math
import os
from pathlib import Path
import platform
import signal
import subprocess
import sys
import textwrap
from typing import Any, IO

from bench import report as program
from bench import results as bench_results
from bench.decode import DECODE_BARS
from bench.environment import describe_environment
from bench.link import LINK_BARS
from bench.peers.processes import BARS as PEER_BARS
from bench.pipeline import PIPELINE_BARS
from bench.program import _parser, COMMANDS
from bench.results import ARGUMENTS, arguments_of, load, report
from bench.rows import Condition, make_rows, Measuring, Row, Series
from bench.subcommand import Bar, check_bars, FULL_HD, Key, UHD_4K, UHD_8K, VGA
from bench.worker import importing_bench
from bench_kit import bench, command, ENVIRONMENT, row, SCHEMA, write
from hypothesis import given
from hypothesis import strategies as st
from npu.json_schema import conforms
import pytest
from waiting import until

VGA_30 = Condition(640, 480, 30.0)
LINK, FLOOR = ('link', 'x'), ('floor', 'f')


def rows_of(
    references: Sequence[tuple[str, str]] = (FLOOR,), **series: list[Series]
) -> dict[str, Row]:
    """Return rows by variant; *series* holds each variant's repetitions."""
    rounds = Measuring(list)
    for variant, repetitions in series.items():
        rounds['floor' if variant == 'f' else 'link', variant, VGA_30] = repetitions
    return {row.variant: row for row in make_rows(rounds, references)}


def flat(median_us: float, cpu_us: float = 1.0) -> Series:
    return Series([median_us] * 30, cpu_us)


@pytest.mark.parametrize(('count', 'warm'), [(1, 1), (19, 19), (20, 18), (45, 41)])
def test_the_first_tenth_of_a_series_warms_up_unless_it_is_short(count: int, warm: int) -> None:
    # As in floor.py. Later samples are larger here, so the first ones are dropped.
    series = Series([float(n) for n in range(count)], 1.0)
    assert series.warm == [float(n) for n in range(count - warm, count)]


def test_a_row_has_the_median_of_the_repetitions() -> None:
    series = Series([1000.0] * 10 + [float(n) for n in range(90, 0, -1)], 1.0)
    assert (series.median_us, series.p99_us) == (46.0, 90.0), "as the floor's"
    assert rows_of(x=[flat(median) for median in (5.0, 1.0, 9.0, 3.0)])['x'].median_us == 4.0, (
        'of an even number, between the middle ones'
    )
    row = rows_of(x=[flat(10.0, 5.0), flat(90.0, 7.0), flat(20.0, 6.0)])['x']
    assert (row.median_us, row.p99_us) == (20.0, 20.0)
    assert (row.cpu_us_per_frame, row.repetitions) == (6.0, 3)
    assert row.medians_us == [10.0, 90.0, 20.0]
    assert (row.case, row.width, row.height, row.rate_hz) == ('link', 640, 480, 30.0)


def test_ratios_are_taken_in_each_repetition() -> None:
    # The machine was ten times slower in the second round; the ratio of medians would be 4 / 2.
    rows = rows_of(
        x=[flat(4.0, 8.0), flat(30.0, 90.0), flat(4.0, 8.0)],
        f=[flat(1.0, 2.0), flat(10.0, 30.0), flat(2.0, 4.0)],
    )
    assert rows['x'].ratio_to == {'floor/f': 3.0}
    assert rows['x'].added_us == {'floor/f': 3.0}
    assert rows['x'].cpu_ratio_to == {'floor/f': 3.0}
    assert rows['f'].ratio_to == {}, 'nothing is compared to itself'


def test_only_the_same_condition_is_compared() -> None:
    rounds = Measuring(list)
    rounds[(*FLOOR, Condition(1920, 1080, 30.0))].append(flat(1.0))
    rounds[(*LINK, VGA_30)].append(flat(8.0))
    rounds[('link', 'a', VGA_30)].append(flat(8.0))
    rounds[(*FLOOR, Condition(640, 480, 0.0))].append(flat(1.0))
    rows = make_rows(rounds, [FLOOR])
    assert [row.ratio_to for row in rows if row.case == 'link'] == [{}, {}]
    order = [(row.width, row.rate_hz, row.case, row.variant) for row in rows]
    assert order == [
        (640, 0.0, 'floor', 'f'),
        (640, 30.0, 'link', 'a'),
        (640, 30.0, 'link', 'x'),
        (1920, 30.0, 'floor', 'f'),
    ]


def test_cases_that_cannot_be_paired_are_refused() -> None:
    with pytest.raises(ValueError):
        rows_of(x=[flat(1.0), flat(1.0)], f=[flat(1.0)])


@pytest.mark.parametrize(
    ('series', 'per_cent'),
    [
        ([Series([1.0] * 30, 1.0)], 0.0),
        ([Series([1.0] * 30, 1.0, lost=10)], 25.0),
        ([Series([1.0] * 30, 1.0, lost=10), Series([1.0] * 60, 1.0)], 10.0),
        ([Series([], 1.0, lost=5)], 100.0),
        ([Series([], 1.0)], 0.0),
    ],
)
def test_lost_frames_are_counted_over_all_repetitions(
    series: list[Series], per_cent: float
) -> None:
    assert rows_of(x=series)['x'].lost_per_cent == per_cent


@pytest.mark.parametrize('nothing', [Series([], 3.0, lost=20), Series([], 0.0)])
def test_where_nothing_arrived_there_is_null(nothing: Series) -> None:
    rows = rows_of(x=[nothing], f=[flat(1.0)])
    text = json.dumps([row.as_json() for row in rows.values()], allow_nan=False)
    assert json.loads(text)[1]['median_us'] is None
    assert rows['x'].p99_us is None and rows['x'].medians_us == [None] and rows['x'].ratio_to == {}
    assert rows_of([LINK], x=[nothing], f=[flat(1.0)])['f'].ratio_to == {}, (
        'nor is there a ratio to nothing'
    )
    row = rows_of(x=[nothing, flat(6.0), flat(8.0)], f=[flat(1.0), flat(2.0), flat(2.0)])['x']
    assert (row.median_us, row.medians_us) == (7.0, [None, 6.0, 8.0])
    assert (row.repetitions, row.ratio_to) == (3, {'floor/f': 3.5})


samples = st.lists(st.floats(0.0, 1e9), max_size=40)
repetition = st.builds(Series, samples, st.floats(0.0, 1e6), st.integers(0, 50))


@given(st.lists(st.tuples(repetition, repetition), min_size=1, max_size=4))
def test_whatever_was_measured_fits_the_schema(pairs: list[tuple[Series, Series]]) -> None:
    rows = rows_of([FLOOR, LINK], x=[x for x, _ in pairs], f=[f for _, f in pairs])
    made = {'environment': ENVIRONMENT, 'rows': [row.as_json() for row in rows.values()]}
    assert conforms(made, SCHEMA)
    assert all(math.isfinite(ratio) for one in rows.values() for ratio in one.ratio_to.values())


def test_the_schema_requires_what_other_programs_rely_on() -> None:
    to = [{'floor/f': 2.0}, {'floor/f': -1.0}, {'floor/f': 1.5}]
    row = Row('link', 'x', 640, 480, 30.0, 1.0, 2.0, 3.0, 7, *to, [1.0, None], 0.5)
    written = json.loads(json.dumps(row.as_json()))
    assert conforms({'environment': describe_environment(), 'rows': [written]}, SCHEMA)
    assert set(SCHEMA['required']) == {'environment', 'rows'}
    items = SCHEMA['properties']['rows']['items']
    assert set(items['required']) == set(items['properties']) == set(written)
    assert set(written) >= {
        'case', 'variant', 'width', 'height', 'rate_hz', 'median_us', 'p99_us',
        'cpu_us_per_frame', 'repetitions', 'ratio_to',
    }  # fmt: skip


def test_what_a_figure_depends_on_is_in_the_file_and_whose_machine_it_was_is_not() -> None:
    described = describe_environment()
    assert set(described) <= set(SCHEMA['properties']['environment']['properties']), (
        'each has its place in the schema'
    )
    assert described['packages']['numpy'] and described['kernel'] == platform.release()
    text = json.dumps(described)
    assert str(Path.home()) not in text and str(Path.cwd()) not in text
    for name in (platform.node(), getpass.getuser()):
        # A short host name may also occur as another word in the text.
        assert len(name) < 5 or name not in text


# A sub-command with one row that prints a message meanwhile.
STAND_IN = """
import sys
from bench import program
from bench.subcommand import Bar, Command, Measured
from bench.rows import Row
def measure(say):
    say('repetition 1 of 1')
    return Measured([Row('x', 'y', 640, 480, 30.0, 1.0, 2.0, 3.0, 1)])
bars = [Bar('a', lambda rows: float(sys.argv[1]), 1.0, '')]
command = Command('x', 'x', lambda parser: None, lambda options: measure, bars)
program.COMMANDS = [command]
sys.exit(program.run(['x', *sys.argv[2:]]))
"""


def ran_stand_in(
    *arguments: str, figure: float = 0.0, **where: Any
) -> subprocess.CompletedProcess[str]:
    where = {'stdout': subprocess.PIPE, 'stderr': subprocess.PIPE} | where
    command = [sys.executable, '-c', STAND_IN, str(figure), *arguments]
    return subprocess.run(command, text=True, check=False, **where)


def broken_pipe() -> IO[bytes]:
    reading, writing = os.pipe()
    os.close(reading)
    return os.fdopen(writing, 'wb')


def full_disk() -> IO[bytes]:
    return open('/dev/full', 'wb', buffering=0)


@pytest.mark.parametrize(('make', 'figure', 'code'), [(broken_pipe, 0.5, 0), (full_disk, 2.0, 1)])
def test_the_file_is_there_and_the_exit_code_is_the_measurement_s(
    make: Any, figure: float, code: int, tmp_path: Path
) -> None:
    path = tmp_path / 'x.json'
    with make() as lost:
        ran = ran_stand_in('--json', str(path), '--check', figure=figure, stdout=lost)
    assert (ran.returncode, ran.stderr) == (code, 'repetition 1 of 1\n')
    assert json.loads(path.read_text())['rows'][0]['case'] == 'x'


def test_without_a_file_a_result_that_nobody_saw_is_an_error() -> None:
    with full_disk() as lost:
        ran = ran_stand_in(stdout=lost)
    assert ran.returncode == 2
    assert ran.stderr.splitlines()[1:] == [
        "zc_bench: error: the result can't be printed: No space left on device; give a file with "
        '--json'
    ]


def test_the_table_says_what_each_column_is_measured_in() -> None:
    head, row = ran_stand_in().stdout.splitlines()
    # A figure ends below the last letter of its heading.
    for unit, figure in (('rate [Hz]', '30'), ('p99 [µs]', '2.0'), ('CPU [µs/frame]', '3.0')):
        assert row[: head.index(unit) + len(unit)].endswith(f' {figure}')


# The promised figures of links, decoding and the pipeline.
Table = dict[Key, Row]
Size = tuple[int, int]
SIZES = (VGA, FULL_HD, UHD_4K, UHD_8K)
COPYING = ('zenoh_shared_memory', 'cyclonedds', 'iceoryx2_copy')
LINKS = ('shared_memory', 'in_process_mailbox', 'in_process_executor')


def link(variant: str, size: Size = FULL_HD, rate_hz: float = 0.0) -> Key:
    return 'link', variant, *size, rate_hz


def decode(case: str, variant: str = 'ours', size: Size = FULL_HD) -> Key:
    return case, variant, *size, 0.0


def pipeline(size: Size, rate_hz: float, cameras: str = '1_camera') -> Key:
    return 'pipeline', cameras, *size, rate_hz


def table(fields: Mapping[Key, Mapping[str, Any]]) -> Table:
    usual = (100.0, 100.0, 1.0, 7)
    return {key: replace(Row(*key, *usual), **changed) for key, changed in fields.items()}


def to(reference: str, ratio: float | None = None, **figures: float) -> dict[str, Any]:
    """Return a row's fields; each figure is relative to the reference."""
    figures |= {} if ratio is None else {'ratio_to': ratio}
    return {name: {reference: figure} for name, figure in figures.items()}


def links_just_met() -> Table:
    shared, mailbox, executor = LINKS
    tuned, default, ours = 'rclpy_image_tuned', 'rclpy_image_default', 'link/shared_memory'
    socket, simple = 'floor/fd_socket', 'floor/simple_queue'
    return table(
        {
            **{link(one, VGA): {'median_us': 100.0} for one in LINKS},
            **{link(one, UHD_8K): {'median_us': 115.0} for one in LINKS},
            **{link(peer, size): to(ours, 5.0) for peer in COPYING for size in SIZES},
            **{link('iceoryx2_in_place', size): to(ours, added_us=-25.0) for size in SIZES},
            link(shared): to(socket, 9.0, added_us=25.0),
            link(shared, rate_hz=30.0): to(socket, 2.0, added_us=99.0),
            link(tuned): to(ours, 100.0, cpu_ratio_to=50.0),
            link(default): to(ours, 150.0, cpu_ratio_to=50.0),
            link(tuned, rate_hz=30.0): to(ours, 40.0),
            link(default, rate_hz=30.0): to(ours, 200.0),
            link(mailbox): to(simple, 9.0, added_us=15.0),
            link(mailbox, rate_hz=30.0): to(simple, 2.0, added_us=99.0),
            link(executor): to('floor/guard', 2.0),
            link(executor, rate_hz=30.0): to('floor/guard', 2.0),
        }
    )


def decoding_just_met() -> Table:
    masks, small = 'masks_200px', (640, 640)
    beside = [
        ('yolov8_decoded', 'filter_first', 1.0), ('yolov8_decoded', 'numpy_usual', 1.0),
        ('yolov8_sparse', 'filter_first', 0.97), ('yolov8_sparse', 'numpy_usual', 1.0),
        ('yolov8_dfl_int8', 'numpy_usual', 1.0), ('tensor', 'exact', 1.0),
    ]  # fmt: skip
    return table(
        {
            decode('yolov8_decoded'): {'median_us': 800.0},
            decode('yolov8_dfl_int8'): {'median_us': 1200.0},
            decode('tensor'): {'median_us': 900.0, 'figures': {'noise_max_off_levels': 1.0}},
            decode(masks, size=small): {'median_us': 700.0},
            decode(masks, 'whole_picture', small): to(f'{masks}/ours', 1.0),
            **{decode(case, peer): to(f'{case}/ours', ratio) for case, peer, ratio in beside},
        }
    )


def pipelines_just_met() -> Table:
    figures = [(FULL_HD, 0.0, 300.0 / 1.1), (UHD_4K, 0.0, 300.0), (FULL_HD, 30.0, 300.0),
               (UHD_4K, 30.0, 300.0)]  # fmt: skip
    met = {
        pipeline(size, rate_hz): {'figures': {'cpu_p50_us': us}} for size, rate_hz, us in figures
    }
    return table({**met, pipeline(FULL_HD, 30.0, '8_cameras'): {}})


BARS: dict[Callable[[], Table], Sequence[Bar]] = {
    links_just_met: (*LINK_BARS, *PEER_BARS), decoding_just_met: DECODE_BARS,
    pipelines_just_met: PIPELINE_BARS,
}  # fmt: skip


TWICE = {
    link('rclpy_image_tuned'), link('rclpy_image_default'), decode('tensor'),
    pipeline(FULL_HD, 0.0), pipeline(UHD_4K, 0.0),
}  # fmt: skip


def failing(rows: Table, bars: Sequence[Bar]) -> list[str]:
    return [str(each) for each in check_bars([*rows.values()], bars) if not each.passed]


@pytest.mark.parametrize('met', BARS)
def test_each_bar_reads_the_figure_that_it_is_about(met: Callable[[], Table]) -> None:
    bars, rows = BARS[met], met()
    # The limit for 1080p is below that for 4K, so its figure is lower too.
    near = 0.1 if met is pipelines_just_met else 1e-6
    assert [bar.figure(rows) for bar in bars] == pytest.approx(
        [bar.limit for bar in bars], rel=near
    )
    assert [bar.at_least for bar in bars] == [bar.text.endswith('times') for bar in bars], (
        'what is a multiple of ours has to be large'
    )
    for key in rows:
        missing = failing({other: row for other, row in rows.items() if other != key}, bars)
        assert len(missing) == (2 if key in TWICE else 1), key
        assert all('not measured' in failure for failure in missing), key
    assert failing(rows, bars) == []
    assert len({bar.text + str(bar.limit) for bar in bars}) == len(bars)
    nothing = [(verdict.measured, verdict.passed) for verdict in check_bars([], bars)]
    assert nothing == [('not measured', False)] * len(bars)


@pytest.mark.parametrize(
    ('figure', 'at_least', 'passed'),
    [(2.0, False, True), (2.01, False, False), (2.0, True, True), (1.99, True, False)],
)
def test_what_just_misses_a_bar_fails(figure: float, at_least: bool, passed: bool) -> None:
    verdict = Bar('a bar', lambda rows: figure, 2.0, '×', at_least=at_least).verdict({})
    word, sign = 'pass' if passed else 'FAIL', '≥' if at_least else '≤'
    assert verdict.passed == passed and str(verdict) == f'{word}  a bar {sign} 2×: {figure:.2f}×'


def test_a_frame_that_one_of_eight_cameras_lost_fails_and_one_in_place_may_be_slower() -> None:
    rows, links = pipelines_just_met(), links_just_met()
    key, slower = pipeline(FULL_HD, 30.0, '8_cameras'), link('iceoryx2_in_place')
    rows[key] = replace(rows[key], lost_per_cent=0.01)
    (failure,) = failing(rows, PIPELINE_BARS)
    assert failure.endswith('lost frames ≤ 0 %: 0.01 %')
    links[slower] = replace(links[slower], added_us={'link/shared_memory': 3.0})
    assert failing(links, PEER_BARS) == []


# ``make bench``: its report, and that one failing benchmark doesn't stop the others.
def test_the_link_s_table_has_ratios_to_ours_before_microseconds() -> None:
    ours, read, vga = 'link/shared_memory', 'link_read/shared_memory', (640, 480)
    nothing = {'median_us': None, 'cpu_us_per_frame': None, 'lost_per_cent': 100.0}
    both = {'ratio_to': {ours: 101.0}, 'cpu_ratio_to': {ours: 44.0}}
    rows = [
        row('link', 'shared_memory', median_us=20.0),
        row('link', 'shared_memory', vga, median_us=19.0),
        row('link', 'zenoh', median_us=2046.0, **both),
        row('link', 'zenoh', vga, **nothing),
        row('link', 'cyclonedds', median_us=3_001_470.0, cpu_us_per_frame=999.0, p99_us=1000.0),
        row('link', 'iceoryx2_in_place', rate_hz=30.0, median_us=99.94, ratio_to={ours: 0.5}),
        row('floor', 'fd_socket', median_us=2.5, ratio_to={ours: 0.125}),
        row('link_read', 'shared_memory', median_us=150.0),
        row('link_read', 'zenoh_shared_memory', median_us=900.0, ratio_to={read: 6.0, ours: 45.0}),
    ]
    page = report([bench('link', rows)], {})
    for line in (
        '| `shared_memory` | **1 ×** 19 µs | **1 ×** 20 µs |',
        '| `zenoh` | – – (100 % lost) | 101 × 2.05 ms |',
        '| `cyclonedds` | – | – 3 s |',
        '| `cyclonedds` | – | 999 µs | 1 ms | 0 % |',
        '| `iceoryx2_in_place` | 0.5 × 99.9 µs |',
        '| floor `fd_socket` | – | 0.12 × 2.5 µs |',
        '| `zenoh` | 44 × | 50 µs | 200 µs | 0 % |',
        '| `zenoh_shared_memory` | 6 × 900 µs |',
    ):
        assert line in page
    heads = ('unthrottled, one frame in flight', 'at 30 Hz', 'reads every pixel')
    places = [page.index(head) for head in heads]
    assert places == sorted(places)


def test_verdicts_environment_and_what_was_absent_are_said() -> None:
    bars = [
        Bar(name, lambda rows, figure=figure: figure, 1.0, ' s')
        for name, figure in (('ha|\nlf', 0.5), ('two', 2.0), ('none', None))
    ]
    environment = {
        **ENVIRONMENT, 'load_average_after': [], 'absent': {'zenoh': 'not installed'},
        'stalled': {'cyclonedds': '2 of 9 series: why'},
        'limits': {'1080p 30 Hz': {'cameras': 24, 'first_loss': 28, 'limit': 'the CPUs are full',
                                   'cpus': 2}},
    }  # fmt: skip
    made = bench('scale', [row('scale', '1_cameras')], *bars, environment=environment)
    page = report([made], {'scale': [Path('x/scale.png')]})
    for line in (
        '1 of 3 bars are met.',
        '- load average before and after each: scale 0.1 → 0\n',
        # a bar or a line feed must not end the table
        '| scale | ha\\| lf ≤ 1 s | 0.50 s | pass |',
        '| scale | two ≤ 1 s | 2.00 s | **FAIL** |',
        '| scale | none ≤ 1 s | not measured | **FAIL** |',
        '- `zenoh`, not measured: not installed',
        '- `cyclonedds`, lost series: 2 of 9 series: why',
        '1080p 30 Hz: 24 cameras without a loss; the CPUs are full',
        '![scale](scale.png)',
        '2026-11-21: 2 CPUs of a CPU',
    ):
        assert line in page


@pytest.mark.parametrize(
    ('content', 'problem'),
    [
        (None, 'it was not measured'),
        ('{', 'x.json is not a result'),
        ('{"rows": []}', "KeyError: 'environment'"),
        ('[]', 'TypeError: '),
        ('[' * 200_000, 'x.json is not a result: '),
    ],
)
def test_a_file_that_is_no_result_is_a_problem_and_no_crash(
    tmp_path: Path, content: str | None, problem: str
) -> None:
    path = tmp_path / 'x.json'
    if content is not None:
        path.write_text(content, encoding='utf-8')
    assert problem in load(command('x'), path).problem


@pytest.mark.parametrize('quick', [False, True])
def test_every_sub_command_takes_its_arguments(quick: bool, tmp_path: Path) -> None:
    assert set(ARGUMENTS) == {one.name for one in COMMANDS}
    for one in COMMANDS:
        options = _parser().parse_args([one.name, *arguments_of(one.name, tmp_path, quick=quick)])
        one.prepare(options)
    trace = arguments_of('timeline', tmp_path, quick=quick)
    assert str(tmp_path / 'timeline_trace.json') in trace
    assert str(tmp_path / 'timeline.json') not in trace, 'which is what zc_bench writes'


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Run a short Python text instead of ``zc_bench``."""

    def use(lines: str) -> None:
        (tmp_path / 'stand_in_bench.py').write_text(
            'import json, os, signal, sys, time\nname, path = sys.argv[1], sys.argv[-1]\n'
            + textwrap.dedent(lines),
            encoding='utf-8',
        )
        monkeypatch.setattr(bench_results, 'PROGRAM', [str(tmp_path / 'stand_in_bench.py')])

    return use


def test_each_is_run_and_one_that_fails_costs_the_others_nothing(
    stand_in: Callable[[str], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / 'result', [row('tensor', 'ours')])
    (tmp_path / 'out').mkdir()
    write(tmp_path / 'out' / 'decode.json', [row('tensor', 'of_last_week')])
    stand_in(f"""
        print('words of', name, sys.argv[2:-2])
        if name == 'decode':
            sys.exit('no memory')
        open(path, 'w').write(open({str(tmp_path / 'result')!r}).read())
    """)
    assert program.main([str(tmp_path / 'out'), '--quick']) == 1
    page = (tmp_path / 'out' / 'report.md').read_text(encoding='utf-8')
    assert page.count('| tensor | `ours` |') == len(COMMANDS) - 2, 'the link has its own table'
    assert 'Not measured: exit code 1: words of decode' in page and 'no memory' in page
    assert 'of_last_week' not in page and '--quick' not in page
    log = (tmp_path / 'out' / 'pipeline.log').read_text(encoding='utf-8')
    assert "'--repetitions', '1'" in log
    assert 'bars are met' in capsys.readouterr().out


def test_a_signal_ends_what_runs(stand_in: Callable[[str], None], tmp_path: Path) -> None:
    stand_in(
        'signal.signal(signal.SIGTERM, lambda *_: (open("ended", "w").close(), os._exit(0)))\n'
        'open("started", "w").close()\ntime.sleep(60)'
    )
    program = (
        'import sys; from bench import report, results; results.PROGRAM = ["stand_in_bench.py"]; '
        'sys.exit(report.main(["out"]))'
    )
    process = subprocess.Popen(
        [sys.executable, '-c', program], cwd=tmp_path, env=importing_bench(os.environ)
    )
    until((tmp_path / 'started').exists)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 128 + signal.SIGINT
    assert (tmp_path / 'ended').exists() and not (tmp_path / 'out' / 'report.md').exists()


def test_what_is_there_is_taken_and_without_matplotlib_the_report_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in ('matplotlib', 'matplotlib.figure'):
        monkeypatch.setitem(sys.modules, module, None)
    write(tmp_path / 'decode.json', [row('tensor', 'ours')])
    write(tmp_path / 'link.json', [row('link', 'shared_memory'), row('floor', 'fd_socket')])
    assert program.main([str(tmp_path), '--no-run']) == 0
    how = 'Matplotlib is not installed: pip install matplotlib'
    page = (tmp_path / 'report.md').read_text(encoding='utf-8')
    assert f'No pictures: {how}' in page and '| tensor | `ours` |' in page
    assert page.count('Not measured: it was not measured') == len(COMMANDS) - 2
    assert how in capsys.readouterr().err and not list(tmp_path.glob('*.png'))
    assert program.main([str(tmp_path), '--no-run', '--check']) == 1
    assert 'FAIL' in capsys.readouterr().out
