"""One process that measures floors: ``python -m zc_perception.bench.floor_worker NAME``.

``floor.py`` as it is, in a process in which nothing else is loaded: it forks, and a large parent would make the floor slower than it is.
The guard condition's has a process of its own for the same reason, for it loads rclpy.
"""

from __future__ import annotations

import gc
from collections.abc import Callable

from zc_perception.bench import floor
from zc_perception.bench.commands import answer, commands

# Frames and rate in Hz, to latencies in ns and CPU seconds.
FLOORS: dict[str, Callable[[int, float], tuple[list[int], float]]] = {
    'fd_socket': floor.fd_socket,
    'simple_queue': floor.simple_queue,
    'guard': floor.guard,
}


def main() -> None:
    """Serve commands until standard input ends."""
    for command in commands():
        gc.collect()
        latencies_ns, cpu_s = FLOORS[command['floor']](command['frames'], command['rate_hz'])
        answer({'latencies_ns': latencies_ns, 'cpu_us': cpu_s * 1e6})


if __name__ == '__main__':
    main()
