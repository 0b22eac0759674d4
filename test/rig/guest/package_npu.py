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
The package's accelerator and scheduler on a real kernel.

Results are right and in order, whatever the card and its driver do.

The card computes each result from the frame's own bytes: a result of another frame, or of pixels
that came too late, is a wrong one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
import ctypes
from dataclasses import dataclass, field, replace
import errno
import os
import signal
import threading

from frame_queues import FrameQueue
import numpy as np
from waiting import until

from zc_perception.errors import AcceleratorError, DeviceLostError
from zc_perception.frame import Frame, FrameData
from zc_perception.memory.dmabuf import BufferKind, CpuAccess, DmaBuf
from zc_perception.memory.heaps import open_heap, SealedMemfd
from zc_perception.memory.ledger import CopyLedger
from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.npu.axl.abi import ImportFlags
from zc_perception.npu.axl.accelerator import AxlAccelerator
from zc_perception.npu.axl.checks import Importable, probe_shipped_attach
from zc_perception.npu.axl.device import AxlDevice, AxlError, AxlGoneError
from zc_perception.npu.manifest import load_manifest
from zc_perception.npu.metis_card import choose_card, find_cards
from zc_perception.npu.scheduler import InFlight, Scheduler
from zc_perception.npu.selection import open_accelerator
from zc_perception.pixel.fourcc import NV12

from .harness import check, equal, settles
from .kernel_api import (
    any_heap,
    bufinfo,
    fence_info,
    heap_buffer,
    heaps_there,
    live,
    NPU,
    parameters,
    pulled,
)
from .package_kit import (
    accelerator,
    crcs,
    device_crcs,
    frames,
    jobs_held,
    LAYOUTS,
    opened_accelerator,
    PAGE,
    recorded,
    refused,
)
from ..virtual_result import VirtualResult

_RESULT = ctypes.sizeof(VirtualResult)


@dataclass
class Flow:
    """What went in and what came out, by sequence number."""

    scheduler: Scheduler
    queue: FrameQueue
    pixels: dict[int, list[int]] = field(default_factory=dict)
    results: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    wrong: list[int] = field(default_factory=list)
    losses: list[tuple[int, Exception]] = field(default_factory=list)

    def put(self, frame: Frame) -> None:
        """Note what the CPU sees in it, and queue it."""
        self.pixels[frame.data.sequence] = crcs(frame)
        self.queue.put(frame)

    def keep(self, entry: InFlight) -> None:
        """Compare what the device saw."""
        job, sequence = entry.job, entry.frame.data.sequence
        (boxes,) = job.outputs()
        result = VirtualResult.of_job(job, _RESULT)
        if result.crcs() != self.pixels[sequence] or not np.array_equal(
            boxes.values, np.ctypeslib.as_array(result.boxes)
        ):
            self.wrong.append(sequence)
        self.ends.append(fence_info(job.fence.fileno()).timestamp_ns)
        self.results.append(sequence)  # last: whoever waits for it looks at all of these

    def lose(self, frame: Frame, error: Exception) -> None:
        self.losses.append((frame.data.sequence, error))

    def wait(self, count: int) -> None:
        """Until so many frames are through."""
        until(
            lambda: len(self.results) + len(self.losses) >= count,
            f'{count} frames are through',
            60.0,
        )


@contextmanager
def flow(
    *, in_flight: int = 4, timeout_s: float = 20.0, patience_s: float = 0.0, **options: float
) -> Iterator[Flow]:
    """
    Yield a scheduler on the card, which opens the card anew if it is lost.

    It gives a job up when the driver should, or after *patience_s*.
    """
    queue = FrameQueue(None)
    made: Flow
    scheduler = Scheduler(
        opened_accelerator(timeout=timeout_s, **options),
        queue,
        lambda entry: made.keep(entry),
        lambda frame, error: made.lose(frame, error),
        in_flight=in_flight,
        timeout_s=patience_s or timeout_s,
        reopen=lambda: opened_accelerator(timeout=timeout_s, **options),
    )
    made = Flow(scheduler, queue)
    scheduler.start()
    try:
        yield made
    finally:
        assert scheduler.stop(), 'the thread did not end'
        queue.close()
        scheduler.accelerator.close()
    equal(made.wrong, [], 'results that are not of their frame')
    equal(made.results, sorted(made.results), 'frame order')


