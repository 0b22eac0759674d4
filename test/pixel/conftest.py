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

"""The distribution's own headers, for tests that compare the package's tables with them."""

from __future__ import annotations

from collections.abc import Callable
import os
from pathlib import Path

from doubles.c_layout import c_values
from environment.errors import SetupError
from environment.fixtures import headers
import pytest


@pytest.fixture(scope='session')
def header() -> Callable[[str], str]:
    """Return a header reader; without headers tests skip, or fail with ``ZC_RIG=required``."""
    try:
        paths: dict[str, Path] = headers()
    except SetupError as error:
        if os.environ.get('ZC_RIG') == 'required':
            pytest.fail(f'headers are required: {error}')
        pytest.skip(f'headers can be fetched only on Debian and Ubuntu: {error}')
    return lambda name: paths[name].read_text(encoding='utf-8').replace('\\\n', ' ')


@pytest.fixture(scope='session')
def drm(header: Callable[[str], str]) -> str:
    return header('drm_fourcc.h').replace('#include "drm.h"', '#include <linux/types.h>')


@pytest.fixture(scope='session')
def v4l2(header: Callable[[str], str]) -> str:
    return header('videodev2.h')


@pytest.fixture
def values(tmp_path: Path) -> Callable[..., dict[str, int]]:
    """Return a function that compiles C expressions after a header's text."""

    def made(text: str, *expressions: str) -> dict[str, int]:
        (tmp_path / 'header.h').write_text(text, encoding='utf-8')
        return c_values(expressions, [str(tmp_path / 'header.h')], tmp_path)

    return made
