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

"""Reopen an accelerator after its device was lost, and decide whether a late device hangs."""

from __future__ import annotations

from collections.abc import Callable
import contextlib
from dataclasses import dataclass, replace
import time

from zc_perception.backoff import BackOff
from zc_perception.errors import DeviceLostError, one_line
from zc_perception.npu.accelerator import Accelerator

FIRST_DELAY_S = 0.1
LONGEST_DELAY_S = 5.0
# The device counts as hanging after this many timeouts without a result between them.
HANG_TIMEOUTS = 3
Reopen = Callable[[], Accelerator]


@dataclass(frozen=True)
class DeviceState:
    """
    Whether the device works; if not, since when and why.

    A change makes a new object, so that any thread may read the state.

    :param since_ns: CLOCK_MONOTONIC of the loss; 0 while the device works.
    :param attempt: the number of attempts to open the device since it last yielded a result.
    :param last_error: why the device was lost, or why the last attempt to open it failed.
    """

    since_ns: int = 0
    attempt: int = 0
    last_error: str = ''

    @property
    def recovering(self) -> bool:
        """Whether the device is lost at the moment."""
        return self.since_ns != 0

    def describe(self) -> str:
        """Return ``running``, or the time since the loss, the attempts and the last error."""
        if not self.recovering:
            return 'running'
        seconds = (time.monotonic_ns() - self.since_ns) / 1e9
        return (
            f'recovering for {seconds:.1f} s, attempt {self.attempt}, last error: '
            f'{self.last_error}'
        )


class RecoveringDevice:
    """
    An accelerator that is opened again each time its device was lost.

    The scheduler's thread uses this object; any thread may read :attr:`state` and the counters.

    :meth:`lose` closes the accelerator at once; the first attempt to open it again follows after
    0.1 s. The delay doubles, up to 5 s, if opening fails, or if the device is lost again before it
    has yielded a result (:meth:`proved`).

    :param reopen: opens the accelerator and loads its model; ``None``: the device can't be opened
        again, so it never counts as lost.
    """

    def __init__(self, accelerator: Accelerator, reopen: Reopen | None) -> None:
        self.accelerator = accelerator
        self.capabilities = accelerator.capabilities()
        self.state = DeviceState()
        #: The same as ``state.recovering``, but quicker to read; the scheduler reads it per frame.
        self.recovering = False
        self.losses = 0
        self.recovered = 0
        self._reopen = reopen
        self._retry = BackOff(FIRST_DELAY_S, LONGEST_DELAY_S)
        self._past_imports = self._past_trial_imports = 0

    @property
    def replaceable(self) -> bool:
        """Whether the accelerator can be opened again."""
        return self._reopen is not None

    @property
    def due_ns(self) -> int:
        """The time of the next attempt to open a lost device, CLOCK_MONOTONIC."""
        return round(self._retry.due * 1e9)

    @property
    def imports(self) -> int:
        """The imports since the start, by the present accelerator and all those before it."""
        return self._past_imports + self.accelerator.imports

    @property
    def trial_imports(self) -> int:
        """The sum of ``Accelerator.trial_imports`` of the present and all past accelerators."""
        return self._past_trial_imports + self.accelerator.trial_imports

    def loss(self, error: BaseException) -> str:
        """
        Return the reason if *error* means that the device is lost; otherwise an empty text.

        A device that can't be opened again never counts as lost.
        """
        return one_line(error) if isinstance(error, DeviceLostError) and self.replaceable else ''

    def guarded(self, function: Callable[..., object], *arguments: object) -> str:
        """
        Call *function*; catch every exception, so that none ends the scheduler's thread.

        :returns: why the device is lost; empty if it isn't.
        """
        try:
            function(*arguments)
        except (Exception, SystemExit) as error:  # another package may raise anything
            return self.loss(error)
        return ''

    def lose(self, reason: str) -> None:
        """Close the lost device and plan when to reopen it. The caller first abandons all jobs."""
        self.losses += 1
        self.state = DeviceState(time.monotonic_ns(), self.state.attempt, reason)
        self.recovering = True
        self.close()
        self._retry.failed()

    def try_again(self) -> None:
        """Try to open the device again; if that fails, plan the next attempt."""
        assert self._reopen is not None
        self.state = replace(self.state, attempt=self.state.attempt + 1)
        try:
            accelerator = self._reopen()
            capabilities = accelerator.capabilities()
        except (Exception, SystemExit) as error:
            self.state = replace(self.state, last_error=one_line(error))
            self._retry.failed()
            return
        self._past_imports += self.accelerator.imports
        self._past_trial_imports += self.accelerator.trial_imports
        self.accelerator, self.capabilities = accelerator, capabilities
        self.recovered += 1
        self.state = DeviceState(attempt=self.state.attempt)
        self.recovering = False

    def proved(self) -> None:
        """Set the delay before the next reopening to 0.1 s, because the device gave a result."""
        if self.state.attempt:
            self._retry.start_over()
            self.state = DeviceState()

    def close(self) -> None:
        """Close the accelerator; ignore errors, because the device may be dead."""
        with contextlib.suppress(Exception, SystemExit):
            self.accelerator.close()


class HangWatch:
    """
    Decide whether a device hangs or is only late. The scheduler's thread uses this object.

    A device counts as hanging after :data:`HANG_TIMEOUTS` timeouts without a result between them.
    Jobs that were in flight together count as one timeout, because one delay makes all of them
    late. If jobs that were given up fill the device, no new job can be submitted, so none can
    time out. Then the device counts as hanging once it has been full for twice *timeout_s*.

    :param timeout_s: a job's timeout in seconds.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._in_a_row = 0
        self._last_ns = 0
        self._full_since_ns = 0

    def set_timeout(self, timeout_s: float) -> None:
        """Change a job's timeout (seconds), because parameter ``timeout`` was changed."""
        self._timeout_s = timeout_s

    def start(self) -> None:
        """Restart the count of timeouts, because a result came or the device was lost."""
        self._in_a_row = self._full_since_ns = 0

    def timed_out(self, submitted_ns: int) -> str:
        """
        Note that a job had no result in time.

        :param submitted_ns: the time from which the job's timeout counts, CLOCK_MONOTONIC.
        :returns: a message if the device hangs; otherwise an empty text.
        """
        if submitted_ns >= self._last_ns:
            self._in_a_row += 1
            self._last_ns = time.monotonic_ns()
        if self._in_a_row < HANG_TIMEOUTS:
            return ''
        return (
            f'the device hangs: {self._in_a_row} times in a row there was no result within '
            f'{self._timeout_s:g} s'
        )

    def full(self, is_full: bool, now_ns: int) -> str:
        """
        Note whether jobs that were given up fill the device, so that it accepts no other job.

        :returns: a message if the device hangs; otherwise an empty text.
        """
        self._full_since_ns = (self._full_since_ns or now_ns) if is_full else 0
        if (
            not is_full
            or now_ns - self._full_since_ns <= (HANG_TIMEOUTS - 1) * self._timeout_s * 1e9
        ):
            return ''
        return (
            'the device hangs: it has ended none of its jobs within '
            f'{HANG_TIMEOUTS * self._timeout_s:g} s, and has no room for another job'
        )
