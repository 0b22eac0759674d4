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
Checks of ``zc_doctor`` for accelerator ``axl``: driver and buffers.

The checks find out which ioctls the driver has, and whether the card can import a real buffer of
each heap. The Voyager SDK's driver (metis-dkms) can't import buffers; with this driver,
:func:`probe_shipped_attach` only attaches a buffer and detaches it. Each time that the device's
file is opened, one dma-buf can be attached: ioctl ``'U'`` 5 (``_IOWR``, argument: pointer to an
int with the descriptor) attaches the dma-buf and maps it in both directions. Ioctl ``'U'`` 6
detaches it, and so does closing the device's file. The published source of driver 1.6.2
(``axl-aipu-ioctl.c``) shows:

- The driver detaches without checking that a buffer is attached, so the probe detaches only after
  an attach that succeeded.
- After a failed attach the driver keeps a reference to the buffer for ever, so probe with a small
  buffer. One page is enough to find out whether the card can use a heap.
- Success means that the kernel attached the buffer to the card and mapped its pages, but not that
  the card sees these pages as one range of addresses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
import ctypes
from dataclasses import dataclass
from enum import Enum
import errno
import os

from zc_perception.errors import AcceleratorError, ZcError
from zc_perception.machine.checks import Finding, Need, Needs, ok, skip, Status
from zc_perception.machine.system import allocate, heap_nodes, HOST, HostTree, System
from zc_perception.memory.dmabuf import BufferKind, DmaBuf
from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.npu.axl.abi import ImportFlags, ioc, IOCTL_TYPE, parse_ioctl_numbers
from zc_perception.npu.axl.device import (
    AxlCapabilities,
    AxlDevice,
    call_driver,
    ENOTSUPP,
    errno_name,
    open_error,
)
from zc_perception.npu.metis_card import (
    card_need,
    find_cards,
    found_cards,
    MetisCard,
    of_each_card,
    wanted_cards,
)
from zc_perception.pixel.fourcc import fourcc_name, NV12
from zc_perception.pixel.layout import compute_layout
from zc_perception.pixel.modifier import LINEAR

_INT = ctypes.sizeof(ctypes.c_int)
DMA_ATTACH = ioc(3, IOCTL_TYPE, 5, _INT)
DMA_DETACH = ioc(3, IOCTL_TYPE, 6, _INT)


class Importable(Enum):
    """Whether a card can import a buffer. ``UNKNOWN``: the driver failed before the import."""

    YES = 'yes'
    NO = 'no'
    UNKNOWN = 'unknown'


@dataclass(frozen=True)
class AttachProbe:
    """
    The driver's answer to the attempt to attach a buffer.

    :param answer: whether the card can import the buffer.
    :param number: the driver's errno; 0 if the answer is :attr:`Importable.YES`.
    :param text: one sentence with the result and advice.
    """

    answer: Importable
    number: int
    text: str


_ADDRESSES = 'enable the IOMMU for the card, or use a contiguous heap such as dma_heap/linux,cma'
_GONE = 'the card is gone or its link is down; check lspci -d 1f9d: and dmesg'
_MEANINGS: dict[int, tuple[Importable, str]] = {
    errno.ENOTTY: (
        Importable.UNKNOWN,
        (
            "the driver has no attach ioctl ('U' 5), so it is not Axelera's metis-dkms, or it "
            'is too old; see modinfo metis'
        ),
    ),
    errno.EINVAL: (
        Importable.NO,
        (
            'the buffer is no dma-buf (a memfd is not one), or its exporter refuses the card; use '
            'a dma-heap or udmabuf'
        ),
    ),
    errno.EBADF: (
        Importable.NO,
        "the buffer's descriptor is closed; keep the buffer open while the card attaches it",
    ),
    errno.ENOMEM: (
        Importable.NO,
        f'no memory or no device addresses are left for the mapping; {_ADDRESSES}',
    ),
    errno.EIO: (Importable.NO, f"the pages can't be mapped for the card; {_ADDRESSES}"),
    errno.EOPNOTSUPP: (
        Importable.NO,
        f"the buffer's exporter doesn't let a card attach the buffer; {_ADDRESSES}",
    ),
    ENOTSUPP: (
        Importable.NO,
        f"the buffer's exporter doesn't let a card attach the buffer; {_ADDRESSES}",
    ),
    errno.EACCES: (
        Importable.NO,
        'the exporter or a security module denies the access; see dmesg | grep -i denied',
    ),
    errno.EPERM: (
        Importable.NO,
        'the exporter or a security module denies the access; see dmesg | grep -i denied',
    ),
    errno.EBUSY: (
        Importable.NO,
        'another device uses the buffer exclusively; probe with a buffer that nothing uses',
    ),
    errno.EFAULT: (
        Importable.UNKNOWN,
        "the driver couldn't read the argument, so ioctl 'U' 5 of this driver is not the "
        'attach ioctl of metis-dkms; see modinfo metis',
    ),
    errno.ENODEV: (Importable.UNKNOWN, _GONE),
    errno.ENXIO: (Importable.UNKNOWN, _GONE),
}


