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
Start Python programs as forks of a warm process with all imports: ten times as fast.

:class:`Started` is a ``subprocess.Popen`` for command lines that begin with this interpreter or
are a script of its environment. The child has its own arguments, environment, folder, streams and
signals. It runs the program as ``__main__`` and ends like an interpreter.

Differences: ``/proc/PID/cmdline`` and ``/proc/PID/environ`` are those of the forking process;
modules are imported before variables and arguments are set; the program is not our child; and C
libraries run no exit handlers. Tests of such things, and at least one start of each program, use
``subprocess``.

    python warm_start.py FD        the forking process, which gets requests over this socket
"""

from __future__ import annotations

import atexit
from collections.abc import Sequence
import contextlib
import gc
import importlib
import inspect
import json
import os
from pathlib import Path
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import types
from typing import Any, NoReturn

# Modules that most programs need. None may start a thread that is needed later: a fork doesn't
# copy threads.
_MODULES = (
    'zc_perception.nodes.perception', 'zc_perception.nodes.declarations',
    'zc_perception.nodes.recorder', 'zc_perception.nodes.gstreamer',
    'zc_perception.nodes.container', 'rclpy.executors', 'vision_msgs.msg', 'diagnostic_msgs.msg',
    'sensor_msgs.msg', 'rcl_interfaces.srv', 'lifecycle_msgs.srv',
)  # fmt: skip
#: Each of them loads the C libraries of one package's messages.
_MESSAGES = (
    'rcl_interfaces.msg:Parameter', 'rcl_interfaces.srv:GetParameters',
    'lifecycle_msgs.srv:GetState', 'std_msgs.msg:String',
    'std_srvs.srv:Trigger', 'sensor_msgs.msg:Image', 'diagnostic_msgs.msg:DiagnosticArray',
    'vision_msgs.msg:Detection2DArray',
    'type_description_interfaces.srv:GetTypeDescription', 'composition_interfaces.srv:LoadNode',
)  # fmt: skip
_LARGEST = 200_000
_STREAMS = 3


class Started(subprocess.Popen[Any]):
    """Like ``Popen``, but forks; no ``preexec_fn``, ``pass_fds``, ``shell`` or other user."""

    def _execute_child(self, *arguments: Any) -> None:
        given = inspect.signature(subprocess.Popen._execute_child).bind(self, *arguments).arguments
        assert not given['shell'] and not given['pass_fds'] and given['preexec_fn'] is None
        words = [os.fspath(word) for word in given['args']]
        request = {
            'words': words[1:] if words[0] == sys.executable else words,
            'env': dict(os.environ if given['env'] is None else given['env']),
            'cwd': os.path.abspath(given['cwd'] or os.curdir),
            'session': given['start_new_session'],
        }
        self._status, status = socket.socketpair()
        streams = [
            given[name] if given[name] != -1 else number
            for number, name in enumerate(('p2cread', 'c2pwrite', 'errwrite'))
        ]
        with status:
            self.pid = _SERVER.fork(request, [*streams, status.fileno()])
        self._child_created = True
        devnull = getattr(self, '_devnull', None)
        theirs = {
            given[name] for name, other in _PIPES if given[name] != -1 and given[other] != -1
        }
        for number in (theirs - {devnull}) | ({devnull} - {None}):
            os.close(number)
        self._closed_child_pipe_fds = True

    def _ended_within(self, seconds: float | None) -> bool:
        with self._waitpid_lock:  # type: ignore[attr-defined]
            if self.returncode is None and select.select([self._status], [], [], seconds)[0]:
                said = self._status.recv(16)
                self.returncode = (
                    int(said) if said else -signal.SIGKILL
                )  # the server itself was killed
                self._status.close()
        return self.returncode is not None

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        self._ended_within(0.0)
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        if not self._ended_within(timeout):
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return self.returncode


_PIPES = (('p2cread', 'p2cwrite'), ('c2pwrite', 'c2pread'), ('errwrite', 'errread'))


def run(
    words: Sequence[str | Path], *, timeout: float, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Like ``subprocess.run`` with ``capture_output`` and ``text``."""
    with Started(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    ) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(words, process.returncode, out, err)


class _Server:
    """The requesting end; its socket exists from the start, so no test counts it as a leak."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process: subprocess.Popen[bytes] | None = None

    def fork(self, request: dict[str, Any], descriptors: list[int]) -> int:
        """Send the request; return the new program's process id."""
        with self._lock:
            if self._process is None:
                number = self._theirs.fileno()
                command = [sys.executable, __file__, str(number)]
                self._process = subprocess.Popen(
                    command, pass_fds=[number], stdin=subprocess.DEVNULL, start_new_session=True
                )
                self._theirs.close()
            socket.send_fds(self._ours, [json.dumps(request).encode()], descriptors)
            answer = self._ours.recv(16)
        assert answer, 'the process that starts programs has ended'
        return int(answer)


