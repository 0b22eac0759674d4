"""Runs in the guest: the package's own camera, memory and axl code on a real kernel, checked against the device's CRCs.

``python package_checks.py [PART OF A NAME] [VARIANT:FRAMES ...]``. Results go to ``$RIG_OUT/package_checks.json``; variants are then
run by ``graph_run``, in this process, since imports are slow here.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

_TEST = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_TEST), str(_TEST.parent)]

from rig.guest import graph_run, package_camera, package_npu, package_npu_flow, package_trial  # noqa: E402
from rig.guest.harness import run  # noqa: E402
from rig.guest.long_checks import chosen  # noqa: E402
from rig.guest.package_kit import CHECKS  # noqa: E402

#: Importing them registered their checks.
MODULES = (package_npu, package_npu_flow, package_camera, package_trial)


def main() -> int:
    """Run the checks whose names contain an argument, or those of this form, then the graph if asked for, whatever they say."""
    variants = [argument for argument in sys.argv[1:] if ':' in argument]
    parts = [argument for argument in sys.argv[1:] if ':' not in argument]
    good = run(chosen(CHECKS, parts), Path(os.environ['RIG_OUT']) / 'package_checks.json')
    if variants:
        graph_run.main(variants)
    return 0 if good else 1


if __name__ == '__main__':
    sys.exit(main())
