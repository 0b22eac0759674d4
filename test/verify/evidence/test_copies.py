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

"""The place and end of memmove, and samples of programs that copy and that do not."""

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
from waiting import eventually

from zc_perception.verify.evidence import copies, Unreadable
from zc_perception.verify.evidence.buffers import MemoryMapping
from zc_perception.verify.evidence.kernel_events import Trace

from verify.verify_kit import event  # noqa: I100 # isort: skip

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
