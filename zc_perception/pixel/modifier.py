"""64-bit format modifiers: how a plane's samples lie in memory.

Source: ``drm_fourcc.h`` (vendor in the top 8 bits, value in the low 56) and the kernel's *Exchanging pixel buffers*.
Zero is LINEAR, an explicit promise. INVALID is no layout at all: it says that nobody told us.
"""

from __future__ import annotations

import re

from zc_perception.errors import FormatError
from zc_perception.pixel.fourcc import fourcc_code, fourcc_name, pixel_format

LINEAR = 0
INVALID = (1 << 56) - 1
_HEXADECIMAL = re.compile('0x[0-9a-fA-F]{1,16}')

VENDORS = {0x01: 'INTEL', 0x02: 'AMD', 0x03: 'NVIDIA', 0x04: 'SAMSUNG', 0x05: 'QCOM', 0x06: 'VIVANTE', 0x07: 'BROADCOM',
           0x08: 'ARM', 0x09: 'ALLWINNER', 0x0A: 'AMLOGIC'}  # fmt: skip


def check_modifier(modifier: int) -> int:
    """*modifier* itself, if it is a 64-bit unsigned number.

    :raises FormatError: it isn't.
    """
    if not 0 <= modifier < 1 << 64:
        raise FormatError(f'modifier {modifier:#x} is outside 0 .. 2^64-1')
    return modifier


def modifier_name(modifier: int) -> str:
    """A name for people: ``LINEAR``, ``INVALID`` or ``NVIDIA:0x…``."""
    check_modifier(modifier)
    if modifier == LINEAR:
        return 'LINEAR'
    if modifier == INVALID:
        return 'INVALID'
    vendor = VENDORS.get(modifier >> 56, f'vendor 0x{modifier >> 56:02x}')
    return f'{vendor}:0x{modifier & INVALID:014x}'


def drm_format_string(fourcc: int, modifier: int) -> str:
    """GStreamer's ``drm-format`` string: the bare fourcc for LINEAR, else ``NV12:0x0100000000000002``.

    :raises FormatError: unknown fourcc, or an INVALID modifier, which can't be written in caps.
    """
    name = pixel_format(fourcc).name
    if check_modifier(modifier) == LINEAR:
        return name
    if modifier == INVALID:
        raise FormatError(f"'{name.strip()}' with an INVALID (implicit) modifier has no drm-format string: ask the allocator first")
    return f'{name}:0x{modifier:016x}'


def parse_drm_format(text: str) -> tuple[int, int]:
    """``(fourcc, modifier)`` of a ``drm-format`` string.

    :raises FormatError: a linear format with a modifier written out, a modifier without ``0x``, or an unknown fourcc.
    """
    name, colon, value = text.partition(':')
    fourcc = fourcc_code(name)
    pixel_format(fourcc)
    if not colon:
        return fourcc, LINEAR
    if not _HEXADECIMAL.fullmatch(value):
        raise FormatError(f"drm-format '{text}': the modifier must be '0x' and 1 to 16 hexadecimal digits")
    modifier = int(value, 16)
    if modifier in (LINEAR, INVALID):
        raise FormatError(f"drm-format '{text}': write a linear format as '{fourcc_name(fourcc)}' and leave an unknown layout out")
    return fourcc, modifier
