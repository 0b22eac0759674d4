"""Structs and enums of ``libnvbufsurface`` and ``libnvbufsurftransform``.

Source: NvBufSurface and NvBufSurfTransform pages of the *Jetson Linux API Reference* (R35.3.1, R35.6, R39.2); offsets as a C compiler lays
out the documented fields (``test/jetson/test_jetson_abi.py``). Later releases only add behind what is used here. Not run on a Jetson.
"""

from __future__ import annotations

import ctypes
from enum import IntEnum, IntFlag

MAX_PLANES = 4
LAYOUT_PITCH = 0
LAYOUT_BLOCK_LINEAR = 1
MEM_DEFAULT = 0
MEM_SURFACE_ARRAY = 4
MEM_HANDLE = 5
TAG_CAMERA = 0x200
TAG_VIDEO_CONVERT = 0xF01
MAP_READ = 0


class CreateParams(ctypes.Structure):
    """``NvBufSurfaceCreateParams``."""

    _fields_ = (
        ('gpuId', ctypes.c_uint32),
        ('width', ctypes.c_uint32),
        ('height', ctypes.c_uint32),
        ('size', ctypes.c_uint32),
        ('isContiguous', ctypes.c_bool),
        ('colorFormat', ctypes.c_int),
        ('layout', ctypes.c_int),
        ('memType', ctypes.c_int),
    )


class ChromaSubsampling(ctypes.Structure):
    """``NvBufSurfaceChromaSubsamplingParams``: where chroma samples sit."""

    _fields_ = (('chromaLocHoriz', ctypes.c_uint8), ('chromaLocVert', ctypes.c_uint8))


class AllocateParams(ctypes.Structure):
    """``NvBufSurfaceAllocateParams``."""

    _fields_ = (
        ('params', CreateParams),
        ('displayscanformat', ctypes.c_int),
        ('chromaSubsampling', ChromaSubsampling),
        ('memtag', ctypes.c_int),
        ('disablePitchPadding', ctypes.c_bool),
        ('_reservedParam', ctypes.c_uint32),
        ('_reserved', ctypes.c_void_p * 3),
    )


class PlaneParams(ctypes.Structure):
    """``NvBufSurfacePlaneParams``."""

    _fields_ = (
        ('num_planes', ctypes.c_uint32),
        ('width', ctypes.c_uint32 * MAX_PLANES),
        ('height', ctypes.c_uint32 * MAX_PLANES),
        ('pitch', ctypes.c_uint32 * MAX_PLANES),
        ('offset', ctypes.c_uint32 * MAX_PLANES),
        ('psize', ctypes.c_uint32 * MAX_PLANES),
        ('bytesPerPix', ctypes.c_uint32 * MAX_PLANES),
        ('_reserved', ctypes.c_void_p * (4 * MAX_PLANES)),
    )


class SurfaceParams(ctypes.Structure):
    """``NvBufSurfaceParams`` up to the plane table: its size differs between releases, so that only element 0 of a list may be read."""

    _fields_ = (
        ('width', ctypes.c_uint32),
        ('height', ctypes.c_uint32),
        ('pitch', ctypes.c_uint32),
        ('colorFormat', ctypes.c_int),
        ('layout', ctypes.c_int),
        ('bufferDesc', ctypes.c_uint64),
        ('dataSize', ctypes.c_uint32),
        ('dataPtr', ctypes.c_void_p),
        ('planeParams', PlaneParams),
    )


class Surface(ctypes.Structure):
    """``NvBufSurface`` up to the list of its surfaces."""

    _fields_ = (
        ('gpuId', ctypes.c_uint32),
        ('batchSize', ctypes.c_uint32),
        ('numFilled', ctypes.c_uint32),
        ('isContiguous', ctypes.c_bool),
        ('memType', ctypes.c_int),
        ('surfaceList', ctypes.POINTER(SurfaceParams)),
    )


SurfacePointer = ctypes.POINTER(Surface)


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
