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
Check that the other tests of this folder have all passed with the files as they are now.

Those tests need launch_ros, which CI doesn't have, so CI checks the record of their last run.
After a change run ``.venv/bin/python -m pytest test/launch --write-evidence`` in a shell whose
``ros2`` works, and commit ``evidence.json``, which is the record.
"""

from __future__ import annotations

import evidence_file


def test_nothing_has_changed_since_they_were_run() -> None:
    recorded, now = evidence_file.read()['files'], evidence_file.hashes()
    changed = sorted(
        name for name in recorded.keys() | now.keys() if recorded.get(name) != now.get(name)
    )
    assert not changed, f'run them again, where ros2 is: {evidence_file.RUN}'
    assert len(now) > 20, 'the files were found'


def test_all_of_them_passed() -> None:
    evidence = evidence_file.read()
    assert {
        name: outcome for name, outcome in evidence['tests'].items() if outcome != 'passed'
    } == {}
    run = {name.split('[')[0] for name in evidence['tests']}
    assert run == set(evidence_file.test_functions()), f'run them all: {evidence_file.RUN}'


def test_it_says_what_they_were_run_with() -> None:
    evidence = evidence_file.read()
    assert evidence['date'] and all(
        evidence['versions'].get(tool, 'unknown') != 'unknown'
        for tool in ('launch', 'launch_ros', 'ros2cli')
    )
