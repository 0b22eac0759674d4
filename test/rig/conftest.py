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

"""The rig for all tests that boot it, and what it did for them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from . import Rig, RigResult, RigUnavailable

_BOOTS = pytest.StashKey[list[tuple[str, RigResult]]]()


class _CountedRig(Rig):
    """Remembers what each boot was for and how it ended."""

    def __init__(self, boots: list[tuple[str, RigResult]]) -> None:
        super().__init__()
        self._boots = boots

    def run(self, *arguments: Any, **options: Any) -> RigResult:
        result = super().run(*arguments, **options)
        test = os.environ.get('PYTEST_CURRENT_TEST', '').rpartition(' ')[0]
        self._boots.append((Path(test.partition('::')[0]).name, result))
        return result


@pytest.fixture(scope='session')
def rig(request: pytest.FixtureRequest) -> Rig:
    """
    Return a prepared rig.

    If there cannot be one, the tests are skipped, or fail if it is required.
    """
    rig = _CountedRig(request.config.stash.setdefault(_BOOTS, []))
    try:
        rig.prepare()
    except RigUnavailable as error:
        if os.environ.get('ZC_RIG') == 'required':
            raise
        pytest.skip(f'no kernel rig here: {error}')
    return rig


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say how often the rig was booted, for which file, and how long that took."""
    boots = config.stash.get(_BOOTS, [])
    if not boots:
        return
    terminalreporter.section('kernel rig')
    for name in dict.fromkeys(name for name, _ in boots):
        results = [result for file, result in boots if file == name]
        seconds, complaints = (
            sum(result.wall_s for result in results),
            sum(len(result.complaints) for result in results),
        )
        terminalreporter.write_line(
            f'{name:24s} {len(results):2d} boots {seconds:7.1f} s  {complaints} complaints of '
            'the kernel'
        )
    terminalreporter.write_line(
        f'{"all":24s} {len(boots):2d} boots {sum(result.wall_s for _, result in boots):7.1f} s'
    )
