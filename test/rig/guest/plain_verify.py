"""Graphs without ROS that ``zc_verify`` judges from outside, in the arm64 guest; see :mod:`plain_graph`."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from zc_perception.memory.heaps import Heap, open_heap

from .harness import left_behind, wait
from .kernel_api import any_heap
from .plain_graph import PlainGraph, Spectator, untouched_camera, vivid_camera
from .sabotage import SABOTAGES
from .untouched_camera import ShadowHeap
from .verifier import NOBODY, Outcome, judged

AFTERWARDS = 'afterwards'


def _judged(out: Path, **options: int | None) -> Outcome:
    return judged(out, ['--pid', str(os.getpid())], **options)


def _sabotaged(names: Sequence[str], out: Path) -> Iterator[tuple[str, Outcome]]:
    """One graph on the kernel's camera, sabotaged in one way after the other."""
    with ExitStack() as stack:
        running = stack.enter_context(PlainGraph(vivid_camera()))
        spectator = Spectator(running)
        stack.callback(spectator.close)
        assert running.flows() and wait(lambda: spectator.seen > 3, 60), running.problems
        for name in names:
            seen, processed = spectator.seen, running.inference.processed
            with SABOTAGES[name](running, spectator):
                outcome = _judged(out / name, user=NOBODY if name == 'nobody' else None)
            outcome['seen'] = spectator.seen - seen
            outcome['processed'] = running.inference.processed - processed
            outcome['problems'] = list(running.problems)
            yield name, outcome


def _of_heap(out: Path, heap: Heap) -> Outcome:
    with PlainGraph(untouched_camera(heap)) as running:
        assert running.flows(), running.problems
        return _judged(out)


GRAPHS: dict[str, Callable[[Path], Outcome]] = {
    'known_exporter': lambda out: _of_heap(out, open_heap(any_heap())[0]),
    'unknown_exporter': lambda out: _of_heap(out, ShadowHeap()),
}


def _cases(names: Sequence[str], out: Path) -> Iterator[tuple[str, Outcome]]:
    try:
        yield from _sabotaged([name for name in SABOTAGES if name in names], out)
    except Exception:
        yield 'sabotaged', {'error': traceback.format_exc()}
    for name, graph in GRAPHS.items():
        if name in names:
            try:
                yield name, graph(out / name)
            except Exception:
                yield name, {'error': traceback.format_exc()}
    yield AFTERWARDS, left_behind()


def cases(names: Sequence[str], out: Path) -> Iterator[tuple[str, Outcome]]:
    """What became of each case, and last of what is left in the kernel. Each sees at least :data:`FRAMES` frames."""
    last = time.monotonic()
    for name, outcome in _cases(names, out):
        outcome['case_s'] = round(time.monotonic() - last, 1)
        yield name, outcome
        last = time.monotonic()
