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
How a producer can break the rules of docs/wire.md.

Each case has the rule's name as client/ reports it, and the messages or changed fields.
"""

from __future__ import annotations

import dataclasses

import wire_spec as spec
from wire_spec import Image

TILED = 1 << 56 | 1
LUMA, CHROMA = 80 * 48, 80 * 24
WELCOME = spec.welcome(2, 1)[8:]

# Sent in place of WELCOME; in cases whose name ends in 'unknown' or 'welcomes', after it.
FIRST_MESSAGES = {
    'frame_first': ('state', lambda: spec.frame(7, 1, 0)),
    'retired_first': ('state', lambda: spec.retired(7)),
    'no_header': ('header', lambda: bytes(7)),
    'hello_back': ('type', lambda: spec.Hello().pack()),
    'release': ('type', lambda: spec.release(7, 1)),
    'type_0': ('type', lambda: spec.packet(0, bytes(56))),
    'type_9': ('type', lambda: spec.packet(9, bytes(56))),
    'header_zero': ('reserved', lambda: spec.packet(spec.WELCOME, WELCOME, zero=1 << 31)),
    'length_too_large': ('length', lambda: spec.packet(spec.WELCOME, WELCOME, length=65)),
    'length_too_small': ('length', lambda: spec.packet(spec.WELCOME, WELCOME, length=63)),
    'long_welcome': ('length', lambda: spec.packet(spec.WELCOME, WELCOME + b'\0')),
    'oversized': ('packet', lambda: spec.packet(spec.REFUSED, bytes(4089))),
    'version_0': ('version', lambda: spec.welcome(2, 1, version=0)),
    'version_2': ('version', lambda: spec.welcome(2, 1, version=2)),
    'window_0': ('granted', lambda: spec.welcome(0, 1)),
    'window_3': ('granted', lambda: spec.welcome(3, 1)),
    'depth_0': ('granted', lambda: spec.welcome(2, 0)),
    'depth_2': ('granted', lambda: spec.welcome(2, 2)),
    'reserved_10': ('reserved', lambda: spec.welcome(2, 1, reserved=(1, 0, 0))),
    'reserved_20': ('reserved', lambda: spec.welcome(2, 1, reserved=(0, 1 << 31, 0))),
    'reserved_24': ('reserved', lambda: spec.welcome(2, 1, reserved=(0, 0, 1 << 63))),
    'nobody': ('publisher', lambda: spec.welcome(2, 1, b'')),
    'id_with_gap': ('publisher', lambda: spec.welcome(2, 1, b'a\0b')),
    'id_not_ascii': ('publisher', lambda: spec.welcome(2, 1, 'ä'.encode())),
    'id_not_printable': ('publisher', lambda: spec.welcome(2, 1, b'a\x7f')),
    'somebody_else': ('publisher', lambda: spec.welcome(2, 1, b'spec-server-2')),
    'two_welcomes': ('state', lambda: spec.welcome(2, 1)),
    'refusal_without_code': ('length', lambda: spec.packet(spec.REFUSED, b'\1\0\0')),
    'refusal_too_long': ('length', lambda: spec.refused(1, bytes(501))),
    'retired_unknown': ('retired', lambda: spec.retired(7)),
    'frame_unknown': ('uid', lambda: spec.frame(7, 1, 0)),
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
    'other_format': ('format', {'fourcc': spec.fourcc('NV21')}),
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
    'called_dmabuf': ('kind', {'kind': spec.DMABUF}),
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
        Image(7, 16, 2, spec.P010, planes=[(0, 32, 1, 64), (0, 32, 65, 32)], sizes=[97]),
    ),
    'stride_tears_samples': (
        'alignment',
        Image(7, 16, 2, spec.P010, planes=[(0, 33, 0, 66), (0, 32, 66, 32)], sizes=[98]),
    ),
    'fewer_planes': (
        'planes',
        Image(modifier=spec.INVALID, planes=[(0, 64, 0, 6000)], sizes=[6000]),
    ),
    'odd_yuyv': ('image', Image.one_plane(spec.YUYV, 128, width=63)),
    'too_wide': ('image', Image.one_plane(spec.R8, 1 << 16, width=1 << 16, height=1)),
    'too_high': ('image', Image.one_plane(spec.R8, 1, width=1, height=1 << 16)),
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
    'same_generation': ('generation', lambda: [spec.frame(7, 5, 10), spec.frame(7, 5, 11)]),
    'older_generation': ('generation', lambda: [spec.frame(7, 5, 10), spec.frame(7, 4, 11)]),
    'unknown_uid': ('uid', lambda: [spec.frame(8, 1, 0)]),
    'retired_uid': ('uid', lambda: [spec.retired(7), spec.frame(7, 1, 0)]),
    'retired_twice': ('retired', lambda: [spec.retired(7), spec.retired(7)]),
    'flag_1': ('reserved', lambda: [spec.frame(7, 1, 0, flags=2)]),
    'flag_31': ('reserved', lambda: [spec.frame(7, 1, 0, flags=1 << 31)]),
    'fence_without_fd': ('descriptors', lambda: [spec.frame(7, 1, 0, flags=1)]),
    'frame_id_too_long': ('length', lambda: [spec.frame(7, 1, 0, frame_id=256 * b'x')]),
    'frame_id_in_latin_1': ('text', lambda: [spec.frame(7, 1, 0, frame_id=b'\xff')]),
    'short_frame': ('length', lambda: [spec.packet(spec.FRAME, bytes(63))]),
    'long_retired': ('length', lambda: [spec.packet(spec.BUFFER_RETIRED, bytes(9))]),
    'short_buffers': ('length', lambda: [spec.packet(spec.BUFFERS, bytes(183))]),
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


def patched(packet: bytes, at: int, size: int, value: int) -> bytes:
    """Return *packet* with another number at offset *at*."""
    return packet[:at] + value.to_bytes(size, 'little') + packet[slice(at + size, None)]


_HELLO = spec.Hello(window=2, name=b'bad').pack()
# Packets sent in place of the HELLO, or after it, and their number of descriptors.
INSTEAD = {
    **{name: ([patched(_HELLO, *patch)], 0) for name, patch in WRONG_HELLOS.items()},
    'garbage': ([bytes((0xA5 + 31 * i) % 256 for i in range(128))], 0),
    'truncated-header': ([_HELLO[:4]], 0),
    'oversized': ([patched(_HELLO + bytes(4872), 2, 2, 5000)], 0),
    'fd-with-hello': ([_HELLO], 1),
    'many-fds': ([_HELLO], 8),
    'release-before-hello': ([spec.release(1, 1)], 0),
    'second-hello': ([_HELLO, _HELLO], 0),
    'welcome-from-consumer': ([_HELLO, spec.welcome(2, 1)], 0),
    'never-hello': ([], 0),
}
# Packets sent in place of the first frame's RELEASE, and how many pipes the first one carries.
INSTEAD_OF_RELEASE = {
    **{
        name: (
            lambda uid, generation, patch=patch: [patched(spec.release(uid, generation), *patch)],
            0,
        )
        for name, patch in WRONG_RELEASES.items()
    },
    'double-release': (lambda uid, generation: 2 * [spec.release(uid, generation)], 0),
    'release-pipe': (lambda uid, generation: [spec.release(uid, generation, flags=1)], 1),
    'release-fd-without-flag': (lambda uid, generation: [spec.release(uid, generation)], 1),
}


def lie(image: Image, **changes: object) -> Image:
    """Return *image* with other fields; its memory still fits the original fields."""
    return dataclasses.replace(image, **changes)  # type: ignore[arg-type]
