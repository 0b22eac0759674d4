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
GStreamer's ``drm-format`` strings: a DRM fourcc and its modifier as one name.

For example ``NV12:0x0100000000000002``.

Source: GStreamer's *DMA buffers* design and ``gst_video_dma_drm_fourcc_to_string()``. Of each
format there is exactly one string: all four characters of the fourcc, trailing blanks too (``'R8
'``), and all sixteen digits of the modifier, which is left out when it is LINEAR. The fourcc is
DRM's, not GStreamer's name: ``AR24``, not ``BGRA``.

GStreamer has no string for an implicit layout (modifier INVALID). Outside of caps, in
announcements and parameters, it is written ``NV12:INVALID`` here.
``gst_video_dma_drm_fourcc_from_string()`` refuses that string, so nobody takes it for another
format.
"""

from __future__ import annotations

import re

from zc_perception.errors import FormatError, nearest
from zc_perception.pixel.fourcc import FORMATS, fourcc_code, fourcc_name
from zc_perception.pixel.modifier import check_modifier, INVALID, LINEAR

_IMPLICIT = 'INVALID'
_FOURCC = re.compile('(?=.{4}$)[A-Z0-9]+ *', re.ASCII)
_MODIFIER = re.compile('0x[0-9a-fA-F]{16}', re.ASCII)
# GStreamer's names: some look like a fourcc, and people write them in its place.
_DRM_NAMES = {f.name for f in FORMATS.values()}
_GSTREAMER_NAMES = {f.gstreamer: f.name for f in FORMATS.values() if f.gstreamer}


def drm_format_string(fourcc: int, modifier: int, *, implicit: bool = False) -> str:
    """
    Return the ``drm-format`` string: the bare fourcc for LINEAR, else with its modifier.

    With a modifier it looks like ``NV12:0x0100000000000002``. The fourcc need not be one that this
    package can use: lists of other formats are passed on as they are.

    :param implicit: whether an INVALID modifier may be written, as ``NV12:INVALID``. Caps have no
        such string.
    :raises FormatError: a fourcc that isn't four capitals, digits and trailing blanks, a modifier
        of more than 64 bits, or INVALID without *implicit*.
    """
    name = fourcc_name(fourcc)
    if not 0 <= fourcc < 1 << 32 or not _FOURCC.fullmatch(name):
        raise FormatError(
            f"fourcc 0x{fourcc:08x} ('{name}') has no drm-format string: capitals, digits and "
            'trailing blanks only'
        )
    _refuse_gstreamer_name(name, name)
    if check_modifier(modifier) == LINEAR:
        return name
    if modifier == INVALID:
        if implicit:
            return f'{name}:{_IMPLICIT}'
        raise FormatError(
            f"'{name.strip()}' with an INVALID (implicit) modifier has no drm-format string: "
            'ask the allocator first'
        )
    return f'{name}:0x{modifier:016x}'


def parse_drm_format(text: str, *, implicit: bool = False) -> tuple[int, int]:
    """
    Return ``(fourcc, modifier)`` of a ``drm-format`` string.

    The fourcc may be one that this package doesn't know.

    :param implicit: whether ``NV12:INVALID`` is a format.
    :raises FormatError: a GStreamer name (the DRM fourcc is suggested), a linear format with its
        modifier written out, a modifier that isn't ``0x`` and 16 digits, or INVALID by its digits.
    """
    name, colon, value = text.partition(':')
    fourcc = _parse_fourcc(name, text)
    if not colon:
        return fourcc, LINEAR
    if implicit and value == _IMPLICIT:
        return fourcc, INVALID
    if not _MODIFIER.fullmatch(value):
        raise FormatError(
            f"drm-format '{text}': the modifier must be '0x' and 16 hexadecimal digits, as in "
            "'NV12:0x0100000000000002'"
        )
    modifier = int(value, 16)
    if modifier == LINEAR:
        raise FormatError(
            f"drm-format '{text}': LINEAR is not written out; the linear format is '{name}'"
        )
    if modifier == INVALID:
        advice = f"write '{name}:{_IMPLICIT}'" if implicit else 'leave the format out of the list'
        raise FormatError(
            f"drm-format '{text}': the digits of INVALID (a layout that nobody names) are no "
            f'modifier; {advice}'
        )
    return fourcc, modifier


def _parse_fourcc(name: str, text: str) -> int:
    _refuse_gstreamer_name(name, text)
    if _FOURCC.fullmatch(name):
        return fourcc_code(name)
    padded = f'{name:<4}'
    if len(name) < 4 and _FOURCC.fullmatch(padded):
        raise FormatError(
            f"drm-format '{text}': a fourcc has four characters; write '{padded}' with its "
            'trailing blanks'
        )
    raise FormatError(
        f"drm-format '{text}': '{name}' is no DRM fourcc, which is four capitals and digits"
        + nearest(name, _DRM_NAMES)
    )


def _refuse_gstreamer_name(name: str, text: str) -> None:
    if name in _GSTREAMER_NAMES and name not in _DRM_NAMES:
        raise FormatError(
            f"drm-format '{text}': '{name}' is GStreamer's name; the DRM fourcc is "
            f"'{_GSTREAMER_NAMES[name]}'"
        )
