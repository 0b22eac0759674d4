"""How many bytes the parameter file's pools take, by the same layout code as the pools themselves, and which memory they come from."""

from __future__ import annotations

import os
from dataclasses import dataclass

from zc_perception.camera.v4l2.device import V4l2Device
from zc_perception.errors import ZcError
from zc_perception.memory.heaps import is_contiguous
from zc_perception.pixel.format_names import from_v4l2
from zc_perception.pixel.fourcc import NV12, fourcc_code
from zc_perception.pixel.layout import compute_layout
from zc_perception.verify.doctor.heap_nodes import auto_heap
from zc_perception.verify.doctor.needs import CameraNeed, uses_own_heap
from zc_perception.verify.doctor.system import System

# The synthetic camera's own; other cameras say theirs when they are asked.
_SYNTHETIC = (640, 360)


@dataclass(frozen=True)
class PoolNeed:
    """One camera's pool.

    :param memory: the heap's name, or whose memory it is.
    :param contiguous: whether that is the contiguous pool; ``None``: the driver's choice, which isn't known.
    :param slot_bytes: of each slot, rounded up to pages; 0 where the size isn't known.
    :param problem: why it isn't.
    """

    camera: CameraNeed
    memory: str
    contiguous: bool | None
    size: tuple[int, int] = (0, 0)
    slots: int = 0
    slot_bytes: int = 0
    problem: str = ''

    @property
    def total(self) -> int:
        """Bytes of the whole pool."""
        return self.slots * self.slot_bytes


def _size(system: System, camera: CameraNeed) -> tuple[int, int]:
    """What the parameters say, or the camera's own; (0, 0) where nobody knows before it streams."""
    if camera.width and camera.height:
        return camera.width, camera.height
    if camera.camera == 'synthetic':
        return camera.width or _SYNTHETIC[0], camera.height or _SYNTHETIC[1]
    if camera.camera == 'v4l2':
        try:
            device = V4l2Device(system.open_video(str(system.root / camera.device.lstrip('/'))))
        except (ZcError, OSError):
            return 0, 0
        try:
            return device.get_format().size
        except ZcError:
            return 0, 0
        finally:
            device.close()
    return 0, 0


def _memory(system: System, camera: CameraNeed) -> tuple[str, bool | None]:
    if uses_own_heap(camera):
        name = auto_heap(system) if camera.heap == 'auto' else camera.heap
        return name, is_contiguous(name)
    return {
        'argus': 'NvBufSurface',
        'v4l2': "the driver's buffers",
        'gstreamer': "the pipeline's buffers",
        'libcamera': "libcamera's buffers",
    }.get(camera.camera, 'unknown buffers'), None


def pool_need(system: System, camera: CameraNeed) -> PoolNeed:
    """What one camera's pool takes."""
    memory, contiguous = _memory(system, camera)
    slots = camera.slots if camera.camera in ('synthetic', 'replay', 'v4l2') else max(camera.slots, camera.pipeline_buffers)
    size = _size(system, camera)
    if not all(size):
        return PoolNeed(camera, memory, contiguous, problem='its picture size is not known before it streams; set width and height')
    try:
        named = camera.camera == 'v4l2' and camera.pixel_format != 'auto'
        fourcc = from_v4l2(fourcc_code(camera.pixel_format)).fourcc if named else NV12
        layout = compute_layout(fourcc, *size)
    except (ZcError, ValueError) as error:
        return PoolNeed(camera, memory, contiguous, size, problem=str(error))
    page = os.sysconf('SC_PAGE_SIZE')
    return PoolNeed(
        camera, memory, contiguous, size, slots, sum(-(-layout.buffer_size(i) // page) * page for i in range(layout.num_buffers))
    )
