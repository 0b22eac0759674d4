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
How a process that measures gets its commands, answers them, and ends.

:mod:`~bench.worker` is the other end.

The module imports next to nothing: the processes of the floors must have nothing else loaded.

SIGTERM ends such a process where nothing is half-done (see
:class:`~zc_perception.terminal.Interruption`): :func:`hold_back_termination` comes first,
:func:`terminable` is around the commands. A process of nodes is :func:`run_worker` around
:func:`obey`: it does both, and says why when it fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
import contextlib
import json
import os
import signal
import sys
from typing import Any, TYPE_CHECKING

from zc_perception.errors import ZcError
from zc_perception.terminal import INTERRUPTION

if TYPE_CHECKING:
    import rclpy

    from zc_perception.nodes.process import ExecutorThread


def commands() -> Iterator[dict[str, Any]]:
    """Yield each command, until standard input ends."""
    for line in sys.stdin:
        yield json.loads(line)


def answer(reply: Mapping[str, Any]) -> None:
    """
    Write one line to standard output.

    :raises SystemExit: no process listens any more: the benchmark was killed.
    """
    try:
        print(json.dumps(reply), flush=True)
    except BrokenPipeError:
        # The interpreter flushes once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None


def hold_back_termination() -> None:
    """
    Make SIGTERM wait until there is something to end in order.

    Call it in a worker, in the main thread, before it opens anything. The mask is for the threads
    that libraries start from here on: a call of theirs isn't interrupted.
    """
    INTERRUPTION.begin(lambda number: SystemExit(128 + number))
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    signal.signal(signal.SIGTERM, INTERRUPTION.handle)


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """
    Let SIGTERM end the worker in this block.

    So setting up and taking down, before and after it, isn't left half-way.
    """
    with INTERRUPTION.allowed():
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        yield


def run_worker(serve: Callable[[rclpy.Context], None]) -> None:
    """
    Run *serve*, which calls :func:`obey` once everything is built up.

    :raises SystemExit: 1 after an error, which is the answer to the command then.
    """
    from zc_perception.nodes.process import ros_context

    hold_back_termination()
    try:
        with ros_context(['--ros-args', '--log-level', 'error']) as context:
            serve(context)
    except ZcError as error:
        answer({'failure': str(error)})
        raise SystemExit(1) from None


def obey(server: object, running: ExecutorThread | None = None) -> None:
    """
    Call the method of *server* that each command names.

    It ends when standard input ends or SIGTERM comes. The method's result is the answer.

    :param running: if its executor has ended with a traceback, that is the answer.
    """
    # The end of input comes first, and what it sets off is not to be stopped.
    with terminable():
        for command in commands():
            if running is not None and running.failure:
                print(running.failure, file=sys.stderr)
                answer(
                    {
                        'failure': (
                            f'its executor has ended: {running.failure.strip().splitlines()[-1]}'
                        )
                    }
                )
            else:
                answer(getattr(server, command.pop('op'))(**command) or {})
