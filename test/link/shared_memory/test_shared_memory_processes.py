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
Rung 2 between processes: shared memory, and what remains after a kill or a stop.

The long form kills 200 consumers, and limits the slowest time, not only the median. ``-s`` shows
the figures.
"""

from __future__ import annotations

from collections.abc import Sequence
import gc
import json
import os
from pathlib import Path
import queue
import signal
import threading
import time
import zlib

from long_form import LONG
from memory_link import (
    all_free,
    Forker,
    line,
    make_frame,
    make_layout,
    make_pool,
    PATIENCE_S,
    publish,
    PUBLISHER,
    start,
)
import pytest
from waiting import until

from zc_perception.link.shared_memory import connection
from zc_perception.link.shared_memory.server import SharedMemoryServer
from zc_perception.memory.dmabuf import DmaBuf
from zc_perception.memory.fence import DeadlineFence
from zc_perception.memory.pool import BufferPool

pytestmark = pytest.mark.usefixtures('no_fd_leak')
KILLS = 200 if LONG else 20


def consumers(server: SharedMemoryServer, name: str) -> list[str]:
    return [consumer.holder for consumer in server.statistics().consumers if consumer.name == name]


def check_times(what: str, taken_s: list[float], most_s: float) -> None:
    """Print times, and in the long form check the longest: a busy machine may be slow."""
    taken_s.sort()
    assert taken_s[-1] < most_s or not LONG, what
    print(
        f'\n{what}: {1e3 * taken_s[len(taken_s) // 2]:.1f} ms (median), '
        f'{1e3 * taken_s[-1]:.1f} ms (worst)'
    )


def frames_mapped() -> set[str]:
    lines = Path('/proc/self/maps').read_text(encoding='utf-8').splitlines()
    return {line.split()[0] for line in lines if '/memfd:zc_frame' in line}


def is_stopped(pid: int) -> bool:
    """Return whether all threads of the process are stopped; a signal takes time."""
    states = [
        path.read_text('ascii').rpartition(')')[2].split()[0]
        for path in Path(f'/proc/{pid}/task').glob('*/stat')
    ]
    return set(states) == {'T'}


def everybody_idle(server: SharedMemoryServer, name: str) -> bool:
    return all(
        consumer.held == consumer.pending == 0
        for consumer in server.statistics().consumers
        if consumer.name == name
    )


def test_the_consumers_memory_is_the_producers_mapped_once_and_never_copied(folder: Path) -> None:
    freed: queue.SimpleQueue[object] = queue.SimpleQueue()
    pool = make_pool(4, make_layout(640, 480), reserve=1, on_free=freed.put)
    written = {}
    for slot in pool.slots:
        buffer = slot.buffers[0]
        buffer.mapping()[:] = os.urandom(buffer.size)
        crcs = [
            zlib.crc32(buffer.mapping()[slice(p.offset, p.offset + p.size)])
            for p in slot.layout.planes
        ]
        written[buffer.identity.inode] = buffer.identity.device, buffer.size, crcs
        # The pixels are unmapped here, and sealed: nobody can map them for writing again.
        assert buffer.seal_for_sharing()
        buffer.unmap()
        assert not buffer.mapped
    with SharedMemoryServer(
        'camera', PUBLISHER, pool, folder=folder, quarantine_timeout_s=0.02
    ) as server:
        process = start('check', server.path, 3_000)
        assert line(process) == 'ready'
        fds = len(os.listdir('/proc/self/fd'))
        # Hold two frames at a time, so that more than one slot is used.
        for sequence in range(0, 3_000, 2):
            with make_frame(pool, sequence) as first, make_frame(pool, sequence + 1) as second:
                server.publish(first)
                server.publish(second)
            for _ in range(2):
                freed.get(timeout=PATIENCE_S)
        seen = json.loads(line(process))
        assert {frame['inode'] for frame in seen} == {
            slot.buffers[0].identity.inode for slot in pool.slots[:2]
        }
        for frame in seen:
            assert (frame['device'], frame['size'], frame['crc']) == written[frame['inode']]
            assert frame['mappings'] == 1
        assert len({frame['fds'] for frame in seen[4:]}) == 1, (
            'descriptors of the consumer over 3,000 frames'
        )
        assert abs(seen[-1]['lines'] - seen[4]['lines']) < 8, 'mappings of the consumer'
        assert len(os.listdir('/proc/self/fd')) <= fds, 'descriptors of the producer'
        assert not any(buffer.mapped for slot in pool.slots for buffer in slot.buffers)
        process.communicate()
        until(lambda: not server.consumers, 'EOF')
    until(lambda: all_free(pool), 'every slot')
    pool.close()


def test_killed_consumers_leave_nothing_and_nobody_else_notices(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three other consumers keep running, and devices seem busy with the frames that were held."""
    slots, window = 24, 2
    busy_until_ns: dict[object, int] = {}

    def busy(buffers: Sequence[DmaBuf], _: float) -> DeadlineFence:
        fence = DeadlineFence(0.02)
        busy_until_ns.update((buffer.identity, fence.deadline_ns) for buffer in buffers)
        return fence

    monkeypatch.setattr(connection, 'quarantine_fence', busy)
    threads, others, reused = set(threading.enumerate()), 3 * window + window, 0
    gc.collect()  # drop frames that other test files have left
    mapped = frames_mapped()
    pool = make_pool(slots)
    unpromised = pool.unpromised
    server = SharedMemoryServer(
        'camera', PUBLISHER, pool, folder=folder, quarantine_timeout_s=0.02
    )
    with (
        Forker(server.path, 'work', window) as workers,
        Forker(server.path, 'hold', 2) as victims,
        server,
    ):
        for _ in range(3):
            workers.fork()
        until(lambda: len(consumers(server, 'work')) == 3, 'the others')
        # A slot's mapping takes a descriptor, and is made with the slot's first frame.
        fds = len(os.listdir('/proc/self/fd')) - len(frames_mapped() - mapped)
        taken_s, sequence = [], 0
        for kill in range(KILLS):
            pid = victims.fork()
            holder = until(lambda: consumers(server, 'hold'), 'the victim')[0]
            # Kill with no frame, while receiving, or with a full window.
            for step in range(kill % 4 + 1):
                with make_frame(pool, sequence) as frame:
                    until_ns = [
                        busy_until_ns.pop(buffer.identity)
                        for buffer in frame.data.buffers
                        if buffer.identity in busy_until_ns
                    ]
                    assert max(until_ns, default=0) <= time.monotonic_ns(), (
                        'reused before its fence'
                    )
                    reused += len(until_ns)
                    if step == kill % 4:
                        os.kill(pid, signal.SIGKILL)
                        killed_at = time.monotonic()
                    server.publish(frame)
                    sequence += 1
                if step < kill % 4:
                    until(lambda: everybody_idle(server, 'work'), 'the others')
            until(
                lambda gone=holder: (
                    not consumers(server, 'hold') and gone not in pool.statistics().holders
                ),
                'the end',
            )  # type: ignore[misc]
            taken_s.append(time.monotonic() - killed_at)
            until(lambda: everybody_idle(server, 'work'), 'the others')
        until(
            lambda: all_free(pool) and server.statistics().ended == {'eof': KILLS},
            'every slot, and the last end',
        )
        ours = len(frames_mapped() - mapped)
        assert ours <= slots and len(os.listdir('/proc/self/fd')) - ours <= fds
        statistics = server.statistics()
        assert statistics.welcomed == KILLS + 3
        assert statistics.taken_back > KILLS // 2, 'many were killed with frames'
        assert reused > KILLS // 4, 'many slots came back from quarantine'
        assert pool.unpromised == unpromised - others and pool.statistics().exhausted == 0
        assert [(c.sent, c.dropped) for c in statistics.consumers] == [(sequence, 0)] * 3
        server.close()
        for _ in range(3):
            report = workers.report()
            assert (report['last'], report['gaps'], report['dropped']) == (sequence - 1, 0, 0)
            assert (report['ended'], report['left']) == ({'eof': 1}, [0, 0, 0])
    assert server.counters.internal_errors == 0, server.counters.last_internal_error
    check_times(f'{KILLS} consumers killed, {statistics.taken_back} leases back', taken_s, 0.1)
    assert not list(folder.iterdir()) and set(threading.enumerate()) <= threads
    pool.close()
    assert not frames_mapped() - mapped


