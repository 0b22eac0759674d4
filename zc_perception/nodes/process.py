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
Run nodes as a program: ROS context, executor, signals, one-line errors, orderly end.

The program also feeds systemd's watchdog (:func:`serve`). The watchdog must restart a program that
hangs, but not one whose camera is unplugged: a restart would not help, and would lose the
diagnostics with the reason. So the watchdog is fed while the nodes make progress or have a known
reason for making none: the camera is unplugged, the card recovers, the node was not activated.
A "worry" is a fault that only a restart mends: a node or an executor hangs, or a node gave up.
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
    refuse_pipes,
    remember_command_line,
)
from zc_perception.nodes.perception_node import PATIENCE_S, PerceptionNode
from zc_perception.terminal import Interrupted, interruptions

_MAX_WAITS_IN_VAIN = 20
_PAUSE_S = 0.002
_CALLBACK_ENDS_S = 1.0
# The interpreter's switch interval: a thread running Python code yields to a waiting thread, such
# as a camera's, after this time. CPython's default is 5 ms.
_SWITCH_S = 0.0005


class _Executor(SingleThreadedExecutor):
    """An executor that, unlike rclpy's, goes on when an entity that it waits for is destroyed."""

    def wait_for_ready_callbacks(self, *arguments: Any, **options: Any) -> Any:
        """Wait as rclpy does; after :class:`InvalidHandle` wait again."""
        for _ in range(_MAX_WAITS_IN_VAIN):
            with contextlib.suppress(InvalidHandle):
                return super().wait_for_ready_callbacks(*arguments, **options)
            time.sleep(_PAUSE_S)
        return super().wait_for_ready_callbacks(*arguments, **options)


class ExecutorThread:
    """
    Spins an executor on a separate thread, because the main thread handles signals.

    By its documentation, rclpy's ``shutdown`` waits for the spinning thread. In fact it doesn't
    wait, and destroys guard conditions that the thread may still use. So :meth:`stop` first ends
    the thread.
    """

    def __init__(self, context: rclpy.Context, on_failure: Callable[[], None]) -> None:
        self.executor = _Executor(context=context)
        self.failure: str | None = None
        self._on_failure = on_failure
        self._ending = False
        self._given_up = False
        self._thread = threading.Thread(target=self._spin, name='executor', daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def _spin(self) -> None:
        try:
            while not self._ending and self.executor.context.ok():
                self.executor.spin_once()
        except ExternalShutdownException:
            pass
        except (Exception, SystemExit):  # a library may call sys.exit() in a callback
            if not self._given_up:
                self.failure = traceback.format_exc()
                self._on_failure()

    def stop(self) -> None:
        """
        End the thread, then shut the executor down.

        If a callback runs longer than :data:`_CALLBACK_ENDS_S`, abandon the thread; its later
        exceptions are ignored.
        """
        self._ending = True
        if self._thread.is_alive():
            # spin_once() returns only after it has run a task, so give it an empty task.
            call_soon(self.executor, lambda: None)
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
    Context manager: initialise *context* or a new one, and shut it down at the block's end.

    :param tolerant: for an unknown parameter that ``-p`` sets for all nodes, log a warning; false:
        raise an error.
    :raises ConfigError: a ROS argument of the command line or a parameter file is wrong.
    """
    refuse_pipes(args or ())
    context = context or rclpy.Context()
    raised = _raise_descriptor_limit()
    sys.setswitchinterval(_SWITCH_S)
    try:
        remove_ros_args(
            ['', *(args or ())]
        )  # for a wrong argument this raises; init would also write to stderr
        init_without_signal_handlers(context, None if args is None else list(args))
    except Exception as error:  # rclpy raises several classes for a wrong argument
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
    Raise the soft limit of file descriptors to the hard limit; return a sentence for the log.

    Each buffer and each fence needs a descriptor. The usual soft limit of 1,024 protects programs
    that call ``select()``; this package doesn't call it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return f'this process may open {hard} files (RLIMIT_NOFILE was {soft})'


class NodeGroup:
    """
    Nodes on one executor; the end of the ``with`` block stops and destroys them.

    :param nodes: producers come first.
    :param on_failure: called after an exception in a callback has ended the executor, on the
        executor's thread.
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
        Start the nodes, consumers first, so that consumers miss no frame.

        Configure all nodes before any is activated, so that all cameras begin at nearly the same
        time.

        :param check: called before each step; an exception that it raises ends the start.
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
        """The traceback of the exception that ended the executor; ``None``: it runs."""
        return self._spinner.failure

    def liveness(self) -> Liveness:
        """Return an object that checks whether the nodes and their executor make progress."""
        return Liveness(lambda: self.nodes, {'the executor': self.soon})

    def soon(self, function: Callable[[], object]) -> None:
        """Let the executor's thread run a function soon. Any thread may call this."""
        call_soon(self._spinner.executor, function)

    def add_node(self, node: Node) -> None:
        """Spin *node* too; the caller must destroy it after the end of the ``with`` block."""
        self._spinner.executor.add_node(node)

    def __exit__(self, *exception: object) -> None:
        self._spinner.stop()
        for node in self.nodes:
            node.stop()
        for node in self.nodes:
            node.destroy_node()


# systemd recommends to feed the watchdog twice per timeout. Feed it more often, because a message
# may come late on a loaded machine.
_PER_TIMEOUT = 3.0


def serve(
    wait: Callable[[float | None], bool],
    worry: Callable[[], str],
    monotonic: Callable[[], float] = time.monotonic,
) -> None:
    """
    Wait for the end of the program; meanwhile report to systemd that it is ready and works.

    If ``$WATCHDOG_USEC`` is set, feed the watchdog. Ignore ``$WATCHDOG_PID``: it may be the id of
    ``ros2 launch``, the service's main process, which doesn't support sd_notify.

    :param wait: waits the given seconds (``None``: without limit); returns whether the program
        must end.
    :param worry: returns why the program hangs, see :meth:`Liveness.worry`; empty: it works.
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
    """Send a message to the service manager; do nothing if no manager reads messages."""
    address = os.environ.get('NOTIFY_SOCKET', '')
    if address.startswith(('/', '@')):
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as speaking,
        ):
            # A leading @ in NOTIFY_SOCKET stands for the NUL byte of an abstract socket's address.
            speaking.sendto(message.encode(), f'\0{address[1:]}' if address[0] == '@' else address)


class Liveness:
    """
    Checks whether the nodes of a process and their executors make progress.

    Each call of :meth:`worry` checks anew. It takes no lock of a node, because it must not hang
    when a node hangs.

    :param nodes: returns the nodes that exist now.
    :param executors: for each executor's name, a function that takes another function and makes
        the executor call it soon.
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
        """For each node's name: latest progress, and since when (in s) it has had that value."""

    def worry(self) -> str:
        """Return a text about executors and nodes that hang or need a restart; empty: none do."""
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
    Run nodes until a signal; return the exit code.

    The code is 0 after SIGINT, SIGTERM or SIGHUP, :data:`EXIT_USAGE` (with one line on stderr)
    after a user's mistake, and 1 after a bug.

    :param build: makes the nodes; its second argument is a function that it calls between slow
        steps. After a signal, that function raises an exception, which *build* lets pass.
    :param options: the program's options; only ``unknown_parameters`` is used.
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
                        ': configure the node with ros2 lifecycle set '
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
            if stop.cut_short:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(0)
            return 0
        except ZcError as error:
            print(error_line(program, error), file=sys.stderr)
            return EXIT_USAGE
