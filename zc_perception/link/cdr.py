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
