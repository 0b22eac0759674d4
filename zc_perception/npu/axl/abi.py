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
The ioctls of an Axelera driver that imports dma-bufs: structs, flags, numbers.

This module does no I/O. Source: the UAPI header ``test/rig/module/axl_ioctl.h``, which explains
every member and the errno that the driver returns for each mistake.
``test/npu/test_axl_abi.py`` compares this module with the header by a C compiler, so that neither
can change alone. The structs are little-endian and naturally aligned, for a 64-bit kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import ctypes
from dataclasses import dataclass
import enum

from zc_perception.errors import ConfigError, nearest

#: The `AxlQuery.abi_version` of a driver that has every ioctl in this module.
ABI_VERSION = 2
MAX_PLANES = 4

#: The value of `AxlSubmit2.in_fence_fd` for a frame without an acquire fence: the device may read
#: the frame at once.
NO_FENCE = -1


class ImportFlags(enum.IntFlag):
    """The direction of the DMA; exactly one flag is set. Frames are imported with `TO_DEVICE`."""

    TO_DEVICE = 1
    FROM_DEVICE = 2
    BIDIRECTIONAL = 4


class AxlImportFd(ctypes.LittleEndianStructure):
    """``struct axl_import_fd``: import a LINEAR image that has no padding, in one dma-buf."""

    _fields_ = (
        ('fd', ctypes.c_int32),
        ('width', ctypes.c_uint32),
        ('height', ctypes.c_uint32),
        ('pixfmt', ctypes.c_uint32),
        ('flags', ctypes.c_uint32),
        ('handle', ctypes.c_uint32),
        ('iova_base', ctypes.c_uint64),
        ('size', ctypes.c_uint64),
    )


class AxlSubmit(ctypes.LittleEndianStructure):
    """``struct axl_submit``: run a model on an imported frame."""

    _fields_ = (
        ('input_handle', ctypes.c_uint32),
        ('result_fd', ctypes.c_int32),
        ('model_id', ctypes.c_uint32),
        ('timeout_us', ctypes.c_uint32),
        ('fence_fd', ctypes.c_int32),
        ('pad', ctypes.c_uint32),
        ('submit_us', ctypes.c_uint64),
        ('completion_us', ctypes.c_uint64),
    )


class AxlPlane(ctypes.LittleEndianStructure):
    """``struct axl_plane``: the dma-buf, stride, offset and size of one plane."""

    _fields_ = (
        ('fd', ctypes.c_int32),
        ('stride', ctypes.c_uint32),
        ('offset', ctypes.c_uint64),
        ('size', ctypes.c_uint64),
    )


class AxlImportPlanes(ctypes.LittleEndianStructure):
    """``struct axl_import_planes``: import an image of any layout in one or more dma-bufs."""

    _fields_ = (
        ('struct_size', ctypes.c_uint32),
        ('flags', ctypes.c_uint32),
        ('width', ctypes.c_uint32),
        ('height', ctypes.c_uint32),
        ('fourcc', ctypes.c_uint32),
        ('num_planes', ctypes.c_uint32),
        ('modifier', ctypes.c_uint64),
        ('planes', AxlPlane * MAX_PLANES),
        ('handle', ctypes.c_uint32),
        ('pad', ctypes.c_uint32),
        ('iova_base', ctypes.c_uint64 * MAX_PLANES),
    )


class AxlSubmit2(ctypes.LittleEndianStructure):
    """``struct axl_submit2``: run a model after the frame's acquire fence has signalled."""

    _fields_ = (
        ('struct_size', ctypes.c_uint32),
        ('flags', ctypes.c_uint32),
        ('input_handle', ctypes.c_uint32),
        ('model_id', ctypes.c_uint32),
        ('timeout_us', ctypes.c_uint32),
        ('in_fence_fd', ctypes.c_int32),
        ('result_fd', ctypes.c_int32),
        ('fence_fd', ctypes.c_int32),
        ('submit_us', ctypes.c_uint64),
        ('seqno', ctypes.c_uint64),
    )


class AxlFormat(ctypes.LittleEndianStructure):
    """``struct axl_format``: one format, with its modifier, that the device can import."""

    _fields_ = (
        ('fourcc', ctypes.c_uint32),
        ('pad', ctypes.c_uint32),
        ('modifier', ctypes.c_uint64),
    )


