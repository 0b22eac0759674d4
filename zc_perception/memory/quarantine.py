"""When buffers of a dead consumer may be used again: its process is gone, but a device may still read for it.

Source: the kernel's *Buffer Sharing and Synchronization* on reservation objects; ``DMA_BUF_IOCTL_EXPORT_SYNC_FILE`` in dma-buf.h.
"""

from __future__ import annotations

from collections.abc import Sequence

from zc_perception.memory.dmabuf import BufferKind, CpuAccess, DmaBuf
from zc_perception.memory.fence import DeadlineFence, Fence, SyncFile, check_timeout


def quarantine_fence(buffers: Sequence[DmaBuf], timeout_s: float) -> Fence:
    """What has to signal before *buffers*, those of one frame, may be reused. The caller owns it.

    Where devices are busy with them right now, that is a sync_file of all their fences: their drivers add fences, to every buffer of a
    job. Where nothing is pending that means nothing, because most drivers add none; there, on kernels without the ioctl, and when the
    fences can't be had (no descriptor left), it is a :class:`DeadlineFence` of *timeout_s*. A frame of memfds alone is over at once: no
    device takes one, and the process that read it is gone.

    :param timeout_s: seconds that a job may run, the longest submit timeout of all.
    :raises ValueError: the timeout is negative, infinite or NaN.
    """
    check_timeout(timeout_s)
    if all(buffer.kind is BufferKind.MEMFD for buffer in buffers):
        return DeadlineFence(0.0)
    merged: SyncFile | None = None
    try:
        for buffer in buffers:
            fence = buffer.export_fence(CpuAccess.WRITE)
            if fence is None:
                continue
            if fence.wait(0.0):
                fence.close()
            elif merged is None:
                merged = fence
            else:
                merged = _merge(merged, fence)
    except OSError:
        if merged is not None:
            merged.close()
        merged = None
    return DeadlineFence(timeout_s) if merged is None else merged


def _merge(first: SyncFile, second: SyncFile) -> SyncFile:
    try:
        return SyncFile.merge('zc_quarantine', first, second)
    finally:
        first.close()
        second.close()
