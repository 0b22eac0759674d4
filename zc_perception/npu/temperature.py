"""How hot a card is, where its driver tells the kernel.

Source: ``Documentation/hwmon/sysfs-interface.rst``: below a device's folder, ``hwmon/hwmonN/tempM_input`` in thousandths of a degree, with
``tempM_label``, ``tempM_max`` and ``tempM_crit`` where the driver has them. The Metis driver's release notes promise none of this, so that
nothing to read is the usual case, and says so.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from zc_perception.npu.axl.discovery import HOST, HostTree

_STALE_S = 5.0
_IDLE_S = 5.0


@dataclass(frozen=True)
class Temperature:
    """One sensor, in degrees Celsius; ``limit`` is the lowest that the driver calls too hot, ``None`` where it says none."""

    name: str
    celsius: float
    limit: float | None = None

    @property
    def too_hot(self) -> bool:
        """Whether it has reached its limit."""
        return self.limit is not None and self.celsius >= self.limit

    def __str__(self) -> str:
        limit = '' if self.limit is None else f' of {self.limit:.0f}'
        return f'{self.name} {self.celsius:.1f}{limit}'


@dataclass(frozen=True)
class Temperatures:
    """All sensors of a card.

    :param problem: why there are none; empty when there are some.
    """

    sensors: tuple[Temperature, ...] = ()
    problem: str = ''

    @property
    def too_hot(self) -> tuple[Temperature, ...]:
        """Those at their limit."""
        return tuple(sensor for sensor in self.sensors if sensor.too_hot)

    def __str__(self) -> str:
        return ', '.join(map(str, self.sensors)) or f'unreadable ({self.problem})'


def _degrees(attribute: Path) -> float | None:
    with suppress(OSError, ValueError):
        return int(attribute.read_text(encoding='ascii', errors='replace')) / 1000
    return None


def _sensor(attribute: Path) -> Temperature | None:
    celsius = _degrees(attribute)
    if celsius is None:
        return None
    stem = attribute.name.removesuffix('_input')
    name = stem
    with suppress(OSError):
        name = attribute.with_name(f'{stem}_label').read_text(encoding='utf-8', errors='replace').strip() or stem
    limits = [limit for which in ('max', 'crit') if (limit := _degrees(attribute.with_name(f'{stem}_{which}'))) is not None]
    return Temperature(name, celsius, min(limits, default=None))


def read_temperatures(address: str, tree: HostTree = HOST) -> Temperatures:
    """The sensors of a PCI device. Never raises. May take as long as the driver takes to ask the card.

    :param address: ``0000:01:00.0``; empty when it isn't known.
    """
    if not address:
        return Temperatures(problem='its PCI address is unknown')
    device = tree.pci(address)
    if not device.exists():
        return Temperatures(problem=f'{address} is not on PCI')
    attributes = [*device.glob('hwmon/hwmon*/temp*_input'), *device.glob('*/*/hwmon*/temp*_input')]
    if not attributes:
        return Temperatures(problem=f'the driver of {address} has no hwmon sensors')
    found = [sensor for attribute in sorted(set(attributes)) if (sensor := _sensor(attribute)) is not None]
    return Temperatures(tuple(found), '' if found else f'the sensors of {address} do not answer')


@dataclass
class TemperatureWatch:
    """Reads on a thread of its own, as a card may be slow to answer; whoever asks gets the last answer.

    The thread ends when nobody has asked for some seconds.
    """

    tree: HostTree = HOST
    _address: str = ''
    _last: Temperatures = field(default_factory=lambda: Temperatures(problem='not read yet'))
    _read_at: float = 0.0
    _thread: threading.Thread | None = None
    _asked: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def latest(self, address: str) -> Temperatures:
        """The last answer; asks for the next one."""
        with self._lock:
            if address != self._address:
                self._address, self._last, self._read_at = address, Temperatures(problem='not read yet'), time.monotonic()
            if not address:
                return read_temperatures(address, self.tree)
            self._asked.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name='npu temperature', daemon=True)
                self._thread.start()
            if time.monotonic() - self._read_at > _STALE_S and self._last.sensors:
                return Temperatures(problem=f'the card has not answered for {_STALE_S:g} s')
            return self._last

    def _run(self) -> None:
        while True:
            asked = self._asked.wait(_IDLE_S)
            with self._lock:
                if not asked or not self._address:
                    self._thread = None
                    return
                self._asked.clear()
                address = self._address
            found = read_temperatures(address, self.tree)
            with self._lock:
                if address == self._address:
                    self._last, self._read_at = found, time.monotonic()

    def close(self) -> None:
        """End the thread, unless the card keeps it. Idempotent."""
        with self._lock:
            self._address = ''
            thread = self._thread
        self._asked.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=0.5)
