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

"""Makes the diagnostics of camera, buffer pool, clock, negotiation, CPU copies and latency."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
import time

from zc_perception.camera.camera import Camera, CameraStatistics
from zc_perception.camera.supervisor import CameraCondition, CameraState
from zc_perception.memory.ledger import CopyLedger, FRAME_COPIES
from zc_perception.memory.pool import BufferPool, PoolStatistics, SlotState
from zc_perception.negotiation.session import BufferSession
from zc_perception.observe.diagnostics import ERROR, Figures, OK, Part, Row, Status, WARN
from zc_perception.observe.metrics import RATE_S, RecentCount, RecentRates, StageLatencies

# Measure a camera's rate over at least the time that this many frames take at the target rate, so
# that one frame more or less does not matter.
_JUDGED_FRAMES = 10
# Report a camera that reaches less than this share of its target rate. The share is less than one
# half, because some sensors expose longer in the dark and then give half of their rate.
_FAR_BELOW = 0.45
# If a stamp is further ahead of the clock than this, the clock was set back. A smaller difference
# is jitter.
_AHEAD_NS = 10_000_000
_IF_BAD = (
    "check the camera's cable, power and bandwidth; for a video, the node's log has the numbers "
    'of the damaged frames'
)
_IF_NO_SLOT = "raise parameter 'slots', or release frames sooner: part 'pool' names the holders"
CAMERA = Part(
    'camera',
    Row(
        lambda s: s.state is CameraState.LOST,
        ERROR,
        '{reason}',
        (
            "the node tries again until the camera opens; check the camera's cable and power, and "
            'whether another program uses it'
        ),
        'the reason why the camera was lost',
    ),
    Row(
        lambda s: s.state is CameraState.FAILED,
        ERROR,
        '{reason}',
        'restart the node',
        "the error that ended the camera's thread",
    ),
    Row(lambda s: s.state is CameraState.ENDED, OK, 'ended'),
    Row(lambda s: not s.started, WARN, 'not started', 'start or activate the node'),
    Row(
        lambda s: s.state is CameraState.CLOSED,
        WARN,
        'waits for the first frame',
        "if no frame comes, look at the camera's cable and power",
    ),
    Row(
        lambda s: s.bad and (not s.captured or s.percent == 0),
        ERROR,
        'no good frame comes any more, {bad} bad frame(s) came lately',
        _IF_BAD,
    ),
    Row(
        lambda s: s.percent == 0 and s.no_slot,
        ERROR,
        'no frame comes: no slot is free, {no_slot} frame(s) were left out lately',
        _IF_NO_SLOT,
    ),
    Row(
        lambda s: s.percent == 0,
        ERROR,
        'no frame comes',
        "check the camera's cable and power, and which consumer holds its buffers (part pool)",
    ),
    Row(
        lambda s: s.percent is not None and s.percent < 100 * _FAR_BELOW,
        WARN,
        "only {percent:.0f} % of the camera's framerate comes",
        (
            'in the dark a long exposure causes this; otherwise look at the counters: they say '
            'why frames are left out'
        ),
        joins=True,
    ),
    Row(
        lambda s: s.bad,
        WARN,
        'frames left out lately: {bad} bad',
        _IF_BAD,
        see='see [videos](videos.md#damaged-and-cut-files)',
        joins=True,
    ),
    Row(
        lambda s: s.lost,
        WARN,
        'frames left out lately: {lost} lost by the driver',
        "lower the camera's rate or size, or give its bus more bandwidth",
        joins=True,
    ),
    Row(
        lambda s: s.no_slot,
        WARN,
        'frames left out lately: {no_slot} without a free slot',
        _IF_NO_SLOT,
        joins=True,
    ),
    Row(
        lambda s: s.copy_reason,
        WARN,
        'every frame is copied by the CPU: {copy_reason}',
        'use a pipeline whose last element gives dma-bufs',
        see='see [cameras](cameras.md)',
        joins=True,
    ),
    Row(
        lambda s: s.stamp_trouble,
        WARN,
        '{stamp_trouble}',
        "set 'stamps' to now, unless you compare stamps with other topics of the recording",
        'a recorded stamp is 0 or equal to the previous stamp',
        'see [recordings](cameras.md#recordings-replay)',
        joins=True,
    ),
    well='streaming',
)
POOL = Part(
    'pool',
    Row(
        lambda s: s.absent,
        WARN,
        'not configured',
        "the pool is made when the camera opens; see part 'camera'",
    ),
    Row(
        lambda s: s.exhausted,
        WARN,
        'no slot was free for {exhausted} frame(s) lately: {holders}',
        (
            'let the consumer that holds most slots release frames sooner (frame.release() or a '
            "with block), or raise parameter 'slots'"
        ),
    ),
    Row(
        lambda s: s.retired or s.fence_errors,
        WARN,
        '{retired} slot(s) were retired and {fence_errors} release fence(s) failed lately',
        'a device does not finish its work on frames: look at the accelerator and at dmesg',
    ),
    Row(
        lambda s: s.failures,
        WARN,
        'a slot could not be replaced, freed or retired: {last_failure}',
        "make room in the heap that key 'heap' names",
    ),
    Row(
        lambda s: s.abandoned,
        WARN,
        '{abandoned} frame(s) were forgotten lately, not released',
        'call frame.release(), or use the frame in a with block',
    ),
    Row(
        lambda s: s.heap == 'memfd',
        OK,
        "memfd: ordinary memory, no dma-buf; devices can't import it",
    ),
    well='dma-bufs',
)
CLOCK = Part(
    'clock',
    Row(lambda s: s.camera is None, OK, 'no camera is open'),
    Row(lambda s: s.steps or s.ahead_ns >= _AHEAD_NS, WARN, 'the ROS clock was set {times}',
        ('let chrony or ptp4l slew the clock instead (makestep only at the start); a simulated '
         'clock is also set when the simulation jumps in time or restarts')),
    Row(lambda s: s.implausible, WARN,
        ('{implausible} stamp(s) of the driver lay in the future or far in the past lately; '
         'the time of arrival counts instead'),
        "look at the driver's clock: its stamps should be CLOCK_MONOTONIC"),
    Row(lambda s: s.simulated and not s.ros_now_ns, WARN, ('use_sim_time is true, but no message '
        'of /clock has come: stamps of frames begin at 0'),
        'start the simulation or ros2 bag play --clock, or set use_sim_time: false'),
    Row(lambda s: s.simulated, OK, 'simulated'),
    well='steady',
)  # fmt: skip
NEGOTIATION = Part(
    'negotiation',
    Row(
        lambda s: s.disagreement,
        ERROR,
        '{disagreement}',
        'change what the message names, then {again}',
        'no settings suit all participants',
        "the message names the participant, format, heap or size that doesn't fit",
    ),
    Row(
        lambda s: not s.settled and s.waits,
        WARN,
        'waits for the camera',
        "part 'camera' says what the camera waits for",
    ),
    Row(lambda s: not s.settled, OK, 'no buffers are agreed on: the node is {state}'),
    Row(
        lambda s: s.lost,
        WARN,
        '{lost}: frames reach these consumers as messages, which are copies, or not at all',
        'change the settings that the message names, or start these consumers before the camera',
    ),
    well='{settings}',
)


@dataclass(frozen=True)
class CaptureInterval:
    """
    Changes of a camera's counters within the last seconds.

    :param rate: good frames per second.
    :param pace: the share of the target rate that the camera reaches; ``None``: the camera hasn't
        streamed long enough to measure it.

    The other fields: by how much the camera's counters of the same names grew.
    """

    rate: float
    captured: int = 0
    bad: int = 0
    lost: int = 0
    no_slot: int = 0
    pace: float | None = None


class CaptureCounters:
    """Sums up a camera's counters over all its openings; returns the sums' recent changes."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.openings = 0
        self.pool_events = {
            name: RecentCount(monotonic)
            for name in ('exhausted', 'abandoned', 'retired', 'fence_errors', 'failures')
        }
        self.clock_events = {name: RecentCount(monotonic) for name in ('steps', 'implausible')}
        self._recent = {
            name: RecentCount(monotonic) for name in ('captured', 'bad', 'lost', 'no_slot')
        }
        self._rate = RecentRates(monotonic)
        self._pace = RecentRates(monotonic)
        self._judged_opening = 0
        self._camera: Camera | None = None
        self._before = CameraStatistics(0, 0, 0)

    def begin(self, camera: Camera) -> None:
        """Keep the sums so far; from now on, add the counters of the newly opened *camera*."""
        self._before = self.total()
        self._camera = camera
        self.openings += 1

    def total(self) -> CameraStatistics:
        """Return the counters' sums since the node's start, also if the camera was reopened."""
        if self._camera is None:
            return self._before
        now = self._camera.statistics()
        return CameraStatistics(
            *(
                getattr(self._before, f.name) + getattr(now, f.name)
                for f in fields(CameraStatistics)
            )
        )

    def look(self, target: float) -> CaptureInterval:
        """
        Return the recent changes of the counters.

        :param target: the camera's nominal frames per second; 0: don't measure its pace, because
            it has no fixed rate or doesn't stream.
        """
        total = self.total()
        recent = {
            name: counter.see(getattr(total, name)) for name, counter in self._recent.items()
        }
        (rate,) = self._rate.see(total.captured) or (0.0,)
        pace = None
        if target <= 0 or self._judged_opening != self.openings:
            self._pace.forget()
        self._judged_opening = self.openings
        if target > 0:
            judged = self._pace.see(total.captured, over_s=max(RATE_S, _JUDGED_FRAMES / target))
            pace = None if judged is None else judged[0] / target
        return CaptureInterval(rate, **recent, pace=pace)


