"""The nodes' use of the links: what is said, and to whom frames may go."""

from __future__ import annotations

import grp
import os
import pwd

import pytest

from zc_perception.errors import ConfigError
from zc_perception.nodes import frame_links
from zc_perception.nodes.frame_links import _Report, group_ids, user_ids


def test_a_sentence_is_said_once_a_minute_and_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    now, said = [0.0], []
    monkeypatch.setattr(frame_links.time, 'monotonic', lambda: now[0])
    report = _Report(said.append)
    for _ in range(5):
        report('refused')
    report('connected')
    assert said == ['refused', 'connected']
    now[0] = 61.0
    report('refused')
    assert said[2:] == ['refused']
    for number in range(500):
        report(f'consumer {number}')
    assert len(report._said) <= 64


def test_groups_and_users_are_given_by_name_or_number() -> None:
    group, user = grp.getgrgid(os.getgid()), pwd.getpwuid(os.getuid())
    assert group_ids(group.gr_name) == group_ids(str(group.gr_gid)) == [group.gr_gid]
    assert group_ids('') == []
    assert user_ids([user.pw_name, str(user.pw_uid)]) == [user.pw_uid, user.pw_uid]


def test_who_does_not_exist_is_named() -> None:
    with pytest.raises(ConfigError, match="shared_memory_group': there is no group 'no-such-group'; see /etc/group"):
        group_ids('no-such-group')
    with pytest.raises(ConfigError, match="shared_memory_users': there is no user 'no-such-user'; see /etc/passwd"):
        user_ids(['no-such-user'])