def _call(fd: OwnedFd, request: int, descriptor: int) -> int:
    """Call ioctl *request* with a pointer to *descriptor*; return the errno, 0 for success."""
    error = call_driver(fd, request, ctypes.c_int(descriptor))
    return 0 if error is None else error.errno or errno.EIO


def probe_shipped_attach(path: str, buffer: DmaBuf, *, tree: HostTree = HOST) -> AttachProbe:
    """
    Probe whether a card's driver, the one of the Voyager SDK, can attach and map *buffer*.

    Nothing stays attached, and no answer of the driver raises an error.

    :param path: the card's device node.
    :param buffer: one page of a heap (see the module's docstring); the caller owns the buffer.
    """
    try:
        device = OwnedFd.open(path, os.O_RDWR)
    except OSError as error:
        return AttachProbe(
            Importable.UNKNOWN, error.errno or 0, str(open_error(path, error, found_cards(tree)))
        )
    with device:
        number = _call(device, DMA_ATTACH, buffer.fileno())
        if number:
            answer, meaning = _MEANINGS.get(
                number, (Importable.NO, 'see dmesg | grep -i -e metis -e axl')
            )
            return AttachProbe(
                answer,
                number,
                f'{path} refused a buffer of {buffer.heap} with {errno_name(number)}: {meaning}',
            )
        number = _call(device, DMA_DETACH, buffer.fileno())
        late = (
            f'; the driver detached the buffer only when the device node was closed, because the '
            f'detach ioctl failed ({errno_name(number)})'
            if number
            else ''
        )
        return AttachProbe(Importable.YES, 0, f'{path} can import buffers of {buffer.heap}{late}')


_SIZE = (640, 360)

_OTHER_DRIVER = (
    'use accelerator: axruntime (Voyager SDK) or onnx, install a driver with the '
    "import ioctls, or give the driver's own ioctl numbers in axl_ioctls"
)


def numbers_of(needs: Needs) -> Mapping[str, int]:
    """
    Return the ioctl numbers that parameter ``axl_ioctls`` of the parameter file gives.

    :raises ConfigError: the numbers can't be parsed.
    """
    entries = next(
        (inference['axl_ioctls'] for inference in needs.inferences if inference['axl_ioctls']), ()
    )
    return parse_ioctl_numbers(entries) if entries else {}


def open_card(system: System, needs: Needs, card: MetisCard) -> AxlDevice:
    """
    Open a card's device node, with the ioctl numbers that the parameter file gives.

    :raises ZcError: the device node can't be opened.
    """
    return system.opener(AxlDevice)(card.path, numbers_of(needs) or None, tree=system.host)


def metis_ioctls(system: System, needs: Needs) -> Iterator[Finding]:
    """Report what each card's driver can do, by asking it or from the ioctls that it has."""
    if needs.accelerator('axl') is Need.UNUSED and card_need(needs) is not Need.UNUSED:
        yield skip('the parameter file uses no accelerator axl')
    else:
        yield from _ioctls(system, needs)


