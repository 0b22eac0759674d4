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
Be a USB webcam in the guest that stays plugged in until stdin ends.

``python -S usb_webcam.py PICTURES [short=N] [marked=N]``. The kernel's ``dummy_hcd`` is a USB port
and the device in it. GadgetFS lets this program play the device: it describes itself as a webcam
with a bulk endpoint, answers the requests of ``uvcvideo``, and sends frames. (``f_uvc`` needs
isochronous endpoints, which ``dummy_hcd`` lacks, and FunctionFS refuses the descriptors of the
video class.)

Frame ``n`` shows its number: :func:`yuyv_frame`, or of *PICTURES* the file ``WIDTHxHEIGHT/N.jpg``
with ``n`` modulo their count. With ``short=N`` each N-th frame is cut off in the middle, with
``marked=N`` it is complete and marked as bad.

Sources: the kernel's ``linux/usb/gadgetfs.h`` and ``linux/usb/video.h``; USB 2.0 chapter 9
(descriptors); *USB Device Class Definition for Video Devices* 1.1, sections 2.4.3.3 (payload
header), 3 (descriptors) and 4 (requests), and its payload documents *Uncompressed* and
*Motion-JPEG*.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from functools import cache
import os
from pathlib import Path
import select
import signal
import struct
import sys
import threading
import time
from types import FrameType

SERIAL = 'ZC-0001'
#: String descriptors by their number; number 0 lists the languages (US English).
STRINGS = {1: 'ZC tests', 2: 'ZC webcam', 3: SERIAL}
CONTROL_INTERFACE, STREAMING_INTERFACE = 0, 1
_CAMERA_TERMINAL = 1
ENDPOINT = 0x81
#: In each payload: length, flags, time of the picture, source clock, number of the USB frame.
PAYLOAD_HEADER = 12
CLOCK_HZ = 1_000_000
_IN_100_NS = 10_000_000
_UVC_1_1 = 0x0110
_PROBED = '<HBBIHHHHHIIIBBBB'
PROBE_BYTES = struct.calcsize(_PROBED)


