"""All checks of the memory rooms, and running them; ``memory_contract.py`` is the script for it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from . import (
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
from .harness import run
from .long_checks import chosen
from .package_memory_kit import CHECKS as CHECKS

RESULTS = 'memory_checks.json'
#: Importing them registered their checks.
MODULES = (
    package_memory,
    package_sync,
    package_fences,
    package_expbuf,
    package_pool,
    package_negotiation,
    package_lifetime,
    package_link,
    package_link_deaths,
    package_link_fences,
    package_link_layouts,
    package_foreign,
    package_which_heap,
)


def main() -> int:
    """Run the checks whose names contain one of the arguments; without any, those of this form."""
    return 0 if run(chosen(CHECKS, sys.argv[1:]), Path(os.environ['RIG_OUT']) / RESULTS) else 1
