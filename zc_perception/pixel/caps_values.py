"""Values of GStreamer caps fields: read, written and intersected as ``gst_caps_from_string()`` and its kin do.

A value is a number, a fraction, a string, a boolean, a value of a type that we only pass on (:class:`Other`), a :class:`Range` of
numbers, or a :class:`Choice` of such values. Nothing here depends on GStreamer being there.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias, TypeGuard

from zc_perception.errors import FormatError

INT_MIN, INT_MAX = -(1 << 31), (1 << 31) - 1
Number: TypeAlias = int | float | Fraction


@dataclass(frozen=True)
class Range:
    """``[ low, high ]``, both included and of one kind; *step* is an integer range's, whose values are multiples of it."""

    low: Number
    high: Number
    step: int = 1

    def __post_init__(self) -> None:
        if type(self.low) is not type(self.high) or isinstance(self.low, bool):
            raise FormatError(f'caps range [ {self.low}, {self.high} ]: both ends must be integers, fractions or doubles')
        if not self.low < self.high:
            raise FormatError(f'caps range [ {self.low}, {self.high} ]: the first end must be below the second; write one value alone')
        if self.step < 1 or (self.step > 1 and not (isinstance(self.low, int) and self.low % self.step == self.high % self.step == 0)):
            raise FormatError(f'caps range [ {self.low}, {self.high}, {self.step} ]: both ends must be integers and multiples of the step')

    def __contains__(self, value: object) -> bool:
        if type(value) is not type(self.low):
            return False
        assert isinstance(value, (int, float, Fraction))
        return self.low <= value <= self.high and (self.step == 1 or value % self.step == 0)


@dataclass(frozen=True)
class Other:
    """A value of a type that means nothing to us, such as ``GstVideoMultiviewFlagsSet``: its text is kept."""

    type: str
    text: str


Scalar: TypeAlias = bool | int | float | Fraction | str | Other
Single: TypeAlias = Scalar | Range


@dataclass(frozen=True)
class Choice:
    """``{ a, b }``: one of these, the preferred first. Repetitions go."""

    items: tuple[Single, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, 'items', tuple(_unique(self.items)))
        if not self.items:
            raise FormatError('caps list { } is empty: no value would fit')


Value: TypeAlias = Single | Choice


def _unique(items: Iterable[Single]) -> Iterator[Single]:
    seen = set()
    for item in items:
        if (key := (_kind(item), item)) not in seen:  # True is no 1, and 1 no Fraction(1)
            seen.add(key)
            yield item


def is_fixed(value: Value) -> bool:
    """Whether there is nothing left to choose."""
    return not isinstance(value, (Range, Choice))


# Intersection and choice.


def intersect_values(first: Value, second: Value) -> Value | None:
    """The values in both, in *first*'s order of preference; ``None`` when there are none."""
    ours = first.items if isinstance(first, Choice) else (first,)
    theirs = second.items if isinstance(second, Choice) else (second,)
    found = tuple(_unique(both for a in ours for b in theirs if (both := _intersect_singles(a, b)) is not None))
    if len(found) > 1:
        return Choice(found)
    return found[0] if found else None


def _intersect_singles(first: Single, second: Single) -> Single | None:
    if isinstance(first, Range) and isinstance(second, Range):
        return _intersect_ranges(first, second)
    if isinstance(first, Range):
        return second if second in first else None
    if isinstance(second, Range):
        return first if first in second else None
    return first if type(first) is type(second) and first == second else None


