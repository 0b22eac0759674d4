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

"""Events on kernels of different ages, nothing of which is left; samples and hits of copies."""

from __future__ import annotations

from collections import Counter
import ctypes
import os
from pathlib import Path
import shutil
import struct
import subprocess
import sys
import time
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st
from processes import ran, ready
import pytest
from verify.verify_kit import DMA_BUF, event, EVENTS, FakeTracefs
from waiting import eventually

from zc_perception.observe.processes import as_root
from zc_perception.verify.evidence import copies, Unreadable
from zc_perception.verify.evidence import kernel_events as kernel
from zc_perception.verify.evidence.buffers import MemoryMapping
from zc_perception.verify.evidence.copies import CopyFunction, LARGE, MemmoveProbe
from zc_perception.verify.evidence.kernel_events import open_instance, own_name, Trace

NEEDED = ('dma_buf_dynamic_attach', 'dma_buf_detach', 'dma_buf_mmap_internal')
GROUP = own_name()


def opened(fake: FakeTracefs) -> kernel.KernelRecording:
    recording = kernel.open_recording(fake.root)
    assert not isinstance(recording, Unreadable)
    return recording


@pytest.mark.parametrize(
    ('abilities', 'how', 'video', 'troubles'),
    [
        ({'events': {**EVENTS, 'dma_buf': DMA_BUF}}, kernel.TRACEPOINT, kernel.PROBE, 0),
        ({'refused': ('%return',)}, kernel.PROBE, kernel.PROBE, 0),
        ({'refused': ('rdev=',)}, kernel.PROBE, kernel.PROBE, 0),
        # arm64 has kprobes alone; kernels before 6.5 take no arguments by BTF.
        ({'refused': ('->',)}, kernel.FUNCTION, kernel.PROBE, 1),
        ({'refused': ('f:', 'p:')}, kernel.FUNCTION, None, 2),
        ({'refused': ('->',), 'tracers': False}, None, kernel.PROBE, 1),
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
        recording.sources[event]
        for event in (*kernel.FENCES, *EVENTS['axl'], 'sched_process_fork')
    } == {kernel.TRACEPOINT}
    assert len(recording.unreadable) == troubles
    assert all(one.next_step for one in recording.unreadable)
    enabled = fake.enabled(recording.instance.path)
    assert {f'axl/{name}' for name in EVENTS['axl']} <= enabled
    assert 'sched/sched_switch' not in enabled
    on = how in (kernel.TRACEPOINT, kernel.PROBE)
    assert on == any(name.endswith('/dma_buf_detach') for name in enabled)
    tracer = (recording.instance.path / 'current_tracer').read_text()
    assert (tracer == 'function') == (how == kernel.FUNCTION)
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
    told = kernel.open_recording(fake.root)
    assert isinstance(told, Unreadable) and told.next_step == as_root()
    told = kernel.open_recording(tmp_path / 'nothing')
    assert isinstance(told, Unreadable) and 'mount tracefs' in told.next_step
    fake.refuse_writes = False
    # Nothing is recorded in a PID namespace of its own.
    (tmp_path / 'self' / 'ns').mkdir(parents=True)
    (tmp_path / 'self' / 'ns' / 'pid').symlink_to('pid:[4026532000]')
    told = kernel.open_recording(fake.root, tmp_path)
    assert isinstance(told, Unreadable) and '--pid=host' in told.next_step and fake.clean


def test_what_was_recorded_is_read_and_what_was_lost_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = opened(FakeTracefs(tmp_path, monkeypatch))
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
        assert isinstance(instance, kernel.TraceInstance)
        instance.install(f'f:{own_name(pid)}/vb2_mmap vb2_mmap')
        instance.enable(f'{own_name(pid)}/vb2_mmap')
    (fake.root / 'instances' / 'somebody_else').mkdir()
    assert {*kernel.remove_leftovers(fake.root, proc)} == {own_name(11), own_name(12), own_name()}
    left = {path.name for path in (fake.root / 'instances').iterdir()}
    assert left == {'somebody_else', own_name(10)}
    assert (fake.root / 'dynamic_events').read_text() == f'f:{own_name(10)}/vb2_mmap vb2_mmap\n'
    assert kernel.remove_leftovers(tmp_path / 'nothing', proc) == []


def test_the_library_s_copies_are_probed_once_per_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeTracefs(tmp_path, monkeypatch)
    instance = open_instance(fake.root)
    assert isinstance(instance, kernel.TraceInstance)
    functions = [
        CopyFunction(('memmove', 'memcpy'), Path('/lib/libc.so.6'), 0x16D800, 2048, (5, 6)),
        CopyFunction(('memcpy',), Path('/other/with space/libc.so.6'), 0x200, 64, (7,)),
    ]
    monkeypatch.setattr(copies, 'find_copy_functions', lambda pids, proc: (functions, []))
    monkeypatch.setattr(copies, 'argument_registers', lambda: ('%di', '%si', '%dx'))
    probe = MemmoveProbe(instance)
    probe.begin([5, 6, 7])
    assert (fake.root / 'dynamic_events').read_text() == (
        f'p:{GROUP}/libc_copy_0 /lib/libc.so.6:0x16d800 dst=%di:x64 src=%si:x64 n=%dx:u64\n'
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


# Lines of the trace, as kernels wrote them.


RECORDED = """\
           <...>-203     [000] .....    31.797907: axl_complete: handle=9 ctx=1 seqno=111 status=0
           <...>-203     [000] d..1.    31.798347: dma_fence_signaled: \
driver=axl timeline=metis-0 context=1 seqno=111
           <...>-203     [000] .....    31.800359: dma_buf_detach: \
(dma_buf_detach+0x4/0xd0) ino=5 dev_name="0000:01:00.0"
           <...>-221     [000] ...1.    31.844916: dma_buf_dynamic_attach: \
(axl_attach+0x47/0x120 [metis_virtual] <- dma_buf_dynamic_attach) ino=5 \
dev_name="0000:01:00.0" result=0xff41de9d0f8628a0
          <idle>-0       [001] d.h1.    31.844920: dma_fence_init: \
driver=axl timeline=metis-0 context=1 seqno=112
"""


@pytest.mark.parametrize(
    ('line', 'wanted'),
    [
        (
            RECORDED.splitlines()[2],
            '31800359000 0 <...> 203 dma_buf_detach ino=5 dev_name=0000:01:00.0',
        ),
        (
            'gst-launch-1.0-3142 [003] d..2. 123.456789: axl_dmabuf_import: handle=17 '
            'inode=41023 exporter=nvmap size=3110400',
            '123456789000 3 gst-launch-1.0 3142 axl_dmabuf_import handle=17 inode=41023 '
            'exporter=nvmap size=3110400',
        ),
        (
            '   a name-with-7-7  ( 42) [002] .... 5.000001: vb2_mmap: (vb2_mmap+0x0/0x10 '
            '[videobuf2_common]) rdev=84934656',
            '5000001000 2 a name-with-7 7 vb2_mmap rdev=84934656',
        ),
        (
            ' python3-9 [000] ..... 12.000000: libc_copy_0: (0x7f0000001000) dst=0x1000 '
            'src=0x2000 n=65536',
            '12000000000 0 python3 9 libc_copy_0 dst=0x1000 src=0x2000 n=65536',
        ),
        (
            ' python3-9 [000] ..... 12.000000: dma_buf_mmap_internal <-mmap_region',
            '12000000000 0 python3 9 dma_buf_mmap_internal',
        ),
    ],
)
def test_lines_of_kernels(line: str, wanted: str) -> None:
    event = kernel.parse_event(line)
    assert event is not None
    fields = [f'{name}={value}' for name, value in event.fields.items()]
    parts = (event.time_ns, event.cpu, event.comm, event.tid, event.name, *fields)
    assert ' '.join(map(str, parts)) == wanted


def test_a_recorded_trace_comes_in_the_order_of_time() -> None:
    trace = kernel.parse_trace(['# tracer: nop', '#', '', *RECORDED.splitlines()[::-1]])
    times = [event.time_ns for event in trace.events]
    assert times == sorted(times)
    assert (len(trace.events), trace.lost, trace.damaged, trace.gap) == (5, 0, 0, '')
    assert len(trace.named('dma_fence_init')) == 1
    assert [event.inode for event in trace.named('dma_buf_detach', 'axl_complete')] == [-1, 5]


@pytest.mark.parametrize(
    ('line', 'lost', 'damaged'),
    [
        ('CPU:1 [LOST 12 EVENTS]', 12, 0),
        ('CPU:0 [LOST EVENTS]', 1, 0),
        ('something else', 0, 1),
        ('[LINE TOO BIG]', 0, 1),
        ('   <...>-203     [000] .....    31.79', 0, 1),
    ],
)
def test_what_the_kernel_lost_is_counted(line: str, lost: int, damaged: int) -> None:
    trace = kernel.parse_trace([*RECORDED.splitlines(), line])
    assert (len(trace.events), trace.lost, trace.damaged) == (5, lost, damaged)
    assert trace.gap == (
        f"the kernel's trace lost {lost} events"
        if lost
        else "the kernel's trace has 1 lines that cannot be read"
    )


@given(
    st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=15),
    st.integers(1, 4194304),
    st.integers(0, 255),
    st.integers(0, 10**8),
    st.integers(0, 999_999),
    st.dictionaries(
        st.from_regex(r'[a-z_]{1,8}', fullmatch=True), st.integers(0, 2**64 - 1), max_size=4
    ),
)
def test_any_event_is_read_back(
    comm: str, tid: int, cpu: int, seconds: int, micros: int, fields: dict[str, int]
) -> None:
    text = ' '.join(f'{name}={value}' for name, value in fields.items())
    event = kernel.parse_event(
        f'{comm:>16}-{tid:<7} [{cpu:03}] d..1. {seconds:5}.{micros:06}: some_event: {text}'
    )
    assert event is not None
    assert (event.tid, event.cpu, event.time_ns) == (tid, cpu, seconds * 10**9 + micros * 1000)
    assert {name: event.number(name) for name in fields} == fields


# The place and end of memmove, and samples of programs that copy and that do not.
MAPS = """\
7f0000000000-7f0000028000 r--p 00000000 fd:01 99    /usr/lib/x86_64-linux-gnu/libc.so.6
7f0000028000-7f00001bd000 r-xp 00028000 fd:01 99    /usr/lib/x86_64-linux-gnu/libc.so.6
7f0000300000-7f0000310000 r-xp 00001000 fd:01 98    /opt/my libs/libx.so (deleted)
7ffc00000000-7ffc00001000 r-xp 00000000 00:00 0     [vdso]
"""


def test_the_own_memmove_is_what_the_linker_chose() -> None:
    functions, unreadable = copies.find_copy_functions([os.getpid()])
    assert unreadable == []
    assert {name for function in functions for name in function.names} == {'memmove', 'memcpy'}
    address = ctypes.cast(ctypes.CDLL(None).memmove, ctypes.c_void_p).value
    found = next(function for function in functions if 'memmove' in function.names)
    assert found.ranges(copies.code_of('self')) == [(address, address + found.size)]


def test_a_process_with_another_library_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        copies,
        'own_functions',
        lambda proc: (Path('/proc/self/exe'), {(1, 2): ('memmove', 'memcpy')}),
    )
    functions, (told,) = copies.find_copy_functions([os.getpid()])
    assert functions == [] and 'not the one that zc_verify has' in told.reason and told.next_step
    monkeypatch.setattr(copies, 'own_functions', lambda proc: (Path('/nothing'), {}))
    functions, (told,) = copies.find_copy_functions([os.getpid()])
    assert functions == [] and 'own copy functions are not found' in told.reason


