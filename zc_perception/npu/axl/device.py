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
Open a device node ``/dev/metis-*`` and call its ioctls, one method for each.

Each errno becomes an exception whose message advises what to do. This module caches nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import ctypes
from dataclasses import dataclass
import errno
import fcntl
from functools import partial
import os
import stat

from zc_perception.errors import AcceleratorError, DeviceLostError, NO_DESCRIPTOR
from zc_perception.machine.system import HOST, HostTree
from zc_perception.memory.dmabuf import DmaBuf
from zc_perception.memory.fence import SyncFile
from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.negotiation.constraints import BufferConstraints, Placement
from zc_perception.npu.axl import abi as axl_abi
from zc_perception.npu.axl.abi import ImportFlags
from zc_perception.npu.metis_card import (
    card_at,
    card_is_gone,
    found_cards,
    Iommu,
    PcieLink,
    read_link,
)
from zc_perception.pixel.fourcc import NV12
from zc_perception.pixel.layout import ImageLayout
from zc_perception.pixel.modifier import LINEAR

JOB = 'job'
"""The word that an error message has in place of an ioctl's name if a job's fence failed."""
ENOTSUPP = 524
"""A kernel-internal errno that some drivers return to programs; C libraries don't name it."""
_FORMATS = 64
_MAX_FORMATS = 4096
_ATTEMPTS = 100
# The highest number of jobs in flight, even if the driver can queue more. It is also the highest
# value of parameter in_flight. Each job needs a result buffer, which takes scarce CMA memory if
# there is a CMA heap.
_MOST_IN_FLIGHT = 16
_OF_A_CARD_THAT_IS_GONE = (errno.ENODEV, errno.ENXIO, errno.ESHUTDOWN, errno.ENOLINK)
# Errnos for an ioctl number that the driver doesn't have; some drivers return EINVAL.
_UNKNOWN_IOCTL = (errno.ENOTTY, errno.ENOSYS, errno.EINVAL)
_ADVICE_BY_ERRNOS: Mapping[tuple[int, ...], str] = {
    (
        errno.EBADF,
    ): "the buffer's descriptor was closed; keep the frame leased until its job is done",
    (errno.EINVAL,): (
        "the descriptor is no dma-buf (a memfd isn't one), or format, stride, offset or size "
        "don't suit the device; see check metis.ioctls of zc_doctor"
    ),
    (errno.EACCES,): (
        'the buffer is read-only for this process; import frames with direction TO_DEVICE, and '
        'allocate writable buffers for results'
    ),
    (errno.EPERM,): (
        'the driver or a security module refuses this user; add the user to the group of the '
        'device node, see dmesg | grep -i denied'
    ),
    (
        errno.ENOENT,
    ): 'the import was already released, or was not made with this open device; import the buffer '
    'again',
    (
        errno.EBUSY,
        errno.EAGAIN,
    ): "the card's queue of jobs is full; lower parameter 'in_flight', or wait for a job's end",
    (errno.ENOTTY, errno.ENOSYS): (
        'this driver has no import and submit ioctls; use accelerator: axruntime (Voyager SDK) or '
        "onnx, or give the driver's own ioctl numbers in parameter 'axl_ioctls'"
    ),
    (errno.EOPNOTSUPP, ENOTSUPP): (
        'enable the IOMMU for the card, or allocate from a contiguous heap such as '
        'dma_heap/linux,cma'
    ),
    (errno.E2BIG,): 'the driver is older than this package; update the driver',
    _OF_A_CARD_THAT_IS_GONE: (
        'the card was removed, was reset or lost its link; check lspci -d '
        '1f9d: and dmesg, then open the card again'
    ),
    (errno.ENOMEM, errno.ENOSPC): (
        'free memory (see CmaFree in /proc/meminfo), or use fewer or smaller buffers '
        "(parameter 'slots')"
    ),
    (errno.EFAULT,): (
        "an address in the call's argument, or an address that the card's DMA used, isn't mapped; "
        'see dmesg | grep -i -e axl -e iommu -e smmu'
    ),
    (errno.ETIMEDOUT, errno.ETIME): (
        "the card is overloaded or its PCIe link is degraded; lower parameter 'in_flight' "
        "or the frame rate, or raise 'timeout'"
    ),
    (errno.EIO,): (
        'the card could not run the job; see dmesg | grep -i -e axl -e metis, and check that '
        "'model_id' names a model that is on the card"
    ),
    (errno.ECANCELED,): (
        'the device was closed while the job was in flight; that is the normal end of a job at '
        'shutdown'
    ),
}
ADVICE: Mapping[int, str] = {
    **NO_DESCRIPTOR,
    **{number: text for numbers, text in _ADVICE_BY_ERRNOS.items() for number in numbers},
}
"""The meaning of each errno of the driver, and what to do about it.

The errnos come from the UAPI header ``axl_ioctl.h``, the advice from the document *ZED X → Metis*,
see ``docs/rules.md``."""


