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
Kernel interfaces for the checks: buffers, SYNC, fences, bufinfo, trace, modules.

Written from the kernel's UAPI headers with the standard library alone, independent of the tested
package: so they can confirm what ``zc_verify`` finds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
import ctypes
from dataclasses import dataclass, field
import fcntl
import mmap
import os
from pathlib import Path
import re
import select
import struct
from typing import Any

TRACING = Path('/sys/kernel/tracing')
DEBUGFS = Path('/sys/kernel/debug')
METIS_DEBUGFS = DEBUGFS / 'metis'
METIS_PARAMETERS = Path('/sys/module/metis_virtual/parameters')

_HEAP_ALLOC = 0xC0184800
_UDMABUF_CREATE = 0x40187542
_SHADOW_ALLOC = 0xC0105560
_DMA_BUF_SYNC = 0x40086200
_DMA_BUF_EXPORT_SYNC_FILE = 0xC0086202
_SYNC_FILE_INFO = 0xC0383E04
_F_ADD_SEALS, _F_SEAL_SHRINK = 1033, 2

SYNC_READ, SYNC_WRITE, SYNC_END = 1, 2, 4

#: System calls without a Python function, or whose numbers ``/proc/PID/syscall`` shows. The C
#: library's poll() is ppoll there on arm64.
SYSCALLS = {
    'x86_64': {'poll': 7, 'exit': 60, 'delete_module': 176, 'userfaultfd': 323},
    'aarch64': {'poll': 73, 'exit': 93, 'delete_module': 106, 'userfaultfd': 282},
}[os.uname().machine]

libc = ctypes.CDLL(None, use_errno=True)


class Closing:
    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()  # type: ignore[attr-defined]


class Buffer(Closing):
    """A dma-buf: its fd, mapped on first use; closed at the end of a ``with``."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.size = os.lseek(fd, 0, os.SEEK_END)
        self.inode = os.fstat(fd).st_ino
        self._memory: mmap.mmap | None = None

    def close(self) -> None:
        if self._memory is not None:
            self._memory.close()
            self._memory = None
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def memory(self) -> mmap.mmap:
        if self._memory is None:
            self._memory = mmap.mmap(self.fd, self.size)
        return self._memory

    def sync(self, flags: int) -> None:
        fcntl.ioctl(self.fd, _DMA_BUF_SYNC, struct.pack('Q', flags))

    def write(self, data: bytes) -> None:
        """Write as a program should: between SYNC START and END."""
        self.sync(SYNC_WRITE)
        self.memory()[: len(data)] = data
        self.sync(SYNC_WRITE | SYNC_END)

    def read(self, length: int) -> bytes:
        """Read as a program should: between SYNC START and END."""
        self.sync(SYNC_READ)
        data = bytes(self.memory()[:length])
        self.sync(SYNC_READ | SYNC_END)
        return data

    def reservation_fence(self, flags: int) -> int:
        """Return a sync_file with the buffer's fences (DMA_BUF_IOCTL_EXPORT_SYNC_FILE)."""
        argument = bytearray(struct.pack('Ii', flags, -1))
        fcntl.ioctl(self.fd, _DMA_BUF_EXPORT_SYNC_FILE, argument)
        return int(struct.unpack('Ii', argument)[1])


class NotHere(Exception):
    """This kernel lacks what a check needs; where a kernel must have it, the check fails."""


#: The kernel's exporter name by heap.
HEAP_EXPORTERS = {'dma_heap/system': 'system', 'udmabuf': 'udmabuf'}


def heaps_there() -> list[str]:
    """Return the heaps of this kernel, the first choice first; arm64's lacks dma-heaps."""
    return [name for name in HEAP_EXPORTERS if os.path.exists(f'/dev/{name}')]


def any_heap() -> str:
    return heaps_there()[0]


def heap_buffer(size: int, access: int = os.O_RDWR) -> Buffer:
    """Allocate from /dev/dma_heap/system, or from udmabuf if any heap will do."""
    if any_heap() == 'udmabuf':
        if access != os.O_RDWR:
            raise NotHere('this kernel has no dma_heap/system')
        return udmabuf_buffer(size)
    argument = bytearray(struct.pack('QIIQ', size, 0, access | os.O_CLOEXEC, 0))
    with open('/dev/dma_heap/system', 'rb+', buffering=0) as heap:
        fcntl.ioctl(heap, _HEAP_ALLOC, argument)
    return Buffer(struct.unpack_from('QI', argument)[1])


