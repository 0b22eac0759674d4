"""What the axl driver's errnos mean and what to do about them.

Source: the UAPI header ``axl_ioctl.h`` for the errnos, the failure modes of the ZED X → Metis document for the advice.
"""

from __future__ import annotations

import errno
import os

from zc_perception.errors import AcceleratorError, DeviceLostError


class AxlError(AcceleratorError):
    """An axl ioctl failed.

    :param request: which ioctl.
    :param number: the errno.
    """

    advice = 'see the kernel log (dmesg | grep axl)'

    def __init__(self, request: str, number: int, detail: str = '') -> None:
        where = f' ({detail})' if detail else ''
        name = errno.errorcode.get(number, str(number))
        super().__init__(f'axl {request}{where} failed with {name} ({os.strerror(number)}): {self.advice}')
        self.request = request
        self.errno = number


class AxlBadFdError(AxlError):
    """EBADF: the descriptor isn't open."""

    advice = "the buffer's descriptor was closed; keep the frame leased until its job is done"


class AxlInvalidError(AxlError):
    """EINVAL: no dma-buf, or a layout, format, flag or size that the driver refuses."""

    advice = (
        "the descriptor is no dma-buf (a memfd isn't one), or format, stride, offset or size don't suit the device; see its constraints"
    )


class AxlAccessError(AxlError):
    """EACCES: a read-only buffer was to be written."""

    advice = 'the buffer is read-only for this process; import frames TO_DEVICE and allocate results writable'


class AxlHandleError(AxlError):
    """ENOENT: this open file has no such handle: never imported, released before, or another file's."""

    advice = 'the import was released before or belongs to another open file; import the buffer again'


class AxlBusyError(AxlError):
    """EBUSY: as many jobs as the device takes are queued."""

    advice = "lower parameter 'in_flight' or wait for a fence"


class AxlUnsupportedError(AxlError):
    """ENOTTY: the driver doesn't know the ioctl."""

    advice = 'this driver has no import and submit ioctls; use accelerator: axruntime (Voyager SDK) or cpu'


class AxlUnmappableError(AxlError):
    """EOPNOTSUPP: the buffer's pages can't be mapped as one range of device addresses."""

    advice = 'enable the IOMMU for the card, or allocate from a contiguous heap such as dma_heap/linux,cma'


class AxlTooNewError(AxlError):
    """E2BIG: the argument has fields that this driver doesn't know."""

    advice = 'the driver is older than this package; update it'


class AxlGoneError(AxlError, DeviceLostError):
    """ENODEV: the card is gone."""

    advice = 'the card was removed or reset; check lspci and restart the node'


class AxlMemoryError(AxlError):
    """ENOMEM: no kernel memory or no device addresses."""

    advice = "free memory, or use fewer or smaller buffers (parameter 'slots')"


_CLASSES: dict[int, type[AxlError]] = {
    errno.EBADF: AxlBadFdError,
    errno.EINVAL: AxlInvalidError,
    errno.EACCES: AxlAccessError,
    errno.ENOENT: AxlHandleError,
    errno.EBUSY: AxlBusyError,
    errno.ENOTTY: AxlUnsupportedError,
    errno.EOPNOTSUPP: AxlUnmappableError,
    errno.E2BIG: AxlTooNewError,
    errno.ENODEV: AxlGoneError,
    errno.ENOMEM: AxlMemoryError,
}


def axl_error(request: str, number: int, detail: str = '') -> AxlError:
    """The exception for an errno."""
    return _CLASSES.get(number, AxlError)(request, number, detail)
