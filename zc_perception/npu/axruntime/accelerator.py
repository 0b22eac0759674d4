"""The ``axruntime`` accelerator: Metis cards through the shipped Voyager runtime.

Its models take a letterboxed, quantised, padded int8 tensor and not NV12. So this way is not free of copies: each frame is read once and
its tensor written once, straight into the dma-buf that the runtime imports, booked as ``tensor``. It needs only what today's driver has.

Source: Voyager SDK, *API Reference* of ``axruntime.h``. What stands between the lines there is in the modules that this one puts together:
``library`` (the C interface), ``session`` (its objects), ``tensors`` (their memory, and how a frame becomes one), ``worker`` (threads,
which frame's result a call brings, dma-bufs or not).
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Mapping, Sequence

from zc_perception.errors import AcceleratorError, AllocationError, ConfigError, DeviceLostError
from zc_perception.frame import Frame
from zc_perception.memory.heaps import Heap, open_heap
from zc_perception.memory.ledger import CopyLedger
from zc_perception.memory.vic import Vic
from zc_perception.negotiation.constraints import BufferConstraints
from zc_perception.npu.accelerator import OUTPUT_DMABUF, Accelerator, AcceleratorOptions, Capabilities, ImportHandle
from zc_perception.npu.axruntime.session import InstanceOptions, RuntimeSession
from zc_perception.npu.axruntime.tensors import FrameToTensor, OutputSlot, Tensor, blank_tensors, check_outputs, quantised_spec
from zc_perception.npu.axruntime.worker import AxRuntimeJob, AxRuntimeWorker, LoadedModel, LoadPlan, load_best, why_no_heap
from zc_perception.npu.constraints import AXRUNTIME_JOBS, AXRUNTIME_JOBS_DOUBLE_BUFFERED, axruntime_constraints
from zc_perception.npu.manifest import ModelManifest, check_head

TENSOR_HEAP = 'dma_heap/system'
# The first time the runtime compiles a model's host code and loads firmware.
_LOAD_TIMEOUT_S = 120.0
# For another model; at the end nobody waits so long.
_UNLOAD_TIMEOUT_S = 5.0
_CLOSE_TIMEOUT_S = 1.0
# A call that has lasted so long already, and hasn't returned while the jobs in flight were waited for, will hardly do so now.
_LONG_CALL_S = 0.5
_CLOSE_TIMEOUT_IN_LONG_CALL_S = 0.5


class AxRuntimeAccelerator(Accelerator):
    """A Metis card through the runtime. It owns the session with the library, and while a model is loaded its worker.

    :meth:`submit` only queues a job. The worker's two threads convert the frame, run the model and signal the job's fence.

    :param ledger: books the pass over each frame's pixels.
    :param device: the runtime's name of the device, as ``axdevice`` lists it; empty: the first.
    :param library: path of ``libaxruntime.so``; empty: the system's.
    :param aipu_cores: AIPU cores whose memory the model may use; 0: as many as it was compiled for.
    :param double_buffer: transfers overlap with computing, for 10 to 40 % more frames per second by the SDK's documentation; results come
        two frames late, and those of the last two when nothing follows for *flush_after_s*.
    :param output_dmabuf: ``auto``: found out by trial, ``true`` or ``false``.
    :param timeout_s: twice this without an answer from the runtime, and the device counts as lost.
    :param tensor_heap: where tensors live; ``None``: ``/dev/dma_heap/system`` if it works, host memory if not.
    :param vic: scales frames in a Jetson's NvBufSurface memory; ``None``: the machine's, if it has one.
    :raises ConfigError: an option that can't be.
    :raises AcceleratorError: no runtime, or no such device.
    """

    engines = ('axruntime',)

    @classmethod
    def open(cls, options: AcceleratorOptions, ledger: CopyLedger) -> AxRuntimeAccelerator:
        """See :class:`Accelerator`."""
        return cls(
            ledger,
            device=options.device,
            library=options.library,
            aipu_cores=options.aipu_cores,
            double_buffer=options.double_buffer,
            output_dmabuf=options.output_dmabuf,
            timeout_s=options.timeout_s,
        )

    def __init__(
        self,
        ledger: CopyLedger,
        *,
        device: str = '',
        library: str = '',
        aipu_cores: int = 1,
        double_buffer: bool = False,
        output_dmabuf: str = 'auto',
        timeout_s: float = 1.0,
        flush_after_s: float = 0.05,
        tensor_heap: Heap | None = None,
        vic: Vic | None = None,
    ) -> None:
        if not 0 <= aipu_cores <= 4:
            raise ConfigError(f'aipu_cores is {aipu_cores}; a Metis chip has 4, and 0 stands for as many as the model was compiled for')
        if output_dmabuf not in OUTPUT_DMABUF:
            raise ConfigError(f"output_dmabuf is '{output_dmabuf}'; it must be auto, true or false")
        self._ledger = ledger
        self._aipu_cores = aipu_cores
        self._double_buffer = double_buffer
        self._output_dmabuf = output_dmabuf
        self._timeout_s = timeout_s
        self._flush_after_s = flush_after_s
        self._session = RuntimeSession(library, device)
        self._worker: AxRuntimeWorker | None = None
        self._loaded: LoadedModel | None = None
        self._model_properties: Mapping[str, str] = {}
        self._writer: FrameToTensor | None = None
        self._lock = threading.Lock()
        self._open_jobs = 0
        self._closed = False
        self._left_behind = False
        self._model_off = False
        self._no_heap = ''
        self._heap: Heap | None = tensor_heap
        self._vic = vic
        self._no_vic = ''
        try:
            if tensor_heap is None:
                self._open_heap()
            if vic is None:
                self._open_vic()
        except BaseException:
            self._session.close()
            raise

    def _open_heap(self) -> None:
        try:
            self._heap, _ = open_heap(TENSOR_HEAP)
            self._heap.allocate(1).close()
        except AllocationError as error:
            self._no_heap = why_no_heap(TENSOR_HEAP, error)
            if self._heap is not None:
                self._heap.close()
                self._heap = None

    def _open_vic(self) -> None:
        try:
            self._vic = Vic()
        except AllocationError as error:
            self._no_vic = str(error)

    def capabilities(self) -> Capabilities:
        """See :class:`Accelerator`."""
        return Capabilities('axruntime', self._session.device.name, copy_free=False, max_in_flight=self._max_jobs)

    @property
    def _max_jobs(self) -> int:
        return AXRUNTIME_JOBS_DOUBLE_BUFFERED if self._double_buffer else AXRUNTIME_JOBS

    def constraints(self) -> BufferConstraints:
        """See :class:`Accelerator`. Where a VIC reads the frames it makes no difference how the CPU sees them."""
        return axruntime_constraints()

    def load(self, manifest: ModelManifest) -> None:
        """See :class:`Accelerator`.

        :raises ConfigError: the model can't run here: not compiled for the runtime, other sizes than in the manifest, options it refuses.
        :raises AcceleratorError: the device is in use, or can't take it.
        :raises DeviceLostError: the runtime doesn't answer.
        """
        if self._closed:
            raise AcceleratorError('the axruntime accelerator was closed; open it anew')
        if manifest.engine != 'axruntime' or manifest.file is None:
            raise ConfigError(f"model '{manifest.name}' can't run on axruntime; it needs engine: axruntime and a file")
        if not self._unload(_UNLOAD_TIMEOUT_S):
            self._left_behind = True
            raise DeviceLostError('libaxruntime does not give the model before back; restart the node')
        self._model_off = False
        model = self._session.open_model(manifest.file, self._aipu_cores)
        try:
            if len(model.inputs) != 1:
                raise ConfigError(f"model '{manifest.file}' has {len(model.inputs)} inputs; a camera's frame is one")
            tensor = Tensor.from_info(model.inputs[0])
            outputs = [Tensor.from_info(info) for info in model.outputs]
            check_outputs(outputs, manifest.tensors)
            self._model_properties = model.properties
            spec = quantised_spec(tensor, manifest.input)
            check_head(manifest, blank_tensors(outputs, manifest.tensors))
            options = InstanceOptions(
                aipu_cores=self._aipu_cores or model.batch,
                num_sub_devices=model.batch,
                input_dmabuf=False,
                output_dmabuf=False,
                double_buffer=self._double_buffer,
            )
            plan = LoadPlan(
                model, tensor, outputs, manifest.tensors, options, self._heap, self._no_heap, self._output_dmabuf, self._max_jobs
            )
            plan.attempts()
        except BaseException:
            self._session.close_model()
            raise
        self._writer = FrameToTensor(spec, stretch=manifest.input.resize == 'stretch', ledger=self._ledger, vic=self._vic)
        self._worker = AxRuntimeWorker(
            lambda: load_best(plan), self._writer, flush_after_s=self._flush_after_s, give_back=self._model_is_off
        )
        self._loaded = self._worker.start(_LOAD_TIMEOUT_S)

    def hot_threads(self) -> Sequence[threading.Thread]:
        """See :class:`Accelerator`. One writes tensors, one waits for the runtime; the runtime's own threads are not known."""
        worker = self._worker
        return () if worker is None else worker.threads

    def tune(self, *, import_cache: bool, timeout_s: float) -> None:
        """See :class:`Accelerator`. It imports no frames."""
        self._timeout_s = timeout_s

    def submit(self, handle: ImportHandle, frame: Frame) -> AxRuntimeJob:
        """See :class:`Accelerator`."""
        worker, writer = self._worker, self._writer
        if worker is None or writer is None or self._loaded is None:
            raise AcceleratorError('the axruntime accelerator has no model loaded')
        if worker.lost is not None:
            raise DeviceLostError(str(worker.lost))
        silent_s = worker.silent_s()
        if silent_s > 2 * self._timeout_s:
            raise DeviceLostError(
                f'libaxruntime has not answered for {silent_s:.1f} s (device {self._session.device.name}): see dmesg and axdevice; '
                'if the device stays in use by this process, restart the node'
            )
        with self._lock:
            if self._open_jobs >= self._max_jobs:
                raise AcceleratorError(
                    f'{self._open_jobs} jobs are open, accelerator axruntime takes {self._max_jobs}; those given up count until they end'
                )
            self._open_jobs += 1

        def give_back(slot: OutputSlot | None) -> None:
            if slot is not None:
                worker.take_back(slot)
            with self._lock:
                self._open_jobs -= 1

        job = AxRuntimeJob(frame, writer.geometry(frame.data.width, frame.data.height), give_back)
        worker.submit(job)
        return job

    def notices(self) -> Sequence[str]:
        """See :class:`Accelerator`."""
        own = [self._writer.vic_refusal] if self._writer is not None and self._writer.vic_refusal else []
        return (*(self._loaded.notices if self._loaded is not None else ()), *own)

    def facts(self) -> Mapping[str, object]:
        """See :class:`Accelerator`."""
        facts: dict[str, object] = dict(self._session.facts())
        facts['vic'] = self._no_vic or 'ready'
        if self._worker is not None and self._loaded is not None and self._writer is not None:
            worker, options = self._worker, self._loaded.options
            facts |= {**self._model_properties, **vars(options)}
            facts |= {'late_calls': self._loaded.late, 'runs': worker.runs, 'flush_runs': worker.flush_runs, 'reloads': worker.reloads}
            facts |= {'vic_frames': self._writer.vic_frames}
        return facts

    def _model_is_off(self) -> None:
        """On the worker's run thread, at its end."""
        self._session.close_model()
        with self._lock:
            self._model_off, late = True, self._left_behind
        if late:
            self._give_all_back()

    def _unload(self, timeout_s: float) -> bool:
        """Whether the runtime is done with the model within *timeout_s*."""
        worker, writer, self._worker, self._loaded = self._worker, self._writer, None, None
        if worker is not None and not worker.stop(timeout_s):
            return False
        if writer is not None:
            writer.close()
        return True

    def _give_all_back(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._session.close()
        if self._heap is not None:
            self._heap.close()
        if self._vic is not None:
            self._vic.close()

    def close(self) -> None:
        """See :class:`Accelerator`. Jobs that were submitted run to their end.

        A call of the runtime that doesn't return within a second, or half of one if it has lasted long already, is left alone: its
        thread, its tensors and the connection stay, because the device might still write there, and a warning says so. Should it return
        later, all of that is given back then.
        """
        if self._closed:
            return
        self._closed = True
        long_call = self._worker is not None and self._worker.silent_s() > _LONG_CALL_S
        timeout_s = _CLOSE_TIMEOUT_IN_LONG_CALL_S if long_call else _CLOSE_TIMEOUT_S
        done = self._unload(timeout_s) and not self._left_behind
        with self._lock:
            # The call may have returned just now.
            done = done or self._model_off
            self._left_behind = not done
        if not done:
            warnings.warn(
                f'libaxruntime did not return from a call within {timeout_s:g} s; its thread and memory are left behind, and device '
                f'{self._session.device.name} stays in use until this process ends',
                RuntimeWarning,
                stacklevel=2,
            )
        else:
            self._give_all_back()
