"""An accelerator that is opened anew after it was lost."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass

from zc_perception.errors import DeviceLostError
from zc_perception.npu.accelerator import Accelerator

FIRST_DELAY_S = 0.1
LONGEST_DELAY_S = 5.0
Reopen = Callable[[], Accelerator]


@dataclass(frozen=True)
class DeviceState:
    """Whether there is a device; replaced as a whole, so that any thread may read it.

    :param since_ns: CLOCK_MONOTONIC of the loss; 0 while the device works.
    :param attempt: attempts to open the device since it last yielded a result.
    :param last_error: why it was lost, or why the last attempt failed.
    """

    since_ns: int = 0
    attempt: int = 0
    last_error: str = ''

    @property
    def recovering(self) -> bool:
        """Whether the device is lost at the moment."""
        return self.since_ns != 0

    def describe(self) -> str:
        """``running``, or since when there is no device, how often it was tried, and why it is gone."""
        if not self.recovering:
            return 'running'
        seconds = (time.monotonic_ns() - self.since_ns) / 1e9
        return f'recovering since {seconds:.1f} s, attempt {self.attempt}, last error: {self.last_error}'


def back_off_s(attempt: int) -> float:
    """How long to wait after attempt number *attempt*; 0: after the loss."""
    return float(min(LONGEST_DELAY_S, FIRST_DELAY_S * 2 ** min(attempt, 16)))


class RecoveringDevice:
    """One thread uses it; any may read :attr:`state` and the counters.

    An accelerator that was lost is closed at once. It is due again after 0.1 s, and after twice as long each time that opening it fails or
    that it is lost before it has yielded a result, at most 5 s.

    :param reopen: opens it, with its model; ``None``: nobody can, and it is never lost.
    """

    def __init__(self, accelerator: Accelerator, reopen: Reopen | None) -> None:
        self.accelerator = accelerator
        self.capabilities = accelerator.capabilities()
        self.state = DeviceState()
        self.losses = 0
        self.recovered = 0
        self._reopen = reopen
        self._attempt = 0
        self._past_imports = self._past_trial_imports = 0
        self.due_ns = 0

    @property
    def replaceable(self) -> bool:
        """Whether it can be opened anew."""
        return self._reopen is not None

    @property
    def imports(self) -> int:
        """Of all accelerators since the start, see :attr:`Accelerator.imports`."""
        return self._past_imports + self.accelerator.imports

    @property
    def trial_imports(self) -> int:
        """Of all accelerators since the start, see :attr:`Accelerator.trial_imports`."""
        return self._past_trial_imports + self.accelerator.trial_imports

    def loss(self, error: Exception) -> str:
        """What to say of *error* if it means that the accelerator is lost and can be opened anew; else nothing."""
        # A fence that this process signals itself wraps the error that it was given.
        lost = isinstance(error, DeviceLostError) or isinstance(error.__cause__, DeviceLostError)
        return str(error) if lost and self.replaceable else ''

    def guarded(self, function: Callable[..., object], *arguments: object) -> str:
        """Call what must not end the thread, as nothing could be done about a refusal. What to say of a loss, or nothing."""
        try:
            function(*arguments)
        except Exception as error:
            return self.loss(error)
        return ''

    def lose(self, reason: str) -> None:
        """Close it, and note when it is due again. Its jobs have been abandoned by now."""
        self.losses += 1
        self.state = DeviceState(time.monotonic_ns(), self._attempt, reason)
        self.close()
        self.due_ns = time.monotonic_ns() + round(back_off_s(self._attempt) * 1e9)

    def try_again(self) -> None:
        """Open it anew; if that fails, it is due later."""
        assert self._reopen is not None
        self._attempt += 1
        since_ns, reason = self.state.since_ns, self.state.last_error
        self.state = DeviceState(since_ns, self._attempt, reason)
        try:
            accelerator = self._reopen()
            capabilities = accelerator.capabilities()
        except Exception as error:
            self.state = DeviceState(since_ns, self._attempt, str(error))
            self.due_ns = time.monotonic_ns() + round(back_off_s(self._attempt) * 1e9)
            return
        self._past_imports += self.accelerator.imports
        self._past_trial_imports += self.accelerator.trial_imports
        self.accelerator, self.capabilities = accelerator, capabilities
        self.recovered += 1
        self.state = DeviceState(attempt=self._attempt)

    def proved(self) -> None:
        """It has yielded a result: the next loss is a new one."""
        if self._attempt:
            self._attempt = 0
            self.state = DeviceState()

    def close(self) -> None:
        """Close the accelerator; what a dead one answers changes nothing."""
        with contextlib.suppress(Exception):
            self.accelerator.close()
