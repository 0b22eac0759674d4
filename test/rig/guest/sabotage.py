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
Ways to break a running graph's promise, undone afterwards; ``zc_verify`` must detect them.

It must do so from outside: nothing here enters a copy in the package's ledger, which would give it
away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
import mmap
import os
from pathlib import Path
import stat
import subprocess
import sys
import threading
from typing import Any
from unittest import mock

import numpy as np
from waiting import eventually

from zc_perception.camera.v4l2.device import V4l2Device
from zc_perception.frame import Frame
from zc_perception.memory.dmabuf import DmaBuf
from zc_perception.memory.heaps import open_heap
from zc_perception.npu.accelerator import ImportHandle
from zc_perception.npu.axl.abi import ImportFlags
from zc_perception.npu.axl.accelerator import AxlAccelerator
from zc_perception.observe.frame_log import FrameLog
from zc_perception.pixel.layout import ImageLayout

from .kernel_api import any_heap, SYSCALLS
from .verifier import judged, NOBODY, NOTHING_AGAIN, Outcome


class Consumer:
    """
    One more consumer in the nodes' process; ``zc_verify`` has to detect what it does.

    :ivar act: called with each frame, in a thread other than the main one.
    :ivar seen: number of finished frames.
    """

    def __init__(self) -> None:
        # Like a consumer that touches no pixel.
        self.act: Callable[[Frame], object] = lambda frame: frame.header.stamp_ns
        self.seen = 0

    def settled(self) -> None:
        """Wait until a frame that may be in progress is finished."""
        seen = self.seen
        eventually(lambda: self.seen > seen, 10)


#: A running graph: ``graph_kit.RunningGraph`` with ROS, ``plain_graph.PlainGraph`` without.
Running = Any


def _copy_with_numpy(frame: Frame) -> None:
    """Copy a frame, mapped only during the copy: occasional looks at mappings may miss it."""
    buffer = frame.data.buffers[0]
    with mmap.mmap(buffer.fileno(), buffer.size, mmap.MAP_SHARED, mmap.PROT_READ) as memory:
        pixels = np.frombuffer(memory, np.uint8)
        copy = pixels.copy()
        assert copy.nbytes == buffer.size
        del pixels


def _map(frame: Frame) -> None:
    """Map with the package's own CPU mapping, which stays as long as the buffer."""
    with frame.map() as planes:
        assert planes[0].shape == (frame.data.height, frame.data.width)


@contextmanager
def _copying_rows(spectator: Consumer) -> Iterator[None]:
    """Make hundreds of copies, each too small for a memmove probe, from older mappings."""
    mapped: dict[int, mmap.mmap] = {}

    def copy(frame: Frame) -> None:
        plane, width = frame.data.planes[0], frame.data.width
        buffer = frame.data.buffers[plane.buffer]
        if (inode := buffer.identity.inode) not in mapped:
            how = buffer.size, mmap.MAP_SHARED, mmap.PROT_READ
            mapped[inode] = mmap.mmap(buffer.fileno(), *how)
        memory = mapped[inode]
        starts = range(plane.offset, plane.offset + plane.stride * frame.data.height, plane.stride)
        rows = [memory[slice(start, start + width)] for start in starts]
        assert len(rows) == frame.data.height

    try:
        with mock.patch.object(spectator, 'act', copy):
            yield
    finally:
        spectator.settled()
        for memory in mapped.values():
            memory.close()


@contextmanager
def _without_a_cache(running: Running) -> Iterator[None]:
    """No sabotage: the parameter turns the cache off, as it may."""
    running.keep_imports(False)
    try:
        yield
    finally:
        running.keep_imports(True)


@contextmanager
def _importing(
    running: Running, choose: Callable[[AxlAccelerator, Frame], ImportHandle], cache: bool = True
) -> Iterator[None]:
    """Replace how the accelerator imports frames, in its own thread."""
    npu = running.graph.inference.accelerator
    assert isinstance(npu, AxlAccelerator)
    with (
        nullcontext() if cache else _without_a_cache(running),
        mock.patch.object(npu, 'import_frame', partial(choose, npu)),
    ):
        yield


