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
Write messages as bytes: CDR in the wire format of XCDR1, little-endian.

Publishing bytes costs a quarter of publishing a message object, which costs an object for each of
its fields, and then a pass over all of them. Alignment is relative to the end of the four bytes of
encapsulation. Before the bytes are used, it is tested whether this middleware and this version of
the message's package read them correctly, see
:func:`~zc_perception.link.rclpy_compat.understood`.

Source: OMG DDS-XTypes 1.3, 7.4.1 (XCDR1) and DDSI-RTPS 2.5, 10.2 (encapsulation).
"""

from __future__ import annotations

import struct

ENCAPSULATION = b'\0\1\0\0'
STAMP = struct.Struct('<iI')
COUNT = struct.Struct('<I')


def cdr_string(text: str) -> bytes:
    """
    Return a string that begins at a multiple of 4.

    What follows may have to be aligned.
    """
    encoded = text.encode(errors='replace') + b'\0'
    return COUNT.pack(len(encoded)) + encoded
