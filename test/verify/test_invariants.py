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

"""Each invariant holds for a good pipeline, and fails for each fault that it must detect."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
import gc
import json
import os
from pathlib import Path
from typing import Any

import pytest
from verify import verify_kit as kit
from verify.command_kit import nodes, result_in
from verify.verify_kit import ALL_HOLD, MS, PCI, PERIOD, PID, POOL, SOURCES, START, TIMES

from zc_perception.npu.axl.kind import Axl
from zc_perception.observe.frame_log import FrameLog, RecordKind
from zc_perception.verify import verification
from zc_perception.verify.evidence import Unreadable
from zc_perception.verify.evidence.buffers import MemoryMapping, Snapshot
from zc_perception.verify.evidence.copies import CopyShare, LargeCopy
from zc_perception.verify.evidence.kernel_events import Trace
from zc_perception.verify.imports import FencePlaces, find_fences, FrameJob
from zc_perception.verify.invariants import all_checks, check_attached, check_imports
from zc_perception.verify.measurement import check_facts
from zc_perception.verify.observation import Observation
from zc_perception.verify.verification import document_keys, notes, Result
from zc_perception.verify.zc_verify import main

ROOT = Unreadable('something', 'Permission denied', 'run as root')
MIDDLE = START + 10 * PERIOD
Spoil = Callable[[Observation], Observation]


@pytest.mark.parametrize('graph', [kit.cached_graph, kit.uncached_graph])
def test_a_good_pipeline_keeps_all_four(graph: Callable[[], Observation]) -> None:
    checks = all_checks(graph())
    assert {check.name: check.holds for check in checks} == ALL_HOLD
    assert all(check.reason == '' and check.next_step == '' and check.measured for check in checks)
    attached, exported, imported, _ = (check.as_json() for check in checks)
    assert attached['frames_attached'] == 20 and exported['exporters'] == {'system': 3}
    names = ('frames', 'kernel_submits', 'imports', 'frames_with_own_import')
    own = 20 if graph is kit.uncached_graph else 0
    assert [imported[name] for name in names] == [20, 20, own, own]


def looking(seen: Observation, *others: int) -> Observation:
    """Return the same with looks that show the frames' buffers detached, *others* attached."""
    objects = {inode: [] for inode in POOL} | {inode: [PCI] for inode in others}
    looks = (kit.look(one.start_ns, objects) for one in seen.snapshots)
    return replace(seen, snapshots=tuple(looks))


def importing(seen: Observation, *handles: int, inode: int, at_ns: int = MIDDLE) -> Observation:
    name = 'axl_dmabuf_import'
    imports = (kit.event(at_ns + one, name, handle=one, inode=inode) for one in handles)
    return kit.with_events(seen, *imports)


def submits_after_its_release(seen: Observation) -> Observation:
    """Submit a handle after the release of its buffer."""
    seen = importing(seen, 1, inode=POOL[0], at_ns=START - 400 * MS)
    at_ns, thread = START - 300 * MS, kit.DRIVER_THREAD
    released = kit.event(at_ns, 'axl_dmabuf_release', thread, handle=1, inode=POOL[0])
    return kit.with_events(seen, released)


def detaches_early(seen: Observation) -> Observation:
    """End the attachments of some frames before these are submitted."""
    ends = [item for item in kit.events(seen) if item.name == 'dma_buf_detach']
    early = (replace(item, time_ns=item.time_ns - 5 * MS - 100_000) for item in ends)
    return kit.with_events(seen, *early, without=['dma_buf_detach'])


def drops_an_import(seen: Observation) -> Observation:
    imports = [item for item in kit.events(seen) if item.name == 'axl_dmabuf_import']
    kept = [item for item in imports if not MIDDLE <= item.time_ns < MIDDLE + PERIOD]
    return kit.with_events(seen, *kept, without=['axl_dmabuf_import'])


def on_memfds(seen: Observation) -> Observation:
    looks = tuple(kit.look(one.start_ns, {}) for one in seen.snapshots)
    memfds = frozenset((12, inode) for inode in POOL)
    return replace(seen, dmabufs=frozenset(), memfds=memfds, snapshots=looks)


def in_use(*events: Any) -> Spoil:
    return lambda seen: kit.with_events(seen, *events)


def with_facts(role: str, **after: Any) -> Spoil:
    return lambda seen: kit.with_facts(seen, role, **after)