@check
def every_result_is_of_its_own_frame_with_0_imports_a_frame_or_1() -> None:
    for cached in (True, False):
        with (
            flow(import_cache=cached) as through,
            frames(LAYOUTS['padded stride'], slots=6) as make,
        ):
            npu = through.scheduler.accelerator
            for _ in range(6):
                through.put(make())
            through.wait(6)
            before = npu.imports
            for number in range(12):
                until(
                    lambda number=number: len(through.results) >= number + 4,
                    'slots come back',
                    60.0,
                )
                through.put(make())
            through.wait(18)
            equal(
                npu.imports - before,
                0 if cached else 12,
                'imports of 12 frames in the steady state',
            )
            equal((through.results, through.losses), (list(range(1, 19)), []), 'results')
            settles(
                lambda cached=cached: live()['imports'] - cached * len(bufinfo_attached()),
                0,
                'imports beyond the buffers attached',
            )


def bufinfo_attached() -> list[int]:
    """Buffers that the card is attached to."""
    return [inode for inode, info in bufinfo().items() if NPU in info.attached]


@check
def device_errors_and_hangs_cost_their_own_frames_only() -> None:
    # A hung job holds up those behind it until its timeout, which is theirs too: one at a time
    # there.
    for parameter, words, in_flight, timeout_s in (
        ('fail_every', 'Input/output error', 4, 20.0),
        ('hang_every', 'timed out', 1, 3.0),
    ):
        with (
            flow(in_flight=in_flight, timeout_s=timeout_s, patience_s=20.0) as through,
            frames(LAYOUTS['tight'], slots=12) as make,
        ):
            with parameters(**{parameter: 3}):
                for _ in range(9):
                    through.put(make())
                through.wait(9)
            equal(
                [sequence for sequence, _ in through.losses],
                [3, 6, 9],
                f'{parameter}: lost frames',
            )
            equal(through.results, [1, 2, 4, 5, 7, 8], f'{parameter}: results in order')
            assert all(words in str(error) for _, error in through.losses), through.losses


@check
def jobs_that_overtake_each_other_come_out_in_frame_order() -> None:
    with (
        # The first of four takes a second: whatever submitting takes, the others end before it.
        parameters(out_of_order=1, latency_us=250000),
        flow() as through,
        frames(LAYOUTS['tight'], slots=12) as make,
    ):
        for _ in range(12):
            through.put(make())
        through.wait(12)
        equal((through.results, through.losses), (list(range(1, 13)), []), 'results')
        assert through.ends != sorted(through.ends), 'the jobs did end in their order'


@check
def a_card_that_is_pulled_costs_its_frames_and_works_again_when_it_is_back() -> None:
    with flow(in_flight=3) as through, frames(LAYOUTS['tight'], slots=12) as make:
        through.put(make())
        through.wait(1)
        first = through.scheduler.accelerator
        with jobs_held():
            for _ in range(3):
                through.put(make())
            until(lambda: through.scheduler.statistics().in_flight == 3, 'three jobs in flight')
            with pulled():
                through.wait(4)
                equal(
                    [type(error) for _, error in through.losses],
                    [AxlGoneError, DeviceLostError, DeviceLostError],
                    'losses',
                )
                equal(
                    [sequence for sequence, _ in through.losses],
                    [2, 3, 4],
                    'lost frames, in order',
                )
                assert all(
                    isinstance(error, DeviceLostError) and 'ENODEV' in str(error)
                    for _, error in through.losses
                ), through.losses
                until(
                    lambda: 'no Metis card' in through.scheduler.state.last_error,
                    'opening it anew fails, and says why',
                    60.0,
                )
                equal(bufinfo_attached(), [], 'attached while there is no card')
                through.put(make())  # refused, and counted
                until(
                    lambda: through.scheduler.statistics().refused_recovering == 1,
                    'frames are let go meanwhile',
                )
        until(lambda: not through.scheduler.state.recovering, 'the card works again', 60.0)
        for _ in range(4):
            through.put(make())
        through.wait(8)
        equal(through.results, [1, 6, 7, 8, 9], 'results')
        again = through.scheduler.accelerator
        assert isinstance(again, AxlAccelerator) and again is not first
        assert again.imports >= 1 and again.facts()['epoch'] != first.facts()['epoch'], (
            'no import survives'
        )  # type: ignore[attr-defined]
        equal(again.facts()['release_errors'], 0, 'release errors')


