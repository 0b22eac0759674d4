"""The announcement beside the socket: for consumers whom the message doesn't reach. Anybody who may enter the folder may write one."""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from descriptors import open_descriptors
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from link_process import LinkProcess
from link_ros import Ros, eventually
from rclpy.qos import QoSProfile

from zc_perception.link.announcement import (
    Announcement,
    announcement_path,
    host_id,
    read_announcements,
    remove_announcement,
    write_announcement,
)
from zc_perception.link.endpoints.remote_links import SharedMemoryLinks
from zc_perception.link.endpoints.subscription import AdaptedSubscription
from zc_perception.link.shared_memory.socket_folder import ANNOUNCEMENT_SUFFIX, STARTING, listen, remove_stale

TOPIC, DOMAIN = '/front/image_raw', 7
Deaf = Callable[[], AdaptedSubscription]


def made_by(socket: Path) -> Announcement:
    return Announcement(socket.stem, host_id(), str(socket), 64, 48, ('NV12',), 'memfd')


def read(folder: Path, topic: str = TOPIC, domain: int = DOMAIN) -> list[Announcement]:
    return list(read_announcements(folder, topic, domain))


def test_what_is_written_is_read_by_topic_and_domain_while_its_publisher_listens(tmp_path: Path) -> None:
    path = tmp_path / 'a.sock'
    with listen(path):
        write_announcement(made_by(path), TOPIC, DOMAIN)
        assert read(tmp_path) == [made_by(path)]
        assert read(tmp_path, '/rear/image_raw') == read(tmp_path, domain=8) == []
        later = replace(made_by(path), width=128)
        write_announcement(later, TOPIC, DOMAIN)
        assert read(tmp_path) == [later]
        assert sorted(entry.name for entry in tmp_path.iterdir()) == ['a.announcement', 'a.sock'], 'nothing is left of writing'
    assert read(tmp_path) == [], 'who listens no more is not there'
    remove_announcement(path)
    remove_announcement(path)
    assert not announcement_path(path).exists()


def test_there_may_be_no_folder_and_no_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(tmp_path / 'nowhere') == []
    path = tmp_path / 'a.sock'
    with listen(path):
        write_announcement(made_by(path), TOPIC, DOMAIN)

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
            write_announcement(made_by(path), TOPIC, DOMAIN)
            status = announcement_path(path).stat()
            assert stat.S_IMODE(status.st_mode) == mode and status.st_gid == path.stat().st_gid


def test_a_folder_that_takes_no_file_is_no_error(tmp_path: Path) -> None:
    write_announcement(made_by(tmp_path / 'gone' / 'a.sock'), TOPIC, DOMAIN)
    path = tmp_path / 'a.sock'
    with listen(path):
        announcement_path(path).mkdir()
        write_announcement(made_by(path), TOPIC, DOMAIN)
        assert read(tmp_path) == [] and not list(tmp_path.glob(f'{STARTING}*'))


GOOD = json.dumps({'topic': TOPIC, 'domain': DOMAIN, 'announcement': made_by(Path('/a.sock')).to_json()})
TEXTS = ['', '{', '[]', 'null', '[' * 16_000, GOOD[:-9], GOOD.replace(f'"{TOPIC}"', '7'), GOOD.replace('"announcement"', '"b"'),
         GOOD + ' ' * 20_000 + '{']  # fmt: skip


@pytest.mark.parametrize('text', TEXTS, ids=range(len(TEXTS)))
def test_nonsense_is_passed_over(tmp_path: Path, text: str) -> None:
    path, other = tmp_path / 'a.sock', tmp_path / 'b.sock'
    with listen(path), listen(other):
        announcement_path(path).write_text(text)
        write_announcement(made_by(other), TOPIC, DOMAIN)
        assert read(tmp_path) == [made_by(other)]


