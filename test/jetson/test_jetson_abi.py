"""The structs and enums of the NvBufSurface and NvBufSurfTransform doubles are the package's, as a C compiler lays them out."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from enum import IntEnum, IntFlag
from pathlib import Path

import pytest
from doubles.c_layout import Rest, c_layout, differences, is_noticed, python_layout

from zc_perception.jetson import abi
from zc_perception.pixel.format_names import NvBufSurfaceFormat

HEADER = Path(__file__).resolve().parents[1] / 'doubles' / 'nvbufsurface.h'
RELEASES = {'R35': (), 'R39.2': ('-DNEWER_RELEASE',)}
STRUCTS: dict[str, type[ctypes.Structure]] = {
    'NvBufSurfaceChromaSubsamplingParams': abi.ChromaSubsampling,
    'NvBufSurfaceCreateParams': abi.CreateParams,
    'NvBufSurfaceAllocateParams': abi.AllocateParams,
    'NvBufSurfacePlaneParams': abi.PlaneParams,
    'NvBufSurfaceMappedAddr': abi.MappedAddr,
    'NvBufSurfaceParams': abi.MappedSurfaceParams,
    'NvBufSurface': abi.Surface,
    'NvBufSurfaceMapPlaneParams': abi.MapPlaneParams,
    'NvBufSurfaceMapParams': abi.MapParams,
    'NvBufSurfTransformRect': abi.TransformRect,
    'NvBufSurfTransformConfigParams': abi.TransformConfigParams,
    'NvBufSurfTransformParams': abi.TransformParams,
}
#: The library makes these, and the package reads only their beginning. What follows there, computed by hand for LP64.
RESTS = {
    'R35': {
        'NvBufSurfaceParams': Rest(384, [['paramex', 352, 8, 'pointer'], ['_reserved', 360, 24, 'pointer[3]']]),
        'NvBufSurface': Rest(64, [['_reserved', 32, 32, 'pointer[4]']]),
    },
    'R39.2': {
        'NvBufSurfaceParams': Rest(
            400, [['paramex', 352, 8, 'pointer'], ['cudaBuffer', 360, 8, 'pointer'], ['_reserved', 368, 32, 'pointer[4]']]
        ),
        'NvBufSurface': Rest(72, [['isImportedBuf', 32, 1, 'bool'], ['_reserved', 40, 32, 'pointer[4]']]),
    },
}
ENUMS: dict[str, tuple[type[IntEnum] | type[IntFlag], Callable[[str], str]]] = {
    'NvBufSurfaceColorFormat': (NvBufSurfaceFormat, lambda name: name.removeprefix('NVBUF_COLOR_FORMAT_')),
    'NvBufSurfTransform_Compute': (abi.TransformCompute, lambda name: name.removeprefix('NvBufSurfTransformCompute_').upper()),
    'NvBufSurfTransform_Inter': (abi.TransformFilter, lambda name: name.removeprefix('NvBufSurfTransformInter_').upper()),
    'NvBufSurfTransform_Error': (abi.TransformError, lambda name: name.removeprefix('NvBufSurfTransformError_').upper()),
    'NvBufSurfTransform_Transform_Flag': (abi.TransformFlag, lambda name: name.removeprefix('NVBUFSURF_TRANSFORM_')),
}
#: Enums of which the package uses a value or two: what the double has of the documented tables.
TABLES = {
    'NvBufSurfaceMemType': {
        f'NVBUF_MEM_{name}': value for value, name in enumerate(('DEFAULT', 'CUDA_PINNED', 'CUDA_DEVICE', 'CUDA_UNIFIED', 'SURFACE_ARRAY'))
    },
    'NvBufSurfaceLayout': {'NVBUF_LAYOUT_PITCH': 0, 'NVBUF_LAYOUT_BLOCK_LINEAR': 1},
    'NvBufSurfaceDisplayScanFormat': {'NVBUF_DISPLAYSCANFORMAT_PROGRESSIVE': 0, 'NVBUF_DISPLAYSCANFORMAT_INTERLACED': 1},
    'NvBufSurfaceTag': {'NVBUF_TAG_NONE': 0, 'NVBUF_TAG_CAMERA': 0x200, 'NVBUF_TAG_VIDEO_CONVERT': 0xF01},
    'NvBufSurfaceMemMapFlags': {'NVBUF_MAP_READ': 0, 'NVBUF_MAP_WRITE': 1, 'NVBUF_MAP_READ_WRITE': 2},
    'NvBufSurfTransform_Flip': {'NvBufSurfTransform_None': 0, 'NvBufSurfTransform_Rotate90': 1},
}
#: The colour formats that the double takes; the package knows more of them.
DOUBLE_S_FORMATS = {'GRAY8', 'NV12', 'NV12_ER', 'RGBA', 'NV12_709', 'NV12_709_ER'}
CONSTANTS = {
    'NVBUF_MEM_SURFACE_ARRAY': abi.MEM_SURFACE_ARRAY,
    'NVBUF_LAYOUT_PITCH': abi.LAYOUT_PITCH,
    'NVBUF_LAYOUT_BLOCK_LINEAR': abi.LAYOUT_BLOCK_LINEAR,
    'NVBUF_TAG_CAMERA': abi.TAG_CAMERA,
    'NVBUF_TAG_VIDEO_CONVERT': abi.TAG_VIDEO_CONVERT,
    'NVBUF_MAP_READ': abi.MAP_READ,
}


def compare(header: Path, folder: Path, release: str = 'R35') -> list[str]:
    theirs = c_layout(header, 'NvBufSurf', folder, RELEASES[release])
    constants = {name: value for values in theirs['enums'].values() for name, value in values.items()}
    found = [f'{name} is {constants.get(name)} in C, {value} here' for name, value in CONSTANTS.items() if constants.get(name) != value]
    for c_enum, (enum, name_of) in ENUMS.items():
        there = {name_of(name): value for name, value in theirs['enums'].pop(c_enum).items()}
        here = {name: int(value) for name, value in enum.__members__.items() if enum is not NvBufSurfaceFormat or name in DOUBLE_S_FORMATS}
        if there != here:
            found.append(f'{c_enum}: C {there}, Python {here}')
    ours = python_layout(STRUCTS, {})
    return found + differences(theirs, {**ours, 'enums': TABLES}, RESTS[release])


@pytest.mark.parametrize('release', RELEASES)
def test_python_and_c_agree(release: str, tmp_path: Path) -> None:
    assert compare(HEADER, tmp_path, release) == []


def test_the_offsets_are_those_of_the_facts() -> None:
    """Computed once from the documented fields by someone else."""
    assert [ctypes.sizeof(s) for s in (abi.PlaneParams, abi.CreateParams, abi.AllocateParams)] == [232, 32, 80]
    assert (ctypes.sizeof(abi.MapPlaneParams), ctypes.sizeof(abi.MapParams)) == (104, 520)
    mapped = abi.MappedSurfaceParams
    assert (mapped.bufferDesc.offset, mapped.planeParams.offset, mapped.mappedAddr.offset) == (24, 48, 280)
    assert (abi.Surface.surfaceList.offset, abi.MapParams.planes.offset, abi.MapParams.reserved.offset) == (24, 40, 456)
    assert (ctypes.sizeof(abi.TransformParams), ctypes.sizeof(abi.TransformConfigParams)) == (32, 16)


MUTATIONS = {
    'a member less': ('\tuint32_t secondfieldoffset;\n', ''),
    'a member more': ('\tuint32_t transform_flag;\n', '\tuint32_t transform_flag;\n\tuint32_t more;\n'),
    'two members swapped': ('\tuint32_t top;\n\tuint32_t left;\n', '\tuint32_t left;\n\tuint32_t top;\n'),
    'a member renamed': ('\tint32_t gpu_id;', '\tint32_t device;'),
    'a wider member': ('\tuint32_t totalSize;', '\tuint64_t totalSize;'),
    'another sign': ('\tint32_t gpu_id;', '\tuint32_t gpu_id;'),
    'a narrower descriptor': ('\tuint64_t bufferDesc;', '\tuint32_t bufferDesc;'),
    'a bool made an int': ('\tbool disablePitchPadding;', '\tint disablePitchPadding;'),
    'more planes': ('NVBUF_MAX_PLANES 4', 'NVBUF_MAX_PLANES 6'),
    'longer reserves': ('STRUCTURE_PADDING 4', 'STRUCTURE_PADDING 6'),
    'an unknown end': ('\tvoid *paramex;', '\tvoid *paramex;\n\tvoid *another;'),
    'a shorter end': ('\tvoid *paramex;\n', ''),
    'a later release without its pointer': ('\tvoid *cudaBuffer;\n', ''),
    'a later release with a shorter reserve': ('\tvoid *cudaBuffer;\n\tvoid *_reserved[STRUCTURE_PADDING];\n', '\tvoid *cudaBuffer;\n'),
    'an earlier release without its reserve': ('#else\n\tvoid *_reserved[STRUCTURE_PADDING - 1];\n', '#else\n'),
    'a later list without its flag': ('\tbool isImportedBuf;\n', ''),
    'a later list with another flag': ('\tbool isImportedBuf;', '\tint isImportedBuf;'),
    'a list without its reserve': ('#endif\n\tvoid *_reserved[STRUCTURE_PADDING];\n} NvBufSurface;', '#endif\n} NvBufSurface;'),
    'a device less': ('\tNvBufSurfTransformCompute_VIC,\n', ''),
    'a filter less': ('\tNvBufSurfTransformInter_Bilinear,\n', ''),
    'no rotation': ('\tNvBufSurfTransform_Rotate90,\n', ''),
    'nothing but rotation': ('\tNvBufSurfTransform_None,\n', ''),
    'a flag less': ('\tNVBUFSURF_TRANSFORM_FLIP = 1 << 3,\n', ''),
    'a colour format less': ('\tNVBUF_COLOR_FORMAT_GRAY8 = 1,\n', ''),
    'an access less': ('\tNVBUF_MAP_READ_WRITE,\n', ''),
    'another flag': ('NVBUFSURF_TRANSFORM_FILTER = 1 << 2', 'NVBUFSURF_TRANSFORM_FILTER = 1 << 4'),
    'another error': ('NvBufSurfTransformError_ROI_Error = -4', 'NvBufSurfTransformError_ROI_Error = -5'),
    'another colour format': ('NVBUF_COLOR_FORMAT_RGBA = 19', 'NVBUF_COLOR_FORMAT_RGBA = 20'),
    'another memory': ('\tNVBUF_MEM_CUDA_PINNED,\n', ''),
    'another tag': ('NVBUF_TAG_CAMERA = 0x200', 'NVBUF_TAG_CAMERA = 0x201'),
    'a new struct': ('typedef struct CUstream_st', 'typedef struct {\n\tint more;\n} NvBufSurfMore;\ntypedef struct CUstream_st'),
}


@pytest.mark.parametrize('mutation', MUTATIONS.values(), ids=MUTATIONS)
def test_a_changed_header_is_noticed(mutation: tuple[str, str], tmp_path: Path) -> None:
    assert is_noticed(mutation, HEADER, tmp_path, lambda header: any(compare(header, tmp_path, release) for release in RELEASES))


def test_a_changed_module_is_noticed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Rect(ctypes.Structure):
        _fields_ = tuple((name, ctypes.c_uint32) for name in ('left', 'top', 'width', 'height'))

    monkeypatch.setitem(STRUCTS, 'NvBufSurfTransformRect', Rect)
    assert len(compare(HEADER, tmp_path)) == 1


def test_all_structs_of_the_module_are_compared() -> None:
    defined = {value for value in vars(abi).values() if isinstance(value, type) and issubclass(value, ctypes.Structure)}
    # SurfaceParams is the beginning of MappedSurfaceParams.
    assert defined - {abi.SurfaceParams} == set(STRUCTS.values())
