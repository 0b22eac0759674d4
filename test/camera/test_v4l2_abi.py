"""A C compiler says what V4L2's structs and requests are; ours must be the same."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest

from zc_perception.camera import v4l2_abi as abi

STRUCTS = {
    'v4l2_capability': abi.Capability,
    'v4l2_pix_format': abi.PixFormat,
    'v4l2_format': abi.Format,
    'v4l2_fract': abi.Fract,
    'v4l2_captureparm': abi.CaptureParm,
    'v4l2_streamparm': abi.StreamParm,
    'v4l2_requestbuffers': abi.RequestBuffers,
    'v4l2_timecode': abi.Timecode,
    'v4l2_buffer': abi.Buffer,
    'v4l2_exportbuffer': abi.ExportBuffer,
    'v4l2_control': abi.Control,
}
CONSTANTS = {
    'V4L2_CAP_VIDEO_CAPTURE': abi.CAP_VIDEO_CAPTURE,
    'V4L2_CAP_STREAMING': abi.CAP_STREAMING,
    'V4L2_CAP_DEVICE_CAPS': abi.CAP_DEVICE_CAPS,
    'V4L2_BUF_TYPE_VIDEO_CAPTURE': abi.BUF_TYPE_VIDEO_CAPTURE,
    'V4L2_FIELD_NONE': abi.FIELD_NONE,
    'V4L2_MEMORY_MMAP': abi.MEMORY_MMAP,
    'V4L2_BUF_FLAG_ERROR': abi.BUF_FLAG_ERROR,
    'V4L2_BUF_FLAG_TIMESTAMP_MASK': abi.BUF_FLAG_TIMESTAMP_MASK,
    'V4L2_BUF_FLAG_TIMESTAMP_MONOTONIC': abi.BUF_FLAG_TIMESTAMP_MONOTONIC,
    'V4L2_CAP_TIMEPERFRAME': abi.CAP_TIMEPERFRAME,
    'V4L2_QUANTIZATION_FULL_RANGE': abi.QUANTIZATION_FULL_RANGE,
} | {name: value for name, value in vars(abi).items() if name.startswith('VIDIOC_')}


@pytest.fixture(scope='module')
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """What the compiler says, by expression."""
    expressions = [f'(long)({name})' for name in CONSTANTS]
    for name, struct in STRUCTS.items():
        expressions.append(f'sizeof(struct {name})')
        for field, *_ in struct._fields_:
            expressions.append(f'offsetof(struct {name}, {field})')
            expressions.append(f'sizeof(((struct {name} *)0)->{field})')
    folder: Path = tmp_path_factory.mktemp('abi')
    lines = '\n'.join(f'printf("%ld\\n", (long)({e}));' for e in expressions)
    (folder / 'abi.c').write_text(
        f'#include <stddef.h>\n#include <stdio.h>\n#include <linux/videodev2.h>\nint main(void) {{\n{lines}\nreturn 0; }}\n'
    )
    subprocess.run(['gcc', '-o', folder / 'abi', folder / 'abi.c'], check=True)
    values = subprocess.run([folder / 'abi'], check=True, capture_output=True, text=True).stdout.split()
    return dict(zip(expressions, map(int, values), strict=True))


@pytest.mark.parametrize('name', CONSTANTS)
def test_constants_and_requests(name: str, compiled: dict[str, int]) -> None:
    assert CONSTANTS[name] == compiled[f'(long)({name})'] & (1 << 64) - 1


@pytest.mark.parametrize('name', STRUCTS)
def test_structs(name: str, compiled: dict[str, int]) -> None:
    struct = STRUCTS[name]
    assert ctypes.sizeof(struct) == compiled[f'sizeof(struct {name})']
    for field, *_ in struct._fields_:
        member = getattr(struct, field)
        assert member.offset == compiled[f'offsetof(struct {name}, {field})'], field
        assert member.size == compiled[f'sizeof(((struct {name} *)0)->{field})'], field
