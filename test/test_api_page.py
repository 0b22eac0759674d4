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

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
import re
import signal
import subprocess
import sys
import threading
from typing import Any

from nodes.programs import BIN, environment
from processes import ran
import pytest

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


@contextmanager
def running(*command: str | Path, domain: int) -> Iterator[Callable[[str], str]]:
    """Run a program; yield a function that waits for an output line with a pattern."""
    pipe, out = subprocess.PIPE, subprocess.STDOUT
    program = subprocess.Popen(
        command, env=environment(domain), stdout=pipe, stderr=out, text=True
    )
    stopper = threading.Timer(TIMEOUT_S, program.kill)
    stopper.start()

    def wait_for(pattern: str) -> str:
        lines = []
        for line in program.stdout:
            lines.append(line)
            if re.search(pattern, line):
                return line
        raise AssertionError(f'no {pattern!r} in:\n{"".join(lines)}')

    try:
        yield wait_for
    finally:
        program.send_signal(signal.SIGINT)
        program.communicate(timeout=TIMEOUT_S)
        stopper.cancel()


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


CAPTURE = (BIN / 'capture_node', '--ros-args', '-p', 'width:=64', '-p', 'height:=64')


def program(name: str) -> tuple[str, ...]:
    return sys.executable, '-u', '-c', example(name)


@pytest.mark.parametrize(
    ('sender', 'reader'),
    [
        (CAPTURE, 'FrameReader'),
        (CAPTURE, 'create_frame_subscription'),
        (CAPTURE, 'create_camera_subscription'),
        (program('FramePublisher'), 'FrameSubscription'),
    ],
    ids=['reader', 'subscription', 'camera', 'publisher'],
)
def test_the_programs_that_read_frames_get_them(
    free_domain: int, sender: tuple[str | Path, ...], reader: str
) -> None:
    with (
        running(*sender, domain=free_domain),
        running(*program(reader), domain=free_domain) as wait_for,
    ):
        # Match whole numbers: a log line may come between a number and its line feed.
        numbers = [int(wait_for(r'^\d+(?:\s|$)').split()[0]) for _ in range(5)]
    assert numbers == sorted(set(numbers))


def test_the_programs_of_publisher_and_subscription_meet(free_domain: int) -> None:
    with (
        running(*program('AdaptedPublisher'), domain=free_domain),
        running(*program('AdaptedSubscription'), domain=free_domain) as wait_for,
    ):
        wait_for('^hello$')
