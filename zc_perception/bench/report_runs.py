"""What ``make bench`` runs, and what became of it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zc_perception.bench.bars import Verdict, check_bars
from zc_perception.bench.command import Command
from zc_perception.bench.rows import Row
from zc_perception.bench.schema import SchemaError, check_document

PROGRAM = 'zc_perception.bench.zc_bench'
_LONGEST_S = 3600.0
_END_S = 60.0
_LAST_WORDS = 3


@dataclass(frozen=True)
class Arguments:
    """Of one sub-command: all of it within 25 minutes, and a first look within 5, both with all others."""

    full: Sequence[str] = ('--repetitions', '3')
    quick: Sequence[str] = ('--repetitions', '1')


# {folder}: where the results go. The trace is no result of zc_bench, and may not have its name.
_TIMELINE = ('--trace', '{folder}/timeline_trace.json', '--picture', '{folder}/timeline.png')
ARGUMENTS: dict[str, Arguments] = {
    'link': Arguments(
        ('--repetitions', '3', '--seconds', '0.7', '--read', 'vga', '1080p', '4k'),
        ('--repetitions', '1', '--seconds', '0.5', '--frames', '100', '--sizes', 'vga', '1080p'),
    ),
    'decode': Arguments(('--repetitions', '5'), ('--repetitions', '1', '--frames', '50')),
    'pipeline': Arguments(('--repetitions', '3'), ('--repetitions', '1', '--seconds', '1')),
    'realtime': Arguments(('--repetitions', '3', '--seconds', '4'), ('--repetitions', '1', '--seconds', '2')),
    'startup': Arguments(('--repetitions', '5'), ('--repetitions', '1')),
    'scale': Arguments((), ('--cameras', '1', '8', '16', '--seconds', '3')),
    'timeline': Arguments(_TIMELINE, _TIMELINE),
}


@dataclass(frozen=True)
class Bench:
    """One sub-command's result.

    :param path: of its file.
    :param problem: why there is none; empty when there is one.
    """

    name: str
    command: Command
    path: Path
    arguments: Sequence[str] = ()
    environment: dict[str, Any] = field(default_factory=dict)
    rows: Sequence[Row] = ()
    problem: str = ''

    def verdicts(self) -> list[Verdict]:
        """Its bars; not measured is not passed."""
        return check_bars(self.rows, self.command.bars)

    @property
    def command_line(self) -> str:
        """What measures it again."""
        return ' '.join(['zc_bench', self.name, *self.arguments, '--json', str(self.path)])


def load(command: Command, path: Path, arguments: Sequence[str] = ()) -> Bench:
    """What a sub-command wrote, or why that can't be read."""
    try:
        document = json.loads(path.read_text(encoding='utf-8'))
        check_document(document)
        # Half a pair of surrogates is valid JSON, and no text that could be written into the report.
        json.dumps(document, ensure_ascii=False).encode()
    except FileNotFoundError:
        return Bench(command.name, command, path, arguments, problem='it was not measured')
    except (OSError, ValueError, RecursionError, SchemaError) as error:
        reason = getattr(error, 'strerror', None) or str(error)
        return Bench(command.name, command, path, arguments, problem=f'{path.name} is not a result: {reason}')
    return Bench(command.name, command, path, arguments, document['environment'], [Row(**row) for row in document['rows']])


def arguments_of(name: str, folder: Path, *, quick: bool) -> Sequence[str]:
    """Of a sub-command; of one that isn't known here the repetitions alone."""
    arguments = ARGUMENTS.get(name, Arguments())
    return [argument.replace('{folder}', str(folder)) for argument in (arguments.quick if quick else arguments.full)]


def run(command: Command, folder: Path, arguments: Sequence[str], say: Callable[[str], None]) -> Bench:
    """Measure, in a process of its own. What fails is a result too: the others go on."""
    path = folder / f'{command.name}.json'
    log = folder / f'{command.name}.log'
    try:
        path.unlink(missing_ok=True)
        words = log.open('w', encoding='utf-8')
    except OSError as error:
        problem = f"'{error.filename}' can't be written: {error.strerror}"
        say(f'zc_bench {command.name}: not measured: {problem}')
        return Bench(command.name, command, path, arguments, problem=problem)
    say(f'zc_bench {command.name}: measuring; its words go to {log}')
    began = time.monotonic()
    with words:
        # Unbuffered (-u): otherwise what it prints lies behind its error in the log, whose last lines are the reason that is told.
        process = subprocess.Popen(
            [sys.executable, '-u', '-m', PROGRAM, command.name, *arguments, '--json', str(path)], stdout=words, stderr=subprocess.STDOUT
        )
        try:
            code = process.wait(_LONGEST_S)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(process)
    said = log.read_text(encoding='utf-8', errors='replace').strip().splitlines()
    say(f'zc_bench {command.name}: {time.monotonic() - began:.0f} s')
    if code == 0:
        return load(command, path, arguments)
    how = f'it took longer than {_LONGEST_S:g} s' if code is None else f'exit code {code}'
    problem = f'{how}: {" / ".join(said[-_LAST_WORDS:])}' if said else how
    say(f'zc_bench {command.name}: not measured: {problem}')
    return Bench(command.name, command, path, arguments, problem=problem)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Whatever has happened, with all that it started: it ends that in order on SIGTERM."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
