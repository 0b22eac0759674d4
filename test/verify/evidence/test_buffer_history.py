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

"""Attachment counts from looks and events, against a simulation with known truth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
import os
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
import pytest
from verify.verify_kit import event, look, MS

from zc_perception.observe.processes import as_root
from zc_perception.observe.timeline import KernelEvent
from zc_perception.verify.evidence import Unreadable, unreadable_file
from zc_perception.verify.evidence.buffers import (
    BufferObject,
    buffers_of,
    DMABUF,
    event_history,
    MEMFD,
    parse_bufinfo,
    read_bufinfo,
    read_holders,
    Snapshot,
)

DEVICES = ('0000:01:00.0', 'vivid.0')
STEP = 10 * MS


def simulate(
    before: list[str], changes: list[tuple[str, bool]]
) -> tuple[list[KernelEvent], list[Counter[str]]]:
    """Return events of one buffer every 10 ms, and the truth after each of them."""
    state = Counter(before)
    events, truth = [], [Counter(state)]
    for device, attach in changes:
        if not attach and not state[device]:
            continue
        state[device] += 1 if attach else -1
        state = +state
        name = 'dma_buf_dynamic_attach' if attach else 'dma_buf_detach'
        events.append(event((len(events) + 1) * STEP, name, ino=5, dev_name=device))
        truth.append(Counter(state))
    return events, truth


def looks_at(truth: list[Counter[str]], indices: list[int]) -> list[Snapshot]:
    return [
        look(index * STEP + STEP // 2, {5: sorted(truth[index].elements())})
        for index in sorted({i % len(truth) for i in indices})
    ]


CHANGES = st.lists(st.tuples(st.sampled_from(DEVICES), st.booleans()), max_size=12)
BEFORE = st.lists(st.sampled_from(DEVICES), max_size=3)


@given(BEFORE, CHANGES, st.lists(st.integers(0, 50), min_size=1, max_size=4))
def test_one_look_and_all_events_give_every_moment(
    before: list[str], changes: list[tuple[str, bool]], indices: list[int]
) -> None:
    events, truth = simulate(before, changes)
    other = event(3 * STEP, 'dma_buf_detach', ino=6, dev_name=DEVICES[0])
    history = event_history(5, looks_at(truth, indices), [*events, other])
    assert history.exact
    assert [+history.at(index * STEP + STEP // 3) for index in range(len(truth))] == truth
    assert [+state for state in history.during(0, len(truth) * STEP)] == truth
    assert [+state for state in history.during(STEP // 3, STEP // 2)] == truth[:1]


@given(BEFORE, CHANGES.filter(bool), st.integers(0, 50), st.data())
def test_a_lost_event_between_two_looks_is_noticed(
    before: list[str], changes: list[tuple[str, bool]], where: int, data: st.DataObject
) -> None:
    events, truth = simulate(before, changes)
    if not events:
        return
    lost = data.draw(st.integers(0, len(events) - 1))
    looks = looks_at(truth, [0, len(truth) - 1])
    history = event_history(5, looks, events[:lost] + events[slice(lost + 1, None)])
    assert history.exact is False


def test_a_look_during_a_change_is_no_base() -> None:
    events = [event(10 * MS, 'dma_buf_dynamic_attach', ino=5, dev_name=DEVICES[0])]
    hasty = look(10 * MS - 50_000, {5: []})
    assert event_history(5, [hasty], events).exact is False
    assert event_history(5, [hasty, look(30 * MS, {5: [DEVICES[0]]})], events).exact is True
    assert event_history(5, [hasty, look(30 * MS, {5: []})], events).exact is False


def test_an_attachment_is_in_the_list_a_little_before_its_event_and_after_that_of_its_end() -> (
    None
):
    attach = event(10 * MS, 'dma_buf_dynamic_attach', ino=5, dev_name=DEVICES[0])
    early, late = look(9 * MS, {5: [DEVICES[0]]}), look(30 * MS, {5: [DEVICES[0]]})
    history = event_history(5, [early, late], [attach])
    assert history.exact and not +history.at(5 * MS) and history.at(11 * MS) == {DEVICES[0]: 1}
    detach = event(10 * MS, 'dma_buf_detach', ino=5, dev_name=DEVICES[0])
    history = event_history(
        5, [look(10 * MS + 500_000, {5: [DEVICES[0]]}), look(30 * MS, {5: []})], [detach]
    )
    assert history.exact and history.at(5 * MS) == {DEVICES[0]: 1} and not history.at(11 * MS)


def test_a_failed_attach_changes_nothing() -> None:
    failed = event(
        10 * MS, 'dma_buf_dynamic_attach', ino=5, dev_name=DEVICES[0], result='0xfffffffffffffff4'
    )
    history = event_history(5, [look(0, {5: []}), look(50 * MS, {5: []})], [failed])
    assert history.exact and not history.at(20 * MS)


#: As Linux 6.12 writes it.
RECORDED = (
    '\nDma-buf Objects:\n'
    'size    \tflags   \tmode    \tcount   \texp_name\tino     \tname\n'
    '00462848\t00000002\t00080007\t00000012\tvideobuf2_vmalloc\t00000007\t<none>\n'
    '\tRead fence:axl metis-0 seq 1 signalled\n'
    '\tAttached Devices:\n'
    '\t0000:01:00.0\n'
    'Total 1 devices attached\n\n'
    '00462848\t00080002\t0008001f\t00000002\tsystem\t00000010\tframe zero\n'
    '\tAttached Devices:\n'
    '\tvivid.0\n'
    '\t0000:01:00.0\n'
    '\t0000:01:00.0\n'
    'Total 3 devices attached\n\n'
    '00004096\t00080002\t0008001f\t00000001\tlinux,cma\t123456789\t<none>\n'
    '\tAttached Devices:\n'
    'Total 0 devices attached\n\n\n'
    'Total 3 objects, 929792 bytes\n'
)


def test_bufinfo_of_a_kernel() -> None:
    assert parse_bufinfo(RECORDED) == {
        7: BufferObject(7, 462848, 'videobuf2_vmalloc', ['0000:01:00.0'], [('axl', 1)]),
        10: BufferObject(10, 462848, 'system', ['vivid.0', '0000:01:00.0', '0000:01:00.0']),
        123456789: BufferObject(123456789, 4096, 'linux,cma', []),
    }


def test_only_fences_of_readers_with_their_numbers_count() -> None:
    fences = [
        'Write fence:axl metis-0 seq 4 unsignalled',
        'read fence:gpu ring 0 seq 5 unsignalled',
        'Shared fence: axl metis-0 signalled',
    ]
    text = RECORDED.replace(
        '\tRead fence:axl metis-0 seq 1 signalled\n', ''.join(f'\t{fence}\n' for fence in fences)
    )
    found = parse_bufinfo(text)
    assert found is not None and found[7] == BufferObject(
        7, 462848, 'videobuf2_vmalloc', ['0000:01:00.0'], [('gpu', 5)]
    )


def test_bufinfo_is_read_or_says_why_not(tmp_path: Path) -> None:
    missing = read_bufinfo(tmp_path)
    assert isinstance(missing, Unreadable) and 'mount debugfs' in missing.next_step
    (tmp_path / 'dma_buf').mkdir()
    path = tmp_path / 'dma_buf' / 'bufinfo'
    path.write_bytes(RECORDED.replace('frame zero', 'frame \xff').encode('latin-1'))
    found = read_bufinfo(tmp_path)
    assert not isinstance(found, Unreadable) and set(found) == {7, 10, 123456789}
    path.write_text('no such thing')
    strange = read_bufinfo(tmp_path)
    assert isinstance(strange, Unreadable) and 'not what' in strange.reason


@given(
    st.dictionaries(
        st.integers(1, 10**9),
        st.tuples(
            st.integers(0, 10**10),
            st.lists(st.sampled_from(['vivid.0', '0000:01:00.0', 'vgem']), max_size=4),
        ),
        max_size=5,
    )
)
def test_any_bufinfo_is_read_back(objects: dict[int, tuple[int, list[str]]]) -> None:
    text = '\nDma-buf Objects:\n'
    for inode, (size, devices) in objects.items():
        text += f'{size:08}\t{2:08x}\t{7:08x}\t{1:08}\tsystem\t{inode:08}\t<none>\n'
        attached = ''.join(f'\t{device}\n' for device in devices)
        text += f'\tAttached Devices:\n{attached}Total {len(devices)} devices attached\n\n'
    found = parse_bufinfo(text)
    assert found is not None
    assert {inode: (one.size, one.attached) for inode, one in found.items()} == objects


def fake_process(proc: Path, **links: tuple[str, str]) -> None:
    """Make process 5's descriptors by number: each link's target, and its fdinfo."""
    process = proc / '5'
    (process / 'fd').mkdir(parents=True)
    (process / 'fdinfo').mkdir()
    (process / 'comm').write_text('node\n')
    for number, (target, info) in links.items():
        (process / 'fd' / number.lstrip('_')).symlink_to(target)
        (process / 'fdinfo' / number.lstrip('_')).write_text(info)


def test_fdinfo_tells_who_holds_what(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = 'pos:\t0\nflags:\t02000002\nmnt_id:\t14\nino:\t41023\nsize:\t3110400\n'
    info += 'count:\t5\nexp_name:\tnvmap\nname:\tleft: 3\n'
    memfd = ('/memfd:zc_frame (deleted)', 'ino:\t9\n')
    fake_process(tmp_path, _3=('/dmabuf:left: 3', info), _4=('socket:[9]', ''), _5=memfd)
    (tmp_path / '5' / 'fd' / '6').symlink_to('/dmabuf:')  # closed before its fdinfo was read
    real = os.stat

    def stat(path: object, **options: object) -> object:
        if 'fd' in Path(str(path)).parts:
            return type('Status', (), {'st_dev': 12, 'st_ino': 77, 'st_size': 4096})
        return real(path, **options)  # type: ignore[call-overload]

    monkeypatch.setattr('zc_perception.verify.evidence.buffers.os.stat', stat)
    holders = read_holders([5, 6], tmp_path)
    found = {one.fd: one for one in holders.held}
    assert set(found) == {3, 5}
    frame = found[3]
    assert (frame.kind, frame.inode, frame.size) == (DMABUF, 41023, 3110400)
    assert frame.exporter == 'nvmap'
    assert (found[5].kind, found[5].device, found[5].inode, found[5].size) == (MEMFD, 12, 77, 4096)
    assert holders.exporters() == {41023: 'nvmap'}


@pytest.mark.parametrize(
    ('error', 'step'),
    [
        (PermissionError(13, 'Permission denied'), as_root()),
        (FileNotFoundError(2, 'No such file'), 'do this'),
        (OSError(5, 'Input/output error'), 'dmesg'),
    ],
)
def test_each_error_has_a_next_step(error: OSError, step: str) -> None:
    told = unreadable_file(Path('/some/file'), error, 'do this', 'source')
    assert step in told.next_step and '/some/file' in told.reason and told.source == 'source'
    assert set(told.as_json()) == {'source', 'reason', 'next_step'}
    assert str(told).startswith('source: ')


@pytest.mark.parametrize(
    'reader',
    [lambda proc: buffers_of(5, proc), lambda proc: read_holders([5], proc).unreadable[0]],
)
def test_descriptors_of_others_are_unreadable_not_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: Callable[[Path], object]
) -> None:
    fake_process(tmp_path)

    def refuse(path: object) -> list[str]:
        raise PermissionError(13, 'Permission denied', str(path))

    monkeypatch.setattr('zc_perception.verify.evidence.buffers.os.listdir', refuse)
    told = reader(tmp_path)
    assert isinstance(told, Unreadable) and told.next_step == as_root()
    assert 'process 5 (node)' in told.source
    monkeypatch.undo()
    assert buffers_of(6, tmp_path) == []
