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
Weights with other inputs than float NCHW, through ONNX Runtime.

Models that hand their input back show what they got.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from npu.onnx_kit import DOUBLE, FLOAT, FLOAT16, identity, INT8, INT64, UINT8  # noqa: I101
from npu.scheduler_kit import MakeFrame, MakePool
import numpy as np
from numpy.typing import NDArray
import pytest
import yaml

from zc_perception.errors import AcceleratorError, ConfigError
from zc_perception.frame import Frame, Header
from zc_perception.memory.ledger import CopyLedger
from zc_perception.npu.accelerator import ImportHandle
from zc_perception.npu.manifest import load_manifest
from zc_perception.npu.onnx import accelerator as onnx_accelerator
from zc_perception.npu.onnx.accelerator import OnnxAccelerator
from zc_perception.pixel.colorimetry import BT601_LIMITED, Colorimetry, Matrix, Range
from zc_perception.pixel.fourcc import fourcc_code

pytestmark = pytest.mark.usefixtures('warm_engines', 'no_fd_leak')
WIDTH, HEIGHT = 64, 48
WAIT_S = 60.0
FULL = Colorimetry(Matrix.BT709, Range.FULL)


@pytest.fixture(autouse=True)
def _no_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """None reads a picture."""
    monkeypatch.setattr(onnx_accelerator, 'check_head', lambda manifest, outputs: None)


@pytest.fixture
def accelerator() -> Iterator[OnnxAccelerator]:
    accelerator = OnnxAccelerator(CopyLedger(), {'threads': 1})
    yield accelerator
    accelerator.close()


def loaded(
    accelerator: OnnxAccelerator,
    folder: Path,
    weights: bytes,
    *,
    outputs: Any = None,
    **network: Any,
) -> OnnxAccelerator:
    (folder / 'model.onnx').write_bytes(weights)
    values: dict[str, Any] = {
        'file': 'model.onnx',
        'input': {'width': WIDTH, 'height': HEIGHT, **network},
        'head': 'boxes',
        'classes': ['a'],
    }
    if outputs is not None:
        values['outputs'] = outputs
    (folder / 'model.yaml').write_text(yaml.safe_dump(values), encoding='utf-8')
    accelerator.load(load_manifest(str(folder)))
    return accelerator


def seen(accelerator: OnnxAccelerator, make_frame: MakeFrame) -> Any:
    def fill(luma: NDArray[np.uint8], chroma: NDArray[np.uint8]) -> None:
        random = np.random.default_rng(3)
        luma[:], chroma[:] = (
            random.integers(0, 256, luma.shape),
            random.integers(0, 256, chroma.shape),
        )

    frame = make_frame(width=WIDTH, height=HEIGHT, fill=fill)
    job = accelerator.submit(accelerator.import_frame(frame), frame)
    assert job.fence.wait(WAIT_S)
    (output,) = job.outputs()
    job.close()
    frame.release()
    return output


def reference(folder: Path, make_frame: MakeFrame) -> NDArray[np.float32]:
    """Return what a float NCHW model gets, 0..1."""
    accelerator = loaded(
        OnnxAccelerator(CopyLedger(), {'threads': 1}),
        folder,
        identity([1, 3, HEIGHT, WIDTH], FLOAT),
    )
    values: NDArray[np.float32] = seen(accelerator, make_frame).values
    accelerator.close()
    assert values.shape == (1, 3, HEIGHT, WIDTH) and values.min() == 0.0 and values.max() == 1.0
    return values


