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

"""The axl accelerator on cards that only count: its facts, and its reaction to failures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import ctypes
from dataclasses import replace
import errno
from functools import partial
import os
from pathlib import Path
import re
import threading
from typing import Any
from unittest.mock import call, create_autospec, Mock

from camera.camera_options import NamedHeap
from hypothesis import given, settings
from hypothesis import strategies as st
from npu.card_kit import CountingCard, Host, MANIFEST, Opened
from npu.scheduler_kit import MakeFrame, MakePool
import numpy as np
import pytest

from zc_perception.errors import AcceleratorError, AllocationError, DeviceLostError
from zc_perception.frame import Frame
from zc_perception.memory import heaps
from zc_perception.memory.dmabuf import CpuAccess, DmaBuf
from zc_perception.memory.fence import EventFence, SyncFile
from zc_perception.memory.heaps import SealedMemfd
from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.memory.pool import BufferPool
from zc_perception.negotiation.constraints import Placement
from zc_perception.negotiation.settings import heap_offer
from zc_perception.npu.axl import abi as axl_abi
from zc_perception.npu.axl import accelerator as axl
from zc_perception.npu.axl import checks as axl_probe
from zc_perception.npu.axl import device as axl_device
from zc_perception.npu.axl.abi import ImportFlags
from zc_perception.npu.axl.accelerator import (
    AxlAccelerator,
    AxlJob,
    import_key,
    ImportCache,
    ImportsInUse,
)
from zc_perception.npu.axl.checks import Importable, probe_shipped_attach
from zc_perception.npu.axl.device import (
    ADVICE,
    axl_error,
    AxlDevice,
    AxlError,
    AxlGoneError,
    JobFence,
)
from zc_perception.npu.manifest import TensorSpec
from zc_perception.pixel.fourcc import fourcc_code, NV12
from zc_perception.pixel.layout import compute_layout, ImageLayout, PlaneLayout
from zc_perception.pixel.modifier import INVALID, LINEAR

pytestmark = pytest.mark.usefixtures('no_fd_leak')
MakeOpened = Callable[..., Opened]
GOOD_LINK = {'current_link_speed': '8.0 GT/s PCIe', 'current_link_width': '4'}


def test_a_slow_or_unreadable_link_is_a_notice_and_seen_as_it_is_now(
    make_opened: MakeOpened, host: Host
) -> None:
    host.add_card(**{**GOOD_LINK, 'current_link_width': '1'})
    accelerator, _ = make_opened(device='', tree=host.tree)
    assert ['runs at 8 GT/s x1' in notice for notice in accelerator.notices()] == [True]
    host.write(host.tree.pci('0000:01:00.0'), current_link_width='4')
    assert list(accelerator.notices()) == [] and accelerator.facts()['pcie_link'] == '8 GT/s x4'
    (host.tree.pci('0000:01:00.0') / 'current_link_speed').unlink()
    assert ["can't be read" in notice for notice in accelerator.notices()] == [True]
    assert str(accelerator.facts()['pcie_link']).startswith('unknown')


def test_a_second_card_is_worth_a_notice_where_none_was_named(
    make_opened: MakeOpened, host: Host
) -> None:
    host.add_card(**GOOD_LINK)
    host.add_card('0004:01:00.0', 'metis-4:1:0', port='0000:00:1d.0', **GOOD_LINK)
    accelerator, _ = make_opened(device='', tree=host.tree)
    (notice,) = accelerator.notices()
    for word in ('there are 2 Metis cards', "'accelerator_device'", '0004:01:00.0'):
        assert word in notice
    named, _ = make_opened(device='04:01:00.0', tree=host.tree)
    assert list(named.notices()) == [] and named.capabilities().device.endswith('metis-4:1:0')


def test_a_driver_without_our_ioctls_names_them_and_the_way_out(host: Host) -> None:
    """A node answers ENOTTY to everything, as the shipped driver does to our ioctls."""
    node = host.add_card(**GOOD_LINK)
    with pytest.raises(AcceleratorError) as refused:
        AxlAccelerator(AxlAccelerator.own({}), tree=host.tree)
    text = str(refused.value)
    assert f'the driver of {node} has no import and submit ioctls (ENOTTY)' in text
    for word in ('accelerator: axruntime', 'onnx', "'axl_ioctls'"):
        assert word in text and '\n' not in text


def test_a_submit_that_is_refused_holds_nothing(
    make_opened: MakeOpened, make_frame: MakeFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    accelerator, card = make_opened(import_cache=False, in_flight=1)
    frame = make_frame()
    monkeypatch.setattr(card, 'submit2', Mock(side_effect=AcceleratorError('EBUSY')))
    for _ in range(3):
        handle = accelerator.import_frame(frame)
        with pytest.raises(AcceleratorError, match='EBUSY'):
            accelerator.submit(handle, frame)
        accelerator.release(handle)
    assert card.held == set() and accelerator.facts()['jobs'] == 0


def test_level_1_imports_tight_images_and_says_why_not_others(
    make_opened: MakeOpened, make_pool: MakePool, make_frame: MakeFrame
) -> None:
    accelerator, card = make_opened(level=1)
    tight = {'stride_align': 1, 'offset_align': 1}
    pool = make_pool(layout=tight)
    assert accelerator.import_frame(make_frame(pool)).number in card.held
    words = r'LINEAR images without padding.*, not NV12.*stride alignment'
    for layout in ({'stride_align': 256}, {**tight, 'buffer_per_plane': True}):
        with pytest.raises(AcceleratorError, match=words):
            accelerator.import_frame(make_frame(make_pool(layout=layout)))
    with pytest.raises(AcceleratorError, match=r'not NV12.* let the camera give LINEAR images'):
        accelerator.trial_import(replace(pool.layout, modifier=INVALID), pool.slots[0].buffers)


# No reader starts before a frame's acquire fence: the driver waits where it can, else the package
# does. An error costs that frame only.


def submit(accelerator: AxlAccelerator, frame: Frame) -> AxlJob:
    return accelerator.submit(accelerator.import_frame(frame), frame)


def end(card: CountingCard, *jobs: AxlJob) -> None:
    for fence, job in zip(card.jobs, jobs, strict=True):
        fence.signal()
        job.close()


@pytest.mark.parametrize('level', [1, 2])
def test_a_driver_that_can_waits_for_the_sync_file_itself(
    make_opened: MakeOpened, make_frame: MakeFrame, level: int
) -> None:
    accelerator, card = make_opened(level=level, timeout=60.0)
    fence = create_autospec(SyncFile, instance=True)  # it has signalled
    job = submit(accelerator, make_frame(acquire_fence=fence))
    if level == 2:
        assert card.submitted == [fence] and not fence.wait.called, 'nobody waits on the CPU'
    else:
        assert card.submitted == [None] and fence.wait.call_args == call(60.0), (
            'as long as a job may take'
        )
    end(card, job)


@pytest.mark.parametrize('level', [1, 2])
@pytest.mark.parametrize(
    ('error', 'words'),
    [
        (RuntimeError('the camera lost it'), 'the camera lost it'),
        (None, 'acquire fence did not signal in time'),
    ],
)
def test_a_fence_that_fails_or_never_signals_costs_its_frame_and_no_result_buffer_or_delays_it(
    make_opened: MakeOpened, make_frame: MakeFrame, error: Exception | None, words: str, level: int
) -> None:
    accelerator, card = make_opened(level=level, timeout=0.01)
    for _ in range(10):  # more than there are result buffers
        fence = EventFence()
        if error is not None:
            fence.signal(error)
        frame = make_frame(acquire_fence=fence)
        with pytest.raises(AcceleratorError, match=words):
            submit(accelerator, frame)
        frame.release()
        fence.close()
    assert card.submitted == []
    accelerator.tune({'import_cache': True, 'timeout': 60.0})
    fence = EventFence()
    signaller = threading.Timer(0.03, fence.signal)
    signaller.start()
    jobs = [submit(accelerator, make_frame(acquire_fence=fence))]
    assert fence.wait(0.0), 'it has signalled before the job starts'
    signaller.join()
    fence.close()
    jobs += [submit(accelerator, make_frame()) for _ in range(3)]
    assert card.submitted == [None] * 4
    end(card, *jobs)


def run_one(accelerator: AxlAccelerator, card: CountingCard, frame: Frame) -> None:
    handle = accelerator.import_frame(frame)
    job = accelerator.submit(handle, frame)
    card.jobs[-1].signal()
    job.close()
    accelerator.release(handle)


def test_the_cache_goes_off_and_on_imports_are_counted_on_and_later_jobs_have_the_timeout(
    opened: Opened, make_frame: MakeFrame
) -> None:
    accelerator, card = opened
    with make_frame() as frame:
        for cached, imports, held in ((True, 1, 1), (False, 4, 0), (True, 5, 1)):
            accelerator.tune({'import_cache': cached, 'timeout': imports / 4})
            assert cached or card.held == set(), 'what was cached is given back'
            for _ in range(3):
                run_one(accelerator, card, frame)
            assert (accelerator.imports, len(card.held)) == (imports, held)
            assert (accelerator.facts()['import_cache'] == 'off') != cached
        handle = accelerator.import_frame(frame)
        job = accelerator.submit(handle, frame)
        accelerator.tune({'import_cache': False, 'timeout': 1.0})
        assert len(card.held) == 1, 'what was cached stays until the job that reads it has ended'
        card.jobs[-1].signal()
        job.close()
        accelerator.release(handle)
        assert (card.held, accelerator.facts()['release_errors']) == (set(), 0)
    assert card.timeouts_us[2::3] == [250_000, 1_000_000, 1_250_000]


def test_an_accelerator_closes_without_a_word_when_its_card_is_gone_and_the_next_imports_anew(
    make_opened: MakeOpened, make_frame: MakeFrame
) -> None:
    accelerator, card = make_opened()
    frame = make_frame()
    job = accelerator.submit(accelerator.import_frame(frame), frame)
    idle = make_frame()
    accelerator.import_frame(idle)
    card.release_error = AxlGoneError('release_import', 19)
    card.jobs[0].signal(DeviceLostError('ENODEV'))
    with pytest.raises(AcceleratorError, match='ENODEV'):
        job.outputs()
    job.close()
    frame.release()
    accelerator.tidy()
    accelerator.close()
    assert accelerator.facts()['release_errors'] == 0
    card.release_error = None
    second, card = make_opened()
    assert second.facts()['epoch'] != accelerator.facts()['epoch']
    assert (second.import_frame(idle).number, second.imports, card.made) == (1, 1, 1)


# The import cache: its key is a buffer's identity, not its descriptor's number.

LAYOUT, TILED = compute_layout(NV12, 64, 48), 1 << 56 | 2
SIZE = LAYOUT.buffer_size(0)


def _get(
    cache: ImportCache, card: CountingCard, buffer: DmaBuf, layout=LAYOUT, epoch: int = 1
) -> int:
    return cache.get(import_key(epoch, 1, layout, [buffer]), [buffer], card.import_fd)


def test_a_duplicate_is_the_same_buffer_and_another_layout_is_another_import(
    buffer: DmaBuf,
) -> None:
    card = CountingCard()
    cache = ImportCache(card.release_import)
    other = DmaBuf(buffer.dup(), buffer.kind, 'memfd')
    assert _get(cache, card, buffer) == _get(cache, card, other) == 1
    other.close()
    chroma = replace(LAYOUT.planes[1], offset=LAYOUT.planes[1].offset - 64)
    for number, layout in enumerate(
        (replace(LAYOUT, modifier=TILED), replace(LAYOUT, planes=(LAYOUT.planes[0], chroma))), 2
    ):
        assert _get(cache, card, buffer, layout) == number
    assert _get(cache, card, buffer, epoch=2) == 4
    cache.clear()


def test_an_inode_that_is_a_key_cannot_be_given_to_another_buffer(allocate: Allocate) -> None:
    """The entry's own descriptor keeps the object alive after its owner has closed it."""
    card = CountingCard()
    cache = ImportCache(card.release_import)
    first, second = (allocate(LAYOUT)[0] for _ in range(2))
    for buffer in (first, second):
        _get(cache, card, buffer)
    inode = first.identity.inode
    first.close()
    assert open_files(inode) == 1, 'the duplicate'
    assert inode not in {allocate(LAYOUT)[0].identity.inode for _ in range(50)}
    cache.clear()
    assert open_files(second.identity.inode) == 1, (
        'what the cache borrowed is not closed, and its duplicate is'
    )


