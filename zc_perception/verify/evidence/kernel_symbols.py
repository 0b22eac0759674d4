"""Addresses of the kernel's own copy functions, by ``/proc/kallsyms``."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable
from pathlib import Path

from zc_perception.verify.evidence.processes import PROC
from zc_perception.verify.evidence.unreadable import Unreadable, unreadable_file

_SYMBOL = re.compile(
    rb'^([0-9a-f]{8,16}) [tTwW] ((?:_*(?:memcpy|memmove)(?:_\w+)?|_*(?:arch_)?copy_(?:from|to|in)_user(?:_\w+)?|copy_user_generic\w*'
    rb'|rep_movs_alternative))(?:\t[^\n]*)?\n(?=([0-9a-f]{8,16}) |)',
    re.MULTILINE,
)
_OTHERWISE = 4096


def parse_kernel_copies(text: bytes) -> list[tuple[int, int, str]]:
    """``(start, end, name)`` of the functions that copy."""
    symbols = [(int(match[1], 16), int(match[3] or b'0', 16), match[2].decode()) for match in _SYMBOL.finditer(text)]
    # Several names may stand for one place.
    ends = sorted({place for start, following, _ in symbols for place in (start, following)})
    found = []
    for start, _, name in symbols:
        index = bisect_right(ends, start)
        end = min(ends[index], start + _OTHERWISE) if index < len(ends) else start + _OTHERWISE
        found.append((start, end, name))
    return found


def read_kernel_copies(proc: Path = PROC) -> list[tuple[int, int, str]] | Unreadable:
    """Of the running kernel."""
    path = proc / 'kallsyms'
    try:
        found = parse_kernel_copies(path.read_bytes())
    except OSError as error:
        return unreadable_file(path, error, 'use a kernel with CONFIG_KALLSYMS', 'kernel symbols')
    if not any(start for start, _, _ in found):
        return Unreadable('kernel symbols', 'the kernel shows no addresses', 'run as root, with sysctl kernel.kptr_restrict=1 or 0')
    return found


def name_at(symbols: Iterable[tuple[int, int, str]], address: int) -> str:
    """The copy function at an address; empty: none."""
    return next((name for start, end, name in symbols if start <= address < end), '')
