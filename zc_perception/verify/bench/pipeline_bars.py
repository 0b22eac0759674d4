"""``zc_bench pipeline --check``."""

from __future__ import annotations

from zc_perception.verify.bench.bars import FULL_HD, UHD_4K, Bar, Key, Rows
from zc_perception.verify.bench.pipeline import RATE_HZ

_ONE: Key = ('pipeline', '1_camera', *FULL_HD, RATE_HZ)
_ONE_4K: Key = ('pipeline', '1_camera', *UHD_4K, RATE_HZ)
_EIGHT: Key = ('pipeline', '8_cameras', *FULL_HD, RATE_HZ)


def _cpu(rows: Rows, key: Key = _ONE) -> float | None:
    """Half of the frames cost less."""
    row = rows.get(key)
    return None if row is None else row.figures.get('cpu_p50_us')


def _cpu_growth(rows: Rows) -> float | None:
    small, large = _cpu(rows), _cpu(rows, _ONE_4K)
    return None if not small or large is None else large / small


def _lost(rows: Rows) -> float | None:
    row = rows.get(_EIGHT)
    return None if row is None else row.lost_per_cent


PIPELINE_BARS = (
    Bar('1080p at 30 Hz: CPU per frame, capture to published detections', _cpu, 300, ' µs', involved=(_ONE,)),
    Bar('4K to 1080p, CPU per frame', _cpu_growth, 1.1, '×', involved=(_ONE, _ONE_4K)),
    Bar('8 cameras of 1080p at 30 Hz in one process on 2 CPUs: lost frames', _lost, 0, ' %'),
)
