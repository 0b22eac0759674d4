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
Linux's data about cards, IOMMU and PCIe link; and which card a parameter selects.

Trees of files replace the machine's, after the kernel's documents.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
import shutil
import tempfile

from hypothesis import given
from hypothesis import strategies as st
from npu.card_kit import Host
import pytest

from zc_perception.errors import AcceleratorError
from zc_perception.machine.system import HostTree
from zc_perception.npu.metis_card import (
    card_at,
    card_is_gone,
    choose_card,
    driver_version,
    find_cards,
    found_cards,
    Iommu,
    MetisCard,
    PcieLink,
    read_iommu,
    read_link,
)

ADDRESS = '0000:01:00.0'


@pytest.fixture
def two(host: Host) -> Host:
    """Return a machine with two cards: the second by name is the first by PCI address."""
    host.add_card('0004:01:00.0', 'metis-4:1:0')
    host.add_card('0000:0a:00.0', 'metis-0:a:0', port='0000:00:1d.0')
    return host


def test_cards_come_in_the_order_of_their_pci_addresses_and_two_names_are_one(two: Host) -> None:
    """Newer drivers name a card with dashes; a udev rule may add the old name."""
    two.add_node('metis-0:b:0', like=two.add_card('0000:0b:00.0', 'metis-0-b-0'))
    node = two.add_card('0000:09:00.0', 'europa-0-9-0')
    assert [(card.name, card.pci_address) for card in find_cards(two.tree)] == [
        ('europa-0-9-0', '0000:09:00.0'),
        ('metis-0:a:0', '0000:0a:00.0'),
        ('metis-0-b-0', '0000:0b:00.0'),
        ('metis-4:1:0', '0004:01:00.0'),
    ]
    for wanted in ('europa-0-9-0', '0000:09:00.0', '0:9:0'):
        assert choose_card(wanted, two.tree).path == node, 'a card of the next chip'


@pytest.mark.parametrize(
    ('wanted', 'name'),
    [
        ('1', 'metis-4:1:0'), ('metis-4:01:0', 'metis-4:1:0'), ('metis-4-1-0', 'metis-4:1:0'),
        ('0004:01:00.0', 'metis-4:1:0'), ('0A:00.0', 'metis-0:a:0'),
    ],
)  # fmt: skip
def test_a_card_is_found_by_any_of_its_names(two: Host, wanted: str, name: str) -> None:
    assert choose_card(wanted, two.tree).name == name


def test_a_path_is_taken_as_it_is_and_still_has_its_address(two: Host) -> None:
    link = two.add_node('npu', like=str(two.tree.dev / 'metis-4:1:0'))
    assert choose_card(link, two.tree) == MetisCard(link, '0004:01:00.0')
    assert choose_card('/nowhere/metis-9:9:9', two.tree) == MetisCard('/nowhere/metis-9:9:9')


@pytest.mark.parametrize('wanted', ['2', 'metis-0:1:0', 'gpu', '-1'])
def test_what_there_is_not_is_refused_with_what_there_is(two: Host, wanted: str) -> None:
    with pytest.raises(AcceleratorError) as refused:
        choose_card(wanted, two.tree)
    there = ('metis-0:a:0', '0000:0a:00.0', 'metis-4:1:0', '0004:01:00.0')
    for word in (f"no Metis card '{wanted}'", "'accelerator_device'", *there):
        assert word in str(refused.value) and '\n' not in str(refused.value)


@given(st.text(max_size=12))
def test_any_text_is_a_card_or_an_error(text: str) -> None:
    tree = HostTree(Path('/nonexistent'), Path('/nonexistent'))
    if text.startswith('/') and '\0' not in text:
        assert choose_card(text, tree).path == text
    elif not text.startswith('/'):
        with pytest.raises(AcceleratorError, match='no Metis card'):
            choose_card(text, tree)


