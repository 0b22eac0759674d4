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
Users who raise, keep, forget, sleep and destroy at random.

No user may be frozen for good, leak, or harm another one: a witness must get each frame. Each
frame stores its number in its stamp and at both ends of each plane. A user that reads another
number there has a buffer that was reused too early. A failure shows what the user did before.
``ZC_USER_SEEDS=7,8 ZC_USER_FRAMES=20000`` runs other seeds, and more frames. As a program, this is
one of the processes: ``camera``, ``witness`` or ``users``.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
import gc
import itertools
import os
from pathlib import Path
import random
import struct
import sys
import threading
import time
import traceback
from typing import Any

from faults.holdings import holding, settled_excess, with_slots
from link_ros import (
    Camera,
    LEAN,
    LinkProcess,
    make_executor,
    number_of,
    publishing,
    RESERVE,
    Ros,
    serve,
)
from long_form import LONG
import numpy as np
from numpy.typing import NDArray
import pytest
import rclpy
from rclpy.node import Node
from rclpy.task import Future
from sensor_msgs.msg import Image
from waiting import eventually, until

from zc_perception.frame import Frame
from zc_perception.link.endpoints.frame_subscription import (
    create_frame_subscription,
    FrameReader,
    FrameSubscription,
)

TOPIC = 'image'
PUBLISHED, WITNESSED = 0, 1
"""In the file that all programs map: how far the camera is, and the witness."""
SLOTS = 64
USERS = 3
AHEAD = 16
"""Frames that the camera may be ahead of the witness.

So a machine that stands still costs the witness none."""
TICK_S = 0.02
_NUMBER = struct.Struct('<I')


Progress = NDArray[np.uint64]


def progress_in(path: str) -> Progress:
    return np.memmap(path, np.uint64, 'r+', shape=(2,))


def numbers_in(planes: Any) -> set[int]:
    luma, chroma = planes[0], planes[1]
    ends = luma[0, :4], luma[-1, -4:], chroma[0, :2], chroma[-1, -2:]
    return {_NUMBER.unpack(end.tobytes())[0] for end in ends}


def views_of(frame: Frame) -> tuple[Any, Any]:
    with frame.map() as planes:
        return planes[0], planes[1]


def spin(executor: Any, context: rclpy.Context) -> None:
    def run() -> None:
        while context.ok() and not executor._is_shutdown:
            with suppress(Exception):
                executor.spin()

    threading.Thread(target=run, name='executor', daemon=True).start()


class MarkedCamera(Camera):
    def __init__(self, ros: Ros, progress: Progress, *, messages: bool) -> None:
        folder = Path(os.environ['ZC_RUNTIME_DIR'])
        super().__init__(ros, 'ros_message' if messages else 'both', folder, slots=SLOTS)
        self._progress = progress

    def run(self, count: int, rate_hz: float) -> None:
        """Publish *count* more frames, not faster than the witness receives them."""
        began = time.monotonic()
        for index in range(count):
            until(
                lambda: self._progress[PUBLISHED] < self._progress[WITNESSED] + AHEAD,
                lambda: f'the witness is behind: {self._progress}',
                pause=lambda: time.sleep(0.001),
            )
            self.publish()
            late_s = time.monotonic() - began - (index + 1) / rate_hz
            if late_s < 0:
                time.sleep(-late_s)
            elif late_s > 0.1:
                began += late_s

    def meet(self) -> None:
        publishing(self, lambda: self._progress[WITNESSED])
        assert self._progress[WITNESSED], 'the witness gets no frame'

    def publish(self) -> int:
        self._progress[PUBLISHED] = super().publish()
        return self.number

    def message(self, number: int) -> Image:
        message, mark = super().message(number), _NUMBER.pack(number)
        luma, chroma = (mark + bytes(size - 8) + mark for size in (512, 256))
        message.encoding, message.data = 'nv12', luma + chroma
        return message

    def draw(self, frame: Frame, number: int) -> None:
        mark = _NUMBER.pack(number)
        with frame.map(write=True) as (luma, chroma):
            luma[0, :4] = luma[-1, -4:] = memoryview(mark)
            chroma[0, :2] = chroma[-1, -2:] = [[*mark[:2]], [*mark[2:]]]
            del luma, chroma

    def state(self) -> dict[str, Any]:
        self.pool.collect()
        held = {'missed': self.missed, 'held': self.pool.statistics().holders}
        promised = len(self.pool.slots) - RESERVE - self.pool.unpromised
        return {**held, 'promised': promised, 'peers': sorted(each[0] for each in self.peers())}


