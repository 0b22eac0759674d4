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
Find this machine's Metis cards; read their names, IOMMU and PCIe link from Linux.

Accelerators, diagnostics and ``zc_doctor`` use this module. Its functions keep no results: each
call reads ``/dev`` and sysfs again. Only the check :func:`metis_access` opens a card. Tests pass a
:class:`HostTree` with folders that stand for ``/dev`` and sysfs.

* **Cards**: :func:`find_cards`, :func:`choose_card`. The shipped driver names a node after PCI
  domain, bus and slot in hexadecimal: ``metis-0:1:0``, since version 1.6 ``metis-0-1-0``, and
  ``europa-0-1-0`` for the next chip. A node's PCI device is ``/sys/dev/char/MAJOR:MINOR/device``.
* **IOMMU**: :func:`read_iommu`. An IOMMU shows a card scattered pages as one range of addresses;
  without an IOMMU, buffers must be contiguous. Sources:
  ``Documentation/ABI/testing/sysfs-kernel-iommu_groups`` (the type of a group's domain;
  ``identity`` passes addresses through), ``sysfs-bus-pci`` and ``sysfs-class-iommu`` (the device's
  links).
* **PCIe link**: :func:`read_link`. A Metis needs 8 GT/s x4. Sources:
  ``Documentation/ABI/testing/sysfs-bus-pci`` (``current_link_speed``, ``max_link_width`` and so
  on). The advice on a slow link comes from the document *ZED X → Metis*, see ``docs/rules.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
import os
from pathlib import Path
import re
import stat

from zc_perception.errors import AcceleratorError, NoDeviceError, ZcError
from zc_perception.machine.checks import Check, Finding, Need, Needs, ok, skip, Status, told
from zc_perception.machine.system import DENIED, HOST, HostTree, rights_advice, System
from zc_perception.npu.kinds import ACCELERATORS, AUTO
from zc_perception.parameters import ParameterSpec

VENDOR = '0x1f9d'
CARD = ParameterSpec(
    'accelerator_device',
    '',
    'The card, as name (metis-0-1-0 or metis-0:1:0), device node, PCI address (01:00.0, in '
    'quotes) or index in PCI order. Empty: the first card.',
    whole_numbers=True,
)
_CHECKS = 'zc_perception.npu.metis_card'
CARD_CHECKS = (
    Check(
        'metis.cards',
        'whether each Metis card on PCI has a driver and a device node',
        f'{_CHECKS}:metis_cards',
    ),
    Check('metis.access', 'whether this user may open each card', f'{_CHECKS}:metis_access'),
    Check(
        'metis.driver',
        "read the name and version of each card's driver",
        f'{_CHECKS}:metis_driver',
    ),
    Check('metis.link', "whether each card's PCIe link is fast enough", f'{_CHECKS}:metis_link'),
    Check(
        'metis.iommu',
        'whether an IOMMU lets each card use scattered memory',
        f'{_CHECKS}:metis_iommu',
    ),
)
"""The checks of ``zc_doctor`` for each accelerator that uses a Metis card."""
_NODES = ('metis-*', 'europa-*')
_PARAMETER = "parameter 'accelerator_device'"
_PCI_ADDRESS = re.compile(
    r'(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})\.([0-7])', re.ASCII | re.IGNORECASE
)
_NAME = re.compile(
    r'(?:(?:metis|europa)-)?([0-9a-f]{1,8})[:-]([0-9a-f]{1,2})[:-]([0-9a-f]{1,2})',
    re.ASCII | re.IGNORECASE,
)
INDEX = re.compile(r'[0-9]{1,4}', re.ASCII)
_GONE = b'\xff\xff'
"""The vendor id in the config file of a PCI device that no longer answers."""

Place = tuple[int, int, int, int]
"""A PCI device's place: domain, bus, slot and function."""
NEEDED_GTS = 8.0
NEEDED_WIDTH = 4
CHECK = "'lspci -vvv -d 1f9d:1100 | grep LnkSta' must show 'Speed 8GT/s, Width x4'"
_SPEED = re.compile(r'([0-9]+(?:\.[0-9]+)?) GT/s', re.ASCII)
_WIDTH = re.compile(r'[0-9]{1,3}', re.ASCII)


