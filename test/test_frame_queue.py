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

"""The queue between two threads, and the lookout's thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
import gc
import os
import select
import sys
import threading
import time
from typing import Any
import weakref

from frame_kit import FrameQueue
from processes import ran
import pytest
from waiting import eventually, until

from zc_perception.frame import Frame
from zc_perception.frame_queue import KeepLastQueue
from zc_perception.lookout import Lookout
from zc_perception.memory.pool import BufferPool

pytestmark = pytest.mark.usefixtures('no_fd_leak')
MakePool = Callable[..., BufferPool]
MakeFrame = Callable[..., Frame]


def readable(queue: FrameQueue) -> bool:
    poller = select.poll()  # unlike select(), it takes descriptors from 1,024 on
    poller.register(queue, select.POLLIN)
    return bool(poller.poll(0))


def open_count() -> int:
    return len(os.listdir('/proc/self/fd'))


def endless() -> KeepLastQueue[int]:
    return KeepLastQueue(None, release=lambda entry: None)


@pytest.fixture
def many_switches() -> None:
    """Switch between threads at almost every step; conftest.py undoes it."""
    sys.setswitchinterval(1e-6)


def test_the_oldest_is_released_when_full_and_it_polls_readable_while_it_holds_a_frame(
    make_pool: MakePool, make_frame: MakeFrame
) -> None:
    pool, queue = make_pool(slots=4), FrameQueue(2)
    frames = [make_frame(pool, sequence=i) for i in range(4)]
    assert not readable(queue)
    for frame in frames:
        queue.put(frame)
        assert readable(queue)
    assert [f.released for f in frames] == [True, True, False, False]
    assert (queue.dropped, len(queue)) == (2, 2)
    assert queue.get() is frames[2] and readable(queue)
    assert queue.get() is frames[3] and not readable(queue)
    queue.put(frames[3])
    assert readable(queue) and queue.get() is frames[3]


def test_no_frame_is_lost_between_threads(make_pool: MakePool, make_frame: MakeFrame) -> None:
    pool, queue = make_pool(slots=8), FrameQueue(2)
    total, got = 400, []

    def consume() -> None:
        while (frame := queue.get(60.0)) is not None:
            got.append(frame.data.sequence)
            frame.release()

    consumer = threading.Thread(target=consume)
    consumer.start()
    for i in range(total):
        queue.put(make_frame(pool, sequence=i))
    until(lambda: not len(queue))
    queue.close()
    consumer.join(60.0)
    assert got == sorted(got) and got[-1] == total - 1
    assert len(got) + queue.dropped == total
    assert pool.statistics().holders == {}


class _Source:
    """A source that is always ready, unless *ready* is 0; *receive* returns its next entry."""

    def __init__(self, receive: Callable[[], Any] = lambda: None, ready: int = 1) -> None:
        self.receive = receive
        number = os.eventfd(ready)
        self.fileno, self.close = lambda: number, lambda: os.close(number)

    def wait(self, epoll: select.epoll, timeout_s: float) -> None:
        epoll.poll(timeout_s)


def test_at_its_end_a_queue_that_somebody_keeps_has_no_descriptor_of_sources() -> None:
    gc.collect()  # garbage of earlier tests would be finalized in between
    queue, source = FrameQueue(1), _Source(ready=0)
    none = open_count()
    queue.fileno()
    before = open_count()
    queue.attach(source)
    assert open_count() == before + 1 == none + 2
    with ThreadPoolExecutor() as waiting:
        got = waiting.submit(queue.get, 30.0)
        queue.end()
        assert got.result(60.0) is None and queue.get(0.1) is None and readable(queue)
    assert open_count() == before
    queue.end()
    source.close()


@pytest.mark.usefixtures('many_switches')
def test_a_queue_that_ends_at_any_moment_of_a_get_is_no_error_in_it() -> None:
    """The descriptor must stay open between a get's look at the queue and its poll."""
    gc.collect()
    before = open_count()
    with ThreadPoolExecutor(1) as waiting:
        for turn in range(500):
            queue, source = FrameQueue(1), _Source(ready=0)
            queue.attach(source)
            got = waiting.submit(queue.get, 30.0)
            for _ in range(turn % 50 * 4):
                pass
            queue.end()
            assert got.result(60.0) is None
            source.close()
            del queue, got
    assert open_count() == before