def _serve(requests: socket.socket) -> dict[str, Any]:
    """
    Fork for each request, and report how each program ends.

    Returns the request in the forked process. Exits when the requester closes the socket.
    """
    for module in _MODULES:
        importlib.import_module(module)
    from rclpy.type_support import check_for_type_support

    for message in _MESSAGES:
        module, _, name = message.partition(':')
        check_for_type_support(getattr(importlib.import_module(module), name))
    gc.collect()
    gc.freeze()
    running: dict[int, socket.socket] = {}
    wake, wakened = socket.socketpair()
    wake.setblocking(False)
    wakened.setblocking(False)
    signal.set_wakeup_fd(wakened.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready, _, _ = select.select([requests, wake], [], [])
        if wake in ready:
            wake.recv(4096)
        while running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            # the requester may be gone
            with running.pop(pid) as told, contextlib.suppress(OSError):
                told.send(str(os.waitstatus_to_exitcode(status)).encode())
        if requests not in ready:
            continue
        data, descriptors, _, _ = socket.recv_fds(requests, _LARGEST, _STREAMS + 1)
        if not data:
            os._exit(0)
        *streams, told_at = descriptors
        pid = os.fork()
        if not pid:
            signal.set_wakeup_fd(-1)
            for each in (requests, wake, wakened, *running.values()):
                each.close()
            os.close(told_at)
            for number, descriptor in enumerate(streams):
                os.dup2(descriptor, number)
                os.close(descriptor)
            return dict(json.loads(data))
        for descriptor in streams:
            os.close(descriptor)
        running[pid] = socket.socket(fileno=told_at)
        requests.send(str(pid).encode())


def _become(request: dict[str, Any]) -> None:
    """Apply the request's session, streams, folder and environment to the forked process."""
    if request['session']:
        os.setsid()
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.environ.clear()
    os.environ.update(request['env'])
    os.chdir(request['cwd'])
    unbuffered = bool(request['env'].get('PYTHONUNBUFFERED'))
    for number, name in enumerate(('stdin', 'stdout', 'stderr')):
        stream = open(  # noqa: SIM115 - the process's own
            number, 'w' if number else 'r', encoding='utf-8',
            errors=('surrogateescape', 'surrogateescape', 'backslashreplace')[number],
            buffering=1 if number == 2 or os.isatty(number) else -1, closefd=False,
        )  # fmt: skip
        if number and unbuffered:
            stream.reconfigure(write_through=True)
        setattr(sys, name, stream)
        setattr(sys, f'__{name}__', stream)
    sys.path[0] = ''
    sys.path[1:1] = [
        path for path in request['env'].get('PYTHONPATH', '').split(os.pathsep) if path
    ]


def _run(words: list[str]) -> None:
    """Run these arguments as the interpreter would."""
    if words[0] == '-m':
        sys.argv = words[1:]
        sys.path[0] = os.getcwd()
        runpy.run_module(words[1], run_name='__main__', alter_sys=True)
        return
    main = types.ModuleType('__main__')
    main.__dict__['__builtins__'] = __builtins__
    sys.modules['__main__'] = main
    if words[0] == '-c':
        sys.argv = ['-c', *words[2:]]
        code = compile(words[1], '<string>', 'exec')
    else:
        sys.argv = list(words)
        sys.path[0] = str(Path(words[0]).resolve().parent)
        main.__dict__['__file__'] = words[0]
        code = compile(Path(words[0]).read_bytes(), words[0], 'exec')
    exec(code, main.__dict__)


def _end(failure: BaseException | None) -> NoReturn:
    """
    End like the interpreter, but without the exit handlers of C libraries.

    They would wait for their threads, which the fork didn't copy.
    """
    status = 0
    if isinstance(failure, SystemExit):
        status = failure.code if isinstance(failure.code, int) else int(failure.code is not None)
        if isinstance(failure.code, str):
            print(failure.code, file=sys.stderr)
    elif failure is not None:
        status = 1
    if failure is not None and not isinstance(failure, SystemExit):
        sys.excepthook(type(failure), failure, failure.__traceback__)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BrokenPipeError, ValueError):
            stream.flush()
    os._exit(status & 0xFF)


_SERVER = _Server() if __name__ != '__main__' else None  # type: ignore[assignment]
if __name__ == '__main__':
    _request = _serve(socket.socket(fileno=int(sys.argv[1])))
    _become(_request)
    try:
        _run(_request['words'])
    except BaseException as error:
        _end(error)
    _end(None)
