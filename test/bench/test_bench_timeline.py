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

"""``zc_bench timeline``: a short run over real ROS."""

from __future__ import annotations

import json
from pathlib import Path

from bench_kit import run_bench

from zc_perception.observe.timeline import STAGES, WHOLE

NAMES = [name for name, _ in STAGES]


def test_a_short_run_of_everything(free_domain: int, tmp_path: Path) -> None:
    trace = tmp_path / 'trace.json'
    document = run_bench(tmp_path, 'timeline', '--seconds', '1', '--trace', str(trace))
    rows = {row['variant']: row for row in document['rows']}
    assert list(rows) == [*NAMES, WHOLE]
    # The stand-in accelerator takes two milliseconds, which count in this stage only.
    assert rows['infer']['median_us'] >= 2000
    assert rows['decode']['median_us'] > 0 and rows['publish']['median_us'] > 0
    assert rows[WHOLE]['median_us'] >= rows['infer']['median_us']
    events = json.loads(trace.read_text(encoding='utf-8'))['traceEvents']
    kinds = {event.get('cat') for event in events}
    assert {'capture', 'link', 'infer', 'decode', 'publish'} <= kinds
