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
Read about processes and threads in ``/proc``, and name missing rights.

If a user may not examine processes or the kernel, messages say which right is missing and how to
get it. Sources: proc_pid_status(5), capabilities(7); sudoers(5) on ``env_reset``, ``secure_path``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
import os
from pathlib import Path
import shlex
import shutil
from typing import NamedTuple

_STATUS = Path('/proc/self/status')
# The bit numbers of these capabilities, from the kernel's <linux/capability.h>.
_BITS = {'CAP_SYS_PTRACE': 19, 'CAP_SYS_ADMIN': 21}
# Environment variables of a shell that has sourced ROS; sudo removes them. The program that sudo
# runs needs them to find its modules. Commands that this program starts, such as ``ros2 launch``,
# need them to find their nodes and the nodes of the same domain.
_OF_ROS = (
    'PATH',
    'PYTHONPATH',
    'LD_LIBRARY_PATH',
    'AMENT_PREFIX_PATH',
    'ROS_DOMAIN_ID',
    'RMW_IMPLEMENTATION',
)


def _effective(status: Path) -> int:
    """Return a process's effective capabilities as bits; 0 if its *status* can't be read."""
    try:
        lines = status.read_text(encoding='utf-8', errors='replace').splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1], 16) for line in lines if line.startswith('CapEff:')), 0)


def as_root(*needed: str, user: int | None = None, status: Path = _STATUS) -> str:
    """
    Return advice for a user whom the kernel has refused access.

    The advice for a user is to become root. The advice for root in a container is how to get the
    capabilities that the container has removed.

    :param needed: the capabilities that the access needs: ``CAP_SYS_PTRACE``, ``CAP_SYS_ADMIN``,
        or both; if none is given, both.
    :param user: the effective user id; ``None``: that of this process.
    """
    if (os.geteuid() if user is None else user) != 0:
        return 'run as root'
    effective = _effective(status)
    missing = [name for name in needed or _BITS if not effective >> _BITS[name] & 1]
    if not missing:
        return (
            'run as root outside of any container: root has the capabilities here, but only in a '
            'user namespace, or is refused for another reason'
        )
    options = ' '.join(f'--cap-add {name.removeprefix("CAP_")}' for name in missing)
    return f'give root {" and ".join(missing)}, which root lacks here (container: {options})'


def sudo_command(program: str, environment: Mapping[str, str] = os.environ) -> str:
    """
    Return the shell command that runs a program of this package as root.

    sudo removes environment variables that the program needs to find its workspace, so the command
    sets them again. If ``PYTHONPATH`` isn't set, as in a virtual environment, the command sets
    none: the program's Python finds all modules without them.

    :param program: the program's path, as in ``sys.argv[0]``, or its name.
    """
    path = shutil.which(program, path=environment.get('PATH'))
    words = shlex.quote(program if path is None else os.path.abspath(path))
    if not environment.get('PYTHONPATH'):
        return f'sudo {words}'
    kept = ' '.join(f'"{name}=${name}"' for name in _OF_ROS if environment.get(name))
    return f'sudo env {kept} {words}'


PROC = Path('/proc')


def all_pids(proc: Path = PROC) -> list[int]:
    """Return the ids of all processes that this user can see."""
    try:
        return sorted(int(entry) for entry in os.listdir(proc) if entry.isdigit())
    except OSError:
        return []


def threads_of(pid: int, proc: Path = PROC) -> list[int]:
    """Return the ids of a process's threads; empty if the process has ended."""
    try:
        return sorted(
            int(entry) for entry in os.listdir(proc / str(pid) / 'task') if entry.isdigit()
        )
    except OSError:
        return []


def folders_of(pid: int, proc: Path = PROC) -> Iterator[Path]:
    """
    Yield the folders in ``/proc`` that may list a process's memory and open files.

    The process's own folder comes first, then those of its other threads. If the main thread has
    ended and other threads still run, only the other threads' folders list memory and files.
    """
    yield proc / str(pid)
    for tid in threads_of(pid, proc):
        if tid != pid:
            yield proc / str(pid) / 'task' / str(tid)


def open_files(pid: int, proc: Path = PROC) -> tuple[Path, list[str]]:
    """
    Return a process's folder in ``/proc``, and the names in the subfolder ``fd`` of this folder.

    If the main thread has ended, this is the folder of another thread. If the process has ended,
    there are no names.
    """
    for folder in folders_of(pid, proc):
        try:
            if entries := os.listdir(folder / 'fd'):
                return folder, entries
        except (FileNotFoundError, ProcessLookupError):
            continue
    return proc / str(pid), []


def command_name(pid: int, proc: Path = PROC) -> str:
    """Return the kernel's short name of a process; empty if the process has ended."""
    try:
        return (proc / str(pid) / 'comm').read_text(errors='replace').strip()
    except OSError:
        return ''


def who(pid: int, proc: Path = PROC) -> str:
    """Return a process's id and name as text for messages."""
    return f'process {pid} ({command_name(pid, proc)})'


class ProcessState(NamedTuple):
    """
    A process's state, from ``/proc/PID/stat``.

    :ivar state: one letter, such as R or S.
    :ivar parent: the parent's pid.
    :ivar start: when the process started, in clock ticks since boot. This time
        differs for two processes that had the same pid, one after the other.
    """

    state: str
    parent: int
    start: int

    @property
    def ended(self) -> bool:
        """Whether the process has ended, but its parent hasn't waited for it (a zombie)."""
        return self.state in 'ZX'


def process_state(pid: int, proc: Path = PROC) -> ProcessState | None:
    """Return a process's state, or ``None`` if there is no such process."""
    try:
        words = (proc / str(pid) / 'stat').read_text(errors='replace').rpartition(')')[2].split()
        return ProcessState(words[0], int(words[1]), int(words[19]))
    except (OSError, ValueError, IndexError):
        return None
