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
A second implementation of rung 2's wire protocol, written from docs/wire.md.

It shares no code with the package, so a message that both understand is described by the page.
Tables at the end say how a program can break the page's rules; for a producer's, with the rule's
name as client/ reports it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, field
import fcntl
import os
import struct
import time

HELLO, WELCOME, REFUSED, BUFFERS, FRAME, RELEASE, BUFFER_RETIRED = range(1, 8)
CONSTRAINTS = 3
MAGIC = int.from_bytes(b'ZCLK', 'little')
MAX_PACKET = 4096
SERVER = b'spec-server'
DMABUF, MEMFD = 1, 2


def fourcc(name: str) -> int:
    return int.from_bytes(name.ljust(4).encode('ascii'), 'little')


R8, NV12, YUYV, P010 = fourcc('R8'), fourcc('NV12'), fourcc('YUYV'), fourcc('P010')
INVALID = (1 << 56) - 1

HEADER = struct.Struct('<HHI')
HELLO_BODY = struct.Struct('<I HH 10I 32s 40s')  # after the header, before the formats
HELLO_FORMAT = struct.Struct('<IIQ')
WELCOME_BODY = struct.Struct('<HHIIIQ32s')
BUFFERS_BODY = struct.Struct('<Q4IQ2I4BIQ')  # before the planes
PLANE = struct.Struct('<IIQQ')
FRAME_BODY = struct.Struct('<3Q3qQII')
RELEASE_BODY = struct.Struct('<QQII')
RETIRED_BODY = struct.Struct('<Q')


def packet(kind: int, body: bytes, *, length: int | None = None, zero: int = 0) -> bytes:
    """Return a message with its header; *length* and *zero* can make the header wrong."""
    return HEADER.pack(kind, HEADER.size + len(body) if length is None else length, zero) + body


@dataclass(frozen=True)
class Hello:
    min_version: int = 1
    max_version: int = 1
    window: int = 2
    depth: int = 1
    flags: int = 0
    memory: int = 3
    stride_align: int = 1
    offset_align: int = 1
    max_width: int = 0
    max_height: int = 0
    publisher_id: bytes = b''
    name: bytes = b'spec'
    formats: tuple[tuple[int, int], ...] = ()
    options: bytes = b''

    def pack(self) -> bytes:
        *numbers, publisher_id, name, formats, options = astuple(self)
        counts = len(formats), len(options)
        body = HELLO_BODY.pack(MAGIC, *numbers, *counts, publisher_id, name)
        body += b''.join(HELLO_FORMAT.pack(code, 0, modifier) for code, modifier in formats)
        return packet(HELLO, body + options)


def welcome(
    window: int,
    depth: int,
    publisher: bytes = SERVER,
    *,
    version: int = 1,
    reserved: Sequence[int] = (0, 0, 0),
) -> bytes:
    first, *others = reserved
    return packet(WELCOME, WELCOME_BODY.pack(version, first, window, depth, *others, publisher))


def refused(code: int, text: bytes) -> bytes:
    return packet(REFUSED, struct.pack('<I', code) + text)


def release(uid: int, generation: int, *, flags: int = 0) -> bytes:
    return packet(RELEASE, RELEASE_BODY.pack(uid, generation, flags, 0))


Plane = tuple[int, int, int, int]
"""Buffer, stride, offset, size."""


