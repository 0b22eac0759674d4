"""The structs and numbers that the package reads by ctypes are what a C compiler makes of GStreamer's own headers."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest
from camera.gstreamer_process import gstreamer

from zc_perception.camera.gstreamer import abi

STRUCTS = {
    'GstMiniObject': (abi.MiniObject, {}),
    'GstBuffer': (abi.Buffer, {}),
    'GstMessage': (abi.Message, {}),
    'GstQuery': (abi.Query, {}),
    'GstPadProbeInfo': (abi.PadProbeInfo, {}),
    'GstMeta': (abi.Meta, {}),
    'GstVideoMeta': (abi.VideoMeta, {}),
    'GstVideoCropMeta': (abi.VideoCropMeta, {}),
    'GstVideoColorimetry': (abi.VideoColorimetry, {}),
    'GstVideoInfo': (abi.VideoInfo, {'reserved': 'ABI'}),
    'GstMapInfo': (abi.MapInfo, {'reserved': '_gst_reserved'}),
    'GError': (abi.Error, {}),
}
WHOLE = ('GstMiniObject', 'GstVideoInfo', 'GstMapInfo', 'GError', 'GstVideoColorimetry')
NUMBERS = {
    'GST_CLOCK_TIME_NONE': abi.CLOCK_TIME_NONE,
    'GST_BUFFER_OFFSET_NONE': abi.OFFSET_NONE,
    'GST_FORMAT_TIME': abi.FORMAT_TIME,
    'GST_MAP_READ': abi.MAP_READ,
    'GST_PARSE_FLAG_FATAL_ERRORS': abi.PARSE_FATAL_ERRORS,
    'GST_PARSE_ERROR_NO_SUCH_ELEMENT': abi.PARSE_NO_SUCH_ELEMENT,
    'GST_PAD_PROBE_TYPE_QUERY_DOWNSTREAM': abi.PROBE_QUERY_DOWNSTREAM,
    'GST_PAD_PROBE_OK': abi.PROBE_OK,
    'GST_PAD_PROBE_HANDLED': abi.PROBE_HANDLED,
    'GST_QUERY_ALLOCATION': abi.QUERY_ALLOCATION,
    'GST_BUFFER_FLAG_CORRUPTED': abi.BUFFER_CORRUPTED,
    'GST_VIDEO_MAX_PLANES': abi.MAX_PLANES,
    **{f'GST_STATE_{state.name}': state for state in abi.State},
    **{f'GST_STATE_CHANGE_{change.name}': change for change in abi.StateChange},
    **{f'GST_MESSAGE_{kind.name}': kind for kind in abi.MessageType},
    **{f'GST_RESOURCE_ERROR_{error.name}': error for error in abi.ResourceError},
}


@pytest.fixture(scope='module')
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    lines = ['#include <gst/gst.h>', '#include <gst/video/video.h>', '#include <stdio.h>', '#include <stddef.h>', 'int main(void) {']
    for c_struct, (ours, names) in STRUCTS.items():
        for field, *_ in ours._fields_:
            c_field = names.get(field, field)
            lines.append(f'printf("{c_struct}.{field} %zu %zu\\n", offsetof({c_struct}, {c_field}), sizeof((({c_struct} *)0)->{c_field}));')
        lines.append(f'printf("{c_struct} %zu 0\\n", sizeof({c_struct}));')
    lines += [f'printf("{name} %llu\\n", (unsigned long long){name});' for name in NUMBERS]
    folder = Path(tmp_path_factory.mktemp('abi'))
    (folder / 'layout.c').write_text('\n'.join([*lines, 'return 0; }']))
    root = gstreamer()
    subprocess.run(['gcc', '-o', folder / 'layout', folder / 'layout.c', *root.compiler_arguments()], check=True)
    environment = {'LD_LIBRARY_PATH': str(root.libraries)}
    answer = subprocess.run([folder / 'layout'], check=True, capture_output=True, text=True, env=environment).stdout
    return dict(line.split(' ', 1) for line in answer.splitlines())


@pytest.mark.parametrize('c_struct', STRUCTS)
def test_structs(c_struct: str, compiled: dict[str, str]) -> None:
    ours, _ = STRUCTS[c_struct]
    for field, *_ in ours._fields_:
        descriptor = getattr(ours, field)
        assert compiled[f'{c_struct}.{field}'] == f'{descriptor.offset} {descriptor.size}', field
    if c_struct in WHOLE:
        assert compiled[c_struct] == f'{ctypes.sizeof(ours)} 0'


@pytest.mark.parametrize('name', NUMBERS)
def test_numbers(name: str, compiled: dict[str, str]) -> None:
    assert int(compiled[name]) == int(NUMBERS[name])