class CameraProgram:
    """Publish ``frames`` or ``messages``, or nothing."""

    def __init__(self) -> None:
        # rclpy allocates some objects with its first node and executor, and keeps them.
        self._ros = Ros('single', None, 'first')
        self.camera: MarkedCamera | None = None

    def open(self, progress: str, camera: str) -> None:  # noqa: A003
        self._progress = progress_in(progress)
        if camera:
            messages = camera == 'messages'
            self.camera = MarkedCamera(self._ros, self._progress, messages=messages)

    def begin(self) -> None:
        self._before = holding_here()
        if self.camera is not None:
            self._before = with_slots(self._before, SLOTS)

    def leaked(self) -> dict[str, int]:
        return dict(settled_excess(self._before, holding_here))

    def end(self) -> None:
        if self.camera is not None:
            self.camera.destroy()
        self._ros.close()


def holding_here() -> Counter[str]:
    """Count the resources of this process, without middleware objects and executors' pools."""
    gc.collect()
    found = holding(os.getpid())
    found['threads'] = sum(
        not thread.name.startswith('ThreadPoolExecutor') for thread in threading.enumerate()
    )
    return found


class WitnessProgram:
    def __init__(self) -> None:
        self._ros = Ros('single')
        self._stop = threading.Event()
        self.last = self.frames = self.lost = self.disorder = self.torn = 0

    def open(self, progress: str) -> None:  # noqa: A003
        self._progress = progress_in(progress)
        self._frames = FrameSubscription(self._ros.node('witness'), TOPIC, depth=AHEAD + 8, held=2)
        self._thread = threading.Thread(target=self._take, name='witness', daemon=True)
        self._thread.start()

    def _take(self) -> None:
        while not self._stop.is_set():
            frame = self._frames.queue.get(0.1)
            if frame is None:
                continue
            with frame:
                number = number_of(frame)
                with frame.map() as planes:
                    self.torn += numbers_in(planes) != {number}
            if self.frames:
                self.lost += max(0, number - self.last - 1)
                self.disorder += number <= self.last
            self.frames += 1
            self.last = self._progress[WITNESSED] = number

    def state(self) -> dict[str, Any]:
        counted = 'frames', 'last', 'lost', 'disorder', 'torn'
        return {name: getattr(self, name) for name in counted}

    def end(self) -> None:
        self._stop.set()
        self._thread.join(60.0)
        self._frames.destroy()
        self._ros.close()


class Careless(Exception):
    """The exception that a user's callback raises on purpose."""


@dataclass
class Held:
    """A frame, or references to its pixels, that a user keeps until the monotonic time *due*."""

    due: float
    life: Life
    number: int
    how: str
    frames: list[Frame]
    views: list[Any]  # (luma, chroma)
    other: list[Any]
    cycle: bool  # in a reference cycle, so only the garbage collector frees it


@dataclass(eq=False)
class Life:
    number: int
    kind: str
    held: int
    left_s: float  # in which it should still get frames
    node: Any = None
    frames: Any = None
    ended: bool = False
    awaits: Future | None = None
    received: int = 0
    seen: int = 0  # frames at the last tick
    busy: int = 0
    stuck: bool = False  # a callback has been running since the last tick
    frozen_s: float = 0.0  # in which it has missed frames that it should get


