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

"""The file result.json: the document's four keys to the letter, and the verdict in words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
import gc
import json
import os
from pathlib import Path
from typing import Any

from npu.json_schema import conforms
import pytest
from verify import verify_kit as kit
from verify.command_kit import nodes, result_in
from verify.verify_kit import MS, PID, START

from zc_perception.observe.frame_log import FrameLog
from zc_perception.verify import verification
from zc_perception.verify.evidence import Unreadable
from zc_perception.verify.evidence.buffers import MemoryMapping
from zc_perception.verify.evidence.copies import CopyShare
from zc_perception.verify.evidence.kernel_events import Trace
from zc_perception.verify.invariants import all_checks
from zc_perception.verify.measurement import check_facts
from zc_perception.verify.observation import Observation
from zc_perception.verify.verification import (
    document_keys,
    KEYS,
    MIN_SAMPLES,
    notes,
    RESULT,
    Result,
    SCHEMA,
    verdict,
    write_result,
)  # fmt: skip
from zc_perception.verify.zc_verify import main

GOOD = {
    'I1_attach_count_ge2': True,
    'I2_known_exporter': True,
    'I3_axl_imports': True,
    'I4_no_memcpy_hot': True,
}


def both_attach(**changes: object) -> Observation:
    """Return the document's case: vivid imports the buffer too, and nothing is cached."""
    return kit.uncached_graph('vivid.0', **changes)


def test_the_document_s_picture_passes_by_the_letter() -> None:
    keys = document_keys(both_attach())
    assert keys.keys == GOOD and keys.holds
    assert tuple(keys.keys) == KEYS
    expected = {
        'imports': 20, 'releases': 20, 'multi_attach_inodes': ['11', '12', '13'],
        'exporters': ['system'], 'memcpy_hot': [], 'attach_counts': {'11': 2, '12': 2, '13': 2},
    }  # fmt: skip
    assert keys.detail | expected == keys.detail


def test_an_exporter_is_no_attachment_and_a_cache_no_import_per_frame() -> None:
    assert document_keys(kit.cached_graph()).keys == {
        'I1_attach_count_ge2': False,
        'I2_known_exporter': False,
        'I3_axl_imports': False,
        'I4_no_memcpy_hot': True,
    }
    assert document_keys(kit.uncached_graph()).keys == GOOD | {
        'I1_attach_count_ge2': False,
        'I2_known_exporter': False,
    }


