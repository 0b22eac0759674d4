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
List and run the checks of ``zc_doctor``, print the report, and write the JSON result.

Groups of checks run in parallel. The checks of one group run one after the other, each with a time
limit. A check that hangs in the kernel can't be ended: its thread runs until the process ends.

Much of the report's text comes from outside: names of processes, nodes, cards and files, and
values of the parameter file. So this module escapes unprintable characters in all printed text.
The JSON follows ``doctor.schema.json``, version 1: ids and keys don't change, but new ids and
keys may be added.
"""

from __future__ import annotations

import argparse
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
import contextlib
import ctypes
from dataclasses import dataclass, replace
from datetime import datetime, timezone
import json
import os
from pathlib import Path
import platform
import queue
import signal
import sys
import threading
import time
from typing import Any

import zc_perception
from zc_perception.camera.kinds import CAMERAS
from zc_perception.doctor import machine_checks, node_checks
from zc_perception.doctor.needs import read_needs
from zc_perception.errors import (
    ConfigError,
    error_line,
    EXIT_USAGE,
    nearest,
    one_line,
    printable,
    shown,
    ZcError,
)
from zc_perception.kinds import Kinds
from zc_perception.machine.asking import CHECK_LIMIT_S, end_all, Question
from zc_perception.machine.checks import Check, fail, Finding, Needs, Status
from zc_perception.machine.system import System
from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.npu.kinds import ACCELERATORS
from zc_perception.terminal import Interrupted, interruptions, put
from zc_perception.whole_file import output_file, write_output

_FIRST = (
    Check(
        'parameters.file',
        'whether the nodes would accept every key and value of the parameter file',
        node_checks.parameter_file,
    ),
    Check(
        'kernel.release',
        'the kernel release, and whether it is new enough for dma-heaps',
        machine_checks.kernel_release,
    ),
    Check(
        'kernel.sync_file_ioctls',
        'whether fences can be exported from buffers and imported into them (Linux 6.0)',
        machine_checks.sync_file_ioctls,
    ),
    Check(
        'memory.heaps',
        'whether each dma-heap and udmabuf exists, and this user may open it',
        machine_checks.heaps,
    ),
    Check(
        'memory.cma_pool',
        'whether the contiguous memory (CMA) has room for the buffer pools of the parameter file',
        machine_checks.cma_pool,
    ),
    Check(
        'buffers.cpu',
        'allocate, map, synchronise, write and read back a real buffer of each heap',
        machine_checks.cpu_trials,
    ),
    Check(
        'buffers.fences',
        'export a real fence from a buffer of each heap, and import it again',
        machine_checks.fence_trials,
    ),
)
_CAMERAS = (
    Check(
        'cameras.configured',
        'whether each camera supports the values that the parameter file sets for it',
        node_checks.configured_cameras,
    ),
    Check(
        'cameras.calibration',
        "whether each camera's calibration file exists and matches the camera",
        node_checks.calibrations,
    ),
)
_LAST = (
    Check(
        'model.manifest',
        "read the manifest and engine files of the parameter file's model",
        node_checks.model_manifest,
    ),
    Check(
        'model.load',
        'load the model on the accelerator that the inference node would choose',
        node_checks.model_load,
    ),
    Check('ros.distribution', 'the ROS 2 distribution', node_checks.ros_distribution),
    Check('ros.rclpy', 'whether rclpy works, and its version', node_checks.ros_rclpy),
    Check(
        'ros.middleware',
        'the ROS middleware (RMW), and whether it is installed',
        node_checks.ros_middleware,
    ),
    Check(
        'ros.messages', 'whether the message packages can be imported', node_checks.ros_messages
    ),
    Check(
        'ros.large_messages',
        "whether the middleware's buffers have room for whole image messages",
        node_checks.large_messages,
    ),
    Check(
        'link.runtime_folder',
        "whether the folder for the links' sockets can be used",
        node_checks.runtime_socket_folder,
    ),
    Check(
        'agreement.planned',
        "the buffers that the parameter file's cameras and their consumers would agree on",
        node_checks.planned_agreements,
    ),
    Check(
        'agreement.running',
        'the buffers that running nodes agreed on, the possible formats, and refused consumers',
        node_checks.running_agreements,
    ),
    Check(
        'limits.realtime',
        'whether RLIMIT_RTPRIO allows parameter realtime_priority',
        machine_checks.realtime,
    ),
    Check(
        'limits.locked_memory',
        'whether RLIMIT_MEMLOCK allows parameter lock_memory',
        machine_checks.locked_memory,
    ),
    Check(
        'limits.descriptors',
        'whether RLIMIT_NOFILE allows the descriptors that the buffer pools need',
        machine_checks.descriptors,
    ),
    Check('limits.python', "whether the package's compiled code is used", machine_checks.python),
)


def _declared(kinds: Kinds[Any]) -> list[Check]:
    """Return the checks of the classes of *kinds*; ConfigError: a class declares anything else."""
    found: list[Check] = []
    for name, kind in kinds.declared.classes.items():
        checks: object = kind.CHECKS
        if not isinstance(checks, (tuple, list)) or not all(isinstance(c, Check) for c in checks):
            raise ConfigError(
                f'{kinds.whose(name)} has CHECKS = {shown(checks)}; it must be a tuple of '
                'zc_perception.machine.checks.Check'
            )
        found += checks
    return found


def checks_of(groups: Sequence[str] = ()) -> tuple[Check, ...]:
    """
    Return the checks of these groups, group by group; without *groups*, all checks.

    They include the checks that camera and accelerator classes declare.

    :raises ConfigError: a group is unknown, a class declares something else than checks, or two
        classes declare different checks with one id.
    """
    cameras, accelerators = _declared(CAMERAS), _declared(ACCELERATORS)
    every: dict[str, Check] = {}
    for check in (*_FIRST, *cameras, *_CAMERAS, *accelerators, *_LAST):
        if every.setdefault(check.id, check) != check:
            raise ConfigError(
                f"two kinds of camera or accelerator have a check '{check.id}'; uninstall the "
                'package of one of these kinds'
            )
    order = list(dict.fromkeys(check.group for check in every.values()))
    for group in groups:
        if group not in order:
            raise ConfigError(
                f"--only '{group}' is no group of checks; it must be one of "
                f'{", ".join(order)}{nearest(group, order)}; see zc_doctor --help'
            )
    found = (check for check in every.values() if not groups or check.group in groups)
    return tuple(sorted(found, key=lambda check: order.index(check.group)))


VERSION = 1
# The names of the checks' threads begin with this.
_THREAD = 'zc_doctor '
# The report shows at most this many characters of a finding's figures, for example of the long
# list of a camera's formats.
_LONGEST = 400
_MARKS = {Status.OK: 'ok  ', Status.WARN: 'warn', Status.FAIL: 'FAIL', Status.SKIP: 'skip'}


@dataclass(frozen=True)
class Result:
    """A finding, and the check that yielded it."""

    check: Check
    finding: Finding


class _Memory:
    """Stores what separate processes answered to checks, so that each question is asked once."""

    def __init__(self, ask: Callable[..., dict[str, Any]]) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._asked: dict[tuple[Question, tuple[str, ...]], Future[dict[str, Any]]] = {}

    def __call__(self, question: Question, *arguments: str) -> dict[str, Any]:
        with self._lock:
            first = (question, arguments) not in self._asked
            answer = self._asked.setdefault((question, arguments), Future())
        if first:
            try:
                answer.set_result(self._ask(question, *arguments))
            except BaseException as error:
                answer.set_exception(error)
        return answer.result()


def _not_checked(check: Check, why: str) -> list[Result]:
    advice = (
        'report this if it happens again; to leave this check out, name all groups except '
        f'{check.group} after --only'
    )
    return [Result(check, fail(f'could not be checked: {why}', advice, checked=False))]


def run_check(check: Check, system: System, needs: Needs) -> list[Result]:
    """Run a check and return its findings; an error in the check itself becomes a finding."""
    found: list[Result] = []
    try:
        for finding in check.run(system, needs):
            # Take the findings one by one, so that an error after a finding doesn't lose it.
            if not isinstance(finding, Finding):
                raise TypeError(f'the check gave {shown(finding)}, which is no Finding')
            status = finding.status
            if not isinstance(status, Status):
                raise TypeError(f'a finding has status {shown(status)}, which is no Status')
            # Raise an error if --json couldn't write the figures.
            json.dumps(dict(finding.figures), allow_nan=False)
            found.append(Result(check, finding))
    except ZcError as error:
        return [*found, *_not_checked(check, str(error))]
    # A check's bug must not hide other checks' findings. A library may raise any BaseException:
    # PyO3's PanicException is one.
    except BaseException as error:
        return [*found, *_not_checked(check, one_line(error))]
    return found or _not_checked(check, 'the check gave no result')


def run_checks(
    checks: Sequence[Check], system: System, needs: Needs, limit_s: float = CHECK_LIMIT_S
) -> Iterator[Result]:
    """Run the checks, each for at most *limit_s* seconds; yield findings in the checks' order."""
    system = replace(system, ask=_Memory(system.ask))
    ended: queue.SimpleQueue[tuple[Check, list[Result]]] = queue.SimpleQueue()
    # By group: the check that runs now on its own thread, then the checks that follow it.
    lanes: dict[str, deque[Check]] = {}
    deadlines: dict[str, float] = {}
    done: dict[str, list[Result]] = {}
    for check in checks:
        lanes.setdefault(check.group, deque()).append(check)

    def work(check: Check) -> None:
        ended.put((check, run_check(check, system, needs)))

    def start(group: str) -> None:
        check = lanes[group][0]
        deadlines[group] = time.monotonic() + limit_s
        name = f'{_THREAD}{check.id}'
        threading.Thread(target=work, args=(check,), name=name, daemon=True).start()

    def end(check: Check, results: list[Result]) -> None:
        if check.id in done:
            return  # this check was already reported as too slow
        done[check.id] = results
        lanes[check.group].popleft()
        del deadlines[check.group]
        if lanes[check.group]:
            start(check.group)

    for group in lanes:
        start(group)
    for check in checks:
        while check.id not in done:
            wait_s = min(deadlines.values()) - time.monotonic()
            try:
                end(*ended.get(timeout=max(0.0, wait_s)))
            except queue.Empty:
                late = f'the check did not end within {limit_s:g} s; see dmesg'
                for group in [g for g, due in deadlines.items() if due <= time.monotonic()]:
                    end(lanes[group][0], _not_checked(lanes[group][0], late))
        yield from done[check.id]


