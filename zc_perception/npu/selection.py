"""Which accelerator: the named one, or the first of ``axl``, ``axruntime``, ``cpu`` that fits, with the reasons of the others."""

from __future__ import annotations

from zc_perception.memory.ledger import CopyLedger
from zc_perception.npu.accelerator import Accelerator
from zc_perception.npu.cpu import CpuAccelerator

ACCELERATORS = ('auto', 'cpu')


def open_accelerator(name: str, *, ledger: CopyLedger, threads: int) -> tuple[Accelerator, list[str]]:
    """Open an accelerator.

    :param name: one of :data:`ACCELERATORS`.
    :param threads: of the ``cpu`` accelerator.
    :returns: it, and for ``auto`` one sentence for each better one that didn't fit.
    """
    return CpuAccelerator(ledger, threads), []
