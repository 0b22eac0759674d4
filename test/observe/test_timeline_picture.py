"""The picture of a timeline: each frame's colour where and when its stages are, and nowhere else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray
from observe.timeline_kit import BASE, MS, PERIOD, event, kernel_events, nodes, processed, published

from zc_perception.observe.timeline import BUFFERS, IMPORTS, JOBS, SIGNALS, WAITS, NodeTrack, build_timeline
from zc_perception.observe.timeline_picture import (
    FRAME_COLOURS,
    OTHER_COLOUR,
    Plan,
    Row,
    choose_frames,
    draw_timeline,
    plan_picture,
    render_timeline,
)

STAGES = {
    'capture': (-2.0, 0.1), 'link': (0.1, 1.0), 'import': (1.0, 2.0), 'infer': (2.0, 12.0), 'queue': (12.0, 13.0),
    'decode': (13.0, 15.0), 'publish': (15.0, 16.0), JOBS: (2.0001, 11.0), WAITS: (3.0, 11.0002),
}  # fmt: skip
INSTANTS = {IMPORTS: (1.0003, 16.0001), SIGNALS: (2.00005, 11.0001), BUFFERS: (1.0001, 16.0002)}


@pytest.fixture(scope='module')
def timeline() -> dict[str, Any]:
    return build_timeline(nodes(20), [e for n in range(20) for e in kernel_events(n)], other={'kernel': '6.12', 'date': '2026-11-21'})


@pytest.fixture(scope='module')
def plan(timeline: dict[str, Any]) -> Plan:
    return plan_picture(timeline, 5, (1400, 600))


@pytest.fixture(scope='module')
def picture(timeline: dict[str, Any]) -> NDArray[np.uint8]:
    return render_timeline(timeline)


def in_row(picture: NDArray[np.uint8], row: Row, colour: tuple[int, int, int]) -> NDArray[np.intp]:
    """Columns of the row's middle that have this very colour."""
    middle = picture[round(row.top + row.height / 2), :, :]
    return np.flatnonzero((middle == colour).all(axis=1))


def row_of(plan: Plan, category: str) -> Row:
    (row,) = [row for row in plan.rows if row.category == category]
    return row


def test_five_successive_frames_of_the_middle_are_chosen(timeline: dict[str, Any], plan: Plan) -> None:
    assert plan.frames == (8, 9, 10, 11, 12)
    assert len({plan.colour(frame) for frame in plan.frames} | {OTHER_COLOUR}) == 6
    assert choose_frames(timeline['traceEvents'], 50) == tuple(range(1, 21)), 'those that there are'


def test_every_stage_and_every_kind_of_kernel_event_has_a_row(plan: Plan) -> None:
    assert [row.category for row in plan.rows] == [
        'capture', 'deliver', 'link', 'import', 'infer', 'queue', 'decode', 'publish', JOBS, IMPORTS, SIGNALS, WAITS, BUFFERS,
    ]  # fmt: skip
    assert [name for name, _ in plan.groups] == ['capture /capture (process 1200)', 'inference /inference (process 1300)', 'kernel']
    for upper, lower in zip(plan.rows, plan.rows[1:], strict=False):
        assert upper.top + upper.height <= lower.top + 1e-6
    assert plan.rows[-1].top + plan.rows[-1].height < 600 and all(row.height > 20 for row in plan.rows)


@pytest.mark.parametrize('stage', STAGES)
def test_a_frame_s_colour_is_where_its_stage_was(plan: Plan, picture: NDArray[np.uint8], stage: str) -> None:
    begin_ms, end_ms = STAGES[stage]
    row = row_of(plan, stage)
    for index, frame in enumerate(plan.frames):
        t = BASE + (frame - 1) * PERIOD
        left, right = (plan.x((t + ms * MS) / 1000) for ms in (begin_ms, end_ms))
        columns = in_row(picture, row, FRAME_COLOURS[index])
        assert len(columns), f'frame {frame} is not in row {stage}'
        assert left - 1.5 <= columns[0] <= left + 1.5 and right - 1.5 <= columns[-1] + 1 <= max(right + 1.5, left + 4.5)
        if right - left < 40:  # no text in it
            assert len(columns) == columns[-1] - columns[0] + 1, 'all of it'


