"""
Whether this run has the time for the long forms: ``make test-long`` sets ``ZC_LONG=1``.

Each change runs the short ones.
"""

from __future__ import annotations

import os

LONG = os.environ.get('ZC_LONG') == '1'
