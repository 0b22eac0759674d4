"""Two threads that keep the runtime busy: one writes tensors, one runs them, so that the next frame is converted while one computes."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

from zc_perception.errors import AcceleratorError, DeviceLostError
from zc_perception.npu.axruntime.calls import Call, RuntimeCalls
from zc_perception.npu.axruntime.input import FrameWriter
from zc_perception.npu.axruntime.job import AxRuntimeJob
from zc_perception.npu.axruntime.loading import LoadedModel
from zc_perception.npu.axruntime.tensors import InputSlot, OutputSlot

# A device that fails this many runs one after the other doesn't come round by itself.
_FAILURES_OF_A_LOST_DEVICE = 3
_CLOSED = 'the accelerator was closed before the job had run'


class AxRuntimeWorker:
    """Owns a loaded model and runs jobs on it until :meth:`stop`.

    The run thread makes every call of the runtime, from loading the model to destroying it; should one never return, that thread is left
    behind with everything that the runtime might still write to, and gives it back if the call ever does.

    :param load: puts the model on the device; called on the run thread.
    :param flush_after_s: when no frame comes for so long and results are still inside the runtime, the last input is run again until
        they are out.
    :param give_back: called on the run thread at its end, after the model is gone.
    """

    def __init__(
        self, load: Callable[[], LoadedModel], writer: FrameWriter, *, flush_after_s: float, give_back: Callable[[], None]
    ) -> None:
        self._load = load
        self._writer = writer
        self._flush_after_s = flush_after_s
        self._give_back = give_back
        self._jobs: queue.SimpleQueue[AxRuntimeJob | None] = queue.SimpleQueue()
        self._ready: queue.SimpleQueue[tuple[AxRuntimeJob, InputSlot] | None] = queue.SimpleQueue()
        self._free_inputs: queue.SimpleQueue[InputSlot | None] = queue.SimpleQueue()
        self._free_outputs: queue.SimpleQueue[OutputSlot] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._lent: set[OutputSlot] = set()
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
        self._convert_thread = threading.Thread(target=self._convert, name='axruntime-convert', daemon=True)
        self._run_thread = threading.Thread(target=self._run, name='axruntime-run', daemon=True)

    @property
    def threads(self) -> tuple[threading.Thread, threading.Thread]:
        """Both."""
        return self._convert_thread, self._run_thread

    def start(self, timeout_s: float) -> LoadedModel:
        """Load the model.

        :raises ConfigError: the runtime refuses it.
        :raises AcceleratorError: the device can't take it.
        :raises DeviceLostError: the runtime doesn't answer within *timeout_s*.
        """
        self._run_thread.start()
        if not self._loaded.wait(timeout_s):
            raise DeviceLostError(f'libaxruntime did not load the model within {timeout_s:g} s; see dmesg and axdevice, restart this node')
        if self._refusal is not None:
            raise self._refusal
        assert self._model is not None
        self._convert_thread.start()
        return self._model

    def submit(self, job: AxRuntimeJob) -> None:
        """Queue a job. Jobs run and finish in this order."""
        self._jobs.put(job)

    def take_back(self, slot: OutputSlot) -> None:
        """A job's output slot is free again. Any thread. Results that outlive the model end here."""
        with self._lock:
            self._lent.discard(slot)
            ended = self._ended
            if not ended:
                self._free_outputs.put(slot)
        if ended:
            slot.close()

    def silent_s(self) -> float:
        """For how long the runtime has been in the call that it is in; 0 between calls."""
        began = self._call_began_ns
        return (time.monotonic_ns() - began) / 1e9 if began else 0.0

    def stop(self, timeout_s: float) -> bool:
        """Finish what was submitted, give the model back.

        :returns: whether both threads ended within *timeout_s*.
        """
        deadline = time.monotonic() + timeout_s
        self._jobs.put(None)
        if not self._convert_thread.ident:
            self._ready.put(None)
        for thread in (self._convert_thread, self._run_thread):
            if thread.ident:
                thread.join(max(0.0, deadline - time.monotonic()))
        if self._run_thread.is_alive():
            # No slot will come any more for a job that waits for one.
            self._free_inputs.put(None)
        return not (self._convert_thread.is_alive() or self._run_thread.is_alive())

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
        frame = job.begin_conversion() if error is None else None
        if frame is not None:
            try:
                self._writer.write(frame, slot)
            except Exception as failure:
                # Only the text: the traceback would keep views of the frame's pixels alive.
                error = AcceleratorError(f'the frame could not become a tensor: {type(failure).__name__}: {failure}')
        del frame
        job.end_conversion()
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
        while (calls.holds_jobs if given_up else calls.wanted) and calls.last_input is not None and self._ready.empty():
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

    def _recover(self, calls: RuntimeCalls, job: AxRuntimeJob | None, slot: InputSlot, error: AcceleratorError) -> None:
        """A call failed. Whether it took part in the runtime's own queue nobody knows: results that are still inside would come out
        under wrong names, so that the instance is loaded anew."""
        assert self._model is not None
        self._failures += 1
        text = str(error)
        if isinstance(error, DeviceLostError) or self._failures >= _FAILURES_OF_A_LOST_DEVICE:
            self.lost = DeviceLostError(text if isinstance(error, DeviceLostError) else f'{self._failures} runs failed in a row: {text}')
        pending = calls.clear()
        if self.lost is None and self._model.late:
            try:
                self._begin_call()
                self._model.reload()
                self.reloads += 1
            except Exception as failure:
                self.lost = DeviceLostError(f'{text}; loading the model anew failed as well: {failure}')
            finally:
                self._end_call()
        reason = self.lost or AcceleratorError(text)
        self._fail([*pending, Call(job, slot)], reason)

    def _fail(self, calls: list[Call], error: AcceleratorError) -> None:
        # Calls that only moved the queue on share the slot of a job.
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
