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
A model on one core of the device, and the two threads that keep this core busy.

One thread converts frames into tensors and the other runs the model, so the next frame is
converted while the device computes one. Read :class:`AxRuntimeWorker` first. It owns a
:class:`LoadedModel`: the model that :func:`load_best` has loaded on the device, with the memory of
the model's tensors. :class:`RuntimeCalls` tracks which frame's result a call returns.

With double buffering, call n returns the result of call n - 2; the outputs of the first two calls
are meaningless. Sources: Voyager SDK, *Double Buffering for Performance*;
``GstAxInference.cpp`` ("output for frame n is … frame n + 2").

Trial runs before the first frame find out which tensors can be dma-bufs. The SDK's documentation
recommends dma-bufs for outputs, but some users got errors with them. So outputs are dma-bufs only
if a trial run works.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
import queue
import threading
import time
from typing import Any

from zc_perception.errors import (
    AcceleratorError,
    AllocationError,
    ConfigError,
    DeviceLostError,
    ZcError,
)
from zc_perception.frame import Frame
from zc_perception.memory.heaps import Heap
from zc_perception.npu.axruntime.kind import LATE_CALLS
from zc_perception.npu.axruntime.runtime import Connection, InstanceOptions
from zc_perception.npu.axruntime.tensors import FrameToTensor, InputSlot, OutputSlot, Pack
from zc_perception.npu.engine_thread import WorkedJob
from zc_perception.npu.manifest import TensorSpec

# After this many failed runs in a row the device counts as lost.
_FAILURES_OF_A_LOST_DEVICE = 3
_CLOSED = 'the accelerator was closed before the job had run'


AxRuntimeJob = WorkedJob[OutputSlot]


@dataclass
class Call:
    """
    A call to the runtime whose result hasn't come yet.

    ``job`` is ``None`` if the call was made only to get results of earlier calls.
    """

    job: AxRuntimeJob | None
    slot: InputSlot


class RuntimeCalls:
    """
    Calls that run one model on the device, in order; only the run thread uses this object.

    The device may read a call's input until the call's result comes. So each input slot counts its
    calls in ``users``, and is filled again only when no call uses it.

    :param run: makes a call: :meth:`~zc_perception.npu.axruntime.runtime.Connection.run`.
    :param late: each call returns the result of the call made *late* calls before; 0 or
        :data:`~zc_perception.npu.axruntime.kind.LATE_CALLS`.
    """

    def __init__(self, run: Callable[[Any, Any], None], late: int) -> None:
        self._run = run
        self._late = late
        self._waiting: deque[Call] = deque()
        self.last_input: InputSlot | None = None

    @property
    def wanted(self) -> bool:
        """Whether further calls are needed to get the result of a job that was not given up."""
        return any(call.job is not None and call.job.wanted for call in self._waiting)

    @property
    def holds_jobs(self) -> bool:
        """Whether further calls are needed to get the result of any job, even a given-up one."""
        return any(call.job is not None for call in self._waiting)

    def run(self, job: AxRuntimeJob | None, slot: InputSlot, outputs: OutputSlot) -> Call | None:
        """
        Run the model once: make one call to the runtime.

        :param job: the job that the call is for; ``None``: the call is a trial, or only fetches
            results of earlier calls.
        :returns: the call (this one or an earlier one) whose result is in *outputs* now;
            ``None``: *outputs* has no result.
        :raises AcceleratorError: the call failed, and will give no result.
        """
        self._run(slot.arguments, outputs.arguments)
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

    def clear(self) -> list[Call]:
        """Forget and return the calls that still wait for a result; their results are ignored."""
        self.last_input = None
        return [self._leave() for _ in range(len(self._waiting))]


