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

"""The onnx accelerator: the shipped models on real pictures, and engines that fail."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import os
import select
import threading
import time
from typing import Any

import cv2
from npu.scheduler_kit import MakeFrame, MakePool
import numpy as np
from numpy.typing import NDArray
import pytest

from zc_perception.camera.synthetic import RoadScene
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
from zc_perception.pixel.fourcc import fourcc_code

pytestmark = pytest.mark.usefixtures('warm_engines', 'no_fd_leak')
WAIT_S = 60.0


@pytest.fixture
def ledger() -> CopyLedger:
    return CopyLedger()


@pytest.fixture
def accelerator(ledger: CopyLedger) -> Iterator[OnnxAccelerator]:
    accelerator = OnnxAccelerator(ledger, {'threads': 1})
    yield accelerator
    accelerator.close()


def road_frame(make_frame: MakeFrame, scene: RoadScene, index: int) -> Frame:
    return make_frame(
        width=scene.width,
        height=scene.height,
        sequence=index,
        fill=lambda luma, chroma: scene.draw(index, luma, chroma),
    )


def run(accelerator: OnnxAccelerator, frame: Frame) -> EngineJob:
    job = accelerator.submit(accelerator.import_frame(frame), frame)
    assert job.fence.wait(WAIT_S)
    return job


def test_the_road_model_finds_what_is_in_the_frame(
    accelerator: OnnxAccelerator, ledger: CopyLedger, make_frame: MakeFrame
) -> None:
    manifest, scene = load_manifest('road'), RoadScene(640, 360, 3)
    accelerator.load(manifest)
    wanted = found = 0
    for index in (0, 30, 60):
        frame = road_frame(make_frame, scene, index)
        job = run(accelerator, frame)
        detections = make_head(manifest.head).decode(
            job.outputs(),
            job.letterbox,
            DecodeLimits(manifest.score_threshold, manifest.nms_threshold, 100),
        )
        for item in scene.truth(index):
            if item.visible < 0.9 or min(item.width, item.height) < 20:
                continue
            wanted += 1
            box = np.array([[item.x, item.y, item.x + item.width, item.y + item.height]])
            of_class = detections.boxes[detections.classes == item.class_index]
            found += bool(len(of_class)) and bool((box_iou(box, of_class) >= 0.5).any())
        job.close()
        frame.release()
    assert wanted >= 10 and found >= 0.8 * wanted
    # Luma and chroma of each frame, read once.
    assert ledger.entries() == {'tensor': LedgerEntry(3, 3 * 640 * 360 * 3 // 2)}


def test_small_objects_of_a_large_picture_are_found_in_tiles_of_a_part_of_it(
    ledger: CopyLedger, make_frame: MakeFrame
) -> None:
    """
    The objects have 8 pixels and more in a 4K picture.

    Without tiles they would be less than two pixels for the model.
    """
    manifest, scene, (left, top) = load_manifest('road'), RoadScene(640, 360, 3), (1800, 900)
    picture = np.zeros((540, 640), np.uint8)
    scene.draw(0, picture[:360], picture[360:].reshape(180, 320, 2))
    small = [
        cv2.resize(plane, (size, rows), interpolation=cv2.INTER_AREA)
        for plane, size, rows in (
            (picture[:360], 320, 180),
            (picture[360:].reshape(180, 320, 2), 160, 90),
        )
    ]

    def fill(luma: NDArray[np.uint8], chroma: NDArray[np.uint8]) -> None:
        luma[:], chroma[:] = 110, 128
        luma[slice(top, top + 180), slice(left, left + 320)] = small[0]
        chroma[slice(top // 2, top // 2 + 90), slice(left // 2, left // 2 + 160)] = small[1]

    frame = make_frame(width=3840, height=2160, fill=fill)
    limits = DecodeLimits(manifest.score_threshold, manifest.nms_threshold, 100)
    shares = {}
    for name, parts in {'whole': {}, 'tiles': {'roi': '1640,810,640,360', 'tiles': '3x3'}}.items():
        accelerator = OnnxAccelerator(ledger, {'threads': 1, **parts})
        try:
            accelerator.load(manifest)
            job = run(accelerator, frame)
            found = decode(make_head(manifest.head), job.outputs(), job.letterbox, limits)
            job.close()
        finally:
            accelerator.close()
        hits = []
        for item in scene.truth(0):
            if item.visible >= 0.9 and min(item.width, item.height) >= 16:
                box = np.array([[item.x, item.y, item.x + item.width, item.y + item.height]]) / 2
                overlaps = box_iou(
                    box + (left, top) * 2, found.boxes[found.classes == item.class_index]
                )
                hits.append(bool((overlaps >= 0.5).any()))
        shares[name] = sum(hits) / len(hits)
    assert shares['whole'] == 0.0 and shares['tiles'] >= 0.6, shares


@pytest.mark.parametrize('name', ['NV12', 'YUYV'])
def test_the_hog_model_yields_opencv_s_own_people(
    accelerator: OnnxAccelerator, make_pool: MakePool, make_frame: MakeFrame, name: str
) -> None:
    manifest, scene = load_manifest('hog'), RoadScene(640, 384, 1)
    accelerator.load(manifest)
    luma, chroma = np.zeros((384, 640), np.uint8), np.zeros((192, 320, 2), np.uint8)
    scene.draw(0, luma, chroma)
    frame = make_frame(make_pool(640, 384, slots=1, fourcc=fourcc_code(name)))
    with frame.map(write=True) as planes:
        if name == 'NV12':
            planes[0][:] = luma
        else:
            planes[0][..., ::2] = luma.reshape(384, 320, 2)
    job = run(accelerator, frame)
    found = make_head(manifest.head).decode(
        job.outputs(),
        job.letterbox,
        DecodeLimits(manifest.score_threshold, manifest.nms_threshold, 100),
    )
    hog = cv2.HOGDescriptor()
    hog.setSVMDetector(np.asarray(cv2.HOGDescriptor.getDefaultPeopleDetector(), np.float32))
    boxes, distances = hog.detectMultiScale(luma, winStride=(8, 8), scale=1.05)
    assert len(boxes) >= 1, 'the picture was chosen because HOG sees somebody in it'
    order = np.argsort(-np.reshape(distances, -1))
    assert found.boxes.tolist() == [
        [x, y, x + w, y + h] for x, y, w, h in np.asarray(boxes)[order].tolist()
    ]
    assert found.scores == pytest.approx(1 - np.exp(-np.reshape(distances, -1)[order]))
    job.close()
    frame.release()


@pytest.mark.parametrize(('width', 'height'), [(128, 96), (62, 128), (2, 2)])
def test_a_picture_smaller_than_hog_s_window_has_nobody_in_it(
    accelerator: OnnxAccelerator,
    make_pool: MakePool,
    make_frame: MakeFrame,
    width: int,
    height: int,
) -> None:
    accelerator.load(load_manifest('hog'))
    with make_frame(make_pool(width, height)) as frame:
        job = accelerator.submit(accelerator.import_frame(frame), frame)
        assert job.fence.wait(WAIT_S)
        assert job.outputs()[0].values.shape == (0, 6)
        job.close()


class ScriptedEngine(Engine):
    """Waits until it is told to go on; raises what is in ``errors``."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.started = threading.Event()
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