def test_copy_functions_of_another_library_are_told_instead_of_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As in a preloaded library.
    monkeypatch.setattr(copies, 'COPY_FUNCTIONS', ('memmove', 'PyObject_Call'))
    functions, (told,) = copies.find_copy_functions([os.getpid()])
    assert functions == [] and 'another library' in told.reason and 'LD_PRELOAD' in told.next_step


@given(st.sets(st.integers(0, 400), min_size=1, max_size=60), st.integers(1, 30))
def test_few_ranges_cover_the_frames_of_many_cameras(starts: set[int], most: int) -> None:
    ranges = {(start, start + 10) for start in starts}
    found = copies.covering(ranges, most)
    assert len(found) <= most and found == sorted(found)
    assert all(any(a <= start and end <= b for a, b in found) for start, end in ranges)
    assert found == sorted(ranges) or len(ranges) > most


def test_processes_that_can_not_be_read_are_told(tmp_path: Path) -> None:
    functions, (told,) = copies.find_copy_functions([2**22 + 1])
    assert functions == [] and 'ended' in told.reason
    (tmp_path / '5').mkdir()
    (tmp_path / '5' / 'maps').write_text(MAPS.replace('libc.so.6', 'nothing.so'))
    (tmp_path / 'self').symlink_to('/proc/self')
    functions, (told,) = copies.find_copy_functions([5], tmp_path)
    assert functions == [] and 'no C library' in told.reason
    (tmp_path / '6' / 'maps').mkdir(parents=True)
    functions, (told,) = copies.find_copy_functions([6], tmp_path)
    assert functions == [] and f'{tmp_path}/6/maps' in told.reason