def camera_status(
    camera: Camera | None,
    condition: CameraCondition,
    counters: CaptureCounters,
    *,
    started: bool,
    paced: bool = True,
) -> Status:
    """Report whether the camera streams at its target rate, and how many frames were lost."""
    streaming = condition.state is CameraState.STREAMING
    interval = counters.look(
        camera.framerate if camera is not None and streaming and paced else 0.0
    )
    facts = camera.facts() if camera is not None and streaming else {}
    return CAMERA.status(
        Figures(lambda: _camera_values(camera, condition, counters, interval)),
        '' if camera is None else camera.identity,
        state=condition.state,
        reason=condition.reason,
        started=started,
        captured=interval.captured,
        bad=interval.bad,
        lost=interval.lost,
        no_slot=interval.no_slot,
        percent=None if interval.pace is None else 100 * interval.pace,
        copy_reason=facts.get('copy_reason') or '',
        stamp_trouble=facts.get('stamp_trouble') or '',
    )


def _camera_values(
    camera: Camera | None,
    condition: CameraCondition,
    counters: CaptureCounters,
    interval: CaptureInterval,
) -> dict[str, object]:
    statistics = counters.total()
    values: dict[str, object] = {
        'state': condition.state.value,
        'captured': statistics.captured,
        'dropped': statistics.dropped,
        'dropped_no_free_slot': statistics.no_slot,
        'lost_by_the_driver': statistics.lost,
        'bad': statistics.bad,
        'late': statistics.late,
        'framerate': f'{interval.rate:.2f}',
        'openings': counters.openings,
        'times_lost': condition.losses,
    }
    if camera is not None:
        values |= {
            'device': camera.device,
            'identity': camera.identity,
            'size': f'{camera.width}x{camera.height}',
            'framerate_target': f'{camera.framerate:g}',
            'framerate_least': f'{_FAR_BELOW * camera.framerate:.2f}',
            **camera.facts(),
        }
    if condition.state is CameraState.LOST:
        values |= {'attempts': condition.attempts, 'next_attempt_s': f'{condition.retry_s:.1f}'}
    return values


