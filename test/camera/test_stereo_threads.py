"""Two sides on threads of their own: pairs while both are there, nothing while one is away, pairs again, and no lease at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from zc_perception.camera.stereo import PairingRule, Side, SideCamera, StereoSides
from zc_perception.camera.supervisor import CameraState, CameraSupervisor
from zc_perception.camera.synthetic import SyntheticCamera
from zc_perception.errors import CameraLostError
from zc_perception.frame import Frame
from zc_perception.memory.heaps import SealedMemfd
from zc_perception.memory.ledger import CopyLedger
from zc_perception.negotiation.settings import BufferSettings
from zc_perception.pixel.fourcc import NV12
from zc_perception.pixel.layout import compute_layout

WAIT_S = 60.0
SIZE = (64, 64)
LEFT, RIGHT = Side.LEFT, Side.RIGHT


def eventually(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


class Run:
    """Two supervised sides on their own threads, whose cameras take a common clock's time: triggered together, jittering."""

    def __init__(self) -> None:
        self.sides = StereoSides(PairingRule(4_000_000))
        self.present = {LEFT: True, RIGHT: True}
        self.pools: list[Any] = []
        self.stamps: dict[Side, list[int]] = {LEFT: [], RIGHT: []}
        self.supervisors = {side: self._supervisor(side) for side in Side}

    def _supervisor(self, side: Side) -> CameraSupervisor:
        def deliver(frame: Frame) -> None:
            self.stamps[side].append(frame.header.stamp_ns)

        return CameraSupervisor(side.value, lambda _: self._open(side), self._prepare, deliver, first_retry_s=0.01)

    def _open(self, side: Side) -> SideCamera:
        if not self.present[side]:
            raise CameraLostError('unplugged')
        return self.sides.join(side, TriggeredCamera(self, side))

    def _prepare(self, camera: Any) -> None:
        camera.configure(BufferSettings(compute_layout(NV12, *SIZE), camera.constraints().slots))
        self.pools.append(camera.pool)

    def pairs(self) -> int:
        """Stamps that came out on both sides."""
        return len(set(self.stamps[LEFT]) & set(self.stamps[RIGHT]))


class TriggeredCamera(SyntheticCamera):
    """Exposes at multiples of 10 ms of CLOCK_MONOTONIC, and loses every 7th (left) or 5th (right) of its frames."""

    def __init__(self, run: Run, side: Side) -> None:
        super().__init__(
            *SIZE, 100.0, side.value, seed=0, pattern='bars', heap=SealedMemfd(), now_ns=time.time_ns, ledger=CopyLedger()
        )  # fmt: skip
        self._run, self._side, self._last_tick = run, side, 0

    def capture(self) -> Frame | None:
        if not self._run.present[self._side]:
            raise CameraLostError('unplugged')
        tick = time.monotonic_ns() // 10_000_000 + 1
        if self._stop.wait(max(0.0, tick / 100 - time.monotonic())):
            return None
        frame = super().capture()
        if frame is None:
            return None
        if tick % (7 if self._side is LEFT else 5) == 0 or tick <= self._last_tick:
            frame.release()
            return None
        self._last_tick = tick
        frame.data = replace(frame.data, captured_ns=tick * 10_000_000 + (tick % 3) * 500_000)
        return frame


@pytest.fixture
def run(no_fd_leak: None) -> Iterator[Run]:
    run = Run()
    try:
        yield run
    finally:
        for supervisor in run.supervisors.values():
            supervisor.stop(WAIT_S)


def test_threads_pair_lose_a_partner_and_pair_again_and_end_without_a_lease(run: Run) -> None:
    for supervisor in run.supervisors.values():
        supervisor.start()
    eventually(lambda: run.pairs() >= 20)
    for lost in Side:
        other = run.supervisors[lost.other]
        losses = other.condition.losses
        run.present[lost] = False
        eventually(lambda lost=lost: run.supervisors[lost].condition.state is CameraState.LOST)
        camera = other.camera
        assert camera is not None and not run.sides.present(lost) and run.sides.present(lost.other)
        captured, alone = camera.statistics().captured, dict(run.sides.statistics().alone)[lost.other]
        eventually(lambda camera=camera, captured=captured: camera.statistics().captured > captured + 5)
        delivered = len(run.stamps[lost.other])
        eventually(lambda lost=lost, alone=alone: dict(run.sides.statistics().alone)[lost.other] > alone + 3)
        assert len(run.stamps[lost.other]) == delivered, 'nothing comes out without a counterpart'
        assert other.camera is camera and other.condition.state is CameraState.STREAMING and other.condition.losses == losses
        run.present[lost] = True
        pairs = run.pairs()
        eventually(lambda pairs=pairs: run.pairs() >= pairs + 10)
    for supervisor in run.supervisors.values():
        supervisor.stop(WAIT_S)
    for side in Side:
        assert run.stamps[side] == sorted(set(run.stamps[side]))
    # A frame of a pair may be thrown away when its side is closed before it was published.
    assert len(set(run.stamps[LEFT]) ^ set(run.stamps[RIGHT])) <= 2 * run.sides.depth * len(run.pools)
    assert all(not pool.statistics().holders for pool in run.pools)


def test_a_side_whose_partner_never_came_streams_and_gives_nothing(run: Run) -> None:
    run.present[LEFT] = False
    supervisor = run.supervisors[RIGHT]
    supervisor.start()
    eventually(lambda: supervisor.condition.state is CameraState.STREAMING)
    assert run.stamps[RIGHT] == [] and run.sides.held(RIGHT) <= run.sides.depth
