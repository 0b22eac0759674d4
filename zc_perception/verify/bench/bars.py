"""``zc_bench link --check``: the figures that this package promises, each against what was measured in the same run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from zc_perception.verify.bench.rows import Row

VGA, FULL_HD, UHD_8K = (640, 480), (1920, 1080), (7680, 4320)
UNTHROTTLED = 0.0
LINKS = ('shared_memory', 'in_process_mailbox', 'in_process_executor')

Rows = dict[tuple[str, str, int, int, float], Row]


@dataclass(frozen=True)
class Verdict:
    """One bar.

    :param measured: the figure with its unit, or that there is none.
    """

    bar: str
    measured: str
    passed: bool

    def __str__(self) -> str:
        return f'{"pass" if self.passed else "FAIL"}  {self.bar}: {self.measured}'


@dataclass(frozen=True)
class _Bar:
    """*figure* may be at most *limit*, or has to be at least that."""

    text: str
    figure: Callable[[Rows], float | None]
    limit: float
    unit: str
    at_least: bool = False
    involved: tuple[tuple[str, tuple[int, int], float], ...] = ()

    def verdict(self, rows: Rows) -> Verdict:
        figure = self.figure(rows)
        sign = '≥' if self.at_least else '≤'
        bar = f'{self.text} {sign} {self.limit:g}{self.unit}'
        if figure is None:
            return Verdict(bar, 'not measured', False)
        lost = [
            f'{variant} lost {row.lost_per_cent:g} % of its frames'
            for variant, size, rate in self.involved
            if (row := rows.get(('link', variant, *size, rate))) is not None and row.lost_per_cent
        ]
        note = f' ({", ".join(lost)})' if lost else ''
        passed = figure >= self.limit if self.at_least else figure <= self.limit
        return Verdict(bar, f'{figure:.2f}{self.unit}{note}', passed)


def _ratio(variant: str, rate_hz: float, reference: str) -> Callable[[Rows], float | None]:
    def figure(rows: Rows) -> float | None:
        row = rows.get(('link', variant, *FULL_HD, rate_hz))
        return None if row is None else row.ratio_to.get(reference)

    return figure


def _added(variant: str, rate_hz: float, reference: str) -> Callable[[Rows], float | None]:
    def figure(rows: Rows) -> float | None:
        row = rows.get(('link', variant, *FULL_HD, rate_hz))
        return None if row is None else row.added_us.get(reference)

    return figure


def _growth(variant: str) -> Callable[[Rows], float | None]:
    """A frame of 54 times the pixels."""

    def figure(rows: Rows) -> float | None:
        small, large = (rows.get(('link', variant, *size, UNTHROTTLED)) for size in (VGA, UHD_8K))
        if small is None or large is None or not small.median_us or large.median_us is None:
            return None
        return large.median_us / small.median_us

    return figure


def _speed(rate_hz: float, tuned: float, default: float) -> list[_Bar]:
    when = f'at {rate_hz:g} Hz' if rate_hz else 'unthrottled'
    return [
        _Bar(
            f'1080p {when}: shared_memory below {name} rclpy Image, times',
            _ratio(f'rclpy_image_{name}', rate_hz, 'link/shared_memory'),
            times,
            '×',
            at_least=True,
            involved=((f'rclpy_image_{name}', FULL_HD, rate_hz), ('shared_memory', FULL_HD, rate_hz)),
        )
        for name, times in (('tuned', tuned), ('default', default))
    ]


def _floor(variant: str, floor: str, rate_hz: float, *, added_us: float = 0.0, times: float = 0.0) -> _Bar:
    when = f'at {rate_hz:g} Hz' if rate_hz else 'unthrottled'
    involved = ((variant, FULL_HD, rate_hz),)
    if added_us:
        text = f'1080p {when}: {variant} above the floor {floor}'
        return _Bar(text, _added(variant, rate_hz, f'floor/{floor}'), added_us, ' µs', involved=involved)
    return _Bar(f'1080p {when}: {variant} to the floor {floor}', _ratio(variant, rate_hz, f'floor/{floor}'), times, '×', involved=involved)


BARS = (
    _floor('shared_memory', 'fd_socket', UNTHROTTLED, added_us=25),
    *_speed(UNTHROTTLED, 100, 150),
    _floor('shared_memory', 'fd_socket', 30.0, times=2),
    *_speed(30.0, 40, 200),
    _floor('in_process_mailbox', 'simple_queue', UNTHROTTLED, added_us=15),
    _floor('in_process_mailbox', 'simple_queue', 30.0, times=2),
    _floor('in_process_executor', 'guard', UNTHROTTLED, times=2),
    _floor('in_process_executor', 'guard', 30.0, times=2),
    *(
        _Bar(
            f'unthrottled: 8K to VGA, {variant}', _growth(variant), 1.15, '×',
            involved=((variant, VGA, UNTHROTTLED), (variant, UHD_8K, UNTHROTTLED)),
        )
        for variant in LINKS
    ),
)  # fmt: skip


def check_bars(rows: Sequence[Row]) -> list[Verdict]:
    """Every bar; one whose rows are missing is not passed."""
    table = {(row.case, row.variant, row.width, row.height, row.rate_hz): row for row in rows}
    return [bar.verdict(table) for bar in BARS]