def exit_code(results: Sequence[Result]) -> int:
    """Return 0 if no finding is a ``fail``, else 1."""
    return int(any(result.finding.status is Status.FAIL for result in results))


def heading(system: System, needs: Needs) -> str:
    """Return the report's first line."""
    return printable(
        f'zc_doctor {zc_perception.__version__}: Linux {system.release or "?"} on '
        f'{system.machine}, {needs.summary()}'
    )


def lines_of(result: Result, verbose: bool) -> Iterator[str]:
    """Yield the report's lines about a finding; skipped findings only if *verbose*."""
    finding = result.finding
    if finding.status is Status.SKIP and not verbose:
        return
    subject = f' [{finding.subject}]' if finding.subject else ''
    yield printable(f'{_MARKS[finding.status]}  {result.check.id}{subject}: {finding.found}')
    if finding.advice:
        yield printable(f'      -> {finding.advice}')
    if verbose and finding.figures:
        text = ', '.join(f'{name}={value}' for name, value in finding.figures.items())
        yield printable(
            '      '
            f'{text if len(text) <= _LONGEST else text[:_LONGEST] + " … (all figures: --json)"}'
        )


def summary_line(results: Sequence[Result], verbose: bool) -> str:
    """Return the report's last line."""
    counts = Counter(result.finding.status for result in results)
    hidden = ' (--verbose shows them)' if counts[Status.SKIP] and not verbose else ''
    return (
        f'{counts[Status.OK]} ok, {counts[Status.WARN]} warn, {counts[Status.FAIL]} fail, '
        f'{counts[Status.SKIP]} do not apply{hidden}'
    )