def negotiation_status(
    session: BufferSession | None,
    disagreement: str,
    state: str,
    *,
    waits: bool,
    renewals: int = 0,
    pause_s: float = 0.0,
) -> Status:
    """
    Report the agreement on buffers, its reasons, and how each participant gets its frames.

    :param disagreement: why participants could not agree; empty: they agreed, or didn't try yet.
    :param waits: whether the node waits for the camera; the status ``camera`` says why.
    :param renewals: how often buffers were negotiated again.
    :param pause_s: seconds without frames at the latest renewal.
    """
    if session is None or not session.settled:
        again = (
            'restart the node'
            if state == 'finalized'
            else 'configure the node again or restart it'
        )
        return NEGOTIATION.status(
            disagreement=disagreement, again=again, settled=False, waits=waits, state=state
        )
    outcomes, settings = session.outcomes(), session.settings.describe()
    values: dict[str, object] = {'settings': settings, 'because': session.why}
    values |= {f'participant {name}': str(outcome) for name, outcome in outcomes.items()}
    if renewals:
        values |= {'renegotiations': renewals, 'pause_s': f'{pause_s:.3f}'}
    lost = '; '.join(
        f'{name} {outcome}' for name, outcome in outcomes.items() if not outcome.has_buffers
    )
    return NEGOTIATION.status(values, disagreement='', settled=True, lost=lost, settings=settings)


