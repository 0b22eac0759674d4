"""The structs and enums of the NvBufSurface and NvBufSurfTransform doubles are the package's, as a C compiler lays them out."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from enum import IntEnum, IntFlag
from pathlib import Path

import pytest
from doubles.c_layout import Layout, c_layout, differences, python_layout

from zc_perception.memory import nvbufsurface, vic_abi
from zc_perception.pixel.format_names import NvBufSurfaceFormat

HEADER = Path(__file__).resolve().parents[1] / 'doubles' / 'nvbufsurface.h'
RELEASES = {'R35': (), 'R39.2': ('-DNEWER_RELEASE',)}
STRUCTS: dict[str, type[ctypes.Structure]] = {
    'NvBufSurfaceChromaSubsamplingParams': nvbufsurface.ChromaSubsampling,
    'NvBufSurfaceCreateParams': nvbufsurface.CreateParams,
    'NvBufSurfaceAllocateParams': nvbufsurface.AllocateParams,
    'NvBufSurfacePlaneParams': nvbufsurface.PlaneParams,
    'NvBufSurfaceMappedAddr': vic_abi.MappedAddr,
    'NvBufSurfaceParams': vic_abi.MappedSurfaceParams,
    'NvBufSurface': nvbufsurface.Surface,
    'NvBufSurfaceMapPlaneParams': vic_abi.MapPlaneParams,
    'NvBufSurfaceMapParams': vic_abi.MapParams,
    'NvBufSurfTransformRect': vic_abi.TransformRect,
    'NvBufSurfTransformConfigParams': vic_abi.TransformConfigParams,
    'NvBufSurfTransformParams': vic_abi.TransformParams,
}
#: The library makes these, and the package reads only their beginning.
BEGINNINGS = {
    'NvBufSurfaceParams': ('paramex', 'cudaBuffer', '_reserved'),
    'NvBufSurface': ('isImportedBuf', '_reserved'),
}
ENUMS: dict[str, tuple[type[IntEnum] | type[IntFlag], Callable[[str], str]]] = {
    'NvBufSurfaceColorFormat': (NvBufSurfaceFormat, lambda name: name.removeprefix('NVBUF_COLOR_FORMAT_')),
    'NvBufSurfTransform_Compute': (vic_abi.TransformCompute, lambda name: name.removeprefix('NvBufSurfTransformCompute_').upper()),
    'NvBufSurfTransform_Inter': (vic_abi.TransformFilter, lambda name: name.removeprefix('NvBufSurfTransformInter_').upper()),
    'NvBufSurfTransform_Error': (vic_abi.TransformError, lambda name: name.removeprefix('NvBufSurfTransformError_').upper()),
    'NvBufSurfTransform_Transform_Flag': (vic_abi.TransformFlag, lambda name: name.removeprefix('NVBUFSURF_TRANSFORM_')),
}
CONSTANTS = {
    'NVBUF_MEM_SURFACE_ARRAY': nvbufsurface.MEM_SURFACE_ARRAY,
    'NVBUF_LAYOUT_PITCH': nvbufsurface.LAYOUT_PITCH,
    'NVBUF_LAYOUT_BLOCK_LINEAR': vic_abi.LAYOUT_BLOCK_LINEAR,
    'NVBUF_TAG_CAMERA': nvbufsurface.TAG_CAMERA,
    'NVBUF_TAG_VIDEO_CONVERT': vic_abi.TAG_VIDEO_CONVERT,
    'NVBUF_MAP_READ': vic_abi.MAP_READ,
}


def compare(header: Path, folder: Path, options: tuple[str, ...] = ()) -> list[str]:
    theirs = c_layout(header, 'NvBufSurf', folder, options)
    constants = {name: value for values in theirs['enums'].values() for name, value in values.items()}
    found = [f'{name} is {constants.get(name)} in C, {value} here' for name, value in CONSTANTS.items() if constants.get(name) != value]
    for c_enum, (enum, name_of) in ENUMS.items():
        for c_name, value in theirs['enums'][c_enum].items():
            ours = enum.__members__.get(name_of(c_name))
            if ours is None or int(ours) != value:
                found.append(f'{c_name} is {value} in C, {ours} here')
    layout: Layout = {'structs': theirs['structs'], 'enums': {}}
    return found + differences(layout, python_layout(STRUCTS, {}), BEGINNINGS)


@pytest.mark.parametrize('release', RELEASES)
def test_python_and_c_agree(release: str, tmp_path: Path) -> None:
    assert compare(HEADER, tmp_path, RELEASES[release]) == []


def test_the_offsets_are_those_of_the_facts() -> None:
    """Computed once from the documented fields by someone else."""
    assert [ctypes.sizeof(s) for s in (nvbufsurface.PlaneParams, nvbufsurface.CreateParams, nvbufsurface.AllocateParams)] == [232, 32, 80]
    assert (ctypes.sizeof(vic_abi.MapPlaneParams), ctypes.sizeof(vic_abi.MapParams)) == (104, 520)
    mapped = vic_abi.MappedSurfaceParams
    assert (mapped.bufferDesc.offset, mapped.planeParams.offset, mapped.mappedAddr.offset) == (24, 48, 280)
    assert (nvbufsurface.Surface.surfaceList.offset, vic_abi.MapParams.planes.offset, vic_abi.MapParams.reserved.offset) == (24, 40, 456)
    assert (ctypes.sizeof(vic_abi.TransformParams), ctypes.sizeof(vic_abi.TransformConfigParams)) == (32, 16)


def test_the_two_beginnings_of_a_surface_s_parameters_are_one() -> None:
    longer = vic_abi.MappedSurfaceParams._fields_
    assert nvbufsurface.SurfaceParams._fields_ == longer[:-1] and longer[-1][0] == 'mappedAddr'


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
    'another flag': ('NVBUFSURF_TRANSFORM_FILTER = 1 << 2', 'NVBUFSURF_TRANSFORM_FILTER = 1 << 4'),
    'another error': ('NvBufSurfTransformError_ROI_Error = -4', 'NvBufSurfTransformError_ROI_Error = -5'),
    'another colour format': ('NVBUF_COLOR_FORMAT_RGBA = 19', 'NVBUF_COLOR_FORMAT_RGBA = 20'),
    'another memory': ('\tNVBUF_MEM_CUDA_PINNED,\n', ''),
    'another tag': ('NVBUF_TAG_CAMERA = 0x200', 'NVBUF_TAG_CAMERA = 0x201'),
    'a new struct': ('typedef struct CUstream_st', 'typedef struct {\n\tint more;\n} NvBufSurfMore;\ntypedef struct CUstream_st'),
}


@pytest.mark.parametrize('what', MUTATIONS)
def test_a_changed_header_is_noticed(what: str, tmp_path: Path) -> None:
    text = HEADER.read_text(encoding='utf-8')
    before, after = MUTATIONS[what]
    assert before in text, f'the mutation {what!r} does not apply any more'
    changed = tmp_path / 'nvbufsurface.h'
    changed.write_text(text.replace(before, after, 1), encoding='utf-8')
    try:
        found = compare(changed, tmp_path)
    except (AssertionError, subprocess.CalledProcessError):
        return
    assert found


def test_a_changed_module_is_noticed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Rect(ctypes.Structure):
        _fields_ = tuple((name, ctypes.c_uint32) for name in ('left', 'top', 'width', 'height'))

    monkeypatch.setitem(STRUCTS, 'NvBufSurfTransformRect', Rect)
    assert len(compare(HEADER, tmp_path)) == 1


def test_all_structs_of_both_modules_are_compared() -> None:
    defined = {
        value for module in (nvbufsurface, vic_abi) for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, ctypes.Structure)
    }  # fmt: skip
    # The shorter beginning of NvBufSurfaceParams has a test of its own.
    assert defined - {nvbufsurface.SurfaceParams} == set(STRUCTS.values())
