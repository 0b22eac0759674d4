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

"""Structs and enums of the NvBufSurface and NvBufSurfTransform doubles match the package's."""

from __future__ import annotations

import ctypes
from enum import IntEnum, IntFlag
from pathlib import Path

from doubles.c_layout import c_layout, differences, python_layout
import pytest

from zc_perception.jetson import nvbufsurface
from zc_perception.pixel.format_names import NvBufSurfaceFormat

HEADER = Path(__file__).resolve().parents[1] / 'doubles' / 'nvbufsurface.h'
RELEASES = {'R35': (), 'R39.2': ('-DNEWER_RELEASE',)}
STRUCTS: dict[str, type[ctypes.Structure]] = {
    'NvBufSurfaceChromaSubsamplingParams': nvbufsurface.ChromaSubsampling,
    'NvBufSurfaceCreateParams': nvbufsurface.CreateParams,
    'NvBufSurfaceAllocateParams': nvbufsurface.AllocateParams,
    'NvBufSurfacePlaneParams': nvbufsurface.PlaneParams,
    'NvBufSurfaceMappedAddr': nvbufsurface.MappedAddr,
    'NvBufSurfaceParams': nvbufsurface.MappedSurfaceParams,
    'NvBufSurface': nvbufsurface.Surface,
    'NvBufSurfaceMapPlaneParams': nvbufsurface.MapPlaneParams,
    'NvBufSurfaceMapParams': nvbufsurface.MapParams,
    'NvBufSurfTransformRect': nvbufsurface.TransformRect,
    'NvBufSurfTransformConfigParams': nvbufsurface.TransformConfigParams,
    'NvBufSurfTransformParams': nvbufsurface.TransformParams,
}
# The library makes these, and the package defines only their beginning. The rest is computed by
# hand for LP64.
RESTS = {
    'R35': {
        'NvBufSurfaceParams': (
            384,
            [['paramex', 352, 8, 'pointer'], ['_reserved', 360, 24, 'pointer[3]']],
        ),
        'NvBufSurface': (64, [['_reserved', 32, 32, 'pointer[4]']]),
    },
    'R39.2': {
        'NvBufSurfaceParams': (
            400,
            [
                ['paramex', 352, 8, 'pointer'],
                ['cudaBuffer', 360, 8, 'pointer'],
                ['_reserved', 368, 32, 'pointer[4]'],
            ],
        ),
        'NvBufSurface': (
            72,
            [['isImportedBuf', 32, 1, 'bool'], ['_reserved', 40, 32, 'pointer[4]']],
        ),
    },
}
#: With the prefix of their values' C names.
ENUMS: dict[str, tuple[type[IntEnum] | type[IntFlag], str]] = {
    'NvBufSurfaceColorFormat': (NvBufSurfaceFormat, 'NVBUF_COLOR_FORMAT_'),
    'NvBufSurfTransform_Compute': (nvbufsurface.TransformCompute, 'NvBufSurfTransformCompute_'),
    'NvBufSurfTransform_Inter': (nvbufsurface.TransformFilter, 'NvBufSurfTransformInter_'),
    'NvBufSurfTransform_Error': (nvbufsurface.TransformError, 'NvBufSurfTransformError_'),
    'NvBufSurfTransform_Transform_Flag': (nvbufsurface.TransformFlag, 'NVBUFSURF_TRANSFORM_'),
}
#: Enums of which the package uses one or two values: the double's part of the documented tables.
TABLES = {
    'NvBufSurfaceMemType': {
        'NVBUF_MEM_DEFAULT': 0, 'NVBUF_MEM_CUDA_PINNED': 1, 'NVBUF_MEM_CUDA_DEVICE': 2,
        'NVBUF_MEM_CUDA_UNIFIED': 3, 'NVBUF_MEM_SURFACE_ARRAY': 4,
    },
    'NvBufSurfaceLayout': {'NVBUF_LAYOUT_PITCH': 0, 'NVBUF_LAYOUT_BLOCK_LINEAR': 1},
    'NvBufSurfaceDisplayScanFormat': {
        'NVBUF_DISPLAYSCANFORMAT_PROGRESSIVE': 0, 'NVBUF_DISPLAYSCANFORMAT_INTERLACED': 1,
    },
    'NvBufSurfaceTag': {
        'NVBUF_TAG_NONE': 0, 'NVBUF_TAG_CAMERA': 0x200, 'NVBUF_TAG_VIDEO_CONVERT': 0xF01,
    },
    'NvBufSurfaceMemMapFlags': {
        'NVBUF_MAP_READ': 0, 'NVBUF_MAP_WRITE': 1, 'NVBUF_MAP_READ_WRITE': 2,
    },
    'NvBufSurfTransform_Flip': {'NvBufSurfTransform_None': 0, 'NvBufSurfTransform_Rotate90': 1},
}  # fmt: skip
#: The colour formats that the double accepts; the package supports more.
DOUBLE_S_FORMATS = {'GRAY8', 'NV12', 'NV12_ER', 'RGBA', 'NV12_709', 'NV12_709_ER'}
CONSTANTS = {
    'NVBUF_MEM_SURFACE_ARRAY': nvbufsurface.MEM_SURFACE_ARRAY,
    'NVBUF_LAYOUT_PITCH': nvbufsurface.LAYOUT_PITCH,
    'NVBUF_LAYOUT_BLOCK_LINEAR': nvbufsurface.LAYOUT_BLOCK_LINEAR,
    'NVBUF_TAG_CAMERA': nvbufsurface.TAG_CAMERA,
    'NVBUF_TAG_VIDEO_CONVERT': nvbufsurface.TAG_VIDEO_CONVERT,
    'NVBUF_MAP_READ': nvbufsurface.MAP_READ,
}


@pytest.mark.parametrize('release', RELEASES)
def test_python_and_c_agree(release: str, tmp_path: Path) -> None:
    theirs = c_layout(HEADER, 'NvBufSurf', tmp_path, RELEASES[release])
    constants = {
        name: value for values in theirs['enums'].values() for name, value in values.items()
    }
    assert {name: constants[name] for name in CONSTANTS} == CONSTANTS
    for c_enum, (enum, start) in ENUMS.items():
        values = theirs['enums'].pop(c_enum)
        there = {name.removeprefix(start).upper(): value for name, value in values.items()}
        here = {
            name: int(value)
            for name, value in enum.__members__.items()
            if enum is not NvBufSurfaceFormat or name in DOUBLE_S_FORMATS
        }
        assert there == here, c_enum
    ours = {**python_layout(STRUCTS, {}), 'enums': TABLES}
    assert differences(theirs, ours, RESTS[release]) == []
