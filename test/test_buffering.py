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

"""Triple buffering is the default: one frame is filled, one is in transit, one is read."""

from __future__ import annotations

from collections.abc import Callable
import importlib
import inspect
from typing import Any

import pytest

from zc_perception.camera.v4l2.kind import QUEUED
from zc_perception.errors import ConfigError
from zc_perception.frame import Frame
from zc_perception.link.image_conversion import ImageToFrame
from zc_perception.memory.pool import BufferPool, DEFAULT_SLOTS


def default_of(function: Any, parameter: str) -> Any:
    return inspect.signature(function).parameters[parameter].default


def test_every_default_number_of_buffers_is_three_or_more() -> None:
    assert DEFAULT_SLOTS == default_of(BufferPool, 'slots') == 3
    assert default_of(ImageToFrame, 'slots') >= 3
    assert QUEUED >= 3, 'what a V4L2 camera asks for itself'


def test_nobody_can_configure_a_camera_with_less() -> None:
    node = importlib.import_module('zc_perception.nodes.capture').CaptureNode
    (slots,) = (spec for spec in node.SPECS if spec.name == 'slots')
    assert slots.default >= 3 and slots.convert(3) == 3
    with pytest.raises(ConfigError, match="parameter 'slots' is 2; it must be"):
        slots.convert(2)


def test_with_three_slots_a_reader_a_frame_on_its_way_and_the_camera_do_not_meet(
    make_pool: Callable[..., BufferPool], make_frame: Callable[..., Frame]
) -> None:
    pool = make_pool(slots=DEFAULT_SLOTS)
    read, on_its_way = make_frame(pool, sequence=0), make_frame(pool, sequence=1)
    for sequence in range(2, 8):
        filled = make_frame(pool, sequence=sequence)  # never waits, never drops
        read.release()
        read, on_its_way = on_its_way, filled
    assert pool.statistics().exhausted == 0
    third = make_frame(pool)
    assert pool.acquire() is None, 'with one less the camera would have dropped a frame'
    for frame in (read, on_its_way, third):
        frame.release()
