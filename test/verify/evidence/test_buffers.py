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

"""Processes with mapped frames, and with memfds from which udmabuf may make frames."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
import fcntl
import mmap
import os
from pathlib import Path
import platform
import sys

from hypothesis import given
from hypothesis import strategies as st
from processes import ready
import pytest
from verify.verify_kit import event, look, MS
from waiting import until

from zc_perception.observe.processes import as_root, process_state
from zc_perception.observe.timeline import KernelEvent
from zc_perception.verify.evidence import buffers, Unreadable, unreadable_file
from zc_perception.verify.evidence.buffers import event_history, FrameMemory, scan_maps

MAPS = b"""\
556f5b3a2000-556f5b3a3000 r--p 00000000 fd:01 1234                       /usr/bin/python3.11
7f1c40000000-7f1c40071000 rw-s 00000000 00:0c 41023                      /dmabuf:
7f1c40100000-7f1c40171000 r--s 00000000 00:0c 41024                      /dmabuf:left frame
7f1c40200000-7f1c40271000 rw-s 00000000 00:01 929138                     /memfd:zc_frame (deleted)
7f1c40300000-7f1c40371000 rw-s 00000000 00:05 133                        /dev/video0
7f1c40400000-7f1c40471000 rw-s 00000000 00:05 134                        /dev/shm/dmabuf:
7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0                          [stack]
7ffc00022000-7ffc00023000 rw-p 00000000 00:00 0 \n"""


def test_all_processes_are_looked_at(tmp_path: Path) -> None:
    for pid, text in ((5, MAPS), (6, b''), (7, MAPS)):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / 'maps').write_bytes(text)
    (tmp_path / '8').mkdir()  # has just ended
    (tmp_path / '9' / 'maps').mkdir(parents=True)  # can't be read
    (tmp_path / 'self').mkdir()
    memory = FrameMemory(frozenset((41023,)))
    scan = scan_maps(memory, proc=tmp_path)
    assert [(one.pid, one.inode) for one in scan.mappings] == [(5, 41023), (7, 41023)]
    assert [one.source for one in scan.unreadable] == ['mappings of process 9 ()']
    assert [one.pid for one in scan_maps(memory, proc=tmp_path, skip=(5,)).mappings] == [7]
    assert [one.pid for one in scan_maps(memory, pids=[5], proc=tmp_path).mappings] == [5]


def test_a_mapping_of_this_process_is_seen_and_its_end_too() -> None:
    fd = os.memfd_create('zc_frame')
    try:
        os.ftruncate(fd, 8192)
        status = os.fstat(fd)
        memory = FrameMemory(memfds=frozenset(((status.st_dev, status.st_ino),)))

        def seen() -> list[tuple[int, int]]:
            scan = scan_maps(memory, pids=[os.getpid()])
            assert not any(isinstance(one, Unreadable) for one in scan.unreadable)
            return [(one.end - one.start, one.inode) for one in scan.mappings]

        assert seen() == []
        with mmap.mmap(fd, 8192):
            assert seen() == [(8192, status.st_ino)]
        assert seen() == []
    finally:
        os.close(fd)


@given(st.binary(max_size=200))
def test_no_text_is_too_strange(text: bytes) -> None:
    assert buffers.parse_maps(1, text) == []
    assert len(buffers.parse_maps(1, MAPS + text)) >= 5


LARGE = 7 * mmap.PAGESIZE


def found(size: int = LARGE, **how: object) -> list[str]:
    return buffers.find_memfds(size, [os.getpid()], **how)  # type: ignore[arg-type]


@pytest.mark.parametrize('closed', [False, True])
def test_memory_that_is_mapped_or_held_is_found(closed: bool) -> None:
    fd = os.memfd_create('zc_frame', os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, LARGE)
    status = os.fstat(fd)
    assert found() == [], 'udmabuf takes none that could shrink'
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    (line,) = found()
    assert found(LARGE - mmap.PAGESIZE) == [line], 'a frame may be a part of it'
    assert f'process {os.getpid()} (' in line
    assert f'holds memfd {status.st_ino} of {LARGE} bytes' in line
    with mmap.mmap(fd, LARGE):
        if closed:
            os.close(fd)
        (line,) = found()
        assert f'maps memfd {status.st_ino}' in line
        assert found(LARGE + mmap.PAGESIZE) == [] and found(skip=[os.getpid()]) == []
        assert found(but=[(status.st_dev, status.st_ino)]) == []
    if not closed:
        os.close(fd)
    assert found() == []


def test_a_mapping_whose_file_can_not_be_looked_at_counts_by_its_length(tmp_path: Path) -> None:
    (tmp_path / '5').mkdir()
    (tmp_path / '5' / 'maps').write_bytes(
        b'7f0000000000-7f0000007000 rw-s 00000000 00:01 77   /memfd:x (deleted)\n'
    )
    assert buffers.find_memfds(0x7000, None, tmp_path) == [
        'process 5 () maps memfd 77 of 28672 bytes'
    ]
    assert buffers.find_memfds(0x8000, None, tmp_path) == []


SYS_EXIT = {'x86_64': 60}.get(platform.machine(), 93)
WITHOUT_MAIN_THREAD = f"""
import ctypes, mmap, os, sys, threading
fd = os.memfd_create('zc_frame')
os.ftruncate(fd, {LARGE})
memory = mmap.mmap(fd, {LARGE})
print('ready', flush=True)
print(os.fstat(fd).st_dev, os.fstat(fd).st_ino, flush=True)
threading.Thread(target=sys.stdin.read).start()
ctypes.CDLL(None).syscall({SYS_EXIT}, 0)
"""


def test_a_process_whose_main_thread_has_ended_still_has_its_memory() -> None:
    with ready(sys.executable, '-c', WITHOUT_MAIN_THREAD) as process:
        assert process.stdout is not None
        device, inode = map(int, process.stdout.readline().split())
        pid = process.pid
        until(lambda: (state := process_state(pid)) and state.ended)
        assert Path(f'/proc/{pid}/maps').read_bytes() == b'', 'the kernel shows nothing there'
        scan = scan_maps(FrameMemory(memfds=frozenset(((device, inode),))), pids=[pid])
        assert [(one.pid, one.inode) for one in scan.mappings] == [(pid, inode)]
        assert not scan.unreadable
        (line,) = buffers.find_memfds(LARGE, [pid])
        assert f'process {pid} (' in line and f'memfd {inode} of {LARGE} bytes' in line


CAMERA = os.stat('/dev/null')


def device_at(path: str, tmp_path: Path) -> Path:
    """Return the folder of a process that has mapped *path* under that name."""
    process = tmp_path / '5'
    process.mkdir()
    device = f'{os.major(CAMERA.st_dev):02x}:{os.minor(CAMERA.st_dev):02x}'
    (process / 'maps').write_text(
        f'7f0000000000-7f0000007000 rw-s 00000000 {device} {CAMERA.st_ino}    {path}\n'
    )
    return process


def seen_as_camera(tmp_path: Path, number: int = CAMERA.st_rdev) -> tuple[int, int]:
    """Return the numbers of mappings and of mappings that can't be identified."""
    cameras, numbers = frozenset(('/dev/video0',)), frozenset((number,))
    scan = scan_maps(FrameMemory(cameras=cameras, camera_numbers=numbers), proc=tmp_path)
    return len(scan.mappings), len(scan.unreadable)


