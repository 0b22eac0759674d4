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

"""Each message that docs/troubleshooting.md explains exists in the code."""

from __future__ import annotations

import ast
from collections.abc import Iterator
import functools
from pathlib import Path
import re

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / 'docs' / 'troubleshooting.md'


def messages() -> list[str]:
    """Return the headings that are messages; ``…`` stands for any text."""
    return re.findall(r'^### `([^`]+)`$', PAGE.read_text(encoding='utf-8'), re.MULTILINE)


@functools.cache
def texts() -> tuple[str, ...]:
    """Return every text in the code; an inserted value is an ellipsis."""

    def of(path: Path) -> Iterator[str]:
        for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
            if isinstance(node, ast.JoinedStr):
                yield ''.join(
                    part.value if isinstance(part, ast.Constant) else '…' for part in node.values
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value

    return tuple(
        text for path in sorted((ROOT / 'zc_perception').rglob('*.py')) for text in of(path)
    )


def occurs(message: str) -> bool:
    """Return whether one text of the code has the message's words in this order."""
    pattern = '.*'.join(re.escape(piece) for piece in message.strip('…').split('…'))
    return any(re.search(pattern, text, re.DOTALL) for text in texts())


def test_the_page_has_messages() -> None:
    assert len(messages()) >= 30 and len(set(messages())) == len(messages())


@pytest.mark.parametrize('message', messages())
def test_a_message_is_one_that_the_code_has(message: str) -> None:
    assert len(re.findall('[A-Za-z]', message)) >= 12, 'so few letters may be anywhere'
    assert occurs(message)


def test_every_message_about_descriptors_has_the_words_of_the_heading() -> None:
    heading = "raise the limit ('ulimit -n')"
    assert heading in messages()
    assert [text for text in texts() if 'ulimit -n' in text and heading not in text] == []


def test_another_message_would_be_noticed() -> None:
    assert occurs("calibration '…' is for …x… pictures, the camera gives …x…")
    assert not occurs("calibration '…' is of …x… pictures, the camera gives …x…")
