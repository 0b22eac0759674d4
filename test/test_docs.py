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

"""The pages of docs/ and the other Markdown pages: links, commands, names, messages, programs."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator
import functools
import os
from pathlib import Path
import re
import sys
import tempfile
from typing import Any

from nodes.programs import BIN, Program
from processes import ran
import pytest
from test_console_scripts import BENCH, run, SCRIPTS
from waiting import until

from tools import page_commands
import zc_perception
from zc_perception import Frame
from zc_perception.camera.kinds import CAMERAS
from zc_perception.detection.heads import HEADS

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / 'docs'
PAGES = [*ROOT.glob('*.md'), *DOCS.glob('*.md')]
FOLDERS = ('.github', 'docs', 'examples', 'test', 'tools', 'zc_perception')
# A symbolic link is another page under its old name.
MARKDOWN = [
    path for folder in FOLDERS for path in (ROOT / folder).rglob('*.md') if not path.is_symlink()
] + [*ROOT.glob('*.md')]
MOST_LINES, README_LINES, README_BYTES, COLUMNS = 400, 250, 16 * 1024, 100

LINK = re.compile(r'!?\[[^\]]*\]\(([^)\s]+)\)|<(?:img|a)\b[^>]*\b(?:src|href)="([^"]+)"')
TOOLS = {'colcon', 'mypy', 'pip', 'pytest', 'python', 'python3', 'ruff'}
TARGET = re.compile(r'(?:^|&& |; )make (?:[A-Z]+=\S+ |-C \S+ )*([a-z][\w-]*)')
# Names that the C and C++ headers declare, and the headers' own file names.
C_NAMES = {
    name
    for header in (ROOT / 'client' / 'include' / 'zc_client').iterdir()
    for name in re.findall(r'\bzc_\w+', header.read_text(encoding='utf-8'))
}
PROGRAM = re.compile(
    r'(?:^|[ /])(?:\.venv/bin/|ros2 run zc_perception )([\w.]+)|^(?:sudo )?(zc_(?!perception)\w+)'
)
OPTION = re.compile(r'(?<=\s)--[a-z][\w-]*')
LAUNCH = re.compile(r'ros2 launch zc_perception (\S+)')
MODULE = re.compile(r'-m ((?:zc_perception|bench)[\w.]*)')
COMPONENT = re.compile(r'\bzc_perception::(\w+)')
VARIABLE = re.compile(r'\bZC_[A-Z_]+\b')
MAKEFILE = (ROOT / 'Makefile').read_text(encoding='utf-8')
PLACE = re.compile(
    r'(?<![\w/~$}).:@-])((?:zc_perception|bench|test|config|launch|docs|tools|examples|resource'
    r'|\.github|\.devcontainer|\.ci)/[\w./*-]*)'
)


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def parts(text: str) -> Iterator[tuple[str, str]]:
    """Yield each line with its kind: ``text``, or the language of its fenced block."""
    fence = ''
    for line in text.splitlines():
        if line.lstrip().startswith('```'):
            fence = '' if fence else line.strip('` ') or 'plain'
        else:
            yield fence or 'text', line


def prose(text: str) -> str:
    return '\n'.join(line for kind, line in parts(text) if kind == 'text')


def commands(text: str) -> Iterator[str]:
    """Yield texts in backticks, and each command of fenced shell blocks without comments."""
    yield from re.findall(r'`([^`\n]+)`', prose(text))
    shell = '\n'.join(line for kind, line in parts(text) if kind in ('sh', 'bash'))
    yield from (
        re.sub(r'\s+#.*', '', line).strip()
        for line in shell.replace('\\\n', ' ').splitlines()
        if not line.startswith('#')
    )


def anchors(page: Path) -> set[str]:
    found: dict[str, int] = {}
    for heading in re.findall(r'^#+ (.+)$', prose(page.read_text(encoding='utf-8')), re.MULTILINE):
        words = re.sub(r'\[([^\]]*)\]\([^)]*\)', r'\1', heading).strip().lower()
        slug = re.sub(r'[^\w\- ]', '', words).replace(' ', '-')
        found[slug] = found.get(slug, -1) + 1
        if found[slug]:
            found[f'{slug}-{found[slug]}'] = 0
    return set(found)


def broken_links(page: Path, text: str) -> Iterator[str]:
    for one, other in LINK.findall(re.sub(r'`[^`\n]*`', '', prose(text))):
        target = one or other
        if re.match(r'[a-z]+:', target):
            continue
        path, _, anchor = target.partition('#')
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or ROOT not in file.parents:
            yield f'{target}: there is no such file'
        elif anchor and anchor not in anchors(file):
            yield f'{target}: there is no such heading'


@functools.cache
def code() -> str:
    """Return the sources that name environment variables and components."""
    files = [ROOT / 'setup.py', ROOT / '.ci' / 'run', *(ROOT / 'config').rglob('*')]
    for folder in ('zc_perception', 'bench', 'test'):
        files += (ROOT / folder).rglob('*.py')
    files = [path for path in files if path.is_file() and path != Path(__file__)]
    return '\n'.join(path.read_text(encoding='utf-8') for path in files)


@functools.cache
def help_of(program: str, command: str) -> str:
    return run(program, *([command] if command else []), '--help', missing=('nothing',)).stdout


def unknown_options(program: str, command: str) -> Iterator[str]:
    own = re.split(r' -- | --ros-args', command.split(program, 1)[1])[0]
    first = own.split()[0] if own.split() else ''
    known = help_of(program, first if program in BENCH and re.fullmatch(r'[a-z]+', first) else '')
    yield from (
        f'{command}: {program} has no option {option}'
        for option in OPTION.findall(own)
        if option not in known
    )


def wrong_names(text: str) -> Iterator[str]:
    for command in commands(text):
        missing = [f'target {target}' for target in TARGET.findall(command)
                   if not re.search(rf'^{target}:', MAKEFILE, re.MULTILINE)]  # fmt: skip
        for program in (one or other for one, other in PROGRAM.findall(command)):
            if program in SCRIPTS | BENCH:
                yield from unknown_options(program, command)
            elif program not in TOOLS | C_NAMES and not program.isupper():
                missing.append(f'program {program}')
        for place in (place.rstrip('.') for place in PLACE.findall(command)):
            if 'NAME' not in place and not any(ROOT.glob(place.rstrip('/'))):
                missing.append(place)
        for module in MODULE.findall(command):
            path = ROOT / module.replace('.', '/')
            if not any(path.parent.glob(f'{path.name}*')):
                missing.append(f'module {module}')
        for file in LAUNCH.findall(command):
            if file != 'FILE' and not (ROOT / 'launch' / file).is_file():
                missing.append(f'launch file {file}')
        for word in (*COMPONENT.findall(command), *VARIABLE.findall(command)):
            if not re.search(rf'\b{word}\b', code()):
                missing.append(f'{word} in the code')
        yield from (f'{command}: there is no {what}' for what in missing)


@pytest.mark.parametrize('page', MARKDOWN, ids=name)
def test_lines_are_wrapped_and_links_lead_somewhere(page: Path) -> None:
    """Rows of tables and lines with a link may be longer."""
    text = page.read_text(encoding='utf-8')
    long = [line for line in text.splitlines() if len(line) > COLUMNS and line[0] != '|']
    assert [line for line in long if '](' not in line] == []
    assert list(broken_links(page, text)) == []


@pytest.mark.parametrize('page', PAGES, ids=name)
def test_a_page_is_short_and_what_it_names_is_there(page: Path) -> None:
    content, is_readme = page.read_bytes(), page.name == 'README.md'
    assert len(content.splitlines()) <= (README_LINES if is_readme else MOST_LINES)
    assert not is_readme or len(content) <= README_BYTES
    assert list(wrong_names(content.decode())) == []


@pytest.mark.parametrize('listing', [DOCS / 'index.md', ROOT / 'mkdocs.yml'], ids=name)
def test_every_page_is_listed(listing: Path) -> None:
    listed = set(re.findall(r'\b(\w+\.md)\b', listing.read_text(encoding='utf-8')))
    assert {page.name for page in DOCS.glob('*.md')} - {'index.md'} <= listed


@pytest.mark.parametrize(
    ('page', 'heading', 'kinds'),
    [('models.md', 'head', HEADS.built_in), ('cameras.md', 'camera', CAMERAS.built_in)],
    ids=['heads', 'cameras'],
)
def test_every_kind_has_a_row(page: str, heading: str, kinds: Collection[str]) -> None:
    """The row is in the table whose first column has that heading."""
    text = (DOCS / page).read_text(encoding='utf-8')
    table = re.search(rf'^\| `{heading}` \|.*\n((?:\|.*\n)+)', text, re.MULTILINE)
    assert set(re.findall(r'^\| `(\w+)` \|', table[1], re.MULTILINE)) == set(kinds)


# Each message that troubleshooting.md explains exists in the code.


#: The headings that are messages; ``…`` stands for any text.
MESSAGES = re.findall(
    r'^### `([^`]+)`$', (DOCS / 'troubleshooting.md').read_text(encoding='utf-8'), re.MULTILINE
)


@functools.cache
def texts() -> tuple[str, ...]:
    """Return every text in the code; an inserted value is an ellipsis."""

    def of(node: ast.AST) -> str:
        if isinstance(node, ast.JoinedStr):
            parts = node.values
            return ''.join(one.value if isinstance(one, ast.Constant) else '…' for one in parts)
        return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ''

    files = [path.read_text(encoding='utf-8') for path in (ROOT / 'zc_perception').rglob('*.py')]
    return tuple(filter(None, (of(node) for file in files for node in ast.walk(ast.parse(file)))))


@pytest.mark.parametrize('message', MESSAGES)
def test_a_message_is_one_that_the_code_has(message: str) -> None:
    """One text of the code has the message's words in this order."""
    assert len(re.findall('[A-Za-z]', message)) >= 12, 'so few letters may be anywhere'
    pattern = '.*'.join(re.escape(piece) for piece in message.strip('…').split('…'))
    assert any(re.search(pattern, text, re.DOTALL) for text in texts())


