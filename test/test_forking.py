"""Who forgets what in a forked child, and in which order."""

from __future__ import annotations

import gc
import os
import weakref

from zc_perception.forking import in_child, Turn


def in_a_child(look: object) -> str:
    """Return what *look* writes there."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.write(writing, ''.join(look).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    os.waitpid(pid, 0)
    return said


class Owner:
    def __init__(self, name: str, said: list[str], turn: Turn) -> None:
        self.name, self.said = name, said
        in_child(turn, self.forget)

    def forget(self) -> None:
        self.said.append(self.name)


def test_each_forgets_in_its_turn_as_long_as_it_lives() -> None:
    said: list[str] = []
    log, link = Owner('log ', said, Turn.LOGS), Owner('link ', said, Turn.LINKS)
    gone, first = Owner('gone ', said, Turn.LINKS), Owner('frames ', said, Turn.FRAMES)
    del gone
    gc.collect()
    assert in_a_child(said) == 'frames link log ' and said == []
    owners = [weakref.ref(owner) for owner in (log, link, first)]
    del log, link, first
    gc.collect()
    assert [owner() for owner in owners] == [None] * 3, 'nothing is kept'