def _intersect_ranges(first: Range, second: Range) -> Single | None:
    if type(first.low) is not type(second.low):
        return None
    step = math.lcm(first.step, second.step)
    low, high = max(first.low, second.low), min(first.high, second.high)
    if step > 1 and isinstance(low, int) and isinstance(high, int):
        low, high = -(-low // step) * step, high // step * step
    if low > high:
        return None
    return low if low == high else Range(low, high, step)


def fixate_value(value: Value, wish: Number | None = None) -> Scalar:
    """One of the values: the nearest to *wish*, else the first of a list and the least of a range, as ``gst_caps_fixate()``."""
    if isinstance(value, Choice):
        if wish is None:
            return fixate_value(value.items[0])
        numbers = [number for item in value.items if _is_number(number := fixate_value(item, wish))]
        return min(numbers, key=lambda number: abs(Fraction(number) - Fraction(wish))) if numbers else fixate_value(value.items[0])
    if not isinstance(value, Range):
        return value
    if wish is None or wish <= value.low:
        return value.low
    if wish >= value.high:
        return value.high
    if isinstance(value.low, int):
        return round(wish / value.step) * value.step
    return Fraction(wish) if isinstance(value.low, Fraction) else float(wish)


def _is_number(value: Scalar) -> TypeGuard[Number]:
    return isinstance(value, (int, float, Fraction)) and not isinstance(value, bool)


# Reading and writing.

_TYPES = {'int': 'int', 'i': 'int', 'gint': 'int', 'string': 'string', 's': 'string', 'str': 'string', 'gchararray': 'string',
          'fraction': 'fraction', 'GstFraction': 'fraction', 'boolean': 'boolean', 'bool': 'boolean', 'b': 'boolean',
          'gboolean': 'boolean', 'double': 'double', 'd': 'double', 'gdouble': 'double', 'float': 'double', 'f': 'double'}  # fmt: skip
_PLAIN = r'[A-Za-z0-9_\-+/:.]+'
_TOKEN = re.compile(
    rf'\s*(?:(?P<mark>[\[\]{{}},=;])|\((?P<type>[^()]*)\)|"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<plain>{_PLAIN}))', re.ASCII | re.DOTALL
)
_INT = re.compile('[-+]?[0-9]+', re.ASCII)
_DOUBLE = re.compile('[-+]?[0-9]+(?:[.][0-9]*(?:[eE][-+]?[0-9]+)?|[eE][-+]?[0-9]+)', re.ASCII)
_FRACTION = re.compile('([-+]?[0-9]+)/([0-9]+)', re.ASCII)
_ESCAPE = re.compile(rb'\\([0-3][0-7]{2})|\\(.)', re.DOTALL)
_BOOLEANS = {'true': True, 'yes': True, 't': True, 'false': False, 'no': False, 'f': False}


class Reader:
    """Reads values from a caps string, one token after the other."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0

    def fail(self, why: str) -> FormatError:
        """The error for what stands at the present position."""
        return FormatError(f"caps '{self.text}', at character {self.position + 1}: {why}")

    def at_end(self) -> bool:
        """Whether nothing but blanks is left."""
        return not self.text[self.position :].strip(' \t\n\r\f\v')

    def take(self, mark: str) -> bool:
        """Pass over the punctuation *mark* if it comes next."""
        match = _TOKEN.match(self.text, self.position)
        if match is None or match['mark'] != mark:
            return False
        self.position = match.end()
        return True

    def expect(self, mark: str) -> None:
        """Pass over *mark*.

        :raises FormatError: something else comes next.
        """
        if not self.take(mark):
            raise self.fail(f"'{mark}' is expected")

    def word(self, what: str) -> str:
        """The unquoted word that comes next."""
        match = _TOKEN.match(self.text, self.position)
        if match is None or match['plain'] is None:
            raise self.fail(f'{what} is expected')
        self.position = match.end()
        return match['plain']

    def features(self) -> tuple[str, ...]:
        """The caps features in brackets that come next, if any."""
        match = _TOKEN.match(self.text, self.position)
        if match is None or match['type'] is None:
            return ()
        self.position = match.end()
        names = tuple(name.strip() for name in match['type'].split(','))
        if not all(re.fullmatch('[A-Za-z]+:[A-Za-z0-9_]+', name, re.ASCII) for name in names):
            raise self.fail(f"'({match['type']})' are no caps features, such as (memory:DMABuf)")
        return names

    def value(self) -> Value:
        """A whole value: ``(type)`` if any, then a list, a range or a single one."""
        kind = self._type()
        if self.take('{'):
            items = [self._single(kind)]
            while self.take(','):
                items.append(self._single(kind))
            self.expect('}')
            return Choice(tuple(items))
        return self._single(kind)

    def _type(self) -> str | None:
        match = _TOKEN.match(self.text, self.position)
        if match is None or match['type'] is None:
            return None
        self.position = match.end()
        name = match['type'].strip()
        if not re.fullmatch('[A-Za-z][A-Za-z0-9_]*', name, re.ASCII):
            raise self.fail(f"'({name})' is no type")
        return _TYPES.get(name, name)

    def _single(self, outer: str | None) -> Single:
        kind = self._type() or outer
        if not self.take('['):
            return self._scalar(kind)
        low = self._scalar(kind)
        self.expect(',')
        high = self._scalar(kind)
        step = self._scalar('int') if self.take(',') else 1
        self.expect(']')
        if not (_is_number(low) and _is_number(high)):
            raise self.fail('a range is one of numbers')
        assert isinstance(low, (int, float, Fraction)) and isinstance(high, (int, float, Fraction)) and isinstance(step, int)
        return Range(low, high, step)

    def _scalar(self, kind: str | None) -> Scalar:
        match = _TOKEN.match(self.text, self.position)
        if match is None or (match['plain'] is None and match['quoted'] is None):
            raise self.fail('a value is expected')
        start, self.position = self.position, match.end()
        try:
            text = match['plain'] if match['quoted'] is None else _unquote(match['quoted'])
            return _typed(kind or ('string' if match['quoted'] is not None else _guess(text)), text)
        except FormatError as error:
            self.position = start
            raise self.fail(str(error)) from None


def _guess(text: str) -> str:
    """The type that GStreamer takes an unquoted value without one for."""
    for pattern, kind in ((_INT, 'int'), (_DOUBLE, 'double'), (_FRACTION, 'fraction')):
        if pattern.fullmatch(text):
            return kind
    return 'boolean' if text in ('true', 'false') else 'string'


def _typed(kind: str, text: str) -> Scalar:
    if kind == 'int' and _INT.fullmatch(text) and len(text) < 12 and INT_MIN <= int(text) <= INT_MAX:
        return int(text)
    if kind == 'double' and (_DOUBLE.fullmatch(text) or _INT.fullmatch(text)) and math.isfinite(float(text)):
        return float(text)
    if kind == 'boolean' and text.lower() in _BOOLEANS:
        return _BOOLEANS[text.lower()]
    match = _FRACTION.fullmatch(text if '/' in text else f'{text}/1') if kind == 'fraction' and len(text) < 24 else None
    if match and 0 < int(match[2]) <= INT_MAX and abs(int(match[1])) <= INT_MAX:
        return Fraction(int(match[1]), int(match[2]))
    if kind == 'string':
        return text
    if kind in ('int', 'double', 'boolean', 'fraction'):
        raise FormatError(f"'{text}' is no {kind} that GStreamer can hold")
    return Other(kind, text)


def _unquote(text: str) -> str:
    raw = _ESCAPE.sub(lambda m: bytes([int(m[1], 8)]) if m[1] else m[2], text.encode('utf-8', 'surrogatepass'))
    try:
        return raw.decode('utf-8')
    except UnicodeDecodeError:
        raise FormatError(f"string '{text}' is not UTF-8") from None


def _quote(text: str) -> str:
    if re.fullmatch(_PLAIN, text, re.ASCII) and text != 'NULL':
        return text
    return '"' + ''.join(_quoted_byte(b) for b in text.encode('utf-8', 'surrogatepass')) + '"'


def _quoted_byte(byte: int) -> str:
    if re.fullmatch(_PLAIN, chr(byte), re.ASCII):
        return chr(byte)
    return f'\\{chr(byte)}' if 32 <= byte < 127 else f'\\{byte:03o}'


def format_value(value: Value) -> str:
    """``(type)value`` as ``gst_caps_to_string()`` writes it, which :meth:`Reader.value` reads again."""
    kinds = {_kind(item) for item in value.items} if isinstance(value, Choice) else {_kind(value)}
    if not isinstance(value, Choice):
        return f'({kinds.pop()}){_format_single(value)}'
    if len(kinds) == 1:
        return f'({kinds.pop()}){{ {", ".join(_format_single(item) for item in value.items)} }}'
    return f'{{ {", ".join(f"({_kind(item)}){_format_single(item)}" for item in value.items)} }}'


def _kind(value: Single) -> str:
    if isinstance(value, Range):
        return _kind(value.low)
    if isinstance(value, Other):
        return value.type
    names = {bool: 'boolean', int: 'int', float: 'double', Fraction: 'fraction', str: 'string'}
    return names[type(value)]


def _format_single(value: Single) -> str:
    if isinstance(value, Range):
        step = f', {value.step}' if value.step > 1 else ''
        return f'[ {_format_single(value.low)}, {_format_single(value.high)}{step} ]'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Fraction):
        return f'{value.numerator}/{value.denominator}'
    if isinstance(value, float):
        return repr(value)
    return _quote(value.text if isinstance(value, Other) else value) if not isinstance(value, int) else str(value)
