"""Contiguity follows from the card's IOMMU: sysfs in a folder, as the kernel's documents describe it."""

from __future__ import annotations

import pytest
from npu.host_tree import Host

from zc_perception.npu.axl.device import AxlCapabilities
from zc_perception.npu.metis_card import Iommu, read_iommu
from zc_perception.pixel.fourcc import NV12
from zc_perception.pixel.modifier import LINEAR

ADDRESS = '0000:01:00.0'


def grouped(host: Host, kind: str | None, unit: str = '') -> None:
    """A card in a group of that type; ``None``: it says nothing."""
    card = host.add_pci(ADDRESS)
    group = host.tree.sysfs / 'kernel/iommu_groups/7'
    group.mkdir(parents=True)
    if kind is not None:
        (group / 'type').write_text(f'{kind}\n')
    (card / 'iommu_group').symlink_to(group)
    if unit:
        home = host.tree.sysfs / 'class/iommu' / unit
        home.mkdir(parents=True)
        (card / 'iommu').symlink_to(home)


@pytest.mark.parametrize('kind', ['DMA', 'DMA-FQ'])
def test_behind_an_iommu_scattered_pages_will_do(kind: str, host: Host) -> None:
    grouped(host, kind, 'dmar0')
    iommu = read_iommu(ADDRESS, host.tree)
    assert iommu == Iommu(True, f'IOMMU group 7 ({kind}) of dmar0', '7', kind, 'dmar0') and not iommu.needs_contiguous


def test_one_that_passes_addresses_through_is_as_none(host: Host) -> None:
    grouped(host, 'identity')
    iommu = read_iommu(ADDRESS, host.tree)
    assert iommu.needs_contiguous and iommu.text == 'IOMMU group 7 passes addresses through'


def test_without_a_group_there_is_none(host: Host) -> None:
    host.add_pci(ADDRESS)
    iommu = read_iommu(ADDRESS, host.tree)
    assert iommu.needs_contiguous and iommu.text == 'the card is in no IOMMU group'


@pytest.mark.parametrize(
    ('address', 'kind', 'words'),
    [
        ('', 'DMA', 'its PCI address is unknown'),
        ('0000:09:00.0', 'DMA', '0000:09:00.0 is not on PCI in'),
        (ADDRESS, None, "iommu_group/type can't be read (No such file or directory)"),
        (ADDRESS, 'unknown', 'does not say it'),
        (ADDRESS, '', 'does not say it'),
    ],
)
def test_what_can_not_be_known_is_said_and_nothing_is_demanded(address: str, kind: str | None, words: str, host: Host) -> None:
    grouped(host, kind)
    iommu = read_iommu(address, host.tree)
    assert iommu.translates is None and not iommu.needs_contiguous
    assert iommu.text.startswith('whether ') and ' is not known: ' in iommu.text and words in iommu.text


@pytest.mark.parametrize(
    ('iommu', 'contiguous', 'note'),
    [
        (Iommu(True, 'IOMMU group 7'), False, ''),
        (Iommu(False, 'the card is in no IOMMU group'), True, 'the card is in no IOMMU group'),
        (Iommu(None, 'whether … is not known'), False, 'whether … is not known'),
    ],
)
def test_the_card_s_constraints_follow(iommu: Iommu, contiguous: bool, note: str) -> None:
    constraints = AxlCapabilities(2, 4, 64, 64, ((NV12, LINEAR),)).constraints('/dev/metis-0:1:0', iommu)
    assert (constraints.contiguous, constraints.memory_note) == (contiguous, note)
