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
Check for ``zc_doctor`` what accelerator axl needs.

That is: the driver's ioctls, and whether the card can import a real buffer of each heap.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing

from zc_perception.errors import AcceleratorError, ZcError
from zc_perception.machine.checks import Finding, Need, Needs, ok, skip, Status
from zc_perception.machine.heaps import allocate, heap_nodes
from zc_perception.machine.system import System
from zc_perception.memory.dmabuf import BufferKind, DmaBuf
from zc_perception.npu.axl.abi import ImportFlags, parse_ioctl_numbers
from zc_perception.npu.axl.device import AxlCapabilities, AxlDevice
from zc_perception.npu.axl.probe import Importable, probe_shipped_attach
from zc_perception.npu.metis_card import find_cards, MetisCard
from zc_perception.npu.metis_checks import card_need, of_each_card, wanted_cards
from zc_perception.pixel.fourcc import fourcc_name, NV12
from zc_perception.pixel.layout import compute_layout
from zc_perception.pixel.modifier import LINEAR

_SIZE = (640, 360)

_OTHER_DRIVER = (
    'use accelerator: axruntime (Voyager SDK) or onnx, install a driver with the '
    'import ioctls, or give its numbers in axl_ioctls'
)


def numbers_of(needs: Needs) -> Mapping[str, int]:
    """
    Return the driver's ioctl numbers that the parameter file gives.

    :raises ConfigError: they can't be understood.
    """
    entries = next(
        (inference['axl_ioctls'] for inference in needs.inferences if inference['axl_ioctls']), ()
    )
    return parse_ioctl_numbers(entries) if entries else {}


def open_card(system: System, needs: Needs, card: MetisCard) -> AxlDevice:
    """
    Open a card's node with the ioctl numbers that the parameter file gives.

    :raises ZcError: it can't be opened.
    """
    return system.opener(AxlDevice)(card.path, numbers_of(needs) or None, tree=system.host)


def metis_ioctls(system: System, needs: Needs) -> Iterator[Finding]:
    """Report what QUERY says, or which generation the driver is of."""
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
            need.missing, f'{card.name} does not answer: {error}', 'see metis.access', card.name
        )
    figures = {
        'level': answer.level,
        'max_in_flight': answer.max_in_flight,
        'stride_align': answer.stride_align,
        'offset_align': answer.offset_align,
        'formats': len(answer.formats),
    }
    if answer.level >= 2:
        limits = f'{answer.max_in_flight} jobs in flight, strides of {answer.stride_align} bytes'
        return ok(
            f'import, submit and query: {len(answer.formats)} formats, {limits}',
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
    text = 'the driver has no import and submit ioctls (ENOTTY), as the shipped driver'
    return Finding(need.missing, text, _OTHER_DRIVER, card.name, figures)


def import_trials(system: System, needs: Needs) -> Iterator[Finding]:
    """Import a buffer of each heap into each card that can be opened."""
    cards, names = find_cards(system.host), list(heap_nodes(system))
    need = needs.accelerator('axl')
    if not cards or need is Need.UNUSED:
        reason = (
            'there is no Metis card' if not cards else 'the parameter file uses no accelerator axl'
        )
        yield (
            Finding(need.missing, reason, 'see metis.cards')
            if need is Need.REQUIRED
            else skip(reason)
        )
        return
    if not names:
        yield Finding(
            need.missing, 'there is no heap whose buffers a card could import', 'see memory.heaps'
        )
        return
    for card in wanted_cards(needs, system.host) or cards:
        try:
            device = open_card(system, needs, card)
        except ZcError as error:
            yield Finding(
                need.missing,
                f'{system.shown(card.path)} could not be opened: {error}',
                'see metis.access',
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
                    'see metis.ioctls',
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
                'memory.heaps shows its rights and metis.iommu why the card refuses '
                'pages; read dmesg, or set another heap'
            )
            yield Finding(
                _import_need(needs, name).missing,
                f'a buffer of {name} could not be imported: {error}',
                advice,
                subject,
            )


def _import_need(needs: Needs, name: str) -> Need:
    """Return how bad it is if the card can't import from a heap; cameras may not use that heap."""
    return needs.accelerator('axl') if needs.heap(name) is Need.REQUIRED else Need.POSSIBLE


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
    Ask the shipped driver, which can only say whether it could attach the buffer.

    The buffer is one page, because a failed attach keeps the buffer for ever.
    """
    if buffer.kind is not BufferKind.DMABUF:
        raise AcceleratorError(f'{buffer.heap} gave no dma-buf')
    answer = probe_shipped_attach(card.path, buffer, tree=system.host)
    figures = {'level': 0, 'errno': answer.number}
    found, advice = answer.text, 'see metis.ioctls'
    if answer.answer is Importable.YES:
        found = f'the driver can attach the buffer, but has no ioctls for frames: {answer.text}'
        advice = (
            'use accelerator: axruntime (Voyager SDK), which works with this driver; axl '
            'needs a driver with the import ioctls'
        )
    return Finding(needs.accelerator('axl').missing, found, advice, subject, figures)
