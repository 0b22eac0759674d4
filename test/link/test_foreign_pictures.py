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
Plain publishers of rclpy send pictures of every encoding and shape.

A subscription reads the picture, or the log says why it does not.

The pictures are noise, packed here by hand. What is read is compared with OpenCV's conversions of
the picture before it was packed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import cv2
from link_ros import Ros
import numpy as np
from numpy.typing import NDArray
import pytest
from rclpy.qos import QoSProfile
from sensor_msgs.msg import Image
from waiting import eventually

from zc_perception.frame import Frame
from zc_perception.link.endpoints.frame_publisher import FramePublisher
from zc_perception.link.endpoints.frame_subscription import FrameSubscription

Bytes = NDArray[np.uint8]
TEN = QoSProfile(depth=10)


class Viewer:
    """A subscription that copies what it gets, and a plain publisher that it has found."""

    def __init__(self, here: Ros) -> None:
        self.seen: list[tuple[tuple[int, int], Bytes, Bytes, Bytes]] = []
        self._publisher = here.node('foreign').create_publisher(Image, 'image', TEN)
        self.subscription = FrameSubscription(here.node('viewer'), 'image', self._look, qos=TEN)
        assert eventually(self._publisher.get_subscription_count)

    def _look(self, frame: Frame) -> None:
        size = frame.data.width, frame.data.height
        self.seen.append((size, frame.y.copy(), frame.uv.copy(), frame.bgr()))

    def send(self, **fields: Any) -> None:
        self._publisher.publish(Image(**fields))

    def read(self, **fields: Any) -> tuple[tuple[int, int], Bytes, Bytes, Bytes]:
        """Return what becomes of one message: the frame's size, luma, chroma, and colours."""
        number = len(self.seen)
        self.send(**fields)
        assert eventually(lambda: len(self.seen) > number), self.subscription.statistics()
        return self.seen[number]


@pytest.fixture
def viewer(here: Ros) -> Iterator[Viewer]:
    made = Viewer(here)
    yield made
    made.subscription.destroy()


def noise(*shape: int) -> Bytes:
    return np.random.default_rng(29).integers(0, 256, shape, np.uint8)


def mosaic(bgr: Bytes, pattern: str) -> Bytes:
    """Return what a sensor with that filter has of a picture."""
    letters = np.tile(np.array(list(pattern)).reshape(2, 2), bgr.shape[:2])[
        : bgr.shape[0], : bgr.shape[1]
    ]
    return np.select(
        [letters == letter for letter in 'bgr'], [bgr[..., n] for n in range(3)]
    ).astype(np.uint8)


def rows_of(pixels: NDArray[Any], padding: int = 0) -> Bytes:
    """Rows of bytes, with some behind each that are no pixels."""
    found = np.ascontiguousarray(pixels).view(np.uint8).reshape(pixels.shape[0], -1)
    return np.pad(found, ((0, 0), (0, padding)), constant_values=0xEE)


def message(encoding: str, width: int, height: int, rows: Bytes) -> dict[str, Any]:
    return {
        'encoding': encoding,
        'width': width,
        'height': height,
        'step': rows.shape[1],
        'data': rows.tobytes(),
    }


def cut(pixels: Bytes) -> Bytes:
    """Without an odd last row or column."""
    height, width = pixels.shape[:2]
    return np.ascontiguousarray(pixels[: height & ~1, : width & ~1])


