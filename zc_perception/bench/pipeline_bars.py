"""``zc_bench pipeline --check``."""

from __future__ import annotations

from zc_perception.bench.bars import FULL_HD, UHD_4K, Bar, Key, Rows
from zc_perception.bench.pipeline import RATE_HZ, UNTHROTTLED

_ONE: Key = ('pipeline', '1_camera', *FULL_HD, UNTHROTTLED)
_ONE_4K: Key = ('pipeline', '1_camera', *UHD_4K, UNTHROTTLED)
_ONE_30: Key = ('pipeline', '1_camera', *FULL_HD, RATE_HZ)
_ONE_4K_30: Key = ('pipeline', '1_camera', *UHD_4K, RATE_HZ)
_EIGHT: Key = ('pipeline', '8_cameras', *FULL_HD, RATE_HZ)
_CPU_US = 300


def _cpu(rows: Rows, key: Key) -> float | None:
    """Half of the frames cost less."""
    row = rows.get(key)
    return None if row is None else row.figures.get('cpu_p50_us')


def _cpu_growth(rows: Rows) -> float | None:
    small, large = _cpu(rows, _ONE), _cpu(rows, _ONE_4K)
    return None if not small or large is None else large / small


def _lost(rows: Rows) -> float | None:
    row = rows.get(_EIGHT)
    return None if row is None else row.lost_per_cent


def _cpu_bar(text: str, key: Key) -> Bar:
    return Bar(f'{text}: CPU per frame, capture to published detections', lambda rows: _cpu(rows, key), _CPU_US, ' µs', involved=(key,))


PIPELINE_BARS = (
    _cpu_bar('1080p unthrottled', _ONE),
    _cpu_bar('4K unthrottled', _ONE_4K),
    _cpu_bar('1080p at 30 Hz', _ONE_30),
    _cpu_bar('4K at 30 Hz', _ONE_4K_30),
    Bar('4K to 1080p, unthrottled: CPU per frame', _cpu_growth, 1.1, '×', involved=(_ONE, _ONE_4K)),
    Bar('8 cameras of 1080p at 30 Hz in one process on 2 CPUs: lost frames', _lost, 0, ' %'),
)
