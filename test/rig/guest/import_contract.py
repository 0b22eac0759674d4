"""Runs in the guest: every promise of ``axl_ioctl.h`` and of the virtual device, checked through the real kernel.

``/usr/bin/python3 -I test/rig/guest/import_contract.py [PART OF A NAME]``; results go to ``$RIG_OUT/checks.json``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

_HERE = Path(__file__).resolve()
sys.path[:0] = [str(_HERE.parents[2]), str(_HERE.parents[3])]

# ruff: noqa: E402 - the path has to be set first
from rig.guest import check_concurrency, check_fences, check_import, check_jobs, check_lifetime, check_pixels
from rig.guest.harness import CHECKS, run

#: Importing them registered their checks.
MODULES = (check_import, check_pixels, check_fences, check_jobs, check_lifetime, check_concurrency)


def main() -> int:
    """Run the checks whose name contains the argument."""
    part = sys.argv[1] if len(sys.argv) > 1 else ''
    chosen = {name: function for name, function in CHECKS.items() if part in name}
    return 0 if run(chosen, Path(os.environ['RIG_OUT']) / 'checks.json') else 1


if __name__ == '__main__':
    sys.exit(main())
