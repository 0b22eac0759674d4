"""
Faults on purpose, and what the package promises about each.

See :mod:`~faults.run_faults` and the modules, one per kind of fault.
"""

from __future__ import annotations

from pathlib import Path
import sys

TEST = Path(__file__).resolve().parent.parent

# What rung 2's own tests are made of: real producers and consumers, raw sockets that speak
# docs/wire.md, mutated conversations.
for _folder in (TEST.parent, TEST, TEST / 'link' / 'shared_memory'):
    if str(_folder) not in sys.path:
        sys.path.append(str(_folder))
