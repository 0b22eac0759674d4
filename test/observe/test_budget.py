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

"""The budget of a frame: which stage is named, and what is usual."""

from __future__ import annotations

import itertools

import pytest

from zc_perception.observe.timeline import FrameBudget, Late, STAGES

MS = 1_000_000
NAMES = [name for name, _ in STAGES]
USUAL = dict(zip(NAMES, (1, 2, 3, 30, 1, 2, 1), strict=True))


def times(**longer: int) -> tuple[int, ...]:
    """Return of a frame whose stages take what is usual, in ms, and some longer."""
    spans = [(USUAL[name] + longer.get(name, 0)) * MS for name in NAMES]
    return tuple(itertools.accumulate(spans, initial=1_000 * MS))


@pytest.mark.parametrize('stage', NAMES)
def test_the_stage_is_named_that_took_more_than_usual_not_the_longest(stage: str) -> None:
    budget = FrameBudget(0.050)
    for _ in range(20):
        budget.judge(*times())
    assert budget.late == 0 and budget.take_worst() is None
    budget.judge(*times(**{stage: 20}))
    budget.judge(*times(**{stage: 15}))
    assert (budget.late, dict(budget.stages)) == (2, {stage: 2})
    worst = budget.take_worst()
    assert worst == Late(60.0, stage, USUAL[stage] + 20.0, float(USUAL[stage]))
    assert f'60.0 ms: {stage} took' in str(worst)
    assert budget.take_worst() is None, 'the worst since the last call'


def test_what_is_usual_follows_the_frames_in_time() -> None:
    budget = FrameBudget(0.100)
    budget.judge(*times())
    for _ in range(100):
        budget.judge(*times(decode=10))
    budget.judge(*times(decode=10, queue=60))
    worst = budget.take_worst()
    assert worst is not None and worst.stage == 'queue'
    budget.judge(*times(decode=71))
    worst = budget.take_worst()
    assert worst is not None and worst.usual_ms == pytest.approx(12.0, abs=0.1)
