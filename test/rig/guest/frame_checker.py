"""What becomes of each frame, by the kernel's word: the pixels that the device saw, those that the buffer holds, the fence, the boxes."""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
from typing import Any

from zc_perception.detection.detections import Detections
from zc_perception.frame import FrameData
from zc_perception.npu.axl.accelerator import AxlJob
from zc_perception.npu.scheduler import InFlight

from ..virtual_result import VirtualResult

_PROBE_CRC = 0xC0205561
_PROBE = 'iIIIQII'
_RESULT_SIZE = ctypes.sizeof(VirtualResult)


class FrameChecker:
    """An observer of the inference node: the frame is still leased then, so that the camera can't be writing it.

    What the buffer holds is read by the kernel, past the device's IOMMU and without any mapping by a process.
    """

    def __init__(self) -> None:
        self.frames: list[dict[str, Any]] = []
        self._probe = os.open('/dev/axl_probe', os.O_RDWR | os.O_CLOEXEC)

    def observe(self, entry: InFlight, found: Detections) -> None:
        """Note one frame."""
        data, job = entry.frame.data, entry.job
        assert isinstance(job, AxlJob)
        result = VirtualResult.of_job(job, _RESULT_SIZE)
        fence = job.fence.info()
        self.frames.append(
            {
                'sequence': data.sequence,
                'stamp_ns': data.header.stamp_ns,
                'inodes': [buffer.identity.inode for buffer in data.buffers],
                'strides': [plane.stride for plane in data.planes],
                'rows': [plane.size // plane.stride for plane in data.planes],
                'device_crc': result.crcs(),
                'content_crc': [self._content_crc(data, plane) for plane in range(len(data.planes))],
                'device_boxes': result.num_boxes,
                'published_boxes': len(found),
                'fence_status': fence.status,
                'fence_latency_ms': (fence.timestamp_ns - entry.received_ns) / 1e6,
                'captured_ns': data.captured_ns,
                'fence_ns': fence.timestamp_ns,
            }
        )

    def _content_crc(self, data: FrameData, index: int) -> int:
        plane, element = data.planes[index], data.layout.format.planes[index]
        size = element.row_bytes(data.width), plane.stride, element.rows(data.height)
        argument = bytearray(struct.pack(_PROBE, data.buffers[plane.buffer].fileno(), *size, plane.offset, 0, 0))
        fcntl.ioctl(self._probe, _PROBE_CRC, argument)
        crc: int = struct.unpack(_PROBE, argument)[5]
        return crc

    def close(self) -> None:
        """Close the probe."""
        os.close(self._probe)
