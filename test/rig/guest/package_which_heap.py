"""Which heap a camera's buffers come from: real heaps, a real card, with an IOMMU and without; agreed on as a capture node does it.

The heap of contiguous memory stays once it is there, and the accelerator takes its result buffers from it. So these checks are the last
of their boot: checks run in the order in which their modules are imported.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from zc_perception.camera.synthetic import SyntheticCamera
from zc_perception.camera.v4l2.camera import V4l2Camera
from zc_perception.doctor.needs import needs_of
from zc_perception.doctor.pool_need import pool_need
from zc_perception.doctor.system import System
from zc_perception.frame import Frame
from zc_perception.memory.heaps import open_heap, working_heaps
from zc_perception.memory.ledger import CopyLedger
from zc_perception.negotiation.session import BufferSession, Consumer, Verdict
from zc_perception.negotiation.settings import Allocation, AllocationRequest
from zc_perception.negotiation.stand_in import parse_stand_ins
from zc_perception.npu.axl.accelerator import AxlAccelerator
from zc_perception.npu.axl.device import AxlError
from zc_perception.npu.metis_card import read_iommu
from zc_perception.pixel.fourcc import NV12
from zc_perception.pixel.layout import compute_layout

from .harness import equal
from .kernel_api import NotHere, bufinfo, identity, parameters
from .package_kit import accelerator, crcs, device_crcs
from .package_memory_kit import check, check_each

SYSTEM, CMA, UDMABUF = 'dma_heap/system', 'dma_heap/linux,cma', 'udmabuf'
SIZE = (336, 240)
_NODE = Path('/dev/dma_heap/linux,cma')
_CARD = '0000:01:00.0'
_TRIES = 16
_PATIENCE_S = 20.0


def _contiguous_heap() -> None:
    """Have one from here on: this kernel is built without CMA."""
    if not _NODE.parent.exists():
        raise NotHere('this kernel has no dma-heaps')
    if not _NODE.exists():
        module = Path(os.environ['RIG_MODULE']).with_name('contiguous_heap.ko')
        os.spawnlp(os.P_WAIT, os.environ['RIG_BUSYBOX'], 'busybox', 'insmod', str(module))
    assert _NODE.exists(), 'the module does not load'


class Agreed:
    """A camera, its agreement, and who takes part in it."""

    def __init__(self, camera: SyntheticCamera | V4l2Camera, participants: Sequence[str], npu: AxlAccelerator | None) -> None:
        size = (camera.width, camera.height)
        session = BufferSession(camera.constraints(), size, wanted_slots=4, stand_ins=parse_stand_ins(participants))
        consumers = [] if npu is None else [Consumer(npu.constraints(), lambda settings, slot: npu.trial_import(settings.layout, slot))]

        def allocate(request: AllocationRequest) -> Allocation:
            camera.allocate(request)
            return Allocation(camera.slots[0].layout, tuple(slot.buffers for slot in camera.slots))

        self.settings = session.allocate(consumers, allocate)
        self.heap = camera.heap_name
        self.why = session.why
        self.verdicts = {name: outcome.verdict for name, outcome in session.outcomes().items()}
        self.line = session.describe()
        self.inodes = {buffer.identity.inode for slot in camera.slots for buffer in slot.buffers}


@contextmanager
def synthetic(heap: str = 'auto') -> Iterator[SyntheticCamera]:
    """A camera that offers all heaps that work, or the one that is named."""
    camera = SyntheticCamera(*SIZE, 30.0, 'cam', seed=1, pattern='bars', heap=working_heaps(heap), now_ns=time.time_ns, ledger=CopyLedger())
    try:
        yield camera
    finally:
        camera.close()


def _frame(camera: SyntheticCamera | V4l2Camera) -> Frame:
    end = time.monotonic() + _PATIENCE_S
    while (frame := camera.capture()) is None:
        assert time.monotonic() < end, 'no frame'
    return frame


def _agree(participants: Sequence[str], expected: str, because: str, heap: str = 'auto', seen: Verdict = Verdict.ACCEPTED) -> None:
    """The heap that is chosen is the kernel's exporter of every buffer, and a card that was accepted sees what the CPU wrote."""
    exporter = expected.rpartition('/')[2]
    equal(_doctors(participants, heap), expected, 'what the doctor expects')
    with accelerator() as npu, synthetic(heap) as camera:
        agreed = Agreed(camera, participants, npu)
        equal(agreed.heap, expected, f'heap ({agreed.line})')
        equal({bufinfo()[inode].exporter for inode in agreed.inodes}, {exporter}, 'exporters in the kernel')
        assert agreed.why.startswith(f'heap {expected} because ') and because in agreed.why, agreed.why
        equal(agreed.verdicts[npu.constraints().participant], seen, agreed.line)
        if seen is Verdict.ACCEPTED:
            with _frame(camera) as frame:
                equal(device_crcs(npu, frame), crcs(frame), 'what the device sees')