@dataclass
class Image:
    """The fields of BUFFERS; a test changes one field to break one rule."""

    uid: int = 7
    width: int = 64
    height: int = 48
    fourcc: int = NV12
    modifier: int = 0
    kind: int = MEMFD
    colour: tuple[int, int, int] = (1, 1, 1)
    reserved: tuple[int, int, int] = (0, 0, 0)
    planes: list[Plane] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    num_planes: int | None = None
    num_buffers: int | None = None
    # Entries beyond those in use, which should be zero.
    tail_planes: list[Plane] = field(default_factory=list)
    tail_sizes: list[int] = field(default_factory=list)

    @classmethod
    def nv12(
        cls, uid: int = 7, width: int = 64, height: int = 48, *, stride: int = 80, buffers: int = 1
    ) -> Image:
        luma, chroma = stride * height, stride * ((height + 1) // 2)
        planes = [(0, stride, 0, luma), (0, stride, luma, chroma)]
        if buffers == 1:
            return cls(uid, width, height, planes=planes, sizes=[luma + chroma])
        planes[1] = (1, stride, 0, chroma)
        return cls(uid, width, height, planes=planes, sizes=[luma, chroma])

    @classmethod
    def one_plane(
        cls, fourcc: int, row: int, uid: int = 7, width: int = 64, height: int = 48
    ) -> Image:
        stride = row + 16
        size = stride * height
        return cls(uid, width, height, fourcc, planes=[(0, stride, 0, size)], sizes=[size])

    def pack(self) -> bytes:
        planes = [*self.planes, *self.tail_planes]
        sizes = [*self.sizes, *self.tail_sizes]
        num_planes = len(self.planes) if self.num_planes is None else self.num_planes
        num_buffers = len(self.sizes) if self.num_buffers is None else self.num_buffers
        picture = self.uid, self.width, self.height, self.fourcc, num_planes, self.modifier
        others = num_buffers, self.kind, *self.colour, *self.reserved
        body = BUFFERS_BODY.pack(*picture, *others)
        body += b''.join(PLANE.pack(*plane) for plane in (planes + 4 * [(0, 0, 0, 0)])[:4])
        return packet(BUFFERS, body + struct.pack('<4Q', *(sizes + 4 * [0])[:4]))


class Slot:
    def __init__(self, image: Image) -> None:
        self.image = image
        self.fds = []
        for size in image.sizes:
            self.fds.append(os.memfd_create('spec', os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
            os.ftruncate(self.fds[-1], size)
            fcntl.fcntl(self.fds[-1], fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)
        self.fds = []


def frame(
    uid: int,
    generation: int,
    sequence: int,
    *,
    flags: int = 0,
    frame_id: bytes = b'camera',
    published_ns: int | None = None,
) -> bytes:
    now = time.monotonic_ns()
    times = 0, now, now if published_ns is None else published_ns
    body = FRAME_BODY.pack(uid, generation, sequence, *times, 0, 0, flags)
    return packet(FRAME, body + frame_id)


def retired(uid: int) -> bytes:
    return packet(BUFFER_RETIRED, RETIRED_BODY.pack(uid))


TILED = 1 << 56 | 1
LUMA, CHROMA = 80 * 48, 80 * 24
GRANT = welcome(2, 1)[8:]

# Sent in place of WELCOME; in cases whose name ends in 'unknown' or 'welcomes', after it.
FIRST_MESSAGES = {
    'frame_first': ('state', lambda: frame(7, 1, 0)),
    'retired_first': ('state', lambda: retired(7)),
    'no_header': ('header', lambda: bytes(7)),
    'hello_back': ('type', lambda: Hello().pack()),
    'release': ('type', lambda: release(7, 1)),
    'type_0': ('type', lambda: packet(0, bytes(56))),
    'type_9': ('type', lambda: packet(9, bytes(56))),
    'header_zero': ('reserved', lambda: packet(WELCOME, GRANT, zero=1 << 31)),
    'length_too_large': ('length', lambda: packet(WELCOME, GRANT, length=65)),
    'length_too_small': ('length', lambda: packet(WELCOME, GRANT, length=63)),
    'long_welcome': ('length', lambda: packet(WELCOME, GRANT + b'\0')),
    'oversized': ('packet', lambda: packet(REFUSED, bytes(4089))),
    'version_0': ('version', lambda: welcome(2, 1, version=0)),
    'version_2': ('version', lambda: welcome(2, 1, version=2)),
    'window_0': ('granted', lambda: welcome(0, 1)),
    'window_3': ('granted', lambda: welcome(3, 1)),
    'depth_0': ('granted', lambda: welcome(2, 0)),
    'depth_2': ('granted', lambda: welcome(2, 2)),
    'reserved_10': ('reserved', lambda: welcome(2, 1, reserved=(1, 0, 0))),
    'reserved_20': ('reserved', lambda: welcome(2, 1, reserved=(0, 1 << 31, 0))),
    'reserved_24': ('reserved', lambda: welcome(2, 1, reserved=(0, 0, 1 << 63))),
    'nobody': ('publisher', lambda: welcome(2, 1, b'')),
    'id_with_gap': ('publisher', lambda: welcome(2, 1, b'a\0b')),
    'id_not_ascii': ('publisher', lambda: welcome(2, 1, 'ä'.encode())),
    'id_not_printable': ('publisher', lambda: welcome(2, 1, b'a\x7f')),
    'somebody_else': ('publisher', lambda: welcome(2, 1, b'spec-server-2')),
    'two_welcomes': ('state', lambda: welcome(2, 1)),
    'refusal_without_code': ('length', lambda: packet(REFUSED, b'\1\0\0')),
    'refusal_too_long': ('length', lambda: refused(1, bytes(501))),
    'retired_unknown': ('retired', lambda: retired(7)),
    'frame_unknown': ('uid', lambda: frame(7, 1, 0)),
}

# Changed fields in the BUFFERS of Image.nv12(). The consumer asked for linear NV12 of at most
# 72x48, aligned to 8 and 16.
WRONG_BUFFERS = {
    'no_pixels': ('image', {'width': 0}),
    'no_rows': ('image', {'height': 0}),
    'odd_width': ('image', {'width': 63}),
    'odd_height': ('image', {'height': 47}),
    'too_wide': ('image', {'width': 80}),
    'too_high': ('image', {'height': 49}),
    'other_format': ('format', {'fourcc': fourcc('NV21')}),
    'other_modifier': ('format', {'modifier': TILED}),
    'matrix_0': ('colour', {'colour': (0, 1, 1)}),
    'matrix_5': ('colour', {'colour': (5, 1, 1)}),
    'range_0': ('colour', {'colour': (1, 0, 1)}),
    'range_3': ('colour', {'colour': (1, 3, 1)}),
    'transfer_0': ('colour', {'colour': (1, 1, 0)}),
    'transfer_4': ('colour', {'colour': (1, 1, 4)}),
    'reserved_51': ('reserved', {'reserved': (1, 0, 0)}),
    'reserved_52': ('reserved', {'reserved': (0, 1, 0)}),
    'reserved_56': ('reserved', {'reserved': (0, 0, 1 << 63)}),
    'kind_0': ('kind', {'kind': 0}),
    'kind_3': ('kind', {'kind': 3}),
    'called_dmabuf': ('kind', {'kind': DMABUF}),
    'no_planes': ('planes', {'num_planes': 0}),
    'five_planes': ('planes', {'num_planes': 5}),
    'one_plane_of_two': ('planes', {'planes': [(0, 80, 0, LUMA)]}),
    'no_buffers': ('planes', {'num_buffers': 0}),
    'five_buffers': ('planes', {'num_buffers': 5}),
    'more_descriptors': ('descriptors', {'num_buffers': 2}),
    'plane_elsewhere': ('planes', {'planes': [(0, 80, 0, LUMA), (1, 80, 0, CHROMA)]}),
    'unused_plane': ('reserved', {'tail_planes': [(0, 1, 0, 0)]}),
    'unused_size': ('reserved', {'tail_sizes': [1]}),
    'buffer_larger': ('buffer_size', {'sizes': [LUMA + CHROMA + 1]}),
    'buffer_smaller': ('bounds', {'sizes': [LUMA + CHROMA - 1]}),
    'buffer_empty': ('buffer_size', {'sizes': [0]}),
    'buffer_negative': ('buffer_size', {'sizes': [2**64 - 1]}),
    'plane_too_long': ('bounds', {'planes': [(0, 80, 0, LUMA), (0, 80, LUMA, CHROMA + 1)]}),
    'plane_empty': ('bounds', {'planes': [(0, 80, 0, LUMA), (0, 80, LUMA, 0)]}),
    'offset_behind': ('bounds', {'planes': [(0, 80, 0, LUMA), (0, 80, LUMA + CHROMA + 1, 1)]}),
    'end_overflows': ('bounds', {'planes': [(0, 80, 0, LUMA), (0, 80, 2**64 - 80, CHROMA + 80)]}),
    'size_overflows': ('bounds', {'planes': [(0, 80, 0, LUMA), (0, 80, LUMA, 2**64 - LUMA)]}),
    'rows_do_not_fit': ('bounds', {'planes': [(0, 80, 0, LUMA), (0, 128, LUMA, CHROMA)]}),
    'last_row_cut': ('bounds', {'planes': [(0, 80, 0, 80 * 47 + 63), (0, 80, LUMA, CHROMA)]}),
    'stride_short': ('stride', {'planes': [(0, 56, 0, LUMA), (0, 80, LUMA, CHROMA)]}),
    'stride_0': ('stride', {'planes': [(0, 80, 0, LUMA), (0, 0, LUMA, CHROMA)]}),
    'overlap': ('overlap', {'planes': [(0, 80, 0, LUMA), (0, 80, LUMA - 16, CHROMA)]}),
    'same_plane_twice': ('overlap', {'planes': [(0, 80, 0, LUMA), (0, 80, 0, CHROMA)]}),
    'stride_unaligned': ('alignment', {'planes': [(0, 76, 0, LUMA), (0, 80, LUMA, CHROMA)]}),
    'offset_unaligned': (
        'alignment',
        {'planes': [(0, 80, 0, LUMA), (0, 80, LUMA + 8, CHROMA - 8)]},
    ),
}

# Images whose memory matches their fields, sent to a consumer that accepts everything.
WRONG_IMAGES = {
    'buffer_without_plane': (
        'planes',
        Image(planes=[(0, 80, 0, LUMA), (0, 80, LUMA, CHROMA)], sizes=[LUMA + CHROMA, 4096]),
    ),
    'buffers_not_in_order': (
        'planes',
        Image(planes=[(1, 80, 0, LUMA), (0, 80, 0, CHROMA)], sizes=[CHROMA, LUMA]),
    ),
    'offset_tears_samples': (
        'alignment',
        Image(7, 16, 2, P010, planes=[(0, 32, 1, 64), (0, 32, 65, 32)], sizes=[97]),
    ),
    'stride_tears_samples': (
        'alignment',
        Image(7, 16, 2, P010, planes=[(0, 33, 0, 66), (0, 32, 66, 32)], sizes=[98]),
    ),
    'fewer_planes': ('planes', Image(modifier=INVALID, planes=[(0, 64, 0, 6000)], sizes=[6000])),
    'odd_yuyv': ('image', Image.one_plane(YUYV, 128, width=63)),
    'too_wide': ('image', Image.one_plane(R8, 1 << 16, width=1 << 16, height=1)),
    'too_high': ('image', Image.one_plane(R8, 1, width=1, height=1 << 16)),
    'tiled_odd': (
        'image',
        Image(
            width=63, modifier=TILED, planes=[(0, 64, 0, 5000), (0, 64, 5000, 900)], sizes=[6000]
        ),
    ),
}

# Sent to a window of 1, after the BUFFERS of uid 7. Of two frames, the first is valid, and is
# released before the second.
WRONG_FRAMES = {
    'same_generation': ('generation', lambda: [frame(7, 5, 10), frame(7, 5, 11)]),
    'older_generation': ('generation', lambda: [frame(7, 5, 10), frame(7, 4, 11)]),
    'unknown_uid': ('uid', lambda: [frame(8, 1, 0)]),
    'retired_uid': ('uid', lambda: [retired(7), frame(7, 1, 0)]),
    'retired_twice': ('retired', lambda: [retired(7), retired(7)]),
    'flag_1': ('reserved', lambda: [frame(7, 1, 0, flags=2)]),
    'flag_31': ('reserved', lambda: [frame(7, 1, 0, flags=1 << 31)]),
    'fence_without_fd': ('descriptors', lambda: [frame(7, 1, 0, flags=1)]),
    'frame_id_too_long': ('length', lambda: [frame(7, 1, 0, frame_id=256 * b'x')]),
    'frame_id_in_latin_1': ('text', lambda: [frame(7, 1, 0, frame_id=b'\xff')]),
    'short_frame': ('length', lambda: [packet(FRAME, bytes(63))]),
    'long_retired': ('length', lambda: [packet(BUFFER_RETIRED, bytes(9))]),
    'short_buffers': ('length', lambda: [packet(BUFFERS, bytes(183))]),
}

# How a consumer can break the rules: one number in its HELLO, or in the RELEASE of its first
# frame, as offset, size and value.
WRONG_HELLOS = {
    'bad-magic': (8, 4, 0x4B4C435B),
    'wrong-length': (2, 2, 136),
    'header-reserved': (4, 4, 1),
    'unknown-type': (0, 2, 99),
    'options-many': (52, 4, 1025),
    'options-count': (52, 4, 1),
    'unknown-flag': (24, 4, 0x80000000),
    'window-zero': (16, 4, 0),
    'window-large': (16, 4, 65),
    'depth-zero': (20, 4, 0),
    'depth-large': (20, 4, 65),
    'memory-none': (28, 4, 0),
    'memory-unknown': (28, 4, 7),
    'stride-align-zero': (32, 4, 0),
    'offset-align-zero': (36, 4, 0),
    'formats-many': (48, 4, 65),
    'formats-count': (48, 4, 32),
}
WRONG_RELEASES = {
    'release-length': (2, 2, 40),
    'release-header-reserved': (4, 4, 1),
    'release-reserved': (28, 4, 1),
    'release-unknown': (8, 8, 2**64 - 1),
    'release-generation': (16, 8, 2**64 - 1),
    'release-unknown-flag': (24, 4, 2),
    'release-flag-without-fd': (24, 4, 1),
}


def patched(data: bytes, at: int, size: int, value: int) -> bytes:
    return data[:at] + value.to_bytes(size, 'little') + data[slice(at + size, None)]


GOOD_HELLO = Hello(window=2, name=b'bad').pack()
# Packets sent in place of the HELLO, or after it, and their number of descriptors.
INSTEAD = {
    **{name: ([patched(GOOD_HELLO, *patch)], 0) for name, patch in WRONG_HELLOS.items()},
    'garbage': ([bytes((0xA5 + 31 * i) % 256 for i in range(128))], 0),
    'truncated-header': ([GOOD_HELLO[:4]], 0),
    'oversized': ([patched(GOOD_HELLO + bytes(4872), 2, 2, 5000)], 0),
    'fd-with-hello': ([GOOD_HELLO], 1),
    'many-fds': ([GOOD_HELLO], 8),
    'release-before-hello': ([release(1, 1)], 0),
    'second-hello': ([GOOD_HELLO, GOOD_HELLO], 0),
    'welcome-from-consumer': ([GOOD_HELLO, welcome(2, 1)], 0),
    'never-hello': ([], 0),
}
# Packets sent in place of the first frame's RELEASE, and how many pipes the first one carries.
INSTEAD_OF_RELEASE = {
    **{
        name: (lambda uid, generation, patch=patch: [patched(release(uid, generation), *patch)], 0)
        for name, patch in WRONG_RELEASES.items()
    },
    'double-release': (lambda uid, generation: 2 * [release(uid, generation)], 0),
    'release-pipe': (lambda uid, generation: [release(uid, generation, flags=1)], 1),
    'release-fd-without-flag': (lambda uid, generation: [release(uid, generation)], 1),
    'refusal-because-busy': (lambda uid, generation: [refused(4, b'full')], 0),
}