def test_a_camera_is_known_by_its_number_whatever_its_node_is_called(tmp_path: Path) -> None:
    files = device_at('/tmp/private (deleted)', tmp_path) / 'map_files'
    files.mkdir()
    (files / '7f0000000000-7f0000007000').symlink_to('/dev/null')
    assert seen_as_camera(tmp_path) == (1, 0)
    assert seen_as_camera(tmp_path, os.stat('/dev/zero').st_rdev) == (0, 0)


def test_without_map_files_the_node_is_looked_up_below_the_root_of_the_process(
    tmp_path: Path,
) -> None:
    process = device_at('/private', tmp_path)
    (process / 'task' / '6' / 'root').mkdir(parents=True)
    assert seen_as_camera(tmp_path) == (0, 1), 'it may be a camera'
    (process / 'task' / '6' / 'root' / 'private').symlink_to('/dev/null')
    assert seen_as_camera(tmp_path) == (1, 0)
    assert seen_as_camera(tmp_path, os.stat('/dev/zero').st_rdev) == (0, 0)
    (process / 'task' / '6' / 'root' / 'private').unlink()
    (process / 'root').mkdir()
    (process / 'root' / 'private').symlink_to('/dev/zero')
    assert seen_as_camera(tmp_path) == (0, 1), 'another file of that name is not taken for it'


