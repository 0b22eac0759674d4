"""``zc_bench``."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from zc_perception.errors import EXIT_USAGE, ConfigError, ZcError
from zc_perception.verify.bench.bars import check_bars
from zc_perception.verify.bench.command import Command, check_counts
from zc_perception.verify.bench.decode_command import DECODE
from zc_perception.verify.bench.environment import describe_environment
from zc_perception.verify.bench.link_command import LINK
from zc_perception.verify.bench.pipeline_command import PIPELINE
from zc_perception.verify.bench.realtime import P99_RATIO
from zc_perception.verify.bench.realtime_command import REALTIME
from zc_perception.verify.bench.rows import Row
from zc_perception.verify.bench.scale_command import SCALE
from zc_perception.verify.bench.schema import check_document
from zc_perception.verify.bench.startup_command import STARTUP
from zc_perception.verify.bench.timeline_command import TIMELINE

COMMANDS = (LINK, DECODE, PIPELINE, REALTIME, SCALE, STARTUP, TIMELINE)
EXIT_FAILURE = 1


class Interrupted(BaseException):
    """SIGINT or SIGTERM."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


def _do_nothing(number: int, frame: FrameType | None) -> None:
    """Not SIG_IGN, about which Python complains when a signal has just come."""


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """The first SIGINT or SIGTERM is an exception; during what that sets off, another one changes nothing."""

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        for one in before:
            signal.signal(one, _do_nothing)
        raise Interrupted(number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog='zc_bench', description='Measure this package beside its floors and what one would use instead.')
    commands = parser.add_subparsers(dest='name', required=True)
    for command in COMMANDS:
        one = commands.add_parser(command.name, help=command.help)
        one.set_defaults(command=command)
        one.add_argument('--json', metavar='FILE', help='write all rows there')
        one.add_argument('--check', action='store_true', help="compare to the package's bars; exit code 1 if one fails or was not measured")
        one.add_argument('--repetitions', type=int, default=7, help='(default: %(default)s)')
        command.add_options(one)
    return parser


def _writable(name: str) -> Path:
    """Where the result goes, known to be possible before minutes of measuring.

    :raises ConfigError: it is not.
    """
    path = Path(name)
    step = 'name another file with --json'
    try:
        path.resolve().parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"folder of --json '{name}' can't be made: {error.strerror}; {step}") from error
    if path.is_dir() or not os.access(path if path.exists() else path.resolve().parent, os.W_OK):
        raise ConfigError(f"--json '{name}' can't be written; {step}")
    return path


def _figure(value: float | None) -> str:
    return '      none' if value is None else f'{value:10.1f}'


def report(rows: Sequence[Row]) -> str:
    """A table for people. Latencies in µs."""
    lines = [f'{"case":28s} {"size":>10s} {"rate":>5s} {"median":>10s} {"p99":>10s} {"cpu/frame":>10s} {"lost %":>7s}   × floor']
    for row in rows:
        floors = ' '.join(f'{name.split("/")[1]} {ratio:.2f}' for name, ratio in row.ratio_to.items() if row.case != 'floor')
        if P99_RATIO in row.figures:
            floors += f', p99 {row.figures[P99_RATIO]:.2f}'
        lines.append(
            f'{row.case + "/" + row.variant:28s} {f"{row.width}x{row.height}":>10s} {row.rate_hz:5g} {_figure(row.median_us)} '
            f'{_figure(row.p99_us)} {_figure(row.cpu_us_per_frame)} {row.lost_per_cent:7.1f}   {floors}'
        )
    return '\n'.join(lines)


def _write(path: Path, document: dict[str, Any]) -> None:
    """Whole or not at all."""
    text = json.dumps(document, indent=1, allow_nan=False) + '\n'
    try:
        if path.exists() and not path.is_file():  # such as /dev/stdout
            path.write_text(text, encoding='utf-8')
            return
        unfinished = path.with_name(f'.{path.name}.{os.getpid()}')
        unfinished.write_text(text, encoding='utf-8')
        unfinished.replace(path)
    except OSError as error:
        raise ConfigError(f"--json '{path}' can't be written: {error.strerror}; name another file") from error


def _run(options: argparse.Namespace) -> int:
    command: Command = options.command
    check_counts(options, repetitions=1000)
    measure = command.prepare(options)
    path = _writable(options.json) if options.json else None
    environment = describe_environment()
    measured = measure(lambda line: print(line, file=sys.stderr, flush=True))
    environment |= {**measured.facts, 'load_average_after': [round(v, 2) for v in os.getloadavg()]}
    # Before the file: whatever becomes of that, the figures have been seen.
    print(report(measured.rows), flush=True)
    document: dict[str, Any] = {'environment': environment, 'rows': [row.as_json() for row in measured.rows]}
    check_document(document)
    if path is not None:
        _write(path, document)
    if not options.check:
        return 0
    verdicts = check_bars(measured.rows, command.bars)
    print('', *verdicts, sep='\n')
    return 0 if all(verdict.passed for verdict in verdicts) else EXIT_FAILURE


def main(arguments: Sequence[str] | None = None) -> int:
    """The console script. 0, 1: something went wrong or a bar isn't met, 2: arguments, 128 + n: signal n."""
    options = _parser().parse_args(arguments)
    try:
        with interruptible():
            return _run(options)
    except ConfigError as error:
        print(f'zc_bench: error: {error}', file=sys.stderr)
        return EXIT_USAGE
    except ZcError as error:
        print(f'zc_bench: error: {error}', file=sys.stderr)
        return EXIT_FAILURE
    except Interrupted as interruption:
        print(f'zc_bench: ended by {interruption}', file=sys.stderr)
        return interruption.exit_code


if __name__ == '__main__':
    sys.exit(main())
