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
A camera for the capture node that counts its frames.

setup.py registers it, so that the node's parameter ``camera: counter`` selects it.
"""

import numpy as np

from zc_perception.camera.camera import DrawnCamera
from zc_perception.machine.checks import Check, fail, ok, skip
from zc_perception.parameters import ParameterSpec

BITS = 16


def bars(system, needs):
    """
    Check for zc_doctor that each bar is at least a pixel wide.

    A check yields one or more findings. It may read the machine's state by *system*.
    """
    cameras = needs.cameras_of('counter')
    if not cameras:
        yield skip('the parameter file has no counter camera')
    for camera in cameras:
        width = camera['width'] or CounterCamera.SIZE[0]
        if width < BITS:
            found = f'{BITS} bars do not fit into {width} pixels'
            yield fail(found, f'set width to {BITS} or more', camera.node)
        else:
            yield ok(f'each bar is {width // BITS} pixels wide', camera.node)


class CounterCamera(DrawnCamera):  # the base class reads width, height, framerate, frame_id, heap
    """
    Draws the number of each frame as 16 vertical bars, one for each bit.

    White is 1, black is 0; the highest bit is on the left.
    """

    SIZE, FRAMERATE = (640, 480), 30.0  # used for a parameter that is 0
    PARAMETERS = (
        ParameterSpec('counter_start', 0, 'number of the first frame.', '', 0, 2**BITS - 1),
        ParameterSpec('counter_step', 1, 'increase per frame.', '', 1, 1000, dynamic=True),
    )
    CHECKS = (Check('counter.bars', 'whether each bar gets a pixel', bars),)

    def __init__(self, *size_and_so_on, start, step, **base):
        super().__init__(*size_and_so_on, **base)
        self.number, self.step = start, step

    @classmethod
    def from_parameters(cls, parameters, **base):
        return super().from_parameters(
            parameters, start=parameters['counter_start'], step=parameters['counter_step'], **base
        )

    def tune(self, name, value):  # called for counter_step while the camera runs
        self.step = value

    def render(self, sequence, luma, chroma):
        bits = np.array([self.number >> bit & 1 for bit in reversed(range(BITS))], np.uint8)
        columns = np.arange(luma.shape[1]) * BITS // luma.shape[1]
        luma[:] = 16 + 219 * bits[columns]  # writes directly into the frame's memory
        chroma[:] = 128
        self.number = (self.number + self.step) % 2**BITS
        return True  # False: there is no frame for this sequence number
