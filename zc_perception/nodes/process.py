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
Run nodes as a program: ROS context, executor, signals, one-line errors, an orderly end.

It also tells systemd how it is (:func:`serve`). The watchdog has to notice a program that hangs,
not a camera that is unplugged: a restart would not help, and would remove the diagnostics that say
what is wrong. So the watchdog is fed while the nodes make progress, and while they know why they
don't: a camera that is unplugged, a card that recovers, a node that has not been activated. A
worry is what nothing else would report: a thread or an executor that hangs.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
from functools import partial
import os
import resource
import socket
import sys
import threading
import time
import traceback
from typing import Any

import rclpy
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.logging import get_logger
from rclpy.node import Node
from rclpy.utilities import remove_ros_args

from zc_perception.errors import error_line, EXIT_FAILURE, EXIT_USAGE, ZcError
from zc_perception.link.rclpy_compat import call_soon, init_without_signal_handlers, InvalidHandle
from zc_perception.native import how_it_runs
from zc_perception.nodes import STARTUP
from zc_perception.nodes.params.ros_arguments import (
    check_start,
    command_line,
    CommandLine,
    explain_ros_arguments,
    remember_command_line,
)
from zc_perception.nodes.perception_node import PATIENCE_S, PerceptionNode
from zc_perception.terminal import Interrupted, interruptions

_MAX_WAITS_IN_VAIN = 20
_PAUSE_S = 0.002
_CALLBACK_ENDS_S = 1.0
# After this time a thread that computes in Python hands the interpreter's lock to one that waits
# for it, such as a camera's (CPython's default: 5 ms).
_SWITCH_S = 0.0005


class _Executor(SingleThreadedExecutor):
    """Wait again if another thread destroys an entity meanwhile; rclpy's own ends with that."""

    def wait_for_ready_callbacks(self, *arguments: Any, **options: Any) -> Any:
        """Wait as rclpy does."""
        for _ in range(_MAX_WAITS_IN_VAIN):
            with contextlib.suppress(InvalidHandle):
                return super().wait_for_ready_callbacks(*arguments, **options)
            time.sleep(_PAUSE_S)
        return super().wait_for_ready_callbacks(*arguments, **options)


class ExecutorThread:
    """
    Spins a SingleThreadedExecutor on a thread of its own; the main thread is free for signals.

    rclpy's ``shutdown`` does not wait for the thread that spins, although it says so: it takes the
    guard conditions away at once, and the thread may use one that is gone. So the thread is ended
    first, and the executor is shut down when nothing spins it any more.
    """

    def __init__(self, context: rclpy.Context, on_failure: Callable[[], None]) -> None:
        self.executor = _Executor(context=context)
        self.failure: str | None = None
        self._on_failure = on_failure
        self._ending = False
        self._given_up = False
        self._thread = threading.Thread(target=self._spin, name='executor', daemon=True)

    def start(self) -> None:
        """Start spinning."""
        self._thread.start()

    def _spin(self) -> None:
        try:
            while not self._ending and self.executor.context.ok():
                self.executor.spin_once()
        except ExternalShutdownException:
            pass
        except Exception:
            if not self._given_up:
                self.failure = traceback.format_exc()
                self._on_failure()

    def stop(self) -> None:
        """End it; what a callback raises after :data:`_CALLBACK_ENDS_S` is no failure."""
        self._ending = True
        if self._thread.is_alive():
            call_soon(
                self.executor, lambda: None
            )  # a task ends the wait; waking the executor alone would begin the next one
            self._thread.join(timeout=_CALLBACK_ENDS_S)
        if self._thread.is_alive():
            self._given_up = True
        else:
            self.executor.shutdown(timeout_sec=0.0)


