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

"""How the nodes use the links: their reports, and which users may get frames."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
import grp
import os
import pwd
from types import SimpleNamespace
from typing import Any, cast

import pytest
import rclpy
from rclpy.qos import QoSProfile

from zc_perception.errors import ConfigError
from zc_perception.frame import Frame
from zc_perception.link.endpoints import (
    AdaptedPublisher,
    AdaptedSubscription,
    SubscriptionStatistics,
)
from zc_perception.link.endpoints.remote_links import OTHER_HOST
from zc_perception.link.image_conversion import frame_adapter
from zc_perception.link.shared_memory.connection import ConsumerStatistics
from zc_perception.memory.ledger import CopyLedger
from zc_perception.nodes.frame_links import FrameServer, group_ids, subscription_status, user_ids
from zc_perception.nodes.params.node_parameters import NodeParameters
from zc_perception.observe import metrics
from zc_perception.observe.diagnostics import Level
from zc_perception.observe.metrics import RecentCount


def test_groups_and_users_are_given_by_name_or_number() -> None:
    group, user = grp.getgrgid(os.getgid()), pwd.getpwuid(os.getuid())
    assert group_ids(group.gr_name) == group_ids(str(group.gr_gid)) == [group.gr_gid]
    assert group_ids('') == []
    assert user_ids([user.pw_name, str(user.pw_uid)]) == [user.pw_uid, user.pw_uid]


def test_who_does_not_exist_is_named() -> None:
    with pytest.raises(
        ConfigError,
        match="shared_memory_group': there is no group 'no-such-group'; see /etc/group",
    ):
        group_ids('no-such-group')
    with pytest.raises(
        ConfigError, match="shared_memory_users': there is no user 'no-such-user'; see /etc/passwd"
    ):
        user_ids(['no-such-user'])


class ServedTopic:
    """A publisher and its server, as diagnostics see them; a test sets the counts."""

    def __init__(self, context: rclpy.Context) -> None:
        self.node = rclpy.create_node('capture', context=context)
        values = {'shared_memory': True, 'shared_memory_group': '', 'quarantine': 1.0}
        adapter = frame_adapter('rgb8', CopyLedger(), holder='capture')
        self.publisher = AdaptedPublisher(self.node, adapter, 'image_raw', QoSProfile(depth=1))
        self.links = FrameServer(self.node, cast(NodeParameters, values), self.publisher)
        self.counted: dict[str, Any] = {}
        assert self.links.server is not None
        real = self.links.server.statistics
        self.links.server.statistics = lambda: replace(real(), **self.counted)  # type: ignore

    def close(self) -> None:
        self.publisher.destroy()
        self.node.destroy_node()


@pytest.fixture
def served(context: rclpy.Context) -> Iterator[ServedTopic]:
    topic = ServedTopic(context)
    yield topic
    topic.close()


@pytest.mark.parametrize(
    ('counted', 'words', 'advice'),
    [
        (
            {'refused': {'not_allowed': 2}},
            '2 time(s) a consumer was refused lately: not_allowed',
            "'shared_memory_group'",
        ),
        ({'refused': {'constraints': 1}}, 'refused lately: constraints', 'the message names'),
        (
            {'protocol_errors': {'state': 1, 'value': 2}},
            '3 time(s) a peer broke a rule',
            'same version',
        ),
        ({'internal_errors': 1, 'last_internal_error': 'KeyError: 7'}, 'KeyError: 7', 'report'),
    ],
)
def test_trouble_with_consumers_is_a_warning_for_a_while(
    served: ServedTopic,
    counted: dict[str, Any],
    words: str,
    advice: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert served.links.status().level is Level.OK
    served.counted = counted
    status = served.links.status()
    assert status.level is Level.WARN and words in status.message and advice in status.advice
    monkeypatch.setattr(metrics, 'RECENT_S', 0.0)
    assert served.links.status().level is Level.OK, 'what was is not said for ever'


def test_consumers_are_named_with_their_rung_and_what_they_lost(
    served: ServedTopic, make_frame: Callable[..., Frame]
) -> None:
    remote = ConsumerStatistics(
        'overlay', 'x', 42, 0, 2, 2, 1, held=1, pending=0, sent=9, dropped=3, trusted_writer=True
    )
    narrow = replace(remote, name='tracker elsewhere', asked=3, trusted_writer=False)
    served.counted = {'consumers': (remote, narrow)}
    adapter = frame_adapter('rgb8', CopyLedger(), holder='tracker')
    subscription = AdaptedSubscription(
        served.node, adapter, 'image_raw', QoSProfile(depth=1), holder='tracker'
    )
    for _ in range(3):
        with make_frame() as frame:
            served.publisher.publish(frame)
    status = served.links.status()
    assert (
        status.values['consumer tracker']
        == 'in_process, sent 3, dropped 2, refused by its quota 0, holds 0 of 1'
    )
    assert (
        status.values['consumer overlay']
        == 'shared_memory, pid 42, sent 9, dropped 3, holds 1 of 2'
    )
    assert (
        status.values['consumer tracker elsewhere']
        == 'shared_memory, pid 42, sent 9, dropped 3, holds 1 of 2, asked for 3'
    )
    assert (
        status.level is Level.OK
        and status.message == 'overlay can write to the buffers; this heap cannot prevent it'
    )
    subscription.destroy()


def test_an_announcement_that_can_not_be_written_is_a_warning(served: ServedTopic) -> None:
    served.publisher.announcer.unannounced = 'No space left on device'
    status = served.links.status()
    assert status.level is Level.WARN and 'free room in' in status.advice
    assert status.message == (
        "the announcement beside the socket can't be written: No space left on device"
    )


def _subscription(
    rung: str, reason: str, errors: int = 0, *, window: int = 0, asked: int = 0
) -> Any:
    return SimpleNamespace(
        statistics=lambda: SubscriptionStatistics(
            rung, reason, 5, 1, 2, errors, window=window, asked=asked
        )
    )


@pytest.mark.parametrize(
    ('rung', 'reason', 'level', 'advice'),
    [
        ('shared_memory', 'publisher 1a2b is in another process of this host', Level.OK, ''),
        (
            'ros_message',
            '/driver is a plain publisher: stop it',
            Level.WARN,
            'each frame is copied',
        ),
        ('ros_message', f'publisher 1a2b: {OTHER_HOST}', Level.OK, ''),
        ('unmatched', 'no publisher', Level.WARN, 'start the camera'),
        (
            'unmatched',
            "connecting to publisher 1a2b: no link to it; raise the limit ('ulimit -n')",
            Level.WARN,
            'if this lasts',
        ),
        (
            'refused',
            'copy_free is required, but ...',
            Level.ERROR,
            "set 'copy_free' to 'preferred'",
        ),
    ],
)
def test_each_rung_has_its_level_and_advice(
    rung: str, reason: str, level: Level, advice: str
) -> None:
    status = subscription_status(_subscription(rung, reason), RecentCount())
    assert status.level is level and status.message == f'{rung}: {reason}'
    assert advice in status.advice and bool(status.advice) is (level is not Level.OK)
    assert status.values['conversions'] == 2 and status.values['dropped_newest_wins'] == 1


def test_messages_that_can_not_be_converted_are_a_warning_while_they_come() -> None:
    errors = RecentCount()
    assert subscription_status(_subscription('in_process', 'x', 1), errors).level is Level.OK, (
        'from before'
    )
    status = subscription_status(_subscription('in_process', 'x', 4), errors)
    assert (
        status.level is Level.WARN
        and status.message.startswith('3 message(s) could not be converted lately')
        and status.advice
    )


@pytest.mark.parametrize('rung', ['shared_memory', 'in_process'])
def test_a_window_below_what_was_asked_for_is_a_warning_as_long_as_it_is_so(rung: str) -> None:
    status = subscription_status(_subscription(rung, 'x', window=2, asked=3), RecentCount())
    assert (
        status.level is Level.WARN
        and 'may hold 2 frame(s) at a time, 3 were asked for' in status.message
    )
    assert "'slots'" in status.advice and 'end other consumers' in status.advice
    assert (status.values['window'], status.values['window_asked'], status.values['reason']) == (
        2,
        3,
        'x',
    )
    status = subscription_status(_subscription(rung, 'x', window=3, asked=3), RecentCount())
    assert (status.level, status.advice, status.values['window']) == (Level.OK, '', 3)
    assert 'window' not in subscription_status(_subscription(rung, 'x'), RecentCount()).values, (
        'nobody elsewhere grants anything'
    )