@pytest.mark.parametrize(
    ('layout', 'shape'), [('nhwc', [1, HEIGHT, WIDTH, 3]), ('nchw', ['N', 3, 'H', 'W'])]
)
@pytest.mark.parametrize(
    ('dtype', 'kind', 'scale', 'zero_point'),
    [
        ('uint8', UINT8, 1 / 255, 0),
        ('int8', INT8, 1 / 200, -128),
        ('float32', FLOAT, 1.0, 0),
        ('float16', FLOAT16, 1.0, 0),
    ],
)
def test_the_input_is_given_in_its_own_type_and_layout(
    accelerator: OnnxAccelerator, tmp_path: Path, make_frame: MakeFrame,
    layout: str, shape: list[Any], dtype: str, kind: int, scale: float, zero_point: int,
) -> None:  # fmt: skip
    expected: NDArray[Any] = reference(tmp_path, make_frame)
    if dtype == 'float16':
        expected = expected.astype(dtype)
    elif dtype != 'float32':
        limits = np.iinfo(dtype)
        expected = np.clip(
            np.rint(expected.astype(np.float64) / scale) + zero_point, limits.min, limits.max
        ).astype(dtype)
    expected = expected if layout == 'nchw' else expected.transpose(0, 2, 3, 1)
    network = {'layout': layout, 'dtype': dtype, 'scale': scale, 'zero_point': zero_point}
    output = seen(loaded(accelerator, tmp_path, identity(shape, kind), **network), make_frame)
    # Heads are given float16 as float32.
    given = np.float32 if dtype == 'float16' else expected.dtype
    assert output.values.dtype == given and output.values.shape == expected.shape
    assert np.array_equal(output.values, expected)


@pytest.mark.parametrize('colour', ['rgb', 'bgr'])
def test_mean_and_std_are_each_channel_s_own(
    accelerator: OnnxAccelerator, tmp_path: Path, make_frame: MakeFrame, colour: str
) -> None:
    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    real = reference(tmp_path, make_frame)[:, :: -1 if colour == 'bgr' else 1]
    expected = (real - np.reshape(mean, (3, 1, 1))) / np.reshape(std, (3, 1, 1))
    weights = identity([1, 3, HEIGHT, WIDTH], FLOAT)
    loaded(accelerator, tmp_path, weights, mean=mean, std=std, colour=colour)
    assert seen(accelerator, make_frame).values == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize('layout', ['nchw', 'nhwc'])
def test_one_channel_is_luma(
    accelerator: OnnxAccelerator, tmp_path: Path, make_frame: MakeFrame, layout: str
) -> None:
    red, green, blue = reference(tmp_path, make_frame)[0]
    shape = [1, 1, HEIGHT, WIDTH] if layout == 'nchw' else [1, HEIGHT, WIDTH, 1]
    loaded(accelerator, tmp_path, identity(shape, FLOAT), colour='grey', layout=layout)
    values = seen(accelerator, make_frame).values.reshape(HEIGHT, WIDTH)
    assert values == pytest.approx(0.299 * red + 0.587 * green + 0.114 * blue, abs=0.003)


def test_inputs_that_scale_the_boxes_are_filled(
    accelerator: OnnxAccelerator, tmp_path: Path, make_frame: MakeFrame
) -> None:
    """As exports of RT-DETR and D-FINE have one: boxes are in pixels of the input then."""
    weights = identity([1, 3, HEIGHT, WIDTH], FLOAT, beside='orig_target_sizes')
    loaded(accelerator, tmp_path, weights)
    output = seen(accelerator, make_frame)
    assert output.values.tolist() == [[WIDTH, HEIGHT]]


def test_a_file_says_of_which_number_sides_must_be_multiples(
    accelerator: OnnxAccelerator, tmp_path: Path
) -> None:
    weights = identity(['N', 3, 'H', 'W'], FLOAT, multiple=32, metadata={'stride': '32'})
    with pytest.raises(ConfigError, match=r"'input.height' is.*multiples of that are 32 and 64$"):
        loaded(accelerator, tmp_path, weights)


