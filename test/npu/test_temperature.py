"""Temperatures from trees of hwmon's files, and the thread that reads them."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from npu.scheduler_kit import eventually

from zc_perception.npu import metis_card
from zc_perception.npu.metis_card import HostTree, Temperature, Temperatures, TemperatureWatch, read_temperatures

ADDRESS = '0000:01:00.0'


@pytest.fixture
def tree(tmp_path: Path) -> HostTree:
    (tmp_path / 'sys/bus/pci/devices' / ADDRESS).mkdir(parents=True)
    return HostTree(tmp_path / 'dev', tmp_path / 'sys')


def sensor(tree: HostTree, where: str = 'hwmon/hwmon2', number: int = 1, **values: object) -> Path:
    folder = tree.pci(ADDRESS) / where
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in values.items():
        (folder / f'temp{number}_{name}').write_text(f'{value}\n', encoding='utf-8')
    return folder


@pytest.mark.parametrize(
    ('values', 'expected', 'hot', 'text'),
    [
        ({'input': 61250}, Temperature('temp1', 61.25), False, 'temp1 61.2'),
        ({'input': 61250, 'label': 'core'}, Temperature('core', 61.25), False, 'core 61.2'),
        ({'input': -5000, 'label': 'board', 'crit': 105000}, Temperature('board', -5.0, 105.0), False, 'board -5.0 of 105'),
        ({'input': 95000, 'max': 95000, 'crit': 105000}, Temperature('temp1', 95.0, 95.0), True, 'temp1 95.0 of 95'),
        ({'input': 104999, 'crit': 105000}, Temperature('temp1', 104.999, 105.0), False, 'temp1 105.0 of 105'),
        ({'input': 50000, 'crit': 'n/a', 'label': ''}, Temperature('temp1', 50.0), False, 'temp1 50.0'),
    ],
)
def test_a_sensor_is_read_with_its_limit(tree: HostTree, values: dict[str, object], expected: Temperature, hot: bool, text: str) -> None:
    sensor(tree, **values)
    found = read_temperatures(ADDRESS, tree)
    assert found == Temperatures((expected,)) and str(found) == text
    assert bool(found.too_hot) is hot


def test_all_sensors_of_the_card_are_read_and_no_others(tree: HostTree) -> None:
    sensor(tree, number=1, input=40000, label='one')
    sensor(tree, number=2, input=50000, label='two', max=45000)
    sensor(tree, where='metis/metis-0:1:0/hwmon7', input=30000, label='child')
    other = tree.sysfs / 'bus/pci/devices/0000:02:00.0/hwmon/hwmon9'
    other.mkdir(parents=True)
    (other / 'temp1_input').write_text('99000\n')
    found = read_temperatures(ADDRESS, tree)
    assert {s.name for s in found.sensors} == {'one', 'two', 'child'}
    assert [s.name for s in found.too_hot] == ['two']


@pytest.mark.parametrize(
    ('address', 'prepare', 'reason'),
    [
        ('', '', 'its PCI address is unknown'),
        ('0000:09:00.0', '', '0000:09:00.0 is not on PCI'),
        (ADDRESS, '', f'the driver of {ADDRESS} has no hwmon sensors'),
        (ADDRESS, 'garbage', f'the sensors of {ADDRESS} do not answer'),
        (ADDRESS, '', ''),
    ],
)
def test_what_can_not_be_read_says_why(tree: HostTree, address: str, prepare: str, reason: str) -> None:
    if prepare:
        sensor(tree, input=prepare)
    if not reason:
        folder = sensor(tree, input=1)
        (folder / 'temp1_input').unlink()
        os.mkdir(folder / 'temp1_input')  # what answers with an error when it is read
        reason = f'the sensors of {ADDRESS} do not answer'
    found = read_temperatures(address, tree)
    assert found == Temperatures(problem=reason) and str(found) == f'unreadable ({reason})'


def test_who_asks_never_waits_for_the_card(tree: HostTree, monkeypatch: pytest.MonkeyPatch) -> None:
    card = threading.Event()
    answers = iter(range(100))

    def slow(address: str, where: HostTree) -> Temperatures:
        assert threading.current_thread().name == 'npu temperature'
        card.wait(60)
        return Temperatures((Temperature('core', float(next(answers))),))

    monkeypatch.setattr(metis_card, 'read_temperatures', slow)
    watch = TemperatureWatch(tree)
    for _ in range(50):
        assert watch.latest(ADDRESS).problem == 'not read yet'
    card.set()
    eventually(lambda: watch.latest(ADDRESS).sensors)
    first = watch.latest(ADDRESS).sensors[0].celsius
    eventually(lambda: watch.latest(ADDRESS).sensors[0].celsius > first)

    card.clear()
    watch.latest(ADDRESS)
    monkeypatch.setattr(metis_card, '_STALE_S', 0.05)
    eventually(lambda: watch.latest(ADDRESS).problem == 'the card has not answered for 0.05 s')
    card.set()
    eventually(lambda: watch.latest(ADDRESS).sensors)
    watch.close()
    watch.close()
    eventually(lambda: 'npu temperature' not in {thread.name for thread in threading.enumerate()})


def test_the_thread_ends_when_nobody_asks_and_begins_again(tree: HostTree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metis_card, '_IDLE_S', 0.05)
    sensor(tree, input=42000)
    watch = TemperatureWatch(tree)
    for _ in range(2):
        eventually(lambda: watch.latest(ADDRESS).sensors)
        eventually(lambda: watch._thread is None)
    assert watch.latest('').problem == 'its PCI address is unknown'
