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
The ``axruntime`` accelerator: Metis cards through Axelera's Voyager runtime.

Compiled models take a letterboxed, quantised, padded int8 tensor and not NV12. So this accelerator
is not free of copies: the CPU reads each frame once, and writes its tensor once, directly into the
dma-buf that the runtime imports. The ledger counts this pass as ``tensor``. This accelerator
works with the kernel driver that Axelera ships.

Axelera's Python package ``axelera.runtime`` is preferred. The C library is used if the package
can't be imported, or if parameter ``axruntime_library`` names the library. Diagnostics show which
of the two is used (``interface``), and why the package is not used (``python_binding``).

Source: Voyager SDK, *API Reference* of ``axruntime.h`` and of ``axelera.runtime``. The modules
``runtime``, ``binding``, ``library``, ``tensors`` and ``worker`` explain what the reference
doesn't say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import threading
import time
from typing import Any
import warnings

from zc_perception.detection.tensor import QuantisedTensorSpec
from zc_perception.errors import AcceleratorError, AllocationError, ConfigError, DeviceLostError
from zc_perception.frame import Frame
from zc_perception.jetson.vic import Vic
from zc_perception.memory.heaps import Heap, open_heap
from zc_perception.memory.ledger import CopyLedger
from zc_perception.negotiation.constraints import BufferConstraints
from zc_perception.npu.accelerator import Capabilities, ImportHandle
from zc_perception.npu.axruntime.binding import (
    AxmEngine,
    BindingSession,
    import_binding,
    MODULE,
    SUFFIX,
)
from zc_perception.npu.axruntime.kind import AXRUNTIME, AxRuntime, CONSTRAINTS, JOBS, jobs
from zc_perception.npu.axruntime.library import mismatches
from zc_perception.npu.axruntime.runtime import InstanceOptions, RuntimeSession, Session
from zc_perception.npu.axruntime.tensors import FrameToTensor, named_outputs, quantised_spec
from zc_perception.npu.axruntime.worker import (
    AxRuntimeJob,
    AxRuntimeWorker,
    load_best,
    LoadPlan,
    why_no_heap,
)
from zc_perception.npu.engine_thread import EngineJob, EngineThread
from zc_perception.npu.manifest import check_head, ModelManifest
from zc_perception.npu.metis_card import driver_version

TENSOR_HEAP = 'dma_heap/system'
# The longest time for loading a model. At the first load the runtime also loads firmware, and
# before release 1.8 it compiles a part of the model.
_LOAD_TIMEOUT_S = 120.0
# The longest time that load() waits until the previous model is unloaded; close() waits less.
_UNLOAD_TIMEOUT_S = 5.0
_CLOSE_TIMEOUT_S = 1.0
# If the runtime hasn't returned from a call for this long when close() begins, it will probably
# never return, so close() waits less for it.
_LONG_CALL_S = 0.5
_CLOSE_TIMEOUT_IN_LONG_CALL_S = 0.5