def _ended(through: Flow) -> int:
    return len(through.results) + through.scheduler.statistics().lost


@check
def a_card_that_hangs_is_opened_anew() -> None:
    with flow(in_flight=1, timeout_s=0.2) as through, frames(LAYOUTS['tight'], slots=8) as make:
        with parameters(hang_every=1):
            for _ in range(3):
                through.put(make())
            through.wait(3)
            until(
                lambda: through.scheduler.statistics().losses == 1,
                'three timeouts in a row are a loss',
                60.0,
            )
        for turn in range(4, 24):  # a machine that is busy may be late with a first result, too
            until(lambda: not through.scheduler.state.recovering, 'the card works again', 60.0)
            through.put(make())
            until(lambda turn=turn: _ended(through) == turn, 'the frame is through', 60.0)
            if through.results:
                break
        assert through.results and all(
            'timed out' in str(e) or 'no result within' in str(e) for _, e in through.losses
        ), through.losses


@check
def an_accelerator_ends_with_its_jobs_in_flight() -> None:
    with frames(LAYOUTS['tight'], slots=4) as make, jobs_held():
        npu = opened_accelerator()
        held = [make() for _ in range(4)]
        jobs = [npu.submit(npu.import_frame(frame), frame) for frame in held]
        npu.close()
        for job in jobs:
            assert job.fence.wait(0.0), 'close() did not end the job'
            with refused(AxlError, 'ECANCELED', 'closed while the job was in flight'):
                job.outputs()
            job.close()
        for frame in held:
            frame.release()


@check
def what_a_job_s_fence_says_is_explained() -> None:
    cases: list[tuple[dict[str, int], float, tuple[str, ...]]] = [
        ({'fail_every': 1}, 5.0, ('EIO', "'model_id'")),
        (
            {'hang_every': 1},
            0.05,
            ('ETIMEDOUT', 'timeout 50 ms', 'back-pressured', "link can't be read", 'LnkSta'),
        ),
    ]
    for fault, timeout_s, words in cases:
        with (
            parameters(**fault),
            accelerator(timeout=timeout_s) as npu,
            frames(LAYOUTS['tight']) as make,
            make() as frame,
        ):
            job = npu.submit(npu.import_frame(frame), frame)
            assert job.fence.wait(60.0)
            with refused(AxlError, 'axl job (import 1', *words):
                job.fence.check()
            job.close()


@check
def an_import_is_not_taken_from_a_job_that_was_given_up() -> None:
    with accelerator(import_cache=False) as npu, frames(LAYOUTS['tight']) as make:
        with jobs_held():
            frame = make()
            handle = npu.import_frame(frame)
            job = npu.submit(handle, frame)
            frame.release(job.abandon())
            npu.release(handle)
            npu.tidy()
            equal(
                (live()['imports'], npu.facts()['jobs_given_up']),
                (1, 1),
                'imports and jobs given up',
            )
        until(lambda: live()['jobs'] == 0, 'the job ends', 60.0)
        npu.tidy()
        equal(
            (live()['imports'], npu.facts()['jobs_given_up']),
            (0, 0),
            'imports and jobs given up, after the job',
        )


@check
def a_result_is_mapped_once_and_read_between_syncs() -> None:
    with accelerator() as npu, frames(LAYOUTS['tight'], slots=6) as make, recorded() as recording:
        inodes = [result.buffer.identity.inode for result in npu._results._all]  # type: ignore
        for number in range(12):
            with make() as frame:
                job = npu.submit(npu.import_frame(frame), frame)
                assert job.fence.wait(60.0)
                job.outputs()
                job.outputs()
                equal(
                    recording().flags(*inodes),
                    [1, 5] * number + [1],
                    'SYNCs of results, in the middle of a frame',
                )
                job.close()
                npu.tidy()
        equal(
            recording().flags(*inodes),
            [int(CpuAccess.READ), int(CpuAccess.READ) | 4] * 12,
            'SYNCs of results',
        )
        # One buffer after the other is spare: the last that came back goes first.
        equal(recording().mappings(*inodes), 1, 'mappings of results')
        equal(recording().bad_closes, 0, 'descriptors closed twice')