@pytest.mark.parametrize(
    ('machine', 'words'),
    [
        (
            lambda host: host.add_pci('0000:02:00.0', vendor='0x10de', driver='nvidia'),
            ['nothing of vendor 1f9d on PCI', 'lspci -d 1f9d:', 'rescan'],
        ),
        (
            lambda host: host.add_pci(ADDRESS, driver=''),
            ['0000:01:00.0 is on PCI but has no driver', 'modprobe metis'],
        ),
        (
            lambda host: host.add_pci(ADDRESS),
            ["driver 'metis' is bound to 0000:01:00.0", '--device'],
        ),
        (lambda host: shutil.rmtree(host.tree.sysfs), ['nothing of vendor 1f9d']),
    ],
)
def test_no_card_at_all_is_explained(
    host: Host, machine: Callable[[Host], object], words: list[str]
) -> None:
    machine(host)
    said = found_cards(host.tree)  # so says a node that can't be opened, too
    assert all(word in said for word in words), said
    for wanted in ('', '0', 'metis-0:1:0', '01:00.0'):
        with pytest.raises(AcceleratorError, match='no Metis card') as refused:
            choose_card(wanted, host.tree)
        assert str(refused.value) == said


def test_a_node_without_sysfs_is_known_by_its_name(host: Host) -> None:
    host.add_node('metis-0:1:0')
    (card,) = find_cards(host.tree)
    assert card.pci_address == '' and 'address unknown' in str(card)
    assert choose_card('01:00.0', host.tree) == card, 'the name says it'


def test_the_driver_s_version_is_read_where_there_is_one(host: Host) -> None:
    assert driver_version(host.tree) == ''
    folder = host.tree.sysfs / 'class' / 'metis'
    folder.mkdir(parents=True)
    host.write(folder, version='1.6.2')
    assert driver_version(host.tree) == '1.6.2'


def test_a_card_is_gone_with_its_node_its_pci_device_or_its_answers(host: Host) -> None:
    node = host.add_card()
    card = card_at(node, host.tree)
    assert not card_is_gone(card, host.tree)
    config = host.tree.pci(ADDRESS) / 'config'
    for content, gone in ((b'\xff' * 64, True), (bytes.fromhex('9d1f0011'), False)):
        config.write_bytes(content)
        assert card_is_gone(card, host.tree) == gone, 'all ones: nobody answers'
    config.unlink()
    assert not card_is_gone(card, host.tree), 'nothing is known'
    shutil.rmtree(host.tree.pci(ADDRESS).resolve())
    assert card_is_gone(card, host.tree)
    Path(node).unlink()
    assert card_is_gone(MetisCard(node), host.tree)
    other = host.add_node('metis-0:9:0')
    assert not card_is_gone(MetisCard(other), host.tree), 'without an address only the node tells'


def grouped(host: Host, kind: str | None, unit: str = '') -> None:
    """Add a card in a group of that type; ``None``: without a file for the type."""
    card = host.add_pci(ADDRESS)
    group, home = (host.tree.sysfs / name for name in ('kernel/iommu_groups/7', 'class/iommu'))
    group.mkdir(parents=True)
    (home / unit).mkdir(parents=True)
    if kind is not None:
        (group / 'type').write_text(f'{kind}\n')
    (card / 'iommu_group').symlink_to(group)
    if unit:
        (card / 'iommu').symlink_to(home / unit)


@pytest.mark.parametrize(
    ('address', 'kind', 'translates', 'words'),
    [
        (ADDRESS, 'DMA', True, 'IOMMU group 7 (DMA) of dmar0'),
        (ADDRESS, 'DMA-FQ', True, 'IOMMU group 7 (DMA-FQ) of dmar0'),
        (ADDRESS, 'identity', False, 'IOMMU group 7 passes addresses through'),
        ('0000:02:00.0', 'identity', False, 'the card is in no IOMMU group'),
        ('', 'DMA', None, 'its PCI address is unknown'),
        ('0000:09:00.0', 'DMA', None, 'shows no device 0000:09:00.0'),
        (ADDRESS, None, None, "iommu_group/type can't be read (No such file or directory)"),
        (ADDRESS, 'unknown', None, 'does not say it'),
    ],
)
def test_contiguous_memory_is_demanded_only_where_no_iommu_is_known_to_translate(
    address: str, kind: str | None, translates: bool | None, words: str, host: Host
) -> None:
    host.add_pci('0000:02:00.0')
    grouped(host, kind, 'dmar0' if translates else '')
    iommu = read_iommu(address, host.tree)
    assert (iommu.translates, iommu.needs_contiguous) == (translates, translates is False)
    if translates is None:
        assert iommu.text.startswith('whether ')
        assert ' is not known: ' in iommu.text and words in iommu.text
    else:
        assert iommu.text == words
        assert not translates or iommu == Iommu(True, words, '7', kind, 'dmar0')


