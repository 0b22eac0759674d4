"""Runs in the guest: the checks of a webcam on USB. ``python usb_run.py [PART OF A NAME ...]``."""

from __future__ import annotations

import sys
from pathlib import Path

_TEST = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_TEST), str(_TEST.parent)]

from rig.guest import usb_checks  # noqa: E402 - needs the path

if __name__ == '__main__':
    sys.exit(usb_checks.main())
