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

"""The GStreamer camera with a real GStreamer; one source has memfds as buffers."""

from __future__ import annotations

import ctypes
from pathlib import Path
import subprocess

from camera.gstreamer_process import (
    build_plugin,
    check,
    DOUBLES,
    gstreamer,
    names_of,
    Outcome,
    run_cases,
)
from doubles.c_layout import struct_expressions, wrong_values
import pytest

from zc_perception.camera.gstreamer import abi

CASES = 'gstreamer_cases.py'


@pytest.fixture(scope='module')
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    plugins = tmp_path_factory.mktemp('plugins')
    build_plugin(gstreamer(), 'gst_frames.c', plugins)
    return run_cases([CASES], tmp_path_factory.mktemp('gstreamer'), plugins)


@pytest.mark.parametrize('name', names_of(CASES))
def test_with_gstreamer(name: str, outcome: Outcome) -> None:
    check(name, outcome)


ARGUS_CASES = 'argus_cases.py'
GENERATIONS = {'R35': (), 'R39.2': ('-DNEWER_RELEASE',)}
OF_BOTH = (
    'test_frames_are_the_surfaces_themselves',
    'test_the_vic_makes_a_linear_image_where_a_consumer_needs_one_and_that_is_counted',
)


def build(name: str, folder: Path, *options: str) -> str:
    """Compile a double; each is a file of its own, because loaded libraries stay loaded."""
    target = folder / f'lib{name}{"".join(options)}.so'
    flags = ['-shared', '-fPIC', '-Wall', '-Werror', *options]
    subprocess.run(['gcc', *flags, '-o', target, DOUBLES / f'{name}.c'], check=True)
    return str(target)


@pytest.fixture(scope='module')
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """Run all cases with the newer structs, and those that read structs with the older, too."""
    root, found = gstreamer(), {}
    for generation, options in GENERATIONS.items():
        folder, plugins = tmp_path_factory.mktemp('argus'), tmp_path_factory.mktemp('plugins')
        build_plugin(root, 'gst_argus.c', plugins, *options)
        variables = {
            'NVBUF_LIBRARY': build('nvbufsurface', folder, *options),
            'NVBUF_TRANSFORM': build('nvbufsurftransform', folder, *options),
            'ARGUS_DOUBLE': 'underscores' if generation == 'R35' else '',
        }
        cases = [f'{ARGUS_CASES}::{name}' for name in OF_BOTH] if generation == 'R35' else None
        found[generation] = run_cases(cases or [ARGUS_CASES], folder, plugins, variables)
    return found


@pytest.mark.parametrize(
    ('generation', 'name'),
    [('R39.2', name) for name in names_of(ARGUS_CASES)] + [('R35', name) for name in OF_BOTH],
)
def test_with_gstreamer_of_argus(generation: str, name: str, outcomes: dict[str, Outcome]) -> None:
    check(name, outcomes[generation])


# Compare structs and constants in ctypes with those of a C compiler.


# GstObject's first fields are another struct's in C; GstAllocator's offsets show its size.
STRUCTS = {
    f'Gst{name}' if name != 'Error' else 'GError': each
    for name, each in vars(abi).items()
    if isinstance(each, type) and issubclass(each, ctypes.Structure) and name != 'Object'
}
# Fields that have another name in C.
MEMBERS = {'GstVideoInfo': {'reserved': 'ABI'}, 'GstMapInfo': {'reserved': '_gst_reserved'}}
WHOLE = ('GstMiniObject', 'GstVideoInfo', 'GstMapInfo', 'GError', 'GstVideoColorimetry')
SAME = ('CLOCK_TIME_NONE', 'FORMAT_TIME', 'MAP_READ', 'QUERY_ALLOCATION', 'QUERY_CAPS')
NUMBERS = {
    **{f'GST_{name}': getattr(abi, name) for name in (*SAME, 'CAPS_INTERSECT_FIRST')},
    'GST_BUFFER_OFFSET_NONE': abi.OFFSET_NONE,
    'GST_PARSE_FLAG_FATAL_ERRORS': abi.PARSE_FATAL_ERRORS,
    'GST_PARSE_ERROR_NO_SUCH_ELEMENT': abi.PARSE_NO_SUCH_ELEMENT,
    'GST_PAD_PROBE_TYPE_QUERY_DOWNSTREAM': abi.PROBE_QUERY_DOWNSTREAM,
    'GST_PAD_PROBE_OK': abi.PROBE_OK, 'GST_PAD_PROBE_HANDLED': abi.PROBE_HANDLED,
    'GST_BUFFER_FLAG_CORRUPTED': abi.BUFFER_CORRUPTED,
    'GST_BUFFER_FLAG_DELTA_UNIT': abi.BUFFER_DELTA_UNIT,
    'GST_MEMORY_FLAG_READONLY': abi.MEMORY_READONLY, 'GST_VIDEO_MAX_PLANES': abi.MAX_PLANES,
    **{f'GST_STATE_{state.name}': state for state in abi.State},
    **{f'GST_STATE_CHANGE_{change.name}': change for change in abi.StateChange},
    **{f'GST_MESSAGE_{kind.name}': kind for kind in abi.MessageType},
    **{f'GST_RESOURCE_ERROR_{error.name}': error for error in abi.ResourceError},
}  # fmt: skip


def test_structs_and_numbers_are_those_of_the_headers(tmp_path: Path) -> None:
    ours = {name: int(value) for name, value in NUMBERS.items()}
    for name, struct in STRUCTS.items():
        ours |= struct_expressions(name, struct, MEMBERS.get(name, {}))
    ours |= {f'sizeof({name})': ctypes.sizeof(STRUCTS[name]) for name in WHOLE}
    root, headers = gstreamer(), ['gst/gst.h', 'gst/video/video.h']
    libraries = {'LD_LIBRARY_PATH': str(root.libraries)}
    assert wrong_values(ours, headers, tmp_path, root.compiler_arguments(), env=libraries) == {}
