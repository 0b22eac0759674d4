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
Check whether nodes that run, or those that a command starts, keep the four invariants.

This is the command ``zc_verify``. It begins in :mod:`~zc_perception.verify.zc_verify`; :func:`run`
is the whole command.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
import contextlib
from dataclasses import replace
import json
import os
from pathlib import Path
import signal
import sys
import traceback

from zc_perception.errors import ConfigError, printable, ZcError
from zc_perception.observe.frame_log import FoundFrameLogs
from zc_perception.observe.processes import sudo_command
from zc_perception.observe.timeline import build_timeline, NodeTrack
from zc_perception.programs import OptionParser
from zc_perception.terminal import Interrupted, Interruption, interruptions, put
from zc_perception.verify.evidence import Unreadable
from zc_perception.verify.invariants import all_checks, KNOWN_EXPORTERS
from zc_perception.verify.measurement import Ending, Measurement, Roots
from zc_perception.verify.observation import Observation
from zc_perception.verify.result import (
    document_keys,
    EXIT_NOT_MEASURED,
    EXIT_USAGE,
    notes,
    RESULT,
    Result,
    verdict,
    write_result,
)
from zc_perception.verify.workload import (
    absent,
    Command,
    hidden_logs,
    Newcomers,
    running_nodes,
    wait_for_frames,
)
from zc_perception.whole_file import write_whole


class Say:
    """
    Print each text as one line.

    Names come from other programs, so :func:`printable` escapes what would forge a line. If the
    reader goes away, the measurement goes on.
    """

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet

    def __call__(self, text: str) -> None:
        """Print a line that ``--quiet`` leaves out."""
        if not self._quiet:
            self.verdict(text)

    def verdict(self, text: str) -> None:
        """Print a line in any case."""
        put(printable(text), sys.stdout)

    def error(self, text: str) -> None:
        """Print a line to standard error."""
        put(printable(f'zc_verify: {text}'), sys.stderr)


TRACE, TIMELINE, LOG, ERROR = 'trace.txt', 'timeline.json', 'command.log', 'traceback.txt'
_WHAT = (
    'Measures whether the four invariants hold for the nodes that run, or for those that '
    'a command starts.'
)
_EXAMPLES = (
    'zc_verify --seconds 10',
    'zc_verify --output build/verify -- ros2 launch zc_perception perception.launch.py',
)
_EPILOG = """exit status: 0 all four were measured and hold; 1 all were measured, and one does not
hold; 3 not all could be measured, or zc_verify itself failed; 2 wrong use, or there is no node to
measure; 128 + n: signal n came before anything was measured. Everything is
measured only as root."""


def _as_root() -> str:
    return sudo_command(sys.argv[0])


def parser() -> OptionParser:
    """Return the parser of the options."""
    made = OptionParser(
        'zc_verify', _WHAT, _EXAMPLES, usage='[options] [-- COMMAND ...]', after=_EPILOG
    )
    made.epilog = f'{made.epilog} In this shell that is:\n  {_as_root()}'
    main, more = made.main, made.more
    main.add_argument(
        '--seconds',
        type=float,
        default=10.0,
        help='how long, and up to a second more for the counters (default: 10)',
    )
    main.add_argument(
        '--frames',
        type=int,
        default=0,
        help='measure until this number of frames was processed (0: the whole time)',
    )
    main.add_argument(
        '--output',
        type=Path,
        default=Path('build/verify'),
        help=f'folder for {RESULT}, {TRACE}, {TIMELINE}',
    )
    main.add_argument(
        '--pid',
        type=int,
        nargs='+',
        default=None,
        help='measure the nodes of these processes only',
    )
    main.add_argument(
        'command', nargs='*', help='start this, measure what it starts, end it (after --)'
    )
    more.add_argument(
        '--known-exporter',
        nargs='+',
        default=[],
        action='extend',
        metavar='NAME',
        help=f'an exporter that is fine, besides {", ".join(KNOWN_EXPORTERS)}',
    )
    more.add_argument('--no-memmove-probe', action='store_true',
                      help="do not count the C library's copies, which slows memmove down; I4 "
                           'is then not measured')  # fmt: skip
    more.add_argument('--no-sampling', action='store_true',
                      help="do not sample the processors after the window; the document's "
                           'fourth key is then not known')  # fmt: skip
    more.add_argument(
        '--wait',
        type=float,
        default=60.0,
        help='how long a command may take until frames flow (default: 60)',
    )
    more.add_argument('--quiet', action='store_true', help='print the last line only')
    return made