# Which card, and which driver.


@check
def the_card_is_found_by_node_name_and_pci_address() -> None:
    (card,) = find_cards()
    equal((card.path, card.pci_address), ('/dev/metis-0:1:0', '0000:01:00.0'), 'the card')
    for wanted in ('', '0', 'metis-0:1:0', '0:1:0', '0000:01:00.0', '01:00.0', card.path):
        equal(choose_card(wanted), card, f"the card that '{wanted}' means")
    with refused(
        AcceleratorError, "no Metis card '02:00.0'", '/dev/metis-0:1:0 (PCI 0000:01:00.0)'
    ):
        choose_card('02:00.0')
    with accelerator(device='01:00.0') as npu:
        facts = npu.facts()
        equal(
            (facts['device'], facts['pci_address'], facts['driver_level']),
            (card.path, '0000:01:00.0', 2),
            'facts',
        )
        # QEMU's function is no PCI Express one: unknown is said, and is not good.
        assert str(facts['pcie_link']).startswith('unknown (0000:01:00.0 shows no PCIe link'), (
            facts
        )
        assert sum("PCIe link can't be read" in notice for notice in npu.notices()) == 1, (
            npu.notices()
        )
        assert (
            sum(f'result buffers come from {any_heap()}' in notice for notice in npu.notices())
            == 1
        ), npu.notices()


@check
def the_shipped_driver_says_which_heaps_it_can_import() -> None:
    (card,) = find_cards()
    answers = {}
    with parameters(shipped=1):
        for name in (*heaps_there(), 'memfd'):
            heap, _ = open_heap(name)
            buffer = heap.allocate(PAGE)
            found = probe_shipped_attach(card.path, buffer)
            answers[name] = (found.answer, found.number)
            equal((bufinfo_attached(), live()['attachments']), ([], 0), 'attached afterwards')
            with parameters(shipped_error=errno.ENOMEM):
                equal(probe_shipped_attach(card.path, buffer).number, errno.ENOMEM, 'errno')
            with pulled():
                equal(
                    probe_shipped_attach(card.path, buffer).answer,
                    Importable.UNKNOWN,
                    'answer without a card',
                )
            buffer.close()
            heap.close()
    yes, no = (Importable.YES, 0), (Importable.NO, errno.EINVAL)
    equal(answers, {**dict.fromkeys(heaps_there(), yes), 'memfd': no}, 'answers')


@check
def a_driver_without_our_ioctls_makes_auto_go_on_and_says_so_in_one_line() -> None:
    for variant in ({'shipped': 1}, {'abi_level': 0}):
        with parameters(**variant):
            with refused(
                AcceleratorError,
                '/dev/metis-0:1:0',
                'no import and submit ioctls (ENOTTY)',
                'axruntime',
                'onnx',
            ):
                AxlAccelerator(AxlAccelerator.own({}))
            selection = open_accelerator('auto', load_manifest('hog'), {}, CopyLedger())
            equal(selection.accelerator.capabilities().name, 'onnx', 'accelerator')
            (why,) = [reason for reason in selection.reasons if "'axl'" in reason]
            assert 'no import and submit ioctls (ENOTTY)' in why and '\n' not in why, why
            selection.accelerator.close()
            settles(
                lambda: [
                    t.name for t in threading.enumerate() if t is not threading.main_thread()
                ],
                [],
                'threads',
            )


@check
def a_signal_does_not_disturb_the_ioctls() -> None:
    """Let timers fire all the time: the process still imports, submits and releases."""
    seen = [0]

    def count(*_: object) -> None:
        seen[0] += 1

    before = signal.signal(signal.SIGALRM, count)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        with accelerator(import_cache=False) as npu, frames(LAYOUTS['tight']) as make:
            for _ in range(20):
                with make() as frame:
                    handle = npu.import_frame(frame)
                    job = npu.submit(handle, frame)
                    assert job.fence.wait(60.0)
                    job.outputs()
                    job.close()
                    npu.release(handle)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert seen[0] > 0, 'no signal came'


