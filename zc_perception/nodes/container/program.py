"""What ``component_container`` and ``component_container_mt`` run, see :mod:`~zc_perception.nodes.main`."""

from __future__ import annotations

import io
import os
import sys
import threading
from functools import partial

import rclpy

from zc_perception.errors import EXIT_FAILURE, EXIT_USAGE, ZcError, error_line
from zc_perception.link.rclpy_compat import call_soon
from zc_perception.nodes.container.executor import ContainerExecutor
from zc_perception.nodes.container.manager import ComponentManager, limit_heaps
from zc_perception.nodes.process import StopRequest, ros_context
from zc_perception.nodes.service import Liveness, serve

# For the services: a load and an unload may each keep one busy.
_THREADS = 4
_UNLOAD_S = 1.2
_EXECUTOR_ENDS_S = 0.2


def run(program: str, *, multi_threaded: bool) -> int:
    """Run until a signal; the exit code: 0 then, :data:`EXIT_USAGE` with one line for a ROS argument that is wrong, 1 for a bug."""
    limit_heaps()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Components print, and a launch file shows it when it is written.
        sys.stdout.reconfigure(line_buffering=True)
    with StopRequest() as stop:
        try:
            # The default context, so that a component's own rclpy.ok(), and what it creates besides, are of the same world.
            with ros_context(sys.argv[1:], rclpy.get_default_context()) as context:
                return _serve(context, stop, multi_threaded)
        except ZcError as error:
            print(error_line(program, error), file=sys.stderr)
            return EXIT_USAGE


def _serve(context: rclpy.Context, stop: StopRequest, multi_threaded: bool) -> int:
    manager = ComponentManager(context, stop.set, multi_threaded=multi_threaded)
    components = manager.components
    services = ContainerExecutor(
        context, 'container', _THREADS, manager.on_callback_error, stop.set
    )
    services.add_node(manager)
    services.start()
    manager.start()
    executors = {
        'the executor of components': partial(call_soon, components),
        'the executor of services': partial(call_soon, services),
    }
    serve(stop.wait, Liveness(manager.workers, executors).worry)
    ended = manager.close(_UNLOAD_S)
    ended &= services.stop(_EXECUTOR_ENDS_S) & components.stop(_EXECUTOR_ENDS_S)
    failure = components.failure or services.failure
    if failure is not None:
        print(failure, file=sys.stderr)
    code = 0 if failure is None else EXIT_FAILURE
    staying = [t.name for t in threading.enumerate() if not t.daemon]
    staying.remove(threading.main_thread().name)
    if not ended or staying:
        names = ', '.join(f"thread '{name}'" for name in sorted(staying)) or 'a callback'
        manager.get_logger().warning(f'the container ends without waiting for: {names}')
        # The interpreter's own end would wait for threads that don't end, or be disturbed by them.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    manager.destroy_node()
    return code
