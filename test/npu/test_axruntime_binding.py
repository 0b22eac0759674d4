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
Both interfaces of the Voyager runtime: which is taken, and that they give the same results.

Also cores, and parts that don't fit together.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from pathlib import Path
import subprocess
import sys
from typing import Any

from npu.axruntime_kit import Double, model, number_in, numbered, Open, start, WAIT_S
from npu.scheduler_kit import MakeFrame, MakePool
import numpy as np
from numpy.typing import NDArray
import pytest

from zc_perception.errors import AcceleratorError, ConfigError, DeviceLostError
from zc_perception.frame import Frame
from zc_perception.npu.axruntime import accelerator as axruntime
from zc_perception.npu.axruntime import library as axruntime_library
from zc_perception.npu.axruntime import runtime as axruntime_runtime
from zc_perception.npu.axruntime.accelerator import AxRuntimeAccelerator
from zc_perception.npu.axruntime.library import mismatches, needs_toolchain
from zc_perception.npu.axruntime.worker import AxRuntimeJob

pytestmark = pytest.mark.usefixtures('no_fd_leak')


@pytest.fixture
def open_accelerator(open_axruntime: Open) -> Open:
    return partial(open_axruntime, flush_after_s=0.005)


@pytest.fixture
def installed(double: Double, monkeypatch: pytest.MonkeyPatch) -> Double:
    """Install the C library where the system has it."""
    monkeypatch.setattr(axruntime_library, 'candidates', lambda library: [library or double.path])
    return double


