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
64-bit format modifiers, which describe how a plane's samples are arranged in memory.

LINEAR (0) means rows one after the other. INVALID means that the layout is not known (implicit).
Sources: ``drm_fourcc.h`` (vendor in the top 8 bits, value in the low 56) and the kernel's
*Exchanging pixel buffers*.

This package reads and writes only LINEAR pixels. Frames of other layouts are passed on from a
camera to a device that accepts them. For these frames, this module finds three things: the name of
a modifier (for messages), the number of planes that a buffer with this modifier has, and which
other modifiers mean the same layout. It interprets nothing else.
"""

from __future__ import annotations

from enum import IntEnum

from zc_perception.errors import FormatError
from zc_perception.pixel.fourcc import pixel_format

LINEAR = 0
INVALID = (1 << 56) - 1

_VALUE_BITS = 56
_VALUE_MASK = (1 << _VALUE_BITS) - 1
_NVIDIA_BLOCK_LINEAR, _NVIDIA_KIND, _NVIDIA_GENERIC_KIND = 0x10, 0xFF << 12, 0xFE << 12


# Values of a modifier's top eight bits. Many installed headers lack MTK (new in Linux 6.14) and
# APPLE (new in Linux 6.15).
Vendor = IntEnum(
    'Vendor',
    'NONE INTEL AMD NVIDIA SAMSUNG QCOM VIVANTE BROADCOM ARM ALLWINNER AMLOGIC MTK APPLE',
    start=0,
)


class KnownModifier(IntEnum):
    """Tiled layouts of cameras and decoders, named as in ``drm_fourcc.h``: vendor and layout."""

    INTEL_X_TILED = 0x01 << 56 | 1
    INTEL_Y_TILED = 0x01 << 56 | 2
    SAMSUNG_64_32_TILE = 0x04 << 56 | 1
    QCOM_COMPRESSED = 0x05 << 56 | 1
    VIVANTE_TILED = 0x06 << 56 | 1
    ALLWINNER_TILED = 0x09 << 56 | 1
    MTK_16L_32S_TILE = 0x0B << 56 | 1


_VENDORS = {int(vendor): vendor for vendor in Vendor}
_KNOWN = {int(modifier): modifier for modifier in KnownModifier}
# Modifiers of these vendors may add planes for the state of compression. The modifiers in
# KnownModifier add none.
_VENDORS_WITH_MORE_PLANES = (Vendor.NONE, Vendor.INTEL, Vendor.AMD, Vendor.VIVANTE)


def check_modifier(modifier: int) -> int:
    """Return *modifier* unchanged; raise FormatError if it isn't a 64-bit unsigned number."""
    if not 0 <= modifier < 1 << 64:
        raise FormatError(f'modifier {modifier:#x} is outside 0 .. 2^64-1')
    return modifier


def same_layout(modifier: int) -> tuple[int, ...]:
    """
    Return all modifiers that mean the same layout, *modifier* itself first.

    Only NVIDIA has two modifiers for one layout. Its old block-linear modifiers have page kind 0,
    which means the generic kind 0xfe, as ``drm_fourcc.h`` states. Drivers report 0xfe even if a
    program asked for 0.
    """
    block_linear = modifier >> _VALUE_BITS == Vendor.NVIDIA and modifier & _NVIDIA_BLOCK_LINEAR
    kind = modifier & _NVIDIA_KIND
    if not block_linear or kind not in (0, _NVIDIA_GENERIC_KIND):
        return (modifier,)
    return modifier, modifier ^ _NVIDIA_GENERIC_KIND


def modifier_name(modifier: int) -> str:
    """
    Return a modifier's name for messages.

    It is ``LINEAR``, ``INVALID``, a known name such as ``INTEL:X_TILED``, or else vendor and
    digits, as in ``NVIDIA:0x00000000000010``.

    :raises FormatError: *modifier* isn't a 64-bit unsigned number.
    """
    if check_modifier(modifier) in (LINEAR, INVALID):
        return 'LINEAR' if modifier == LINEAR else 'INVALID'
    number, value = modifier >> _VALUE_BITS, modifier & _VALUE_MASK
    vendor = _VENDORS[number].name if number in _VENDORS else f'vendor 0x{number:02x}'
    known = _KNOWN.get(modifier)
    return f'{vendor}:{known.name.partition("_")[2] if known else f"0x{value:014x}"}'


def plane_count(fourcc: int, modifier: int) -> int | None:
    """
    Return the number of planes that a buffer of this format and modifier has.

    :returns: ``None`` if the number isn't known: for INVALID, an unknown vendor, or a vendor whose
        modifiers may add planes.
    :raises FormatError: the fourcc isn't known.
    """
    planes = len(pixel_format(fourcc).planes)
    if check_modifier(modifier) == LINEAR or modifier in _KNOWN:
        return planes
    vendor = _VENDORS.get(modifier >> _VALUE_BITS, Vendor.NONE)
    return None if vendor in _VENDORS_WITH_MORE_PLANES else planes
