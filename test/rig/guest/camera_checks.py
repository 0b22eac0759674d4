"""Runs in the guest: the package's V4L2 camera against four vivid devices. ``python camera_checks.py [PART OF A NAME ...]``.

Results go to ``$RIG_OUT/camera_checks.json``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

_TEST = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_TEST), str(_TEST.parent)]

from rig.guest import camera_faults, camera_parameters, camera_streams, doctor_checks, graph_faults  # noqa: E402 - needs the path
from rig.guest.camera_kit import CHECKS  # noqa: E402
from rig.guest.harness import run  # noqa: E402
from rig.guest.long_checks import chosen  # noqa: E402

RESULTS = 'camera_checks.json'
#: Importing them registered their checks.
MODULES = (camera_streams, camera_faults, camera_parameters, doctor_checks, graph_faults)


def main() -> int:
    """Run the checks whose names contain one of the arguments; without any, those of this form."""
    return 0 if run(chosen(CHECKS, sys.argv[1:]), Path(os.environ['RIG_OUT']) / RESULTS) else 1


if __name__ == '__main__':
    sys.exit(main())
