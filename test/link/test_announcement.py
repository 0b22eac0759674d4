"""The announcement on <topic>/_zc: strangers may write to that topic."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zc_perception.link.announcement import VERSION, Announcement, host_id, new_publisher_id

GOOD = Announcement('p1', 'h1', '/run/zc/socket', 640, 360, ('NV12', 'NV12:0x0300000000000010'), 'memfd')
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


@given(st.text(max_size=40) | json_values.map(json.dumps))
def test_any_text_is_an_announcement_or_none(text: str) -> None:
    assert Announcement.from_json(text) is None, 'no drawn text has all the keys'


@given(st.sampled_from(sorted(asdict(GOOD))), json_values)
def test_any_value_of_a_key_is_an_announcement_or_none(key: str, value: Any) -> None:
    announcement = Announcement.from_json(json.dumps({**asdict(GOOD), key: value}))
    if announcement is not None:
        assert isinstance(announcement.width, int) and isinstance(announcement.height, int) and isinstance(announcement.socket, str)
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
        '',
        'null',
        '5',
        '[]',
        '{}',
    ],
    ids=lambda text: text[:24],
)
def test_what_is_none_is_none(text: str) -> None:
    assert Announcement.from_json(text) is None


@pytest.mark.parametrize('key', sorted({*asdict(GOOD)} - {'generation'}))
def test_every_key_of_the_first_version_is_needed(key: str) -> None:
    values = asdict(GOOD)
    del values[key]
    assert Announcement.from_json(json.dumps(values)) is None


def test_who_says_no_generation_has_the_first_one() -> None:
    values = asdict(replace(GOOD, generation=7))
    assert Announcement.from_json(json.dumps(values)) == replace(GOOD, generation=7)
    del values['generation']
    assert Announcement.from_json(json.dumps(values)) == GOOD and GOOD.generation == 0


@pytest.mark.parametrize('generation', [-1, 1.5, '7', True, None])
def test_a_generation_that_is_no_number_makes_no_announcement(generation: object) -> None:
    assert Announcement.from_json(json.dumps({**asdict(GOOD), 'generation': generation})) is None


def test_another_version_s_announcement_is_none_and_keys_of_a_later_minor_one_are_ignored() -> None:
    assert Announcement.from_json(json.dumps({**asdict(GOOD), 'version': VERSION + 1})) is None
    assert Announcement.from_json(json.dumps({**asdict(GOOD), 'colour': 'red'})) == GOOD


def test_the_json_has_the_pinned_keys() -> None:
    values = json.loads(GOOD.to_json())
    assert set(values) == {'version', 'publisher_id', 'host_id', 'socket', 'width', 'height', 'formats', 'heap', 'generation'}
    assert values['version'] == 1 and values['formats'] == ['NV12', 'NV12:0x0300000000000010']


def test_publishers_differ_and_the_host_stays() -> None:
    assert new_publisher_id() != new_publisher_id()
    assert host_id() == host_id() != ''


def test_the_host_stays_the_same_when_nothing_can_be_opened_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    here = host_id()

    def none_left(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr('io.open', none_left)
    monkeypatch.setattr('builtins.open', none_left)
    assert host_id() == here
