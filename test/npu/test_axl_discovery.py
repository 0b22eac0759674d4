"""Which cards there are, and which one a parameter means."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from npu.host_tree import Host

from zc_perception.errors import AcceleratorError
from zc_perception.npu.metis_card import HostTree, MetisCard, card_at, card_is_gone, choose_card, driver_version, find_cards


@pytest.fixture
def two(host: Host) -> Host:
    """The second in the order of names is the first in that of PCI addresses."""
    host.add_card('0004:01:00.0', 'metis-4:1:0')
    host.add_card('0000:0a:00.0', 'metis-0:a:0', port='0000:00:1d.0')
    return host


def test_cards_come_in_the_order_of_their_pci_addresses(two: Host) -> None:
    assert [(card.name, card.pci_address) for card in find_cards(two.tree)] == [
        ('metis-0:a:0', '0000:0a:00.0'),
        ('metis-4:1:0', '0004:01:00.0'),
    ]


def test_two_names_of_a_node_are_one_card(host: Host) -> None:
    """Newer drivers name it with dashes; a udev rule may add the old name."""
    node = host.add_card(name='metis-0-1-0')
    host.add_node('metis-0:1:0', like=node)
    assert [card.pci_address for card in find_cards(host.tree)] == ['0000:01:00.0']


@pytest.mark.parametrize(
    ('wanted', 'name'),
    [
        ('', 'metis-0:a:0'),
        ('0', 'metis-0:a:0'),
        ('1', 'metis-4:1:0'),
        ('metis-4:1:0', 'metis-4:1:0'),
        ('METIS-4:1:0', 'metis-4:1:0'),
        ('metis-4:01:0', 'metis-4:1:0'),  # as the document writes it
        ('metis-4-1-0', 'metis-4:1:0'),
        ('4:1:0', 'metis-4:1:0'),
        ('0004:01:00.0', 'metis-4:1:0'),
        ('4:1:0.0', 'metis-4:1:0'),
        ('0A:00.0', 'metis-0:a:0'),
        ('0000:0a:00', 'metis-0:a:0'),
    ],
)
def test_a_card_is_found_by_any_of_its_names(two: Host, wanted: str, name: str) -> None:
    assert choose_card(wanted, two.tree).name == name


def test_a_path_is_taken_as_it_is_and_still_has_its_address(two: Host) -> None:
    link = two.add_node('npu', like=str(two.tree.dev / 'metis-4:1:0'))
    assert choose_card(link, two.tree) == MetisCard(link, '0004:01:00.0')
    assert choose_card('/nowhere/metis-9:9:9', two.tree) == MetisCard('/nowhere/metis-9:9:9')


@pytest.mark.parametrize('wanted', ['2', 'metis-0:1:0', '0004:01:00.1', '01:00.0', 'gpu', '4:1', '-1', ' ', '1.', '0x1', '٣'])
def test_what_there_is_not_is_refused_with_what_there_is(two: Host, wanted: str) -> None:
    with pytest.raises(AcceleratorError) as refused:
        choose_card(wanted, two.tree)
    text = str(refused.value)
    assert f"no Metis card '{wanted}'" in text and "'accelerator_device'" in text and '\n' not in text
    assert all(word in text for word in ('metis-0:a:0', '0000:0a:00.0', 'metis-4:1:0', '0004:01:00.0'))


@given(st.text(max_size=12))
def test_any_text_is_a_card_or_an_error(text: str) -> None:
    tree = HostTree(Path('/nonexistent'), Path('/nonexistent'))
    if text.startswith('/') and '\0' not in text:
        assert choose_card(text, tree).path == text
    elif not text.startswith('/'):
        with pytest.raises(AcceleratorError, match='no Metis card'):
            choose_card(text, tree)


def _without_anything(host: Host) -> None:
    host.add_pci('0000:02:00.0', vendor='0x10de', driver='nvidia')


def _without_driver(host: Host) -> None:
    host.add_pci('0000:01:00.0', driver='')


def _without_node(host: Host) -> None:
    host.add_pci('0000:01:00.0')


@pytest.mark.parametrize(
    ('machine', 'words'),
    [
        (_without_anything, ['nothing of vendor 1f9d on PCI', 'lspci -d 1f9d:', 'rescan']),
        (_without_driver, ['0000:01:00.0 is on PCI but has no driver', 'modprobe metis']),
        (_without_node, ["driver 'metis' has 0000:01:00.0", '--device']),
        (lambda host: shutil.rmtree(host.tree.sysfs), ['nothing of vendor 1f9d']),
    ],
)
def test_no_card_at_all_is_explained(host: Host, machine: Callable[[Host], None], words: list[str]) -> None:
    machine(host)
    for wanted in ('', '0', 'metis-0:1:0', '01:00.0'):
        with pytest.raises(AcceleratorError, match='no Metis card') as refused:
            choose_card(wanted, host.tree)
        assert all(word in str(refused.value) for word in words), refused.value


def test_a_node_without_sysfs_is_known_by_its_name(host: Host) -> None:
    host.add_node('metis-0:1:0')
    (card,) = find_cards(host.tree)
    assert card.pci_address == '' and 'address unknown' in str(card)
    assert choose_card('01:00.0', host.tree) == card, 'the name says it'


def test_a_card_of_the_next_chip_is_found_by_its_node(host: Host) -> None:
    host.add_card('0000:02:00.0', 'metis-0-2-0')
    node = host.add_card('0000:01:00.0', 'europa-0-1-0')
    assert [card.name for card in find_cards(host.tree)] == ['europa-0-1-0', 'metis-0-2-0']
    for wanted in ('europa-0-1-0', '0000:01:00.0', '0:1:0'):
        assert choose_card(wanted, host.tree).path == node


def test_the_driver_s_version_is_read_where_there_is_one(host: Host) -> None:
    assert driver_version(host.tree) == ''
    (host.tree.sysfs / 'class' / 'metis').mkdir(parents=True)
    host.write(host.tree.sysfs / 'class' / 'metis', version='1.6.2')
    assert driver_version(host.tree) == '1.6.2'


def test_what_is_no_character_device_has_no_address(host: Host) -> None:
    host.add_card()
    (host.tree.dev / 'metis-file').write_text('')
    nothing = host.tree.sysfs / 'dev/char/0:0'  # a device number that files have, too
    nothing.mkdir()
    (nothing / 'device').symlink_to(host.tree.pci('0000:01:00.0').resolve())
    assert card_at(str(host.tree.dev / 'metis-file'), host.tree).pci_address == ''


def test_a_card_is_gone_with_its_node_its_pci_device_or_its_answers(host: Host) -> None:
    node = host.add_card()
    card = card_at(node, host.tree)
    assert not card_is_gone(card, host.tree)
    config = host.tree.pci('0000:01:00.0') / 'config'
    config.write_bytes(b'\xff' * 64)
    assert card_is_gone(card, host.tree), 'all ones: nobody answers'
    config.write_bytes(bytes.fromhex('9d1f0011'))
    assert not card_is_gone(card, host.tree)
    config.unlink()
    assert not card_is_gone(card, host.tree), 'nothing is known'
    shutil.rmtree(host.tree.pci('0000:01:00.0').resolve())
    assert card_is_gone(card, host.tree)
    Path(node).unlink()
    assert card_is_gone(MetisCard(node), host.tree)
    other = host.add_node('metis-0:9:0')
    assert not card_is_gone(MetisCard(other), host.tree), 'without an address only the node tells'


def test_a_card_says_node_and_address(two: Host) -> None:
    assert re.fullmatch(r'.*/dev/metis-4:1:0 \(PCI 0004:01:00\.0\)', str(choose_card('1', two.tree)))
