"""What ``component_container`` and ``component_container_mt`` run, see :mod:`~zc_perception.nodes.main`."""

from __future__ import annotations

import io
import os
import sys
import threading
from functools import partial
from typing import NoReturn

import rclpy

from zc_perception.errors import EXIT_USAGE, ZcError, error_line
from zc_perception.link.rclpy_compat import call_soon
from zc_perception.nodes.container.executor import ContainerExecutor
from zc_perception.nodes.container.manager import THREADS, ComponentManager, limit_heaps
from zc_perception.nodes.process import EXIT_FAILURE, StopRequest, ros_context
from zc_perception.nodes.service import Liveness, serve

_UNLOAD_S = 1.2
_EXECUTOR_ENDS_S = 0.2


def run(program: str, *, multi_threaded: bool) -> int:
    """Run until a signal; the exit code: 0 then, :data:`EXIT_USAGE` with one line for a ROS argument that is wrong, 1 for a bug."""
    limit_heaps()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(
            line_buffering=True
        )  # components print, and a launch file shows it when it is written
    with StopRequest() as stop:
        try:
            # The default context, so that a component's own rclpy.ok(), and what it creates besides, are of the same world.
            with ros_context(sys.argv[1:], rclpy.get_default_context()) as context:
                return _serve(context, stop, multi_threaded)
        except ZcError as error:
            print(error_line(program, error), file=sys.stderr)
            return EXIT_USAGE


def _serve(context: rclpy.Context, stop: StopRequest, multi_threaded: bool) -> int:
    manager = ComponentManager(context, multi_threaded=multi_threaded)
    components = ContainerExecutor(
        context, 'components', manager.component_threads, manager.on_callback_error, stop.set
    )
    services = ContainerExecutor(
        context, 'container', THREADS, manager.on_callback_error, stop.set
    )
    services.add_node(manager)
    components.start()
    services.start()
    manager.use(components)
    manager.get_logger().info(f'ready: {manager.component_threads} thread(s) for components')
    executors = {
        'the executor of components': partial(call_soon, components),
        'the executor of services': partial(call_soon, services),
    }
    serve(stop.wait, Liveness(manager.workers, executors))
    ended = manager.close(_UNLOAD_S)
    ended &= services.stop(_EXECUTOR_ENDS_S) & components.stop(_EXECUTOR_ENDS_S)
    failure = components.failure or services.failure
    if failure is not None:
        print(failure, file=sys.stderr)
    code = 0 if failure is None else EXIT_FAILURE
    staying = sorted(
        t.name for t in threading.enumerate() if not t.daemon and t is not threading.main_thread()
    )
    if not ended or staying:
        busy = [
            *(
                f'a callback of {name or "a component"}'
                for name in (*services.busy(), *components.busy())
            ),
            *(f"thread '{name}'" for name in staying),
        ]
        manager.get_logger().warning(
            f'the container ends without waiting for: {", ".join(busy) or "a component"}'
        )
        _end_at_once(code)
    manager.destroy_node()
    return code


def _end_at_once(code: int) -> NoReturn:
    """The interpreter's own end would wait for threads that don't end, or be disturbed by them."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
