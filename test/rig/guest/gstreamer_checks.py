"""Runs in the guest: the package's GStreamer camera over ``v4l2src`` on vivid. ``python gstreamer_checks.py [PART OF A NAME ...]``.

The process needs the environment of ``environment.gstreamer_root`` from its start. Results go to ``$RIG_OUT/gstreamer_checks.json``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

_TEST = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_TEST), str(_TEST.parent)]

from rig.guest import gstreamer_streams  # noqa: E402 - needs the path
from rig.guest.gstreamer_streams import CHECKS  # noqa: E402
from rig.guest.harness import run  # noqa: E402

RESULTS = 'gstreamer_checks.json'


def main() -> int:
    """Run the checks whose names contain one of the arguments."""
    parts = sys.argv[1:] or ['']
    chosen = {name: function for name, function in CHECKS.items() if any(part in name for part in parts)}
    gstreamer_streams.warm_up()
    return 0 if run(chosen, Path(os.environ['RIG_OUT']) / RESULTS) else 1


if __name__ == '__main__':
    sys.exit(main())
