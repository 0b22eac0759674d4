"""A camera that is killed again and again: its consumers are linked to the one that lives, and nothing is left of the dead."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from camera_kills import KilledCamera
from link_ros import Ros
from long_form import LONG
from rclpy.qos import QoSProfile

from zc_perception.frame import Frame
from zc_perception.frame_queue import KeepLastQueue
from zc_perception.link.announcement import SUFFIX, Announcement, host_id
from zc_perception.link.bus import LinkQos
from zc_perception.link.endpoints import discovery
from zc_perception.link.endpoints.discovery import Announcements, PublisherGraph
from zc_perception.link.endpoints.remote_links import SharedMemoryLinks
from zc_perception.link.rungs import RemotePublisher, RemoteState

FAR = RemoteState.IMPOSSIBLE


@pytest.mark.parametrize('life_s', [0.2, 1.0, pytest.param(10.0, marks=pytest.mark.long)])
@pytest.mark.timeout(3600 if LONG else 300)
def test_whoever_lives_is_linked_and_nothing_is_left_of_the_dead(here: Ros, free_domain: int, tmp_path: Path, life_s: float) -> None:
    camera = KilledCamera(here, free_domain, tmp_path)
    try:
        found = camera.run((200 if life_s < 10.0 else 30) if LONG else 6, life_s)
    finally:
        camera.close()
    assert found.wrong_rungs == {}, 'refused, or by message'
    assert (found.unmet, found.lost, found.converted, found.disorder) == (0, 0, 0, 0), found
    assert found.frames > 2 * found.kills
    assert all(found.after[kind] <= found.before[kind] for kind in found.before), found


def said(publisher_id: str) -> Announcement:
    return Announcement(publisher_id, host_id(), f'/nowhere/{publisher_id}.sock', 64, 48, ('NV12',), 'memfd')


def told(announcements: Announcements, adapted: int, **states: RemoteState) -> list[tuple[str, RemoteState]]:
    """What is believed once that came of those who were heard of."""
    found = [RemotePublisher(name, state, 'why') for name, state in states.items()]
    announcements.judge(found)
    return [(state.publisher_id, state.state) for state in announcements.present(found, adapted)]


def heard(*names: str) -> Announcements:
    announcements = Announcements()
    for name in names:
        announcements.add(said(name))
    return announcements


def test_the_dead_come_last_and_only_as_many_as_the_graph_counts() -> None:
    announcements = heard('dead', 'live', 'far')
    states = {'dead': RemoteState.GONE, 'live': RemoteState.CONNECTED, 'far': FAR}
    assert told(announcements, 3, **states) == [('live', RemoteState.CONNECTED), ('far', FAR), ('dead', RemoteState.GONE)]
    assert told(announcements, 2, live=RemoteState.CONNECTED, far=FAR) == [('live', RemoteState.CONNECTED), ('far', FAR)]
    assert told(announcements, 5, live=RemoteState.CONNECTED, far=FAR)[2:] == [('dead', RemoteState.GONE)], 'of two nothing is known'


def test_a_dead_one_is_remembered_though_the_graph_does_not_know_its_successor_yet() -> None:
    announcements = heard('dead', 'live')
    assert told(announcements, 1, dead=RemoteState.GONE, live=RemoteState.CONNECTED) == [('live', RemoteState.CONNECTED)]
    # Now it does: nobody is missing.
    assert told(announcements, 2, live=RemoteState.CONNECTED) == [('live', RemoteState.CONNECTED), ('dead', RemoteState.GONE)]
    assert [each.publisher_id for each in announcements.known(())] == ['live']


def test_who_announces_again_is_alive() -> None:
    announcements = heard('camera')
    assert told(announcements, 1, camera=RemoteState.GONE) == [('camera', RemoteState.GONE)]
    assert announcements.known(()) == [] and announcements.incomplete(1)
    announcements.add(said('camera'), confirmed=True)
    assert told(announcements, 2, camera=RemoteState.CONNECTING) == [('camera', RemoteState.CONNECTING)]


def test_the_dead_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(discovery, 'time', SimpleNamespace(monotonic=lambda: now[0]))
    announcements = heard('dead')
    assert told(announcements, 1, dead=RemoteState.GONE) == [('dead', RemoteState.GONE)]
    now[0] += discovery._GRAPH_REMEMBERS_S
    assert told(announcements, 1) == [], 'somebody else is there'
    for number in range(300):
        announcements.add(said(f'{number:032x}'))
        announcements.judge([RemotePublisher(f'{number:032x}', RemoteState.GONE)])
    assert len(announcements.present([], 1000)) == discovery._MAX_ANNOUNCEMENTS


@pytest.mark.parametrize('existed', [True, False])
def test_a_socket_that_is_gone_is_an_end_only_where_it_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, existed: bool) -> None:
    """A folder of the same name in another container is not ours: its camera is read by messages."""
    monkeypatch.setattr('zc_perception.link.endpoints.remote_links._PATIENCE_S', 0.0)
    queue: KeepLastQueue[Frame] = KeepLastQueue(1, Frame.release)
    links = SharedMemoryLinks('npu')
    links.open(queue, LinkQos(1), lambda frame: True, None, lambda: None)
    path = tmp_path / 'a.sock'
    announced = [Announcement('a' * 32, host_id(), str(path), 64, 48, ('NV12',), 'memfd')]
    try:
        if existed:
            path.touch()
            links.update(announced, announced)
            path.unlink()
        (state,) = links.update(announced, announced)
        assert state.state is (RemoteState.GONE if existed else FAR)
    finally:
        links.close()
        queue.end()


class Graph:
    """What a node says of the graph."""

    def __init__(self) -> None:
        self.images: list[Any] = []
        self.announcers: list[Any] = []

    def count_publishers(self, topic: str) -> int:
        return len(self.images)

    def get_publishers_info_by_topic(self, topic: str) -> list[Any]:
        return self.announcers if topic.endswith(SUFFIX) else self.images


@pytest.fixture
def endpoint() -> Callable[..., Any]:
    def make(number: int, name: str = 'camera') -> Any:
        return SimpleNamespace(endpoint_gid=[number] * 16, node_namespace='/', node_name=name, qos_profile=QoSProfile(depth=1))

    return make


def test_a_dead_publisher_whose_endpoints_go_one_after_the_other_is_no_plain_one(endpoint: Callable[..., Any]) -> None:
    node = Graph()
    graph = PublisherGraph(node, '/image', LinkQos(1))  # type: ignore[arg-type]
    node.images, node.announcers = [endpoint(1), endpoint(2)], [endpoint(11), endpoint(12)]
    assert (graph.count(()).adapted, graph.count(()).plain) == (2, 0)
    node.announcers = [endpoint(12)]
    for order in ([endpoint(1), endpoint(2)], [endpoint(2), endpoint(1)]):
        node.images = order
        assert (graph.count(()).adapted, graph.count(()).plain) == (2, 0)
    node.images.append(endpoint(3))
    assert (graph.count(()).adapted, graph.count(()).plain) == (2, 1), 'a plain one of the same node'
    node.images = [endpoint(2)]
    graph.count(())
    node.images.append(endpoint(1))
    assert graph.count(()).plain == 1, 'who has left the graph is forgotten'


def test_a_publisher_whose_node_has_no_name_yet_is_not_remembered_as_adapted(endpoint: Callable[..., Any]) -> None:
    node = Graph()
    graph = PublisherGraph(node, '/image', LinkQos(1))  # type: ignore[arg-type]
    node.images, node.announcers = [endpoint(1, '_NODE_NAME_UNKNOWN_')], [endpoint(11, '_NODE_NAME_UNKNOWN_')]
    assert graph.count(()).adapted == 1
    node.images, node.announcers = [endpoint(1, 'plain'), endpoint(2)], [endpoint(11)]
    assert (graph.count(()).adapted, graph.count(()).plain) == (1, 1)
