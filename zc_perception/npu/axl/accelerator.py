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
The ``axl`` accelerator: the Metis card imports the camera's own buffer and reads it there.

The CPU makes no pass over pixels. The accelerator needs a driver with the ioctls of
``axl_ioctl.h``. Axelera's shipped driver lacks them and answers ENOTTY; opening the accelerator
then fails with an error that says so. Read :class:`AxlAccelerator` first, then :class:`AxlJob`.
:class:`ResultBuffers` has the memory of results.

:class:`ImportCache` keeps imports, so that each buffer is imported only once. An import's key is
(epoch, direction, fourcc, modifier, width, height, per plane (st_dev, st_ino, offset, stride)).
The epoch is a new number each time a device is opened. An entry owns duplicates of the buffers'
descriptors: as long as the entry exists, the kernel can't give their inode numbers to other
buffers.

Duplicates and imports also keep the buffer's memory allocated. Therefore the cache must drop an
entry when the buffer's owner gives the buffer up: when a pool retires or replaces a slot or is
closed, or when a link's producer is gone. Each of these owners closes its :class:`DmaBuf`, on any
thread. The :class:`DmaBuf` then calls the function that the cache gave to
:meth:`DmaBuf.tell_end`, so that pools need no reference to the cache. That function only queues
the buffer's identity. The one thread that uses the cache then drops the entry.

While a job in flight reads an import, :class:`ImportsInUse` delays the import's release.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
import contextlib
from dataclasses import dataclass
import itertools
import queue
from typing import Any

from zc_perception.detection.letterbox import Letterbox
from zc_perception.detection.raw_tensor import RawTensor
from zc_perception.errors import AcceleratorError, AllocationError, ConfigError, DeviceLostError
from zc_perception.frame import Frame
from zc_perception.machine.system import HOST, HostTree
from zc_perception.memory.dmabuf import BufferIdentity, CpuAccess, DmaBuf
from zc_perception.memory.fence import SyncFile
from zc_perception.memory.heaps import Heap, HeapUse, is_contiguous, open_heap
from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.negotiation.constraints import BufferConstraints
from zc_perception.npu.accelerator import Capabilities, ImportHandle, Outputs
from zc_perception.npu.axl.abi import ImportFlags, parse_ioctl_numbers
from zc_perception.npu.axl.device import AxlDevice, JobFence
from zc_perception.npu.axl.kind import AXL, Axl, ENTRIES
from zc_perception.npu.manifest import check_head, ModelManifest, TensorSpec
from zc_perception.npu.metis_card import choose_card, find_cards, read_iommu, read_link
from zc_perception.pixel.layout import compute_layout, ImageLayout
from zc_perception.pixel.modifier import LINEAR

CacheKey = tuple[Hashable, ...]


def import_key(
    epoch: int, direction: int, layout: ImageLayout, buffers: Sequence[DmaBuf]
) -> CacheKey:
    """Return the cache key of one image's buffers and layout."""
    planes = tuple((buffers[p.buffer].identity, p.offset, p.stride) for p in layout.planes)
    return epoch, direction, layout.fourcc, layout.modifier, layout.width, layout.height, planes


class ImportsInUse:
    """
    Count the jobs that read each import, and release an import after its last job.

    Only one thread uses this object. ``release_errors`` counts imports that the device refused to
    release; ``last_release_error`` is the reason. A refusal raises no error, because it affects no
    frame.
    """

    def __init__(self, release: Callable[[int], None]) -> None:
        self._release = release
        self._jobs: Counter[int] = Counter()
        self._waiting: set[int] = set()
        self.release_errors = 0
        self.last_release_error = ''

    def hold(self, handle: int) -> None:
        """Note that a job reads this import from now on."""
        self._jobs[handle] += 1

    def let_go(self, handle: int) -> None:
        """Note a job's end; after the import's last job, release the import if that is due."""
        self._jobs[handle] -= 1
        if self._jobs[handle] <= 0:
            del self._jobs[handle]
            if handle in self._waiting:
                self._waiting.remove(handle)
                self._give_back(handle)

    def release(self, handle: int) -> None:
        """Release an import now, or in :meth:`let_go` after the last job that reads the import."""
        if handle in self._jobs:
            self._waiting.add(handle)
        else:
            self._give_back(handle)

    def _give_back(self, handle: int) -> None:
        try:
            self._release(handle)
        except DeviceLostError:
            pass  # a lost device has already released all imports
        except AcceleratorError as error:
            self.release_errors += 1
            self.last_release_error = str(error)


