"""The ``axl`` accelerator: the Metis driver imports the camera's own buffer and reads it there. No pass of the CPU over pixels.

Needs a driver with the ioctls of ``axl_ioctl.h``; the shipped one has none and answers ENOTTY, which the error says.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

import numpy as np

from zc_perception.detection.letterbox import Letterbox
from zc_perception.detection.raw_tensor import RawTensor
from zc_perception.errors import AcceleratorError, AllocationError, ConfigError
from zc_perception.frame import Frame
from zc_perception.memory.dmabuf import CpuAccess, DmaBuf
from zc_perception.memory.fence import SyncFile
from zc_perception.memory.heaps import Heap, HeapUse, open_heap
from zc_perception.negotiation.constraints import BufferConstraints, Placement
from zc_perception.npu.accelerator import Capabilities, ImportHandle, Outputs
from zc_perception.npu.axl_abi import ImportFlags
from zc_perception.npu.axl_device import AxlDevice, find_devices
from zc_perception.npu.import_cache import ImportCache, import_key
from zc_perception.npu.manifest import ModelManifest, TensorSpec
from zc_perception.pixel.fourcc import NV12
from zc_perception.pixel.layout import ImageLayout, compute_layout
from zc_perception.pixel.modifier import LINEAR

_IMPORTABLE = ('dma_heap/', 'udmabuf', 'v4l2/', 'nvbufsurface')
_epochs = itertools.count(1)


class _Results:
    """Result buffers, one for each job in flight. One of a job that was given up comes back once its fence has signalled."""

    def __init__(self, heap: Heap, size: int, count: int) -> None:
        self.heap = heap
        self._all: list[DmaBuf] = []
        self._late: list[tuple[SyncFile, DmaBuf]] = []
        try:
            for _ in range(count):
                self._all.append(heap.allocate(size))
        except BaseException:
            self.close()
            raise
        self._spare = list(self._all)

    def take(self) -> DmaBuf:
        """A buffer that no job writes.

        :raises AcceleratorError: there is none.
        """
        for fence, result in self._late[:]:
            if fence.wait(0.0):
                fence.close()
                self._late.remove((fence, result))
                self._spare.append(result)
        if not self._spare:
            raise AcceleratorError(
                f'all {len(self._all)} result buffers are in use, {len(self._late)} of them by jobs that were given up; close jobs sooner'
            )
        return self._spare.pop()

    def give_back(self, result: DmaBuf) -> None:
        """The job is done with it."""
        self._spare.append(result)

    def give_back_late(self, result: DmaBuf, fence: SyncFile) -> None:
        """The job will be done with it when *fence*, owned from here on, has signalled."""
        self._late.append((fence, result))

    def close(self) -> None:
        """Close all; the driver keeps what its jobs still write."""
        for fence, _ in self._late:
            fence.close()
        for result in self._all:
            result.close()
        self.heap.close()


class AxlJob:
    """A submitted frame; gives its result buffer back when closed."""

    def __init__(self, fence: SyncFile, result: DmaBuf, results: _Results, tensors: tuple[TensorSpec, ...], box: Letterbox) -> None:
        self.fence = fence
        self.letterbox = box
        self._result = result
        self._results = results
        self._tensors = tensors

    def result_bytes(self, offset: int, size: int) -> bytes:
        """A part of the raw result, once the fence signalled."""
        self.fence.check()
        self._result.begin_cpu_access(CpuAccess.READ)
        try:
            return self._result.mapping()[offset : offset + size]
        finally:
            self._result.end_cpu_access(CpuAccess.READ)

    def outputs(self) -> Outputs:
        """See :class:`Job`."""
        return [self._tensor(spec) for spec in self._tensors]

    def _tensor(self, spec: TensorSpec) -> RawTensor:
        values = np.frombuffer(self.result_bytes(spec.offset, spec.num_bytes), spec.dtype).reshape(spec.shape)
        scale = spec.scale[0] if len(spec.scale) == 1 else np.array(spec.scale, np.float32)
        return RawTensor(values, scale, spec.zero_point, name=spec.name)

    def abandon(self) -> SyncFile:
        """See :class:`Job`."""
        self._results.give_back_late(self._result, self.fence.dup())
        return self.fence

    def close(self) -> None:
        """See :class:`Job`."""
        self.fence.close()
        self._results.give_back(self._result)


def _is_tight(layout: ImageLayout, num_buffers: int) -> bool:
    if layout.modifier != LINEAR or num_buffers != 1:
        return False
    tight = compute_layout(layout.fourcc, layout.width, layout.height, stride_align=1, offset_align=1)
    return [(p.offset, p.stride) for p in layout.planes] == [(p.offset, p.stride) for p in tight.planes]


class AxlAccelerator:
    """One card. One thread uses it.

    :param device: device node; empty for the first card.
    :param import_cache: keep imports of buffers; without it every frame is imported and released, as the document's sample does.
    :param timeout_s: after which the driver gives a job up.
    :param numbers: ioctl numbers by name, for a driver that uses others.
    :raises AcceleratorError: no card, or a driver without the ioctls; the message says what works instead.
    """

    def __init__(
        self, device: str = '', *, import_cache: bool = True, timeout_s: float = 1.0, numbers: Mapping[str, int] | None = None
    ) -> None:
        devices = [device] if device else find_devices()
        if not devices:
            raise AcceleratorError('no Metis card: there is no /dev/metis-*; check lspci and that the metis driver is loaded')
        self._device = AxlDevice(devices[0], numbers)
        try:
            self._axl = self._device.query()
            if self._axl.level == 0:
                raise AcceleratorError(
                    f'the driver of {devices[0]} has no import and submit ioctls (ENOTTY); use accelerator: axruntime (Voyager SDK) or cpu'
                )
        except BaseException:
            self._device.close()
            raise
        self._epoch = next(_epochs)
        self._cache = ImportCache(self._device.release_import) if import_cache else None
        self._uncached_imports = 0
        self._trial_imports = 0
        self._timeout_us = round(timeout_s * 1e6)
        self._manifest: ModelManifest | None = None
        self._results: _Results | None = None
        self._box: Letterbox | None = None

    @property
    def imports(self) -> int:
        """See :class:`Accelerator`."""
        return self._cache.misses if self._cache is not None else self._uncached_imports

    @property
    def trial_imports(self) -> int:
        """See :class:`Accelerator`."""
        return self._trial_imports

    def capabilities(self) -> Capabilities:
        """See :class:`Accelerator`."""
        return Capabilities('axl', self._device.path, copy_free=True, max_in_flight=self._axl.max_in_flight)

    def constraints(self) -> BufferConstraints:
        """See :class:`Accelerator`."""
        return BufferConstraints(
            f'axl {self._device.path}',
            formats=self._axl.formats or ((NV12, LINEAR),),
            stride_align=self._axl.stride_align,
            offset_align=self._axl.offset_align,
            heaps=_IMPORTABLE,
            placement=None if self._axl.level >= 2 else Placement.ONE_BUFFER,
            devices=(self._device.path,),
        )

    def trial_import(self, layout: ImageLayout, buffers: tuple[DmaBuf, ...]) -> Callable[[], None] | None:
        """See :class:`Accelerator`."""
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
        """See :class:`Accelerator`. Allocates one result buffer for each job in flight."""
        if manifest.engine != 'axl' or not manifest.tensors:
            raise ConfigError(
                f"model '{manifest.name}' (engine {manifest.engine}) can't run on axl; use a manifest with engine: axl, or accelerator: cpu"
            )
        self._manifest = manifest
        if self._results is None:
            size = max(t.offset + t.num_bytes for t in manifest.tensors)
            self._results = _Results(self._open_result_heap(), size, self._axl.max_in_flight)

    @staticmethod
    def _open_result_heap() -> Heap:
        try:
            return open_heap(use=HeapUse.NPU_RESULT)[0]
        except AllocationError as error:
            raise AcceleratorError(f'no heap for result buffers: {error}') from error

    def import_frame(self, frame: Frame) -> ImportHandle:
        """See :class:`Accelerator`."""
        layout, buffers = frame.data.layout, frame.data.buffers
        if self._cache is None:
            self._uncached_imports += 1
            return ImportHandle(self._import(layout, buffers), cached=False)
        return ImportHandle(self._cached_import(self._cache, layout, buffers), cached=True)

    def _cached_import(self, cache: ImportCache, layout: ImageLayout, buffers: tuple[DmaBuf, ...]) -> int:
        key = import_key(self._epoch, int(ImportFlags.TO_DEVICE), layout, buffers)
        return cache.get(key, buffers, lambda: self._import(layout, buffers))

    def _import(self, layout: ImageLayout, buffers: tuple[DmaBuf, ...]) -> int:
        if self._axl.level >= 2:
            return self._device.import_planes(layout, buffers, ImportFlags.TO_DEVICE)
        if not _is_tight(layout, len(buffers)):
            raise AcceleratorError(
                f'the driver of {self._device.path} imports only tight LINEAR images in one buffer, not {layout.describe()}; '
                "choose a width that is a multiple of the camera's stride alignment"
            )
        return self._device.import_fd(buffers[0], layout.width, layout.height, layout.fourcc, ImportFlags.TO_DEVICE)

    def submit(self, handle: ImportHandle, frame: Frame) -> AxlJob:
        """See :class:`Accelerator`."""
        if self._manifest is None or self._results is None:
            raise AcceleratorError('axl has no model loaded')
        acquire = frame.data.acquire_fence
        in_fence = acquire if isinstance(acquire, SyncFile) and self._axl.level >= 2 else None
        if acquire is not None and in_fence is None:
            if not acquire.wait(self._timeout_us / 1e6):
                raise AcceleratorError(f'frame {frame.data.sequence}: its acquire fence did not signal in time')
            acquire.check()
        result = self._results.take()
        try:
            model_id = self._manifest.model_id
            if self._axl.level >= 2:
                fence = self._device.submit2(handle.number, result, model_id, self._timeout_us, in_fence)
            else:
                fence = self._device.submit(handle.number, result, model_id, self._timeout_us)
        except BaseException:
            self._results.give_back(result)
            raise
        return AxlJob(fence, result, self._results, self._manifest.tensors, self._geometry(frame))

    def _geometry(self, frame: Frame) -> Letterbox:
        size = frame.data.width, frame.data.height
        if self._box is None or (self._box.source_width, self._box.source_height) != size:
            self._box = Letterbox.fit(*size, *size, stretch=True)
        return self._box

    def release(self, handle: ImportHandle) -> None:
        """See :class:`Accelerator`."""
        if not handle.cached:
            self._device.release_import(handle.number)

    def tidy(self) -> None:
        """See :class:`Accelerator`."""
        if self._cache is not None:
            self._cache.forget_ended()

    def close(self) -> None:
        """See :class:`Accelerator`."""
        if self._cache is not None:
            self._cache.clear()
        self._device.close()
        if self._results is not None:
            self._results.close()
            self._results = None
