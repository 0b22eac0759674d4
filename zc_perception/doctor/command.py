"""What ``zc_doctor`` does, see :mod:`~zc_perception.doctor.zc_doctor`: runs the checks, reports, writes the result."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from zc_perception.doctor.asking import end_all
from zc_perception.doctor.needs import read_needs
from zc_perception.doctor.registry import CHECKS, checks_of
from zc_perception.doctor.report import document, exit_code, heading, lines_of, summary_line
from zc_perception.doctor.running import Result, run_checks
from zc_perception.doctor.system import System
from zc_perception.doctor.zc_doctor import STDOUT
from zc_perception.errors import EXIT_USAGE, ConfigError, error_line, printable
from zc_perception.observe.whole_file import write_whole
from zc_perception.terminal import Interrupted, interruptions, put

_PATIENCE_S = 1.0
_LONGEST_S = 3600.0


def _write(path: Path, result: dict[str, Any]) -> None:
    """Whole or not at all. Folders that are not there are made, and named.

    :raises ConfigError: it can't be written.
    """
    try:
        folder = Path(os.path.realpath(path)).parent
        if not folder.is_dir():
            folder.mkdir(parents=True)
            _complain(f"zc_doctor: made folder '{folder}' for --json")
        write_whole(path, json.dumps(result, indent=1, allow_nan=False) + '\n')
    except OSError as error:
        raise ConfigError(f"--json '{path}' can't be written: {error.strerror}; name another file") from error


def _say(text: str) -> None:
    """One line, or some.

    :raises BrokenPipeError: nobody reads any more.
    :raises ConfigError: what stdout leads to takes nothing more.
    """
    error = put(text, sys.stdout)
    if isinstance(error, BrokenPipeError):
        raise error
    if error is not None:
        raise ConfigError(f"the report can't be written to stdout: {error.strerror}; send it to another place") from error


def _complain(text: str) -> None:
    """On stderr, if that can be written."""
    put(printable(text), sys.stderr)


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


def run_until_a_signal(options: argparse.Namespace, system: System) -> int:
    """The whole command. 0: nothing failed, 1: something did, 2: wrong use, 128 + n: signal n."""
    with interruptions() as interruption:
        try:
            with interruption.allowed():
                return run(options, system)
        except ConfigError as error:
            _complain(error_line('zc_doctor', error))
            return EXIT_USAGE
        except BrokenPipeError:  # whoever read the report has read enough
            return 128 + signal.SIGPIPE
        except Interrupted as interrupted:
            end_all()
            _complain(f'zc_doctor: ended by {interrupted}')
            return interrupted.exit_code
        finally:
            _leave_nothing()


def _leave_nothing() -> None:
    """Threads that hang in the kernel stay; those that are about to end are waited for."""
    names = {f'zc_doctor {check.id}' for check in CHECKS}
    deadline = time.monotonic() + _PATIENCE_S
    for thread in threading.enumerate():
        if thread.name in names:
            thread.join(max(0.0, deadline - time.monotonic()))