@dataclass(frozen=True)
class CachedImport:
    """
    One import of a frame's buffers.

    :param keepers: duplicates of the buffers' descriptors: while they are open, no new buffer gets
        the inode number of one of these buffers.
    """

    handle: int
    identities: frozenset[BufferIdentity]
    keepers: tuple[OwnedFd, ...]


class ImportCache:
    """
    Keep a device's imports, so that each buffer is imported once and not with every frame.

    If there are more than ``limit`` entries, the least recently used one is removed.

    One thread uses the cache. A buffer may be closed on any thread: then its identity is queued,
    and the next :meth:`get` releases its import.

    :param release: a function that releases a handle on the device and never raises.
    :param limit: the highest number of entries.
    """

    def __init__(self, release: Callable[[int], object], limit: int = ENTRIES) -> None:
        self._release = release
        self._entries: OrderedDict[CacheKey, CachedImport] = OrderedDict()
        self._ended: queue.SimpleQueue[BufferIdentity] = queue.SimpleQueue()
        self.limit = limit

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: CacheKey, buffers: Sequence[DmaBuf], make: Callable[[], int]) -> int:
        """
        Return the handle for *key*; if there is none yet, call *make* to import the buffers.

        Imports of closed buffers are released first.
        """
        self.forget_ended()
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
            return entry.handle
        keepers = tuple(b.dup() for b in buffers)
        try:
            handle = make()
        except BaseException:
            for keeper in keepers:
                keeper.close()
            raise
        self._entries[key] = CachedImport(handle, frozenset(b.identity for b in buffers), keepers)
        for buffer in buffers:
            buffer.tell_end(self._ended.put)
        if len(self._entries) > self.limit:
            self._drop(next(iter(self._entries)))
        return handle

    def _drop(self, key: CacheKey) -> None:
        entry = self._entries.pop(key)
        self._release(entry.handle)
        for keeper in entry.keepers:
            keeper.close()

    def forget(self, identity: BufferIdentity) -> None:
        """Release every import of a buffer, at once or, if jobs read it, after their end."""
        for key in [key for key, entry in self._entries.items() if identity in entry.identities]:
            self._drop(key)

    def forget_ended(self) -> None:
        """Release the imports of all buffers that were closed since the last call."""
        while not self._ended.empty():
            self.forget(self._ended.get_nowait())

    def clear(self) -> None:
        """Release all imports."""
        while self._entries:
            self._drop(next(iter(self._entries)))


_epochs = itertools.count(1)
_FALLBACK = 'dma_heap/system'


def _is_tight(layout: ImageLayout, num_buffers: int) -> bool:
    if layout.modifier != LINEAR or num_buffers != 1:
        return False
    tight = compute_layout(
        layout.fourcc, layout.width, layout.height, stride_align=1, offset_align=1
    )
    return [(p.offset, p.stride) for p in layout.planes] == [
        (p.offset, p.stride) for p in tight.planes
    ]


