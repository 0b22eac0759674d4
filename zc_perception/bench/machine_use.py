"""What a stretch of time cost a process and its CPUs, and how long its threads waited for the interpreter's lock.

Sources: proc_stat(5), proc_pid_schedstat (Documentation/scheduler/sched-stats.rst).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Collection
from pathlib import Path
from types import TracebackType

_TICK_S = 1.0 / os.sysconf('SC_CLK_TCK')
_PROBE_S = 0.005
# Fields of a CPU's line: user, nice, system, idle, iowait, irq, softirq, steal.
_IDLE = (3, 4)
_FIELDS = 8


def busy_s(cpus: Collection[int], stat: str) -> float:
    """Time in which these CPUs did anything for anybody, or belonged to another virtual machine.

    :param stat: text of ``/proc/stat``.
    """
    ticks = 0
    for line in stat.splitlines():
        name, *fields = line.split()
        if name.removeprefix('cpu').isdigit() and int(name.removeprefix('cpu')) in cpus:
            ticks += sum(int(field) for number, field in enumerate(fields[:_FIELDS]) if number not in _IDLE)
    return ticks * _TICK_S


def _run_delay_ns() -> int:
    """How long this thread has waited for a CPU since it began; 0 where the kernel doesn't count that."""
    try:
        return int(Path('/proc/thread-self/schedstat').read_text(encoding='ascii').split()[1])
    except (OSError, IndexError, ValueError):
        return 0


class MachineUse:
    """Measures from entering to leaving; a context manager.

    A thread sleeps for 5 ms again and again. How late it runs on is the time that it took to get a CPU, which the kernel counts, and then
    the interpreter's lock: what any thread of the process waits for that has just been woken for a frame.
    """

    def __init__(self) -> None:
        self._cpus = os.sched_getaffinity(0)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._probe, name='gil probe', daemon=True)
        self._cpu_ns = self._wall_ns = 0
        self._busy_s = 0.0
        self._lock_us: list[float] = []

    def _probe(self) -> None:
        while not self._stop.is_set():
            waited_ns, until_ns = _run_delay_ns(), time.monotonic_ns() + round(_PROBE_S * 1e9)
            time.sleep(_PROBE_S)
            late_ns = time.monotonic_ns() - until_ns
            self._lock_us.append(max(0, late_ns - (_run_delay_ns() - waited_ns)) / 1e3)

    def __enter__(self) -> MachineUse:
        self._busy_s = busy_s(self._cpus, _stat())
        self._cpu_ns, self._wall_ns = time.process_time_ns(), time.monotonic_ns()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._cpu_ns, self._wall_ns = time.process_time_ns() - self._cpu_ns, time.monotonic_ns() - self._wall_ns
        self._busy_s = busy_s(self._cpus, _stat()) - self._busy_s
        self._thread.join()

    def figures(self) -> dict[str, float]:
        """After leaving. ``process_percent`` of one CPU; ``machine_percent`` of all that the process may use, whoever used them;
        ``gil_wait_*_us``: from having a CPU to running on."""
        wall_s = self._wall_ns / 1e9
        waits = sorted(self._lock_us) or [0.0]
        return {
            'process_percent': 100.0 * self._cpu_ns / self._wall_ns,
            'machine_percent': min(100.0, 100.0 * self._busy_s / (wall_s * len(self._cpus))),
            'gil_wait_p50_us': waits[len(waits) // 2],
            'gil_wait_p99_us': waits[int(len(waits) * 0.99)],
        }


def _stat() -> str:
    return Path('/proc/stat').read_text(encoding='ascii')
