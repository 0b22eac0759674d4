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
Checks of the driver, memory, links, accelerator and GStreamer cameras; and webcams on USB.

The whole node graph runs in the same boot, in every layout.
"""

from __future__ import annotations

import json

from camera.jpeg_kit import need_decoder
import pytest

from .conftest import Boot, boot_suites, checks_of, LONG_RUNS, marked, MEMORY_SUITES, WANTED
from .graph import check_names
from .graph import checks_of as checks_of_run
from .guest.graph_variants import VARIANTS
from .rig import Rig

pytestmark = pytest.mark.rig


@pytest.mark.parametrize('name', checks_of(MEMORY_SUITES))
def test_in_the_guest(name: str, memory_boot: Boot) -> None:
    memory_boot.must_hold(name)


def test_the_kernel_is_content(memory_boot: Boot) -> None:
    memory_boot.kernel_must_be_content()


@pytest.fixture(scope='module')
def usb_boot(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> Boot:
    need_decoder()
    return boot_suites(rig, tmp_path_factory.mktemp('usb'), 'usb', usb=True, vivid=False)


# In the short form, vivid has the same faults, and a double of the driver has JPEGs.
@pytest.mark.long
@pytest.mark.parametrize('name', checks_of('usb'))
def test_a_webcam_on_usb(name: str, usb_boot: Boot) -> None:
    usb_boot.must_hold(name)


@pytest.mark.long
def test_the_kernel_is_content_with_webcams(usb_boot: Boot) -> None:
    usb_boot.kernel_must_be_content()


@pytest.mark.parametrize(
    ('variant', 'check'),
    [
        pytest.param(
            *param.values,
            check,
            marks=[pytest.mark.long] if check in ('verify', 'subscriber') else param.marks,
        )
        for param in marked(VARIANTS, LONG_RUNS.__contains__)
        for check in check_names(param.values[0])
    ],
)
def test_the_graph(variant: str, check: str, memory_boot: Boot) -> None:
    if variant not in memory_boot.found:
        pytest.fail(f'the graph did not run\n{memory_boot.result.report()}', pytrace=False)
    run = memory_boot.found[variant]
    found = checks_of_run(run, WANTED[variant], VARIANTS[variant].verified)[check]
    # As text, which pytest doesn't shorten.
    assert found['holds'], json.dumps(
        [found, run['verify'] if check == 'verify' else ''], indent=1
    )