def test_the_least_recently_used_import_goes_first(allocate: Allocate) -> None:
    card = CountingCard()
    cache = ImportCache(card.release_import, limit=2)
    buffers = [allocate(LAYOUT)[0] for _ in range(3)]
    for number in (0, 1, 0, 2):
        _get(cache, card, buffers[number])
    assert card.held == {1, 3} and len(cache) == 2
    cache.clear()


@settings(max_examples=60)
@given(
    st.integers(1, 3),
    st.lists(
        st.tuples(st.sampled_from(['frame', 'end', 'forget', 'close']), st.integers(0, 4)),
        max_size=40,
    ),
)
def test_whatever_happens_no_handle_is_lost_and_none_is_used_after_its_release(
    limit: int, steps: list[tuple[str, int]]
) -> None:
    """Frames, jobs, ends of buffers and forgetting at random, against a card that counts."""
    card = CountingCard()
    jobs = ImportsInUse(card.release_import)
    cache = ImportCache(jobs.release, limit=limit)
    buffers = [SealedMemfd().allocate(SIZE) for _ in range(5)]
    running: list[int] = []
    for what, index in steps:
        if what == 'frame':
            handle = _get(cache, card, buffers[index])
            assert handle in card.held, 'a handle that was released'
            jobs.hold(handle)
            running.append(handle)
        elif what == 'end' and running:
            jobs.let_go(running.pop(index % len(running)))
        elif what == 'forget':
            cache.forget(buffers[index].identity)
        elif what == 'close':
            buffers[index].close()
            buffers[index] = SealedMemfd().allocate(SIZE)
        assert set(running) <= card.held, 'a job reads what was released'
        assert len(cache) <= cache.limit
    for handle in running:
        jobs.let_go(handle)
    cache.clear()
    assert card.held == set()
    for buffer in buffers:
        buffer.close()


