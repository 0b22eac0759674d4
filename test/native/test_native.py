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

"""Compiled steps and plain Python yield identical bits; without a compiler all still works."""

from __future__ import annotations

import os
from pathlib import Path
import shutil
import subprocess
import sys
import sysconfig
from types import ModuleType

from long_form import LONG
from native.two_forms import compare, compare_masks
import numpy as np
from processes import ran
import pytest

from zc_perception import native

ROOT = Path(__file__).resolve().parents[2]
CLIENT = ROOT / 'client'
SOURCES = [
    *sorted((ROOT / 'zc_perception/native').glob('*.c')),
    *(CLIENT / 'src' / f'{name}.c' for name in ('transport', 'wire')),
]
SUFFIX = sysconfig.get_config_var('EXT_SUFFIX')
FLAGS = (
    '-shared -fPIC -g -O1 -ffp-contract=off -Wall -Wextra -Wshadow -Werror '
    '-Wno-cast-function-type -DZC_NO_CLONES -fsanitize=address,undefined '
    '-fno-sanitize-recover=all'
)


# Pools, frames, queues and the link with steps from another build, COMPILED. It loads no module of
# the package earlier: each takes its compiled classes once, at import. Tests that fork are left
# out: if another thread allocates during the fork, the child waits for ever for a lock of the
# sanitizer's allocator.
OTHER_STEPS = """
import importlib.machinery, importlib.util, sys
import pytest

loader = importlib.machinery.ExtensionFileLoader('zc_perception.native.compiled', sys.argv[1])
spec = importlib.util.spec_from_loader(loader.name, loader)
sys.modules[loader.name] = importlib.util.module_from_spec(spec)
loader.exec_module(sys.modules[loader.name])
tests = 'memory/test_pool.py memory/test_pool_model.py test_frame.py test_frame_queue.py '
tests += 'link/shared_memory/test_shared_memory_server.py'
options = ('-q', '-x', '-p', 'no:cacheprovider', '-k', 'not forked')
sys.exit(pytest.main([*options, *(f'test/{name}' for name in tests.split())]))
"""


@pytest.fixture
def compiled() -> ModuleType:
    if native.compiled is None and shutil.which('cc') is None:
        pytest.skip('no C compiler: sudo apt install gcc python3-dev, then make env')
    assert native.compiled is not None, native.FORM
    return native.compiled


@pytest.mark.parametrize('seed', range(3))
def test_both_forms_find_the_same(compiled: ModuleType, seed: int) -> None:
    cases = 2_000 if LONG else 60
    assert compare(seed, cases, compiled) > 500
    assert compare_masks(seed, cases, compiled) > 10_000


def test_they_agree_under_the_sanitizers(tmp_path: Path) -> None:
    compiler = shutil.which('gcc')
    if compiler is None:
        pytest.skip('gcc is not installed: its sanitizers look at the compiled steps')
    target = tmp_path / f'compiled{SUFFIX}'
    include = sysconfig.get_paths()['include']
    folders = [f'-I{folder}' for folder in (include, CLIENT / 'include', CLIENT / 'src')]
    subprocess.run([compiler, *FLAGS.split(), *folders, *SOURCES, '-o', target], check=True)
    library = subprocess.check_output([compiler, '-print-file-name=libasan.so'], text=True).strip()
    environment = {
        **os.environ,
        'LD_PRELOAD': library,
        'ASAN_OPTIONS': 'detect_leaks=0',
        'PYTHONMALLOC': 'malloc',
        'PYTHONPATH': f'{ROOT / "test"}:{ROOT / "test/link/shared_memory"}:{ROOT}',
        'OPENBLAS_NUM_THREADS': '1',
    }
    for option, program, few, many in (
        ('-m', 'native.two_forms', 100, 2000),
        ('-m', 'two_receivers', 1000, 50000),
        ('-c', OTHER_STEPS, 0, 0),
    ):
        words = (option, program, target, 7, many if LONG else few)
        done = ran(sys.executable, *words, env=environment, cwd=ROOT, timeout=None)
        assert done.returncode == 0 and done.stdout, done.stdout + done.stderr


