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

"""Helpers of the pool's tests: buffers that count closings, an allocator that can fail."""

from __future__ import annotations

from collections.abc import Callable
import time
from types import SimpleNamespace
from typing import Any

import pytest

from zc_perception.memory import pool as pool_module
from zc_perception.memory.dmabuf import DmaBuf
from zc_perception.memory.heaps import SealedMemfd
from zc_perception.memory.pool import BufferPool, Lease, Slot
from zc_perception.pixel.fourcc import NV12
from zc_perception.pixel.layout import compute_layout

SMALL = compute_layout(NV12, 16, 16)
PATIENCE_S = 60.0
#: For pools whose slots should time out in a test.
TIMEOUT_S = 0.02


def after_timeout() -> None:
    time.sleep(1.5 * TIMEOUT_S)


class CountedBuffer(DmaBuf):
    closes = 0

    def close(self) -> None:
        self.closes += 1
        super().close()


class CountingAllocator:
    """Makes the buffer of one slot; all of them stay in ``made``."""

    def __init__(self) -> None:
        self.made: list[CountedBuffer] = []
        self.failure: Exception | None = None

    def __call__(self) -> tuple[DmaBuf, ...]:
        if self.failure is not None:
            raise self.failure
        plain = SealedMemfd().allocate(SMALL.buffer_size(0))
        self.made.append(CountedBuffer(plain.dup(), plain.kind, plain.heap))
        plain.close()
        return (self.made[-1],)

    @property
    def closes(self) -> list[int]:
        return [buffer.closes for buffer in self.made]


def counted_pool(slots: int = 3, **options: Any) -> tuple[BufferPool, CountingAllocator]:
    allocator = CountingAllocator()
    options.setdefault('release_timeout_s', 60.0)
    return BufferPool(SMALL, allocator, slots, name='camera', **options), allocator


def stop_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Stop the pools' clock, so nothing times out; return a function that advances it."""
    now = [time.monotonic()]
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr(pool_module, 'time', clock)

    def pass_time(seconds: float) -> None:
        now[0] += seconds

    return pass_time


def acquired(pool: BufferPool) -> Slot:
    slot = pool.acquire()
    assert slot is not None, pool.describe_holders()
    return slot


def leased(pool: BufferPool, slot: Slot | None = None, holder: str = 'npu') -> Lease:
    slot = slot or acquired(pool)
    lease = pool.lease(slot, slot.generation, holder)
    assert lease is not None
    return lease


def closes(slot: Slot) -> int:
    buffer = slot.buffers[0]
    assert isinstance(buffer, CountedBuffer)
    return buffer.closes
