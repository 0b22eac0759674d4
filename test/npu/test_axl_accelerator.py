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
The axl accelerator as a whole, on cards that only count.

What it says about itself, and what it does when the card fails.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
import threading
from typing import Any

from npu.card_kit import CountingCard, Opened
from npu.host_tree import Host
from npu.scheduler_kit import MakeFrame
import pytest

from zc_perception.errors import AcceleratorError, DeviceLostError
from zc_perception.frame import Frame
from zc_perception.memory.fence import EventFence, SyncFile
from zc_perception.npu.axl.accelerator import AxlAccelerator, AxlJob
from zc_perception.npu.axl.device import AxlGoneError
from zc_perception.pixel.fourcc import NV12
from zc_perception.pixel.modifier import INVALID

pytestmark = pytest.mark.usefixtures('no_fd_leak')
GOOD_LINK = {'current_link_speed': '8.0 GT/s PCIe', 'current_link_width': '4'}


# What it says of itself.


def test_a_good_card_needs_no_notice(make_opened: Callable[..., Opened], host: Host) -> None:
    node = host.add_card(**GOOD_LINK)
    accelerator, card = make_opened(device='', tree=host.tree, axl_ioctls=['submit=70'])
    assert list(accelerator.notices()) == [] and card.numbers == {'submit': 70}
    facts = accelerator.facts()
    assert {
        name: facts[name]
        for name in (
            'device',
            'pci_address',
            'pcie_link',
            'driver_level',
            'max_in_flight',
            'result_heap',
        )
    } == {
        'device': node,
        'pci_address': '0000:01:00.0',
        'pcie_link': '8 GT/s x4',
        'driver_level': 2,
        'max_in_flight': 4,
        'result_heap': 'memfd',
    }
    assert (
        facts['imports'],
        facts['import_cache'],
        facts['release_errors'],
        facts['last_release_error'],
    ) == (0, '0 of 512', 0, '')


def test_a_slow_or_unreadable_link_is_a_notice_and_seen_as_it_is_now(
    make_opened: Callable[..., Opened], host: Host
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
    make_opened: Callable[..., Opened], host: Host
) -> None:
    host.add_card(**GOOD_LINK)
    host.add_card('0004:01:00.0', 'metis-4:1:0', port='0000:00:1d.0', **GOOD_LINK)
    accelerator, _ = make_opened(device='', tree=host.tree)
    (notice,) = accelerator.notices()
    assert (
        'there are 2 Metis cards' in notice
        and "'accelerator_device'" in notice
        and '0004:01:00.0' in notice
    )
    named, _ = make_opened(device='04:01:00.0', tree=host.tree)
    assert list(named.notices()) == [] and named.capabilities().device.endswith('metis-4:1:0')


def test_an_older_driver_is_a_notice(make_opened: Callable[..., Opened], host: Host) -> None:
    host.add_card(**GOOD_LINK)
    accelerator, _ = make_opened(device='', tree=host.tree, level=1)
    (notice,) = accelerator.notices()
    assert 'only ioctls 64 to 66' in notice and 'tight LINEAR' in notice


def test_a_driver_without_our_ioctls_names_them_and_the_way_out(host: Host) -> None:
    """A node answers ENOTTY to everything, as the shipped driver does to our ioctls."""
    node = host.add_card(**GOOD_LINK)
    with pytest.raises(AcceleratorError) as refused:
        AxlAccelerator(AxlAccelerator.own({}), tree=host.tree)
    text = str(refused.value)
    assert f'the driver of {node} has no import and submit ioctls (ENOTTY)' in text
    assert (
        'accelerator: axruntime' in text
        and 'onnx' in text
        and "'axl_ioctls'" in text
        and '\n' not in text
    )


def test_no_card_is_said_before_anything_is_opened(host: Host) -> None:
    with pytest.raises(AcceleratorError, match='no Metis card'):
        AxlAccelerator(AxlAccelerator.own({}), tree=host.tree)


# Imports and jobs.


def test_an_import_is_not_released_under_a_job_that_was_given_up(
    make_opened: Callable[..., Opened], make_frame: MakeFrame
) -> None:
    """The pipeline releases the import at that moment; the device may still be reading."""
    accelerator, card = make_opened(import_cache=False)
    frame = make_frame()
    handle = accelerator.import_frame(frame)
    job = accelerator.submit(handle, frame)
    fence = job.abandon()
    accelerator.release(handle)
    accelerator.tidy()
    assert card.held == {handle.number}
    card.jobs[0].signal()
    accelerator.tidy()
    assert card.held == set()
    fence.close()


