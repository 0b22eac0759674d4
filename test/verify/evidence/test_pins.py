"""Pipes and rings that may hold pages which nobody has mapped."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from zc_perception.verify.evidence.pins import PAGE, find_pins

OWN = [os.getpid()]


@pytest.fixture(params=['pipe', 'named'])
def pipe(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[int]:
    """Its writing end."""
    if request.param == 'pipe':
        reading, writing = os.pipe()
    else:
        os.mkfifo(tmp_path / 'fifo')
        reading = os.open(tmp_path / 'fifo', os.O_RDONLY | os.O_NONBLOCK)
        writing = os.open(tmp_path / 'fifo', os.O_WRONLY)
    yield writing
    os.close(reading)
    os.close(writing)


def found(size: int) -> list[str]:
    """Pipes with so many bytes: the process that runs the tests may have others."""
    return [line for line in find_pins(OWN) if line.endswith(f' has a pipe with {size} bytes in it')]


def test_a_pipe_with_room_in_use_for_a_page_may_hold_one(pipe: int) -> None:
    os.write(pipe, b'x' * (PAGE - 1))
    assert found(PAGE - 1) == []
    os.write(pipe, b'xy')
    (line,) = found(PAGE + 1)
    assert line.startswith(f'process {os.getpid()} (')


def ring(proc: Path, text: str) -> list[str]:
    """What is found of a ring whose fdinfo is this."""
    for folder in ('fd', 'fdinfo'):
        (proc / '7' / folder).mkdir(parents=True)
    (proc / '7' / 'comm').write_text('reader\n')
    (proc / '7' / 'fd' / '5').symlink_to('anon_inode:[io_uring]')
    (proc / '7' / 'fdinfo' / '5').write_text(text)
    (proc / '7' / 'fd' / '6').symlink_to('pipe:[1]')  # closed meanwhile
    return find_pins(proc=proc)


def test_a_ring_with_registered_buffers_may_hold_pages(tmp_path: Path) -> None:
    text = 'pos:\t0\nSqMask:\t0x7\nUserFiles:\t0\nUserBufs:\t2\n    0: 0x7f0000000000/65536\n'
    assert ring(tmp_path, text) == ['process 7 (reader) has an io_uring with 2 registered buffers']


@pytest.mark.parametrize('text', ['UserBufs:\t0\n', ''])
def test_a_ring_without_them_holds_none(text: str, tmp_path: Path) -> None:
    assert ring(tmp_path, text) == []


def test_a_process_that_has_ended_has_none(tmp_path: Path) -> None:
    (tmp_path / '8').mkdir()
    assert find_pins(proc=tmp_path) == []
