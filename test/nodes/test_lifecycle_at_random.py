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

"""Managed nodes at their limits: the last frame, and random transitions while frames flow."""

from __future__ import annotations

from pathlib import Path
import random
import threading
import time
from typing import Any

from long_form import LONG
from nodes.managed import (
    ACTIVATE,
    CLEANUP,
    CONFIGURE,
    DEACTIVATE,
    given_back,
    held,
    managed,
    settle,
    status,
)
import pytest

from zc_perception.nodes.capture import CaptureNode
from zc_perception.nodes.inference import InferenceNode
from zc_perception.nodes.overlay import OverlayNode
from zc_perception.nodes.recorder import RecorderNode

pytestmark = pytest.mark.usefixtures('ros_home')
SMALL = {'width': 128, 'height': 128, 'framerate': 60.0, 'heap': 'memfd'}
HOG = {'model': 'hog', 'timeout': 20.0}
TRANSITIONS = 500 if LONG else 40


def test_the_last_frame_has_gone_before_deactivate_answers(free_domain: int) -> None:
    with managed(free_domain) as run:
        capture, inference = run.make(CaptureNode, SMALL), run.make(InferenceNode, HOG)
        latest = {'capture': 0.0, 'inference': 0.0}
        capture.configure_now()
        for name, owner, publisher in (
            ('capture', capture.publisher, capture.publisher),
            ('inference', inference, inference._publisher),
        ):
            publish = publisher.publish

            def spy(item: Any, name: str = name, publish: Any = publish) -> None:
                publish(item)
                latest[name] = time.monotonic()

            publisher.publish = spy
            assert owner
        inference.start()
        capture.start()
        for _ in range(3):
            seen = inference.processed
            run.eventually(lambda seen=seen: inference.processed >= seen + 2)
            for name, node in (('inference', inference), ('capture', capture)):
                assert run.change(node, DEACTIVATE)
                answered = time.monotonic()
                time.sleep(0.15)
                assert 0.0 < latest[name] <= answered, name
            for node in (inference, capture):
                assert run.change(node, ACTIVATE)


class Load:
    """Keeps the interpreter busy, as an overloaded vehicle computer would."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._burn, name='load', daemon=True) for _ in range(2)
        ]

    def _burn(self) -> None:
        while not self._stop.is_set():
            sum(number * number for number in range(2000))
            time.sleep(0.001)

    def __enter__(self) -> None:
        for thread in self._threads:
            thread.start()

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60.0)


def test_random_transitions_while_frames_flow_leak_nothing(
    free_domain: int, tmp_path: Path
) -> None:
    chance = random.Random(20_261_121)
    with managed(free_domain) as run:
        values = {**SMALL, 'framerate': 200.0, 'jpeg_quality': 50}
        capture, inference = run.make(CaptureNode, values), run.make(InferenceNode, HOG)
        overlay = run.make(OverlayNode)
        recorder = run.make(
            RecorderNode, {'path': str(tmp_path / 'a'), 'disk_floor': 0, 'max_frames': 0}
        )
        nodes = [capture, inference, overlay, recorder]
        for node in reversed(nodes):
            node.start()
        run.eventually(lambda: inference.processed >= 3)
        errors: list[str] = []
        threading.excepthook, hook = (
            lambda args: errors.append(str(args.exc_value)),
            threading.excepthook,
        )
        try:
            settle(run, nodes)  # libraries are loaded, clients connected
            for node in nodes:
                assert run.change(node, CONFIGURE) and run.change(node, ACTIVATE)
            settle(run, nodes)
            before = held()
            allowed = refused = 0
            with Load():
                for _ in range(TRANSITIONS):
                    node = chance.choices(nodes, (4, 4, 1, 1))[0]
                    state = run.state(node)
                    # Mostly what the state has, and forwards: frames are to flow; now and then
                    # nonsense.
                    options = {
                        'unconfigured': [CONFIGURE],
                        'inactive': [ACTIVATE, ACTIVATE, CLEANUP],
                        'active': [DEACTIVATE],
                    }[state]
                    wanted = (
                        chance.choice(options)
                        if chance.random() < 0.9
                        else chance.choice([CONFIGURE, ACTIVATE, DEACTIVATE, CLEANUP])
                    )
                    done = run.change(node, wanted)
                    assert done is (wanted in options), (
                        node.get_name(),
                        state,
                        wanted,
                        status(node, 'lifecycle'),
                    )
                    allowed, refused = allowed + done, refused + (not done)
                    if chance.random() < 0.3:
                        time.sleep(chance.uniform(0.0, 0.05))
            assert allowed > TRANSITIONS // 2 and refused > 0
            # They still work together.
            settle(run, nodes)
            run.eventually(lambda: given_back(before), f'{held()}, before: {before}')
            for node in nodes:
                assert run.change(node, CONFIGURE) and run.change(node, ACTIVATE)
            seen = inference.processed
            run.eventually(lambda: inference.processed >= seen + 3)
            pool = capture.camera.pool_statistics()
            assert (
                pool.abandoned == 0
                and pool.retired == 0
                and set(pool.holders) <= {'camera', 'inference', 'recorder', '/capture:to_ros'}
            )
        finally:
            threading.excepthook = hook
        assert not errors and inference.failed == 0, errors
