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
Real-time settings: CPUs and priority of a node's hot-path threads, memory of the process.

Memory can be locked, so that it isn't paged out. Existing objects can be exempted from garbage
collection, so that the collector's longest pauses are shorter. All settings are off by default.
If the system refuses a setting, one warning says which permission to grant, and the node runs
without the setting.

Hot-path threads are the camera's thread (which also sends frames to other processes), the thread
that decodes a webcam's JPEGs, the scheduler's thread (which receives frames, decodes results and
publishes), and the two threads that ``axruntime`` has for each core. A frame that passes without a
copy waits only for hot-path threads. These are not hot-path threads: the executor's thread, which
serves all nodes of the process; threads of the ``onnx`` accelerator, which compute so long that
with a real-time priority nothing else would run; and threads of libraries (GStreamer, ONNX
Runtime, the middleware). Note: while a thread with a high priority waits for the interpreter's
lock, the holder of the lock keeps its own, lower priority.

A real-time thread that never sleeps keeps all ordinary threads from its CPU. The kernel limits
real-time threads to ``kernel.sched_rt_runtime_us`` of each ``sched_rt_period_us`` (by default
95 %; -1: no limit). A process can have a limit of its own, RLIMIT_RTTIME (LimitRTTIME= of
systemd): the CPU time that a real-time thread may use without a blocking call. At the soft limit
the process gets SIGXCPU, at the hard limit SIGKILL. Sources: sched_setscheduler(2), sched(7),
getrlimit(2), mlockall(2), limits.conf(5), systemd.exec(5).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
import contextlib
import ctypes
import gc
import os
import threading
from typing import Any

from rclpy.node import Node

from zc_perception.errors import ConfigError, shown
from zc_perception.observe.diagnostics import Part, Row, Status, WARN
from zc_perception.parameters import whole_number
from zc_perception.shipped_files import shipped_file

REALTIME = Part(
    'realtime',
    Row(lambda s: s.refused, WARN, '{refused}', 'see {page}, real-time knobs',
        'the parameter that the system refused, and the right that the node needs',
        'see [real-time knobs](vehicle.md#real-time-knobs)'),
    well='',
)  # fmt: skip
_MCL_CURRENT, _MCL_FUTURE = 1, 2
_THREADS_OF = {'cpu_affinity', 'realtime_priority'}


def parse_cpus(entries: Sequence[str]) -> frozenset[int]:
    """
    Return the numbers of the CPUs that texts such as ``2`` or ``4-7`` name.

    :raises ConfigError: a text names no CPU, or one that this process may not use.
    """
    allowed = os.sched_getaffinity(0) | _given
    found: set[int] = set()
    for entry in entries:
        begin, dash, end = str(entry).strip().partition('-')
        first, last = (
            whole_number(begin, max(allowed)),
            whole_number(end if dash else begin, max(allowed)),
        )
        numbers = range(0) if first is None or last is None else range(first, last + 1)
        if not numbers or not set(numbers) <= allowed:
            text = ', '.join(map(str, sorted(allowed)))
            raise ConfigError(
                f"parameter 'cpu_affinity' has {shown(entry)}; it must be CPUs that this "
                f'process may use: {text}, or a range such as 0-1'
            )
        found |= set(numbers)
    return frozenset(found)


# The CPUs on which this process was allowed to run when it started.
_given = frozenset(os.sched_getaffinity(0))


class _Process:
    """Settings of the whole process; each is undone when the last node that set it ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._locked: set[object] = set()
        self._frozen: set[object] = set()

    def lock_memory(self, who: object) -> None:
        """Lock the process's memory for the node *who*; OSError: the system refuses."""
        with self._lock:
            if not self._locked:
                _libc_call('mlockall', _MCL_CURRENT | _MCL_FUTURE)
            self._locked.add(who)

    def freeze(self, who: object) -> None:
        """Exempt all present objects from garbage collection, for the node *who*."""
        with self._lock:
            gc.collect()
            gc.freeze()
            self._frozen.add(who)

    def undo(self, who: object) -> None:
        """Undo the settings of *who*; a setting that another node has also set stays."""
        with self._lock:
            if who in self._locked:
                self._locked.discard(who)
                if not self._locked:
                    with contextlib.suppress(OSError):
                        _libc_call('munlockall')
            if who in self._frozen:
                self._frozen.discard(who)
                if not self._frozen:
                    gc.unfreeze()


