"""Real buffers, tried as the nodes use them. Everything is given back before the next one."""

from __future__ import annotations

from collections.abc import Iterator

from zc_perception.doctor.finding import Finding, Need, Status, ok, skip
from zc_perception.doctor.heap_nodes import heap_nodes
from zc_perception.doctor.metis_checks import card_of, numbers_of
from zc_perception.doctor.needs import Needs
from zc_perception.doctor.system import System
from zc_perception.doctor.trials import PAGE, allocate, trial_heaps
from zc_perception.errors import AcceleratorError, ZcError
from zc_perception.memory.dmabuf import BufferKind, CpuAccess, DmaBuf
from zc_perception.npu.axl.abi import ImportFlags
from zc_perception.npu.axl.device import AxlCapabilities, AxlDevice
from zc_perception.npu.axl.probe import Importable, probe_shipped_attach
from zc_perception.npu.metis_card import MetisCard, find_cards
from zc_perception.pixel.fourcc import NV12, fourcc_name
from zc_perception.pixel.layout import compute_layout
from zc_perception.pixel.modifier import LINEAR

_SIZE = (640, 360)
_PATTERN = bytes(range(256))


def _need(needs: Needs, name: str) -> Need:
    return needs.heap(name) if name != 'memfd' or 'memfd' in needs.own_heaps() else Need.POSSIBLE


def cpu_trials(system: System, needs: Needs) -> Iterator[Finding]:
    """Allocate, map, SYNC, write, read back by a mapping made anew."""
    for name in trial_heaps(system):
        try:
            with allocate(system, name, 4 * PAGE) as buffer:
                same, figures = _written_and_read(buffer), {'size': buffer.size, 'kind': buffer.kind.value, 'exporter': buffer.exporter()}
        except (ZcError, OSError) as error:
            yield Finding(_need(needs, name).missing, f'a buffer of {name} could not be used: {error}', 'see memory.heaps', name)
            continue
        if same:
            yield ok(f'allocated, mapped, synchronised, written and read back ({figures["exporter"]})', name, **figures)
        else:
            advice = 'report it with the exporter and the kernel: its SYNC ioctl does not keep CPU caches coherent'
            yield Finding(Status.FAIL, f'a buffer of {name} did not hold what was written', advice, name, figures)


def _written_and_read(buffer: DmaBuf) -> bool:
    where = (0, buffer.size - len(_PATTERN))
    with buffer.cpu_access(CpuAccess.WRITE) as mapping:
        for offset in where:
            mapping[offset : offset + len(_PATTERN)] = _PATTERN
    buffer.unmap()
    with buffer.cpu_access(CpuAccess.READ) as mapping:
        return all(mapping[offset : offset + len(_PATTERN)] == _PATTERN for offset in where) and not any(mapping[256:512])


def fence_trials(system: System, needs: Needs) -> Iterator[Finding]:
    """EXPORT_SYNC_FILE, wait, IMPORT_SYNC_FILE."""
    names = list(heap_nodes(system))
    if not names:
        yield skip('there is no heap for dma-bufs, and a memfd has no fences')
    for name in names:
        try:
            with allocate(system, name) as buffer:
                yield _fences(buffer, name)
        except (ZcError, OSError) as error:
            yield Finding(_need(needs, name).missing, f'no buffer of {name} could be tested: {error}', 'see memory.heaps', name)


def _fences(buffer: DmaBuf, name: str) -> Finding:
    fence = buffer.export_fence(CpuAccess.READ | CpuAccess.WRITE)
    if fence is None:
        return skip('the kernel has no such ioctls; see kernel.sync_file_ioctls', name, supported=False)
    try:
        if not fence.wait(1.0):
            return Finding(Status.FAIL, f'the fence of an unused buffer of {name} does not signal', 'report it with the kernel', name)
        fence.check()
        if not buffer.import_fence(fence, CpuAccess.READ):
            return Finding(Status.WARN, f'fences can be taken out of buffers of {name}, not put back', 'install Linux 6.0 or newer', name)
    finally:
        fence.close()
    return ok('a fence was taken out of a buffer, waited for and put back', name, supported=True)


