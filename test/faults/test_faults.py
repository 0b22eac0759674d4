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

"""The reduced form of ``make faults``: the same code runs each fault briefly on one stage."""

from __future__ import annotations

from collections.abc import Iterator
import os

from faults import outcome as limits
from faults.harness import Fault
from faults.outcome import ABSENT, HELD
from faults.run_faults import all_faults, Theatre
from long_form import LONG
from process_state import kept
import pytest

FAULTS = [each for each in all_faults().values() if LONG or not each.long_only]


@pytest.fixture(scope='module', autouse=True)
def _process_as_it_began() -> Iterator[None]:
    """Undo after the last fault what a stage sets in this process, such as variables."""
    with kept():
        yield


@pytest.fixture(scope='module', autouse=True)
def _no_speed_is_judged() -> Iterator[None]:
    """Check no pauses and rates, as other tests run in parallel; ``make faults`` checks them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, 'MOST_PAUSE_S', 20.0)
        patch.setattr(limits, 'LEAST_RATE', 0.0)
        yield


@pytest.fixture(scope='module')
def theatre() -> Iterator[Theatre]:
    with Theatre(short=not LONG) as made:
        yield made


@pytest.mark.parametrize('each', FAULTS, ids=lambda each: each.name.replace(' ', '_'))
def test_the_promise_holds(each: Fault, theatre: Theatre) -> None:
    outcome = theatre.do(each)
    if outcome.status == ABSENT and os.environ.get('ZC_RIG') != 'required':
        pytest.skip(outcome.reason)
    assert outcome.status == HELD, f'{outcome.promise}: {outcome.reason}; {outcome.as_dict()}'
