"""The ``axl`` accelerator: the Metis driver imports the camera's own buffer and reads it there. No pass of the CPU over pixels.

Needs a driver with the ioctls of ``axl_ioctl.h``; the shipped one has none and answers ENOTTY, which the error says.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

from zc_perception.detection.letterbox import Letterbox
from zc_perception.errors import AcceleratorError, AllocationError, ConfigError
from zc_perception.frame import Frame
from zc_perception.memory.dmabuf import DmaBuf
from zc_perception.memory.fence import SyncFile
from zc_perception.negotiation.constraints import BufferConstraints
from zc_perception.npu.accelerator import Capabilities, ImportHandle
from zc_perception.npu.axl import job as axl_job
from zc_perception.npu.axl.abi import ImportFlags
from zc_perception.npu.axl.device import AxlDevice
from zc_perception.npu.axl.discovery import HOST, HostTree, choose_card, find_cards
from zc_perception.npu.axl.iommu import read_iommu
from zc_perception.npu.axl.job import AxlJob, ResultBuffers
from zc_perception.npu.import_cache import ImportCache, ImportsInUse, import_key
from zc_perception.npu.manifest import ModelManifest, check_head
from zc_perception.npu.pcie_link import read_link
from zc_perception.pixel.layout import ImageLayout, compute_layout
from zc_perception.pixel.modifier import LINEAR

_epochs = itertools.count(1)


def _is_tight(layout: ImageLayout, num_buffers: int) -> bool:
    if layout.modifier != LINEAR or num_buffers != 1:
        return False
    tight = compute_layout(layout.fourcc, layout.width, layout.height, stride_align=1, offset_align=1)
    return [(p.offset, p.stride) for p in layout.planes] == [(p.offset, p.stride) for p in tight.planes]


class AxlAccelerator:
    """One card. One thread uses it; :meth:`facts` and :meth:`notices` may be called by others.

    :param device: which card, as :func:`choose_card` takes it: a device node, a PCI address, a name; empty for the first.
    :param import_cache: keep imports of buffers; without it every frame is imported and released, as the document's sample does.
    :param timeout_s: after which the driver gives a job up.
    :param numbers: ioctl numbers by name, for a driver that uses others.
    :raises AcceleratorError: no card, or a driver without the ioctls; the message says what works instead.
    """

    def __init__(
        self,
        device: str = '',
        *,
        import_cache: bool = True,
        timeout_s: float = 1.0,
        numbers: Mapping[str, int] | None = None,
        tree: HostTree = HOST,
    ) -> None:
        self._tree = tree
        self._card = choose_card(device, tree)
        others = [] if device else [card for card in find_cards(tree) if card != self._card]
        self._device = AxlDevice(self._card.path, numbers, tree=tree)
        try:
            self._axl = self._device.query()
            if self._axl.level == 0:
                raise AcceleratorError(
                    f'the driver of {self._card.path} has no import and submit ioctls (ENOTTY); use accelerator: axruntime (Voyager SDK) '
                    "or cpu, or give the driver's own ioctl numbers in parameter 'axl_ioctls'"
                )
        except BaseException:
            self._device.close()
            raise
        self._epoch = next(_epochs)
        self._in_use = ImportsInUse(self._device.release_import)
        self._cache = self._new_cache() if import_cache else None
        self._past_imports = 0
        self._trial_imports = 0
        self._timeout_us = round(timeout_s * 1e6)
        self._manifest: ModelManifest | None = None
        self._results: ResultBuffers | None = None
        self._result_notice = ''
        self._box: Letterbox | None = None
        self._more_cards = (
            f'there are {len(others) + 1} Metis cards and this is {self._card}; choose with parameter '
            f"'accelerator_device', the others are {', '.join(map(str, others))}"
            if others
            else ''
        )

    @property
    def imports(self) -> int:
        """See :class:`Accelerator`."""
        return self._past_imports + (self._cache.misses if self._cache is not None else 0)

    @property
    def trial_imports(self) -> int:
        """See :class:`Accelerator`."""
        return self._trial_imports

    def capabilities(self) -> Capabilities:
        """See :class:`Accelerator`."""
        return Capabilities('axl', self._card.path, copy_free=True, max_in_flight=self._axl.jobs)

    def constraints(self) -> BufferConstraints:
        """See :class:`Accelerator`."""
        return self._axl.constraints(self._card.path, read_iommu(self._card.pci_address, self._tree))

    def notices(self) -> Sequence[str]:
        """See :class:`Accelerator`."""
        link = read_link(self._card.pci_address, self._tree).diagnosis()
        older = thrashing = ''
        if self._axl.level < 2:
            older = (
                f'the driver of {self._card.path} has only ioctls 64 to 66: it imports tight LINEAR images in one buffer and nothing else, '
                'takes one job at a time, and waits for acquire fences on the CPU; a newer driver does better'
            )
        if self._cache is not None and self._cache.thrashed:
            thrashing = (
                f'more buffers are in use than the import cache held: {self._cache.thrashed} were imported anew; it holds '
                f"{self._cache.limit} now; use fewer slots (parameter 'slots') if that goes on"
            )
        return [notice for notice in (self._more_cards, link, older, self._result_notice, thrashing) if notice]

    def facts(self) -> Mapping[str, object]:
        """See :class:`Accelerator`."""
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
            facts |= {'result_heap': results.heap.name, 'jobs': results.busy, 'jobs_given_up': results.late}
        return facts

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
        check_head(manifest, [spec.blank() for spec in manifest.tensors])
        if self._results is not None:
            if self._results.busy:
                raise AcceleratorError(
                    f"model '{manifest.name}' can't be loaded while {self._results.busy} jobs are in flight; wait for them"
                )
            self._results.close()
            self._results = None
        try:
            size = axl_job.result_size(manifest.tensors)
            heap, buffers, self._result_notice = axl_job.open_result_heap(size, self.capabilities().max_in_flight)
        except AllocationError as error:
            raise AcceleratorError(f'no heap for result buffers: {error}') from error
        self._results = ResultBuffers(heap, buffers, manifest.tensors, self._in_use)
        self._manifest = manifest

    def import_frame(self, frame: Frame) -> ImportHandle:
        """See :class:`Accelerator`."""
        layout, buffers = frame.data.layout, frame.data.buffers
        if self._cache is None:
            handle = self._import(layout, buffers)
            self._past_imports += 1
            return ImportHandle(handle, cached=False)
        return ImportHandle(self._cached_import(self._cache, layout, buffers), cached=True)

    def _cached_import(self, cache: ImportCache, layout: ImageLayout, buffers: tuple[DmaBuf, ...]) -> int:
        key = import_key(self._epoch, int(ImportFlags.TO_DEVICE), layout, buffers)
        return cache.get(key, buffers, lambda: self._import(layout, buffers))

    def _import(self, layout: ImageLayout, buffers: tuple[DmaBuf, ...]) -> int:
        if self._axl.level >= 2:
            return self._device.import_planes(layout, buffers, ImportFlags.TO_DEVICE)
        if not _is_tight(layout, len(buffers)):
            advice = "choose a width that is a multiple of the camera's stride alignment"
            if layout.modifier != LINEAR:
                advice = 'let the camera give LINEAR images, or use a driver with ioctls 67 to 69'
            raise AcceleratorError(
                f'the driver of {self._card.path} imports only tight LINEAR images in one buffer, not {layout.describe()}; {advice}'
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
        self._in_use.hold(handle.number)
        try:
            model_id = self._manifest.model_id
            if self._axl.level >= 2:
                fence = self._device.submit2(handle.number, result.buffer, model_id, self._timeout_us, in_fence)
            else:
                fence = self._device.submit(handle.number, result.buffer, model_id, self._timeout_us)
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
        """See :class:`Accelerator`. An import that a job still reads is released after it."""
        if not handle.cached:
            self._in_use.release(handle.number)

    def hot_threads(self) -> tuple[()]:
        """See :class:`Accelerator`. There is none: the driver signals the fence."""
        return ()

    def tidy(self) -> None:
        """See :class:`Accelerator`."""
        if self._results is not None:
            self._results.collect()
        if self._cache is not None:
            self._cache.forget_ended()

    def _new_cache(self) -> ImportCache:
        return ImportCache(self._in_use.release, held=self._in_use.held)

    def tune(self, *, import_cache: bool, timeout_s: float) -> None:
        """See :class:`Accelerator`. Imports that jobs in flight read are released after them."""
        self._timeout_us = round(timeout_s * 1e6)
        if self._cache is not None and not import_cache:
            self._past_imports += self._cache.misses
            self._cache.clear()
            self._cache = None
        elif self._cache is None and import_cache:
            self._cache = self._new_cache()

    def close(self) -> None:
        """See :class:`Accelerator`. Works on a card that is gone, too."""
        if self._cache is not None:
            self._cache.clear()
        self._device.close()
        if self._results is not None:
            self._results.close()
            self._results = None