def import_trials(system: System, needs: Needs) -> Iterator[Finding]:
    """Each heap's buffer into each card that can be opened."""
    cards, names = find_cards(system.host), list(heap_nodes(system))
    need = needs.accelerator('axl')
    if not cards or need is Need.UNUSED:
        reason = 'there is no Metis card' if not cards else 'the parameter file uses no accelerator axl'
        yield Finding(need.missing, reason, 'see metis.cards') if need is Need.REQUIRED else skip(reason)
        return
    if not names:
        yield Finding(need.missing, 'there is no heap whose buffers a card could import', 'see memory.heaps')
        return
    wanted = [card for card in cards if card_of(needs, card, system.host)] or cards
    for card in wanted:
        try:
            device = system.open_card(card.path, numbers_of(needs), system.host)
        except ZcError as error:
            yield Finding(need.missing, f'{system.shown(card.path)} could not be opened: {error}', 'see metis.access', card.name)
            continue
        try:
            yield from _imports_into(system, needs, device, card, names)
        finally:
            device.close()


def _imports_into(system: System, needs: Needs, device: AxlDevice, card: MetisCard, names: list[str]) -> Iterator[Finding]:
    try:
        capabilities = device.query()
    except ZcError as error:
        yield Finding(needs.accelerator('axl').missing, f'{card.name} does not answer: {error}', 'see metis.ioctls', card.name)
        return
    for name in names:
        subject = f'{name} -> {card.name}'
        try:
            if capabilities.level == 0:
                with allocate(system, name) as buffer:
                    yield _attached(system, needs, card, buffer, subject)
            else:
                yield _imported(system, device, capabilities, name, subject)
        except (ZcError, OSError) as error:
            advice = 'memory.heaps shows its rights and metis.iommu why the card refuses pages; read dmesg, or set another heap'
            yield Finding(_import_need(needs, name).missing, f'a buffer of {name} could not be imported: {error}', advice, subject)


def _import_need(needs: Needs, name: str) -> Need:
    """A heap that the cameras don't use may be of no use to the card."""
    return needs.accelerator('axl') if needs.heap(name) is Need.REQUIRED else Need.POSSIBLE


def _imported(system: System, device: AxlDevice, capabilities: AxlCapabilities, name: str, subject: str) -> Finding:
    fourccs = [fourcc for fourcc, modifier in capabilities.formats if modifier == LINEAR]
    fourcc = NV12 if NV12 in fourccs or not fourccs else fourccs[0]
    tight = capabilities.level == 1
    stride, offset = (1, 1) if tight else (capabilities.stride_align, capabilities.offset_align)
    layout = compute_layout(fourcc, *_SIZE, stride_align=stride, offset_align=offset)
    with allocate(system, name, layout.buffer_size(0)) as buffer:
        if tight:
            handle = device.import_fd(buffer, *_SIZE, fourcc, ImportFlags.TO_DEVICE)
        else:
            handle = device.import_planes(layout, [buffer], ImportFlags.TO_DEVICE)
        device.release_import(handle)
    found = f'{fourcc_name(fourcc)} {_SIZE[0]}x{_SIZE[1]} was imported and released'
    return ok(found, subject, level=capabilities.level, bytes=layout.buffer_size(0))


def _attached(system: System, needs: Needs, card: MetisCard, buffer: DmaBuf, subject: str) -> Finding:
    """With the shipped driver, which can only say whether it could: a page, as a failed attach keeps the buffer for ever."""
    if buffer.kind is not BufferKind.DMABUF:
        raise AcceleratorError(f'{buffer.heap} gave no dma-buf')
    answer = probe_shipped_attach(card.path, buffer, tree=system.host)
    figures = {'level': 0, 'errno': answer.number}
    if answer.answer is Importable.YES:
        advice = (
            'use accelerator: axruntime (Voyager SDK), which works with this driver; accelerator: axl needs a driver with the import ioctls'
        )
        return Finding(
            needs.accelerator('axl').missing,
            f'the driver can attach the buffer, but has no ioctls for frames: {answer.text}',
            advice,
            subject,
            figures,
        )
    return Finding(needs.accelerator('axl').missing, answer.text, 'see metis.ioctls', subject, figures)
