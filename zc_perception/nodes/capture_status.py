"""What diagnostics say of a camera, its pool and the copies of its process."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, fields

from zc_perception.camera.camera import Camera, CameraStatistics
from zc_perception.camera.supervisor import CameraCondition, CameraState
from zc_perception.memory.ledger import CopyLedger
from zc_perception.memory.pool import SlotState
from zc_perception.observe.diagnostics import Level, Status

# A rate is judged over so many frames that were due, and so long at least: a period more or less must not matter.
_JUDGED_FRAMES = 10
_JUDGED_S = 1.0
# Of the target. Sensors that expose longer in the dark give half of their rate on purpose.
_FAR_BELOW = 0.45


@dataclass(frozen=True)
class CaptureInterval:
    """What came since the last look.

    :param rate: good frames per second.
    :param captured: good frames.
    :param bad: see :class:`CameraStatistics`.
    :param lost: likewise.
    :param no_slot: likewise.
    :param pace: of the target rate, over the last stretch of streaming that was long enough to judge; ``None``: none was yet.
    """

    rate: float
    captured: int = 0
    bad: int = 0
    lost: int = 0
    no_slot: int = 0
    pace: float | None = None


class CaptureCounters:
    """Sums a camera's counters over its openings, and says what came between two looks.

    :param monotonic: seconds.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.openings = 0
        self._monotonic = monotonic
        self._stretch: tuple[int, float, int] | None = None
        self._pace: float | None = None
        self._camera: Camera | None = None
        self._before = CameraStatistics(0, 0, 0)
        self._looked_at = (monotonic(), self._before)

    def begin(self, camera: Camera) -> None:
        """A camera was opened, maybe anew."""
        self._before = self.total()
        self._camera = camera
        self.openings += 1

    def total(self) -> CameraStatistics:
        """Since start."""
        if self._camera is None:
            return self._before
        now = self._camera.statistics()
        return CameraStatistics(*(getattr(self._before, f.name) + getattr(now, f.name) for f in fields(CameraStatistics)))

    def look(self, target: float) -> CaptureInterval:
        """What came since the last call.

        :param target: frames per second that a streaming camera should give; 0: there is none, or it doesn't stream.
        """
        then, before = self._looked_at
        now, total = self._monotonic(), self.total()
        self._looked_at = (now, total)
        self._judge(now, total.captured, target)
        captured = total.captured - before.captured
        return CaptureInterval(
            captured / max(1e-3, now - then),
            captured,
            total.bad - before.bad,
            total.lost - before.lost,
            total.no_slot - before.no_slot,
            self._pace,
        )

    def _judge(self, now: float, captured: int, target: float) -> None:
        if target <= 0 or self._stretch is None or self._stretch[0] != self.openings:
            self._pace = None
            self._stretch = (self.openings, now, captured) if target > 0 else None
            return
        _, since, before = self._stretch
        if now - since < max(_JUDGED_S, _JUDGED_FRAMES / target):
            return
        self._pace = (captured - before) / (now - since) / target
        self._stretch = (self.openings, now, captured)


def camera_status(
    camera: Camera | None, condition: CameraCondition, counters: CaptureCounters, *, started: bool, paced: bool = True
) -> Status:
    """Whether it streams, and what was lost since the last look.

    :param paced: whether it should keep its rate; else its consumers make the pace.
    """
    statistics = counters.total()
    streaming = condition.state is CameraState.STREAMING
    interval = counters.look(camera.framerate if camera is not None and streaming and paced else 0.0)
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
        }
        clock = camera.clock.statistics()
        values |= {
            'clock_offset_ns': clock.offset_ns,
            'clock_jitter_ns': clock.jitter_ns,
            'clock_steps': clock.steps,
            'stamps_corrected': clock.corrected,
            'stamps_implausible': clock.implausible,
            **camera.facts(),
        }
    if condition.state is CameraState.LOST:
        values |= {'attempts': condition.attempts, 'next_attempt_s': f'{condition.retry_s:.1f}'}
        return Status('camera', Level.ERROR, f'{condition.reason}; tried again until it works', values)
    if condition.state is CameraState.FAILED:
        return Status('camera', Level.ERROR, f'{condition.reason}; restart the node', values)
    if condition.state is CameraState.ENDED:
        return Status('camera', Level.OK, 'ended', values)
    if not started:
        return Status('camera', Level.WARN, 'not started', values)
    if condition.state is CameraState.CLOSED:
        return Status('camera', Level.WARN, 'waits for the first frame', values)
    return Status('camera', *_verdict(interval, str(values.get('copy_reason') or '')), values)


def _verdict(interval: CaptureInterval, copy_reason: str) -> tuple[Level, str]:
    """Of a camera that streams.

    :param copy_reason: why the CPU copies every frame; empty: it doesn't.
    """
    if interval.bad and not interval.captured:
        return Level.ERROR, f'no good frame: all {interval.bad} since the last look are bad; look at its cable, power and bandwidth'
    if interval.pace == 0:
        return Level.ERROR, 'no frame comes; look at its cable and power, and at who holds its buffers'
    complaints = []
    if interval.bad:
        complaints.append(f'{interval.bad} bad')
    if interval.lost:
        complaints.append(f'{interval.lost} lost by the driver')
    if interval.no_slot:
        complaints.append(f"{interval.no_slot} without a free slot (raise parameter 'slots', or release frames sooner)")
    text = f'frames left out since the last look: {", ".join(complaints)}' if complaints else ''
    if interval.pace is not None and interval.pace < _FAR_BELOW:
        slow = f'only {100 * interval.pace:.0f} % of its framerate comes'
        text = f'{slow}; {text}' if text else slow
    if copy_reason:
        text = f'{text}; ' if text else ''
        text += f'every frame is copied by the CPU: {copy_reason}'
    return (Level.WARN, text) if text else (Level.OK, 'streaming')


def pool_status(camera: Camera | None) -> Status:
    """Slots and who holds them."""
    pool = None if camera is None else camera.pool_statistics()
    if pool is None or camera is None:
        return Status('pool', Level.WARN, 'not configured')
    values = {
        'heap': camera.heap_name,
        'slots': pool.slots,
        'free': pool.states.get(SlotState.FREE, 0),
        'holders': pool.holders,
        'exhausted': pool.exhausted,
        'ending': pool.ending,
        'abandoned_leases': pool.abandoned,
        'retired': pool.retired,
    }
    if pool.abandoned:
        return Status('pool', Level.WARN, 'frames were forgotten, not released: call release() or use with', values)
    if camera.heap_name == 'memfd':
        return Status('pool', Level.OK, "memfd: ordinary memory, no dma-buf; devices can't import it", values)
    return Status('pool', Level.OK, 'dma-bufs', values)


def copies_status(ledger: CopyLedger) -> Status:
    """The ledger."""
    return Status('copies', Level.OK, 'passes of the CPU over pixels in this process', {
        reason: f'{entry.count} ({entry.bytes} bytes)' for reason, entry in ledger.entries().items()
    })  # fmt: skip