SURPLUS = kit.event(MIDDLE, 'axl_submit', handle=1, ctx=1, seqno=77)
SURPLUS_FRAME = kit.record(90, MIDDLE, (POOL[0],), 1, 90)
MAPPED = MemoryMapping(PID, 0x1000, 0x2000, 'rw-s', 12, POOL[0], '/dmabuf:')
#: What spoils the pipeline, the invariants that it breaks, and words of a next step.
BROKEN: dict[str, tuple[Spoil, set[str], str]] = {
    'not attached': (looking, {'I1', 'I3'}, '/dmabuf: lines'),
    'detached too early': (detaches_early, {'I1'}, '/dmabuf: lines'),
    'imports its own buffer': (
        lambda seen: importing(looking(seen, 99), 1, 2, 3, inode=99, at_ns=START - 400 * MS),
        {'I1', 'I3'},
        'axl_ioctls',
    ),
    'submitted after its release': (submits_after_its_release, {'I3'}, 'axl_ioctls'),
    'no importing accelerator': (
        with_facts('inference', accelerator='onnx', pci_address=''),
        {'I1', 'I3'},
        "use accelerator 'axl'",
    ),
    'unknown exporter': (
        lambda seen: replace(seen, exporters={**seen.exporters, POOL[1]: 'axl_shadow'}),
        {'I2'},
        '--known-exporter',
    ),
    'memfd': (on_memfds, {'I1', 'I2', 'I3'}, 'let the capture node use dma-bufs'),
    'a job too many': (in_use(SURPLUS), {'I3'}, 'other programs that use the card'),
    'a frame without a job': (
        lambda seen: kit.with_node(
            seen, 'inference', records=(*seen.nodes[1].records, SURPLUS_FRAME)
        ),
        {'I3'},
        'other programs that use the card',
    ),
    'one import for two frames': (drops_an_import, {'I3'}, 'parameter import_cache'),
    'imported twice though cached': (
        lambda seen: importing(seen, 8, inode=POOL[0]),
        {'I3'},
        'parameter import_cache',
    ),
    'mapped': (kit.changed(mappings=(MAPPED,)), {'I4'}, 'end that program'),
    'mapped for a moment': (
        in_use(kit.event(MIDDLE, 'dma_buf_mmap_internal', 4242, ino=POOL[1])),
        {'I4'},
        'trace.txt',
    ),
    'camera mapped': (
        in_use(kit.event(MIDDLE, 'vb2_mmap', 4242, rdev=81 << 20)),
        {'I4'},
        'trace.txt',
    ),
    'copied by the library': (
        kit.changed(copies=(LargeCopy(PID, 345600, False, 20),)),
        {'I4'},
        'conversions and rung',
    ),
    'booked': (
        with_facts('capture', copies={'to_ros': {'count': 4, 'bytes': 9}}),
        {'I4'},
        'plain sensor_msgs/Image',
    ),
}
UNCACHED = ('detached too early', 'one import for two frames')


@pytest.mark.parametrize('fault', BROKEN)
def test_each_fault_breaks_its_invariants_and_no_other(fault: str) -> None:
    spoil, expected, step = BROKEN[fault]
    checks = all_checks(spoil(kit.uncached_graph() if fault in UNCACHED else kit.cached_graph()))
    broken = dict.fromkeys(expected, False)
    assert {check.name: check.holds for check in checks} == ALL_HOLD | broken
    told = [check for check in checks if check.holds is False]
    assert all(check.reason and check.next_step for check in told)
    assert any(step in check.next_step for check in told)


def another_set(seen: Observation, **changes: Any) -> Observation:
    """Add capture and inference of a second camera, in another process."""
    rear = tuple(replace(node, pid=200, node=f'/rear{node.node}') for node in seen.nodes)
    second = kit.with_node(replace(seen, nodes=rear), 'inference', **changes)
    return replace(seen, nodes=(*seen.nodes, *second.nodes))


def mapped_by_whom(seen: Observation) -> Observation:
    sources = {**SOURCES, 'dma_buf_mmap_internal': 'function tracer'}
    event = kit.event(MIDDLE, 'dma_buf_mmap_internal')
    return kit.with_events(replace(seen, event_sources=sources), event)


def failed_before_the_device(seen: Observation) -> Observation:
    failed = {'kind': RecordKind.FAILED, 'submitted_ns': 0, 'device_seqno': 0}
    seen = kit.with_events(seen, without=['axl_submit'])
    return kit.with_records(seen, lambda old: old._replace(**failed))


def imports_again(**changes: Any) -> Spoil:
    return lambda seen: kit.with_node(importing(seen, 8, inode=POOL[0]), 'inference', **changes)