@dataclass(frozen=True)
class MetisCard:
    """One card: its device node, and its PCI address (empty if sysfs doesn't show it)."""

    path: str
    pci_address: str = ''

    @property
    def name(self) -> str:
        """The file name of the card's device node."""
        return os.path.basename(self.path)

    @property
    def place(self) -> Place | None:
        """The PCI place, from the address or else the device node's name; ``None``: unknown."""
        return place_of(self.pci_address) or place_of(self.name)

    def __str__(self) -> str:
        return f'{self.path} (PCI {self.pci_address or "address unknown"})'


def place_of(text: str) -> Place | None:
    """Return PCI domain, bus, slot, function from an address or a node's name, or ``None``."""
    match = _PCI_ADDRESS.fullmatch(text)
    if match is not None:
        return int(match[1] or '0', 16), int(match[2], 16), int(match[3], 16), int(match[4])
    match = _NAME.fullmatch(text)
    return None if match is None else (int(match[1], 16), int(match[2], 16), int(match[3], 16), 0)


def card_at(path: str, tree: HostTree = HOST) -> MetisCard:
    """Return the card of a device node; its PCI address is empty if sysfs doesn't show it."""
    with suppress(OSError):
        status = os.stat(path)
        if stat.S_ISCHR(status.st_mode):
            link = (
                tree.sysfs
                / 'dev'
                / 'char'
                / f'{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}'
                / 'device'
            )
            for part in reversed(link.resolve(strict=True).parts):
                if _PCI_ADDRESS.fullmatch(part):
                    return MetisCard(path, part)
    return MetisCard(path)


def _device_number(path: str) -> int:
    try:
        return os.stat(path).st_rdev
    except OSError:
        return 0


def find_cards(tree: HostTree = HOST) -> list[MetisCard]:
    """Return all cards that have a device node, each once, sorted by PCI address."""
    found: dict[int, MetisCard] = {}
    for path in sorted(str(node) for pattern in _NODES for node in tree.dev.glob(pattern)):
        found.setdefault(_device_number(path), card_at(path, tree))
    return sorted(found.values(), key=lambda card: (card.place or (1 << 32, 0, 0, 0), card.path))


def driver_version(tree: HostTree = HOST) -> str:
    """Return the Metis driver's version; empty if the driver isn't loaded or shows none."""
    with suppress(OSError):
        return (
            (tree.sysfs / 'class' / 'metis' / 'version')
            .read_text(encoding='ascii', errors='replace')
            .strip()
        )
    return ''


def _on_pci(tree: HostTree) -> Iterator[tuple[str, str]]:
    """Yield PCI address and driver (empty: none) of each device of vendor Axelera."""
    with suppress(OSError):
        for device in sorted(tree.pci('').iterdir()):
            with suppress(OSError):
                if (device / 'vendor').read_text(encoding='ascii').strip() == VENDOR:
                    driver = device / 'driver'
                    yield device.name, driver.resolve().name if driver.exists() else ''


def _why_none(tree: HostTree) -> str:
    nodes = tree.dev / _NODES[0]
    cards = list(_on_pci(tree))
    if not cards:
        return (
            f'no Metis card: there is no {nodes}, and nothing of vendor 1f9d on PCI; check power '
            'and slot (lspci -d 1f9d:), then rescan (echo 1 > /sys/bus/pci/rescan)'
        )
    address, driver = cards[0]
    if not driver:
        return (
            f'no Metis card: {address} is on PCI but has no driver; load the driver (modprobe '
            'metis) and see dmesg | grep -i -e metis -e axl'
        )
    return (
        f"no Metis card: driver '{driver}' is bound to {address}, but there is no {nodes}; see "
        f"ls -l {tree.dev}, and give a container the card's node (--device)"
    )


def found_cards(tree: HostTree = HOST) -> str:
    """Return the end of a message about a missing card: the cards found, or why there is none."""
    cards = find_cards(tree)
    return 'found ' + ', '.join(map(str, cards)) if cards else _why_none(tree)