def noise(luma: NDArray[np.uint8], chroma: NDArray[np.uint8]) -> None:
    random = np.random.default_rng(5)
    luma[:] = (
        random.integers(0, 256, (luma.shape[0] // 8, luma.shape[1] // 8), np.uint8)
        .repeat(8, 0)
        .repeat(8, 1)
    )
    chroma[:] = (
        random.integers(0, 256, (*chroma.shape[:2],), np.uint8)[..., None]
        if chroma.ndim == 3
        else 128
    )


def raw_results(accelerator: AxRuntimeAccelerator, frame: Frame) -> list[NDArray[Any]]:
    job = start(accelerator, frame)
    assert job.fence.wait(WAIT_S)
    values = [output.values.copy() for output in job.outputs()]
    job.close()
    return values


@pytest.mark.parametrize('double_buffer', [False, True], ids=['single', 'double'])
@pytest.mark.parametrize(
    ('output_dmabuf', 'refused'),
    [('auto', 0), ('false', 0), ('auto', 2)],
    ids=['auto', 'false', 'refused'],
)
def test_both_interfaces_give_the_same_results(
    output_dmabuf: str, refused: int, double_buffer: bool,
    binding: Any, double: Double, open_accelerator: Open, make_frame: MakeFrame, tmp_path: Path,
) -> None:  # fmt: skip
    binding.double.refuse_output_dmabuf, double.refuse_output_dmabuf = bool(refused), refused
    frame = make_frame(width=64, height=64, fill=noise)
    results = []
    for library in ('', double.path):
        accelerator = open_accelerator(
            axruntime_library=library, double_buffer=double_buffer, output_dmabuf=output_dmabuf
        )
        accelerator.load(model(tmp_path))
        results.append((accelerator.facts()['interface'], raw_results(accelerator, frame)))
        facts = accelerator.facts()
        assert (facts['input_dmabuf'], facts['output_dmabuf'], facts['postamble_graph']) == (
            True, output_dmabuf == 'auto' and not refused, 'postprocess_graph.onnx',
        )  # fmt: skip
        assert any('outputs are MMIO' in notice for notice in accelerator.notices()) == bool(
            refused
        )
        accelerator.close()
    assert [interface for interface, _ in results] == ['python', 'c']
    for by_binding, by_library in zip(results[0][1], results[1][1], strict=True):
        assert np.array_equal(by_binding, by_library)
    frame.release()


@pytest.mark.parametrize('interface', ['python', 'c'])
@pytest.mark.parametrize(('cores', 'double_buffer'), [(0, False), (2, True), (4, False)])
def test_each_core_has_a_connection_a_thread_and_its_own_frames(
    cores: int,
    double_buffer: bool,
    interface: str,
    binding: Any,
    installed: Double,
    open_accelerator: Open,
    make_pool: MakePool,
    make_frame: MakeFrame,
    tmp_path: Path,
) -> None:
    binding.double.run_s = 0.002
    accelerator = open_accelerator(
        axruntime_library='' if interface == 'python' else installed.path,
        aipu_cores=cores,
        double_buffer=double_buffer,
    )
    accelerator.load(model(tmp_path))
    limit, cores = accelerator.capabilities().max_in_flight, cores or 1
    assert limit == cores * (3 if double_buffer else 2)
    assert len(accelerator.hot_threads()) == 2 * cores
    if interface == 'python':
        taken = binding.double.options[-cores:]
        assert binding.double.used_sub_devices == cores
        assert [
            (connected, options['aipu_cores'], options['num_sub_devices'])
            for connected, options in taken
        ] == [(1, 1, 1)] * cores
    else:
        assert (installed.used_sub_devices()[0], installed.instances) == (cores, cores)
    pool = make_pool(64, 64, slots=limit)
    jobs: deque[tuple[Frame, AxRuntimeJob]] = deque()
    seen = []

    def take() -> None:
        done, job = jobs.popleft()
        assert job.fence.wait(WAIT_S)
        seen.append((done.data.sequence, number_in(job.outputs())))
        job.close()
        done.release()

    for number in range(120):
        frame = make_frame(pool, sequence=number, fill=numbered(number))
        jobs.append((frame, start(accelerator, frame)))
        if len(jobs) == limit:
            take()
    while jobs:
        take()
    assert seen == [(number, number) for number in range(120)]
    if interface == 'python':
        assert len(binding.double.used_connections) == cores
    notices = ' '.join(accelerator.notices())
    assert (f'set in_flight to {limit}' in notices) == (cores > 1)
    assert accelerator.facts()['aipu_cores'] == cores


def test_the_binding_is_preferred(binding: Any, installed: Double, open_accelerator: Open) -> None:
    facts = open_accelerator(accelerator_device='metis-1-3-0').facts()
    assert (
        facts['interface'],
        facts['runtime'],
        facts['runtime_api'],
        facts['python_binding'],
        facts['device'],
    ) == ('python', 'axelera.runtime', '1.8.0', 'used', 'metis-1:3:0')
    assert (
        open_accelerator(axruntime_library=installed.path).facts()['python_binding']
        == 'axruntime_library names the C library'
    )


@pytest.mark.parametrize(
    ('source', 'words'),
    [
        (None, 'Python package axelera-runtime (axelera.runtime) is not installed'),
        (
            'import axelera_missing',
            "axelera.runtime can't be imported: No module named 'axelera_missing'",
        ),
        (
            'raise OSError("libaxruntime.so: cannot\\n open shared object")',
            "can't be imported: OSError: libaxruntime.so: cannot open",
        ),
        (
            'raise RuntimeError("made for Python 3.13")',
            "can't be imported: RuntimeError: made for Python 3.13",
        ),
        ('', 'axelera.runtime has no Context'),
    ],
)
def test_the_library_takes_the_place_of_a_binding_that_can_not_be_imported(
    source: str | None,
    words: str,
    installed: Double,
    open_accelerator: Open,
    make_frame: MakeFrame,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    if source is not None:
        (tmp_path / 'axelera').mkdir()
        (tmp_path / 'axelera' / 'runtime.py').write_text(source)
        monkeypatch.syspath_prepend(str(tmp_path))
    try:
        accelerator = open_accelerator()
        accelerator.load(model(tmp_path))
        facts = accelerator.facts()
        assert facts['interface'] == 'c' and words in str(facts['python_binding'])
        frame = make_frame(width=64, height=64, fill=numbered(77))
        assert raw_results(accelerator, frame)
        frame.release()
    finally:
        for name in ('axelera.runtime', 'axelera'):
            sys.modules.pop(name, None)


def test_without_both_the_message_names_both(
    open_accelerator: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(axruntime_library, 'candidates', lambda library: ['libmissing.so'])
    with pytest.raises(
        AcceleratorError,
        match=r'libmissing\.so.*axelera-runtime.*\(Python package axelera-runtime .* is not '
        r'installed\)',
    ):
        open_accelerator()


def test_a_binding_that_lets_other_threads_go_stays(
    binding: Any, installed: Double, open_accelerator: Open, tmp_path: Path
) -> None:
    binding.double.run_s = 0.01
    accelerator = open_accelerator()
    accelerator.load(model(tmp_path))
    assert accelerator.facts()['interface'] == 'python'


@pytest.mark.parametrize(
    ('error', 'kind', 'words'),
    [
        ('UnknownError', AcceleratorError, r'injected into run \d+ \(UNKNOWN_ERROR\)'),
        (
            'ConnectionError',
            DeviceLostError,
            r"CONNECTION_ERROR\); check that 'axdevice' lists the device",
        ),
        ('IncompatibleDevice', DeviceLostError, r"firmware doesn't fit this runtime"),
    ],
)
def test_a_run_that_fails_tells_a_job_s_error_from_a_lost_device(
    error: str,
    kind: type[Exception],
    words: str,
    binding: Any,
    open_accelerator: Open,
    make_frame: MakeFrame,
    tmp_path: Path,
) -> None:
    accelerator = open_accelerator()
    accelerator.load(model(tmp_path))
    double = binding.double
    double.fail_from, double.fail_count, double.fail_with = double.runs + 1, 1, error
    frame = make_frame(width=64, height=64, fill=numbered(1))
    job = start(accelerator, frame)
    assert job.fence.wait(WAIT_S)
    with pytest.raises(AcceleratorError, match=words) as caught:
        job.outputs()
    assert type(caught.value) is kind
    job.close()
    frame.release()


@pytest.mark.parametrize('interface', ['python', 'c'])
def test_a_model_of_an_older_compiler_has_to_be_compiled_again(
    interface: str, binding: Any, double: Double, open_accelerator: Open, tmp_path: Path
) -> None:
    binding.double.old_model = True
    double.old_model = 1
    double.api_version = 0x010800
    with pytest.raises(ConfigError) as caught:
        open_accelerator(axruntime_library='' if interface == 'python' else double.path).load(
            model(tmp_path)
        )
    message = str(caught.value)
    assert 'Unsupported model version: 4.0, expected at least 5.0' in message
    assert message.endswith('compile it again with the release of the runtime (1.8.0)')


@pytest.mark.parametrize('interface', ['python', 'c'])
def test_no_compiler_is_asked_for_from_1_8_on(
    interface: str, binding: Any, double: Double, open_accelerator: Open, tmp_path: Path
) -> None:
    binding.double.no_executor = True
    double.no_toolchain = 1
    double.api_version = 0x010800
    with pytest.raises(AcceleratorError, match='Failed to create executor') as caught:
        open_accelerator(axruntime_library='' if interface == 'python' else double.path).load(
            model(tmp_path)
        )
    assert 'riscv' not in str(caught.value)
    assert (
        needs_toolchain('1.7.0')
        and needs_toolchain('')
        and not needs_toolchain('1.8.0')
        and not needs_toolchain('2.0')
    )


@pytest.mark.parametrize('interface', ['python', 'c'])
def test_an_old_driver_is_named_with_the_next_step(
    interface: str,
    binding: Any,
    double: Double,
    open_accelerator: Open,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    double.api_version = 0x010800
    for module in (axruntime, axruntime_runtime):
        monkeypatch.setattr(module, 'driver_version', lambda: '1.5.7')
    accelerator = open_accelerator(axruntime_library='' if interface == 'python' else double.path)
    accelerator.load(model(tmp_path))
    words = (
        'the Metis driver is 1.5.7, and runtime 1.8.0 needs 1.6.2 or later: install that '
        'release of metis-dkms'
    )
    assert (
        any(notice.startswith(words) for notice in accelerator.notices())
        and accelerator.facts()['driver'] == '1.5.7'
    )
    accelerator.close()
    binding.double.no_executor, double.no_toolchain = True, 1
    with pytest.raises(AcceleratorError, match=f'Failed to create executor.*; {words}'):
        open_accelerator(axruntime_library='' if interface == 'python' else double.path).load(
            model(tmp_path)
        )
    binding.double.devices, double.devices = [], 0
    with pytest.raises(AcceleratorError, match=words):
        open_accelerator(axruntime_library='' if interface == 'python' else double.path)


@pytest.mark.parametrize(
    ('arguments', 'words'),
    [
        (('1.8.0', '1.6.2', '1.8.0', '7.4'), []),
        (
            ('1.8.0', '1.6.1', '1.8.0', '7.4'),
            ['the Metis driver is 1.6.1, and runtime 1.8.0 needs 1.6.2'],
        ),
        (('1.7.0', '1.5.4'), ['the Metis driver is 1.5.4, and runtime 1.7.0 needs 1.5.5']),
        (
            ('1.8.0', '1.6.2', 'v1.3.9', '6.9'),
            ["the card's firmware is v1.3.9", "the card's board controller is 6.9"],
        ),
        (('1.6.1', '1.4.3'), ['the Metis driver is 1.4.3, and runtime 1.6.1 needs 1.4.4']),
        (('1.9.0', '1.6.1', 'v1.3.9', '6.9'), []),
        (('2.0.0', '1.6.1'), []),
        (('1.5.3', '1.3.0', 'v1.3.9'), []),
        (('', '1.0.0'), []),
        (('1.8.0', '', '', ''), []),
        (('1.8.0', 'custom', 'none', '?'), []),
    ],
)
def test_parts_that_are_too_old_are_named_one_by_one(
    arguments: tuple[str, ...], words: list[str]
) -> None:
    lines = mismatches(*arguments)
    assert len(lines) == len(words) and all(
        line.startswith(word) for line, word in zip(lines, words, strict=True)
    )
    assert all('\n' not in line and ': ' in line for line in lines)


def test_a_container_without_the_tools_is_told_which(
    binding: Any, open_accelerator: Open, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    binding.double.devices = []
    monkeypatch.setenv('PATH', str(tmp_path))
    with pytest.raises(
        AcceleratorError,
        match=r'with lspci, which is not here: install package pciutils.*lsmod.*package kmod',
    ):
        open_accelerator()


def test_a_device_that_another_program_has_is_named(
    binding: Any, open_accelerator: Open, tmp_path: Path
) -> None:
    first = open_accelerator(aipu_cores=4)
    first.load(model(tmp_path))
    with pytest.raises(
        AcceleratorError, match=r'DEVICE_IN_USE.*fuser -v.*use another device: metis-1:3:0'
    ):
        open_accelerator().load(model(tmp_path))


def test_nothing_of_the_vendor_is_imported_unless_it_is_asked_for() -> None:
    code = (
        'import sys, zc_perception.npu.axruntime.accelerator; '
        'print(any(name.startswith("axelera") for name in sys.modules))'
    )
    assert (
        subprocess.run(
            [sys.executable, '-c', code], capture_output=True, text=True, check=True
        ).stdout
        == 'False\n'
    )
