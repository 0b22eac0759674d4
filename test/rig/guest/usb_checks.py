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

"""A webcam on USB: :mod:`rig.guest.usb_webcam`, the kernel's ``uvcvideo``, this package."""

from __future__ import annotations

from functools import cache
from pathlib import Path
import subprocess
import sys
import zlib

from camera.jpeg_kit import jpeg, without_tables
from environment.fixtures import load_turbojpeg
import numpy as np
from waiting import until

from zc_perception.camera.v4l2.camera import V4l2Camera
from zc_perception.camera.v4l2.device import capture_devices, find_device
from zc_perception.errors import CameraLostError
from zc_perception.frame import Frame
from zc_perception.memory.ledger import CopyLedger, LedgerEntry
from zc_perception.pixel.fourcc import fourcc_name

from .camera_kit import configured, next_frame, opened, streaming, until_raises
from .harness import check, check_each, equal
from .kernel_api import bufinfo
from .package_kit import accelerator, device_crcs, kernel_crcs
from .usb_webcam import MJPG, number_of, SERIAL, STRINGS, yuyv_frame

SMALL, LARGE = (320, 240), (640, 480)
_BYTES = SMALL[0] * SMALL[1] * 2
# Bars in the webcam's picture show the last bits of its number.
_BARS = 8
_PICTURES = 8
_DARK, _BRIGHT = 40, 215