# The cache releases an ended buffer at the next import or idle moment, in its own thread.


def trial(accelerator: AxlAccelerator, pool: BufferPool) -> None:
    for slot in pool.slots:
        accelerator.trial_import(slot.layout, slot.buffers)


def open_files(inode: int) -> int:
    found = 0
    for number in os.listdir('/proc/self/fd'):
        try:
            found += os.stat(f'/proc/self/fd/{number}').st_ino == inode
        except OSError:
            continue
    return found


def retire(pool: BufferPool) -> None:
    """Retire a slot, whose fence never signals."""
    slot = pool.acquire()
    assert slot is not None and slot.index == 0
    lease = pool.lease(slot, slot.generation, 'npu')
    assert lease is not None
    pool.release(lease, EventFence())
    pool._add_fence(slot, EventFence(), 0.0)
    pool.collect()
    assert pool.statistics().retired == 1


ENDS: dict[str, tuple[Callable[[BufferPool], None], set[int]]] = {
    'a retired slot': (retire, {2, 3}),
    'a slot whose place is taken': (
        lambda pool: pool.insert((SealedMemfd().allocate(8192),), 3),
        {2, 3},
    ),
    'the end of the pool': (lambda pool: pool.close(), set()),
    'a slot closed by its link': (lambda pool: pool.slots[1].buffers[0].close(), {1, 3}),
}


@pytest.mark.parametrize('thread', ['its own thread', 'another thread'])
@pytest.mark.parametrize(('end', 'left'), ENDS.values(), ids=ENDS)
def test_an_import_ends_with_its_buffer(
    opened: Opened, make_pool: MakePool, end: Callable[[BufferPool], None], left: set[int],
    thread: str,
) -> None:  # fmt: skip
    (accelerator, card), pool = opened, make_pool()
    trial(accelerator, pool)
    assert card.held == {1, 2, 3}
    inodes = {number: slot.buffers[0].identity.inode for number, slot in enumerate(pool.slots, 1)}
    if thread == 'another thread':
        other = threading.Thread(target=end, args=(pool,))
        other.start()
        other.join()
    else:
        end(pool)
    assert card.held == {1, 2, 3}, 'only the thread that owns the cache may call the device'
    accelerator.tidy()
    assert card.held == left
    assert {number for number, inode in inodes.items() if open_files(inode)} == left, (
        'and the memory is free'
    )


def test_what_the_device_refuses_to_release_is_counted_and_costs_no_frame(
    opened: Opened, make_pool: MakePool, make_frame: MakeFrame
) -> None:
    accelerator, card = opened
    pool, other = make_pool(), make_pool(name='other')
    trial(accelerator, pool)
    pool.close()
    card.release_error = AcceleratorError('EIO')
    with make_frame(other) as frame:
        handle = accelerator.import_frame(frame)
    assert handle.number == 4
    cache, facts = accelerator._cache, accelerator.facts()
    assert cache is not None and len(cache) == 1
    assert (facts['release_errors'], facts['last_release_error']) == (3, 'EIO')
    card.release_error = None


# Trial imports before the first frame: the cache keeps them, or they are released at once and
# counted apart.


