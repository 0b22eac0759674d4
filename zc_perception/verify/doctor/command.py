"""What ``zc_doctor`` does, see :mod:`~zc_perception.verify.doctor.zc_doctor`: runs the checks, reports, writes the result."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TextIO

from zc_perception.errors import EXIT_USAGE, ConfigError, error_line, printable
from zc_perception.verify.doctor.asking import end_all
from zc_perception.verify.doctor.needs import read_needs
from zc_perception.verify.doctor.registry import CHECKS, checks_of
from zc_perception.verify.doctor.report import document, exit_code, heading, lines_of, summary_line
from zc_perception.verify.doctor.running import Result, run_checks
from zc_perception.verify.doctor.system import System
from zc_perception.verify.doctor.zc_doctor import STDOUT

_PATIENCE_S = 1.0
_LONGEST_S = 3600.0
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _write(path: Path, result: dict[str, Any]) -> None:
    """Whole or not at all; a link stays one, and what it leads to is written. Folders that are not there are made, and named."""
    text = json.dumps(result, indent=1, allow_nan=False) + '\n'
    try:
        if path.exists() and not path.is_file():  # such as /dev/stderr
            path.write_text(text, encoding='utf-8')
            return
        path = Path(os.path.realpath(path))
        there = path.parent.is_dir()
        path.parent.mkdir(parents=True, exist_ok=True)
        if not there:
            _complain(f"zc_doctor: made folder '{path.parent}' for --json")
        unfinished = path.with_name(f'.{path.name}.{os.getpid()}')
        unfinished.write_text(text, encoding='utf-8')
        unfinished.replace(path)
    except OSError as error:
        raise ConfigError(f"--json '{path}' can't be written: {error.strerror}; name another file") from error


def _say(text: str) -> None:
    """One line, or some.

    :raises BrokenPipeError: nobody reads any more.
    :raises ConfigError: what stdout leads to takes nothing more.
    """
    try:
        print(text, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        _to_nowhere(sys.stdout)
        raise ConfigError(f"the report can't be written to stdout: {error.strerror}; send it to another place") from error


def _complain(text: str) -> None:
    """On stderr, if that can be written."""
    try:
        print(printable(text), file=sys.stderr, flush=True)
    except OSError:
        _to_nowhere(sys.stderr)


def _to_nowhere(stream: TextIO) -> None:
    """What is left in its buffer would make the interpreter's end an error of its own."""
    with open(os.devnull, 'w', encoding='ascii') as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())


def run(options: argparse.Namespace, system: System) -> int:
    """Run the checks and report; the exit code.

    :raises ConfigError: the parameter file can't be read, or report or result not be written.
    """
    needs = read_needs(options.params_file, options.cameras)
    if not 0 < options.time_limit <= _LONGEST_S:
        raise ConfigError(f'--time-limit is {options.time_limit:g}; it must be a number of seconds above 0, at most {_LONGEST_S:g}')
    results: list[Result] = []
    shown = options.json != STDOUT
    if shown:
        _say(heading(system, needs))
    for result in run_checks(checks_of(options.only), system, needs, options.time_limit):
        results.append(result)
        for line in lines_of(result, options.verbose) if shown else ():
            _say(line)
    if shown:
        _say(summary_line(results, options.verbose))
    if options.json is not None:
        written = document(results, system, needs)
        if shown:
            _write(Path(options.json), written)
        else:
            _say(json.dumps(written, indent=1, allow_nan=False))
    return exit_code(results)


class _Ended(BaseException):
    """One of :data:`_ENDING` came.

    :ivar number: which.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = signal.Signals(number)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    for one in _ENDING:  # a terminal that goes away is told by the kernel and by the shell: the second must not disturb the end
        signal.signal(one, signal.SIG_IGN)
    raise _Ended(number)


def _take_over() -> dict[signal.Signals, Any]:
    """Let signals end it in order, unless they are ignored, as SIGHUP is under nohup.

    :returns: the handlers before.
    """
    return {number: signal.signal(number, _end) for number in _ENDING if signal.getsignal(number) is not signal.SIG_IGN}


def run_until_a_signal(options: argparse.Namespace, system: System) -> int:
    """The whole command. 0: nothing failed, 1: something did, 2: wrong use, 128 + n: signal n."""
    before = _take_over()
    try:
        return run(options, system)
    except ConfigError as error:
        _complain(error_line('zc_doctor', error))
        return EXIT_USAGE
    except BrokenPipeError:  # whoever read the report has read enough
        _to_nowhere(sys.stdout)
        return 128 + signal.SIGPIPE
    except _Ended as ended:
        end_all()
        _complain(f'zc_doctor: ended by {ended.number.name}')
        return 128 + ended.number
    finally:
        _leave_nothing()
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave_nothing() -> None:
    """Threads that hang in the kernel stay; those that are about to end are waited for."""
    names = {f'zc_doctor {check.id}' for check in CHECKS}
    deadline = time.monotonic() + _PATIENCE_S
    for thread in threading.enumerate():
        if thread.name in names:
            thread.join(max(0.0, deadline - time.monotonic()))