C_CODE = """
__attribute__((noinline)) int first(int x) { for (int i = 0; i < x; i++) x ^= i * 7; return x; }
__attribute__((noinline)) int second(int x) { return first(x) + 3; }
__attribute__((noinline)) int third(int x) { return second(x) * first(x + 1); }
"""


@pytest.mark.skipif(
    shutil.which('gcc') is None or shutil.which('nm') is None,
    reason='no gcc or no nm: apt-get install gcc binutils',
)
def test_the_unwind_table_ends_functions_where_their_symbols_do(tmp_path: Path) -> None:
    source, path = tmp_path / 'lib.c', tmp_path / 'lib.so'
    source.write_text(C_CODE)
    subprocess.run(['gcc', '-O1', '-shared', '-fPIC', '-o', path, source], check=True)
    listed = ran('nm', '-S', '--defined-only', path, check=True).stdout
    symbols = filter(lambda words: len(words) == 4, map(str.split, listed.splitlines()))
    sizes = {name: int(size, 16) for _, size, _, name in symbols}
    library = ctypes.CDLL(str(path))
    for name in ('first', 'second', 'third'):
        address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
        assert copies.function_size(address) == sizes[name]
    assert copies.function_size(address + 1) == 2048, 'no function begins there'


SAMPLE, LOST = 9, 2