_PROCESS = _Process()


def _libc_call(name: str, *arguments: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


class Realtime:
    """
    The real-time settings of one node.

    :param threads: returns the node's present hot-path threads; a camera or accelerator that was
        reopened has other threads than before.
    """

    def __init__(
        self,
        node: Node,
        parameters: Mapping[str, Any],
        threads: Callable[[], Iterable[threading.Thread]],
    ) -> None:
        self._node = node
        self._parameters = parameters
        self._threads = threads
        self._changed = False
        self._refused: dict[str, str] = {}
        self._on = False

    def configure(self) -> None:
        """
        Apply the settings of the process: lock memory, exempt objects from garbage collection.

        Call this at the end of configuring, when all objects exist that are to be exempt.
        """
        if self._parameters['lock_memory']:
            self._try(
                'lock_memory',
                'memory is not locked',
                'LimitMEMLOCK=infinity (systemd) or memlock unlimited (limits.conf)',
                lambda: _PROCESS.lock_memory(self),
            )
        if self._parameters['gc_freeze']:
            _PROCESS.freeze(self)

    def activate(self) -> None:
        """Apply CPUs and priority to the threads; then :meth:`changed` applies new values."""
        self._on = True
        self.apply()

    def apply(self) -> None:
        """Apply CPUs and priority to all hot-path threads that the node has at this moment."""
        for thread in self._threads():
            if thread.native_id is not None and thread.is_alive():
                self._apply(thread.native_id)

    def _apply(self, number: int) -> None:
        cpus, priority = (
            parse_cpus(self._parameters['cpu_affinity']),
            self._parameters['realtime_priority'],
        )
        # A thread already has the default values, unless this node has set other values before:
        # a new thread inherits the values of the thread that starts it.
        if not cpus and not priority and not self._changed:
            return
        self._changed = True
        self._try(
            'cpu_affinity',
            'threads are not bound to CPUs',
            'a cgroup (cpuset) that has all CPUs of the parameter',
            lambda: os.sched_setaffinity(number, cpus or _given),
        )
        policy, parameter = (
            (os.SCHED_FIFO, os.sched_param(priority))
            if priority
            else (os.SCHED_OTHER, os.sched_param(0))
        )
        self._try(
            'realtime_priority',
            f'threads do not run with SCHED_FIFO {priority}',
            f'LimitRTPRIO={priority} (systemd) or rtprio {priority} (limits.conf)',
            lambda: os.sched_setscheduler(number, policy, parameter),
        )

    def _try(self, knob: str, what: str, grant: str, work: Callable[[], None]) -> None:
        try:
            work()
        except ProcessLookupError:
            return  # the thread has ended
        except OSError as error:
            text = (
                f"parameter '{knob}': {what}: {error.strerror}; grant the process {grant}, "
                'or leave the parameter out'
            )
            if knob not in self._refused:
                self._node.get_logger().warning(text)
            self._refused[knob] = text
        else:
            self._refused.pop(knob, None)

    def changed(self, name: str) -> None:
        """Apply the new value of parameter *name* to the threads, if it sets CPUs or priority."""
        if name in _THREADS_OF and self._on:
            self.apply()

    def cleanup(self) -> None:
        """Undo this node's settings of the process; called after the node's threads have ended."""
        self._on = False
        self._changed = False
        self._refused.clear()
        _PROCESS.undo(self)

    def statuses(self) -> list[Status]:
        """Return one status that lists the refused settings; no status if none was refused."""
        refused = '; '.join(self._refused.copy().values())
        if not refused:
            return []
        return [REALTIME.status(refused=refused, page=shipped_file('docs/vehicle.md'))]
