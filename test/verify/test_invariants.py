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

from collections.abc import Callable
from dataclasses import replace
import gc
import json
import os
from pathlib import Path
from typing import Any

import pytest
from verify import verify_kit as kit
from verify.command_kit import nodes, result_in
from verify.verify_kit import ALL_HOLD, MS, PCI, PERIOD, PID, POOL, SOURCES, START

from zc_perception.observe.frame_log import FrameLog, RecordKind
from zc_perception.verify import verification
from zc_perception.verify.evidence import Unreadable
from zc_perception.verify.evidence.buffers import MemoryMapping
from zc_perception.verify.evidence.copies import CopyShare, LargeCopy
from zc_perception.verify.evidence.kernel_events import Trace
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
    """Add imports of a buffer by these handles."""
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
    graph = kit.uncached_graph if fault in UNCACHED else kit.cached_graph
    checks = all_checks(spoil(graph()))
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
    """Import a buffer once more, and change the view of the inference node."""
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
    seen = kit.with_facts(again, 'inference', trial_imports=4)
    assert check_imports(seen).holds is True


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
    json.loads((tmp_path / verification.RESULT).read_text(), parse_constant=pytest.fail)
    document = result_in(tmp_path)
    (told,) = [one for one in document['unreadable'] if one['topic'] == 'frame log']
    assert told['source'] == f'frame log of /strange/node (process {os.getpid()})'
    assert told['reason'].startswith(f'its {next(iter(facts))} ')
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
