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
Checks in a guest, one boot for each suite of ``guest/run_checks.py``.

The driver, memory and links, cameras by GStreamer and on USB.
"""

from __future__ import annotations

from collections.abc import Callable
import os
import sys
from typing import Any

from camera.jpeg_kit import need_decoder
from long_form import LONG
import pytest

from . import Rig
from .checked_boot import Boot, boot_suite, CAMERAS, checks_of, gstreamer_for_guest, STRICT
from .guest import camera_kit, link_kit

pytestmark = pytest.mark.rig


def _contract(tmp: pytest.TempPathFactory) -> dict[str, Any]:
    """
    Boot for the driver's contract, with the system's interpreter.

    The guest needs the standard library alone; that interpreter starts faster than one in an
    environment.
    """
    system = '/usr/bin/python3'
    python = (system if os.access(system, os.X_OK) else sys.executable, '-I')
    return {'python': python, 'vivid': CAMERAS, 'append': STRICT, 'cpus': 2}


def _memory(tmp: pytest.TempPathFactory) -> dict[str, Any]:
    """
    Boot for memory and links; the C consumer is from here.

    With one processor threads take turns wherever the kernel is interrupted (``preempt=full``).
    """
    environment = {link_kit.PROGRAM: str(link_kit.build_consumer(tmp.mktemp('wire'), ()))}
    return {'vivid': CAMERAS, 'append': STRICT, 'cpus': 2 if LONG else 1, 'env': environment}


def _gstreamer(tmp: pytest.TempPathFactory) -> dict[str, Any]:
    return {'vivid': camera_kit.VIVID, 'env': gstreamer_for_guest()}


def _usb(tmp: pytest.TempPathFactory) -> dict[str, Any]:
    need_decoder()
    return {'usb': True}


SUITES: dict[str, Callable[[pytest.TempPathFactory], dict[str, Any]]] = {
    'contract': _contract, 'memory': _memory, 'gstreamer': _gstreamer, 'usb': _usb,
}  # fmt: skip
#  The short form has the same faults of the V4L2 camera with vivid, and JPEGs with a double of the
#  driver.
_LONG = ('usb',)


def _marked(suite: str, param: Any) -> Any:
    return pytest.param(
        suite, *param.values, marks=[*param.marks, *([pytest.mark.long] if suite in _LONG else [])]
    )


@pytest.fixture(scope='module')
def boots(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Boot]:
    """By suite, its one boot."""
    done: dict[str, Boot] = {}

    def boot(suite: str) -> Boot:
        if suite not in done:
            done[suite] = boot_suite(
                rig, tmp_path_factory.mktemp(suite), suite, **SUITES[suite](tmp_path_factory)
            )
        return done[suite]

    return boot


@pytest.mark.parametrize(
    ('suite', 'name'), [_marked(suite, param) for suite in SUITES for param in checks_of(suite)]
)
def test_in_the_guest(suite: str, name: str, boots: Callable[[str], Boot]) -> None:
    boots(suite).must_hold(name)


@pytest.mark.parametrize('suite', [_marked(suite, pytest.param()) for suite in SUITES])
def test_the_kernel_is_content(suite: str, boots: Callable[[str], Boot]) -> None:
    boots(suite).kernel_must_be_content()