@pytest.mark.parametrize('cached', [True, False])
def test_a_trial_is_an_import_that_is_kept_or_given_back_and_counted_apart(
    cached: bool, make_opened: MakeOpened, make_pool: MakePool, make_frame: MakeFrame
) -> None:
    (accelerator, card), pool = make_opened(import_cache=cached), make_pool()
    card.import_error = AcceleratorError('EINVAL')
    with pytest.raises(AcceleratorError, match='EINVAL'):
        trial(accelerator, pool)
    assert not card.held and accelerator.trial_imports == 0, 'one that fails leaves nothing'
    card.import_error = None
    undos = [accelerator.trial_import(slot.layout, slot.buffers) for slot in pool.slots]
    assert card.made == 3 and [undo is not None for undo in undos] == [cached] * 3
    counts = accelerator.imports, accelerator.trial_imports, len(card.held)
    assert counts == ((3, 0, 3) if cached else (0, 3, 0))
    for _ in range(7):
        with make_frame(pool) as frame:
            run_one(accelerator, card, frame)
    assert not any(buffer.mapped for slot in pool.slots for buffer in slot.buffers)
    # The verification's I3: one import per distinct buffer with the cache, one per frame without.
    assert accelerator.imports == (3 if cached else 7)
    assert accelerator.imports + accelerator.trial_imports == card.made
    for undo in filter(None, undos):
        undo()
    assert card.held == set()


def test_what_the_driver_says_is_in_the_constraints(make_opened: MakeOpened) -> None:
    said, device, format_ = make_opened()[0].constraints(), '/dev/metis-0:1:0', (NV12, LINEAR)
    assert (said.participant, said.devices) == (f'axl {device}', (device,))
    assert (said.stride_align, said.formats, said.placement) == (64, (format_,), None)
    assert not said.uses_cpu and heap_offer('memfd').objections(said, format_)
    assert said.memory_note.startswith('whether the card is behind an IOMMU is not known')
    assert not said.contiguous
    assert make_opened(level=1)[0].constraints().placement is Placement.ONE_BUFFER, (
        'IMPORT_FD takes one descriptor'
    )


# The driver's arguments for images and jobs, and the meaning of its answers.

HEADER = Path(__file__).resolve().parents[1] / 'rig/module/axl_ioctl.h'
YU12 = fourcc_code('YU12')
LOST = (errno.ENODEV, errno.ENXIO, errno.ESHUTDOWN, errno.ENOLINK)


def kind_of(number: int) -> type[AxlError]:
    return AxlGoneError if number in LOST else AxlError


def test_every_errno_that_the_contract_names_has_advice_and_others_have_a_next_step() -> None:
    comments = ' '.join(
        re.findall(r'/\*.*?\*/', HEADER.read_text(encoding='utf-8'), flags=re.DOTALL)
    )
    named = {word for word in re.findall(r'\bE[A-Z0-9]{3,}\b', comments) if hasattr(errno, word)}
    assert len(named) >= 9, named
    assert {getattr(errno, name) for name in named} <= set(ADVICE)
    ours = ADVICE[errno.ENOTTY]
    assert 'accelerator: axruntime' in ours and "'axl_ioctls'" in ours, 'the shipped driver'
    error = axl_error('query', 4095)
    assert type(error) is AxlError and 'failed with 4095' in str(error) and 'dmesg' in str(error)


class Driver:
    """
    Keeps a copy of each argument and the file of each call.

    It answers with an errno (``number``, or the request's in ``refusals``), by ``answer``, or
    with a handle and a fence.
    """

    def __init__(self) -> None:
        self.number = 0
        self.refusals: dict[int, int] = {}
        self.answer: Callable[[Any], object] = self.give
        self.calls: list[tuple[int, Any]] = []
        self.fds: list[int] = []

    def __call__(self, fd: int, request: int, argument: Any) -> int:
        os.fstat(fd)
        self.fds.append(fd)
        self.calls.append((request, type(argument).from_buffer_copy(argument)))
        if number := self.refusals.get(request, self.number):
            raise OSError(number, os.strerror(number))
        self.answer(argument)
        return 0

    def give(self, argument: Any) -> None:
        if hasattr(argument, 'handle'):
            argument.handle = 40 + len(self.calls)
        if hasattr(argument, 'fence_fd'):
            argument.fence_fd = os.eventfd(0)
        if hasattr(argument, 'seqno'):
            argument.seqno = 0x1_0000_0007


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    driver = Driver()
    monkeypatch.setattr(axl_device.fcntl, 'ioctl', driver)
    return driver


Allocate = Callable[[ImageLayout], list[DmaBuf]]


@pytest.fixture
def device(driver: Driver, host: Host) -> Iterator[AxlDevice]:
    device = AxlDevice(
        host.add_card(current_link_speed='2.5 GT/s PCIe', current_link_width='4'), tree=host.tree
    )
    yield device
    device.close()


@pytest.fixture
def allocate() -> Iterator[Allocate]:
    made: list[DmaBuf] = []

    def make(layout: ImageLayout) -> list[DmaBuf]:
        sizes = [layout.buffer_size(index) for index in range(layout.num_buffers)]
        made.extend(SealedMemfd().allocate(size) for size in sizes)
        return made[-len(sizes) :]

    yield make
    for buffer in made:
        buffer.close()


@pytest.fixture
def buffer(allocate: Allocate) -> DmaBuf:
    return allocate(LAYOUT)[0]


CALLS: dict[str, Callable[[AxlDevice, DmaBuf], object]] = {
    'import_fd': lambda device, buffer: device.import_fd(
        buffer, 64, 48, NV12, ImportFlags.TO_DEVICE
    ),
    'import_planes': lambda device, buffer: device.import_planes(
        LAYOUT, [buffer], ImportFlags.TO_DEVICE
    ),
    'submit': lambda device, buffer: device.submit(1, buffer, 0, 1000),
    'submit2': lambda device, buffer: device.submit2(1, buffer, 0, 1000, None),
    'release_import': lambda device, buffer: device.release_import(1),
}


