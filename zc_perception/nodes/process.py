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
Run nodes as a program, with ROS context, executor, signals, one-line errors and clean end.

The program also reports to systemd whether it works (:func:`serve`). systemd's watchdog must
restart a program that hangs, but not one whose camera is unplugged: a restart would not help, and
would remove the diagnostics that say what is wrong. So the watchdog is fed while the nodes make
progress, and also while they know why they make none: the camera is unplugged, the card recovers,
the node was not activated. A "worry" is a fault that nothing else reports: a thread or an executor
that hangs.
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
# The interpreter's switch interval: after this time a thread that runs Python code hands the
# interpreter's lock to a waiting thread, such as a camera's thread. CPython's default is 5 ms.
_SWITCH_S = 0.0005


class _Executor(SingleThreadedExecutor):
    """An executor that goes on if an entity is destroyed while it waits; rclpy's own would end."""

    def wait_for_ready_callbacks(self, *arguments: Any, **options: Any) -> Any:
        """Wait as rclpy does; if an entity was destroyed meanwhile, wait again."""
        for _ in range(_MAX_WAITS_IN_VAIN):
            with contextlib.suppress(InvalidHandle):
                return super().wait_for_ready_callbacks(*arguments, **options)
            time.sleep(_PAUSE_S)
        return super().wait_for_ready_callbacks(*arguments, **options)


class ExecutorThread:
    """
    Spins a SingleThreadedExecutor on a separate thread: the main thread handles signals.

    rclpy's ``shutdown`` does not wait for the spinning thread, although its documentation says so.
    It destroys the guard conditions at once, and the thread may still use one. So the thread is
    ended first, and the executor is shut down when no thread spins it any more.
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
        """
        End the thread.

        If a callback runs longer than :data:`_CALLBACK_ENDS_S`, the thread is left; what it raises
        later is no failure.
        """
        self._ending = True
        if self._thread.is_alive():
            # spin_once() returns only after it ran a task, so give it one; if it were only woken,
            # it would wait again.
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
    Return *context*, or a new context, initialised.

    :param tolerant: whether an unknown parameter of a bare ``-p`` is only a warning.
    :raises ConfigError: the command line's ROS arguments or a parameter file can't be used.
    """
    context = context or rclpy.Context()
    raised = _raise_descriptor_limit()
    sys.setswitchinterval(_SWITCH_S)
    try:
        remove_ros_args(
            ['', *(args or ())]
        )  # raises an error for wrong arguments; init alone would also write to stderr
        init_without_signal_handlers(context, None if args is None else list(args))
    except Exception as error:  # rclpy has several exception classes for this error
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
    Raise the soft limit of descriptors to the hard one; return a sentence for the log.

    Every buffer of every camera and every fence is a file descriptor. The usual soft limit of
    1,024 exists for programs that call ``select()``, which this package does not.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return f'this process may open {hard} files (RLIMIT_NOFILE was {soft})'


class NodeGroup:
    """
    Nodes on one executor; as a context manager it stops and destroys them at its end.

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
        Start the nodes, consumers first, so that consumers miss no frame.

        All cameras start at nearly the same time, because they are open already.

        :param check: called before each node starts; if it raises, the start ends.
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
        """The traceback of the exception that ended the executor; ``None``: none did."""
        return self._spinner.failure

    def liveness(self) -> Liveness:
        """Return the object that reports whether the nodes and their executor make progress."""
        return Liveness(lambda: self.nodes, {'the executor': self.soon})

    def soon(self, function: Callable[[], object]) -> None:
        """Run a function on the executor's thread. Any thread may call this."""
        call_soon(self._spinner.executor, function)

    def add_node(self, node: Node) -> None:
        """Spin one more node; its owner destroys it after the group has ended."""
        self._spinner.executor.add_node(node)

    def __exit__(self, *exception: object) -> None:
        self._spinner.stop()
        for node in self.nodes:
            node.stop()
        for node in self.nodes:
            node.destroy_node()


# systemd recommends to feed the watchdog at half of its timeout. Here it is fed more often, so
# that one message may be late on a loaded machine.
_PER_TIMEOUT = 3.0


def serve(
    wait: Callable[[float | None], bool],
    worry: Callable[[], str],
    monotonic: Callable[[], float] = time.monotonic,
) -> None:
    """
    Wait for the end; meanwhile tell systemd that the program is ready and works.

    If ``$WATCHDOG_USEC`` is set, the process feeds the watchdog, whatever ``$WATCHDOG_PID`` is,
    because a service's main process may be ``ros2 launch``, which doesn't support sd_notify.

    :param wait: waits the given seconds (``None``: without limit); returns whether the program has
        to end.
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
    """Send a message to the service manager; do nothing if it is absent or doesn't read."""
    address = os.environ.get('NOTIFY_SOCKET', '')
    if address.startswith(('/', '@')):
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as speaking,
        ):
            # In the variable an abstract address begins with @ instead of a NUL.
            speaking.sendto(message.encode(), f'\0{address[1:]}' if address[0] == '@' else address)


class Liveness:
    """
    Whether the nodes of a process and their executors make progress.

    It looks at the nodes each time it is asked. It takes no lock of the nodes, because it must not
    hang when a node hangs.

    :param nodes: returns the present nodes.
    :param executors: by name, a function that makes an executor run a given function soon.
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
        """By node, its latest progress, and since when the progress has had this value."""

    def worry(self) -> str:
        """Return a sentence about a thread or executor that hangs; empty: none does."""
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

    The code is 0 after SIGINT, SIGTERM or SIGHUP, :data:`EXIT_USAGE` (with one line on stderr)
    after an error that the user can mend, and 1 after a bug.

    :param build: makes the nodes. Between two nodes whose making takes long it calls its second
        argument, which raises if a signal came; *build* passes this exception on.
    :param options: the program's options, of which ``unknown_parameters`` is used here.
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
