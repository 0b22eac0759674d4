"""Waiting for other threads and for fences at once."""

from __future__ import annotations

import errno
import os
import threading

import pytest
from pool_kit import PATIENCE_S

from zc_perception.memory.fence import EventFence, Waker

pytestmark = pytest.mark.usefixtures('no_fd_leak')


def ends(waker: Waker, fences: tuple[EventFence, ...] = ()) -> tuple[threading.Thread, threading.Event]:
    """A wait without a bound in another thread, and whether it has ended."""
    ended = threading.Event()
    thread = threading.Thread(target=lambda: (waker.wait(None, fences), ended.set()), daemon=True)
    thread.start()
    return thread, ended


def test_each_token_ends_one_wait_even_one_that_begins_later() -> None:
    waker = Waker()
    waker.wake()
    waker.wake(2)
    for number in range(3):
        assert ends(waker)[1].wait(PATIENCE_S), f'token {number} is lost'
    _, ended = ends(waker)
    assert not ended.wait(0.05), 'three tokens end three waits'
    waker.wake()
    assert ended.wait(PATIENCE_S)


@pytest.mark.parametrize('signalled', [0, 1])
def test_any_fence_ends_a_wait(signalled: int) -> None:
    waker, fences = Waker(), (EventFence(), EventFence())
    _, ended = ends(waker, fences)
    fences[signalled].signal()
    assert ended.wait(PATIENCE_S)
    for fence in fences:
        fence.close()


def test_a_wait_ends_with_its_time() -> None:
    Waker().wait(0.0, ())
    Waker().wait(0.01, ())


def test_a_fence_that_is_closed_already_is_left_to_its_deadline() -> None:
    waker, fence = Waker(), EventFence()
    fence.close()
    _, ended = ends(waker, (fence,))
    assert not ended.wait(0.05)
    waker.wake()
    assert ended.wait(PATIENCE_S)


def test_a_finalizer_may_call_after_the_collector_has_closed_it() -> None:
    waker = Waker()
    waker._fd.close()
    waker.wake()


def test_without_a_descriptor_every_wait_ends_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr(os, 'eventfd', full)
        waker = Waker()
    waker.wake()
    assert ends(waker)[1].wait(PATIENCE_S)
    fence = EventFence()
    fence.signal()
    assert ends(waker, (fence,))[1].wait(PATIENCE_S)
    fence.close()
