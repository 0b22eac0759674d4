"""What ``zc_bench link`` measures: a floor, or a producer and a consumer, by their processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from zc_perception.bench.rows import Condition, Series
from zc_perception.bench.worker import BenchError, NoAnswerError, Worker

WARM_UP_FRAMES = 12
_MATCH_S = 60.0
# How long an answer may take on top of the series; a producer whose frames aren't answered gives up sooner.
_PATIENCE_S = 120.0
_FLOOR_PATIENCE_S = 30.0


class TornFrameError(BenchError):
    """A consumer got a frame that is put together from several, or not all of it."""


def series_of(frames: int, sent: Sequence[tuple[int, int]], arrived: Sequence[tuple[int, int]], cpu_us: float) -> Series:
    """What a producer and a consumer noted of the same series.

    :param frames: how many were to be sent; those that could not be are lost too.
    :param sent: (number, ns) of each frame.
    :param arrived: (number, ns), in the order of arrival.
    :raises BenchError: a frame arrived that wasn't sent, or twice.
    """
    left = dict(sent)
    try:
        latencies = [(at - left.pop(number)) / 1e3 for number, at in arrived]
    except KeyError as error:
        raise BenchError(f'frame {error} arrived twice, or was never sent') from error
    return Series(latencies, cpu_us / max(1, frames), frames - len(latencies))


class Case(Protocol):
    """Something to measure."""

    def wait_until_matched(self) -> None:
        """Until both ends see each other."""

    def measure(self, variant: str, condition: Condition, frames: int, *, read: bool = False) -> Series:
        """One repetition.

        :param read: the consumer reads every pixel.
        """

    @property
    def workers(self) -> tuple[Worker, ...]:
        """Its processes."""


@dataclass
class FloorCase:
    """Floors; a frame's size doesn't enter.

    A floor waits for each wake-up for ever, and that of the guard condition has been seen not to come: its process is started again then,
    and the series repeated.

    :param start: starts its process.
    :param say: gets a line for each that had to be started again.
    """

    start: Callable[[], Worker]
    say: Callable[[str], None]
    patience_s: float = _FLOOR_PATIENCE_S

    def __post_init__(self) -> None:
        self._worker = self.start()

    @property
    def workers(self) -> tuple[Worker, ...]:
        """See :class:`Case`."""
        return (self._worker,)

    def wait_until_matched(self) -> None:
        """There is nobody to wait for."""

    def measure(self, variant: str, condition: Condition, frames: int, *, read: bool = False) -> Series:
        """See :class:`Case`.

        :raises BenchError: twice in a row, or the process ended.
        """
        try:
            return self._measure(variant, condition, frames)
        except NoAnswerError as error:
            self.say(f'floor {variant}: {error}; its process is started again')
            cpus = self._worker.cpus
            self._worker.close()
            self._worker = self.start()
            self._worker.set_cpus(cpus)
            return self._measure(variant, condition, frames)

    def _measure(self, variant: str, condition: Condition, frames: int) -> Series:
        patience_s = self.patience_s + (frames / condition.rate_hz if condition.rate_hz else 0.0)
        answer = self._worker.ask(patience_s, floor=variant, frames=frames, rate_hz=condition.rate_hz)
        return Series([ns / 1e3 for ns in answer['latencies_ns']], answer['cpu_us'] / frames)


@dataclass
class LinkCase:
    """A producer's and a consumer's process, which may be the same one."""

    producer: Worker
    consumer: Worker
    patience_s: float = _PATIENCE_S
    _next: int = 0

    @property
    def workers(self) -> tuple[Worker, ...]:
        """See :class:`Case`."""
        return self.producer, self.consumer

    def wait_until_matched(self) -> None:
        """See :class:`Case`.

        :raises BenchError: they don't.
        """
        deadline = time.monotonic() + _MATCH_S
        for end in (self.producer, self.consumer):
            while not (answer := end.ask(op='matched'))['matched']:
                if time.monotonic() > deadline:
                    raise BenchError(
                        f"the benchmark's process '{end.role}' did not find its other end within {_MATCH_S:g} s ({answer['reason']}); "
                        'does multicast work on the loopback device?'
                    )
                time.sleep(0.1)

    def measure(self, variant: str, condition: Condition, frames: int, *, read: bool = False) -> Series:
        """See :class:`Case`. The first frames of a new size introduce and map its buffers: set-up, not hand-over."""
        for end in dict.fromkeys((self.consumer, self.producer)):
            end.ask(self.patience_s, op='prepare', width=condition.width, height=condition.height)
        self._run(WARM_UP_FRAMES, 0.0, read)
        return self._run(frames, condition.rate_hz, read)

    def _run(self, frames: int, rate_hz: float, read: bool) -> Series:
        first, self._next = self._next, self._next + frames
        run = {'op': 'run', 'first': first, 'frames': frames, 'rate_hz': rate_hz, 'read': read}
        patience_s = self.patience_s + (frames / rate_hz if rate_hz else 0.0)
        if self.consumer is self.producer:
            answer = self.producer.ask(patience_s, **run)
            sent, arrived = answer['sent'], answer['arrived']
            spent = [self.producer.ask(op='spent')]
        else:
            self.consumer.ask(self.patience_s, op='begin', first=first, rate_hz=rate_hz, read=read)
            sent = self.producer.ask(patience_s, **run)['sent']
            arrived = self.consumer.ask(self.patience_s, op='end', last=sent[-1][0] if sent else first - 1)['arrived']
            spent = [end.ask(self.patience_s, op='spent') for end in (self.consumer, self.producer)]
        if any(s['conversions'] for s in spent):
            raise BenchError(
                f'frames were converted to messages on a link without copies ({self.consumer.role}): it does not measure what it says'
            )
        if torn := sum(s['torn'] for s in spent):
            raise TornFrameError(f"{torn} frame(s) of '{self.consumer.role}' were torn: not all of a frame's pixels were its own")
        return series_of(frames, sent, arrived, sum(s['cpu_us'] for s in spent))
