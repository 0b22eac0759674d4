"""What a subscription has of rung 2, without a node: one client for each publisher that is announced."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from zc_perception.frame import Frame
from zc_perception.frame_queue import KeepLastQueue
from zc_perception.link.announcement import Announcement, host_id
from zc_perception.link.bus import LinkQos
from zc_perception.link.endpoints.shared_memory_links import SharedMemoryLinks
from zc_perception.link.rungs import RemoteState


@pytest.mark.parametrize('with_callback', [False, True])
@pytest.mark.parametrize('scarce', ['select.epoll', 'os.eventfd'])
def test_without_a_descriptor_there_is_no_link_yet_and_one_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_fd_leak: None, scarce: str, with_callback: bool
) -> None:
    def none_left(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    queue: KeepLastQueue[Frame] = KeepLastQueue(1, Frame.release)
    links = SharedMemoryLinks('npu')
    links.open(queue, LinkQos(1), lambda frame: True, queue.put if with_callback else None, lambda: None)
    announced = [Announcement('a' * 32, host_id(), str(tmp_path / 'a.sock'), 64, 48, ('NV12',), 'memfd')]
    with monkeypatch.context() as patch:
        patch.setattr(scarce, none_left)
        (state,) = links.update(announced, announced)
        if 'ulimit' in state.reason:
            assert state.state is RemoteState.CONNECTING and 'Too many open files' in state.reason
        else:
            assert scarce == 'os.eventfd' and not with_callback, 'without a thread of its own it needs none'
    (state,) = links.update(announced, announced)
    assert state.state is RemoteState.CONNECTING and 'ulimit' not in state.reason
    assert len(links.statistics()) == 1
    links.close()
    queue.end()
