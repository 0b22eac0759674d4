"""
A process in which nothing else is loaded: ``python -m bench.floor_worker NAME``.

It measures floors, as commands ask for them: ``floor.py`` as it is. A floor forks, and a large
parent would make it slower than it is. The guard condition's has a process of its own for the same
reason, for it loads rclpy.
"""

from __future__ import annotations

from collections.abc import Callable
import gc

from bench import floor
from bench.obeying import answer, commands

# Frames and rate in Hz, to latencies in ns and CPU seconds.
FLOORS: dict[str, Callable[[int, float], tuple[list[int], float]]] = {
    'fd_socket': floor.fd_socket,
    'simple_queue': floor.simple_queue,
    'guard': floor.guard,
}


def _measure_floors() -> None:
    """Measure floors until standard input ends."""
    for command in commands():
        gc.collect()
        latencies_ns, cpu_s = FLOORS[command['floor']](command['frames'], command['rate_hz'])
        answer({'latencies_ns': latencies_ns, 'cpu_us': cpu_s * 1e6})


if __name__ == '__main__':
    _measure_floors()
