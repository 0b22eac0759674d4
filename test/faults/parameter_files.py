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
Garbage in place of a parameter file.

A program ends with 2 and one line that says what is wrong, or starts, if nothing is wrong.

The garbage: our own files with something wrong, YAML of any shape, and what is no YAML at all.
"""

from __future__ import annotations

from collections import Counter
import os
from pathlib import Path
import random
import re
import signal
import subprocess
import sys
import time
from typing import Any

if __name__ == '__main__':
    sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from faults.harness import fault, Trial
from faults.program import own_sockets, Running
import hypothesis
from hypothesis import given, HealthCheck, Phase, settings
from hypothesis import strategies as st
import yaml

CONFIG = Path(__file__).resolve().parents[2] / 'config'
CORPUS = Path(__file__).resolve().parents[1] / 'fuzz' / 'corpus' / 'parameters'

_VALUES = [
    '~',
    '',
    '{}',
    '[]',
    '[[1]]',
    '[1, a]',
    '"\\0"',
    '.nan',
    '-1',
    '1e999',
    '9' * 20,
    '0x',
    '*a',
    '&a',
    '!!python/none',
    '!!python/object/apply:os.system ["true"]',
    "'",
    '"',
    '|',
    '>',
    '? a',
    '- b',
    '\t',
    'yes',
    'null',
    '2020-01-01',
    '{a: {b: 1}}',
    'x' * 5000,
]
_scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
_names = st.sampled_from(
    ['/**', '/**/capture', 'capture', 'ros__parameters', 'width', 'model', 'slots', '']
) | st.text(max_size=8)
_trees = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_names, inner, max_size=3),
    max_leaves=12,
)


def mutated(rng: random.Random, text: str) -> bytes:
    """One of our files, with one to three things wrong."""
    lines = text.splitlines()
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(lines))
        match rng.randrange(7):
            case 0:
                lines[at] = re.sub(r':.*', f': {rng.choice(_VALUES)}', lines[at])
            case 1:
                lines[at] = rng.choice([' ', '  ', '\t']) + lines[at]
            case 2:
                lines[at] = lines[at].lstrip()
            case 3:
                lines.insert(at, rng.choice(lines))
            case 4:
                lines[at] = re.sub(r'(\w)(\w+):', r'\2\1:', lines[at])
            case 5:
                lines[at] = lines[at][: rng.randrange(len(lines[at]) + 1)]
            case _:
                lines[at] = lines[at].replace(':', rng.choice(['', '::', ': :', ' :', ': ? ']))
    raw = bytearray('\n'.join(lines).encode() + b'\n')
    if rng.random() < 0.3:
        for _ in range(rng.randrange(1, 6)):
            raw[rng.randrange(len(raw))] = rng.randrange(256)
    return bytes(raw)


def shaped(count: int, seed: int) -> list[bytes]:
    """YAML of any shape, by hypothesis."""
    found: list[bytes] = []

    @settings(
        max_examples=count,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        deadline=None,
    )
    @given(_trees)
    def collect(tree: Any) -> None:
        found.append(yaml.safe_dump(tree, allow_unicode=True).encode('utf-8', 'surrogatepass'))

    hypothesis.seed(seed)(collect)()
    return found[:count]


def garbage(count: int, rng: random.Random) -> list[bytes]:
    """*count* files: the stored ones, and a third each of the others."""
    stored = [path.read_bytes() for path in sorted(CORPUS.glob('*'))]
    texts = [path.read_text(encoding='utf-8') for path in sorted(CONFIG.glob('*.yaml'))]
    files = [
        *stored,
        *shaped(count // 3, rng.randrange(1 << 30)),
        *(mutated(rng, rng.choice(texts)) for _ in range(count // 2)),
    ]
    while len(files) < count:
        files.append(rng.randbytes(rng.randrange(300)))
    rng.shuffle(files)
    return files[:count]


PROGRAMS = ('capture_node', 'inference_node', 'overlay_node', 'perception')
_TIMEOUT_S = 30.0


def verdict(program: str, code: int, output: str) -> str:
    """Say what is wrong with how a program took it; empty: nothing."""
    if 'Traceback' in output:
        return 'a traceback'
    if code == 0:
        return ''
    if code != 2:
        return f'exit code {code}'
    errors = [line for line in output.splitlines() if ' error: ' in line]
    if len(errors) != 1 or not output.rstrip().endswith(errors[0]):
        return f'{len(errors)} lines that say what is wrong'
    return (
        ''
        if errors[0].startswith(f'{program}: error: ')
        else 'a line that does not begin as the others'
    )


@fault('garbage for a parameter file', ('whatever a parameter file holds, the program ends '
                                        'with 2 and one line, or runs; never a traceback'),
       staged=False)  # fmt: skip
def files(trial: Trial) -> None:
    with own_sockets(trial.folder):
        paths = []
        for number, content in enumerate(garbage(trial.times(12, 300), trial.random)):
            paths.append(trial.folder / f'{number}.yaml')
            paths[-1].write_bytes(content)
        ends: Counter[str] = Counter()
        # As a user starts it, a process of its own; most of them forked from one that has imported
        # everything, which is the same but quick.
        for path in paths[: trial.times(2, 12)]:
            program = trial.random.choice(PROGRAMS)
            with Running(
                program, '--ros-args', '--params-file', str(path), domain=trial.domain
            ) as running:
                running.start()
                _judge(trial, ends, program, path, running)
        command = [
            sys.executable,
            __file__,
            str(trial.random.randrange(1 << 30)),
            *map(str, paths[slice(trial.times(2, 12), None)]),
        ]
        done = subprocess.run(
            command,
            env=os.environ | {'ROS_DOMAIN_ID': str(trial.domain)},
            capture_output=True,
            text=True,
            timeout=600.0,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        for line in done.stdout.splitlines():
            kind, _, text = line.partition('\t')
            ends[kind] += 1
            if kind == 'wrong':
                trial.must_be_zero(text, 1)
        for kind, count in sorted(ends.items()):
            trial.note(f'ended with {kind}' if kind.isdigit() else kind, count)
        trial.must(ends.total() == len(paths), 'files that nobody read')
        trial.must(ends['2'] > len(paths) // 2, 'files that are no garbage')


def _judge(trial: Trial, ends: Counter[str], program: str, path: Path, running: Running) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while running.alive and ']: ready' not in running.output and time.monotonic() < deadline:
        time.sleep(0.01)
    code = running.end() if running.alive else running.process.returncode
    running._reader.join(60.0)
    ends[str(code)] += 1
    if wrong := verdict(program, code, running.output):
        trial.must_be_zero(
            f'{program}, {path.read_bytes()!r:.300}: {wrong}: {running.output[-300:]}', 1
        )


def _forked(program: str, path: str) -> tuple[int, str]:
    """Return the exit code and the output of a child that runs *program*."""
    output = Path(path).with_suffix('.out')
    pid = os.fork()
    if not pid:
        try:
            from zc_perception.nodes import main as entry_points

            fd = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.dup2(fd, 1)
            os.dup2(fd, 2)
            sys.argv = [program, '--ros-args', '--params-file', path]
            sys.stdout = sys.stderr = os.fdopen(1, 'w', buffering=1, closefd=False)
            code = getattr(entry_points, program)()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        except BaseException:
            import traceback

            traceback.print_exc()
            code = 1
        os._exit(code)
    deadline, asked = time.monotonic() + _TIMEOUT_S, False
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status), output.read_text(
                encoding='utf-8', errors='replace'
            ) if output.exists() else ''
        ready = output.exists() and ']: ready' in output.read_text(
            encoding='utf-8', errors='replace'
        )
        if ready and not asked:
            os.kill(pid, signal.SIGINT)
            asked = True
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            deadline += 1e9
        time.sleep(0.005)


def main() -> None:
    """
    Run ``python parameter_files.py SEED FILE …``.

    It prints a line for each: the exit code, or what is wrong.
    """
    from zc_perception.nodes import perception  # the forked ones find it imported

    assert perception
    rng = random.Random(int(sys.argv[1]))
    for path in sys.argv[2:]:
        program = rng.choice(PROGRAMS)
        code, output = _forked(program, path)
        wrong = verdict(program, code, output)
        said = ' '.join(
            f'{program}, {Path(path).read_bytes()!r:.400}: {wrong}: {output[-400:]}'.split()
        )
        print(f'wrong\t{said}' if wrong else code, flush=True)


if __name__ == '__main__':
    main()