ALL = set(ALL_HOLD)
UNKNOWN: dict[str, tuple[Spoil, set[str]]] = {
    'bufinfo': (kit.changed(snapshots=(), unreadable={'bufinfo': [ROOT]}), {'I1', 'I3'}),
    'trace': (
        kit.changed(trace=None, event_sources={}, unreadable={'trace': [ROOT]}),
        {'I3', 'I4'},
    ),
    'lost events': (lambda seen: kit.with_events(seen, lost=3), {'I3', 'I4'}),
    'exporters': (kit.changed(exporters={}), {'I2'}),
    'maps': (kit.changed(unreadable={'maps': [ROOT]}), {'I4'}),
    'no look at maps': (kit.changed(scans=0), {'I4'}),
    'memmove': (kit.changed(copies=None), {'I4'}),
    'driver events': (kit.without_sources('axl_'), {'I3'}),
    'mmap events': (kit.without_sources('dma_buf_mmap_internal'), {'I4'}),
    'a mapping by the function tracer': (mapped_by_whom, {'I4'}),
    'video events': (kit.without_sources('vb2_mmap'), {'I4'}),
    'ledger': (lambda seen: kit.with_node(seen, 'capture', after={}), {'I4'}),
    'no capture node': (lambda seen: replace(seen, nodes=seen.nodes[1:]), {'I4'}),
    'a device without an address': (with_facts('inference', pci_address=''), {'I1', 'I3'}),
    'overwritten records': (lambda seen: kit.with_node(seen, 'inference', lost=2), ALL),
    'no frame': (
        lambda seen: kit.with_records(
            kit.with_events(seen, without=['axl_submit', 'axl_complete']), lambda old: None
        ),
        ALL,
    ),
    'no accelerator of one node of two': (
        lambda seen: another_set(seen, after={'copies': {}}, records=()),
        ALL,
    ),
    'frames without an accelerator': (with_facts('inference', accelerator=''), ALL),
    'a node that was killed': (
        lambda seen: imports_again(ended_ns=MIDDLE + MS)(kit.with_events(seen, SURPLUS)),
        ALL,
    ),
    'old counters': (imports_again(described=False), {'I3', 'I4'}),
    'failed before the device': (failed_before_the_device, ALL),
}


@pytest.mark.parametrize('what', UNKNOWN)
def test_what_could_not_be_seen_is_never_true(what: str) -> None:
    spoil, expected = UNKNOWN[what]
    checks = all_checks(spoil(kit.cached_graph()))
    assert {check.name: check.holds for check in checks} == ALL_HOLD | dict.fromkeys(expected)
    assert all(check.reason for check in checks if check.holds is None)


def test_without_events_looks_must_all_show_the_attachment() -> None:
    sources = {name: how for name, how in SOURCES.items() if name != 'dma_buf_detach'}
    assert check_attached(kit.cached_graph(event_sources=sources)).holds is True
    assert check_attached(kit.cached_graph(event_sources=sources)).as_json()['exact'] is False
    assert check_attached(kit.uncached_graph(event_sources=sources)).holds is None


def test_a_frame_in_two_buffers_needs_both() -> None:
    first, second = 21, 22

    def two(old: Any) -> Any:
        return old._replace(inodes=(first, second), device_handle=1)

    both = kit.with_records(kit.with_records(kit.cached_graph(), two), two, role='capture')
    events = [
        replace(item, fields={**item.fields, 'handle': '1'}) if item.name == 'axl_submit' else item
        for item in kit.events(both)
    ]
    exporters = {first: 'system', second: 'system', **both.exporters}
    both = replace(
        both, trace=Trace(events), exporters=exporters, dmabufs=both.dmabufs | {first, second}
    )
    whole = tuple(kit.look(one.start_ns, {first: [PCI], second: [PCI]}) for one in both.snapshots)
    half = tuple(kit.look(one.start_ns, {first: [PCI], second: []}) for one in both.snapshots)
    assert kit.verdicts(replace(both, snapshots=whole)) == ALL_HOLD
    assert kit.verdicts(replace(both, snapshots=half)) == {
        'I1': False,
        'I2': True,
        'I3': False,
        'I4': True,
    }


def test_a_trial_import_of_a_late_joiner_is_no_surplus() -> None:
    again = importing(kit.cached_graph(), 8, inode=POOL[0])
    assert check_imports(kit.with_facts(again, 'inference', trial_imports=4)).holds is True


def test_other_programs_on_the_card_are_not_ours() -> None:
    others = [
        kit.event(MIDDLE + index, name, 5555, handle=1, ctx=9, seqno=1, inode=POOL[0])
        for index, name in enumerate(
            ('axl_dmabuf_import', 'axl_submit', 'axl_complete', 'axl_dmabuf_release')
        )
    ]
    assert kit.verdicts(kit.with_events(kit.cached_graph(), *others)) == ALL_HOLD


def test_mappings_of_other_buffers_and_outside_of_the_window_are_no_matter() -> None:
    harmless = [
        kit.event(MIDDLE, 'dma_buf_mmap_internal', ino=999),
        kit.event(START - MS, 'dma_buf_mmap_internal', ino=POOL[0]),
        kit.event(kit.END + MS, 'dma_buf_mmap_internal', ino=POOL[0]),
        kit.event(MIDDLE, 'vb2_mmap', 5555, rdev=(81 << 20) + 1),
        kit.event(MIDDLE, 'vb2_mmap', 5555),
    ]
    assert kit.verdicts(kit.with_events(kit.cached_graph(), *harmless))['I4'] is True


