"""What is said to whoever may not look: to be root, or which capabilities a root of a container lacks."""

from __future__ import annotations

from pathlib import Path

import pytest

from zc_perception.observe.privileges import as_root

PTRACE, ADMIN = 1 << 19, 1 << 21


def told(tmp_path: Path, effective: int, *needed: str) -> str:
    status = tmp_path / 'status'
    status.write_text(f'Name:\tpython\nCapPrm:\t000001ffffffffff\nCapEff:\t{effective:016x}\n')
    return as_root(*needed, user=0, status=status)


def test_who_is_not_root_is_to_be(tmp_path: Path) -> None:
    assert as_root(user=1000, status=tmp_path / 'nowhere') == 'run as root'


@pytest.mark.parametrize(
    ('effective', 'needed', 'lacking', 'not_said'),
    [
        (
            0,
            (),
            ('CAP_SYS_PTRACE and CAP_SYS_ADMIN', '--cap-add SYS_PTRACE --cap-add SYS_ADMIN'),
            'run as root',
        ),
        (PTRACE, (), ('CAP_SYS_ADMIN', '--cap-add SYS_ADMIN'), 'PTRACE'),
        (ADMIN, (), ('CAP_SYS_PTRACE', '--cap-add SYS_PTRACE'), 'ADMIN'),
        (0, ('CAP_SYS_PTRACE',), ('CAP_SYS_PTRACE', '--cap-add SYS_PTRACE'), 'ADMIN'),
    ],
)
def test_a_root_is_told_what_it_lacks(
    effective: int,
    needed: tuple[str, ...],
    lacking: tuple[str, ...],
    not_said: str,
    tmp_path: Path,
) -> None:
    text = told(tmp_path, effective, *needed)
    assert all(words in text for words in lacking) and not_said not in text


def test_a_root_that_has_them_is_one_of_a_container(tmp_path: Path) -> None:
    assert 'of the machine itself' in told(tmp_path, PTRACE | ADMIN) and '--cap-add' not in told(
        tmp_path, PTRACE | ADMIN
    )


def test_capabilities_that_are_not_shown_are_none(tmp_path: Path) -> None:
    assert 'CAP_SYS_PTRACE and CAP_SYS_ADMIN' in as_root(user=0, status=tmp_path / 'nowhere')
