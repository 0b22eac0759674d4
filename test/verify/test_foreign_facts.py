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

"""Strangers' facts in a frame log end no measurement, and forge neither a result nor a line."""

from __future__ import annotations

import gc
import json
import os
from pathlib import Path
from typing import Any

import pytest
from verify.command_kit import nodes, result_in

from zc_perception.observe.frame_log import FrameLog
from zc_perception.verify import verification
from zc_perception.verify.measurement import check_facts
from zc_perception.verify.result import RESULT
from zc_perception.verify.zc_verify import main

WRONG: list[dict[str, Any]] = [
    {'pool': 'abc'},
    {'pool': 5},
    {'pool': [[1]]},
    {'pool': [['x', 'y']]},
    {'pool': [[1, -1]]},
    {'pool': {'a': 1}},
    {'copies': {'a': 1}},
    {'copies': [1]},
    {'copies': None},
    {'copies': {'a': {'count': float('nan')}}},
    {'copies': {'a': {'bytes': 1}}},
    {'copies': {'a\0': {'count': 1}}},
    {'failed': 'many'},
    {'dropped': None},
    {'trial_imports': float('inf')},
    {'slots': float('inf')},
    {'width': True},
    {'height': 1 << 64},
    {'device': '/dev/video\0'},
    {'device': ['/dev/video0']},
    {'camera': '\ud800'},
    {'accelerator': 7},
    {'pci_address': {}},
    {'import_cache': 'yes'},
]
#: A node without a frame has nothing to wait for.
GRACE = 'zc_perception.verify.measurement._GRACE_S'
OPTIONS = ('--seconds', '0.2', '--no-sampling')


@pytest.mark.parametrize('facts', WRONG, ids=repr)
def test_a_fact_in_a_wrong_form_is_left_out_and_told(facts: dict[str, Any]) -> None:
    good, (told,) = check_facts({'role': 'capture', **facts})
    (name,) = facts
    assert good == {'role': 'capture'}
    assert told.startswith(f'its {name} is ') and '; it must be ' in told and len(told) < 200


def test_what_nodes_say_is_in_its_form() -> None:
    facts = {
        'device': '/dev/video0 (vivid)',
        'pool': [[12, 11], [12, 1 << 63]],
        'copies': {'to_ros': {'count': 4, 'bytes': 9}},
        'slots': 8,
        'import_cache': False,
        'trial_imports': 0,
        'something_new': {'nested': [None]},
    }
    assert check_facts(facts) == (facts, [])


@pytest.mark.parametrize('facts', [WRONG[0], WRONG[4], WRONG[9], WRONG[15], WRONG[18]], ids=repr)
def test_wrong_facts_are_an_unreadable_log(
    tmp_path: Path,
    facts: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(GRACE, 0.1)
    with FrameLog('capture', '/strange/node') as log:
        log.describe(facts)
        assert main([*OPTIONS, '--pid', str(os.getpid()), '--output', str(tmp_path)]) == 3
    json.loads((tmp_path / RESULT).read_text(), parse_constant=pytest.fail)
    document = result_in(tmp_path)
    (told,) = [one for one in document['unreadable'] if one['topic'] == 'frame log']
    assert told['source'] == f'frame log of /strange/node (process {os.getpid()})' and told[
        'reason'
    ].startswith(f'its {next(iter(facts))} ')
    assert all(told['reason'] in check['reason'] for check in document['checks'].values())
    assert f'not measured: {told["source"]}' in capsys.readouterr().out


def test_what_nobody_foresaw_is_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise ValueError('nobody\nforesaw it')

    monkeypatch.setattr(verification, 'all_checks', fail)
    # rclpy's futures of an earlier test say at their end, on the same screen, what nobody asked
    # them for
    gc.collect()
    capsys.readouterr()
    with nodes() as process:
        assert main([*OPTIONS, '--pid', str(process.pid), '--output', str(tmp_path)]) == 3
    told = capsys.readouterr().err
    assert (
        told.count('\n') == 1
        and 'ValueError: nobody\\nforesaw it' in told
        and f'please report it with {tmp_path}/traceback.txt' in told
    )
    text = (tmp_path / 'traceback.txt').read_text()
    assert text.startswith('Traceback') and 'foresaw it' in text
    assert not (tmp_path / RESULT).exists()


def test_a_name_forges_no_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GRACE, 0.1)
    with FrameLog('capture', '/x\x1b]0;owned\x07\nPASS (build/verify/result.json)\x1b[8m\x9b'):
        assert main([*OPTIONS, '--pid', str(os.getpid()), '--output', str(tmp_path)]) == 3
    told = capsys.readouterr().out
    assert not any(line.startswith('PASS') for line in told.splitlines())
    assert all(c == '\n' or c.isprintable() for c in told)
    assert r'/x\x1b]0;owned\x07\nPASS' in told