def document(results: Sequence[Result], system: System, needs: Needs) -> dict[str, Any]:
    """Return the document that ``--json`` writes."""
    counts = Counter(result.finding.status for result in results)
    return {
        'version': VERSION,
        'environment': {
            'date': datetime.now(timezone.utc).isoformat(timespec='seconds'),
            'kernel': system.release,
            'machine': system.machine,
            'python': platform.python_version(),
            'package': zc_perception.__version__,
            'user': system.user,
        },
        'params_file': needs.path,
        'checks': [
            {
                'id': result.check.id,
                'group': result.check.group,
                'subject': result.finding.subject,
                'status': result.finding.status.value,
                'found': result.finding.found,
                'advice': result.finding.advice,
                'figures': dict(result.finding.figures),
            }
            for result in results
        ],
        'summary': {
            **{status.value: counts[status] for status in Status},
            'exit_code': exit_code(results),
        },
    }


_PATIENCE_S = 1.0
_LONGEST_S = 3600.0


def _output(name: str) -> Path:
    """
    Return the file for the JSON result; if its folder is missing, make it, and tell the user so.

    :raises ConfigError: the file can't be written.
    """
    folder = os.path.dirname(os.path.realpath(name))
    missing = not os.path.isdir(folder)
    path = output_file(name, '--json')
    if missing:
        _complain(f"zc_doctor: made folder '{folder}' for --json")
    return path


