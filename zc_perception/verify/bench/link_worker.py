"""One process of the link benchmark: ``python -m zc_perception.verify.bench.link_worker ROLE TOPIC``.

Reads a command per line from standard input, JSON, and answers with a line of JSON. Times are CLOCK_MONOTONIC, which all processes of a
host share, so that a producer's and a consumer's can be subtracted. Frames are numbered through all series, so that a late one is no
other's.

=========  ===================================================  ==================================================================
op         takes                                                answers
=========  ===================================================  ==================================================================
describe                                                        what the figures depend on
matched                                                         ``matched``; if not, ``reason``
prepare    ``width``, ``height``                                frames have this size from now on
begin      ``first``: its first frame's number, ``rate_hz``     a consumer listens
run        ``first``, ``rate_hz``, ``frames``                   ``sent``: [number, ns] of each; both ends in one: ``arrived`` too
end        ``last``: number of the last frame that was sent     ``arrived``: [number, ns] of each
spent                                                           ``cpu_us`` since the series began, all threads; ``conversions`` ever
=========  ===================================================  ==================================================================
"""

from __future__ import annotations

import contextlib
import signal
import socket
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.utilities import get_default_context, get_rmw_implementation_identifier

from zc_perception.errors import ZcError
from zc_perception.link.rclpy_compat import init_without_signal_handlers
from zc_perception.verify.bench.commands import answer, commands
from zc_perception.verify.bench.link_roles.frames import SLOTS, FramesIn, FramesLocal, FramesOut
from zc_perception.verify.bench.link_roles.images import ImagesIn, ImagesOut
from zc_perception.verify.bench.link_roles.role import Role


def _make(role: str, node: Node, topic: str) -> Role:
    if role in ('images_out', 'images_in'):
        answers = socket.socket(fileno=int(sys.argv[3]))
        return ImagesOut(node, topic, answers) if role == 'images_out' else ImagesIn(node, topic, answers)
    makers: dict[str, Callable[[], Role]] = {
        'frames_out': lambda: FramesOut(node, topic),
        'frames_in': lambda: FramesIn(node, topic),
        'local_mailbox': lambda: FramesLocal(node, topic, executor=False),
        'local_executor': lambda: FramesLocal(node, topic, executor=True),
    }
    return makers[role]()


def _obey(role: Role, command: dict[str, Any]) -> dict[str, Any]:
    operation = command.pop('op')
    if operation == 'describe':
        return {'rmw': get_rmw_implementation_identifier(), 'buffers': 'sealed memfd', 'slots': SLOTS}
    if operation == 'matched':
        matched, reason = role.matched()
        return {'matched': matched, 'reason': '' if matched else reason}
    if operation == 'run':
        return role.run(**command)
    if operation == 'end':
        return {'arrived': role.end(**command)}
    if operation == 'spent':
        return role.spent()
    (role.prepare if operation == 'prepare' else role.begin)(**command)
    return {}


def _do_nothing(number: int, frame: FrameType | None) -> None:
    """Not SIG_IGN, about which Python complains when a signal has just come."""


def _terminate(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, _do_nothing)
    raise SystemExit(128 + number)


def _serve(role_name: str, topic: str) -> None:
    node = Node('bench_' + role_name)
    executor = SingleThreadedExecutor()
    # Producers have nothing to spin for, and a thread that wakes for its own reasons is noise.
    spinning = threading.Thread(target=executor.spin, name='executor', daemon=True)
    with contextlib.ExitStack() as ending:
        ending.callback(node.destroy_node)
        role = _make(role_name, node, topic)
        ending.callback(role.close)
        if role_name not in ('frames_out', 'images_out', 'local_mailbox'):
            executor.add_node(node)
            spinning.start()
            ending.callback(spinning.join, 2.0)
        ending.callback(executor.shutdown)
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
            for command in commands():
                answer(_obey(role, command))
        finally:
            # The end of input comes first, and what it sets off is not to be stopped.
            signal.signal(signal.SIGTERM, _do_nothing)


def main() -> None:
    """Serve commands until standard input ends or SIGTERM."""
    # Not before there is something to end in order, and in this thread alone.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    signal.signal(signal.SIGTERM, _terminate)
    context = get_default_context()
    try:
        # Warnings go to standard error, which is the benchmark's; what the links say of themselves is asked for.
        init_without_signal_handlers(context, ['--ros-args', '--log-level', 'warn'])
        _serve(*sys.argv[1:3])
    except ZcError as error:
        answer({'failure': str(error)})
        raise SystemExit(1) from None
    finally:
        context.try_shutdown()


if __name__ == '__main__':
    main()
