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

"""When a failed operation is tried again."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from zc_perception import backoff
from zc_perception.backoff import BackOff


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(backoff, 'time', SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_the_pauses_double_up_to_the_last_and_begin_anew_once_it_works(now: list[float]) -> None:
    retry, pauses = BackOff(0.1, 5.0), []
    assert retry.remaining_s == 0.0, 'the first attempt may begin at once'
    for _ in range(8):
        retry.failed()
        pauses.append(retry.remaining_s)
        now[0] = retry.due
        assert retry.remaining_s == 0.0
    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0])
    retry.start_over()
    assert retry.remaining_s == retry.pause_s == 0.0
    retry.failed()
    assert retry.pause_s == 0.1


def test_a_failure_may_have_another_longest_pause(now: list[float]) -> None:
    retry = BackOff(0.1, 0.2)
    for pause_s, last_s in [(0.1, None), (0.2, None), (0.4, 5.0), (0.8, 5.0), (0.2, None)]:
        retry.failed(last_s)
        assert retry.pause_s == pytest.approx(pause_s)
    retry.pause(3.0)
    assert retry.remaining_s == pytest.approx(3.0)