@pytest.mark.parametrize('cached', [True, False])
def test_an_import_ends_with_its_last_job(
    make_opened: Callable[..., Opened], make_frame: MakeFrame, make_pool: Any, cached: bool
) -> None:
    accelerator, card = make_opened(import_cache=cached)
    pool = make_pool()
    frame = make_frame(pool)
    handle = accelerator.import_frame(frame)
    jobs = [accelerator.submit(handle, frame) for _ in range(2)]
    frame.release()
    pool.close()  # the camera is gone
    accelerator.release(handle)
    accelerator.tidy()
    assert card.held == {1}
    for fence, job in zip(card.jobs, jobs, strict=True):
        assert card.held == {1}
        fence.signal()
        job.close()
    assert card.held == set()


def test_jobs_have_the_driver_s_number(
    make_opened: Callable[..., Opened], make_frame: MakeFrame
) -> None:
    accelerator, card = make_opened()
    jobs = [submit(accelerator, make_frame()) for _ in range(3)]
    assert [job.device_seqno for job in jobs] == [1, 2, 3]
    end(card, *jobs)


def test_a_submit_that_is_refused_holds_nothing(
    make_opened: Callable[..., Opened], make_frame: MakeFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    accelerator, card = make_opened(import_cache=False, in_flight=1)
    frame = make_frame()

    def refuse(*_: object) -> None:
        raise AcceleratorError('EBUSY')

    for _ in range(3):
        handle = accelerator.import_frame(frame)
        with monkeypatch.context() as patch:
            patch.setattr(card, 'submit2', refuse)
            with pytest.raises(AcceleratorError, match='EBUSY'):
                accelerator.submit(handle, frame)
        accelerator.release(handle)
    assert card.held == set() and accelerator.facts()['jobs'] == 0


def test_an_import_that_fails_is_not_counted(
    make_opened: Callable[..., Opened], make_frame: MakeFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    for cached in (True, False):
        accelerator, card = make_opened(import_cache=cached)

        def refuse(*_: object) -> int:
            raise AcceleratorError('EINVAL')

        with monkeypatch.context() as patch:
            patch.setattr(card, 'import_planes', refuse)
            with pytest.raises(AcceleratorError, match='EINVAL'):
                accelerator.import_frame(make_frame())
        assert accelerator.imports == 0


def test_level_1_imports_tight_images_and_says_why_not_others(
    make_opened: Callable[..., Opened], make_pool: Any, make_frame: MakeFrame
) -> None:
    accelerator, card = make_opened(level=1)
    tight = {'stride_align': 1, 'offset_align': 1}
    for layout, good in (
        (tight, True),
        ({'stride_align': 256}, False),
        ({**tight, 'buffer_per_plane': True}, False),
    ):
        frame = make_frame(make_pool(fourcc=NV12, layout=layout))
        if good:
            assert accelerator.import_frame(frame).number in card.held
        else:
            with pytest.raises(
                AcceleratorError, match='imports only tight LINEAR images in one buffer, not NV12'
            ) as refused:
                accelerator.import_frame(frame)
            assert 'stride alignment' in str(refused.value)
    pool = make_pool(fourcc=NV12, layout=tight)
    with pytest.raises(
        AcceleratorError, match=r'not NV12 INVALID .* let the camera give LINEAR images'
    ):
        accelerator.trial_import(replace(pool.layout, modifier=INVALID), pool.slots[0].buffers)


# Nobody reads a frame before its acquire fence: the driver waits where it can, else we do, and an
# error costs that frame.


class Scripted(SyncFile):
    """A sync_file whose wait and status a test says."""

    def __init__(self, signals: bool = True, error: str = '') -> None:
        self.waits: list[float] = []
        self._signals, self._error = signals, error

    def wait(self, timeout_s: float) -> bool:
        self.waits.append(timeout_s)
        return self._signals

    def check(self) -> None:
        if self._error:
            raise AcceleratorError(self._error)


def submit(accelerator: AxlAccelerator, frame: Frame) -> AxlJob:
    return accelerator.submit(accelerator.import_frame(frame), frame)


def end(card: CountingCard, *jobs: AxlJob) -> None:
    for fence, job in zip(card.jobs, jobs, strict=True):
        fence.signal()
        job.close()


def test_a_driver_that_can_waits_for_the_sync_file_itself(
    make_opened: Callable[..., Opened], make_frame: MakeFrame
) -> None:
    accelerator, card = make_opened()
    fence = Scripted(signals=False)
    job = submit(accelerator, make_frame(acquire_fence=fence))
    assert card.submitted == [fence] and fence.waits == [], 'nobody waits on the CPU'
    end(card, job)


@pytest.mark.parametrize('kind', ['an eventfd', 'a sync_file and an older driver'])
def test_any_other_fence_has_signalled_before_the_job_starts(
    make_opened: Callable[..., Opened], make_frame: MakeFrame, kind: str
) -> None:
    accelerator, card = make_opened(level=2 if kind == 'an eventfd' else 1, timeout=60.0)
    fence: Any = EventFence() if kind == 'an eventfd' else Scripted()
    frame = make_frame(acquire_fence=fence)
    if kind == 'an eventfd':
        signaller = threading.Timer(0.03, fence.signal)
        signaller.start()
    job = submit(accelerator, frame)
    assert card.submitted == [None] and fence.wait(0.0)
    if kind == 'an eventfd':
        signaller.join()
        fence.close()
    else:
        assert fence.waits[0] == 60.0, 'as long as a job may take'
    end(card, job)


@pytest.mark.parametrize('level', [1, 2])
@pytest.mark.parametrize('problem', ['failed', 'never'])
def test_a_fence_that_fails_or_never_signals_costs_its_frame_and_no_result_buffer(
    make_opened: Callable[..., Opened], make_frame: MakeFrame, problem: str, level: int
) -> None:
    accelerator, card = make_opened(level=level, timeout=0.01)
    for _ in range(10):  # more than there are result buffers
        fence = EventFence()
        if problem == 'failed':
            fence.signal(RuntimeError('the camera lost it'))
        frame = make_frame(acquire_fence=fence)
        with pytest.raises(
            AcceleratorError,
            match='the camera lost it'
            if problem == 'failed'
            else 'acquire fence did not signal in time',
        ):
            submit(accelerator, frame)
        frame.release()
        fence.close()
    assert card.submitted == []
    jobs = [submit(accelerator, make_frame()) for _ in range(4)]
    assert card.submitted == [None] * 4
    end(card, *jobs)


def test_a_frame_that_the_card_reads_is_never_mapped(
    make_opened: Callable[..., Opened], make_pool: Any, make_frame: MakeFrame
) -> None:
    accelerator, card = make_opened()
    pool = make_pool()
    for slot in pool.slots:
        accelerator.trial_import(slot.layout, slot.buffers)
    frame = make_frame(pool)
    job = submit(accelerator, frame)
    end(card, job)
    frame.release()
    assert not any(buffer.mapped for slot in pool.slots for buffer in slot.buffers)


# What may change while it runs.


def run_one(accelerator: AxlAccelerator, card: CountingCard, frame: Frame) -> None:
    handle = accelerator.import_frame(frame)
    job = accelerator.submit(handle, frame)
    card.jobs[-1].signal()
    job.close()
    accelerator.release(handle)


def test_the_cache_goes_off_and_on_and_imports_are_counted_on(
    opened: Opened, make_frame: MakeFrame
) -> None:
    accelerator, card = opened
    with make_frame() as frame:
        for cached, imports, held in ((True, 1, 1), (False, 4, 0), (True, 5, 1)):
            accelerator.tune({'import_cache': cached, 'timeout': 1.0})
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


def test_the_timeout_is_that_of_the_jobs_which_come(opened: Opened, make_frame: MakeFrame) -> None:
    accelerator, card = opened
    with make_frame() as frame:
        run_one(accelerator, card, frame)
        accelerator.tune({'import_cache': True, 'timeout': 0.25})
        run_one(accelerator, card, frame)
    assert card.timeouts_us == [1_000_000, 250_000]


# A card that goes away.


def test_an_accelerator_closes_without_a_word_when_its_card_is_gone(
    make_opened: Callable[..., Opened], make_frame: MakeFrame
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


def test_an_accelerator_opened_anew_knows_no_import_of_the_old_one(
    make_opened: Callable[..., Opened], make_frame: MakeFrame
) -> None:
    first, _ = make_opened()
    frame = make_frame()
    first.import_frame(frame)
    first.close()
    second, card = make_opened()
    assert second.facts()['epoch'] != first.facts()['epoch']
    assert (second.import_frame(frame).number, second.imports, card.made) == (1, 1, 1)
