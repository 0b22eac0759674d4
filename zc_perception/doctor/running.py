"""Runs checks: the groups side by side, the checks of a group one after the other, none longer than its time.

A check that hangs in the kernel can't be ended: its thread is left behind, named after it, and ends with the process.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from zc_perception.errors import ZcError, one_line
from zc_perception.machine.asking import CHECK_LIMIT_S, NoAnswerError, Question
from zc_perception.machine.checks import Check, Finding, Needs, fail
from zc_perception.machine.system import System


@dataclass(frozen=True)
class Result:
    """A finding, and the check that it is of."""

    check: Check
    finding: Finding


class _Memory:
    """Remembers the answers to questions. An answer costs a process, and several checks ask the same question, perhaps at the same time:
    the first one asks, the others wait for its answer."""

    def __init__(self, ask: Callable[..., dict[str, Any]]) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._answers: dict[
            tuple[Question, tuple[str, ...]],
            tuple[threading.Lock, list[dict[str, Any] | NoAnswerError]],
        ] = {}

    def __call__(self, question: Question, *arguments: str) -> dict[str, Any]:
        with self._lock:
            lock, answers = self._answers.setdefault((question, arguments), (threading.Lock(), []))
        with lock:
            if not answers:
                try:
                    answers.append(self._ask(question, *arguments))
                except NoAnswerError as error:
                    answers.append(error)
        answer = answers[0]
        if isinstance(answer, NoAnswerError):
            raise NoAnswerError(str(answer))
        return answer


def _not_checked(check: Check, why: str) -> list[Result]:
    advice = f'report it if it happens again; to leave it out, name all groups but {check.group} after --only'
    return [Result(check, fail(f'could not be checked: {why}', advice, checked=False))]


def run_check(check: Check, system: System, needs: Needs) -> list[Result]:
    """Its findings; whatever goes wrong in it is one."""
    found: list[Result] = []
    try:
        for finding in check.run(system, needs):
            found.append(
                Result(check, finding)
            )  # one by one: what was found before it stumbled counts
    except ZcError as error:
        return [*found, *_not_checked(check, str(error))]
    except Exception as error:  # a defect of a check must not hide what the others found
        return [*found, *_not_checked(check, one_line(error))]
    return found or _not_checked(check, 'the check gave no result')


@dataclass
class _Lane:
    """One group of checks. The first one that waits is the one that runs, on a thread of its own."""

    waiting: deque[Check]
    deadline: float = 0.0

    @property
    def running(self) -> Check:
        return self.waiting[0]


def run_checks(
    checks: Sequence[Check], system: System, needs: Needs, limit_s: float = CHECK_LIMIT_S
) -> Iterator[Result]:
    """The findings, in the order of *checks*, each as soon as those before it are there.

    :param limit_s: of each check.
    """
    system = replace(system, ask=_Memory(system.ask))
    ended: queue.SimpleQueue[tuple[Check, list[Result]]] = queue.SimpleQueue()
    lanes: dict[str, _Lane] = {}
    for check in checks:
        lanes.setdefault(check.group, _Lane(deque())).waiting.append(check)

    def work(check: Check) -> None:
        ended.put((check, run_check(check, system, needs)))

    def start(lane: _Lane) -> None:
        lane.deadline = time.monotonic() + limit_s
        threading.Thread(
            target=work, args=(lane.running,), name=f'zc_doctor {lane.running.id}', daemon=True
        ).start()

    for lane in lanes.values():
        start(lane)
    done: dict[str, list[Result]] = {}
    for check in checks:
        while check.id not in done:
            _collect(lanes, ended, done, start, limit_s)
        yield from done[check.id]


def _collect(
    lanes: dict[str, _Lane],
    ended: queue.SimpleQueue[tuple[Check, list[Result]]],
    done: dict[str, list[Result]],
    start: Callable[[_Lane], None],
    limit_s: float,
) -> None:
    """Wait for the next check that ends, or runs out of its time."""
    deadline = min(lane.deadline for lane in lanes.values() if lane.waiting)
    try:
        check, results = ended.get(timeout=max(0.0, deadline - time.monotonic()))
    except queue.Empty:
        late = [
            lane for lane in lanes.values() if lane.waiting and lane.deadline <= time.monotonic()
        ]
        over = [
            (
                lane.running,
                _not_checked(lane.running, f'it did not end within {limit_s:g} s; see dmesg'),
            )
            for lane in late
        ]
    else:
        # One that was given up may end after all.
        over = [(check, results)] if check.id not in done else []
    for check, results in over:
        done[check.id] = results
        lane = lanes[check.group]
        lane.waiting.popleft()
        if lane.waiting:
            start(lane)
