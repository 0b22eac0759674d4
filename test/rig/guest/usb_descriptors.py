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
What the rig's USB webcam says about itself.

Its descriptors, and the settings that it and ``uvcvideo`` agree on before a stream.

Sources: USB 2.0 chapter 9 (device, configuration, interface, endpoint); *USB Device Class
Definition for Video Devices* 1.1, sections 3 (descriptors) and 4.3.1.1 (Video Probe and Commit
Controls), and its payload documents *Uncompressed* and *Motion-JPEG*. The kernel's
``linux/usb/video.h`` has the same fields.
"""

from __future__ import annotations

from dataclasses import dataclass
import struct

SERIAL = 'ZC-0001'
#: String descriptors by their number; 0 lists the languages (US English).
STRINGS = {1: 'ZC tests', 2: 'ZC webcam', 3: SERIAL}
CONTROL_INTERFACE, STREAMING_INTERFACE = 0, 1
_CAMERA_TERMINAL = 1
ENDPOINT = 0x81
#: Of each payload: length, flags, time of the picture, source clock, number of the USB frame.
PAYLOAD_HEADER = 12
CLOCK_HZ = 1_000_000
_IN_100_NS = 10_000_000
_UVC_1_1 = 0x0110
_PROBE = '<HBBIHHHHHIIIBBBB'
PROBE_BYTES = struct.calcsize(_PROBE)


@dataclass(frozen=True)
class Picture:
    """One entry of a format's list: a size, and its frames per second, the quickest first."""

    width: int
    height: int
    rates: tuple[int, ...]

    @property
    def most_bytes(self) -> int:
        """As YUYV; no JPEG of the tests is larger."""
        return self.width * self.height * 2

    @property
    def intervals(self) -> tuple[int, ...]:
        """In units of 100 ns."""
        return tuple(_IN_100_NS // rate for rate in self.rates)


#  As many webcams: large YUYV pictures only slowly, JPEGs at full rate. The number of a format or
#  a picture is its place, from 1. GadgetFS answers with 256 bytes at most, so that there is no
#  room for one more picture.
YUYV = (Picture(320, 240, (30, 15)), Picture(640, 480, (5,)))
MJPG = (Picture(640, 480, (30,)),)
FORMATS = (YUYV, MJPG)
_YUY2_GUID = b'YUY2' + bytes.fromhex('00001000800000aa00389b71')


def device() -> bytes:
    """Return the device descriptor: a composite device with interface associations."""
    return struct.pack(
        '<BBHBBBBHHHBBBB', 18, 1, 0x0200, 0xEF, 2, 1, 64, 0x1D6B, 0x0104, 0x0100, 1, 2, 3, 1
    )


def string(number: int) -> bytes | None:
    """Return a string descriptor; none of that number."""
    if number == 0:
        return struct.pack('<BBH', 4, 3, 0x0409)
    if number not in STRINGS:
        return None
    text = STRINGS[number].encode('utf-16-le')
    return bytes([2 + len(text), 3]) + text


def configuration(packet: int) -> bytes:
    """Return the configuration at a speed whose bulk packets have this many bytes."""
    interfaces = _association() + _control_interface() + _streaming_interface(packet)
    return struct.pack('<BBHBBBBB', 9, 2, 9 + len(interfaces), 2, 1, 0, 0x80, 250) + interfaces


def endpoint(packet: int) -> bytes:
    """Return the streaming endpoint: bulk, in."""
    return struct.pack('<BBBBHB', 7, 5, ENDPOINT, 2, packet, 0)


def _association() -> bytes:
    return struct.pack('<8B', 8, 0x0B, CONTROL_INTERFACE, 2, 0x0E, 3, 0, 0)


def _control_interface() -> bytes:
    camera = struct.pack('<BBBBHBBHHHB3x', 18, 0x24, 2, _CAMERA_TERMINAL, 0x0201, 0, 0, 0, 0, 0, 3)
    output = struct.pack('<BBBBHBBB', 9, 0x24, 3, 3, 0x0101, 0, _CAMERA_TERMINAL, 0)
    units = camera + output
    header = struct.pack(
        '<BBBHHIBB', 13, 0x24, 1, _UVC_1_1, 13 + len(units), CLOCK_HZ, 1, STREAMING_INTERFACE
    )
    return struct.pack('<9B', 9, 4, CONTROL_INTERFACE, 0, 0, 0x0E, 1, 0, 0) + header + units


def _streaming_interface(packet: int) -> bytes:
    # Colours as sRGB, its transfer, and the matrix of BT.601.
    colours = struct.pack('<6B', 6, 0x24, 0x0D, 1, 7, 4)
    yuyv = (
        struct.pack('<BBBBB16s6B', 27, 0x24, 4, 1, len(YUYV), _YUY2_GUID, 16, 1, 0, 0, 0, 0)
        + _pictures(5, YUYV)
        + colours
    )
    mjpg = (
        struct.pack('<11B', 11, 0x24, 6, 2, len(MJPG), 0, 1, 0, 0, 0, 0)
        + _pictures(7, MJPG)
        + colours
    )
    formats = yuyv + mjpg
    header = struct.pack(
        '<BBBBH9B', 15, 0x24, 1, len(FORMATS), 15 + len(formats), ENDPOINT, 0, 3, 0, 0, 0, 1, 0, 0
    )
    return (
        struct.pack('<9B', 9, 4, STREAMING_INTERFACE, 0, 1, 0x0E, 2, 0, 0)
        + header
        + formats
        + endpoint(packet)
    )


def _pictures(subtype: int, pictures: tuple[Picture, ...]) -> bytes:
    found = b''
    for number, picture in enumerate(pictures, 1):
        bits = [8 * picture.most_bytes * rate for rate in (picture.rates[-1], picture.rates[0])]
        fixed = (
            picture.width,
            picture.height,
            *bits,
            picture.most_bytes,
            picture.intervals[0],
            len(picture.intervals),
        )
        times = struct.pack(f'<{len(picture.intervals)}I', *picture.intervals)
        found += (
            struct.pack('<BBBBBHHIIIIB', 26 + len(times), 0x24, subtype, number, 0, *fixed) + times
        )
    return found


@dataclass(frozen=True)
class Settings:
    """
    The settings of a stream.

    Which format and picture, by their numbers, and the time between two frames in units of 100 ns.
    """

    format: int = 1  # noqa: A003
    picture: int = 1
    interval: int = 0

    @classmethod
    def wanted(cls, data: bytes) -> Settings:
        """Return the settings that come nearest to what the host asks for."""
        _, form, number, interval, *_ = struct.unpack_from('<HBBI', data)
        form = min(max(form, 1), len(FORMATS))
        number = min(max(number, 1), len(FORMATS[form - 1]))
        offered = FORMATS[form - 1][number - 1].intervals
        return cls(form, number, min(offered, key=lambda one: abs(one - interval)))

    @property
    def size(self) -> Picture:
        return FORMATS[self.format - 1][self.picture - 1]

    @property
    def compressed(self) -> bool:
        """Whether frames are JPEGs."""
        return FORMATS[self.format - 1] is MJPG

    def packed(self) -> bytes:
        """As the probe and commit controls have them. A payload is a whole frame."""
        most = self.size.most_bytes
        interval = self.interval or self.size.intervals[0]
        return struct.pack(
            _PROBE,
            1,
            self.format,
            self.picture,
            interval,
            0,
            0,
            0,
            0,
            0,
            most,
            PAYLOAD_HEADER + most,
            CLOCK_HZ,
            3,
            1,
            1,
            1,
        )