def errno_name(number: int) -> str:
    """Return the name of an errno, such as ``EINVAL``."""
    return 'ENOTSUPP' if number == ENOTSUPP else errno.errorcode.get(number, str(number))


class AxlError(AcceleratorError):
    """
    An ioctl of the axl driver, or a job, failed; the message advises what to do.

    :param request: the name of the ioctl that failed, or :data:`JOB`.
    :param number: the driver's error number, also in attribute ``errno``.
    :param detail: the import or buffer that the call was for; empty: the message names none.
    :param more: a further diagnosis for the end of the message.
    """

    def __init__(self, request: str, number: int, detail: str = '', more: str = '') -> None:
        where = f' ({detail})' if detail else ''
        lost = isinstance(self, DeviceLostError)
        advice = (
            ADVICE[errno.ENODEV]
            if lost
            else ADVICE.get(number, 'see the kernel log (dmesg | grep axl)')
        )
        end = f'; {more}' if more else ''
        super().__init__(
            f'axl {request}{where} failed with {errno_name(number)} ({os.strerror(number)}): '
            f'{advice}{end}'
        )
        self.errno = number


class AxlGoneError(AxlError, DeviceLostError):
    """The card is gone, or its link is down."""


def axl_error(
    request: str, number: int, detail: str = '', *, gone: bool = False, more: str = ''
) -> AxlError:
    """
    Return the exception for an errno.

    :param gone: whether the card no longer answers; then EIO means that the device is lost.
    """
    lost = number in _OF_A_CARD_THAT_IS_GONE or (gone and number == errno.EIO)
    return (AxlGoneError if lost else AxlError)(request, number, detail, more)


def open_error(path: str, error: OSError, found: str) -> AcceleratorError:
    """
    Return the exception for a device node that can't be opened.

    :param found: a text that lists this machine's cards, or gives the reason why it has none.
    """
    number = error.errno or 0
    message = f"'{path}' can't be opened: {error.strerror}; "
    if number in (errno.ENODEV, errno.ENXIO):
        return DeviceLostError(
            f'{message}the driver waits for the link of the card to come back, try again in '
            'some seconds'
        )
    hints = {
        errno.EACCES: (
            'add the user to the group of the device node, or give that group '
            'access in a udev rule'
        ),
        errno.EPERM: (
            'give the container access to the node (--device), or give the user access in a udev '
            'rule'
        ),
        errno.EBUSY: f'another process uses the card exclusively, see lsof {path}',
        **NO_DESCRIPTOR,
    }
    return AcceleratorError(message + hints.get(number, found))


@dataclass(frozen=True)
class AxlCapabilities:
    """
    What a driver can do: its answer to QUERY, or what its other ioctls imply.

    :param level: 0: the driver has no import ioctls; 1: only the ioctls numbered 64 to 66, which
        import only LINEAR images that have no padding and lie in one buffer; 2: all ioctls.
    :param formats: (fourcc, modifier) pairs; empty for level 1, because that driver doesn't list
        them.
    """

    level: int
    max_in_flight: int
    stride_align: int
    offset_align: int
    formats: tuple[tuple[int, int], ...]

    @property
    def jobs(self) -> int:
        """The number of jobs that the card accepts before the first one has completed."""
        return min(self.max_in_flight, _MOST_IN_FLIGHT)

    def constraints(self, path: str, iommu: Iommu) -> BufferConstraints:
        """Return the constraints of frames that the card *path*, behind *iommu*, can import."""
        return BufferConstraints(
            f'axl {path}',
            formats=self.formats or ((NV12, LINEAR),),
            stride_align=self.stride_align,
            offset_align=self.offset_align,
            placement=None if self.level >= 2 else Placement.ONE_BUFFER,
            devices=(path,),
            contiguous=iommu.needs_contiguous,
            memory_note='' if iommu.translates else iommu.text,
        )


class JobFence(SyncFile):
    """
    A job's fence: the driver's sync_file, whose errno :meth:`check` raises as an exception.

    :param explain: returns the exception for the job's errno; called only if the job failed.
    :param seqno: the number that the driver gave the job; 0: the driver gave none.
    """

    def __init__(self, fd: OwnedFd, explain: Callable[[int], AxlError], seqno: int = 0) -> None:
        super().__init__(fd)
        self.seqno = seqno
        self._explain = explain

    def check(self) -> None:
        """
        Raise an error unless the job succeeded, see :meth:`Fence.check`.

        :raises AcceleratorError: the fence has not signalled.
        :raises DeviceLostError: the card is gone.
        :raises AxlError: the job failed; ETIMEDOUT: the device did not end the job in time.
        """
        try:
            super().check()
        except AcceleratorError:
            status = self.status()
            if status >= 0:
                raise
            raise self._explain(-status) from None


