"""An open ``/dev/metis-*``: one method per ioctl, errors as exceptions, nothing cached."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import glob
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from zc_perception.errors import AcceleratorError
from zc_perception.memory.dmabuf import DmaBuf
from zc_perception.memory.fence import SyncFile
from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.npu import axl_abi
from zc_perception.npu.axl_abi import ImportFlags
from zc_perception.npu.axl_errors import AxlHandleError, AxlUnsupportedError, axl_error
from zc_perception.pixel.layout import ImageLayout

DEVICE_PATTERN = '/dev/metis-*'
_MAX_FORMATS = 256


@dataclass(frozen=True)
class AxlCapabilities:
    """What QUERY says; for a driver of the first generation what its ioctls imply.

    :param level: 0 no import ioctls at all, 1 only 64–66 (tight LINEAR images in one buffer), 2 all.
    :param formats: (fourcc, modifier) pairs; empty for level 1, which doesn't tell.
    """

    level: int
    max_in_flight: int
    stride_align: int
    offset_align: int
    formats: tuple[tuple[int, int], ...]


def find_devices() -> list[str]:
    """Device nodes of Metis cards, in order."""
    return sorted(glob.glob(DEVICE_PATTERN))


class AxlDevice:
    """One open file of the driver. Handles belong to it and end with it.

    :param path: the device node.
    :param numbers: ioctl numbers by name, for a driver that uses others than the pinned ones.
    :raises AcceleratorError: the node can't be opened.
    """

    def __init__(self, path: str, numbers: Mapping[str, int] | None = None) -> None:
        self.path = path
        self._requests = axl_abi.requests(numbers)
        try:
            self._fd = OwnedFd.open(path, os.O_RDWR)
        except OSError as error:
            hint = 'add the user to the group of the device node' if error.errno == errno.EACCES else f'see ls {DEVICE_PATTERN}'
            raise AcceleratorError(f"'{path}' can't be opened: {error.strerror}; {hint}") from error

    def _ioctl(self, name: str, argument: ctypes.Structure | ctypes.c_uint32, detail: str = '') -> None:
        try:
            fcntl.ioctl(self._fd.fileno(), getattr(self._requests, name), argument)
        except OSError as error:
            raise axl_error(name, error.errno or 0, detail) from error

    def query(self) -> AxlCapabilities:
        """QUERY, or what can be told without it."""
        query = axl_abi.AxlQuery(struct_size=ctypes.sizeof(axl_abi.AxlQuery))
        table = (axl_abi.AxlFormat * _MAX_FORMATS)()
        query.num_formats, query.formats_ptr = _MAX_FORMATS, ctypes.addressof(table)
        try:
            self._ioctl('query', query)
        except AxlUnsupportedError:
            return AxlCapabilities(1 if self._has_first_generation() else 0, 1, 1, 1, ())
        formats = tuple((f.fourcc, f.modifier) for f in table[: min(query.num_formats, _MAX_FORMATS)])
        return AxlCapabilities(2, query.max_in_flight, query.stride_align, query.offset_align, formats)

    def _has_first_generation(self) -> bool:
        """A release of no handle answers ENOENT where the ioctl exists, and changes nothing."""
        try:
            self.release_import(0)
        except AxlHandleError:
            return True
        except AxlUnsupportedError:
            return False
        return True

    def import_fd(self, buffer: DmaBuf, width: int, height: int, fourcc: int, flags: ImportFlags) -> int:
        """IMPORT_FD: a tight LINEAR image in one buffer. The handle."""
        argument = axl_abi.AxlImportFd(fd=buffer.fileno(), width=width, height=height, pixfmt=fourcc, flags=int(flags))
        self._ioctl('import_fd', argument, repr(buffer))
        return int(argument.handle)

    def import_planes(self, layout: ImageLayout, buffers: Sequence[DmaBuf], flags: ImportFlags) -> int:
        """IMPORT_PLANES: any layout. The handle."""
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

    def submit(self, handle: int, result: DmaBuf, model_id: int, timeout_us: int) -> SyncFile:
        """SUBMIT: the job's fence."""
        argument = axl_abi.AxlSubmit(input_handle=handle, result_fd=result.fileno(), model_id=model_id, timeout_us=timeout_us)
        self._ioctl('submit', argument, f'handle {handle}')
        return SyncFile(OwnedFd(argument.fence_fd))

    def submit2(self, handle: int, result: DmaBuf, model_id: int, timeout_us: int, in_fence: SyncFile | None) -> SyncFile:
        """SUBMIT2: like :meth:`submit`, after *in_fence*, which stays the caller's."""
        argument = axl_abi.AxlSubmit2(
            struct_size=ctypes.sizeof(axl_abi.AxlSubmit2),
            input_handle=handle,
            model_id=model_id,
            timeout_us=timeout_us,
            in_fence_fd=axl_abi.NO_FENCE if in_fence is None else in_fence.fileno(),
            result_fd=result.fileno(),
        )
        self._ioctl('submit2', argument, f'handle {handle}')
        return SyncFile(OwnedFd(argument.fence_fd))

    def release_import(self, handle: int) -> None:
        """RELEASE_IMPORT. A job that still runs keeps the buffer attached until its fence.

        :raises AxlHandleError: no such handle in this open file.
        """
        self._ioctl('release_import', ctypes.c_uint32(handle), f'handle {handle}')

    def close(self) -> None:
        """Close it; the driver releases every handle."""
        self._fd.close()
