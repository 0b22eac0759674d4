"""The card's PCIe link in words: good, too slow with its cause, or not known, which is never good."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from npu.host_tree import Host

from zc_perception.npu.metis_card import HostTree, LinkRate, PcieLink, read_link

ADDRESS = '0000:01:00.0'
GOOD = {'current_link_speed': '8.0 GT/s PCIe', 'current_link_width': '4', 'max_link_speed': '8.0 GT/s PCIe', 'max_link_width': '4'}
PORT = {'max_link_speed': '16.0 GT/s PCIe', 'max_link_width': '16', 'current_link_speed': '8.0 GT/s PCIe', 'current_link_width': '4'}


def link(root: Path, port: dict[str, str] | None = None, **changed: str) -> PcieLink:
    """The link of a card with these attributes beside the good ones; empty: no such file."""
    host = Host(root)
    folder = host.add_pci(ADDRESS)
    host.write(folder, **{name: text for name, text in {**GOOD, **changed}.items() if text})
    host.write(folder.parent, **{**PORT, **(port or {})})
    return read_link(ADDRESS, host.tree)


@pytest.mark.parametrize(
    ('speed', 'width'),
    [('8.0 GT/s PCIe', '4'), ('8 GT/s', '4'), ('16.0 GT/s PCIe', '4'), ('32.0 GT/s PCIe', '16'), ('8.0 GT/s PCIe', '8')],
)
def test_a_link_that_is_fast_enough_needs_no_words(tmp_path: Path, speed: str, width: str) -> None:
    found = link(tmp_path, current_link_speed=speed, current_link_width=width)
    assert found.diagnosis() == '' and found.problem == ''


def test_a_good_link_in_short(tmp_path: Path) -> None:
    assert str(link(tmp_path)) == '8 GT/s x4'


@pytest.mark.parametrize(
    ('changed', 'port', 'words'),
    [
        ({'current_link_speed': '2.5 GT/s PCIe'}, {}, ['runs at 2.5 GT/s x4 instead of 8 GT/s x4', 'reseat the card']),
        ({'current_link_speed': '5.0 GT/s PCIe'}, {}, ['runs at 5 GT/s x4', 'reseat']),
        ({'current_link_width': '1'}, {}, ['runs at 8 GT/s x1', 'reseat']),
        ({'current_link_width': '2'}, {'max_link_width': '2'}, ['slot (port 0000:00:1c.0) can do no more than 16 GT/s x2', 'another slot']),
        ({'current_link_speed': '5.0 GT/s PCIe'}, {'max_link_speed': '5.0 GT/s PCIe'}, ['no more than 5 GT/s x16']),
        ({'current_link_width': '2', 'max_link_width': '2'}, {}, ['the card itself offers only 8 GT/s x2', 'firmware']),
        ({'current_link_speed': 'Unknown', 'current_link_width': '0'}, {}, ['runs at ? GT/s x0', 'down or retraining']),
        ({'current_link_speed': 'Unknown speed'}, {}, ['runs at ? GT/s x4', 'down or retraining']),
        ({'current_link_width': '255'}, {}, ['runs at 8 GT/s x?', 'down or retraining']),
        ({'current_link_width': '1', 'max_link_width': '', 'max_link_speed': ''}, {'max_link_speed': 'Unknown'}, ['reseat']),
    ],
)
def test_a_slow_link_is_diagnosed_with_its_cause(tmp_path: Path, changed: dict[str, str], port: dict[str, str], words: list[str]) -> None:
    text = link(tmp_path, port, **changed).diagnosis()
    assert all(word in text for word in words), text
    assert ADDRESS in text and 'lspci -vvv -d 1f9d:1100 | grep LnkSta' in text and 'Speed 8GT/s, Width x4' in text


def test_what_can_t_be_read_is_said_and_never_good(tmp_path: Path) -> None:
    missing = link(tmp_path / 'a', current_link_speed='')
    assert '0000:01:00.0 shows no PCIe link' in missing.diagnosis() and str(missing).startswith('unknown (')
    gone = read_link('0000:09:00.0', Host(tmp_path / 'b').tree)
    assert '0000:09:00.0 is not on PCI' in gone.diagnosis()
    assert 'address is unknown' in read_link('', Host(tmp_path / 'c').tree).diagnosis()
    for found in (missing, gone, PcieLink('')):
        assert not found.now.enough and not found.now.known


def test_an_attribute_that_fails_to_be_read_is_said(tmp_path: Path) -> None:
    host = Host(tmp_path)
    folder = host.add_pci(ADDRESS)
    (folder / 'current_link_speed').symlink_to('/proc/self/mem')  # reads as EIO
    assert 'Input/output error' in read_link(ADDRESS, host.tree).diagnosis()


@given(st.text(max_size=20), st.text(max_size=6))
def test_only_numbers_that_are_known_and_large_enough_are_good(speed: str, width: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        device = Path(folder) / 'bus/pci/devices' / ADDRESS
        device.mkdir(parents=True)
        (device / 'current_link_speed').write_text(speed, encoding='utf-8')
        (device / 'current_link_width').write_text(width, encoding='utf-8')
        found = read_link(ADDRESS, HostTree(sysfs=Path(folder)))
    assert found.diagnosis() != '' or (found.now.gts is not None and found.now.gts >= 8 and int(found.now.width or 0) >= 4)


@pytest.mark.parametrize('gts', [None, 2.5, 8.0, 16.0])
@pytest.mark.parametrize('width', [None, 0, 1, 4, 16])
def test_enough_is_8_gigatransfers_and_4_lanes(gts: float | None, width: int | None) -> None:
    assert LinkRate(gts, width).enough == (gts in (8.0, 16.0) and width in (4, 16))
