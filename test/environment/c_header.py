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
Reads the integer macros and enums of a C header.

Enough of a preprocessor for ``drm_fourcc.h`` and ``videodev2.h``.

    header = CHeader(path.read_text())
    header.value("DRM_FORMAT_MOD_NVIDIA_16BX2_BLOCK(4)")

No compiler is needed, and unlike with one each macro's comment can be read too.
"""

from __future__ import annotations

from dataclasses import dataclass
import re

_DEFINE = re.compile(r'^[ \t]*#[ \t]*define[ \t]+(\w+)(\([\w, ]*\))?(.*)$', re.MULTILINE)
_ENUM = re.compile(
    r'^[ \t]*(\w+)[ \t]*=[ \t]*(0x[0-9a-fA-F]+|\d+),?[ \t]*(?:/\*.*)?$', re.MULTILINE
)
_TOKEN = re.compile(r"'.'|##|<<|>>|<=|>=|==|!=|&&|\|\||\w+|[^\s\w]")
_CASTS = {'__u32', '__u64', 'unsigned', 'int'}
_LEVELS = (
    ('||',),
    ('&&',),
    ('|',),
    ('^',),
    ('&',),
    ('==', '!='),
    ('<', '>', '<=', '>='),
    ('<<', '>>'),
    ('+', '-'),
    ('*',),
)
_WORD = (1 << 64) - 1


@dataclass(frozen=True)
class Macro:
    """
    One ``#define``.

    Its parameters (``None``: it takes none), tokens, and the comment on its line.
    """

    name: str
    parameters: tuple[str, ...] | None
    body: tuple[str, ...]
    comment: str


class CHeader:
    """The macros and enum values of one header."""

    def __init__(self, text: str) -> None:
        self.text = text.replace('\\\n', ' ')
        self.macros = {macro.name: macro for macro in map(_macro, _DEFINE.finditer(self.text))}
        self.enums = {name: int(number, 0) for name, number in _ENUM.findall(self.text)}

    def __contains__(self, name: str) -> bool:
        return name in self.macros or name in self.enums

    def value(self, expression: str) -> int:
        """Return what ``expression`` is in C, as an unsigned 64-bit number."""
        parser = _Parser(self._expand(_TOKEN.findall(expression)), self.enums)
        value = parser.conditional()
        if parser.tokens:
            raise ValueError(f'{expression}: {" ".join(parser.tokens)} is left over')
        return value & _WORD

    def preceding_comment(self, name: str, pattern: str) -> str:
        """Return the last comment with ``pattern`` before the definition of ``name``."""
        start = re.search(rf'#define\s+{re.escape(name)}\b', self.text)
        if start is None:
            raise KeyError(name)
        comments = re.findall(r'/\*.*?\*/', self.text[: start.start()], re.DOTALL)
        return next(comment for comment in reversed(comments) if re.search(pattern, comment))

    def _expand(self, tokens: list[str]) -> list[str]:
        """Replace macros until there are none. The headers have none that names itself."""
        out: list[str] = []
        rest = list(tokens)
        while rest:
            token = rest.pop(0)
            macro = self.macros.get(token)
            if macro is None or (macro.parameters is not None and rest[:1] != ['(']):
                out.append(token)
            else:
                arguments = _arguments(rest) if macro.parameters is not None else []
                rest = self._substitute(macro, arguments) + rest
        return out

    def _substitute(self, macro: Macro, arguments: list[list[str]]) -> list[str]:
        by_name = dict(zip(macro.parameters or (), arguments, strict=True))
        out: list[str] = []
        previous = ''
        for token, following in zip(macro.body, (*macro.body[1:], ''), strict=True):
            if token != '##':
                piece = by_name.get(token, [token])
                if previous == '##':
                    out[-1:] = [out[-1] + piece[0], *piece[1:]]
                else:
                    out.extend(piece if following == '##' else self._expand(piece))
            previous = token
        return out


def _macro(match: re.Match[str]) -> Macro:
    name, parameters, body = match.groups()
    body, _, comment = body.partition('/*')
    names = (
        None if parameters is None else tuple(part.strip() for part in parameters[1:-1].split(','))
    )
    return Macro(name, names, tuple(_TOKEN.findall(body)), comment.partition('*/')[0].strip())


def _arguments(rest: list[str]) -> list[list[str]]:
    """Take a macro's bracketed arguments off the front of ``rest``."""
    arguments: list[list[str]] = [[]]
    depth = 0
    while True:
        token = rest.pop(0)
        depth += {'(': 1, ')': -1}.get(token, 0)
        if depth == 0:
            return arguments
        if token == ',' and depth == 1:
            arguments.append([])
        elif not (token == '(' and depth == 1):
            arguments[-1].append(token)


class _Parser:
    """A C integer expression, by recursive descent."""

    def __init__(self, tokens: list[str], enums: dict[str, int]) -> None:
        self.tokens = tokens
        self._enums = enums

    def conditional(self) -> int:
        condition = self._binary(0)
        if self.tokens[:1] != ['?']:
            return condition
        self.tokens.pop(0)
        yes = self.conditional()
        self._expect(':')
        no = self.conditional()
        return yes if condition else no

    def _binary(self, level: int) -> int:
        if level == len(_LEVELS):
            return self._unary()
        left = self._binary(level + 1)
        while self.tokens and self.tokens[0] in _LEVELS[level]:
            operator = self.tokens.pop(0)
            left = _OPERATIONS[operator](left, self._binary(level + 1))
        return left

    def _unary(self) -> int:
        token = self.tokens.pop(0)
        if token in '~-!':
            operand = self._unary()
            return {'~': ~operand & _WORD, '-': -operand, '!': int(not operand)}[token]
        if token == '(' and self.tokens[0] in _CASTS and self.tokens[1] == ')':
            del self.tokens[:2]
            return self._unary()
        if token == '(':
            value = self.conditional()
            self._expect(')')
            return value
        if token.startswith("'"):
            return ord(token[1])
        return self._enums[token] if token in self._enums else int(token.rstrip('ULul'), 0)

    def _expect(self, token: str) -> None:
        if self.tokens[:1] != [token]:
            raise ValueError(f'{token} is expected before {" ".join(self.tokens)}')
        self.tokens.pop(0)


_OPERATIONS = {
    '||': lambda a, b: int(bool(a or b)),
    '&&': lambda a, b: int(bool(a and b)),
    '|': int.__or__,
    '^': int.__xor__,
    '&': int.__and__,
    '==': lambda a, b: int(a == b),
    '!=': lambda a, b: int(a != b),
    '<': lambda a, b: int(a < b),
    '>': lambda a, b: int(a > b),
    '<=': lambda a, b: int(a <= b),
    '>=': lambda a, b: int(a >= b),
    '<<': int.__lshift__,
    '>>': int.__rshift__,
    '+': int.__add__,
    '-': int.__sub__,
    '*': int.__mul__,
}