def choose_card(wanted: str, tree: HostTree = HOST) -> MetisCard:
    """
    Return the card that a value of parameter ``accelerator_device`` names.

    :param wanted: a device node (any path, taken as it is), a PCI address (``0000:01:00.0``,
        ``01:00.0``), a name (``metis-0:1:0``, ``metis-0-1-0``, ``0:1:0``, with leading zeros or
        without), an index into :func:`find_cards`; empty for the first card.
    :raises NoDeviceError: *wanted* is empty, and neither a device node nor PCI shows a card.
    :raises AcceleratorError: there is no such card; the message lists the cards.
    """
    if wanted.startswith('/'):
        return card_at(wanted, tree)
    cards = find_cards(tree)
    if not cards:
        kind = NoDeviceError if not wanted and not any(_on_pci(tree)) else AcceleratorError
        raise kind(_why_none(tree))
    if not wanted:
        return cards[0]
    if INDEX.fullmatch(wanted):
        if int(wanted) < len(cards):
            return cards[int(wanted)]
    else:
        exact = [
            card
            for card in cards
            if wanted.lower() in (card.name.lower(), card.pci_address.lower())
        ]
        place = place_of(wanted)
        for card in exact or [card for card in cards if place is not None and card.place == place]:
            return card
    raise AcceleratorError(
        f"there is no Metis card '{wanted}'; {found_cards(tree)}; give {_PARAMETER} a name "
        f'such as {cards[0].name}, a PCI address, a device node or an index below {len(cards)}'
    )


def card_is_gone(card: MetisCard, tree: HostTree = HOST) -> bool:
    """Return whether the card's device node or PCI device is missing, or no longer answers."""
    if not os.path.exists(card.path):
        return True
    if not card.pci_address:
        return False
    attributes = tree.pci(card.pci_address)
    try:
        with open(attributes / 'config', 'rb') as config:
            return config.read(2) == _GONE
    except OSError:
        return not attributes.exists()


@dataclass(frozen=True)
class Iommu:
    """
    The IOMMU in front of a PCI device.

    :param translates: whether the device sees scattered pages as one range of addresses; ``None``:
        unknown.
    :param text: what *translates* says, in words that fit into a message.
    :param group: the number of the device's IOMMU group; empty: the device is in none.
    :param kind: type of the group's domain, such as ``DMA-FQ`` or ``identity``.
    :param unit: the IOMMU's own name.
    """

    translates: bool | None
    text: str
    group: str = ''
    kind: str = ''
    unit: str = ''

    @property
    def needs_contiguous(self) -> bool:
        """Whether the device needs physically contiguous buffers; ``False`` if unknown."""
        return self.translates is False


def read_iommu(address: str, tree: HostTree = HOST) -> Iommu:
    """
    Return the current state of the IOMMU in front of a PCI device; raise no error.

    :param address: such as ``0000:01:00.0``; empty: unknown.
    """
    device = tree.pci(address)
    if not address or not device.is_dir():
        reason = (
            f'{tree.sysfs} shows no device {address}' if address else 'its PCI address is unknown'
        )
        return Iommu(None, f'whether the card is behind an IOMMU is not known: {reason}')
    link = device / 'iommu_group'
    if not link.exists():
        return Iommu(False, 'the card is in no IOMMU group')
    try:
        group, unit = link.resolve().name, device / 'iommu'
        behind = unit.resolve().name if unit.exists() else ''
        kind = (link / 'type').read_text(encoding='ascii', errors='replace').strip()
    except OSError as error:
        return Iommu(
            None,
            (
                f"whether the card is behind an IOMMU is not known: {link}/type can't be read "
                f'({error.strerror})'
            ),
            link.name,
        )
    if kind in ('', 'unknown'):
        return Iommu(
            None,
            (
                f"whether IOMMU group {group} translates the card's addresses is not known: "
                f'{link}/type does not say it'
            ),
            group,
        )
    if kind == 'identity':
        return Iommu(False, f'IOMMU group {group} passes addresses through', group, kind, behind)
    return Iommu(
        True,
        f'IOMMU group {group} ({kind}){f" of {behind}" if behind else ""}',
        group,
        kind,
        behind,
    )


