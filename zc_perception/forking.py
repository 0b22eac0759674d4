"""What becomes of this package's objects in a forked child: it has the parent's memory, but none of its threads, and nothing is its own.

Whoever has something that a child must not touch (leases, sockets, memory that the parent writes, locks that a thread of the parent may
hold) registers what forgets it by :func:`in_child`. This file owns the order: first nobody has a lease any more, then what counts leases
goes, then what would give them back.
"""

from __future__ import annotations

import inspect
import itertools
import os
import weakref
from collections.abc import Callable
from enum import IntEnum


class Turn(IntEnum):
    """When it is whose turn to forget."""

    FRAMES = 0
    POOLS = 1
    THREADS = 2
    LINKS = 3
    LOGS = 4


_Reference = Callable[[], 'Callable[[], object] | None']
_numbers = itertools.count()
_registered: dict[Turn, dict[int, _Reference]] = {turn: {} for turn in Turn}


def in_child(turn: Turn, forget: Callable[[], object]) -> None:
    """Call *forget* in each child that is forked from now on.

    :param forget: a method is called as long as its object lives. It is the only thread's; no lock of the parent's can be had.
    """
    number, waiting = next(_numbers), _registered[turn]
    waiting[number] = (
        weakref.WeakMethod(forget, lambda _: waiting.pop(number, None))
        if inspect.ismethod(forget)
        else lambda: forget
    )


def _forked() -> None:
    for turn in Turn:
        for reference in list(_registered[turn].values()):
            forget = reference()
            if forget is not None:
                forget()


os.register_at_fork(after_in_child=_forked)