@pytest.mark.parametrize('number', [errno.EINVAL, errno.ENODEV])
@pytest.mark.parametrize('name', CALLS)
def test_each_ioctl_raises_the_errno_s_exception(
    device: AxlDevice, driver: Driver, buffer: DmaBuf, name: str, number: int
) -> None:
    driver.number = number
    with pytest.raises(kind_of(number), match=f'axl {name}') as raised:
        CALLS[name](device, buffer)
    assert raised.value.errno == number and isinstance(raised.value.__cause__, OSError)


def test_the_loss_of_a_card_shows_in_sysfs(device: AxlDevice, driver: Driver, host: Host) -> None:
    driver.number = errno.EIO
    with pytest.raises(AxlError, match='EIO') as raised:
        device.release_import(1)
    assert not isinstance(raised.value, DeviceLostError)
    (host.tree.pci('0000:01:00.0') / 'config').write_bytes(b'\xff\xff\xff\xff')
    with pytest.raises(DeviceLostError, match='EIO'):
        device.release_import(1)


def test_a_signal_in_an_ioctl_is_no_failure(device: AxlDevice, driver: Driver) -> None:
    driver.answer = Mock(side_effect=[InterruptedError(errno.EINTR, 'a signal')] * 5 + [None])
    device.release_import(1)
    assert len(driver.calls) == 6
    driver.number = errno.EINTR
    with pytest.raises(AxlError, match='EINTR'):
        device.release_import(1)


@pytest.mark.parametrize('wrong', ['max_in_flight 0', 'stride_align 48'])
def test_a_query_that_makes_no_sense_is_refused(
    device: AxlDevice, driver: Driver, wrong: str
) -> None:
    name, _, number = wrong.partition(' ')

    def say(query: axl_abi.AxlQuery) -> None:
        query.max_in_flight, query.num_formats = 4, 1
        query.stride_align = query.offset_align = 64
        setattr(query, name, int(number))

    driver.answer = say
    with pytest.raises(AcceleratorError, match=f'QUERY.*{wrong}'):
        device.query()


@pytest.mark.parametrize(
    ('release', 'import_fd', 'level'),
    [
        (errno.ENOENT, errno.EBADF, 1),
        (errno.EINVAL, errno.ENOTTY, 0),
        (errno.ENOSYS, errno.ENOSYS, 0),
    ],
)
@pytest.mark.parametrize('query', [errno.ENOTTY, errno.EINVAL])
def test_what_a_driver_knows_is_found_out_whatever_it_answers_to_unknown_numbers(
    device: AxlDevice, driver: Driver, query: int, release: int, import_fd: int, level: int
) -> None:
    def refuse(argument: Any) -> None:
        number = query if isinstance(argument, axl_abi.AxlQuery) else release
        if isinstance(argument, axl_abi.AxlImportFd):
            assert argument.fd == -1
            number = import_fd
        raise OSError(number, os.strerror(number))

    driver.answer = refuse
    assert device.query().level == level


@pytest.mark.parametrize('count', [1, 64, 65, 300])
def test_a_query_brings_all_formats_however_many(
    device: AxlDevice, driver: Driver, count: int
) -> None:
    def say(query: axl_abi.AxlQuery) -> None:
        room, query.num_formats = query.num_formats, count
        query.max_in_flight, query.stride_align, query.offset_align = 4, 64, 64
        table = (axl_abi.AxlFormat * room).from_address(query.formats_ptr)
        for number in range(min(room, count)):
            table[number].fourcc, table[number].modifier = number + 1, 1 << 56

    driver.answer = say
    assert device.query().formats == tuple((number + 1, 1 << 56) for number in range(count))


@pytest.mark.parametrize(
    ('number', 'kind', 'words'),
    [
        (errno.ENOENT, AcceleratorError, 'found .*metis-0:1:0'),
        (errno.EACCES, AcceleratorError, 'group of the device node'),
        (errno.ENODEV, DeviceLostError, 'link of the card'),
    ],
)
def test_a_node_that_can_t_be_opened_is_explained(
    host: Host, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[Exception], words: str
) -> None:
    node, error = host.add_card(), OSError(number, os.strerror(number))
    monkeypatch.setattr(OwnedFd, 'open', Mock(side_effect=error))
    with pytest.raises(AcceleratorError, match=words) as raised:
        AxlDevice(node, tree=host.tree)
    assert type(raised.value) is kind
    assert f"'{node}' can't be opened: {os.strerror(number)}" in str(raised.value)


def ended(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SyncFile, 'status', lambda self: status)


@pytest.mark.parametrize('number', ADVICE, ids=lambda n: errno.errorcode.get(n, str(n)))
@pytest.mark.parametrize('name', ['submit', 'submit2'])
def test_a_job_s_errno_is_explained_as_an_ioctl_s(
    device: AxlDevice, buffer: DmaBuf, monkeypatch: pytest.MonkeyPatch, name: str, number: int
) -> None:
    fence: Any = CALLS[name](device, buffer)
    ended(-number, monkeypatch)
    with pytest.raises(kind_of(number), match=r'axl job \(import 1') as raised:
        fence.check()
    assert isinstance(raised.value, DeviceLostError) == (number in LOST)
    fence.close()