@pytest.mark.parametrize('kind', INSTANTS)
def test_a_frame_s_events_are_where_they_happened(plan: Plan, picture: NDArray[np.uint8], kind: str) -> None:
    row = row_of(plan, kind)
    for index, frame in enumerate(plan.frames):
        t = BASE + (frame - 1) * PERIOD
        columns = in_row(picture, row, FRAME_COLOURS[index])
        for ms in INSTANTS[kind]:
            assert np.abs(columns - plan.x((t + ms * MS) / 1000)).min() < 1.5
        assert len(columns) < 2 * 14, 'two marks, and nothing else'


def test_a_stage_that_moves_moves_in_the_picture(plan: Plan) -> None:
    both = nodes(20)
    both[1].records = [processed(n, done_ns=BASE + n * PERIOD + 16 * MS, decoded_ns=BASE + n * PERIOD + 19 * MS,
                                 sent_ns=BASE + n * PERIOD + 20 * MS) for n in range(20)]  # fmt: skip
    moved = build_timeline(both)
    other = plan_picture(moved, 5, (1400, 600))
    columns = in_row(render_timeline(moved), row_of(other, 'decode'), FRAME_COLOURS[0])
    expected = [other.x((BASE + (other.frames[0] - 1) * PERIOD + ms * MS) / 1000) for ms in (16, 19)]
    assert [columns[0], columns[-1] + 1] == pytest.approx(expected, abs=1.5)


def test_other_frames_and_events_of_no_frame_are_grey(timeline: dict[str, Any]) -> None:
    both = nodes(9)
    both[1].records = [record._replace(done_ns=record.done_ns + 25 * MS, decoded_ns=record.decoded_ns + 25 * MS,
                                       sent_ns=record.sent_ns + 25 * MS) for record in both[1].records]  # fmt: skip
    lonely = [event(BASE + 4 * PERIOD + 25 * MS, 'dma_buf_mmap', inode=9999)]
    trace = build_timeline(both, [e for n in range(9) for e in kernel_events(n)] + lonely)
    plan = plan_picture(trace, 3, (1400, 600))
    picture = render_timeline(trace, frames=3)
    assert len(in_row(picture, row_of(plan, 'decode'), OTHER_COLOUR)) > 5, 'one before reaches into the picture'
    columns = in_row(picture, row_of(plan, BUFFERS), OTHER_COLOUR)
    assert np.abs(columns - plan.x(lonely[0].time_ns / 1000)).min() < 1.5


def test_what_overlaps_is_drawn_side_by_side_and_whole() -> None:
    both = nodes(12)
    later = {'signalled_ns': 85, 'done_ns': 86, 'decoded_ns': 88, 'sent_ns': 89}
    both[1].records = [processed(n, **{name: BASE + n * PERIOD + ms * MS for name, ms in later.items()}) for n in range(12)]
    trace = build_timeline(both)
    plan, picture = plan_picture(trace, 4, (1400, 600)), render_timeline(trace, frames=4)
    row = row_of(plan, 'infer')
    assert len(row.lanes) == 3
    tops = set()
    for index, frame in enumerate(plan.frames):
        t = BASE + (frame - 1) * PERIOD
        (tid,) = {e['tid'] for e in trace['traceEvents'] if e['ph'] == 'X' and e['cat'] == 'infer' and e['args']['frame'] == frame}
        top, bottom = row.bar(tid)
        tops.add(top)
        bar = (picture[round((top + bottom) / 2)] == FRAME_COLOURS[index]).all(axis=1)
        left, right = (plan.x((t + ms * MS) / 1000) for ms in (2, 85))
        assert bar[round(left) + 2 : round(right) - 2].all() and not bar[: round(left) - 2].any() and not bar[round(right) + 2 :].any()
    assert len(tops) == 3


def test_usual_frames_are_chosen_not_those_of_a_hiccup() -> None:
    both = nodes(21)
    late = range(9, 13)
    both[1].records = [processed(n, sent_ns=BASE + n * PERIOD + (400 if n in late else 16) * MS) for n in range(21)]
    assert choose_frames(build_timeline(both)['traceEvents'], 4) == (6, 7, 8, 9), 'the nearest to the middle that end in time'


