"""Runs in the guest: every promise of ``axl_ioctl.h`` and of the virtual device, checked through the real kernel.

``/usr/bin/python3 -I test/rig/guest/import_contract.py [PART OF A NAME]``; results go to ``$RIG_OUT/checks.json``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

_TEST = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_TEST), str(_TEST.parent)]

from rig.guest import (  # noqa: E402 - needs the path
    check_camera,
    check_concurrency,
    check_fences,
    check_import,
    check_jobs,
    check_lifetime,
    check_pixels,
    check_removal,
    check_variants,
)
from rig.guest.harness import CHECKS, run  # noqa: E402

RESULTS = 'checks.json'
#: Importing them registered their checks.
MODULES = (
    check_import, check_pixels, check_fences, check_jobs, check_variants, check_removal, check_lifetime, check_concurrency, check_camera,
)  # fmt: skip


def main() -> int:
    """Run the checks whose name contains the argument."""
    part = sys.argv[1] if len(sys.argv) > 1 else ''
    chosen = {name: function for name, function in CHECKS.items() if part in name}
    return 0 if run(chosen, Path(os.environ['RIG_OUT']) / RESULTS) else 1


if __name__ == '__main__':
    sys.exit(main())
