"""Frames of every format through the cpu accelerator: a model that hands its input back shows which colours it was given."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from npu.onnx_kit import FLOAT, identity
from npu.scheduler_kit import MakePool
from numpy.typing import NDArray
from pixel.format_samples import ALL, GREY, PUBLISHED, WORDS, YUV, expanded, noise, published_rgb, rgb_planes, spread, words_rgb, yuv_planes

from zc_perception.errors import AcceleratorError
from zc_perception.frame import Frame, Header
from zc_perception.memory.ledger import CopyLedger
from zc_perception.memory.pool import BufferPool
from zc_perception.npu import cpu
from zc_perception.npu.cpu import CpuAccelerator, HogEngine
from zc_perception.npu.manifest import load_manifest
from zc_perception.pixel.colorimetry import BT601_LIMITED, Colorimetry, Matrix, Range
from zc_perception.pixel.fourcc import fourcc_code

WIDTH, HEIGHT = 64, 48
WAIT_S = 60.0


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CpuAccelerator]:
    """Gives R, G, B of its input back, 0..255."""
    monkeypatch.setattr(cpu, 'check_head', lambda manifest, outputs: None)
    (tmp_path / 'model.onnx').write_bytes(identity([1, 3, HEIGHT, WIDTH], FLOAT))
    network = {'width': WIDTH, 'height': HEIGHT, 'range': [0, 255]}
    manifest = {'file': 'model.onnx', 'input': network, 'head': 'boxes', 'classes': ['a']}
    (tmp_path / 'model.yaml').write_text(yaml.safe_dump(manifest), encoding='utf-8')
    accelerator = CpuAccelerator(CopyLedger(), threads=1)
    accelerator.load(load_manifest(str(tmp_path)))
    yield accelerator
    accelerator.close()


def frame_of(pool: BufferPool, planes: Sequence[NDArray[Any]], colorimetry: Colorimetry) -> Frame:
    slot = pool.acquire()
    assert slot is not None
    frame = Frame.publish_slot(
        pool, slot, header=Header(1, 'camera'), colorimetry=colorimetry, sequence=0, captured_ns=time.monotonic_ns()
    )  # fmt: skip
    with frame.map(write=True) as targets:
        for target, plane in zip(targets, planes, strict=True):
            np.copyto(target, plane)
    return frame


def result(accelerator: CpuAccelerator, frame: Frame) -> NDArray[Any]:
    job = accelerator.submit(accelerator.import_frame(frame), frame)
    try:
        assert job.fence.wait(WAIT_S)
        values: NDArray[Any] = job.outputs()[0].values
        return values
    finally:
        job.close()
        frame.release()


def case(name: str, matrix: str, span: str) -> tuple[list[NDArray[Any]], NDArray[Any]]:
    """Planes of noise, and R, G, B of each pixel."""
    random = np.random.default_rng(6)
    if name in YUV:
        y, u, v = noise(name, WIDTH, HEIGHT, 6)
        return yuv_planes(name, y, u, v, random), published_rgb(y, spread(u, name), spread(v, name), matrix, span)
    rgb = random.integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)
    kept = np.repeat(rgb[..., :1], 3, axis=2) if name in GREY else words_rgb(rgb) if name in WORDS else rgb
    return rgb_planes(name, rgb, random), expanded(kept, span if name in GREY else 'full')


@pytest.mark.parametrize('name', ALL)
@pytest.mark.parametrize(('matrix', 'span'), PUBLISHED)
def test_the_model_is_given_the_colours_that_the_frame_means(
    mirror: CpuAccelerator, make_pool: MakePool, name: str, matrix: str, span: str
) -> None:
    planes, wanted = case(name, matrix, span)
    pool = make_pool(WIDTH, HEIGHT, slots=1, fourcc=fourcc_code(name), layout={'stride_align': 96})
    tensor = result(mirror, frame_of(pool, planes, Colorimetry(Matrix(matrix), Range(span))))
    assert np.abs(tensor[0].transpose(1, 2, 0) - wanted).max() <= (2 if name in WORDS else 1.1)
    assert mirror._ledger.entries()['tensor'].bytes == sum(plane.nbytes for plane in planes), 'one pass over the frame, booked'


def test_frames_may_change_their_format(mirror: CpuAccelerator, make_pool: MakePool) -> None:
    for name in ('NV12', 'NV21', 'NV12', 'YUYV', 'P010', 'R8  ', 'NV21'):
        planes, wanted = case(name, 'bt601', 'limited')
        frame = frame_of(make_pool(WIDTH, HEIGHT, slots=1, fourcc=fourcc_code(name)), planes, BT601_LIMITED)
        assert np.abs(result(mirror, frame)[0].transpose(1, 2, 0) - wanted).max() <= 1.1


def test_what_can_not_be_read_fails_its_frame_by_name(mirror: CpuAccelerator, make_pool: MakePool) -> None:
    pool = make_pool(WIDTH, HEIGHT, slots=1, fourcc=fourcc_code('NV15'))
    slot = pool.acquire()
    assert slot is not None
    frame = Frame.publish_slot(pool, slot, header=Header(1, ''), colorimetry=BT601_LIMITED, sequence=0, captured_ns=1)
    with pytest.raises(
        AcceleratorError, match=r"NV15 frames can't be read by a program here; it can read NV12, NV21.*set the camera's pixel_format"
    ):
        result(mirror, frame)
    assert fourcc_code('NV15') not in {fourcc for fourcc, _ in mirror.constraints().formats or ()}


class RecordingHog:
    """Stands in for OpenCV's, which finds nobody in noise."""

    winSize = (WIDTH, HEIGHT)

    def __init__(self) -> None:
        self.pictures: list[NDArray[np.uint8]] = []

    def detectMultiScale(self, picture: NDArray[np.uint8], **options: Any) -> tuple[list[Any], list[Any]]:
        self.pictures.append(picture.copy())
        return [], []


@pytest.mark.parametrize('name', ALL)
def test_hog_looks_at_the_luma_of_every_format(make_pool: MakePool, name: str) -> None:
    accelerator = CpuAccelerator(CopyLedger(), threads=1)
    accelerator.load(load_manifest('hog'))
    assert isinstance(accelerator._engine, HogEngine)
    accelerator._engine._hog = hog = RecordingHog()
    try:
        planes, rgb = case(name, 'bt601', 'full')
        pool = make_pool(WIDTH, HEIGHT, slots=1, fourcc=fourcc_code(name))
        result(accelerator, frame_of(pool, planes, Colorimetry(Matrix.BT601, Range.FULL)))
    finally:
        accelerator.close()
    luma = noise(name, WIDTH, HEIGHT, 6)[0] if name in YUV else rgb @ np.array([0.299, 0.587, 0.114])
    assert np.abs(hog.pictures[0] - luma.astype(np.float64)).max() <= 1.5
