"""Where the machine's device nodes and attributes are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class HostTree:
    """Where the machine's nodes and attributes are; tests have trees of their own."""

    dev: Path = Path('/dev')
    sysfs: Path = Path('/sys')

    def pci(self, address: str) -> Path:
        """The folder of a PCI device's attributes."""
        return self.sysfs / 'bus' / 'pci' / 'devices' / address


HOST = HostTree()
