"""The smallest test runner that the checks in the guest need: one boot, one result per check."""

from __future__ import annotations

import errno
import gc
import json
import os
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from .kernel_api import TRACING, NotHere, bufinfo, live

Check = Callable[[], None]

CHECKS: dict[str, Check] = {}
#: What the outcome of a check begins with that raised :class:`NotHere`: it has neither passed nor failed.
NOT_HERE = 'not here: '
#: What a guest without ROS does not have.
_OF_ROS = ('rclpy', 'sensor_msgs')


def check(function: Check) -> Check:
    """Register a check under its module's and its own name."""
    name = f'{function.__module__.rpartition("check_")[2]}: {title(function)}'
    CHECKS[name] = function
    return function


def title(function: Callable[..., None]) -> str:
    """A check's name, in words."""
    return function.__name__.replace('_', ' ')


CheckOfVariant = Callable[[str], None]


class Registry:
    """The checks of one script, by name.

    :param run: runs a check for one of its variants.
    """

    def __init__(self, run: Callable[[CheckOfVariant, str], None] = lambda function, variant: function(variant)) -> None:
        self.checks: dict[str, Check] = {}
        self._run = run

    def check(self, function: Check) -> Check:
        """Register under its own name."""
        self.checks[title(function)] = function
        return function

    def check_each(self, *variants: str) -> Callable[[CheckOfVariant], CheckOfVariant]:
        """Register once for each variant, which is its argument."""

        def register(function: CheckOfVariant) -> CheckOfVariant:
            for variant in variants:
                self.checks[f'{title(function)} [{variant}]'] = partial(self._run, function, variant)
            return function

        return register


@contextmanager
def raises(*numbers: int) -> Iterator[None]:
    """Expect an `OSError` with one of these errnos."""
    try:
        yield
    except OSError as error:
        if error.errno in numbers:
            return
        got = errno.errorcode.get(error.errno or 0, str(error.errno))
    else:
        got = 'no error'
    raise AssertionError(f'expected {" or ".join(errno.errorcode[number] for number in numbers)}, got {got}')


def equal(got: object, expected: object, what: str = 'value') -> None:
    """Expect equality."""
    if got != expected:
        raise AssertionError(f'{what}: expected {expected!r}, got {got!r}')


def eventually(condition: Callable[[], bool], what: str, timeout_s: float = 5.0) -> None:
    """Expect something to become true soon: a worker tidies up after it has signalled."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f'not within {timeout_s} s: {what}')
        time.sleep(0.002)


def wait(condition: Callable[[], bool], seconds: float) -> bool:
    """Until the condition holds; whether it does."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def settles(look: Callable[[], object], expected: object, what: str) -> None:
    """Expect equality soon."""
    try:
        eventually(lambda: look() == expected, what)
    except AssertionError:
        equal(look(), expected, what)


def expect_nothing_left() -> None:
    """Expect that the device holds nothing any more."""
    gc.collect()
    try:
        eventually(lambda: not any(live().values()), 'the device lets go of everything')
    except AssertionError as error:
        raise AssertionError(f'{error}; it still holds {live()}') from None


def at_rest() -> dict[str, int]:
    """What the device still holds when everybody had time to let go."""
    gc.collect()
    wait(lambda: not any(live().values()), 10)
    return live()


def left_behind() -> dict[str, Any]:
    """What is left on the device, in the kernel, and in its tracing."""
    return {
        'left_on_device': at_rest(),
        'buffers': {str(inode): info.exporter for inode, info in bufinfo().items()},
        'instances': sorted(os.listdir(TRACING / 'instances')),
        'dynamic_events': (TRACING / 'dynamic_events').read_text(errors='replace'),
    }


def _open_fds() -> set[int]:
    with os.scandir('/proc/self/fd') as entries:
        fds = {int(entry.name) for entry in entries}
    return {fd for fd in fds if _is_open(fd)}


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _said(text: str) -> str:
    return 'not here' if text.startswith(NOT_HERE) else 'FAILED' if text else 'passed'


def run(checks: dict[str, Check], results: Path) -> bool:
    """Run the checks, write ``{name: traceback, why it can't run here, or ""}`` after each, and return whether none failed."""
    outcome: dict[str, str] = {}
    for name, function in checks.items():
        started = time.monotonic()
        gc.collect()
        # What an earlier check's threads are just letting go of doesn't count: it would be missed afterwards.
        time.sleep(0.02)
        fds, buffers = _open_fds(), set(bufinfo())
        try:
            function()
            expect_nothing_left()
            # Soon, not at once: a thread that has just ended something may still be letting go of it.
            settles(lambda before=fds: _open_fds() - before, set(), 'open file descriptors')
            settles(lambda before=buffers: set(bufinfo()) - before, set(), 'dma-bufs that nobody lets go of')
            outcome[name] = ''
        except NotHere as missing:
            outcome[name] = f'{NOT_HERE}{missing}'
        except ModuleNotFoundError as missing:
            outcome[name] = f'{NOT_HERE}there is no {missing.name}' if missing.name in _OF_ROS else traceback.format_exc()
        except Exception:
            outcome[name] = traceback.format_exc()
        if outcome[name]:
            # What a failed check left open must not fail the next one too.
            gc.collect()
            for fd in _open_fds() - fds:
                os.close(fd)
        print(f'{time.monotonic() - started:7.2f} s  {_said(outcome[name])}  {name}', flush=True)
        if outcome[name]:
            print(outcome[name], flush=True)
        results.write_text(json.dumps(outcome, indent=1))
    return not any(text and not text.startswith(NOT_HERE) for text in outcome.values())
