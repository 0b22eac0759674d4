"""A process that keeps one CPU busy at ordinary priority: ``python -m zc_perception.bench.busy_worker busy``.

Shows as ``zc_bench_busy`` in top and ps. Says when it has begun; ends with its standard input, so also when the benchmark was killed.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading

from zc_perception.bench.commands import answer

NAME = 'zc_bench_busy'


def _end_with_input() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


def main() -> None:
    """Never returns."""
    # Writing a thread's name is prctl(PR_SET_NAME); the main thread's is the process's.
    with contextlib.suppress(OSError), open('/proc/self/comm', 'w', encoding='ascii') as comm:
        comm.write(NAME)
    threading.Thread(target=_end_with_input, name='standard input', daemon=True).start()
    answer({'busy': os.getpid()})
    while True:
        pass


if __name__ == '__main__':
    main()
