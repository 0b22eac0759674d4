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
Numbers and structs of the kernel's dma-buf, dma-heap, udmabuf, sync_file and memfd.

They are the same on every 64-bit little-endian Linux; ``test/memory/test_kernel_abi.py`` compares
them with those that a C compiler takes from the headers. Sources:
``include/uapi/linux/{dma-buf,dma-heap,udmabuf,sync_file,fcntl}.h``.
"""

from __future__ import annotations

from contextlib import suppress
import os
import struct

DMA_BUF_IOCTL_SYNC = 0x40086200
DMA_BUF_SET_NAME = 0x40086201
DMA_BUF_IOCTL_EXPORT_SYNC_FILE = 0xC0086202
DMA_BUF_IOCTL_IMPORT_SYNC_FILE = 0x40086203
DMA_BUF_SYNC_END = 4
DMA_BUF_NAME_LEN = 32
DMA_BUF_SYNC = struct.Struct('<Q')
DMA_BUF_SYNC_FILE = struct.Struct('<Ii')
"""For ``dma_buf_export_sync_file`` and ``dma_buf_import_sync_file``: flags, fd."""

DMA_HEAP_IOCTL_ALLOC = 0xC0184800
DMA_HEAP_ALLOCATION = struct.Struct('<QIIQ')
UDMABUF_CREATE = 0x40187542
UDMABUF_FLAGS_CLOEXEC = 1
UDMABUF_CREATION = struct.Struct('<IIQQ')

SYNC_IOC_MERGE = 0xC0303E03
SYNC_IOC_FILE_INFO = 0xC0383E04
SYNC_MERGE_DATA = struct.Struct('<32siiII')
SYNC_FILE_INFO = struct.Struct('<32siIIIQ')
SYNC_NAME_LEN = 32

# Python's module fcntl doesn't have all of these: Python 3.11 lacks F_SEAL_FUTURE_WRITE.
F_ADD_SEALS = 1033
F_GET_SEALS = 1034
F_SEAL_SEAL = 0x0001
F_SEAL_SHRINK = 0x0002
F_SEAL_GROW = 0x0004
F_SEAL_WRITE = 0x0008
F_SEAL_FUTURE_WRITE = 0x0010


def fdinfo(fd: int) -> dict[str, str]:
    """
    Return the lines of ``/proc/self/fdinfo/FD`` as a dict from key to value; empty without /proc.

    One line is the name that a program gave the buffer. The name may have any bytes, so invalid
    UTF-8 is replaced. A name with a line feed may look like further lines. As the name comes after
    the kernel's own lines, only the first line of each key counts.
    """
    entries: dict[str, str] = {}
    with (
        suppress(OSError),
        open(f'/proc/self/fdinfo/{fd}', encoding='utf-8', errors='replace', newline='\n') as info,
    ):
        for line in info:
            key, colon, value = line.rstrip('\n').partition(':\t')
            if colon:
                entries.setdefault(key, value)
    return entries


def describe_fd(fd: int) -> str:
    """Return the target of a descriptor's link in /proc: ``socket:[123]``, or a path."""
    try:
        return os.readlink(f'/proc/self/fd/{fd}')
    except OSError as error:
        return f'unknown ({error.strerror})'


def c_name(name: str, capacity: int, what: str) -> bytes:
    """
    Return *name* as a NUL-terminated C string.

    :param capacity: the largest possible size in bytes, including the NUL.
    :param what: what is named, for the message.
    :raises ValueError: the name is too long, or has unprintable characters, which could break a
        line of the kernel's listings.
    """
    encoded = name.encode()
    if len(encoded) >= capacity or not name.isprintable():
        raise ValueError(
            f'{what} {name!r} must be printable and at most {capacity - 1} bytes of UTF-8 '
            f'({len(encoded)} given)'
        )
    return encoded + b'\0'