def why_no_heap(name: str, error: AllocationError) -> str:
    """Return a message that says why heap *name* can't be used, with advice."""
    node = f'/dev/{name}'
    match error.__cause__:
        case FileNotFoundError():
            return (
                f'there is no {node}; enable CONFIG_DMABUF_HEAPS_SYSTEM in the kernel, and '
                f'give a container this device (--device {node})'
            )
        case PermissionError() as refusal:
            rights = (
                'let the group of this device file read it (udev rule), add the user to that '
                f'group, and give a container this device (--device {node})'
            )
            return f"{node} can't be used: {refusal.strerror}; {rights}"
        # Don't show *error*'s text: it advises to set parameter 'heap', which only cameras have.
        case OSError() as refusal:
            return f"{node} can't be used: {refusal.strerror}"
    return f"{node} can't be used: {error}"


@dataclass(frozen=True)
class LoadPlan:
    """
    The model to load on one connection (one core), and the options for loading it.

    :param pack: the session's function that packs a run's arguments.
    :param heap: the heap for tensors in dma-bufs; ``None``: no heap can be used.
    :param no_heap: the reason why no heap can be used; empty if *heap* is given.
    :param output_dmabuf: whether outputs are dma-bufs: ``auto`` (if that works), ``true`` or
        ``false``.
    :param jobs: the highest number of jobs in flight.
    """

    connection: Connection
    pack: Pack
    input: TensorSpec  # noqa: A003
    outputs: Sequence[TensorSpec]
    options: InstanceOptions
    heap: Heap | None
    no_heap: str
    output_dmabuf: str
    jobs: int

    @property
    def late(self) -> int:
        """The number of further calls after which the runtime returns a call's result."""
        return LATE_CALLS if self.options.double_buffer else 0

    def attempts(self) -> list[tuple[bool, bool]]:
        """
        Return the ways to load the model, best first.

        Each way is a pair: whether inputs are in dma-bufs, and whether outputs are in dma-bufs.

        :raises ConfigError: dma-bufs are required, but there is no heap.
        """
        if self.heap is None:
            if self.output_dmabuf == 'true':
                raise ConfigError(
                    f'output_dmabuf is true, which needs a dma-heap: {self.no_heap}; without a '
                    'heap, set output_dmabuf to auto'
                )
            return [(False, False)]
        return {
            'auto': [(True, True), (True, False), (False, False)],
            'true': [(True, True)],
            'false': [(True, False), (False, False)],
        }[self.output_dmabuf]


class LoadedModel:
    """
    A model on the device, with an input and an output slot for each job that may be in flight.

    :param options: the options of *plan*, with the choice whether inputs and outputs are dma-bufs.
    :raises ZcError: the model can't be loaded, or can't run with these kinds of memory.
    """

    def __init__(self, plan: LoadPlan, options: InstanceOptions) -> None:
        self._plan = plan
        self.options = options
        self.late = plan.late
        self.notices: tuple[str, ...] = ()
        self.inputs: list[InputSlot] = []
        self.outputs: list[OutputSlot] = []
        try:
            for _ in range(plan.jobs):
                self.inputs.append(
                    InputSlot(plan.input, plan.heap if options.input_dmabuf else None, plan.pack)
                )
                heap = plan.heap if options.output_dmabuf else None
                self.outputs.append(OutputSlot(plan.outputs, heap, plan.pack))
            plan.connection.load_instance(options)
            self.calls = RuntimeCalls(plan.connection.run, plan.late)
            for _ in range(self.late + 1):
                self._try()
        except BaseException:
            self.close()
            raise

    def _try(self) -> None:
        """Run the model once without a frame: test whether it takes the slots' kinds of memory."""
        self.calls.run(None, self.inputs[0], self.outputs[0])

    def reload(self) -> None:
        """
        Put the model on the device anew, because its state is unknown after a failed call.

        :raises ZcError: the device can't load the model.
        """
        self._plan.connection.load_instance(self.options)

    def close(self, *, lent: Collection[OutputSlot | None] = ()) -> None:
        """Take the model off the device; free the slots, but not *lent*, which jobs still use."""
        self._plan.connection.close_instance()
        for filled in self.inputs:
            filled.close()
        for results in self.outputs:
            if results not in lent:
                results.close()