# The PCIe link: good, too slow with its cause, or unknown, which is never good.

GOOD = {'current_link_speed': '8.0 GT/s PCIe', 'current_link_width': '4'}
GOOD |= {'max_link_speed': '8.0 GT/s PCIe', 'max_link_width': '4'}
PORT = {**GOOD, 'max_link_speed': '16.0 GT/s PCIe', 'max_link_width': '16'}
def link(root: Path, port: dict[str, str] | None = None, **changed: str) -> PcieLink:
    """Return the link of a card with good attributes except these; empty: no file."""
    host = Host(root)
    folder = host.add_pci(ADDRESS)
    host.write(folder, **{name: text for name, text in {**GOOD, **changed}.items() if text})
    host.write(folder.parent, **{**PORT, **(port or {})})
    return read_link(ADDRESS, host.tree)


@pytest.mark.parametrize(
    ('changed', 'port', 'words'),
    [
        ({'current_link_speed': '2.5 GT/s PCIe'}, {}, ['2.5 GT/s x4 instead of 8', 'reseat']),
        ({'current_link_width': '2'}, {'max_link_width': '2'},
         ['no more than 16 GT/s x2', 'another slot']),
        ({'current_link_width': '2', 'max_link_width': '2'}, {}, ['only 8 GT/s x2', 'firmware']),
        ({'current_link_speed': 'Unknown', 'current_link_width': '0'}, {},
         ['runs at ? GT/s x0', 'down or retraining']),
        ({'current_link_width': '1', 'max_link_width': '', 'max_link_speed': ''},
         {'max_link_speed': 'Unknown'}, ['reseat']),
    ],
)  # fmt: skip
def test_a_slow_link_is_diagnosed_with_its_cause(
    tmp_path: Path, changed: dict[str, str], port: dict[str, str], words: list[str]
) -> None:
    text = link(tmp_path, port, **changed).diagnosis()
    advice = 'lspci -vvv -d 1f9d:1100 | grep LnkSta', 'Speed 8GT/s, Width x4'
    for word in (*words, ADDRESS, *advice):
        assert word in text


def test_what_can_t_be_read_is_said_and_never_good(tmp_path: Path) -> None:
    missing = link(tmp_path / 'a', current_link_speed='')
    assert 'sysfs shows no PCIe link of 0000:01:00.0' in missing.diagnosis()
    assert str(missing).startswith('unknown (')
    tree = Host(tmp_path / 'b').tree
    gone = read_link('0000:09:00.0', tree)
    assert 'no device is at 0000:09:00.0' in gone.diagnosis()
    assert 'address is unknown' in read_link('', tree).diagnosis()
    for found in (missing, gone, PcieLink('')):
        assert not found.now.enough and not found.now.known


@given(st.text(max_size=20), st.text(max_size=6))
def test_only_numbers_that_are_known_and_large_enough_are_good(speed: str, width: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        device = Path(folder) / 'bus/pci/devices' / ADDRESS
        device.mkdir(parents=True)
        (device / 'current_link_speed').write_text(speed, encoding='utf-8')
        (device / 'current_link_width').write_text(width, encoding='utf-8')
        found = read_link(ADDRESS, HostTree(sysfs=Path(folder)))
    assert found.diagnosis() != '' or (
        found.now.gts is not None and found.now.gts >= 8 and int(found.now.width or 0) >= 4
    )