def filled(make_frame: MakeFrame, pool: BufferPool, value: int) -> Frame:
    return make_frame(pool, sequence=value, fill=lambda luma, chroma: luma.fill(value))


def test_an_engine_s_exception_is_a_failing_fence(
    accelerator: OnnxAccelerator,
    engine: ScriptedEngine,
    make_pool: MakePool,
    make_frame: MakeFrame,
) -> None:
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


def test_closing_lets_the_running_job_end(
    accelerator: OnnxAccelerator,
    engine: ScriptedEngine,
    make_pool: MakePool,
    make_frame: MakeFrame,
) -> None:
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
    accelerator: OnnxAccelerator,
    engine: ScriptedEngine,
    make_pool: MakePool,
    make_frame: MakeFrame,
) -> None:
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


@pytest.mark.parametrize(
    ('entries', 'message'),
    [
        (
            ['CUDAExecutionProvider'],
            'which this .* lacks; it has .*CPUE.*; install onnxruntime-gpu',
        ),
        (['CPUExecutionprovider; a=1'], r"did you mean 'CPUExecutionProvider'\?$"),
        (
            ['CPUExecutionProvider device_type=NPU'],
            "has '.*'; it must be a name, or 'NAME; option",
        ),
        (['CPUExecutionProvider', 'CPUExecutionProvider; a=1'], "'CPUExecutionProvider' twice"),
    ],
)
def test_a_provider_that_can_not_be_is_refused_by_name(entries: list[str], message: str) -> None:
    accelerator = OnnxAccelerator(CopyLedger(), {'threads': 1, 'providers': entries})
    with pytest.raises(ConfigError, match=message):
        accelerator.load(load_manifest('road'))


def test_it_says_which_provider_runs_how_many_nodes() -> None:
    """The second one is in every build of ONNX Runtime, and takes no node of such a model."""
    for entries, notices in (
        (['CPUExecutionProvider; an=option'], 0),
        (['AzureExecutionProvider', 'CPUExecutionProvider'], 1),
    ):
        accelerator = OnnxAccelerator(CopyLedger(), {'threads': 1, 'providers': entries})
        accelerator.load(load_manifest('road'))
        share = str(accelerator.facts()['nodes_on_cpu'])
        assert share.split(' of ')[0] == share.split(' of ')[1] != '0'
        assert accelerator.facts()['provider'] == 'CPUExecutionProvider'
        assert len(accelerator.notices()) == notices
        assert (
            not notices
            or f'{share} nodes of model road run on the CPU' in accelerator.notices()[0]
        )
        accelerator.close()


def test_a_provider_with_memory_of_its_own_gets_its_input_there(
    accelerator: OnnxAccelerator, monkeypatch: pytest.MonkeyPatch, make_frame: MakeFrame
) -> None:
    """ONNX Runtime takes the host's memory for a device's, too."""
    frames = [road_frame(make_frame, RoadScene(640, 360, 3), index) for index in (0, 30)]
    found = []
    for memories in ({}, {'CPUExecutionProvider': 'cpu'}):
        monkeypatch.setattr(onnx_accelerator, '_MEMORIES', memories)
        accelerator.load(load_manifest('road'))
        for frame in frames:
            job = run(accelerator, frame)
            found.append([output.values.copy() for output in job.outputs()])
            job.close()
    for plain, bound in zip(found[:2], found[2:], strict=True):
        assert all(np.array_equal(*pair) for pair in zip(plain, bound, strict=True))
    assert not np.array_equal(found[0][0], found[1][0])
