"""Structs and enums of ``libnvbufsurftransform`` and of what ``libnvbufsurface`` has for buffers made elsewhere.

Source: NvBufSurface and NvBufSurfTransform pages of the *Jetson Linux API Reference* (R35.3.1, R35.6); offsets as a C compiler lays out the
documented fields (``test/memory/test_vic_abi.py``). Not run on a Jetson.
"""

from __future__ import annotations

import ctypes
from enum import IntEnum, IntFlag

from zc_perception.memory.nvbufsurface import ChromaSubsampling, Surface, SurfaceParams

MAX_PLANES = 4
MAP_READ = 0
TAG_VIDEO_CONVERT = 0xF01
LAYOUT_BLOCK_LINEAR = 1


class TransformCompute(IntEnum):
    """``NvBufSurfTransform_Compute``."""

    DEFAULT = 0
    GPU = 1
    VIC = 2


class TransformFlag(IntFlag):
    """``NvBufSurfTransform_Transform_Flag``: which parameters count."""

    CROP_SRC = 1
    CROP_DST = 2
    FILTER = 4
    FLIP = 8


class TransformFilter(IntEnum):
    """``NvBufSurfTransform_Inter``; the others are the VIC's own filters with more taps."""

    NEAREST = 0
    BILINEAR = 1


class TransformError(IntEnum):
    """``NvBufSurfTransform_Error``."""

    ROI_ERROR = -4
    INVALID_PARAMS = -3
    EXECUTION_ERROR = -2
    UNSUPPORTED = -1
    SUCCESS = 0


class TransformRect(ctypes.Structure):
    """``NvBufSurfTransformRect``, in pixels."""

    _fields_ = (
        ('top', ctypes.c_uint32),
        ('left', ctypes.c_uint32),
        ('width', ctypes.c_uint32),
        ('height', ctypes.c_uint32),
    )


class TransformConfigParams(ctypes.Structure):
    """``NvBufSurfTransformConfigParams``; the last two don't count for the VIC."""

    _fields_ = (
        ('compute_mode', ctypes.c_int),
        ('gpu_id', ctypes.c_int32),
        ('cuda_stream', ctypes.c_void_p),
    )


class TransformParams(ctypes.Structure):
    """``NvBufSurfTransformParams``; one rectangle for each surface of the batch."""

    _fields_ = (
        ('transform_flag', ctypes.c_uint32),
        ('transform_flip', ctypes.c_int),
        ('transform_filter', ctypes.c_int),
        ('src_rect', ctypes.POINTER(TransformRect)),
        ('dst_rect', ctypes.POINTER(TransformRect)),
    )


class MappedAddr(ctypes.Structure):
    """``NvBufSurfaceMappedAddr``."""

    _fields_ = (
        ('addr', ctypes.c_void_p * MAX_PLANES),
        ('eglImage', ctypes.c_void_p),
        ('_reserved', ctypes.c_void_p * 4),
    )


class MappedSurfaceParams(ctypes.Structure):
    """``NvBufSurfaceParams`` up to the planes' addresses: this far it is the same in R35 and R39."""

    _fields_ = (*SurfaceParams._fields_, ('mappedAddr', MappedAddr))


class MapPlaneParams(ctypes.Structure):
    """``NvBufSurfaceMapPlaneParams``."""

    _fields_ = (
        ('width', ctypes.c_uint32),
        ('height', ctypes.c_uint32),
        ('pitch', ctypes.c_uint32),
        ('offset', ctypes.c_uint32),
        ('psize', ctypes.c_uint32),
        ('secondfieldoffset', ctypes.c_uint32),
        ('blockheightlog2', ctypes.c_uint32),
        ('flags', ctypes.c_uint64),
        ('reserved', ctypes.c_uint8 * 64),
    )


class MapParams(ctypes.Structure):
    """``NvBufSurfaceMapParams``: all that another process needs to know of a buffer."""

    _fields_ = (
        ('num_planes', ctypes.c_uint32),
        ('gpuId', ctypes.c_uint32),
        ('fd', ctypes.c_uint64),
        ('totalSize', ctypes.c_uint32),
        ('memType', ctypes.c_int),
        ('layout', ctypes.c_int),
        ('scanformat', ctypes.c_int),
        ('colorFormat', ctypes.c_int),
        ('chromaSubsampling', ChromaSubsampling),
        ('planes', MapPlaneParams * MAX_PLANES),
        ('reserved', ctypes.c_uint8 * 64),
    )


SurfacePointer = ctypes.POINTER(Surface)
