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

"""The API pages match the docstrings, and their example programs run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
import re
import sys
from typing import Any

from nodes.programs import BIN, Program
from processes import ran
import pytest
from waiting import until

import zc_perception
from zc_perception import Frame

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / 'docs/api.md', ROOT / 'docs/api_publisher.md', ROOT / 'docs/api_types.md']
WRITE = 'python3 tools/api_page.py docs/api.md'
TIMEOUT_S = 120.0


def example(name: str) -> str:
    """Return the program in a name's section: the only block there with an import."""
    text = ''.join(page.read_text(encoding='utf-8') for page in PAGES)
    section = text.split(f'\n## {name}\n')[1].split('\n## ')[0]
    blocks = re.findall(r'```python\n(.*?)```', section, re.DOTALL)
    return next(block for block in blocks if 'import ' in block)


def test_the_pages_are_current(tmp_path: Path) -> None:
    ran(sys.executable, ROOT / 'tools/api_page.py', tmp_path / 'api.md', check=True)
    for page in PAGES:
        assert (tmp_path / page.name).read_bytes() == page.read_bytes(), f'run: {WRITE}'


def test_each_name_has_a_section_with_a_program() -> None:
    for name in set(zc_perception.__all__) - {'__version__'}:
        compile(example(name), name, 'exec')


def test_the_programs_of_frame_and_type_adapter_run(
    make_frame: Callable[..., Frame], capsys: pytest.CaptureFixture[str]
) -> None:
    names: dict[str, Any] = {}
    exec(example('Frame'), names)
    names['on_frame'](make_frame(sequence=7, fill=lambda luma, chroma: luma.fill(40)))
    assert capsys.readouterr().out == '7 64 40.0\n'
    exec(example('TypeAdapter'), names)
    adapter = names['TEXT']
    assert adapter.to_custom(adapter.to_ros('hello')) == 'hello'


CAPTURE = (str(BIN / 'capture_node'), '--ros-args', '-p', 'width:=64', '-p', 'height:=64')


def program(name: str) -> tuple[str, ...]:
    return sys.executable, '-u', '-c', example(name)


@pytest.mark.parametrize(
    ('sender', 'reader'),
    [
        (CAPTURE, 'FrameReader'),
        (CAPTURE, 'create_frame_subscription'),
        (CAPTURE, 'create_camera_subscription'),
        (program('FramePublisher'), 'FrameSubscription'),
        (program('AdaptedPublisher'), 'AdaptedSubscription'),
    ],
    ids=['reader', 'subscription', 'camera', 'publisher', 'adapted'],
)
def test_the_programs_that_read_get_what_is_sent(
    free_domain: int, sender: tuple[str, ...], reader: str
) -> None:
    # Match whole numbers: a log line may come between a number and its line feed.
    line = re.compile(r'^(\d+|hello)\s', re.MULTILINE)
    with (
        Program(sender, domain=free_domain, cold=True).start(),
        Program(program(reader), domain=free_domain, cold=True).start() as reading,
    ):
        until(lambda: len(line.findall(reading.output)) >= 5, lambda: reading.output)
    said = line.findall(reading.output)
    if reader == 'AdaptedSubscription':
        assert set(said) == {'hello'}
    else:
        assert 'hello' not in said and said == sorted(set(said), key=int)
