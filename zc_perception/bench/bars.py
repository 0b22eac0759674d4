"""``zc_bench X --check``: the figures that this package promises, each against what was measured in the same run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from zc_perception.bench.rows import Row

VGA, FULL_HD, UHD_4K, UHD_8K = (640, 480), (1920, 1080), (3840, 2160), (7680, 4320)

Key = tuple[str, str, int, int, float]
Rows = Mapping[Key, Row]


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
class Bar:
    """*figure* may be at most *limit*, or has to be at least that.

    :param involved: rows whose lost frames are told with the figure.
    """

    text: str
    figure: Callable[[Rows], float | None]
    limit: float
    unit: str
    at_least: bool = False
    involved: tuple[Key, ...] = ()

    def verdict(self, rows: Rows) -> Verdict:
        figure = self.figure(rows)
        sign = '≥' if self.at_least else '≤'
        bar = f'{self.text} {sign} {self.limit:g}{self.unit}'
        if figure is None:
            return Verdict(bar, 'not measured', False)
        lost = [
            f'{row.variant} lost {row.lost_per_cent:g} % of its frames'
            for key in self.involved
            if (row := rows.get(key)) is not None and row.lost_per_cent
        ]
        note = f' ({", ".join(lost)})' if lost else ''
        passed = figure >= self.limit if self.at_least else figure <= self.limit
        return Verdict(bar, f'{figure:.2f}{self.unit}{note}', passed)


def check_bars(rows: Sequence[Row], bars: Sequence[Bar]) -> list[Verdict]:
    """Every bar; one whose rows are missing is not passed."""
    table = {(row.case, row.variant, row.width, row.height, row.rate_hz): row for row in rows}
    return [bar.verdict(table) for bar in bars]
