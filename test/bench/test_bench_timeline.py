"""``zc_bench timeline``: stages fill the whole way, files are known to be writable before, and a short run over real ROS."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench_kit import instead_of_measuring, run_bench

from zc_perception.bench import timeline
from zc_perception.bench import zc_bench as program
from zc_perception.bench.rows import Condition
from zc_perception.bench.subcommand import Measured
from zc_perception.bench.timeline import (
    STAGES,
    WHOLE,
    TimelinePlan,
    measure_timeline,
    rows_of,
    stages_us,
)
from zc_perception.bench.worker import BenchError
from zc_perception.observe.frame_log import FrameRecord, RecordKind

BLANK = FrameRecord(1, RecordKind.PROCESSED, 0, 1, 1, *(0,) * 10, (1,), 0, 0, 3, 0, 1)
NAMES = [name for name, _ in STAGES]
CONDITION = Condition(640, 480, 30.0)


def record(began_us: int = 1000, scale: int = 1) -> FrameRecord:
    """Stages of 1, 2, 4 … µs, times *scale*."""
    times = [began_us + scale * (2**number - 1) for number in range(len(STAGES) + 1)]
    names = (
        'captured_ns',
        'published_ns',
        'received_ns',
        'submitted_ns',
        'signalled_ns',
        'done_ns',
        'decoded_ns',
        'sent_ns',
    )
    return BLANK._replace(**{name: 1000 * time for name, time in zip(names, times, strict=True)})


def test_stages_follow_each_other_and_fill_the_whole_way() -> None:
    found = stages_us(record())
    assert [found[name] for name in NAMES] == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0] and found[
        WHOLE
    ] == 127.0


@pytest.mark.parametrize(
    'unknown', ['published_ns', 'received_ns', 'submitted_ns', 'signalled_ns', 'decoded_ns']
)
def test_a_time_that_is_not_known_makes_no_stage_negative_and_the_sum_the_same(
    unknown: str,
) -> None:
    found = stages_us(record()._replace(**{unknown: 0}))
    assert min(found.values()) >= 0 and found[WHOLE] == 127.0 == sum(found[name] for name in NAMES)


def test_rows_are_stages_in_their_order_with_their_share() -> None:
    rows = rows_of([record(scale=scale) for scale in (1, 2, 3)], CONDITION)
    assert [row.variant for row in rows] == [*NAMES, WHOLE]
    assert (
        rows[0].median_us == 2.0
        and rows[-1].median_us == 254.0
        and rows[-1].cpu_us_per_frame is None
    )
    assert (
        rows[-2].figures['share_percent'] == pytest.approx(100 * 64 / 127, abs=0.001)
        and rows[-1].figures['share_percent'] == 100.0
    )
    assert sum(row.figures['share_percent'] for row in rows[:-1]) == pytest.approx(100.0, abs=0.01)


@pytest.mark.parametrize(
    'records',
    [[], [record()], [record()._replace(sent_ns=0)] * 5, [record()._replace(captured_ns=0)] * 5],
)
def test_frames_that_were_not_processed_here_are_no_result(records: list[FrameRecord]) -> None:
    with pytest.raises(BenchError, match='fewer than two frames were captured and processed'):
        rows_of(records, CONDITION)


def test_running_nodes_have_to_be_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from zc_perception.observe.frame_log import FoundFrameLogs

    monkeypatch.setattr(timeline, 'find_frame_logs', lambda pids: FoundFrameLogs())
    with pytest.raises(
        BenchError, match='none of these programs runs a capture and an inference node'
    ):
        measure_timeline(TimelinePlan(running=()), lambda line: None)


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[TimelinePlan]:
    rows = rows_of([record(), record()], CONDITION)
    return instead_of_measuring(
        monkeypatch, timeline, 'measure_timeline', (Measured(rows), {'traceEvents': []})
    )


def test_options_become_the_plan(
    planned: list[TimelinePlan], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / 'a' / 'trace.json'
    arguments = ['timeline', '--trace', str(trace)]
    assert (
        program.main([*arguments, '--seconds', '2', '--delay-ms', '3', '--running', '4711']) == 0
    )
    assert planned == [TimelinePlan(2.0, 3.0, (4711,), trace)]
    assert program.main([*arguments, '--running']) == 0 and planned[-1].running == ()
    assert (
        json.loads(trace.read_text()) == {'traceEvents': []}
        and str(trace) in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (['--seconds', '200'], '--seconds 200'),
        (['--delay-ms', '61'], '--delay-ms 61'),
        (['--check'], '--check: timeline has no bars'),
        (['--trace', 'same', '--json', './same'], "--trace and --json are the same file './same'"),
    ],
)
def test_what_can_not_be_is_said_before_anything_is_measured(
    arguments: list[str],
    message: str,
    planned: list[TimelinePlan],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert (
        program.main(['timeline', '--trace', str(tmp_path / 't.json'), *arguments]) == 2
        and planned == []
    )
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f'zc_bench: error: {message}')


def test_a_short_run_of_everything(free_domain: int, tmp_path: Path) -> None:
    trace = tmp_path / 'trace.json'
    document = run_bench(tmp_path, 'timeline', '--seconds', '0.5', '--trace', str(trace))
    rows = {row['variant']: row for row in document['rows']}
    assert list(rows) == [*NAMES, WHOLE]
    # The accelerator of two milliseconds is in no other stage.
    assert (
        rows['infer']['median_us'] >= 2000
        and rows['decode']['median_us'] > 0
        and rows['publish']['median_us'] > 0
    )
    assert rows[WHOLE]['median_us'] >= rows['infer']['median_us']
    events = json.loads(trace.read_text(encoding='utf-8'))['traceEvents']
    assert {'capture', 'link', 'infer', 'decode', 'publish'} <= {
        event.get('cat') for event in events
    }