def test_a_camera_whose_device_nobody_names_may_be_any_video_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = device_at('/dev/video7', tmp_path) / 'map_files'
    files.mkdir()
    (files / '7f0000000000-7f0000007000').symlink_to('/dev/null')
    any_camera = FrameMemory(any_camera=True)
    assert scan_maps(any_camera, proc=tmp_path).unreadable == (), 'this is no video device'
    monkeypatch.setattr(buffers, 'VIDEO_MAJOR', os.major(CAMERA.st_rdev))
    scan = scan_maps(any_camera, proc=tmp_path)
    (told,) = scan.unreadable
    assert '/dev/video7 is a video device, and perhaps the camera' in told.reason
    assert not scan.mappings
    assert scan_maps(FrameMemory(camera_numbers=frozenset((1,))), proc=tmp_path).unreadable == ()


@pytest.fixture(params=['pipe', 'named'])
def pipe(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[int]:
    if request.param == 'pipe':
        reading, writing = os.pipe()
    else:
        os.mkfifo(tmp_path / 'fifo')
        reading = os.open(tmp_path / 'fifo', os.O_RDONLY | os.O_NONBLOCK)
        writing = os.open(tmp_path / 'fifo', os.O_WRONLY)
    yield writing
    os.close(reading)
    os.close(writing)


def pipes_with(size: int) -> list[str]:
    """Return pipes with exactly *size* bytes: this process may have other pipes."""
    told = f' has a pipe with {size} bytes in it'
    return [line for line in buffers.find_pins([os.getpid()]) if line.endswith(told)]


def test_a_pipe_with_room_in_use_for_a_page_may_hold_one(pipe: int) -> None:
    os.write(pipe, b'x' * (buffers.PAGE - 1))
    assert pipes_with(buffers.PAGE - 1) == []
    os.write(pipe, b'xy')
    (line,) = pipes_with(buffers.PAGE + 1)
    assert line.startswith(f'process {os.getpid()} (')


def test_a_ring_with_registered_buffers_may_hold_pages(tmp_path: Path) -> None:
    process = tmp_path / '7'
    for folder in ('fd', 'fdinfo'):
        (process / folder).mkdir(parents=True)
    (process / 'comm').write_text('reader\n')
    (process / 'fd' / '5').symlink_to('anon_inode:[io_uring]')
    text = 'pos:\t0\nSqMask:\t0x7\nUserFiles:\t0\nUserBufs:\t2\n    0: 0x7f0000000000/65536\n'
    (process / 'fdinfo' / '5').write_text(text)
    (process / 'fd' / '6').symlink_to('pipe:[1]')  # closed meanwhile
    told = 'process 7 (reader) has an io_uring with 2 registered buffers'
    assert buffers.find_pins(proc=tmp_path) == [told]


# Attachment counts from looks and events, against a simulation with known truth.


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


def looks_at(truth: list[Counter[str]], indices: list[int]) -> list[buffers.Snapshot]:
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
    assert not event_history(5, looks, events[:lost] + events[slice(lost + 1, None)]).exact


def test_a_look_during_a_change_is_no_base_and_a_failed_attach_no_change() -> None:
    events = [event(10 * MS, 'dma_buf_dynamic_attach', ino=5, dev_name=DEVICES[0])]
    hasty = look(10 * MS - 50_000, {5: []})
    assert event_history(5, [hasty], events).exact is False
    assert event_history(5, [hasty, look(30 * MS, {5: [DEVICES[0]]})], events).exact is True
    assert event_history(5, [hasty, look(30 * MS, {5: []})], events).exact is False
    failed = replace(events[0], fields={**events[0].fields, 'result': '0xfffffffffffffff4'})
    history = event_history(5, [look(0, {5: []}), look(50 * MS, {5: []})], [failed])
    assert history.exact and not history.at(20 * MS), 'a failed attach changes nothing'


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


#: As Linux 6.12 writes it; only fences of readers with their numbers count.
RECORDED = (
    '\nDma-buf Objects:\n'
    'size    \tflags   \tmode    \tcount   \texp_name\tino     \tname\n'
    '00462848\t00000002\t00080007\t00000012\tvideobuf2_vmalloc\t00000007\t<none>\n'
    '\tRead fence:axl metis-0 seq 1 signalled\n'
    '\tWrite fence:axl metis-0 seq 4 unsignalled\n'
    '\tread fence:gpu ring 0 seq 5 unsignalled\n'
    '\tShared fence: axl metis-0 signalled\n'
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


def test_bufinfo_is_read_or_says_why_not(tmp_path: Path) -> None:
    missing = buffers.read_bufinfo(tmp_path)
    assert isinstance(missing, Unreadable) and 'mount debugfs' in missing.next_step
    (tmp_path / 'dma_buf').mkdir()
    path = tmp_path / 'dma_buf' / 'bufinfo'
    path.write_bytes(RECORDED.replace('frame zero', 'frame \xff').encode('latin-1'))
    found = buffers.read_bufinfo(tmp_path)
    cached = 'videobuf2_vmalloc', ['0000:01:00.0'], [('axl', 1), ('gpu', 5)]
    mixed = 'system', ['vivid.0', '0000:01:00.0', '0000:01:00.0']
    assert found == {
        7: buffers.BufferObject(7, 462848, *cached),
        10: buffers.BufferObject(10, 462848, *mixed),
        123456789: buffers.BufferObject(123456789, 4096, 'linux,cma', []),
    }
    path.write_text('no such thing')
    strange = buffers.read_bufinfo(tmp_path)
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
    found = buffers.parse_bufinfo(text)
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
    holders = buffers.read_holders([5, 6], tmp_path)
    found = [
        (one.fd, one.kind, one.device, one.inode, one.size, one.exporter) for one in holders.held
    ]
    assert found == [
        (3, buffers.DMABUF, 12, 41023, 3110400, 'nvmap'),
        (5, buffers.MEMFD, 12, 77, 4096, ''),
    ]
    assert holders.exporters() == {41023: 'nvmap'}


def test_each_error_has_a_next_step() -> None:
    for error, step in (
        (PermissionError(13, 'Permission denied'), as_root()),
        (FileNotFoundError(2, 'No such file'), 'do this'),
        (OSError(5, 'Input/output error'), 'dmesg'),
    ):
        told = unreadable_file(Path('/some/file'), error, 'do this', 'source')
        assert step in told.next_step and '/some/file' in told.reason
        assert set(told.as_json()) == {'source', 'reason', 'next_step'}
        assert str(told).startswith('source: ')


@pytest.mark.parametrize(
    'reader',
    [
        lambda proc: buffers.buffers_of(5, proc),
        lambda proc: buffers.read_holders([5], proc).unreadable[0],
    ],
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
    assert buffers.buffers_of(6, tmp_path) == []
