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

"""The onnx accelerator: shipped models, engines that fail, and models with other inputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
import os
from pathlib import Path
import select
import signal
import threading
import time
from typing import Any

import cv2
from frame_kit import next_frame
from npu.onnx_kit import DOUBLE, FLOAT, FLOAT16, identity, INT8, INT64, UINT8
from npu.scheduler_kit import MakeFrame, MakePool
import numpy as np
from numpy.typing import NDArray
from onnxruntime import InferenceSession
import pytest
from waiting import PATIENCE_S
import yaml

from zc_perception.camera.road_scene import RoadScene
from zc_perception.detection.detections import box_iou
from zc_perception.detection.heads import make_head
from zc_perception.detection.heads.spec import DecodeLimits
from zc_perception.detection.letterbox import Letterbox
from zc_perception.detection.raw_tensor import RawTensor
from zc_perception.detection.tiles import decode
from zc_perception.errors import AcceleratorError, ConfigError
from zc_perception.frame import Frame
from zc_perception.memory.fence import poll_fd
from zc_perception.memory.ledger import CopyLedger, LedgerEntry
from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.memory.pool import BufferPool, SlotState
from zc_perception.npu.engine_thread import Engine, EngineJob
from zc_perception.npu.manifest import load_manifest
from zc_perception.npu.onnx import accelerator as onnx_accelerator
from zc_perception.npu.onnx.accelerator import OnnxAccelerator
from zc_perception.pixel.colorimetry import BT601_LIMITED, Colorimetry, Matrix, Range
from zc_perception.pixel.fourcc import fourcc_code
from zc_perception.terminal import Interrupted, interruptions

pytestmark = pytest.mark.usefixtures('warm_engines', 'no_fd_leak')
WAIT_S = PATIENCE_S


@pytest.fixture
def ledger() -> CopyLedger:
    return CopyLedger()


@pytest.fixture
def accelerator(ledger: CopyLedger) -> Iterator[OnnxAccelerator]:
    accelerator = OnnxAccelerator(ledger, {'threads': 1})
    yield accelerator
    accelerator.close()


def run(accelerator: OnnxAccelerator, frame: Frame) -> EngineJob:
    job = accelerator.submit(accelerator.import_frame(frame), frame)
    assert job.fence.wait(WAIT_S)
    return job


def test_small_objects_of_a_large_picture_are_found_in_tiles_of_a_part_of_it(
    ledger: CopyLedger, make_frame: MakeFrame
) -> None:
    """Objects of 8 pixels in a 4K picture would have under two pixels without tiles."""
    manifest, scene, (left, top) = load_manifest('road'), RoadScene(640, 360, 3), (1800, 900)
    luma, chroma = np.zeros((360, 640), np.uint8), np.zeros((180, 320, 2), np.uint8)
    scene.draw(0, luma, chroma)
    halved: dict[str, Any] = {'dsize': None, 'fx': 0.5, 'fy': 0.5, 'interpolation': cv2.INTER_AREA}
    small = cv2.resize(luma, **halved), cv2.resize(chroma, **halved)

    def fill(luma: NDArray[np.uint8], chroma: NDArray[np.uint8]) -> None:
        luma[:], chroma[:] = 110, 128
        luma[top:, left:][:180, :320] = small[0]
        chroma[top // 2 :, left // 2 :][:90, :160] = small[1]

    frame = make_frame(width=3840, height=2160, fill=fill)
    limits = DecodeLimits(manifest.score_threshold, manifest.nms_threshold, 100)
    shares = {}
    for name, parts in {'whole': {}, 'tiles': {'roi': '1640,810,640,360', 'tiles': '3x3'}}.items():
        with closing(OnnxAccelerator(ledger, {'threads': 1, **parts})) as accelerator:
            accelerator.load(manifest)
            job = run(accelerator, frame)
            found = decode(make_head(manifest.head), job.outputs(), job.letterbox, limits)
            job.close()
        hits = []
        for item in scene.truth(0):
            if item.visible >= 0.9 and min(item.width, item.height) >= 16:
                box = np.array([[item.x, item.y, item.x + item.width, item.y + item.height]]) / 2
                same = found.boxes[found.classes == item.class_index]
                overlaps = box_iou(box + (left, top) * 2, same)
                hits.append(bool((overlaps >= 0.5).any()))
        shares[name] = sum(hits) / len(hits)
    assert shares['whole'] == 0.0 and shares['tiles'] >= 0.6, shares


@pytest.mark.parametrize('name', ['NV12', 'YUYV'])
def test_the_hog_model_yields_opencv_s_own_people(
    accelerator: OnnxAccelerator, make_pool: MakePool, make_frame: MakeFrame, name: str
) -> None:
    manifest, luma = load_manifest('hog'), np.zeros((384, 640), np.uint8)
    accelerator.load(manifest)
    RoadScene(640, 384, 1).draw(0, luma, np.zeros((192, 320, 2), np.uint8))
    frame = make_frame(make_pool(640, 384, slots=1, fourcc=fourcc_code(name)))
    with frame.map(write=True) as planes:
        if name == 'NV12':
            planes[0][:] = luma
        else:
            planes[0][..., ::2] = luma.reshape(384, 320, 2)
    job = run(accelerator, frame)
    limits = DecodeLimits(manifest.score_threshold, manifest.nms_threshold, 100)
    found = make_head(manifest.head).decode(job.outputs(), job.letterbox, limits)
    hog = cv2.HOGDescriptor()
    hog.setSVMDetector(np.asarray(cv2.HOGDescriptor.getDefaultPeopleDetector(), np.float32))
    boxes, distances = hog.detectMultiScale(luma, winStride=(8, 8), scale=1.05)
    assert len(boxes) >= 1, 'the picture was chosen because HOG sees somebody in it'
    order = np.argsort(-np.reshape(distances, -1))
    corners = np.hstack([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]])[order]
    assert found.boxes.tolist() == corners.tolist()
    assert found.scores == pytest.approx(1 - np.exp(-np.reshape(distances, -1)[order]))
    job.close()
    frame.release()


@pytest.mark.parametrize(('width', 'height'), [(128, 96), (62, 128), (2, 2)])
def test_a_picture_smaller_than_hog_s_window_has_nobody_in_it(
    accelerator: OnnxAccelerator, make_frame: MakeFrame, width: int, height: int
) -> None:
    accelerator.load(load_manifest('hog'))
    with make_frame(width=width, height=height) as frame:
        job = run(accelerator, frame)
        assert job.outputs()[0].values.shape == (0, 6)
        job.close()


def test_tiles_smaller_than_hog_s_window_are_an_error(
    ledger: CopyLedger, make_frame: MakeFrame
) -> None:
    accelerator = OnnxAccelerator(ledger, {'threads': 1, 'tiles': '2x2'})
    accelerator.load(load_manifest('hog'))
    with make_frame(width=256, height=128) as frame:
        job = run(accelerator, frame)
        with pytest.raises(AcceleratorError, match=r"72 pixels .* 64x128 .* 'tiles' to fewer"):
            job.outputs()
        job.close()
    accelerator.close()


class ScriptedEngine(Engine):
    """Waits until the test lets it go on; raises the errors in ``errors``."""

    def __init__(self) -> None:
        self.go_on, self.started = threading.Event(), threading.Event()
        self.errors: list[Exception] = []
        self.seen: list[int] = []

    def geometry(self, width: int, height: int) -> Letterbox:
        return Letterbox.fit(width, height, width, height)

    def run(
        self, planes: Sequence[NDArray[Any]], layout: Any, colorimetry: Any
    ) -> list[RawTensor]:
        self.started.set()
        assert self.go_on.wait(WAIT_S)
        self.seen.append(int(planes[0][0, 0]))
        if self.errors:
            raise self.errors.pop()
        return [RawTensor(np.full((1, 6), planes[0][0, 0], np.float32))]


@pytest.fixture
def engine(accelerator: OnnxAccelerator, monkeypatch: pytest.MonkeyPatch) -> ScriptedEngine:
    engine = ScriptedEngine()
    monkeypatch.setattr(onnx_accelerator, 'HogEngine', lambda: engine)
    accelerator.load(load_manifest('hog'))
    return engine


def test_a_signal_ends_the_wait_for_a_model_that_is_compiled_for_minutes(
    accelerator: OnnxAccelerator,
) -> None:
    compiled = threading.Event()

    def compile_model() -> Engine:
        assert compiled.wait(WAIT_S)
        return ScriptedEngine()

    with pytest.raises(Interrupted), interruptions() as told:
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
        accelerator._thread.load(compile_model, WAIT_S)
    assert told.cut_short and not compiled.is_set()
    compiled.set()


def filled(make_frame: MakeFrame, pool: BufferPool, value: int) -> Frame:
    return make_frame(pool, sequence=value, fill=lambda luma, chroma: luma.fill(value))


def test_an_engine_s_exception_is_a_failing_fence(
    accelerator: OnnxAccelerator, engine: ScriptedEngine, make_pool: MakePool,
    make_frame: MakeFrame,
) -> None:  # fmt: skip
    pool = make_pool(slots=1)
    engine.go_on.set()
    engine.errors.append(ValueError('no such layer'))
    frame = filled(make_frame, pool, 1)
    job = run(accelerator, frame)
    with pytest.raises(AcceleratorError, match='ValueError: no such layer'):
        job.outputs()
    job.close()
    frame.release()
    assert pool.statistics().states == {SlotState.FREE: 1}, (
        'nothing of the traceback holds the pixels'
    )
    good = filled(make_frame, pool, 2)
    again = run(accelerator, good)
    assert again.outputs()[0].values[0, 0] == 2
    again.close()


def test_a_job_that_was_given_up_before_it_began_is_not_run(
    accelerator: OnnxAccelerator, engine: ScriptedEngine, make_pool: MakePool,
    make_frame: MakeFrame,
) -> None:  # fmt: skip
    """Otherwise a slow model would run older and older frames."""
    pool = make_pool(slots=3)
    frames = [filled(make_frame, pool, value) for value in (5, 6, 7)]
    jobs = [accelerator.submit(accelerator.import_frame(frame), frame) for frame in frames]
    assert engine.started.wait(WAIT_S)
    given_up = jobs[1].abandon()
    assert given_up.wait(0.0)
    engine.go_on.set()
    assert jobs[2].fence.wait(WAIT_S) and engine.seen == [5, 7]
    for each in (jobs[0], jobs[2], given_up):
        each.close()


def test_closing_lets_the_running_job_end(
    accelerator: OnnxAccelerator, engine: ScriptedEngine, make_pool: MakePool,
    make_frame: MakeFrame,
) -> None:  # fmt: skip
    frame = filled(make_frame, make_pool(slots=1), 5)
    job = accelerator.submit(accelerator.import_frame(frame), frame)
    assert engine.started.wait(WAIT_S)
    threading.Timer(0.03, engine.go_on.set).start()
    accelerator.close()
    assert job.fence.wait(0.0) and job.outputs()[0].values[0, 0] == 5
    with pytest.raises(AcceleratorError, match='no model loaded'):
        accelerator.submit(accelerator.import_frame(frame), frame)
    accelerator.close()
    job.close()


def test_a_job_that_was_given_up_frees_its_place_however_late_it_ends(
    accelerator: OnnxAccelerator, engine: ScriptedEngine, make_pool: MakePool,
    make_frame: MakeFrame,
) -> None:  # fmt: skip
    """By then the pool has retired the slot and closed the fence that the lease waited for."""
    pool = make_pool(slots=1, release_timeout_s=0.02)
    frame = filled(make_frame, pool, 6)
    job = accelerator.submit(accelerator.import_frame(frame), frame)
    assert engine.started.wait(WAIT_S)
    with OwnedFd(os.dup(job.fence.fileno())) as place:
        frame.release(job.abandon())
        time.sleep(0.03)
        fresh = filled(make_frame, pool, 7)
        assert pool.statistics().retired == 1
        assert not poll_fd(place.fileno(), select.POLLIN, 0.0)
        engine.go_on.set()
        assert poll_fd(place.fileno(), select.POLLIN, WAIT_S)
    accelerator.close()
    assert engine.seen == [6]
    fresh.release()


@pytest.mark.parametrize('closing', [False, True])
def test_no_further_tile_is_run_of_a_job_that_was_given_up_or_at_the_end(
    ledger: CopyLedger, monkeypatch: pytest.MonkeyPatch, make_pool: MakePool,
    make_frame: MakeFrame, closing: bool,
) -> None:  # fmt: skip
    engine = ScriptedEngine()
    monkeypatch.setattr(onnx_accelerator, 'HogEngine', lambda: engine)
    accelerator = OnnxAccelerator(ledger, {'threads': 1, 'tiles': '2x2'})
    accelerator.load(load_manifest('hog'))
    with filled(make_frame, make_pool(slots=1), 5) as frame:
        job = accelerator.submit(accelerator.import_frame(frame), frame)
        assert engine.started.wait(WAIT_S)
        let_go = None if closing else job.abandon()
        threading.Timer(0.03, engine.go_on.set).start()
        if let_go is not None:
            assert let_go.wait(WAIT_S)
        accelerator.close()
        assert engine.seen == [5]
        job.close()


@pytest.mark.parametrize(
    ('entries', 'message'),
    [
        (['CUDAExecutionProvider'], 'this .* lacks; it has .*CPUE.*; install onnxruntime-gpu'),
        (['CPUExecutionprovider; a=1'], r"did you mean 'CPUExecutionProvider'\?$"),
        (['CPUExecutionProvider type=NPU'], "has '.*'; it must be a name, or 'NAME; option"),
        (['CPUExecutionProvider', 'CPUExecutionProvider; a=1'], "'CPUExecutionProvider' twice"),
    ],
)
def test_a_provider_that_can_not_be_is_refused_by_name(entries: list[str], message: str) -> None:
    accelerator = OnnxAccelerator(CopyLedger(), {'threads': 1, 'providers': entries})
    with pytest.raises(ConfigError, match=message):
        accelerator.load(load_manifest('road'))


def test_it_says_which_provider_runs_how_many_nodes() -> None:
    """Every build of ONNX Runtime has the second provider, which runs no node of such a model."""
    for entries, notices in (
        (['CPUExecutionProvider; an=option'], 0),
        (['AzureExecutionProvider', 'CPUExecutionProvider'], 1),
    ):
        options = {'threads': 1, 'providers': entries}
        with closing(OnnxAccelerator(CopyLedger(), options)) as accelerator:
            accelerator.load(load_manifest('road'))
            share = str(accelerator.facts()['nodes_on_cpu'])
            if not hasattr(InferenceSession, 'get_provider_graph_assignment_info'):
                assert (share, accelerator.notices()) == ('not reported by this ONNX Runtime', ())
                continue
            assert accelerator.facts()['provider'] == 'CPUExecutionProvider'
            assert share.split(' of ')[0] == share.split(' of ')[1] != '0'
            assert len(accelerator.notices()) == notices
            for notice in accelerator.notices():
                assert f'{share} nodes of model road run on the CPU' in notice


def test_a_provider_with_memory_of_its_own_gets_its_input_there(
    accelerator: OnnxAccelerator, monkeypatch: pytest.MonkeyPatch, make_frame: MakeFrame
) -> None:
    """ONNX Runtime accepts the host's memory as a device's, too."""
    scene, found = RoadScene(640, 360, 3), []
    for memories in ({}, {'CPUExecutionProvider': 'cpu'}):
        monkeypatch.setattr(onnx_accelerator, '_MEMORIES', memories)
        accelerator.load(load_manifest('road'))
        for index in (0, 30):
            fill = lambda *planes, index=index: scene.draw(index, *planes)  # noqa: E731
            with make_frame(width=640, height=360, fill=fill) as frame:
                job = run(accelerator, frame)
                found.append([output.values.copy() for output in job.outputs()])
                job.close()
    for plain, bound in zip(found[:2], found[2:], strict=True):
        assert all(np.array_equal(*pair) for pair in zip(plain, bound, strict=True))
    assert not np.array_equal(found[0][0], found[1][0])


# Models with other inputs than float NCHW: those that return their input show it.

WIDTH, HEIGHT = 64, 48
SHAPE, TURNED = [1, 3, HEIGHT, WIDTH], [1, HEIGHT, WIDTH, 3]
FULL = Colorimetry(Matrix.BT709, Range.FULL)


def noise(luma: NDArray[np.uint8], chroma: NDArray[np.uint8]) -> None:
    random = np.random.default_rng(3)
    luma[:], chroma[:] = (random.integers(0, 256, each.shape) for each in (luma, chroma))


class Echo:
    """An accelerator with a model that returns its input, which needs no head."""

    def __init__(
        self, accelerator: OnnxAccelerator, ledger: CopyLedger, make_frame: MakeFrame, folder: Path
    ) -> None:
        self.accelerator, self.ledger, self._folder = accelerator, ledger, folder
        self.frame = make_frame(width=WIDTH, height=HEIGHT, fill=noise)

    def load(self, weights: bytes, *, outputs: Any = None, **network: Any) -> None:
        (self._folder / 'model.onnx').write_bytes(weights)
        size = {'width': WIDTH, 'height': HEIGHT, **network}
        values = {'file': 'model.onnx', 'input': size, 'head': 'boxes', 'classes': ['a']}
        values |= {'outputs': outputs} if outputs is not None else {}
        (self._folder / 'model.yaml').write_text(yaml.safe_dump(values), encoding='utf-8')
        self.accelerator.load(load_manifest(str(self._folder)))

    def seen(self, frame: Frame | None = None) -> RawTensor:
        job = run(self.accelerator, frame or self.frame)
        (output,) = job.outputs()
        job.close()
        return output

    def reference(self) -> NDArray[np.float32]:
        """Return the input of a float NCHW model, 0..1."""
        self.load(identity(SHAPE, FLOAT))
        values: NDArray[np.float32] = self.seen().values
        assert values.shape == tuple(SHAPE) and values.min() == 0.0 and values.max() == 1.0
        return values


@pytest.fixture
def echo(
    accelerator: OnnxAccelerator, ledger: CopyLedger, make_frame: MakeFrame, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Echo:  # fmt: skip
    monkeypatch.setattr(onnx_accelerator, 'check_head', lambda manifest, outputs: None)
    return Echo(accelerator, ledger, make_frame, tmp_path)


@pytest.mark.parametrize(('layout', 'shape'), [('nhwc', TURNED), ('nchw', ['N', 3, 'H', 'W'])])
@pytest.mark.parametrize(
    ('dtype', 'kind', 'scale', 'zero_point'),
    [
        ('uint8', UINT8, 1 / 255, 0), ('int8', INT8, 1 / 200, -128), ('float32', FLOAT, 1.0, 0),
        ('float16', FLOAT16, 1.0, 0),
    ],
)  # fmt: skip
def test_the_input_is_given_in_its_own_type_and_layout(
    echo: Echo, layout: str, shape: list[Any], dtype: str, kind: int, scale: float, zero_point: int
) -> None:
    expected: NDArray[Any] = echo.reference()
    if 'int' in dtype:
        limits, steps = np.iinfo(dtype), np.rint(expected.astype(np.float64) / scale) + zero_point
        expected = np.clip(steps, limits.min, limits.max)
    expected = expected.astype(dtype)
    expected = expected if layout == 'nchw' else expected.transpose(0, 2, 3, 1)
    network = {'layout': layout, 'dtype': dtype, 'scale': scale, 'zero_point': zero_point}
    echo.load(identity(shape, kind), **network)
    values = echo.seen().values
    # Heads get float16 as float32.
    assert values.dtype == (np.float32 if dtype == 'float16' else expected.dtype)
    assert np.array_equal(values, expected)


@pytest.mark.parametrize('colour', ['rgb', 'bgr'])
def test_mean_and_std_are_each_channel_s_own(echo: Echo, colour: str) -> None:
    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    real = echo.reference()[:, :: -1 if colour == 'bgr' else 1]
    expected = (real - np.reshape(mean, (3, 1, 1))) / np.reshape(std, (3, 1, 1))
    echo.load(identity(SHAPE, FLOAT), mean=mean, std=std, colour=colour)
    assert echo.seen().values == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize('layout', ['nchw', 'nhwc'])
def test_one_channel_is_luma(echo: Echo, layout: str) -> None:
    red, green, blue = echo.reference()[0]
    shape = [1, 1, HEIGHT, WIDTH] if layout == 'nchw' else [1, HEIGHT, WIDTH, 1]
    echo.load(identity(shape, FLOAT), colour='grey', layout=layout)
    values = echo.seen().values.reshape(HEIGHT, WIDTH)
    assert values == pytest.approx(0.299 * red + 0.587 * green + 0.114 * blue, abs=0.003)


def test_inputs_that_scale_the_boxes_are_filled(echo: Echo) -> None:
    """Exports of RT-DETR and D-FINE have such an input; boxes are then in pixels of the input."""
    echo.load(identity(SHAPE, FLOAT, beside='orig_target_sizes'))
    assert echo.seen().values.tolist() == [[WIDTH, HEIGHT]]


def test_colours_are_those_of_the_frame(echo: Echo, make_pool: MakePool) -> None:
    """The same samples have other colours in another matrix and range; both may change."""
    echo.load(identity(SHAPE, FLOAT))
    pool, brightest = make_pool(WIDTH, HEIGHT, slots=1), []
    for colours in (BT601_LIMITED, FULL, BT601_LIMITED):
        with next_frame(pool, colorimetry=colours) as frame:
            with frame.map(write=True) as planes:
                planes[0][:], planes[1][:] = 16, 128
            brightest.append(float(echo.seen(frame).values.max()))
    assert brightest == pytest.approx([0.0, 16 / 255, 0.0], abs=0.004)


def test_quantised_outputs_have_the_manifest_s_scale(echo: Echo) -> None:
    outputs = [{'name': 'y', 'scale': 0.25, 'zero_point': -3, 'layout': 'nhwc'}]
    network = {'layout': 'nhwc', 'dtype': 'int8', 'scale': 1 / 255, 'zero_point': -128}
    echo.load(identity(TURNED, INT8), outputs=outputs, **network)
    output = echo.seen()
    assert (output.scale, output.zero_point, output.layout, output.name) == (0.25, -3, 'nhwc', 'y')
    assert output.real()[0, 0, 0, 0] == (int(output.values[0, 0, 0, 0]) + 3) * 0.25


@pytest.mark.parametrize('kind', [INT64, FLOAT16, DOUBLE])
def test_outputs_of_other_types_become_float32(echo: Echo, kind: int) -> None:
    echo.load(identity(SHAPE, FLOAT, output_kind=kind), range=[0, 255])
    assert echo.seen().values.dtype == np.float32


TOO_WIDE = {'name': 'y', 'shape': [1, 3, HEIGHT, WIDTH + 1]}
OPEN = {'name': 'y', 'shape': [1, 3, 7, WIDTH - 1]}


@pytest.mark.parametrize(
    ('shape', 'kind', 'more', 'network', 'message'),
    [
        (SHAPE, UINT8, {}, {'dtype': 'float32'}, "is float32, but .* 'x' 1x3x48x64 uint8"),
        (SHAPE, UINT8, {}, {'dtype': 'uint8', 'scale': 1.0}, 'to only 2 values of uint8'),
        (TURNED, FLOAT, {}, {'layout': 'nchw'}, "is nchw .* says 'x' 1x48x64x3; correct"),
        ([1, 1, 48, 64], FLOAT, {}, {'colour': 'rgb'}, 'axis has size 1.; write colour: grey'),
        ([3, 48, 64], FLOAT, {}, {}, "'x' 3x48x64, which lacks the axis of the batch; export"),
        ([2, 3, 48, 64], FLOAT, {}, {}, 'takes batches of 2 frames.*batch=1'),
        (SHAPE, FLOAT, {'inputs': 2}, {}, 'has 2 inputs .x, x1.; it needs one.*orig_target_sizes'),
        ([3, 48, 64], FLOAT, {'inputs': 2}, {}, 'has 2 inputs .x, x1.'),
        (SHAPE, FLOAT, {'operator': 'NMS_TRT'}, {}, 'NMS_TRT.*: export it without this operator'),
        (SHAPE, FLOAT, {'beside_it': 'w.data'}, {}, 'copy that file, too, .*/w.data'),
        (SHAPE, FLOAT, {'opset': 99}, {}, 'opset 99, which is too new .*pip install -U onnxrunt'),
        (['N', 3, 'H', 'W'], FLOAT, {'multiple': 32, 'metadata': {'stride': '32'}}, {},
         r"'input.height' is.*nearest multiples are 32 and 64$"),
        (SHAPE, FLOAT, {}, {'outputs': [TOO_WIDE]},
         r"is \[1, 3, 48, 65\], the model file's is \[1, 3, 48, 64\]"),
        (['N', 3, 'H', WIDTH], FLOAT, {}, {'outputs': [OPEN]}, r"file's is \['N', 3, 'H', 64\]"),
        (SHAPE, FLOAT, {}, {'outputs': [{'name': 'y', 'dtype': 'int8'}]},
         "is int8, the model file's is float32"),
        (SHAPE, FLOAT, {}, {'outputs': [{'name': 'z'}]},
         r"key 'outputs\[0\]\.name' is 'z', .* it has y"),
    ],
)  # fmt: skip
def test_weights_that_contradict_the_manifest_are_refused(
    echo: Echo, shape: Any, kind: int, more: Any, network: Any, message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        echo.load(identity(shape, kind, **more), **network)
    assert '\n' not in str(caught.value)


def test_frames_may_change_their_format_and_are_read_once(
    echo: Echo, make_pool: MakePool, make_frame: MakeFrame
) -> None:
    echo.load(identity(SHAPE, FLOAT))
    seen, size = [], 0
    for name in ('NV12', 'YUYV', 'R8  ', 'NV12'):
        pool = make_pool(WIDTH, HEIGHT, slots=1, fourcc=fourcc_code(name))
        seen.append(echo.seen(make_frame(pool)).values[0, :, 0, 0].tolist())
        size += {'NV12': 3, 'YUYV': 4, 'R8  ': 2}[name] * WIDTH * HEIGHT // 2
        assert echo.ledger.entries()['tensor'] == LedgerEntry(len(seen), size)
    green = seen[0]
    assert green[1] > 0.5, 'Y, U and V of 0 are green'
    assert seen == [green, pytest.approx(green, abs=0.01), [0, 0, 0], green]


def test_what_can_not_be_read_fails_its_frame_by_name(
    echo: Echo, make_pool: MakePool, make_frame: MakeFrame
) -> None:
    echo.load(identity(SHAPE, FLOAT))
    pool = make_pool(WIDTH, HEIGHT, slots=1, fourcc=fourcc_code('NV15'))
    job = run(echo.accelerator, make_frame(pool))
    words = r"NV15.*readable are NV12.*the camera's pixel_format"
    with pytest.raises(AcceleratorError, match=words):
        job.outputs()
    job.close()
    formats = echo.accelerator.constraints().formats or ()
    assert fourcc_code('NV15') not in {fourcc for fourcc, _ in formats}
