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

"""
The GStreamer camera against a real GStreamer.

Its sources are GStreamer's own, and one of ours with buffers made of memfds.
"""

from __future__ import annotations

from camera.gstreamer_process import build_plugin, check, gstreamer, names_of, Outcome, run_cases
import pytest

CASES = ('gstreamer_cases.py', 'gstreamer_colour_cases.py', 'gstreamer_crop_cases.py')


@pytest.fixture(scope='module')
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    plugins = tmp_path_factory.mktemp('plugins')
    build_plugin(gstreamer(), 'gst_frames.c', plugins)
    return run_cases(CASES, tmp_path_factory.mktemp('gstreamer'), plugins)


@pytest.mark.parametrize('name', names_of(*CASES))
def test_with_gstreamer(name: str, outcome: Outcome) -> None:
    check(name, outcome)
