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
An accelerator for the inference node that finds bright objects.

setup.py registers it, so that the node's parameter ``accelerator: counter`` selects it.
"""

import time

import cv2
import numpy as np

from zc_perception.detection.letterbox import Letterbox
from zc_perception.detection.raw_tensor import RawTensor
from zc_perception.errors import AcceleratorError
from zc_perception.machine.checks import Check, Need, ok, skip, warn
from zc_perception.memory.dmabuf import CpuAccess
from zc_perception.negotiation.constraints import BufferConstraints
from zc_perception.npu.accelerator import Accelerator, Capabilities
from zc_perception.npu.engine_thread import HostResult, WorkedJob
from zc_perception.npu.manifest import EngineRules
from zc_perception.parameters import ParameterSpec
from zc_perception.pixel.fourcc import NV12
from zc_perception.pixel.modifier import LINEAR

FASTEST_CAMERA_S = 1 / 30


class CounterAccelerator(Accelerator):
    """Finds one box for each region with the luma of the parameter *brightness* or more."""

    ENGINES = (EngineRules('counter', needs_file=False),)
    PARAMETERS = (
        ParameterSpec('brightness', 200, 'Least luma of bright pixels.', '', 1, 255, dynamic=True),
        ParameterSpec(
            'least_area', 64, 'Regions of fewer pixels are left out.', 'px', 1, 10**6, dynamic=True
        ),
    )
    CHECKS = (Check('counter.speed', 'how long one picture takes', 'counter_accelerator:speed'),)

    def __init__(self, values, ledger):
        self._values, self._ledger = values, ledger

    @classmethod
    def open(cls, values, ledger):  # noqa: A003
        return cls(values, ledger)

    def capabilities(self):
        return Capabilities(
            'counter', 'OpenCV', copy_free=False, max_in_flight=1, may_hang=False, on_card=False
        )

    def constraints(self):
        return BufferConstraints('counter', formats=((NV12, LINEAR),), cpu_access=CpuAccess.READ)

    def load(self, manifest):
        """Do nothing: the engine has no file."""

    def submit(self, handle, frame):
        size = frame.data.width, frame.data.height
        job = WorkedJob(frame, Letterbox.fit(*size, *size, stretch=True), lambda result: None)
        try:
            with frame.map() as planes:
                self._ledger.book('tensor', planes[0].nbytes)
                rows = bright(planes[0], self._values['brightness'], self._values['least_area'])
        except Exception as error:  # report a failed job; an exception would end the node's thread
            job.finish(None, AcceleratorError(str(error)))
        else:
            job.finish(HostResult([RawTensor(rows)]))
        return job

    def tune(self, values):
        self._values = values

    def close(self):
        """Do nothing: this accelerator holds no resources."""


def bright(luma, least, area):
    """Return a row (x0, y0, x1, y1, score, class) for each region of *area* pixels or more."""
    _, _, regions, _ = cv2.connectedComponentsWithStats((luma >= least).astype(np.uint8))
    found = regions[1:][regions[1:, cv2.CC_STAT_AREA] >= area]  # the first is the background
    rows = np.zeros((len(found), 6), np.float32)
    for row, (left, top, width, height, pixels) in zip(rows, found, strict=True):
        row[:5] = left, top, left + width, top + height, pixels / (width * height)
    return rows


def speed(system, needs):
    """Check for zc_doctor that one picture takes less time than a 30 Hz camera's period."""
    if needs.accelerator('counter') is Need.UNUSED:
        yield skip('the parameter file uses no accelerator counter')
        return
    picture = np.random.default_rng(0).integers(0, 256, (480, 640), np.uint8)
    start = time.perf_counter()
    bright(picture, 200, 64)
    took = time.perf_counter() - start
    found = f'one picture of 640x480 takes {1000 * took:.0f} ms'
    figures = {'milliseconds': round(1000 * took, 1)}
    if took < FASTEST_CAMERA_S:
        yield ok(found, **figures)
    else:
        advice = 'lower the framerate, or take smaller pictures'
        yield warn(found, advice, **figures)
