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
Pictures of results.

Of those that were measured, and none without Matplotlib, which is an optional extra.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
import subprocess
import sys
from typing import Any

from bench import report as program
from bench.link import LINKS, PLAIN, READERS
from bench.peers.processes import PEERS
from bench.plots import draw
import pytest
from report_kit import bench, row, write

needs_matplotlib = pytest.mark.skipif(
    importlib.util.find_spec('matplotlib') is None,
    reason='the package matplotlib is not installed',
)
SIZES = [(640, 480), (1920, 1080), (3840, 2160)]
STAGES = {'capture_us': 20.0, 'link_us': 40.0, 'decode_us': 130.0, 'publish_us': 80.0}


def link() -> Any:
    rows = [
        row('link', variant, size, rate, median_us=10.0 * (index + 1))
        for index, variant in enumerate((*LINKS, *PLAIN, *PEERS.names))
        for size in SIZES
        for rate in (0.0, 30.0)
    ]
    rows += [row('link_read', variant, median_us=500.0) for variant in (*READERS, *PEERS.readers)]
    rows += [row('floor', 'fd_socket', size) for size in SIZES]
    # Nothing arrived.
    rows.append(
        row(
            'link',
            'zenoh',
            (7680, 4320),
            median_us=None,
            p99_us=None,
            cpu_us_per_frame=None,
            lost_per_cent=100.0,
        )
    )
    return bench('link', rows)


def scale(*lost: float) -> Any:
    return bench(
        'scale',
        [
            row(
                'scale',
                f'{cameras}_cameras',
                rate_hz=30.0,
                lost_per_cent=one,
                figures={'process_percent': 5.0 * cameras},
            )
            for cameras, one in zip((1, 8, 16), lost, strict=True)
        ],
    )


def startup() -> Any:
    figures = {'imported_ms': 300.0, 'first_published_ms': 900.0, 'cpu_ms': 1200.0}
    return bench(
        'startup',
        [
            row('startup_received', variant, (640, 360), 30.0, figures=figures)
            for variant in ('warm', 'cold')
        ],
    )


def dimensions(path: Path) -> tuple[int, int]:
    """From a PNG's header."""
    head = path.read_bytes()[:24]
    assert head[:8] == b'\x89PNG\r\n\x1a\n'
    return int.from_bytes(head[16:20], 'big'), int.from_bytes(head[20:24], 'big')


@needs_matplotlib
def test_there_is_a_picture_for_whatever_was_measured(tmp_path: Path) -> None:
    benches = [
        link(),
        bench('pipeline', [row('pipeline', '1_camera', figures=STAGES)]),
        scale(0, 0, 0.5),
        startup(),
    ]
    drawn = draw(benches, tmp_path)
    assert {name: [path.name for path in paths] for name, paths in drawn.items()} == {
        'link': ['link_latency.png', 'link_cpu.png', 'link_read.png'],
        'pipeline': ['pipeline_stages.png'],
        'scale': ['scale.png'],
        'startup': ['startup.png'],
    }
    for paths in drawn.values():
        for path in paths:
            width, height = dimensions(path)
            assert 700 < width < 2600 and 200 < height < 1200


@needs_matplotlib
@pytest.mark.parametrize(
    'made',
    [
        bench('link', []),
        bench('link', [row('floor', 'guard')]),
        bench('scale', []),
        bench('startup', []),
        bench('pipeline', []),
    ],
)
def test_of_what_is_missing_there_is_no_picture_and_no_old_one(tmp_path: Path, made: Any) -> None:
    old = tmp_path / {'link': 'link_cpu.png', 'pipeline': 'pipeline_stages.png'}.get(
        made.name, f'{made.name}.png'
    )
    old.write_bytes(b'of last week')
    assert draw([made], tmp_path) == {} and not old.exists()


@needs_matplotlib
def test_a_size_and_a_peer_alone_can_be_drawn(tmp_path: Path) -> None:
    assert (
        len(draw([bench('link', [row('link', 'cyclonedds', (640, 480), 30.0)])], tmp_path)['link'])
        == 2
    )
    assert draw([scale(1.0, 1.0, 1.0)], tmp_path)


def test_without_matplotlib_the_report_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, 'matplotlib', None)
    monkeypatch.setitem(sys.modules, 'matplotlib.figure', None)
    write(tmp_path / 'link.json', list(link().rows))
    assert program.main([str(tmp_path), '--no-run']) == 0
    how = 'Matplotlib is not installed: pip install matplotlib'
    assert f'No pictures: {how}' in (tmp_path / 'report.md').read_text(encoding='utf-8')
    assert how in capsys.readouterr().err and not list(tmp_path.glob('*.png'))


def test_matplotlib_is_loaded_for_pictures_alone() -> None:
    lines = 'import sys, bench.report; print("matplotlib" in sys.modules)'
    assert (
        subprocess.run(
            [sys.executable, '-c', lines], capture_output=True, text=True, check=True
        ).stdout.strip()
        == 'False'
    )
