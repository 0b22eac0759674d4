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
Structs and enums of ``libnvbufsurface`` and ``libnvbufsurftransform``.

Source: NvBufSurface and NvBufSurfTransform pages of the *Jetson Linux API Reference* (R35.3.1,
R35.6, R39.2); offsets as a C compiler lays out the documented fields
(``test/jetson/test_jetson_abi.py``). Later releases only add behind what is used here. Not run on
a Jetson.
"""

from __future__ import annotations

import ctypes
from enum import IntEnum, IntFlag

from zc_perception.c_structs import c_struct

LAYOUT_PITCH = 0
LAYOUT_BLOCK_LINEAR = 1
MEM_DEFAULT = 0
MEM_SURFACE_ARRAY = 4
MEM_HANDLE = 5
TAG_CAMERA = 0x200
TAG_VIDEO_CONVERT = 0xF01
MAP_READ = 0

# Below a name is the library's without ``NvBufSurface`` or ``NvBufSurf``. Some structs end with
# the last field that is used here.
CreateParams = c_struct(
    'u32 gpuId width height size; bool isContiguous; int colorFormat layout memType'
)
# Where chroma samples sit.
ChromaSubsampling = c_struct('u8 chromaLocHoriz chromaLocVert')
AllocateParams = c_struct(
    'params params; int displayscanformat; chroma chromaSubsampling; int memtag; bool '
    'disablePitchPadding; u32 _reservedParam; '
    'ptr[3] _reserved',
    params=CreateParams,
    chroma=ChromaSubsampling,
)
PlaneParams = c_struct(
    'u32 num_planes; u32[4] width height pitch offset psize bytesPerPix; ptr[16] _reserved'
)
_SURFACE = (
    'u32 width height pitch; int colorFormat layout; u64 bufferDesc; u32 dataSize; ptr '
    'dataPtr; planes planeParams'
)
# Its size differs between releases, so that only element 0 of a list may be read.
SurfaceParams = c_struct(_SURFACE, planes=PlaneParams)
Surface = c_struct(
    'u32 gpuId batchSize numFilled; bool isContiguous; int memType; list surfaceList',
    list=ctypes.POINTER(SurfaceParams),
)
SurfacePointer = ctypes.POINTER(Surface)
MappedAddr = c_struct('ptr[4] addr; ptr eglImage; ptr[4] _reserved')
# This far it is the same in R35 and R39.
MappedSurfaceParams = c_struct(
    f'{_SURFACE}; mapped mappedAddr', planes=PlaneParams, mapped=MappedAddr
)
MapPlaneParams = c_struct(
    'u32 width height pitch offset psize secondfieldoffset blockheightlog2; u64 flags; u8[64] '
    'reserved'
)
# All that another process needs to know of a buffer.
MapParams = c_struct(
    'u32 num_planes gpuId; u64 fd; u32 totalSize; int memType layout scanformat colorFormat; '
    'chroma chromaSubsampling; planes[4] planes; '
    'u8[64] reserved',
    chroma=ChromaSubsampling,
    planes=MapPlaneParams,
)
# In pixels.
TransformRect = c_struct('u32 top left width height')
# The last two don't count for the VIC.
TransformConfigParams = c_struct('int compute_mode; s32 gpu_id; ptr cuda_stream')
# One rectangle for each surface of the batch.
TransformParams = c_struct(
    'u32 transform_flag; int transform_flip transform_filter; rect src_rect dst_rect',
    rect=ctypes.POINTER(TransformRect),
)


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