class AxRuntimeAccelerator(AxRuntime):
    """
    A Metis card that is used through the Voyager runtime.

    The accelerator owns the session with the runtime and, while a model is loaded, one worker for
    each core. :meth:`submit` only queues a job, at the worker of the core with the fewest jobs.
    The worker's two threads convert the frame, run the model and signal the job's fence.

    If the runtime doesn't return from a call within twice the value of parameter ``timeout``, the
    device counts as lost. With double buffering, transfers overlap with computing. According to
    the SDK's documentation, this gives 10 to 40 % more frames per second. But results come two
    frames late. If no further frame comes, the last two results are fetched after *flush_after_s*
    seconds.

    :param ledger: counts the bytes of each frame that the CPU reads.
    :param tensor_heap: the heap for tensors; ``None``: ``/dev/dma_heap/system`` if that works,
        else host memory.
    :param vic: the Jetson's image converter (VIC), which scales frames in NvBufSurface memory;
        ``None``: open the machine's VIC, if it has one.
    :raises AcceleratorError: there is no runtime, or no such device.
    """

    def __init__(
        self,
        ledger: CopyLedger,
        values: Mapping[str, Any],
        *,
        flush_after_s: float = 0.05,
        tensor_heap: Heap | None = None,
        vic: Vic | None = None,
    ) -> None:
        self._ledger = ledger
        self._values = values
        self._num_cores = values['aipu_cores'] or 1
        self._timeout_s = values['timeout']
        self._flush_after_s = flush_after_s
        self._why_no_binding = ''
        self._session = self._open_session()
        # One worker for each core that runs the model. After a failed load, these are workers
        # that haven't ended yet.
        self._workers: list[AxRuntimeWorker] = []
        self._loaded = False
        # The thread that runs the model, if it is an .axm; workers run only other models.
        self._axm: EngineThread | None = None
        self._model_properties: Mapping[str, str] = {}
        self._notices: tuple[str, ...] = ()
        self._lock = threading.Lock()
        self._vic_lock = threading.Lock()
        # The number of workers that haven't ended, plus 1 until close(). At 0, the session, the
        # heap and the VIC are closed.
        self._holders = 1
        self._running_workers = 0
        self._closed = False
        self._no_heap = ''
        self._heap: Heap | None = tensor_heap
        self._vic = vic
        self._no_vic = ''
        try:
            if tensor_heap is None:
                self._open_heap()
            if vic is None:
                try:
                    self._vic = Vic()
                except AllocationError as error:
                    self._no_vic = str(error)
        except BaseException:
            self._session.close()
            raise

    def _open_session(self) -> Session:
        library, device = self._values['axruntime_library'], self._values['accelerator_device']
        if library:
            self._why_no_binding = 'axruntime_library names the C library'
            return RuntimeSession(library, device)
        try:
            import_binding()
        except AcceleratorError as error:
            self._why_no_binding = str(error)
        else:
            return BindingSession(device)
        try:
            return RuntimeSession('', device)
        except AcceleratorError as error:
            raise AcceleratorError(f'{error} ({self._why_no_binding})') from error

    def _open_heap(self) -> None:
        try:
            self._heap, _ = open_heap(TENSOR_HEAP)
            self._heap.allocate(1).close()
        except AllocationError as error:
            self._no_heap = why_no_heap(TENSOR_HEAP, error)
            if self._heap is not None:
                self._heap.close()
                self._heap = None

    def capabilities(self) -> Capabilities:
        return Capabilities(
            'axruntime', self._session.device.name, copy_free=False, max_in_flight=self._max_jobs
        )

    @property
    def _max_jobs(self) -> int:
        # An .axm file runs on one core, without double buffering.
        return JOBS if self._axm is not None else jobs(self._values)

    def constraints(self) -> BufferConstraints:
        return CONSTRAINTS

    def load(self, manifest: ModelManifest) -> None:
        """
        Load a model onto each core in use, see :meth:`Accelerator.load`.

        :raises ConfigError: the model isn't compiled for the runtime, its sizes differ from the
            manifest's, or the runtime refuses an option for loading it.
        :raises AcceleratorError: the device is in use, or can't load the model.
        :raises DeviceLostError: the runtime doesn't return from a call.
        """
        if self._closed:
            raise AcceleratorError('the axruntime accelerator was closed; open it anew')
        if manifest.engine != AXRUNTIME.name or manifest.file is None:
            raise ConfigError(
                f"model '{manifest.name}' can't run on axruntime; use a manifest with "
                "'engine: axruntime' and with key 'file'"
            )
        self._unload(_UNLOAD_TIMEOUT_S)
        if self._holders > 1 or self._axm is not None:
            raise DeviceLostError(
                'the Voyager runtime does not release the previous model; restart the node'
            )
        try:
            self._load(manifest)
        except (AcceleratorError, ConfigError) as error:
            too_old = self._mismatches()
            if not too_old:
                raise
            raise type(error)('; '.join((str(error), *too_old))) from error

    def _load_axm(self, manifest: ModelManifest) -> None:
        session = self._session
        if not isinstance(session, BindingSession):
            raise ConfigError(
                f"model '{manifest.file}' needs the Python package {MODULE}, which this "
                f'node does not use: {self._why_no_binding}'
            )
        self._axm, device = EngineThread('axruntime-axm', self._ledger), session.device.name
        self._axm.load(lambda: AxmEngine(manifest, device, session.release), _LOAD_TIMEOUT_S)
        self._model_properties = {}
        one_core = (
            f'aipu_cores: {self._num_cores} is for a model.json; an {SUFFIX} runs on one core'
        )
        self._notices = (*self._mismatches(), *([one_core] if self._num_cores > 1 else ()))

    def _load(self, manifest: ModelManifest) -> None:
        assert manifest.file is not None
        if manifest.file.suffix == SUFFIX:
            self._load_axm(manifest)
            return
        session = self._session
        model = session.open_model(manifest.file, self._num_cores)
        try:
            if len(model.inputs) != 1:
                raise ConfigError(
                    f"model '{manifest.file}' has {len(model.inputs)} inputs; a camera's frame "
                    'is only one input'
                )
            tensor = model.inputs[0]
            outputs = named_outputs(model.outputs, manifest.tensors)
            self._model_properties = model.properties
            spec = quantised_spec(tensor, manifest.input)
            check_head(manifest, [output.blank() for output in outputs])
            options = InstanceOptions(double_buffer=self._values['double_buffer'])
            plans = [
                LoadPlan(
                    connection, session.pack, tensor, outputs, options, self._heap, self._no_heap,
                    self._values['output_dmabuf'], jobs({**self._values, 'aipu_cores': 1}),
                )
                for connection in model.connections
            ]  # fmt: skip
            plans[0].attempts()
        except BaseException:
            session.close_model()
            raise
        try:
            for plan in plans:
                self._start_worker(plan, spec, stretch=manifest.input.resize == 'stretch')
        except BaseException:
            for worker in self._workers:
                worker.end()
            raise
        self._loaded = True
        about_cores = (
            f'aipu_cores: {self._num_cores}: each core runs frames of its own; set in_flight to '
            f'{self._max_jobs}, so that no core has to wait'
        )
        self._notices = (
            *self._mismatches(),
            *dict.fromkeys(notice for worker in self._workers for notice in worker.model.notices),
            *([about_cores] if self._num_cores > 1 else ()),
        )

    def _mismatches(self) -> list[str]:
        device = self._session.device
        return mismatches(
            self._session.release, driver_version(), device.firmware, device.board_controller
        )

    def _start_worker(self, plan: LoadPlan, spec: QuantisedTensorSpec, *, stretch: bool) -> None:
        writer = FrameToTensor(
            spec, stretch=stretch, ledger=self._ledger, vic=self._vic, vic_lock=self._vic_lock
        )
        worker = AxRuntimeWorker(
            lambda: load_best(plan),
            writer,
            flush_after_s=self._flush_after_s,
            give_back=self._worker_has_ended,
        )
        self._workers.append(worker)
        with self._lock:
            self._holders += 1
            self._running_workers += 1
        try:
            worker.start(_LOAD_TIMEOUT_S)
        except BaseException:
            # If the worker's run thread never started, it can't report the worker's end.
            if worker.threads[1].ident is None:
                self._workers.remove(worker)
                self._worker_has_ended()
            raise

    @property
    def _running(self) -> Sequence[AxRuntimeWorker]:
        return self._workers if self._loaded else ()

    @property
    def _silent_s(self) -> float:
        """The seconds since the runtime's longest-running call began; 0: no call runs."""
        axm = 0.0 if self._axm is None else self._axm.silent_s()
        return max(axm, *(worker.silent_s() for worker in self._workers), 0.0)

    def hot_threads(self) -> Sequence[threading.Thread]:
        """
        Return the threads that frames wait for, see :meth:`Accelerator.hot_threads`.

        For an ``.axm`` model this is one thread. For other models these are two threads for each
        core of the card: one writes tensors, and one calls the runtime. The runtime's own threads
        are not returned, because this package can't find them.
        """
        if self._axm is not None:
            return self._axm.threads
        return tuple(thread for worker in self._running for thread in worker.threads)

    def tune(self, values: Mapping[str, Any]) -> None:
        self._values, self._timeout_s = values, values['timeout']

    def submit(self, handle: ImportHandle, frame: Frame) -> AxRuntimeJob | EngineJob:
        workers = self._running
        if not (workers or self._axm):
            raise AcceleratorError('the axruntime accelerator has no model loaded')
        for worker in workers:
            if worker.lost is not None:
                raise DeviceLostError(str(worker.lost))
        silent_s = self._silent_s
        if silent_s > 2 * self._timeout_s:
            raise DeviceLostError(
                f'the Voyager runtime has not answered for {silent_s:.1f} s (device '
                f'{self._session.device.name}): see dmesg and axdevice; '
                'if the device stays in use by this process, restart the node'
            )
        if self._axm is not None:
            return self._axm.submit(frame)
        open_jobs = [worker.open_jobs for worker in workers]
        if sum(open_jobs) >= self._max_jobs:
            raise AcceleratorError(
                f'{sum(open_jobs)} jobs are open, but accelerator axruntime takes at most '
                f'{self._max_jobs}; jobs that were given up count until they end'
            )
        return workers[open_jobs.index(min(open_jobs))].submit(frame)

    def notices(self) -> Sequence[str]:
        refusals = dict.fromkeys(
            worker.writer.vic_refusal for worker in self._running if worker.writer.vic_refusal
        )
        given, needed = self._values['in_flight'], self._max_jobs
        waits = (
            'with double_buffer a result comes only after later frames were submitted, but '
            f'in_flight {given} lets too few frames in; set in_flight to {needed}'
        )
        short = self._values['double_buffer'] and self._axm is None and given < needed
        return (*self._notices, *refusals, *([waits] if short else ()))

    def facts(self) -> Mapping[str, object]:
        facts: dict[str, object] = dict(self._session.facts())
        facts['python_binding'] = self._why_no_binding or 'used'
        facts['driver'] = driver_version() or 'unknown'
        facts['vic'] = self._no_vic or 'ready'
        if workers := self._running:
            model = workers[0].model
            facts |= {
                **self._model_properties,
                **vars(model.options),
                'aipu_cores': len(workers),
                'late_calls': model.late,
            }
            for count in ('runs', 'flush_runs', 'reloads'):
                facts[count] = sum(getattr(worker, count) for worker in workers)
            facts['vic_frames'] = sum(worker.writer.vic_frames for worker in workers)
        return facts

    def _worker_has_ended(self) -> None:
        """
        Note that a worker has ended; after the last one, close the model.

        The worker's run thread calls this, or :meth:`load` if that thread never started.
        """
        with self._lock:
            self._running_workers -= 1
            last = not self._running_workers
        try:
            if last:
                self._session.close_model()
        finally:
            # Decrement _holders only after close_model(), in which the runtime may hang. Otherwise
            # close() could meanwhile decrement _holders to 0 and close the session; the thread
            # that calls close() would then hang in the runtime.
            with self._lock:
                self._holders -= 1
                left = self._holders
            if not left:
                self._give_all_back()

    def _unload(self, timeout_s: float) -> None:
        """Stop the workers; wait at most *timeout_s* until the runtime has released the model."""
        workers, self._workers, self._loaded = self._workers, [], False
        until = time.monotonic() + timeout_s
        if self._axm is not None and self._axm.close(timeout_s):
            self._axm = None
        for worker in workers:
            worker.end()
        for worker in workers:
            worker.stop(max(0.0, until - time.monotonic()))

    def _give_all_back(self) -> None:
        self._session.close()
        if self._heap is not None:
            self._heap.close()
        if self._vic is not None:
            self._vic.close()

    def close(self) -> None:
        """
        Let the submitted jobs end, then close the device, see :meth:`Accelerator.close`.

        A call to the runtime that still runs gets 1 s to return, or 0.5 s if it has already lasted
        0.5 s. If it doesn't return, its thread, its tensors and the session are left behind with a
        warning, because the device might still write to the tensors. They are released if the call
        returns later.
        """
        if self._closed:
            return
        long_call = self._silent_s > _LONG_CALL_S
        timeout_s = _CLOSE_TIMEOUT_IN_LONG_CALL_S if long_call else _CLOSE_TIMEOUT_S
        self._unload(timeout_s)
        with self._lock:
            self._closed = True
            self._holders -= 1
            left = self._holders
        if left or self._axm is not None:
            warnings.warn(
                f'the Voyager runtime did not return from a call within {timeout_s:g} s; its '
                'thread and memory are left behind, and device '
                f'{self._session.device.name} stays in use until this process ends',
                RuntimeWarning,
                stacklevel=2,
            )
        else:
            self._give_all_back()