def test_nodes_of_one_process_share_a_ledger() -> None:
    seen = kit.cached_graph()
    for role in ('capture', 'inference'):
        seen = kit.with_facts(
            seen,
            role,
            {'copies': {'draw': {'count': 5, 'bytes': 1}}},
            copies={'draw': {'count': 9, 'bytes': 1}},
        )
    assert all_checks(seen)[3].as_json()['ledger'] == {'draw': 4}


# The file result.json: the document's four keys to the letter, and the verdict in words.


GOOD = {
    'I1_attach_count_ge2': True,
    'I2_known_exporter': True,
    'I3_axl_imports': True,
    'I4_no_memcpy_hot': True,
}


def both_attach() -> Observation:
    """Return the document's case: vivid imports the buffer too, and nothing is cached."""
    return kit.uncached_graph('vivid.0')


def test_the_document_s_picture_passes_by_the_letter() -> None:
    keys = document_keys(both_attach())
    assert tuple(keys.keys) == verification.KEYS
    expected = {
        'imports': 20, 'releases': 20, 'multi_attach_inodes': ['11', '12', '13'],
        'exporters': ['system'], 'memcpy_hot': [], 'attach_counts': {'11': 2, '12': 2, '13': 2},
    }  # fmt: skip
    assert keys.detail | expected == keys.detail


