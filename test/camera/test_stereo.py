"""Pairs by time: as many as the times allow, in order, whatever the interleaving."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zc_perception.camera.stereo import PairMatcher, Side
from zc_perception.errors import ConfigError

times = st.lists(st.integers(0, 60), max_size=12, unique=True).map(sorted)


def most_pairs(left: list[int], right: list[int], tolerance: int) -> int:
    """The largest number of pairs in order, by trying everything."""
    best = [[0] * (len(right) + 1) for _ in range(len(left) + 1)]
    for i in range(len(left)):
        for j in range(len(right)):
            joined = best[i][j] + (abs(left[i] - right[j]) <= tolerance)
            best[i + 1][j + 1] = max(best[i][j + 1], best[i + 1][j], joined)
    return best[-1][-1]


@st.composite
def arrivals(draw: st.DrawFn) -> tuple[list[int], list[int], list[Side]]:
    left, right = draw(times), draw(times)
    order = draw(st.permutations([Side.LEFT] * len(left) + [Side.RIGHT] * len(right)))
    return left, right, order


@settings(max_examples=300)
@given(arrivals(), st.integers(0, 10))
def test_as_many_pairs_as_the_times_allow_in_whichever_order_they_arrive(
    given_times: tuple[list[int], list[int], list[Side]], tolerance: int
) -> None:
    left, right, order = given_times
    dropped: list[tuple[Side, int]] = []
    matcher: PairMatcher[int] = PairMatcher(tolerance, depth=99, on_drop=lambda side, item: dropped.append((side, item)))
    sides = {Side.LEFT: iter(left), Side.RIGHT: iter(right)}
    pairs = []
    for side in order:
        moment = next(sides[side])
        pair = matcher.offer(side, moment, moment)
        if pair is not None:
            pairs.append(pair)
    assert all(abs(a - b) <= tolerance for a, b in pairs)
    assert all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(pairs)), 'in order, nothing twice'
    assert len(pairs) == most_pairs(left, right, tolerance) == matcher.statistics().pairs
    matcher.clear()
    assert sorted([a for a, _ in pairs] + [item for side, item in dropped if side is Side.LEFT]) == left
    assert sorted([b for _, b in pairs] + [item for side, item in dropped if side is Side.RIGHT]) == right
    assert matcher.statistics().dropped == len(dropped)


@given(st.lists(st.tuples(st.sampled_from(Side), st.integers(0, 100)), max_size=40), st.integers(0, 10), st.integers(1, 3))
def test_every_item_is_paired_once_or_dropped_once_whatever_the_times(events: list[tuple[Side, int]], tolerance: int, depth: int) -> None:
    ended: list[int] = []
    matcher: PairMatcher[int] = PairMatcher(tolerance, depth, on_drop=lambda _, item: ended.append(item))
    for number, (side, moment) in enumerate(events):
        ended += matcher.offer(side, moment, number) or ()
        assert number + 1 - len(ended) <= 2 * depth
    matcher.clear()
    assert sorted(ended) == list(range(len(events)))


def test_a_side_that_is_alone_keeps_only_the_newest() -> None:
    dropped: list[int] = []
    matcher: PairMatcher[int] = PairMatcher(5, depth=2, on_drop=lambda _, item: dropped.append(item))
    for moment in range(0, 100, 10):
        assert matcher.offer(Side.LEFT, moment, moment) is None
    assert dropped == list(range(0, 80, 10))
    assert matcher.offer(Side.RIGHT, 93, 93) == (90, 93)
    statistics = matcher.statistics()
    assert (statistics.pairs, statistics.difference_ns, dict(statistics.alone)) == (1, 3, {Side.LEFT: 9, Side.RIGHT: 0})


def test_time_that_goes_back_is_another_stream() -> None:
    matcher: PairMatcher[str] = PairMatcher(5)
    matcher.offer(Side.LEFT, 1000, 'old')
    assert matcher.offer(Side.LEFT, 10, 'new') is None
    assert matcher.offer(Side.RIGHT, 1001, 'late') is None
    assert matcher.offer(Side.RIGHT, 12, 'first') is None, 'the right side went back as well'
    assert matcher.statistics().restarts == 2
    assert matcher.offer(Side.LEFT, 40, 'l') is None and matcher.offer(Side.RIGHT, 41, 'r') == ('l', 'r')


@pytest.mark.parametrize(('tolerance', 'depth'), [(-1, 1), (0, 0)])
def test_numbers_that_make_no_sense(tolerance: int, depth: int) -> None:
    with pytest.raises(ConfigError, match='stereo'):
        PairMatcher(tolerance, depth)