class User:
    """Make one subscription after another; each callback treats each frame in a random way."""

    def __init__(self, context: Any, seed: int, index: int, progress: Any, executor: Any) -> None:
        self.name = f'user{index}'
        self._context = context
        self._progress = progress
        self._executor = executor
        # Callbacks and subscriptions run in different threads. With one generator, the order of
        # the threads would change what both draw from a seed.
        self._whims = random.Random(f'{seed}/{index}/callbacks')
        self._fate = random.Random(f'{seed}/{index}/lives')
        self._lock = threading.RLock()
        self.kept: list[Held] = []
        self.futures: list[tuple[float, Future]] = []
        self.trail: deque[str] = deque(maxlen=60)
        self.findings: list[str] = []
        self.done: Counter[str] = Counter()
        self.life: Life | None = None
        self._over = False
        self._next_life_at = 0.0
        self._last = 0
        self.had_frames = False
        self.neighbours: list[User] = []
        self._lives = itertools.count(1)
        self._all_lives: list[Life] = []
        self._spares: list[Node] = []

    def say(self, text: str) -> None:
        self.trail.append(
            f'{time.monotonic():.3f} {self.name} at {self._progress[PUBLISHED]}: {text}'
        )

    def found(self, text: str) -> None:
        with self._lock:
            if len(self.findings) < 5:
                lines = '\n  '.join(self.trail)
                self.findings.append(f'{self.name}: {text}; what it did before:\n  {lines}')
            self.done[text.split(':')[0]] += 1

    def arrived(self, life: Life, number: int) -> None:
        if number == self._last:
            self.found(f'duplicate: frame {number}')
        elif number < self._last:
            self.found(f'inversion: frame {number} after {self._last}')
        self._last = number
        self.had_frames = True
        life.received += 1

    def compare(self, number: int, planes: Any, when: str) -> None:
        there = numbers_in(planes)
        if there != {number}:
            self.found(f'torn: frame {number} has {sorted(there)} in its pixels {when}')

    def keep(
        self,
        life: Life,
        number: int,
        how: str,
        frames: Sequence[Frame] = (),
        views: Sequence[Any] = (),
        other: Sequence[Any] = (),
        cycle: bool = False,
    ) -> None:
        with self._lock:
            due = time.monotonic() + self._whims.uniform(
                0.01, self._whims.choice((0.05, 0.05, 0.1, 0.2, 1.5))
            )
            self.kept.append(
                Held(due, life, number, how, list(frames), list(views), list(other), cycle)
            )

    def holds(self, life: Life) -> int:
        with self._lock:
            return len({held.number for held in self.kept if held.life is life})

    def let_go(self, now: float) -> None:
        with self._lock:
            due = [held for held in self.kept if held.due <= now]
            futures = [future for at, future in self.futures if at <= now]
            self.futures = [(at, future) for at, future in self.futures if at > now]
        for future in futures:
            future.set_result(None)
        for held in due:
            for planes in held.views:
                self.compare(held.number, planes, f'when it lets go: {held.how}')
            planes = None
            held.views.clear()
            for frame in held.frames:
                with frame.map() as mapped:
                    self.compare(held.number, mapped, f'when it lets go: {held.how}')
                frame.release()
            held.frames.clear()
            held.other.clear()
            if held.cycle:
                gc.collect()
            with self._lock:
                self.kept.remove(held)
            self.say(f'lets {held.number} go: {held.how}')

    def act(self, life: Life, frame: Frame) -> None:
        whim = self._whims.choices([*_WHIMS], [*_WHIMS.values()])[0]
        number = number_of(frame)
        with frame.map() as planes:
            self.compare(number, planes, 'when it came')
        del planes
        self.done[whim] += 1
        if whim != 'look':
            self.say(f'{whim} {number}')
            if whim in _SHORT_ONES:
                _SHORT_ONES[whim](self, life, frame, number)
            else:
                getattr(self, '_' + whim)(life, frame, number)

    def _raise(self, life: Life, frame: Frame, number: int) -> None:
        raise Careless(number)

    def _raise_with_views(self, life: Life, frame: Frame, number: int) -> None:
        with frame.map() as planes:
            luma = planes[0]
            raise Careless(luma.shape)

    def _raise_and_keep_the_error(self, life: Life, frame: Frame, number: int) -> None:
        try:
            self._raise_with_views(life, frame, number)
        except Careless as error:
            self.keep(life, number, 'an exception with views among its variables', other=[error])
            raise

    def _keep_copies(self, life: Life, frame: Frame, number: int) -> None:
        copies = frame.copy()
        self.compare(number, copies, 'in a copy')
        frame.bgr()

    def _share_and_keep_views(self, life: Life, frame: Frame, number: int) -> None:
        kept = frame.keep()
        views = views_of(kept)
        with suppress(BufferError):
            kept.release()
            self.found(f'released: frame {number} although a view of it is alive')
        self.keep(life, number, 'shared, with views', [kept], [views])

    def _forget_in_a_cycle(self, life: Life, frame: Frame, number: int) -> None:
        cycle: list[Any] = [frame.keep()]
        cycle.append(cycle)
        self.keep(life, number, 'forgotten in a cycle', cycle=True)

    def _release_elsewhere(self, life: Life, frame: Frame, number: int) -> None:
        shared, released = frame.keep(), threading.Event()

        def work() -> None:
            with shared, shared.map() as planes:
                self.compare(number, planes, 'on another thread')
            released.set()

        threading.Thread(target=work, name='worker').start()
        if number % 2:
            released.wait(5.0)

    def _release_with_a_view(self, life: Life, frame: Frame, number: int) -> None:
        with frame.map() as planes:
            luma = planes[0]
            frame.release()
            self.found(f'released: frame {number} although {luma.shape} of it is alive')

    def _sleep(self, life: Life, frame: Frame, number: int) -> None:
        time.sleep(self._whims.uniform(0.0, 0.05))
        with frame.map() as planes:
            self.compare(number, planes, 'after a while in the callback')

    def _sleep_long(self, life: Life, frame: Frame, number: int) -> None:
        with frame.map() as planes:
            time.sleep(self._whims.uniform(0.3, 1.5))
            self.compare(number, planes, 'after a long while in the callback')

    def _destroy(self, life: Life, frame: Frame, number: int, how: str = 'destroy') -> None:
        self.end_life(life, how)
        time.sleep(self._whims.uniform(0.0, 0.1))
        with frame.map() as planes:
            self.compare(
                number, planes, f'in the callback that has ended its subscription by {how}'
            )

    def new_life(self) -> None:
        fate = self._fate
        with self._lock:
            if self.life is not None or self._over:
                return
            kind = fate.choices(('callback', 'coroutine', 'queue', 'loop'), (5, 2, 2, 2))[0]
            life = Life(next(self._lives), kind, fate.choice((1, 1, 2, 3)), fate.uniform(0.2, 6.0))
            depth, spun_before = fate.choice((1, 1, 2, 5, 10)), fate.choice((True, False))
            self.say(f'subscribes, life {life.number}: {kind}, held={life.held}, depth={depth}')
            node = self._spares.pop() if self._spares else None
            if node is None:
                node = Node(f'{self.name}_{life.number}', context=self._context, **LEAN)
                if spun_before:
                    self._executor.add_node(node)
            life.node = node
            options = {'depth': depth, 'max_held': life.held}
            if kind == 'queue':
                life.frames = FrameSubscription(node, TOPIC, held=life.held, depth=depth)
            elif kind == 'loop':
                life.frames = FrameReader(node, TOPIC, **options)
            else:
                callback = self._callback(life) if kind == 'callback' else self._coroutine(life)
                life.frames = create_frame_subscription(node, TOPIC, callback, **options)
            self._executor.add_node(node)
            self.life = life
            self._all_lives.append(life)
            self.done['lives'] += 1
            if kind in ('queue', 'loop'):
                frames = life.frames
                work, of = (self._loop, frames) if kind == 'loop' else (self._read, frames.queue)
                threading.Thread(target=work, args=(life, of), name='reader', daemon=True).start()

    @contextmanager
    def _called(self, life: Life, frame: Frame) -> Iterator[int]:
        """Count the callback as running; check that it is in order and not after the end."""
        life.busy += 1
        try:
            number = number_of(frame)
            if life.ended:
                self.found(f'called after the end of life {life.number}: frame {number}')
            self.arrived(life, number)
            yield number
        finally:
            life.busy -= 1

    def _callback(self, life: Life) -> Callable[[Frame], None]:
        def on_frame(frame: Frame) -> None:
            with self._called(life, frame):
                self.act(life, frame)

        return on_frame

    def _coroutine(self, life: Life) -> Callable[[Frame], Any]:
        async def on_frame(frame: Frame) -> None:
            wait_s = self._whims.choices((0.0, 0.01, 0.3), (20, 2, 1))[0]
            with self._called(life, frame) as number:
                if wait_s:
                    future: Any = Future(executor=self._executor)
                    with self._lock:
                        self.futures.append((time.monotonic() + wait_s, future))
                    self.say(f'awaits something with {number}')
                    life.awaits = future
                    await future
                    life.awaits = None
                self.act(life, frame)

        return on_frame

    def _read(self, life: Life, frames: Any) -> None:
        while not frames.closed:
            frame = frames.get(0.05)
            if frame is None:
                continue
            life.busy += 1
            try:
                self._treat(life, frame)
            finally:
                del frame
                life.busy -= 1

    def _loop(self, life: Life, frames: FrameReader) -> None:
        while not frames.queue.closed:
            frame: Frame | None = None
            with suppress(Careless, BufferError):
                for frame in frames:
                    life.busy += 1
                    try:
                        if life is self.life:
                            self.arrived(life, number_of(frame))
                        self.act(life, frame)
                    finally:
                        # Else the loop's variable would keep a frame that the user forgot.
                        frame = None
                        life.busy -= 1

    def _treat(self, life: Life, frame: Frame) -> None:
        number = number_of(frame)
        if life is self.life:  # frames that were queued before the end may still be taken
            self.arrived(life, number)
        whim = self._whims.choices(('take', 'keep', 'forget'), (90, 2, 2))[0]
        self.done[f'queue: {whim}'] += 1
        if whim == 'take':
            with suppress(Careless, BufferError), frame:
                self.act(life, frame)
            return
        self.say(f'queue: {whim} {number}')
        if whim == 'keep':
            self.keep(life, number, 'taken from the queue', [frame])

    def end_life(self, life: Life, how: str) -> None:
        with self._lock:
            if self.life is not life:
                return
            self.life = None
            self._next_life_at = time.monotonic() + self._fate.uniform(0.0, 0.5)
            keeps_node, removes_first = self._fate.choices((True, False), k=2)
            self.done[how] += 1
            self.say(f'{how}: the end of life {life.number}, which had {life.received} frames')
            node, frames = life.node, life.frames
            life.node = life.frames = None
            statistics = frames.statistics()
            self.done['conversions'] += statistics.conversions
            self.done['conversion errors'] += statistics.conversion_errors
            self.done['received'] += life.received
        if how == 'destroy':
            frames.destroy()
            life.ended = True
            with self._lock:
                # Another thread may have ended another life, or all of them, meanwhile.
                if keeps_node and not self._over:
                    self._spares.append(node)
                    return
        del frames
        self._end_node(node, removes_first)
        life.ended = True

    def _end_node(self, node: Node, removes_first: bool = True) -> None:
        if removes_first:
            self._executor.remove_node(node)
        node.destroy_node()
        if not removes_first:
            self._executor.remove_node(node)

    def end(self) -> None:
        """End for good, so that a callback can't begin another subscription."""
        with self._lock:
            self._over = True
        if self.life is not None:
            self.end_life(self.life, 'destroy')
        self.let_go(float('inf'))
        for node in self._spares:
            self._end_node(node)

    @property
    def busy(self) -> int:
        return sum(life.busy for life in self._all_lives)

    def tick(self, passed_s: float, camera_runs: bool, now: float) -> None:
        self.let_go(now)
        life = self.life
        if life is None:
            if now >= self._next_life_at:
                self.new_life()
            return
        news, life.seen = life.received != life.seen, life.received
        busy = life.busy and (life.awaits is None or not life.awaits.done())
        life.stuck = bool(busy) and not news
        if news or busy or self.holds(life) >= life.held:
            life.frozen_s = 0.0
        elif camera_runs and not any(
            other.life is not None and other.life.stuck for other in self.neighbours
        ):
            life.frozen_s += passed_s
        if life.received:
            life.left_s -= passed_s
        if life.frozen_s > (FROZEN_S if life.received else UNMET_S):
            frames = life.frames
            state = None if frames is None else frames.statistics()
            self.found(
                f'frozen: life {life.number} for {life.frozen_s:.1f} s, it holds '
                f'{self.holds(life)} of {life.held}: {state}'
            )
            life.left_s = 0.0
        if (life.left_s <= 0.0 and not life.busy) or life.left_s < -3.0:
            self.end_life(life, self._fate.choice(('destroy', 'destroy_node')))