@contextlib.contextmanager
def ros_context(
    args: Sequence[str] | None, context: rclpy.Context | None = None, *, tolerant: bool = False
) -> Iterator[rclpy.Context]:
    """
    Return an initialised context: *context*, or one of its own.

    :param tolerant: a bare ``-p`` that none of the package's nodes has is a warning.
    :raises ConfigError: the command line's ROS arguments or a parameter file can't be used.
    """
    context = context or rclpy.Context()
    raised = _raise_descriptor_limit()
    sys.setswitchinterval(_SWITCH_S)
    try:
        remove_ros_args(
            ['', *(args or ())]
        )  # raises for what is wrong with them, where init would write to stderr as well
        init_without_signal_handlers(context, None if args is None else list(args))
    except Exception as error:  # rclpy has several classes of its own for this
        raise explain_ros_arguments(args or (), error) from error
    remember_command_line(context, CommandLine(args or (), tolerant=tolerant))
    STARTUP.reached('ros')
    get_logger('zc_perception').debug(f'{raised}; {how_it_runs()}')
    try:
        yield context
    finally:
        context.try_shutdown()


def _raise_descriptor_limit() -> str:
    """
    Raise the soft limit to the hard one; return what a log may say about it.

    Every buffer of every camera and every fence is a descriptor. The usual soft limit of 1,024
    exists for programs that call ``select()``, which nothing here does.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return f'this process may open {hard} files (RLIMIT_NOFILE was {soft})'


class NodeGroup:
    """
    Some nodes on one executor, as a context manager; leaving it stops and destroys the nodes.

    :param nodes: producers first.
    :param on_failure: called on the executor's thread when a callback's exception has ended it.
    """

    def __init__(
        self,
        context: rclpy.Context,
        nodes: Sequence[PerceptionNode],
        on_failure: Callable[[], None],
    ) -> None:
        self.nodes = tuple(nodes)
        self._spinner = ExecutorThread(context, on_failure)

    def __enter__(self) -> NodeGroup:
        for node in self.nodes:
            self._spinner.executor.add_node(node)
        self._spinner.start()
        return self

    def start(self, check: Callable[[], None] = lambda: None) -> None:
        """
        Start the nodes, consumers first, so that no frame is lost between them.

        All cameras start at once: they are open by then.

        :param check: called before each; what it raises ends the start.
        """
        for node in reversed(self.nodes):
            check()
            if node.parameters['autostart']:
                node.configure_now()
        for node in reversed(self.nodes):
            check()
            node.start()

    @property
    def failure(self) -> str | None:
        """The traceback that ended the executor, if one did."""
        return self._spinner.failure

    def liveness(self) -> Liveness:
        """Return what says whether the nodes and their executor make progress."""
        return Liveness(lambda: self.nodes, {'the executor': self.soon})

    def soon(self, function: Callable[[], object]) -> None:
        """Run a function on the executor's thread. Any thread may call this."""
        call_soon(self._spinner.executor, function)

    def add_node(self, node: Node) -> None:
        """Spin one more node, whose owner destroys it after the group has ended."""
        self._spinner.executor.add_node(node)

    def __exit__(self, *exception: object) -> None:
        self._spinner.stop()
        for node in self.nodes:
            node.stop()
        for node in self.nodes:
            node.destroy_node()


# systemd recommends half of the time that it waits; twice in it, so that one may come late on a
# loaded machine.
_PER_TIMEOUT = 3.0


def serve(
    wait: Callable[[float | None], bool],
    worry: Callable[[], str],
    monotonic: Callable[[], float] = time.monotonic,
) -> None:
    """
    Wait for the end; meanwhile tell a service manager that we are ready and live.

    A process that has ``$WATCHDOG_USEC`` feeds the watchdog, whatever ``$WATCHDOG_PID`` is: a
    service's main process may be ``ros2 launch``, which speaks no sd_notify.

    :param wait: waits this many seconds (``None``: without limit); true: the end was asked for.
    :param worry: why the program can't be said to live, see :meth:`Liveness.worry`; empty: it
        lives.
    """
    notify('READY=1')
    microseconds = os.environ.get('WATCHDOG_USEC', '')
    period_s = int(microseconds) / 1e6 / _PER_TIMEOUT if microseconds.isdecimal() else 0.0
    due_s, status = monotonic(), ''
    while True:
        now = monotonic()
        if period_s and now >= due_s:
            due_s = now + period_s
            doubt = worry()
            before, status = status, doubt or 'running; /diagnostics says whether frames flow'
            if status != before:
                notify(f'STATUS={" ".join(status.split())}')
            if not doubt:
                notify('WATCHDOG=1')
        if wait(max(0.0, due_s - now) if period_s else None):
            break
    notify('STOPPING=1')