def pool_status(camera: Camera | None, counters: CaptureCounters) -> Status:
    """Report the pool's failures, and which consumer holds how many slots for how long."""
    pool, found = (None, None) if camera is None else (camera.pool, camera.pool_statistics())
    if camera is None or pool is None or found is None:
        return POOL.status(absent=True)
    heap = camera.heap_name
    return POOL.status(
        Figures(lambda: _pool_values(found, pool, heap)),
        camera.identity,
        absent=False,
        heap=heap,
        holders=_holders(pool),
        last_failure=found.last_failure,
        **{
            name: counter.see(getattr(found, name))
            for name, counter in counters.pool_events.items()
        },
    )


def _holders(pool: BufferPool) -> str:
    """Describe how many slots each consumer holds; the holder of most slots comes first."""
    slots: dict[str, set[int]] = {}
    longest: dict[str, float] = {}
    for holding in pool.holdings():
        slots.setdefault(holding.holder, set()).add(holding.index)
        longest[holding.holder] = max(longest.get(holding.holder, 0.0), holding.held_s)
    ordered = sorted(slots, key=lambda holder: (-len(slots[holder]), -longest[holder]))
    return (
        ', '.join(
            f'{holder} holds {len(slots[holder])} slot(s), the longest for {longest[holder]:.2f} s'
            for holder in ordered
        )
        or 'no consumer holds a slot'
    )


def _pool_values(found: PoolStatistics, pool: BufferPool, heap: str) -> dict[str, object]:
    return {
        'heap': heap,
        'slots': found.slots,
        'free': found.states.get(SlotState.FREE, 0),
        'waiting_for_fences': found.states.get(SlotState.WAITING, 0),
        'holders': _holders(pool),
        'promised': ', '.join(f'{holder}: {number}' for holder, number in found.quotas.items()),
        'reserve': found.reserve,
        'refused_by_quota': ', '.join(
            f'{holder}: {number}' for holder, number in found.refused_by_quota.items()
        ),
        'exhausted': found.exhausted,
        'abandoned_leases': found.abandoned,
        'taken_back': found.revoked,
        'retired': found.retired,
        'fence_errors': found.fence_errors,
        **{
            f'slot {holding.index}': f'{holding.holder} for {holding.held_s:.3f} s'
            for holding in reversed(pool.holdings())
        },
    }


def clock_status(camera: Camera | None, counters: CaptureCounters, ros_now_ns: int) -> Status:
    """
    Report how the driver's clock compares with the ROS clock.

    :param ros_now_ns: the ROS time; 0 while no simulated time was received.
    """
    if camera is None:
        return CLOCK.status(camera=None)
    clock = camera.clock.statistics()
    steps, implausible = (
        counters.clock_events[name].see(getattr(clock, name)) for name in ('steps', 'implausible')
    )
    times = f'{steps} time(s) lately' if steps else 'back'
    if clock.ahead_ns:
        times += f', stamps are {clock.ahead_ns / 1e6:.1f} ms ahead until the ROS clock catches up'
    values = Figures(lambda: {
        'clock_offset_ns': clock.offset_ns,
        'clock_jitter_ns': clock.jitter_ns,
        'clock_steps': clock.steps,
        'stamps_corrected': clock.corrected,
        'stamps_ahead_ns': clock.ahead_ns,
        'stamps_implausible': clock.implausible,
        'simulated': clock.simulated,
    })  # fmt: skip
    return CLOCK.status(
        values,
        camera.identity,
        camera=camera,
        steps=steps,
        times=times,
        ahead_ns=clock.ahead_ns,
        implausible=implausible,
        simulated=clock.simulated,
        ros_now_ns=ros_now_ns,
    )


def copies_status(ledger: CopyLedger) -> Status:
    """Report how often the CPU copied pixels; Frame.copy() and Frame.bgr() count, too."""
    return Status(
        'copies',
        OK,
        'how often the CPU read or wrote pixels in this process',
        Figures(
            lambda: {
                reason: f'{entry.count} ({entry.bytes} bytes)'
                for reason, entry in (ledger.entries() | FRAME_COPIES.entries()).items()
            }
        ),
    )


def copy_facts(ledger: CopyLedger) -> dict[str, dict[str, int]]:
    """Return, for the frame log, number and bytes of the CPU's copies, with the reason as key."""
    return {
        reason: {'count': entry.count, 'bytes': entry.bytes}
        for reason, entry in ledger.entries().items()
    }


def latency_status(latencies: StageLatencies) -> Status:
    """Report median and 99th percentile of each stage's latency."""
    values = Figures(
        lambda: {
            f'{stage}_ms': f'p50 {p.p50:.3f}, p99 {p.p99:.3f}'
            for stage, p in latencies.summary().items()
        }
    )
    return Status('latency', OK, 'latency of each stage', values)
