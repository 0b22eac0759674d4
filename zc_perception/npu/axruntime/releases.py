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
Know which releases of Voyager runtime, Metis driver and card firmware go together.

And which advice depends on them. Source: Voyager SDK, ``RELEASE_COMPATIBILITY_MATRIX.md`` and
``RELEASE_NOTES.md`` of 1.6 to 1.8. If a release is unknown, it is never called wrong.
"""

from __future__ import annotations

from contextlib import suppress
from importlib import metadata
import re

PACKAGE = 'axelera-runtime'
# By its name since 1.9, and before.
_PACKAGES = ('axelera-rt', PACKAGE)
_NUMBER = re.compile(r'(\d+)\.(\d+)(?:\.(\d+))?', re.ASCII)
# The releases of the runtime that are known, with the oldest driver that each works with.
_DRIVERS = {(1, 8): '1.6.2', (1, 7): '1.5.5', (1, 6): '1.4.4'}
_FIRMWARE_FLOOR = '1.4.0'
_BOARD_CONTROLLER_FLOOR = '7.0'
_WITHOUT_TOOLCHAIN = (1, 8, 0)


def release_number(text: str) -> tuple[int, int, int] | None:
    """Return the first release number in *text*; ``None``: there is none."""
    match = _NUMBER.search(text)
    return None if match is None else (int(match[1]), int(match[2]), int(match[3] or 0))


def wheel_release() -> str:
    """Return the release of the runtime's Python package; empty: it isn't installed."""
    for package in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            return metadata.version(package)
    return ''


def needs_toolchain(release: str) -> bool:
    """
    Say whether the runtime needs the SDK's RISC-V compiler to load a model.

    Such a runtime compiles a part of each model then.
    """
    number = release_number(release)
    return number is None or number < _WITHOUT_TOOLCHAIN


def needed_driver(release: str) -> str:
    """Return the oldest driver for a release of the runtime; empty where it is unknown."""
    number = release_number(release)
    return '' if number is None else _DRIVERS.get(number[:2], '')


def mismatches(
    release: str, driver: str, firmware: str = '', board_controller: str = ''
) -> list[str]:
    """
    Return one line for each part that is too old for the runtime, with what to do about it.

    For a release that is not known here there are no lines.

    :param release: of the runtime.
    :param driver: its version, as ``/sys/class/metis/version`` has it.
    """
    oldest_driver = needed_driver(release)
    if not oldest_driver:
        return []
    reload = 'install that release of metis-dkms, then modprobe -r metis and modprobe metis'
    floors = (
        ('the Metis driver', driver, oldest_driver, reload),
        (
            "the card's firmware",
            firmware,
            _FIRMWARE_FLOOR,
            "update it with the SDK's tools ('axdevice' shows both versions)",
        ),
        (
            "the card's board controller",
            board_controller,
            _BOARD_CONTROLLER_FLOOR,
            "update it with the SDK's tools",
        ),
    )
    lines = []
    for what, version, floor, advice in floors:
        number, least = release_number(version), release_number(floor)
        if number is not None and least is not None and number < least:
            lines.append(
                f'{what} is {version}, and runtime {release} needs {floor} or later: {advice}'
            )
    return lines
