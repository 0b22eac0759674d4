"""What the axl driver's errnos mean and what to do about them: those of its ioctls, and those that a job's fence ends with.

Source: the UAPI header ``axl_ioctl.h`` for the errnos, the failure modes of the ZED X → Metis document for the advice.
"""

from __future__ import annotations

import errno
import os

from zc_perception.errors import AcceleratorError, DeviceLostError

JOB = 'job'
"""The request that a fence's error names."""

ENOTSUPP = 524
"""The kernel's own number, which some exporters let out to user space; C libraries have no name for it."""


class AxlError(AcceleratorError):
    """An axl ioctl failed, or a job.

    :param request: which ioctl, or :data:`JOB`.
    :param number: the errno.
    :param detail: what it was about.
    :param more: a further sentence of diagnosis.
    """

    advice = 'see the kernel log (dmesg | grep axl)'

    def __init__(self, request: str, number: int, detail: str = '', more: str = '') -> None:
        where = f' ({detail})' if detail else ''
        name = 'ENOTSUPP' if number == ENOTSUPP else errno.errorcode.get(number, str(number))
        end = f'; {more}' if more else ''
        super().__init__(f'axl {request}{where} failed with {name} ({os.strerror(number)}): {self.advice}{end}')
        self.request = request
        self.errno = number


class AxlBadFdError(AxlError):
    """EBADF: a descriptor isn't open."""

    advice = "the buffer's descriptor was closed; keep the frame leased until its job is done"


class AxlInvalidError(AxlError):
    """EINVAL: no dma-buf, or a layout, format, flag or size that the driver refuses."""

    advice = (
        "the descriptor is no dma-buf (a memfd isn't one), or format, stride, offset or size don't suit the device; see its constraints"
    )


class AxlAccessError(AxlError):
    """EACCES: a read-only buffer was to be written."""

    advice = 'the buffer is read-only for this process; import frames TO_DEVICE and allocate results writable'


class AxlPermissionError(AxlError):
    """EPERM: the driver lets only others do that."""

    advice = 'the driver or a security module refuses this user; add it to the group of the device node, see dmesg | grep -i denied'


class AxlHandleError(AxlError):
    """ENOENT: this open file has no such handle: never imported, released before, or another file's."""

    advice = 'the import was released before or belongs to another open file; import the buffer again'


class AxlBusyError(AxlError):
    """EBUSY: as many jobs as the device takes are queued."""

    advice = "the card is back-pressured; lower parameter 'in_flight' or wait for a fence"


class AxlUnsupportedError(AxlError):
    """ENOTTY: the driver doesn't know the ioctl."""

    advice = (
        'this driver has no import and submit ioctls; use accelerator: axruntime (Voyager SDK) or cpu, '
        "or give the driver's own ioctl numbers in parameter 'axl_ioctls'"
    )


class AxlUnmappableError(AxlError):
    """EOPNOTSUPP: the buffer's pages can't be mapped as one range of device addresses."""

    advice = 'enable the IOMMU for the card, or allocate from a contiguous heap such as dma_heap/linux,cma'


class AxlTooNewError(AxlError):
    """E2BIG: the argument has fields that this driver doesn't know."""

    advice = 'the driver is older than this package; update it'


class AxlGoneError(AxlError, DeviceLostError):
    """ENODEV and the like: the card is gone, or its link is down."""

    advice = 'the card was removed, reset or lost its link; check lspci -d 1f9d: and dmesg, then open it anew'


class AxlMemoryError(AxlError):
    """ENOMEM: no kernel memory or no device addresses."""

    advice = "free memory (see CmaFree in /proc/meminfo), or use fewer or smaller buffers (parameter 'slots')"


class AxlDescriptorsError(AxlError):
    """EMFILE, ENFILE: no descriptor left for a fence."""

    advice = "no file descriptor is left: raise the limit ('ulimit -n'), or look for leaks (zc_doctor)"


class AxlFaultError(AxlError):
    """EFAULT: an address that isn't mapped, the process's or the device's."""

    advice = "an argument or the card's DMA hit memory that isn't mapped; see dmesg | grep -i -e axl -e iommu -e smmu"


class AxlTimeoutError(AxlError):
    """ETIMEDOUT: a job was not done in time."""

    advice = "the card is back-pressured or its PCIe link is degraded; lower parameter 'in_flight' or the frame rate, or raise 'timeout'"


class AxlIoError(AxlError):
    """EIO: the card says that the job failed; it still answers."""

    advice = "the card could not run the job; see dmesg | grep -i -e axl -e metis, and that 'model_id' names a model that it has"


class AxlCancelledError(AxlError):
    """ECANCELED: the device was closed while the job was in flight."""

    advice = 'the device was closed while the job was in flight; that is the normal end of a job at shutdown'


_CLASSES: dict[int, type[AxlError]] = {
    errno.EBADF: AxlBadFdError,
    errno.EINVAL: AxlInvalidError,
    errno.EACCES: AxlAccessError,
    errno.EPERM: AxlPermissionError,
    errno.ENOENT: AxlHandleError,
    errno.EBUSY: AxlBusyError,
    errno.EAGAIN: AxlBusyError,
    errno.ENOTTY: AxlUnsupportedError,
    errno.ENOSYS: AxlUnsupportedError,
    errno.EOPNOTSUPP: AxlUnmappableError,
    ENOTSUPP: AxlUnmappableError,
    errno.E2BIG: AxlTooNewError,
    errno.ENODEV: AxlGoneError,
    errno.ENXIO: AxlGoneError,
    errno.ESHUTDOWN: AxlGoneError,
    errno.ENOLINK: AxlGoneError,
    errno.ENOMEM: AxlMemoryError,
    errno.ENOSPC: AxlMemoryError,
    errno.EMFILE: AxlDescriptorsError,
    errno.ENFILE: AxlDescriptorsError,
    errno.EFAULT: AxlFaultError,
    errno.ETIMEDOUT: AxlTimeoutError,
    errno.ETIME: AxlTimeoutError,
    errno.EIO: AxlIoError,
    errno.ECANCELED: AxlCancelledError,
}


def axl_error(request: str, number: int, detail: str = '', *, gone: bool = False, more: str = '') -> AxlError:
    """The exception for an errno.

    :param gone: the card doesn't answer any more, which makes an input/output error the loss of the device.
    """
    kind = AxlGoneError if gone and number == errno.EIO else _CLASSES.get(number, AxlError)
    return kind(request, number, detail, more)


def open_error(path: str, error: OSError, found: str) -> AcceleratorError:
    """The exception for a device node that can't be opened.

    :param found: which cards there are, or why there are none.
    """
    number = error.errno or 0
    message = f"'{path}' can't be opened: {error.strerror}; "
    if number in (errno.ENODEV, errno.ENXIO):
        return DeviceLostError(f'{message}the driver waits for the link of the card to come back, try again in some seconds')
    hints = {
        errno.EACCES: 'add the user to the group of the device node, or give that group access in a udev rule',
        errno.EPERM: 'give the container access to the node (--device), or the user in a udev rule',
        errno.EBUSY: f'another process has the card for itself, see lsof {path}',
        errno.EMFILE: "this process has no file descriptor left, raise its limit ('ulimit -n')",
    }
    return AcceleratorError(message + hints.get(number, found))