def test_what_does_not_fit_is_an_error_and_nothing_is_written(compiled: ModuleType) -> None:
    few, many = np.zeros(3, np.intp), np.zeros((4, 9), np.float32)
    numbers = np.zeros(9, np.float32)
    with pytest.raises(ValueError, match='room for all cells'):
        compiled.find(many, 0.0, few, few, numbers)
    read_only = np.zeros(4, np.intp)
    read_only.flags.writeable = False
    with pytest.raises((ValueError, BufferError)):
        compiled.find(many, 0.0, read_only, read_only, numbers)
    assert compiled.find(many.astype(np.float64), 0.0, few, few, numbers) == -1
    box, places, sources = (0.0,) * 6, np.zeros(9, np.intp), np.zeros((9, 4), np.float32)
    for corners, scores, classes, boxes in (
        (many[:3], numbers, None, sources),
        (many, numbers[:8], None, sources),
        (many[:, ::2], numbers[:5], None, sources),
        (many.astype(np.float64), numbers, None, sources),
        (many, numbers, few, sources),
        (many, numbers, None, sources[:8]),
    ):
        with pytest.raises(ValueError, match='suppress'):
            compiled.suppress(corners, scores, classes, box, 0.5, places, boxes)
    with pytest.raises(TypeError):
        compiled.suppress(many, numbers, None, (0.0,) * 5, 0.5, places, sources)
    labels, whole = np.zeros((8, 6), np.uint16), np.array([[0, 0, 6, 8]], np.int32)
    grids, weights, offset = (
        np.ones((3, 4, 5), np.float32),
        np.ones((1, 3), np.float32),
        numbers[:1],
    )
    across, down = (np.arange(n, dtype=np.int32) // 3 for n in (6, 8))
    fitting = [labels, whole, grids, weights, offset, across, numbers[:6], down, numbers[:8]]
    for place, wrong in (
        (0, labels.astype(np.int16)),
        (0, labels.T),
        (1, whole + np.int32(1)),
        (1, whole - np.int32(1)),
        (1, whole.astype(np.int64)),
        (2, grids[0]),
        (3, weights[:, :2]),
        (4, numbers[:2]),
        (5, across * np.int32(4)),
        (5, across - np.int32(1)),
        (6, numbers[:5]),
        (7, np.int32(3) - across),
        (8, numbers[:8].astype(np.float64)),
    ):
        with pytest.raises(ValueError, match='paint'):
            compiled.paint(*fitting[:place], wrong, *fitting[slice(place + 1, None)])
    for places in (whole + np.int32(1), whole.astype(np.float32)):
        with pytest.raises(ValueError, match='wipe'):
            compiled.wipe(labels, places)
    assert not labels.any()
    assert compiled.paint(*fitting[:2], grids.astype(np.float64), *fitting[3:]) is False
    assert compiled.paint(*fitting) is True and labels.all()


def test_without_a_compiler_it_is_built_and_runs_in_plain_python(tmp_path: Path) -> None:
    build = [sys.executable, 'setup.py', '-q', 'build', '--build-base', str(tmp_path / 'base')]
    without = {**os.environ, 'CC': '/bin/false'}
    done = ran(*build, '--build-lib', tmp_path / 'lib', cwd=ROOT, env=without)
    assert done.returncode == 0, done.stderr
    assert not list((tmp_path / 'lib').rglob('*.so'))
    program = (
        'import zc_perception.detection.heads, zc_perception.native as n; print(n.how_it_runs())'
    )
    for extra, why in (({}, 'no C compiler was found'), ({'ZC_PLAIN': '1'}, 'ZC_PLAIN is set')):
        variables = {**os.environ, 'PYTHONPATH': str(tmp_path / 'lib'), **extra}
        how = {'cwd': tmp_path / 'lib', 'env': variables, 'check': True}
        said = ran(sys.executable, '-c', program, **how).stdout
        assert said.startswith('plain Python (') and why in said
