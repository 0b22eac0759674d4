"""The nodes' use of the links: what is said, and to whom frames may go."""

from __future__ import annotations

import grp
import os

import pytest

from zc_perception.errors import ConfigError
from zc_perception.nodes import frame_links
from zc_perception.nodes.frame_links import _Report, group_ids


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


def test_groups_are_given_by_name_or_number() -> None:
    own = grp.getgrgid(os.getgid())
    assert group_ids([own.gr_name, str(own.gr_gid), '0']) == [own.gr_gid, own.gr_gid, 0]


def test_a_group_that_does_not_exist_is_named() -> None:
    with pytest.raises(ConfigError, match="shared_memory_groups': there is no group 'no-such-group'; see /etc/group"):
        group_ids(['no-such-group'])
