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
A camera of a GStreamer pipeline, and a consumer in another process.

Meanwhile the pipeline writes to its buffers.
"""

from __future__ import annotations

import os
from pathlib import Path

from camera.gstreamer_process import build_plugin, check, gstreamer, names_of, Outcome, run_cases
from link.unixfd.unixfd_kit import gst
from nodes.programs import parameters, Program
from nodes.ros_kit import Managed, Onlooker, status
import pytest
from waiting import until

from zc_perception import Frame, FrameSubscription
from zc_perception.nodes.capture import CaptureNode

# More frames than buffers, so that each buffer is filled again while the consumer has it mapped.
FRAMES, BUFFERS = 60, 12
PICTURE = 'video/x-raw,format=NV12,width=64,height=48,framerate=50/1'


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return the environment variables for GStreamer and the source ``zcframes``."""
    monkeypatch.setenv('ROS_HOME', str(tmp_path))
    monkeypatch.setenv('ZC_RUNTIME_DIR', str(tmp_path / 'run'))
    root = gstreamer()
    build_plugin(root, 'gst_frames.c', tmp_path)
    found = root.environment(tmp_path)
    # The middleware's libraries are in LD_LIBRARY_PATH, too.
    libraries = filter(None, (found['LD_LIBRARY_PATH'], os.environ.get('LD_LIBRARY_PATH')))
    return {**found, 'LD_LIBRARY_PATH': ':'.join(libraries)}


def test_a_pipeline_of_memfds_outlives_a_consumer_in_another_process(
    machine: dict[str, str], free_domain: int
) -> None:
    # The pipeline calls its memory a dma-buf, so it is shared as one.
    pipeline = (
        f'zcframes memory=dmabuf live=1 rate=50 buffers={BUFFERS} frame-size=4608 '
        f'caps-text={PICTURE} strides=64,64 offsets=0,3072'
    )
    values = []

    def look(frame: Frame) -> None:
        with frame.map() as planes:
            values.append({int(value) for plane in planes for value in (plane.min(), plane.max())})

    words = parameters(camera='gstreamer', pipeline=f'"{pipeline}"')
    camera = Program('capture_node', *words, domain=free_domain, cold=True, variables=machine)
    with camera.start("from heap 'gstreamer/memfd'"), Onlooker(free_domain) as viewer:
        frames = FrameSubscription(viewer.node, 'image_raw', look)
        viewer.until(
            lambda: frames.statistics().rung == 'shared_memory' and len(values) >= FRAMES,
            lambda: f'{len(values)} frames, {frames.statistics()}\n{camera.output}',
        )
        frames.destroy()
        assert camera.process.poll() is None
        assert camera.interrupt() == 0
    # All pixels of a frame have one value: its buffer was not refilled while it was held.
    assert all(len(numbers) == 1 for numbers in values)


OPTIONS = {'width': 128, 'height': 64, 'framerate': 100.0, 'heap': 'memfd'}


def test_a_stock_pipeline_reads_the_camera_until_it_is_deactivated(
    free_domain: int, tmp_path: Path
) -> None:
    """GStreamer 1.26's ``unixfdsrc`` reads what capture's parameter ``unixfd`` names."""
    tmp_path.chmod(0o700)
    path = tmp_path / 'front.sock'
    with Managed(free_domain) as run:
        capture = run.make(CaptureNode, {**OPTIONS, 'unixfd': str(path), 'unixfd_window': 3})
        capture.start()
        pixels = tmp_path / 'pixels'
        words = '!', 'filesink', f'location={pixels}', 'buffer-mode=unbuffered'
        reader = gst('unixfdsrc', f'socket-path={path}', *words)
        until(
            lambda: pixels.exists() and pixels.stat().st_size > 20 * 128 * 64 * 3 // 2,
            lambda: f'{reader.poll()} {status(capture, "unixfd")}',
        )
        values = status(capture, 'unixfd').values
        assert values['path'] == path and f'reader {reader.pid}' in values
        assert 'of 3' in status(capture, 'link').values[f'consumer unixfd reader {reader.pid}']
        assert 'unixfd_first' not in capture.ledger.entries()
        capture.trigger_deactivate()
        assert reader.wait(60) == 0, reader.communicate()  # EOS
        capture.trigger_cleanup()
        assert not path.exists()


CASES = Path(__file__).with_name('gstreamer_node_cases.py')


@pytest.fixture(scope='module', params=['machine', '1.26'])
def outcome(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Run ``gstreamer_node`` in processes with GStreamer 1.22 and 1.26."""
    return run_cases([CASES], tmp_path_factory.mktemp('node'), newer=request.param == '1.26')


@pytest.mark.parametrize('name', names_of(CASES))
def test_in_a_process_with_gstreamer(name: str, outcome: Outcome) -> None:
    check(name, outcome)