def notify(message: str) -> None:
    """Send one message to the service manager; do nothing if there is none, or it doesn't read."""
    address = os.environ.get('NOTIFY_SOCKET', '')
    if address.startswith(('/', '@')):
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as speaking,
        ):
            # An abstract address is written with @.
            speaking.sendto(message.encode(), f'\0{address[1:]}' if address[0] == '@' else address)


class Liveness:
    """
    Whether the nodes of a process and their executors make progress.

    It looks each time it is asked, and takes no lock of theirs: it must not hang with them.

    :param nodes: those that there are now.
    :param executors: each runs a function soon, on its own thread; by names.
    """

    def __init__(
        self,
        nodes: Callable[[], Sequence[PerceptionNode]],
        executors: Mapping[str, Callable[[Callable[[], object]], object]],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._nodes = nodes
        self._executors = executors
        self._monotonic = monotonic
        self._asked: dict[str, float] = {}
        self._seen: dict[str, tuple[int, float]] = {}
        """Of each node its progress, and since when it is this."""

    def worry(self) -> str:
        """One sentence; empty if there is nothing to worry about."""
        return '; '.join([*self._look_at_executors(), *self._look_at_nodes()])

    def _look_at_executors(self) -> list[str]:
        now, found = self._monotonic(), []
        for name, soon in self._executors.items():
            asked = self._asked.setdefault(name, now)
            if asked == now:
                soon(partial(self._asked.pop, name, None))
            elif now - asked > PATIENCE_S:
                found.append(f'{name} has run nothing for {now - asked:.0f} s')
        return found

    def _look_at_nodes(self) -> list[str]:
        now, found = self._monotonic(), []
        before, self._seen = self._seen, {}
        for node in self._nodes():
            name, progress = node.get_fully_qualified_name(), node.progress()
            if reason := node.given_up():
                found.append(f'{name} has given up: {reason}')
            if progress is None:
                continue
            seen, since_s = before.get(name, (None, now))
            self._seen[name] = progress, since_s if seen == progress else now
            if seen == progress and now - since_s > node.patience_s:
                found.append(f'{name} has made no progress for {now - since_s:.0f} s')
        return found


def run_program(
    program: str,
    build: Callable[[rclpy.Context, Callable[[], None]], Sequence[PerceptionNode]],
    options: argparse.Namespace,
) -> int:
    """
    Run until a signal; return the exit code.

    0 after SIGINT, SIGTERM or SIGHUP, :data:`EXIT_USAGE` with one line on stderr for anything the
    user can mend, 1 for a bug.

    :param build: makes the nodes, and calls its second argument between those that take long; what
        that raises, it passes on.
    :param options: ``unknown_parameters`` counts here.
    """
    STARTUP.reached('imports')
    with interruptions(for_good=True) as stop:
        try:
            with (
                ros_context(
                    sys.argv[1:], tolerant=options.unknown_parameters == 'warn'
                ) as context,
                NodeGroup(context, build(context, stop.check), stop.set) as group,
            ):
                check_start(group.nodes, command_line(context))
                STARTUP.reached('nodes')
                group.start(stop.check)
                STARTUP.reached('ready')
                for node in group.nodes:
                    step = (
                        ': it waits for ros2 lifecycle set '
                        f'{node.get_fully_qualified_name()} configure'
                    )
                    node.get_logger().info(
                        'ready' if node.parameters['autostart'] else f'ready{step}'
                    )
                serve(stop.wait, group.liveness().worry)
                if group.failure is not None:
                    print(group.failure, file=sys.stderr)
                    return EXIT_FAILURE
                return 0
        except Interrupted:
            return 0
        except ZcError as error:
            print(error_line(program, error), file=sys.stderr)
            return EXIT_USAGE
