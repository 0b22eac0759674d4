"""Runs in the guest: the memory rooms of the package on real dma-bufs, against what the kernel and the device see.

``python memory_contract.py [PART OF A NAME ...]``; results go to ``$RIG_OUT/memory_checks.json``.
"""

from __future__ import annotations

import sys
from pathlib import Path

_TEST = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_TEST), str(_TEST.parent)]

from rig.guest.memory_checks import main  # noqa: E402 - needs the path

if __name__ == '__main__':
    sys.exit(main())
