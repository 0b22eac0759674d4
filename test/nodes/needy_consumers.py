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
Consumers with needs of their own, each a node of this process.

``needy_consumers.py NAME=OPTIONS...``: OPTIONS are a stand-in's, such as ``NV12;
stride_align=64``; ``hold`` before them keeps a frame in hand. It prints a line when all are there,
one for each consumer's first frame, and at SIGINT one of JSON with what each has seen.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from typing import Any

import numpy as np
import rclpy
from rclpy.executors import SingleThreadedExecutor

from zc_perception import create_frame_subscription, Frame
from zc_perception.camera.synthetic import draw_counter, TimeCode
from zc_perception.negotiation.constraints import parse_stand_in

SEED = 1


class Needy:
    """A consumer with needs of its own."""

    def __init__(self, text: str) -> None:
        name, _, needs = text.partition('=')
        options = needs.removeprefix('hold ')
        self.name = name
        self.node = rclpy.create_node(name)
        self.sequences: list[int] = []
        self.strides: list[int] = []
        self.torn: list[int] = []
        self._kept: Frame | None = None
        self._holds = needs != options
        self.subscription = create_frame_subscription(
            self.node,
            'image_raw',
            self._take,
            depth=8,
            max_held=3,
            copy_free='required',
            constraints=parse_stand_in(f'{name}: {options}'),
        )

    def _look(self, frame: Frame) -> None:
        with frame.map() as (luma, chroma):
            expected = np.empty(luma.shape, np.uint8), np.empty(chroma.shape, np.uint8)
            draw_counter(TimeCode(SEED, frame.sequence, frame.header.stamp_ns), *expected)
            whole = all(map(np.array_equal, (luma, chroma), expected))
        if not whole:
            self.torn.append(frame.sequence)

    def _take(self, frame: Frame) -> None:
        self._look(frame)
        self.sequences.append(frame.sequence)
        stride = frame.data.layout.planes[0].stride
        if not self.strides or self.strides[-1] != stride:
            self.strides.append(stride)
            print(f'{self.name}: stride {stride} from frame {frame.sequence}', flush=True)
        if self._holds:
            kept, self._kept = self._kept, frame.keep()
            if kept is not None:
                self._look(kept)
                kept.release()

    def seen(self) -> dict[str, Any]:
        statistics = self.subscription.statistics()
        return {
            'frames': len(self.sequences),
            'first': self.sequences[:1],
            'missed': sum(int(step) - 1 for step in np.diff(self.sequences)),
            'strides': self.strides,
            'torn': self.torn,
            'dropped': statistics.dropped,
            'rung': statistics.rung,
            'reason': statistics.reason,
        }


def main() -> None:
    stop = threading.Event()
    signal.signal(signal.SIGINT, lambda *_: stop.set())
    rclpy.init(signal_handler_options=rclpy.SignalHandlerOptions.NO)
    executor = SingleThreadedExecutor()
    consumers = [Needy(text) for text in sys.argv[1:]]
    for consumer in consumers:
        executor.add_node(consumer.node)
    print('all are there', flush=True)
    while not stop.is_set():
        executor.spin_once(timeout_sec=0.05)
    print(json.dumps({consumer.name: consumer.seen() for consumer in consumers}), flush=True)


if __name__ == '__main__':
    main()
