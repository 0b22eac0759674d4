# Copyright 2026 The zc_perception authors
# SPDX-License-Identifier: Apache-2.0
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.

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