def load_best(plan: LoadPlan) -> LoadedModel:
    """
    Load the model with the best kinds of memory that work.

    The returned model's ``notices`` tell the user which attempts failed, why no heap can be used,
    and by how many frames double buffering delays the results.

    :raises ConfigError: the runtime refuses the model or an option.
    :raises AcceleratorError: the device can't load the model.
    """
    notices = []
    if plan.heap is None:
        notices.append(
            'no dma-heap can be used, so tensors are in host memory, and the runtime copies them: '
            f'{plan.no_heap}'
        )
    attempts = plan.attempts()
    refused = {
        (True, True): 'output_dmabuf: results go to host memory',
        (True, False): 'input_dmabuf: all tensors are in host memory',
    }
    for attempt in attempts:
        options = replace(plan.options, input_dmabuf=attempt[0], output_dmabuf=attempt[1])
        try:
            loaded = LoadedModel(plan, options)
        except DeviceLostError:
            raise
        except ZcError as error:
            if attempt == attempts[-1]:
                if plan.output_dmabuf == 'true':
                    kind = ConfigError if isinstance(error, ConfigError) else AcceleratorError
                    raise kind(
                        f'output_dmabuf: true does not work; set output_dmabuf to auto ({error})'
                    ) from error
                raise
            notices.append(
                f'the runtime refused {refused[attempt]}, and the runtime copies them ({error})'
            )
            continue
        if plan.late:
            notices.append(
                f'double_buffer: each result comes {plan.late} frames late; set double_buffer to '
                'false if a short delay is more important than the frame rate'
            )
        loaded.notices = tuple(notices)
        return loaded
    raise AssertionError('unreachable: the last attempt returns or raises')