@contextlib.contextmanager
def _workload(
    arguments: argparse.Namespace, stop: Interruption
) -> Iterator[tuple[FoundFrameLogs, Command | None]]:
    if not arguments.command:
        with running_nodes(arguments.pid) as found:
            yield found, None
        return
    command = Command(arguments.command, arguments.output / LOG)
    try:
        with wait_for_frames(command, arguments.wait, stop.wait) as found:
            yield found, command
    finally:
        command.stop()


class _NotMeasured(ConfigError):
    """This user may not look into some processes."""


def _unreadable(
    found: FoundFrameLogs, arguments: argparse.Namespace, command: Command | None
) -> list[Unreadable]:
    """
    List node logs that this user may not read.

    :raises ConfigError: a process that was asked for has no node, or there is nothing to measure.
    """
    missing = absent(found, arguments.pid or ())
    if missing:
        raise ConfigError('; '.join(missing))
    # A process without a name has ended meanwhile.
    hidden = hidden_logs([one for one in found.unreadable if arguments.pid or one.name])
    if not arguments.pid and command is None:
        hidden = [
            replace(one, next_step=f'{one.next_step}, or name the nodes with --pid')
            for one in hidden
        ]
    if found:
        return hidden
    if hidden:
        raise _NotMeasured(f'not measured: {"; ".join(map(str, hidden))}')
    if command is not None:
        how = 'has ended' if command.ended else f'started no node within {arguments.wait:g} s'
        raise ConfigError(f'the command {how}; see {arguments.output / LOG}')
    raise ConfigError(
        'there is no node with a frame log on this machine; start one, or give a command after --'
    )


def _measure(arguments: argparse.Namespace, stop: Interruption, say: Say) -> Result:
    arguments.output.mkdir(parents=True, exist_ok=True)
    for name in (RESULT, TRACE, TIMELINE, ERROR):
        (arguments.output / name).unlink(missing_ok=True)
    with Measurement(
        Roots(), memmove_probe=not arguments.no_memmove_probe, sampling=not arguments.no_sampling
    ) as measurement:
        for name in measurement.leftovers:
            say(f'removed {name}, which an earlier run left behind')
        with _workload(arguments, stop) as (found, command):
            stop.check()
            hidden = _unreadable(found, arguments, command)
            for log in found:
                say(f'measuring {log}')
            for one in hidden:
                say(f'not measured: {one}')
            with contextlib.suppress(OSError):
                os.nice(10)  # set only after starting the command, which would inherit it
            newcomers = Newcomers(found, arguments.pid, command)
            ending = measurement.watch(
                found,
                arguments.seconds,
                arguments.frames,
                stop.wait,
                lambda: (
                    any(log.alive for log in found) and not (command is not None and command.ended)
                ),
                newcomers.look,
            )
            seen = measurement.observation()
            unread = [*seen.why('frame log'), *newcomers.unreadable(seen.end_ns)]
            for one in unread:
                say(f'not measured: {one}')
            seen.tell('frame log', *hidden, *unread)
            told = [*_cut_short(ending, seen, arguments, stop, command), *notes(seen)]
            say(f'measured {len(seen.all_submitted())} frames')
        text = measurement.trace_text()
        measurement.close()
        for one in measurement.teardown:
            say(str(one))
    known = (*KNOWN_EXPORTERS, *arguments.known_exporter)
    files = {'trace': TRACE} if text else {}
    if text:
        write_whole(arguments.output / TRACE, text)
    if arguments.command:
        files['command'] = LOG
    document = document_keys(seen)
    result = Result(
        seen, all_checks(seen, known), document, told, sys.argv, files | {'timeline': TIMELINE}
    )
    tracks = [
        NodeTrack(
            node.node,
            node.role,
            node.pid,
            [one for one in node.records if seen.within(one.done_ns or one.published_ns)],
        )
        for node in seen.nodes
    ]
    events = seen.trace.events if seen.trace is not None else ()
    timeline = build_timeline(tracks, [one for one in events if seen.within(one.time_ns)])
    write_whole(arguments.output / TIMELINE, json.dumps(timeline, allow_nan=False))
    write_result(result, arguments.output)
    return result


