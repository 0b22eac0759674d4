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
Rung 2 when one end is killed.

A device of the dead consumer still reads, or a dead producer's frames are still held.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, ExitStack
from dataclasses import dataclass
from pathlib import Path
import tempfile
import time

from waiting import until

from zc_perception.camera.v4l2.camera import V4l2Camera
from zc_perception.link.shared_memory.client import SharedMemoryClient
from zc_perception.link.shared_memory.server import SharedMemoryServer
from zc_perception.memory.dmabuf import DmaBuf
from zc_perception.memory.pool import BufferPool

from .camera_kit import next_frame
from .check_camera import EXPORTERS
from .harness import check, check_each, equal, settles
from .kernel_api import any_heap, bufinfo, live, parameters
from .link_kit import (
    camera_of,
    connected,
    Consumer,
    next_received,
    overwrite,
    PATIENCE_S,
    Producer,
    PUBLISHER,
    Remote,
    served,
)
from .package_kit import (
    buffers,
    card,
    crcs,
    jobs_held,
    kernel_crcs,
    LAYOUT,
    level_crcs,
    pool_of,
    publish,
    result_crcs,
    RESULT_SIZE,
)

LEVEL = 61
OVERWRITTEN = 255
#: A deadline that no check waits for: what ends a quarantine earlier is the device's fence.
NEVER_S = 600.0


@dataclass
class Scene:
    """What a consumer left that was killed while its device was going to read frame *uid*."""

    pool: BufferPool
    server: SharedMemoryServer
    result: DmaBuf
    uid: int
    killed_at: float
    _gate: ExitStack

    def overwrite(self) -> set[int]:
        """Publish a frame in every slot that is free; their uids."""
        return overwrite(self.server, self.pool)

    def let_go(self) -> None:
        """Let the device read, and wait until it has."""
        self._gate.close()
        until(lambda: live()['jobs'] == 0, 'the device reads', PATIENCE_S)

    @property
    def seen_by_the_device(self) -> int | None:
        """Return the level of all pixels that it read."""
        found = result_crcs(self.result)
        return next((level for level in (LEVEL, OVERWRITTEN) if found == level_crcs(level)), None)


@contextmanager
def _killed_while_its_device_reads(
    heap: str, quarantine_s: float, *, reservation_fences: int
) -> Iterator[Scene]:
    """
    Kill a consumer while its device reads.

    The device's open file is shared with this process, so that the kernel doesn't end the job
    along with the consumer.
    """
    with (
        card() as device,
        buffers(heap, RESULT_SIZE) as (result,),
        Remote(lambda: Consumer(device, result)) as consumer,
        pool_of(heap, LAYOUT, slots=3, reserve=1) as pool,
        served(pool, quarantine_timeout_s=quarantine_s) as server,
        ExitStack() as gate,
    ):
        consumer.call('connect', str(server.path))
        with publish(pool, sequence=7, level=LEVEL) as frame:
            server.publish(frame)
            uid = frame.data.buffer_uid
        consumer.call('receive')
        gate.enter_context(jobs_held())
        with parameters(reservation_fences=reservation_fences):
            consumer.call('submit', 7)
        equal(list(pool.statistics().holders.values()), [1], 'leases, of the consumer alone')
        killed_at = time.monotonic()
        consumer.kill()
        until(
            lambda: (server.consumers, pool.statistics().holders) == (0, {}),
            'the lease is taken back',
            PATIENCE_S,
        )
        settles(lambda: server.statistics().taken_back, 1, 'frames taken back')
        equal(live()['jobs'], 1, 'jobs of the dead process')
        yield Scene(pool, server, result, uid, killed_at, gate)
        equal(
            (pool.statistics().retired, len(pool.slots), pool.unpromised),
            (0, 3, 2),
            'retired slots, slots, slots for others',
        )


def _expect_others_only(scene: Scene, uids: set[int]) -> None:
    assert scene.uid not in uids, (
        f'slot {scene.uid} was filled again while the device was going to read it'
    )
    equal(len(uids), 2, 'slots that the producer went on with')


@check
def a_killed_consumers_frame_is_not_written_before_its_device_is_done() -> None:
    heap = any_heap()
    with _killed_while_its_device_reads(heap, NEVER_S, reservation_fences=1) as scene:
        _expect_others_only(scene, set().union(*(scene.overwrite() for _ in range(30))))
        scene.let_go()
        until(lambda: scene.uid in scene.overwrite(), 'the slot comes back', PATIENCE_S)
        equal(scene.seen_by_the_device, LEVEL, 'level of the pixels that the device saw')


@check
def without_reservation_fences_the_longest_job_is_waited_for() -> None:
    heap = any_heap()
    # A machine that is so slow that the time was over before anything could be seen gets more of
    # it.
    if not any(
        _waits_for_the_longest_job(heap, quarantine_s) for quarantine_s in (1.5, 6.0, 24.0)
    ):
        raise AssertionError('this machine is too slow to see anything')


