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
Read commands in a process that measures, answer them, and end the process in order.

:mod:`~bench.worker` sends the commands. This module imports very little, because the processes of
the floors must stay small.

SIGTERM ends such a process only during commands, never while it sets up or cleans up (see
:class:`~zc_perception.terminal.Interruption`). For this, a process calls
:func:`hold_back_termination` first and uses :func:`terminable` around its commands. A process with
ROS nodes uses :func:`run_worker` and :func:`obey`, which do both, and answer with the error if the
process fails.
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
    Write an answer as one line to standard output.

    :raises SystemExit: standard output is closed, because the benchmark was killed.
    """
    try:
        print(json.dumps(reply), flush=True)
    except BrokenPipeError:
        # The interpreter flushes standard output once more at its end, which must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None


def hold_back_termination() -> None:
    """
    Delay SIGTERM until :func:`terminable`.

    Call this in the main thread of a worker, before it opens anything. Threads that libraries
    start later inherit the signal mask, so that SIGTERM never interrupts their system calls.
    """
    INTERRUPTION.begin(lambda number: SystemExit(128 + number))
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    signal.signal(signal.SIGTERM, INTERRUPTION.handle)


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Let SIGTERM end the worker only in this block, not while it sets up or cleans up."""
    with INTERRUPTION.allowed():
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        yield


def run_worker(serve: Callable[[rclpy.Context], None]) -> None:
    """
    Run *serve*, which sets up the nodes and then calls :func:`obey`.

    :raises SystemExit: with 1 after a ZcError; its text is the answer to the pending command.
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
    Call the method of *server* that each command names, and answer with the method's result.

    It ends when standard input ends or SIGTERM comes.

    :param running: the nodes' executor. If it has ended with an error, the answer is that error.
    """
    # The benchmark closes standard input, then sends SIGTERM, which must not stop the cleaning up.
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
