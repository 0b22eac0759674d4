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

"""What is read of processes in ``/proc``."""

from __future__ import annotations

from pathlib import Path

from zc_perception.observe.processes import all_pids, command_name, threads_of


def test_who_has_ended_has_nothing(tmp_path: Path) -> None:
    assert (
        all_pids(tmp_path / 'nothing'),
        threads_of(5, tmp_path),
        command_name(5, tmp_path),
    ) == ([], [], '')