def _cut_short(
    ending: Ending,
    seen: Observation,
    arguments: argparse.Namespace,
    stop: Interruption,
    command: Command | None,
) -> Iterator[str]:
    """Say why the measurement was cut short, if it was."""
    after = f'after {(seen.end_ns - seen.start_ns) / 1e9:.1f} of {arguments.seconds:g} s'
    if ending is Ending.WANTED:
        yield (
            f'{signal.Signals(stop.came).name} ended the measurement {after}; what was seen '
            'until then is judged'
        )
    elif ending is Ending.GONE and command is not None:
        status = f', with status {command.status}' if command.ended else ''
        yield (
            f'the command ended its nodes or itself {after}{status}; give one that runs '
            'until it is ended'
        )
    elif ending is Ending.GONE:
        yield f'the measurement ended {after}: no node was left'


def _check(arguments: argparse.Namespace) -> None:
    """
    Check the options.

    :raises ConfigError: an option can't be used.
    """
    if not 0.1 <= arguments.seconds <= 86400:
        raise ConfigError(
            f'--seconds is {arguments.seconds:g}, outside of 0.1..86400; 10 is a good start'
        )
    if arguments.frames < 0:
        raise ConfigError(f'--frames is {arguments.frames}; it must be 0 (the whole time) or more')
    if not 1 <= arguments.wait <= 86400:
        raise ConfigError(f'--wait is {arguments.wait:g}, outside of 1..86400; 60 is a good start')
    if arguments.command and arguments.pid:
        raise ConfigError(
            '--pid names running nodes and a command starts new ones; give one of both'
        )


def _failed(error: Exception, folder: Path, say: Say) -> int:
    """Report an error of ``zc_verify`` itself, which is no verdict; return the exit status."""
    path = folder / ERROR
    told = f'zc_verify itself failed, so nothing is measured: {type(error).__name__}: {error}'
    text = ''.join(traceback.format_exception(error))
    try:
        path.write_text(text, encoding='utf-8', errors='backslashreplace')
    except OSError:
        say.error(f'{told}; please report it with this: {text}')
    else:
        say.error(f'{told}; please report it with {path}')
    return EXIT_NOT_MEASURED


def run(arguments: argparse.Namespace) -> int:
    """Run the whole command; return its exit status."""
    say = Say(arguments.quiet)
    try:
        _check(arguments)
        with interruptions() as interruption:
            result = _measure(arguments, interruption, say)
    except Interrupted as came:
        say.error(f'interrupted by {came} before anything was measured')
        return came.exit_code
    except ZcError as error:
        say.error(str(error))
        if not isinstance(error, _NotMeasured):
            return EXIT_USAGE
        if os.geteuid() != 0:
            say.error(f'as root: {_as_root()}')
        return EXIT_NOT_MEASURED
    except OSError as error:
        say.error(f'{error}; choose a folder that can be written with --output')
        return EXIT_USAGE
    except Exception as error:
        return _failed(error, arguments.output, say)
    lines = verdict(result)
    for line in lines[:-1]:
        say(line)
    if result.exit_code == EXIT_NOT_MEASURED and os.geteuid() != 0:
        say(f'as root: {_as_root()}')
    say.verdict(f'{lines[-1]} ({arguments.output / RESULT})')
    return result.exit_code