def _sample(pid: int, address: int) -> bytes:
    return struct.pack('<IHHQII', SAMPLE, 0, 24, address, pid, pid)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.integers(0, 2**31), st.integers(0, 2**64 - 1)), st.integers(1, 1000)
        ),
        max_size=30,
    ),
    st.integers(0, 23),
)
def test_records_of_a_ring(things: list[tuple[int, int] | int], torn: int) -> None:
    data = b''.join(
        _sample(*one) if isinstance(one, tuple) else struct.pack('<IHHQQ', LOST, 0, 24, 1, one)
        for one in things
    )
    samples = [one for one in things if isinstance(one, tuple)]
    assert copies.parse_records(data + _sample(1, 1)[:torn]) == samples


def test_each_sample_of_the_processes_counts_once() -> None:
    ring = SimpleNamespace(take=lambda: 3 * _sample(5, 0x10) + _sample(6, 0x10))
    sampler = copies.Sampler([ring], [5])  # type: ignore[list-item]
    sampler.drain()
    assert sampler.kept(5) == 3


COPIES = 'a = bytearray(4 << 20)\nb = bytearray(4 << 20)\nwhile True: b[:] = a'
COMPUTES = 'x = 1\nwhile True: x = x * 3 % 1000003'


@pytest.mark.parametrize(('code', 'copying'), [(COPIES, True), (COMPUTES, False)])
def test_samples_tell_a_program_that_copies(code: str, copying: bool) -> None:
    program = f'print("ready", flush=True)\n{code}'
    with ready(sys.executable, '-c', program) as process:
        sampler = copies.open_sampler([process.pid])
        if isinstance(sampler, Unreadable):
            assert 'CAP_PERFMON' in sampler.next_step or 'not known' in sampler.reason
            assert 'Invalid argument' not in sampler.reason, 'what is asked of the kernel is wrong'
            return
        try:
            time.sleep(0.1)
            sampler.drain()
            assert sampler.kept(process.pid) == 0, 'it has not been started'
            sampler.start()
            eventually(lambda: sampler.kept(process.pid) >= 60, pause=sampler.drain)
            samples = sampler.stop()
        finally:
            sampler.close()
        shares, unreadable = copies.shares_of(samples, [process.pid])
    assert {one.source for one in unreadable} <= {'kernel symbols'}
    assert shares is not None
    (share,) = shares
    assert share.samples >= 60 and set(samples) == {process.pid}
    assert share.percent > 20 if copying else share.copying == 0


