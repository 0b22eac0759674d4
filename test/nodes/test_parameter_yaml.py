"""What is read from a parameter file is what rcl reads from it; what rcl takes for something else is refused in one line."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from nodes.rcl_parameters import comparable, rcl_reads

from zc_perception.errors import ConfigError
from zc_perception.nodes.params.yaml_file import KEY, plain_value, read_parameter_yaml

# What rcl takes but makes something else of.
MISREAD = (
    'has nothing below',
    'with lists or mappings in it',
    "ROS doesn't take the last",
    'ROS puts in its place',
    'has no sections',
    'must be',
    'comes behind',
    'needs parameters below',
)
NODES = ('/capture', '/front/capture', '/front/rear/capture', '/b')


def values_of(path: Path, node: str) -> dict[str, Any]:
    return read_parameter_yaml(str(path)).values(node)


def verdicts(path: Path, domain: int) -> tuple[bool, str]:
    """Whether rcl takes the file, and why ours is refused. Where both are taken, they have to be equal."""
    given = rcl_reads(path, domain, NODES)
    try:
        read_parameter_yaml(str(path))
    except ConfigError as error:
        assert '\n' not in str(error) and f"parameter file '{path}'" in str(error)
        return given is not None, str(error)
    for node in NODES if given is not None else ():
        assert comparable(values_of(path, node)) == comparable(given[node]), (
            node,
            path.read_bytes(),
        )
    return given is not None, ''


# Plain texts that YAML takes as one scalar wherever they stand.
NUMBERS = st.one_of(
    st.integers(-(1 << 70), 1 << 70).map(str),
    st.integers(0, 1 << 66).map(hex),
    st.integers(0, 1 << 40).map(lambda number: f'0{number:o}'),
    st.floats().map(repr),
    st.floats().map(lambda number: number.hex()),
    st.builds(lambda a, b: f'{a}e{b}', st.integers(-99, 99), st.integers(-345, 330)),
    st.from_regex(
        r'[-+]?(0[xX]?)?[0-9a-fA-F_]{1,6}(\.[0-9a-f]{0,4})?([eEpP][-+]?[0-9]{1,4})?',
        fullmatch=True,
    ),
    st.from_regex(
        r'[-+]?\.?([iI][nN][fF](inity)?|[nN][aA][nN](\([a-z_0-9]{0,3}\))?)', fullmatch=True
    ),
)
WORDS = """
y Y yes Yes YES yEs true True TRUE tRue on On ON oN n N no No NO false False FALSE off Off OFF null Null NULL ~ . .5 5. 1_280 010 08 0x10
0o17 0b1 3e1 1e400 1e-310 2020-01-01 12:30:45 0000:01:00.0 2001-12-14t21:59:43.10-05:00 .inf -.INF +.Inf .NaN -.nan .iNf <<= 5f ٣ ä
4.9406564584124654e-324 0x1p-1074 9223372036854775807 9223372036854775808 -9223372036854775808 -9223372036854775809
"""
PLAIN = (
    NUMBERS
    | st.sampled_from(WORDS.split())
    | st.from_regex(r'[a-zA-Z0-9_./+-]{1,8}', fullmatch=True)
)
PLAIN = PLAIN.filter(
    lambda text: text not in ('-', '---', '...') and not text.startswith(('- ', '--'))
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(PLAIN, min_size=30, max_size=60))
@example(
    texts=[
        '9' * 4000,
        '9' * 5000,
        '0' * 5000 + '1',
        '0.' + '0' * 400 + '1',
        '-0',
        '-0.0',
        '+0x1F',
        '0x',
        '0x1p',
        '1e',
        '0e99999',
    ]
)
def test_a_value_without_quotes_is_what_rcl_takes_it_for(
    texts: list[str], tmp_path: Path, module_domain: int
) -> None:
    path = tmp_path / 'plain.yaml'
    path.write_text(
        '/capture:\n  ros__parameters:\n'
        + ''.join(f'    k{i}: {text}\n' for i, text in enumerate(texts)),
        encoding='utf-8',
    )
    given = rcl_reads(path, module_domain)
    assert given is not None and len(given['/capture']) == len(texts)
    assert comparable({f'k{i}': plain_value(text) for i, text in enumerate(texts)}) == comparable(
        given['/capture']
    )
    assert comparable(values_of(path, '/capture')) == comparable(given['/capture'])


class Writer:
    """Writes files of which most are good; the others have something in them that rcl refuses or misreads."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def _one(self, usual: str, rare: str) -> str:
        return self._random.choice((rare if self._random.random() < 0.01 else usual).split('|'))

    def _mapping(self, least: int, most: int, pair: Callable[[], str]) -> str:
        return '{' + ', '.join(pair() for _ in range(self._random.randint(least, most))) + '}'

    def _scalar(self) -> str:
        return self._one(
            """1|2|1.5|x|yes|"1"|''|!!str 5|!foo 5|!!int "7"|&n 3|[]|[1, 2]|[x, "5"]|[yes]|!!seq [.5]""",
            '*n||3 4|{}|[[1]]|[{a: 1}]|[1, x]',
        )

    def _parameters(self, least: int, depth: int) -> str:
        def pair() -> str:
            deeper = depth and self._random.random() < 0.3
            return f'{self._one("a|b|c|d|e|a.b|f|g", "|[1]|ros__parameters")}: {self._parameters(1, depth - 1) if deeper else self._scalar()}'

        return self._mapping(least, 3, pair)

    def _content(self, depth: int) -> str:
        if depth and self._random.random() < 0.4:
            tokens = 'front|rear|b|"**"|"*"|x_1|capture|front/'
            return self._mapping(
                1,
                2,
                lambda: (
                    f'{self._one(tokens, "|5|a-b|cap*|/rear|//b")}: {self._content(depth - 1)}'
                ),
            )

        def pair() -> str:
            value = self._parameters(0, 2) if self._random.random() > 0.03 else self._scalar()
            return f'{self._one(KEY, f"ros_parameters|{KEY}_")}: {value}'

        return self._mapping(1, 1 + (self._random.random() < 0.05), pair)

    def file(self) -> str:
        """Some sections and documents."""
        names = 'capture|/capture|/**|/front/capture|/**/capture|/*/capture|b|/front|front'
        lines = [
            f'{self._one(names, "/|5|/capture/|---")}: {self._content(2)}\n'
            for _ in range(self._random.randint(0, 4))
        ]
        return ('---\n' if self._random.random() < 0.1 else '').join(lines)


