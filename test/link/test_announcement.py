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
The announcement on <topic>/_zc, where strangers may write, and the file beside the socket.

The file is for consumers that no message reaches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
import errno
import json
import os
from pathlib import Path
import stat
import time
from typing import Any

from descriptors import open_descriptors
from hypothesis import given, HealthCheck, settings
from hypothesis import strategies as st
from link_process import LinkProcess
from link_ros import Ros
import pytest
from rclpy.qos import QoSProfile
from waiting import eventually

from zc_perception.link.announcement import (
    Announcement,
    host_id,
    read_announcements,
    remove_announcement,
    VERSION,
    write_announcement,
)
from zc_perception.link.endpoints.remote_links import SharedMemoryLinks
from zc_perception.link.endpoints.subscription import AdaptedSubscription
from zc_perception.link.shared_memory.socket_folder import (
    announcement_path,
    ANNOUNCEMENT_SUFFIX,
    listen,
    remove_stale,
    STARTING,
)

GOOD = Announcement(
    'p1', 'h1', '/run/zc/socket', 640, 360, ('NV12', 'NV12:0x0300000000000010'), 'memfd'
)
# Surrogates can't be in a ROS string.
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
json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)


@given(announcements)
def test_announcements_round_trip(announcement: Announcement) -> None:
    text = announcement.to_json()
    assert '\n' not in text
    assert Announcement.from_json(text) == announcement


@given(st.sampled_from(sorted(asdict(GOOD))), json_values)
def test_any_value_of_a_key_is_an_announcement_or_none(key: str, value: Any) -> None:
    announcement = Announcement.from_json(json.dumps({**asdict(GOOD), key: value}))
    if announcement is not None:
        assert (
            isinstance(announcement.width, int)
            and isinstance(announcement.height, int)
            and isinstance(announcement.socket, str)
        )
        assert all(isinstance(text, str) for text in announcement.formats)


@pytest.mark.parametrize(
    'text',
    [
        '[' * 100_000,
        '{"version": 1, "width": ' + '9' * 5000 + '}',
        json.dumps({**asdict(GOOD), 'width': float('inf')}),
        json.dumps({**asdict(GOOD), 'height': float('nan')}),
        json.dumps({**asdict(GOOD), 'width': 0}),
        json.dumps({**asdict(GOOD), 'height': -360}),
        json.dumps({**asdict(GOOD), 'width': '640'}),
        json.dumps({**asdict(GOOD), 'formats': 'NV12'}),
        json.dumps({**asdict(GOOD), 'formats': {'NV12': 1}}),
        json.dumps({**asdict(GOOD), 'formats': None}),
        json.dumps({**asdict(GOOD), 'socket': None}),
        *(
            json.dumps({**asdict(GOOD), 'generation': generation})
            for generation in (-1, 1.5, '7', True, None)
        ),
        '',
        'null',
        '5',
        '[]',
        '{}',
    ],
    ids=lambda text: text[-30:],
)
def test_what_is_none_is_none(text: str) -> None:
    assert Announcement.from_json(text) is None


OPTIONAL = {'generation', 'possible_formats', 'possible_heaps', 'possible_sizes'}


@pytest.mark.parametrize('key', sorted({*asdict(GOOD)} - OPTIONAL))
def test_every_key_but_the_optional_ones_is_needed(key: str) -> None:
    values = asdict(GOOD)
    del values[key]
    assert Announcement.from_json(json.dumps(values)) is None


def test_another_version_s_announcement_is_none_and_keys_of_a_later_minor_one_are_ignored() -> (
    None
):
    assert Announcement.from_json(json.dumps({**asdict(GOOD), 'version': VERSION + 1})) is None
    assert Announcement.from_json(json.dumps({**asdict(GOOD), 'colour': 'red'})) == GOOD


def test_the_json_has_the_pinned_keys() -> None:
    values = json.loads(GOOD.to_json())
    assert set(values) == {
        'version',
        'publisher_id',
        'host_id',
        'socket',
        'width',
        'height',
        'formats',
        'heap',
        'generation',
    }
    assert values['version'] == 1 and values['formats'] == ['NV12', 'NV12:0x0300000000000010']


