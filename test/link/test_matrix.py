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

"""
The combinations of REP 2007: endpoints, places, QoS, orders of creation, executors.

Each case checks that every message comes once, in order, with its own content, by the right rung,
and that nothing is converted without need: there the adapter raises. The cases of one executor run
at the same time in two processes, each on its own topic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
import itertools
from typing import Any

from link_ros import end, EXECUTORS, LinkProcess
import pytest

BEFORE = [1, 2, 3, 4, 5, 6, 7]
AFTER = [11, 12, 13]
AT_THE_SAME_TIME = 32


@dataclass(frozen=True)
class Case:
    publisher: str
    subscriber: str
    place: str
    depth: int
    durability: str
    first: str

    @property
    def name(self) -> str:
        ends = f'{self.publisher}_{self.subscriber}_{self.place}'
        return f'{ends}_depth{self.depth}_{self.durability}_{self.first}'

    @property
    def latched(self) -> bool:
        return self.durability == 'transient_local'

    @property
    def rung(self) -> str:
        direct = 'in_process' if self.place == 'same' else 'shared_memory'
        return 'ros_message' if self.publisher == 'plain' else direct

    @property
    def message(self) -> bool:
        return self.subscriber == 'plain' or self.publisher == 'plain'

    @property
    def before(self) -> list[int]:
        if not self.latched:
            return []
        return BEFORE if self.first == 'publisher' else BEFORE[: self.depth]

    @property
    def received(self) -> list[int]:
        return [*self.before[slice(-self.depth, None)], *AFTER]

    @property
    def published(self) -> int:
        return len(self.before) + len(AFTER)

    def end(self, role: str) -> dict[str, Any]:
        kind = self.publisher if role == 'publisher' else self.subscriber
        converts = self.message or self.latched if role == 'publisher' else self.message
        qos = {'depth': self.depth, 'transient_local': self.latched}
        name = f'{self.name}_{role}'
        return end(name, f'{kind} {role}', topic=self.name, converts=converts, **qos)

    def matched(self, role: str) -> dict[str, Any]:
        if role == 'subscriber':
            return {'publishers': 1} if self.subscriber == 'plain' else {'rung': self.rung}
        direct = 'in_process' if self.place == 'same' else 'consumers'
        return {'readers' if self.message else direct: 1}


CIRCUMSTANCES = ('same', 'other'), (1, 5), ('volatile', 'transient_local')
CASES = [
    Case(*values)
    for values in itertools.product(
        *2 * [('adapted', 'plain')], *CIRCUMSTANCES, ('publisher', 'subscriber')
    )
]


class Run:
    """The cases of one executor in two processes; all publishers are in ``here``."""

    def __init__(self, here: LinkProcess, there: LinkProcess) -> None:
        self.here, self.there = here, there

    def _split(self, cases: list[Case], role: str) -> list[tuple[LinkProcess, list[Case]]]:
        here = [case for case in cases if role == 'publisher' or case.place == 'same']
        there = [case for case in cases if role == 'subscriber' and case.place == 'other']
        return [(self.here, here), (self.there, there)]

    def wait(self, cases: list[Case], role: str, wanted: Callable[[Case], dict[str, Any]]) -> None:
        for process, mine in self._split(cases, role):
            process.send('wait', {f'{case.name}_{role}': wanted(case) for case in mine})
        for ends, process in [(each.answer(), each) for each in (self.here, self.there)]:
            assert not ends, f'{ends}\n{process.log[-4000:]}'

    def open(self, cases: list[Case], role: str) -> None:  # noqa: A003
        for process, mine in self._split(cases, role):
            process('open', [case.end(role) for case in mine])

    def run(self, cases: list[Case]) -> dict[Case, dict[str, Any]]:
        self.open([case for case in cases if case.first == 'subscriber'], 'subscriber')
        self.open(cases, 'publisher')
        self._publish({case: case.before for case in cases if case.first == 'subscriber'})
        early = [case for case in cases if case.first == 'publisher' and case.before]
        for value in range(len(BEFORE)):
            # One value at a time, because the converting thread may skip values.
            self._publish({case: case.before[slice(value, value + 1)] for case in early})
            converting = [case for case in early if case.publisher == 'adapted']
            self.wait(
                converting, 'publisher', lambda case, value=value: {'conversions': value + 1}
            )
        self.open([case for case in cases if case.first == 'publisher'], 'subscriber')
        for role in ('subscriber', 'publisher'):
            self.wait(cases, role, lambda case, role=role: case.matched(role))
        self.wait(
            cases, 'subscriber', lambda case: {'received': min(case.depth, len(case.before))}
        )
        adapted = [case for case in cases if case.publisher == 'adapted']
        converting = [case for case in adapted if case.end('publisher')['converts']]
        self.wait(converting, 'publisher', lambda case: {'conversions': len(case.before)})
        for number, value in enumerate(AFTER, 1):
            self._publish({case: [value] for case in cases})
            self.wait(
                cases,
                'subscriber',
                lambda case, n=number: {'received': min(case.depth, len(case.before)) + n},
            )
            self.wait(
                converting,
                'publisher',
                lambda case, number=number: {'conversions': len(case.before) + number},
            )
        results: dict[Case, dict[str, Any]] = {case: {} for case in cases}
        for role in ('subscriber', 'publisher'):
            for process, mine in self._split(cases, role):
                names = [f'{case.name}_{role}' for case in mine]
                states = process('state', names)
                for case, name in zip(mine, names, strict=True):
                    results[case][role] = states[name]
                process('close', names)
        return results

    def _publish(self, values: dict[Case, list[int]]) -> None:
        self.here('publish', {f'{case.name}_publisher': each for case, each in values.items()})


def check(case: Case, publisher: dict[str, Any], subscriber: dict[str, Any]) -> None:
    told = case.name, publisher, subscriber
    assert subscriber['received'] == case.received, told
    if case.subscriber == 'adapted':
        assert subscriber['rung'] == case.rung, told
        assert subscriber['conversions'] == (len(case.received) if case.message else 0), told
        assert subscriber['errors'] == subscriber['duplicates'] == 0, told
    if case.publisher == 'adapted':
        # A transient_local publisher always converts, like rclcpp's: a late reader may be a plain
        # one.
        converts = case.subscriber == 'plain' or case.latched
        assert publisher['conversions'] == (case.published if converts else 0), told
        assert publisher['errors'] == 0, told


@pytest.mark.parametrize('executor', EXECUTORS)
def test_each_message_once_by_the_right_rung(
    executor: str, start: Callable[[str], LinkProcess]
) -> None:
    run = Run(start(executor), start(executor))
    for first in range(0, len(CASES), AT_THE_SAME_TIME):
        for case, ends in run.run(CASES[slice(first, first + AT_THE_SAME_TIME)]).items():
            check(case, **ends)
