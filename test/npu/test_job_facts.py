"""What a frame's record needs of its job: when it was submitted, the driver's number of it, and which job it was that failed."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable
from typing import Any

import pytest
from npu.card_kit import Opened
from npu.host_tree import Host
from npu.scheduler_kit import SHORT_S, Bench, Factory, MakeFrame, eventually

from zc_perception.errors import AcceleratorError, DeviceLostError
from zc_perception.frame import Frame
from zc_perception.memory.heaps import SealedMemfd
from zc_perception.npu.axl import device as axl_device
from zc_perception.npu.axl.device import AxlDevice
from zc_perception.npu.scheduler import InFlight

pytestmark = pytest.mark.usefixtures('no_fd_leak')


class Told:
    """What the scheduler had to say of the job while it reported a failure."""

    def __init__(self, bench: Bench) -> None:
        self.jobs: list[tuple[int, InFlight | None]] = []
        self.bench = bench
        report = bench.scheduler._on_error

        def look(frame: Frame, error: Exception) -> None:
            self.jobs.append((frame.data.sequence, bench.scheduler.failing))
            report(frame, error)

        bench.scheduler._on_error = look

    def only(self) -> tuple[int, InFlight | None]:
        eventually(lambda: len(self.bench.errors) == 1 and self.bench.scheduler.failing is None)
        (job,) = self.jobs
        return job


def test_the_time_of_the_submit_lies_between_taking_and_its_fence(start: Callable[..., Bench]) -> None:
    bench = start()
    times: list[tuple[int, int, int]] = []
    bench.on_result = lambda entry: times.append((entry.received_ns, entry.submitted_ns, entry.signalled_ns))
    bench.accelerator.instant_all = True
    began_ns = time.monotonic_ns()
    bench.feed(0, 1, 2)
    eventually(lambda: len(bench.results) == 3)
    assert all(began_ns < received <= submitted <= signalled < time.monotonic_ns() for received, submitted, signalled in times)


def test_a_failed_job_is_known_while_it_is_reported(start: Callable[..., Bench]) -> None:
    bench = start()
    told = Told(bench)
    bench.feed(7)
    bench.accelerator.finish(0, AcceleratorError('no'))
    sequence, entry = told.only()
    assert sequence == 7 and entry is not None and (entry.handle.number, entry.submitted_ns > 0) == (1, True)


def test_a_late_job_too(start: Callable[..., Bench]) -> None:
    bench = start(timeout_s=SHORT_S)
    told = Told(bench)
    bench.feed(3)
    sequence, entry = told.only()
    assert sequence == 3 and entry is not None and entry.job is bench.accelerator.jobs[0]


def test_and_those_that_are_lost_with_their_device(start: Callable[..., Bench]) -> None:
    bench = start(reopen=Factory(), in_flight=2)
    told = Told(bench)
    bench.feed(0, 1)
    eventually(lambda: len(bench.accelerator.jobs) == 2)
    bench.accelerator.finish(0, DeviceLostError('gone'))
    eventually(lambda: len(bench.errors) == 2)
    assert [(sequence, entry is not None and entry.handle.number) for sequence, entry in told.jobs] == [(0, 1), (1, 2)]


@pytest.mark.parametrize('where', ['import_errors', 'submit_errors'])
def test_a_frame_that_the_device_never_had_has_no_job(start: Callable[..., Bench], where: str) -> None:
    bench = start()
    told = Told(bench)
    getattr(bench.accelerator, where).append(AcceleratorError('no'))
    bench.feed(5)
    assert told.only() == (5, None)


def test_jobs_of_axl_have_the_driver_s_number(opened: Opened, make_frame: MakeFrame) -> None:
    accelerator, _ = opened
    frame = make_frame()
    handle = accelerator.import_frame(frame)
    jobs = [accelerator.submit(handle, frame) for _ in range(3)]
    assert [job.device_seqno for job in jobs] == [1, 2, 3]
    for job in jobs:
        job.close()


@pytest.mark.parametrize(('name', 'expected'), [('submit2', 0x1_0000_0007), ('submit', 0)])
def test_the_number_is_that_which_the_ioctl_gave(monkeypatch: pytest.MonkeyPatch, host: Host, name: str, expected: int) -> None:
    def answer(fd: int, request: int, argument: Any) -> int:
        """``struct axl_submit2``: fence_fd at 28, seqno at 40; ``struct axl_submit``: fence_fd at 16."""
        size = request >> 16 & 0x3FFF
        memory = memoryview(argument).cast('B')
        struct.pack_into('<i', memory, 28 if size == 48 else 16, os.eventfd(0))
        if size == 48:
            struct.pack_into('<Q', memory, 40, expected)
        return 0

    monkeypatch.setattr(axl_device.fcntl, 'ioctl', answer)
    device, buffer = AxlDevice(host.add_card(), tree=host.tree), SealedMemfd().allocate(4096)
    fence = device.submit2(1, buffer, 0, 1000, None) if name == 'submit2' else device.submit(1, buffer, 0, 1000)
    assert fence.seqno == expected
    fence.close()
    buffer.close()
    device.close()