def test_a_timeout_names_its_length_and_looks_at_the_link(
    device: AxlDevice, driver: Driver, buffer: DmaBuf, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    fence = device.submit2(7, buffer, 0, 50_000, None)
    assert fence.seqno == 0x1_0000_0007
    ended(-errno.ETIMEDOUT, monkeypatch)
    with pytest.raises(AxlError) as raised:
        fence.check()
    link = 'the PCIe link of 0000:01:00.0 runs at 2.5 GT/s x4'
    for word in ('import 7, timeout 50 ms', link, 'LnkSta'):
        assert word in str(raised.value)
    host.write(host.tree.pci('0000:01:00.0'), current_link_speed='8.0 GT/s PCIe')
    with pytest.raises(AxlError, match=r'PCIe link is good now \(8 GT/s x4\)'):
        fence.check()
    fence.close()


def test_a_job_that_has_not_failed_has_no_errno(monkeypatch: pytest.MonkeyPatch) -> None:
    fence = JobFence(
        OwnedFd(os.eventfd(0)), lambda number: pytest.fail('asked for an explanation')
    )
    ended(0, monkeypatch)
    with pytest.raises(AcceleratorError, match='has not signalled'):
        fence.check()
    ended(1, monkeypatch)
    fence.check()
    fence.close()


MIXED = PlaneLayout(0, 8, 16, 64), PlaneLayout(1, 4, 8, 16), PlaneLayout(1, 32, 8, 16)
TILES = PlaneLayout(0, 64, 0, 4096), PlaneLayout(0, 8192, 7, 2048)
LAYOUTS = {
    'one buffer': compute_layout(NV12, 64, 48, stride_align=256, offset_align=4096),
    'mixed buffers': ImageLayout(8, 4, YU12, LINEAR, MIXED),
    'tiles': ImageLayout(64, 48, NV12, TILED, TILES),
}


@pytest.mark.parametrize('layout', LAYOUTS.values(), ids=LAYOUTS)
def test_an_import_says_format_modifier_size_and_each_plane_with_its_own_handle(
    device: AxlDevice, driver: Driver, allocate: Allocate, layout: ImageLayout
) -> None:
    buffers = allocate(layout)
    assert device.import_planes(layout, buffers, ImportFlags.TO_DEVICE) == 41
    ((request, said),) = driver.calls
    assert request == axl_abi.requests(None).import_planes
    for name in ('fourcc', 'modifier', 'width', 'height'):
        assert getattr(said, name) == getattr(layout, name)
    count = len(layout.planes)
    assert (said.struct_size, said.flags, said.pad) == (ctypes.sizeof(said), 1, 0)
    assert said.num_planes == count
    assert [(p.fd, p.offset, p.stride, p.size) for p in said.planes[:count]] == [
        (buffers[p.buffer].fileno(), p.offset, p.stride, p.size) for p in layout.planes
    ]
    rest = b''.join(bytes(plane) for plane in said.planes[count:])
    assert not any(rest), 'the rest is zero'


@pytest.mark.parametrize('make', [lambda path: path.touch(), os.mkfifo])
def test_what_is_no_device_is_not_taken_for_a_driver_without_ioctls(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    path = tmp_path / 'metis-0:1:0'
    make(path)
    with pytest.raises(AcceleratorError) as caught:
        AxlDevice(str(path))
    message = str(caught.value)
    assert message.startswith(
        f"parameter 'accelerator_device' is '{path}', which is no device node; it must be the "
        'device node of a Metis card ('
    )
    assert 'ENOTTY' not in message and '\n' not in message
    assert str(path) not in [
        os.path.realpath(entry) for entry in Path('/proc/self/fd').iterdir()
    ], 'while the exception still lives'


def test_a_driver_s_own_numbers_reach_its_ioctls(driver: Driver, buffer: DmaBuf) -> None:
    device = AxlDevice('/dev/null', {'import_planes': 100, 'release_import': 101})
    device.import_planes(LAYOUT, [buffer], ImportFlags.TO_DEVICE)
    device.release_import(1)
    device.import_fd(buffer, 8, 4, YU12, ImportFlags.TO_DEVICE)
    device.close()
    assert [request & 0xFF for request, _ in driver.calls] == [100, 101, 64]
    assert {request >> 8 & 0xFF for request, _ in driver.calls} == {ord('U')}


# Calls to the shipped driver about a buffer, and the meaning of its answers.


def test_a_buffer_that_is_attached_is_taken_back_and_a_detach_that_fails_is_said(
    driver: Driver, host: Host, buffer: DmaBuf
) -> None:
    node = host.add_card()
    found = probe_shipped_attach(node, buffer)
    assert (found.answer, found.number) == (Importable.YES, 0)
    assert 'can import buffers of memfd' in found.text
    (attach, given_fd), (detach, _) = driver.calls
    assert (attach, detach) == (0xC0045505, 0xC0045506), "_IOWR('U', 5, int) and 6"
    assert given_fd.value == buffer.fileno() and len({*driver.fds}) == 1, 'one open file'
    assert not buffer.mapped
    driver.refusals[axl_probe.DMA_DETACH] = errno.EBUSY
    found = probe_shipped_attach(node, buffer)
    assert found.answer is Importable.YES
    assert 'EBUSY' in found.text and 'when the device node was closed' in found.text


MEANINGS = {
    errno.ENOTTY: (Importable.UNKNOWN, "not Axelera's metis-dkms"),
    errno.EINVAL: (Importable.NO, 'no dma-buf'),
    524: (Importable.NO, 'exporter'),
    errno.EDOM: (Importable.NO, 'dmesg'),
}


@pytest.mark.parametrize('number', MEANINGS)
def test_a_refusal_is_explained_and_nothing_is_detached(
    driver: Driver, host: Host, buffer: DmaBuf, number: int
) -> None:
    driver.refusals[axl_probe.DMA_ATTACH] = number
    found = probe_shipped_attach(host.add_card(), buffer)
    answer, words = MEANINGS[number]
    assert (found.answer, found.number) == (answer, number) and '\n' not in found.text
    for word in (words, errno.errorcode.get(number, 'ENOTSUPP'), 'memfd'):
        assert word in found.text
    assert [request for request, _ in driver.calls] == [axl_probe.DMA_ATTACH]


def test_an_interruption_leaves_no_file_open(host: Host, buffer: DmaBuf, driver: Driver) -> None:
    # The exception keeps the probe's objects alive, so that garbage collection can't close them.
    driver.answer = Mock(side_effect=KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        probe_shipped_attach(host.add_card(), buffer)
    with pytest.raises(OSError, match='Bad file descriptor'):
        os.fstat(driver.fds[0])


def test_a_node_that_can_t_be_opened_answers_nothing(
    driver: Driver, host: Host, buffer: DmaBuf
) -> None:
    host.add_card()
    found = probe_shipped_attach(str(host.tree.dev / 'metis-9:9:9'), buffer, tree=host.tree)
    assert (found.answer, found.number) == (Importable.UNKNOWN, errno.ENOENT)
    assert 'found ' in found.text and 'metis-0:1:0' in found.text
    assert driver.calls == []


# Results of jobs: views of the device's own memory, in reused buffers, which are read between the
# brackets of the CPU's access.

SPECS = (
    TensorSpec('boxes', 'int16', (2, 3), 8, (0.5, 1.0, 2.0), 3, 'nhwc', ((1, 0), (0, 2))),
    TensorSpec('plain', 'uint8', (4,), 64, (1.0,), 0),
)


@pytest.fixture
def make_opened(make_opened: Callable[..., Opened]) -> Callable[..., Opened]:
    """Open accelerators with two tensors, one of them padded."""
    return partial(make_opened, manifest=replace(MANIFEST, tensors=SPECS))


@pytest.fixture
def accesses(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Return the brackets of the CPU's access: which, and to which inode."""
    events: list[tuple[str, int]] = []

    for name in ('begin', 'end'):

        def record(
            buffer: DmaBuf, access: CpuAccess, timeout_s: float = 0.0, name: str = name
        ) -> None:
            assert access == CpuAccess.READ
            events.append((name, buffer.identity.inode))

        monkeypatch.setattr(DmaBuf, f'{name}_cpu_access', record)
    return events


def run(accelerator: AxlAccelerator, frame: Frame, content: bytes = b'') -> AxlJob:
    job = accelerator.submit(accelerator.import_frame(frame), frame)
    fence: Any = job.fence
    job._result.buffer.memory(write=True)[: len(content)] = content
    fence.signal()
    return job


def test_outputs_are_the_result_s_memory_without_its_padding(
    opened: Opened, make_frame: MakeFrame
) -> None:
    accelerator, _ = opened
    written = np.arange(15, dtype=np.int16).tobytes()
    content = b'\0' * 8 + written + b'\0' * 26 + bytes([7, 8, 9, 10])
    job = run(accelerator, make_frame(), content)
    boxes, plain = job.outputs()
    assert boxes.values.tolist() == [[5, 6, 7], [10, 11, 12]]
    assert plain.values.tolist() == [7, 8, 9, 10]
    said = boxes.name, boxes.layout, boxes.zero_point, boxes.values.dtype
    assert said == ('boxes', 'nhwc', 3, np.int16)
    assert np.array_equal(boxes.scale, [0.5, 1.0, 2.0]) and plain.scale == 1.0
    assert boxes.real().tolist() == [[1.0, 3.0, 8.0], [3.5, 8.0, 18.0]]
    job._result.buffer.memory(write=True)[64] = 200
    assert plain.values[0] == 200, 'a view: what the device writes shows'
    with pytest.raises(ValueError, match='read-only'):
        plain.values[0] = 1
    job.close()


def test_views_and_mappings_are_made_once_for_each_buffer(
    make_opened: Callable[..., Opened], make_frame: MakeFrame
) -> None:
    accelerator, _ = make_opened(in_flight=1)
    frame = make_frame()
    seen = set()
    for _ in range(5):
        job = run(accelerator, frame)
        seen.add(id(job.outputs()))
        job.close()
    assert len(seen) == 1, 'the steady state allocates nothing'


@pytest.mark.parametrize(
    'end',
    [lambda job: (job.close(), job.close()), lambda job: job.abandon().close()],
    ids=['closed', 'given up'],
)
def test_the_cpu_s_access_lasts_from_outputs_to_the_job_s_end(
    opened: Opened, make_frame: MakeFrame, accesses: list[tuple[str, int]],
    end: Callable[[AxlJob], object],
) -> None:  # fmt: skip
    accelerator, _ = opened
    run(accelerator, make_frame()).close()
    job = run(accelerator, make_frame())
    assert accesses == [], 'nothing before the result is wanted'
    inode = job._result.buffer.identity.inode
    job.outputs()
    job.outputs()
    assert accesses == [('begin', inode)]
    end(job)
    assert accesses == [('begin', inode), ('end', inode)]


@pytest.mark.parametrize(
    ('state', 'words'),
    [
        ('pending', 'not signalled'),
        ('failed', 'the card says no'),
        ('closed', 'the job was closed'),
    ],
)
def test_there_is_no_result_without_success(
    opened: Opened, make_frame: MakeFrame, accesses: list[tuple[str, int]], state: str, words: str
) -> None:
    (accelerator, card), frame = opened, make_frame()
    job = accelerator.submit(accelerator.import_frame(frame), frame)
    if state != 'pending':
        card.jobs[0].signal(AcceleratorError('the card says no') if state == 'failed' else None)
    if state == 'closed':
        job.close()
    with pytest.raises(AcceleratorError, match=words):
        job.outputs()
    assert accesses == []
    card.jobs[0].signal()
    job.close()


def test_closing_twice_or_after_giving_up_gives_back_once(
    make_opened: Callable[..., Opened], make_frame: MakeFrame
) -> None:
    accelerator, card = make_opened(in_flight=2)
    frame = make_frame()
    job = run(accelerator, frame)
    job.close()
    job.close()
    late = run(accelerator, frame)
    fence = late.abandon()
    late.close()
    late.abandon()
    fence.close()
    jobs = [run(accelerator, frame) for _ in range(2)]
    assert jobs[0]._result is not jobs[1]._result, 'one buffer for two jobs'
    with pytest.raises(AcceleratorError, match=r'all 2 result buffers are in use, 0 of them.*up'):
        run(accelerator, frame)
    for each in jobs:
        each.close()
    assert len(card.jobs) == 4


def test_a_job_that_was_given_up_keeps_its_import_and_buffer_until_its_fence(
    make_opened: Callable[..., Opened], make_frame: MakeFrame
) -> None:
    """The pipeline releases the import at once; the device may still be reading."""
    accelerator, card = make_opened(in_flight=1, import_cache=False)
    frame = make_frame()
    handle = accelerator.import_frame(frame)
    fence = accelerator.submit(handle, frame).abandon()
    accelerator.release(handle)
    accelerator.tidy()
    assert card.held == {handle.number} and not fence.wait(0.0)
    for _ in range(3):
        with pytest.raises(AcceleratorError, match='1 of them by jobs that were given up'):
            run(accelerator, frame)
    assert accelerator.facts()['jobs_given_up'] == 1
    card.jobs[0].signal()
    accelerator.tidy()
    assert handle.number not in card.held
    assert accelerator.facts()['jobs_given_up'] == 0 and accelerator.facts()['jobs'] == 0
    fence.close()
    run(accelerator, frame).close()


def test_jobs_may_outlive_the_accelerator(
    make_opened: Callable[..., Opened], make_frame: MakeFrame
) -> None:
    accelerator, card = make_opened()
    frame = make_frame()
    first, second = (accelerator.submit(accelerator.import_frame(frame), frame) for _ in range(2))
    accelerator.close()
    accelerator.close()
    for fence in card.jobs:
        fence.signal(AcceleratorError('ECANCELED'))
    first.close()
    second.abandon().close()
    assert card.held == set()


def test_a_larger_model_has_larger_results(opened: Opened, make_frame: MakeFrame) -> None:
    accelerator, card = opened
    frame = make_frame()
    busy = accelerator.submit(accelerator.import_frame(frame), frame)
    larger = replace(MANIFEST, tensors=(TensorSpec('large', 'int8', (100_000,), 0, (1.0,), 0),))
    with pytest.raises(AcceleratorError, match='1 jobs are in flight'):
        accelerator.load(larger)
    card.jobs[0].signal()
    busy.close()
    accelerator.load(larger)
    job = run(accelerator, frame, bytes(range(100)) * 1000)
    assert job.outputs()[0].values[-3:].tolist() == [97, 98, 99]
    job.close()


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3), st.integers(0, 3)), min_size=1,
             max_size=4),
    st.sampled_from(['int8', 'uint8', 'int16', 'int32', 'float32']), st.integers(0, 4),
    st.booleans(),
)  # fmt: skip
def test_cutting_padding_away_is_what_numpy_s_pad_undoes(
    axes: list[tuple[int, int, int]], dtype: str, words: int, said: bool
) -> None:
    shape, padding = tuple(size for size, *_ in axes), tuple((b, a) for _, b, a in axes)
    values, offset = np.arange(np.prod(shape), dtype=dtype).reshape(shape), 4 * words
    memory = b'\xee' * offset + np.pad(values, padding, constant_values=99).tobytes() + b'\xee' * 5
    given_padding = padding if said or np.any(padding) else ()
    spec = TensorSpec('t', dtype, shape, offset, (1.0,), 0, '', given_padding)
    view = spec.view(memoryview(memory)).values
    assert view.dtype == np.dtype(dtype) and np.array_equal(view, values)
    assert not view.flags.owndata
    assert spec.offset + spec.num_bytes == len(memory) - 5