@check
def the_device_sees_what_was_written_for_every_heap_and_layout() -> None:
    with accelerator() as npu:
        for heap in heaps_there():
            for name, layout in LAYOUTS.items():
                with frames(layout, heap) as make, make() as frame:
                    equal(device_crcs(npu, frame), crcs(frame), f'CRCs, {heap}, {name}')


@check
def errnos_become_exceptions() -> None:
    device, other = AxlDevice(find_cards()[0].path), AxlDevice(find_cards()[0].path)
    heap, _ = open_heap(any_heap())
    layout = LAYOUTS['tight']
    buffer, small, result = (
        heap.allocate(layout.buffer_size(0)),
        heap.allocate(4096),
        heap.allocate(4096),
    )
    memory = SealedMemfd().allocate(layout.buffer_size(0))
    closed = heap.allocate(4096)
    number = closed.fileno()
    try:
        handle = device.import_planes(layout, [buffer], ImportFlags.TO_DEVICE)
        with refused(AxlError, 'ENOENT', 'another open file'):
            other.submit2(handle, result, 1, 1000, None)
        with refused(AxlError, 'ENOENT'):
            other.release_import(handle)
        device.release_import(handle)
        with refused(AxlError, 'ENOENT', 'released before'):
            device.release_import(handle)
        with refused(AxlError, 'EINVAL', 'memfd'):
            device.import_planes(layout, [memory], ImportFlags.TO_DEVICE)
        with refused(AxlError, 'EINVAL'):
            device.import_planes(layout, [buffer], ImportFlags(0))
        with refused(AxlError, 'EINVAL'):
            device.import_planes(layout, [buffer], ImportFlags(8))
        with refused(AxlError, 'EINVAL'):
            device.import_planes(
                replace(layout, fourcc=0x20202020), [buffer], ImportFlags.TO_DEVICE
            )
        with refused(AxlError, 'EINVAL'):
            device.import_fd(small, 64, 48, NV12, ImportFlags.FROM_DEVICE | ImportFlags.TO_DEVICE)
        closed.fileno = lambda: number  # type: ignore[method-assign]
        closed.close()
        with refused(AxlError, 'EBADF', 'keep the frame leased'):
            device.import_fd(closed, 64, 48, NV12, ImportFlags.TO_DEVICE)
        if 'dma_heap/system' in heaps_there():  # udmabuf makes none that can't be written
            narrow = heap_buffer(layout.buffer_size(0), os.O_RDONLY)
            reader = DmaBuf(
                OwnedFd(narrow.fd), BufferKind.DMABUF, 'dma_heap/system', writable=False
            )
            narrow.fd = -1
            with refused(AxlError, 'EACCES', 'TO_DEVICE'):
                device.import_fd(reader, 64, 48, NV12, ImportFlags.BIDIRECTIONAL)
            device.release_import(device.import_fd(reader, 64, 48, NV12, ImportFlags.TO_DEVICE))
            reader.close()
    finally:
        for opened in (buffer, small, result, memory):
            opened.close()
        heap.close()
        device.close()
        other.close()


@check
def older_drivers_work_for_tight_images() -> None:
    with parameters(abi_level=1), accelerator() as npu:
        with frames(LAYOUTS['tight']) as make, make() as frame:
            equal(device_crcs(npu, frame), crcs(frame), 'CRCs with ioctls 64-66 alone')
        with (
            frames(LAYOUTS['padded stride']) as make,
            make() as frame,
            refused(AcceleratorError, 'only tight LINEAR'),
        ):
            npu.import_frame(frame)


@check
def a_frame_is_not_read_before_its_acquire_fence() -> None:
    with accelerator() as npu, frames(LAYOUTS['tight'], slots=4) as make:
        first, second = make(), make()
        with parameters(latency_us=2000000):
            blocker = npu.submit(npu.import_frame(first), first)
        late = FrameData(**{**vars(second.data), 'acquire_fence': blocker.fence})
        frame = Frame(late, second._held())
        job = npu.submit(npu.import_frame(frame), frame)
        assert not job.fence.wait(0.02), 'the job did not wait'
        assert job.fence.wait(60.0) and blocker.fence.wait(0)
        ends = [fence_info(one.fence.fileno()).timestamp_ns for one in (blocker, job)]
        assert ends == sorted(ends), 'fence timestamps'
        job.close()
        blocker.close()
        frame._lease = None
        first.release()
        second.release()