def test_files_are_read_as_rcl_reads_them_or_refused(tmp_path: Path, module_domain: int) -> None:
    path, taken_by_both = tmp_path / 'any.yaml', 0
    for seed in range(250):
        path.write_text(Writer(seed).file(), encoding='utf-8')
        taken, refusal = verdicts(path, module_domain)
        if taken:
            assert not refusal or any(words in refusal for words in MISREAD), (
                seed,
                refusal,
                path.read_text(),
            )
            taken_by_both += not refusal and any(values_of(path, node) for node in NODES)
        else:
            assert refusal, (seed, path.read_text())
    assert taken_by_both > 30, 'hardly any of these files says something'


GOOD = '/capture: {ros__parameters: {a: 1}}\n'
# In ``P``, parameters of /capture; in ``B``, lines of them.
P, B = (
    '/capture: {{ros__parameters: {{{}}}}}\n'.format,
    '/capture:\n  ros__parameters:\n    {}\n'.format,
)
TAKEN: dict[str, str | bytes] = {
    'empty': '', 'a comment': '# nothing\n', 'an empty mapping': '{}', 'no parameters': '/capture: {ros__parameters: {}}',
    'a node without a word': '/capture: {}\n', 'byte order mark': '\ufeff'.encode() + GOOD.encode(), 'UTF-16': GOOD.encode('utf-16'),
    'other letters': P('a: ä€😀'), 'escapes': P(r'a: "\x01\U0001F600"'), 'next line': P('a: x\x85y'),
    'line separator': P('a: x\u2028y'),
    'two documents': GOOD + '---\n/capture: {ros__parameters: {b: 2}}\n', 'ends of documents': f'---\n{GOOD}...\n',
    'directives': f'%YAML 1.1\n%TAG !e! tag:e,2000:\n---\n{P("a: !e!x 1")}',
    'a node twice': GOOD + P('b: 3'), 'a key twice': P('a: 1, a: 2'),
    'a list twice': P('a: [1, 2], a: [3]'), 'a mapping twice': P('a: {b: 1}, a: {c: 2}'), 'dots': P('a.b: 1, a: {b: 2}'),
    'value behind mapping': P('a: {b: 1}, a: 3'), 'merge key': P('<<: {a: 1}'), 'anchors': P('a: &x 1').replace(': {ros', ': &y {ros'),
    'tags that mean nothing': P('a: !!int "5", b: !!float 5, c: !!binary aGk=, d: !!timestamp 2020-01-01, e: !!null x, f: ! 5, g: !own 6'),
    'text tag': P('a: !!str 5, b: !<tag:yaml.org,2002:str> yes'), "launch_ros's tuples": P('a: !!python/tuple [p, q]'),
    'quoted': P("""a: "5", b: 'yes', c: '', d: ["1", "2"]"""), 'trailing comma': P('a: [x, ]'), 'tilde': P('a: ~, b: null, c: [~]'),
    'block text': B('a: |\n      5\n    b: |-\n      5\n    c: >-\n      yes\n    d: !!str |-\n      5\n    e: |1-\n       7'),
    'lines': B('a: 5\n      6'), 'odd keys': P('"a b": 1, "ä": 2, "a.": 3, 1: 6, ~: 7, ? q : 8, ros__parameters: 9'),
    'namespaces': 'front: {rear/: {capture: {ros__parameters: {a: 1}}}, capture: {ros__parameters: {b: 1}}}\n'
    '/: {b: {ros__parameters: {c: 1}}}\n',
    'order': GOOD + '/**: {ros__parameters: {a: 2}}\n"*": {ros__parameters: {b: 2}}\n' + P('a: 3'),
    'wildcards': '"**": {ros__parameters: {a: 1}}\n/**/*: {ros__parameters: {b: 1}}\n/*/capture: {ros__parameters: {c: 1}}\n'
    '/**/**: {rear: {"*": {ros__parameters: {d: 1}}}}\n',
    'deep': P('{a: ' * 60 + '1' + '}' * 60).replace('{{', '{', 1).replace('}}', '}', 1),
}  # fmt: skip
REFUSED: dict[str, tuple[str | bytes, str]] = {
    'a list': ('- 1', "has no sections such as '/**/capture:' with 'ros__parameters:' below"),
    'no sections': (
        'capture: text',
        ", line 1: 'capture' needs 'ros__parameters:' between the node's name and its parameters",
    ),
    'no key between': (
        '/capture:\n  camera: v4l2\n',
        ", line 2: 'capture/camera' needs 'ros__parameters:' between",
    ),
    'another key': (
        '/capture:\n  ros_parameters: {camera: v4l2}\n',
        ", line 2: 'capture/ros_parameters/camera' needs 'ros__parameters:'",
    ),
    'parameters that are a list': (
        '/capture:\n  ros__parameters: [1, 2]\n',
        ", line 2: 'ros__parameters:' needs parameters below",
    ),
    'parameters that are none': (
        '/capture:\n  ros__parameters:\n',
        "'ros__parameters:' needs parameters below",
    ),
    'no node': (
        'ros__parameters: {a: 1}',
        "'ros__parameters' must be 'ros__parameters', below a node's name",
    ),
    'a tab': ('a:\n\tb: 1', "can't be read: line 2: there is a tab"),
    'broken': (
        '/capture: {ros__parameters: {a: [1}}',
        "can't be read: line 1: expected ',' or ']'",
    ),
    'not UTF-8': (
        b'/capture: {ros__parameters: {a: \xe4}}\n',
        "can't be read: it is no YAML: unacceptable character #x00e4",
    ),
    'a NUL': (b'/capture: {ros__parameters: {a: x\0y}}\n', 'special characters are not allowed'),
    'half a pair': (
        P(r'a: "\ud800"'),
        r"line 1: '\ud800' has a NUL or half a surrogate pair in it",
    ),
    'no character': (P(r'a: "\UFFFFFFFF"'), "can't be read: it is no YAML: "),
    'an alias': (
        P('a: &x 1, b: *x'),
        "line 1: '*x' is an alias, which ROS doesn't take; write the value again",
    ),
    'an alias of itself': ('&a {b: *a}\n', "'*a' is an alias"),
    'an alias before its anchor': (P('b: *x'), "'*x' is an alias"),
    'mixed': (
        P('a: [car, 1]'),
        "line 1: parameter 'a' is a list with 'car' and 1 in it; all must be of one type: put quotes around texts",
    ),
    'mixed numbers': (P('a: [1, 2.0]'), 'with 1 and 2.0 in it'),
    'mixed booleans': (P('a: [1, yes]'), 'with 1 and True in it'),
    'no value': (
        P('a:'),
        "line 1: parameter 'a' has no value; an empty text is '', an empty list []",
    ),
    'no value, whatever its tag': (B('a: !!str\n    b: 1'), "parameter 'a' has no value"),
    'no value in a block': (B('c: |-\n    d: 1'), "parameter 'c' has no value"),
    'a set': (P('a: !!set {x}'), "parameter 'a.x' has no value"),
    'a list as a key': (P('[1]: 5'), 'line 1: a key must be a name'),
    'a mapping as a key': (P('{a: b}: 5'), 'a key must be a name'),
    'an empty key': (P('"": 5'), 'a key must be a name'),
    'an empty document': (GOOD + '---\n', 'has no sections such as'),
    'several lists': (P('a: [[1], [2]], b: 1'), 'with lists or mappings in it'),
    'nothing in a mapping, then more': (
        P('a: {}, b: 1'),
        "'a' has nothing below, and ROS puts there what follows; leave it out",
    ),
    **{
        f'name {name!r}': (
            f'"{name}": {{ros__parameters: {{a: 1}}}}\n',
            f"'{name}' can't be a node's full name; it must be names of letters",
        )
        for name in (
            '/capture/',
            '/',
            '5',
            '/a-b',
            '/a b',
            '~',
            '~/capture',
            '/cap*',
            '/***',
            '/**e',
            '//capture',
            '/a//b',
            '/cäpture',
        )
    },
}
MISREAD_BY_RCL: dict[str, tuple[str | bytes, str]] = {
    'a NUL, escaped': (
        P(r'a: "x\0y"'),
        r"line 1: 'x\x00y' has a NUL or half a surrogate pair in it, which no text in ROS can have",
    ),
    'a NUL in a key': (P(r'"a\0b": 1'), 'has a NUL'),
    'a NUL in a name': ('"/capture\\0x": {ros__parameters: {a: 1}}\n', 'has a NUL'),
    'a scalar': ('5', 'has no sections'),
    'an empty mapping': (P('a: {}'), "'a' has nothing below"),
    'a list in a list': (
        P('a: [[1]]'),
        "parameter 'a' is a list with lists or mappings in it; ROS has lists of values only",
    ),
    'a mapping in a list': (
        P('a: [{b: 1}, {b: 2}]'),
        "parameter 'a' is a list with lists or mappings in it",
    ),
    'another type': (
        P('a: 1, a: x'),
        "parameter 'a' is given as 1 and as 'x', and ROS doesn't take the last; write it once",
    ),
    'another type in another document': (GOOD + '---\n' + P('a: x'), 'line 3: '),
    'no longer a list': (P('a: 1, a: []'), "parameter 'a' is given as 1 and as []"),
    'a mapping in place of a value': (
        P('a: 1, a: {b: 2}'),
        "parameter 'a' is given as 1 and with others below, which ROS puts in its place",
    ),
    'behind a dotted name': (
        P('e: {a.b: {d: 1}, f: 2}'),
        "'f' comes behind 'a.b', a name with a dot that has others below",
    ),
    'a key that only begins so': (
        '/capture: {ros__parameters_x: {a: 1}}\n',
        "'ros__parameters_x' must be 'ros__parameters'",
    ),
    'deeper than anybody needs': (
        P('{a: ' * 120 + '1' + '}' * 120).replace('{{', '{', 1).replace('}}', '}', 1),
        'nested in more than 100 levels',
    ),
}


