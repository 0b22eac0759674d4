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
Ask the driver of the Voyager SDK (metis-dkms) whether it can import a buffer.

The probe attaches and detaches; nothing runs on the card. That driver attaches one dma-buf to each
open file: ``'U'`` 5 (``_IOWR``, argument: pointer to an int with the descriptor) attaches and maps
it in both directions, ``'U'`` 6 takes it back, and so does closing the file. Read in the published
source of driver 1.6.2 (``axl-aipu-ioctl.c``):

- It doesn't check whether anything is attached before it detaches, so the probe detaches only
  after an attach that succeeded.
- An attach that fails keeps a reference to the buffer for ever: probe with a small one. A page is
  enough to know whether the card can use a heap.
- Success means that the kernel attached the buffer to the card and mapped its pages, not that
  these are one range of addresses.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from enum import Enum
import errno
import os

from zc_perception.machine.host_tree import HOST, HostTree
from zc_perception.memory.dmabuf import DmaBuf
from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.npu.axl.abi import ioc, IOCTL_TYPE
from zc_perception.npu.axl.device import call_driver, ENOTSUPP, errno_name, open_error
from zc_perception.npu.metis_card import found_cards

_INT = ctypes.sizeof(ctypes.c_int)
DMA_ATTACH = ioc(3, IOCTL_TYPE, 5, _INT)
DMA_DETACH = ioc(3, IOCTL_TYPE, 6, _INT)


class Importable(Enum):
    """
    The answer.

    ``UNKNOWN``: the driver failed before it tried.
    """

    YES = 'yes'
    NO = 'no'
    UNKNOWN = 'unknown'


@dataclass(frozen=True)
class AttachProbe:
    """
    What the driver said about a buffer.

    :param number: the errno; 0 with :attr:`Importable.YES`.
    :param text: one sentence with what to do about it.
    """

    answer: Importable
    number: int
    text: str


_ADDRESSES = 'enable the IOMMU for the card, or use a contiguous heap such as dma_heap/linux,cma'
_GONE = 'the card is gone or its link is down; check lspci -d 1f9d: and dmesg'
_MEANINGS: dict[int, tuple[Importable, str]] = {
    errno.ENOTTY: (
        Importable.UNKNOWN,
        (
            "the driver has no attach ioctl ('U' 5), so it is not the shipped metis-dkms, or too "
            'old; see modinfo metis'
        ),
    ),
    errno.EINVAL: (
        Importable.NO,
        (
            'it is no dma-buf (a memfd is not one), or its exporter refuses the card; use a '
            'dma-heap or udmabuf'
        ),
    ),
    errno.EBADF: (Importable.NO, 'its descriptor is closed; probe while the buffer is open'),
    errno.ENOMEM: (
        Importable.NO,
        f'no memory or no device addresses for the mapping; {_ADDRESSES}',
    ),
    errno.EIO: (Importable.NO, f"the pages can't be mapped for the card; {_ADDRESSES}"),
    errno.EOPNOTSUPP: (Importable.NO, f"the exporter doesn't let this card attach; {_ADDRESSES}"),
    ENOTSUPP: (Importable.NO, f"the exporter doesn't let this card attach; {_ADDRESSES}"),
    errno.EACCES: (
        Importable.NO,
        'the exporter or a security module denies it; see dmesg | grep -i denied',
    ),
    errno.EPERM: (
        Importable.NO,
        'the exporter or a security module denies it; see dmesg | grep -i denied',
    ),
    errno.EBUSY: (
        Importable.NO,
        'the exporter has the buffer for somebody else; probe with a buffer that nothing uses',
    ),
    errno.EFAULT: (
        Importable.UNKNOWN,
        "the driver couldn't read its argument, so its 'U' 5 is another ioctl; see modinfo metis",
    ),
    errno.ENODEV: (Importable.UNKNOWN, _GONE),
    errno.ENXIO: (Importable.UNKNOWN, _GONE),
}


def _call(fd: OwnedFd, request: int, descriptor: int) -> int:
    """Call the ioctl; return the errno, 0 for success."""
    error = call_driver(fd, request, ctypes.c_int(descriptor))
    return 0 if error is None else error.errno or errno.EIO


def probe_shipped_attach(path: str, buffer: DmaBuf, *, tree: HostTree = HOST) -> AttachProbe:
    """
    Say whether the shipped driver of a card can attach and map *buffer*.

    Leaves nothing attached. Nothing that a driver says makes it raise.

    :param path: the card's device node.
    :param buffer: borrowed; a page of the heap in question, see above.
    """
    try:
        device = OwnedFd.open(path, os.O_RDWR)
    except OSError as error:
        return AttachProbe(
            Importable.UNKNOWN, error.errno or 0, str(open_error(path, error, found_cards(tree)))
        )
    with device:
        number = _call(device, DMA_ATTACH, buffer.fileno())
        if number:
            answer, meaning = _MEANINGS.get(
                number, (Importable.NO, 'see dmesg | grep -i -e metis -e axl')
            )
            return AttachProbe(
                answer,
                number,
                f'{path} refused a buffer of {buffer.heap} with {errno_name(number)}: {meaning}',
            )
        number = _call(device, DMA_DETACH, buffer.fileno())
        late = (
            f'; it did not detach when asked ({errno_name(number)}), only when its file was closed'
            if number
            else ''
        )
        return AttachProbe(Importable.YES, 0, f'{path} can import buffers of {buffer.heap}{late}')