class AxRuntimeWorker:
    """
    Run jobs on one core of the card until :meth:`stop`; each core in use has a worker.

    The convert thread writes each frame into a tensor. The run thread makes every call to the
    runtime, from loading the model to destroying it. If a call never returns, the run thread is
    left behind with all memory that the runtime might still write to. If the call returns later,
    the thread releases that memory.

    :param load: puts the model on the device; called on the run thread.
    :param writer: converts frames into tensors; the worker owns it.
    :param flush_after_s: if no frame comes for this time in seconds while results are inside the
        runtime, the last input is run again until these results have come.
    :param give_back: called by the run thread when it ends, after it has released the model.
    """

    def __init__(
        self,
        load: Callable[[], LoadedModel],
        writer: FrameToTensor,
        *,
        flush_after_s: float,
        give_back: Callable[[], None],
    ) -> None:
        self._load = load
        self.writer = writer
        #: The number of submitted jobs that aren't over. A job is over when the worker has
        #: finished it, and its submitter has closed it or given it up.
        self.open_jobs = 0
        self._flush_after_s = flush_after_s
        self._give_back = give_back
        self._jobs: queue.SimpleQueue[AxRuntimeJob | None] = queue.SimpleQueue()
        self._ready: queue.SimpleQueue[tuple[AxRuntimeJob, InputSlot] | None] = queue.SimpleQueue()
        self._free_inputs: queue.SimpleQueue[InputSlot | None] = queue.SimpleQueue()
        self._free_outputs: queue.SimpleQueue[OutputSlot] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._lent: set[OutputSlot | None] = set()
        self._ending = False
        self._ended = False
        self._loaded = threading.Event()
        self._model: LoadedModel | None = None
        self._refusal: BaseException | None = None
        self._failures = 0
        self._call_began_ns = 0
        self.lost: DeviceLostError | None = None
        self.runs = 0
        self.flush_runs = 0
        self.reloads = 0
        self._convert_thread = threading.Thread(
            target=self._convert, name='axruntime-convert', daemon=True
        )
        self._run_thread = threading.Thread(target=self._run, name='axruntime-run', daemon=True)

    @property
    def threads(self) -> tuple[threading.Thread, threading.Thread]:
        """The convert thread and the run thread."""
        return self._convert_thread, self._run_thread

    @property
    def model(self) -> LoadedModel:
        """The loaded model; don't read it before :meth:`start` has returned."""
        assert self._model is not None
        return self._model

    def start(self, timeout_s: float) -> None:
        """
        Start both threads and load the model.

        :raises ConfigError: the runtime refuses the model.
        :raises AcceleratorError: the device can't load the model.
        :raises DeviceLostError: the runtime doesn't answer within *timeout_s*.
        """
        self._run_thread.start()
        if not self._loaded.wait(timeout_s):
            raise DeviceLostError(
                f'the Voyager runtime did not load the model within {timeout_s:g} s; see dmesg '
                'and axdevice, then restart this node'
            )
        if self._refusal is not None:
            raise self._refusal
        self._convert_thread.start()

    def submit(self, frame: Frame) -> AxRuntimeJob:
        """Queue a job. Jobs run and finish in the order of submission."""
        job = AxRuntimeJob(
            frame, self.writer.geometry(frame.data.width, frame.data.height), self._job_is_over
        )
        with self._lock:
            self.open_jobs += 1
        self._jobs.put(job)
        return job

    def _job_is_over(self, slot: OutputSlot | None) -> None:
        """
        Make a finished job's output slot available again; any thread may call this.

        If the model has been closed, release the slot's memory instead.
        """
        with self._lock:
            self.open_jobs -= 1
            self._lent.discard(slot)
            ended = self._ended
            if slot is not None and not ended:
                self._free_outputs.put(slot)
        if slot is not None and ended:
            slot.close()

    def silent_s(self) -> float:
        """Return for how many seconds a call into the runtime has lasted by now; 0: no call."""
        began = self._call_began_ns
        return (time.monotonic_ns() - began) / 1e9 if began else 0.0

    def end(self) -> None:
        """Tell the threads to finish the submitted jobs and then close the model. Idempotent."""
        if not self._ending:
            self._ending = True
            self._jobs.put(None)
            if not self._convert_thread.ident:
                self._ready.put(None)

    def stop(self, timeout_s: float) -> None:
        """Call :meth:`end`, and wait at most *timeout_s* until the threads have ended."""
        deadline = time.monotonic() + timeout_s
        self.end()
        for thread in (self._convert_thread, self._run_thread):
            if thread.ident:
                thread.join(max(0.0, deadline - time.monotonic()))
        if self._run_thread.is_alive():
            # The run thread hangs, so no slot becomes free: wake the convert thread if it waits.
            self._free_inputs.put(None)

    def _convert(self) -> None:
        while (job := self._jobs.get()) is not None:
            slot = self._free_inputs.get()
            if slot is None:
                job.finish(None, self.lost or AcceleratorError(_CLOSED))
                continue
            error = self._fill(job, slot)
            if error is None and job.wanted:
                self._ready.put((job, slot))
            else:
                self._free_inputs.put(slot)
                job.finish(None, error)
            del job
        self._ready.put(None)

    def _fill(self, job: AxRuntimeJob, slot: InputSlot) -> AcceleratorError | None:
        error: AcceleratorError | None = self.lost
        frame = job.begin_reading() if error is None else None
        if frame is not None:
            try:
                self.writer.write(frame, slot)
            except Exception as failure:
                # Keep only the text: the traceback would keep views of the frame's pixels alive.
                error = AcceleratorError(
                    f'the frame could not become a tensor: {type(failure).__name__}: {failure}'
                )
        del frame
        job.end_reading()
        return error

    def _run(self) -> None:
        try:
            try:
                self._begin_call()
                self._model = self._load()
                for slot in self._model.inputs:
                    if slot.users == 0:
                        self._free_inputs.put(slot)
                for outputs in self._model.outputs:
                    self._free_outputs.put(outputs)
            except BaseException as error:
                self._refusal = error
                return
            finally:
                self._end_call()
                self._loaded.set()
            self._work(self._model.calls)
        finally:
            with self._lock:
                self._ended, lent = True, set(self._lent)
            if self._model is not None:
                self._model.close(lent=lent)
            self.writer.close()
            self._give_back()

    def _work(self, calls: RuntimeCalls) -> None:
        while True:
            try:
                item = self._ready.get(timeout=self._flush_after_s if calls.holds_jobs else None)
            except queue.Empty:
                self._flush(calls, given_up=True)
                continue
            if item is None:
                break
            job, slot = item
            if self.lost is not None or not job.wanted:
                self._free_inputs.put(slot)
                job.finish(None, self.lost)
            else:
                self._call(calls, job, slot)
            del job, item
        self._flush(calls, given_up=False)
        self._fail(calls.clear(), self.lost or AcceleratorError(_CLOSED))

    def _flush(self, calls: RuntimeCalls, *, given_up: bool) -> None:
        while (
            (calls.holds_jobs if given_up else calls.wanted)
            and calls.last_input is not None
            and self._ready.empty()
        ):
            self.flush_runs += 1
            self._call(calls, None, calls.last_input)

    def _call(self, calls: RuntimeCalls, job: AxRuntimeJob | None, slot: InputSlot) -> None:
        outputs = self._free_outputs.get()
        try:
            self._begin_call()
            done = calls.run(job, slot, outputs)
        except AcceleratorError as error:
            self._end_call()
            self._free_outputs.put(outputs)
            self._recover(calls, job, slot, error)
            return
        self._end_call()
        self.runs += 1
        self._failures = 0
        if done is None:
            self._free_outputs.put(outputs)
            return
        self._free(done.slot)
        if done.job is None:
            self._free_outputs.put(outputs)
        else:
            with self._lock:
                self._lent.add(outputs)
            done.job.finish(outputs)

    def _recover(
        self,
        calls: RuntimeCalls,
        job: AxRuntimeJob | None,
        slot: InputSlot,
        error: AcceleratorError,
    ) -> None:
        """
        Handle a failed call: fail its job, and each job that still waits for its result.

        With double buffering, also load the model again. There, each call returns the result of
        an earlier call, and nobody knows whether the failed call will still give a result. So
        results could be assigned to the wrong frames. A new instance has no earlier calls.
        """
        self._failures += 1
        text = str(error)
        if isinstance(error, DeviceLostError) or self._failures >= _FAILURES_OF_A_LOST_DEVICE:
            self.lost = DeviceLostError(
                text
                if isinstance(error, DeviceLostError)
                else f'{self._failures} runs failed in a row: {text}'
            )
        pending = calls.clear()
        if self.lost is None and self.model.late:
            try:
                self._begin_call()
                self.model.reload()
                self.reloads += 1
            except Exception as failure:
                self.lost = DeviceLostError(
                    f'{text}; loading the model again failed as well: {failure}'
                )
            finally:
                self._end_call()
        reason = self.lost or AcceleratorError(text)
        self._fail([*pending, Call(job, slot)], reason)

    def _fail(self, calls: list[Call], error: AcceleratorError) -> None:
        # A call without a job uses the input slot of an earlier job, so several calls may share a
        # slot. Free each slot only once.
        for slot in {id(call.slot): call.slot for call in calls}.values():
            self._free(slot)
        for call in calls:
            if call.job is not None:
                call.job.finish(None, error)

    def _free(self, slot: InputSlot) -> None:
        if slot.users == 0:
            self._free_inputs.put(slot)

    def _begin_call(self) -> None:
        self._call_began_ns = time.monotonic_ns()

    def _end_call(self) -> None:
        self._call_began_ns = 0
