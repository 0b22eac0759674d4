"""Runs in the guest: the memory rooms of the package on real dma-bufs, against what the kernel and the device see.

``python memory_checks.py [PART OF A NAME ...]``; results go to ``$RIG_OUT/memory_checks.json``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

_TEST = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_TEST), str(_TEST.parent)]

from rig.guest import (  # noqa: E402 - needs the path
    package_expbuf,
    package_fences,
    package_foreign,
    package_lifetime,
    package_link,
    package_link_deaths,
    package_link_fences,
    package_link_layouts,
    package_memory,
    package_negotiation,
    package_pool,
    package_sync,
    package_which_heap,
)
from rig.guest.harness import run  # noqa: E402
from rig.guest.long_checks import chosen  # noqa: E402
from rig.guest.package_memory_kit import CHECKS  # noqa: E402

RESULTS = 'memory_checks.json'
#: Importing them registered their checks.
MODULES = (
    package_memory, package_sync, package_fences, package_expbuf, package_pool, package_negotiation, package_lifetime, package_link,
    package_link_deaths, package_link_fences, package_link_layouts, package_foreign, package_which_heap,
)  # fmt: skip


def main() -> int:
    """Run the checks whose names contain one of the arguments; without any, those of this form."""
    return 0 if run(chosen(CHECKS, sys.argv[1:]), Path(os.environ['RIG_OUT']) / RESULTS) else 1


if __name__ == '__main__':
    sys.exit(main())
