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

"""The Voyager runtime's double, models for it, and the same detector in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import ctypes
import json
from pathlib import Path
import subprocess
from typing import Any

from npu.scheduler_kit import MakeFrame, MakePool
import numpy as np
from numpy.typing import NDArray
from waiting import PATIENCE_S

from zc_perception.detection.heads.spec import HeadSpec
from zc_perception.detection.letterbox import Letterbox
from zc_perception.detection.raw_tensor import RawTensor
from zc_perception.detection.tensor import PlanesToQuantised, QuantisedTensorSpec
from zc_perception.frame import Frame
from zc_perception.memory.pool import BufferPool
from zc_perception.npu.axruntime.accelerator import AxRuntimeAccelerator
from zc_perception.npu.axruntime.worker import AxRuntimeJob
from zc_perception.npu.manifest import ModelInput, ModelManifest, TensorSpec
from zc_perception.pixel.colorimetry import BT601_LIMITED
from zc_perception.pixel.fourcc import NV12

DOUBLES = Path(__file__).resolve().parents[1] / 'doubles'
Open = Callable[..., AxRuntimeAccelerator]
WAIT_S = PATIENCE_S
#: A delay after which no pipeline is flushed during a test.
NEVER_S = 3600.0
STRIDES = (8, 16, 32)
CLASSES = ('red', 'green', 'blue')
#: Y, U, V of saturated colours in BT.601 limited range, and of black.
COLOURS = {
    'red': (81, 90, 240),
    'green': (145, 54, 34),
    'blue': (41, 240, 110),
    'black': (16, 128, 128),
}


def build_double(path: Path, *options: str) -> Path:
    sources = [DOUBLES / name for name in ('axruntime.c', 'axruntime_run.c', 'axruntime_model.c')]
    flags = ['-shared', '-fPIC', '-fvisibility=hidden', '-O2', '-Wall', '-Wextra', '-Werror']
    subprocess.run(['gcc', *flags, *options, '-o', path, *sources, '-lm', '-lpthread'], check=True)
    return path


class Double:
    """The loaded double; tests set and read it: ``double.fail_from = 3``, ``double.runs``."""

    def __init__(self, path: Path) -> None:
        self.__dict__['path'] = str(path)
        self.__dict__['library'] = ctypes.CDLL(str(path))

    def __getattr__(self, name: str) -> int:
        return ctypes.c_int.in_dll(self.library, f'double_{name}').value

    def __setattr__(self, name: str, value: int) -> None:
        ctypes.c_int.in_dll(self.library, f'double_{name}').value = value

    def reset(self) -> None:
        self.library.double_reset()

    def is_hanging(self) -> bool:
        return bool(self.library.double_is_hanging())

    def end_hang(self) -> None:
        self.library.double_end_hang()

    def used_sub_devices(self) -> list[int]:
        return list((ctypes.c_int * 4).in_dll(self.library, 'double_used_sub_devices'))

    def first_misuse(self) -> str:
        text = (ctypes.c_char * 512).in_dll(self.library, 'double_first_misuse')
        return text.value.decode()


def model_file(folder: Path, width: int, height: int, **settings: float) -> Path:
    path = folder / 'model.json'
    path.write_text(json.dumps({'height': height, 'width': width, **settings}), encoding='utf-8')
    return path


def model(
    folder: Path,
    width: int = 64,
    height: int = 64,
    *,
    resize: str = 'letterbox',
    tensors: Sequence[TensorSpec] = (),
    **settings: float,
) -> ModelManifest:
    path = model_file(folder, width, height, **settings)
    return ModelManifest(
        name='blobs',
        path=folder / 'model.yaml',
        engine='axruntime',
        file=path,
        input=ModelInput(width, height, False, 0.0, 1.0, resize, 114),
        head=HeadSpec('yolov8', len(CLASSES)),
        classes=CLASSES,
        score_threshold=0.5,
        nms_threshold=0.5,
        max_detections=100,
        tensors=tuple(tensors),
    )


class Voyager:
    """Opens accelerators on the double, and makes 64 x 64 frames whose number the model reads."""

    def __init__(
        self, double: Double, opener: Open, pool: MakePool, frame: MakeFrame, folder: Path
    ) -> None:
        self.double, self._open, self.folder = double, opener, folder
        self._make_pool, self.make_frame = pool, frame

    def open(self, **options: Any) -> AxRuntimeAccelerator:
        """Open an accelerator by the C library, unless *axruntime_library* says otherwise."""
        values = {'axruntime_library': self.double.path, 'flush_after_s': 0.005, **options}
        return self._open(values.pop('ledger', None), **values)

    def loaded(self, **options: Any) -> AxRuntimeAccelerator:
        accelerator = self.open(**options)
        accelerator.load(model(self.folder))
        return accelerator

    def pool(self, slots: int) -> BufferPool:
        return self._make_pool(64, 64, slots=slots)

    def frame(self, number: int, pool: BufferPool | None = None) -> Frame:
        """Return a frame, from a new pool if none is given."""
        return self.make_frame(pool or self.pool(1), sequence=number, fill=numbered(number))

    def run(self, accelerator: AxRuntimeAccelerator, number: int) -> int:
        """Run a frame with this number; return the number that the model sees."""
        frame = self.frame(number)
        return result(frame, start(accelerator, frame))


def start(accelerator: AxRuntimeAccelerator, frame: Frame) -> AxRuntimeJob:
    return accelerator.submit(accelerator.import_frame(frame), frame)


def finished(accelerator: AxRuntimeAccelerator, frame: Frame) -> AxRuntimeJob:
    job = start(accelerator, frame)
    assert job.fence.wait(WAIT_S)
    return job


def tensor_spec(
    width: int, height: int, scale: float = 1 / 255, zero_point: int = -128
) -> QuantisedTensorSpec:
    return QuantisedTensorSpec(width, height, 3, scale, zero_point, ((1, 1), (1, 15), (0, 1)))


def paint(
    luma: NDArray[np.uint8],
    chroma: NDArray[np.uint8],
    colour: str,
    left: int,
    top: int,
    right: int,
    bottom: int,
) -> None:
    y, u, v = COLOURS[colour]
    luma[top:bottom, left:right] = y
    chroma[slice(top // 2, bottom // 2), slice(left // 2, right // 2)] = u, v


def blobs(luma: NDArray[np.uint8], chroma: NDArray[np.uint8]) -> None:
    luma[:], chroma[:] = 16, 128
    height, width = luma.shape
    for colour, (left, top, right, bottom) in (
        ('red', (0.06, 0.1, 0.3, 0.55)),
        ('green', (0.4, 0.3, 0.75, 0.9)),
        ('blue', (0.8, 0.05, 0.96, 0.3)),
    ):
        corners = (left * width, top * height, right * width, bottom * height)
        paint(luma, chroma, colour, *(round(corner / 2) * 2 for corner in corners))


def numbered(number: int) -> Callable[[NDArray[np.uint8], NDArray[np.uint8]], None]:
    """Return a function that paints a number: cell k of the finest grid is red if bit k is set."""

    def fill(luma: NDArray[np.uint8], chroma: NDArray[np.uint8]) -> None:
        for bit in range(16):
            y, x = divmod(bit, 8)
            red = 'red' if number >> bit & 1 else 'black'
            paint(luma, chroma, red, 8 * x, 8 * y, 8 * x + 8, 8 * y + 8)

    return fill


def number_in(outputs: Sequence[RawTensor]) -> int:
    red = outputs[1].values[0, :2, :, 0].reshape(-1)[:10] > outputs[1].zero_point
    return int((red * (1 << np.arange(10))).sum())


def result(frame: Frame, job: AxRuntimeJob) -> int:
    """Wait for the job, close job and frame, and return the number that the model saw."""
    assert job.fence.wait(WAIT_S)
    seen = number_in(job.outputs())
    job.close()
    frame.release()
    return seen


def detect(tensor: NDArray[np.int8], spec: QuantisedTensorSpec) -> list[RawTensor]:
    """Return the double's outputs before quantisation: DFL and class logits per stride."""
    (above, _), (left, _), (before, _) = spec.padding
    raw = tensor[above:, left:, before:][: spec.height, : spec.width, :3]
    real = (raw.astype(np.float64) - spec.zero_point) * spec.scale
    excess = real - np.maximum(np.roll(real, -1, axis=-1), np.roll(real, -2, axis=-1))
    outputs = []
    for stride in STRIDES:
        rows, columns = spec.height // stride, spec.width // stride
        means = excess.reshape(rows, stride, columns, stride, 3).mean((1, 3))
        logits = 8.0 * (2 * means - 1)
        bins = np.full((rows, columns, 4, 16), -8.0)
        for row in range(rows):
            for column in range(columns):
                y, x = row * stride + stride // 2, column * stride + stride // 2
                inside = excess[..., int(np.argmax(excess[y, x]))] > 0.5
                ways = (inside[y, :x][::-1], inside[:y, x][::-1], inside[y, x:], inside[y:, x])
                for side, way in enumerate(ways):
                    steps = min(len(way) if way.all() else int(np.argmin(way)), 15 * stride)
                    _write_bins(bins[row, column, side], steps / stride)
        parts = {'box': bins.reshape(1, rows, columns, 64), 'scores': logits[np.newaxis]}
        for name, part in parts.items():
            exact = part.astype(np.float32)
            outputs.append(RawTensor(exact, layout='nhwc', name=f'{name}_{stride}'))
    return outputs


def reference(frame: Frame, box: Letterbox, spec: QuantisedTensorSpec) -> list[RawTensor]:
    """Run the same detector in NumPy, without quantised outputs, on the converter's own tensor."""
    converter = PlanesToQuantised(box, spec, NV12, BT601_LIMITED)
    tensor = np.empty(spec.shape, np.int8)
    converter.prepare(tensor)
    with frame.map() as planes:
        converter.convert(planes, tensor)
    return detect(tensor, spec)


def _write_bins(bins: NDArray[Any], distance: float) -> None:
    lower = int(distance)
    for place, part in ((lower, 1 - (distance - lower)), (lower + 1, distance - lower)):
        if part > 0:
            bins[place] = max(-8.0, np.log(part))
