"""Jobs of the axl accelerator and the buffers that their results are written to."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence

import numpy as np

from zc_perception.detection.letterbox import Letterbox
from zc_perception.detection.raw_tensor import RawTensor
from zc_perception.errors import AcceleratorError, AllocationError
from zc_perception.memory.dmabuf import CpuAccess, DmaBuf
from zc_perception.memory.fence import SyncFile
from zc_perception.memory.heaps import Heap, HeapUse, is_contiguous, open_heap
from zc_perception.npu.accelerator import Outputs
from zc_perception.npu.axl.fence import JobFence
from zc_perception.npu.import_cache import ImportsInUse
from zc_perception.npu.manifest import TensorSpec

_FALLBACK = 'dma_heap/system'


def result_size(specs: Sequence[TensorSpec]) -> int:
    """Bytes of the result buffer that these tensors lie in."""
    return max(spec.offset + spec.num_bytes for spec in specs)


def tensor_view(memory: memoryview, spec: TensorSpec) -> RawTensor:
    """The tensor in *memory*, without its padding: a view, nothing is copied."""
    written = np.frombuffer(memory, spec.dtype, math.prod(spec.padded_shape), spec.offset).reshape(spec.padded_shape)
    return spec.raw(written[spec.inside])


def open_result_heap(size: int, count: int) -> tuple[Heap, list[DmaBuf], str]:
    """*count* result buffers from the best heap that has room for all of them: CMA, or else the system heap.

    :returns: the heap, the buffers, and a sentence worth saying when it is no CMA heap.
    :raises AllocationError: no heap has.
    """
    heap, reasons = open_heap(use=HeapUse.NPU_RESULT)
    try:
        buffers = allocate_results(heap, size, count)
    except AllocationError as error:
        if not is_contiguous(heap.name):
            raise
        reasons = [*reasons, str(error)]
        heap = open_heap(_FALLBACK)[0]
        buffers = allocate_results(heap, size, count)
    if is_contiguous(heap.name):
        return heap, buffers, ''
    return heap, buffers, (
        f'result buffers come from {heap.name} instead of a CMA heap ({"; ".join(reasons)}): their pages are scattered, which is fine '
        'behind an IOMMU only; without one, enable CONFIG_DMABUF_HEAPS_CMA and reserve memory (cma=64M)'
    )  # fmt: skip


def allocate_results(heap: Heap, size: int, count: int) -> list[DmaBuf]:
    """*count* buffers, or none and a closed heap.

    :raises AllocationError: there is no room for all.
    """
    buffers: list[DmaBuf] = []
    try:
        for _ in range(count):
            buffers.append(heap.allocate(size))
    except BaseException:
        for buffer in buffers:
            buffer.close()
        heap.close()
        raise
    return buffers


class ResultBuffer:
    """A result's memory; mapped at its first result and not again, as are the views of its tensors."""

    def __init__(self, buffer: DmaBuf, specs: Sequence[TensorSpec]) -> None:
        self.buffer = buffer
        self._specs = specs
        self._tensors: tuple[RawTensor, ...] = ()

    def tensors(self) -> tuple[RawTensor, ...]:
        """Views of the mapping, the same at each call."""
        if not self._tensors:
            memory = self.buffer.memory()
            self._tensors = tuple(tensor_view(memory, spec) for spec in self._specs)
        return self._tensors

    def close(self) -> None:
        """Unmap and close it; memory that somebody still looks at stays until he doesn't."""
        self._tensors = ()
        with contextlib.suppress(BufferError):
            self.buffer.close()