def _import(npu: AxlAccelerator, layout: ImageLayout, buffer: DmaBuf) -> int:
    return npu._device.import_planes(layout, (buffer,), ImportFlags.TO_DEVICE)


@contextmanager
def _decoy(running: Running) -> Iterator[tuple[ImageLayout, DmaBuf]]:
    layout = running.graph.capture.camera.slots[0].layout
    with (
        closing(open_heap(any_heap())[0]) as heap,
        closing(heap.allocate(layout.buffer_size(0))) as buffer,
    ):
        yield layout, buffer


@contextmanager
def _import_decoys_alone(running: Running) -> Iterator[None]:
    """Import a decoy in place of each frame."""
    forgotten: list[bool] = []
    with _decoy(running) as (layout, buffer):

        def choose(npu: AxlAccelerator, frame: Frame) -> ImportHandle:
            if not forgotten:
                assert npu._cache is not None
                npu._cache.clear()
                forgotten.append(True)
            return ImportHandle(_import(npu, layout, buffer), cached=False)

        with _importing(running, choose):
            yield


@contextmanager
def _submit_an_old_decoy(running: Running) -> Iterator[None]:
    """
    Submit by the import of a decoy that was imported before the measurement.

    The frames' own imports stay valid, but unused. No event shows which buffer the decoy's handle
    stands for.
    """
    handles: list[int] = []
    imported = threading.Event()
    with _decoy(running) as (layout, buffer):

        def choose(npu: AxlAccelerator, frame: Frame) -> ImportHandle:
            if not handles:
                handles.append(_import(npu, layout, buffer))
                imported.set()
            return ImportHandle(handles[0], cached=True)

        try:
            with _importing(running, choose):
                assert imported.wait(30), 'no frame came'
                yield
        finally:
            _give_back(running, handles)


def _give_back(running: Running, handles: list[int]) -> None:
    def release() -> None:
        npu = running.graph.inference.accelerator
        assert isinstance(npu, AxlAccelerator)
        for handle in handles:
            npu._in_use.release(handle)

    running.graph.inference.scheduler._between_frames(release)


def _twice(npu: AxlAccelerator, frame: Frame) -> ImportHandle:
    """Import and release each frame as usual, and once more for nothing."""
    layout, buffers = frame.data.layout, frame.data.buffers
    npu._device.release_import(npu._import(layout, buffers))
    return ImportHandle(npu._import(layout, buffers), cached=False)


def _at_a_wrong_offset(npu: AxlAccelerator, frame: Frame) -> ImportHandle:
    """Import each frame with its second plane at the offset of the first."""
    layout = frame.data.layout
    luma, chroma = layout.planes
    wrong = replace(layout, planes=(luma, replace(chroma, offset=luma.offset)))
    return ImportHandle(npu._import(wrong, frame.data.buffers), cached=False)


@contextmanager
def _keep_imports(running: Running) -> Iterator[None]:
    """Without a cache, import each frame and release nothing."""
    handles: list[int] = []

    def choose(npu: AxlAccelerator, frame: Frame) -> ImportHandle:
        handles.append(npu._import(frame.data.layout, frame.data.buffers))
        return ImportHandle(handles[-1], cached=True)

    try:
        with _importing(running, choose, cache=False):
            yield
    finally:
        _give_back(running, handles)


@contextmanager
def _exchange_handles(running: Running) -> Iterator[None]:
    """
    Submit each frame by the next buffer's handle.

    The buffers were imported before the measurement, and each handle always stands for the same
    image.
    """
    npu = running.graph.inference.accelerator
    entries = dict(npu._cache._entries).values()
    handles = sorted(
        (identity.inode, entry.handle) for entry in entries for identity in entry.identities
    )
    assert len(handles) > 1, 'fewer than two buffers are imported'
    wrong = {
        inode: handle
        for (inode, _), (_, handle) in zip(handles, [*handles[1:], handles[0]], strict=True)
    }
    exchanged = threading.Event()

    def choose(npu: AxlAccelerator, frame: Frame) -> ImportHandle:
        inode = frame.data.buffers[0].identity.inode
        if inode not in wrong:
            return AxlAccelerator.import_frame(npu, frame)
        exchanged.set()
        return ImportHandle(wrong[inode], cached=True)

    with _importing(running, choose):
        assert exchanged.wait(60), 'no frame came'
        yield