class AxlAccelerator(Axl):
    """
    One card whose driver imports dma-bufs.

    The accelerator has no thread: the driver signals each job's fence. The accelerator owns the
    device's open file, the import cache and, while a model is loaded, one result buffer for each
    job in flight. With the cache off, each frame is imported before its job, and the import is
    released after the job, as in the sample code of the document *ZED X → Metis*.

    :raises AcceleratorError: there is no card, or its driver lacks the import and submit ioctls;
        the message says what to use instead.
    """

    def __init__(self, values: Mapping[str, Any], *, tree: HostTree = HOST) -> None:
        self._tree = tree
        chosen = values['accelerator_device']
        self._card = choose_card(chosen, tree)
        others = [] if chosen else [card for card in find_cards(tree) if card != self._card]
        numbers = parse_ioctl_numbers(values['axl_ioctls'])
        self._device = AxlDevice(self._card.path, numbers, tree=tree)
        try:
            self._axl = self._device.query()
            if self._axl.level == 0:
                raise AcceleratorError(
                    f'the driver of {self._card.path} has no import and submit ioctls '
                    '(ENOTTY); use accelerator: axruntime (Voyager SDK) '
                    "or onnx, or give the driver's own ioctl numbers in parameter 'axl_ioctls'"
                )
        except BaseException:
            self._device.close()
            raise
        self._epoch = next(_epochs)
        self._in_use = ImportsInUse(self._device.release_import)
        self._cache = ImportCache(self._in_use.release) if values['import_cache'] else None
        self._imports = self._trial_imports = 0
        self._timeout_us = round(values['timeout'] * 1e6)
        self._manifest: ModelManifest | None = None
        self._model_id = 0
        self._results: ResultBuffers | None = None
        self._result_notice = ''
        self._box: Letterbox | None = None
        self._more_cards = (
            f'there are {len(others) + 1} Metis cards, and this node uses {self._card}; to use '
            f"another card ({', '.join(map(str, others))}), set parameter 'accelerator_device'"
            if others
            else ''
        )

    @property
    def imports(self) -> int:
        return self._imports

    @property
    def trial_imports(self) -> int:
        return self._trial_imports

    def capabilities(self) -> Capabilities:
        return Capabilities('axl', self._card.path, copy_free=True, max_in_flight=self._axl.jobs)

    def constraints(self) -> BufferConstraints:
        return self._axl.constraints(
            self._card.path, read_iommu(self._card.pci_address, self._tree)
        )

    def notices(self) -> Sequence[str]:
        link = read_link(self._card.pci_address, self._tree).diagnosis()
        older = ''
        if self._axl.level < 2:
            older = (
                f'the driver of {self._card.path} has only ioctls 64 to 66: it imports only '
                'LINEAR images without padding, in one buffer, and takes one job at a time, and '
                'the CPU has to wait for acquire fences; a newer driver has none of these limits'
            )
        return [
            notice for notice in (self._more_cards, link, older, self._result_notice) if notice
        ]

    def facts(self) -> Mapping[str, object]:
        cache, results = self._cache, self._results
        facts: dict[str, object] = {
            'device': self._card.path,
            'pci_address': self._card.pci_address or 'unknown',
            'iommu': read_iommu(self._card.pci_address, self._tree).text,
            'pcie_link': str(read_link(self._card.pci_address, self._tree)),
            'driver_level': self._axl.level,
            'epoch': self._epoch,
            'max_in_flight': self._axl.max_in_flight,
            'imports': self.imports,
            'trial_imports': self._trial_imports,
            'import_cache': 'off' if cache is None else f'{len(cache)} of {cache.limit}',
            'release_errors': self._in_use.release_errors,
            'last_release_error': self._in_use.last_release_error,
        }
        if results is not None:
            facts |= {
                'result_heap': results.heap.name,
                'jobs': results.busy,
                'jobs_given_up': results.late,
            }
        return facts

    def trial_import(
        self, layout: ImageLayout, buffers: tuple[DmaBuf, ...]
    ) -> Callable[[], None] | None:
        cache, identities = self._cache, [buffer.identity for buffer in buffers]
        if cache is None:
            self._device.release_import(self._import(layout, buffers))
            self._trial_imports += 1
            return None
        self._cached_import(cache, layout, buffers)

        def forget() -> None:
            for identity in identities:
                cache.forget(identity)

        return forget

    def load(self, manifest: ModelManifest) -> None:
        """Load the model and allocate one result buffer for each job in flight."""
        if manifest.engine != AXL.name or not manifest.tensors:
            raise ConfigError(
                f"model '{manifest.name}' (engine {manifest.engine}) can't run on axl; use a "
                "manifest with engine: axl, or set parameter 'accelerator' to onnx"
            )
        check_head(manifest, [spec.blank() for spec in manifest.tensors])
        if self._results is not None:
            if self._results.busy:
                raise AcceleratorError(
                    f"model '{manifest.name}' can't be loaded while {self._results.busy} jobs "
                    'are in flight; wait for them'
                )
            self._results.close()
            self._results = None
        try:
            size = max(spec.offset + spec.num_bytes for spec in manifest.tensors)
            heap, buffers, self._result_notice = open_result_heap(
                size, self.capabilities().max_in_flight
            )
        except AllocationError as error:
            raise AcceleratorError(f'no heap for result buffers: {error}') from error
        self._results = ResultBuffers(heap, buffers, manifest.tensors, self._in_use)
        self._manifest, self._model_id = manifest, int(manifest.own.get('model_id', 0))

    def import_frame(self, frame: Frame) -> ImportHandle:
        layout, buffers = frame.data.layout, frame.data.buffers
        if self._cache is None:
            return ImportHandle(self._counted_import(layout, buffers), cached=False)
        return ImportHandle(self._cached_import(self._cache, layout, buffers), cached=True)

    def _cached_import(
        self, cache: ImportCache, layout: ImageLayout, buffers: tuple[DmaBuf, ...]
    ) -> int:
        key = import_key(self._epoch, int(ImportFlags.TO_DEVICE), layout, buffers)
        return cache.get(key, buffers, lambda: self._counted_import(layout, buffers))

    def _counted_import(self, layout: ImageLayout, buffers: tuple[DmaBuf, ...]) -> int:
        handle = self._import(layout, buffers)
        self._imports += 1
        return handle

    def _import(self, layout: ImageLayout, buffers: tuple[DmaBuf, ...]) -> int:
        if self._axl.level >= 2:
            return self._device.import_planes(layout, buffers, ImportFlags.TO_DEVICE)
        if not _is_tight(layout, len(buffers)):
            advice = "choose a width that is a multiple of the camera's stride alignment"
            if layout.modifier != LINEAR:
                advice = 'let the camera give LINEAR images, or use a driver with ioctls 67 to 69'
            raise AcceleratorError(
                f'the driver of {self._card.path} imports only LINEAR images without padding, in '
                f'one buffer, not {layout.describe()}; {advice}'
            )
        return self._device.import_fd(
            buffers[0], layout.width, layout.height, layout.fourcc, ImportFlags.TO_DEVICE
        )

    def submit(self, handle: ImportHandle, frame: Frame) -> AxlJob:
        if self._manifest is None or self._results is None:
            raise AcceleratorError('axl has no model loaded')
        acquire = frame.data.acquire_fence
        in_fence = acquire if isinstance(acquire, SyncFile) and self._axl.level >= 2 else None
        if acquire is not None and in_fence is None:
            if not acquire.wait(self._timeout_us / 1e6):
                raise AcceleratorError(
                    f'frame {frame.data.sequence}: its acquire fence did not signal in time'
                )
            acquire.check()
        result = self._results.take()
        self._in_use.hold(handle.number)
        try:
            model_id = self._model_id
            if self._axl.level >= 2:
                fence = self._device.submit2(
                    handle.number, result.buffer, model_id, self._timeout_us, in_fence
                )
            else:
                fence = self._device.submit(
                    handle.number, result.buffer, model_id, self._timeout_us
                )
        except BaseException:
            self._results.give_back(result, handle.number)
            raise
        return AxlJob(fence, handle.number, result, self._results, self._geometry(frame))

    def _geometry(self, frame: Frame) -> Letterbox:
        size = frame.data.width, frame.data.height
        if self._box is None or (self._box.source_width, self._box.source_height) != size:
            self._box = Letterbox.fit(*size, *size, stretch=True)
        return self._box

    def release(self, handle: ImportHandle) -> None:
        """Release an import that isn't cached, at once or after the last job that reads it."""
        if not handle.cached:
            self._in_use.release(handle.number)

    def tidy(self) -> None:
        if self._results is not None:
            self._results.collect()
        if self._cache is not None:
            self._cache.forget_ended()

    def tune(self, values: Mapping[str, Any]) -> None:
        """Apply the timeout, and switch the import cache on or off."""
        self._timeout_us = round(values['timeout'] * 1e6)
        if self._cache is not None and not values['import_cache']:
            self._cache.clear()
            self._cache = None
        elif self._cache is None and values['import_cache']:
            self._cache = ImportCache(self._in_use.release)

    @property
    def keeps_imports(self) -> bool:
        return self._cache is not None

    def close(self) -> None:
        """Close the device and free its imports and result buffers, also if the card is gone."""
        if self._cache is not None:
            self._cache.clear()
        self._device.close()
        if self._results is not None:
            self._results.close()
            self._results = None


