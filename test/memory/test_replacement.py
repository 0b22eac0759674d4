"""When an allocator is asked again."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from zc_perception import backoff
from zc_perception.errors import AllocationError
from zc_perception.memory.pool import FIRST_RETRY_S, LAST_RETRY_S, Replacement


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(backoff, 'time', SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_one_thread_replaces_at_a_time(now: list[float]) -> None:
    policy = Replacement()
    assert policy.begin(set()) == []
    assert policy.begin({2, 0}) == [0, 2]
    assert policy.begin({2, 0}) == []
    policy.end(None)
    assert policy.begin({1}) == [1]


def test_failures_make_the_pauses_longer_and_a_success_makes_them_short_again(now: list[float]) -> None:
    policy, pauses = Replacement(), []
    for _ in range(10):
        assert policy.begin({0}) == [0]
        policy.end(AllocationError('no memory'))
        pauses.append(policy.retry.due - now[0])
        now[0] += 0.9 * pauses[-1]
        assert policy.begin({0}) == [], 'too early'
        now[0] += 0.2 * pauses[-1]
    assert pauses[:3] == pytest.approx([FIRST_RETRY_S, 2 * FIRST_RETRY_S, 4 * FIRST_RETRY_S])
    assert max(pauses) == pytest.approx(LAST_RETRY_S)
    assert (policy.failures, policy.last_failure) == (10, 'no memory')
    policy.begin({0})
    policy.end(None)
    assert policy.begin({0}) == [0]
    policy.end(AllocationError('no memory'))
    assert policy.retry.due - now[0] == pytest.approx(FIRST_RETRY_S)
