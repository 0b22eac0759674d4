"""Whether a card is behind an IOMMU, and so whether its buffers must be physically contiguous.

An IOMMU shows the card scattered pages as one range of addresses. Sources: ``Documentation/ABI/testing/sysfs-kernel-iommu_groups`` (the
type of a group's domain; ``identity`` passes addresses through), ``sysfs-bus-pci`` and ``sysfs-class-iommu`` (the device's links).
"""

from __future__ import annotations

from dataclasses import dataclass

from zc_perception.npu.axl.discovery import HOST, HostTree


@dataclass(frozen=True)
class Iommu:
    """What the kernel shows of the IOMMU in front of a PCI device.

    :param translates: whether scattered pages are one range of addresses for the device; ``None``: it isn't known.
    :param text: that as a part of a sentence.
    :param group: number of its IOMMU group; empty: it is in none.
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
        """Whether only physically contiguous buffers will do. Where nothing is known, the import of each buffer tells."""
        return self.translates is False


def read_iommu(address: str, tree: HostTree = HOST) -> Iommu:
    """The IOMMU in front of a PCI device, as it is now. Never raises.

    :param address: ``0000:01:00.0``; empty when it isn't known.
    """
    device = tree.pci(address)
    if not address or not device.is_dir():
        reason = f'{address} is not on PCI in {tree.sysfs}' if address else 'its PCI address is unknown'
        return Iommu(None, f'whether the card is behind an IOMMU is not known: {reason}')
    link = device / 'iommu_group'
    if not link.exists():
        return Iommu(False, 'the card is in no IOMMU group')
    try:
        group, unit = link.resolve().name, device / 'iommu'
        behind = unit.resolve().name if unit.exists() else ''
        kind = (link / 'type').read_text(encoding='ascii', errors='replace').strip()
    except OSError as error:
        return Iommu(None, f"whether the card is behind an IOMMU is not known: {link}/type can't be read ({error.strerror})", link.name)
    if kind in ('', 'unknown'):
        return Iommu(None, f"whether IOMMU group {group} translates the card's addresses is not known: {link}/type does not say it", group)
    if kind == 'identity':
        return Iommu(False, f'IOMMU group {group} passes addresses through', group, kind, behind)
    return Iommu(True, f'IOMMU group {group} ({kind}){f" of {behind}" if behind else ""}', group, kind, behind)