def test_every_message_about_descriptors_has_the_words_of_the_heading() -> None:
    heading = "raise the limit ('ulimit -n')"
    assert heading in MESSAGES and len(MESSAGES) == len(set(MESSAGES)) >= 30
    assert [text for text in texts() if 'ulimit -n' in text and heading not in text] == []


# The shell commands of the pages run as written, where this machine can run them.
@pytest.fixture(scope='module')
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return page_commands.copy_tree(tmp_path_factory.mktemp('pages'))


def has_commands(page: Path) -> bool:
    blocks = page_commands.blocks(page.read_text(encoding='utf-8'))
    return any(not command.left_out for block in blocks for command in block.commands)


@pytest.mark.parametrize('page', filter(has_commands, page_commands.PAGES), ids=name)
def test_the_commands_of_a_page_run(
    page: Path, tree: Path, free_domain: int, tmp_path: Path
) -> None:
    own = {'HOME': str(tmp_path), 'ROS_HOME': str(tmp_path / 'ros')}
    # The folder's name is short, as a socket's path is limited. The folder is private, so that no
    # other test's nodes are seen.
    with tempfile.TemporaryDirectory() as folder:
        for block in page_commands.blocks(page.read_text(encoding='utf-8')):
            page_commands.run(block, tree, {**os.environ, **own, 'ZC_RUNTIME_DIR': folder})


