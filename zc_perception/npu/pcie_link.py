"""How fast a card's PCIe link is, and in words what is wrong with it.

A Metis wants 8 GT/s x4. Sources: ``Documentation/ABI/testing/sysfs-bus-pci`` (``current_link_speed``, ``max_link_width`` and so on),
the failure modes of the ZED X → Metis document for the advice.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from zc_perception.npu.axl.discovery import HOST, HostTree

NEEDED_GTS = 8.0
NEEDED_WIDTH = 4
CHECK = 'lspci -vvv -d 1f9d:1100 | grep LnkSta must show Speed 8GT/s, Width x4'
_SPEED = re.compile(r'([0-9]+(?:\.[0-9]+)?) GT/s', re.ASCII)
_WIDTH = re.compile(r'[0-9]{1,3}', re.ASCII)


@dataclass(frozen=True)
class LinkRate:
    """Speed in GT/s and lanes; ``None`` what the kernel doesn't know."""

    gts: float | None = None
    width: int | None = None

    @property
    def known(self) -> bool:
        """Whether both are."""
        return self.gts is not None and self.width is not None

    @property
    def enough(self) -> bool:
        """Whether both are known and no less than the card wants."""
        return self.gts is not None and self.width is not None and self.gts >= NEEDED_GTS and self.width >= NEEDED_WIDTH

    def __str__(self) -> str:
        speed = '? GT/s' if self.gts is None else f'{self.gts:g} GT/s'
        return f'{speed} x{"?" if self.width is None else self.width}'


NEEDED = LinkRate(NEEDED_GTS, NEEDED_WIDTH)


@dataclass(frozen=True)
class PcieLink:
    """A card's link as it is now, what the card could do, and what the port it hangs on could do.

    :param problem: why the link can't be read; empty when it was.
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
        """One sentence, or nothing when the link is known to be good. What can't be read is never good."""
        if self.problem:
            return f"the card's PCIe link can't be read ({self.problem}); {CHECK}"
        if self.now.enough:
            return ''
        return f'the PCIe link of {self.address} runs at {self.now} instead of {NEEDED}: {self._cause()}; {CHECK}'

    def _cause(self) -> str:
        if self.now.width == 0 or not self.now.known:
            return 'it is down or retraining, so the card is off, resets or sits loosely'
        if self.port.known and not self.port.enough:
            return f'its slot (port {self.port_address}) can do no more than {self.port}, so use another slot or adapter'
        if self.card.known and not self.card.enough:
            return f'the card itself offers only {self.card}, so look at its firmware and at contacts or risers with fewer lanes'
        return 'slot and card can do better, so reseat the card, check cable and adapter, and restart the machine to train the link anew'


def _read(attribute: Path) -> str:
    return attribute.read_text(encoding='ascii', errors='replace').strip()


def _rate(device: Path, which: str) -> LinkRate:
    speed, width = _SPEED.match(_read(device / f'{which}_link_speed')), _WIDTH.fullmatch(_read(device / f'{which}_link_width'))
    # 255 lanes are what a device reports that doesn't answer any more.
    lanes = None if width is None or int(width[0]) > 64 else int(width[0])
    return LinkRate(None if speed is None else float(speed[1]), lanes)


def read_link(address: str, tree: HostTree = HOST) -> PcieLink:
    """The link of a PCI device. Never raises: what can't be read is in ``problem``.

    :param address: ``0000:01:00.0``; empty when it isn't known.
    """
    if not address:
        return PcieLink(address, problem='its PCI address is unknown')
    device = tree.pci(address)
    try:
        now = _rate(device, 'current')
    except OSError as error:
        missing = f'{address} shows no PCIe link' if device.exists() else f'{address} is not on PCI'
        return PcieLink(address, problem=missing if isinstance(error, FileNotFoundError) else f'{address}: {error.strerror}')
    card, port, parent = LinkRate(), LinkRate(), device.resolve().parent
    with suppress(OSError):
        card = _rate(device, 'max')
    with suppress(OSError):
        port = _rate(parent, 'max')
    return PcieLink(address, now, card, port, parent.name if port.known else '')