def file(folder: Path, content: str | bytes) -> Path:
    path = folder / 'case.yaml'
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize('case', TAKEN)
def test_what_rcl_takes_is_taken_for_the_same(
    case: str, tmp_path: Path, module_domain: int
) -> None:
    assert verdicts(file(tmp_path, TAKEN[case]), module_domain) == (True, '')


@pytest.mark.parametrize('case', REFUSED)
def test_what_rcl_refuses_is_refused_in_one_line(
    case: str, tmp_path: Path, module_domain: int
) -> None:
    taken, refusal = verdicts(file(tmp_path, REFUSED[case][0]), module_domain)
    assert not taken and REFUSED[case][1] in refusal


@pytest.mark.parametrize('case', MISREAD_BY_RCL)
def test_what_rcl_takes_for_something_else_is_refused_in_one_line(
    case: str, tmp_path: Path, module_domain: int
) -> None:
    taken, refusal = verdicts(file(tmp_path, MISREAD_BY_RCL[case][0]), module_domain)
    assert taken and MISREAD_BY_RCL[case][1] in refusal


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError,
        match=r"^params_file '.*no\.yaml' can't be read: No such file or directory; name another one$",
    ):
        read_parameter_yaml(str(tmp_path / 'no.yaml'), 'params_file')
    with pytest.raises(ConfigError, match='Is a directory'):
        read_parameter_yaml(str(tmp_path))
