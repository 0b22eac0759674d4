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

"""The rows of a benchmark's JSON and how they are made of samples."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
import math
import statistics
from typing import Any

# The first tenth of a series warms caches; floor.py leaves out the same part.
_WARM_UP = 10


@dataclass(frozen=True, order=True)
class Condition:
    """What a series was measured under. ``rate_hz`` 0: unthrottled, one frame in flight."""

    width: int
    height: int
    rate_hz: float


@dataclass(frozen=True)
class Series:
    """
    One repetition.

    It has its frames' latencies in µs, the CPU time of all processes that took part, the frames
    that didn't arrive, and other figures by names with their unit.
    """

    latencies_us: Sequence[float]
    cpu_us_per_frame: float
    lost: int = 0
    figures: Mapping[str, float] = field(default_factory=dict)

    @property
    def warm(self) -> list[float]:
        """Sorted, without the warm-up."""
        values = self.latencies_us
        first = len(values) // _WARM_UP if len(values) >= 2 * _WARM_UP else 0
        return sorted(values[first:])

    @property
    def median_us(self) -> float:
        """Not a number when nothing arrived."""
        warm = self.warm
        return warm[len(warm) // 2] if warm else math.nan

    @property
    def p99_us(self) -> float:
        """Not a number when nothing arrived."""
        warm = self.warm
        return warm[int(len(warm) * 0.99)] if warm else math.nan


@dataclass(frozen=True)
class Row:
    """
    One measured case, over all repetitions; ``bench.schema.json`` says the same of the file.

    :param median_us: median over the repetitions of their medians; ``None``: nothing arrived in
        any of them.
    :param ratio_to: median over the repetitions of this case's median to the other's in the same
        repetition.
    :param added_us: the same for the difference.
    :param cpu_ratio_to: the same for the ratio of CPU time.
    :param medians_us: of each repetition, in order; ``None`` where nothing arrived.
    :param lost_per_cent: frames that didn't arrive, of all repetitions.
    :param figures: medians over the repetitions of what else was measured, by names with their
        unit.
    """

    case: str
    variant: str
    width: int
    height: int
    rate_hz: float
    median_us: float | None
    p99_us: float | None
    cpu_us_per_frame: float | None
    repetitions: int
    ratio_to: dict[str, float] = field(default_factory=dict)
    added_us: dict[str, float] = field(default_factory=dict)
    cpu_ratio_to: dict[str, float] = field(default_factory=dict)
    medians_us: list[float | None] = field(default_factory=list)
    lost_per_cent: float = 0.0
    figures: dict[str, float] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """For the file."""
        return asdict(self)


Rounds = Mapping[tuple[str, str, Condition], Sequence[Series]]
Measuring = defaultdict[tuple[str, str, Condition], list[Series]]
"""The same while they grow: ``Measuring(list)``."""


def _median(values: Iterable[float]) -> float | None:
    finite = [v for v in values if math.isfinite(v)]
    return round(statistics.median(finite), 3) if finite else None


def _ratio(own: float, other: float) -> float:
    return own / other if other else math.nan


def _median_figures(repetitions: Sequence[Series]) -> dict[str, float]:
    names = dict.fromkeys(name for series in repetitions for name in series.figures)
    medians = {
        name: _median(series.figures.get(name, math.nan) for series in repetitions)
        for name in names
    }
    return {name: value for name, value in medians.items() if value is not None}


def make_rows(rounds: Rounds, references: Sequence[tuple[str, str]]) -> list[Row]:
    """
    Make the rows of all series.

    :param rounds: (case, variant, condition) → one series for each repetition, in order.
    :param references: (case, variant) of what others are compared to, in the same repetition and
        condition.
    :raises ValueError: cases of one condition have different numbers of repetitions, so that they
        can't be paired.
    """
    rows = []
    for (case, variant, condition), repetitions in sorted(
        rounds.items(), key=lambda item: (item[0][2], item[0][0], item[0][1])
    ):
        ratios: dict[str, float] = {}
        added: dict[str, float] = {}
        cpu_ratios: dict[str, float] = {}
        for reference in references:
            others = rounds.get((*reference, condition))
            if others is None or reference == (case, variant):
                continue
            pairs = list(zip(repetitions, others, strict=True))
            name = '/'.join(reference)
            for table, value in (
                (ratios, _median(_ratio(own.median_us, other.median_us) for own, other in pairs)),
                (added, _median(own.median_us - other.median_us for own, other in pairs)),
                (
                    cpu_ratios,
                    _median(
                        _ratio(own.cpu_us_per_frame, other.cpu_us_per_frame)
                        for own, other in pairs
                    ),
                ),
            ):
                if value is not None:
                    table[name] = value
        sent = sum(len(s.latencies_us) + s.lost for s in repetitions)
        rows.append(
            Row(
                case=case,
                variant=variant,
                width=condition.width,
                height=condition.height,
                rate_hz=condition.rate_hz,
                median_us=_median(s.median_us for s in repetitions),
                p99_us=_median(s.p99_us for s in repetitions),
                cpu_us_per_frame=_median(s.cpu_us_per_frame for s in repetitions),
                repetitions=len(repetitions),
                ratio_to=ratios,
                added_us=added,
                cpu_ratio_to=cpu_ratios,
                medians_us=[_median([s.median_us]) for s in repetitions],
                lost_per_cent=round(100.0 * sum(s.lost for s in repetitions) / max(1, sent), 2),
                figures=_median_figures(repetitions),
            )
        )
    return rows
