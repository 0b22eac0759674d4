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

"""The stages of a frame's way, and which of them broke its deadline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
import itertools
from typing import NamedTuple

#  With what lies between. All times are CLOCK_MONOTONIC: captured, published, received, submitted,
#  signalled, done, decoded, sent.
STAGES = (
    ('capture', "the camera has it (a driver's stamp) → published"),
    ('link', 'published → taken by the inference node'),
    ('import', 'taken → the device has the job'),
    ('infer', 'the device has the job → its fence is seen'),
    ('queue', 'the fence is seen → its turn comes'),
    ('decode', 'its turn comes → the boxes are there'),
    ('publish', 'the boxes are there → detections are sent'),
)
# Weight of a frame in time in the usual time of a stage; all earlier frames have the rest.
_NEWEST = 1 / 16


def spans_ns(times_ns: Sequence[int]) -> list[int]:
    """
    Return how long each stage took.

    If a time isn't known (0), its stage took nothing and the next one longer. The thread that
    notes the submission may be late, after the fence is seen: no stage takes less than nothing.
    """
    return [end - begin for begin, end in itertools.pairwise(itertools.accumulate(times_ns, max))]


class Late(NamedTuple):
    """
    A frame that was late, and the stage to blame.

    That is the stage that exceeded most what it usually takes in frames that are in time.
    """

    whole_ms: float
    stage: str
    took_ms: float
    usual_ms: float

    def __str__(self) -> str:
        return (
            f'{self.whole_ms:.1f} ms: {self.stage} took {self.took_ms:.1f} ms, '
            f'usually {self.usual_ms:.1f}'
        )


class FrameBudget:
    """
    Counts the frames that took longer than *deadline_s*, by the stage that broke it.

    One thread judges, any may read.
    """

    def __init__(self, deadline_s: float) -> None:
        self.deadline_ns = round(deadline_s * 1e9)
        self.late = 0
        self.stages: Counter[str] = Counter()
        self._usual = [0.0] * len(STAGES)
        self._worst: Late | None = None

    def judge(self, *times_ns: int) -> None:
        """Look at one frame's times, as :data:`STAGES` says."""
        spans = spans_ns(times_ns)
        usual = self._usual
        if sum(spans) <= self.deadline_ns:
            if any(usual):
                self._usual = [
                    old + (new - old) * _NEWEST for old, new in zip(usual, spans, strict=True)
                ]
            else:
                self._usual = [float(span) for span in spans]
            return
        excess = [span - old for span, old in zip(spans, usual, strict=True)]
        place = excess.index(max(excess))
        late = Late(sum(spans) / 1e6, STAGES[place][0], spans[place] / 1e6, usual[place] / 1e6)
        self.late += 1
        self.stages[late.stage] += 1
        worst = self._worst
        if worst is None or late.whole_ms > worst.whole_ms:
            self._worst = late

    def take_worst(self) -> Late | None:
        """Return the worst frame since the last call."""
        worst, self._worst = self._worst, None
        return worst