def has_heaps(monkeypatch: pytest.MonkeyPatch, **room: int) -> None:
    """Let the machine have these heaps only, with this room in bytes; none is open."""
    rooms = {f'dma_heap/{name.replace("_", ",")}': size for name, size in room.items()}

    def open_named(name: str) -> NamedHeap:
        if name not in rooms:
            raise FileNotFoundError(2, 'No such file or directory')
        return NamedHeap(name, rooms[name])

    monkeypatch.setattr(NamedHeap, 'open', 0)
    monkeypatch.setattr(heaps, '_open_named', open_named)
    monkeypatch.setattr(heaps, '_cma_heaps', lambda *_: ['dma_heap/linux,cma'])


@pytest.mark.parametrize(
    ('room', 'heap', 'words'),
    [
        ({'linux_cma': 1 << 20, 'system': 1 << 20}, 'dma_heap/linux,cma', ''),
        ({'system': 1 << 20}, 'dma_heap/system', '(this machine has no '),
        ({'linux_cma': 20_000, 'system': 1 << 20}, 'dma_heap/system', 'could not allocate 10000 '),
        ({}, None, ''),
        ({'linux_cma': 20_000, 'system': 20_000}, None, ''),
    ],
)
def test_results_come_from_cma_or_else_from_the_system_heap_which_is_said(
    monkeypatch: pytest.MonkeyPatch, room: dict[str, int], heap: str | None, words: str
) -> None:
    has_heaps(monkeypatch, **room)
    if heap is None:
        with pytest.raises(AllocationError):
            axl.open_result_heap(10_000, 4)
        assert NamedHeap.open == 0, 'nothing is left'
        return
    chosen, buffers, notice = axl.open_result_heap(10_000, 4)
    assert (chosen.name, len(buffers), NamedHeap.open) == (heap, 4, 1), 'others are closed'
    assert bool(notice) == bool(words)
    for word in (words, heap, 'IOMMU', 'CONFIG_DMABUF_HEAPS_CMA') if words else ():
        assert word in notice
    for buffer in buffers:
        buffer.close()


def test_the_accelerator_says_once_where_results_come_from(
    monkeypatch: pytest.MonkeyPatch, make_opened: Callable[..., Opened]
) -> None:
    open_result_heap = axl.open_result_heap
    accelerator, _ = make_opened()
    has_heaps(monkeypatch, system=1 << 20)
    monkeypatch.setattr(axl, 'open_result_heap', open_result_heap)
    accelerator.load(MANIFEST)
    assert 'result buffers come from dma_heap/system' in ' '.join(accelerator.notices())
    assert accelerator.facts()['result_heap'] == 'dma_heap/system'
    has_heaps(monkeypatch)
    with pytest.raises(AcceleratorError, match='no heap for result buffers'):
        accelerator.load(MANIFEST)
