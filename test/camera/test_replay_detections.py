"""The shipped model finds the same objects in recordings as it did in the live camera's frames.

The recordings are written by the libraries rosbags and mcap, and by our own recorder; the model runs in road_evaluation.py, with none
of the package's pre- or postprocessing.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from camera.replay_kit import compressed, configure, image, nv12_rows, planes_of, played, replay, write_bag, write_mcap
from detection.average_precision import ImageBoxes
from detection.road_evaluation import RoadModel
from numpy.typing import NDArray

import zc_perception
from zc_perception.camera.recording import FrameRecorder
from zc_perception.camera.synthetic import SyntheticCamera
from zc_perception.detection.detections import box_iou
from zc_perception.memory.heaps import SealedMemfd
from zc_perception.memory.ledger import CopyLedger

pytestmark = pytest.mark.usefixtures('no_fd_leak')
WIDTH, HEIGHT, FRAMES = 640, 360, 5
STAMP, PERIOD = 1_700_000_000_000_000_000, 33_333_333
Live = list[tuple[NDArray[np.uint8], NDArray[np.uint8]]]


@pytest.fixture(scope='module')
def model() -> RoadModel:
    return RoadModel(Path(zc_perception.__file__).parent / 'models' / 'road' / 'model.onnx')


@pytest.fixture(scope='module')
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Live, Path, list[int]]]:
    """The live camera's frames, what our recorder made of them, and their stamps: those of a camera that the machine held up differ."""
    path = tmp_path_factory.mktemp('live') / 'own.zcr'
    stamps = iter(range(STAMP, STAMP + 10 * FRAMES * PERIOD, PERIOD))
    camera = SyntheticCamera(WIDTH, HEIGHT, 1000.0, 'lens', seed=11, heap=SealedMemfd(), now_ns=lambda: next(stamps), ledger=CopyLedger())
    configure(camera, stride_align=768)
    frames: Live = []
    stamped: list[int] = []
    with FrameRecorder(path, ledger=CopyLedger()) as recorder:
        while len(frames) < FRAMES:
            frame = camera.capture()
            if frame is not None:
                with frame:
                    luma, chroma = planes_of(frame)
                    frames.append((luma, chroma))
                    stamped.append(frame.header.stamp_ns)
                    assert recorder.put(frame)
    camera.close()
    yield frames, path, stamped


@pytest.fixture(scope='module')
def found_live(model: RoadModel, live: tuple[Live, Path, list[int]]) -> list[ImageBoxes]:
    found = [model.detect(*planes) for planes in live[0]]
    assert min(np.count_nonzero(boxes.scores > 0.5) for boxes in found) >= 2, 'there is something to find'
    return found


def message(kind: str, index: int, planes: Any) -> Any:
    stamp, (luma, chroma) = STAMP + index * PERIOD, planes
    if kind == 'nv12':
        return image(stamp, nv12_rows(luma, chroma), kind, WIDTH, HEIGHT, padding=128)
    if kind == 'yuyv':
        pairs = chroma.repeat(2, axis=0)
        packed = np.stack([luma[:, ::2], pairs[..., 0], luma[:, 1::2], pairs[..., 1]], axis=-1)
        return image(stamp, packed.reshape(HEIGHT, -1), kind, WIDTH, HEIGHT)
    bgr = cv2.cvtColorTwoPlane(luma, chroma, cv2.COLOR_YUV2BGR_NV12)
    if kind == 'jpeg':
        return compressed(stamp, cv2.imencode('.jpg', bgr, [cv2.IMWRITE_JPEG_QUALITY, 95])[1], 'bgr8; jpeg compressed bgr8')
    if kind == 'png':
        return compressed(stamp, cv2.imencode('.png', bgr)[1], 'bgr8; png compressed bgr8')
    return image(stamp, (bgr if kind == 'bgr8' else bgr[..., ::-1]).reshape(HEIGHT, -1), kind, WIDTH, HEIGHT)


def recording(folder: Path, writer: str, kind: str, frames: Live) -> Path:
    entries = [('/image_raw', STAMP + i * PERIOD, message(kind, i, planes)) for i, planes in enumerate(frames)]
    if writer == 'mcap':
        return write_mcap(folder / 'by_mcap.mcap', entries)
    return write_bag(folder / 'bag', entries, writer.removeprefix('rosbags '))


@pytest.mark.parametrize('kind', ['nv12', 'yuyv'])
@pytest.mark.parametrize('writer', ['rosbags sqlite3', 'rosbags mcap', 'mcap'])
def test_the_same_boxes_to_the_bit_where_the_encoding_keeps_all(
    writer: str, kind: str, tmp_path: Path, model: RoadModel, live: tuple[Live, Path, list[int]], found_live: list[ImageBoxes]
) -> None:
    path = recording(tmp_path, writer, kind, live[0])
    _same(model, played(replay(path, stamps='recorded')), found_live, [STAMP + i * PERIOD for i in range(FRAMES)])


def test_the_same_boxes_from_our_own_recorder(model: RoadModel, live: tuple[Live, Path, list[int]], found_live: list[ImageBoxes]) -> None:
    found = played(replay(live[1], stamps='recorded'))
    assert all(np.array_equal(a, b) for (_, planes), frame in zip(found, live[0], strict=True) for a, b in zip(planes, frame, strict=True))
    _same(model, found, found_live, live[2])


def _same(model: RoadModel, found: list[Any], expected: list[ImageBoxes], stamps: list[int]) -> None:
    assert [frame.header.stamp_ns for frame, _ in found] == stamps
    for (_, planes), boxes in zip(found, expected, strict=True):
        again = model.detect(*planes)
        assert np.array_equal(again.boxes, boxes.boxes)
        assert np.array_equal(again.classes, boxes.classes) and np.array_equal(again.scores, boxes.scores)


@pytest.mark.parametrize('kind', ['bgr8', 'rgb8', 'png', 'jpeg'])
def test_the_same_objects_where_colours_were_converted(
    kind: str, tmp_path: Path, model: RoadModel, live: tuple[Live, Path, list[int]], found_live: list[ImageBoxes]
) -> None:
    found = played(replay(recording(tmp_path, 'rosbags mcap', kind, live[0])))
    overlaps = []
    for (_, planes), boxes in zip(found, found_live, strict=True):
        again = model.detect(*planes)
        for one, other in ((boxes, again), (again, boxes)):
            sure = one.scores > 0.5
            overlaps += list((box_iou(one.boxes[sure], other.boxes) * (one.classes[sure][:, None] == other.classes)).max(axis=1))
    # Where two boxes of one object are as likely, a rounding decides which of them stays.
    assert len(overlaps) > 100 and np.mean(np.array(overlaps) > 0.9) > 0.95
