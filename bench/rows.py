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

"""The rows of a benchmark's JSON file, and how to make them from samples."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
import math
import statistics
from typing import Any

# The first 1/10 of a series warms up caches and isn't counted; floor.py leaves out the same part.
_WARM_UP = 10


@dataclass(frozen=True, order=True)
class Condition:
    """Frame size and rate of a series. ``rate_hz`` 0: unthrottled, one frame in flight."""

    width: int
    height: int
    rate_hz: float


@dataclass(frozen=True)
class Series:
    """
    The samples of one variant under one condition in one repetition.

    :param cpu_us_per_frame: CPU time of all processes that took part.
    :param lost: number of frames that didn't arrive.
    :param figures: other measured values, by names that end in their unit.
    """

    latencies_us: Sequence[float]
    cpu_us_per_frame: float
    lost: int = 0
    figures: Mapping[str, float] = field(default_factory=dict)

    @property
    def warm(self) -> list[float]:
        """Latencies in ascending order, without the warm-up's."""
        values = self.latencies_us
        first = len(values) // _WARM_UP if len(values) >= 2 * _WARM_UP else 0
        return sorted(values[first:])

    @property
    def median_us(self) -> float:
        """Median latency; NaN when no frame arrived."""
        warm = self.warm
        return warm[len(warm) // 2] if warm else math.nan

    @property
    def p99_us(self) -> float:
        """99th percentile of the latency; NaN when no frame arrived."""
        warm = self.warm
        return warm[int(len(warm) * 0.99)] if warm else math.nan


@dataclass(frozen=True)
class Row:
    """
    One variant's result over all repetitions; ``bench.schema.json`` describes it in the file.

    :param median_us: median of the repetitions' medians; ``None``: no frame arrived at all.
    :param ratio_to: by reference, the median over the repetitions of (this row's median / the
        reference's median in the same repetition).
    :param added_us: like *ratio_to*, but the difference of the two medians.
    :param cpu_ratio_to: like *ratio_to*, but the ratio of the CPU times.
    :param medians_us: each repetition's median, in order; ``None`` where no frame arrived.
    :param lost_per_cent: frames of all repetitions that didn't arrive.
    :param figures: medians over the repetitions of other values, by names that end in their unit.
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
        """Return the row as ``bench.schema.json`` describes it."""
        return asdict(self)


Rounds = Mapping[tuple[str, str, Condition], Sequence[Series]]
Measuring = defaultdict[tuple[str, str, Condition], list[Series]]
""":data:`Rounds` that a run appends to; create it with ``Measuring(list)``."""


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
    Make one row for each case, variant and condition.

    :param rounds: (case, variant, condition) → one series for each repetition, in order.
    :param references: each (case, variant) that all other rows are compared to, in the same
        repetition and condition.
    :raises ValueError: a reference has another number of repetitions than the series that is
        compared to it.
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
