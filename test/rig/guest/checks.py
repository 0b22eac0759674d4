"""All checks that run in the guest, and running them; ``import_contract.py`` is the script for it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from . import (
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
from .harness import CHECKS as CHECKS
from .harness import run

#: Importing them registered their checks.
MODULES = (
    check_import,
    check_pixels,
    check_fences,
    check_jobs,
    check_variants,
    check_removal,
    check_lifetime,
    check_concurrency,
    check_camera,
)


def main() -> int:
    """Run the checks whose name contains the argument."""
    part = sys.argv[1] if len(sys.argv) > 1 else ''
    chosen = {name: function for name, function in CHECKS.items() if part in name}
    return 0 if run(chosen, Path(os.environ['RIG_OUT']) / 'checks.json') else 1
