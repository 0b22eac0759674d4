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
Which announcements a subscription believes.

Any program in the ROS domain may send any number; none may cost a publisher its consumer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
import json
import os
from pathlib import Path
import socket
import stat
import time
from types import SimpleNamespace
from typing import Any

from descriptors import open_descriptors
from hypothesis import given, HealthCheck, settings
from hypothesis import strategies as st
from link_ros import announced, Links
import pytest
from rclpy.qos import QoSProfile
from sensor_msgs.msg import Image
from waiting import eventually

from zc_perception.link.announcement import (
    Announcement,
    read_announcements,
    remove_announcement,
    VERSION,
    write_announcement,
)
from zc_perception.link.bus import LinkQos
from zc_perception.link.endpoints import discovery
from zc_perception.link.endpoints.discovery import (
    Announcements,
    GraphSigns,
    PublisherCount,
    PublisherGraph,
)
from zc_perception.link.rungs import RemotePublisher, RemoteState
from zc_perception.link.shared_memory.server import SharedMemoryServer
from zc_perception.link.shared_memory.unix_socket import (
    announcement_path,
    ANNOUNCEMENT_SUFFIX,
    listen,
    remove_stale,
    STARTING,
)
from zc_perception.memory.pool import BufferPool

CAMERA = 'c' * 32
TOPIC = '/image_raw'
LIVE, DEAD, FAR = RemoteState.CONNECTED, RemoteState.GONE, RemoteState.IMPOSSIBLE


def liars(count: int, path: object = '/nowhere/x.sock') -> list[Announcement]:
    return [announced(f'{number:032x}', path) for number in range(count)]


@pytest.fixture
def camera(folder: Path, make_pool: Callable[..., BufferPool]) -> Iterator[SharedMemoryServer]:
    with SharedMemoryServer('camera', CAMERA, make_pool(slots=8), folder=folder) as server:
        yield server


class Consumer(Links):
    """A subscription's handling of announcements, without a node; tests set its graph."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.announcements = Announcements()
        self._folder = folder

    def hear(self, *announcements: Announcement) -> None:
        for announcement in announcements:
            self.announcements.add(announcement, connected=self.links.connected())

    def look(self, adapted: int = 1) -> list[RemotePublisher]:
        if self.announcements.incomplete(adapted):
            self.announcements.read_files(self._folder, TOPIC, 0, (), self.links.connected())
        announced = self.announcements.known(())
        states = self.links.update(announced, announced)
        self.announcements.judge(states)
        return self.announcements.present(states, adapted)

    def meets_the_camera(self) -> bool:
        return eventually(lambda: RemotePublisher(CAMERA, RemoteState.CONNECTED) in self.look())

    @property
    def ids(self) -> list[str]:
        return [announcement.publisher_id for announcement in self.announcements.known(())]


@pytest.fixture
def consumer(folder: Path) -> Iterator[Consumer]:
    made = Consumer(folder)
    yield made
    made.close()


def test_the_file_beside_the_socket_is_worth_more_than_what_anybody_says(
    consumer: Consumer, camera: SharedMemoryServer
) -> None:
    """The camera's own message was displaced, or came before a false one."""
    consumer.hear(announced(CAMERA), *liars(250))
    assert consumer.look()[0].state is RemoteState.CONNECTING, (
        'as many as there are publishers have been heard of'
    )
    write_announcement(announced(CAMERA, camera.path), TOPIC, 0)
    assert consumer.meets_the_camera()
    assert eventually(lambda: consumer.look() and consumer.ids == [CAMERA])


def test_who_listens_counts_beyond_the_graph_and_who_only_says_so_does_not(
    consumer: Consumer, camera: SharedMemoryServer
) -> None:
    """A producer without ROS isn't in the graph: it has only a socket and a file."""
    write_announcement(announced(CAMERA, camera.path), TOPIC, 0)
    consumer.hear(*liars(3))
    assert eventually(lambda: consumer.look(0) == [RemotePublisher(CAMERA, RemoteState.CONNECTED)])
    camera.close()
    assert eventually(lambda: consumer.queue.get(0.0) is None and consumer.look(0) == [])