def hot(percent: int, samples: int = 1000) -> Spoil:
    return kit.changed(shares=(CopyShare(PID, samples, samples * percent // 100),))


def without_late_imports(seen: Observation) -> Observation:
    early, late = kit.events(seen)[:70], kit.events(seen)[slice(70, None)]
    kept = [item for item in late if item.name != 'axl_dmabuf_import']
    return replace(seen, trace=Trace([*early, *kept]))


SPOILT: dict[str, tuple[Spoil, dict[str, bool | None]]] = {
    'nothing': (lambda seen: seen, {}),
    'cached': (
        lambda seen: kit.cached_graph(),
        {'I1_attach_count_ge2': False, 'I2_known_exporter': False, 'I3_axl_imports': False},
    ),
    # An exporter is no attachment.
    'one attaches': (
        lambda seen: kit.uncached_graph(),
        {'I1_attach_count_ge2': False, 'I2_known_exporter': False},
    ),
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
    'few samples': (hot(0, verification.MIN_SAMPLES - 1), {'I4_no_memcpy_hot': None}),
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
    assert told.startswith(f'fact {name} is ') and '; it must be ' in told and len(told) < 200


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
    json.loads((tmp_path / verification.RESULT).read_text(), parse_constant=pytest.fail)
    document = result_in(tmp_path)
    (told,) = [one for one in document['unreadable'] if one['topic'] == 'frame log']
    assert told['source'] == f'frame log of /strange/node (process {os.getpid()})'
    assert told['reason'].startswith(f'fact {next(iter(facts))} is ')
    assert all(told['reason'] in check['reason'] for check in document['checks'].values())
    assert f'not measured: {told["source"]}' in capsys.readouterr().out


@pytest.mark.parametrize('kind', [ValueError, OSError])
def test_what_nobody_foresaw_is_no_verdict(
    kind: type[Exception],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: object) -> None:
        raise kind('nobody\nforesaw it')

    monkeypatch.setattr(verification, 'all_checks', fail)
    # Collect now: when freed, unfinished rclpy futures of earlier tests print to this screen.
    gc.collect()
    capsys.readouterr()
    with nodes() as process:
        assert main([*OPTIONS, '--pid', str(process.pid), '--output', str(tmp_path)]) == 3
    told = capsys.readouterr().err
    assert told.count('\n') == 1 and f'{kind.__name__}: nobody\\nforesaw it' in told
    assert f'please report this error, with the file {tmp_path}/traceback.txt' in told
    text = (tmp_path / 'traceback.txt').read_text()
    assert text.startswith('Traceback') and 'foresaw it' in text
    assert not (tmp_path / verification.RESULT).exists()


#: What was seen of a pipeline, by the verdict on it.
SEEN = {
    'PASS': kit.cached_graph(),
    'FAIL': kit.cached_graph(mappings=(MAPPED,)),
    'NOT MEASURED': kit.cached_graph(
        trace=None, event_sources={}, copies=None, shares=None, unreadable={'trace': (ROOT,)}
    ),
}


def result_of(verdict: str) -> Result:
    seen = SEEN[verdict]
    return Result(
        seen, all_checks(seen), document_keys(seen), notes(seen), ['zc_verify'],
        {'timeline': 'timeline.json'},
    )  # fmt: skip


@pytest.mark.parametrize(('verdict', 'code'), zip(SEEN, (0, 1, 3), strict=True))
def test_what_is_written_is_what_the_schema_says(verdict: str, code: int, tmp_path: Path) -> None:
    result = result_of(verdict)
    verification.write_result(result, tmp_path)
    document = result_in(tmp_path)
    assert (result.exit_code, document['pass']) == (code, verdict == 'PASS')
    assert document['pass'] == all(check['holds'] is True for check in document['checks'].values())
    assert document['pass_document'] == all(
        document[key] is True for key in document if key.startswith('I')
    )
    assert [file.name for file in tmp_path.iterdir()] == ['result.json']


def test_the_verdict_has_a_line_for_each_check_and_the_next_step_of_what_fails() -> None:
    good, bad, blind = (verification.verdict(result_of(verdict)) for verdict in SEEN)
    assert [line.split(':')[0] for line in good[1:5]] == [f'I{one} holds' for one in range(1, 5)]
    assert [lines[-1] for lines in (good, bad, blind)] == list(SEEN)
    where = next(index for index, line in enumerate(bad) if line.startswith('I4 DOES NOT HOLD'))
    assert 'process 100' in bad[where + 1] and bad[where + 2].startswith('   next: ')
    assert any(line.startswith('I3 not measured') for line in blind)
    assert any('run as root' in line for line in blind)


# I3 counts imports by their purpose: each frame's own, or once for each new buffer.
EACH_ONCE = dict.fromkeys(POOL, 1)
OF_NO_FRAME = '20 imports were for no frame; with the cache off, each import must be for a frame'


@pytest.mark.parametrize('given_back', [True, False])
def test_without_a_cache_an_import_that_no_job_reads_is_one_too_many(given_back: bool) -> None:
    card = kit.Card()

    def twice(time_ns: int, inode: int) -> None:
        handle = card.take(time_ns, inode)
        if given_back:
            card.give_back(time_ns + 100_000, handle, inode, thread=card.thread)

    kit.uncached(card, more=twice)
    seen = kit.observed([kit.node(card, cached=False)], [card])
    assert kit.judged(seen) == (False, OF_NO_FRAME)
    assert 'parameter import_cache' in check_imports(seen).next_step
    assert check_imports(seen).figures['imports'] == 40


def test_imports_on_trial_are_given_back_and_counted_by_the_node() -> None:
    card = kit.Card()
    for inode in POOL:
        card.give_back(START + 3 * MS, card.take(START + 2 * MS, inode), inode, thread=card.thread)
    kit.uncached(card)
    assert kit.judged_node(card, cached=False, trials=3) == (True, '')
    assert kit.judged_node(card, cached=False, trials=2)[0] is False
    card.take(TIMES[4] + 2 * MS, POOL[0])
    assert kit.judged_node(card, cached=False, trials=9) == (
        False,
        '1 imports were for no frame; with the cache off, each import must be for a frame',
    )


def test_an_import_whose_job_is_still_to_come_when_the_recording_ends_is_no_matter() -> None:
    card = kit.Card()
    kit.uncached(card)
    # The driver still has the previous frame, and its thread releases that import later.
    last = card.take(TIMES[-1] + 4 * MS, POOL[0])
    assert kit.judged_node(card, cached=False) == (True, '')
    card.give_back(TIMES[-1] + 9 * MS, last, POOL[0], thread=card.thread)
    assert kit.judged_node(card, cached=False)[0] is False


def test_the_import_of_a_frame_whose_job_the_card_refused_is_none_too_many() -> None:
    card = kit.Card()
    kit.uncached(card)
    card.give_back(
        TIMES[5] + 22 * MS, card.take(TIMES[5] + 20 * MS, POOL[0]), POOL[0], thread=card.thread
    )
    without = kit.observed([kit.node(card, cached=False)], [card])
    card.refused(TIMES[5] + 21 * MS, POOL[0])
    assert kit.judged(without) == (
        False,
        '1 imports were for no frame; with the cache off, each import must be for a frame',
    )
    assert kit.judged_node(card, cached=False) == (True, '')


@pytest.mark.parametrize('on', [True, False])
def test_a_cache_that_is_turned_on_or_off_meanwhile_is_not_measured(on: bool) -> None:
    told = 'parameter import_cache of /inference (process 100) changed during the measurement'
    card = kit.Card()
    kit.uncached(card)
    assert kit.judged_node(card, cached=on, was_cached=not on) == (None, told)


def opened_anew(times: int) -> Observation:
    """Let the card come back, so that everything is imported again."""
    card = kit.Card()
    handles = kit.had(card)
    length = len(TIMES) // (times + 1)
    for part in range(times + 1):
        kit.cached(card, handles, TIMES[slice(part * length, (part + 1) * length)])
        if part < times:
            end = TIMES[(part + 1) * length - 1]
            for inode, handle in handles.items():
                card.give_back(end + 20 * MS, handle, inode, thread=card.thread)
            card.reopened()
            handles = kit.taken(card, end + 30 * MS)
    return kit.observed([kit.node(card, cached=True)], [card], EACH_ONCE)


def test_who_gives_everything_back_imports_it_once_more() -> None:
    assert kit.judged(opened_anew(1)) == (True, '')
    assert kit.judged(opened_anew(3)) == (
        False,
        'buffers were imported without need 6 times, though the cache is on',
    )


def test_a_number_of_an_earlier_job_is_not_the_later_frame_s() -> None:
    """The frames before the window are not in the log."""
    card = kit.Card()
    kit.cached(card, kit.had(card), [START - 800 * MS + index * MS for index in range(6)])
    card.records.clear()
    card.reopened()
    kit.cached(card, kit.taken(card, START - 400 * MS))
    second = {'ctx': '101', 'seqno': '2'}.items()
    submitted = (one for one in card.events if one.name == 'axl_submit')
    card.events.remove(next(one for one in submitted if second <= one.fields.items()))
    told = '0 jobs of the driver belong to no logged frame, 1 logged frames have no job'
    assert kit.judged_node(card, EACH_ONCE, cached=True) == (False, told)


def test_a_cache_that_was_too_small_imports_again_what_it_threw_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entries = 64
    monkeypatch.setattr(Axl, 'EVENTS', replace(Axl.EVENTS, kept=entries))
    card = kit.Card()
    times = [START + 5 * MS + index * 6 * MS for index in range(2 * entries + 4)]
    many = [100 + index for index in range(entries + 2)]
    handles = {}
    for index, time_ns in enumerate(times):
        inode = many[index % len(many)]
        if inode not in handles or (index >= len(many) and inode < 102):
            handles[inode] = card.take(time_ns - MS, inode)
        card.run(time_ns, handles[inode], inode)
    assert kit.judged_node(card, cached=True) == (True, '')
    card.take(times[-1], 103)
    assert kit.judged_node(card, cached=True)[0] is False


def test_a_driver_that_tells_no_job_numbers_is_followed_by_time() -> None:
    card = kit.Card()
    kit.cached(card, kit.had(card))
    card.records = [one._replace(device_seqno=0) for one in card.records]
    assert kit.judged_node(card, EACH_ONCE, cached=True) == (True, '')


def test_a_cache_that_has_two_at_a_time_is_none() -> None:
    card = kit.Card()
    times = [START - 300 * MS + index * 30 * MS for index in range(6)] + TIMES[:12]
    for index in range(0, 18, 2):
        pair = {60 + (index + more) % 6: times[index + more] for more in (0, 1)}
        handles = {inode: card.take(time_ns - MS, inode) for inode, time_ns in pair.items()}
        for inode, time_ns in pair.items():
            card.run(time_ns, handles[inode], inode)
        for inode in pair:
            card.give_back(times[index + 1] + 9 * MS, handles[inode], inode)
    told = 'buffers were imported without need 6 times, though the cache is on'
    assert kit.judged_node(card, cached=True) == (False, told)


def test_a_trace_that_cannot_be_read_everywhere_proves_nothing() -> None:
    seen = kit.cached_graph()
    assert seen.trace is not None
    damaged = replace(seen, trace=Trace(seen.trace.events, damaged=2))
    assert kit.verdicts(damaged) == {'I1': True, 'I2': True, 'I3': None, 'I4': None}
    assert check_imports(damaged).reason == "the kernel's trace has 2 lines that cannot be read"
    lost = check_imports(replace(seen, trace=Trace(seen.trace.events, 3, 2)))
    assert lost.reason == "the kernel's trace lost 3 events and has 2 lines that cannot be read"


def test_another_process_s_release_of_the_same_buffer_by_the_same_number_is_its_own() -> None:
    first, second = kit.Card(), kit.Card(thread=201, context=2, pid=200)
    kit.cached(first, kit.taken(first, START - 100 * MS))
    kit.cached(second, kit.taken(second, START - 90 * MS), [time_ns + MS for time_ns in TIMES[:5]])
    for handle, inode in enumerate(POOL, 1):
        # On the driver's thread, after the job that it completed last.
        done = kit.event(
            TIMES[4] + 20 * MS + handle, 'axl_complete', kit.DRIVER_THREAD, ctx=2, seqno=handle,
            handle=handle,
        )  # fmt: skip
        second.events.append(done)
        second.give_back(TIMES[4] + 20 * MS + handle, handle, inode)
    nodes = [kit.node(first, cached=True), kit.node(second, cached=True, pid=200, name='/rear')]
    assert kit.judged(kit.observed(nodes, [first, second])) == (True, '')


@pytest.mark.parametrize(('frames', 'kept', 'left'), [(20, 2, 2), (5, 1, 1), (4, 1, 0)])
def test_an_import_has_to_be_given_back_after_a_few_frames(
    frames: int, kept: int, left: int
) -> None:
    """Of the last *frames*, the first *kept* keep their imports."""
    card = kit.Card()
    kit.uncached(card, TIMES[: len(TIMES) - frames])
    kit.uncached(card, TIMES[slice(-frames, None)], kept=kept)
    check = check_imports(kit.observed([kit.node(card, cached=False)], [card]))
    told = (
        f'{left} imports were not released, though their frames were finished and the cache is off'
    )
    assert (check.holds, check.reason) == ((False, told) if left else (True, ''))
    assert ('release_errors' in check.next_step) is bool(left)


def test_the_import_of_a_job_that_was_given_up_may_last() -> None:
    card = kit.Card()
    kit.uncached(card)
    handle = card.take(TIMES[3] + 20 * MS, POOL[0])
    card.run(TIMES[3] + 21 * MS, handle, POOL[0], kind=RecordKind.FAILED)
    assert kit.judged_node(card, cached=False) == (True, '')


# Two nodes of one process each open the card: I3 holds for both.


MAIN = 107  # a thread that submits nothing
REAR = tuple(inode + 100 for inode in POOL)
TwoCards = tuple[kit.Card, kit.Card]


def two_cards(*, seqno: int = 0, contexts: bool = True) -> TwoCards:
    """Return both open files, with handles that repeat."""
    front, rear = (
        kit.Card(context=2 * contexts),
        kit.Card(thread=kit.THREAD + 50, context=3 * contexts),
    )
    rear.seqno = seqno
    return front, rear


def run_both(
    cards: TwoCards, with_cache: bool, pool: tuple[int, ...] = REAR, later_ns: int = MS
) -> dict[int, int]:
    """Run both nodes' frames; return by buffer how often the card was attached before."""
    for card, inodes, later in zip(cards, (POOL, pool), (0, later_ns), strict=True):
        times = [time_ns + later for time_ns in TIMES]
        if with_cache:
            kit.cached(card, kit.had(card, inodes), times)
        else:
            kit.uncached(card, times, inodes)
    return dict.fromkeys((*POOL, *REAR), 1) if with_cache else {}


def both_seen(
    cards: TwoCards, with_cache: bool, attached: dict[int, int], *, threads: bool = True
) -> Observation:
    """Return the observation; *threads*: whether log and trace have equal thread numbers."""
    nodes = [
        kit.node(card, cached=with_cache, name=name)
        for card, name in zip(cards, ('/front', '/rear'), strict=True)
    ]
    if not threads:
        nodes = [
            replace(one, records=tuple(old._replace(thread_id=9) for old in one.records))
            for one in nodes
        ]
    return kit.observed(nodes, cards, attached)


@pytest.mark.parametrize('with_cache', [True, False])
@pytest.mark.parametrize('seqno', [0, 1, 3, 1000])
@pytest.mark.parametrize('later_ns', [0, 100_000, MS, 20 * MS])
@pytest.mark.parametrize('threads', [True, False])
@pytest.mark.parametrize('contexts', [True, False])
@pytest.mark.parametrize('pool', [REAR, POOL], ids=['two cameras', 'one camera'])
def test_two_good_nodes_of_one_process(
    with_cache: bool,
    seqno: int,
    later_ns: int,
    threads: bool,
    contexts: bool,
    pool: tuple[int, ...],
) -> None:
    cards = two_cards(seqno=seqno, contexts=contexts)
    attached = run_both(cards, with_cache, pool, later_ns)
    assert kit.judged(both_seen(cards, with_cache, attached, threads=threads)) == (True, '')


@pytest.mark.parametrize('pool', [REAR, POOL], ids=['two cameras', 'one camera'])
def test_imports_that_another_thread_made_before_the_first_frame(pool: tuple[int, ...]) -> None:
    cards = two_cards()
    for card, inodes in zip(cards, (POOL, pool), strict=True):
        kit.cached(card, {inode: card.take(START + MS, inode, thread=MAIN) for inode in inodes})
    whole = both_seen(cards, True, {})
    assert kit.judged(replace(whole, process_of={**whole.process_of, MAIN: kit.PID})) == (True, '')


def drops_a_job(rear: kit.Card) -> None:
    rear.events.remove(next(one for one in rear.events if one.name == 'axl_submit'))


def has_a_job_too_many(rear: kit.Card) -> None:
    rear.run(TIMES[7] + 30 * MS, 1, REAR[0])
    rear.records.pop()


def takes_the_other_s_buffer(rear: kit.Card) -> None:
    rear.events = [
        replace(one, fields={**one.fields, 'inode': str(POOL[0])})
        if one.name in ('axl_dmabuf_import', 'axl_dmabuf_release')
        else one
        for one in rear.events
    ]


def imports_twice(rear: kit.Card) -> None:
    for time_ns in TIMES:
        rear.take(time_ns + 2 * MS, REAR[0])


def submits_one_handle(rear: kit.Card) -> None:
    """Submit one handle for all buffers; the log names it, too."""
    rear.events = [
        replace(one, fields={**one.fields, 'handle': '1'}) if one.name == 'axl_submit' else one
        for one in rear.events
    ]
    rear.records = [one._replace(device_handle=1) for one in rear.records]


WRONG_BUFFER = 'frames were submitted whose buffer was not imported'


@pytest.mark.parametrize(
    ('spoil', 'with_cache', 'told'),
    [
        (drops_a_job, True, '0 jobs of the driver belong to no logged frame, 1 logged frame'),
        (drops_a_job, False, '0 jobs of the driver belong to no logged frame, 1 logged frame'),
        (has_a_job_too_many, True, '1 jobs of the driver belong to no logged frame, 0 logged'),
        (takes_the_other_s_buffer, False, WRONG_BUFFER),
        (imports_twice, True, 'imported'),
        (imports_twice, False, 'imports'),
        (submits_one_handle, True, WRONG_BUFFER),
        (submits_one_handle, False, WRONG_BUFFER),
    ],
)
@pytest.mark.parametrize('seqno', [0, 1000])
@pytest.mark.parametrize('threads', [True, False])
def test_one_broken_node_of_two(
    spoil: Callable[[kit.Card], None], with_cache: bool, told: str, seqno: int, threads: bool
) -> None:
    cards = two_cards(seqno=seqno)
    attached = run_both(cards, with_cache)
    spoil(cards[1])
    holds, reason = kit.judged(both_seen(cards, with_cache, attached, threads=threads))
    assert holds is False and (told in reason or 'imported' in reason), reason


# Which buffers the driver's jobs read, by the fences in the buffers.


LEFT, RIGHT, BACK = POOL
FIRST = FrameJob(START, 1, frozenset((LEFT,)))


def fences(time_ns: int, numbers: Mapping[int, Sequence[int]], driver: str = 'axl') -> Snapshot:
    """Return a look with these fences: by buffer, the numbers of the fences in it."""
    made = kit.look(time_ns, dict.fromkeys(numbers, ()))
    for inode, found in numbers.items():
        made.objects[inode].reads += [(driver, number) for number in found]
    return made


def places(
    looked: Snapshot, strangers: Sequence[int] = (), others: Sequence[int] = ()
) -> FencePlaces:
    """Return where the first job's fence is; *others*: buffers of another node's job 1."""
    return find_fences([FIRST], {1: {LEFT, *others}}, strangers, [looked], ['axl'])


def test_what_is_not_there_says_nothing() -> None:
    now = START + 20 * MS
    for looked, why in (
        (fences(START - MS, {LEFT: [], RIGHT: [1]}), 'the job came after the look'),
        (fences(now, {RIGHT: [1]}), 'the buffer is gone'),
        (fences(now, {LEFT: [], RIGHT: []}), 'the driver adds no fences'),
        (fences(now, {LEFT: [], RIGHT: [1]}, driver='gpu'), "another driver's"),
    ):
        assert places(looked) == FencePlaces(), why


def test_a_number_that_several_open_files_have_accuses_nobody() -> None:
    seen = fences(START + 20 * MS, {LEFT: [], RIGHT: [1]})
    assert places(seen) == FencePlaces(set(), {0})
    assert places(seen, others=[RIGHT]) == FencePlaces(), "it is the other node's job"
    assert places(seen, strangers=[1]) == FencePlaces(), "it may be the other program's job"


def with_fences(seen: Observation, exchanged: Mapping[int, int]) -> Observation:
    jobs = [
        (record.submitted_ns, record.inodes[0], record.device_seqno)
        for record in seen.nodes[1].records
    ]
    for made in seen.snapshots:
        last = {inode: number for time_ns, inode, number in jobs if time_ns < made.start_ns}
        for inode, number in last.items():
            made.objects[exchanged.get(inode, inode)].reads.append(('axl', number))
    return seen


def test_handles_of_the_right_buffers_are_confirmed() -> None:
    check = check_imports(with_fences(kit.cached_graph(), {}))
    assert check.holds is True and check.figures['frames_confirmed_by_fence'] > 3
    assert len(check.figures['not_seen']) == 1, check.figures['not_seen']
    unsure = check_imports(kit.cached_graph())
    assert unsure.holds is True and unsure.figures['frames_confirmed_by_fence'] == 0
    assert (
        'the buffers of 3 import handles that were made before the recording'
        in unsure.figures['not_seen'][1]
    )


def test_handles_that_were_exchanged_before_the_recording_are_found_out() -> None:
    check = check_imports(with_fences(kit.cached_graph(), {LEFT: RIGHT, RIGHT: BACK, BACK: LEFT}))
    assert check.holds is False and 'the fences of their jobs are in other' in check.reason
    assert (
        check.figures['frames_not_imported'] == 0
        and check.figures['frames_confirmed_by_fence'] == 0
    )
