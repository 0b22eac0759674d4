"""Values of caps fields: read, written, intersected and fixated as GStreamer does it."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zc_perception.errors import FormatError
from zc_perception.pixel.caps_values import (
    INT_MAX,
    INT_MIN,
    Choice,
    Other,
    Range,
    Reader,
    Value,
    fixate_value,
    format_value,
    intersect_values,
)

ints = st.integers(INT_MIN, INT_MAX)
fractions = st.builds(Fraction, st.integers(-1000, 1000), st.integers(1, 1000))
doubles = st.floats(-1e9, 1e9, allow_nan=False)
texts = st.one_of(st.text(st.characters(codec='utf-8'), max_size=12), st.sampled_from(['R8  ', 'NULL', '', 'a"b', 'x\\y', 'true', '1']))
others = st.builds(Other, st.just('GstVideoMultiviewFlagsSet'), st.just('0:ffffffff:/right-view-first/left-flipped'))


def ranges(numbers: st.SearchStrategy[int] | st.SearchStrategy[Fraction] | st.SearchStrategy[float]) -> st.SearchStrategy[Range]:
    return st.tuples(numbers, numbers).filter(lambda ends: ends[0] != ends[1]).map(lambda ends: Range(min(ends), max(ends)))


stepped = st.builds(lambda step, low, count: Range(low * step, (low + count) * step, step), st.integers(2, 16), st.integers(-5, 50),
                    st.integers(1, 50))  # fmt: skip
singles = st.one_of(ints, fractions, doubles, texts, st.booleans(), others, ranges(ints), ranges(fractions), ranges(doubles), stepped)
values = st.one_of(singles, st.lists(singles, min_size=1, max_size=4).map(lambda items: Choice(tuple(items))))
small_stepped = st.builds(lambda step, low, count: Range(low * step, (low + count) * step, step), st.integers(2, 4), st.integers(0, 5),
                          st.integers(1, 8))  # fmt: skip
small = st.one_of(st.integers(0, 40), ranges(st.integers(0, 40)), small_stepped)
small_values = st.one_of(small, st.lists(small, min_size=1, max_size=3).map(lambda items: Choice(tuple(items))))


def read(text: str) -> Value:
    reader = Reader(text)
    value = reader.value()
    assert reader.at_end()
    return value


def members(value: Value) -> set[int]:
    """The integers in *value*, one of ``small_values``, counted by hand."""
    if isinstance(value, Choice):
        return {number for item in value.items for number in members(item)}
    if isinstance(value, Range):
        return {n for n in range(64) if value.low <= n <= value.high and n % value.step == 0}
    assert isinstance(value, int)
    return {value}


@given(values)
def test_what_is_written_is_read_again(value: Value) -> None:
    again = read(format_value(value))
    assert again == value and type(again) is type(value)
    assert format_value(again) == format_value(value)


@given(st.one_of(st.text(max_size=20), st.text('(){}[],"\\/.0129aft-=; ', max_size=24)))
def test_any_text_is_a_value_or_refused(text: str) -> None:
    reader = Reader(text)
    try:
        value = reader.value()
    except FormatError:
        return
    assert read(format_value(value)) == value


@pytest.mark.parametrize(
    ('text', 'value'),
    [
        ('1920', 1920),
        ('(int)1920', 1920),
        ('( i )-5', -5),
        ('true', True),
        ('(boolean)no', False),
        ('24/1', Fraction(24)),
        ('(fraction)50/2', Fraction(25)),
        ('(fraction)30', Fraction(30)),
        ('1.5', 1.5),
        ('(double)2', 2.0),
        ('NV12:0x0100000000000001', 'NV12:0x0100000000000001'),
        ('(string)1', '1'),
        (r'"R8\ \ "', 'R8  '),
        (r'(string)"a\"b\\c"', 'a"b\\c'),
        (r'"\303\251"', 'é'),
        ('2:3:5:1', '2:3:5:1'),
        ('[ 16, 16384 ]', Range(16, 16384)),
        ('(int)[ 16, 64, 16 ]', Range(16, 64, 16)),
        ('[0/1,2147483647/1]', Range(Fraction(0), Fraction(INT_MAX))),
        ('{ (string)YU12, (string)NV12 }', Choice(('YU12', 'NV12'))),
        ('(string){ YU12, NV12 }', Choice(('YU12', 'NV12'))),
        ('(fraction){ 30/1, [ 10/1, 20/1 ] }', Choice((Fraction(30), Range(Fraction(10), Fraction(20))))),
        ('{ 1, 1 }', Choice((1,))),
        (
            '(GstVideoMultiviewFlagsSet)0:ffffffff:/right-view-first/left-flipped',
            Other('GstVideoMultiviewFlagsSet', '0:ffffffff:/right-view-first/left-flipped'),
        ),
    ],
)
def test_spellings_that_gstreamer_has(text: str, value: Value) -> None:
    found = read(text)
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ('text', 'why'),
    [
        ('{ }', 'a value is expected'),
        ('{ 1', "'}' is expected"),
        ('{ 1, { 2 } }', 'a value is expected'),
        ('[ 5, 5 ]', 'the first end must be below the second'),
        ('[ 10, 2 ]', 'the first end must be below'),
        ('[ 1, 20, 2 ]', 'multiples of the step'),
        ('[ 1, 20, 0 ]', 'multiples of the step'),
        ('[ 0/1, 20 ]', 'both ends must be'),
        ('[ NV12, NV16 ]', 'a range is one of numbers'),
        ('[ true, false ]', 'a range is one of numbers'),
        ('3000000000', 'is no int that GStreamer can hold'),
        ('1/0', 'is no fraction'),
        ('(int)x', "'x' is no int"),
        ('(boolean)maybe', 'is no boolean'),
        ('(double)1e999', 'is no double'),
        ('(a b)5', 'is no type'),
        (r'"\377"', 'is not UTF-8'),
        ('"open', 'a value is expected'),
        ("'x'", 'a value is expected'),
        ('', 'a value is expected'),
    ],
)
def test_what_is_refused_says_where_and_why(text: str, why: str) -> None:
    with pytest.raises(FormatError, match=why):
        read(text)


@given(small_values, small_values)
def test_an_intersection_is_exactly_what_both_have(first: Value, second: Value) -> None:
    both = intersect_values(first, second)
    assert (set() if both is None else members(both)) == members(first) & members(second)


@given(values, values)
def test_an_intersection_commutes_but_for_the_order(first: Value, second: Value) -> None:
    one, other = intersect_values(first, second), intersect_values(second, first)
    as_set = [set(map(format_value, v.items)) if isinstance(v, Choice) else v for v in (one, other)]
    assert as_set[0] == as_set[1]


@given(values)
def test_a_value_intersected_with_itself_stays_allowed(value: Value) -> None:
    assert intersect_values(value, value) is not None


def test_kinds_are_not_mixed() -> None:
    assert intersect_values(1, True) is None
    assert intersect_values(1, Fraction(1)) is None
    assert intersect_values(Range(0, 5), Fraction(3)) is None
    assert intersect_values(Range(0, 5), Range(Fraction(0), Fraction(5))) is None
    assert intersect_values(Other('a', 'x'), Other('b', 'x')) is None
    assert intersect_values(Other('a', 'x'), 'x') is None


def test_the_first_s_order_is_kept() -> None:
    assert intersect_values(Choice(('A', 'B', 'C')), Choice(('C', 'B'))) == Choice(('B', 'C'))


@given(small_values, st.one_of(st.none(), st.integers(-5, 50)))
def test_fixation_chooses_an_allowed_value_and_the_nearest(value: Value, wish: int | None) -> None:
    chosen = fixate_value(value, wish)
    assert isinstance(chosen, int) and chosen in members(value)
    if wish is not None:
        assert abs(chosen - wish) == min(abs(n - wish) for n in members(value))


@pytest.mark.parametrize(
    ('value', 'wish', 'chosen'),
    [
        (Range(16, 160), None, 16),
        (Choice(('B', 'A')), None, 'B'),
        (Choice((5, Range(1, 2))), None, 5),
        (Range(Fraction(0), Fraction(60)), Fraction(30000, 1001), Fraction(30000, 1001)),
        (Choice((Fraction(60), Fraction(30))), 29, Fraction(30)),
        ('progressive', None, 'progressive'),
        (Choice(('A', 'B')), 3, 'A'),
    ],
)
def test_fixation(value: Value, wish: int | None, chosen: Value) -> None:
    assert fixate_value(value, wish) == chosen
