"""A C compiler says what V4L2's structs and requests are; ours must be the same."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest

from zc_perception.camera.v4l2 import abi

STRUCTS = {
    'v4l2_capability': abi.Capability,
    'v4l2_pix_format': abi.PixFormat,
    'v4l2_plane_pix_format': abi.PlanePixFormat,
    'v4l2_pix_format_mplane': abi.PixFormatMplane,
    'v4l2_format': abi.Format,
    'v4l2_fmtdesc': abi.FmtDesc,
    'v4l2_fract': abi.Fract,
    'v4l2_frmsize_discrete': abi.FrameSizeDiscrete,
    'v4l2_frmsize_stepwise': abi.FrameSizeStepwise,
    'v4l2_frmsizeenum': abi.FrameSizeEnum,
    'v4l2_frmival_stepwise': abi.FrameIntervalStepwise,
    'v4l2_frmivalenum': abi.FrameIntervalEnum,
    'v4l2_captureparm': abi.CaptureParm,
    'v4l2_streamparm': abi.StreamParm,
    'v4l2_requestbuffers': abi.RequestBuffers,
    'v4l2_timecode': abi.Timecode,
    'v4l2_plane': abi.Plane,
    'v4l2_buffer': abi.Buffer,
    'v4l2_exportbuffer': abi.ExportBuffer,
    'v4l2_query_ext_ctrl': abi.QueryExtCtrl,
    'v4l2_querymenu': abi.QueryMenu,
    'v4l2_ext_control': abi.ExtControl,
    'v4l2_ext_controls': abi.ExtControls,
    'v4l2_event_subscription': abi.EventSubscription,
    'v4l2_event': abi.Event,
    'v4l2_input': abi.Input,
    'v4l2_dv_timings': abi.DvTimings,
}
# Fields inside C's anonymous unions that are ours by another name.
MEMBERS = {
    ('v4l2_dv_timings', 'words'): 'reserved',
    ('v4l2_frmsizeenum', '_size'): 'stepwise',
    ('v4l2_frmivalenum', '_interval'): 'stepwise',
    ('v4l2_querymenu', '_item'): 'name',
    ('v4l2_ext_control', '_value'): 'value64',
}
PREFIXED = {
    name: value
    for name, value in vars(abi).items()
    if name.isupper() and isinstance(value, int) and not name.startswith('VIDIOC_') and name not in ('READ', 'WRITE', 'MAX_PLANES')
}
CONSTANTS = (
    {f'V4L2_{name}': value for name, value in PREFIXED.items()}
    | {'VIDEO_MAX_PLANES': abi.MAX_PLANES}
    | {name: value for name, value in vars(abi).items() if name.startswith('VIDIOC_')}
)


@pytest.fixture(scope='module')
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """What the compiler says, by expression."""
    expressions = [f'(long)({name})' for name in CONSTANTS]
    expressions += ['offsetof(struct v4l2_dv_timings, bt.width)', 'offsetof(struct v4l2_dv_timings, bt.height)']
    expressions += ['offsetof(struct v4l2_event, u.src_change.changes)', 'offsetof(struct v4l2_querymenu, value)']
    expressions += ['offsetof(struct v4l2_ext_control, value)']
    for name, struct in STRUCTS.items():
        expressions.append(f'sizeof(struct {name})')
        for field, *_ in struct._fields_:
            member = MEMBERS.get((name, field), field)
            expressions.append(f'offsetof(struct {name}, {member})')
            expressions.append(f'sizeof(((struct {name} *)0)->{member})')
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
        ours, theirs = getattr(struct, field), MEMBERS.get((name, field), field)
        assert ours.offset == compiled[f'offsetof(struct {name}, {theirs})'], field
        assert ours.size == compiled[f'sizeof(((struct {name} *)0)->{theirs})'], field


def test_the_size_of_dv_timings_is_where_we_read_it(compiled: dict[str, int]) -> None:
    words = abi.DvTimings.words.offset
    assert compiled['offsetof(struct v4l2_dv_timings, bt.width)'] == words
    assert compiled['offsetof(struct v4l2_dv_timings, bt.height)'] == words + 4


def test_the_menu_item_and_event_unions(compiled: dict[str, int]) -> None:
    assert compiled['offsetof(struct v4l2_event, u.src_change.changes)'] == abi.Event.u.offset
    assert compiled['offsetof(struct v4l2_querymenu, value)'] == abi.QueryMenu.value.offset
    assert compiled['offsetof(struct v4l2_ext_control, value)'] == abi.ExtControl.value.offset
