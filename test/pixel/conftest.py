"""The distribution's own headers, for tests that compare our tables with them."""

from __future__ import annotations

from collections.abc import Callable
import os
from pathlib import Path

from environment.c_header import CHeader
from environment.errors import SetupError
from environment.fixtures import headers
import pytest


@pytest.fixture(scope='session')
def header() -> Callable[[str], CHeader]:
    """
    Read a header by its name.

    Where none can be had, tests are skipped; with ``ZC_RIG=required``, as in CI, they fail.
    """
    try:
        paths: dict[str, Path] = headers()
    except SetupError as error:
        if os.environ.get('ZC_RIG') == 'required':
            pytest.fail(f'headers are required: {error}')
        pytest.skip(f'headers can be fetched only on Debian and Ubuntu: {error}')
    read: dict[str, CHeader] = {}

    def get(name: str) -> CHeader:
        if name not in read:
            read[name] = CHeader(paths[name].read_text(encoding='utf-8'))
        return read[name]

    return get


@pytest.fixture(scope='session')
def drm(header: Callable[[str], CHeader]) -> CHeader:
    """Return ``drm_fourcc.h`` of libdrm-dev."""
    return header('drm_fourcc.h')


@pytest.fixture(scope='session')
def v4l2(header: Callable[[str], CHeader]) -> CHeader:
    """Return ``videodev2.h`` of linux-libc-dev."""
    return header('videodev2.h')
