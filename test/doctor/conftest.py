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

"""A vehicle for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
import tempfile

from doctor.vehicle import Vehicle
import pytest

from zc_perception.doctor import machine_checks


@pytest.fixture
def vehicle(
    tmp_path: Path, no_fd_leak: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Vehicle]:
    """Yield a healthy vehicle with the compiled steps; it must leave nothing open."""
    monkeypatch.setattr(machine_checks, 'compiled', True)
    with tempfile.TemporaryDirectory() as short:
        yield Vehicle(tmp_path, Path(short) / 'zc')
