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

"""Which events are recorded on kernels of different ages, and that nothing of it is left."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from verify.fake_tracefs import DMA_BUF, EVENTS, FakeTracefs

from zc_perception.observe.processes import as_root
from zc_perception.verify.evidence import Unreadable
from zc_perception.verify.evidence.buffers import MemoryMapping
from zc_perception.verify.evidence.copies import CopyFunction, LARGE, MemmoveProbe
from zc_perception.verify.evidence.kernel_events import (
    FENCES,
    FUNCTION,
    KernelRecording,
    open_instance,
    open_recording,
    own_name,
    PROBE,
    remove_leftovers,
    TraceInstance,
    TRACEPOINT,
)

NEEDED = ('dma_buf_dynamic_attach', 'dma_buf_detach', 'dma_buf_mmap_internal')
GROUP = own_name()


def opened(fake: FakeTracefs) -> KernelRecording:
    recording = open_recording(fake.root)
    assert not isinstance(recording, Unreadable)
    return recording


@pytest.mark.parametrize(
    ('abilities', 'how', 'video', 'troubles'),
    [
        ({'events': {**EVENTS, 'dma_buf': DMA_BUF}}, TRACEPOINT, PROBE, 0),
        ({'refused': ('%return',)}, PROBE, PROBE, 0),
        ({'refused': ('rdev=',)}, PROBE, PROBE, 0),
        # arm64 has kprobes alone; kernels before 6.5 take no arguments by BTF.
        ({'refused': ('->',)}, FUNCTION, PROBE, 1),
        ({'refused': ('f:', 'p:')}, FUNCTION, None, 2),
        ({'refused': ('->',), 'tracers': False}, None, PROBE, 1),
    ],
)
def test_the_best_means_of_each_kernel(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    abilities: dict[str, object],
    how: str | None,
    video: str | None,
    troubles: int,
) -> None:
    fake = FakeTracefs(tmp_path, monkeypatch, **abilities)  # type: ignore[arg-type]
    recording = opened(fake)
    recording.begin()
    assert {recording.sources.get(event) for event in NEEDED} == {how}
    assert recording.sources.get('vb2_mmap') == video
    assert {
        recording.sources[event] for event in (*FENCES, *EVENTS['axl'], 'sched_process_fork')
    } == {TRACEPOINT}
    assert len(recording.unreadable) == troubles
    assert all(one.next_step for one in recording.unreadable)
    enabled = fake.enabled(recording.instance.path)
    assert {f'axl/{name}' for name in EVENTS['axl']} <= enabled
    assert 'sched/sched_switch' not in enabled
    on = how in (TRACEPOINT, PROBE)
    assert on == any(name.endswith('/dma_buf_detach') for name in enabled)
    assert ((recording.instance.path / 'current_tracer').read_text() == 'function') == (
        how == FUNCTION
    )
    recording.stop()
    assert recording.close() == [] and fake.clean


@pytest.mark.parametrize(
    ('events', 'named'),
    [
        ({'sched': EVENTS['sched'], 'dma_fence': EVENTS['dma_fence']}, 'axl_submit'),
        ({'sched': EVENTS['sched'], 'axl': EVENTS['axl']}, 'dma_fence_init'),
    ],
)
def test_events_that_a_kernel_lacks_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, events: dict[str, tuple[str, ...]], named: str
) -> None:
    recording = opened(FakeTracefs(tmp_path, monkeypatch, events=events))
    recording.begin(video=False)
    assert [named in one.source for one in recording.unreadable] == [True]
    assert named not in recording.sources
    recording.close()


def test_without_rights_it_says_run_as_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeTracefs(tmp_path, monkeypatch)
    fake.refuse_writes = True
    told = open_recording(fake.root)
    assert isinstance(told, Unreadable) and told.next_step == as_root()
    told = open_recording(tmp_path / 'nothing')
    assert isinstance(told, Unreadable) and 'mount tracefs' in told.next_step
    fake.refuse_writes = False
    assert fake.clean


def test_in_a_pid_namespace_of_its_own_nothing_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeTracefs(tmp_path, monkeypatch)
    (tmp_path / 'self' / 'ns').mkdir(parents=True)
    (tmp_path / 'self' / 'ns' / 'pid').symlink_to('pid:[4026532000]')
    told = open_recording(fake.root, tmp_path)
    assert isinstance(told, Unreadable) and '--pid=host' in told.next_step and fake.clean


def test_what_was_recorded_is_read_and_what_was_lost_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeTracefs(tmp_path, monkeypatch)
    recording = opened(fake)
    recording.begin()
    pipe = recording.instance.path / 'trace_pipe'
    pipe.write_text(' a-1 [000] ..... 1.000000: axl_submit: handle=1\n')
    recording.drain()
    with pipe.open('a') as file:
        file.write(' a-1 [000] ..... 2.000000: axl_submit: handle=2\n')
    (recording.instance.path / 'per_cpu' / 'cpu1' / 'stats').write_text(
        'entries: 3\noverrun: 7\ncommit overrun: 2\ndropped events: 1\n'
    )
    recording.stop()
    trace = recording.trace()
    assert [event.number('handle') for event in trace.events] == [1, 2]
    assert trace.lost == 10
    recording.close()


def test_a_trace_that_can_not_be_read_has_lost_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = opened(FakeTracefs(tmp_path, monkeypatch))
    recording.begin()
    (recording.instance.path / 'trace_pipe').unlink()
    recording.drain()
    recording.stop()
    assert recording.trace().lost == 1 and 'trace' in [one.source for one in recording.unreadable]
    recording.close()


def test_leftovers_of_killed_runs_go_and_those_of_running_ones_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeTracefs(tmp_path, monkeypatch)
    proc = tmp_path / 'proc'
    for pid, command in ((10, b'python\0-m\0zc_verify\0'), (11, b'something\0else\0')):
        (proc / str(pid)).mkdir(parents=True)
        (proc / str(pid) / 'cmdline').write_bytes(command)
    for pid in (10, 11, 12, os.getpid()):
        instance = open_instance(fake.root, name=own_name(pid))
        assert isinstance(instance, TraceInstance)
        instance.install(f'f:{own_name(pid)}/vb2_mmap vb2_mmap')
        instance.enable(f'{own_name(pid)}/vb2_mmap')
    (fake.root / 'instances' / 'somebody_else').mkdir()
    assert sorted(remove_leftovers(fake.root, proc)) == sorted(
        [own_name(11), own_name(12), own_name()]
    )
    assert sorted(path.name for path in (fake.root / 'instances').iterdir()) == [
        'somebody_else',
        own_name(10),
    ]
    assert (fake.root / 'dynamic_events').read_text() == f'f:{own_name(10)}/vb2_mmap vb2_mmap\n'
    assert remove_leftovers(tmp_path / 'nothing', proc) == []


def test_the_library_s_copies_are_probed_once_per_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeTracefs(tmp_path, monkeypatch)
    instance = open_instance(fake.root)
    assert isinstance(instance, TraceInstance)
    functions = [
        CopyFunction(('memmove', 'memcpy'), Path('/lib/libc.so.6'), 0x16D800, 2048, (5, 6)),
        CopyFunction(('memcpy',), Path('/other/with space/libc.so.6'), 0x200, 64, (7,)),
    ]
    monkeypatch.setattr(
        'zc_perception.verify.evidence.copies.find_copy_functions',
        lambda pids, proc: (functions, []),
    )
    monkeypatch.setattr(
        'zc_perception.verify.evidence.copies.argument_registers', lambda: ('%di', '%si', '%dx')
    )
    probe = MemmoveProbe(instance)
    probe.begin([5, 6, 7])
    definition = (fake.root / 'dynamic_events').read_text()
    assert (
        definition
        == f'p:{GROUP}/libc_copy_0 /lib/libc.so.6:0x16d800 dst=%di:x64 src=%si:x64 n=%dx:u64\n'
    )
    assert probe.functions == functions[:1] and 'space' in probe.unreadable[0].reason
    assert fake.enabled(instance.path) == {f'{GROUP}/libc_copy_0'}
    condition = instance.path / 'events' / GROUP / 'libc_copy_0' / 'filter'
    assert condition.read_text() == f'n >= {LARGE}'
    frame = MemoryMapping(5, 0x1000, 0x3000, 'rw-s', 1, 2, '/dmabuf:')
    probe.watch_sources([frame])
    probe.watch_sources([frame])
    assert condition.read_text() == f'n >= {LARGE} || (src >= 0x1000 && src < 0x3000)'
    assert sum(name.endswith('filter') for name, _ in fake.writes) == 2
    (fake.root / 'uprobe_profile').write_text(
        f'  /lib/libc.so.6 {GROUP}/libc_copy_0   1234\n  /lib/other x/y 77\n'
    )
    probe.end()
    assert (fake.enabled(instance.path), probe.calls) == (set(), 1234)
    assert instance.close() == [] and fake.clean
