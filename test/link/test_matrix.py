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

from collections.abc import Callable, Iterator
from dataclasses import dataclass
import itertools
from pathlib import Path
from typing import Any

from link_process import end, LinkProcess
from link_program import executor_exists, EXECUTORS
import pytest

BEFORE = [1, 2, 3, 4, 5, 6, 7]
AFTER = [11, 12, 13]
AT_THE_SAME_TIME = 32


@dataclass(frozen=True)
class Case:
    executor: str
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
        """The values to publish before both endpoints have matched."""
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
        """Return the state of the endpoint *role* once both have matched by the right rung."""
        if role == 'subscriber':
            return {'publishers': 1} if self.subscriber == 'plain' else {'rung': self.rung}
        direct = 'in_process' if self.place == 'same' else 'consumers'
        return {'readers' if self.message else direct: 1}


CIRCUMSTANCES = ('same', 'other'), (1, 5), ('volatile', 'transient_local')
CASES = [
    Case(*values)
    for values in itertools.product(
        EXECUTORS, *2 * [('adapted', 'plain')], *CIRCUMSTANCES, ('publisher', 'subscriber')
    )
]


class Run:
    """The cases of one executor in two processes; all publishers are in ``here``."""

    def __init__(self, executor: str, domain: int, folder: Path) -> None:
        self.here = LinkProcess(executor, domain, folder)
        self.there = LinkProcess(executor, domain, folder)

    def place(self, case: Case, role: str) -> LinkProcess:
        return self.here if role == 'publisher' or case.place == 'same' else self.there

    def wait(self, cases: list[Case], role: str, wanted: Callable[[Case], dict[str, Any]]) -> None:
        """Wait in both processes at the same time until each case has its wanted state."""
        asked = []
        for process in (self.here, self.there):
            conditions = {
                f'{case.name}_{role}': wanted(case)
                for case in cases
                if self.place(case, role) is process
            }
            if conditions:
                process.send('wait', conditions)
                asked.append(process)
        missing = [(process.answer(), process) for process in asked]
        for ends, process in missing:
            assert not ends, f'{ends}\n{process.log[-4000:]}'

    def open(self, cases: list[Case], role: str) -> None:  # noqa: A003
        for process in (self.here, self.there):
            process(
                'open', [case.end(role) for case in cases if self.place(case, role) is process]
            )

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
        results = {
            case: {role: self._state(case, role) for role in ('publisher', 'subscriber')}
            for case in cases
        }
        for role in ('subscriber', 'publisher'):
            for process in (self.here, self.there):
                process(
                    'close',
                    [f'{case.name}_{role}' for case in cases if self.place(case, role) is process],
                )
        return results

    def _publish(self, values: dict[Case, list[int]]) -> None:
        self.here('publish', {f'{case.name}_publisher': each for case, each in values.items()})

    def _state(self, case: Case, role: str) -> dict[str, Any]:
        name = f'{case.name}_{role}'
        return dict(self.place(case, role)('state', [name])[name])

    def close(self) -> None:
        self.here.close()
        self.there.close()


@pytest.fixture(scope='module')
def result(
    request: pytest.FixtureRequest, module_domain: int, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[Case], Any]]:
    """Return a case's result; an executor's first case runs all its selected cases."""
    selected = [
        item.callspec.params['case']
        for item in request.session.items
        if 'case' in getattr(getattr(item, 'callspec', None), 'params', {})
    ]
    results: dict[Case, Any] = {}

    def of(case: Case) -> Any:
        if case not in results:
            cases = [
                other
                for other in selected
                if isinstance(other, Case) and other.executor == case.executor
            ]
            run = Run(case.executor, module_domain, tmp_path_factory.mktemp('sockets'))
            try:
                for first in range(0, len(cases), AT_THE_SAME_TIME):
                    results.update(run.run(cases[slice(first, first + AT_THE_SAME_TIME)]))
            finally:
                run.close()
        return results[case]

    yield of


@pytest.mark.parametrize(
    'case',
    [c for c in CASES if executor_exists(c.executor)],
    ids=lambda case: f'{case.executor}_{case.name}',
)
def test_each_message_once_by_the_right_rung(case: Case, result: Callable[[Case], Any]) -> None:
    publisher, subscriber = result(case)['publisher'], result(case)['subscriber']
    assert subscriber['received'] == case.received, (publisher, subscriber)
    if case.subscriber == 'adapted':
        assert subscriber['rung'] == case.rung, subscriber
        assert subscriber['conversions'] == (len(case.received) if case.message else 0)
        assert subscriber['errors'] == 0 and subscriber['duplicates'] == 0
    if case.publisher == 'adapted':
        # A transient_local publisher always converts, like rclcpp's: a late reader may be a plain
        # one.
        assert publisher['conversions'] == (
            case.published if case.subscriber == 'plain' or case.latched else 0
        )
        assert publisher['errors'] == 0