def _say(text: str) -> None:
    """Print a text to stdout; raise BrokenPipeError if no program reads it any more."""
    error = put(text, sys.stdout)
    if isinstance(error, BrokenPipeError):
        raise error
    if error is not None:
        raise ConfigError(
            f"the report can't be written to stdout: {error.strerror}; send it to another place"
        ) from error


def _complain(text: str) -> None:
    put(printable(text), sys.stderr)


@contextlib.contextmanager
def _stdout_is_for_the_report() -> Iterator[None]:
    """Send to stderr what checks, or libraries that they call, print to stdout here."""
    with contextlib.ExitStack() as ending:
        with contextlib.suppress(OSError):  # stdout or stderr is closed
            kept = ending.enter_context(OwnedFd(os.dup(1)))
            os.dup2(2, 1)
            ending.callback(os.dup2, kept.fileno(), 1)
            ending.callback(ctypes.CDLL(None).fflush, None)
        ending.enter_context(contextlib.redirect_stdout(sys.stderr))
        yield


def run(options: argparse.Namespace, system: System, *, json_only: bool) -> int:
    """
    Run the checks, print the report, and return the exit code.

    Option ``--json FILE`` also writes the JSON result to the file. *json_only* stands for
    ``--json`` without a file: then print the JSON in place of the report.
    """
    with _stdout_is_for_the_report() if json_only else contextlib.nullcontext():
        needs = read_needs(options.params_file, options.cameras)
        if not 0 < options.time_limit <= _LONGEST_S:
            raise ConfigError(
                f'--time-limit is {options.time_limit:g}; it must be a number of seconds above 0, '
                f'at most {_LONGEST_S:g}'
            )
        # Make sure that the file can be written before the checks begin, because they take time.
        output = None if options.json is None or json_only else _output(options.json)
        results: list[Result] = []
        if not json_only:
            _say(heading(system, needs))
        for result in run_checks(checks_of(options.only), system, needs, options.time_limit):
            results.append(result)
            for line in lines_of(result, options.verbose) if not json_only else ():
                _say(line)
    if not json_only:
        _say(summary_line(results, options.verbose))
    if options.json is not None:
        text = json.dumps(document(results, system, needs), indent=1, allow_nan=False)
        if output is None:
            _say(text)
        else:
            write_output(output, text + '\n', '--json')
    return exit_code(results)


def run_until_a_signal(options: argparse.Namespace, system: System, *, json_only: bool) -> int:
    """Call :func:`run`; return its exit code, or the code for an error or a signal."""
    with interruptions() as interruption:
        try:
            with interruption.allowed():
                return run(options, system, json_only=json_only)
        except ConfigError as error:
            _complain(error_line('zc_doctor', error))
            return EXIT_USAGE
        except BrokenPipeError:  # the program that reads the report closed the pipe
            return 128 + signal.SIGPIPE
        except Interrupted as interrupted:
            end_all()
            _complain(f'zc_doctor: ended by {interrupted}')
            return interrupted.exit_code
        finally:
            # Wait for threads that are about to end, but not for those that hang in the kernel.
            deadline = time.monotonic() + _PATIENCE_S
            for thread in threading.enumerate():
                if thread.name.startswith(_THREAD):
                    thread.join(max(0.0, deadline - time.monotonic()))