def _doctors(participants: Sequence[str], heap: str) -> str:
    """The heap that the doctor counts the same camera's buffers in, beside the same accelerator."""
    capture = {'camera': 'synthetic', 'width': SIZE[0], 'height': SIZE[1], 'heap': heap, 'participants': list(participants)}
    needs = needs_of([('/capture', capture), ('/inference', {'accelerator': 'axl'})], 'vehicle.yaml')
    return pool_need(System(), needs, needs.cameras[0]).memory


_CHOICES = {
    'nobody minds': ([], SYSTEM, f'it comes first of {SYSTEM}, {CMA}, {UDMABUF}, memfd and suits everybody'),
    'contiguous': (['isp: NV12; contiguous'], CMA, f"isp needs contiguous memory, which heap '{SYSTEM}' is not"),
    'a name with a comma': ([f'isp: NV12; heap={CMA}'], CMA, f"isp can't use buffers of heap '{SYSTEM}', only of {CMA}"),
    'two names, one with a comma': ([f'isp: NV12; heap=udmabuf | {CMA}'], CMA, f"isp can't use buffers of heap '{SYSTEM}'"),
    'another name': (['isp: NV12; heap=udmabuf'], UDMABUF, f"isp can't use buffers of heaps '{SYSTEM}', '{CMA}', only of udmabuf"),
}


@check_each(*_CHOICES)
def behind_an_iommu_the_heap_is_what_the_participants_need(name: str) -> None:
    _contiguous_heap()
    participants, heap, because = _CHOICES[name]
    _agree(participants, heap, because)


@check
def a_heap_that_is_named_is_the_only_one_whatever_others_there_are() -> None:
    _contiguous_heap()
    _agree([], CMA, f"no other is on offer (camera: parameter 'heap' is '{CMA}')", heap=CMA)


@check
def a_card_behind_no_iommu_gets_contiguous_memory() -> None:
    _contiguous_heap()
    with parameters(untranslated=1), identity():
        assert read_iommu(_CARD).needs_contiguous, read_iommu(_CARD)
        passes = f'({read_iommu(_CARD).text})'
        _agree([], CMA, f"axl /dev/metis-0:1:0 needs contiguous memory {passes}, which heap '{SYSTEM}' is not")
        # A heap that the user named stays. The card is refused by name before any import, and the camera goes on.
        _agree([], SYSTEM, f"parameter 'heap' is '{SYSTEM}'", heap=SYSTEM, seen=Verdict.REFUSED)
        _expect_scattered_to_fail()
    assert read_iommu(_CARD).translates, read_iommu(_CARD)
    _agree([], SYSTEM, 'it comes first of')


def _expect_scattered_to_fail() -> None:
    """The demand is the card's own: it can't use scattered pages now. Some buffers may be contiguous by chance."""
    layout = compute_layout(NV12, *SIZE, stride_align=64, offset_align=64)
    heap, _ = open_heap(SYSTEM)
    buffers = [heap.allocate(layout.buffer_size(0)) for _ in range(_TRIES)]
    heap.close()
    failed = 0
    with accelerator(import_cache=False) as npu:
        for buffer in buffers:
            try:
                npu.trial_import(layout, (buffer,))
            except AxlError as error:
                assert 'contiguous' in str(error), error
                failed += 1
            buffer.close()
    assert failed, 'every buffer of the system heap was contiguous'


@check
def a_camera_that_imports_offers_the_heaps_that_its_driver_takes() -> None:
    _contiguous_heap()
    camera = V4l2Camera('/dev/video0', 640, 360, 30.0, 'cam', now_ns=time.time_ns, memory='import', pixel_format='NV12')
    try:
        equal(camera.constraints().heaps, (SYSTEM, CMA, UDMABUF), 'heaps on offer')
        with accelerator() as npu:
            agreed = Agreed(camera, ['isp: NV12; contiguous'], npu)
            equal((agreed.heap, set(agreed.verdicts.values())), (CMA, {Verdict.ACCEPTED, Verdict.STAND_IN}), agreed.line)
            with _frame(camera) as frame:
                equal(device_crcs(npu, frame), crcs(frame), 'what the device sees')
    finally:
        camera.close()
