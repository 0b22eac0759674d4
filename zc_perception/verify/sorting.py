"""Sorts the raw evidence of copies by process: hits of the probe on ``memmove``, and samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from zc_perception.verify.evidence.kernel_event import Trace
from zc_perception.verify.evidence.kernel_symbols import name_at, read_kernel_copies
from zc_perception.verify.evidence.libc_functions import CodeMapping, code_of, find_copy_functions, libc_path
from zc_perception.verify.evidence.mappings import Mapping as MemoryMapping
from zc_perception.verify.evidence.memmove_probe import COPY, LARGE
from zc_perception.verify.evidence.processes import PROC
from zc_perception.verify.evidence.sampling import Samples
from zc_perception.verify.evidence.unreadable import Unreadable
from zc_perception.verify.evidence.unwind_table import function_range
from zc_perception.verify.observation import CopyShare, LargeCopy

_USER_END = 1 << 63


def copies_of(
    trace: Trace, process_of: Mapping[int, int], mappings: Collection[MemoryMapping], start_ns: int, end_ns: int
) -> list[LargeCopy]:
    """The nodes' large copies, and those out of frames, in a window; the most frequent first."""
    found: Counter[tuple[int, int, bool]] = Counter()
    for event in trace.events:
        pid = process_of.get(event.tid)
        if pid is None or not event.name.startswith(COPY) or not start_ns <= event.time_ns <= end_ns:
            continue
        size, source = event.number('n'), event.number('src')
        from_frame = any(mapping.pid == pid and source in mapping for mapping in mappings)
        if size >= LARGE or from_frame:
            found[pid, size, from_frame] += 1
    return [LargeCopy(pid, size, from_frame, count) for (pid, size, from_frame), count in found.most_common()]


def shares_of(samples: Samples, pids: Sequence[int], proc: Path = PROC) -> tuple[list[CopyShare] | None, list[Unreadable]]:
    """How much of each process's time went into copying; ``None``: it can't be told."""
    functions, unreadable = find_copy_functions(pids, proc)
    shares = []
    kernel_copies: list[tuple[int, int, str]] | None = None
    for pid in pids:
        met = samples.by_process.get(pid, Counter())
        ranges: list[tuple[int, int]] = []
        try:
            code: list[CodeMapping] = code_of(pid, proc)
            for function in functions:
                if pid in function.pids:
                    extent = function_range(function.file, function.offset)
                    ranges += function.ranges(code, extent.start, extent.end, libc_path(code))
        except OSError as error:
            unreadable.append(Unreadable(f'samples of process {pid}', str(error.strerror), 'measure while it runs'))
        if not ranges:
            continue
        in_kernel: Counter[str] = Counter()
        for address, count in met.items():
            if address >= _USER_END:
                if kernel_copies is None:
                    read = read_kernel_copies(proc)
                    kernel_copies = [] if isinstance(read, Unreadable) else read
                    unreadable += [read] if isinstance(read, Unreadable) else []
                name = name_at(kernel_copies, address)
                if name:
                    in_kernel[name] += count
        copying = sum(count for address, count in met.items() if any(start <= address < end for start, end in ranges))
        shares.append(CopyShare(pid, sum(met.values()), copying, dict(in_kernel)))
    return (shares or None), unreadable