class Picture:
    """One entry of a format's list: a size, and its frames per second, the fastest first."""

    def __init__(self, width: int, height: int, rates: tuple[int, ...]) -> None:
        self.width, self.height, self.rates = width, height, rates
        # As YUYV; no JPEG of the tests is larger.
        self.most_bytes = width * height * 2
        # Frame intervals in units of 100 ns.
        self.intervals = tuple(_IN_100_NS // rate for rate in rates)


# Like many webcams: large YUYV pictures only slowly, JPEGs at full rate. The number of a format or
# picture is its place, from 1. GadgetFS answers with at most 256 bytes, which leaves no room for
# another picture.
YUYV = (Picture(320, 240, (30, 15)), Picture(640, 480, (5,)))
MJPG = (Picture(640, 480, (30,)),)
FORMATS = (YUYV, MJPG)
_YUY2_GUID = b'YUY2' + bytes.fromhex('00001000800000aa00389b71')


#: A composite device with interface associations.
DEVICE = struct.pack(
    '<BBHBBBBHHHBBBB', 18, 1, 0x0200, 0xEF, 2, 1, 64, 0x1D6B, 0x0104, 0x0100, 1, 2, 3, 1
)
_LANGUAGES = struct.pack('<BBH', 4, 3, 0x0409)


def configuration(packet: int) -> bytes:
    """Return the configuration at a speed whose bulk packets have this many bytes."""
    association = struct.pack('<8B', 8, 0x0B, CONTROL_INTERFACE, 2, 0x0E, 3, 0, 0)
    camera = struct.pack('<BBBBHBBHHHB3x', 18, 0x24, 2, _CAMERA_TERMINAL, 0x0201, 0, 0, 0, 0, 0, 3)
    units = camera + struct.pack('<BBBBHBBB', 9, 0x24, 3, 3, 0x0101, 0, _CAMERA_TERMINAL, 0)
    control = struct.pack('<9B', 9, 4, CONTROL_INTERFACE, 0, 0, 0x0E, 1, 0, 0) + struct.pack(
        '<BBBHHIBB', 13, 0x24, 1, _UVC_1_1, 13 + len(units), CLOCK_HZ, 1, STREAMING_INTERFACE
    )
    interfaces = association + control + units + _streaming_interface(packet)
    return struct.pack('<BBHBBBBB', 9, 2, 9 + len(interfaces), 2, 1, 0, 0x80, 250) + interfaces


def endpoint(packet: int) -> bytes:
    return struct.pack('<BBBBHB', 7, 5, ENDPOINT, 2, packet, 0)


def _streaming_interface(packet: int) -> bytes:
    # sRGB's colours and transfer, and the matrix of BT.601.
    colours = struct.pack('<6B', 6, 0x24, 0x0D, 1, 7, 4)
    yuyv = (
        struct.pack('<BBBBB16s6B', 27, 0x24, 4, 1, len(YUYV), _YUY2_GUID, 16, 1, 0, 0, 0, 0)
        + _pictures(5, YUYV)
        + colours
    )
    mjpg = (
        struct.pack('<11B', 11, 0x24, 6, 2, len(MJPG), 0, 1, 0, 0, 0, 0)
        + _pictures(7, MJPG)
        + colours
    )
    formats = yuyv + mjpg
    header = struct.pack(
        '<BBBBH9B', 15, 0x24, 1, len(FORMATS), 15 + len(formats), ENDPOINT, 0, 3, 0, 0, 0, 1, 0, 0
    )
    return (
        struct.pack('<9B', 9, 4, STREAMING_INTERFACE, 0, 1, 0x0E, 2, 0, 0)
        + header
        + formats
        + endpoint(packet)
    )


def _pictures(subtype: int, pictures: tuple[Picture, ...]) -> bytes:
    found = b''
    for number, picture in enumerate(pictures, 1):
        times, most = picture.intervals, picture.most_bytes
        bits = [8 * most * rate for rate in (picture.rates[-1], picture.rates[0])]
        found += struct.pack(
            f'<BBBBBHHIIIIB{len(times)}I', 26 + 4 * len(times), 0x24, subtype, number, 0,
            picture.width, picture.height, *bits, most, times[0], len(times), *times,
        )  # fmt: skip
    return found


@dataclass(frozen=True)
class Settings:
    """A stream's format and picture, by number, and the frame interval in units of 100 ns."""

    format: int = 1  # noqa: A003
    picture: int = 1
    interval: int = 0

    @classmethod
    def wanted(cls, data: bytes) -> Settings:
        """Return the supported settings nearest to the host's request."""
        _, form, number, interval, *_ = struct.unpack_from('<HBBI', data)
        form = min(max(form, 1), len(FORMATS))
        number = min(max(number, 1), len(FORMATS[form - 1]))
        offered = FORMATS[form - 1][number - 1].intervals
        return cls(form, number, min(offered, key=lambda one: abs(one - interval)))

    @property
    def size(self) -> Picture:
        return FORMATS[self.format - 1][self.picture - 1]

    @property
    def compressed(self) -> bool:
        return FORMATS[self.format - 1] is MJPG

    def packed(self) -> bytes:
        """Return them as the probe and commit controls do; a payload is a whole frame."""
        most = self.size.most_bytes
        chosen = 1, self.format, self.picture, self.interval or self.size.intervals[0]
        sizes = most, PAYLOAD_HEADER + most, CLOCK_HZ
        return struct.pack(_PROBED, *chosen, *[0] * 5, *sizes, 3, 1, 1, 1)


HOME = Path('/dev/gadget')
FULL_SPEED, HIGH_SPEED = 64, 512
_EVENT = 12
_SETUP = 3
_SET_CUR, _GET_LEN, _GET_INFO = 0x01, 0x85, 0x86
_PROBE, _COMMIT = 1, 2
_END_OF_HEADER, _ERROR, _HAS_CLOCK, _HAS_TIME, _END_OF_FRAME = 0x80, 0x40, 0x08, 0x04, 0x02


# Pictures: all frames differ, and each contains its number. Without NumPy, whose import is slow.
# Rows of a prime period differ from each other.
_PERIOD = 251
_NUMBER = struct.Struct('<Q')


@cache
def _ramp(size: int) -> bytes:
    return bytes(range(_PERIOD)) * (size // _PERIOD + 2)


def yuyv_frame(number: int, size: int) -> bytes:
    """Return a frame of *size* bytes: its number, then bytes that count up."""
    begin = number % _PERIOD
    return _NUMBER.pack(number) + _ramp(size)[slice(begin + _NUMBER.size, begin + size)]


def number_of(frame: bytes) -> int:
    number: int = _NUMBER.unpack_from(frame)[0]
    return number


class _NewStreamError(Exception):
    """The host began a stream while a frame of the previous one was still waiting for it."""


class Webcam:
    """The device: a thread answers the host's requests, the main thread sends frames."""

    def __init__(self, pictures: Path, short: int, marked: int) -> None:
        self._pictures = pictures
        self._short, self._marked = short, marked
        self._control = -1
        self._frames = -1
        self._probed = self._committed = Settings()
        self._begun, self._ended = threading.Event(), threading.Event()
        self._gone = False
        self._sending = False
        self._stream = 0
        self._number = 0

    def plug(self) -> None:
        """Register with GadgetFS, so that the host sees the device."""
        if not HOME.is_dir():
            HOME.mkdir()
            mount = ('busybox', 'mount', '-t', 'gadgetfs', 'gadgetfs', str(HOME))
            os.spawnv(os.P_WAIT, os.environ['RIG_BUSYBOX'], mount)
        (controller,) = [path for path in HOME.iterdir() if path.name.startswith('dummy')]
        self._control = os.open(controller, os.O_RDWR)
        os.write(
            self._control,
            struct.pack('=I', 0)
            + configuration(FULL_SPEED)
            + configuration(HIGH_SPEED)
            + DEVICE,
        )

    def answer(self) -> None:
        """Answer the host's requests until stdin ends; then unplug."""
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(sys.stdin.fileno(), select.POLLIN)
        while sys.stdin.fileno() not in dict(poll.poll()):
            with contextlib.suppress(OSError):  # the request was given up, or is refused
                event = os.read(self._control, _EVENT)
                if struct.unpack_from('=I', event, 8)[0] == _SETUP:
                    self._request(*struct.unpack_from('<BBHHH', event))
        self._gone = True
        self._stream += 1
        self._begun.set()
        # GadgetFS can't close while a frame still waits for the host. Repeat the signal: one just
        # before the frame waits would be lost.
        while not self._ended.wait(0.02):
            self._interrupt()
        os.close(self._control)

    def _request(self, kind: int, request: int, value: int, index: int, length: int) -> None:
        if kind & 0x80:
            answer = self._asked(kind, request, value, index)
            if answer is None:
                os.read(self._control, 0)  # reading in the wrong direction refuses the request
            else:
                os.write(self._control, answer[:length])
        else:
            if (kind, request) == (0x00, 0x09):
                self._configure(value)
            data = os.read(self._control, length)  # reading also accepts a request without data
            if (kind, request) == (0x21, _SET_CUR):
                self._set(index & 0xFF, value >> 8, data)

    def _asked(self, kind: int, request: int, value: int, index: int) -> bytes | None:
        if (kind, request, value >> 8) == (0x80, 0x06, 3):
            if not value & 0xFF:
                return _LANGUAGES
            text = STRINGS.get(value & 0xFF, '').encode('utf-16-le')
            return bytes([2 + len(text), 3]) + text if text else None
        if (kind, request) == (0x81, 0x0A):
            return b'\0'  # the interface has no other setting
        if kind != 0xA1:
            return None
        unit, interface, control = index >> 8, index & 0xFF, value >> 8
        if (unit, interface) == (0, STREAMING_INTERFACE) and control in (_PROBE, _COMMIT):
            if request in (_GET_LEN, _GET_INFO):
                return struct.pack('<H', PROBE_BYTES) if request == _GET_LEN else b'\3'
            return (self._committed if control == _COMMIT else self._probed).packed()
        return None

    def _set(self, interface: int, control: int, data: bytes) -> None:
        if interface == STREAMING_INTERFACE:
            self._probed = Settings.wanted(data)
            if control == _COMMIT:
                self._committed = self._probed
                self._begin()

    def _configure(self, value: int) -> None:
        if value and self._frames < 0:
            self._frames = os.open(HOME / 'ep1in-bulk', os.O_RDWR)
            os.write(
                self._frames, struct.pack('=I', 1) + endpoint(FULL_SPEED) + endpoint(HIGH_SPEED)
            )

    def _begin(self) -> None:
        self._stream += 1
        self._begun.set()
        self._interrupt()

    def _interrupt(self) -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    def interrupted(self, number: int, frame: FrameType | None) -> None:
        if self._sending:
            self._sending = False
            raise _NewStreamError

    def send(self) -> None:
        """Send frames of the streams that the host begins, until the device is unplugged."""
        try:
            self._begun.wait()
            while not self._gone:
                with contextlib.suppress(_NewStreamError):
                    self._send_stream(self._stream, self._committed)
        finally:
            self._sending = False
            self._ended.set()

    def _send_stream(self, stream: int, settings: Settings) -> None:
        jpegs: list[bytes] = []
        if settings.compressed:
            folder = self._pictures / f'{settings.size.width}x{settings.size.height}'
            files = sorted(folder.iterdir(), key=lambda path: int(path.stem))
            jpegs = [path.read_bytes() for path in files]
        due = time.monotonic()
        while stream == self._stream:
            due = max(due + settings.interval / 1e7, time.monotonic())
            time.sleep(max(0.0, due - time.monotonic()))
            number = self._number
            self._number += 1
            size = settings.size.most_bytes
            frame = jpegs[number % len(jpegs)] if jpegs else yuyv_frame(number, size)
            self._sending = True
            if stream == self._stream:
                os.write(self._frames, self._payload(number, frame))
            self._sending = False

    def _payload(self, number: int, frame: bytes) -> bytes:
        flags = _END_OF_HEADER | _HAS_CLOCK | _HAS_TIME | _END_OF_FRAME | number & 1
        if self._short and number % self._short == 0:
            frame = frame[: len(frame) // 2]
        elif self._marked and number % self._marked == 0:
            flags |= _ERROR
        if (PAYLOAD_HEADER + len(frame)) % HIGH_SPEED == 0:
            frame += b'\0'  # a payload ends only with a packet that isn't full
        clock = time.monotonic_ns() // 1000
        times = clock & 0xFFFFFFFF, clock & 0xFFFFFFFF, clock // 1000 & 0x7FF
        return struct.pack('<BBIIH', PAYLOAD_HEADER, flags, *times) + frame


def main() -> int:
    faults = dict(word.split('=') for word in sys.argv[2:])
    webcam = Webcam(Path(sys.argv[1]), int(faults.get('short', 0)), int(faults.get('marked', 0)))
    # GadgetFS drops a request that isn't answered before the host's next one. With the highest
    # priority on one processor, no other thread delays us.
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    signal.signal(signal.SIGUSR1, webcam.interrupted)
    webcam.plug()
    answers = threading.Thread(target=webcam.answer)
    answers.start()
    webcam.send()
    answers.join()
    return 0


if __name__ == '__main__':
    sys.exit(main())