def told(
    announcements: Announcements, adapted: int, **states: RemoteState
) -> list[tuple[str, RemoteState]]:
    found = [RemotePublisher(name, state, 'why') for name, state in states.items()]
    announcements.judge(found)
    return [(state.publisher_id, state.state) for state in announcements.present(found, adapted)]


def heard(*names: str) -> Announcements:
    announcements = Announcements()
    for name in names:
        announcements.add(announced(name))
    return announcements


def test_the_dead_come_last_and_only_as_many_as_the_graph_counts() -> None:
    announcements = heard('dead', 'live', 'far')
    states = {'dead': DEAD, 'live': LIVE, 'far': FAR}
    assert told(announcements, 3, **states) == [('live', LIVE), ('far', FAR), ('dead', DEAD)]
    assert told(announcements, 2, live=LIVE, far=FAR) == [('live', LIVE), ('far', FAR)]
    assert told(announcements, 5, live=LIVE, far=FAR)[2:] == [('dead', DEAD)], (
        'of two nothing is known'
    )


def test_the_dead_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(discovery, 'time', SimpleNamespace(monotonic=lambda: now[0]))
    announcements = heard('dead')
    assert told(announcements, 1, dead=DEAD) == [('dead', DEAD)]
    now[0] += discovery._GRAPH_REMEMBERS_S
    assert told(announcements, 1) == [], 'somebody else is there'
    for number in range(300):
        announcements.add(announced(f'{number:032x}'))
        announcements.judge([RemotePublisher(f'{number:032x}', DEAD)])
    assert len(announcements.present([], 1000)) == discovery._MAX_ANNOUNCEMENTS


@pytest.mark.parametrize('existed', [True, False])
def test_a_socket_that_is_gone_is_an_end_only_where_it_was_there(
    consumer: Consumer, folder: Path, monkeypatch: pytest.MonkeyPatch, existed: bool
) -> None:
    """A folder of the same name in another container isn't ours: that camera sends messages."""
    monkeypatch.setattr('zc_perception.link.endpoints.remote_links._PATIENCE_S', 0.0)
    path = folder / 'a.sock'
    there = [announced('a' * 32, path)]
    if existed:
        path.touch()
        consumer.links.update(there, there)
        path.unlink()
    (state,) = consumer.links.update(there, there)
    assert state.state is (DEAD if existed else FAR)