def open_result_heap(size: int, count: int) -> tuple[Heap, list[DmaBuf], str]:
    """
    Allocate *count* result buffers from the CMA heap or, if it has no room, the system heap.

    :returns: the heap, the buffers, and a notice for the user, empty if the heap is a CMA heap.
    :raises AllocationError: no heap has room for all buffers.
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
        f'result buffers come from {heap.name} instead of a CMA heap ({"; ".join(reasons)}): '
        'their pages are scattered, which only works behind an IOMMU; without an IOMMU, enable '
        'CONFIG_DMABUF_HEAPS_CMA and reserve memory (cma=64M)'
    )  # fmt: skip


def allocate_results(heap: Heap, size: int, count: int) -> list[DmaBuf]:
    """
    Allocate *count* buffers.

    :raises AllocationError: the heap has no room for all buffers; then the heap is closed and no
        buffer stays allocated.
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
    """
    A buffer for the result of one job at a time, with views of its mapping.

    The first call of :meth:`tensors` maps the buffer. The mapping stays for the results of later
    jobs.
    """

    def __init__(self, buffer: DmaBuf, specs: Sequence[TensorSpec]) -> None:
        self.buffer = buffer
        self._specs = specs
        self._tensors: tuple[RawTensor, ...] = ()

    def tensors(self) -> tuple[RawTensor, ...]:
        """Return one view of the mapping for each tensor, the same views at each call."""
        if not self._tensors:
            memory = self.buffer.memory()
            self._tensors = tuple(spec.view(memory) for spec in self._specs)
        return self._tensors

    def close(self) -> None:
        """Unmap and close the buffer; while a view is in use, its memory stays mapped."""
        self._tensors = ()
        with contextlib.suppress(BufferError):
            self.buffer.close()