FROZEN_S, UNMET_S = (2.0, 30.0) if LONG else (10.0, 60.0)
"""How long a user that holds no frames may be without any: after the first one, and before it.

Short forms run beside others."""
_WHIMS = {
    'look': 120, 'raise': 2, 'raise_and_keep_the_error': 1,
    'keep_views': 2, 'keep_planes': 3, 'keep_copies': 3, 'raise_with_views': 3,
    'keep_and_open_elsewhere': 2, 'keep_a_slice': 2, 'share': 4,
    'share_and_keep_views': 1, 'forget': 2, 'forget_in_a_cycle': 1, 'release_elsewhere': 4,
    'release_at_once': 3, 'release_with_a_view': 2, 'sleep': 6, 'sleep_long': 0.3,
    'destroy': 0.4, 'destroy_node': 0.4, 'destroy_and_keep': 0.4, 'create_anew': 0.4,
}  # fmt: skip
_SHORT_ONES: dict[str, Callable[[User, Life, Frame, int], object]] = {
    'keep_a_slice': lambda user, life, frame, number: user.keep(
        life, number, 'a slice', other=[views_of(frame)[0][2:4, 3:9].T]
    ),
    'keep_views': lambda user, life, frame, number: user.keep(
        life, number, 'views', views=[views_of(frame)]
    ),
    'keep_planes': lambda user, life, frame, number: user.keep(
        life, number, 'planes', views=[frame.planes()]
    ),
    'keep_and_open_elsewhere': lambda user, life, frame, number: user.keep(
        life, number, 'kept, with y and uv', [kept := frame.keep()], [(kept.y, kept.uv)]
    ),
    'share': lambda user, life, frame, number: user.keep(life, number, 'shared', [frame.keep()]),
    'forget': lambda user, life, frame, number: frame.keep(),
    'release_at_once': lambda user, life, frame, number: frame.release(),
    'destroy_node': lambda user, life, frame, number: user._destroy(
        life, frame, number, 'destroy_node'
    ),
    'destroy_and_keep': lambda user, life, frame, number: (
        user.keep(life, number, 'shared, beyond the subscription', [frame.keep()]),
        user.end_life(life, 'destroy'),
    ),
    'create_anew': lambda user, life, frame, number: (
        user.end_life(life, 'destroy'),
        user.new_life(),
    ),
}


