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
On a Jetson the VIC scales the frames and the CPU only quantises.

NVIDIA's libraries and the Voyager runtime are doubles.
"""

from __future__ import annotations

from collections.abc import Iterator
import ctypes
from pathlib import Path
import subprocess

from npu.axruntime_kit import detect, Double, model, paint, start, tensor_spec, WAIT_S
from npu.scheduler_kit import MakeFrame
import numpy as np
import pytest

from zc_perception.detection.tensor import PlanesToQuantised
from zc_perception.errors import AcceleratorError
from zc_perception.jetson.nvbufsurface import NvBufSurfaceHeap
from zc_perception.jetson.vic import Vic
from zc_perception.memory.fence import EventFence
from zc_perception.memory.heaps import SealedMemfd
from zc_perception.memory.ledger import CopyLedger, LedgerEntry
from zc_perception.memory.pool import BufferPool
from zc_perception.npu.axruntime.accelerator import AxRuntimeAccelerator
from zc_perception.pixel.colorimetry import BT601_LIMITED
from zc_perception.pixel.fourcc import NV12
from zc_perception.pixel.layout import compute_layout

pytestmark = pytest.mark.usefixtures('no_fd_leak')
DOUBLES = Path(__file__).resolve().parents[1] / 'doubles'


@pytest.fixture(scope='module')
def jetson(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp('jetson')
    paths = {}
    for name in ('nvbufsurface', 'nvbufsurftransform'):
        paths[name] = str(folder / f'lib{name}.so')
        subprocess.run(
            ['gcc', '-shared', '-fPIC', '-O2', '-o', paths[name], DOUBLES / f'{name}.c'],
            check=True,
        )
    return paths


@pytest.fixture
def ledger() -> CopyLedger:
    return CopyLedger()


@pytest.fixture
def accelerator(
    double: Double, jetson: dict[str, str], ledger: CopyLedger
) -> Iterator[AxRuntimeAccelerator]:
    vic = Vic(jetson['nvbufsurftransform'], jetson['nvbufsurface'])
    accelerator = AxRuntimeAccelerator(
        ledger,
        AxRuntimeAccelerator.own({'axruntime_library': double.path}),
        tensor_heap=SealedMemfd(),
        vic=vic,
    )
    yield accelerator
    accelerator.close()
    assert (
        ctypes.c_int.in_dll(ctypes.CDLL(jetson['nvbufsurface']), 'double_mapped_planes').value == 0
    )


@pytest.fixture
def pool(jetson: dict[str, str]) -> Iterator[BufferPool]:
    """Slots of NvBufSurface memory."""
    heap, wanted = NvBufSurfaceHeap(jetson['nvbufsurface']), compute_layout(NV12, 256, 144)
    (probe,), layout = heap.allocate_image(wanted, BT601_LIMITED)
    probe.close()
    pool = BufferPool(
        layout,
        lambda: heap.allocate_image(wanted, BT601_LIMITED)[0],
        2,
        name='camera',
        release_timeout_s=WAIT_S,
    )
    yield pool
    pool.close()


def two_blobs(luma: np.ndarray, chroma: np.ndarray) -> None:
    luma[:], chroma[:] = 16, 128
    paint(luma, chroma, 'red', 20, 30, 100, 110)
    paint(luma, chroma, 'blue', 150, 10, 230, 130)


def test_the_vic_scales_and_the_cpu_quantises(
    accelerator: AxRuntimeAccelerator,
    pool: BufferPool,
    make_frame: MakeFrame,
    ledger: CopyLedger,
    jetson: dict[str, str],
    tmp_path: Path,
) -> None:
    accelerator.load(model(tmp_path, 128, 96))
    transforms = ctypes.c_int.in_dll(
        ctypes.CDLL(jetson['nvbufsurftransform']), 'double_transforms'
    )
    before = transforms.value
    for _ in range(3):
        frame = make_frame(pool, fill=two_blobs)
        job = start(accelerator, frame)
        assert job.fence.wait(WAIT_S)
        spec = tensor_spec(128, 96)
        converter, tensor = (
            PlanesToQuantised(job.letterbox, spec, NV12, BT601_LIMITED),
            np.empty(spec.shape, np.int8),
        )
        converter.prepare(tensor)
        with frame.map() as planes:
            converter.convert(planes, tensor)
        for output, exact in list(zip(job.outputs(), detect(tensor, spec), strict=True))[1::2]:
            # The VIC's and OpenCV's scaling differ by a step or two of a sample at edges.
            assert np.abs(output.real() - np.clip(exact.values, -9, 10)).mean() < 0.2
            assert (output.real() > 0).sum() == (exact.values > 0).sum() > 0
        job.close()
        frame.release()
    assert transforms.value - before == 3
    # The picture within the letterbox is 128 x 72 RGBA; the frame's own planes are not touched.
    assert ledger.entries() == {'tensor': LedgerEntry(3, 3 * 128 * 72 * 4)}
    assert (accelerator.facts()['vic_frames'], list(accelerator.notices())) == (3, [])


def test_ordinary_memory_is_left_to_the_cpu(
    accelerator: AxRuntimeAccelerator, make_frame: MakeFrame, ledger: CopyLedger, tmp_path: Path
) -> None:
    accelerator.load(model(tmp_path, 128, 96))
    job = start(accelerator, make_frame(width=256, height=144, fill=two_blobs))
    assert job.fence.wait(WAIT_S)
    job.close()
    assert (accelerator.facts()['vic_frames'], ledger.entries()) == (
        0,
        {'tensor': LedgerEntry(1, 256 * 144 * 3 // 2)},
    )


def test_a_vic_that_refuses_is_replaced_by_the_cpu_and_said(
    accelerator: AxRuntimeAccelerator,
    pool: BufferPool,
    make_frame: MakeFrame,
    ledger: CopyLedger,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv('TRANSFORM_DOUBLE', '-2')
    accelerator.load(model(tmp_path, 128, 96))
    for count in (1, 2):
        frame = make_frame(pool, fill=two_blobs)
        job = start(accelerator, frame)
        assert (
            job.fence.wait(WAIT_S)
            and (job.outputs()[1].values > job.outputs()[1].zero_point).any()
        )
        assert ledger.entries() == {'tensor': LedgerEntry(count, count * 256 * 144 * 3 // 2)}
        job.close()
        frame.release()
    (notice,) = accelerator.notices()
    assert notice.startswith(
        'the VIC does not scale the frames, the CPU does: the VIC could not make AB24 128x72 '
        'of NV12 256x144'
    )


def test_the_vic_waits_for_the_camera(
    accelerator: AxRuntimeAccelerator, pool: BufferPool, make_frame: MakeFrame, tmp_path: Path
) -> None:
    accelerator.load(model(tmp_path, 128, 96))
    fence = EventFence()
    fence.signal(RuntimeError('the ISP dropped it'))
    frame = make_frame(pool, acquire_fence=fence)
    job = start(accelerator, frame)
    assert job.fence.wait(WAIT_S)
    with pytest.raises(AcceleratorError, match='the ISP dropped it'):
        job.outputs()
    assert accelerator.facts()['vic_frames'] == 0 and not accelerator.notices()
    job.close()
    frame.release()
    fence.close()