KALLSYMS = b"""\
ffffffff81000000 T _stext
ffffffff81e00000 T __memcpy
ffffffff81e00000 W memcpy
ffffffff81e00040 T __memmove
ffffffff81e00200 T __memset
ffffffff81e00300 t copy_user_generic_unrolled
ffffffff81e00400 T rep_movs_alternative
ffffffff81e00500 T _copy_from_user
ffffffff81e00600 t memcpy_count_notify_is_other
ffffffff81e00700 t not_memcpy
ffffffffc0000000 t my_memcpy\t[module]
ffffffffc0000100 t memcpy_toio\t[module]
"""


def test_kernel_functions_that_copy() -> None:
    found = copies.parse_kernel_copies(KALLSYMS)
    base = 0xFFFFFFFF81E00000
    assert copies.name_at(found, base + 0x50) == '__memmove'
    assert copies.name_at(found, base + 0x10) in ('__memcpy', 'memcpy')
    copying = 'copy_user_generic_unrolled', 'rep_movs_alternative', '_copy_from_user'
    offsets = (0x210, 0x310, 0x410, 0x510, 0x710)
    assert [copies.name_at(found, base + offset) for offset in offsets] == ['', *copying, '']
    assert copies.name_at(found, 0xFFFFFFFFC0000110) == 'memcpy_toio'


def test_hidden_kernel_addresses_are_unreadable(tmp_path: Path) -> None:
    assert isinstance(copies.read_kernel_copies(tmp_path), Unreadable)
    (tmp_path / 'kallsyms').write_bytes(b'0000000000000000 T memcpy\n0000000000000000 T memmove\n')
    told = copies.read_kernel_copies(tmp_path)
    assert isinstance(told, Unreadable) and 'kptr_restrict' in told.next_step


def test_hits_of_the_probe_are_sorted_by_process_and_size() -> None:
    frame = MemoryMapping(5, 0x1000, 0x2000, 'rw-s', 1, 2, '/dmabuf:')
    hits = [
        (10, 51, 65536, 0x9000), (11, 51, 65536, 0x9000), (12, 51, 640, 0x1100),
        (13, 61, 640, 0x1100), (14, 99, 10**6, 0x1100), (1, 51, 10**6, 0), (31, 51, 10**6, 0),
        (15, 61, 65535, 0),
    ]  # fmt: skip
    events = [
        event(time_ns, f'libc_copy_{tid % 2}', tid, n=size, src=hex(source))
        for time_ns, tid, size, source in hits
    ]
    large = [copies.LargeCopy(5, 65536, False, 2), copies.LargeCopy(5, 640, True, 1)]
    assert copies.copies_of(Trace(events), {51: 5, 61: 6}, [frame], 10, 30) == large


def test_shares_are_of_each_process_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    pid = os.getpid()
    address = ctypes.cast(ctypes.CDLL(None).memmove, ctypes.c_void_p).value or 0
    kernel = 0xFFFFFFFF81E00050
    monkeypatch.setattr(
        copies, 'read_kernel_copies', lambda proc: copies.parse_kernel_copies(KALLSYMS)
    )
    met = Counter({address: 3, address + 8: 4, address - 10**6: 90, kernel: 2, kernel + 0x4C0: 1})
    (shares, _) = copies.shares_of({pid: met, 1: Counter({address: 5})}, [pid])
    assert shares == [copies.CopyShare(pid, 100, 7, {'__memmove': 2, '_copy_from_user': 1})]
    assert shares[0].percent == 7.0
    hidden = Unreadable('kernel symbols', 'hidden', '')
    monkeypatch.setattr(copies, 'read_kernel_copies', lambda proc: hidden)
    assert copies.shares_of({pid: Counter({address: 3})}, [pid])[1] == [], (
        'it was never in the kernel'
    )