def _waits_for_the_longest_job(heap: str, quarantine_s: float) -> bool:
    with _killed_while_its_device_reads(heap, quarantine_s, reservation_fences=0) as scene:
        uids = scene.overwrite()
        while time.monotonic() < scene.killed_at + quarantine_s / 2:
            uids |= scene.overwrite()
        in_time = time.monotonic() < scene.killed_at + quarantine_s
        scene.let_go()
        if in_time:
            _expect_others_only(scene, uids)
        until(
            lambda: scene.uid in scene.overwrite(),
            'the slot comes back',
            quarantine_s + PATIENCE_S,
        )
        over_s = time.monotonic() - scene.killed_at
        assert over_s >= quarantine_s, (
            f'the slot was filled again after {over_s:.2f} s of {quarantine_s} s'
        )
        if in_time:
            equal(scene.seen_by_the_device, LEVEL, 'level of the pixels that the device saw')
        return in_time


@check
def without_any_quarantine_the_device_would_read_another_frame() -> None:
    """
    Prove that the two checks before can fail.

    With neither fences nor a deadline, what they exclude does happen.
    """
    heap = any_heap()
    with _killed_while_its_device_reads(heap, 0.0, reservation_fences=0) as scene:
        until(lambda: scene.uid in scene.overwrite(), 'the slot is filled again', PATIENCE_S)
        scene.let_go()
        equal(scene.seen_by_the_device, OVERWRITTEN, 'level of the pixels that the device saw')


@check_each(*EXPORTERS)
def a_killed_consumers_buffer_is_not_filled_by_the_camera_before_the_device_is_done(
    exporter: str,
) -> None:
    with (
        card() as device,
        buffers(any_heap(), RESULT_SIZE) as (result,),
        Remote(lambda: Consumer(device, result)) as consumer,
        camera_of(exporter) as (camera, pool),
        served(pool, quarantine_timeout_s=NEVER_S) as server,
        ExitStack() as gate,
    ):
        consumer.call('connect', str(server.path))
        with next_frame(camera) as frame:
            server.publish(frame)
            uid, sequence, right = frame.data.buffer_uid, frame.data.sequence, kernel_crcs(frame)
        consumer.call('receive')
        let_go = gate.enter_context(jobs_held())
        consumer.call('submit', sequence)
        consumer.kill()
        until(
            lambda: (server.consumers, pool.statistics().holders) == (0, {}),
            'the lease is taken back',
            PATIENCE_S,
        )
        used = _filled(server, camera, 20)
        assert uid not in used and len(used) > 1, (
            f'buffer {uid} was filled again while the device was going to read it; filled were '
            f'{used}'
        )
        let_go()
        until(lambda: live()['jobs'] == 0, 'the device reads', PATIENCE_S)
        equal(result_crcs(result), right, 'what the device saw')
        until(
            lambda: uid in _filled(server, camera, 1),
            'the buffer comes back to the camera',
            PATIENCE_S,
        )


def _filled(server: SharedMemoryServer, camera: V4l2Camera, count: int) -> set[int]:
    """Publish the camera's next frames; the uids of their slots."""
    used = set()
    for _ in range(count):
        with next_frame(camera) as frame:
            server.publish(frame)
            used.add(frame.data.buffer_uid)
    return used


@check
def frames_of_a_killed_producer_stay_readable_and_its_successors_are_found() -> None:
    heap = any_heap()
    before = set(bufinfo())
    with ExitStack() as stack:
        first, again, third = (stack.enter_context(Remote(Producer)) for _ in range(3))
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        path = Path(first.call('serve', folder, PUBLISHER, heap, 5))
        client = stack.enter_context(
            SharedMemoryClient(path, name='consumer', publisher_id=PUBLISHER, window=3, depth=1)
        )
        connected(client)
        held, inodes = [], set()
        for level in (31, 32):
            inode = first.call('publish', level, level)
            held.append(next_received(client))
            inodes.add(inode)
            equal(held[-1].data.buffers[0].identity.inode, inode, 'inode')
        of_first = set(first.call('inodes'))
        first.kill()
        until(lambda: client.receive() is None and not client.connected, 'EOF', PATIENCE_S)
        equal(client.statistics().ended, {'eof': 1}, client.last_end)
        until(lambda: of_first & set(bufinfo()) == inodes, 'what nobody held goes', PATIENCE_S)
        equal(
            [crcs(frame) for frame in held],
            [level_crcs(31), level_crcs(32)],
            'pixels of the dead producer',
        )

        # A restart under the same name, past the socket that the dead one left.
        assert path.exists(), 'who was killed leaves its socket'
        equal(again.call('serve', folder, PUBLISHER, heap, 5), str(path), 'path')
        _connected(client)
        again.call('publish', 1, 41)
        with next_received(client) as frame:
            equal(crcs(frame), level_crcs(41), 'pixels of the next one')

        # A new publisher, known by a new announcement.
        other = 'e' * 32
        client.retarget(Path(third.call('serve', folder, other, heap, 5)), other)
        equal(client.connected, False, 'still connected to the one before')
        _connected(client)
        third.call('publish', 1, 51)
        with next_received(client) as frame:
            equal(crcs(frame), level_crcs(51), 'pixels of the third')

        equal(
            [crcs(frame) for frame in held],
            [level_crcs(31), level_crcs(32)],
            'pixels of the dead producer at the end',
        )
        for frame in held:
            frame.release()
        equal(client.statistics().connections, 3, 'connections')
    until(lambda: set(bufinfo()) == before, 'all buffers go', PATIENCE_S)


def _connected(client: SharedMemoryClient) -> None:
    until(lambda: client.approach() is None and client.connected, 'it connects again', PATIENCE_S)
