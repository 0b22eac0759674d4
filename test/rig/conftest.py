"""The rig for all tests that boot it."""

from __future__ import annotations

import os

import pytest

from . import Rig, RigUnavailable


@pytest.fixture(scope='session')
def rig() -> Rig:
    """Return a prepared rig; where there cannot be one the tests are skipped, or fail if it is required."""
    rig = Rig()
    try:
        rig.prepare()
    except RigUnavailable as error:
        if os.environ.get('ZC_RIG') == 'required':
            raise
        pytest.skip(f'no kernel rig here: {error}')
    return rig
