"""Which frame's result a call of the runtime brings.

With double buffering a call writes the result of the call two before it, and the first two write nothing that means anything. So the calls
form a queue of fixed length: each joins at one end, and once the queue is full its result is that of the one at the other end.

Source: Voyager SDK, *Double Buffering for Performance*; the same in ``GstAxInference.cpp`` ("output for frame n is … frame n + 2").
"""

from __future__ import annotations

import ctypes
from collections import deque
from dataclasses import dataclass
from typing import Protocol

from zc_perception.npu.axruntime.abi import Argument
from zc_perception.npu.axruntime.job import AxRuntimeJob
from zc_perception.npu.axruntime.tensors import InputSlot, OutputSlot


class Runner(Protocol):
    """A model on a device."""

    def run(self, inputs: ctypes.Array[Argument], outputs: ctypes.Array[Argument]) -> None:
        """One frame; blocks."""


@dataclass
class Call:
    """A call whose result hasn't come. ``job`` is ``None`` for one that only moves the queue on."""

    job: AxRuntimeJob | None
    slot: InputSlot


class RuntimeCalls:
    """The calls of one instance, in order.

    A slot counts its calls in ``users``: it may be filled again when there are none, because a device may read an input as late as it
    computes on it.

    :param late: how many calls later a result comes; 0 or :data:`~zc_perception.npu.constraints.LATE_CALLS`.
    """

    def __init__(self, runner: Runner, late: int) -> None:
        self._runner = runner
        self._late = late
        self._waiting: deque[Call] = deque()
        self.last_input: InputSlot | None = None

    @property
    def wanted(self) -> bool:
        """Whether a job waits for further calls, and its owner for it."""
        return any(call.job is not None and call.job.wanted for call in self._waiting)

    @property
    def holds_jobs(self) -> bool:
        """Whether a job waits for further calls, be it one that was given up: it takes a place until they come."""
        return any(call.job is not None for call in self._waiting)

    def run(self, job: AxRuntimeJob | None, slot: InputSlot, outputs: OutputSlot) -> Call | None:
        """One call.

        :returns: the call whose result is in *outputs* now, its input not in use by it any more; ``None``: nothing that means anything is.
        :raises AcceleratorError: the call failed, and isn't part of the queue.
        """
        self._runner.run(slot.arguments, outputs.arguments)
        slot.users += 1
        self.last_input = slot
        self._waiting.append(Call(job, slot))
        if len(self._waiting) <= self._late:
            return None
        return self._leave()

    def _leave(self) -> Call:
        call = self._waiting.popleft()
        call.slot.users -= 1
        return call

    def restart(self, runner: Runner) -> None:
        """Go on with another instance, which has nothing inside."""
        assert not self._waiting
        self._runner = runner

    def clear(self) -> list[Call]:
        """Forget what is waiting: the instance is gone, or nobody knows any more what it will answer."""
        self.last_input = None
        return [self._leave() for _ in range(len(self._waiting))]