def test_a_stopped_consumer_costs_its_window_and_gets_the_newest_when_it_goes_on(
    server: SharedMemoryServer, pool: BufferPool
) -> None:
    with Forker(server.path, 'work', 2) as workers:
        pids = [workers.fork() for _ in range(2)]
        until(lambda: len(consumers(server, 'work')) == 2, 'both')
        publish(server, pool, 0)
        until(lambda: everybody_idle(server, 'work'), 'both')
        os.kill(pids[0], signal.SIGSTOP)
        until(lambda: is_stopped(pids[0]), 'the stop')
        for sequence in range(1, 100):
            publish(server, pool, sequence)
            until(
                lambda: not any(c.held for c in server.statistics().consumers if c.pid == pids[1]),
                'the other one',
            )
        stopped, other = (
            next(c for c in server.statistics().consumers if c.pid == pid) for pid in pids
        )
        assert (stopped.held, stopped.pending, stopped.dropped) == (2, 2, 95)
        assert (other.sent, other.dropped) == (100, 0)
        os.kill(pids[0], signal.SIGCONT)
        until(lambda: everybody_idle(server, 'work'), 'the stopped one')
        server.close()
        reports = [workers.report() for _ in range(2)]
        said = sorted((report['last'], report['gaps'], report['dropped']) for report in reports)
        assert said == [(99, 0, 0), (99, 1, 95)]