class Writers:
    """A graph with writers by topic: the node's name of each, by its number."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.writers: dict[str, dict[int, str]] = {}
        monkeypatch.setattr(discovery, 'publishers_of', lambda node, topic: node.of(topic))
        self.graph = PublisherGraph(self, TOPIC, LinkQos(1), Image)  # type: ignore[arg-type]

    def of(self, topic: str) -> list[Any]:
        about = {
            'node_namespace': '/',
            'qos_profile': QoSProfile(depth=1),
            'topic_type': 'sensor_msgs/msg/Image',
        }
        return [
            SimpleNamespace(node_name=name, endpoint_gid=[*f'{topic}{n}'.encode()], **about)
            for n, name in self.writers.get(topic, {}).items()
        ]

    def count(
        self, announcers: Sequence[str] = (), images: Sequence[str] = (), here: Sequence[Any] = ()
    ) -> PublisherCount:
        self.writers = {
            f'{TOPIC}/_zc': dict(enumerate(announcers)), TOPIC: dict(enumerate(images)),
        }  # fmt: skip
        return self.graph.count(here)


def test_the_graph_is_asked_when_a_number_has_changed_and_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, counts = [1000.0], {TOPIC: 1, f'{TOPIC}/_zc': 1}
    monkeypatch.setattr(discovery, 'time', SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(discovery, 'publisher_count', lambda node, topic: counts[topic])
    signs = GraphSigns(SimpleNamespace(), TOPIC)  # type: ignore[arg-type]
    assert signs.changed() and not signs.changed()
    for topic in counts:
        counts[topic] += 1
        assert signs.changed() and not signs.changed()
    assert signs.changed('a folder') and not signs.changed('a folder')
    now[0] += discovery._REFRESH_S
    assert signs.changed('a folder'), 'one publisher may have given way to another'


def test_a_publisher_needs_no_writer_of_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    now, writers = [1000.0], Writers(monkeypatch)
    monkeypatch.setattr(discovery, 'time', SimpleNamespace(monotonic=lambda: now[0]))
    assert writers.count() == PublisherCount(0, 0, (), '')
    all_of_them = ['bare', 'camera', 'here'], ['camera', 'here', 'plain']
    here = [SimpleNamespace(name='/here')]
    assert writers.count(*all_of_them, here) == PublisherCount(1, 1, ('/plain',), ''), (
        'its writer of messages may be about to come'
    )
    now[0] += discovery._ALONE_S
    assert writers.count(*all_of_them, here) == PublisherCount(2, 2, ('/plain',), '')
    assert writers.count(['here'], here=here) == PublisherCount(0, 0, (), ''), (
        'our own comes another way'
    )
    assert writers.count(['bare']) == PublisherCount(0, 0, (), ''), 'it has gone and come again'
    now[0] += discovery._ALONE_S
    assert writers.count(['bare']) == PublisherCount(1, 1, (), '')


def test_a_writer_whose_node_has_no_name_yet_is_not_plain_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, writers = [1000.0], Writers(monkeypatch)
    monkeypatch.setattr(discovery, 'time', SimpleNamespace(monotonic=lambda: now[0]))
    assert writers.count(['camera'], ['camera']).adapted == 1
    # The old publisher's writer is still there, but its announcer has gone.
    replaced = ['camera'], ['camera', discovery.UNNAMED]
    assert writers.count(*replaced) == PublisherCount(2, 2, (), '')
    assert writers.graph.undecided
    now[0] += discovery._UNNAMED_S
    assert writers.count(*replaced).plain == ('a node without a known name',)
    assert not writers.graph.undecided


def test_of_a_node_that_publishes_both_ways_the_plain_one_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writers, left = Writers(monkeypatch), ('/robot', '/driver')
    both = ['robot', 'robot', 'driver']
    assert writers.count(['robot'], both) == PublisherCount(1, 1, left, '')
    assert writers.count([], both[1:]) == PublisherCount(0, 0, left, '')


def test_a_dead_publisher_whose_endpoints_go_one_after_the_other_is_no_plain_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writers = Writers(monkeypatch)

    def counted(**changes: list[int]) -> tuple[int, int]:
        topics = {'images': TOPIC, 'announcers': f'{TOPIC}/_zc'}
        writers.writers |= {
            topics[kind]: dict.fromkeys(numbers, 'camera') for kind, numbers in changes.items()
        }
        found = writers.graph.count(())
        return found.adapted, len(found.plain)

    assert counted(images=[1, 2], announcers=[1, 2]) == (2, 0)
    assert counted(images=[1, 2], announcers=[2]) == counted(images=[2, 1]) == (2, 0)
    assert counted(images=[2, 1, 3]) == (2, 1), 'a plain one of the same node'
    counted(images=[2])
    assert counted(images=[2, 1])[1] == 1, 'who has left the graph is forgotten'


def test_a_silent_listener_with_many_names_delays_nobody(
    consumer: Consumer, camera: SharedMemoryServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No attempt ends within the test: one after another, they would take 90 minutes.
    monkeypatch.setattr('zc_perception.link.shared_memory.client.HANDSHAKE_S', 60.0)
    # On a busy machine, the camera may be met seconds after the silent ones were first heard of.
    monkeypatch.setattr('zc_perception.link.endpoints.remote_links._PATIENCE_S', 3600.0)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(folder / 'silent.sock'))
        listener.listen(200)
        silent = liars(90, folder / 'silent.sock')
        consumer.hear(*silent, announced(CAMERA, camera.path))
        assert consumer.meets_the_camera()
        for state in consumer.links.update(silent, silent):
            assert state.state is RemoteState.CONNECTING and 'nobody' not in state.reason
        monkeypatch.setattr('zc_perception.link.endpoints.remote_links._PATIENCE_S', 0.0)
        found = {(state.state, state.reason) for state in consumer.links.update(silent, silent)}
        assert found == {(FAR, f"no answer from '{folder / 'silent.sock'}' yet")}, (
            'only messages are left meanwhile'
        )


# An announcement on <topic>/_zc, where strangers may write, and as the file beside the socket.


GOOD = Announcement(
    'p1', 'h1', '/run/zc/socket', 640, 360, ('NV12', 'NV12:0x0300000000000010'), 'memfd'
)
# A ROS string can't contain surrogates.
texts = st.text(st.characters(exclude_categories=['Cs']), max_size=20)
announcements = st.builds(
    Announcement,
    publisher_id=texts,
    host_id=texts,
    socket=texts,
    width=st.integers(1, 65535),
    height=st.integers(1, 65535),
    formats=st.lists(texts, max_size=3).map(tuple),
    heap=texts,
    generation=st.integers(0, 1 << 64),
)


@given(announcements)
def test_announcements_round_trip(announcement: Announcement) -> None:
    text = announcement.to_json()
    assert '\n' not in text
    assert Announcement.from_json(text) == announcement
    values = json.loads(text)
    keys = 'version publisher_id host_id socket width height formats heap generation'
    assert set(values) == set(keys.split()), 'as the page says'
    assert values['version'] == 1 and values['formats'] == list(announcement.formats)


def test_what_is_none_is_none_and_keys_of_a_later_minor_version_are_ignored() -> None:
    def other(**values: Any) -> str:
        return json.dumps({**asdict(GOOD), **values})

    for text in (
        '', '[]', '[' * 100_000, '{"version": 1, "width": ' + '9' * 5000 + '}',
        other(width=float('inf')), other(height=0), other(width='640'), other(formats='NV12'),
        other(formats={'NV12': 1}), other(socket=None), other(version=VERSION + 1),
        *(other(generation=wrong) for wrong in (-1, 1.5, True)),
    ):  # fmt: skip
        assert Announcement.from_json(text) is None, text[-30:]
    assert Announcement.from_json(other(colour='red')) == GOOD


ANNOUNCED, DOMAIN = '/front/image_raw', 7


def made_by(socket: Path) -> Announcement:
    return announced(socket.stem, socket)


def read(folder: Path, topic: str = ANNOUNCED, domain: int = DOMAIN) -> list[Announcement]:
    return list(read_announcements(folder, topic, domain))


def test_what_is_written_is_read_by_topic_and_domain_while_its_publisher_listens(
    tmp_path: Path,
) -> None:
    path = tmp_path / 'a.sock'
    with listen(path):
        write_announcement(made_by(path), ANNOUNCED, DOMAIN)
        assert read(tmp_path) == [made_by(path)]
        assert read(tmp_path, '/rear/image_raw') == read(tmp_path, domain=8) == []
        later = replace(made_by(path), width=128)
        write_announcement(later, ANNOUNCED, DOMAIN)
        assert read(tmp_path) == [later]
        names = sorted(entry.name for entry in tmp_path.iterdir())
        assert names == ['a.announcement', 'a.sock'], 'nothing is left of writing'
    assert read(tmp_path) == [], 'who listens no more is not there'
    remove_announcement(path)
    remove_announcement(path)
    assert not announcement_path(path).exists()


def test_there_may_be_no_folder_and_no_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read(tmp_path / 'nowhere') == []
    path = tmp_path / 'a.sock'
    with listen(path):
        write_announcement(made_by(path), ANNOUNCED, DOMAIN)

        def none_left(*_: object, **__: object) -> None:
            raise OSError(24, 'Too many open files')

        monkeypatch.setattr('socket.socket', none_left)
        assert read(tmp_path) == []
        monkeypatch.undo()
        assert len(read(tmp_path)) == 1


def test_its_group_is_the_socket_s_and_others_read_nothing(tmp_path: Path) -> None:
    alone, shared = tmp_path / 'alone.sock', tmp_path / 'shared.sock'
    with listen(alone), listen(shared, os.getegid()):
        for path, mode in ((alone, 0o600), (shared, 0o640)):
            write_announcement(made_by(path), ANNOUNCED, DOMAIN)
            status = announcement_path(path).stat()
            assert stat.S_IMODE(status.st_mode) == mode and status.st_gid == path.stat().st_gid


def test_a_folder_that_takes_no_file_is_told_and_nothing_is_left_in_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_announcement(made_by(tmp_path / 'gone' / 'a.sock'), ANNOUNCED, DOMAIN)
    path = tmp_path / 'a.sock'
    with listen(path):
        announcement_path(path).mkdir()
        with pytest.raises(IsADirectoryError):
            write_announcement(made_by(path), ANNOUNCED, DOMAIN)
        assert read(tmp_path) == [] and not list(tmp_path.glob(f'{STARTING}*'))


GOOD_FILE = json.dumps(
    {'topic': ANNOUNCED, 'domain': DOMAIN, 'announcement': made_by(Path('/a.sock')).to_json()}
)


def test_only_regular_files_about_the_socket_beside_them_count(tmp_path: Path) -> None:
    path = tmp_path / 'a.sock'
    before = open_descriptors()
    with listen(path):
        for name, at in (('b', path), ('a', tmp_path.parent / 'a.sock')):
            lie = {'topic': ANNOUNCED, 'domain': DOMAIN, 'announcement': made_by(at).to_json()}
            (tmp_path / f'{name}{ANNOUNCEMENT_SUFFIX}').write_text(json.dumps(lie))
        os.mkfifo(tmp_path / f'c{ANNOUNCEMENT_SUFFIX}')
        (tmp_path / f'd{ANNOUNCEMENT_SUFFIX}').symlink_to(tmp_path / f'b{ANNOUNCEMENT_SUFFIX}')
        assert read(tmp_path) == []
    assert not open_descriptors() - before


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=200,
)
@given(
    st.binary(max_size=300)
    | st.integers(0, len(GOOD_FILE)).map(
        lambda n: GOOD_FILE[:n].encode() + b'\xff' + GOOD_FILE[n:].encode()
    )
)
def test_any_bytes_are_read_or_passed_over(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / f'a{ANNOUNCEMENT_SUFFIX}').write_bytes(raw)
    assert read(tmp_path) == []


def test_those_of_killed_publishers_go_with_their_sockets(tmp_path: Path) -> None:
    dead, live = tmp_path / 'dead.sock', tmp_path / 'live.sock'
    with listen(live):
        with listen(dead):
            write_announcement(made_by(dead), ANNOUNCED, DOMAIN)
        write_announcement(made_by(live), ANNOUNCED, DOMAIN)
        old, young = (announcement_path(tmp_path / name) for name in ('old', 'young'))
        for path in (old, young):
            path.write_text(GOOD_FILE)
        hour_ago = time.time() - 3600
        for path in (old, announcement_path(live)):
            os.utime(path, (hour_ago, hour_ago))
        assert remove_stale(tmp_path) == 1
        names = sorted(path.name for path in tmp_path.iterdir())
        assert names == ['live.announcement', 'live.sock', 'young.announcement']
