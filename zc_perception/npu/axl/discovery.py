"""Which Metis cards this machine has: their device nodes, their PCI addresses, and which one a parameter means.

The shipped driver names a node after PCI domain, bus and slot in hexadecimal, ``metis-0:1:0``, newer ones with dashes, ``metis-0-1-0``;
a node's PCI device is ``/sys/dev/char/MAJOR:MINOR/device``.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from zc_perception.errors import AcceleratorError, NoDeviceError

VENDOR = '0x1f9d'
_NODES = 'metis-*'
_PARAMETER = "parameter 'accelerator_device'"
_PCI_ADDRESS = re.compile(r'(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})\.([0-7])', re.ASCII | re.IGNORECASE)
_NAME = re.compile(r'(?:metis-)?([0-9a-f]{1,8})[:-]([0-9a-f]{1,2})[:-]([0-9a-f]{1,2})', re.ASCII | re.IGNORECASE)
INDEX = re.compile(r'[0-9]{1,4}', re.ASCII)
_GONE = b'\xff\xff'
"""What a read of a PCI device's vendor gives that doesn't answer any more."""

Place = tuple[int, int, int, int]
"""PCI domain, bus, slot and function."""


@dataclass(frozen=True)
class HostTree:
    """Where the machine's nodes and attributes are; tests have trees of their own."""

    dev: Path = Path('/dev')
    sysfs: Path = Path('/sys')

    def pci(self, address: str) -> Path:
        """The folder of a PCI device's attributes."""
        return self.sysfs / 'bus' / 'pci' / 'devices' / address


HOST = HostTree()


@dataclass(frozen=True)
class MetisCard:
    """A device node. ``pci_address`` is empty where sysfs doesn't tell."""

    path: str
    pci_address: str = ''

    @property
    def name(self) -> str:
        """The node's name."""
        return os.path.basename(self.path)

    @property
    def place(self) -> Place | None:
        """From the PCI address, or else from the name; ``None`` when neither tells."""
        return place_of(self.pci_address) or place_of(self.name)

    def __str__(self) -> str:
        return f'{self.path} (PCI {self.pci_address or "address unknown"})'


def place_of(text: str) -> Place | None:
    """Where a PCI address or a device's name says that it is; ``None``: it says nothing of the kind."""
    match = _PCI_ADDRESS.fullmatch(text)
    if match is not None:
        return int(match[1] or '0', 16), int(match[2], 16), int(match[3], 16), int(match[4])
    match = _NAME.fullmatch(text)
    return None if match is None else (int(match[1], 16), int(match[2], 16), int(match[3], 16), 0)


def card_at(path: str, tree: HostTree = HOST) -> MetisCard:
    """The card behind a device node, which need not exist."""
    with suppress(OSError):
        status = os.stat(path)
        if stat.S_ISCHR(status.st_mode):
            link = tree.sysfs / 'dev' / 'char' / f'{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}' / 'device'
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
    """All cards that have a device node, each once whatever the number of its names, by PCI address."""
    found: dict[int, MetisCard] = {}
    for path in sorted(str(node) for node in tree.dev.glob(_NODES)):
        found.setdefault(_device_number(path), card_at(path, tree))
    return sorted(found.values(), key=lambda card: (card.place or (1 << 32, 0, 0, 0), card.path))


def _on_pci(tree: HostTree) -> Iterator[tuple[str, str]]:
    """PCI address and driver (empty: none) of everything of the vendor."""
    with suppress(OSError):
        for device in sorted(tree.pci('').iterdir()):
            with suppress(OSError):
                if (device / 'vendor').read_text(encoding='ascii').strip() == VENDOR:
                    driver = device / 'driver'
                    yield device.name, driver.resolve().name if driver.exists() else ''


def _why_none(tree: HostTree) -> str:
    nodes = tree.dev / _NODES
    cards = list(_on_pci(tree))
    if not cards:
        return (
            f'no Metis card: there is no {nodes}, and nothing of vendor 1f9d on PCI; check power and slot '
            '(lspci -d 1f9d:), then rescan (echo 1 > /sys/bus/pci/rescan)'
        )
    address, driver = cards[0]
    if not driver:
        return f'no Metis card: {address} is on PCI but has no driver; load it (modprobe metis) and see dmesg | grep -i -e metis -e axl'
    return (
        f"no Metis card: driver '{driver}' has {address}, but there is no {nodes}; see ls -l {tree.dev}, and give a container "
        'its node (--device)'
    )


def found_cards(tree: HostTree = HOST) -> str:
    """What was found, as the end of a sentence that says what was not."""
    cards = find_cards(tree)
    return 'found ' + ', '.join(map(str, cards)) if cards else _why_none(tree)


def choose_card(wanted: str, tree: HostTree = HOST) -> MetisCard:
    """The card that a parameter means.

    :param wanted: a device node (any path, taken as it is), a PCI address (``0000:01:00.0``, ``01:00.0``), a name (``metis-0:1:0``,
        ``metis-0-1-0``, ``0:1:0``, with leading zeros or without), an index into :func:`find_cards`; empty for the first card.
    :raises NoDeviceError: the first card is wanted, and neither a device node nor PCI shows one.
    :raises AcceleratorError: there is none such, or it can't be used; the message says what there is.
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
        exact = [card for card in cards if wanted.lower() in (card.name.lower(), card.pci_address.lower())]
        place = place_of(wanted)
        for card in exact or [card for card in cards if place is not None and card.place == place]:
            return card
    raise AcceleratorError(
        f"there is no Metis card '{wanted}', but {found_cards(tree)}; give {_PARAMETER} a name such as {cards[0].name}, "
        f'a PCI address, a device node or an index below {len(cards)}'
    )


def card_is_gone(card: MetisCard, tree: HostTree = HOST) -> bool:
    """Whether the card has left the machine: no node any more, no PCI device, or one that doesn't answer."""
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
