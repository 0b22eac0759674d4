"""The promised figures of decoding and of the pipeline: met exactly, missed by a little, or not measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from zc_perception.bench.decode import DECODE_BARS
from zc_perception.bench.pipeline import PIPELINE_BARS
from zc_perception.bench.rows import Row
from zc_perception.bench.subcommand import FULL_HD, UHD_4K, Bar, Key, check_bars

Table = dict[Key, Row]


def row(key: Key, median_us: float = 1.0, cpu_us: float = 1.0, **fields: dict[str, float]) -> Row:
    return replace(Row(*key, median_us, median_us, cpu_us, 7), **fields)


def decode_key(case: str, variant: str) -> Key:
    return case, variant, *FULL_HD, 0.0


def decoding_just_met() -> Table:
    rows = [
        row(decode_key('yolov8_decoded', 'ours'), 800.0),
        row(decode_key('yolov8_decoded', 'filter_first'), ratio_to={'yolov8_decoded/ours': 1.0}),
        row(decode_key('yolov8_decoded', 'numpy_usual'), ratio_to={'yolov8_decoded/ours': 1.0}),
        row(decode_key('yolov8_sparse', 'filter_first'), ratio_to={'yolov8_sparse/ours': 0.97}),
        row(decode_key('yolov8_sparse', 'numpy_usual'), ratio_to={'yolov8_sparse/ours': 1.0}),
        row(decode_key('yolov8_dfl_int8', 'ours'), 1200.0),
        row(decode_key('yolov8_dfl_int8', 'numpy_usual'), ratio_to={'yolov8_dfl_int8/ours': 1.0}),
        row(decode_key('tensor', 'ours'), 900.0, figures={'noise_max_off_levels': 1.0}),
        row(decode_key('tensor', 'exact'), ratio_to={'tensor/ours': 1.0}),
    ]
    return {(r.case, r.variant, r.width, r.height, r.rate_hz): r for r in rows}


ONE: Key = ('pipeline', '1_camera', *FULL_HD, 0.0)
ONE_4K: Key = ('pipeline', '1_camera', *UHD_4K, 0.0)
ONE_30: Key = ('pipeline', '1_camera', *FULL_HD, 30.0)
ONE_4K_30: Key = ('pipeline', '1_camera', *UHD_4K, 30.0)
EIGHT: Key = ('pipeline', '8_cameras', *FULL_HD, 30.0)


def pipelines_just_met() -> Table:
    least = 300.0 / 1.1
    figures = {ONE: least, ONE_4K: 300.0, ONE_30: 300.0, ONE_4K_30: 300.0}
    return {**{key: row(key, figures={'cpu_p50_us': figure}) for key, figure in figures.items()}, EIGHT: row(EIGHT)}


def failing(rows: Table, bars: Sequence[Bar]) -> list[str]:
    return [str(verdict) for verdict in check_bars(list(rows.values()), bars) if not verdict.passed]


@pytest.mark.parametrize(
    ('met', 'bars'), [(decoding_just_met, DECODE_BARS), (pipelines_just_met, PIPELINE_BARS)], ids=['decode', 'pipeline']
)
def test_bars_that_are_just_met_pass_and_each_row_is_needed(met: object, bars: Sequence[Bar]) -> None:
    assert callable(met)
    assert failing(met(), bars) == []
    for key in met():
        rows = met()
        del rows[key]
        missing = failing(rows, bars)
        assert missing and all('not measured' in failure for failure in missing)
    assert len(failing({}, bars)) == len(bars)


@pytest.mark.parametrize(
    ('key', 'fields', 'said'),
    [
        (decode_key('yolov8_decoded', 'ours'), {'median_us': 801.0}, '801.00 µs'),
        (decode_key('yolov8_decoded', 'filter_first'), {'ratio_to': {'yolov8_decoded/ours': 0.99}}, '0.99×'),
        (decode_key('yolov8_decoded', 'numpy_usual'), {'ratio_to': {'yolov8_decoded/ours': 0.99}}, '0.99×'),
        (decode_key('yolov8_sparse', 'filter_first'), {'ratio_to': {'yolov8_sparse/ours': 0.96}}, '0.96×'),
        (decode_key('yolov8_sparse', 'numpy_usual'), {'ratio_to': {'yolov8_sparse/ours': 0.99}}, '0.99×'),
        (decode_key('yolov8_dfl_int8', 'ours'), {'median_us': 1201.0}, '1201.00 µs'),
        (decode_key('yolov8_dfl_int8', 'numpy_usual'), {'ratio_to': {'yolov8_dfl_int8/ours': 0.99}}, '0.99×'),
        (decode_key('tensor', 'ours'), {'median_us': 901.0}, '901.00 µs'),
        (decode_key('tensor', 'exact'), {'ratio_to': {'tensor/ours': 0.99}}, '0.99×'),
        (decode_key('tensor', 'ours'), {'figures': {'noise_max_off_levels': 2.0}}, '2.00 levels'),
    ],
)
def test_decoding_that_just_misses_a_bar_fails_alone(key: Key, fields: dict[str, object], said: str) -> None:
    rows = decoding_just_met()
    rows[key] = replace(rows[key], **fields)  # type: ignore[arg-type]
    (failure,) = failing(rows, DECODE_BARS)
    assert failure.startswith('FAIL') and said in failure


@pytest.mark.parametrize(
    ('key', 'fields', 'said'),
    [
        (ONE, {'figures': {'cpu_p50_us': 301.0}}, '301.00 µs'),
        (ONE, {'figures': {'cpu_p50_us': 270.0}}, '1.11×'),
        (ONE_30, {'figures': {'cpu_p50_us': 301.0}}, '301.00 µs'),
        (ONE_4K_30, {'figures': {'cpu_p50_us': 301.0}}, '301.00 µs'),
        (EIGHT, {'lost_per_cent': 0.01}, '0.01 %'),
    ],
)
def test_a_pipeline_that_just_misses_a_bar_fails_alone(key: Key, fields: dict[str, object], said: str) -> None:
    rows = pipelines_just_met()
    rows[key] = replace(rows[key], **fields)  # type: ignore[arg-type]
    (failure,) = failing(rows, PIPELINE_BARS)
    assert failure.startswith('FAIL') and said in failure


def test_lost_frames_are_said_beside_the_figure() -> None:
    rows = pipelines_just_met()
    rows[ONE] = replace(rows[ONE], lost_per_cent=3.5)
    said = [str(verdict) for verdict in check_bars(list(rows.values()), PIPELINE_BARS)]
    assert [number for number, text in enumerate(said) if '1_camera lost 3.5 % of its frames' in text] == [0, 4]
