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

"""The promised figures of links, decoding and the pipeline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from bench.decode import DECODE_BARS
from bench.link import LINK_BARS
from bench.peers.processes import BARS as PEER_BARS
from bench.pipeline import PIPELINE_BARS
from bench.rows import Row
from bench.subcommand import Bar, check_bars, FULL_HD, Key, UHD_4K, UHD_8K, VGA
import pytest

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


def test_a_frame_that_one_of_eight_cameras_lost_fails_alone() -> None:
    rows = pipelines_just_met()
    key = pipeline(FULL_HD, 30.0, '8_cameras')
    rows[key] = replace(rows[key], lost_per_cent=0.01)
    (failure,) = failing(rows, PIPELINE_BARS)
    assert failure.endswith('lost frames ≤ 0 %: 0.01 %')


def test_a_frame_that_was_born_in_place_may_be_slower() -> None:
    rows = links_just_met()
    key = link('iceoryx2_in_place')
    rows[key] = replace(rows[key], added_us={'link/shared_memory': 3.0})
    assert failing(rows, PEER_BARS) == []
