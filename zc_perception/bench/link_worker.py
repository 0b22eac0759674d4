"""One process of the link benchmark: ``python -m zc_perception.bench.link_worker ROLE TOPIC``.

Reads a command per line from standard input, JSON, and answers with a line of JSON. Times are CLOCK_MONOTONIC, which all processes of a
host share, so that a producer's and a consumer's can be subtracted. Frames are numbered through all series, so that a late one is no
other's.

=========  ===================================================  ==================================================================
op         takes                                                answers
=========  ===================================================  ==================================================================
describe                                                        what the figures depend on
matched                                                         ``matched``; if not, ``reason``
prepare    ``width``, ``height``                                frames have this size from now on
begin      ``first``: its first frame's number, ``rate_hz``,    a consumer listens
           ``read``: every pixel
run        ``first``, ``rate_hz``, ``read``, ``frames``         ``sent``: [number, ns] of each; both ends in one: ``arrived`` too
end        ``last``: number of the last frame that was sent     ``arrived``: [number, ns] of each
spent                                                           ``cpu_us`` since the series began, all threads; ``torn`` frames in it;
                                                                ``conversions`` ever
=========  ===================================================  ==================================================================
"""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from collections.abc import Callable

from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.utilities import get_default_context, get_rmw_implementation_identifier

from zc_perception.bench.commands import answer
from zc_perception.bench.interruption import hold_back_termination
from zc_perception.bench.link_roles.frames import SLOTS, FramesIn, FramesLocal, FramesOut
from zc_perception.bench.link_roles.images import ImagesIn, ImagesOut
from zc_perception.bench.link_roles.role import Role
from zc_perception.bench.link_roles.serving import serve
from zc_perception.errors import ZcError
from zc_perception.link.rclpy_compat import init_without_signal_handlers


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
        serve(role, {'rmw': get_rmw_implementation_identifier(), 'buffers': 'sealed memfd', 'slots': SLOTS})


def main() -> None:
    """Serve commands until standard input ends or SIGTERM."""
    hold_back_termination()
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