@pytest.mark.parametrize('timeout_s', [0.0, 10.0])
def test_a_source_that_always_has_something_keeps_no_other_from_its_turn(timeout_s: float) -> None:
    sources = [_Source(lambda name=name: name) for name in 'abc']
    queue = endless()
    for source in sources:
        queue.attach(source)
    queue.get(timeout_s)
    got = [queue.get(timeout_s) for _ in range(30)]
    assert {name: got.count(name) for name in 'abc'} == {'a': 10, 'b': 10, 'c': 10}
    queue.detach(sources[1])
    assert {queue.get(timeout_s) for _ in range(6)} == {'a', 'c'}
    queue.end()
    for source in sources:
        source.close()


class _Socket(_Source):
    """A source that another thread fills."""

    def __init__(self) -> None:
        self.sent: deque[int] = deque()
        super().__init__(lambda: self.sent.popleft() if self.sent else None)


@pytest.fixture
def socket() -> Iterator[_Socket]:
    made = _Socket()
    yield made
    made.close()


@pytest.mark.parametrize('timeout_s', [0.0, 10.0])
def test_what_is_queued_comes_before_what_a_source_has(socket: _Socket, timeout_s: float) -> None:
    queue = endless()
    queue.attach(socket)
    queue.put(1)
    socket.sent += [2, 3]
    assert queue.get(timeout_s) == 1
    queue.put(4)
    assert [queue.get(timeout_s) for _ in range(3)] == [2, 3, 4]
    socket.sent += [5, 6]
    queue.fetch()
    queue.put(7)
    assert [queue.get(timeout_s) for _ in range(3)] == [5, 6, 7]
    assert queue.get() is None
    queue.end()


def test_nothing_overtakes_an_entry_that_the_gate_holds_back(socket: _Socket) -> None:
    closed = [True]
    queue: KeepLastQueue[int] = KeepLastQueue(
        5, release=lambda entry: None, gate=lambda entry: not closed
    )
    queue.attach(socket)
    queue.put(1)
    socket.sent.append(2)
    assert queue.get() is None and queue.get(0.05) is None and queue.shut
    closed.clear()
    queue.reopen()
    assert [queue.get(), queue.get(), queue.get()] == [1, 2, None]
    queue.end()


def test_nothing_comes_until_the_time_is_up(socket: _Socket) -> None:
    queue = endless()

    def waits() -> bool:
        began = time.monotonic()
        return queue.get(0.05) is None and time.monotonic() - began >= 0.045

    assert waits()
    queue.put(1)
    assert queue.get(0.05) == 1
    os.eventfd_read(socket.fileno())  # empty the source
    queue.attach(socket)
    queue.get(0.01)
    assert waits()
    queue.end()
    assert queue.get(0.05) is None


@pytest.mark.parametrize('timeout_s', [0.0, 0.01, 10.0])
def test_what_is_queued_while_a_source_is_asked_comes_first(
    socket: _Socket, monkeypatch: pytest.MonkeyPatch, timeout_s: float
) -> None:
    queue, late = endless(), [1]

    def receive() -> int | None:
        if late:
            queue.put(late.pop())
            socket.sent.append(2)
            time.sleep(0.02)  # the shorter time to wait is over then
        return socket.sent.popleft() if socket.sent else None

    monkeypatch.setattr(socket, 'receive', receive)
    queue.attach(socket)
    assert [queue.get(timeout_s), queue.get(timeout_s), queue.get()] == [1, 2, None]
    queue.end()


@pytest.mark.usefixtures('many_switches')
def test_the_order_is_kept_while_one_thread_takes_and_another_fetches(socket: _Socket) -> None:
    """A message reader fetches like this before it queues a message."""
    queue, got, total = endless(), [], 20_000
    queue.attach(socket)

    def take() -> None:
        while len(got) < total:
            if (entry := queue.get(0.0 if len(got) % 3 else 0.01)) is not None:
                got.append(entry)

    taker = threading.Thread(target=take)
    taker.start()
    for number in range(total):
        if number % 7:
            socket.sent.append(number)
        else:
            queue.fetch()
            queue.put(number)
    taker.join(120.0)
    assert got == list(range(total))
    queue.end()


