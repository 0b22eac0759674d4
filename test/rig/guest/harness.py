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

"""A minimal test runner for the checks in the guest: one boot, one result per check."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
import errno
from functools import partial
import gc
import json
import os
from pathlib import Path
import signal
import socket
import time
import traceback
from typing import Any

from waiting import eventually

from .kernel_api import bufinfo, is_readable, live, NotHere, TRACING

Check = Callable[[], None]
CheckOfVariant = Callable[[str], None]

# Checks of all imported modules, by ``MODULE: TITLE``, with ``[VARIANT]`` for a check that runs
# once for each of several variants.
CHECKS: dict[str, Check] = {}
#: Checks that the short form leaves out.
LONG_CHECKS: set[str] = set()
# Prefix of the outcome of a check that raised :class:`NotHere`: it has neither passed nor failed.
NOT_HERE = 'not here: '
#: Modules that a guest without ROS lacks.
_OF_ROS = ('rclpy', 'sensor_msgs')


def _name(function: Callable[..., None]) -> str:
    return f'{function.__module__.rpartition(".")[2]}: {function.__name__.replace("_", " ")}'


def check(function: Check) -> Check:
    CHECKS[_name(function)] = function
    return function


def check_each(
    *variants: str, long: Sequence[str] = ()
) -> Callable[[CheckOfVariant], CheckOfVariant]:
    """Register a check once per variant, which is its argument; the long form has more."""

    def register(function: CheckOfVariant) -> CheckOfVariant:
        names = {variant: f'{_name(function)} [{variant}]' for variant in (*variants, *long)}
        CHECKS.update({name: partial(function, variant) for variant, name in names.items()})
        LONG_CHECKS.update(names[variant] for variant in long)
        return function

    return register


@contextmanager
def raises(*numbers: int, what: str = '') -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in numbers:
            return
        got = errno.errorcode.get(error.errno or 0, str(error.errno))
    else:
        got = 'no error'
    wanted = ' or '.join(errno.errorcode[number] for number in numbers)
    raise AssertionError(f'{what and f"{what}: "}expected {wanted}, got {got}')


def fails(number: int, call: Callable[..., object], *arguments: Any, **options: Any) -> None:
    """Expect this errno of the call."""
    with raises(number):
        call(*arguments, **options)


def equal(got: object, expected: object, what: str = 'value') -> None:
    if got != expected:
        raise AssertionError(f'{what}: expected {expected!r}, got {got!r}')


def settles(look: Callable[[], object], expected: object, what: str) -> None:
    """Wait at most 5 s for equality."""
    if not eventually(lambda: look() == expected, 5.0):
        equal(look(), expected, what)


def at_rest() -> dict[str, int]:
    """Return what the device holds after a delay: workers tidy up after they have signalled."""
    gc.collect()
    eventually(lambda: not any(live().values()))
    return live()


def expect_nothing_left() -> None:
    equal({what: count for what, count in at_rest().items() if count}, {}, 'what the device holds')


def left_behind() -> dict[str, Any]:
    return {
        'left_on_device': at_rest(),
        'buffers': {str(inode): info.exporter for inode, info in bufinfo().items()},
        'instances': sorted(os.listdir(TRACING / 'instances')),
        'dynamic_events': (TRACING / 'dynamic_events').read_text(errors='replace'),
    }


class Child:
    """A forked process with a socket to it; it ends with its work, or is killed."""

    def __init__(self, work: Callable[[socket.socket], None]) -> None:
        self.socket, theirs = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                self.socket.close()
                work(theirs)
                code = 0
            except BaseException as error:
                os.write(2, f'in the child: {error!r}\n'.encode())
            finally:
                os._exit(code)
        theirs.close()
        self.socket.settimeout(30.0)

    def answer(self) -> bytes:
        said = self.socket.recv(4096)
        assert said, 'the child ended without an answer'
        return said

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        equal(_wait_for(self.pid), -signal.SIGKILL, 'end of the killed child')
        self.socket.close()

    def join(self) -> None:
        self.socket.close()
        equal(_wait_for(self.pid), 0, 'exit status of the child')


def _wait_for(pid: int) -> int:
    """Return a child's exit status, negative for a signal; kill a dead-locked one."""
    pidfd = os.pidfd_open(pid)
    in_time = is_readable(pidfd, 60_000)
    os.close(pidfd)
    if not in_time:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    assert in_time, 'a child did not end'
    return os.waitstatus_to_exitcode(status)


def _open_fds() -> set[int]:
    """Return the open descriptors, without the one that lists them."""
    names = os.listdir('/proc/self/fd')
    return {int(name) for name in names if os.path.exists(f'/proc/self/fd/{name}')}


def run(checks: dict[str, Check], results: Path) -> bool:
    """Run the checks, writing ``{name: outcome}`` after each; return whether none failed."""
    outcome: dict[str, str] = {}
    for name, function in checks.items():
        started = time.monotonic()
        gc.collect()
        # Let threads of earlier checks release their objects first, else these would be missed
        # later.
        time.sleep(0.02)
        fds, buffers = _open_fds(), set(bufinfo())
        try:
            function()
            expect_nothing_left()
            # Wait a little: a thread that has just ended may still release objects.
            settles(lambda before=fds: _open_fds() - before, set(), 'open file descriptors')
            settles(
                lambda before=buffers: set(bufinfo()) - before,
                set(),
                'dma-bufs that nobody lets go of',
            )
            outcome[name] = ''
        except NotHere as missing:
            outcome[name] = f'{NOT_HERE}{missing}'
        except ModuleNotFoundError as missing:
            outcome[name] = (
                f'{NOT_HERE}there is no {missing.name}'
                if missing.name in _OF_ROS
                else traceback.format_exc()
            )
        except Exception:
            outcome[name] = traceback.format_exc()
        text = outcome[name]
        if text:
            # Descriptors left by a failed check must not fail the next check too.
            gc.collect()
            for fd in _open_fds() - fds:
                os.close(fd)
        said = 'not here' if text.startswith(NOT_HERE) else 'FAILED' if text else 'passed'
        print(f'{time.monotonic() - started:7.2f} s  {said}  {name}\n{text}'.rstrip(), flush=True)
        results.write_text(json.dumps(outcome, indent=1))
    return not any(text and not text.startswith(NOT_HERE) for text in outcome.values())