def test_the_axis_begins_before_the_first_frame_and_ends_after_the_last(plan: Plan) -> None:
    assert (plan.x(plan.begin_us), plan.x(plan.end_us)) == pytest.approx((plan.left, plan.right))
    first, last = (BASE + (plan.frames[n] - 1) * PERIOD for n in (0, -1))
    span_us = (last + 16 * MS - first + 2 * MS) / 1000
    assert 0 < (first - 2 * MS) / 1000 - plan.begin_us < 0.02 * span_us and 0 < plan.end_us - (last + 16 * MS) / 1000 < 0.02 * span_us


@pytest.mark.parametrize('count', [1, 4, 6, 8])
@pytest.mark.parametrize('size', [(1400, 600), (1000, 500)])
def test_any_count_and_size(timeline: dict[str, Any], count: int, size: tuple[int, int]) -> None:
    picture = render_timeline(timeline, frames=count, size=size)
    assert picture.shape == (size[1], size[0], 3) and picture.dtype == np.uint8
    plan = plan_picture(timeline, count, size)
    for index in range(count):
        assert len(in_row(picture, row_of(plan, 'infer'), FRAME_COLOURS[index])) > 2
        legend = picture[54, size[0] // 4 :, :]
        assert (legend == FRAME_COLOURS[index]).all(axis=1).sum() >= 12, 'it is in the legend'


@pytest.mark.parametrize('count', [0, 9, -1])
def test_counts_without_colours_are_refused(timeline: dict[str, Any], count: int) -> None:
    with pytest.raises(ValueError, match=f'{count} frames: 1 to 8'):
        render_timeline(timeline, frames=count)


def _failing() -> list[NodeTrack]:
    return [nodes(5)[0]]


@pytest.mark.parametrize('make', [list, _failing, lambda: nodes(5)[1:]], ids=['nothing', 'no inference', 'no capture'])
def test_without_a_whole_frame_there_is_no_picture(tmp_path: Path, make: Callable[[], list[NodeTrack]]) -> None:
    with pytest.raises(ValueError, match='no frame is known from the camera to its detections'):
        draw_timeline(build_timeline(make()), tmp_path / 'timeline.png')
    assert list(tmp_path.iterdir()) == []


def test_frames_of_one_camera_only() -> None:
    other = [
        NodeTrack('/b/capture', 'capture', 1, [published(n, buffer_uid=900 + n, inodes=(7000 + n,)) for n in range(9)]),
        NodeTrack('/b/inference', 'inference', 2, [processed(n, buffer_uid=900 + n, inodes=(7000 + n,)) for n in range(9)]),
    ]
    trace = build_timeline([*nodes(9), *other])
    chosen = choose_frames(trace['traceEvents'], 4)
    cameras = {e['pid'] for e in trace['traceEvents'] if e['ph'] == 'X' and e['cat'] == 'capture' and e['args']['frame'] in chosen}
    assert len(chosen) == 4 and len(cameras) == 1


def test_a_fifo_gets_the_picture_and_stays_one(timeline: dict[str, Any], picture: NDArray[np.uint8], tmp_path: Path) -> None:
    fifo = tmp_path / 'fifo'
    os.mkfifo(fifo)
    command = [sys.executable, '-c', 'import sys; sys.stdout.buffer.write(open(sys.argv[1], "rb").read())', str(fifo)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as reader:
        draw_timeline(timeline, fifo)
        assert fifo.is_fifo() and list(tmp_path.iterdir()) == [fifo]
        assert reader.stdout is not None
        written = np.frombuffer(reader.stdout.read(), np.uint8)
    assert np.array_equal(cv2.imdecode(written, cv2.IMREAD_COLOR), picture)


def test_the_command_draws_a_stored_timeline(timeline: dict[str, Any], picture: NDArray[np.uint8], tmp_path: Path) -> None:
    stored, drawn = tmp_path / 'timeline.json', tmp_path / 'timeline.png'
    stored.write_text(json.dumps(timeline))
    command = [sys.executable, '-m', 'zc_perception.observe.timeline_picture']
    subprocess.run([*command, stored, drawn], check=True, cwd=Path(__file__).parents[2])
    assert np.array_equal(cv2.imread(str(drawn)), picture)
    stored.write_text('{}')
    failed = subprocess.run([*command, stored, drawn], capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False)
    assert failed.returncode == 2 and 'traceEvents' in failed.stderr
