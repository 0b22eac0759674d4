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

"""Fixtures of the tests of the wire format."""

from __future__ import annotations

from pathlib import Path

import pytest
from wire_builder import build_consumer


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the client's handshake timeout, so that a slow test doesn't end its attempt."""
    monkeypatch.setattr('zc_perception.link.shared_memory.client.HANDSHAKE_S', 60.0)


@pytest.fixture(scope='session')
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_consumer(tmp_path_factory.mktemp('wire'))


@pytest.fixture
def place(folder: Path) -> Path:
    return folder / 'socket'
