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

"""Process-wide state that a test may change; :func:`kept` restores it for later tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
import gc
import locale
import logging
import os
import resource
import signal
import socket
import sys
from typing import Any

_LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith('RLIMIT_')]
_SIGNALS = [
    getattr(signal, f'SIG{name}')
    for name in ('HUP', 'INT', 'QUIT', 'PIPE', 'ALRM', 'TERM', 'USR1', 'USR2', 'CHLD', 'XFSZ')
]


def _set_signals(handlers: dict[int, Any]) -> None:
    for number, handler in handlers.items():
        # None: C code installed the handler, so Python can't restore it.
        if handler is not None and signal.getsignal(number) is not handler:
            signal.signal(number, handler)


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != 'PYTEST_CURRENT_TEST'}


def _set_environment(before: dict[str, str]) -> None:
    for name in _environment().keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


#: For each state: how to read it, and how to set it.
_STATES: tuple[tuple[Callable[[], Any], Callable[[Any], object]], ...] = (
    (sys.getswitchinterval, sys.setswitchinterval),
    (sys.getrecursionlimit, sys.setrecursionlimit),
    (
        lambda: [(which, resource.getrlimit(which)) for which in _LIMITS],
        lambda limits: [resource.setrlimit(*each) for each in limits],
    ),
    (lambda: {number: signal.getsignal(number) for number in _SIGNALS}, _set_signals),
    (
        lambda: signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        lambda mask: signal.pthread_sigmask(signal.SIG_SETMASK, mask),
    ),
    (_umask, os.umask),
    (os.getcwd, os.chdir),
    (_environment, _set_environment),
    (lambda: os.sched_getaffinity(0), lambda cpus: os.sched_setaffinity(0, cpus)),
    (
        lambda: (os.sched_getscheduler(0), os.sched_getparam(0).sched_priority),
        lambda found: os.sched_setscheduler(0, found[0], os.sched_param(found[1])),
    ),
    (lambda: locale.setlocale(locale.LC_ALL), lambda name: locale.setlocale(locale.LC_ALL, name)),
    (gc.isenabled, lambda enabled: (gc.enable if enabled else gc.disable)()),
    (gc.get_threshold, lambda thresholds: gc.set_threshold(*thresholds)),
    (lambda: gc.get_freeze_count() > 0, lambda frozen: frozen or gc.unfreeze()),
    (lambda: logging.root.level, logging.root.setLevel),
    (lambda: logging.root.manager.disable, logging.disable),
    (socket.getdefaulttimeout, socket.setdefaulttimeout),
    (lambda: [*sys.argv], lambda argv: sys.argv.__setitem__(slice(None), argv)),
    (lambda: sys.modules['__main__'], lambda module: sys.modules.__setitem__('__main__', module)),
)


@contextmanager
def kept() -> Iterator[None]:
    """Restore the state of this thread and of the whole process at the end."""
    before = [read() for read, _ in _STATES]
    yield
    for (read, write), was in zip(_STATES, before, strict=True):
        if read() != was:
            write(was)