@dataclass(frozen=True)
class LinkRate:
    """Speed in GT/s and number of lanes; ``None``: unknown."""

    gts: float | None = None
    width: int | None = None

    @property
    def known(self) -> bool:
        """Whether speed and width are known."""
        return self.gts is not None and self.width is not None

    @property
    def enough(self) -> bool:
        """Whether speed and width are known and at least 8 GT/s x4, as the card needs."""
        return (
            self.gts is not None
            and self.width is not None
            and self.gts >= NEEDED_GTS
            and self.width >= NEEDED_WIDTH
        )

    def __str__(self) -> str:
        speed = '? GT/s' if self.gts is None else f'{self.gts:g} GT/s'
        return f'{speed} x{"?" if self.width is None else self.width}'


NEEDED = LinkRate(NEEDED_GTS, NEEDED_WIDTH)


@dataclass(frozen=True)
class PcieLink:
    """
    A card's PCIe link: its current rate, the card's highest rate, and the port's highest rate.

    :param problem: why the link can't be read; empty if it was read.
    """

    address: str
    now: LinkRate = LinkRate()
    card: LinkRate = LinkRate()
    port: LinkRate = LinkRate()
    port_address: str = ''
    problem: str = ''

    def __str__(self) -> str:
        return f'unknown ({self.problem})' if self.problem else str(self.now)

    def diagnosis(self) -> str:
        """Return why the link is slow or can't be read, with advice; empty if it is good."""
        if self.problem:
            return f"the card's PCIe link can't be read ({self.problem}); {CHECK}"
        if self.now.enough:
            return ''
        return (
            f'the PCIe link of {self.address} runs at {self.now} instead of {NEEDED}: '
            f'{self._cause()}; {CHECK}'
        )

    def _cause(self) -> str:
        if self.now.width == 0 or not self.now.known:
            return 'it is down or retraining, so the card may be off, resetting or loose'
        if self.port.known and not self.port.enough:
            return (
                f"the card's slot (port {self.port_address}) can do no more than {self.port}, so "
                'use another slot or adapter'
            )
        if self.card.known and not self.card.enough:
            return (
                f'the card itself offers only {self.card}, so look at its firmware and contacts, '
                'and at risers that have too few lanes'
            )
        return (
            'slot and card can do better, so reseat the card, check cable and adapter, and '
            'restart the machine to train the link anew'
        )


def _read(attribute: Path) -> str:
    return attribute.read_text(encoding='ascii', errors='replace').strip()


def _rate(device: Path, which: str) -> LinkRate:
    speed, width = (
        _SPEED.match(_read(device / f'{which}_link_speed')),
        _WIDTH.fullmatch(_read(device / f'{which}_link_width')),
    )
    # If the device doesn't answer any more, sysfs reports 255 lanes.
    lanes = None if width is None or int(width[0]) > 64 else int(width[0])
    return LinkRate(None if speed is None else float(speed[1]), lanes)


def read_link(address: str, tree: HostTree = HOST) -> PcieLink:
    """
    Return the link of a PCI device; raise no error, but set ``problem`` if it can't be read.

    :param address: such as ``0000:01:00.0``; empty: unknown.
    """
    if not address:
        return PcieLink(address, problem='its PCI address is unknown')
    device = tree.pci(address)
    try:
        now = _rate(device, 'current')
    except OSError as error:
        missing = (
            f'sysfs shows no PCIe link of {address}'
            if device.exists()
            else f'no device is at {address}'
        )
        return PcieLink(
            address,
            problem=missing
            if isinstance(error, FileNotFoundError)
            else f'{address}: {error.strerror}',
        )
    card, port, parent = LinkRate(), LinkRate(), device.resolve().parent
    with suppress(OSError):
        card = _rate(device, 'max')
    with suppress(OSError):
        port = _rate(parent, 'max')
    return PcieLink(address, now, card, port, parent.name if port.known else '')


_NO_CARD = 'there is no Metis card'
_UNUSED = 'the parameter file uses no Metis card'
_UDEV = 'KERNEL=="metis-*", GROUP="video", MODE="0660"'


def _take_a_card() -> tuple[str, ...]:
    """Return the names of the accelerators that use a Metis card."""
    return tuple(ACCELERATORS.declared.readers[CARD.name])