_EXECUTORS = ('single', False), ('multi', False), ('single', True), ('multi', True)
"""Of which kind, and whether the users share one; by the seed."""


class UsersProgram(CameraProgram):
    def begin_users(self, seed: int) -> None:
        kind, together = _EXECUTORS[seed % len(_EXECUTORS)]
        executors = [
            make_executor(kind, self._ros.context) for _ in range(1 if together else USERS)
        ]
        executors *= USERS // len(executors)
        for executor in dict.fromkeys(executors):
            spin(executor, self._ros.context)
        self._executors = executors
        time.sleep(0.2)
        self.begin()
        self._users = [
            User(self._ros.context, seed, index, self._progress, executor)
            for index, executor in enumerate(executors)
        ]
        for user in self._users:
            same = [other for other in self._users if other._executor is user._executor]
            user.neighbours = [other for other in same if other is not user]
        self._stop = threading.Event()
        self._ticker = threading.Thread(target=self._tick, name='ticker', daemon=True)
        self._ticker.start()

    def met(self) -> bool:
        return all(user.had_frames for user in self._users)

    def _tick(self) -> None:
        last, published = time.monotonic(), 0
        while not self._stop.wait(TICK_S):
            now = time.monotonic()
            before, published = published, int(self._progress[PUBLISHED])
            runs = published > before
            for user in self._users:
                try:
                    user.tick(min(now - last, 2 * TICK_S), runs, now)
                except Exception as error:
                    user.found(f'raised: {error!r}\n{traceback.format_exc()}')
            last = now

    def finish(self) -> dict[str, Any]:
        self._stop.set()
        self._ticker.join(60.0)
        findings = [] if not self._ticker.is_alive() else ['the ticker hangs']
        for user in self._users:
            user.end()
        # A callback that awaited something continues now, and may keep more.
        if not eventually(
            lambda: not any(user.busy or user.kept or user.futures for user in self._users),
            pause=lambda: [time.sleep(0.01), *(user.let_go(float('inf')) for user in self._users)],
        ):
            findings += [
                f'{user.name} has not ended: {user.busy} callbacks run, {len(user.kept)} kept'
                for user in self._users
            ]
        busy = {'worker', 'reader'}
        eventually(lambda: not busy & {each.name for each in threading.enumerate()}, 10.0)
        done: Counter[str] = Counter()
        for user in self._users:
            findings += user.findings
            done += user.done
        return {'findings': findings, 'done': done}

    def leaked(self) -> dict[str, int]:
        for executor in dict.fromkeys(self._executors):
            self._last_entities(executor)
        excess = super().leaked()
        if excess.get('threads'):
            excess |= {f'thread {thread.name}': 1 for thread in threading.enumerate()}
        return excess

    def _last_entities(self, executor: Any) -> None:
        # An executor keeps a reference to what it called last. A multi-threaded one also keeps
        # exceptions of callbacks, and drops one of them each time that it wakes.
        node, called = Node('last', context=self._ros.context), threading.Event()
        node.create_subscription(Image, 'nothing', lambda message: None, 1)
        guard = node.create_guard_condition(called.set)
        executor.add_node(node)
        for _ in range(10):
            called.clear()
            guard.trigger()
            called.wait(10.0)
        executor.remove_node(node)
        node.destroy_node()

    def end(self) -> None:
        for executor in dict.fromkeys(self._executors):
            executor.shutdown()
        super().end()


