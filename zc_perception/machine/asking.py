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
Call a function in a new process, because the function may hang, crash, or use much memory.

In this module, such a function is a question. It loads vendors' libraries, GStreamer's plugins,
rclpy or models. Its result, the answer, is one line of JSON on a separate pipe, because libraries
may write anything to stdout. This file is also the program that runs in the process:
``python -m …asking DESCRIPTOR MODULE:FUNCTION [ARGUMENT ...]``.
"""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import ctypes
import importlib
import json
import os
import select
import signal
import sys
import threading
import time
from typing import Any, TYPE_CHECKING

from zc_perception.errors import ZcError
from zc_perception.memory.owned_fd import OwnedFd

if TYPE_CHECKING:
    import subprocess

Question = Callable[..., dict[str, Any]]
TIME_LIMIT_S = 30.0
#: The time limit of a check in seconds; a check may call :func:`ask` twice, one after the other.
CHECK_LIMIT_S = 2 * TIME_LIMIT_S + 5.0
_KILLED_S = 1.0
_PR_SET_PDEATHSIG = 1
_TAIL = 300
_LARGEST = 1 << 20
_running: set[int] = set()
_lock = threading.Lock()


def subject(question: Question) -> str:
    """Return *question*'s name without the verb: ``gstreamer`` for ``describe_gstreamer``."""
    return question.__name__.partition('_')[2] or question.__name__


class NoAnswerError(ZcError):
    """The process that has to answer took too long, crashed, or could not be started."""


def ask(question: Question, *arguments: str, time_limit_s: float = TIME_LIMIT_S) -> dict[str, Any]:
    """
    Call a module's function in a fresh process, and return its result.

    :param question: the function. It takes strings, and returns a dict for JSON.
    :raises NoAnswerError: there is no answer; the message says why.
    """
    # Import subprocess here and not at the top of the file: every node imports this file when it
    # starts, but only a check needs subprocess.
    import subprocess

    reading, writing = os.pipe2(os.O_CLOEXEC)
    with OwnedFd(reading) as pipe, OwnedFd(os.memfd_create('answering', os.MFD_CLOEXEC)) as errors:
        writer = OwnedFd(writing)
        command = [
            sys.executable,
            '-m',
            'zc_perception.machine.asking',
            str(writing),
            f'{question.__module__}:{question.__name__}',
            *arguments,
        ]
        try:
            # Hold the lock, so that end_all() can't miss a process that is starting now.
            with _lock:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    # Use a file: a library that prints much would block on a full pipe.
                    stderr=errors.fileno(),
                    pass_fds=(writing,),
                    start_new_session=True,
                )
                _running.add(process.pid)
        except OSError as error:
            raise NoAnswerError(
                f"'{subject(question)}' could not be examined: no process can be started: "
                f'{error.strerror}'
            ) from error
        finally:
            writer.close()
        try:
            text = _read(pipe, time_limit_s)
            return _understood(subject(question), text, process, errors, time_limit_s)
        finally:
            _kill(process.pid)
            # A process that hangs in the kernel ignores SIGKILL. So wait only a short time, then
            # leave the process alone.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_KILLED_S)
            with _lock:
                _running.discard(process.pid)


def _read(pipe: OwnedFd, time_limit_s: float) -> bytes | None:
    """Read a line, or all bytes until *pipe* ends; ``None`` if neither came in time."""
    deadline, parts = time.monotonic() + time_limit_s, b''
    poller = select.poll()
    poller.register(pipe.fileno(), select.POLLIN)
    while len(parts) < _LARGEST:
        if not poller.poll(max(0, round((deadline - time.monotonic()) * 1000))):
            return None
        part = os.read(pipe.fileno(), 65536)
        if not part:
            break
        parts += part
        # Don't wait for the pipe's end: a child of the process that answers may keep it open.
        if part.endswith(b'\n'):
            break
    return parts


def _understood(
    question: str,
    text: bytes | None,
    process: subprocess.Popen[bytes],
    errors: OwnedFd,
    time_limit_s: float,
) -> dict[str, Any]:
    from subprocess import TimeoutExpired

    if text is None:
        raise NoAnswerError(
            f'no answer about {question} within {time_limit_s:g} s: a library, driver or device '
            'hangs; see dmesg'
        )
    with contextlib.suppress(ValueError):
        answer = json.loads(text)
        if isinstance(answer, dict):
            return answer
    with contextlib.suppress(TimeoutExpired):
        process.wait(_KILLED_S)
    status = process.poll()
    how = f'ended with status {status}'
    if status is not None and status < 0:
        known = -status in list(signal.Signals)
        how = f'was ended by {signal.Signals(-status).name if known else f"signal {-status}"}'
    size = os.fstat(errors.fileno()).st_size
    tail = os.pread(errors.fileno(), _TAIL, max(0, size - _TAIL))
    last = ' '.join(tail.decode(errors='replace').split())
    raise NoAnswerError(
        f'the process that looked at {question} {how}' + (f': …{last}' if last else '')
    )


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def end_all() -> None:
    """Kill all processes of :func:`ask` that still run; the doctor calls this when it ends."""
    with _lock:
        running = list(_running)
    for pid in running:
        _kill(pid)


def _answer(number: int, place: str, *arguments: str) -> None:
    """
    Call function *place* (``module:name``), and write its result to descriptor *number* as JSON.

    Then end this process without running exit handlers.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    module, _, name = place.partition(':')
    os.set_inheritable(number, False)
    answer = getattr(importlib.import_module(module), name)(*arguments)
    with open(number, 'wb') as out:
        out.write(json.dumps(answer).encode() + b'\n')
    sys.stderr.flush()
    os._exit(0)


if __name__ == '__main__':
    _answer(int(sys.argv[1]), *sys.argv[2:])