def wanted_cards(needs: Needs, tree: HostTree) -> list[MetisCard]:
    """Return the cards that the inference nodes would use; without a parameter file, all cards."""
    if not needs.known:
        return find_cards(tree)
    found = []
    for inference in needs.inferences:
        if inference.kind in (AUTO, *_take_a_card()):
            with suppress(ZcError):
                found.append(choose_card(inference['accelerator_device'], tree))
    return list(dict.fromkeys(found))


def card_need(needs: Needs) -> Need:
    """Return whether an accelerator that the parameter file names needs a Metis card."""
    return needs.accelerator(*_take_a_card())


def of_each_card(
    look: Callable[[System, Needs, MetisCard], Finding],
) -> Callable[[System, Needs], Iterator[Finding]]:
    """
    Make a check of ``zc_doctor`` that calls *look* for each card that the nodes would use.

    Without a card the check is skipped, because :func:`metis_cards` reports the missing card.
    """

    def check(system: System, needs: Needs) -> Iterator[Finding]:
        cards = [] if card_need(needs) is Need.UNUSED else wanted_cards(needs, system.host)
        if not cards:
            yield skip(
                _UNUSED
                if card_need(needs) is Need.UNUSED
                else f'{_NO_CARD} to look at; see check metis.cards'
            )
        for card in cards:
            yield look(system, needs, card)

    return check


def metis_cards(system: System, needs: Needs) -> Iterator[Finding]:
    """Report each card with a device node; check the cards that the parameter file names."""
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
    """Check that this user can open the card's device node for reading and writing."""
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
        'the card may be off or resetting; see dmesg | grep -i -e metis -e axl; '
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
    """Report name and version of the card's kernel module, as far as sysfs shows them."""
    folder = system.host.pci(card.pci_address) / 'driver' if card.pci_address else Path('/nowhere')
    if not folder.exists():
        return skip("sysfs does not show the card's driver", card.name)
    driver, module = folder.resolve().name, folder / 'module'
    name = module.resolve().name if module.exists() else driver
    version = system.read('sys/module', name, 'version')
    text = f"driver '{driver}'"
    text += f', module {name}' if name != driver else ''
    text += f' {version}' if version else ', whose version is unknown'
    return ok(text, card.name, driver=driver, module=name, version=version)


def _rate_figures(rate: LinkRate) -> dict[str, object]:
    return {'gts': rate.gts, 'width': rate.width}


@of_each_card
def metis_link(system: System, needs: Needs, card: MetisCard) -> Finding:
    """Check that the card's PCIe link runs at 8 GT/s x4 or faster."""
    link = read_link(card.pci_address, system.host)
    figures = {
        'now': _rate_figures(link.now),
        'card': _rate_figures(link.card),
        'port': _rate_figures(link.port),
    }
    trouble = link.diagnosis()
    if not trouble:
        return ok(f'{link.now} (at least {NEEDED} is needed)', card.name, **figures)
    found, _, advice = trouble.partition('; ')
    # Only warn about a link that can't be read, as in virtual machines: it may be fast enough.
    status = Status.WARN if link.problem else card_need(needs).missing
    return Finding(status, found, advice, card.name, figures)


@of_each_card
def metis_iommu(system: System, needs: Needs, card: MetisCard) -> Finding:
    """Check for an IOMMU, which lets the card use memory that isn't physically contiguous."""
    iommu = read_iommu(card.pci_address, system.host)
    figures = {'group': iommu.group, 'type': iommu.kind, 'iommu': iommu.unit}
    if iommu.translates:
        return ok(
            f'{iommu.text}: the card can use buffers of scattered pages', card.name, **figures
        )
    if iommu.translates is None:
        return skip(
            f'{iommu.text}; the import of each buffer shows whether the card can use it',
            card.name,
            **figures,
        )
    enable = (
        'boot without iommu=pt (iommu.passthrough=0)'
        if iommu.group
        else 'enable the IOMMU (intel_iommu=on, amd_iommu=on, iommus in the device tree)'
    )
    advice = (
        f'leave heap at auto, which then takes a CMA heap (see check memory.heaps), or {enable}'
    )
    return Finding(
        Status.WARN,
        f'{iommu.text}, so the card can use only physically contiguous buffers',
        advice,
        card.name,
        figures,
    )
