"""What diagnostics say of a camera, its pool and the copies of its process."""

from __future__ import annotations

import time
from dataclasses import fields

from zc_perception.camera.camera import Camera, CameraStatistics
from zc_perception.camera.supervisor import CameraCondition, CameraState
from zc_perception.memory.ledger import CopyLedger
from zc_perception.memory.pool import SlotState
from zc_perception.observe.diagnostics import Level, Status


class CaptureCounters:
    """Sums a camera's counters over its openings, and measures its rate between two looks."""

    def __init__(self) -> None:
        self.openings = 0
        self._camera: Camera | None = None
        self._before = CameraStatistics(0, 0, 0)
        self._looked_at = (time.monotonic(), 0)

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

    def rate(self) -> float:
        """Frames per second since the last call."""
        then, before = self._looked_at
        now, captured = time.monotonic(), self.total().captured
        self._looked_at = (now, captured)
        return (captured - before) / max(1e-3, now - then)


def camera_status(camera: Camera | None, condition: CameraCondition, counters: CaptureCounters, *, started: bool) -> Status:
    """Whether it streams, and what was lost."""
    statistics = counters.total()
    values: dict[str, object] = {
        'state': condition.state.value,
        'captured': statistics.captured,
        'dropped': statistics.dropped,
        'dropped_no_free_slot': statistics.no_slot,
        'lost_by_the_driver': statistics.lost,
        'bad': statistics.bad,
        'late': statistics.late,
        'framerate': f'{counters.rate():.2f}',
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
    return Status('camera', Level.OK, 'streaming', values)


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
