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
One agreement on buffers for consumers of other processes, whichever comes first.

``capture_node`` runs alone, its consumers are elsewhere.
"""

from __future__ import annotations

import json
from pathlib import Path
import re
import sys
from typing import Any

from link.wire.page_process import PageProcess
from nodes.programs import Program
import pytest
from waiting import until

HERE = Path(__file__).parent
SIZE = ('-p', 'width:=1366', '-p', 'height:=768')
FRAMERATE = 15.0
CAMERA = (
    '--ros-args',
    *SIZE,
    '-p',
    'pattern:=counter',
    '-p',
    'seed:=1',
    '-p',
    f'framerate:={FRAMERATE}',
)
STREAMS = 'buffers: NV12 LINEAR 1366x768'
RENEWED = 'the other buffers are there; the camera paused for '


@pytest.fixture(autouse=True)
def run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv('ROS_HOME', str(tmp_path))
    monkeypatch.setenv('ZC_RUNTIME_DIR', str(tmp_path / 'run'))
    return tmp_path / 'run'


def capture(domain: int, *more: str) -> Program:
    return Program('capture_node', *CAMERA, *more, domain=domain).start(STREAMS)


def needy(domain: int, *consumers: str) -> Program:
    command = [sys.executable, str(HERE / 'needy_consumers.py'), *consumers]
    return Program(command, domain=domain).start('all are there')


def until_said(program: Program, *words: str) -> None:
    until(
        lambda: all(word in program.output for word in words),
        lambda: f'{words} in:\n{program.output}',
    )


def seen(program: Program) -> dict[str, dict[str, Any]]:
    """Return what the consumers have seen, once they have ended."""
    assert program.interrupt() == 0, program.output
    found: dict[str, dict[str, Any]] = json.loads(
        next(line for line in reversed(program.lines) if line.startswith('{'))
    )
    return found


def pauses(camera: Program) -> list[float]:
    """How long the camera says that it has paused, in seconds."""
    found = re.findall(re.escape(RENEWED) + r'([\d.]+) s', camera.output)
    return [float(seconds) for seconds in found]


def check_frames(name: str, found: dict[str, Any], camera: Program) -> None:
    """
    Check that pixels are whole, and that no frame is lost except those of the pauses.

    Frames may also be lost while a consumer comes again for a larger window.
    """
    paused = pauses(camera)
    again = len(re.findall(rf'consumer {name}#\d+ \(pid \d+\) is connected', camera.output)) - 1
    lost = found['missed'] - found['dropped']
    most = (sum(paused) + again) * FRAMERATE + len(paused)
    assert not found['torn'] and lost <= most, (found, paused, again)


NEEDY = ('npu=NV12; stride_align=64', 'yuyv=YUYV', 'implicit=NV12:INVALID')


def check_refusals(found: dict[str, dict[str, Any]], camera: Program, program: Program) -> None:
    """Two that nothing suits are refused by name at both ends, and the log of each says so."""
    for name, wants in (('yuyv', 'YUYV LINEAR'), ('implicit', 'NV12 INVALID')):
        assert found[name]['rung'] == 'refused' and found[name]['frames'] == 0, found[name]
        reason = found[name]['reason']
        assert wants in reason and 'NV12 LINEAR' in reason and not reason.endswith('…'), reason
        assert wants in camera.output and f'{name} (pid' in camera.output
        assert re.search(rf'ERROR.*{re.escape(wants)}', program.output), program.output


REFUSED = ("[yuyv]: '/image_raw': link is refused", "[implicit]: '/image_raw': link is refused")


def test_consumers_that_are_there_first_and_those_that_come_late_are_served(
    free_domain: int, run_folder: Path
) -> None:
    """Whether the graph tells of the first in time or not: nobody is left out."""
    with needy(free_domain, *NEEDY, 'witness=hold any') as program:
        early = PageProcess('consumer', run_folder, free_domain, '--stride-align', '64')
        with early, capture(free_domain) as camera:
            until_said(program, 'npu: stride 1408', 'witness: stride 1408', *REFUSED)
            early.wait_for('frame')
            assert set(early.told('buffers')[-1]['strides']) == {1408}
            options = ('--formats', 'NV12', '--offset-align', '65536')
            with PageProcess('consumer', run_folder, free_domain, *options) as late:
                late.wait_for('noted')
                late.wait_for('frame', 5)
                assert late.told('buffers')[0]['offsets'][1] % 65536 == 0
            early.wait_for_more('frame', 5)
            found = seen(program)
            assert camera.interrupt() == 0
    for name in ('npu', 'witness'):
        assert found[name]['strides'][-1] == 1408, found
        check_frames(name, found[name], camera)
    check_refusals(found, camera, program)


def test_a_camera_that_is_there_first_agrees_anew_and_bears_who_dies_meanwhile(
    free_domain: int, run_folder: Path
) -> None:
    with capture(free_domain) as camera:
        with needy(free_domain, 'witness=hold any') as witness:
            until_said(witness, 'witness: stride 1366')
            with needy(free_domain, *NEEDY) as program:
                until_said(program, 'npu: stride 1408', *REFUSED)
                until_said(witness, 'witness: stride 1408')
                options = ('--formats', 'NV12', '--offset-align', '65536')
                with PageProcess('consumer', run_folder, free_domain, *options) as late:
                    late.wait_for('noted')
                    late.kill()
                until_said(camera, 'page_consumer')
                check_refusals(seen(program), camera, program)
            found = seen(witness)['witness']
        assert camera.interrupt() == 0
    assert found['strides'] == [1366, 1408], found
    check_frames('witness', found, camera)