def udmabuf_buffer(size: int) -> Buffer:
    size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = os.memfd_create('frame', os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    with open(memory, 'rb+', buffering=0), open('/dev/udmabuf', 'rb+', buffering=0) as device:
        os.ftruncate(memory, size)
        fcntl.fcntl(memory, _F_ADD_SEALS, _F_SEAL_SHRINK)
        argument = bytearray(struct.pack('IIQQ', memory, 1, 0, size))
        return Buffer(fcntl.ioctl(device, _UDMABUF_CREATE, argument))


def shadow_buffer(size: int) -> Buffer:
    """Allocate from the exporter whose buffers are stale without SYNC."""
    argument = bytearray(struct.pack('QIi', size, os.O_RDWR | os.O_CLOEXEC, -1))
    with open('/dev/axl_shadow', 'rb+', buffering=0) as device:
        fcntl.ioctl(device, _SHADOW_ALLOC, argument)
    return Buffer(struct.unpack('QIi', argument)[2])


@dataclass(frozen=True)
class FenceInfo:
    """SYNC_IOC_FILE_INFO of one fence; `status`: 0 pending, 1 good or negative errno."""

    status: int
    driver: str
    timeline: str
    timestamp_ns: int


def fence_info(fd: int) -> FenceInfo:
    fences = (ctypes.c_ubyte * 80)()
    argument = bytearray(struct.pack('32siIIIQ', b'', 0, 0, 1, 0, ctypes.addressof(fences)))
    fcntl.ioctl(fd, _SYNC_FILE_INFO, argument)
    status = struct.unpack('32siIIIQ', argument)[1]
    timeline, driver, _, _, timestamp = struct.unpack('32s32siIQ', bytes(fences))
    names = [text.split(b'\0')[0].decode() for text in (driver, timeline)]
    return FenceInfo(status, *names, timestamp)


def merge_fences(first: int, second: int) -> int:
    """Return a sync_file of both (SYNC_IOC_MERGE)."""
    argument = bytearray(struct.pack('32siiII', b'both', second, -1, 0, 0))
    fcntl.ioctl(first, 0xC0303E03, argument)
    return int(struct.unpack('32siiII', argument)[2])


def wait_fence(fd: int) -> FenceInfo:
    """Poll until the fence is readable and return its information."""
    if not is_readable(fd, 10000):
        raise AssertionError(f'the fence did not signal within 10 s: {fence_info(fd)}')
    return fence_info(fd)


def is_readable(fd: int, timeout_ms: int = 0) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(timeout_ms))


@dataclass
class BufInfo:
    size: int
    exporter: str
    attached: list[str] = field(default_factory=list)


_OBJECT = re.compile(r'^(\d{8,})\t[0-9a-f]{8}\t[0-9a-f]{8}\t[0-9a-f]{8}\t(\S+)\t(\d{8,})\t')


def bufinfo() -> dict[int, BufInfo]:
    """Return all dma-bufs by inode; sizes and inodes in the file are decimal."""
    found: dict[int, BufInfo] = {}
    current = BufInfo(0, '')
    attached = False
    for line in (DEBUGFS / 'dma_buf/bufinfo').read_text(errors='replace').splitlines():
        match = _OBJECT.match(line)
        if match:
            current = found[int(match[3])] = BufInfo(int(match[1]), match[2])
        elif line.strip() == 'Attached Devices:':
            attached = True
            continue
        elif attached and re.match(r'^\t\S', line):
            current.attached.append(line.strip())
            continue
        attached = False
    return found


def live() -> dict[str, int]:
    """Return the counts of objects that the virtual device still holds."""
    return {
        name: int((METIS_DEBUGFS / name).read_text())
        for name in ('attachments', 'imports', 'jobs', 'fences')
    }


@contextmanager
def parameters(**values: int) -> Iterator[None]:
    """Set parameters of the virtual device inside the block."""
    before = {name: (METIS_PARAMETERS / name).read_text() for name in values}
    try:
        for name, value in values.items():
            (METIS_PARAMETERS / name).write_text(str(value))
        yield
    finally:
        for name, text in before.items():
            (METIS_PARAMETERS / name).write_text(text)


_UFFD_API, _UFFD_REGISTER, _UFFD_COPY = 0xC018AA3F, 0xC020AA00, 0xC028AA03