def hot(percent: int, samples: int = 1000) -> Callable[[Observation], Observation]:
    return kit.changed(shares=(CopyShare(PID, samples, samples * percent // 100),))


def without_late_imports(seen: Observation) -> Observation:
    assert seen.trace is not None
    early, late = seen.trace.events[:70], seen.trace.events[slice(70, None)]
    kept = [item for item in late if item.name != 'axl_dmabuf_import']
    return replace(seen, trace=Trace([*early, *kept]))


SPOILT: dict[str, tuple[Callable[[Observation], Observation], dict[str, bool | None]]] = {
    'other exporter': (
        lambda seen: replace(seen, exporters={**seen.exporters, kit.POOL[0]: 'udmabuf'}),
        {'I2_known_exporter': False},
    ),
    'unknown exporter': (kit.changed(exporters={}), {'I2_known_exporter': False}),
    'one import missing': (without_late_imports, {'I3_axl_imports': False}),
    'no frame': (
        lambda seen: kit.with_records(seen, lambda old: None),
        {'I3_axl_imports': None, 'I4_no_memcpy_hot': None},
    ),
    'hot': (hot(2), {'I4_no_memcpy_hot': False}),
    'exactly one per cent': (hot(1), {}),
    'kernel hot': (
        kit.changed(shares=(CopyShare(PID, 1000, 0, {'memcpy': 30}),)),
        {'I4_no_memcpy_hot': False},
    ),
    'few samples': (hot(0, MIN_SAMPLES - 1), {'I4_no_memcpy_hot': None}),
    'not sampled': (kit.changed(shares=None), {'I4_no_memcpy_hot': None}),
    'no bufinfo': (
        kit.changed(snapshots=()),
        {'I1_attach_count_ge2': None, 'I2_known_exporter': None, 'I3_axl_imports': None},
    ),
    'no trace': (
        kit.changed(trace=None, event_sources={}),
        {'I1_attach_count_ge2': None, 'I2_known_exporter': None, 'I3_axl_imports': None},
    ),
    'lost events': (
        lambda seen: kit.with_events(seen, lost=1),
        {'I1_attach_count_ge2': None, 'I2_known_exporter': None, 'I3_axl_imports': None},
    ),
    'no driver events': (kit.without_sources('axl_'), {'I3_axl_imports': None}),
}


@pytest.mark.parametrize('what', SPOILT)
def test_each_key_can_fail_and_be_unknown(what: str) -> None:
    spoil, expected = SPOILT[what]
    keys = document_keys(spoil(both_attach()))
    assert keys.keys == GOOD | expected
    assert keys.holds is (not expected)


def test_fences_are_counted_and_slow_ones_told() -> None:
    waits = [
        kit.event(START + 10 * MS, 'dma_fence_wait_start', context=1, seqno=5),
        kit.event(START + 80 * MS, 'dma_fence_wait_end', context=1, seqno=5),
        kit.event(START + 90 * MS, 'dma_fence_wait_start', context=1, seqno=6),
        kit.event(START + 95 * MS, 'dma_fence_wait_end', context=1, seqno=6),
    ]
    seen = kit.with_events(kit.cached_graph(), *waits)
    assert document_keys(seen).detail['fence_wait_lines'] == 4
    assert document_keys(seen).detail['fence_waits_by_poll'] == len(seen.all_submitted()) > 0
    unseen = kit.with_records(kit.cached_graph(), lambda old: old._replace(signalled_ns=0))
    assert document_keys(unseen).detail['fence_waits_by_poll'] == 0
    (note,) = notes(seen)
    assert '70 ms' in note and 'LnkSta' in note
    assert notes(kit.cached_graph()) == []
    slow = kit.with_records(
        kit.cached_graph(), lambda old: old._replace(signalled_ns=old.submitted_ns + 60 * MS)
    )
    assert '60 ms' in notes(slow)[0]


# Other processes' facts in a frame log can't end a measurement or forge output.


WRONG: list[dict[str, Any]] = [
    {'pool': 'abc'}, {'pool': [[1]]}, {'pool': {'a': 1}},
    {'copies': {'a': {'count': float('nan')}}}, {'failed': 'many'},
    {'trial_imports': float('inf')}, {'slots': float('inf')}, {'height': 1 << 64},
    {'device': ['/dev/video0']}, {'import_cache': 'yes'},
]  # fmt: skip
#: A node without a frame has nothing to wait for.
GRACE = 'zc_perception.verify.measurement._GRACE_S'
OPTIONS = ('--seconds', '0.2', '--no-sampling')


@pytest.mark.parametrize('facts', WRONG, ids=repr)
def test_a_fact_in_a_wrong_form_is_left_out_and_told(facts: dict[str, Any]) -> None:
    good, (told,) = check_facts({'role': 'capture', **facts})
    (name,) = facts
    assert good == {'role': 'capture'}
    assert told.startswith(f'its {name} is ') and '; it must be ' in told and len(told) < 200


@pytest.mark.parametrize('facts', [WRONG[0], WRONG[3]], ids=repr)
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
    assert told['source'] == f'frame log of /strange/node (process {os.getpid()})'
    assert told['reason'].startswith(f'its {next(iter(facts))} ')
    assert all(told['reason'] in check['reason'] for check in document['checks'].values())
    assert f'not measured: {told["source"]}' in capsys.readouterr().out


def test_what_nobody_foresaw_is_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise ValueError('nobody\nforesaw it')

    monkeypatch.setattr(verification, 'all_checks', fail)
    # Collect now: when freed, unfinished rclpy futures of earlier tests print to this screen.
    gc.collect()
    capsys.readouterr()
    with nodes() as process:
        assert main([*OPTIONS, '--pid', str(process.pid), '--output', str(tmp_path)]) == 3
    told = capsys.readouterr().err
    assert told.count('\n') == 1 and 'ValueError: nobody\\nforesaw it' in told
    assert f'please report this error, with the file {tmp_path}/traceback.txt' in told
    text = (tmp_path / 'traceback.txt').read_text()
    assert text.startswith('Traceback') and 'foresaw it' in text
    assert not (tmp_path / RESULT).exists()


ROOT = Unreadable('tracefs', 'Permission denied (/sys/kernel/tracing/instances)', 'run as root')


mapped = kit.changed(mappings=(MemoryMapping(100, 0x1000, 0x2000, 'rw-s', 12, 11, '/dmabuf:'),))
unseen = kit.changed(
    trace=None, event_sources={}, copies=None, shares=None, unreadable={'trace': (ROOT,)}
)


CASES: dict[str, tuple[Callable[[], Observation], int, bool]] = {
    'good': (kit.cached_graph, 0, True),
    'mapped': (lambda: mapped(kit.cached_graph()), 1, False),
    'unseen': (lambda: unseen(kit.cached_graph()), 3, False),
}


def result_of(seen: Observation) -> Result:
    return Result(
        seen, all_checks(seen), document_keys(seen), notes(seen), ['zc_verify'],
        {'timeline': 'timeline.json'},
    )  # fmt: skip


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
    good = verdict(result_of(kit.cached_graph()))
    assert [line.split(':')[0] for line in good[1:5]] == [f'I{one} holds' for one in range(1, 5)]
    assert good[-1] == 'PASS'
    bad = verdict(result_of(mapped(kit.cached_graph())))
    where = next(index for index, line in enumerate(bad) if line.startswith('I4 DOES NOT HOLD'))
    assert 'process 100' in bad[where + 1] and bad[where + 2].startswith('   next: ')
    assert bad[-1] == 'FAIL'
    blind = verdict(result_of(unseen(kit.cached_graph())))
    assert any(line.startswith('I3 not measured') for line in blind)
    assert any('run as root' in line for line in blind) and blind[-1] == 'NOT MEASURED'
