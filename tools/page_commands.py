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
Run the shell commands of the pages, as a reader would, in a copy of the tree.

    .venv/bin/python tools/page_commands.py             # all pages
    .venv/bin/python tools/page_commands.py docs/doctor.md

The script runs the lines of a page's ``sh`` fences, except those that begin with a text of
``ELSEWHERE``. A comment in the page's source before a fence is about all lines of the fence:

    <!-- not run: REASON -->           the lines are not run
    <!-- beside: COMMAND -->           COMMAND runs meanwhile, as in another terminal

``ros2 run zc_perception PROGRAM`` runs ``PROGRAM`` of ``.venv/bin``. A program that runs until
Ctrl-C must log a line; then it gets SIGINT and must end with code 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
import os
from pathlib import Path
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob('*.md'), *(ROOT / 'docs').glob('*.md')])
# Beginnings of lines that this script doesn't run, and the reason.
ELSEWHERE = {
    'make ': 'it makes its own environment; .ci/checks runs demo, lint and test',
    '.venv/bin/python -m pytest ': 'make test does it',
    '.venv/bin/ruff ': 'make lint does it',
    '.venv/bin/mypy ': 'make lint does it',
    'ros2 ': "it needs ROS 2's command line",
    'colcon ': "it needs ROS 2's build tool",
    'v4l2-ctl ': 'it needs a camera',
    'xdg-open ': 'it opens a window',
    'sudo ': 'it changes the machine',
}
UNTIL_CTRL_C = {
    'capture_node', 'inference_node', 'overlay_node', 'perception', 'zc_record',
    'component_container', 'viewer.py',
}  # fmt: skip
# The folders that commands write into, which are copied; the rest of the tree is linked.
_WRITTEN = ('config', 'docs', 'tools', 'zc_perception')
_LIMIT_S = 240.0
_FENCE = re.compile(
    r'(?:^ *<!-- (?P<mark>not run|beside): (?P<said>[^>]+?) -->\s*)?'
    r'^ *```(?:sh|bash)\n(?P<text>.*?)^ *```$',
    re.MULTILINE | re.DOTALL,
)


class Command(NamedTuple):
    """One line of a page, and the reason why it isn't run; the reason is empty if it is run."""

    line: str
    left_out: str


class Block(NamedTuple):
    """The lines of one fence, and the command that runs meanwhile; empty: none."""

    commands: tuple[Command, ...]
    beside: str


class CommandError(Exception):
    """A command of a page failed, or logged nothing."""


def _in_venv(line: str) -> str:
    return re.sub(r'\bros2 run zc_perception (?=\w)', '', line.strip())


def _elsewhere(line: str) -> str:
    command = re.sub(r'^(?:\w+=\S* )*', '', line)
    return next((why for start, why in ELSEWHERE.items() if command.startswith(start)), '')


def _runs_until_ctrl_c(line: str) -> bool:
    words = {Path(word).name for word in line.partition(' #')[0].split()}
    return bool(words & UNTIL_CTRL_C) and not words & {'--help', '--repair'}


def blocks(text: str) -> Iterator[Block]:
    """Yield the blocks of a page."""
    for fence in _FENCE.finditer(text):
        lines = [_in_venv(line) for line in fence['text'].replace('\\\n', ' ').splitlines()]
        reason = fence['said'] if fence['mark'] == 'not run' else ''
        yield Block(
            tuple(
                Command(line, reason or _elsewhere(line))
                for line in lines
                if line and not line.startswith('#')
            ),
            _in_venv(fence['said']) if fence['mark'] == 'beside' else '',
        )


def copy_tree(folder: Path) -> Path:
    """Make a copy of the tree in *folder*, for commands that write; return its path."""
    tree = folder / 'a tree'
    tree.mkdir()
    for path in ROOT.iterdir():
        if path.name in _WRITTEN:
            shutil.copytree(path, tree / path.name)
        elif path.name not in ('.git', 'build'):
            (tree / path.name).symlink_to(path)
    return tree


class _Program:
    """A running program that ends on Ctrl-C."""

    def __init__(self, line: str, tree: Path, environment: Mapping[str, str]) -> None:
        self._line = line
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by kill()
        self._process = subprocess.Popen(
            ['bash', '-c', f'exec {line}'],
            cwd=tree,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    def wait_until_it_logs(self) -> None:
        deadline = time.monotonic() + _LIMIT_S
        while os.fstat(self._log.fileno()).st_size == 0 and self._process.poll() is None:
            if time.monotonic() > deadline:
                self.kill()
                raise CommandError(f'{self._line}: it has logged nothing for {_LIMIT_S:.0f} s')
            time.sleep(0.05)

    def interrupt(self) -> None:
        """
        Send SIGINT, as Ctrl-C does, and wait for the end.

        :raises CommandError: the program doesn't end with code 0.
        """
        self._process.send_signal(signal.SIGINT)
        try:
            code = self._process.wait(_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            code = None
        if code != 0:
            self._log.seek(0)
            said = self._log.read().decode(errors='replace')
            raise CommandError(f'{self._line}: exit code {code} after Ctrl-C\n{said}')

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()


def _run_script(lines: list[str], tree: Path, environment: Mapping[str, str]) -> None:
    script = '\n'.join(lines)
    done = subprocess.run(
        ['bash', '-euo', 'pipefail', '-c', script],
        cwd=tree,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=_LIMIT_S,
        check=False,
    )
    if done.returncode:
        said = done.stdout.decode(errors='replace')
        raise CommandError(f'{script}\nexit code {done.returncode}\n{said}')


def run(block: Block, tree: Path, environment: Mapping[str, str]) -> None:
    """
    Run the lines of a block that are not left out.

    :raises CommandError: a command failed.
    """
    environment = {
        **environment,
        'PATH': f'{tree / ".venv" / "bin"}{os.pathsep}{environment["PATH"]}',
    }
    here = [command.line for command in block.commands if not command.left_out]
    programs: list[_Program] = []
    try:
        for line in [block.beside, *filter(_runs_until_ctrl_c, here)]:
            if line and here:
                programs.append(_Program(line, tree, environment))
                programs[-1].wait_until_it_logs()
        lines = [line for line in here if not _runs_until_ctrl_c(line)]
        # The lines may fail until the command beside them is ready, so they are tried again.
        deadline = time.monotonic() + (_LIMIT_S if block.beside else 0.0)
        while lines:
            try:
                _run_script(lines, tree, environment)
                break
            except CommandError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(1.0)
        for program in reversed(programs):
            program.interrupt()
    finally:
        for program in programs:
            program.kill()


def main(pages: list[str]) -> int:
    """Run the pages' commands and print a line for each; return 1 if one failed."""
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        tree = copy_tree(Path(folder))
        for page in [Path(page).resolve() for page in pages] or PAGES:
            for block in blocks(page.read_text(encoding='utf-8')):
                try:
                    run(block, tree, os.environ)
                except CommandError as error:
                    failed += 1
                    print(f'{page.name}: FAILED: {error}')
                for command in block.commands:
                    what = f'left out: {command.left_out}' if command.left_out else 'run'
                    print(f'{page.name}: {command.line}: {what}')
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
