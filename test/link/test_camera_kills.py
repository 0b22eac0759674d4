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
A camera is killed again and again.

Its consumers link to each new camera, and nothing of the dead ones is left.
"""

from __future__ import annotations

from collections import Counter
import gc
import os
from pathlib import Path
import re
import time

from link_ros import end, LinkProcess, Ros
from long_form import LONG
import pytest
from waiting import eventually

from zc_perception.frame import Frame
from zc_perception.link.endpoints.frame_subscription import FrameSubscription

#: For this long, resources of a dead publisher may remain.
GONE_S = 5.0
_STEP_S = 0.05
_FIRST_KILLS = 2


def holding() -> dict[str, int]:
    gc.collect()
    return {kind: len(os.listdir(f'/proc/self/{kind}')) for kind in ('fd', 'task')}


def named(reason: str) -> set[str]:
    return set(re.findall(r'publisher ([0-9a-f]{8})', reason))


class KilledCamera:
    def __init__(self, ros: Ros, domain: int, folder: Path) -> None:
        self._domain = domain
        self._folder = folder
        self._numbers: dict[str, list[int]] = {'callback': [], 'queue': []}
        node = ros.node('consumer')
        called = FrameSubscription(
            node, 'image', lambda frame: self._came('callback', frame), copy_free_required=True
        )
        self._fetching = FrameSubscription(node, 'image')
        self._subscriptions = [called, self._fetching]
        self._dead: set[str] = set()
        # What may not be, and 'frames'.
        self.found: Counter[str] = Counter()
        self._before: dict[str, int] = {}

    def _came(self, how: str, frame: Frame) -> None:
        numbers = self._numbers[how]
        number = frame.data.sequence
        if numbers and number <= numbers[-1]:
            self.found['frames that came twice, or after a newer one of the same life'] += 1
        self.found['frames'] += 1
        numbers.append(number)

    def _fetch(self) -> None:
        while (frame := self._fetching.queue.get()) is not None:
            with frame:
                self._came('queue', frame)

    def _look(self) -> bool:
        self._fetch()
        linked = True
        for subscription in self._subscriptions:
            statistics = subscription.statistics()
            # A killed process may take seconds to close its listening socket, and until then looks
            # like a stopped one.
            names = named(statistics.reason)
            dies = 'does not answer' in statistics.reason and names <= self._dead
            if statistics.rung not in ('shared_memory', 'unmatched') and not dies:
                self.found[f'{statistics.rung}: {statistics.reason}'] += 1
            linked &= statistics.rung == 'shared_memory' and statistics.window > 0
        return linked

    def live(self, life_s: float) -> None:
        with LinkProcess('single', self._domain, self._folder) as camera:
            camera('open', [end('camera', 'adapted publisher', depth=1, converts=False)])
            self._fetch()  # discard frames of the previous life
            for numbers in self._numbers.values():
                numbers.clear()
            began, linked_before, linked, number, enough = time.monotonic(), False, False, 0, 0
            while time.monotonic() < began + life_s or not linked_before or number < enough:
                number += 1
                camera('publish', {'camera': [number % 250 + 1]})
                linked = self._look()
                if linked and not linked_before:
                    linked_before = True
                    enough = number + 4  # so that slow machines get frames, too
                self.found['looks without a link after the first'] += linked_before and not linked
                if not linked_before and time.monotonic() > began + life_s + 60.0:
                    break
                time.sleep(_STEP_S)
            self.found['lives at whose kill there was no link'] += not linked
            state = camera('state', ['camera'])['camera']
            for kind in ('readers', 'conversions', 'errors'):
                self.found[f'{kind} of messages at the camera'] += state[kind]
            for each in self._subscriptions:
                self._dead |= named(each.statistics().reason)
            camera.kill()

    def run(self, kills: int, life_s: float) -> None:
        for number in range(kills):
            self.live(life_s)
            if number + 1 == _FIRST_KILLS:
                time.sleep(GONE_S)
                self._fetch()
                self._before = holding()
        self.found['conversions of consumers'] += sum(
            each.statistics().conversions for each in self._subscriptions
        )

    def nothing_is_left(self) -> bool:
        # A waiting frame keeps its memory mapped, and may arrive after the kill.
        self._fetch()
        held = holding()
        return all(held[kind] <= self._before[kind] for kind in held)

    def close(self) -> None:
        for subscription in self._subscriptions:
            subscription.destroy()


@pytest.mark.parametrize('life_s', [0.2, pytest.param(10.0, marks=pytest.mark.long)])
@pytest.mark.timeout(3600 if LONG else 900)
def test_whoever_lives_is_linked_and_nothing_is_left_of_the_dead(
    here: Ros, free_domain: int, tmp_path: Path, life_s: float
) -> None:
    camera = KilledCamera(here, free_domain, tmp_path)
    kills = (200 if life_s < 10.0 else 30) if LONG else 6
    try:
        camera.run(kills, life_s)
        assert eventually(camera.nothing_is_left), holding()
    finally:
        camera.close()
    assert camera.found.pop('frames') > 2 * kills
    assert not +camera.found
