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
import sys
import threading
import weakref

from processes import ran
import pytest
from waiting import eventually, until

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

    count = 0

    def look(self) -> None:
        self.count += 1

    def wait(self, count: int) -> bool:
        return eventually(lambda: self.count >= count)


def test_everything_is_looked_at_again_and_again_on_one_thread(lookout: Lookout) -> None:
    first, threads = Seen(), []
    watches = [
        lookout.watch(SOON_S, first.look),
        lookout.watch(SOON_S, lambda: threads.append(threading.current_thread().name)),
    ]
    assert first.wait(3) and eventually(lambda: len(threads) >= 3) and set(threads) == {'lookout'}
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
