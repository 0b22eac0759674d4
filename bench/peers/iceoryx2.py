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
iceoryx2, from process to process, in its fastest setup for Python.

One variant copies the frame into the loaned memory, as a program must copy a camera's frame. The
other (*in_place*) takes the loan before the clock starts, as if the camera had written into it.

There is one publisher and one subscriber, and the newest frames win. An event wakes the consumer,
which blocks instead of polling. NumPy copies the frame, into page-aligned memory. iceoryx2's files
are in the run's folder, and their names have the run's prefix.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
import socket
import threading
from typing import Any

from bench.link_roles import FILL, nv12_size, PicturesIn, PicturesOut, Pixels
from bench.peers import wait_until
import iceoryx2
import numpy as np

_DEPTH = 2
_PAGE = 4096
_WAKE_MS = 500


def segment_prefix(place: Path) -> str:
    """Return the prefix of the names of iceoryx2's shared memory."""
    return f'{place.name}_'


class _Services:
    def __init__(self, place: Path) -> None:
        iceoryx2.set_log_level(iceoryx2.LogLevel.Error)
        config = iceoryx2.config.default()
        config.global_cfg.prefix = iceoryx2.FileName.new(segment_prefix(place))
        config.global_cfg.root_path = iceoryx2.Path.new(str(place / 'iceoryx2'))
        self._node = (
            iceoryx2.NodeBuilder.new()
            .config(config)
            .signal_handling_mode(iceoryx2.SignalHandlingMode.Disabled)
            .create(iceoryx2.ServiceType.Ipc)
        )
        name = iceoryx2.ServiceName.new('zc_bench')
        self.frames = (
            self._node.service_builder(name)
            .publish_subscribe(iceoryx2.Slice[ctypes.c_uint8])
            .payload_alignment(iceoryx2.Alignment.new(_PAGE))
            .enable_safe_overflow(True)
            .history_size(0)
            .subscriber_max_buffer_size(_DEPTH)
            .subscriber_max_borrowed_samples(_DEPTH)
            .open_or_create()
        )
        self.wakes = self._node.service_builder(name).event().open_or_create()


def _view(address: int, size: int) -> Pixels:
    return np.frombuffer((ctypes.c_uint8 * size).from_address(address), np.uint8)


class Iceoryx2Out(PicturesOut):
    """Publishes pictures, copied or written in place, and wakes the subscriber by an event."""

    def __init__(self, place: Path, answers: socket.socket, *, in_place: bool) -> None:
        super().__init__(answers)
        self._in_place = in_place
        self._services = _Services(place)
        self._publisher: Any = None
        self._notifier = self._services.wakes.notifier_builder().create()
        self._loan: Any = None
        self._filled: set[int] = set()

    def other_end(self) -> tuple[bool, str]:
        return (
            self._services.frames.dynamic_config.number_of_subscribers > 0,
            'the publisher sees no subscriber',
        )

    def prepare(self, width: int, height: int) -> None:
        super().prepare(width, height)
        self._end()
        self._publisher = (
            self._services.frames.publisher_builder()
            .initial_max_slice_len(nv12_size(width, height))
            .max_loaned_samples(1)
            .create()
        )
        wait_until(lambda: self.other_end()[0], 'iceoryx2 has no subscriber')

    def picture(self) -> Pixels:
        if not self._in_place:
            return super().picture()
        self._loan = self._publisher.loan_slice_uninit(len(self.source))
        pixels = _view(self._loan.payload_ptr, len(self.source))
        if self._loan.payload_ptr not in self._filled:
            self._filled.add(self._loan.payload_ptr)
            pixels[:] = FILL
        return pixels

    def publish(self) -> None:
        loan = self._loan
        if not self._in_place:
            loan = self._publisher.loan_slice_uninit(len(self.source))
            np.copyto(_view(loan.payload_ptr, len(self.source)), self.pixels)
        loan.assume_init().send()
        self._notifier.notify()

    def _end(self) -> None:
        self._loan = None
        self._filled.clear()
        if self._publisher is not None:
            self._publisher.delete()
            self._publisher = None

    def close(self) -> None:
        self._end()
        self._notifier.delete()
        del self._services


class Iceoryx2In(PicturesIn):
    """Takes pictures from a subscriber, on a thread that waits for the publisher's event."""

    def __init__(self, place: Path, answers: socket.socket, *, in_place: bool) -> None:
        super().__init__(answers)
        self._services = _Services(place)
        self._subscriber = self._services.frames.subscriber_builder().create()
        self._listener = self._services.wakes.listener_builder().create()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._receive, name='bench iceoryx2', daemon=True)
        self._thread.start()

    def other_end(self) -> tuple[bool, str]:
        return self._thread.is_alive(), 'its thread has ended'

    def _receive(self) -> None:
        wait, wake = self._listener.timed_wait, iceoryx2.Duration.from_millis(_WAKE_MS)
        while not self._stop.is_set():
            wait(wake)
            while (sample := self._subscriber.receive()) is not None:
                payload = sample.payload()
                self.arrived(_view(payload.as_ptr(), payload.len()))
                sample.delete()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(2.0)
        self._listener.delete()
        self._subscriber.delete()
        del self._services
