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

"""Open an accelerator anew after a loss, and decide when a late device counts as lost."""

from __future__ import annotations

from collections.abc import Callable
import contextlib
from dataclasses import dataclass, replace
import time

from zc_perception.backoff import BackOff
from zc_perception.errors import DeviceLostError
from zc_perception.npu.accelerator import Accelerator

FIRST_DELAY_S = 0.1
LONGEST_DELAY_S = 5.0
# The device hangs when this many results in a row did not come in time.
HANG_TIMEOUTS = 3
Reopen = Callable[[], Accelerator]


@dataclass(frozen=True)
class DeviceState:
    """
    Whether the device works, or is lost and why.

    A change makes a new object, so that any thread may read the state.

    :param since_ns: CLOCK_MONOTONIC of the loss; 0 while the device works.
    :param attempt: how often opening the device was tried since it last yielded a result.
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
        """
        Return ``running``, or for how long the device has been lost, and why.

        The text also says how often opening the device was tried.
        """
        if not self.recovering:
            return 'running'
        seconds = (time.monotonic_ns() - self.since_ns) / 1e9
        return (
            f'recovering since {seconds:.1f} s, attempt {self.attempt}, last error: '
            f'{self.last_error}'
        )


class RecoveringDevice:
    """
    An accelerator, and the ones opened in its place after losses.

    The scheduler's thread uses it; any thread may read :attr:`state` and the counters.

    :meth:`lose` closes the accelerator at once. The accelerator is opened again after 0.1 s. That
    delay doubles, up to 5 s, each time that opening fails, or that the device is lost again before
    it has yielded a result (:meth:`proved`).

    :param reopen: opens the accelerator and loads its model; ``None``: the device can't be opened
        again, so it never counts as lost.
    """

    def __init__(self, accelerator: Accelerator, reopen: Reopen | None) -> None:
        self.accelerator = accelerator
        self.capabilities = accelerator.capabilities()
        self.state = DeviceState()
        #: The same as ``state.recovering``; an attribute, because each frame reads it several
        #: times.
        self.recovering = False
        self.losses = 0
        self.recovered = 0
        self._reopen = reopen
        self._retry = BackOff(FIRST_DELAY_S, LONGEST_DELAY_S)
        self._past_imports = self._past_trial_imports = 0

    @property
    def replaceable(self) -> bool:
        """Whether the accelerator can be opened anew."""
        return self._reopen is not None

    @property
    def due_ns(self) -> int:
        """When a lost device may be opened anew, CLOCK_MONOTONIC."""
        return round(self._retry.due * 1e9)

    @property
    def imports(self) -> int:
        """Imports of all accelerators since the start, see :attr:`Accelerator.imports`."""
        return self._past_imports + self.accelerator.imports

    @property
    def trial_imports(self) -> int:
        """Trial imports of all accelerators, see :attr:`Accelerator.trial_imports`."""
        return self._past_trial_imports + self.accelerator.trial_imports

    def loss(self, error: Exception) -> str:
        """
        Return why the device is lost.

        Empty: *error* means no loss, or it can't be opened again.
        """
        return str(error) if isinstance(error, DeviceLostError) and self.replaceable else ''

    def guarded(self, function: Callable[..., object], *arguments: object) -> str:
        """
        Call *function*; catch every exception, so that none ends the thread.

        :returns: why the device is lost; empty if it isn't.
        """
        try:
            function(*arguments)
        except Exception as error:
            return self.loss(error)
        return ''

    def lose(self, reason: str) -> None:
        """Close the device, whose jobs were abandoned; note when to open it again."""
        self.losses += 1
        self.state = DeviceState(time.monotonic_ns(), self.state.attempt, reason)
        self.recovering = True
        self.close()
        self._retry.failed()

    def try_again(self) -> None:
        """Open the device anew; if that fails, plan the next attempt."""
        assert self._reopen is not None
        self.state = replace(self.state, attempt=self.state.attempt + 1)
        try:
            accelerator = self._reopen()
            capabilities = accelerator.capabilities()
        except Exception as error:
            self.state = replace(self.state, last_error=str(error))
            self._retry.failed()
            return
        self._past_imports += self.accelerator.imports
        self._past_trial_imports += self.accelerator.trial_imports
        self.accelerator, self.capabilities = accelerator, capabilities
        self.recovered += 1
        self.state = DeviceState(attempt=self.state.attempt)
        self.recovering = False

    def proved(self) -> None:
        """Note that the device yielded a result, so the next loss starts with the first delay."""
        if self.state.attempt:
            self._retry.start_over()
            self.state = DeviceState()

    def close(self) -> None:
        """Close the accelerator; the errors of a dead one are ignored."""
        with contextlib.suppress(Exception):
            self.accelerator.close()


class HangWatch:
    """
    Tells a device that hangs from one that is only late.

    The scheduler's thread uses it.

    A device counts as hanging after :data:`HANG_TIMEOUTS` timeouts without a result between them.
    Jobs that were in flight together count as one timeout, because one delay makes all of them
    late. While jobs that were given up take all places on the device, no job can be submitted and
    time out: then the device counts as hanging when this state has lasted as long as the missing
    timeouts would have.

    :param timeout_s: a job's timeout in seconds.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._in_a_row = 0
        self._last_ns = 0
        self._full_since_ns = 0

    def set_timeout(self, timeout_s: float) -> None:
        """Begin counting anew, because a result came or another device was opened."""
        self._timeout_s = timeout_s

    def start(self) -> None:
        """Begin counting anew, because a result came or another device was opened."""
        self._in_a_row = self._full_since_ns = 0

    def timed_out(self, submitted_ns: int) -> str:
        """
        Note that the job submitted at *submitted_ns* had no result in time.

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
        Note whether jobs that were given up take every place on the device.

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
            f'{HANG_TIMEOUTS * self._timeout_s:g} s, and has room for no other'
        )
