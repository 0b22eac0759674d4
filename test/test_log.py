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

"""Repeated messages are logged rarely."""

from __future__ import annotations

import io
import sys

import pytest

from zc_perception import log
from zc_perception.log import on_stderr, ONCE, Seldom


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    time = [0.0]
    monkeypatch.setattr(log.time, 'monotonic', lambda: time[0])
    return time


def test_a_sentence_is_said_again_after_a_while_and_memory_is_bounded(now: list[float]) -> None:
    said: list[str] = []
    say = Seldom(said.append, 60.0)
    for now[0] in range(60):
        say('refused')
    say('connected')
    assert said == ['refused', 'connected']
    now[0] = 60.0
    say('refused')
    assert said[2:] == ['refused']
    for number in range(500):
        say(f'consumer {number}')
    assert len(say._said) <= 64


def test_what_is_the_same_may_be_told_and_costs_nothing_unless_it_is_said(
    now: list[float],
) -> None:
    said: list[str] = []
    say = Seldom(said.append, ONCE)
    for number in range(3):
        say(f'frame {number} was lost', 'lost')
        now[0] += 1e9
    say(lambda: pytest.fail('it was said before'), 'lost')
    say(lambda: 'made', 'other')
    assert said == ['frame 0 was lost', 'made']


def test_a_terminal_that_is_gone_is_no_reason_to_fail(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on_stderr('a line\n')
    assert capsys.readouterr().err == 'a line\n'
    monkeypatch.setattr(sys, 'stderr', None)
    on_stderr('nobody reads this')
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, 'stderr', closed)
    on_stderr('nor this')