class ResultBuffers:
    """
    The pool of result buffers, one for each job in flight.

    The buffer of a job that was given up becomes free again once that job's fence has signalled.

    :param jobs: the object that counts the jobs that read each import; this pool tells it when a
        job ends.
    """

    def __init__(
        self,
        heap: Heap,
        buffers: Sequence[DmaBuf],
        specs: Sequence[TensorSpec],
        jobs: ImportsInUse,
    ) -> None:
        self.heap = heap
        self._jobs = jobs
        self._all = [ResultBuffer(buffer, specs) for buffer in buffers]
        self._spare = list(self._all)
        self._late: list[tuple[SyncFile, Callable[[], None]]] = []
        self._closed = False

    @property
    def busy(self) -> int:
        """Return how many buffers are in use by jobs."""
        return len(self._all) - len(self._spare)

    @property
    def late(self) -> int:
        """Return how many buffers belong to jobs that were given up and have not ended yet."""
        return len(self._late)

    def take(self) -> ResultBuffer:
        """
        Return a buffer that no job uses.

        :raises AcceleratorError: all buffers are in use.
        """
        self.collect()
        if not self._spare:
            raise AcceleratorError(
                f'all {len(self._all)} result buffers are in use, {len(self._late)} of them by '
                'jobs that were given up; close jobs sooner'
            )
        return self._spare.pop()

    def collect(self) -> None:
        """Take back the buffers of given-up jobs that have ended."""
        for entry in self._late[:]:
            fence, ended = entry
            if fence.wait(0.0):
                self._late.remove(entry)
                fence.close()
                ended()

    def give_back(self, result: ResultBuffer, handle: int) -> None:
        """Note that a job has ended: its result buffer is free, its import is no longer read."""
        if not self._closed:
            self._spare.append(result)
            self._jobs.let_go(handle)

    def give_back_late(self, result: ResultBuffer, handle: int, fence: SyncFile) -> None:
        """
        Do the same as :meth:`give_back`, but later, once *fence* has signalled.

        This call doesn't wait. This object owns the fence from now on.
        """
        if self._closed:
            fence.close()
        else:
            self._late.append((fence, lambda: self.give_back(result, handle)))

    def close(self) -> None:
        """Close all buffers; the driver keeps those that its jobs still write. Idempotent."""
        self._closed = True
        for fence, _ in self._late:
            fence.close()
        self._late.clear()
        for result in self._all:
            result.close()
        self.heap.close()


class AxlJob:
    """
    A submitted frame.

    The job keeps its import and a result buffer until the job is closed or, if the job was given
    up, until the device has ended it.
    """

    def __init__(
        self,
        fence: JobFence,
        handle: int,
        result: ResultBuffer,
        results: ResultBuffers,
        box: Letterbox,
    ) -> None:
        self.fence: SyncFile = fence
        #: The number (from 1) that the driver gave the job, as in the kernel's trace events.
        self.device_seqno = fence.seqno
        self.letterbox = box
        self._handle = handle
        self._result = result
        self._results = results
        self._reading = False
        self._ended = False

    def outputs(self) -> Outputs:
        """
        Return the job's raw result as views of the result buffer, see :meth:`Job.outputs`.

        :raises AcceleratorError: the fence has not signalled, or has signalled an error; see
            :meth:`JobFence.check`.
        """
        if self._ended:
            raise AcceleratorError(
                'the job was closed, so its result is gone; copy the result before you close the '
                'job'
            )
        if not self._reading:  # begin the CPU's access only once; it lasts until the job is closed
            self.fence.check()
            self._result.buffer.mapping()
            self._result.buffer.begin_cpu_access(CpuAccess.READ)
            self._reading = True
        return self._result.tensors()

    def _end(self) -> bool:
        """End the CPU's access to the result; return whether this is the first call."""
        if self._ended:
            return False
        self._ended = True
        if self._reading:
            self._result.buffer.end_cpu_access(CpuAccess.READ)
        return True

    def abandon(self) -> SyncFile:
        if not self._ended:
            late = self.fence.dup()
            self._end()
            self._results.give_back_late(self._result, self._handle, late)
        return self.fence

    def close(self) -> None:
        """Give the import and the result buffer back, and close the fence; idempotent."""
        if self._end():
            self.fence.close()
            self._results.give_back(self._result, self._handle)