@contextmanager
def _without_the_cameras_log(running: Running) -> Iterator[None]:
    """Close the log of the camera's node: its mappings and copies are then unknown."""
    capture = running.graph.capture
    capture.frame_log.close()
    try:
        yield
    finally:
        capture.frame_log = FrameLog('capture', capture.get_fully_qualified_name())
        capture._ends.callback(capture.frame_log.close)


# Arguments: a buffer's descriptor and its size. Maps it, and ends the main thread but not another.
_WITHOUT_MAIN_THREAD = f"""
import ctypes, mmap, sys, threading
memory = mmap.mmap(int(sys.argv[1]), int(sys.argv[2]), mmap.MAP_SHARED, mmap.PROT_READ)
threading.Thread(target=sys.stdin.read).start()
print('mapped', flush=True)
ctypes.CDLL(None).syscall({SYSCALLS['exit']}, 0)
"""
# Maps a buffer for as many seconds as the line on standard input says.
_FOR_A_MOMENT = """
import mmap, sys, time
print('ready', flush=True)
seconds = float(sys.stdin.readline() or 0)
if seconds:
    with mmap.mmap(int(sys.argv[1]), int(sys.argv[2]), mmap.MAP_SHARED, mmap.PROT_READ):
        print('mapped', flush=True)
        time.sleep(seconds)
"""
# Maps a buffer, puts its pages into a pipe, and unmaps the buffer.
_PINNED = 65536
_IN_A_PIPE = f"""
import ctypes, mmap, os, sys
class Vector(ctypes.Structure):
    _fields_ = [('base', ctypes.c_void_p), ('length', ctypes.c_size_t)]
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.vmsplice.restype = ctypes.c_ssize_t
libc.vmsplice.argtypes = [ctypes.c_int, ctypes.POINTER(Vector), ctypes.c_size_t, ctypes.c_uint]
reading, writing = os.pipe()
address = libc.mmap(None, {_PINNED}, mmap.PROT_READ, mmap.MAP_SHARED, int(sys.argv[1]), 0)
held = libc.vmsplice(writing, ctypes.byref(Vector(address, {_PINNED})), 1, 0)
assert held == {_PINNED}, os.strerror(ctypes.get_errno())
libc.munmap(address, {_PINNED})
print('held', flush=True)
sys.stdin.read()
assert len(os.read(reading, {_PINNED})) == {_PINNED}
"""


