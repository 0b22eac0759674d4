"""Runs in the guest: every promise of ``axl_ioctl.h`` and of the virtual device, checked through the real kernel.

``/usr/bin/python3 -I test/rig/guest/import_contract.py [PART OF A NAME]``; results go to ``$RIG_OUT/checks.json``.
"""

from __future__ import annotations

import sys
from pathlib import Path

_TEST = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_TEST), str(_TEST.parent)]

from rig.guest.checks import main  # noqa: E402 - needs the path

if __name__ == '__main__':
    sys.exit(main())