def test_colours_are_those_of_the_frame(
    accelerator: OnnxAccelerator, tmp_path: Path, make_pool: MakePool
) -> None:
    """The same samples are other colours in another matrix and range; both may change."""
    loaded(accelerator, tmp_path, identity([1, 3, HEIGHT, WIDTH], FLOAT))
    pool, brightest = make_pool(WIDTH, HEIGHT, slots=1), []
    for colours in (BT601_LIMITED, FULL, BT601_LIMITED):
        slot = pool.acquire()
        assert slot is not None
        frame = Frame.publish_slot(
            pool, slot, header=Header(1, 'camera'), colorimetry=colours, sequence=0, captured_ns=1
        )
        with frame.map(write=True) as planes:
            planes[0][:], planes[1][:] = 16, 128
        job = accelerator.submit(accelerator.import_frame(frame), frame)
        assert job.fence.wait(WAIT_S)
        brightest.append(float(job.outputs()[0].values.max()))
        job.close()
        frame.release()
    assert brightest == pytest.approx([0.0, 16 / 255, 0.0], abs=0.004)


def test_quantised_outputs_have_the_manifest_s_scale(
    accelerator: OnnxAccelerator, tmp_path: Path, make_frame: MakeFrame
) -> None:
    outputs = [{'name': 'y', 'scale': 0.25, 'zero_point': -3, 'layout': 'nhwc'}]
    weights = identity([1, HEIGHT, WIDTH, 3], INT8)
    network = {'layout': 'nhwc', 'dtype': 'int8', 'scale': 1 / 255, 'zero_point': -128}
    output = seen(loaded(accelerator, tmp_path, weights, outputs=outputs, **network), make_frame)
    assert (output.scale, output.zero_point, output.layout, output.name) == (0.25, -3, 'nhwc', 'y')
    assert output.real()[0, 0, 0, 0] == (int(output.values[0, 0, 0, 0]) + 3) * 0.25


@pytest.mark.parametrize('kind', [INT64, FLOAT16, DOUBLE])
def test_outputs_of_other_types_become_float32(
    accelerator: OnnxAccelerator, tmp_path: Path, make_frame: MakeFrame, kind: int
) -> None:
    weights = identity([1, 3, HEIGHT, WIDTH], FLOAT, output_kind=kind)
    assert (
        seen(loaded(accelerator, tmp_path, weights, range=[0, 255]), make_frame).values.dtype
        == np.float32
    )


SHAPE = [1, 3, HEIGHT, WIDTH]
TOO_WIDE = {'name': 'y', 'shape': [1, 3, HEIGHT, WIDTH + 1]}
OPEN = {'name': 'y', 'shape': [1, 3, 7, WIDTH - 1]}


@pytest.mark.parametrize(
    ('weights', 'options', 'message'),
    [
        (
            (SHAPE, UINT8),
            {'dtype': 'float32'},
            "is float32, but model.onnx says 'x' 1x3x48x64 uint8",
        ),
        ((SHAPE, UINT8), {'dtype': 'uint8', 'scale': 1.0}, 'to only 2 of uint8'),
        (
            ([1, HEIGHT, WIDTH, 3], FLOAT),
            {'layout': 'nchw'},
            "is nchw .* says 'x' 1x48x64x3; correct",
        ),
        (([1, 1, HEIGHT, WIDTH], FLOAT), {'colour': 'rgb'}, '.that is 1.; write colour: grey'),
        (([2, 3, HEIGHT, WIDTH], FLOAT), {}, 'takes batches of 2 frames.*batch=1'),
        (
            (SHAPE, FLOAT, {'inputs': 2}),
            {},
            'has 2 inputs .x, x1.; it needs one.*orig_target_sizes',
        ),
        (
            (SHAPE, FLOAT, {'opset': 99}),
            {},
            'opset 99, which is too new .*pip install -U onnxruntime',
        ),
        (
            (SHAPE, FLOAT),
            {'outputs': [TOO_WIDE]},
            r"is \[1, 3, 48, 65\], the file's is \[1, 3, 48, 64\]",
        ),
        ((['N', 3, 'H', WIDTH], FLOAT), {'outputs': [OPEN]}, r"the file's is \['N', 3, 'H', 64\]"),
        (
            (SHAPE, FLOAT),
            {'outputs': [{'name': 'y', 'dtype': 'int8'}]},
            "is int8, the file's is float32",
        ),
        (
            (SHAPE, FLOAT),
            {'outputs': [{'name': 'z'}]},
            r"key 'outputs\[0\]\.name' is 'z', .* it has y",
        ),
    ],
)
def test_weights_that_contradict_the_manifest_are_refused(
    accelerator: OnnxAccelerator, tmp_path: Path, weights: Any, options: Any, message: str
) -> None:
    shape, kind, *more = weights
    model = identity(shape, kind, **(more[0] if more else {}))
    with pytest.raises(ConfigError, match=message) as caught:
        loaded(accelerator, tmp_path, model, **options)
    assert '\n' not in str(caught.value)