# The test.

WAYS = ['other process', 'same process', 'messages']
SEEDS = [int(seed) for seed in os.environ.get('ZC_USER_SEEDS', '').split(',') if seed] or (
    [1, 2, 3, 4, 5] if LONG else [1]
)
FRAMES = int(os.environ.get('ZC_USER_FRAMES', 20_000 if LONG else 1_200))
"""For each seed."""
RATE_HZ = 400.0
AFTERWARDS = 40
"""Frames after all users have ended: a camera finds what was forgotten when it needs a slot."""


@pytest.mark.timeout(1800 if LONG else 900)
@pytest.mark.parametrize('seed', SEEDS)
@pytest.mark.parametrize('way', WAYS)
def test_users_who_do_what_they_like(
    way: str, seed: int, free_domain: int, tmp_path: Path
) -> None:
    progress, here, findings = tmp_path / 'progress', way == 'same process', list[str]()
    progress.write_bytes(bytes(16))

    def check(name: str, wanted: Any, found: Any) -> None:
        if found != wanted:
            findings.append(f'{name}: {found}, wanted {wanted}')

    with (
        LinkProcess('witness', free_domain, tmp_path, __file__) as witness,
        LinkProcess('users', free_domain, tmp_path, __file__) as users,
        LinkProcess('camera', free_domain, tmp_path, __file__) as camera,
    ):
        witness('open', str(progress))
        users('open', str(progress), 'frames' if here else '')
        source = users if here else camera
        if not here:
            camera('open', str(progress), 'messages' if way == 'messages' else 'frames')
        source('camera.meet')
        before = source('camera.state')
        if not here:
            camera('begin')
        users('begin_users', seed)
        while not users('met'):
            source('camera.run', 20, 100.0)
        source('camera.run', FRAMES, RATE_HZ)
        did = users('finish')
        source('camera.run', AFTERWARDS, 100.0)
        last: dict[str, Any] = {}

        def quiet() -> bool:
            last.update(source('camera.state'))
            as_before = {**last, 'held': {}} == {**before, 'held': {}}
            return as_before and set(last['held']) <= {'witness'}

        assert eventually(lambda: witness('state')['last'] >= FRAMES)
        check('leak at the camera, as before', True, eventually(quiet) or (last, before))
        check('leak at the users', {}, users('leaked'))
        if not here:
            check('leak at the camera', {}, camera('leaked'))
        noticed = witness('state')
        findings += did.pop('findings')
        for name in ('lost', 'disorder', 'torn'):
            check(f'the witness: {name}', 0, noticed[name])
        if way != 'messages':
            check('copies for users', 0, did['done'].get('conversions', 0))
        check('failed conversions for users', 0, did['done'].get('conversion errors', 0))
    sys.stdout.write(f'seed {seed}, {way}: {did}, {noticed}\n')
    assert not findings, f'seed {seed}: ' + '\n'.join(findings)


if __name__ == '__main__':
    serve({'camera': CameraProgram, 'witness': WitnessProgram, 'users': UsersProgram}[sys.argv[1]])
