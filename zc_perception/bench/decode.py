"""``zc_bench decode``: what a frame costs before and after the network: its input tensor, and its boxes.

Everything runs on one CPU with one thread of OpenCV. Each repetition measures every variant of every case, in an order of its own, and
checks first that the variants of a head yield the same boxes: a quicker wrong answer is no result.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np

from zc_perception.bench import decode_peers as peers
from zc_perception.bench import decode_scenes as scenes
from zc_perception.bench.bars import FULL_HD, UHD_4K
from zc_perception.bench.decode_tensors import tensor_case
from zc_perception.bench.rows import Condition, Row, Series, SeriesBook, make_rows
from zc_perception.bench.worker import BenchError
from zc_perception.detection.detections import Detections
from zc_perception.detection.heads import make_head
from zc_perception.detection.raw_tensor import RawTensor

OURS = 'ours'
# A hundredth of a pixel of the source: the order of float32 operations differs, nothing else may.
_SAME_PX = 0.01
_SAME_SCORE = 1e-5


@dataclass(frozen=True)
class Case:
    """Something to measure in several ways.

    :param variants: by name, ours first; each call does the whole work for one frame.
    :param check: raises BenchError if they don't all yield the same, and tells figures of each.
    """

    name: str
    size: tuple[int, int]
    variants: Mapping[str, Callable[[], Any]]
    check: Callable[[], Mapping[str, Mapping[str, float]]]

    @property
    def condition(self) -> Condition:
        """Source size; nothing is paced."""
        return Condition(*self.size, 0.0)


def check_same(case: str, found: Mapping[str, Detections]) -> None:
    """
    :raises BenchError: two variants found different boxes, or none at all.
    """
    (first, wanted), *others = found.items()
    if not len(wanted):
        raise BenchError(f"case '{case}': {first} found nothing in a scene of {scenes.OBJECTS} objects")
    for name, one in others:
        if len(one) != len(wanted):
            raise BenchError(f"case '{case}': {name} found {len(one)} boxes, {first} {len(wanted)}")
        # Those of equal score may change places.
        for a, b in zip(_ordered(one), _ordered(wanted), strict=True):
            if a[1] != b[1] or abs(a[0] - b[0]) > _SAME_SCORE or np.abs(np.subtract(a[2:], b[2:])).max() > _SAME_PX:
                raise BenchError(f"case '{case}': {name} found (score, class, box) {a}, {first} {b}")


def _ordered(found: Detections) -> list[tuple[float, ...]]:
    rows = zip(found.scores.tolist(), found.classes.tolist(), found.boxes.tolist(), strict=True)
    return sorted(((score, kind, *box) for score, kind, box in rows), key=lambda row: (row[1], *(round(v) for v in row[2:4])))


def _head_case(name: str, outputs: Sequence[RawTensor], others: Mapping[str, Callable[[], Detections]]) -> Case:
    head = make_head(scenes.SPEC)
    variants = {OURS: lambda: head.decode(outputs, scenes.BOX, scenes.LIMITS), **others}

    def check() -> dict[str, dict[str, float]]:
        found = {variant: run() for variant, run in variants.items()}
        check_same(name, found)
        return {variant: {'boxes': float(len(one))} for variant, one in found.items()}

    return Case(name, FULL_HD, variants, check)


def cases() -> list[Case]:
    """All of them."""
    levels = scenes.make_levels()
    decoded = scenes.decoded_output(levels)
    rows = decoded.values[0]
    sparse = scenes.decoded_output(scenes.make_levels(cells=scenes.SPARSE))
    few = sparse.values[0]
    tensors = []
    for size in (FULL_HD, UHD_4K):
        variants, check = tensor_case(*size)
        tensors.append(Case('tensor', size, variants, check))
    return [
        _head_case(
            'yolov8_decoded',
            [decoded],
            {'filter_first': lambda: peers.filter_first(rows), 'numpy_usual': lambda: peers.numpy_usual(rows)},
        ),
        _head_case(
            'yolov8_sparse',
            [sparse],
            {'filter_first': lambda: peers.filter_first(few), 'numpy_usual': lambda: peers.numpy_usual(few)},
        ),
        _head_case('yolov8_dfl_int8', scenes.raw_outputs(levels), {'numpy_usual': lambda: peers.numpy_levels(levels)}),
        *tensors,
    ]


@contextlib.contextmanager
def one_cpu() -> Iterator[None]:
    """This thread on the last CPU that it may use, OpenCV without threads; afterwards as before."""
    every, threads = os.sched_getaffinity(0), cv2.getNumThreads()
    os.sched_setaffinity(0, {max(every)})
    cv2.setNumThreads(1)
    try:
        yield
    finally:
        cv2.setNumThreads(threads)
        os.sched_setaffinity(0, every)


def series(run: Callable[[], object], calls: int, figures: Mapping[str, float]) -> Series:
    """*calls* calls, one after the other."""
    latencies = []
    spent = time.thread_time_ns()
    for _ in range(calls):
        began = time.perf_counter_ns()
        run()
        latencies.append((time.perf_counter_ns() - began) / 1e3)
    return Series(latencies, (time.thread_time_ns() - spent) / 1e3 / calls, figures=figures)


def measure_decoding(repetitions: int, calls: int, say: Callable[[str], None], all_cases: Sequence[Case] | None = None) -> list[Row]:
    """Rows of all cases.

    :param calls: of each series.
    :param say: gets a line for each repetition.
    :raises BenchError: variants of a case don't yield the same.
    """
    measured = cases() if all_cases is None else all_cases
    books = [SeriesBook() for _ in measured]
    with one_cpu():
        for repetition in range(repetitions):
            began = time.monotonic()
            for case, book in zip(measured, books, strict=True):
                figures = case.check()
                order = list(case.variants)
                random.Random(f'{case.name} {repetition}').shuffle(order)
                for variant in order:
                    book.add(case.name, variant, case.condition, series(case.variants[variant], calls, figures.get(variant, {})))
            say(f'repetition {repetition + 1} of {repetitions}: {time.monotonic() - began:.0f} s')
    rows: list[Row] = []
    for case, book in zip(measured, books, strict=True):
        rows += make_rows(book.rounds(), [(case.name, variant) for variant in case.variants])
    return rows
