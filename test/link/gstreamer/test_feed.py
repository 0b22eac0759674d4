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

"""Frames into pipelines, with GStreamer 1.22 and 1.26 in processes of their own."""

from __future__ import annotations

from pathlib import Path

from camera.gstreamer_process import check, names_of, Outcome, run_cases
import pytest

CASES = Path(__file__).with_name('feed_cases.py')


@pytest.fixture(scope='module', params=['machine', '1.26'])
def outcome(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    folder = tmp_path_factory.mktemp('feed')
    return run_cases([CASES], folder, newer=request.param == '1.26')


@pytest.mark.parametrize('name', names_of(CASES))
def test_in_a_process_with_gstreamer(name: str, outcome: Outcome) -> None:
    check(name, outcome)
