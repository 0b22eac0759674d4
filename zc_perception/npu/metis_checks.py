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
Check for ``zc_doctor`` what accelerators with a Metis card need.

That is: the card on PCI, driver, node, rights, PCIe link, IOMMU.

Sources: ``Documentation/ABI/testing/sysfs-bus-pci`` and ``sysfs-kernel-iommu_groups``; failure
modes of the ZED X → Metis document.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
import os
from pathlib import Path

from zc_perception.errors import ZcError
from zc_perception.machine.checks import Finding, Need, Needs, ok, skip, Status, told
from zc_perception.machine.heaps import rights_advice
from zc_perception.machine.host_tree import HostTree
from zc_perception.machine.system import DENIED, System
from zc_perception.npu.kinds import ACCELERATORS, AUTO
from zc_perception.npu.metis_card import (
    CARD,
    choose_card,
    find_cards,
    found_cards,
    LinkRate,
    MetisCard,
    NEEDED,
    read_iommu,
    read_link,
)

_NO_CARD = 'there is no Metis card'
_UNUSED = 'the parameter file uses no Metis card'
_UDEV = 'KERNEL=="metis-*", GROUP="video", MODE="0660"'


def _take_a_card() -> tuple[str, ...]:
    """Return the accelerators that use a card."""
    return tuple(ACCELERATORS.declared.readers[CARD.name])


def wanted_cards(needs: Needs, tree: HostTree) -> list[MetisCard]:
    """Return the cards that the inference nodes would take; all cards if no node names one."""
    if not needs.known:
        return find_cards(tree)
    found = []
    for inference in needs.inferences:
        if inference.kind in (AUTO, *_take_a_card()):
            with suppress(ZcError):
                found.append(choose_card(inference['accelerator_device'], tree))
    return list(dict.fromkeys(found))


def card_need(needs: Needs) -> Need:
    """Say what needs a Metis card, whichever interface it uses."""
    return needs.accelerator(*_take_a_card())


def of_each_card(
    look: Callable[[System, Needs, MetisCard], Finding],
) -> Callable[[System, Needs], Iterator[Finding]]:
    """
    Make a check that looks at the cards one by one.

    Without a card it does not apply: only :func:`metis_cards` complains about that.
    """

    def check(system: System, needs: Needs) -> Iterator[Finding]:
        cards = [] if card_need(needs) is Need.UNUSED else wanted_cards(needs, system.host)
        if not cards:
            yield skip(
                _UNUSED
                if card_need(needs) is Need.UNUSED
                else f'{_NO_CARD} to look at; see metis.cards'
            )
        for card in cards:
            yield look(system, needs, card)

    return check


def metis_cards(system: System, needs: Needs) -> Iterator[Finding]:
    """Report each card with a node, or why there is none; and the parameter file's card."""
    need, cards = card_need(needs), find_cards(system.host)
    if need is Need.UNUSED:
        yield skip(_UNUSED, nodes=[card.path for card in cards])
        return
    for card in cards:
        figures = {'node': system.shown(card.path), 'pci': card.pci_address}
        yield ok(f'{figures["node"]} (PCI {card.pci_address or "unknown"})', card.name, **figures)
    if not cards:
        yield told(need.missing, found_cards(system.host))
    for wanted in dict.fromkeys(
        i['accelerator_device']
        for i in needs.inferences
        if i['accelerator_device'] and i.kind in (AUTO, *_take_a_card())
    ):
        try:
            choose_card(wanted, system.host)
        except ZcError as error:
            yield Finding(
                need.missing,
                f"accelerator_device '{wanted}': {error}",
                'set accelerator_device to a card that was found',
                wanted,
            )


@of_each_card
def metis_access(system: System, needs: Needs, card: MetisCard) -> Finding:
    """Open a node for reading and writing."""
    shown, number = system.shown(card.path), system.open_node(card.path)
    figures = {'errno': number}
    if number == 0:
        return ok(f'{shown} can be opened', card.name, **figures)
    if number in DENIED:
        return Finding(
            card_need(needs).missing,
            f'this user may not open {shown}',
            rights_advice(_UDEV, shown),
            card.name,
            figures,
        )
    advice = (
        'the card may be off or resetting; see dmesg | grep -i -e metis -e axl, and '
        f'{found_cards(system.host)}'
    )
    return Finding(
        card_need(needs).missing,
        f"{shown} can't be opened: {os.strerror(number)}",
        advice,
        card.name,
        figures,
    )


@of_each_card
def metis_driver(system: System, needs: Needs, card: MetisCard) -> Finding:
    """Report name and version of the module behind the card, where it tells them."""
    folder = system.host.pci(card.pci_address) / 'driver' if card.pci_address else Path('/nowhere')
    if not folder.exists():
        return skip('sysfs does not show its driver', card.name)
    driver, module = folder.resolve().name, folder / 'module'
    name = module.resolve().name if module.exists() else driver
    version = system.read('sys/module', name, 'version')
    text = f"driver '{driver}'"
    text += f', module {name}' if name != driver else ''
    text += f' {version}' if version else ', which tells no version'
    return ok(text, card.name, driver=driver, module=name, version=version)


def _rate(rate: LinkRate) -> dict[str, object]:
    return {'gts': rate.gts, 'width': rate.width}


@of_each_card
def metis_link(system: System, needs: Needs, card: MetisCard) -> Finding:
    """Report 8 GT/s x4, or what is wrong with the link."""
    link = read_link(card.pci_address, system.host)
    figures = {'now': _rate(link.now), 'card': _rate(link.card), 'port': _rate(link.port)}
    trouble = link.diagnosis()
    if not trouble:
        return ok(f'{link.now} (at least {NEEDED} is needed)', card.name, **figures)
    found, _, advice = trouble.partition('; ')
    # One that can't be read, as in virtual machines, may be good.
    status = Status.WARN if link.problem else card_need(needs).missing
    return Finding(status, found, advice, card.name, figures)


@of_each_card
def metis_iommu(system: System, needs: Needs, card: MetisCard) -> Finding:
    """Check the IOMMU, behind which scattered pages are one range of addresses for the card."""
    iommu = read_iommu(card.pci_address, system.host)
    figures = {'group': iommu.group, 'type': iommu.kind, 'iommu': iommu.unit}
    if iommu.translates:
        return ok(
            f'{iommu.text}: the card can use buffers of scattered pages', card.name, **figures
        )
    if iommu.translates is None:
        return skip(
            f'{iommu.text}; the import of each buffer tells whether the card can use it',
            card.name,
            **figures,
        )
    enable = (
        'boot without iommu=pt (iommu.passthrough=0)'
        if iommu.group
        else 'enable the IOMMU (intel_iommu=on, amd_iommu=on, iommus in the device tree)'
    )
    advice = f'leave heap at auto, which takes a CMA heap then (see memory.heaps), or {enable}'
    return Finding(
        Status.WARN,
        f'{iommu.text}, so it can use only physically contiguous buffers',
        advice,
        card.name,
        figures,
    )
