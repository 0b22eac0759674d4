"""Which heaps a machine has, by their nodes, and which of them ``auto`` would take."""

from __future__ import annotations

from pathlib import Path

from zc_perception.memory.heaps import is_contiguous
from zc_perception.verify.doctor.system import System


def heap_nodes(system: System) -> dict[str, Path]:
    """Names as parameter ``heap`` takes them, and their nodes."""
    found = {f'dma_heap/{name}': system.dev / 'dma_heap' / name for name in system.names('dev/dma_heap')}
    if (system.dev / 'udmabuf').exists():
        found['udmabuf'] = system.dev / 'udmabuf'
    return found


def auto_heap(system: System) -> str:
    """The heap that ``auto`` takes for cameras: the first that opens, in the order of :func:`~zc_perception.memory.heaps.heap_order`."""
    nodes = heap_nodes(system)
    contiguous = [name for name in nodes if is_contiguous(name)]
    order = [*contiguous, 'dma_heap/system'] if (system.dev / 'nvmap').exists() else ['dma_heap/system', *contiguous]
    return next((name for name in (*order, 'udmabuf') if name in nodes and system.open_node(str(nodes[name])) == 0), 'memfd')


def udev_line(name: str) -> str:
    """The rule that opens a heap to group video."""
    if name == 'udmabuf':
        return 'SUBSYSTEM=="misc", KERNEL=="udmabuf", GROUP="video", MODE="0660"'
    return f'SUBSYSTEM=="dma_heap", KERNEL=="{name.removeprefix("dma_heap/")}", GROUP="video", MODE="0660"'


RULES_FILE = '70-zc-perception.rules'


def rights_advice(line: str, node: str) -> str:
    """What to do where a node refuses this user."""
    return (
        f'copy config/vehicle/{RULES_FILE} to /etc/udev/rules.d/ (or add there: {line}), then udevadm control --reload && udevadm trigger; '
        f'add the user to group video (usermod -aG video USER) and log in again; give a container the node (--device {node}) and the group'
    )
