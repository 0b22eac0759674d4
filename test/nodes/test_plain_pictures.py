"""Pictures of a plain publisher, of odd sizes, Bayer and padded: boxes are in its own pixels."""

from __future__ import annotations

import array
from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
import pytest
from nodes.format_kit import Boxes, check_same_boxes
from nodes.ros_kit import Onlooker, overrides, ros, spun
from numpy.typing import NDArray
from sensor_msgs.msg import Image
from vision_msgs.msg import Detection2DArray

from zc_perception.camera.scene import RoadScene
from zc_perception.detection.detections import box_iou
from zc_perception.nodes.inference import InferenceNode

WIDTH, HEIGHT, FRAMES = 640, 360, 6
Bytes = NDArray[np.uint8]


def scene() -> list[tuple[Bytes, Bytes]]:
    """Luma and chroma of some frames of the drawn road."""
    road, found = RoadScene(WIDTH, HEIGHT, 11), []
    for number in range(FRAMES):
        luma = np.empty((HEIGHT, WIDTH), np.uint8)
        chroma = np.empty((HEIGHT // 2, WIDTH // 2, 2), np.uint8)
        road.draw(number, luma, chroma)
        found.append((luma, chroma))
    return found


def rows_in(encoding: str, luma: Bytes, chroma: Bytes) -> tuple[tuple[int, int], Bytes]:
    """The size of the picture that is sent, and its rows. Colours have one more row and column."""
    if encoding.startswith('nv12'):
        rows = HEIGHT + 24 if 'padded' in encoding else HEIGHT
        content = np.full((rows * 3 // 2, WIDTH), 0xEE, np.uint8)
        content[:HEIGHT] = luma
        content[rows : rows + HEIGHT // 2] = chroma.reshape(HEIGHT // 2, WIDTH)
        return (WIDTH, HEIGHT), content
    bgr = np.asarray(cv2.cvtColorTwoPlane(luma, chroma, cv2.COLOR_YUV2BGR_NV12), np.uint8)
    bgr = np.pad(bgr, ((0, 1), (0, 1), (0, 0)), mode='edge')
    if encoding == '8UC3':
        return (WIDTH + 1, HEIGHT + 1), bgr.reshape(HEIGHT + 1, -1)
    if encoding == 'rgb8':
        return (WIDTH + 1, HEIGHT + 1), bgr[..., ::-1].reshape(HEIGHT + 1, -1)
    samples = bgr[..., 1].copy()  # bayer_rggb
    samples[0::2, 0::2], samples[1::2, 1::2] = bgr[0::2, 0::2, 2], bgr[1::2, 1::2, 0]
    if encoding.endswith('16'):
        samples = (samples.astype('<u2') << 8).view(np.uint8)
    return (WIDTH + 1, HEIGHT + 1), samples


class Camera(Onlooker):
    """Another program: it sends pictures and gets boxes."""

    def __init__(self, domain: int) -> None:
        super().__init__(domain, 'foreign')
        self.found: list[Detection2DArray] = []
        self._publisher = self.node.create_publisher(Image, 'image_raw', 1)
        self.node.create_subscription(Detection2DArray, 'detections', self.found.append, 10)

    def boxes(self, encoding: str) -> Boxes:
        """What is found in each frame of the road, sent in *encoding*."""
        self.until(self._publisher.get_subscription_count, 'a reader')
        found: list[Any] = []
        for number, planes in enumerate(scene()):
            (width, height), rows = rows_in(encoding, *planes)
            message = Image(width=width, height=height, step=rows.shape[1])
            message.encoding = encoding.split()[0]
            message.data = array.array('B', rows.tobytes())
            message.header.stamp.sec = number + 1
            self.found.clear()
            self._publisher.publish(message)
            self.until(lambda: self.found, f'boxes of frame {number} in {encoding}')
            found.append(corners(self.found[0]))
        return found


def corners(message: Detection2DArray) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    boxes, classes = [], []
    for detection in message.detections:
        box = detection.bbox
        x, y, half_x, half_y = (
            box.center.position.x,
            box.center.position.y,
            box.size_x / 2,
            box.size_y / 2,
        )
        boxes.append((x - half_x, y - half_y, x + half_x, y + half_y))
        classes.append(int(detection.results[0].hypothesis.class_id))
    return np.array(boxes, np.float64).reshape(-1, 4), np.array(classes, np.intp)


def check_nearly_same_boxes(found: Boxes, expected: Boxes) -> None:
    """Most objects, each where the other one is: a filter in front of a sensor costs details."""
    overlaps, shifts = [], []
    for (boxes, classes), (other_boxes, other_classes) in zip(found, expected, strict=True):
        overlap = box_iou(boxes, other_boxes) * (classes[:, None] == other_classes)
        overlaps += list(overlap.max(axis=0))
        shifts += [boxes[overlap.argmax(axis=0)] - other_boxes]
    assert np.mean(np.array(overlaps) > 0.6) > 0.8, sorted(overlaps)[:20]
    assert np.abs(np.median(np.vstack(shifts), axis=0)).max() < 1.0, 'none is moved or scaled'


@pytest.mark.parametrize(
    ('encodings', 'check'),
    [
        (('rgb8', '8UC3', 'nv12 padded'), check_same_boxes),
        (('bayer_rggb8', 'bayer_rggb16'), check_nearly_same_boxes),
    ],
)
def test_boxes_are_those_of_the_same_picture_in_nv12(
    free_domain: int, encodings: tuple[str, ...], check: Callable[[Boxes, Boxes], None]
) -> None:
    values = {'threads': 1, 'timeout': 20.0, 'keep_all': True}
    with ros(free_domain) as context, Camera(free_domain) as camera:
        node = InferenceNode(context=context, parameter_overrides=overrides(values))
        with spun(context, node):
            expected = camera.boxes('nv12')
            for encoding in encodings:
                check(camera.boxes(encoding), expected)
