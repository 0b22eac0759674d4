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

"""Capture's parameter ``unixfd``, with GStreamer 1.26's own ``unixfdsrc`` at the other end."""

from __future__ import annotations

from pathlib import Path

from link.unixfd.unixfd_kit import gst
from nodes.managed import managed, status
import pytest
from waiting import until

from zc_perception.errors import ConfigError
from zc_perception.nodes.capture import CaptureNode

OPTIONS = {'width': 128, 'height': 64, 'framerate': 100.0, 'heap': 'memfd'}


def test_a_stock_pipeline_reads_the_camera_until_it_is_deactivated(
    free_domain: int, tmp_path: Path
) -> None:
    tmp_path.chmod(0o700)
    path = tmp_path / 'front.sock'
    with managed(free_domain) as run:
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
        link = status(capture, 'link').values
        assert 'of 3' in link[f'consumer unixfd reader {reader.pid}']
        assert 'unixfd_first' not in capture.ledger.entries()
        capture.trigger_deactivate()
        assert reader.wait(60) == 0, reader.communicate()  # EOS
        capture.trigger_cleanup()
        assert not path.exists()


def test_a_folder_that_others_can_write_to_is_a_mistake(free_domain: int, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with managed(free_domain) as run, pytest.raises(ConfigError, match=r'unixfd.*chmod go-w'):
        run.make(CaptureNode, {**OPTIONS, 'unixfd': str(tmp_path / 'front.sock')})