class LatePage(Closing):
    """A page that is absent until `fill` (userfaultfd(2)): a copy by the kernel waits for it."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)
        self._anchor = ctypes.c_char.from_buffer(self._memory)
        self.address = ctypes.addressof(self._anchor)
        self._fd = libc.syscall(SYSCALLS['userfaultfd'], os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), 'userfaultfd')
        fcntl.ioctl(self._fd, _UFFD_API, bytearray(struct.pack('QQQ', 0xAA, 0, 0)))
        fcntl.ioctl(
            self._fd,
            _UFFD_REGISTER,
            bytearray(struct.pack('QQQQ', self.address, mmap.PAGESIZE, 1, 0)),
        )

    def await_fault(self) -> None:
        if not is_readable(self._fd, 10000):
            raise AssertionError('nobody touched the page')
        os.read(self._fd, 32)

    def fill(self, data: bytes) -> None:
        content = ctypes.create_string_buffer(data, mmap.PAGESIZE)
        fcntl.ioctl(
            self._fd,
            _UFFD_COPY,
            bytearray(
                struct.pack('QQQQq', self.address, ctypes.addressof(content), mmap.PAGESIZE, 0, 0)
            ),
        )

    def close(self) -> None:
        """Close; a thread that still waits gets zeros."""
        os.close(self._fd)
        del self._anchor
        self._memory.close()


_PCI = Path('/sys/bus/pci')
#: The card's name in the kernel's list of a buffer's attachments.
NPU = '0000:01:00.0'
_DRIVER = _PCI / 'drivers' / 'metis'


@contextmanager
def _writing(begin: Path, end: Path, text: str) -> Iterator[None]:
    begin.write_text(text)
    try:
        yield
    finally:
        end.write_text(text)


def pulled() -> AbstractContextManager[None]:
    """Remove the card from its slot inside the block, as the kernel sees it."""
    return _writing(_PCI / 'devices' / NPU / 'remove', _PCI / 'rescan', '1')


def unbound() -> AbstractContextManager[None]:
    """Unbind the card from its driver inside the block."""
    return _writing(_DRIVER / 'unbind', _DRIVER / 'bind', NPU)


@contextmanager
def identity() -> Iterator[None]:
    """Let the IOMMU pass the card's addresses through inside the block."""
    kind = _PCI / 'devices' / NPU / 'iommu_group' / 'type'
    with unbound():
        kind.write_text('identity')
    try:
        yield
    finally:
        with unbound():
            kind.write_text('auto')


def write_control(path: Path, text: str, *, append: bool = False) -> None:
    """Write a tracefs control: ``open()`` with 'w' would clear the buffer, with 'a' fail."""
    fd = os.open(path, os.O_WRONLY | (os.O_APPEND if append else 0))
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def use_one_cpu() -> None:
    """
    Switch off all processors but the first, until the guest ends.

    Call it before installing and removing probes under load: that rewrites the running kernel's
    code, and QEMU's other processors may still hit a removed breakpoint ("Oops: int3"). Real ones
    can't.
    """
    for switch in sorted(Path('/sys/devices/system/cpu').glob('cpu[1-9]*/online')):
        switch.write_text('0')


def trace_text() -> str:
    return (TRACING / 'trace').read_text(errors='replace')


def trace_events(name: str, trace: str | None = None) -> list[dict[str, str]]:
    """Return the fields of these events in *trace*, by default the kernel's own."""
    lines = (trace_text() if trace is None else trace).splitlines()
    texts = [line.partition(f': {name}: ')[2] for line in lines if f': {name}: ' in line]
    return [dict(pair.split('=', 1) for pair in text.split()) for text in texts]


_EVENTS = (
    'axl/axl_dmabuf_import', 'axl/axl_dmabuf_release', 'axl/axl_submit', 'axl/axl_complete',
    'dma_fence/dma_fence_signaled',
)  # fmt: skip


@contextmanager
def recording() -> Iterator[None]:
    """
    Record the axl events and the signals of fences, from an empty buffer.

    The events stay enabled, and task names are not recorded: each switch of an event rewrites the
    kernel's code, which QEMU's other cores may be running. A core may then hit a removed
    breakpoint, and the kernel oopses (int3 in __schedule).
    """
    write_control(TRACING / 'tracing_on', '0')
    (TRACING / 'trace').write_text('')
    if (TRACING / 'trace_clock').read_text().find('[mono]') < 0:
        write_control(TRACING / 'trace_clock', 'mono')
        write_control(TRACING / 'buffer_size_kb', '16384')
        write_control(TRACING / 'options/record-cmd', '0')
    for event in _EVENTS:
        if (TRACING / 'events' / event / 'enable').read_text().strip() != '1':
            write_control(TRACING / 'events' / event / 'enable', '1')
    write_control(TRACING / 'tracing_on', '1')
    try:
        yield
    finally:
        write_control(TRACING / 'tracing_on', '0')