class AxlQuery(ctypes.LittleEndianStructure):
    """
    ``struct axl_query``: the device's limits and formats.

    `formats_ptr` points to an array with room for `num_formats` entries of `AxlFormat`.
    """

    _fields_ = (
        ('struct_size', ctypes.c_uint32),
        ('abi_version', ctypes.c_uint32),
        ('max_in_flight', ctypes.c_uint32),
        ('stride_align', ctypes.c_uint32),
        ('offset_align', ctypes.c_uint32),
        ('num_formats', ctypes.c_uint32),
        ('formats_ptr', ctypes.c_uint64),
    )


# The bits of a request code, from the lowest: 8 for the number, 8 for the type, 14 for the
# argument's size, and 2 for the direction. The direction's values follow. Source:
# include/uapi/asm-generic/ioctl.h, for x86 and Arm.
_IOC_WRITE = 1
_IOC_READ = 2

#: The type byte in the request code of each ioctl of the driver.
IOCTL_TYPE = 'U'

_BOTH = _IOC_READ | _IOC_WRITE
# Each ioctl, by its name in parameter `axl_ioctls`: its number, its direction (user space writes
# or reads the argument, or both), and the type that the argument points to.
_IOCTLS: Mapping[
    str, tuple[int, int, type[ctypes.LittleEndianStructure] | type[ctypes.c_uint32]]
] = {
    'import_fd': (64, _BOTH, AxlImportFd),
    'submit': (65, _BOTH, AxlSubmit),
    'release_import': (66, _IOC_WRITE, ctypes.c_uint32),
    'import_planes': (67, _BOTH, AxlImportPlanes),
    'submit2': (68, _BOTH, AxlSubmit2),
    'query': (69, _BOTH, AxlQuery),
}
IOCTL_NUMBERS: Mapping[str, int] = {name: number for name, (number, _, _) in _IOCTLS.items()}


@dataclass(frozen=True)
class Requests:
    """The request codes of all ioctls, as ``ioctl(2)`` takes them."""

    import_fd: int
    submit: int
    release_import: int
    import_planes: int
    submit2: int
    query: int


def ioc(direction: int, ioctl_type: str, number: int, size: int) -> int:
    """Return an ioctl's request code, as the kernel's macro ``_IOC()`` does."""
    return direction << 30 | size << 16 | ord(ioctl_type) << 8 | number


def requests(numbers: Mapping[str, int] | None = None) -> Requests:
    """
    Return the request codes of all ioctls.

    `numbers` replaces entries of `IOCTL_NUMBERS`, for a driver with other numbers.
    """
    chosen = {**IOCTL_NUMBERS, **(numbers or {})}
    return Requests(
        **{
            name: ioc(way, IOCTL_TYPE, chosen[name], ctypes.sizeof(argument))
            for name, (_, way, argument) in _IOCTLS.items()
        }
    )


def parse_ioctl_numbers(entries: Sequence[str]) -> dict[str, int]:
    """
    Parse parameter ``axl_ioctls``: entries such as ``submit=65`` or ``submit=0x41``.

    :raises ConfigError: an entry is wrong, or two ioctls would have the same number.
    """
    known = IOCTL_NUMBERS
    numbers: dict[str, int] = {}
    for entry in entries:
        name, _, text = (part.strip() for part in entry.partition('='))
        allowed = f"'name=number', a number from 0 to 255 for one of the names {', '.join(known)}"
        if name not in known:
            raise ConfigError(
                f"parameter 'axl_ioctls' has '{entry}'; it must be {allowed}{nearest(name, known)}"
            )
        try:
            number = int(text, 0)
        except ValueError:
            number = -1
        if not 0 <= number <= 255:
            raise ConfigError(f"parameter 'axl_ioctls' has '{entry}'; it must be {allowed}")
        if name in numbers:
            raise ConfigError(f"parameter 'axl_ioctls' names '{name}' twice; leave one out")
        numbers[name] = number
    chosen = {**known, **numbers}
    doubled = sorted(
        name for name, number in chosen.items() if list(chosen.values()).count(number) > 1
    )
    if doubled:
        raise ConfigError(
            f"parameter 'axl_ioctls': the ioctls {' and '.join(doubled)} have the same number "
            f'{chosen[doubled[0]]}'
        )
    return numbers


#: The request codes of all ioctls with the usual numbers, `IOCTL_NUMBERS`.
REQUESTS = requests()
