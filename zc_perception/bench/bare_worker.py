"""Processes in which nothing else is loaded: ``python -m zc_perception.bench.bare_worker NAME``.

``busy`` keeps one CPU busy at ordinary priority. It shows as ``zc_bench_busy`` in top and ps, says when it has begun, and ends with its
standard input, so also when the benchmark was killed.

Any other name measures floors, as commands ask for them: ``floor.py`` as it is. A floor forks, and a large parent would make it slower than
it is. The guard condition's has a process of its own for the same reason, for it loads rclpy.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
from collections.abc import Callable

from zc_perception.bench import floor
from zc_perception.bench.obeying import answer, commands

NAME = 'zc_bench_busy'
# Frames and rate in Hz, to latencies in ns and CPU seconds.
FLOORS: dict[str, Callable[[int, float], tuple[list[int], float]]] = {
    'fd_socket': floor.fd_socket,
    'simple_queue': floor.simple_queue,
    'guard': floor.guard,
}


def _end_with_input() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


def _be_busy() -> None:
    """Never returns."""
    # Writing a thread's name is prctl(PR_SET_NAME); the main thread's is the process's.
    with contextlib.suppress(OSError), open('/proc/self/comm', 'w', encoding='ascii') as comm:
        comm.write(NAME)
    threading.Thread(target=_end_with_input, name='standard input', daemon=True).start()
    answer({'busy': os.getpid()})
    while True:
        pass


def _measure_floors() -> None:
    """Until standard input ends."""
    for command in commands():
        gc.collect()
        latencies_ns, cpu_s = FLOORS[command['floor']](command['frames'], command['rate_hz'])
        answer({'latencies_ns': latencies_ns, 'cpu_us': cpu_s * 1e6})


if __name__ == '__main__':
    if sys.argv[1] == 'busy':
        _be_busy()
    _measure_floors()