def test_a_command_that_fails_is_named(tmp_path: Path) -> None:
    page = '```sh\ntrue   # well\nfalse\n```\n'
    (block,) = page_commands.blocks(page)
    with pytest.raises(page_commands.CommandError, match='false\nexit code 1'):
        page_commands.run(block, tmp_path, os.environ)
    (block,) = page_commands.blocks(f'<!-- not run: no need -->\n\n{page}')
    assert [command.left_out for command in block.commands] == ['no need'] * 2
    page_commands.run(block, tmp_path, os.environ)


# The API pages match the docstrings, and their example programs run.
API_PAGES = [DOCS / f'{page}.md' for page in ('api', 'api_publisher', 'api_types')]
WRITE_API = 'python3 tools/api_page.py docs/api.md'


def example(name: str) -> str:
    """Return the program in a name's section: the only block there with an import."""
    text = ''.join(page.read_text(encoding='utf-8') for page in API_PAGES)
    section = text.split(f'\n## {name}\n')[1].split('\n## ')[0]
    blocks = re.findall(r'```python\n(.*?)```', section, re.DOTALL)
    return next(block for block in blocks if 'import ' in block)


def test_the_api_pages_are_current_and_each_name_has_a_section_with_a_program(
    tmp_path: Path,
) -> None:
    ran(sys.executable, ROOT / 'tools/api_page.py', tmp_path / 'api.md', check=True)
    for page in API_PAGES:
        assert (tmp_path / page.name).read_bytes() == page.read_bytes(), f'run: {WRITE_API}'
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
