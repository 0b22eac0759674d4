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

"""The process-wide lookout thread."""

from __future__ import annotations

from collections.abc import Iterator
import gc
import os
import subprocess
import sys
import threading
import weakref

import pytest
from waiting import until

from zc_perception.lookout import Lookout

WAIT_S = 60.0
SOON_S = 0.001


@pytest.fixture
def lookout() -> Iterator[Lookout]:
    made = Lookout()
    yield made
    assert not made._due, 'a test has left something to look at'


class Seen:
    """Counts looks; a test waits for them."""

    def __init__(self) -> None:
        self.count = 0
        self._came = threading.Condition()

    def look(self) -> None:
        with self._came:
            self.count += 1
            self._came.notify_all()

    def wait(self, count: int) -> bool:
        with self._came:
            return self._came.wait_for(lambda: self.count >= count, WAIT_S)


def test_everything_is_looked_at_again_and_again_on_one_thread(lookout: Lookout) -> None:
    threads: set[str] = set()
    first, second = Seen(), Seen()

    def also() -> None:
        threads.add(threading.current_thread().name)
        second.look()

    watches = [lookout.watch(SOON_S, first.look), lookout.watch(SOON_S, also)]
    assert first.wait(3) and second.wait(3) and threads == {'lookout'}
    for watch in watches:
        watch.stop()


def test_after_stop_there_is_no_look_and_in_the_end_no_thread(lookout: Lookout) -> None:
    kept, ended = Seen(), Seen()
    one, other = lookout.watch(SOON_S, kept.look), lookout.watch(SOON_S, ended.look)
    assert ended.wait(1)
    other.stop()
    count = ended.count
    assert kept.wait(kept.count + 5) and ended.count == count
    thread = lookout._thread
    assert thread is not None
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
    class Thing:
        def look(self) -> None:  # noqa: CNL100
            seen.look()

    seen = Seen()
    thing = Thing()
    watch, gone = lookout.watch(SOON_S, thing.look), weakref.ref(thing)
    assert seen.wait(1)
    thread = lookout._thread
    del thing
    until(lambda: gone() is None, pause=gc.collect)  # the current look holds a reference
    assert thread is not None
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
    ran = subprocess.run(
        [sys.executable, '-W', 'ignore', '-c', script],
        timeout=90,
        env=dict(os.environ),
        check=False,
    )
    assert ran.returncode == 0