def test_a_job_that_was_given_up_before_it_began_is_not_run(
    accelerator: OnnxAccelerator, tmp_path: Path, make_frame: MakeFrame
) -> None:
    """Else a model that is too slow would run ever older frames."""
    runs: list[int] = []
    loaded(accelerator, tmp_path, identity([1, 3, HEIGHT, WIDTH], FLOAT))
    engine, frame = accelerator._thread.engine, make_frame(width=WIDTH, height=HEIGHT)
    assert engine is not None
    run = engine.run
    jobs: list[Any] = []
    given_up: list[Any] = []

    def slow(*planes: Any) -> Any:
        runs.append(1)
        if len(runs) == 1:
            given_up.append(jobs[1].abandon())
        return run(*planes)

    engine.run = slow  # type: ignore[method-assign]
    hold = accelerator._thread._queue
    accelerator._thread._queue = type(
        hold
    )()  # the worker waits in the first one; it sees both jobs at once
    jobs.extend(accelerator.submit(accelerator.import_frame(frame), frame) for _ in range(2))
    for _ in range(2):
        hold.put(accelerator._thread._queue.get())
    accelerator._thread._queue = hold
    assert jobs[0].fence.wait(WAIT_S) and given_up[0].wait(WAIT_S)
    assert len(runs) == 1
    jobs[0].outputs()
    jobs[0].close()
    given_up[0].close()


def test_frames_may_change_their_format(
    accelerator: OnnxAccelerator, tmp_path: Path, make_pool: MakePool, make_frame: MakeFrame
) -> None:
    loaded(accelerator, tmp_path, identity([1, 3, HEIGHT, WIDTH], FLOAT))
    seen_values = []
    for name in ('NV12', 'YUYV', 'R8  ', 'NV12'):
        job = accelerator.submit(
            ImportHandle(), make_frame(make_pool(WIDTH, HEIGHT, slots=1, fourcc=fourcc_code(name)))
        )
        assert job.fence.wait(WAIT_S)
        seen_values.append(job.outputs()[0].values[0, :, 0, 0].tolist())
        job.close()
    green = seen_values[0]
    assert green[1] > 0.5 and seen_values == [
        green,
        pytest.approx(green, abs=0.01),
        [0, 0, 0],
        green,
    ], 'Y, U and V of 0 are green'


def test_what_can_not_be_read_fails_its_frame_by_name(
    accelerator: OnnxAccelerator, tmp_path: Path, make_pool: MakePool, make_frame: MakeFrame
) -> None:
    loaded(accelerator, tmp_path, identity([1, 3, HEIGHT, WIDTH], FLOAT))
    job = accelerator.submit(
        ImportHandle(), make_frame(make_pool(WIDTH, HEIGHT, slots=1, fourcc=fourcc_code('NV15')))
    )
    assert job.fence.wait(WAIT_S)
    with pytest.raises(AcceleratorError, match=r"NV15.*can read NV12.*the camera's pixel_format"):
        job.outputs()
    job.close()
    assert fourcc_code('NV15') not in {
        fourcc for fourcc, _ in accelerator.constraints().formats or ()
    }