def test_the_host_stays_the_same_when_nothing_can_be_opened_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = host_id()

    def none_left(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr('io.open', none_left)
    monkeypatch.setattr('builtins.open', none_left)
    assert host_id() == here


TOPIC, DOMAIN = '/front/image_raw', 7
Deaf = Callable[[], AdaptedSubscription]


def made_by(socket: Path) -> Announcement:
    return Announcement(socket.stem, host_id(), str(socket), 64, 48, ('NV12',), 'memfd')


def read(folder: Path, topic: str = TOPIC, domain: int = DOMAIN) -> list[Announcement]:
    return list(read_announcements(folder, topic, domain))


def test_what_is_written_is_read_by_topic_and_domain_while_its_publisher_listens(
    tmp_path: Path,
) -> None:
    path = tmp_path / 'a.sock'
    with listen(path):
        write_announcement(made_by(path), TOPIC, DOMAIN)
        assert read(tmp_path) == [made_by(path)]
        assert read(tmp_path, '/rear/image_raw') == read(tmp_path, domain=8) == []
        later = replace(made_by(path), width=128)
        write_announcement(later, TOPIC, DOMAIN)
        assert read(tmp_path) == [later]
        assert sorted(entry.name for entry in tmp_path.iterdir()) == [
            'a.announcement',
            'a.sock',
        ], 'nothing is left of writing'
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


def test_a_folder_that_takes_no_file_is_told_and_nothing_is_left_in_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_announcement(made_by(tmp_path / 'gone' / 'a.sock'), TOPIC, DOMAIN)
    path = tmp_path / 'a.sock'
    with listen(path):
        announcement_path(path).mkdir()
        with pytest.raises(IsADirectoryError):
            write_announcement(made_by(path), TOPIC, DOMAIN)
        assert read(tmp_path) == [] and not list(tmp_path.glob(f'{STARTING}*'))


GOOD_FILE = json.dumps(
    {'topic': TOPIC, 'domain': DOMAIN, 'announcement': made_by(Path('/a.sock')).to_json()}
)


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
            write_announcement(made_by(dead), TOPIC, DOMAIN)
        write_announcement(made_by(live), TOPIC, DOMAIN)
        old, young = (announcement_path(tmp_path / name) for name in ('old', 'young'))
        for path in (old, young):
            path.write_text(GOOD_FILE)
        hour_ago = time.time() - 3600
        for path in (old, announcement_path(live)):
            os.utime(path, (hour_ago, hour_ago))
        assert remove_stale(tmp_path) == 1
        assert sorted(path.name for path in tmp_path.iterdir()) == [
            'live.announcement',
            'live.sock',
            'young.announcement',
        ]


@pytest.fixture
def there(start: Callable[[], LinkProcess]) -> LinkProcess:
    """Another process with an adapted publisher."""
    process = start()
    process(
        'open',
        [
            {
                'name': 'camera',
                'kind': 'adapted publisher',
                'topic': 'image',
                'converts': False,
                'qos': {'depth': 5},
            }
        ],
    )
    return process


@pytest.fixture
def deaf(there: LinkProcess, here: Ros, monkeypatch: pytest.MonkeyPatch) -> Deaf:
    """Make subscriptions here that no announcement reaches by message."""
    monkeypatch.setattr(AdaptedSubscription, '_on_announcement', lambda self, message: None)
    return lambda: here.subscription(
        here.node('sub'),
        callback=lambda frame: None,
        qos=QoSProfile(depth=5),
        remote=SharedMemoryLinks('sub'),
    )


def test_a_consumer_whom_no_message_reaches_finds_the_publisher(
    there: LinkProcess, deaf: Deaf, tmp_path: Path
) -> None:
    subscription = deaf()
    assert eventually(lambda: subscription.statistics().rung == 'shared_memory'), (
        subscription.statistics()
    )
    assert not there('wait', {'camera': {'consumers': 1}})
    there('publish', {'camera': [1]})
    assert eventually(lambda: subscription.statistics().received == 1)
    assert subscription.statistics().conversions == 0
    there('close', ['camera'])
    assert eventually(lambda: not list(tmp_path.glob(f'*{ANNOUNCEMENT_SUFFIX}')))
    assert eventually(lambda: subscription.statistics().rung == 'unmatched')