def test_only_regular_files_about_the_socket_beside_them_count(tmp_path: Path) -> None:
    path = tmp_path / 'a.sock'
    before = open_descriptors()
    with listen(path):
        for name, at in (('b', path), ('a', tmp_path.parent / 'a.sock')):
            lie = {'topic': TOPIC, 'domain': DOMAIN, 'announcement': made_by(at).to_json()}
            (tmp_path / f'{name}{ANNOUNCEMENT_SUFFIX}').write_text(json.dumps(lie))
        os.mkfifo(tmp_path / f'c{ANNOUNCEMENT_SUFFIX}')
        (tmp_path / f'd{ANNOUNCEMENT_SUFFIX}').symlink_to(tmp_path / f'b{ANNOUNCEMENT_SUFFIX}')
        assert read(tmp_path) == []
    assert not open_descriptors() - before


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=200)
@given(st.binary(max_size=300) | st.integers(0, len(GOOD)).map(lambda n: GOOD[:n].encode() + b'\xff' + GOOD[n:].encode()))
def test_any_bytes_are_read_or_passed_over(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / f'a{ANNOUNCEMENT_SUFFIX}').write_bytes(raw)
    assert read(tmp_path) == []


def test_those_of_killed_publishers_go_with_their_sockets(tmp_path: Path) -> None:
    dead, live = tmp_path / 'dead.sock', tmp_path / 'live.sock'
    with listen(live):
        with listen(dead):
            write_announcement(made_by(dead), TOPIC, DOMAIN)
        write_announcement(made_by(live), TOPIC, DOMAIN)
        old, young = (announcement_path(tmp_path / name) for name in ('old', 'young'))
        for path in (old, young):
            path.write_text(GOOD)
        hour_ago = time.time() - 3600
        for path in (old, announcement_path(live)):
            os.utime(path, (hour_ago, hour_ago))
        assert remove_stale(tmp_path) == 1
        assert sorted(path.name for path in tmp_path.iterdir()) == ['live.announcement', 'live.sock', 'young.announcement']


@pytest.fixture
def there(start: Callable[[], LinkProcess]) -> LinkProcess:
    """Another process with an adapted publisher."""
    process = start()
    process('open', [{'name': 'camera', 'kind': 'adapted publisher', 'topic': 'image', 'converts': False, 'qos': {'depth': 5}}])
    return process


@pytest.fixture
def deaf(there: LinkProcess, here: Ros, monkeypatch: pytest.MonkeyPatch) -> Deaf:
    """Makes subscriptions here whom no announcement reaches by message."""
    monkeypatch.setattr(AdaptedSubscription, '_on_announcement', lambda self, message: None)
    return lambda: here.subscription(
        here.node('sub'), callback=lambda frame: None, qos=QoSProfile(depth=5), remote=SharedMemoryLinks('sub')
    )


def test_a_consumer_whom_no_message_reaches_finds_the_publisher(
    there: LinkProcess, deaf: Deaf, tmp_path: Path
) -> None:
    subscription = deaf()
    assert eventually(lambda: subscription.statistics().rung == 'shared_memory'), subscription.statistics()
    assert not there('wait', {'camera': {'consumers': 1}})
    there('publish', {'camera': [1]})
    assert eventually(lambda: subscription.statistics().received == 1)
    assert subscription.statistics().conversions == 0
    there('close', ['camera'])
    assert eventually(lambda: not list(tmp_path.glob(f'*{ANNOUNCEMENT_SUFFIX}')))
    assert eventually(lambda: subscription.statistics().rung == 'unmatched')


def test_without_the_file_it_waits_for_the_message(there: LinkProcess, deaf: Deaf, tmp_path: Path) -> None:
    assert eventually(lambda: list(tmp_path.glob(f'*{ANNOUNCEMENT_SUFFIX}')))
    for path in tmp_path.glob(f'*{ANNOUNCEMENT_SUFFIX}'):
        path.unlink()
    subscription = deaf()
    assert eventually(lambda: 'not announced yet' in subscription.statistics().reason), subscription.statistics()
    time.sleep(1.2)
    assert subscription.statistics().rung == 'unmatched'
