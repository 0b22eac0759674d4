"""A process without memory or descriptors left: a mapping is refused with advice about that, and works when there are some."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from zc_perception.errors import AllocationError
from zc_perception.memory.heaps import SealedMemfd

pytestmark = pytest.mark.usefixtures('no_fd_leak')


@contextmanager
def limited(which: int, soft: int) -> Iterator[None]:
    before = resource.getrlimit(which)
    resource.setrlimit(which, (soft, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(which, before)


def next_free() -> int:
    free = os.dup(0)
    os.close(free)
    return free


def in_use() -> int:
    return int(Path('/proc/self/statm').read_text(encoding='ascii').split()[0]) * os.sysconf('SC_PAGESIZE')


@pytest.mark.parametrize(('which', 'soft', 'words'), [
    (resource.RLIMIT_NOFILE, next_free, r"Too many open files; this process has no file descriptor left.*'ulimit -n'"),
    (resource.RLIMIT_AS, in_use, r"Cannot allocate memory; use fewer slots or a smaller image.*'ulimit -v'"),
])  # fmt: skip
def test_a_mapping_is_refused_with_advice_and_works_afterwards(which: int, soft: object, words: str) -> None:
    buffer = SealedMemfd().allocate(256 << 20)
    assert callable(soft)
    with limited(which, soft()), pytest.raises(AllocationError, match=words):
        buffer.mapping()
    assert len(buffer.mapping()) == buffer.size
    buffer.close()
