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

"""What the doctor says of buffers that nodes agree on: by the parameter file, and by what runs."""

from __future__ import annotations

from doctor.breakages import capture, inference
from doctor.vehicle import Vehicle

from zc_perception.doctor.node_checks import running_agreements
from zc_perception.machine.checks import Finding, Needs, Status
from zc_perception.machine.system import System
from zc_perception.observe.frame_log import FrameLog

WHY = (
    '/front/capture: no common pixel format and modifier (camera: NV12 LINEAR; npu (pid 7): '
    'YUYV LINEAR)'
)
STEP = "set parameter 'renegotiate' of /front/capture to true"


def planned(vehicle: Vehicle) -> Finding:
    return next(
        result.finding
        for result in vehicle.examine('agreement')
        if result.check.id == 'agreement.planned'
    )


def test_a_file_s_nodes_agree_on_what_the_card_needs(vehicle: Vehicle) -> None:
    capture(width=640, height=360)(vehicle)
    found = planned(vehicle)
    assert (found.status, found.subject) == (Status.OK, '/capture')
    assert 'NV12 LINEAR 640x360' in found.found and 'dma_heap/linux,cma' in found.found


def test_an_accelerator_that_the_camera_does_not_suit_is_named_with_both_nodes(
    vehicle: Vehicle,
) -> None:
    capture(camera='synthetic', memory='auto', heap='memfd')(vehicle)
    for copy_free, status in (('preferred', Status.WARN), ('required', Status.FAIL)):
        inference(copy_free=copy_free)(vehicle)
        found = planned(vehicle)
        assert found.status is status and "can't attach to buffers of heap 'memfd'" in found.found
        assert '/capture' in found.advice and '/inference' in found.advice


def running() -> list[Finding]:
    return [
        one for one in running_agreements(System(), Needs()) if one.subject == '/front/capture'
    ]


def test_cameras_that_run_say_what_they_give_and_whom_they_refuse() -> None:
    with FrameLog('capture', '/front/capture') as log:
        assert not running(), 'it has no buffers yet'
        facts = {
            'agreed': 'NV12 LINEAR 640x360, 8 slots',
            'possible_formats': 'NV12 LINEAR, YUYV LINEAR',
            'possible_heaps': ['memfd'],
        }
        log.describe({**facts, 'refused': {'npu (pid 7)': f'{WHY}; {STEP}'}})
        agreed, refused = running()
        assert (
            agreed.status is Status.OK and 'it could give NV12 LINEAR, YUYV LINEAR' in agreed.found
        )
        assert refused.status is Status.WARN and refused.advice == STEP
        assert refused.found == f'npu (pid 7) is refused: {WHY}'
    assert not running()