@contextmanager
def _other_program(running: Running, program: str) -> Iterator[subprocess.Popen[str]]:
    """Start a process with the descriptor of a frame's buffer; wait until it is ready."""
    buffer = running.graph.capture.camera.slots[0].buffers[0]
    process = subprocess.Popen(
        [sys.executable, '-c', program, str(buffer.fileno()), str(buffer.size)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=(buffer.fileno(),),
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        assert process.stdout.readline(), 'the other program does not run'
        yield process
    finally:
        process.stdin.close()
        process.wait(60)


@contextmanager
def _mapped_without_a_main_thread(running: Running) -> Iterator[None]:
    """Keep a frame mapped in a process without its main thread: its maps file is empty."""
    with _other_program(running, _WITHOUT_MAIN_THREAD) as process:
        assert eventually(lambda: not Path(f'/proc/{process.pid}/maps').read_bytes(), 30), (
            'its main thread goes on'
        )
        yield


_MOMENT_S = 2.0


def _has_looked() -> bool:
    """Return whether zc_verify has read all maps, and its window is about to begin."""
    for process in Path('/proc').glob('[0-9]*'):
        with suppress(OSError):
            if b'zc_perception.verify.zc_verify' in (process / 'cmdline').read_bytes():
                files = [os.readlink(link) for link in (process / 'fd').iterdir()]
                waits = (process / 'syscall').read_text().startswith(f'{SYSCALLS["poll"]} ')
                return waits and any(file.endswith('/trace_pipe') for file in files)
    return False


@contextmanager
def _mapped_before_the_window(running: Running) -> Iterator[None]:
    """Let another process map a frame only between the first and the last look at maps."""
    ended = threading.Event()

    def tell(process: subprocess.Popen[str]) -> None:
        while not _has_looked():
            if ended.wait(0.01):
                return
        assert process.stdin is not None
        print(_MOMENT_S, file=process.stdin, flush=True)

    with _other_program(running, _FOR_A_MOMENT) as process:
        teller = threading.Thread(target=tell, args=(process,), name='teller')
        teller.start()
        try:
            yield
        finally:
            ended.set()
            teller.join()


@contextmanager
def _pages_in_a_pipe(running: Running) -> Iterator[None]:
    """Keep a frame's pages in another process's pipe, from a mapping before the window."""
    with _other_program(running, _IN_A_PIPE) as process:
        yield
    assert process.returncode == 0, 'the pages were not in the pipe'


@contextmanager
def _camera_mapped_by_another_name(running: Running) -> Iterator[None]:
    """Map the camera's buffer by a second node of its device, in another folder."""
    camera = running.graph.capture.camera
    node = Path('/tmp/no_camera')
    os.mknod(node, stat.S_IFCHR | 0o600, os.stat(camera.device.partition(' ')[0]).st_rdev)
    try:
        with mapped_by_the_device(str(node), camera.slots[0].buffers[0].size):
            yield
    finally:
        node.unlink()


@contextmanager
def mapped_by_the_device(path: str, size: int) -> Iterator[None]:
    """Map a camera's first buffer by its video device, and not by its dma-buf."""
    with closing(V4l2Device.open(path)) as device, open(path, 'rb+', buffering=0) as file:
        (offset,) = device.query_offsets(0, 1)
        with mmap.mmap(file.fileno(), size, mmap.MAP_SHARED, mmap.PROT_READ, offset=offset):
            yield


#: Sabotages of a running graph, in this order. The last leaves a mapping behind.
SABOTAGES: dict[str, Callable[[Running, Consumer], Any]] = {
    **dict.fromkeys(('nothing', *NOTHING_AGAIN, 'nobody'), lambda *_: nullcontext()),
    'copies_with_numpy': lambda _, consumer: mock.patch.object(consumer, 'act', _copy_with_numpy),
    'copies_row_by_row': lambda running, spectator: _copying_rows(spectator),
    'submits_an_old_decoy': lambda running, spectator: _submit_an_old_decoy(running),
    'exchanges_handles': lambda running, spectator: _exchange_handles(running),
    'without_a_cache': lambda running, spectator: _without_a_cache(running),
    'imports_twice': lambda running, _: _importing(running, _twice, cache=False),
    'keeps_imports': lambda running, spectator: _keep_imports(running),
    'imports_at_a_wrong_offset': lambda running, _: _importing(
        running, _at_a_wrong_offset, cache=False
    ),
    'second_node': lambda running, spectator: running.second_inference(),
    'imports_decoys_alone': lambda running, spectator: _import_decoys_alone(running),
    'maps_without_a_main_thread': lambda running, spectator: _mapped_without_a_main_thread(
        running
    ),
    'holds_pages_in_a_pipe': lambda running, spectator: _pages_in_a_pipe(running),
    'without_the_cameras_log': lambda running, spectator: _without_the_cameras_log(running),
    'maps_before_the_window': lambda running, spectator: _mapped_before_the_window(running),
    'maps_by_another_name': lambda running, spectator: _camera_mapped_by_another_name(running),
    'maps': lambda _, consumer: mock.patch.object(consumer, 'act', _map),
}


def sabotaged(
    running: Running, spectator: Consumer, names: Sequence[str], out: Path
) -> Iterator[tuple[str, Outcome]]:
    """Sabotage one running graph in one way after the other; yield ``zc_verify``'s verdicts."""
    inference = running.graph.inference
    assert eventually(lambda: inference.processed > 3 and spectator.seen > 3, 60), running.problems
    for name in SABOTAGES:
        if name in names:
            seen, processed = spectator.seen, inference.processed
            with SABOTAGES[name](running, spectator):
                outcome = judged(out / name, user=NOBODY if name == 'nobody' else None)
            since = {'seen': spectator.seen - seen, 'processed': inference.processed - processed}
            yield name, outcome | since | {'problems': list(running.problems)}