class ResultBuffers:
    """One buffer for each job in flight. Those of jobs that were given up come back once their fences have signalled.

    :param jobs: told when a job that was given up doesn't read its import any more.
    """

    def __init__(self, heap: Heap, buffers: Sequence[DmaBuf], specs: Sequence[TensorSpec], jobs: ImportsInUse) -> None:
        self.heap = heap
        self._jobs = jobs
        self._all = [ResultBuffer(buffer, specs) for buffer in buffers]
        self._spare = list(self._all)
        self._late: list[tuple[SyncFile, Callable[[], None]]] = []
        self._closed = False

    @property
    def busy(self) -> int:
        """Buffers that jobs have."""
        return len(self._all) - len(self._spare)

    @property
    def late(self) -> int:
        """Of these, those of jobs that were given up."""
        return len(self._late)

    def take(self) -> ResultBuffer:
        """A buffer that no job writes.

        :raises AcceleratorError: there is none.
        """
        self.collect()
        if not self._spare:
            raise AcceleratorError(
                f'all {len(self._all)} result buffers are in use, {len(self._late)} of them by jobs that were given up; close jobs sooner'
            )
        return self._spare.pop()

    def collect(self) -> None:
        """Take back what jobs have ended with that were given up. Cheap when there are none."""
        for entry in self._late[:]:
            fence, ended = entry
            if fence.wait(0.0):
                self._late.remove(entry)
                fence.close()
                ended()

    def give_back(self, result: ResultBuffer, handle: int) -> None:
        """A job is done with it, and with its import."""
        if not self._closed:
            self._spare.append(result)
            self._jobs.let_go(handle)

    def give_back_late(self, result: ResultBuffer, handle: int, fence: SyncFile) -> None:
        """A job will be done with both when *fence*, owned from here on, has signalled."""
        if self._closed:
            fence.close()
        else:
            self._late.append((fence, lambda: self.give_back(result, handle)))

    def close(self) -> None:
        """Close all; the driver keeps what its jobs still write. A second call does nothing."""
        self._closed = True
        for fence, _ in self._late:
            fence.close()
        self._late.clear()
        for result in self._all:
            result.close()
        self.heap.close()


class AxlJob:
    """A submitted frame; holds its import and a result buffer until it is closed, or given up and ended."""

    def __init__(self, fence: JobFence, handle: int, result: ResultBuffer, results: ResultBuffers, box: Letterbox) -> None:
        self.fence: SyncFile = fence
        #: See :class:`Job`.
        self.device_seqno = fence.seqno
        self.letterbox = box
        self._handle = handle
        self._result = result
        self._results = results
        self._reading = False
        self._ended = False

    def _read(self) -> None:
        """Begin the CPU's access to the result: once, it lasts until the job is closed."""
        if self._ended:
            raise AcceleratorError('the job was closed, its result is gone; copy what is to be kept before')
        if not self._reading:
            self.fence.check()
            self._result.buffer.mapping()
            self._result.buffer.begin_cpu_access(CpuAccess.READ)
            self._reading = True

    def result_bytes(self, offset: int, size: int) -> bytes:
        """A copy of a part of the raw result, once the fence signalled.

        :raises AcceleratorError: the fence has not signalled, or an error; see :meth:`JobFence.check`.
        """
        self._read()
        return bytes(self._result.buffer.memory()[offset : offset + size])

    def outputs(self) -> Outputs:
        """See :class:`Job`: views of the result buffer, which the device may write again after :meth:`close`.

        :raises AcceleratorError: the fence has not signalled, or an error; see :meth:`JobFence.check`.
        """
        self._read()
        return self._result.tensors()

    def _end(self) -> bool:
        """Whether this is the first end; ends the CPU's access."""
        if self._ended:
            return False
        self._ended = True
        if self._reading:
            self._result.buffer.end_cpu_access(CpuAccess.READ)
        return True

    def abandon(self) -> SyncFile:
        """See :class:`Job`."""
        if not self._ended:
            late = self.fence.dup()
            self._end()
            self._results.give_back_late(self._result, self._handle, late)
        return self.fence

    def close(self) -> None:
        """See :class:`Job`. A second call does nothing."""
        if self._end():
            self.fence.close()
            self._results.give_back(self._result, self._handle)