def nv12_of(bgr: Bytes) -> tuple[Bytes, Bytes]:
    """Luma and pairs of chroma, by OpenCV's own planes."""
    height, width = bgr.shape[:2]
    planar = np.asarray(cv2.cvtColor(bgr, cv2.COLOR_BGR2YUV_I420), np.uint8)
    chroma = planar[height:].reshape(2, height // 2, width // 2)
    return planar[:height], np.dstack([chroma[0], chroma[1]])


SIZES = [(64, 48), (641, 479), (853, 481), (63, 48), (64, 47)]


@pytest.mark.parametrize(
    ('pattern', 'code'),
    [
        ('rggb', cv2.COLOR_BAYER_RGGB2BGR),
        ('bggr', cv2.COLOR_BAYER_BGGR2BGR),
        ('gbrg', cv2.COLOR_BAYER_GBRG2BGR),
        ('grbg', cv2.COLOR_BAYER_GRBG2BGR),
    ],
)
def test_bayer_of_any_size_and_depth_has_the_colours_of_opencv_s(
    viewer: Viewer, pattern: str, code: int
) -> None:
    for width, height in SIZES:
        samples = mosaic(noise(height, width, 3), pattern)
        luma, chroma = nv12_of(cut(np.asarray(cv2.demosaicing(samples, code), np.uint8)))
        for bits in (8, 16):
            these = samples if bits == 8 else samples.astype('<u2') << 8
            sent = message(f'bayer_{pattern}{bits}', width, height, rows_of(these, 2))
            size, y, uv, _ = viewer.read(**sent)
            assert size == (width & ~1, height & ~1)
            assert np.array_equal(y, luma) and np.array_equal(uv, chroma), (pattern, bits, size)
    ledger = viewer.subscription.ledger
    assert ledger.count('debayer') == ledger.count('from_ros') == 2 * len(SIZES)


@pytest.mark.parametrize(
    ('size', 'step', 'rows'),
    [
        ((64, 48), 64, 64),
        ((64, 48), 64, 48),
        ((62, 46), 96, 48),
        ((1280, 718), 1280, 736),
        ((1920, 1080), 2048, 1088),
    ],
)
@pytest.mark.parametrize('encoding', ['nv12', 'nv21'])
def test_chroma_is_found_behind_padded_rows(
    viewer: Viewer, encoding: str, size: tuple[int, int], step: int, rows: int
) -> None:
    (width, height), content = size, noise(rows * 3 // 2, step)
    fields = {'encoding': encoding, 'width': width, 'height': height, 'step': step}
    _, y, uv, colours = viewer.read(**fields, data=content.tobytes())
    luma = content[:height, :width]
    pairs = content[slice(rows, rows + height // 2), :width]
    code = cv2.COLOR_YUV2BGR_NV12 if encoding == 'nv12' else cv2.COLOR_YUV2BGR_NV21
    packed = np.ascontiguousarray(np.vstack([luma, pairs]))
    order = (0, 1) if encoding == 'nv12' else (1, 0)
    assert np.array_equal(y, luma)
    assert np.array_equal(uv, pairs.reshape(height // 2, width // 2, 2)[..., order])
    assert np.array_equal(colours, cv2.cvtColor(packed, code))


@pytest.mark.parametrize(
    ('fields', 'reason'),
    [
        (
            {'encoding': 'nv12', 'step': 64, 'data': bytes(64 * 73)},
            '64x48 nv12 with a step of 64 needs 4608 bytes of data; there are 4672',
        ),
        (
            {'encoding': 'rgb8', 'step': 192, 'data': bytes(192 * 48 + 100)},
            '64x48 rgb8 with a step of 192 needs 9216 bytes of data; there are 9316',
        ),
        (
            {'encoding': 'mono8', 'step': 64, 'data': bytes(64 * 48 * 3)},
            '64x48 mono8 with a step of 64 needs 3072 bytes of data; there are 9216',
        ),
        (
            {'encoding': 'mono16', 'step': 128, 'data': bytes(128 * 48), 'is_bigendian': 1},
            'mono16 is big-endian',
        ),
        (
            {'encoding': '16UC1', 'step': 128, 'data': bytes(128 * 48)},
            "encoding '16UC1' can't be read as a picture, it has depths and no colours",
        ),
    ],
)
def test_what_is_not_clear_is_refused_and_the_log_has_the_numbers(
    viewer: Viewer, logged: Callable[[], str], fields: dict[str, Any], reason: str
) -> None:
    viewer.send(width=64, height=48, **fields)
    assert eventually(lambda: viewer.subscription.statistics().conversion_errors == 1)
    assert eventually(lambda: reason in logged()) and viewer.seen == []
    found = viewer.read(**message('mono8', 64, 48, noise(48, 64)))
    assert np.array_equal(found[1], noise(48, 64)), 'the next one is read'


@pytest.mark.parametrize('name', ['mono16', 'mono8', 'bgr8', 'rgb8'])
def test_frames_of_odd_sizes_become_messages_that_are_read_again(here: Ros, name: str) -> None:
    """A plain reader gets the whole picture, a subscription all but the odd row and column."""
    width, height, messages = 63, 47, []
    channels = 1 if name.startswith('mono') else 3
    sample = np.dtype('<u2' if name == 'mono16' else np.uint8)
    picture = noise(height, width * channels * sample.itemsize).view(sample)
    with FramePublisher(
        here.node('camera'),
        'image',
        width=width,
        height=height,
        format=name,
        image_encoding='native',
    ) as publisher:
        here.node('plain').create_subscription(Image, 'image', messages.append, TEN)
        assert eventually(lambda: publisher.statistics().image_readers == 1)
        with publisher.loan() as out:
            out.planes[0][:] = picture.reshape(out.planes[0].shape)
        assert eventually(lambda: messages)
    sent = messages[0]
    assert (sent.encoding, sent.width, sent.height) == (name, width, height)
    assert sent.step == picture.nbytes // height and sent.data.tobytes() == picture.tobytes()
    again = Viewer(here)
    try:
        _, y, _, _ = again.read(**message(name, width, height, rows_of(picture)))
    finally:
        again.subscription.destroy()
    grey = np.rint(picture / 256).clip(0, 255) if name == 'mono16' else picture
    if channels == 1:
        assert np.abs(y - cut(grey.astype(np.uint8)).astype(int)).max() <= 1
    else:
        colours = picture.reshape(height, width, 3)[..., :: 1 if name == 'bgr8' else -1]
        assert np.array_equal(y, nv12_of(cut(colours))[0])
