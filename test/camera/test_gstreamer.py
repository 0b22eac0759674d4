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
The GStreamer camera against a real GStreamer.

Its sources are GStreamer's own, and one of ours with buffers made of memfds.
"""

from __future__ import annotations

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
import pytest

from zc_perception.errors import AllocationError
from zc_perception.jetson.nvbufsurface import check_structs

CASES = ('gstreamer_cases.py', 'gstreamer_colour_cases.py', 'gstreamer_crop_cases.py')


@pytest.fixture(scope='module')
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    plugins = tmp_path_factory.mktemp('plugins')
    build_plugin(gstreamer(), 'gst_frames.c', plugins)
    return run_cases(CASES, tmp_path_factory.mktemp('gstreamer'), plugins)


@pytest.mark.parametrize('name', names_of(*CASES))
def test_with_gstreamer(name: str, outcome: Outcome) -> None:
    check(name, outcome)


# The Argus camera.


ARGUS_CASES = 'argus_cases.py'
GENERATIONS = {'R35': (), 'R39.2': ('-DNEWER_RELEASE',)}


def build(name: str, folder: Path, *options: str) -> str:
    """
    Compile a double.

    A library that is loaded once stays loaded, so each is a file of its own.
    """
    target = folder / f'lib{name}{"".join(options)}.so'
    subprocess.run(
        [
            'gcc',
            '-shared',
            '-fPIC',
            '-Wall',
            '-Werror',
            *options,
            '-o',
            target,
            DOUBLES / f'{name}.c',
        ],
        check=True,
    )
    return str(target)


@pytest.fixture(scope='module')
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    root, found = gstreamer(), {}
    for generation, options in GENERATIONS.items():
        folder, plugins = tmp_path_factory.mktemp('argus'), tmp_path_factory.mktemp('plugins')
        build_plugin(root, 'gst_argus.c', plugins, *options)
        variables = {
            'NVBUF_LIBRARY': build('nvbufsurface', folder, *options),
            'NVBUF_TRANSFORM': build('nvbufsurftransform', folder, *options),
            'ARGUS_DOUBLE': 'underscores' if generation == 'R35' else '',
        }
        found[generation] = run_cases([ARGUS_CASES], folder, plugins, variables)
    return found


@pytest.mark.parametrize('name', names_of(ARGUS_CASES))
@pytest.mark.parametrize('generation', GENERATIONS)
def test_with_gstreamer_of_argus(generation: str, name: str, outcomes: dict[str, Outcome]) -> None:
    check(name, outcomes[generation])


@pytest.mark.parametrize('generation', GENERATIONS)
def test_the_structs_of_both_generations_are_known(generation: str, tmp_path: Path) -> None:
    check_structs(build('nvbufsurface', tmp_path, *GENERATIONS[generation]))


@pytest.mark.parametrize(
    ('kind', 'words'),
    [
        (
            'MOVED_LIST',
            (
                r'has other structs than R35 to R39 \(no list of images 24 bytes inside of '
                r'NvBufSurface\)'
            ),
        ),
        (
            'MOVED_PLANES',
            r'has other structs than R35 to R39 \(0 planes of .* 48 bytes inside of its list\)',
        ),
    ],
)
def test_other_structs_are_refused_before_a_camera_is_opened(
    kind: str, words: str, tmp_path: Path
) -> None:
    with pytest.raises(AllocationError, match=words):
        check_structs(build('nvbufsurface', tmp_path, f'-D{kind}'))


@pytest.mark.parametrize(
    ('mode', 'words'),
    [
        ('refuse', r'could not allocate a trial image of 646x358 \(status -1\)'),
        ('block_linear', r'format and layout read \(646, 358, 7, 1\)'),
        ('other_format', r'format and layout read \(646, 358, 1, 0\)'),
        ('batch', 'a batch of 0'),
        ('no_fd', 'descriptor 1048576, which is not open'),
        ('outside', 'planes that end at'),
    ],
)
def test_what_the_trial_image_says_is_compared(
    mode: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = build('nvbufsurface', tmp_path)
    monkeypatch.setenv('NVBUF_DOUBLE', mode)
    with pytest.raises(AllocationError, match=words):
        check_structs(library)