@of_each_card
def _ioctls(system: System, needs: Needs, card: MetisCard) -> Finding:
    need = needs.accelerator('axl')
    try:
        with closing(open_card(system, needs, card)) as device:
            answer = device.query()
    except ZcError as error:
        return Finding(
            need.missing,
            f'{card.name} does not answer: {error}',
            'see check metis.access',
            card.name,
        )
    figures = {
        'level': answer.level,
        'max_in_flight': answer.max_in_flight,
        'stride_align': answer.stride_align,
        'offset_align': answer.offset_align,
        'formats': len(answer.formats),
    }
    if answer.level >= 2:
        limits = (
            f'{answer.max_in_flight} jobs in flight, strides in multiples of '
            f'{answer.stride_align} bytes'
        )
        return ok(
            f'the driver has import and submit ioctls: {len(answer.formats)} formats, {limits}',
            card.name,
            **figures,
        )
    if answer.level == 1:
        text = (
            'the driver has only ioctls 64 to 66: it takes LINEAR images without padding '
            'in one buffer, and one job at a time'
        )
        return Finding(
            Status.WARN,
            text,
            'a newer driver takes padded images and several jobs',
            card.name,
            figures,
        )
    text = (
        "the driver has no import and submit ioctls (ENOTTY); Axelera's shipped driver has none"
    )
    return Finding(need.missing, text, _OTHER_DRIVER, card.name, figures)


def import_trials(system: System, needs: Needs) -> Iterator[Finding]:
    """Import a buffer of each heap into each card, and report which imports fail."""
    cards, names = find_cards(system.host), list(heap_nodes(system))
    need = needs.accelerator('axl')
    if not cards or need is Need.UNUSED:
        reason = (
            'there is no Metis card' if not cards else 'the parameter file uses no accelerator axl'
        )
        yield (
            Finding(need.missing, reason, 'see check metis.cards')
            if need is Need.REQUIRED
            else skip(reason)
        )
        return
    if not names:
        yield Finding(
            need.missing,
            'there is no heap whose buffers a card could import',
            'see check memory.heaps',
        )
        return
    for card in wanted_cards(needs, system.host) or cards:
        try:
            device = open_card(system, needs, card)
        except ZcError as error:
            yield Finding(
                need.missing,
                f'{system.shown(card.path)} could not be opened: {error}',
                'see check metis.access',
                card.name,
            )
            continue
        with closing(device):
            try:
                capabilities = device.query()
            except ZcError as error:
                yield Finding(
                    need.missing,
                    f'{system.shown(card.path)} does not answer: {error}',
                    'see check metis.ioctls',
                    card.name,
                )
            else:
                yield from _imports_into(system, needs, device, capabilities, card, names)


def _imports_into(
    system: System,
    needs: Needs,
    device: AxlDevice,
    capabilities: AxlCapabilities,
    card: MetisCard,
    names: list[str],
) -> Iterator[Finding]:
    for name in names:
        subject = f'{name} -> {card.name}'
        try:
            if capabilities.level == 0:
                with allocate(system, name) as buffer:
                    yield _attached(system, needs, card, buffer, subject)
            else:
                yield _imported(system, device, capabilities, name, subject)
        except (ZcError, OSError) as error:
            advice = (
                "check memory.heaps shows the heap's access rights, and check metis.iommu shows "
                'why the card refuses pages; read dmesg, or set another heap'
            )
            # A failed import is less severe if no camera uses the heap that the buffer came from.
            used = needs.heap(name) is Need.REQUIRED
            yield Finding(
                (needs.accelerator('axl') if used else Need.POSSIBLE).missing,
                f'a buffer of {name} could not be imported: {error}',
                advice,
                subject,
            )


def _imported(
    system: System, device: AxlDevice, capabilities: AxlCapabilities, name: str, subject: str
) -> Finding:
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


def _attached(
    system: System, needs: Needs, card: MetisCard, buffer: DmaBuf, subject: str
) -> Finding:
    """
    Check whether a driver that has no import ioctls can at least attach *buffer*.

    *buffer* is one page, because after a failed attach the driver keeps the buffer for ever.
    """
    if buffer.kind is not BufferKind.DMABUF:
        raise AcceleratorError(f'{buffer.heap} gave no dma-buf')
    answer = probe_shipped_attach(card.path, buffer, tree=system.host)
    figures = {'level': 0, 'errno': answer.number}
    found, advice = answer.text, 'see check metis.ioctls'
    if answer.answer is Importable.YES:
        found = f'the driver can attach the buffer, but has no ioctls for frames: {answer.text}'
        advice = (
            'use accelerator: axruntime (Voyager SDK), which works with this driver; axl '
            'needs a driver with the import ioctls'
        )
    return Finding(needs.accelerator('axl').missing, found, advice, subject, figures)
