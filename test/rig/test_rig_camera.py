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

"""V4L2 cameras, the doctor and faults of the graph on a real kernel."""

from __future__ import annotations

import pytest

from .checked_boot import checks_of
from .conftest import CAMERA_SUITES, VerifyBoot

pytestmark = pytest.mark.rig


@pytest.mark.parametrize('name', checks_of(CAMERA_SUITES))
def test_in_the_guest(name: str, camera_boot: VerifyBoot) -> None:
    camera_boot.must_hold(name)


def test_the_kernel_is_content(camera_boot: VerifyBoot) -> None:
    camera_boot.kernel_must_be_content()
