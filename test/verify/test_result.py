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

"""The file result.json: its schema, its exit statuses, and the words for a person."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
import json
from pathlib import Path

from npu.json_schema import conforms
import pytest
from verify.verify_kit import cached_graph, uncached_graph, with_facts

from zc_perception.verify.evidence import Unreadable
from zc_perception.verify.evidence.buffers import MemoryMapping
from zc_perception.verify.invariants import all_checks
from zc_perception.verify.observation import Observation
from zc_perception.verify.verification import (
    document_keys,
    notes,
    Result,
    SCHEMA,
    verdict,
    write_result,
)

ROOT = Unreadable('tracefs', 'Permission denied (/sys/kernel/tracing/instances)', 'run as root')


def mapped(seen: Observation) -> Observation:
    return replace(
        seen, mappings=(MemoryMapping(100, 0x1000, 0x2000, 'rw-s', 12, 11, '/dmabuf:'),)
    )


def unseen(seen: Observation) -> Observation:
    return replace(
        seen, trace=None, event_sources={}, copies=None, shares=None, unreadable={'trace': (ROOT,)}
    )


CASES: dict[str, tuple[Callable[[], Observation], int, bool]] = {
    'good': (cached_graph, 0, True),
    'good by the letter': (lambda: uncached_graph('vivid.0'), 0, True),
    'mapped': (lambda: mapped(cached_graph()), 1, False),
    'unseen': (lambda: unseen(cached_graph()), 3, False),
    'no accelerator': (
        lambda: with_facts(cached_graph(), 'inference', accelerator='onnx', pci_address=''),
        1,
        False,
    ),
}


def result_of(seen: Observation) -> Result:
    return Result(
        seen,
        all_checks(seen),
        document_keys(seen),
        notes(seen),
        ['zc_verify'],
        {'timeline': 'timeline.json'},
    )


@pytest.mark.parametrize('case', CASES)
def test_what_is_written_is_what_the_schema_says(case: str, tmp_path: Path) -> None:
    make, exit_code, passed = CASES[case]
    result = result_of(make())
    path = write_result(result, tmp_path)
    document = json.loads(path.read_text())
    schema = json.loads(SCHEMA.read_text())
    assert conforms(document, schema)
    assert (result.exit_code, document['pass']) == (exit_code, passed)
    assert document['pass'] == all(check['holds'] is True for check in document['checks'].values())
    assert document['pass_document'] == all(
        document[key] is True for key in document if key.startswith('I')
    )
    assert [file.name for file in tmp_path.iterdir()] == ['result.json']


def test_the_verdict_has_a_line_for_each_check_and_the_next_step_of_what_fails() -> None:
    good = verdict(result_of(cached_graph()))
    assert [line.split(':')[0] for line in good[1:5]] == [
        'I1 holds',
        'I2 holds',
        'I3 holds',
        'I4 holds',
    ] and good[-1] == 'PASS'
    bad = verdict(result_of(mapped(cached_graph())))
    where = next(index for index, line in enumerate(bad) if line.startswith('I4 DOES NOT HOLD'))
    assert (
        'process 100' in bad[where + 1]
        and bad[where + 2].startswith('   next: ')
        and bad[-1] == 'FAIL'
    )
    blind = verdict(result_of(unseen(cached_graph())))
    assert (
        any(line.startswith('I3 not measured') for line in blind)
        and any('run as root' in line for line in blind)
        and blind[-1] == 'NOT MEASURED'
    )