def call_driver(
    fd: OwnedFd, request: int, argument: ctypes.Structure | ctypes.c_uint32 | ctypes.c_int
) -> OSError | None:
    """
    Call ``ioctl(2)``; return the error, or ``None`` if the call succeeded.

    A call that a signal interrupted is repeated, because it has changed nothing.
    """
    failure: OSError | None = None
    for _ in range(_ATTEMPTS):
        try:
            fcntl.ioctl(fd.fileno(), request, argument)
            return None
        except OSError as error:
            failure = error
            if error.errno != errno.EINTR:
                break
    return failure


def _is_power_of_two(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0


class AxlDevice:
    """
    One open file of the driver; closing it releases all buffers that were imported through it.

    :param path: the device node.
    :param numbers: ioctl numbers by name, where the driver differs from ``abi.IOCTL_NUMBERS``.
    :raises AcceleratorError: the node can't be opened, or is no device node;
        :class:`DeviceLostError` while the card's link is down.
    """

    def __init__(
        self, path: str, numbers: Mapping[str, int] | None = None, *, tree: HostTree = HOST
    ) -> None:
        self.path = path
        self.card = card_at(path, tree)
        self._tree = tree
        self._requests = axl_abi.requests(numbers)
        try:
            self._fd = OwnedFd.open(path, os.O_RDWR)
        except OSError as error:
            raise open_error(path, error, found_cards(tree)) from error
        if not stat.S_ISCHR(os.fstat(self._fd.fileno()).st_mode):
            self._fd.close()
            raise AcceleratorError(
                f"parameter 'accelerator_device' is '{path}', which is no device node; it must "
                f'be the device node of a Metis card ({found_cards(tree)})'
            )

    def _ioctl(
        self, name: str, argument: ctypes.Structure | ctypes.c_uint32, detail: str = ''
    ) -> None:
        error = call_driver(self._fd, getattr(self._requests, name), argument)
        if error is not None:
            raise self._error(name, error.errno or 0, detail) from error

    def _error(self, request: str, number: int, detail: str) -> AxlError:
        return axl_error(
            request,
            number,
            detail,
            gone=number == errno.EIO and card_is_gone(self.card, self._tree),
        )

    def _job_error(self, handle: int, timeout_us: int, number: int) -> AxlError:
        error = self._error(JOB, number, f'import {handle}')
        if error.errno in (errno.ETIMEDOUT, errno.ETIME):
            link = self.link()
            more = link.diagnosis() or f"the card's PCIe link is good now ({link})"
            return axl_error(
                JOB, number, f'import {handle}, timeout {timeout_us / 1000:g} ms', more=more
            )
        return error

    def link(self) -> PcieLink:
        """Return the current state of the card's PCIe link."""
        return read_link(self.card.pci_address, self._tree)

    def query(self) -> AxlCapabilities:
        """
        Ask the driver for its limits by QUERY; without QUERY, infer them from its other ioctls.

        :raises AcceleratorError: the driver's answer has impossible values.
        """
        try:
            query, table = self._query(_FORMATS)
            if query.num_formats > _FORMATS:
                query, table = self._query(min(query.num_formats, _MAX_FORMATS))
        except AxlError as error:
            if error.errno not in _UNKNOWN_IOCTL:
                raise
            return AxlCapabilities(1 if self._has_first_generation() else 0, 1, 1, 1, ())
        if (
            query.max_in_flight < 1
            or not _is_power_of_two(query.stride_align)
            or not _is_power_of_two(query.offset_align)
        ):
            raise AcceleratorError(
                f'the driver of {self.path} answers QUERY with max_in_flight '
                f'{query.max_in_flight}, stride_align {query.stride_align}, '
                f'offset_align {query.offset_align}, of which the first must be at least 1 and '
                "the others powers of two; check 'axl_ioctls'"
            )
        formats = tuple((f.fourcc, f.modifier) for f in table[: query.num_formats])
        return AxlCapabilities(
            2, query.max_in_flight, query.stride_align, query.offset_align, formats
        )

    def _query(self, room: int) -> tuple[axl_abi.AxlQuery, ctypes.Array[axl_abi.AxlFormat]]:
        table = (axl_abi.AxlFormat * room)()
        query = axl_abi.AxlQuery(
            struct_size=ctypes.sizeof(axl_abi.AxlQuery),
            num_formats=room,
            formats_ptr=ctypes.addressof(table),
        )
        self._ioctl('query', query)
        return query, table

    def _has_first_generation(self) -> bool:
        """
        Return whether the driver has the first generation of ioctls, 64 to 66.

        A driver that has these ioctls answers ENOENT to the release of an invalid handle, and
        EBADF to the import of an invalid descriptor. Neither call changes anything.
        """
        nothing = axl_abi.AxlImportFd(
            fd=-1, width=2, height=2, pixfmt=NV12, flags=int(ImportFlags.TO_DEVICE)
        )
        return self._knows('release_import', ctypes.c_uint32(0), errno.ENOENT) or self._knows(
            'import_fd', nothing, errno.EBADF
        )

    def _knows(
        self, name: str, argument: ctypes.Structure | ctypes.c_uint32, refusal: int
    ) -> bool:
        """
        Return whether the driver has ioctl *name*.

        :param argument: an invalid argument, so that the call changes nothing.
        :param refusal: the errno with which an existing ioctl refuses the argument.
        """
        try:
            self._ioctl(name, argument)
        except AxlError as error:
            if error.errno not in (refusal, *_UNKNOWN_IOCTL):
                raise
            return error.errno == refusal
        return True

    def import_fd(
        self, buffer: DmaBuf, width: int, height: int, fourcc: int, flags: ImportFlags
    ) -> int:
        """Import a LINEAR image without padding, in one buffer (IMPORT_FD); return the handle."""
        argument = axl_abi.AxlImportFd(
            fd=buffer.fileno(), width=width, height=height, pixfmt=fourcc, flags=int(flags)
        )
        self._ioctl('import_fd', argument, repr(buffer))
        return int(argument.handle)

    def import_planes(
        self, layout: ImageLayout, buffers: Sequence[DmaBuf], flags: ImportFlags
    ) -> int:
        """Import an image of any layout (IMPORT_PLANES); return the handle."""
        argument = axl_abi.AxlImportPlanes(
            struct_size=ctypes.sizeof(axl_abi.AxlImportPlanes),
            flags=int(flags),
            width=layout.width,
            height=layout.height,
            fourcc=layout.fourcc,
            num_planes=len(layout.planes),
            modifier=layout.modifier,
        )
        for target, plane in zip(argument.planes, layout.planes, strict=False):
            target.fd, target.stride = buffers[plane.buffer].fileno(), plane.stride
            target.offset, target.size = plane.offset, plane.size
        self._ioctl('import_planes', argument, layout.describe())
        return int(argument.handle)

    def submit(self, handle: int, result: DmaBuf, model_id: int, timeout_us: int) -> JobFence:
        """Submit a job (SUBMIT); return the job's fence."""
        argument = axl_abi.AxlSubmit(
            input_handle=handle,
            result_fd=result.fileno(),
            model_id=model_id,
            timeout_us=timeout_us,
        )
        self._ioctl('submit', argument, f'import {handle}')
        return self._fence(argument.fence_fd, handle, timeout_us, 0)

    def submit2(
        self,
        handle: int,
        result: DmaBuf,
        model_id: int,
        timeout_us: int,
        in_fence: SyncFile | None,
    ) -> JobFence:
        """
        Submit a job that starts once *in_fence* has signalled (SUBMIT2); return the job's fence.

        The caller still owns *in_fence*.
        """
        argument = axl_abi.AxlSubmit2(
            struct_size=ctypes.sizeof(axl_abi.AxlSubmit2),
            input_handle=handle,
            model_id=model_id,
            timeout_us=timeout_us,
            in_fence_fd=axl_abi.NO_FENCE if in_fence is None else in_fence.fileno(),
            result_fd=result.fileno(),
        )
        self._ioctl('submit2', argument, f'import {handle}')
        return self._fence(argument.fence_fd, handle, timeout_us, argument.seqno)

    def _fence(self, fd: int, handle: int, timeout_us: int, seqno: int) -> JobFence:
        return JobFence(OwnedFd(fd), partial(self._job_error, handle, timeout_us), seqno)

    def release_import(self, handle: int) -> None:
        """
        Release an import (RELEASE_IMPORT); the driver drops it once the jobs that use it end.

        :raises AxlError: with ENOENT: this open file has no such handle.
        """
        self._ioctl('release_import', ctypes.c_uint32(handle), f'import {handle}')

    def close(self) -> None:
        """Close the file; then the driver ends this file's jobs and releases its imports."""
        self._fd.close()