def _bars(number: int, width: int, height: int) -> np.ndarray:
    bits = (number >> (np.arange(width) * _BARS // width)) & 1
    return np.repeat(np.where(bits, _BRIGHT, _DARK).astype(np.uint8)[np.newaxis], height, axis=0)


@cache
def _jpegs() -> Path:
    """Return the webcam's JPEGs: 4:2:2 and without Huffman tables, as of most webcams."""
    load_turbojpeg()
    home = Path('/tmp/webcam')
    for picture in MJPG:
        folder = home / f'{picture.width}x{picture.height}'
        folder.mkdir(parents=True)
        for number in range(_PICTURES):
            grey = _bars(number, picture.width, picture.height)
            (folder / f'{number}.jpg').write_bytes(without_tables(jpeg(np.dstack([grey] * 3))))
    return home


class Webcam:
    """A webcam that is plugged in from its construction; *path* is its device node."""

    def __init__(self, **faults: int) -> None:
        script = str(Path(__file__).with_name('usb_webcam.py'))
        self._others = _nodes()
        words = [str(_jpegs()), *(f'{name}={number}' for name, number in faults.items())]
        self._process = subprocess.Popen(
            [sys.executable, '-S', script, *words], stdin=subprocess.PIPE
        )
        try:
            until(lambda: _webcams() != [], 'uvcvideo sees the webcam')
            (self.path,) = _webcams()
        except BaseException:
            self.unplug()
            raise

    def unplug(self) -> None:
        """Unplug it once, and wait until it has no device node."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        equal(self._process.wait(60.0), 0, 'status of the webcam')
        until(lambda: _nodes() == self._others, 'its nodes go')

    def __enter__(self) -> Webcam:
        return self

    def __exit__(self, *exception: object) -> None:
        self.unplug()


def _nodes() -> set[Path]:
    return set(Path('/dev').glob('video*'))


def _webcams() -> list[str]:
    return [path for path, card in capture_devices() if STRINGS[2] in card]


def _number_in(frame: Frame) -> int:
    """Return the number in its pixels, all of which must be right."""
    with frame.map() as planes:
        pixels = np.ascontiguousarray(planes[0]).tobytes()
        if len(planes) == 1:
            number = number_of(pixels)
            assert pixels == yuyv_frame(number, len(pixels)), (
                f'the pixels of frame {number} are not its own'
            )
            return number
        luma, chroma = planes[0].astype(int), planes[1].astype(int)
    number = sum(
        1 << bit
        for bit in range(_BARS)
        if luma[:, (2 * bit + 1) * luma.shape[1] // (2 * _BARS)].mean() > 128
    )
    furthest = (
        int(np.abs(luma - _bars(number, frame.data.width, frame.data.height)).max()),
        int(np.abs(chroma - 128).max()),
    )
    assert max(furthest) <= 8, f'luma and chroma of picture {number} are up to {furthest} off'
    return number


def _counted(camera: V4l2Camera) -> int:
    statistics = camera.statistics()
    return statistics.captured + statistics.lost + statistics.no_slot + statistics.bad


@check
def yuyv_of_a_usb_camera_reaches_the_device_as_the_webcam_sent_it() -> None:
    with Webcam() as webcam, accelerator() as npu:
        for _ in range(2):  # the second time a part of a frame is still waiting in the webcam
            ledger = CopyLedger()
            with streaming(
                webcam.path, [npu.constraints()], size=SMALL, pixel_format='YUYV', ledger=ledger
            ) as camera:
                equal(
                    (camera.memory, camera.heap_name, camera.framerate),
                    ('export', 'v4l2/uvcvideo', 30.0),
                    'memory and rate',
                )
                inodes = {
                    buffer.identity.inode for slot in camera.slots for buffer in slot.buffers
                }
                equal(
                    {bufinfo()[inode].exporter for inode in inodes},
                    {'videobuf2_vmalloc'},
                    'exporter',
                )
                with next_frame(camera) as frame:
                    first, ahead = frame.data.sequence, _number_in(frame) - frame.data.sequence
                    looked_at = frame.data.buffers[0].identity.inode
                counted = _counted(camera)
                for _ in range(20):
                    with next_frame(camera) as frame:
                        last = frame.data.sequence
                        sent = yuyv_frame(last + ahead, _BYTES)
                        equal(
                            device_crcs(npu, frame),
                            [zlib.crc32(sent)],
                            f'what the device saw of frame {last + ahead}',
                        )
                equal(_counted(camera) - counted, last - first, 'frames, each counted')
                mapped = {
                    buffer.identity.inode
                    for slot in camera.slots
                    for buffer in slot.buffers
                    if buffer.mapped
                }
                equal(mapped, {looked_at}, 'mapped buffers: that of the first frame')
                equal((camera.restarts, ledger.entries()), (0, {}), 'restarts and copies')
                equal(
                    camera.facts()['timestamp source'],
                    'start of exposure',
                    'source of the timestamps',
                )


@check
def jpegs_of_a_usb_camera_are_decoded_once_each() -> None:
    ledger = CopyLedger()
    with Webcam() as webcam, streaming(webcam.path, size=LARGE, ledger=ledger) as camera:
        choice = str(camera.facts()['choice'])
        assert 'YUYV does 5 Hz at this size' in choice, choice
        ahead = None
        for _ in range(10):
            with next_frame(camera) as frame:
                equal(fourcc_name(frame.data.fourcc), 'NV12', 'format')
                difference = (_number_in(frame) - frame.data.sequence) % _PICTURES
                ahead = difference if ahead is None else ahead
                equal(difference, ahead, 'number in the picture, less that of the frame')
        statistics = camera.statistics()
        equal(statistics.bad, 0, 'bad pictures')
    # Frames that were decoded but never fetched are counted, too.
    booked = ledger.entries()
    equal(list(booked), ['decode'], 'copies')
    each = LARGE[0] * LARGE[1] * 3 // 2
    equal(
        booked['decode'],
        LedgerEntry(booked['decode'].count, booked['decode'].count * each),
        'bytes',
    )
    assert booked['decode'].count >= statistics.captured, (booked, statistics)


@check_each('short=5', 'marked=5')
def frames_that_a_usb_camera_spoils_are_counted_and_no_others(fault: str) -> None:
    name, _, every = fault.partition('=')
    with (
        Webcam(**{name: int(every)}) as webcam,
        streaming(webcam.path, size=SMALL, pixel_format='YUYV') as camera,
    ):
        with next_frame(camera) as frame:
            first, ahead = frame.data.sequence, _number_in(frame) - frame.data.sequence
        counted = _counted(camera)
        for _ in range(20):
            with next_frame(camera) as frame:
                number, last = _number_in(frame), frame.data.sequence
                equal(number, last + ahead, 'number in the picture')
                assert number % int(every), f'frame {number} was spoilt'
        statistics = camera.statistics()
        spoilt = sum(number % int(every) == 0 for number in range(first + ahead, last + ahead))
        assert statistics.lost + statistics.bad >= spoilt > 0, (statistics, spoilt)
        equal(_counted(camera) - counted, last - first, 'frames, each counted')
        equal(camera.restarts, 0, 'restarts')
        print(f'          {statistics}')


@check_each('YUYV', 'MJPG')
def a_usb_camera_that_is_unplugged_is_lost_and_found_again(pixel_format: str) -> None:
    size = SMALL if pixel_format == 'YUYV' else LARGE
    with Webcam() as webcam:
        camera = opened(webcam.path, size=size, pixel_format=pixel_format)
        try:
            configured(camera)
            identity = camera.identity
            assert f'serial {SERIAL}' in identity, identity
            next_frame(camera).release()
            held = next_frame(camera)
            before = kernel_crcs(held)
            webcam.unplug()
            until_raises(camera, CameraLostError, webcam.path, 'unplugged')
            equal(kernel_crcs(held), before, 'pixels of a frame that was leased')
        finally:
            camera.close()
        equal(find_device(identity), None, 'found while it is away')
    with Webcam() as webcam:
        equal(find_device(identity), webcam.path, 'its node')
        with streaming(webcam.path, size=size, pixel_format=pixel_format) as again:
            equal(again.identity, identity, 'identity')
            with next_frame(again) as frame:
                _number_in(frame)
    equal(kernel_crcs(held), before, 'pixels of a frame that was leased')
    held.release()