def test_room_for_one_kind_is_made_at_the_cost_of_that_kind_alone() -> None:
    released: list[str] = []
    queue: KeepLastQueue[str] = KeepLastQueue(None, released.append)
    for number in range(6):
        for kind, most in (('frame', 2), ('word', 3)):
            queue.make_room(most, lambda entry, kind=kind: entry.startswith(kind))
            queue.put(f'{kind} {number}')
    assert sorted(released) == [*(f'frame {n}' for n in range(4)), 'word 0', 'word 1', 'word 2']
    assert [queue.get() for _ in range(6)] == [
        'word 3', 'frame 4', 'word 4', 'frame 5', 'word 5', None
    ]  # fmt: skip
    queue.close()


def test_its_methods_can_be_referred_to_weakly() -> None:
    """Contexts and executors of rclpy refer to bound methods so."""
    queue = endless()
    put = weakref.WeakMethod(queue.put)
    assert put() == queue.put
    del queue
    assert put() is None


# The process-wide lookout thread.
WAIT_S = 60.0
SOON_S = 0.001


@pytest.fixture
def lookout() -> Iterator[Lookout]:
    made = Lookout()
    yield made
    assert not made._due, 'a test has left something to look at'


class Seen:
    """Counts looks; a test waits for them."""

    count = 0

    def look(self) -> None:
        self.count += 1

    def wait(self, count: int) -> bool:
        return eventually(lambda: self.count >= count)


def test_after_stop_there_is_no_look_and_in_the_end_no_thread(lookout: Lookout) -> None:
    kept, ended = Seen(), Seen()
    one, other = lookout.watch(SOON_S, kept.look), lookout.watch(SOON_S, ended.look)
    assert ended.wait(1)
    other.stop()
    count = ended.count
    assert kept.wait(kept.count + 5) and ended.count == count
    thread = lookout._thread
    assert thread.name == 'lookout'
    one.stop()
    one.stop()
    thread.join(WAIT_S)
    assert not thread.is_alive() and lookout._thread is None
    again = lookout.watch(SOON_S, kept.look)
    assert kept.wait(kept.count + 1), 'a new thread for new things'
    again.stop()


def test_stop_waits_for_the_look_that_is_under_way(lookout: Lookout) -> None:
    began, go_on, done = threading.Event(), threading.Event(), []

    def slow() -> None:
        began.set()
        go_on.wait(WAIT_S)
        done.append(True)

    watch = lookout.watch(SOON_S, slow)
    assert began.wait(WAIT_S)
    threading.Timer(0.05, go_on.set).start()
    watch.stop()
    assert done


def test_what_raises_is_told_once_looked_at_again_and_the_others_go_on(
    lookout: Lookout, capfd: pytest.CaptureFixture[str]
) -> None:
    seen, raised = Seen(), Seen()

    def bad() -> None:
        raised.look()
        raise ZeroDivisionError('nobody had thought of that')

    watches = [lookout.watch(SOON_S, bad), lookout.watch(SOON_S, seen.look)]
    assert raised.wait(3) and seen.wait(seen.count + 5), 'what was missing may be there again'
    for watch in watches:
        watch.stop()
    assert capfd.readouterr().err.count('ZeroDivisionError: nobody had thought of that') == 1


def test_an_object_is_not_kept_alive_by_being_looked_at(lookout: Lookout) -> None:
    thing = Seen()
    watch, gone = lookout.watch(SOON_S, thing.look), weakref.ref(thing)
    assert thing.wait(1)
    thread = lookout._thread
    del thing
    until(lambda: gone() is None, pause=gc.collect)  # the current look holds a reference
    thread.join(WAIT_S)
    assert watch.stopped and not thread.is_alive()


def test_a_forked_child_looks_with_a_thread_of_its_own() -> None:
    script = """
import os, sys, threading
from zc_perception.lookout import LOOKOUT
seen = threading.Event()
def look(): seen.set()
LOOKOUT.watch(0.001, look)
assert seen.wait(30)
child = os.fork()
if not child:
    again = threading.Event()
    LOOKOUT.watch(0.001, lambda: again.set())
    os._exit(0 if again.wait(30) else 7)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = ran(sys.executable, '-W', 'ignore', '-c', script, timeout=90)
    assert done.returncode == 0, done.stderr
